"""Reduce operations, which combine the values of all ranks.

`mean` defines averages over ranks, in all transports, and over slices. Host arrays are reduced in rank order, so equal
inputs produce the same bits in every run. `op` lists the operations. `combining` reduces the ranks' values,
`accumulator` reduces the values of a rank's slices, and `device` does both for device arrays::

    rank 0, slices of its rows   x_00 x_01 x_02 --Accumulator--> x_0, w_0 --+
    rank 1                       x_10 x_11      --Accumulator--> x_1, w_1 --+-- combine --> the master's result
    rank 2, without rows                                            None ---+
"""

from .accumulator import Accumulator as Accumulator
from .combining import combine as combine
from .combining import combine_each as combine_each
from .combining import combine_pieces as combine_pieces
from .combining import reduce_outputs as reduce_outputs
from .mean import counting as counting
from .mean import narrowed as narrowed
from .op import COMBINING as COMBINING
from .op import IN_GRAPH as IN_GRAPH
from .op import MISSING as MISSING
from .op import WHOLES as WHOLES
from .op import Parts as Parts
from .op import ReduceOp as ReduceOp
from .op import Weights as Weights
from .op import check_dtype as check_dtype
from .op import compute_dtype as compute_dtype
