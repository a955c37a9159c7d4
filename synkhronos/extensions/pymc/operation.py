"""A likelihood as an operation in PyTensor graphs (`DataParallelLogp`)."""

from __future__ import annotations

import sys
from typing import Any, List, Sequence

import numpy as np
from pytensor import config
from pytensor import tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.replace import _vectorize_node
from pytensor.link.numba.dispatch.basic import numba_funcify
from pytensor.tensor.blockwise import vectorize_node_fallback

from synkhronos.errors import ArgumentValueError

from .likelihood import Likelihood, found_by, record
from .nutpie_sampling import watch
from .written_draws import in_object_mode

#: Modules of samplers and of `pm.find_MAP`, which need all rows in every call.
SAMPLERS = ("nutpie", "pymc.sampling", "pymc.smc", "pymc.step_methods", "pymc.tuning")


class DataParallelLogp(Op):  # type: ignore[misc]  # untyped if PyTensor is not installed
    """Operation that computes the sum of the log-probabilities of rows, and its gradients, in one call.

    The gradient of the first output is the product of the other outputs with the cotangent. A function that returns
    the value and the gradient therefore contains the operation once. There are no second derivatives.

    Nodes reference the likelihood; the operation does not, because PyTensor's rewriters keep every operation forever.
    If ``in_batches`` is true, the last input selects rows.
    """

    __props__ = ("key", "in_batches")

    def __init__(self, likelihood: Likelihood, in_batches: bool = False) -> None:
        self.key, self.in_batches = likelihood.key, in_batches
        self.uses_all_rows = not in_batches and likelihood.batches is None
        self.label, self.dtype, self.differentiable = likelihood.name, likelihood.dtype, likelihood.differentiable

    @property
    def likelihood(self) -> Any:
        return found_by(self.key, self.label)

    def __str__(self) -> str:
        return f"DataParallelLogp{{{self.label}}}"

    def make_node(self, *inputs: Any) -> Apply:
        variables = [pt.as_tensor(each, allow_xtensor_conversion=True) for each in inputs]
        gradients = [one.type() for one, is_float in zip(variables, self.differentiable) if is_float]
        node = Apply(self, variables, [pt.scalar(dtype=self.dtype), *gradients])
        node.tag.likelihood = self.likelihood
        return node

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        params, batch = (inputs[:-1], inputs[-1]) if self.in_batches else (inputs, None)
        results = self.likelihood(list(params), batch)
        for output, variable, result in zip(outputs, node.outputs, results):
            # Compiled code assumes that results are contiguous and of the declared type.
            output[0] = np.asarray(result, variable.type.dtype, order="C")

    def prepare_node(self, node: Apply, storage_map: Any, compute_map: Any, impl: Any) -> None:
        """Run `prepare` before compilation, with every linker but Numba's."""
        self.prepare()

    def prepare(self) -> None:
        """Refuse compilation for samplers unless the likelihood uses all rows; monitor nutpie, if used."""
        module = _compiling_sampler()
        if module and not self.uses_all_rows:
            got = f"a different batch of rows in every call to {self.label}, for {module}"
            hint = "omit batch= in data_parallel; it is only for pm.fit"
            raise ArgumentValueError("model", "a model whose likelihood uses all rows", got, hint)
        if module.split(".")[0] == "nutpie":
            watch()

    def do_constant_folding(self, fgraph: Any, node: Apply) -> bool:
        return False  # prevents calls while a function is compiled

    def infer_shape(self, node: Apply, shapes: Sequence[Any]) -> List[Any]:
        of_params = zip(shapes, self.differentiable)
        return [(), *[shape for shape, is_float in of_params if is_float]]

    def connection_pattern(self, node: Apply) -> List[List[bool]]:
        n_params = len(self.differentiable)
        return [[i < n_params] * len(node.outputs) for i in range(len(node.inputs))]

    def pullback(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], cotangents: Sequence[Variable]
    ) -> List[Variable]:
        if not all(isinstance(each.type, DisconnectedType) for each in cotangents[1:]):
            error = NotImplementedError(
                f"{self.label}: a data-parallel likelihood has no second derivatives, which a Hessian needs "
                '(pm.find_hessian, compute_hessian=True, use_hess=True, method="Newton-CG"): '
                'use a method that needs only the gradient, such as "L-BFGS-B"'
            )
            record(error, getattr(self.likelihood, "failures", ()))  # otherwise, pm.find_MAP would use no gradient
            raise error
        gradients = iter(outputs[1:])
        found = [
            cotangents[0] * next(gradients) if is_float else one.zeros_like(dtype=config.floatX)
            for one, is_float in zip(inputs, self.differentiable)
        ]
        return found + [disconnected_type()] * self.in_batches


def _compiling_sampler() -> str:
    """Return the module of the sampler (or optimizer) that is compiling a function; "" if there is none.

    The stack is inspected, because PyMC does not announce samplers, and its functions may be imported under any name.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        module: str = frame.f_globals.get("__name__", "")
        if module.startswith(tuple(each + "." for each in SAMPLERS)) or module in SAMPLERS:
            return module
        frame = frame.f_back
    return ""


@numba_funcify.register(DataParallelLogp)  # type: ignore[untyped-decorator]
def _prepared(op: DataParallelLogp, node: Apply, **kwargs: Any) -> Any:
    op.prepare()
    return in_object_mode(op, node, **kwargs)


@_vectorize_node.register(DataParallelLogp)  # type: ignore[untyped-decorator]
def _for_several_points(op: DataParallelLogp, node: Apply, *inputs: Any) -> Apply:
    """Vectorize the node over several points; the new node must also reference the likelihood."""
    found = vectorize_node_fallback(op, node, *inputs)
    found.tag.likelihood = op.likelihood
    return found
