"""Learning rates, decays and epsilons: numbers, shared variables or expressions of 0 dimensions."""

import sys
from numbers import Real

import numpy as np
import theano
import theano.tensor as T

from .parameters import describe


def check_scalars(**given):
    """Return scalars as floats or expressions of 0 dimensions, in the order given."""
    checked = []
    for name, value in given.items():
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value.item()
        if isinstance(value, Real) and not isinstance(value, bool):
            if not abs(value) <= sys.float_info.max:
                raise ValueError(f"{name}: expected a finite number, got {value!r}")
            checked.append(float(value))
        elif (
            isinstance(value, theano.Variable)
            and getattr(value, "ndim", None) == 0
            and (value.dtype in T.float_dtypes or value.dtype in T.discrete_dtypes)
        ):
            checked.append(T.cast(value, theano.config.floatX) if value.dtype in T.discrete_dtypes else value)
        else:
            raise TypeError(
                f"{name}: expected a number, or a real shared variable or expression of 0 dimensions, got "
                f"{describe(value)}"
            )
    return checked


def cast(variable, *scalars):
    """Return the scalars as constants or expressions of the variable's dtype."""
    return [
        T.cast(scalar, variable.dtype)
        if isinstance(scalar, theano.Variable)
        else T.constant(scalar, dtype=variable.dtype)
        for scalar in scalars
    ]
