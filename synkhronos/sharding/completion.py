"""Insert collectives, merged and delayed if possible, into a graph, so that it computes the serial program's values.

Each variable has up to two images in the new graph: the rank's own value, and the whole value.

* The whole value of a partial variable is a collective's result. If the whole values of its partial inputs are needed
  anyway, it is computed from them instead. (Adam needs a gradient, and also 0.1 times the gradient.)
* So is an array that is a multiple of a partial array: in ``w - 0.1 * g``, the collective is that of ``g``, so that the
  multiplication and the subtraction read the array once.
* The whole value of a number of rows is the total over all ranks, which the call provides. Only a count of elements
  that a mask chooses needs a collective.

Collectives with the same op and level (the number of earlier collectives to wait for) are merged::

    level 0    everything that needs no collective     partial p, q -+
                                                                     |  one collective of p and q
    level 1    needs p or q in full                    partial r <---+
                                                          +--- a second collective, of r
    level 2    ...
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from .axes import ONE, Elementwise
from .nested import Completed
from .placements import Partial, Placement, Replicate, Shard, Size
from .propagate import Propagated
from .rule import Node
from .shapes import ShapeOf


def _not_needed(*args: Any) -> Any:
    raise AssertionError("the rules of this engine neither choose rows nor merge axes")


class GraphBuilder(NamedTuple):
    """An engine's functions for building nodes.

    Parameters
    ----------
    apply : callable
        Applies a node to new inputs. It is also called with a node's own inputs if a partial output is rounded.
    all_reduce : callable
        Maps variables and the name of an op to the reduced variables.
    whole_length, counted : callable
        Replace an element of a `ShapeOf` output with the length for the rows of all ranks, or with its sum over ranks.
    as_average : callable
        Maps partial sums to values whose average over all rows is the sum; returns None if there are no such values.
    checked : callable
        Adds checks of conditions (see `RuleResult.equal`) to the outputs of a node.
    template : callable
        Returns a variable with the type and shape of its argument if the type determines the shape, else None.
    """

    apply: Callable[[Node, Sequence[Any]], Sequence[Any]]
    all_reduce: Callable[[Sequence[Any], str], Sequence[Any]]
    whole_length: Callable[[Any, int], Any]
    as_average: Callable[[Any], Any]
    counted: Callable[[Any, Any, int], Any] = _not_needed
    checked: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]] = _not_needed
    template: Callable[[Any], Any] = lambda variable: None


class Collective(NamedTuple):
    """A collective inserted into a graph."""

    op: str
    variables: List[Any]  # of the old graph


class CompletedGraph(NamedTuple):
    """A graph with collectives.

    ``own`` and ``whole`` map old variables to new variables with the rank's value or the whole value. A variable
    missing from ``own`` is unchanged; a variable missing from ``whole`` is looked up in ``own``.
    """

    own: Dict[Any, Any]
    whole: Dict[Any, Any]
    collectives: List[Collective]
    late: Set[Any]  # variables that wait for a collective
    waiting_rows: Optional[str]  # an operation on rows that waits for a collective, so rows cannot be sliced
    waiting_factor: bool = False  # whether it waits for a factor common to all rows, which could scale their sum


def _is_factor(node: Node, waits: Sequence[bool]) -> bool:
    """Return whether a scalar that waits for a collective scales or fills rows, as in gradients of sums."""
    rule = node.rule
    if not isinstance(rule, Elementwise) or any(
        waiting and any(label is not ONE for label in labels) for labels, waiting in zip(rule.inputs, waits)
    ):
        return False
    return bool(rule.shapes_only) or any(not any(waits[i] for i in group) for group in rule.linear)


def complete(nodes: Sequence[Node], found: Propagated, roots: Sequence[Any], builder: GraphBuilder) -> CompletedGraph:
    """Build the graph with collectives that yields the whole values of ``roots``; ``found`` is an exact propagation."""
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
    return next(k for k, length in enumerate(shape.lengths) if length.power != 0)


def is_counted(placement: Placement) -> bool:
    """Return whether each rank counts its own part of a length, so that the total needs a collective."""
    return isinstance(placement, Size) and any(length.is_counted for length in placement.lengths)


def parts_of_rows(nodes: Sequence[Node], found: Propagated, roots: Sequence[Any]) -> List[Any]:
    """Return the values that are computed directly from rows and used to compute ``roots``.

    ::

        rows ---> dot, sum, ... ---> partial values ---> all else ---> roots
                  slice by slice     accumulated         once
    """
    maker = {variable: node for node in nodes for variable in node.outputs}
    parts: List[Any] = []
    ahead, seen = list(dict.fromkeys(roots)), set(roots)  # no repeats, because two updates may share a new value
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
    """Return whether the outputs' shapes may change with the inputs' values or with ``reshaped`` inputs."""
    return not node.rule.keeps_shapes or any(one in reshaped for one in node.inputs)


class _Plan:
    """Plan of a completed graph: how each whole value is computed, and the level of each node."""

    def __init__(self, nodes: Sequence[Node], found: Propagated, roots: Sequence[Any], builder: GraphBuilder) -> None:
        self.nodes, self.found = nodes, found
        self.maker = {variable: k for k, node in enumerate(nodes) for variable in node.outputs}
        wanted = set(roots)
        for node, whole in zip(nodes, found.whole):
            wanted.update(node.inputs[i] for i in whole)
        #: Partial values whose whole values are computed from other whole values, not by a collective.
        self.derived = self._derived(wanted)
        ahead = list(wanted - self.derived)
        while ahead:
            variable = ahead.pop()
            array = self._scaled(variable)
            if array is not None:
                self.derived.add(variable)
                wanted.add(array)
                ahead.append(array)
        #: Nodes that are also computed on whole values.
        again = self._computed_again(wanted)
        self.own_level: List[int] = []
        self.whole_level: Dict[int, int] = {}
        self.groups: Dict[int, Dict[str, List[Any]]] = {}
        levels: Dict[Any, int] = {}
        whole_levels: Dict[Any, int] = {}
        #: By node and input: replacement of a variable that waits for a collective, if only its shape is needed. (The
        #: gradient of a loss starts with ones shaped like the loss.)
        self.templates: List[Dict[int, Any]] = []
        #: Variables whose values (or even shapes, if ``reshaped``) may differ between the old and the new graph, for
        #: example because a mask chooses other elements.
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
                    assert placement.reduction is not None  # rules request only whole values that a collective yields
                    self.groups.setdefault(level, {}).setdefault(placement.reduction, []).append(variable)
                    whole_levels[variable] = level + 1

    def late(self) -> Set[Any]:
        """Return the variables that wait for a collective."""
        return {one for node, level in zip(self.nodes, self.own_level) if level for one in node.outputs}

    def waiting_rows(self) -> Tuple[Optional[str], bool]:
        """Return the first operation on rows that waits for a collective, and whether it waits for a factor."""
        late = self.late()
        for node, level in zip(self.nodes, self.own_level):
            if level and any(isinstance(self.found.of(one), Shard) for one in (*node.inputs, *node.outputs)):
                return node.describe(), _is_factor(node, [self._waits(one, late) for one in node.inputs])
        return None, False

    def _waits(self, variable: Any, late: Set[Any]) -> bool:
        return variable in late or isinstance(self.found.of(variable), Partial)

    def _derived(self, wanted: Set[Any]) -> Set[Any]:
        """Return the partial sums computed without rows, from inputs whose whole values are needed or also derived."""
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

    def _scaled(self, variable: Any) -> Any:
        """Return the partial array that a node multiplies by numbers to compute a variable; None if there is none."""
        k, placement = self.maker.get(variable), self.found.of(variable)
        node = None if k is None else self.nodes[k]
        is_sum = isinstance(placement, Partial) and placement.op == "sum"
        if node is None or not isinstance(node.rule, Elementwise) or not node.rule.ndim or not is_sum:
            return None
        arrays = [
            (one, labels)
            for one, labels in zip(node.inputs, node.rule.inputs)
            if not (isinstance(self.found.of(one), Replicate) and all(label is ONE for label in labels))
        ]
        array, labels = arrays[0] if len(arrays) == 1 else (None, None)
        if array not in self.maker or self.found.of(array) != placement or labels != node.rule.outputs[0]:
            return None
        # A sum that is rounded afterwards is reduced before, in its wider type.
        is_wider = self.nodes[self.maker[array]].rule.is_rounded or getattr(array, "dtype", 0) != getattr(
            variable, "dtype", 0
        )
        return None if is_wider else array

    def _computed_again(self, wanted: Set[Any]) -> Set[int]:
        """Return the nodes to compute on whole values, which yield derived values or numbers of rows."""
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
