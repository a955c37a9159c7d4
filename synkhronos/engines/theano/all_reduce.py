"""The operation of `synkhronos.ops.all_reduce` in Theano's graphs.

It has three forms. Programs build the first; `graph.collectives` puts the others in its place when it makes the graph
that ranks call::

    in a program                  identity outside a call; has a gradient; results may be the arguments themselves
    numbered                      under a condition: at run time its number is compared with that of the other ranks
    numbered, with a token        takes the token of the collective before it, and gives one to the next: whatever
                                  Theano's optimizations and linkers do, collectives are computed in this order
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import numpy as np
from theano import config, tensor
from theano.gof import Apply, Op, Variable
from theano.gradient import DisconnectedType, grad_not_implemented

from ... import in_graph
from ...reductions import ReduceOp

#: The number of a collective that has not been put in order.
UNNUMBERED = -1


class AllReduce(Op):  # type: ignore[misc]  # Theano has no types
    """Reduce variables over all ranks: ``y_r := op(x_0, ..., x_{n-1})`` for each of them, in one collective.

    Parameters
    ----------
    op : ReduceOp
        ``avg`` (weighted by rows), ``sum``, ``min`` or ``max``.
    n : int
        How many variables.
    number : int
    has_token : bool
        Whether the last input and the last output are tokens.
    """

    __props__ = ("op", "n", "number", "has_token")
    _f16_ok = True

    def __init__(self, op: ReduceOp, n: int, number: int = UNNUMBERED, has_token: bool = False) -> None:
        self.op, self.n, self.number, self.has_token = op, n, number, has_token
        if number == UNNUMBERED:
            self.view_map = {i: [i] for i in range(n)}

    def __str__(self) -> str:
        return f"AllReduce{{{self.op}}}" if self.number == UNNUMBERED else f"AllReduce{{{self.op}, {self.number}}}"

    # -- order ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def first_token() -> Variable:
        """Return the token of which no collective comes before."""
        return tensor.constant(np.zeros((), np.int8))

    def in_order(
        self, number: int, inputs: Sequence[Variable], token: Optional[Variable]
    ) -> Tuple[List[Variable], Optional[Variable]]:
        """Return the results of the numbered form, and its token if it was given one."""
        if token is None:
            return AllReduce(self.op, self.n, number).make_node(*inputs).outputs, None
        *outputs, after = AllReduce(self.op, self.n, number, True).make_node(*inputs, token).outputs
        return outputs, after

    # -- the graph -----------------------------------------------------------------------------------------------------

    def make_node(self, *inputs: Variable) -> Apply:
        outputs = [variable.type() for variable in inputs]
        if self.number != UNNUMBERED:
            for output in outputs:
                output.tag.indestructible = True  # ranks may share the memory: nothing is computed in place there
        return Apply(self, list(inputs), outputs)

    def do_constant_folding(self, node: Apply) -> bool:
        return False  # constants differ between ranks no less than other values, and sums of equal ones are others

    def infer_shape(self, node: Apply, input_shapes: List[Any]) -> List[Any]:
        return input_shapes

    def connection_pattern(self, node: Apply) -> List[List[bool]]:
        positions = range(len(node.inputs))
        return [[i == j and i < self.n for j in positions] for i in positions]

    def grad(self, inputs: Sequence[Variable], output_grads: Sequence[Variable]) -> List[Variable]:
        """Reduce the gradients by the same op: ``avg`` in a loss that is a mean over rows, ``sum`` in a sum.

        With ``y = sum_s w_s x_s`` and a loss ``sum_r w_r l_r(y)`` the derivative to ``x_s`` is ``w_s`` times
        ``sum_r w_r dl_r/dy``: what rank s contributes to a mean over rows is the ``avg`` of the gradients. Without the
        weights it is their ``sum``.
        """
        if self.op.name in ("min", "max"):
            why = f"all_reduce by {self.op.name!r} has no gradient: use 'avg' or 'sum', or disconnected_grad"
            return [grad_not_implemented(self, i, variable, why) for i, variable in enumerate(inputs)]
        results = list(output_grads)
        for i, variable in enumerate(inputs):
            if variable.dtype in tensor.discrete_dtypes and not isinstance(results[i].type, DisconnectedType):
                results[i] = variable.zeros_like(dtype=config.floatX)
        return self._reduced(results, lambda i: inputs[i].dtype not in tensor.discrete_dtypes)

    def R_op(self, inputs: Sequence[Variable], eval_points: Sequence[Optional[Variable]]) -> List[Optional[Variable]]:
        if self.op.name in ("min", "max"):
            raise NotImplementedError(f"all_reduce by {self.op.name!r} has no R-operator: use 'avg' or 'sum'")
        return self._reduced(list(eval_points), lambda i: eval_points[i] is not None)

    def _reduced(self, variables: List[Any], is_wanted: Any) -> List[Any]:
        """Return the variables with those that are wanted, and connected, reduced in one collective."""
        chosen = [
            i
            for i, variable in enumerate(variables)
            if is_wanted(i) and not isinstance(variable.type, DisconnectedType)
        ]
        if chosen:
            reduced = AllReduce(self.op, len(chosen))(*[variables[i] for i in chosen], return_list=True)
            for i, result in zip(chosen, reduced):
                variables[i] = result
        return variables

    # -- the computation -----------------------------------------------------------------------------------------------

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        # The Python code of some operations leaves a NumPy scalar, though the type says array.
        arrays = [np.asarray(value) if isinstance(value, np.generic) else value for value in inputs[: self.n]]
        try:
            results = in_graph.all_reduce(self.number, self.op, arrays)
        except BaseException as error:
            # The one exception that Theano passes on as it is: of others it makes new ones, without their fields, and
            # prints that it cannot. The call, which has kept the error, raises it.
            raise KeyboardInterrupt from error
        for array, result, output in zip(arrays, results, outputs):
            if result is array and self.number != UNNUMBERED:
                result = result.copy()  # what the argument's memory is used for later must not change it
            output[0] = result
        if self.has_token:
            outputs[self.n][0] = np.zeros((), np.int8)


def all_reduce(variables: Sequence[Variable], op: str) -> List[Variable]:
    """Return the variables reduced over all ranks, in one collective."""
    results: List[Variable] = AllReduce(ReduceOp(op), len(variables))(*variables, return_list=True)
    return results
