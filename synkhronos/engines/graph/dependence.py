"""How the values in a function's graph depend on the rows that a rank has, and on its collectives.

==============  ===================================================  ===============================================
``differs``     on values that differ between ranks: their rows,     a condition or a number of steps that does would
                their random numbers                                 bring ranks to different collectives
``degree``      on collectives: not at all, as an affine function    values of slices have a mean that is right only
                of averages, or in another way                       up to the second
==============  ===================================================  ===============================================

What a collective gives is the same on all ranks, whatever it is given.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ...errors import ArgumentValueError
from ..base import Collectives, Degree
from .collectives import divides, needs_call, ops_in, unconditional
from .library import Library
from .snapshot import Snapshot


class Dependence(NamedTuple):
    """How a value depends on values of the rank, and on collectives."""

    differs: bool = False
    degree: Degree = Degree.NONE
    axis: int = 0  # of what is scattered: along which the rows lie


FIXED = Dependence()
OF_A_RANK = Dependence(differs=True)


def survey(
    library: Library, snapshot: Snapshot, scattered: Mapping[Any, int], is_random: Callable[[Any], bool]
) -> Optional[Collectives]:
    """Return what there is to know of the collectives of a function; see `Engine.collectives`."""
    roots = snapshot.expressions()
    if not snapshot.is_joint(library):
        return None
    ops = ops_in(library, roots)
    if isinstance(snapshot.settings["mode"], library.DebugMode) and needs_call(library, roots):
        raise ArgumentValueError(
            "mode",
            "one that computes operations once, for ranks meet in those of synkhronos.ops",
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
    later = _with_updates(library, snapshot, of_ranks)
    _check(library, roots, later)
    # A count of steps is the same on all ranks, as long as those without rows count, too.
    differ = [later.get(new, FIXED).differs for _, new in snapshot.updates]
    common = [degree != Degree.NONE or not differs for degree, differs in zip(degrees, differ)]
    cut = None
    if snapshot.halves is not None:
        cut, common = snapshot.halves.cut, snapshot.halves.common
    return Collectives(ops, common, degrees, of_outputs, cut, divides(library, roots))


def _is_state(library: Library, variable: Any, is_random: Callable[[Any], bool]) -> bool:
    return isinstance(variable, library.SharedVariable) and is_random(variable)


def _with_updates(library: Library, snapshot: Snapshot, of_ranks: Mapping[Any, Dependence]) -> Dict[Any, Dependence]:
    """Return the dependences once ranks have updated shared variables each by itself: these differ, too, then."""
    while True:
        known = dependences(library, snapshot.expressions(), of_ranks)
        more = [one for one, new in snapshot.updates if known.get(new, FIXED).differs and one not in of_ranks]
        if not more:
            return known
        of_ranks = {**of_ranks, **dict.fromkeys(more, OF_A_RANK)}


def dependences(library: Library, outputs: Sequence[Any], given: Mapping[Any, Dependence]) -> Dict[Any, Dependence]:
    """Return the dependences of all variables of a graph, from those of its inputs; others are `FIXED`."""
    known = dict(given)
    for node in library.io_toposort([], outputs):
        found = _of_node(library, node, [known.get(variable, FIXED) for variable in node.inputs])
        known.update(dict.fromkeys(node.outputs, found))
    return known


def _of_node(library: Library, node: Any, inputs: List[Dependence]) -> Dependence:
    differs, degree = any(one.differs for one in inputs), max([one.degree for one in inputs], default=Degree.NONE)
    if isinstance(node.op, library.AllReduce):
        # Of sums the mean over slices is not that over all their rows, nor of extremes.
        return Dependence(False, max(degree, Degree.AFFINE) if node.op.op.name == "avg" else Degree.OTHER)
    if isinstance(node.op, library.WholeLength):
        return FIXED
    if isinstance(node.op, (library.Share, library.InverseShare)):
        return Dependence(True, degree)
    inner = library.inner_outputs(node.op)
    if ops_in(library, inner) or divides(library, inner):
        return Dependence(True if divides(library, inner) else differs, Degree.OTHER)
    if isinstance(node.op, library.Shape_i) and node.op.i != inputs[0].axis and node.inputs[0].owner is None:
        return FIXED  # what is scattered differs in the number of rows
    if isinstance(node.op, (library.Shape, library.Shape_i)):
        return Dependence(differs, Degree.OTHER if degree == Degree.OTHER else Degree.NONE)
    if degree == Degree.AFFINE and not any(
        all(one == FIXED or i in group for i, one in enumerate(inputs)) for group in library.affine_inputs(node)
    ):
        degree = Degree.OTHER
    return Dependence(differs, degree)


def _check(library: Library, outputs: Sequence[Any], known: Mapping[Any, Dependence], is_inner: bool = False) -> None:
    """Refuse conditions and numbers of steps that differ between ranks and decide over collectives."""
    always = unconditional(library, outputs)
    for node in library.io_toposort([], outputs):
        if isinstance(node.op, library.IfElse) and _differs(library, node.inputs[0], known, is_inner):
            in_branches = [one for one in library.io_toposort([], node.inputs[1:]) if one not in always]
            if any(_is_collective(library, one) for one in in_branches):
                _refuse(f"the condition of {node.op}", "depends on scattered values, so ranks take different branches")
        inner = library.inner_outputs(node.op)
        if not ops_in(library, inner):
            continue
        if not isinstance(node.op, library.Scan):
            raise ArgumentValueError(
                "all_reduce",
                "a collective of the function's own graph, or inside scan",
                f"one in the graph of {node.op}",
                "call the Python function that builds that graph instead",
            )
        if _differs(library, node.inputs[0], known, is_inner):
            _refuse(
                f"the number of steps of scan {node.op}",
                "depends on scattered values or on how many rows a rank has, so ranks take different numbers of steps",
            )
        changing = library.changing_in_scan(node, lambda variable: known.get(variable, FIXED).differs)
        inner_known = dependences(library, inner, dict.fromkeys(changing, OF_A_RANK))
        if library.is_while(node.op) and inner_known.get(inner[-1], FIXED).differs:
            _refuse(
                f"the condition of scan {node.op} (until)",
                "depends on scattered values, so ranks take different numbers of steps",
            )
        _check(library, inner, inner_known, is_inner=True)


def _differs(library: Library, variable: Any, known: Mapping[Any, Dependence], is_inner: bool) -> bool:
    """Return whether a condition or a number of steps differs between ranks: of a shape, only the rows do."""
    if not known.get(variable, FIXED).differs or is_inner:
        return known.get(variable, FIXED).differs
    by_shapes = library.by_shapes_of_inputs(variable)
    return dependences(library, [by_shapes], known).get(by_shapes, FIXED).differs


def _is_collective(library: Library, node: Any) -> bool:
    return isinstance(node.op, library.AllReduce) or bool(ops_in(library, library.inner_outputs(node.op)))


def _refuse(what: str, why: str) -> None:
    raise ArgumentValueError(
        "all_reduce",
        "collectives that all ranks come to alike",
        f"one that is computed or not by {what}, which {why}",
        "make it depend on what is the same on all ranks, such as the result of another all_reduce",
    )
