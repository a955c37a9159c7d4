"""Wrappers that change PyMC functions for models whose rows are divided over ranks."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any, Callable, Dict, List

import pymc as pm
from pytensor.graph.traversal import ancestors

from .likelihood import Likelihood
from .operation import DataParallelLogp

#: Called with the model, the other arguments by name, and a function for the original call; returns the call's result.
Around = Callable[[pm.Model, Dict[str, Any], Callable[[], Any]], Any]


def divided_in(model: pm.Model) -> List[Likelihood]:
    """Return the data-parallel likelihoods of a model."""
    ops = [each.owner.op for each in ancestors(model.potentials) if each.owner is not None]
    return list(dict.fromkeys(op.likelihood for op in ops if isinstance(op, DataParallelLogp)))


def wrap(function: Callable[..., Any], around: Around) -> None:
    """Replace a function in all modules and `pm.Model`; calls with a data-parallel model go through ``around``."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            arguments = signature.bind_partial(*args, **kwargs).arguments
            model = pm.modelcontext(arguments.pop("model", arguments.pop("self", None)))
        except TypeError:
            return function(*args, **kwargs)  # raises the error
        if not divided_in(model):
            return function(*args, **kwargs)
        return around(model, arguments, lambda: function(*args, **kwargs))

    name = function.__name__
    for owner in [*sys.modules.values(), *pm.Model.__mro__]:
        if getattr(owner, "__dict__", {}).get(name) is function:
            setattr(owner, name, wrapped)
