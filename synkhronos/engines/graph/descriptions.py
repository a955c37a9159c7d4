"""Descriptions of operations in terms of the named variables that they depend on, such as "mul of x and w"."""

from __future__ import annotations

from typing import Any, List, Set

from .classes import Classes, Kinds

#: Maximum number of names in a description, and of variables visited to find these names.
MAX_NAMES, MAX_VISITED = 4, 500

_REDUCTIONS = {"add": "sum", "mul": "prod", "maximum": "max", "minimum": "min"}
_NAMES = {"Dot": "dot", "SortOp": "sort", "ArgSortOp": "argsort", "Reshape": "reshape", "RepeatOp": "repeat"}


def described(classes: Classes, node: Any) -> str:
    """Describe a node's operation and its nearest named ancestors."""
    names = _names_before(classes, node)
    own = next((f" ({output.name})" for output in node.outputs if output.name), "")
    of = "" if not names else f" of {names[0]}" if len(names) == 1 else f" of {', '.join(names[:-1])} and {names[-1]}"
    return f"{_operation(classes, node.op)}{own}{of}"


def _operation(classes: Classes, op: Any) -> str:
    if isinstance(op, (classes.Elemwise, classes.CAReduce)):
        scalar_op = op.scalar_op
        name = str(getattr(scalar_op, "name", None) or type(scalar_op).__name__.lower())
        return _REDUCTIONS.get(name, name) if isinstance(op, classes.CAReduce) else name
    if isinstance(op, classes.Scan):
        name = f"{classes.tensor.__name__.split('.')[0]}.scan"
        return f"{name} ({op.name})" if op.name not in (None, "scan_fn") else name
    reads: Kinds = (classes.Subtensor, classes.AdvancedSubtensor, *classes.rows_at)
    writes: Kinds = (classes.IncSubtensor, classes.AdvancedIncSubtensor, *classes.inc_rows_at)
    if isinstance(op, reads):
        return "an index"
    if isinstance(op, writes):
        return "set_subtensor" if op.set_instead_of_inc else "inc_subtensor"
    if isinstance(op, classes.DimShuffle):
        return "dimshuffle"
    if isinstance(op, classes.CumOp):
        return f"cum{'sum' if op.mode == 'add' else 'prod'}"
    name = str(type(op).__name__)
    return _NAMES.get(name, name)


def _names_before(classes: Classes, node: Any) -> List[str]:
    """Return the names of the nearest named ancestors, in input order; "others" replaces excess names."""
    names: List[str] = []
    seen: Set[Any] = set()
    ahead = list(reversed(node.inputs))
    while ahead and len(seen) < MAX_VISITED:
        variable = ahead.pop()
        if variable in seen or isinstance(variable, classes.Constant):
            continue
        seen.add(variable)
        if variable.name:
            if variable.name not in names:
                names.append(variable.name)
        elif variable.owner is not None:
            ahead += reversed(variable.owner.inputs)
    return names if len(names) <= MAX_NAMES else [*names[: MAX_NAMES - 1], "others"]
