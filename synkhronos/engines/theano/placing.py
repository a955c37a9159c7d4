"""The rule of `synkhronos.sharding` for each of Theano's operations.

A new operation is one entry in the table at the end: from its class to a function from a node to a rule.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple, Type

import numpy as np
from theano import gradient, printing, scalar, tensor
from theano.compile.builders import OpFromGraph
from theano.compile.ops import DeepCopyOp, Rebroadcast, Shape, Shape_i, SpecifyShape, ViewOp
from theano.gof import Constant, Op
from theano.gof.graph import io_toposort
from theano.ifelse import IfElse
from theano.sandbox import multinomial
from theano.sandbox.rng_mrg import mrg_uniform_base
from theano.scan_module.scan_op import Scan
from theano.tensor import basic, blas, extra_ops, opt, raw_random, subtensor
from theano.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from theano.tensor.nnet import abstract_conv, bn, conv, nnet
from theano.tensor.signal import pool
from theano.tensor.sort import ArgSortOp, SortOp

from ...errors import ArgumentValueError
from ...sharding import (
    MIXED,
    ONE,
    ZERO,
    Axes,
    Checked,
    Choice,
    Common,
    Completed,
    Coordinate,
    Divided,
    Drawn,
    Element,
    Elementwise,
    Filled,
    Graph,
    Inner,
    Joined,
    Loop,
    Masked,
    Moved,
    Node,
    Opaque,
    Positions,
    Product,
    Put,
    Reduction,
    Reshaped,
    Rule,
    ShapeOf,
    Slice,
    State,
    Subscript,
    Taken,
    Together,
    Where,
)
from .descriptions import described
from .indices import constant_index, is_all
from .lengths import axis_length, constant, elements, ndim, value
from .operations import AllReduce, InverseShare, PutShare, TakeShare, WholeLength

#: The operation is not known: it has no rule.
UNKNOWN_WHY = "has no rule for rows that are divided over ranks"


def graph_of(inputs: Sequence[Any], outputs: Sequence[Any]) -> Graph:
    """Return a graph as the rules see it."""
    nodes, known = [], {}
    for node in io_toposort(inputs, outputs):
        nodes.append(Node(rule_of(node), tuple(node.inputs), tuple(node.outputs), partial(described, node)))
        for variable in node.inputs:
            if is_zero(variable):
                known[variable] = ZERO
    known.update({output: ZERO for output in outputs if is_zero(output)})
    return Graph(nodes, list(inputs), list(outputs), known)


def add_rule(cls: Type[Op], make: Callable[[Any, Sequence[int], Sequence[int]], Rule]) -> None:
    """Give an operation of the program's own a rule; see `Engine.add_rule`."""
    known = next((base for base in cls.__mro__ if base in RULES and base not in _added), None)
    if known is not None:
        got = f"{cls.__name__}" if known is cls else f"{cls.__name__}, a kind of {known.__name__}"
        raise ArgumentValueError("op", "an operation without a rule", got)
    _added.add(cls)
    RULES[cls] = lambda node: make(node, [ndim(one) for one in node.inputs], [ndim(one) for one in node.outputs])


def rule_of(node: Any) -> Rule:
    """Return the rule of a node; `Opaque` if its operation has none."""
    for cls in type(node.op).__mro__:
        if cls in RULES:
            rule = RULES[cls](node)
            if rule is not None:
                return rule
    return Opaque(len(node.outputs))


def is_zero(variable: Any) -> bool:
    """Return whether a variable is a constant all of whose elements are 0."""
    value = constant(variable)
    return isinstance(value, np.ndarray) and value.dtype.kind in "biufc" and not value.any()


def ones(variable: Any) -> Tuple[bool, ...]:
    """Return along which axes a variable is known to be of length 1; nothing for what is not an array."""
    return tuple(getattr(variable.type, "broadcastable", ()))


def labels(variable: Any, names: Sequence[Any]) -> List[Any]:
    """Return labels for the axes of a variable, `ONE` for those of length 1."""
    return [ONE if one else name for one, name in zip(ones(variable), names)]


# -- elementwise -------------------------------------------------------------------------------------------------------

