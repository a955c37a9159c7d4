"""Formulas of Theano's operations."""

from __future__ import annotations

from theano.tensor.nnet import bn

from ..graph.formulas import Formulas
from .classes import CLASSES

with_formulas = Formulas(
    CLASSES,
    # Theano's own formulas, for processors without an operation for it.
    {
        bn.AbstractBatchNormTrain: bn.local_abstract_batch_norm_train.transform,
        bn.AbstractBatchNormTrainGrad: bn.local_abstract_batch_norm_train_grad.transform,
    },
    of_rows=(bn.AbstractBatchNormTrain, bn.AbstractBatchNormTrainGrad),
)
FORMULAS = with_formulas.formulas
