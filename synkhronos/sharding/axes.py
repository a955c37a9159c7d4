"""Placement rules for operations that treat each axis separately, described by labels as in ``einsum``.

::

    dot of matrices           ik, kj  -> ij      linear in each input; k is summed
    convolution               nc--, oc-- -> no-- linear in each input; c is summed; "-": neighbors interact
    its weight gradient       nc--, no-- -> oc-- n is summed, so the result is partial
    softmax                   n-      -> n-
    exp(x + b)                ij, .j  -> ij      ".": length 1
"""

from __future__ import annotations

from typing import Any, Callable, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from .arithmetic import Arithmetic, Equal, Kind, computed
from .layout import ONE_ELEMENT, Product, RowLayout, product
from .placements import Index, Length, Partial, Placement, Power, Replicate, Shard, Size, Stream, Unknown
from .rule import PlacementRule, RuleResult, taken_whole

#: Label of an axis of length 1, along which the value is repeated.
ONE = "."
#: Label of an axis along which elements depend on each other.
MIXED = "-"

#: Placement after a cast that needs the whole value: partials may have wrapped around, or would be truncated.
LATE = Unknown("casts to another dtype, and so needs the whole value", is_late=True)
NONE_CHOSEN = Unknown(
    "has no value on a rank if the mask selects none of its rows: replace x[mask] with switch(mask, x, -inf) for a "
    "maximum, or with switch(mask, x, inf) for a minimum"
)

Labels = Sequence[Any]
NO_POWERS: Mapping[int, Power] = {}

#: Remedy for a value that has all rows on every rank; callers remove it from the text if they suggest another remedy.
TAKE_SHARE = ": take the rank's share of that value with synkhronos.ops.shard"


