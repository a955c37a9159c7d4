"""From the arguments of a call to one value per input. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple


def bind(
    inputs: Sequence[Any], labels: Sequence[str], name: Optional[str], args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> List[Any]:
    """Return one value per input: given by position or by name, or its default.

    Raises
    ------
    TypeError
        Where there are too many, one is given twice or is missing, or a name is unknown.
    """
    if len(args) == len(inputs) and not kwargs:
        return list(args)
    call = f"function {name}" if name else "the function"
    if len(args) > len(inputs):
        raise TypeError(f"{call} takes at most {len(inputs)} inputs, got {len(args)}")
    values: Dict[int, Any] = dict(enumerate(args))
    for key, value in kwargs.items():
        positions = [i for i, given in enumerate(inputs) if given.name == key]
        if not positions:
            raise TypeError(
                "{} has no input called {!r} (inputs: {})".format(
                    call, key, ", ".join(repr(given.name) for given in inputs if given.name) or "none has a name"
                )
            )
        if len(positions) > 1:
            raise TypeError(f"{call} has several inputs called {key!r}: give them by position")
        if positions[0] in values:
            raise TypeError(f"{call}: {labels[positions[0]]} is given twice, by position and by name")
        values[positions[0]] = value
    for i, given in enumerate(inputs):
        if i not in values:
            if not given.has_default:
                raise TypeError(f"{call}: {labels[i]} is missing")
            values[i] = given.default
    return [values[i] for i in range(len(inputs))]
