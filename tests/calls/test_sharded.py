"""Rows along an axis other than the first: inputs, data in shared variables, outputs, slices and steps."""

import logging

import numpy as np
import pytest
from library import NAME, L, T
from refusals import refuses

import synkhronos as synk

pytestmark = [getattr(pytest.mark, NAME), pytest.mark.thorough("threads-1")]

ROWS = [5, 6, 1]
random = np.random.RandomState(5)


def expressions():
    """Return two inputs, the second with rows along its last axis, and outputs of all kinds."""
    y, x = T.dvector("y"), T.dtensor3("x")
    outputs = [x * 2, x.sum(axis=0), x.mean(), (x * y.dimshuffle("x", "x", 0)).max(axis=2), x.dimshuffle(2, 0, 1)[:, 0]]
    return y, x, outputs


def arrays(n_rows):
    return random.randn(n_rows), random.randn(3, 4, n_rows)


def of(y, x):
    """Return the outputs of `expressions`, computed by NumPy."""
    return [x * 2, x.sum(axis=0), x.mean(), (x * y).max(axis=2), x.transpose(2, 0, 1)[:, 0]]


def agree(found, expected):
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("axis", [2, -1])
def test_rows_along_the_last_axis(small_world, axis):
    y, x, outputs = expressions()
    f = synk.function([y, synk.sharded(x, axis=axis)], outputs)
    for n_rows in ROWS:
        values = arrays(n_rows)
        agree(f(*values), of(*values))
        data = f.build_inputs(*values)
        agree(f(*data), of(*values))
    y_all, x_all = arrays(9)
    data = f.build_inputs(y_all, x_all)
    for batch in ([4, 0, 7, 7], slice(2, 8), slice(8, 1, -2), 5, np.array([8])):
        chosen = slice(batch) if isinstance(batch, int) else batch
        for given in [(y_all, x_all), data, (y_all, data[1])]:
            agree(f(*given, batch=batch), of(y_all[chosen], x_all[..., chosen]))
    if small_world.n < 4:
        agree(f(y_all, x_all, num_slices=3), of(y_all, x_all))
        agree(f(y_all, x_all, batch=[4, 0, 7, 7], num_slices=2), of(y_all[[4, 0, 7, 7]], x_all[..., [4, 0, 7, 7]]))


@pytest.mark.thorough
def test_the_middle_axis(threads):
    x = T.dtensor3("x")
    f = synk.function([synk.sharded(x, 1)], [T.exp(x), x.sum(axis=(0, 2))], name="middle")
    value = random.randn(2, 7, 3)
    agree(f(value), [np.exp(value), value.sum(axis=(0, 2))])
    # This also holds for non-contiguous arrays and arrays from a file.
    agree(f(value[:, ::-2]), [np.exp(value[:, ::-2]), value[:, ::-2].sum(axis=(0, 2))])
    agree(f(np.asfortranarray(value)), [np.exp(value), value.sum(axis=(0, 2))])


def test_a_memory_map(threads, tmp_path):
    x = T.dmatrix("x")
    value = random.randn(3, 7)
    np.save(str(tmp_path / "x.npy"), value)
    f = synk.function([synk.sharded(x, 1)], x * 1)
    data = synk.data(np.load(str(tmp_path / "x.npy"), mmap_mode="r"))
    np.testing.assert_array_equal(f(data), value)
    np.testing.assert_array_equal(f(data, batch=[6, 2, 3]), value[:, [6, 2, 3]])


@pytest.mark.thorough
def test_steps(small_world):
    y, x, outputs = expressions()
    f = synk.function([y, synk.sharded(x, axis=2)], outputs)
    y_all, x_all = arrays(9)
    batches = [[0, 1, 2, 3], slice(3, 9), [8]]
    for given in [(y_all, x_all), f.build_inputs(y_all, x_all)]:
        results = f.steps(*given, batches=batches)
        for k, batch in enumerate(batches):
            agree([each[k] for each in results], of(y_all[batch], x_all[..., batch]))
    seen = []
    f.steps(y_all, x_all, batches=batches, output_subset=[0], on_step=lambda i, results: seen.append(results[0].shape))
    assert [shape[:2] for shape in seen] == [(3, 4)] * 3  # each result has the master's rows
    totals = f.steps(y_all, x_all, batches=batches, output_subset=[0, 1], total=True)
    chosen = [0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 8]
    agree(totals, of(y_all[chosen], x_all[..., chosen])[:2])