class Axes(PlacementRule):
    """Placement rule for an operation that keeps or reduces labeled axes.

    Parameters
    ----------
    inputs, outputs : sequence of labels
        A label for each axis: any hashable object, `ONE` or `MIXED`. An output lacks the labels of reduced axes.
    linear, late : sequence of sequence of int
        Groups of inputs; the operation is jointly linear in each group. Partial inputs in ``late`` groups must be
        combined first, because integers may have wrapped around, or a cast would truncate each part separately.
    powers : mapping from int to number
        Degree of homogeneity in inputs outside these groups; a quotient has degree -1 in its second input.
    reduce : sequence of (str or None)
        The op that reduces axes, for each output; None if partial results cannot be combined.
    moves, keeps_order : bool
        Whether the operation only moves elements, and whether it commutes with maxima and minima (default: ``moves``).
    shapes_only : sequence of int
        Inputs whose shapes matter but whose values do not.
    degree : number, optional
        Degree of homogeneity in all inputs together; 0 for a comparison.
    added : sequence of int
        Inputs of a sum or difference whose other inputs are all integers.
    factors : sequence of (Product or None)
        The inputs' values (None if unknown), if the operation multiplies them.
    """

    def __init__(
        self,
        inputs: Sequence[Labels],
        outputs: Sequence[Labels],
        linear: Sequence[Sequence[int]] = (),
        powers: Mapping[int, Power] = NO_POWERS,
        reduce: Optional[Sequence[Optional[str]]] = None,
        moves: bool = False,
        shapes_only: Sequence[int] = (),
        degree: Optional[Power] = None,
        added: Sequence[int] = (),
        factors: Optional[Sequence[Optional[Product]]] = None,
        keeps_order: Optional[bool] = None,
        late: Sequence[Sequence[int]] = (),
    ) -> None:
        self.keeps_order = moves if keeps_order is None else keeps_order
        self.late = [list(group) for group in late]
        self.degree, self.added, self.factors = degree, set(added), factors
        self.inputs = [list(labels) for labels in inputs]
        self.outputs = [list(labels) for labels in outputs]
        self.linear, self.powers, self.moves, self.shapes_only = (
            [list(group) for group in linear],
            powers,
            moves,
            shapes_only,
        )
        self.reduce = ["sum"] * len(self.outputs) if reduce is None else list(reduce)

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        streams = {one for one in inputs if isinstance(one, Stream)}
        if streams:  # a loop may store a stream's state and other values in one array
            placed = self.place([Replicate() if isinstance(one, Stream) else one for one in inputs], exact)
            found: Placement = Unknown("computes with the states of several random streams")
            if len(streams) == 1:
                found = streams.pop()
            outputs: List[Placement] = [found if isinstance(one, Replicate) else one for one in placed.outputs]
            return placed._replace(outputs=outputs)
        inputs = [
            Replicate() if i in self.shapes_only and not isinstance(one, Shard) else one for i, one in enumerate(inputs)
        ]
        sizes, inputs = taken_whole(inputs, [i for i, one in enumerate(inputs) if isinstance(one, Size)], exact)
        inputs = self._averaged(inputs)
        partial = {i for i, one in enumerate(inputs) if isinstance(one, Partial)}
        whole: FrozenSet[int] = frozenset()
        if partial and (any(isinstance(one, Shard) for one in inputs) or not self._keeps(partial, inputs)):
            whole, inputs = taken_whole(inputs, partial, exact)
            if self.late and not exact and any(partial <= set(group) for group in self.late):
                return RuleResult([LATE] * len(self.outputs), sizes)
        unknown = next((one for one in inputs if isinstance(one, Unknown)), None)
        if unknown is not None:
            return RuleResult([unknown] * len(self.outputs), sizes | whole)
        outputs, equal = self._outputs(inputs, exact)
        return RuleResult(outputs, sizes | whole, equal)

    def _averaged(self, inputs: List[Placement]) -> List[Placement]:
        """Treat replicated values added to averages as averages of equal values."""
        after = list(inputs)
        for group in self.linear:
            powers = {one.power for one in (inputs[i] for i in group) if isinstance(one, Partial)}
            for i in group:
                one = inputs[i]
                if len(group) > 1 and isinstance(one, Replicate) and not one.zero and powers == {one.power - 1}:
                    after[i] = Partial("sum", one.power - 1)
        return after

    def _keeps(self, partial: Set[int], inputs: Sequence[Any]) -> bool:
        """Return whether partial inputs yield partial results with the same op."""
        ops = {inputs[i].op for i in partial}
        if ops == {"prod"} and self.late:
            return False
        if ops != {"sum"}:
            keeps = self.moves if ops == {"prod"} else self.keeps_order
            return keeps and len(partial) == len(inputs) and len(ops) == 1
        return any(
            partial <= set(group) and all(i in partial or is_zero(inputs[i]) for i in group) and group not in self.late
            for group in self.linear
        )

    def _outputs(self, inputs: Sequence[Any], exact: bool) -> Tuple[List[Placement], Equal]:
        power = self._power(inputs)
        if power is None:
            why = "combines values that scale differently with the rank's number of rows"
            return [Unknown(why)] * len(self.outputs), ()
        partial = next((one for one in inputs if isinstance(one, Partial)), None)
        # A value that is zero on every rank that has rows.
        weak = next((one for one in inputs if isinstance(one, Replicate) and one.zero and one.power != 0), None)
        if partial is not None:
            found = Partial(partial.op, power) if weak is None else Unknown("computes with the inverse of a length")
            return [found] * len(self.outputs), ()
        shards = [(i, one) for i, one in enumerate(inputs) if isinstance(one, Shard)]
        zero = any(all(is_zero(inputs[i]) for i in group) for group in self.linear)
        if not shards:
            return [Replicate(power if weak is None else weak.power, zero)] * len(self.outputs), ()
        labels = {self.inputs[i][one.axis] for i, one in shards}
        of_layout = _layout(shards, exact)
        faults: Any = (self._fault(labels, inputs), _fault_of_loose(shards), of_layout, self._positions(shards))
        fault = next((one for one in faults if isinstance(one, str)), None)
        if fault is not None:
            return [Unknown(fault)] * len(self.outputs), ()
        _, loose, (layout, equal), (index, of, size) = faults
        if of.is_unordered:
            of = layout  # the positions have not been moved
        (label,) = labels
        results: List[Placement] = []
        for of_output, reduce in zip(self.outputs, self.reduce):
            uniform = self._is_uniform(of_output, inputs)
            if label in of_output and (uniform or not loose):
                axis = list(of_output).index(label)
                results.append(Shard(axis, power, layout, zero, uniform, bool(loose), index, of, size))
            elif loose:
                results.append(Unknown("computes with more random numbers than rows"))
            elif index:
                results.append(Unknown("computes with positions of rows, which every rank counts from 0"))
            elif self.needs_elements and not layout.is_even:
                results.append(NONE_CHOSEN)
            else:
                unknown = LATE if self.late else Unknown("depends on all rows")
                results.append(unknown if reduce is None else Partial(reduce, power))
        return results, equal

    def _is_uniform(self, of_output: Labels, inputs: Sequence[Any]) -> bool:
        """Return whether the order of an output's elements is irrelevant."""
        names = set(of_output) - {ONE}
        for labels, one in zip(self.inputs, inputs):
            own = set(labels) - {ONE}
            if MIXED in own or (not one.uniform or own != names if isinstance(one, Shard) else own):
                return False
        return MIXED not in names

    def _fault(self, labels: Set[Any], inputs: Sequence[Any]) -> Optional[str]:
        """Return why a rank's own rows are insufficient; None if they suffice."""
        if len(labels) > 1:
            return "combines each row with all others (its inputs have the rows along different axes)"
        if MIXED in labels:
            return "works along the axis of the rows"
        if ONE in labels:
            return "needs length 1 along the axis of the rows"
        for i, of_input in enumerate(self.inputs):
            if not isinstance(inputs[i], Shard) and labels & set(of_input):
                return (
                    f"combines a rank's own rows with a value that has all rows on every rank (input {i}){TAKE_SHARE}"
                )
        if not any(labels <= set(of_output) for of_output in self.outputs):
            for i in (i for group in self.linear if len(group) > 1 for i in group):
                # An input without MIXED axes is repeated along the rows, so it is correctly added once per row.
                if not labels & set(self.inputs[i]) and MIXED in self.inputs[i] and not is_zero(inputs[i]):
                    sets = None in self.reduce
                    return (
                        "assigns values of a rank's own rows to elements of a replicated value"
                        if sets
                        else "adds a partial value to a replicated value"
                    )
        return None

    def _positions(self, shards: Sequence[Tuple[int, Shard]]) -> Any:
        """Return the kind of positions in the result, their layout and size, or why the operation is unsupported."""
        found = [(i, one) for i, one in shards if one.positions and i not in self.shapes_only]
        if not found:
            return Index.NO, RowLayout(), ONE_ELEMENT
        i, one = found[0]
        if self.moves and len({(other.positions, other.of, other.size) for _, other in found}) == 1:
            if len(found) == len(self.inputs) - len(self.shapes_only):
                return one.positions, one.of, one.size
        if len(found) == 1 and i in self.added:
            return Index.COMPUTED, one.of, one.size
        if len(found) == 1 and self.factors is not None:
            size = product([one.size, *[factor for k, factor in enumerate(self.factors) if k != i]])
            if size is not None and size.number > 0:
                return Index.COMPUTED, one.of, size
        return "computes with positions of rows, which every rank counts from 0"

    def _power(self, inputs: Sequence[Any]) -> Optional[Power]:
        """Return the power of the rank's share of rows in the result; None if there is no such power.

        A rank without rows has share 0. If factors cancel to power 0, that rank's result would be wrong unless empty.
        """
        found = self._power_of(inputs)
        has_other = any(one.power != 0 and not is_zero(one) for one in inputs)
        return None if found == 0 and has_other and not any(isinstance(one, Shard) for one in inputs) else found

    def _power_of(self, inputs: Sequence[Any]) -> Optional[Power]:
        if self.degree is not None:
            (found, *others) = {one.power for one in inputs if not is_zero(one)} or {0}
            return None if others else self.degree * found
        total: Power = 0
        linear = set()
        for group in self.linear:
            linear |= set(group)
            powers = {inputs[i].power for i in group if not is_zero(inputs[i])}
            if len(powers) > 1:
                return None
            total += powers.pop() if powers else 0
        for i, one in enumerate(inputs):
            if i not in linear and i not in self.shapes_only and one.power != 0:
                if i not in self.powers:
                    return None
                total += self.powers[i] * one.power
        return total