_LINEAR = (scalar.Add, scalar.Sub, scalar.Neg, scalar.Identity)
_DEGREES: Tuple[Any, Any] = (
    (scalar.LT, scalar.GT, scalar.LE, scalar.GE, scalar.EQ, scalar.NEQ),
    (scalar.Maximum, scalar.Minimum),
)
_POWERS: Dict[type, Any] = {scalar.Sqr: 2, scalar.Sqrt: 0.5, scalar.Abs: 1, scalar.Inv: -1, scalar.Sgn: 0}


def _elementwise(node: Any) -> Rule:
    op, positions = node.op.scalar_op, range(len(node.inputs))
    linear: List[Sequence[int]] = []
    more: Dict[str, Any] = {}
    is_integer = node.outputs[0].dtype in tensor.discrete_dtypes and node.outputs[0].dtype != "bool"
    if isinstance(op, _LINEAR) or isinstance(op, scalar.Cast) and _casts_linearly(node):
        linear = [positions]
        if isinstance(op, (scalar.Add, scalar.Sub)) and is_integer:
            more["added"] = positions if isinstance(op, scalar.Add) else [0]
        more["negates"] = isinstance(op, scalar.Neg)
        more["moves"] = isinstance(op, scalar.Identity) or is_integer and _casts_in_order(node)
    elif isinstance(op, scalar.Mul):
        linear = [[i] for i in positions]
        more["factors"] = [value(one) for one in node.inputs] if is_integer else None
    elif isinstance(op, scalar.TrueDiv):
        linear, more["powers"] = [[0]], {1: -1}
    elif isinstance(op, scalar.Second):
        linear, more["shapes_only"] = [[1]], [0]
    elif isinstance(op, scalar.Switch):
        linear = [[1, 2]]
    elif isinstance(op, scalar.Pow):
        exponent = constant(node.inputs[1])
        more["powers"] = {} if exponent is None or exponent.size != 1 else {0: exponent.item()}
    elif isinstance(op, _DEGREES[0] + _DEGREES[1]):
        more["degree"] = int(isinstance(op, _DEGREES[1]))
    elif type(op) in _POWERS:
        more["powers"] = {0: _POWERS[type(op)]}
    return Elementwise([ones(one) for one in node.inputs], len(node.outputs), linear, **more)


#: Whole numbers that wrap around early (of unsigned ones, negative parts do): their sums agree until they are widened.
_WRAPPING = ("int8", "int16", "uint8", "uint16", "uint32")


def _casts_linearly(node: Any) -> bool:
    before, after = node.inputs[0].dtype, node.outputs[0].dtype
    if before in _WRAPPING and np.dtype(after).itemsize > np.dtype(before).itemsize:
        return False
    return after not in tensor.discrete_dtypes or before in tensor.discrete_dtypes and after != "bool"


def _casts_in_order(node: Any) -> bool:
    """Return whether an operation is a cast that leaves the largest the largest."""
    before, after = node.inputs[0].dtype, node.outputs[0].dtype
    return isinstance(node.op.scalar_op, scalar.Cast) and (after in ("int32", "int64") or np.can_cast(before, after))


# -- shapes ------------------------------------------------------------------------------------------------------------


def _reduction(node: Any) -> Rule:
    (one,) = node.inputs
    op: Dict[Any, Optional[str]] = {scalar.Add: "sum", scalar.Mul: "prod", scalar.Maximum: "max", scalar.Minimum: "min"}
    if one.dtype == "bool":
        op.update({scalar.AND: "min", scalar.OR: "max"})
    if node.outputs[0].dtype == "bool":
        op.update({scalar.Add: None, scalar.Mul: None})  # whether any, or all, are not 0
    is_linear = one.dtype in tensor.discrete_dtypes or node.outputs[0].dtype not in tensor.discrete_dtypes
    return Reduction(ndim(one), _axes(node), op.get(type(node.op.scalar_op)), is_linear)


def _axes(node: Any) -> Sequence[int]:
    axis = node.op.axis
    return range(ndim(node.inputs[0])) if axis is None else [axis] if isinstance(axis, int) else list(axis)


