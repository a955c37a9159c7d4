"""Operations that treat each axis by itself: nearly all of them, described by labels as in ``einsum``.

::

    dot of matrices           ik, kj  -> ij      linear in each; k is summed
    convolution               nc--, oc-- -> no-- linear in each; c is summed; "-": neighbours depend on each other
    its gradient (weights)    nc--, no-- -> oc-- n is summed: every rank has a part
    softmax                   n-      -> n-
    exp(x + b)                ij, .j  -> ij      ".": of length 1
"""

from __future__ import annotations

from typing import Any, Callable, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from .arithmetic import Arithmetic, Equal, Kind, computed
from .layout import ONE_ELEMENT, Layout, Product, product
from .placements import Index, Length, Partial, Placement, Power, Replicate, Shard, Size, Stream, Unknown
from .rule import Placed, Rule, taken_whole

#: The label of an axis of length 1, along which the value is repeated.
ONE = "."
#: The label of an axis along which elements depend on each other.
MIXED = "-"

#: Of parts that have to be put together before they are cast: integers may have wrapped around.
LATE = Unknown("is rounded to, or widened from, whole numbers, for which it needs the whole of a value", is_late=True)
NONE_CHOSEN = Unknown(
    "has no value on a rank where the mask selects no rows: write switch(mask, x, -inf), or inf for a minimum, in the "
    "place of x[mask]"
)

Labels = Sequence[Any]
NO_POWERS: Mapping[int, Power] = {}

#: What to do with a value that has all rows on every rank, unless it is an input that could be divided.
TAKE_SHARE = ": take the rank's share of it with synkhronos.ops.shard"


