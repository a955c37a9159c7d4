"""Operations across ranks in the graphs of functions.

::

    synk.all_reduce(w, "avg")            a command: reduces the values of shared variables, between calls
    y = synk.ops.all_reduce(x, "avg")    an expression: reduced in every call to a function that contains it

    synk.scatter(s, x)                   a command: sends every rank its rows
    y = synk.ops.shard(x)                an expression: every rank uses its own rows

    synk.ops.rule(MyOp, "nk->n")         declares how a custom operation treats rows
"""

from .all_reduce import all_reduce
from .rule import rule
from .shard import shard

__all__ = ["all_reduce", "rule", "shard"]
