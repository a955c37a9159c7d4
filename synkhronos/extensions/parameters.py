"""The parameters that are trained: what may be one, and shared variables beside each for what a rule keeps about it."""

from collections.abc import Iterable

import numpy as np
import theano
import theano.tensor as T


def check_params(params):
    """Return the parameters as a list, where they are floating-point shared variables, each one once."""
    if isinstance(params, theano.Variable) or not isinstance(params, Iterable):
        raise TypeError(f"params: expected a list of shared variables, got {describe(params)}")
    params = list(params)
    if not params:
        raise ValueError("params: expected at least one shared variable, got none")
    seen = {}
    for i, param in enumerate(params):
        if not isinstance(param, theano.compile.SharedVariable):
            raise TypeError(
                f"{label(i, param)}: expected a shared variable, got {describe(param)}; updates can change nothing else"
            )
        if getattr(param, "dtype", None) not in T.float_dtypes or not hasattr(param, "broadcastable"):
            raise TypeError(
                f"{label(i, param)}: expected a dense array of floating-point numbers, got {param.type}; leave it out"
            )
        # A clone is another variable with the same value.
        first = seen.setdefault(id(param.container), i)
        if first != i:
            raise ValueError(f"{label(i, param)} stands twice, its value is that of params[{first}]; give it once")
    return params


def state_like(param, what):
    """Return a shared variable of zeros that is like a parameter, for what a rule keeps about it."""
    return theano.shared(
        np.zeros(shape_of(param), param.dtype),
        f"{param.name}.{what}" if param.name else what,
        broadcastable=param.broadcastable,
        target=device_of(param),
    )


def shape_of(param):
    """Return the shape of a parameter's value, without moving it off its device."""
    return param.get_value(borrow=True, return_internal_type=True).shape


def device_of(param):
    """Return where a shared variable lives, as Theano's ``target``: "cpu", or the GPU's context (None: the default)."""
    return getattr(param.type, "context_name", "cpu")


def label(i, param):
    """Return how messages call a parameter."""
    return "params[{}] ({})".format(i, repr(param.name) if getattr(param, "name", None) else "without a name")


def describe(thing):
    """Return what something is, in a few words."""
    return (
        f"{thing} of {thing.type}"
        if isinstance(thing, theano.Variable)
        else f"{thing!r} of type {type(thing).__name__}"
    )
