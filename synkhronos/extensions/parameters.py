"""The parameters that are trained: which variables may be one, and shared variables for the state of a rule."""

from collections.abc import Iterable
from typing import Any, Dict, List, Tuple

import numpy as np
import theano
import theano.tensor as T

from synkhronos.errors import ArgumentTypeError, ArgumentValueError


def check_params(params: Any) -> List[Any]:
    """Return the parameters as a list; refuse any but floating-point shared variables, each listed once."""
    if isinstance(params, theano.Variable) or not isinstance(params, Iterable):
        raise ArgumentTypeError("params", "a list of shared variables", describe(params))
    listed: List[Any] = list(params)
    if not listed:
        raise ArgumentValueError("params", "at least one shared variable", "none")
    seen: Dict[int, int] = {}
    for i, param in enumerate(listed):
        if not isinstance(param, theano.compile.SharedVariable):
            hint = "updates can change nothing else"
            raise ArgumentTypeError(label(i, param), "a shared variable", describe(param), hint)
        if getattr(param, "dtype", None) not in T.float_dtypes or not hasattr(param, "broadcastable"):
            expected = "a dense array of floating-point numbers"
            raise ArgumentTypeError(label(i, param), expected, str(param.type), "leave it out")
        # A clone is another variable with the same value.
        first = seen.setdefault(id(param.container), i)
        if first != i:
            got = f"one that is listed twice: its value is that of params[{first}]"
            raise ArgumentValueError(label(i, param), "a variable with a value of its own", got, "give it once")
    return listed


def state_like(param: Any, what: str) -> Any:
    """Return a shared variable of zeros like a parameter, for the state that a rule keeps for it."""
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
    """Return the device of a shared variable as Theano's ``target``: "cpu", or a GPU's context (None: the default)."""
    return getattr(param.type, "context_name", "cpu")


def label(i: int, param: Any) -> str:
    """Return what messages call a parameter."""
    return "params[{}] ({})".format(i, repr(param.name) if getattr(param, "name", None) else "without a name")


def describe(thing: Any) -> str:
    """Return what a value is, in a few words, for messages."""
    return (
        f"{thing} of {thing.type}"
        if isinstance(thing, theano.Variable)
        else f"{thing!r} of type {type(thing).__name__}"
    )