def _max_and_argmax(node: Any) -> Rule:
    axes = _axes(node)
    left = [axis for axis in range(ndim(node.inputs[0])) if axis not in axes]
    n = len(node.outputs)
    return Axes([range(ndim(node.inputs[0]))], [left] * n, reduce=["max", None] if n == 2 else [None])


def _filled(node: Any, values: int) -> Rule:
    shape = range(values, len(node.inputs))
    return Filled([ones(one) for one in node.inputs[:values]], ndim(node.outputs[0]), shape)


def _drawn(node: Any) -> Rule:
    _, _, *parameters = node.inputs
    draw = getattr(node.op, "fn", "uniform")
    by_element = isinstance(draw, str) or draw is raw_random.random_integers_helper
    values = [ones(one) if by_element else (None,) * ndim(one) for one in parameters]
    is_single = not getattr(node.op, "ndim_added", 0)
    return Drawn([(), *values], ndim(node.outputs[1]), [1], is_single)


def _reshaped(node: Any) -> Rule:
    before = [axis_length(node.inputs[0], axis) for axis in range(ndim(node.inputs[0]))]
    after: List[Optional[Product]] = [None] * node.op.ndim
    free = None
    for axis, one in enumerate(elements(node.inputs[1]) or ()):
        if one == Product(-1):
            free = axis
        elif one.number > 0:
            after[axis] = one
    return Reshaped(before, after, free)


def _vector(node: Any) -> Rule:
    n = len(node.inputs)
    return Together([1] * n, Axes([[]] * n, [[MIXED]], [range(n)], moves=True))


def _joined(node: Any) -> Rule:
    axis, arrays = constant(node.inputs[0]), node.inputs[1:]
    if axis is None:
        return Opaque(1)
    rule = Joined(len(arrays), ndim(arrays[0]), int(axis) % ndim(arrays[0]))
    if ndim(arrays[0]) != 1:
        return rule
    vectors = map(elements, arrays)
    return Together([0, *[None if one is None else len(one) for one in vectors]], rule)


def _split(node: Any) -> Rule:
    axis, n = constant(node.inputs[1]), ndim(node.inputs[0])
    if axis is None:
        return Opaque(len(node.outputs))
    return Divided(len(node.outputs), n, int(axis) % n)


def _counting(node: Any) -> Rule:
    start, _, step = map(constant, node.inputs)
    return Positions(start is not None and start == 0 and step is not None and step == 1)


def _same(node: Any) -> Rule:
    return Moved(ndim(node.inputs[0]), range(ndim(node.inputs[0])))


def _checked(node: Any) -> Rule:
    return Checked(ndim(node.inputs[0]), len(node.inputs) - 1)


def _same_as_first(node: Any) -> Rule:
    names = list(range(ndim(node.inputs[0])))
    others: List[Any] = [[MIXED] * ndim(one) for one in node.inputs[1:]]
    return Axes([names, *others], [names], [[0]], shapes_only=range(1, len(node.inputs)))


# -- products ----------------------------------------------------------------------------------------------------------


def _dot(node: Any) -> Rule:
    one, other = node.inputs
    left, right = (["i", "k"] if ndim(one) == 2 else ["k"]), (["k", "j"] if ndim(other) == 2 else ["k"])
    output = [name for name in left + right if name != "k"]
    is_outer = any(ones(one)[-1:]) or any(ones(other)[:1])  # nothing is summed
    factors = [value(one), value(other)] if is_outer and node.outputs[0].dtype in tensor.discrete_dtypes else None
    names = [labels(one, left), labels(other, right)]
    output = [name if name in names[0] + names[1] else ONE for name in output]
    return Axes(names, [output], [[0], [1]], factors=factors)


def _batched_dot(node: Any) -> Rule:
    one, other = node.inputs
    left, right = ["n", "i", "k"][: ndim(one)], ["n", "k", "j"][: ndim(other)]
    if ndim(one) == 2:
        left = ["n", "k"]
    return Axes([left, right], [["n"] + ["i"] * (ndim(one) == 3) + ["j"] * (ndim(other) == 3)], [[0], [1]])


