"""Refusal to compile a data-parallel likelihood with JAX (numpyro, blackjax, ``backend="jax"``)."""

from __future__ import annotations

from typing import Any

from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import GraphRewriter

from synkhronos.errors import ArgumentValueError

from .operation import DataParallelLogp

REASON = "the ranks that compute the likelihood cannot run inside JAX"
HINT = 'use nuts_sampler="nutpie" or nuts_sampler="pymc", without backend="jax"'


class RefuseLikelihoods(GraphRewriter):  # type: ignore[misc]  # untyped if PyTensor is not installed
    """First rewriter of JAX's mode; it raises in `add_requirements`, because PyTensor only logs errors from `apply`."""

    def add_requirements(self, fgraph: Any) -> None:
        for node in fgraph.apply_nodes:
            if isinstance(node.op, DataParallelLogp):
                raise ArgumentValueError(
                    "mode", f"a mode other than JAX, because {REASON}", f"JAX, for {node.op.label}", HINT
                )

    def apply(self, fgraph: Any) -> None:
        pass


def install() -> None:
    optdb.register("refuse_data_parallel_likelihoods", RefuseLikelihoods(), "jax", position=0)
