"""An Op that tells when it ran, and in which process: how the master learns what each rank did when."""

import os
import time

import numpy as np
import theano.tensor as T
from theano.gof import Apply, Op


class Clock(Op):
    """Return the first input as it is, and ``[[process id, seconds]]``: the moment when all inputs were there.

    What is computed from the first output is computed later than this moment, what the inputs depend on was before it.
    The seconds are `time.perf_counter`'s; all processes of a Linux machine read the same clock. Gathered over ranks,
    the second output has one row per rank and slice.
    """

    __props__ = ()
    view_map = {0: [0]}

    def make_node(self, *inputs):
        inputs = [T.as_tensor_variable(variable) for variable in inputs]
        return Apply(self, inputs, [inputs[0].type(), T.dmatrix()])

    def infer_shape(self, node, input_shapes):
        return [input_shapes[0], (T.constant(1), T.constant(2))]

    def perform(self, node, inputs, output_storage):
        output_storage[0][0] = inputs[0]
        output_storage[1][0] = np.array([[os.getpid(), time.perf_counter()]])


def divide_time(called, started, ended):
    """Divide a call's time, as a mean over the ranks that took part.

    A rank's time goes by in four: until it has its rows ("shuffling": the indices reach it, and it copies the rows
    out), computing ("function", in which ranks meet with --sync-bn), both for each slice, then until the last rank has
    finished ("waiting"), and until the call returns, which is left out here.

    Parameters
    ----------
    called : float
        When the function was called.
    started, ended : array of shape (ranks * slices, 2)
        Process id and seconds, from the clocks at both ends of the function.

    Returns
    -------
    dict
        Seconds for "shuffling", "function" and "waiting".
    """
    n_ranks = len(set(ended[:, 0]))
    function = np.sum(ended[:, 1] - started[:, 1]) / n_ranks
    last = [ended[ended[:, 0] == rank, 1].max() for rank in set(ended[:, 0])]
    return {
        "shuffling": np.mean(last) - called - function,
        "function": function,
        "waiting": np.max(last) - np.mean(last),
    }
