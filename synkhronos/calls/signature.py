"""Parse a function's inputs, outputs and updates, and bind the arguments of a call, without side effects.

Arrays are transferred, divided, selected and sliced as views with their rows first. The rows passed to a rank's
function, and the outputs returned on the master, are in the axis order of the graph.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Callable, Dict, ItemsView, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..program.program import PROGRAM
from ..reductions import MISSING, ReduceOp


class _Kept:
    """Placeholder for an input's value that every rank keeps between calls."""

    def __repr__(self) -> str:
        return "the kept value"


KEPT: Any = _Kept()

KEYWORDS = ("batch", "batch_s", "num_slices", "output_subset", "timeout")


def one_of(name: str, value: Any, former: str, former_value: Any) -> Any:
    """Return the value of a keyword argument that may be passed by its ``former`` name instead."""
    if value is None:
        return former_value
    if former_value is not None:
        raise ArgumentTypeError(former, f"no value, because {name}, its new name, is also passed", repr(former_value))
    return value


class _Default(int):
    """Default of a keyword; its identity distinguishes it from an equal number that the caller passed."""


ONE_CALL: int = _Default(1)


class Form(NamedTuple):
    """The form of a call's outputs: a single output, a list or a dict, as passed to `function`."""

    keys: Optional[List[str]] = None  # the keys of a dict of outputs, in the engine's (sorted) order
    single: bool = False

    def wrap(self, results: List[Any], subset: Optional[Sequence[int]]) -> Any:
        """Return the outputs in this form; a subset of outputs without keys is always a list, as in Theano."""
        if self.keys is not None:
            return dict(zip(self.keys if subset is None else [self.keys[i] for i in subset], results))
        return results[0] if self.single and subset is None else results

    def flat(self, wrapped: Any, subset: Optional[Sequence[int]]) -> List[Any]:
        """Undo `wrap`: return the outputs as a list."""
        if self.keys is not None:
            return list(wrapped.values())
        return [wrapped] if self.single and subset is None else list(wrapped)


class Outputs(NamedTuple):
    """A function's outputs and their ops as flat lists, and the form of the outputs."""

    variables: Any  # accepted by the engine's own function
    ops: List[Any]  # one per output, in the engine's order; MISSING if it has no op
    form: Form


def check_name(name: Any) -> None:
    """Raise `TypeError` if a function name, which is sent with every call, is neither a str nor None."""
    if name is not None and not isinstance(name, str):
        raise ArgumentTypeError("name", "a str", f"{name!r} of type {type(name).__name__}")


def parse_outputs(outputs: Any) -> Outputs:
    """Parse ``outputs``: None, one output, a list or a dict; each output is ``variable`` or ``(variable, op)``."""
    if outputs is None:
        return Outputs(None, [], Form())
    if isinstance(outputs, dict):
        for key in outputs:
            if not isinstance(key, str):
                raise ArgumentTypeError("outputs", "strings as the keys of a dict", repr(key))
        keys = sorted(outputs)
        pairs = [_split(outputs[key], key) for key in keys]
        return Outputs({key: variable for key, (variable, _) in zip(keys, pairs)}, [op for _, op in pairs], Form(keys))
    if isinstance(outputs, list) or isinstance(outputs, tuple) and not _is_pair(outputs):
        pairs = [_split(output, i) for i, output in enumerate(outputs)]
        return Outputs([variable for variable, _ in pairs], [op for _, op in pairs], Form())
    variable, op = _split(outputs, 0)
    return Outputs(variable, [op], Form(single=True))


def _is_pair(thing: Any) -> bool:
    """Return whether a value is a pair ``(variable, op)`` rather than, for example, a tuple of outputs."""
    return isinstance(thing, tuple) and len(thing) == 2 and (thing[1] is None or isinstance(thing[1], (str, ReduceOp)))


