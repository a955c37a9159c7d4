"""Pickles of compiled functions, in which objects that both sides already hold are only named.

Two functions that are pickled at different times still share their variables
on the other side, because the variables and their storage are *named* in the
pickle (the persistent ids of the `pickle` module) and looked up there. What
is defined in ``__main__`` or in a notebook cell is sent by value
(cloudpickle)::

    master                                   rank
    graph  +--------------------------+      graph
    [storage 3] -> ("storage", 3)     | -->  replicas[3].storage
    [variable 3] -> ("variable", 3)   | -->  replicas[3]
    [constant] -> ("constant", place) | -->  the array at that place in shared memory
           +---- bytes ---------------+
"""

from __future__ import annotations

import gc
import io
import pickle
import sys
import threading
from typing import Any, Callable, Dict, Hashable, Iterable, List, Mapping, Sequence, Tuple

import cloudpickle

from ..errors import SynkhronosError
from ..host.signals import DeferredSignals

#: C stack for a graph that is thousands of operations deep: pickling goes one level down per operation, and what it
#: does not touch of this costs address space only. Smaller if the address space is limited.
STACK_SIZES = (512 << 20, 128 << 20, 32 << 20)
RECURSION_LIMIT = 10**6

# The recursion limit and the size of new threads' stacks belong to the whole process.
_one_at_a_time = threading.Lock()


def deep(function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, run in a thread whose recursion may go thousands of levels deep."""
    outcome: List[Any] = []

    def work() -> None:
        try:
            outcome[:] = [True, function(*args)]
        except BaseException as error:  # raised again below, in the thread that asked
            outcome[:] = [False, error]

    # The limit must not fall while the thread is deep (that is a fatal error of the interpreter), so Ctrl-C has to wait
    # until the thread is done.
    with DeferredSignals(), _one_at_a_time:
        limit = sys.getrecursionlimit()
        try:
            _start(work).join()
        finally:
            sys.setrecursionlimit(limit)
    done, result = outcome
    if not done:
        raise result
    return result


def _start(work: Callable[[], None]) -> threading.Thread:
    """Start a thread with a deep stack, under a recursion limit to match."""
    sys.setrecursionlimit(max(RECURSION_LIMIT, sys.getrecursionlimit()))
    for size in STACK_SIZES:
        before = threading.stack_size(size)
        try:
            thread = threading.Thread(target=work, name="synkhronos pickling", daemon=True)
            thread.start()
            return thread
        except RuntimeError as error:  # no room for a stack of that size
            if size == STACK_SIZES[-1]:
                raise SynkhronosError(
                    f"functions cannot be sent or loaded: a thread with a deep stack is needed, and {error}; see "
                    "ulimit -u (processes and threads) and ulimit -v (address space)"
                ) from error
        finally:
            threading.stack_size(before)
    raise AssertionError("unreachable")


def names(
    numbers: Mapping[Hashable, int], variables: Mapping[int, int], constants: Mapping[int, Any]
) -> Mapping[int, Tuple[str, Any]]:
    """Return by which name the pickle refers to an object, by the object's ``id``.

    The caller keeps the objects alive: a new object may get the ``id`` of a dead one.
    """
    known: Dict[Any, Tuple[str, Any]] = {storage: ("storage", number) for storage, number in numbers.items()}
    known.update({variable: ("variable", number) for variable, number in variables.items()})
    known.update({constant: ("constant", place) for constant, place in constants.items()})
    return known


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    def __init__(self, file: io.BytesIO, known: Mapping[int, Tuple[str, Any]], reduce: Callable[[Any], Any]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._known = known
        self._reduce = reduce

    def persistent_id(self, thing: Any) -> Any:
        return self._known.get(id(thing))

    def reducer_override(self, thing: Any) -> Any:
        reduced = self._reduce(thing)
        return super().reducer_override(thing) if reduced is NotImplemented else reduced


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, find: Callable[[str, Any], Any]) -> None:
        super().__init__(file)
        self._find = find

    def persistent_load(self, name: Tuple[str, Any]) -> Any:
        return self._find(*name)


def dumps(
    functions: Sequence[Any],
    known: Mapping[int, Tuple[str, Any]],
    reduce: Callable[[Any], Any],
    label: Callable[[Any], str],
    parts: Callable[[Any], Iterable[Tuple[str, Any]]],
    before: Callable[[Any], Iterable[Any]] = lambda function: (),
) -> bytes:
    """Pickle the functions.

    Parameters
    ----------
    functions
        The functions.
    known
        From `names`.
    reduce
        What ``pickle.Pickler.reducer_override`` is: the engine's own way to pickle an object, or NotImplemented.
    label
        How messages name a function.
    parts
        The parts of a function, with their names in messages, in which to look for what does not pickle.
    before
        What to pickle before a function: the nodes of its graph, each after those that it needs, so that pickling does
        not go as deep as the graph is. (Since Python 3.12 C code cannot, however deep the stack.)

    Raises
    ------
    TypeError
        If something cannot be pickled; names the function and the object.
    """

    def dump(thing: Any, found: Sequence[Any] = ()) -> bytes:
        file = io.BytesIO()
        _Pickler(file, known, reduce).dump(([one for function in found for one in before(function)], thing))
        return file.getvalue()

    def pickles(thing: Any) -> bool:
        try:
            dump(thing)
        except Exception:
            return False
        return True

    def search() -> str:
        for function in functions:
            if not pickles(function):
                for name, part in parts(function):
                    if not pickles(part):
                        return f"{label(function)} cannot be sent to the other ranks: {name} does not pickle"
                return f"{label(function)} cannot be sent to the other ranks: it does not pickle"
        return "the functions {} cannot be sent to the other ranks together".format(", ".join(map(label, functions)))

    with DeferredSignals():  # so that what is raised here is raised by pickling
        try:
            data: bytes = deep(dump, list(functions), functions)
            return data
        except MemoryError:
            raise
        except Exception as error:
            raise TypeError(
                f"{deep(search)} ({type(error).__name__}: {error}); leave it out of the graph, or give its "
                "class a __reduce__"
            ) from error


def loads(data: Any, find: Callable[[str, Any], Any]) -> List[Any]:
    """Load what `dumps` made.

    Parameters
    ----------
    data
        Bytes or a view of them.
    find
        Returns the object for a name: ``find("storage", number)``, ``find("variable", number)``, ``find("constant",
        place)``.
    """

    def load() -> List[Any]:
        # A graph is a hundred thousand objects, none of which is garbage: collecting it takes a quarter of the time.
        collecting = gc.isenabled()
        gc.disable()
        try:
            functions: List[Any] = _Unpickler(io.BytesIO(data), find).load()[1]
            return functions
        finally:
            if collecting:
                gc.enable()

    loaded: List[Any] = deep(load)
    return loaded
