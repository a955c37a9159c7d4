"""Formulas of Theano's operations."""

from __future__ import annotations

from typing import Any, List

from theano import tensor
from theano.tensor.nnet import bn

from ..graph.formulas import Formulas
from .classes import CLASSES


def _specified(node: Any) -> List[Any]:
    """Compare the lengths, with all rows, with those that are given."""
    array, lengths = node.inputs
    conditions = [tensor.eq(array.shape[axis], lengths[axis]) for axis in range(array.ndim)]
    return [CLASSES.Assert("SpecifyShape: an array of another shape was given")(array, *conditions)]


with_formulas = Formulas(
    CLASSES,
    # Theano's own formulas, for processors without an operation for it.
    {
        CLASSES.SpecifyShape: _specified,
        bn.AbstractBatchNormTrain: bn.local_abstract_batch_norm_train.transform,
        bn.AbstractBatchNormTrainGrad: bn.local_abstract_batch_norm_train_grad.transform,
    },
    of_rows=(bn.AbstractBatchNormTrain, bn.AbstractBatchNormTrainGrad),
)
FORMULAS = with_formulas.formulas