def _convolution(node: Any) -> Rule:
    op, space = node.op, [MIXED] * (ndim(node.inputs[0]) - 2)
    grouped = getattr(op, "num_groups", 1) != 1 or getattr(op, "unshared", False)
    channels = MIXED if grouped else "c"
    images, filters, results = ["n", channels, *space], [MIXED if grouped else "o", channels, *space], ["n", *space]
    results = ["n", MIXED if grouped else "o", *space]
    if ndim(node.inputs[1]) != ndim(node.inputs[0]):  # unshared filters
        filters = [MIXED] * ndim(node.inputs[1])
    rest: List[Any] = [[MIXED] * ndim(one) for one in node.inputs[2:]]
    if isinstance(op, abstract_conv.AbstractConv_gradWeights):
        return Axes([images, results, *rest], [filters], [[0], [1]])
    if isinstance(op, abstract_conv.AbstractConv_gradInputs):
        filters = [MIXED] * ndim(node.inputs[0]) if grouped else ["o", channels, *[MIXED] * (ndim(node.inputs[0]) - 2)]
        n = ndim(node.inputs[1]) - 2
        results, images = ["n", results[1], *[MIXED] * n], ["n", channels, *[MIXED] * n]
        return Axes([filters, results, *rest], [images], [[0], [1]])
    return Axes([images, filters, *rest], [results], [[0], [1]])


def _pooling(linear: Sequence[int] = ()) -> Callable[[Any], Rule]:
    def rule(node: Any) -> Rule:
        n = ndim(node.outputs[0])
        free = n - node.op.ndim
        names = [*range(free), *[MIXED] * node.op.ndim]
        inputs = [names if ndim(one) == n else [MIXED] * ndim(one) for one in node.inputs]
        return Axes(inputs, [names], [[i] for i in linear])

    return rule


# -- rows by rows ------------------------------------------------------------------------------------------------------


def _by_rows(linear: Sequence[int] = ()) -> Callable[[Any], Rule]:
    """Return what makes the rule of an operation on matrices and vectors that treats the first axis of all alike."""

    def rule(node: Any) -> Rule:
        def names(variable: Any) -> List[Any]:
            return [0, *[MIXED] * (ndim(variable) - 1)] if ndim(variable) else []

        inputs, outputs = list(map(names, node.inputs)), list(map(names, node.outputs))
        return Axes(inputs, outputs, [[i] for i in linear])

    return rule


def _with_bias(node: Any) -> Rule:
    """Softmax of a matrix and a bias for each of its columns, and what is made of it."""
    inputs: List[List[Any]] = [[0, MIXED], [MIXED], *[[0]] * (len(node.inputs) - 2)]
    return Axes(inputs, [[0, *[MIXED] * (ndim(one) - 1)] for one in node.outputs])


def _along(axis: Callable[[Any], Any], linear: bool = False) -> Callable[[Any], Optional[Rule]]:
    """Return what makes the rule of an operation along one axis of its first input."""

    def rule(node: Any) -> Optional[Rule]:
        n, found = ndim(node.inputs[0]), axis(node)
        if found is None or any(ndim(one) != n for one in node.outputs):
            return None
        names = [MIXED if i == int(found) % n else i for i in range(n)]
        rest: List[Any] = [[MIXED] * ndim(one) for one in node.inputs[1:]]
        return Axes([names, *rest], [names] * len(node.outputs), [[0]] if linear else [])

    return rule


def _axis(node: Any) -> Any:
    return node.op.axis


def _second_input(node: Any) -> Any:
    value = constant(node.inputs[1])
    return None if value is None or value.ndim else value


def _normalized(node: Any) -> Rule:
    n = ndim(node.inputs[0])
    return Axes([list(range(n)), *[labels(one, range(n)) for one in node.inputs[1:]]], [range(n)])


# -- indices -----------------------------------------------------------------------------------------------------------