def test_data_in_shared_variables(small_world):
    s, scale = L.shared(np.zeros((3, 0)), "s"), L.shared(2.0, "scale")
    outputs = [s * scale, s.sum(axis=1), s.mean()]
    f = synk.function([], outputs, sliceable_shareds=[synk.sharded(s, axis=1)])
    value = random.randn(3, 8)
    synk.scatter(s, value, axis=1)
    parts = (
        np.array_split(value, small_world.n, axis=1)
        if small_world.n < 3
        else [value[:, :3], value[:, 3:6], value[:, 6:]]
    )
    assert synk.get_shapes(s) == [part.shape for part in parts]
    np.testing.assert_array_equal(synk.gather(s, axis=1), value)
    agree(f(), [value * 2, value.sum(axis=1), value.mean()])
    first = np.concatenate([part[:, :2] for part in parts], axis=1)
    agree(f(batch_s=slice(2)), [first * 2, first.sum(axis=1), first.mean()])
    agree(f(batch_s=[1, 0], num_slices=2)[1:], [first.sum(axis=1), first.mean()])
    agree(f(num_slices=2), [value * 2, value.sum(axis=1), value.mean()])
    steps = f.steps(batches_s=[[0], [1], slice(0, 2)])
    agree(
        [steps[0][2], steps[1][0]],
        [first * 2, np.concatenate([part[:, :1] for part in parts], axis=1).sum(axis=1)],
    )


def test_scatter_and_gather(small_world):
    v, w = L.shared(np.zeros((2, 2)), "v"), L.shared(np.zeros((3, 1, 2), "float32"), "w")
    synk.function([], [v.sum(), w.sum()]).as_theano()
    values = [random.randn(3, 7), random.randn(2, 7, 2).astype("float32")]
    synk.scatter([v, w], values, axis=1)
    for found, value in zip(synk.gather([v, w], axis=1), values):
        np.testing.assert_array_equal(found, value)
    assert v.get_value(borrow=True).flags.c_contiguous
    synk.scatter(v, synk.data(values[0]), batch=[5, 1, 2], axis=-1)
    np.testing.assert_array_equal(synk.gather(v, axis=-1), values[0][:, [5, 1, 2]])
    synk.scatter(v, values[0], batch=slice(6, 2, -1), axis=1)
    np.testing.assert_array_equal(synk.gather(v, nd_up=0, axis=1), values[0][:, 6:2:-1])
    synk.set_value(small_world.n - 1, v, np.zeros((9, 9)))
    assert len(synk.gather(v, axis=1)) == (
        9 if small_world.n == 1 else small_world.n
    )  # a list, if the shapes do not match


@pytest.mark.thorough
def test_exact_training_time_first(small_world):
    def build(wrap):
        x, w = T.dmatrix("x"), L.shared(np.array([0.5, -0.3]), "w")
        state, _ = L.scan(lambda x_t, h: T.tanh(w[0] * h + w[1] * x_t), [x], [T.zeros_like(x[0])])
        loss = T.sqr(state[-1] - 1).sum()
        g = T.grad(loss, w)
        updates = [(w, w - 0.1 * g / T.sqrt(T.sqr(g).sum()))]
        return w, dict(inputs=[wrap(x)], outputs=loss, updates=updates, mode=L.quick)

    w, ours = build(lambda x: synk.sharded(x, axis=1))
    other, plain = build(lambda x: x)
    f, g = synk.function(**ours, exact=True), L.function(**plain)
    for n_rows, num_slices in [(n, 1) for n in ROWS] + [(6, 2)]:
        value = random.randn(4, n_rows)
        np.testing.assert_allclose(f(value, num_slices=num_slices), g(value))
        for of_rank in synk.gather(w):
            np.testing.assert_allclose(of_rank, other.get_value(), rtol=1e-10)


def test_a_given_gather_that_is_not_the_serial_order_is_told(threads, caplog):
    x = T.dmatrix("x")
    with caplog.at_level(logging.WARNING, "synkhronos"):
        f = synk.function([synk.sharded(x, 1)], (x * 1, "gather"))
    assert "its rows are along axis 1" in caplog.text
    value = random.randn(2, 6)
    np.testing.assert_array_equal(f(value), np.concatenate([value[:, :2], value[:, 2:4], value[:, 4:]]))


