"""Reduce operations, which combine the values of all ranks.

`mean` defines averages over ranks, in all transports, and over slices. Host arrays are reduced in rank order, so equal
inputs produce the same bits in every run. `op` lists the operations. `combining` reduces the ranks' values,
`accumulator` reduces the values of a rank's slices, and `device` does both for device arrays::

    rank 0, slices of its rows   x_00 x_01 x_02 --Accumulator--> x_0, w_0 --+
    rank 1                       x_10 x_11      --Accumulator--> x_1, w_1 --+-- combine --> the master's result
    rank 2, without rows                                            None ---+
"""

from .accumulator import Accumulator
from .combining import combine, combine_each, combine_pieces, reduce_outputs
from .mean import counting, narrowed
from .op import COMBINING, IN_GRAPH, MISSING, WHOLES, Parts, ReduceOp, Weights, check_dtype, compute_dtype

__all__ = [
    "Accumulator",
    "COMBINING",
    "IN_GRAPH",
    "MISSING",
    "Parts",
    "ReduceOp",
    "WHOLES",
    "Weights",
    "check_dtype",
    "combine",
    "combine_each",
    "combine_pieces",
    "compute_dtype",
    "counting",
    "narrowed",
    "reduce_outputs",
]
