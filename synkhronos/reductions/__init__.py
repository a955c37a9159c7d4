"""Reduce operations: what becomes of the values that all ranks have.

One set of rules serves every transport and the slices of a call: ``avg`` is
weighted, weight 0 and a rank without a value do not take part, float16
accumulates in float32, and the order of evaluation is the order of the ranks,
so that the same values give the same bits in every run.

`op` knows what users may ask for, `combining` does it to the ranks' values
(by `blocks`, `weights` and `silence`), `accumulator` to those of slices.
"""

from .accumulator import Accumulator
from .combining import combine, combine_into, combine_pieces, gather_outputs, reduce_outputs
from .op import COMBINING, MISSING, NAMES, ReduceOp, check_dtype
from .weights import counting, narrowed, scaled_weights

__all__ = [
    "Accumulator",
    "COMBINING",
    "MISSING",
    "NAMES",
    "ReduceOp",
    "check_dtype",
    "combine",
    "combine_into",
    "combine_pieces",
    "counting",
    "gather_outputs",
    "narrowed",
    "reduce_outputs",
    "scaled_weights",
]
