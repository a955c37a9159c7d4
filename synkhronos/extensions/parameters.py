"""Validation of trained parameters, and shared variables for the state of update rules."""

from collections.abc import Iterable
from typing import Any, Dict, List, Tuple

import numpy as np
import theano
import theano.tensor as T

from synkhronos.errors import ArgumentTypeError, ArgumentValueError


def check_params(params: Any) -> List[Any]:
    """Return the parameters as a list, after checking that each is a distinct floating-point shared variable."""
    if isinstance(params, theano.Variable) or not isinstance(params, Iterable):
        raise ArgumentTypeError("params", "a list of shared variables", describe(params))
    listed: List[Any] = list(params)
    if not listed:
        raise ArgumentValueError("params", "at least one shared variable", "an empty list")
    seen: Dict[int, int] = {}
    for i, param in enumerate(listed):
        if not isinstance(param, theano.compile.SharedVariable):
            hint = "only shared variables can be updated"
            raise ArgumentTypeError(label(i, param), "a shared variable", describe(param), hint)
        if getattr(param, "dtype", None) not in T.float_dtypes or not hasattr(param, "broadcastable"):
            expected = "a dense array of floating-point numbers"
            raise ArgumentTypeError(label(i, param), expected, str(param.type), "omit it")
        # Clones are different variables that share a container.
        first = seen.setdefault(id(param.container), i)
        if first != i:
            got = f"a variable that is listed twice (it shares the value of params[{first}])"
            raise ArgumentValueError(label(i, param), "a variable with its own value", got, "list it once")
    return listed


def state_like(param: Any, what: str) -> Any:
    """Return a zero-initialized shared variable of a parameter's type, for the state of an update rule."""
    return theano.shared(
        np.zeros(shape_of(param), param.dtype),
        f"{param.name}.{what}" if param.name else what,
        broadcastable=param.broadcastable,
        target=device_of(param),
    )


def shape_of(param: Any) -> Tuple[int, ...]:
    """Return the shape of a parameter's value, without moving it off its device."""
    shape: Tuple[int, ...] = param.get_value(borrow=True, return_internal_type=True).shape
    return shape


def device_of(param: Any) -> Any:
    """Return the device of a shared variable as Theano's ``target``: "cpu", a GPU context, or None (the default)."""
    return getattr(param.type, "context_name", "cpu")


def label(i: int, param: Any) -> str:
    return "params[{}] ({})".format(i, repr(param.name) if getattr(param, "name", None) else "without a name")


def describe(thing: Any) -> str:
    return (
        f"{thing} of type {thing.type}"
        if isinstance(thing, theano.Variable)
        else f"{thing!r} of type {type(thing).__name__}"
    )
