"""Formulas that replace Theano's operations; see `graph.formulas`."""

from __future__ import annotations

from typing import Any, List, Optional

from theano import scalar, tensor
from theano.tensor import nnet
from theano.tensor.nnet import bn

from ..graph.formulas import Formulas
from .classes import CLASSES

#: Tag attribute that marks a softmax whose logarithm must be computed stably, not from values near 0.
IS_STABLE = "is_stable"


def _softmax(node: Any) -> List[Any]:
    """Return a softmax that subtracts row maxima before the exponential, as Theano's own code does."""
    below = node.inputs[0] - tensor.max(node.inputs[0], axis=1, keepdims=True)
    total = tensor.exp(below).sum(axis=1, keepdims=True)
    found = tensor.exp(below) / total
    found.tag.logarithm = below - tensor.log(total)
    found.tag.is_stable = getattr(node.outputs[0].tag, IS_STABLE, False)
    return [found]


def _log_softmax(node: Any) -> List[Any]:
    return [_softmax(node)[0].tag.logarithm]


def _logarithm(node: Any) -> Optional[List[Any]]:
    """Return a stable expression for the logarithm of a tagged softmax; None for any other operation."""
    tag = node.inputs[0].tag
    return [tag.logarithm] if getattr(tag, IS_STABLE, False) and isinstance(node.op.scalar_op, scalar.Log) else None


def _softmax_gradient(node: Any) -> List[Any]:
    """Return the gradient of a softmax, or of its logarithm."""
    given, shares = node.inputs
    is_divided = given.owner is not None and given.owner.op == tensor.true_div and given.owner.inputs[1] is shares
    if is_divided and getattr(shares.tag, IS_STABLE, False):
        given = given.owner.inputs[0] + tensor.zeros_like(shares)
    else:
        given = given * shares
    return [given - given.sum(axis=1, keepdims=True) * shares]


with_formulas = Formulas(
    CLASSES,
    # The formulas for batch normalization are Theano's own for CPUs.
    {
        bn.AbstractBatchNormTrain: bn.local_abstract_batch_norm_train.transform,
        bn.AbstractBatchNormTrainGrad: bn.local_abstract_batch_norm_train_grad.transform,
        nnet.Softmax: _softmax,
        nnet.LogSoftmax: _log_softmax,
        nnet.SoftmaxGrad: _softmax_gradient,
        CLASSES.Elemwise: _logarithm,
    },
    of_rows=(
        *(bn.AbstractBatchNormTrain, bn.AbstractBatchNormTrainGrad),
        *(nnet.Softmax, nnet.LogSoftmax, nnet.SoftmaxGrad),
    ),
)
FORMULAS = with_formulas.formulas
