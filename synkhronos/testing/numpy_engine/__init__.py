"""Small NumPy engine for tests and teaching: it replaces Theano and needs no compiler.

Its graphs consist of plain Python callables on arrays:

>>> import numpy as np
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

from ...engines import register
from .engine import ENGINE as ENGINE
from .engine import NumpyEngine as NumpyEngine
from .function import NumpyFunction as NumpyFunction
from .graph import In as In
from .graph import Shared as Shared
from .graph import apply as apply
from .graph import shared as shared
from .graph import variable as variable
from .operations import dot as dot
from .operations import max as max
from .operations import mean as mean
from .operations import random_stream as random_stream
from .operations import sum as sum
from .operations import uniform as uniform

register(ENGINE.name, __name__)
