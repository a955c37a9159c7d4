"""Placement rules for Theano's operations; to add a rule, extend the table at the end."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Sequence, Type

from theano.gof import Op
from theano.sandbox import multinomial
from theano.sandbox.rng_mrg import mrg_uniform_base
from theano.tensor import basic, extra_ops, raw_random, slinalg, subtensor
from theano.tensor.nnet import abstract_conv, bn, conv, nnet
from theano.tensor.signal import pool

from ...sharding import MIXED, Axes, Drawn, PlacementRule, Where
from ..graph.lengths import broadcastable, ndim
from ..graph.placing import Make, Placing
from ..graph.rules.along import along, by_rows, labels, own_axis, solve
from ..graph.rules.indices import masked
from .lengths import LENGTHS


def _drawn(node: Any) -> PlacementRule:
    _, _, *parameters = node.inputs
    draw = getattr(node.op, "fn", "uniform")
    by_element = isinstance(draw, str) or draw is raw_random.random_integers_helper
    values = [broadcastable(one) if by_element else (None,) * ndim(one) for one in parameters]
    is_single = not getattr(node.op, "ndim_added", 0)
    return Drawn([(), *values], ndim(node.outputs[1]), [1], is_single)


def _convolution(node: Any) -> PlacementRule:
    op, space = node.op, [MIXED] * (ndim(node.inputs[0]) - 2)
    grouped = getattr(op, "num_groups", 1) != 1 or getattr(op, "unshared", False)
    channels = MIXED if grouped else "c"
    images, filters = ["n", channels, *space], [MIXED if grouped else "o", channels, *space]
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


def _pooling(linear: Sequence[int] = ()) -> Callable[[Any], PlacementRule]:
    def rule(node: Any) -> PlacementRule:
        n = ndim(node.outputs[0])
        free = n - node.op.ndim
        names = [*range(free), *[MIXED] * node.op.ndim]
        inputs = [names if ndim(one) == n else [MIXED] * ndim(one) for one in node.inputs]
        return Axes(inputs, [names], [[i] for i in linear])

    return rule


# -- operations on independent rows ------------------------------------------------------------------------------------


def _with_bias(node: Any) -> PlacementRule:
    """Return the rule for a softmax of a matrix plus a bias per column, and for operations derived from it."""
    inputs: List[List[Any]] = [[0, MIXED], [MIXED], *[[0]] * (len(node.inputs) - 2)]
    return Axes(inputs, [[0, *[MIXED] * (ndim(one) - 1)] for one in node.outputs])


def _normalized(node: Any) -> PlacementRule:
    n = ndim(node.inputs[0])
    return Axes([list(range(n)), *[labels(one, range(n)) for one in node.inputs[1:]]], [range(n)])


_OWN: Dict[Type[Op], Make] = {
    subtensor.AdvancedBooleanSubtensor: partial(masked, first=1),
    subtensor.AdvancedBooleanIncSubtensor: partial(masked, first=2),
    basic.Nonzero: lambda node: Where(ndim(node.inputs[0]), node.inputs[0]),
    abstract_conv.BaseAbstractConv: _convolution,
    conv.ConvOp: _convolution,
    pool.Pool: _pooling(),
    pool.MaxPoolGrad: _pooling([2]),
    pool.AveragePoolGrad: _pooling([1]),
    pool.DownsampleFactorMaxGradGrad: _pooling([2]),
    pool.MaxPoolRop: _pooling([1]),
    nnet.Softmax: by_rows(),
    nnet.LogSoftmax: by_rows(),
    nnet.SoftmaxGrad: by_rows([0]),
    nnet.CrossentropyCategorical1Hot: by_rows(),
    nnet.CrossentropyCategorical1HotGrad: by_rows([0]),
    nnet.SoftmaxWithBias: _with_bias,
    nnet.CrossentropySoftmaxArgmax1HotWithBias: _with_bias,
    nnet.CrossentropySoftmax1HotWithBiasDx: by_rows([0]),
    bn.AbstractBatchNormInference: _normalized,
    extra_ops.DiffOp: along(own_axis, linear=True),
    extra_ops.RepeatOp: along(own_axis, linear=True),
    raw_random.RandomFunction: _drawn,
    mrg_uniform_base: _drawn,
    multinomial.MultinomialFromUniform: by_rows(),
    slinalg.Solve: solve,
}

PLACING = Placing(LENGTHS, _OWN)
RULES = PLACING.rules
