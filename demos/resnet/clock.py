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