def _split(output: Any, position: Any) -> Tuple[Any, Any]:
    if not isinstance(output, tuple):
        return output, MISSING
    if len(output) != 2:
        raise ArgumentTypeError(f"outputs[{position!r}]", "a variable or (variable, op)", repr(output))
    return output


def parse_updates(updates: Any, label: Callable[[Any], str]) -> Tuple[List[Tuple[Any, Any]], List[Any]]:
    """Parse ``updates`` (a dict, its items or a list of tuples) into pairs ``(shared, expression)`` and their ops."""
    if updates is None:
        return [], []
    if isinstance(updates, Mapping):
        entries: Sequence[Any] = [
            (shared,) + expression if _is_pair(expression) else (shared, expression)
            for shared, expression in updates.items()
        ]
    elif isinstance(updates, (list, tuple, ItemsView)):
        entries = list(updates)
    else:
        raise ArgumentTypeError(
            "updates",
            "a dict or a list of (shared, expression) or (shared, expression, op)",
            type(updates).__name__,
        )
    pairs, ops, seen = [], [], set()
    for position, entry in enumerate(entries):
        if not isinstance(entry, (list, tuple)) or len(entry) not in (2, 3):
            expected = "(shared, expression) or (shared, expression, op)"
            raise ArgumentTypeError(f"updates[{position}]", expected, repr(entry))
        if id(entry[0]) in seen:
            got = f"{label(entry[0])}, which is listed twice"
            raise ArgumentValueError(f"updates[{position}]", "one update of each shared variable", got)
        seen.add(id(entry[0]))
        pairs.append((entry[0], entry[1]))
        ops.append(entry[2] if len(entry) == 3 else MISSING)
    return pairs, ops


def output_indices(subset: Any, keys: Optional[Sequence[str]], n: int) -> List[int]:
    """Return the positions that ``output_subset`` lists as integers, or as keys if the outputs are a dict."""
    if not isinstance(subset, (list, tuple)):
        expected = f"a list of {'keys' if keys else 'positions'}"
        raise ArgumentTypeError("output_subset", expected, type(subset).__name__)
    positions: Dict[Any, int] = {key: i for i, key in enumerate(keys)} if keys else {i: i for i in range(n)}
    for entry in subset:
        if isinstance(entry, bool) or not isinstance(entry, (str, int, np.integer)) or entry not in positions:
            expected = f"some of {', '.join(map(repr, positions))}" if positions else "none, as there are no outputs"
            raise ArgumentValueError("output_subset", expected, repr(entry))
    return [positions[entry] for entry in subset]


def bind(
    inputs: Sequence[Any],
    labels: Sequence[str],
    name: Optional[str],
    args: Tuple[Any, ...],
    kwargs: Dict[str, Any],
    default: Callable[[Any], Any] = attrgetter("default"),
    keywords: Optional[Mapping[str, Any]] = None,
) -> List[Any]:
    """Return the value of each input, passed by position or by name, or else its default.

    ``labels`` name the inputs in messages. ``default`` returns an input's default; `KEPT` stands for a value that
    ranks keep. ``keywords`` are the call's own keyword arguments; each was passed unless it is None, False or
    `ONE_CALL`. An input with the name of such a keyword must be passed by position.
    """
    if len(args) == len(inputs) and not kwargs:
        return list(args)
    call = f"function {name}" if name else "the function"
    if len(args) > len(inputs):
        raise ArgumentTypeError(call, f"at most one value per input ({len(inputs)} in total)", str(len(args)))
    values: Dict[int, Any] = dict(enumerate(args))
    for key, value in kwargs.items():
        positions = [i for i, given in enumerate(inputs) if given.name == key]
        if not positions:
            names = ", ".join(repr(given.name) for given in inputs if given.name)
            expected = f"inputs called {names}" if names else "inputs by position, because none has a name"
            raise ArgumentTypeError(call, expected, repr(key))
        if len(positions) > 1:
            got = f"{key!r}, which is the name of {len(positions)} inputs"
            raise ArgumentTypeError(call, "names that belong to a single input", got, "pass them by position")
        if positions[0] in values:
            got = f"{labels[positions[0]]} by position and by name"
            raise ArgumentTypeError(call, "each input once", got)
        values[positions[0]] = value
    for i, given in enumerate(inputs):
        if i not in values:
            value = None if keywords is None else keywords.get(given.name)
            if value is not None and value is not False and value is not ONE_CALL:
                expected = f"{labels[i]} by position, because {given.name} is also a keyword of the call"
                raise ArgumentTypeError(call, expected, f"{given.name} by name")
            if not given.has_default:
                raise ArgumentTypeError(call, f"a value for {labels[i]}", "none")
            values[i] = KEPT if given.state is not None else default(given)
    return [values[i] for i in range(len(inputs))]


