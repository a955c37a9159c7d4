"""The rewrites of a function's mode that may change values: before collectives are put into its graph, not after.

Some give another value than what is written, where that is inf, NaN or lost digits. They do not find their patterns any
more once a collective is between two operations of these::

    log(sum(exp(x)))        max(x) + log(sum(exp(x - max(x))))
    sum(x) / sum(x)         1
    0 * sum(x)              0

So a function's expressions are rewritten as its own mode does it, up to `END`, before rules look at them. The graph
with collectives is compiled by the same mode without `MADE`::

    expressions --> merged, canonicalized, stabilized --> collectives --> specialized, ... --> function of the ranks
"""

from __future__ import annotations

#: The position, in the libraries' own sequence of passes, from which on none is made before: canonicalization is at 1,
#: stabilization at 1.5, Theano's ``local_log_sum_exp`` at 1.6, products by BLAS at 1.7.
END = 1.605

#: Names and tags of rewrites that are made after only, for they change no values, but how lengths and positions are
#: written: rules see less clearly then which axes are those of the rows.
LATER = (
    *("local_shape_to_shape_i", "local_track_shape_i", "local_fill_to_alloc", "local_second_to_alloc"),
    *("local_elemwise_alloc", "local_subtensor_merge", "local_subtensor_merge_slice", "local_subtensor_merge_integer"),
    "scan",
)

#: Others that change no values, but where elements are; made after only if rules do not follow rows otherwise.
OF_ELEMENTS = (
    *("local_reshape_chain", "local_reshape_lift", "local_reshape_to_dimshuffle", "local_flatten_lift"),
    *("local_subtensor_lift", "local_subtensor_of_dot", "local_subtensor_of_alloc", "local_subtensor_make_vector"),
    *("local_reduce_join", "local_join_1", "local_join_empty", "local_join_make_vector", "local_useless_alloc"),
    *("local_lift_transpose_through_dot", "local_sum_prod_div_dimshuffle", "local_set_to_inc_subtensor"),
    *("local_subtensor_of_reduce", "local_subtensor_of_transpose", "local_subtensor_of_join", "local_join_dims"),
    *("local_split_dims", "local_convert_negative_indices", "local_useless_reshape", "local_join_to_repeat"),
)

#: The passes that are not made again in ``fast_run``, whose specialization has all of `LATER`.
MADE = ("useless", "merge1.1", "canonicalize", "merge1.2", "stabilize", "local_log_sum_exp")
