"""Functions whose graphs run on devices: where results are returned, and which values stay on the device."""

import numpy as np
import pytest
import theano
from refusals import refuses
from theano import tensor as T
from theano.gpuarray.basic_ops import HostFromGpu, as_gpuarray_variable
from theano.sandbox.rng_mrg import MRG_RandomStreams
from worlds import DEVICE, World

import synkhronos as synk
from synkhronos.extensions import train, updates
from synkhronos.reductions import device as gpu_arrays
from synkhronos.reductions.device import is_on_device

X = np.random.RandomState(0).randn(7, 4).astype("float32")


@pytest.fixture(scope="module", autouse=True)
def session():
    world = World("fork", 2, 0, "theano")
    yield world
    synk.close()


@pytest.fixture(scope="module")
def x():
    return T.fmatrix("x")


def test_outputs_stay_on_the_device_until_they_are_reduced(session, x):
    w = theano.shared(np.arange(4, dtype="float32"), "w")
    f = synk.function(
        [x],
        [x.dot(w).mean(), (x.dot(w), "gather"), (x.sum(), "sum"), (x.shape[0], "sum"), w.sum()],
        updates=[(w, w + x.mean(axis=0))],
    )
    kept = [not isinstance(output.owner.op, HostFromGpu) for output in f.on_ranks.maker.fgraph.outputs[:3]]
    assert kept == [True, True, True]
    assert all(isinstance(output.owner.op, HostFromGpu) for output in f.maker.fgraph.outputs[:3])
    before = w.get_value()
    results = f(X)
    assert all(isinstance(result, np.ndarray) for result in results)
    truth = [X.dot(before).mean(), X.dot(before), X.sum(), 7, before.sum()]
    for result, expected in zip(results, truth):
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    synk.all_reduce(w, weights=f)
    np.testing.assert_allclose(synk.gather(w), [before + X.mean(axis=0)] * 2, rtol=1e-5)
    assert synk.in_sync(w)
    assert all(isinstance(result, np.ndarray) for result in f.as_theano(X[:3]))


def test_what_an_update_stores_or_overwrites_is_no_output(x):
    """Outputs may be a variable's value before or after the update, or be computed in place."""
    w = theano.shared(np.ones((4, 4), "float32"), "w")
    new = T.dot(w, w) + 1
    f = synk.function(
        [x], [(w.transpose(), None), (new, None), (T.exp(new) * 0 + new, None), x.mean()], updates=[(w, new)]
    )
    values = np.ones((4, 4), "float32")
    for _ in range(3):
        expected = values.dot(values) + 1
        got = f(X)
        np.testing.assert_allclose(got[0], values.T)
        np.testing.assert_allclose(got[1], expected, rtol=1e-5)
        np.testing.assert_allclose(got[2], expected, rtol=1e-5)
        np.testing.assert_allclose(w.get_value(), expected, rtol=1e-5)
        values = expected / 40
        synk.broadcast(w, values)


def test_gpu_arrays_where_they_were_asked_for(x):
    f = synk.function(
        [x], [(as_gpuarray_variable(x * 2, None), "gather"), (x.sum(axis=0).transfer(None), "sum"), x.sum()]
    )
    rows, total, _ = f(X)
    assert is_on_device(rows) and is_on_device(total)
    np.testing.assert_allclose(np.asarray(rows), X * 2)
    np.testing.assert_allclose(np.asarray(total), X.sum(axis=0), rtol=1e-5)
    rows, total, _ = f(X, num_slices=3)
    assert is_on_device(rows) and is_on_device(total)
    np.testing.assert_allclose(np.asarray(rows), X * 2)


