"""Dependence of a graph's values on the rank's rows and on collectives."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ...errors import ArgumentValueError
from ..base import CollectiveDependence, Collectives
from .collectives import inside, of_calls, reduces, unconditional
from .library import Library
from .shapes import by_shapes_of_inputs
from .snapshot import Snapshot


class Dependence(NamedTuple):
    """Dependence of a value on the rank's own values (rows, random numbers) and on collectives.

    If a condition or a number of steps ``differs``, ranks could execute different collectives. The mean over slices is
    correct unless ``degree`` is OTHER. A collective's result is equal on all ranks, even if its inputs differ.
    """

    differs: bool = False
    degree: CollectiveDependence = CollectiveDependence.NONE
    axis: int = 0  # axis of the rows, for scattered inputs


FIXED = Dependence()
OF_A_RANK = Dependence(differs=True)


def survey(
    library: Library, snapshot: Snapshot, scattered: Mapping[Any, int], is_random: Callable[[Any], bool]
) -> Optional[Collectives]:
    """Describe the collectives of a function; see `Engine.collectives`."""
    roots = snapshot.expressions()
    operations = of_calls(library, roots)
    if not operations and snapshot.halves is None:
        return None
    if isinstance(snapshot.settings["mode"], library.DebugMode) and operations:
        raise ArgumentValueError(
            "mode",
            "a mode that computes each operation once, because all ranks execute operations of synkhronos.ops together",
            "DebugMode, which computes them several times",
            "use another mode",
        )
    of_ranks = {getattr(given, "variable", given): OF_A_RANK._replace(axis=axis) for given, axis in scattered.items()}
    states = [shared for shared in library.graph_inputs(roots) if _is_state(library, shared, is_random)]
    states = [state for state in states if state not in snapshot.streams]
    of_ranks.update(dict.fromkeys(states, OF_A_RANK))
    known = dependences(library, roots, of_ranks)
    of_updates = [known.get(new, FIXED) for _, new in snapshot.updates]
    degrees = [of_update.degree.of_update(of_update.differs) for of_update in of_updates]
    of_outputs = [known.get(output.variable, FIXED).degree for output in snapshot.outputs]
    later = _with_updates(library, snapshot, of_ranks, known)
    _check(library, roots, later)
    # A step counter is equal on all ranks only if ranks without rows also update it.
    differ = [later.get(new, FIXED).differs for _, new in snapshot.updates]
    common = [degree != CollectiveDependence.NONE or not differs for degree, differs in zip(degrees, differ)]
    cut = None
    if snapshot.halves is not None:
        cut, common = snapshot.halves.cut, snapshot.halves.replicated_updates
    ops = [one.op for one in operations if isinstance(one, library.AllReduce)]
    return Collectives(ops, common, degrees, of_outputs, cut, any(isinstance(one, library.Share) for one in operations))


def _is_state(library: Library, variable: Any, is_random: Callable[[Any], bool]) -> bool:
    return isinstance(variable, library.SharedVariable) and is_random(variable)


def _with_updates(
    library: Library, snapshot: Snapshot, of_ranks: Mapping[Any, Dependence], known: Dict[Any, Dependence]
) -> Dict[Any, Dependence]:
    """Return the dependences after local updates have made more shared variables differ between ranks."""
    while True:
        more = [one for one, new in snapshot.updates if known.get(new, FIXED).differs and one not in of_ranks]
        if not more:
            return known
        of_ranks = {**of_ranks, **dict.fromkeys(more, OF_A_RANK)}
        known = dependences(library, snapshot.expressions(), of_ranks)


def dependences(library: Library, outputs: Sequence[Any], given: Mapping[Any, Dependence]) -> Dict[Any, Dependence]:
    """Return ``given`` with the dependences of a graph's computed variables added; inputs not ``given`` are `FIXED`."""
    known = dict(given)
    for node in library.io_toposort([], outputs):
        found = _of_node(library, node, [known.get(variable, FIXED) for variable in node.inputs])
        known.update(dict.fromkeys(node.outputs, found))
    return known