def _basic_index(node: Any, first: int, as_it_is: Optional[int] = None) -> Tuple[List[Any], List[Any]]:
    """Return the labels of the array that a basic index is put into, and of what it takes.

    One axis may be given that is treated as if the index took it as it is.
    """
    array = node.inputs[0]
    entries = subtensor.get_idx_list(node.inputs[first - 1 :], node.op.idx_list)
    before = list(range(ndim(array)))
    for axis, entry in enumerate(entries):
        if axis != as_it_is and not is_all(entry):
            before[axis] = MIXED  # type: ignore[call-overload]
    after = [name for axis, name in enumerate(before) if axis >= len(entries) or isinstance(entries[axis], slice)]
    return before, after


def _slices(node: Any, first: int, rule_if: Callable[[int], Axes]) -> Dict[int, Slice]:
    """Return the slices of a basic index that have ends in the graph, by axis."""
    found: Dict[int, Slice] = {}
    entries = subtensor.get_idx_list([None, *range(first, len(node.inputs))], node.op.idx_list)
    for axis, entry in enumerate(entries):
        if isinstance(entry, slice) and entry.step is None and not (entry.start is None and entry.stop is None):
            start = None if entry.start is not None and _is_start(node, entry.start) else entry.start
            found[axis] = Slice(start, entry.stop, rule_if(axis))
    return found


def _is_start(node: Any, i: int) -> bool:
    value = constant(node.inputs[i])
    return value is not None and not value.any()


def _subtensor(node: Any) -> Rule:
    array = node.inputs[0]
    if array.owner is not None and isinstance(array.owner.op, basic.Nonzero) and ndim(node.outputs[0]) == 1:
        (entry,) = subtensor.get_idx_list(node.inputs, node.op.idx_list)
        if not isinstance(entry, slice) and constant(entry) is not None:
            return Coordinate(int(constant(entry)))
    ends = range(1, len(node.inputs))

    def rule_if(as_it_is: Optional[int]) -> Any:
        before, after = _basic_index(node, 1, as_it_is)
        return [before, *[[]] * len(ends)], [after], [[0]]

    is_vector = ndim(node.inputs[0]) == 1 and ndim(node.outputs[0]) == 1
    slices = _slices(node, 1, lambda axis: Axes(*rule_if(axis)))
    inputs, outputs, linear = rule_if(None)
    rule = Subscript(inputs, outputs, linear, ends, is_vector=is_vector, slices=slices)
    index = constant_index(node) if ndim(node.inputs[0]) == 1 else None
    return rule if index is None else Element(index, rule)


def _inc_subtensor(node: Any) -> Rule:
    ends, value = range(2, len(node.inputs)), node.inputs[1]

    def rule_if(as_it_is: Optional[int]) -> Any:
        before, taken = _basic_index(node, 2, as_it_is)
        return [before, labels(value, taken[len(taken) - ndim(value) :]), *[[]] * len(ends)], [before], [[0, 1]]

    slices = _slices(node, 2, lambda axis: Axes(*rule_if(axis)))
    inputs, outputs, linear = rule_if(None)
    return Subscript(inputs, outputs, linear, ends, sets=node.op.set_instead_of_inc, slices=slices)


def _rows_at(node: Any) -> Rule:
    names = list(range(1, ndim(node.inputs[0])))
    return Subscript([[MIXED, *names], ["at"]], [["at", *names]], [[0]], arrays={0: 1})


def _inc_rows_at(node: Any) -> Rule:
    names = list(range(1, ndim(node.inputs[0])))
    value = ["at", *names][1 + len(names) - ndim(node.inputs[1]) :]
    return Subscript(
        [[MIXED, *names], labels(node.inputs[1], value), ["at"]],
        [[MIXED, *names]],
        [[0, 1]],
        arrays={0: 2},
        sets=node.op.set_instead_of_inc,
    )