def _layout(shards: Sequence[Tuple[int, Shard]], exact: bool) -> Any:
    """Return the result's layout and the pairs of lengths that must be equal, or why rows cannot be combined."""
    found: Optional[RowLayout] = None
    equal: List[Tuple[Product, Product]] = []
    for _, one in shards:
        if one.uniform:
            continue
        both = one.layout if found is None else found.with_(one.layout)
        if both is None and found is not None and exact:
            lengths = found.if_equal(one.layout)
            if lengths is not None:
                both = found
                equal.append(lengths)
        if both is None:
            return "combines rows that may be in different orders"
        found = both
    if found is not None:
        return found, equal
    layouts = [one.layout for _, one in shards]
    known = next((one for one in layouts if not one.is_unordered), layouts[0])
    return RowLayout() if RowLayout() in layouts else known, ()


def _fault_of_loose(shards: Sequence[Tuple[int, Shard]]) -> Any:
    """Return whether the arrays are loose (see `Shard`), or why they cannot be combined."""
    loose = {one.loose for _, one in shards}
    return "combines rows with more random numbers than rows" if len(loose) > 1 else loose.pop()


def is_zero(placement: Placement) -> bool:
    """Return whether all elements are known to be 0, or irrelevant, on every rank that has rows."""
    return isinstance(placement, (Replicate, Shard)) and placement.zero


