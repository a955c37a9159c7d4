"""Operations in words that the author of a program knows: what they do, and the named variables it is done with.

``Elemwise{mul,no_inplace}`` of something computed from ``x`` and of ``w`` is "mul of x and w".
"""

from __future__ import annotations

from typing import Any, List, Set

from theano.gof import Constant
from theano.scan_module.scan_op import Scan
from theano.tensor import subtensor
from theano.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from theano.tensor.extra_ops import CumOp

#: Names in a description; and variables that are looked at to find them.
MAX_NAMES, MAX_VISITED = 4, 500

_READ = (subtensor.Subtensor, subtensor.AdvancedSubtensor, subtensor.AdvancedSubtensor1)
_WRITTEN = (subtensor.IncSubtensor, subtensor.AdvancedIncSubtensor, subtensor.AdvancedIncSubtensor1)
_REDUCTIONS = {"add": "sum", "mul": "prod", "maximum": "max", "minimum": "min"}
_NAMES = {"Dot": "dot", "SortOp": "sort", "ArgSortOp": "argsort", "Reshape": "reshape", "RepeatOp": "repeat"}


def described(node: Any) -> str:
    """Return what a node does, to which named variables: those next to it, on all paths to it."""
    names = _names_before(node)
    own = next((f" ({output.name})" for output in node.outputs if output.name), "")
    of = "" if not names else f" of {names[0]}" if len(names) == 1 else f" of {', '.join(names[:-1])} and {names[-1]}"
    return f"{_operation(node.op)}{own}{of}"


def _operation(op: Any) -> str:
    if isinstance(op, (Elemwise, CAReduce)):
        scalar_op = op.scalar_op
        name = str(getattr(scalar_op, "name", None) or type(scalar_op).__name__.lower())
        return _REDUCTIONS.get(name, name) if isinstance(op, CAReduce) else name
    if isinstance(op, Scan):
        return f"theano.scan ({op.name})" if op.name not in (None, "scan_fn") else "theano.scan"
    if isinstance(op, _READ):
        return "an index"
    if isinstance(op, _WRITTEN):
        return "set_subtensor" if op.set_instead_of_inc else "inc_subtensor"
    if isinstance(op, DimShuffle):
        return "dimshuffle"
    if isinstance(op, CumOp):
        return f"cum{'sum' if op.mode == 'add' else 'prod'}"
    name = str(type(op).__name__)
    return _NAMES.get(name, name)


def _names_before(node: Any) -> List[str]:
    """Return the names of the nearest variables that have one, in the order of the inputs."""
    names: List[str] = []
    seen: Set[Any] = set()
    ahead = list(reversed(node.inputs))
    while ahead and len(seen) < MAX_VISITED:
        variable = ahead.pop()
        if variable in seen or isinstance(variable, Constant):
            continue
        seen.add(variable)
        if variable.name:
            if variable.name not in names:
                names.append(variable.name)
        elif variable.owner is not None:
            ahead += reversed(variable.owner.inputs)
    return names if len(names) <= MAX_NAMES else [*names[: MAX_NAMES - 1], "others"]
