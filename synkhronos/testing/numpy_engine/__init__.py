"""Small NumPy engine for tests and teaching: it replaces Theano and needs no compiler.

Its graphs consist of plain Python callables on arrays:

>>> x = variable("x", "float64", 2)
>>> w = shared(np.ones(3), "w")
>>> step = ENGINE.compile([x], mean(dot(x, w)), [(w, w - 0.5)], None)
>>> step(np.ones((4, 3)))
array(3.)
>>> w.get_value()
array([0.5, 0.5, 0.5])

A call evaluates the graph of ``step`` from left to right::

    x ----------+
                +-- dot -- mean --> the output
    w [storage]-+
         |
         +-- subtract 0.5 ------> the new value of w
"""

import numpy as np

from ...engines import register
from .engine import ENGINE, NumpyEngine
from .function import NumpyFunction
from .graph import In, Shared, apply, shared, variable
from .graph import substituted as _substituted
from .operations import dot, max, mean, random_stream, sum, uniform

__all__ = [
    "ENGINE",
    "NumpyFunction",
    "In",
    "NumpyEngine",
    "Shared",
    "_substituted",
    "apply",
    "dot",
    "max",
    "mean",
    "np",
    "random_stream",
    "shared",
    "sum",
    "uniform",
    "variable",
]

register(ENGINE.name, __name__)