class Axes(Rule):
    """An operation on axes.

    Parameters
    ----------
    inputs, outputs : sequence of labels
        One label for each axis of each input and output: any hashable object, `ONE` or `MIXED`. An axis of an input
        whose label an output does not have is reduced there.
    linear : sequence of sequence of int
        Groups of inputs: the operation is linear in those of a group together, if the others are fixed.
    powers : mapping from int to number
        Of further inputs in which it is homogeneous: the degree. A quotient has degree -1 in its second.
    reduce : sequence of (str or None)
        For each output, by what axes are reduced; None if parts cannot be put together.
    moves : bool
        Whether it only moves elements of its inputs together.
    keeps_order : bool, optional
        Whether extremes of parts are parts of extremes; by default if it only moves elements.
    late : sequence of sequence of int
        Groups of inputs in which it is linear, but not of parts, because of their dtypes: parts may have wrapped
        around, or would be truncated each by itself. Only the whole can be computed with.
    shapes_only : sequence of int
        Inputs whose values do not matter, only their shapes.
    degree : number, optional
        If it is homogeneous in all its inputs together: the degree. A comparison has degree 0.
    added : sequence of int
        Inputs to which the others, whole numbers as they are, are added.
    factors : sequence of (Product or None)
        If the inputs are multiplied: what is known of their values.
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

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        streams = {one for one in inputs if isinstance(one, Stream)}
        if streams:  # a loop has its state in an array with others
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
                return Placed([LATE] * len(self.outputs), sizes)
        unknown = next((one for one in inputs if isinstance(one, Unknown)), None)
        if unknown is not None:
            return Placed([unknown] * len(self.outputs), sizes | whole)
        outputs, equal = self._outputs(inputs, exact)
        return Placed(outputs, sizes | whole, equal)

    def _averaged(self, inputs: List[Placement]) -> List[Placement]:
        """Take replicated values that are added to averages for averages, too: of equal values, they are that value."""
        after = list(inputs)
        for group in self.linear:
            powers = {one.power for one in (inputs[i] for i in group) if isinstance(one, Partial)}
            for i in group:
                one = inputs[i]
                if len(group) > 1 and isinstance(one, Replicate) and not one.zero and powers == {one.power - 1}:
                    after[i] = Partial("sum", one.power - 1)
        return after

    def _keeps(self, partial: Set[int], inputs: Sequence[Any]) -> bool:
        """Return whether results of parts are parts of the result, by the same op."""
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
        """Return the placements of the outputs, and the lengths that have to be equal."""
        power = self._power(inputs)
        if power is None:
            why = "combines values that depend in different ways on how many rows the rank has"
            return [Unknown(why)] * len(self.outputs), ()
        partial = next((one for one in inputs if isinstance(one, Partial)), None)
        # Zeros that are not so on a rank without rows.
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
            of = layout  # they have not been moved
        (label,) = labels
        results: List[Placement] = []
        for of_output, reduce in zip(self.outputs, self.reduce):
            uniform = self._is_uniform(of_output, inputs)
            if label in of_output and (uniform or not loose):
                axis = list(of_output).index(label)
                results.append(Shard(axis, power, layout, zero, uniform, bool(loose), index, of, size))
            elif loose:
                results.append(Unknown("computes with random numbers of which there are more than rows"))
            elif index:
                results.append(Unknown("computes with positions of rows, which every rank counts from 0"))
            elif self.needs_elements and not layout.is_even:
                results.append(NONE_CHOSEN)
            else:
                unknown = LATE if self.late else Unknown("depends on all rows")
                results.append(unknown if reduce is None else Partial(reduce, power))
        return results, equal

    def _is_uniform(self, of_output: Labels, inputs: Sequence[Any]) -> bool:
        """Return whether the elements of an output are as good in any order as in that which they have."""
        names = set(of_output) - {ONE}
        for labels, one in zip(self.inputs, inputs):
            own = set(labels) - {ONE}
            if MIXED in own or (not one.uniform or own != names if isinstance(one, Shard) else own):
                return False
        return MIXED not in names

    def _fault(self, labels: Set[Any], inputs: Sequence[Any]) -> Optional[str]:
        """Return why the rows of one rank are not enough; None if they are."""
        if len(labels) > 1:
            return "combines each row with all others (its inputs have the rows along different axes)"
        if MIXED in labels:
            return "works along the axis of the rows"
        if ONE in labels:
            return "needs an axis of length 1, which is that of the rows"
        for i, of_input in enumerate(self.inputs):
            if not isinstance(inputs[i], Shard) and labels & set(of_input):
                return (
                    f"combines a rank's own rows with a value that has all rows on every rank (its input {i})"
                    f"{TAKE_SHARE}"
                )
        if not any(labels <= set(of_output) for of_output in self.outputs):
            for i in (i for group in self.linear if len(group) > 1 for i in group):
                # (an input that is repeated along the rows is added once for each of them)
                if not labels & set(self.inputs[i]) and MIXED in self.inputs[i] and not is_zero(inputs[i]):
                    sets = None in self.reduce
                    return (
                        "sets elements of what every rank has to values of its own rows"
                        if sets
                        else "adds what every rank has a part of to what every rank has"
                    )
        return None

    def _positions(self, shards: Sequence[Tuple[int, Shard]]) -> Any:
        """Return what positions of rows become, of which layout and size, or why they cannot be computed with."""
        found = [(i, one) for i, one in shards if one.positions and i not in self.shapes_only]
        if not found:
            return Index.NO, Layout(), ONE_ELEMENT
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
        """Return the result's power of the share of rows; None if it has none.

        Of a share of 0, that of a rank without rows, the 0th power of what was another is not 1: only arrays that have
        no elements then are right.
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
    """Return the layout of the result, and lengths that have to be equal; or why rows cannot be combined."""
    found: Optional[Layout] = None
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
            return "combines rows that may lie in different orders"
        found = both
    if found is not None:
        return found, equal
    layouts = [one.layout for _, one in shards]
    known = next((one for one in layouts if not one.is_unordered), layouts[0])
    return Layout() if Layout() in layouts else known, ()


def _fault_of_loose(shards: Sequence[Tuple[int, Shard]]) -> Any:
    """Return whether there are more random numbers than rows, or why these cannot be combined with rows."""
    loose = {one.loose for _, one in shards}
    return "combines rows with random numbers of which there are more" if len(loose) > 1 else loose.pop()


def is_zero(placement: Placement) -> bool:
    """Return whether all elements are known to be 0 on every rank."""
    return isinstance(placement, (Replicate, Shard)) and placement.zero


def _element(one: Any, values: Optional[Sequence[Optional[Product]]], k: int) -> Length:
    """Return an element of lengths, or of numbers that all ranks have."""
    if isinstance(one, Size):
        return one.lengths[k % len(one.lengths)]
    return Length(one.power, None, values[k % len(values)] if values and one.power == 0 else None)


_OPPOSITE = {"max": "min", "min": "max"}


