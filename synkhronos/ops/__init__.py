"""Operations for the graphs of functions, in which the ranks of a call meet.

::

    synk.all_reduce(w, "avg")            a command of the program: the values of shared variables, between calls
    y = synk.ops.all_reduce(x, "avg")    an expression: whenever a function of it is called, inside the call
"""

from .all_reduce import all_reduce

__all__ = ["all_reduce"]