def test_an_update_of_a_variable_on_the_host_by_what_is_on_the_device(x):
    """Variables on the host, such as those from before the fork, can be updated by values on the device."""
    host = theano.shared(np.zeros((), "float32"), "host", target="cpu")
    assert isinstance(host.type, T.TensorType)
    f = synk.function([x], x.mean(), updates=[(host, host + x.mean())])
    for k in (1, 2):
        host.set_value(np.float32(0))
        synk.broadcast(host)
        f(X, num_slices=k)
        f(X, num_slices=k)  # the next collective reads its row counts
        synk.all_reduce(host, weights=f)
        np.testing.assert_allclose(host.get_value(), 2 * X.mean(), rtol=1e-5)


def test_outputs_that_are_a_shared_value(x):
    """A function that returns its variable returns a copy, also of arrays in another memory order."""
    w = theano.shared(np.arange(6, dtype="float32").reshape(2, 3), "w")
    f = synk.function([], [(w, None), (as_gpuarray_variable(w, None).T, None)], updates=[(w, w + 1)])
    first = f()
    f()
    np.testing.assert_array_equal(np.asarray(first[0]), np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(np.asarray(first[1]), np.arange(6).reshape(2, 3).T)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_slices_accumulate_on_the_device(monkeypatch, x, k):
    w = theano.shared(np.zeros(4, "float32"), "w")
    added = []
    add = gpu_arrays.DeviceAccumulator.add
    monkeypatch.setattr(
        gpu_arrays.DeviceAccumulator,
        "add",
        lambda self, value, weight=1: (added.append(is_on_device(value)), add(self, value, weight)),
    )
    f = synk.function([x], [x.mean(), (x.sum(axis=1), "gather"), (x.prod(), "prod")], updates=[(w, w + x.mean(axis=0))])
    mean, rows, prod = f(X, num_slices=k)
    np.testing.assert_allclose(mean, X.mean(), rtol=1e-5)
    np.testing.assert_allclose(rows, X.sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(prod, X.prod(), rtol=1e-4)
    synk.all_reduce(w, weights=f)
    np.testing.assert_allclose(w.get_value(), X.mean(axis=0), rtol=1e-5)
    assert len(added) == 4 * k * (k > 1) and all(added)


def test_rows_of_shared_variables():
    s = theano.shared(np.zeros((0, 3), "float32"), "s")
    f = synk.function([], [s.mean(), (s.sum(axis=1), "gather")], sliceable_shareds=[s])
    data = np.arange(30, dtype="float32").reshape(10, 3)
    synk.scatter(s, data)
    assert synk.get_lengths(s) == [5, 5]
    halves = data[:5], data[5:]
    for batch_s in (None, slice(1, 4), slice(None, None, -2), [0, 3, 3, -1], [[1, 2], [4]], np.arange(300) % 5):
        each = batch_s if isinstance(batch_s, list) and isinstance(batch_s[0], list) else [batch_s] * 2
        taken = np.concatenate([half if rows is None else half[rows] for half, rows in zip(halves, each)])
        for k in (1, 2):
            mean, rows = f(batch_s=batch_s, num_slices=k)
            np.testing.assert_allclose(mean, taken.mean(), rtol=1e-5)
            np.testing.assert_allclose(rows, taken.sum(axis=1), rtol=1e-5)


def test_fewer_rows_than_ranks(x):
    f = synk.function([x], [x.mean(), (x, "gather"), (x.sum(), "max")])
    for rows in (1, 2):
        mean, gathered, _ = f(X[:rows])
        np.testing.assert_allclose(mean, X[:rows].mean(), rtol=1e-5)
        np.testing.assert_allclose(gathered, X[:rows])


def test_random_states_live_on_the_device():
    u = MRG_RandomStreams(5).uniform((3,))
    f = synk.function([], (u, "gather"))
    serial = theano.function([], MRG_RandomStreams(5).uniform((3,)))
    (state,) = f.get_shared()
    assert type(state).__name__ == "GpuArraySharedVariable"
    first, saved = f(), synk.get_value(1, state)
    np.testing.assert_allclose(first[:3], serial())
    assert isinstance(saved, np.ndarray) and not np.intersect1d(first[:3], first[3:]).size
    after = f()
    synk.set_value(1, state, saved)
    np.testing.assert_array_equal(f()[3:], after[3:])


def test_float16_float64_and_integers(x):
    shareds = [
        theano.shared(np.arange(3).astype(dtype), dtype) for dtype in ("float16", "float64", "int32", "int64", "bool")
    ]
    count = theano.shared(np.array(3), "count")  # Theano keeps this variable on the host
    assert isinstance(count.type, T.TensorType)
    f = synk.function([], [T.cast(s, "float64").sum() for s in shareds] + [count * 1.0])
    np.testing.assert_allclose(f(), [3, 3, 3, 3, 2, 3])
    for s in shareds:
        synk.set_value(1, s, (np.arange(3) * 2).astype(s.dtype))
    synk.all_reduce(shareds[:2])
    np.testing.assert_allclose(synk.gather(shareds[:2]), [[[0, 1.5, 3]] * 2] * 2)
    synk.all_reduce([count] + shareds[2:4], op="c_sum")
    assert synk.get_value(1, count) == 6 and synk.get_value(1, shareds[2]).tolist() == [0, 3, 6]
    with refuses(TypeError, expected="'avg'"):
        synk.all_reduce(shareds[2:3])


def test_a_variable_of_another_context(session, x):
    theano.gpuarray.type.reg_context("mine", theano.gpuarray.get_context(None))
    try:
        v = theano.shared(np.zeros(3, "float32"), "v", target="mine")
        f = synk.function([x], x.sum() + v.transfer("cpu").sum())
        with refuses(TypeError, "shared variable v", got="'mine'"):
            f(X)
    finally:
        theano.gpuarray.type._unreg_context("mine")
    np.testing.assert_allclose(synk.function([x], x.mean())(X), X.mean(), rtol=1e-5)


def test_a_function_that_was_called_before_still_travels(x):
    """A called function can be sent and copied, though its graph has a kernel that cannot be pickled."""
    f = synk.function([x], (x.sum(axis=0).mean(), "avg"))
    f.as_theano(X)
    halves = X[:4].sum(axis=0).mean() * 4 / 7 + X[4:].sum(axis=0).mean() * 3 / 7
    np.testing.assert_allclose(f(X), halves, rtol=1e-5)
    np.testing.assert_allclose(f.copy()(X), halves, rtol=1e-5)


def test_training_steps_are_the_serial_ones(x):
    y = T.ivector("y")
    start = np.random.RandomState(1).randn(4, 3).astype("float32")

    def step(function, **words):
        w = theano.shared(start, "w")
        p = T.nnet.softmax(x.dot(w))
        loss = T.nnet.categorical_crossentropy(p, y).mean()
        return w, function([x, y], loss, updates=[(w, w - T.grad(loss, w))], **words)

    labels = np.arange(7, dtype="int32") % 3
    w, train = step(synk.function)
    v, serial = step(theano.function)
    for k in (1, 1, 3):
        np.testing.assert_allclose(train(X, labels, num_slices=k), serial(X, labels), rtol=1e-4)
        synk.all_reduce(w, weights=train)
    np.testing.assert_allclose(w.get_value(), v.get_value(), rtol=1e-4, atol=1e-6)
    assert DEVICE and type(w).__name__ == "GpuArraySharedVariable"


def test_update_rules_on_devices(x):
    """Training with gradients in one vector on the device agrees with a serial NumPy program."""
    start = np.random.RandomState(1).randn(4, 3).astype("float32"), np.zeros(3, "float32")
    w, b = (theano.shared(value, name) for value, name in zip(start, "wb"))
    loss = T.sqr(T.tanh(x.dot(w) + b) - 0.5).mean()
    step = train.make_train_function(loss, [w, b], x, [], updates.momentum, learning_rate=0.5, momentum=0.9)
    assert [type(shared).__name__ for shared in step.grad_shared] == ["GpuArraySharedVariable"]
    values, speeds = [value.astype("float64") for value in start], [0.0, 0.0]
    for k in (1, 1, 3):
        out = np.tanh(X.dot(values[0]) + values[1])
        np.testing.assert_allclose(step(X, num_slices=k), np.mean((out - 0.5) ** 2), rtol=1e-4)
        inner = 2 * (out - 0.5) * (1 - out**2) / out.size
        for i, gradient in enumerate((X.T.dot(inner), inner.sum(axis=0))):
            speeds[i] = 0.9 * speeds[i] - 0.5 * gradient
            values[i] = values[i] + speeds[i]
    for shared, value in zip((w, b), values):
        np.testing.assert_allclose(shared.get_value(), value, rtol=1e-4, atol=1e-6)
    assert synk.in_sync([w, b] + step.state)


@pytest.mark.parametrize("in_steps", [False, True])
def test_gradients_averaged_inside_the_function(x, in_steps):
    """Steps on uneven batches, one with fewer rows than ranks, agree with NumPy over all rows."""
    start = np.random.RandomState(2).randn(4, 3).astype("float32")
    w, speed = theano.shared(start, "w"), theano.shared(np.zeros_like(start), "speed")
    loss = T.sqr(T.tanh(x.dot(w)) - 0.5).mean()
    gradient = synk.ops.all_reduce(T.grad(loss, w))
    new = np.float32(0.9) * speed - np.float32(0.5) * gradient
    step = synk.function([x], loss, updates=[(speed, new), (w, w + new)])
    batches = [[0, 1, 2, 3, 4, 5], [6, 2, 4], [3], [5, 1, 0]]
    losses = step.steps(X, batches=batches) if in_steps else [step(X, batch=rows) for rows in batches]
    value, velocity = start.astype("float64"), 0.0
    for found, rows in zip(losses, batches):
        out = np.tanh(X[rows].dot(value))
        np.testing.assert_allclose(found, np.mean((out - 0.5) ** 2), rtol=1e-4)
        velocity = 0.9 * velocity - 0.5 * X[rows].T.dot(2 * (out - 0.5) * (1 - out**2) / out.size)
        value = value + velocity
    np.testing.assert_allclose(w.get_value(), value, rtol=1e-4, atol=1e-6)
    assert synk.in_sync([w, speed]) and type(w).__name__ == "GpuArraySharedVariable"


@pytest.mark.parametrize("num_slices", [1, 2])
def test_an_exact_function(x, num_slices):
    """An exact function with a rule that is not linear in gradients agrees with NumPy over all rows."""
    start = np.random.RandomState(2).randn(4, 3).astype("float32")
    w, squares = theano.shared(start, "w"), theano.shared(np.zeros_like(start), "squares")
    loss = T.sqr(T.tanh(x.dot(w)) - 0.5).mean()
    gradient = T.grad(loss, w)
    new = squares + T.sqr(gradient)
    step = synk.function(
        [x],
        [loss, x.dot(w), x.max(axis=0)],
        updates=[(squares, new), (w, w - np.float32(0.5) * gradient / T.sqrt(new + np.float32(1e-3)))],
        exact=True,
    )
    assert step.output_modes == ["avg", "gather", "max"]
    value, total = start.astype("float64"), 0.0
    for rows in ([0, 1, 2, 3, 4, 5], [6, 2, 4], [3], [5, 1, 0]):
        found = step(X, batch=rows, num_slices=min(num_slices, len(rows)))
        out = np.tanh(X[rows].dot(value))
        np.testing.assert_allclose(found[0], np.mean((out - 0.5) ** 2), rtol=1e-4)
        np.testing.assert_allclose(found[1], X[rows].dot(value), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found[2], X[rows].max(axis=0))
        slope = X[rows].T.dot(2 * (out - 0.5) * (1 - out**2) / out.size)
        total = total + slope**2
        value = value - 0.5 * slope / np.sqrt(total + 1e-3)
    np.testing.assert_allclose(w.get_value(), value, rtol=1e-3, atol=1e-5)
    assert synk.in_sync([w, squares]) and type(w).__name__ == "GpuArraySharedVariable"