def test_copies_and_pickles(threads):
    import cloudpickle

    x, s = T.dmatrix("x"), L.shared(random.randn(3, 2), "s")
    f = synk.function([synk.sharded(x, 1)], [x.sum(axis=0)], givens=None)
    value = random.randn(2, 7)
    for other in (f.copy(), cloudpickle.loads(cloudpickle.dumps(f))):
        agree(other(value), [value.sum(axis=0)])
    g = synk.function([], s.sum(axis=0), sliceable_shareds=[synk.sharded(s, 1)])
    synk.scatter(s, random.randn(3, 6), axis=1)
    assert g.copy()(batch_s=[0]).shape == (3,)


def test_what_cannot_be(threads):
    x, y, column = T.dmatrix("x"), T.dvector("y"), T.dcol("column")
    s = L.shared(np.zeros((2, 2)), "s")
    with refuses(ValueError, "axis", "'x' (argument 0), of type float64 matrix", "2"):
        synk.function([synk.sharded(x, 2)], x.sum())
    with refuses(ValueError, "axis", "'y' (argument 0), of type float64 vector", "-2"):
        synk.function([synk.sharded(y, -2)], y.sum())
    with refuses(ValueError, "axis", "'column' (argument 0) that may have any length", "1, broadcastable"):
        synk.function([synk.sharded(column, 1)], column.sum())
    with refuses(TypeError, "axis", "an int", "1.0"):
        synk.sharded(x, 1.0)
    with refuses(TypeError, "bcast_inputs", "whole", "x, sharded along axis 1", "inputs"):
        synk.function([], x.sum(), bcast_inputs=[synk.sharded(x, 1)])
    with refuses(ValueError, "axis", "axis of s, of type float64 matrix", "2"):
        synk.function([], s.sum(), sliceable_shareds=[synk.sharded(s, 2)])
    f = synk.function([synk.sharded(x, 1), y], (x * y).sum())
    with refuses(ValueError, "scattered inputs", "length", "3 of input 'x' (argument 0), 2 of input 'y' (argument 1)"):
        f(np.zeros((2, 3)), np.zeros(2))
    synk.function([], s.sum())
    for collective in (
        lambda axis: synk.scatter(s, np.zeros((4, 4)), axis=axis),
        lambda axis: synk.gather(s, axis=axis),
    ):
        with refuses(ValueError, "axis", "axis of s, of type float64 matrix", "2"):
            collective(2)
        with refuses(TypeError, "axis", "an int", "'a'"):
            collective("a")
    np.testing.assert_allclose(f(np.ones((2, 3)), np.ones(3)), 6)


def test_compared_with_the_serial_function(threads):
    x, s = T.dmatrix("x"), L.shared(np.zeros((3, 2)), "s")
    f = synk.function([synk.sharded(x, 1)], [x.mean(), x * 2])
    g = synk.function([], [s * 2, s.mean()], sliceable_shareds=[synk.sharded(s, 1)])
    wrong = synk.function([synk.sharded(x, 1)], (x.mean(), "sum"))
    synk.scatter(s, random.randn(3, 6), axis=1)
    for options in [{}, dict(batch=[5, 0, 1]), dict(batch=slice(6), num_slices=2)]:
        assert f.compare(random.randn(2, 6), **options)
    for options in [{}, dict(batch_s=[1, 0]), dict(num_slices=3)]:
        assert g.compare(**options)
    assert len(wrong.compare(random.randn(2, 6)).differences) == 1


@pytest.mark.thorough
def test_a_loop_over_time_that_would_be_divided_names_sharded(threads):
    x, w = T.dmatrix("x"), L.shared(np.ones(()), "w")
    states, _ = L.scan(lambda now, before: T.tanh(w * now + before), x, T.zeros((x.shape[1],)))
    with refuses(ValueError, "the update of w", got="loop"):
        synk.function([x], updates=[(w, states[-1].mean())], exact=True)
    f = synk.function([synk.sharded(x, 1)], updates=[(w, states[-1].mean())], exact=True)
    assert f.compare(random.randn(4, 5))
