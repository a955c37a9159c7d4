"""Theano Op that records the time and process of its execution, so that the master can time each rank."""

import os
import time

import numpy as np
import theano.tensor as T
from theano.gof import Apply, Op


class Clock(Op):
    """Op that returns its first input unchanged, and ``[[process id, seconds]]`` when all inputs have been computed.

    Computations of the inputs end before this time; computations that use the first output begin after it. The
    seconds are from `time.perf_counter`, a clock that all processes of a Linux machine share. Gathered over ranks, the
    second output has one row per rank and slice.
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
    """Divide a call's time into parts, averaged over the participating ranks.

    During "shuffling", the rank receives the indices and copies its rows. "function" is the computation, which includes
    collectives in the graph. Both occur for each slice. "waiting" lasts until the last rank has finished. The
    remaining time until the call returns is not included.

    Parameters
    ----------
    called : float
        Time of the call, in seconds.
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
