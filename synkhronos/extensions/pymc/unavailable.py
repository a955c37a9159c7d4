"""What a model cannot give whose rows are divided over ranks: refused before PyMC returns it empty.

Its likelihood is a number, so that PyMC finds nothing observed in it: no log-likelihood of each row, no predictive
draws, no observed data. The plain model has them, for the same trace.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Dict, Tuple
from weakref import WeakSet

import pymc as pm
from pymc.backends import arviz as backend
from pymc.stats import log_density

from synkhronos.errors import ArgumentValueError

from .likelihood import Likelihood
from .wrapping import Around, divided_in, wrap

logger = logging.getLogger("synkhronos")

#: Likelihoods of which it has been said that traces have no observed data.
_SAID: WeakSet[Likelihood] = WeakSet()


def refuse(what: str, names: Any, model: pm.Model, call: str) -> None:
    """Refuse something of observed variables, if it is asked for one whose rows are divided.

    Parameters
    ----------
    what : str
    names : list of str, or None
        Of what is asked for; None for all that is observed.
    model : pm.Model
    call : str
        What gives it, with the plain model.

    Raises
    ------
    ArgumentValueError
        Names the variables, and the call.
    """
    divided = divided_in(model)
    if names is not None:
        asked = [each for each in divided if each.name in names]
    else:  # of a function, which is a potential, nothing is expected while something else is observed
        asked = [each for each in divided if each.is_observed] or ([] if model.observed_RVs else divided)
    if asked:
        raise ArgumentValueError(
            "model",
            f"one that has the rows of {', '.join(each.name for each in asked)}, for {what}",
            "one whose ranks have them, and return a sum alone",
            f"use the plain model, that was given to data_parallel or has them as observed=: {call}",
        )


def _of_sample(model: pm.Model, idata_kwargs: Any = None, **kwargs: Any) -> None:
    wanted = (idata_kwargs or {}).get("log_likelihood", False)
    if wanted:  # before hours of sampling, not after them
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


def _of_observed(model: pm.Model) -> None:
    new = [each for each in divided_in(model) if each.is_observed and each not in _SAID]
    if new:
        _SAID.update(new)
        logger.warning(
            "the observed_data of this trace do not have %s, whose rows ranks have: "
            "pm.sample_posterior_predictive(trace, model=model, extend_inferencedata=True), with the plain model, "
            "adds them",
            ", ".join(each.name for each in new),
        )


#: Functions that ask something of a model, and what may refuse it.
GUARDED: Tuple[Tuple[Callable[..., Any], Callable[..., None]], ...] = (
    (pm.sample, _of_sample),
    (log_density.compute_log_density, _of_log_density),
    (pm.sample_posterior_predictive, _of_posterior),
    (pm.sample_prior_predictive, _of_prior),
    (backend.find_observations, _of_observed),
)


def install() -> None:
    """Put the checks before these functions."""
    for function, check in GUARDED:
        wrap(function, _after(check))


def _after(check: Callable[..., None]) -> Around:
    def around(model: pm.Model, arguments: Dict[str, Any], call: Callable[[], Any]) -> Any:
        arguments.pop("kwargs", None)
        check(model, **arguments)
        return call()

    return around