def _advanced(node: Any, first: int) -> Any:
    """Return labels of the array, of what an advanced index takes, of its entries, and its arrays by axis."""
    before: List[Any] = list(range(ndim(node.inputs[0])))
    of_inputs: List[Any] = []
    arrays: Dict[int, int] = {}
    width = max([ndim(one) for one in node.inputs[first:] if _is_integers(one)], default=0)
    place: Optional[int] = None
    after: List[Any] = []
    axis = 0
    for i, entry in enumerate(node.inputs[first:], first):
        if _is_integers(entry):
            if place is not None and place != axis:
                return None  # arrays that are not next to each other
            place = axis + 1
            arrays[axis] = i
            of_inputs.append(labels(entry, [("at", k) for k in range(width - ndim(entry), width)]))
            if len(arrays) == 1:
                after += [("at", k) for k in range(width)]
            before[axis] = MIXED
        elif _is_whole_slice(entry):
            of_inputs.append([])
            after.append(axis)
        else:
            return None
        axis += 1
    return before, after + list(range(axis, ndim(node.inputs[0]))), of_inputs, arrays


def _is_integers(entry: Any) -> bool:
    return isinstance(entry.type, tensor.TensorType) and entry.dtype in tensor.discrete_dtypes and entry.dtype != "bool"


def _is_whole_slice(entry: Any) -> bool:
    if isinstance(entry, Constant):
        return bool(entry.data == slice(None, None, None))
    return entry.owner is not None and all(getattr(one, "data", 0) is None for one in entry.owner.inputs)


def _advanced_subtensor(node: Any) -> Optional[Rule]:
    found = _advanced(node, 1)
    if found is None:
        return None
    before, after, of_inputs, arrays = found
    return Subscript([before, *of_inputs], [after], [[0]], arrays=arrays)


def _advanced_inc_subtensor(node: Any) -> Optional[Rule]:
    found = _advanced(node, 2)
    if found is None:
        return None
    before, after, of_inputs, arrays = found
    value = labels(node.inputs[1], after[len(after) - ndim(node.inputs[1]) :])
    sets = bool(node.op.set_instead_of_inc)
    return Subscript([before, value, *of_inputs], [before], [[0, 1]], arrays=arrays, sets=sets)


def _masked(first: int) -> Callable[[Any], Optional[Rule]]:
    def rule(node: Any) -> Optional[Rule]:
        array, mask = node.inputs[0], node.inputs[-1]
        if len(node.inputs) != first + 1 or getattr(mask, "dtype", "") != "bool" or ndim(mask) == 0:
            return None
        of_value = ones(node.inputs[1]) if first == 2 else None
        return Masked(ndim(array), ndim(mask), mask, of_value, getattr(node.op, "set_instead_of_inc", False))

    return rule


# -- nested ------------------------------------------------------------------------------------------------------------


def _inner(node: Any) -> Rule:
    return Inner(graph_of(node.op.local_inputs, node.op.local_outputs))


def _choice(node: Any) -> Rule:
    return Choice(node.op.n_outs)


def _loop(node: Any) -> Rule:
    op, n_steps = node.op, 0
    outer, inner, of_outputs = 1, 0, 0
    sequences = []
    for _ in range(op.n_seqs):
        sequences.append((outer, inner))
        outer, inner = outer + 1, inner + 1
    states: List[State] = []
    for k, taps in enumerate(op.tap_array):
        outputs = op.mit_mot_out_slices[k] if k < op.n_mit_mot else [0]
        states.append(
            State(outer, list(range(inner, inner + len(taps))), list(range(of_outputs, of_outputs + len(outputs))))
        )
        outer, inner, of_outputs = outer + 1, inner + len(taps), of_outputs + len(outputs)
    collected = list(range(of_outputs, of_outputs + op.n_nit_sot))
    of_outputs += op.n_nit_sot
    for _ in range(op.n_shared_outs):
        states.append(State(outer, [inner], [of_outputs], has_steps=False))
        outer, inner, of_outputs = outer + 1, inner + 1, of_outputs + 1
    lengths = list(range(outer, outer + op.n_nit_sot))
    outer += op.n_nit_sot
    fixed = list(zip(range(outer, len(node.inputs)), range(inner, len(op.inputs))))
    graph = graph_of(op.inputs, op.outputs)
    until = of_outputs if op.as_while else None
    return Loop(graph, sequences, states, collected, fixed, [n_steps, *lengths], until)


def _completed(node: Any) -> Rule:
    return Completed(node.op.n, node.op.op.name)


