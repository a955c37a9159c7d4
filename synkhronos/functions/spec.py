"""What a user gives to `function`, taken apart: outputs, updates, and the op of each. Pure."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..reduce_op import MISSING, ReduceOp

#: Names that a call keeps for itself.
RESERVED = ("batch", "batch_s", "num_slices", "output_subset", "timeout")


class Outputs(NamedTuple):
    """The outputs without their ops, in the form in which they were given, and the ops, flat."""

    form: Any  # what the engine's own function takes
    ops: List[Any]  # one per output, in the order of the engine (a dict's sorted by key); MISSING where none was given
    keys: Optional[List[str]]  # of a dict
    single: bool


def parse_outputs(outputs: Any) -> Outputs:
    """Take ``outputs`` apart: None, one output, a list, or a dict; each ``variable`` or ``(variable, op)``."""
    if outputs is None:
        return Outputs(None, [], None, False)
    if isinstance(outputs, dict):
        for key in outputs:
            if not isinstance(key, str):
                raise TypeError("outputs: the keys of a dict must be strings, got %r" % (key,))
        keys = sorted(outputs)
        pairs = [_split(outputs[key]) for key in keys]
        return Outputs({key: variable for key, (variable, _) in zip(keys, pairs)}, [op for _, op in pairs], keys, False)
    if isinstance(outputs, list) or isinstance(outputs, tuple) and not _is_pair(outputs):
        pairs = [_split(output) for output in outputs]
        return Outputs([variable for variable, _ in pairs], [op for _, op in pairs], None, False)
    variable, op = _split(outputs)
    return Outputs(variable, [op], None, True)


def _is_pair(thing: Any) -> bool:
    return isinstance(thing, tuple) and len(thing) == 2 and (
        thing[1] is None or isinstance(thing[1], (str, ReduceOp)))


def _split(output: Any) -> Tuple[Any, Any]:
    if _is_pair(output):
        return output
    return output, MISSING


def parse_updates(updates: Any, label: Callable[[Any], str]) -> Tuple[List[Tuple[Any, Any]], List[Any]]:
    """Take ``updates`` apart: a dict, or a list of ``(shared, expression)`` or ``(shared, expression, op)``.

    Returns
    -------
    pairs : list of (shared, expression)
    ops : list
        MISSING where none was given.
    """
    if updates is None:
        return [], []
    if isinstance(updates, Mapping):
        entries: Sequence[Any] = [
            (shared,) + expression if _is_pair(expression) else (shared, expression)
            for shared, expression in updates.items()]
    elif isinstance(updates, (list, tuple)):
        entries = updates
    else:
        raise TypeError("updates must be a dict or a list of (shared, expression) or (shared, expression, op), got %s"
                        % type(updates).__name__)
    pairs, ops, seen = [], [], set()
    for position, entry in enumerate(entries):
        if not isinstance(entry, (list, tuple)) or len(entry) not in (2, 3):
            raise TypeError("updates[%d] must be (shared, expression) or (shared, expression, op), got %r" % (
                position, entry))
        if id(entry[0]) in seen:
            raise ValueError("updates[%d]: %s is updated twice" % (position, label(entry[0])))
        seen.add(id(entry[0]))
        pairs.append((entry[0], entry[1]))
        ops.append(entry[2] if len(entry) == 3 else MISSING)
    return pairs, ops


def output_indices(subset: Any, keys: Optional[Sequence[str]], n: int) -> Optional[List[int]]:
    """Return the positions that ``output_subset`` names: integers, or keys where the outputs are a dict."""
    if subset is None:
        return None
    if not isinstance(subset, (list, tuple)):
        raise TypeError("output_subset must be a list of %s, got %s" % (
            "keys" if keys else "positions", type(subset).__name__))
    positions: Dict[Any, int] = {key: i for i, key in enumerate(keys)} if keys else {i: i for i in range(n)}
    for entry in subset:
        if isinstance(entry, bool) or entry not in positions:
            raise ValueError("output_subset names %r, but the outputs are %s" % (
                entry, ", ".join(map(repr, positions)) or "none"))
    return [positions[entry] for entry in subset]
