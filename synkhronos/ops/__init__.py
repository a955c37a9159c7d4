"""Operations for the graphs of functions, in which the ranks of a call meet.

::

    synk.all_reduce(w, "avg")            a command of the program: the values of shared variables, between calls
    y = synk.ops.all_reduce(x, "avg")    an expression: whenever a function of it is called, inside the call

    synk.scatter(s, x)                   likewise, a command: every rank is given its rows
    y = synk.ops.shard(x)                an expression: every rank takes its rows

    synk.ops.rule(MyOp, "nk->n")         what an operation of your own does to rows
"""

from .all_reduce import all_reduce
from .rule import rule
from .shard import shard

__all__ = ["all_reduce", "rule", "shard"]