def _element(one: Any, values: Optional[Sequence[Optional[Product]]], k: int) -> Length:
    """Return element k of a vector of lengths, or of numbers that are equal on all ranks."""
    if isinstance(one, Size):
        return one.lengths[k % len(one.lengths)]
    return Length(one.power, None, values[k % len(values)] if values and one.power == 0 else None)


_OPPOSITE = {"max": "min", "min": "max"}


class Elementwise(Axes):
    """Placement rule for an elementwise operation on inputs with equal numbers of dimensions.

    ``broadcastable`` marks each input's axes of length 1. The operation is decreasing in input ``reverses``, so it
    turns a maximum into a minimum. ``arithmetic`` returns the operation's effect on lengths.
    """

    keeps_shapes = True

    def __init__(
        self,
        broadcastable: Sequence[Sequence[bool]],
        n_outputs: int = 1,
        linear: Sequence[Sequence[int]] = (),
        powers: Mapping[int, Power] = NO_POWERS,
        reverses: Optional[int] = None,
        arithmetic: Optional[Callable[[], Arithmetic]] = None,
        **kwargs: Any,
    ) -> None:
        self.reverses, self.arithmetic = reverses, arithmetic
        inputs = [[ONE if one else axis for axis, one in enumerate(pattern)] for pattern in broadcastable]
        self.ndim = len(inputs[0]) if inputs else 0
        output = [axis if any(labels[axis] == axis for labels in inputs) else ONE for axis in range(self.ndim)]
        super().__init__(inputs, [output] * n_outputs, linear, powers, **kwargs)

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        has_lengths = any(isinstance(one, Size) for one in inputs)
        if self.ndim <= 1 and has_lengths and all(isinstance(one, (Size, Replicate)) for one in inputs):
            placed = self._of_lengths(inputs, exact)
            if placed is not None:
                return placed
        part = None if self.reverses is None else inputs[self.reverses]
        if isinstance(part, Partial) and part.op in _OPPOSITE and (part.power == 0 or len(inputs) == 1):
            return RuleResult([part._replace(op=_OPPOSITE[part.op])])
        return super().place(inputs, exact)

    def _of_lengths(self, inputs: Sequence[Any], exact: bool) -> Optional[RuleResult]:
        """Apply arithmetic to numbers of rows, element by element; return None if the result is unknown."""
        done = Arithmetic(Kind.OTHER, [None] * len(inputs)) if self.arithmetic is None else self.arithmetic()
        count = max(len(one.lengths) for one in inputs if isinstance(one, Size))
        is_vector = self.outputs[0] in [labels for labels, one in zip(self.inputs, inputs) if isinstance(one, Size)]
        if not is_vector:
            vectors = [one for labels, one in zip(self.inputs, done.values) if labels == self.outputs[0]]
            if count > 1 or not vectors or any(one is None for one in vectors):
                return None  # more elements than lengths
            count = max(len(one or ()) for one in vectors)
        elif not exact and any(all(is_zero(inputs[i]) for i in group) for group in self.linear):
            # Zeros multiplied by 1 / rows remain zeros, except on a rank without rows.
            return RuleResult([Replicate(-1, zero=True)] * len(self.outputs))
        lengths: List[Length] = []
        equal: List[Any] = []
        for k in range(count):
            elements = [_element(one, values, k) for one, values in zip(inputs, done.values)]
            zeros = [is_zero(one) or length.times == Product(0) for one, length in zip(inputs, elements)]
            power = None
            if all(one.power is not None for one in elements):
                power = self._power([Replicate(one.power, zero) for one, zero in zip(elements, zeros)])  # type: ignore[arg-type]
            length, more = computed(done.kind, elements, power, exact)
            equal += more
            lengths.append(length._replace(times=done.result(k) or length.times) if length.power == 0 else length)
        if count > 1 and sum(one.power != 0 for one in lengths) > 1 and not is_vector:
            return None  # not a shape, but perhaps usable as numbers
        return RuleResult([Size(tuple(lengths))] * len(self.outputs), equal=equal)


