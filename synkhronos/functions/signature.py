"""The signature of a function: its outputs and updates with their ops, and the values that a call gives. Pure."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Callable, Dict, ItemsView, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..reductions import MISSING, ReduceOp


class _Kept:
    """The value that every rank has of an input with a state."""

    def __repr__(self) -> str:
        return "the value that is kept"


#: Given to a call in the place of an input's value.
KEPT: Any = _Kept()

#: The keywords of a call.
KEYWORDS = ("batch", "batch_s", "num_slices", "output_subset", "timeout")


class _Default(int):
    """A number that the caller has not given: an input of that name may have another value by default."""


#: The default of ``num_slices``.
ONE_CALL: int = _Default(1)


class Form(NamedTuple):
    """The form in which a call returns its outputs: as they were given to `function`."""

    keys: Optional[List[str]] = None  # of a dict, in the order of the engine (sorted)
    single: bool = False

    def wrap(self, results: List[Any], subset: Optional[Sequence[int]]) -> Any:
        """Return the (chosen) outputs in that form; chosen ones are always in a list, as in Theano."""
        if self.keys is not None:
            return dict(zip(self.keys if subset is None else [self.keys[i] for i in subset], results))
        return results[0] if self.single and subset is None else results

    def flat(self, wrapped: Any, subset: Optional[Sequence[int]]) -> List[Any]:
        """Return as a list what `wrap` has put into that form."""
        if self.keys is not None:
            return list(wrapped.values())
        return [wrapped] if self.single and subset is None else list(wrapped)


class Outputs(NamedTuple):
    """The outputs without their ops, and the ops, flat."""

    variables: Any  # what the engine's own function takes
    ops: List[Any]  # one per output, in the order of the engine; MISSING if none was given
    form: Form


def check_name(name: Any) -> None:
    """Refuse a name of a function, which travels with every call, that is neither a str nor None."""
    if name is not None and not isinstance(name, str):
        raise ArgumentTypeError("name", "a str", f"{name!r} of type {type(name).__name__}")


def parse_outputs(outputs: Any) -> Outputs:
    """Take ``outputs`` apart: None, one output, a list, or a dict; each ``variable`` or ``(variable, op)``.

    Raises
    ------
    TypeError
        If a tuple is not ``(variable, op)``, or a key is not a string.
    """
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
    """Return whether a tuple is ``(variable, op)``; it may also be a tuple of outputs."""
    return isinstance(thing, tuple) and len(thing) == 2 and (thing[1] is None or isinstance(thing[1], (str, ReduceOp)))


def _split(output: Any, position: Any) -> Tuple[Any, Any]:
    if not isinstance(output, tuple):
        return output, MISSING
    if len(output) != 2:
        raise ArgumentTypeError(f"outputs[{position!r}]", "a variable or (variable, op)", repr(output))
    return output


def parse_updates(updates: Any, label: Callable[[Any], str]) -> Tuple[List[Tuple[Any, Any]], List[Any]]:
    """Take ``updates`` apart: a dict, its items, or a list of ``(shared, expression)`` or ``(shared, expression, op)``.

    Returns
    -------
    pairs : list of (shared, expression)
    ops : list
        MISSING if none was given.

    Raises
    ------
    TypeError
        If it has another form.
    ValueError
        If a shared variable is listed twice.
    """
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
    """Return the positions that ``output_subset`` names: integers, or keys if the outputs are a dict.

    Raises
    ------
    TypeError
        If it is not a list.
    ValueError
        If there is no such output.
    """
    if not isinstance(subset, (list, tuple)):
        expected = f"a list of {'keys' if keys else 'positions'}"
        raise ArgumentTypeError("output_subset", expected, type(subset).__name__)
    positions: Dict[Any, int] = {key: i for i, key in enumerate(keys)} if keys else {i: i for i in range(n)}
    for entry in subset:
        if isinstance(entry, bool) or not isinstance(entry, (str, int, np.integer)) or entry not in positions:
            expected = f"some of {', '.join(map(repr, positions))}" if positions else "no outputs, for there are none"
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
    """Return one value per input: given by position or by name, or its default.

    Parameters
    ----------
    inputs, labels, name
        Of the function; labels are how messages call its inputs.
    args, kwargs
        As given by position and by name.
    default : callable
        From an input that has a default to its value; `KEPT` is the value of one that keeps it between calls.
    keywords : mapping, optional
        The call's own keywords, of which those were given that are neither None, False nor `ONE_CALL`. An input of
        such a name is passed by position.

    Raises
    ------
    TypeError
        If there are too many, one is given twice or is missing, or a name is not known; if a keyword of the call was
        given, and an input of that name was not.
    """
    if len(args) == len(inputs) and not kwargs:
        return list(args)
    call = f"function {name}" if name else "the function"
    if len(args) > len(inputs):
        raise ArgumentTypeError(call, f"at most {len(inputs)} inputs", str(len(args)))
    values: Dict[int, Any] = dict(enumerate(args))
    for key, value in kwargs.items():
        positions = [i for i, given in enumerate(inputs) if given.name == key]
        if not positions:
            names = ", ".join(repr(given.name) for given in inputs if given.name)
            expected = f"inputs called {names}" if names else "inputs by position, because none has a name"
            raise ArgumentTypeError(call, expected, repr(key))
        if len(positions) > 1:
            got = f"{key!r}, which is the name of {len(positions)} inputs"
            raise ArgumentTypeError(call, "names that one input has", got, "give them by position")
        if positions[0] in values:
            got = f"{labels[positions[0]]} by position and by name"
            raise ArgumentTypeError(call, "each input once", got)
        values[positions[0]] = value
    for i, given in enumerate(inputs):
        if i not in values:
            value = None if keywords is None else keywords.get(given.name)
            if value is not None and value is not False and value is not ONE_CALL:
                expected = f"{labels[i]} by position, because {given.name} is a keyword of the call, too"
                raise ArgumentTypeError(call, expected, f"{given.name} by name")
            if not given.has_default:
                raise ArgumentTypeError(call, f"a value for {labels[i]}", "none")
            values[i] = KEPT if given.state is not None else default(given)
    return [values[i] for i in range(len(inputs))]
