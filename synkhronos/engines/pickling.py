"""Pickles of compiled functions that refer by name to objects that both sides already have.

Definitions from ``__main__`` or a notebook are sent by value (cloudpickle). Functions pickled at different times still
share variables, because the pickle *names* variables and storages (persistent ids of `pickle`)::

    master                                   rank
    graph  +--------------------------+      graph
    [storage 3] -> ("storage", 3)     | -->  replicas[3].storage
    [variable 3] -> ("variable", 3)   | -->  replicas[3]
    [constant] -> ("constant", place) | -->  the array at that address in shared memory
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

#: Stack sizes to try, in bytes. Pickling may recurse once per operation of a graph; the smaller sizes are for
#: processes with little address space.
STACK_SIZES = (512 << 20, 128 << 20, 32 << 20)
RECURSION_LIMIT = 10**6

# The recursion limit and the stack size of new threads are process-wide.
_one_at_a_time = threading.Lock()

#: Called in each thread before it uses the device; opening a CUDA device sets it.
prepare_thread: Callable[[], object] = bool


def deep(function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, run in a thread that can recurse thousands of levels deep."""
    outcome: List[Any] = []

    def work() -> None:
        try:
            prepare_thread()
            outcome[:] = [True, function(*args)]
        except BaseException as error:  # raised again below, in the calling thread
            outcome[:] = [False, error]

    # Lowering the recursion limit below the thread's depth could crash the interpreter, so Ctrl-C waits for the thread.
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
    """Start a thread with a large stack and a high recursion limit."""
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
                    f"functions cannot be sent or loaded: this requires a thread with a large stack ({error}); see "
                    "ulimit -u (processes and threads) and ulimit -v (address space)"
                ) from error
        finally:
            threading.stack_size(before)
    raise AssertionError("unreachable")


def names(
    numbers: Mapping[Hashable, int], variables: Mapping[int, int], constants: Mapping[int, Any]
) -> Mapping[int, Tuple[str, Any]]:
    """Map the ``id`` of each object, which the caller must keep alive, to its name in the pickle."""
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
    """Pickle the functions; a TypeError names the function and, if found, the object that cannot be pickled.

    ``known`` is a result of `names`; ``reduce`` works like ``pickle.Pickler.reducer_override``. ``before`` returns a
    function's nodes in topological order. They are pickled first, because Python 3.12 and later limit the recursion
    of C code, however large the stack is.
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
                        return f"{label(function)} cannot be sent to the other ranks: {name} cannot be pickled"
                return f"{label(function)} cannot be sent to the other ranks: it cannot be pickled"
        return "functions cannot be sent to the other ranks in one pickle: " + ", ".join(map(label, functions))

    with DeferredSignals():  # so that only pickling can raise an exception here
        try:
            data: bytes = deep(dump, list(functions), functions)
            return data
        except MemoryError:
            raise
        except Exception as error:
            raise TypeError(
                f"{deep(search)} ({type(error).__name__}: {error}); leave this object out of the graph, or define "
                "__reduce__ in its class"
            ) from error


def loads(data: Any, find: Callable[[str, Any], Any]) -> List[Any]:
    """Load functions pickled by `dumps`; ``find(kind, number_or_place)`` returns the object with that name."""

    def load() -> List[Any]:
        # Loading creates many objects, but hardly any garbage, so garbage collection would only waste time.
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
