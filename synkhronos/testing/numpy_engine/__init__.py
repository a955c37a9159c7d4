"""A small engine over NumPy, for tests and for teaching: what Theano does, without a compiler.

Its graphs are made of plain Python callables on arrays:

>>> x = variable("x", "float64", 2)
>>> w = shared(np.ones(3), "w")
>>> step = ENGINE.compile([x], mean(dot(x, w)), [(w, w - 0.5)], None)
>>> step(np.ones((4, 3)))
array(3.)
>>> w.get_value()
array([0.5, 0.5, 0.5])

The graph of ``step``, which a call evaluates from the left to the right::

    x ----------+
                +-- dot -- mean --> the output
    w [storage]-+
         |
         +-- subtract 0.5 ------> the new value of w
"""

import numpy as np

from ...engines import register
from .engine import ENGINE, NumpyEngine
from .function import Function, Graph
from .graph import Apply, In, Shared, Variable, apply, shared, variable
from .graph import substituted as _substituted
from .operations import dot, max, mean, random_stream, sum, uniform

__all__ = [
    "Apply",
    "ENGINE",
    "Function",
    "Graph",
    "In",
    "NumpyEngine",
    "Shared",
    "Variable",
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
