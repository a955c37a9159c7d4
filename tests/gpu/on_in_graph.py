"""Collectives inside functions whose graphs run on a device: inputs and results stay on the device."""

import numpy as np
import pytest
import theano
from theano import tensor as T
from theano.gpuarray.basic_ops import GpuFromHost, as_gpuarray_variable
from theano.gpuarray.type import GpuArrayType
from worlds import DEVICE

import synkhronos as synk
from synkhronos import in_graph
from synkhronos.engines.theano.engine import ENGINE
from synkhronos.engines.theano.operations import AllReduce
from synkhronos.reductions import device as gpu_arrays

X = np.random.RandomState(0).randn(7, 4).astype("float32")


@pytest.fixture(scope="module", autouse=True)
def device():
    return ENGINE.open_device(DEVICE)


class OnDevice(in_graph.CurrentCall):
    """Records where the arrays are; returns ``2 x + number + 1`` in the same place."""

    def __init__(self, context):
        self.context, self.seen, self.given = context, [], []

    def all_reduce(self, number, op, arrays):
        self.seen.append((number, [gpu_arrays.is_on_device(array) for array in arrays]))
        results = []
        for array in arrays:
            result = np.asarray(2 * np.asarray(array) + number + 1, array.dtype)
            results.append(gpu_arrays.upload(result, self.context) if gpu_arrays.is_on_device(array) else result)
            self.given.append((results[-1], result.copy()))
        return results


def call(device, f, *args):
    recorder = OnDevice(device)
    with recorder:
        return [np.asarray(result) for result in ENGINE.call(f, list(args))], recorder


def variant(inputs, outputs, updates=(), **kwargs):
    return ENGINE.on_ranks(ENGINE.variant(ENGINE.snapshot(inputs, outputs, list(updates), None, **kwargs), False, []))


@pytest.mark.parametrize("optimizer", ["fast_run", "fast_compile"])
def test_gradients_are_reduced_on_the_device(device, optimizer):
    x, w = T.fmatrix("x"), theano.shared(np.ones(4, "float32"), "w")
    loss = T.sqr(x * w).sum(axis=1).mean()
    gradient, value = synk.ops.all_reduce([theano.grad(loss, w), loss])
    f = variant([x], [value], [(w, w - 0.5 * gradient)], mode=theano.Mode(optimizer=optimizer))
    (reduced, new), recorder = call(device, f, X)
    truth = (2 * X**2).mean(axis=0)
    np.testing.assert_allclose(reduced, 2 * (X**2).sum(axis=1).mean() + 1, 1e-5)
    np.testing.assert_allclose(new, 1 - 0.5 * (2 * truth + 1), 1e-5)
    assert recorder.seen == [(0, [True, True])]
    (node,) = [node for node in f.maker.fgraph.toposort() if isinstance(node.op, AllReduce)]
    assert not any(
        isinstance(client.op, GpuFromHost)
        for output in node.outputs
        for client, _ in output.clients
        if client != "output"
    )


def test_order_and_memory(device):
    x = T.fmatrix("x")
    y = synk.ops.all_reduce(x * 2)
    z = synk.ops.all_reduce(T.exp(y) - x, "max")
    f = variant([x], [T.tanh(y) * 3, z + 1, synk.ops.all_reduce(x.sum(), "sum")])
    results, recorder = call(device, f, X)
    first = 2 * X * 2 + 1
    np.testing.assert_allclose(results[0], np.tanh(first) * 3, 1e-4)
    np.testing.assert_allclose(results[1], 2 * (np.exp(first) - X) + 2 + 1, 1e-4)
    np.testing.assert_allclose(results[2], 2 * X.sum() + 3, 1e-4)
    assert recorder.seen == [(0, [True]), (1, [True]), (2, [True])]
    for array, copy in recorder.given:
        np.testing.assert_array_equal(np.asarray(array), copy)


def test_through_the_host_if_that_was_asked_for(device):
    x = T.fmatrix("x")
    results, recorder = call(device, variant([x], synk.ops.all_reduce(x * 2, "c_sum") + 1), X)
    np.testing.assert_allclose(results[0], 2 * X * 2 + 1 + 1, 1e-5)
    assert recorder.seen == [(0, [False])]


def test_types_of_the_device(device):
    x = as_gpuarray_variable(theano.shared(X, "x"), None)
    y = synk.ops.all_reduce(x, "sum")
    assert isinstance(y.type, GpuArrayType) and y.type == x.type
    (plain,) = ENGINE.call(theano.function([], [y]), [])
    np.testing.assert_array_equal(np.asarray(plain), X)
    results, recorder = call(device, variant([], theano.grad(T.sqr(y).sum(), x)))
    np.testing.assert_allclose(results[0], 2 * (2 * (2 * X + 1)) + 2, 1e-5)
    assert recorder.seen == [(0, [True]), (1, [True])]


@pytest.mark.skipif(DEVICE.startswith("opencl"), reason="Theano's scan runs on CUDA devices only")
def test_in_scan(device):
    x = T.fmatrix("x")
    states, _ = theano.scan(
        lambda row, h: synk.ops.all_reduce(T.tanh(row + h)), sequences=[x], outputs_info=[T.zeros((4,), "float32")]
    )
    results, recorder = call(device, variant([x], [states[-1], synk.ops.all_reduce(x)]), X)
    h = np.zeros(4)
    for row in X:
        h = 2 * np.tanh(row + h) + 1
    np.testing.assert_allclose(results[0], h, 1e-4)
    np.testing.assert_allclose(results[1], 2 * X + 2, 1e-5)
    assert [number for number, _ in recorder.seen] == [0] * 7 + [1]
