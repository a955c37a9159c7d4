"""Propagation of likelihood errors through `pm.find_MAP`, whose optimizer logs errors and returns the last point."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict

import pymc as pm

from .likelihood import LikelihoodFailure
from .wrapping import divided_in, wrap


def _raise_errors(model: pm.Model, arguments: Dict[str, Any], call: Callable[[], Any]) -> Any:
    failure, likelihoods = LikelihoodFailure(threading.get_ident()), divided_in(model)
    for likelihood in likelihoods:
        likelihood.failures.add(failure)
    try:
        result = call()
    except Exception:
        if failure.error is None:
            raise
    finally:
        for likelihood in likelihoods:
            likelihood.failures.discard(failure)
    if failure.error is not None:
        raise failure.error
    return result


def install() -> None:
    wrap(pm.find_MAP, _raise_errors)