class Sharded(NamedTuple):
    """A variable and its axis of rows, as returned by `sharded`."""

    variable: Any
    axis: Optional[int]  # None for an input that is sent whole (`functions`)


def sharded(x: Any, axis: int = 0) -> Sharded:
    """Mark the axis of rows of a variable, in the ``inputs`` or ``sliceable_shareds`` of `function`.

    Lengths, ``batch``, ``batch_shared``, slices and weights refer to that axis. `scatter` and `gather` accept ``axis``.

    A shared variable in ``inputs`` has the *batch's* rows, for example the hidden state of each sequence in a
    recurrent network. Calls have no argument for it. Every rank uses and updates its own rows. Between calls,
    ``get_value`` returns the rows of all ranks, and ``set_value`` replaces them, even with a different number of rows.
    A call must have as many rows as the variable and cannot be made in slices. Collectives reject the variable, and so
    do functions that use it without listing it.

    Parameters
    ----------
    x : variable (or ``theano.In``), or shared variable
        The number of dimensions must exceed ``axis``; `function` checks this.
    axis : int
        A negative axis counts from the last axis.

    Returns
    -------
    Sharded

    Raises
    ------
    TypeError
        If ``axis`` is not an int.

    Examples
    --------
    Sequences for a recurrent network, with time as the first axis; each rank receives all time steps of its sequences:

    >>> import synkhronos as synk
    >>> import theano.tensor as T
    >>> synk.fork(2)
    2
    >>> x = T.dmatrix("x")                      # of shape (n_times, n_sequences)
    >>> f = synk.function([synk.sharded(x, axis=1)], [x.sum(axis=0), x.cumsum(axis=0)])
    >>> f([[1., 2., 3.], [4., 5., 6.]])
    [array([5., 7., 9.]), array([[1., 2., 3.],
           [5., 7., 9.]])]
    """
    if isinstance(axis, (bool, np.bool_)) or not isinstance(axis, (int, np.integer)):
        raise ArgumentTypeError("axis", "an int", f"{axis!r} of type {type(axis).__name__}")
    return Sharded(x, int(axis))


def unwrapped(variables: Sequence[Any]) -> List[Sharded]:
    """Return all variables as `Sharded`; plain variables get axis 0."""
    return [each if isinstance(each, Sharded) else Sharded(each, 0) for each in variables]


class WrittenRows(NamedTuple):
    """A literal number of rows, required in all calls if ``is_own``, otherwise only if the graph contains it."""

    rows: int
    is_own: bool

    @classmethod
    def of(cls, rows: Any) -> Optional[WrittenRows]:
        """Return the number of rows passed to `function`, or else to `fork`; None if neither received one."""
        if isinstance(rows, cls):
            return rows
        if rows is None:
            return None if PROGRAM.rows is None else cls(PROGRAM.rows, False)
        if isinstance(rows, (bool, np.bool_)) or not isinstance(rows, (int, np.integer)):
            raise ArgumentTypeError("rows", "an int", f"{rows!r} of type {type(rows).__name__}")
        if rows < 1:
            raise ArgumentValueError("rows", "at least 1", str(rows))
        return cls(int(rows), True)
