"""Scalar options of update rules: numbers, shared variables or 0-dimensional expressions."""

from numbers import Real
from typing import Any, List

import numpy as np
import theano
import theano.tensor as T

from synkhronos.errors import ArgumentTypeError

from .arguments import real
from .shared_variables import describe


def check_scalars(**given: Any) -> List[Any]:
    """Validate scalars, and convert them to floats or 0-dimensional expressions, in the given order."""
    checked: List[Any] = []
    for name, value in given.items():
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value.item()
        if isinstance(value, Real) and not isinstance(value, bool):
            checked.append(real(name, value, "a finite number", lambda number: True))
        elif (
            isinstance(value, theano.Variable)
            and getattr(value, "ndim", None) == 0
            and (value.dtype in T.float_dtypes or value.dtype in T.discrete_dtypes)
        ):
            checked.append(T.cast(value, theano.config.floatX) if value.dtype in T.discrete_dtypes else value)
        else:
            expected = "a number, or a real 0-dimensional shared variable or expression"
            raise ArgumentTypeError(name, expected, describe(value))
    return checked


def cast(variable: Any, *scalars: Any) -> List[Any]:
    """Convert scalars to constants or expressions with the variable's dtype."""
    return [
        T.cast(scalar, variable.dtype)
        if isinstance(scalar, theano.Variable)
        else T.constant(scalar, dtype=variable.dtype)
        for scalar in scalars
    ]
