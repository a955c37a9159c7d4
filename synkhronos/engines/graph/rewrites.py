"""Selection of rewrites that may change values, and therefore run before collectives are inserted.

A collective inside a pattern would prevent its rewrite. Some rewrites change results that are inf, NaN or inexact::

    log(sum(exp(x)))        max(x) + log(sum(exp(x - max(x))))
    sum(x) / sum(x)         1
    0 * sum(x)              0

The function's own mode therefore rewrites expressions up to `END` before placement rules are applied. It then compiles
the result, without the passes in `MADE` if these have nothing left to rewrite::

    expressions --> merged, canonicalized, stabilized --> collectives --> specialized, ... --> function of the ranks
"""

from __future__ import annotations

#: Position in the libraries' passes where early rewrites end. Canonicalization is at 1, stabilization at 1.5,
#: ``local_log_sum_exp`` at 1.6, and BLAS products are at 1.7.
END = 1.605

#: Rewrites, by name or tag, that run after collectives are inserted. They preserve values, but make rows hard to trace.
LATER = (
    *("local_shape_to_shape_i", "local_track_shape_i", "local_fill_to_alloc", "local_second_to_alloc"),
    *("local_elemwise_alloc", "local_subtensor_merge", "local_subtensor_merge_slice", "local_subtensor_merge_integer"),
    "scan",
)

#: Rewrites that only move elements. Like `LATER`, they are delayed, but only if rows could not be traced otherwise.
OF_ELEMENTS = (
    *("local_reshape_chain", "local_reshape_lift", "local_reshape_to_dimshuffle", "local_flatten_lift"),
    *("local_subtensor_lift", "local_subtensor_of_dot", "local_subtensor_of_alloc", "local_subtensor_make_vector"),
    *("local_reduce_join", "local_join_1", "local_join_empty", "local_join_make_vector", "local_useless_alloc"),
    *("local_lift_transpose_through_dot", "local_sum_prod_div_dimshuffle", "local_set_to_inc_subtensor"),
    *("local_subtensor_of_reduce", "local_subtensor_of_transpose", "local_subtensor_of_join", "local_join_dims"),
    *("local_split_dims", "local_convert_negative_indices", "local_useless_reshape", "local_join_to_repeat"),
)

#: Passes of ``fast_run`` that are not repeated after collectives are inserted; `LATER` runs during specialization.
MADE = ("useless", "merge1.1", "canonicalize", "merge1.2", "stabilize", "local_log_sum_exp")