class AxisReduction(Axes):
    """Placement rule for a reduction over axes; ``op`` is None if partial results cannot be combined.

    ``is_late`` marks a reduction without an op whose partials could be combined before the cast to its result's dtype.
    """

    keeps_shapes = True

    def __init__(self, ndim: int, axes: Sequence[int], op: Optional[str], is_late: bool = False) -> None:
        left = [axis for axis in range(ndim) if axis not in axes]
        late = [[0]] if op is None and is_late else []
        super().__init__([range(ndim)], [left], [[0]] if op == "sum" else [], reduce=[op], late=late)

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        (one,) = inputs
        if isinstance(one, Size) and self.reduce == ["prod"]:  # the number of elements, from a shape
            powers = [length.power for length in one.lengths]
            power = None if None in powers else sum(powers)  # type: ignore[arg-type]
            times = None if power is None else product(length.times for length in one.lengths)
            return RuleResult([Size((Length(power, None, times),))])
        if isinstance(one, Partial) and one.op == self.reduce[0] != "sum" and one.power == 0:
            return RuleResult([one])
        return super().place(inputs, exact)


def along(inputs: Sequence[int], outputs: Sequence[int], axes: Sequence[int], **kwargs: Any) -> Axes:
    """Return the rule for an operation that mixes elements along some axes and treats all other axes separately."""
    labels = [[MIXED if axis in axes else axis for axis in range(ndim)] for ndim in (*inputs, *outputs)]
    return Axes(labels[: len(inputs)], labels[len(inputs) :], **kwargs)


class Moved(Axes):
    """Placement rule for a ``dimshuffle``; ``order`` lists the input's axes in output order, ``"x"`` for a new axis."""

    keeps_shapes = True

    def __init__(self, ndim: int, order: Sequence[Any]) -> None:
        super().__init__([range(ndim)], [[ONE if axis == "x" else axis for axis in order]], [[0]], moves=True)

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        if isinstance(inputs[0], Size) and len(self.outputs[0]) <= 1:
            return RuleResult([inputs[0]])
        return super().place(inputs, exact)


class CheckedInput(Axes):
    """Placement rule for a check that returns its first input; exact graphs combine partial conditions first."""

    def __init__(self, ndim: int, n_conditions: int) -> None:
        super().__init__([range(ndim), *[[]] * n_conditions], [range(ndim)], [[0]])

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        conditions = [one if exact and isinstance(one, (Partial, Size)) else Replicate() for one in inputs[1:]]
        return super().place([inputs[0], *conditions], exact)
