"""`DataParallelLogp`: a likelihood as an operation of PyTensor's graphs."""

from __future__ import annotations

import sys
import warnings
from typing import Any, List, Sequence

import numpy as np
from pytensor import config
from pytensor import tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import generate_fallback_impl, numba_funcify

from synkhronos.errors import ArgumentValueError

from .likelihood import Likelihood
from .nutpie_sampling import watch

#: Modules of what needs all rows in every call.
SAMPLERS = ("nutpie", "pymc.sampling", "pymc.smc", "pymc.step_methods", "pymc.tuning")


class DataParallelLogp(Op):  # type: ignore[misc]  # not typed where PyTensor is not installed
    """The sum of the log-probabilities of rows, and its gradients: outputs of one node, computed in one call.

    The gradient of the first output is the others times the cotangent, so that a function of value and gradient
    contains the operation once. There are no second derivatives.

    Parameters
    ----------
    likelihood : Likelihood
    in_batches : bool
        Whether the last input is the rows that count.
    """

    __props__ = ("likelihood", "in_batches")

    def __init__(self, likelihood: Likelihood, in_batches: bool = False) -> None:
        self.likelihood, self.in_batches = likelihood, in_batches

    def __str__(self) -> str:
        return f"DataParallelLogp{{{self.likelihood.name}}}"

    def make_node(self, *inputs: Any) -> Apply:
        variables = [pt.as_tensor_variable(each) for each in inputs]
        likelihood = self.likelihood
        gradients = [one.type() for one, is_float in zip(variables, likelihood.differentiable) if is_float]
        return Apply(self, variables, [pt.scalar(dtype=likelihood.dtype), *gradients])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        params, batch = (inputs[:-1], inputs[-1]) if self.in_batches else (inputs, None)
        results = self.likelihood(list(params), batch)
        for output, variable, result in zip(outputs, node.outputs, results):
            # Compiled code takes what comes from here for contiguous and of the type that was declared.
            output[0] = np.asarray(result, variable.type.dtype, order="C")

    def prepare_node(self, node: Apply, storage_map: Any, compute_map: Any, impl: Any) -> None:
        """Do what is to be done before the operation is compiled, by any linker but Numba's."""
        self.prepare()

    def prepare(self) -> None:
        """Refuse what compiles a function with the operation in it, if that would be wrong; have nutpie watched."""
        module = _compiling_sampler()
        if module and self.in_batches:
            got = f"that of {self.likelihood.name}, for {module}: each of its calls would see other rows"
            hint = "leave batch= out of data_parallel; pm.fit takes it"
            raise ArgumentValueError("model", "one whose likelihood counts all rows", got, hint)
        if module.split(".")[0] == "nutpie":
            watch()

    def do_constant_folding(self, fgraph: Any, node: Apply) -> bool:
        return False  # no call while a function is compiled

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> List[Any]:
        of_params = zip(shapes, self.likelihood.differentiable)
        return [(), *[shape for shape, is_float in of_params if is_float]]

    def connection_pattern(self, node: Apply) -> List[List[bool]]:
        n_params = len(self.likelihood.differentiable)
        return [[i < n_params] * len(node.outputs) for i in range(len(node.inputs))]

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> List[Variable]:
        if not all(isinstance(each.type, DisconnectedType) for each in cotangents[1:]):
            raise NotImplementedError(
                f"{self}: a data-parallel likelihood has no second derivatives, which the Hessian needs "
                "(pm.find_hessian, compute_hessian=True, use_hess=True): use what needs the gradient alone"
            )
        gradients = iter(outputs[1:])
        found = [
            cotangents[0] * next(gradients) if is_float else one.zeros_like(dtype=config.floatX)
            for one, is_float in zip(inputs, self.likelihood.differentiable)
        ]
        return found + [disconnected_type()] * self.in_batches


def _compiling_sampler() -> str:
    """Return the module of the sampler (or optimizer) that compiles a function now, if one does.

    PyMC gives an operation no other sign of it, and its functions may be imported by any name.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        module: str = frame.f_globals.get("__name__", "")
        if module.startswith(tuple(each + "." for each in SAMPLERS)) or module in SAMPLERS:
            return module
        frame = frame.f_back
    return ""


@numba_funcify.register(DataParallelLogp)  # type: ignore[untyped-decorator]
def _in_object_mode(op: DataParallelLogp, node: Apply, **kwargs: Any) -> Any:
    op.prepare()
    with warnings.catch_warnings():  # that it runs in Python is what it is for
        warnings.filterwarnings("ignore", "Numba will use object mode", UserWarning)
        return generate_fallback_impl(op, node=node, **kwargs)
