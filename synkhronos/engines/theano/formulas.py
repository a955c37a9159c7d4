"""Operations as formulas of simpler ones, of which the rules know more.

An operation that computes with all rows at once is one node, into which no collective can be put. Its formula can have
one between any two of its nodes::

    inc_subtensor(w[i], x)     w + inc_subtensor(zeros_like(w)[i], x)     w of all ranks + a part

A function with ``exact`` is given the formulas of those operations without which nothing would be known.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Type

from theano import tensor
from theano.gof import Op
from theano.gof.graph import io_toposort
from theano.tensor import subtensor
from theano.tensor.nnet import bn

from ...sharding import Placement, Shard, Unknown


def with_formulas(outputs: Sequence[Any], placement: Callable[[Any], Placement]) -> List[Any]:
    """Return equal expressions with formulas in place of the operations of whose results nothing is known.

    Parameters
    ----------
    outputs : sequence of variables
    placement : callable
        From a variable to its placement.

    Returns
    -------
    list of variables
        The outputs themselves if there are no such operations.
    """
    new: Dict[Any, Any] = {}
    for node in io_toposort([], outputs):
        inputs = [new.get(variable, variable) for variable in node.inputs]
        after = node if inputs == node.inputs else node.clone_with_new_inputs(inputs)
        results: Optional[Sequence[Any]] = None if after is node else after.outputs
        if type(node.op) in FORMULAS and isinstance(placement(node.outputs[0]), Unknown):
            if not isinstance(placement(node.inputs[0]), Shard) or type(node.op) in OF_ROWS:
                results = FORMULAS[type(node.op)](after) or results
        for variable, result in zip(node.outputs, results or ()):
            result.name = variable.name
            new[variable] = result
    return [new.get(variable, variable) for variable in outputs]


def _added(node: Any) -> Optional[List[Any]]:
    """Add to elements of zeros, and then to what they are elements of."""
    if node.op.set_instead_of_inc:
        return None
    array, *others = node.inputs
    added = node.clone_with_new_inputs([tensor.zeros_like(array), *others]).outputs[0]
    return [tensor.patternbroadcast(array + added, node.outputs[0].broadcastable)]


FORMULAS: Dict[Type[Op], Callable[[Any], Optional[Sequence[Any]]]] = {
    subtensor.IncSubtensor: _added,
    subtensor.AdvancedIncSubtensor1: _added,
    subtensor.AdvancedIncSubtensor: _added,
    # Theano's own formulas, for processors without an operation for it.
    bn.AbstractBatchNormTrain: bn.local_abstract_batch_norm_train.transform,
    bn.AbstractBatchNormTrainGrad: bn.local_abstract_batch_norm_train_grad.transform,
}
#: Those whose first input has rows.
OF_ROWS = (bn.AbstractBatchNormTrain, bn.AbstractBatchNormTrainGrad)
