"""Errors for results that a model with divided rows cannot provide; PyMC would return empty results or fail obscurely.

The divided likelihood is a single number, so PyMC finds no observed variable. Compute pointwise log-likelihoods,
predictive draws and observed data with the original model and the same trace.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Callable, Dict, Tuple
from weakref import WeakSet

import pymc as pm
from pymc import model_graph
from pymc.backends import arviz as backend
from pymc.model.transform import conditioning
from pymc.sampling import population
from pymc.stats import log_density
from pytensor.compile.mode import optdb
from pytensor.graph.rewriting.basic import GraphRewriter

from synkhronos.errors import ArgumentValueError

from .likelihood import Likelihood
from .operation import DataParallelLogp
from .wrapping import Around, divided_in, wrap

logger = logging.getLogger("synkhronos")

#: Why JAX (numpyro, blackjax, ``backend="jax"``) cannot compile a data-parallel likelihood.
REASON = "the ranks that compute the likelihood cannot run inside JAX"
HINT = 'use nuts_sampler="nutpie" or nuts_sampler="pymc", without backend="jax"'

#: Likelihoods that the warning about missing observed data has already reported.
_SAID: WeakSet[Likelihood] = WeakSet()


def refuse(what: str, names: Any, model: pm.Model, call: str) -> None:
    """Refuse a request for per-row results (``what``) if it concerns a variable with divided rows.

    ``names`` are the requested variables (None: all observed ones); ``call`` is the call to use with the plain model.
    """
    divided = divided_in(model)
    if names is not None:
        asked = [each for each in divided if each.name in names]
    else:  # a potential made from a function is expected only if the model has no observed variables
        asked = [each for each in divided if each.is_observed] or ([] if model.observed_RVs else divided)
    if asked:
        raise ArgumentValueError(
            "model",
            f"a model that contains the rows of {', '.join(each.name for each in asked)}, for {what}",
            "a model whose rows are divided over ranks, which return only a sum",
            f"use the plain model, with the rows passed as observed=: {call}",
        )


def _of_sample(
    model: pm.Model, idata_kwargs: Any = None, nuts_sampler: Any = None, backend: Any = None, **kwargs: Any
) -> None:
    for argument, value in (("nuts_sampler", nuts_sampler), ("backend", backend)):
        if value in ("numpyro", "blackjax", "jax"):  # before PyMC reports that JAX is not installed
            raise ArgumentValueError(argument, f"a value other than {value!r}, because {REASON}", repr(value), HINT)
    wanted = (idata_kwargs or {}).get("log_likelihood", False)
    if wanted:  # before hours of sampling, not afterwards
        call = "pm.compute_log_likelihood(trace, model=model), after sampling"
        refuse("a log-likelihood", None if wanted is True else wanted, model, call)


def _of_log_density(model: pm.Model, var_names: Any = None, kind: str = "likelihood", **kwargs: Any) -> None:
    if kind == "likelihood":
        refuse("a log-likelihood", var_names, model, "pm.compute_log_likelihood(trace, model=model)")


def _of_posterior(model: pm.Model, var_names: Any = None, sample_vars: Any = None, **kwargs: Any) -> None:
    names = sample_vars if var_names is None else var_names
    refuse("posterior predictive draws", names, model, "pm.sample_posterior_predictive(trace, model=model)")


def _of_prior(model: pm.Model, var_names: Any = None, **kwargs: Any) -> None:
    names = [each.name for each in divided_in(model) if each.is_observed] if var_names is None else var_names
    refuse("prior predictive draws", names, model, "pm.sample_prior_predictive(model=model)")


def _of_structure(call: str, model: pm.Model, **kwargs: Any) -> None:
    """Refuse a call that traverses the model's random variables; a divided likelihood depends on value variables."""
    refuse(call.split("(")[0], [each.name for each in divided_in(model)], model, call)


def _of_debug(model: pm.Model, fn: str = "logp", **kwargs: Any) -> None:
    if fn != "random":
        _of_structure(f"model.debug(fn={fn!r})", model)


def _of_data(model: pm.Model, name: str = "", **kwargs: Any) -> None:
    if name not in model.named_vars:  # PyMC would raise a KeyError
        raise ArgumentValueError(
            "name",
            f"a pm.Data whose rows are not divided ({', '.join(each.name for each in model.data_vars) or 'none'})",
            repr(name),
            "set the data of the plain model, and call data_parallel again",
        )


def _of_population(model: pm.Model, parallelize: bool = False, **kwargs: Any) -> None:
    if parallelize:  # PyMC would end with an EOFError
        raise ArgumentValueError(
            "cores",
            "1, because a chain in a separate process cannot use the ranks",
            "several cores, for chains of DEMetropolis in separate processes",
            "pass cores=1 to pm.sample; chains then take turns, each on all ranks",
        )


def _of_observed(model: pm.Model) -> None:
    new = [each for each in divided_in(model) if each.is_observed and each not in _SAID]
    if new:
        _SAID.update(new)
        logger.warning(
            "the observed_data group of this trace does not contain %s, whose rows are divided over ranks: to add it, "
            "call pm.sample_posterior_predictive(trace, model=model, extend_inferencedata=True) with the plain model",
            ", ".join(each.name for each in new),
        )


GUARDED: Tuple[Tuple[Callable[..., Any], Callable[..., None]], ...] = (
    (pm.sample, _of_sample),
    (log_density.compute_log_density, _of_log_density),
    (pm.sample_posterior_predictive, _of_posterior),
    (pm.sample_prior_predictive, _of_prior),
    (backend.find_observations, _of_observed),
    (population._sample_population, _of_population),
    (conditioning.do, partial(_of_structure, "pm.do(model, ...), then data_parallel")),
    (conditioning.observe, partial(_of_structure, "pm.observe(model, ...), then data_parallel")),
    (model_graph.model_to_graphviz, partial(_of_structure, "pm.model_to_graphviz(model)")),
    (model_graph.model_to_mermaid, partial(_of_structure, "pm.model_to_mermaid(model)")),
    (model_graph.model_to_networkx, partial(_of_structure, "pm.model_to_networkx(model)")),
    (pm.Model.table, partial(_of_structure, "model.table()")),
    (pm.Model.debug, _of_debug),
    (pm.Model.set_data, _of_data),
)


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
    for function, check in GUARDED:
        wrap(function, _after(check))


def _after(check: Callable[..., None]) -> Around:
    def around(model: pm.Model, arguments: Dict[str, Any], call: Callable[[], Any]) -> Any:
        arguments.pop("kwargs", None)
        check(model, **arguments)
        return call()

    return around
