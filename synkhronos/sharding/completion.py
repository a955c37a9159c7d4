"""The same graph with collectives, so that its values are the serial program's: as few and as late as possible.

Of a variable there are up to two images in the new graph: the rank's own, and the whole. The whole of

* a part is a collective's result; or computed from the wholes of what it was computed from, if these are wanted anyway
  (Adam wants a gradient, and also the gradient by 0.1);
* a number of rows is that of all ranks, which needs no collective: the call knows it.

Collectives that wait for the same ones are one::

    level 0    everything that needs no collective     parts p, q ---+
                                                                     |  one collective of p and q
    level 1    what needs the whole of p or q          part r    <---+
                                                          +--- a second collective, of r
    level 2    ...
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from .axes import ONE, Elementwise
from .nested import Completed
from .placements import Partial, Placement, Shard, Size
from .propagate import Propagated
from .rule import Node
from .shapes import ShapeOf


def _not_needed(*args: Any) -> Any:
    raise AssertionError("the rules of this engine do not choose rows, nor merge axes")


class Builder(NamedTuple):
    """How an engine makes nodes.

    Attributes
    ----------
    apply : callable
        From a node and inputs to new outputs. The inputs are the node's own if the output is a part that the operation
        has rounded: it is to be computed in two steps.
    all_reduce : callable
        From variables and the name of an op to results.
    whole_length : callable
        From the output of a `ShapeOf`, and the position in it of the number of rows, to that with the rows of all.
    as_average : callable
        From parts of a sum to numbers whose average over the rows of all ranks is that sum; None if they have none.
    counted : callable
        From the output of a `ShapeOf`, the sum of those of all ranks, and a position, to it with the sum there.
    checked : callable
        From the outputs of a node, and conditions (see `Placed.equal`), to the same variables, with checks of these.
    template : callable
        From a variable to another of its type and shape, if its type says what shape that is; else None.
    """

    apply: Callable[[Node, Sequence[Any]], Sequence[Any]]
    all_reduce: Callable[[Sequence[Any], str], Sequence[Any]]
    whole_length: Callable[[Any, int], Any]
    as_average: Callable[[Any], Any]
    counted: Callable[[Any, Any, int], Any] = _not_needed
    checked: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]] = _not_needed
    template: Callable[[Any], Any] = lambda variable: None


class Collective(NamedTuple):
    """A collective that was put into a graph."""

    op: str
    variables: List[Any]  # of the old graph


class CompletedGraph(NamedTuple):
    """A graph that was completed.

    Attributes
    ----------
    own, whole : dict
        From variables to their images; a variable that is not listed is its own image, and one without a whole has the
        rank's own.
    collectives : list of Collective
    late : set of variables
        Those that wait for a collective.
    waiting_rows : str, optional
        The operation because of which rows wait for a collective, too, so that they cannot be computed in slices.
    waiting_factor : bool
        Whether they wait for a factor that is the same for all rows, which the sum over rows could be given instead.
    """

    own: Dict[Any, Any]
    whole: Dict[Any, Any]
    collectives: List[Collective]
    late: Set[Any]
    waiting_rows: Optional[str]
    waiting_factor: bool = False


def _is_factor(node: Node, waits: Sequence[bool]) -> bool:
    """Return whether rows are scaled by a number that waits, or filled with it, as in gradients of sums."""
    rule = node.rule
    if not isinstance(rule, Elementwise) or any(
        waiting and any(label is not ONE for label in labels) for labels, waiting in zip(rule.inputs, waits)
    ):
        return False
    return bool(rule.shapes_only) or any(not any(waits[i] for i in group) for group in rule.linear)


def complete(nodes: Sequence[Node], found: Propagated, roots: Sequence[Any], builder: Builder) -> CompletedGraph:
    """Build the graph with collectives.

    Parameters
    ----------
    nodes : sequence of Node
    found : Propagated
        Their placements, ``exact``.
    roots : sequence of variables
        Of which the whole is wanted.
    builder : Builder

    Returns
    -------
    CompletedGraph
    """
    plan = _Plan(nodes, found, roots, builder)
    own: Dict[Any, Any] = {}
    whole: Dict[Any, Any] = {}
    collectives: List[Collective] = []

    def image(variable: Any, is_whole: bool) -> Any:
        if is_whole and variable in whole:
            return whole[variable]
        return own.get(variable, variable)

    jobs: Dict[int, List[Tuple[int, bool]]] = {}
    for k in range(len(nodes)):
        jobs.setdefault(plan.own_level[k], []).append((k, False))
        if k in plan.whole_level:
            jobs.setdefault(plan.whole_level[k], []).append((k, True))
    for level in range(max([*jobs, *plan.groups], default=-1) + 1):
        for k, is_whole in sorted(jobs.get(level, [])):
            node = nodes[k]
            if isinstance(node.rule, Completed):
                own.update(zip(node.outputs, [image(one, True) for one in node.inputs]))
            elif not is_whole:
                inputs = [
                    plan.templates[k][i] if i in plan.templates[k] else image(one, i in found.whole[k])
                    for i, one in enumerate(node.inputs)
                ]
                is_rounded = node.rule.is_rounded and isinstance(found.of(node.outputs[0]), Partial)
                if is_rounded or any(new is not one for new, one in zip(inputs, node.inputs)):
                    own.update(zip(node.outputs, builder.apply(node, inputs)))
                if found.equal[k]:
                    outputs = [image(one, False) for one in node.outputs]
                    own.update(zip(node.outputs, builder.checked(outputs, found.equal[k])))
            elif isinstance(node.rule, ShapeOf):
                (shape,) = node.outputs
                whole[shape] = builder.whole_length(image(shape, False), _of_rows(found.of(shape)))
            else:
                whole.update(zip(node.outputs, builder.apply(node, [image(one, True) for one in node.inputs])))
        for op, variables in plan.groups.get(level, {}).items():
            collectives.append(Collective(op, variables))
            results = builder.all_reduce([image(one, False) for one in variables], op)
            for variable, result in zip(variables, results):
                if isinstance(found.of(variable), Size):
                    result = builder.counted(image(variable, False), result, _of_rows(found.of(variable)))
                whole[variable] = result
    return CompletedGraph(own, whole, collectives, plan.late(), *plan.waiting_rows())


def _of_rows(shape: Any) -> int:
    """Return the position in a shape of the length that differs between ranks."""
    return next(k for k, length in enumerate(shape.lengths) if length.power != 0)


def is_counted(placement: Placement) -> bool:
    """Return whether the whole of a length has to be counted by all ranks."""
    return isinstance(placement, Size) and any(length.is_counted for length in placement.lengths)


def parts_of_rows(nodes: Sequence[Node], found: Propagated, roots: Sequence[Any]) -> List[Any]:
    """Return the parts from which variables are computed, and that are themselves computed from rows.

    ::

        rows ---> dot, sum, ... ---> parts ---> all else ---> roots
                  slice by slice     added up   once
    """
    maker = {variable: node for node in nodes for variable in node.outputs}
    parts: List[Any] = []
    ahead, seen = list(dict.fromkeys(roots)), set(roots)  # (each once: two variables may be updated alike)
    while ahead:
        variable = ahead.pop()
        node = maker.get(variable)
        if node is None or isinstance(node.rule, ShapeOf):
            continue
        if any(isinstance(found.of(one), Shard) for one in node.inputs):
            parts.append(variable)
            continue
        ahead += [one for one in dict.fromkeys(node.inputs) if one not in seen]
        seen.update(node.inputs)
    return parts


def _may_reshape(node: Node, reshaped: Set[Any]) -> bool:
    """Return whether outputs may have other shapes for inputs of other values, some of which are `reshaped`."""
    return not node.rule.keeps_shapes or any(one in reshaped for one in node.inputs)


class _Plan:
    """Of which variables the whole is made in which way, and at which level every node is computed."""

    def __init__(self, nodes: Sequence[Node], found: Propagated, roots: Sequence[Any], builder: Builder) -> None:
        self.nodes, self.found = nodes, found
        self.maker = {variable: k for k, node in enumerate(nodes) for variable in node.outputs}
        wanted = set(roots)
        for node, whole in zip(nodes, found.whole):
            wanted.update(node.inputs[i] for i in whole)
        #: Parts whose whole can be computed from other wholes, by a collective's result in the end.
        self.derived = self._derived(wanted)
        #: Nodes that are computed a second time, from wholes.
        again = self._computed_again(wanted)
        self.own_level: List[int] = []
        self.whole_level: Dict[int, int] = {}
        self.groups: Dict[int, Dict[str, List[Any]]] = {}
        levels: Dict[Any, int] = {}
        whole_levels: Dict[Any, int] = {}
        #: For every node, by input: what it is given in place of a variable that waits for a collective if it needs the
        #: shape alone. (The gradient of a loss is filled with ones in its shape.)
        self.templates: List[Dict[int, Any]] = []
        #: Variables that have another value in the old graph, and perhaps another shape: a mask has chosen other
        #: elements, a length was that of the rank.
        altered: Set[Any] = set()
        reshaped: Set[Any] = set()
        has_collectives = any(isinstance(node.rule, Completed) for node in nodes)
        for k, node in enumerate(nodes):
            takes_whole = range(len(node.inputs)) if isinstance(node.rule, Completed) else found.whole[k]
            of_inputs = [
                whole_levels.get(one, levels.get(one, 0)) if i in takes_whole else levels.get(one, 0)
                for i, one in enumerate(node.inputs)
            ]
            templates: Dict[int, Any] = {}
            for i in node.rule.shapes_only:
                if of_inputs[i] and not has_collectives:
                    templates[i] = builder.template(node.inputs[i])
                    if templates[i] is None and node.inputs[i] not in reshaped:
                        templates[i] = node.inputs[i]
            self.templates.append({i: one for i, one in templates.items() if one is not None})
            if takes_whole or any(one in altered for one in node.inputs):
                altered.update(node.outputs)
                if _may_reshape(node, reshaped):
                    reshaped.update(node.outputs)
            level = max([one for i, one in enumerate(of_inputs) if i not in self.templates[k]], default=0)
            self.own_level.append(level)
            levels.update(dict.fromkeys(node.outputs, level))
            if k in again and isinstance(node.rule, ShapeOf) and is_counted(found.of(node.outputs[0])):
                self.groups.setdefault(level, {}).setdefault("sum", []).append(node.outputs[0])
                whole_levels[node.outputs[0]] = level + 1
            elif k in again:
                of_wholes = max([whole_levels.get(one, levels.get(one, 0)) for one in node.inputs], default=0)
                self.whole_level[k] = of_wholes
                whole_levels.update(dict.fromkeys(node.outputs, of_wholes))
            for variable in node.outputs:
                placement = found.of(variable)
                if variable in wanted and isinstance(placement, Partial) and variable not in self.derived:
                    assert placement.reduction is not None  # rules ask for no other
                    self.groups.setdefault(level, {}).setdefault(placement.reduction, []).append(variable)
                    whole_levels[variable] = level + 1

    def late(self) -> Set[Any]:
        """Return the variables that wait for a collective."""
        return {one for node, level in zip(self.nodes, self.own_level) if level for one in node.outputs}

    def waiting_rows(self) -> Tuple[Optional[str], bool]:
        """Return which operation on rows waits for a collective, None if none does; and whether for a factor."""
        late = self.late()
        for node, level in zip(self.nodes, self.own_level):
            if level and any(isinstance(self.found.of(one), Shard) for one in (*node.inputs, *node.outputs)):
                return node.describe(), _is_factor(node, [self._waits(one, late) for one in node.inputs])
        return None, False

    def _waits(self, variable: Any, late: Set[Any]) -> bool:
        return variable in late or isinstance(self.found.of(variable), Partial)

    def _derived(self, wanted: Set[Any]) -> Set[Any]:
        """Return the parts that are computed from parts of which all are wanted whole, or derived themselves."""
        derived: Set[Any] = set()
        for node in self.nodes:
            placements = [self.found.of(one) for one in node.inputs]
            parts = [one for one, placement in zip(node.inputs, placements) if isinstance(placement, Partial)]
            if (
                parts
                and not any(isinstance(placement, Shard) for placement in placements)
                and all(one in wanted or one in derived for one in parts)
                and all(self.found.of(one) == Partial() for one in (*parts, *node.outputs))
            ):
                derived.update(node.outputs)
        return derived

    def _computed_again(self, wanted: Set[Any]) -> Set[int]:
        """Return the nodes whose outputs are wanted whole and derived, or are numbers of rows."""
        again: Set[int] = set()
        ahead = list(wanted)
        while ahead:
            variable = ahead.pop()
            k = self.maker.get(variable)
            if k is None or k in again:
                continue
            if variable in self.derived or isinstance(self.found.of(variable), Size):
                again.add(k)
                if not isinstance(self.nodes[k].rule, ShapeOf):
                    ahead += self.nodes[k].inputs
        return again