def _of_node(library: Library, node: Any, inputs: List[Dependence]) -> Dependence:
    differs, degree = (
        any(one.differs for one in inputs),
        max([one.degree for one in inputs], default=CollectiveDependence.NONE),
    )
    if isinstance(node.op, library.AllReduce):
        # The mean over slices of sums or extremes is not the sum or extreme over all rows.
        return Dependence(
            False, max(degree, CollectiveDependence.AFFINE) if node.op.op.name == "avg" else CollectiveDependence.OTHER
        )
    if isinstance(node.op, library.WholeLength):
        return FIXED
    if isinstance(node.op, (library.Share, library.InverseShare)):
        return Dependence(True, degree)
    inner = inside(library, node)
    divides = any(isinstance(one, library.Share) for one in inner)
    if divides or reduces(library, inner):
        return Dependence(divides or differs, CollectiveDependence.OTHER)
    if isinstance(node.op, library.Shape_i) and node.op.i != inputs[0].axis and node.inputs[0].owner is None:
        return FIXED  # shapes of scattered inputs differ only in the number of rows
    if isinstance(node.op, (library.Shape, library.Shape_i)):
        return Dependence(
            differs, CollectiveDependence.OTHER if degree == CollectiveDependence.OTHER else CollectiveDependence.NONE
        )
    groups = library.before_rounding.affine(node) if degree == CollectiveDependence.AFFINE else [range(len(inputs))]
    if not any(all(one == FIXED or i in group for i, one in enumerate(inputs)) for group in groups):
        degree = CollectiveDependence.OTHER
    return Dependence(differs, degree)


def _check(library: Library, outputs: Sequence[Any], known: Mapping[Any, Dependence], is_inner: bool = False) -> None:
    """Raise an error if collectives depend on a condition or step count that differs, or are in an OpFromGraph."""
    always = unconditional(library, outputs)
    for node in library.io_toposort([], outputs):
        if isinstance(node.op, library.IfElse) and _differs(library, node.inputs[0], known, is_inner):
            in_branches = [one for one in library.io_toposort([], node.inputs[1:]) if one not in always]
            if any(_is_collective(library, one) for one in in_branches):
                _refuse(f"the condition of {node.op}", "depends on scattered values, so ranks take different branches")
        if not reduces(library, inside(library, node)):
            continue
        if not isinstance(node.op, library.Scan):
            raise ArgumentValueError(
                "all_reduce",
                "a collective in the function's own graph or in a scan",
                f"a collective in the graph of {node.op}",
                "call the Python function that builds that graph instead",
            )
        if _differs(library, node.inputs[0], known, is_inner):
            _refuse(
                f"the number of steps of scan {node.op}",
                "depends on scattered values or on how many rows a rank has, so ranks take different numbers of steps",
            )
        inner = library.scans.inner_outputs(node.op)
        changing = library.scans.changing(node, lambda variable: known.get(variable, FIXED).differs)
        inner_known = dependences(library, inner, dict.fromkeys(changing, OF_A_RANK))
        if library.scans.is_while(node.op) and inner_known.get(inner[-1], FIXED).differs:
            _refuse(
                f"the condition of scan {node.op} (until)",
                "depends on scattered values, so ranks take different numbers of steps",
            )
        _check(library, inner, inner_known, is_inner=True)


def _differs(library: Library, variable: Any, known: Mapping[Any, Dependence], is_inner: bool) -> bool:
    """Return whether a condition or step count differs between ranks; input shapes differ only in row counts."""
    if not known.get(variable, FIXED).differs or is_inner:
        return known.get(variable, FIXED).differs
    by_shapes = by_shapes_of_inputs(library, variable)
    return dependences(library, [by_shapes], known).get(by_shapes, FIXED).differs


def _is_collective(library: Library, node: Any) -> bool:
    return isinstance(node.op, library.AllReduce) or reduces(library, inside(library, node))


def _refuse(what: str, why: str) -> None:
    raise ArgumentValueError(
        "all_reduce",
        "collectives that all ranks execute",
        f"a collective whose execution depends on {what}, which {why}",
        "let its execution depend on a value that is equal on all ranks, such as the result of another all_reduce",
    )