def _taken_share(node: Any) -> Rule:
    return Taken(node.op.axis)


def _put_share(node: Any) -> Rule:
    return Put(node.op.axis)


#: Operations of programs, in the table below.
_added: Set[Type[Op]] = set()

RULES: Dict[Type[Op], Callable[[Any], Optional[Rule]]] = {
    Elemwise: _elementwise,
    CAReduce: _reduction,
    DimShuffle: lambda node: Moved(ndim(node.inputs[0]), node.op.new_order),
    basic.MaxAndArgmax: _max_and_argmax,
    basic.Argmax: _max_and_argmax,
    basic.Dot: _dot,
    blas.BatchedDot: _batched_dot,
    Shape: lambda node: ShapeOf(ndim(node.inputs[0])),
    Shape_i: lambda node: ShapeOf(ndim(node.inputs[0]), node.op.i),
    basic.Reshape: _reshaped,
    basic.Alloc: lambda node: _filled(node, 1),
    basic.AllocEmpty: lambda node: _filled(node, 0),
    basic.ARange: _counting,
    opt.MakeVector: _vector,
    basic.Join: _joined,
    basic.Split: _split,
    opt.Assert: _checked,
    SpecifyShape: _same_as_first,
    subtensor.Subtensor: _subtensor,
    subtensor.IncSubtensor: _inc_subtensor,
    subtensor.AdvancedSubtensor1: _rows_at,
    subtensor.AdvancedIncSubtensor1: _inc_rows_at,
    subtensor.AdvancedSubtensor: _advanced_subtensor,
    subtensor.AdvancedIncSubtensor: _advanced_inc_subtensor,
    subtensor.AdvancedBooleanSubtensor: _masked(1),
    subtensor.AdvancedBooleanIncSubtensor: _masked(2),
    basic.Nonzero: lambda node: Where(ndim(node.inputs[0]), node.inputs[0]),
    abstract_conv.BaseAbstractConv: _convolution,
    conv.ConvOp: _convolution,
    pool.Pool: _pooling(),
    pool.MaxPoolGrad: _pooling([2]),
    pool.AveragePoolGrad: _pooling([1]),
    pool.DownsampleFactorMaxGradGrad: _pooling([2]),
    pool.MaxPoolRop: _pooling([1]),
    nnet.Softmax: _by_rows(),
    nnet.LogSoftmax: _by_rows(),
    nnet.SoftmaxGrad: _by_rows([0]),
    nnet.CrossentropyCategorical1Hot: _by_rows(),
    nnet.CrossentropyCategorical1HotGrad: _by_rows([0]),
    nnet.SoftmaxWithBias: _with_bias,
    nnet.CrossentropySoftmaxArgmax1HotWithBias: _with_bias,
    nnet.CrossentropySoftmax1HotWithBiasDx: _by_rows([0]),
    bn.AbstractBatchNormInference: _normalized,
    SortOp: _along(_second_input),
    ArgSortOp: _along(_second_input),
    extra_ops.CumOp: lambda node: _along(_axis, linear=node.op.mode == "add")(node),
    extra_ops.DiffOp: _along(_axis, linear=True),
    extra_ops.RepeatOp: _along(_axis, linear=True),
    raw_random.RandomFunction: _drawn,
    mrg_uniform_base: _drawn,
    multinomial.MultinomialFromUniform: _by_rows(),
    Scan: _loop,
    OpFromGraph: _inner,
    IfElse: _choice,
    AllReduce: _completed,
    WholeLength: lambda node: Common(),
    InverseShare: lambda node: Common(power=-1),
    TakeShare: _taken_share,
    PutShare: _put_share,
}
for _cls in (
    printing.Print,
    Rebroadcast,
    ViewOp,
    DeepCopyOp,
    basic.TensorFromScalar,
    basic.ScalarFromTensor,
    extra_ops.CpuContiguous,
):
    RULES[_cls] = _same
for _cls in (gradient.ConsiderConstant, gradient.ZeroGrad, gradient.DisconnectedGrad, gradient.GradScale):
    RULES[_cls] = _same
RULES[gradient.GradClip] = _same