class Elementwise(Axes):
    """An operation on single elements, whose inputs have one number of dimensions.

    Parameters
    ----------
    broadcastable : sequence of sequence of bool
        For each input, along which axes it is of length 1.
    n_outputs : int
    linear, powers, **kwargs
        As for `Axes`.
    reverses : int, optional
        The input whose order it reverses, if the others are constants: the negative of a largest element is the
        smallest of negatives.
    arithmetic : callable, optional
        Returns what it does with lengths.
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

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        has_lengths = any(isinstance(one, Size) for one in inputs)
        if self.ndim <= 1 and has_lengths and all(isinstance(one, (Size, Replicate)) for one in inputs):
            placed = self._of_lengths(inputs, exact)
            if placed is not None:
                return placed
        part = None if self.reverses is None else inputs[self.reverses]
        if isinstance(part, Partial) and part.op in _OPPOSITE and (part.power == 0 or len(inputs) == 1):
            return Placed([part._replace(op=_OPPOSITE[part.op])])
        return super().place(inputs, exact)

    def _of_lengths(self, inputs: Sequence[Any], exact: bool) -> Optional[Placed]:
        """Return what arithmetic with numbers of rows gives, element by element; None if it cannot be followed."""
        done = Arithmetic(Kind.OTHER, [None] * len(inputs)) if self.arithmetic is None else self.arithmetic()
        count = max(len(one.lengths) for one in inputs if isinstance(one, Size))
        is_vector = self.outputs[0] in [labels for labels, one in zip(self.inputs, inputs) if isinstance(one, Size)]
        if not is_vector:
            vectors = [one for labels, one in zip(self.inputs, done.values) if labels == self.outputs[0]]
            if count > 1 or not vectors or any(one is None for one in vectors):
                return None  # more elements than lengths
            count = max(len(one or ()) for one in vectors)
        elif not exact and any(all(is_zero(inputs[i]) for i in group) for group in self.linear):
            # Also by 1 / rows; but not on a rank without rows.
            return Placed([Replicate(-1, zero=True)] * len(self.outputs))
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
            return None  # of no use as a shape, but perhaps as numbers
        return Placed([Size(tuple(lengths))] * len(self.outputs), equal=equal)


class Reduction(Axes):
    """A reduction over some axes.

    Parameters
    ----------
    ndim : int
    axes : sequence of int
    op : str or None
        ``sum``, ``max``, ``min`` or ``prod``; None if parts cannot be put together.
    is_late : bool
        If the op is None, whether parts could be put together before they are cast to the dtype of the result.
    """

    keeps_shapes = True

    def __init__(self, ndim: int, axes: Sequence[int], op: Optional[str], is_late: bool = False) -> None:
        left = [axis for axis in range(ndim) if axis not in axes]
        late = [[0]] if op is None and is_late else []
        super().__init__([range(ndim)], [left], [[0]] if op == "sum" else [], reduce=[op], late=late)

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        (one,) = inputs
        if isinstance(one, Size) and self.reduce == ["prod"]:  # the number of elements, from a shape
            powers = [length.power for length in one.lengths]
            power = None if None in powers else sum(powers)  # type: ignore[arg-type]
            times = None if power is None else product(length.times for length in one.lengths)
            return Placed([Size((Length(power, None, times),))])
        if isinstance(one, Partial) and one.op == self.reduce[0] != "sum" and one.power == 0:
            return Placed([one])
        return super().place(inputs, exact)


def along(inputs: Sequence[int], outputs: Sequence[int], axes: Sequence[int], **kwargs: Any) -> Axes:
    """Return the rule of an operation that mixes along some axes and treats all others by themselves.

    Parameters
    ----------
    inputs, outputs : sequence of int
        The number of dimensions of each.
    axes : sequence of int
    **kwargs
        As for `Axes`.
    """
    labels = [[MIXED if axis in axes else axis for axis in range(ndim)] for ndim in (*inputs, *outputs)]
    return Axes(labels[: len(inputs)], labels[len(inputs) :], **kwargs)


class Moved(Axes):
    """A transposition: ``order`` has, for each axis of the output, that of the input, or ``"x"`` for a new one."""

    keeps_shapes = True

    def __init__(self, ndim: int, order: Sequence[Any]) -> None:
        super().__init__([range(ndim)], [[ONE if axis == "x" else axis for axis in order]], [[0]], moves=True)

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        if isinstance(inputs[0], Size) and len(self.outputs[0]) <= 1:
            return Placed([inputs[0]])
        return super().place(inputs, exact)


class Checked(Axes):
    """The first input as it is, if conditions hold: of parts the whole is checked, if it can be had."""

    def __init__(self, ndim: int, n_conditions: int) -> None:
        super().__init__([range(ndim), *[[]] * n_conditions], [range(ndim)], [[0]])

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        conditions = [one if exact and isinstance(one, (Partial, Size)) else Replicate() for one in inputs[1:]]
        return super().place([inputs[0], *conditions], exact)
