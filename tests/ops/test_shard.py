"""`synkhronos.ops.shard`: a rank's rows of a value that all ranks have, in every kind of function.

Modules: `synkhronos.sharding.shares`.
"""

import logging

import numpy as np
import pytest
from library import NAME, L, T
from refusals import refuses, reports

import synkhronos as synk

pytestmark = getattr(pytest.mark, NAME)

random = np.random.RandomState(8)
DATA = random.randn(23, 3)
TARGETS = random.randn(23)


def adam(loss, w):
    """Return updates like Adam's: the new parameters are not linear in the gradient."""
    g, m = T.grad(loss, w), L.shared(np.zeros(3), "m")
    m_new = 0.9 * m + 0.1 * g
    return [(m, m_new), (w, w - 0.1 * m_new / (T.sqrt(T.sqr(g)) + 1e-3))]


def tutorial(shard, of="mean"):
    """Return the parameters, and the arguments of a training function that selects its rows by an index."""
    data, targets = L.shared(DATA, "data"), L.shared(TARGETS, "targets")
    w = L.shared(np.full(3, 0.3), "w")
    x, y, index, size = T.dmatrix("x"), T.dvector("y"), T.lscalar("index"), T.lscalar("size")
    errors = T.sqr(T.dot(x, w) - y)
    loss = getattr(errors, of)()
    chosen = slice(index * size, (index + 1) * size)
    return w, dict(
        inputs=[index, size],
        outputs=[loss, errors, x.shape[0], T.max(x)],
        updates=adam(loss, w),
        givens={x: shard(data[chosen]), y: shard(targets[chosen])},
    )


@pytest.mark.thorough
@pytest.mark.parametrize("of", ["mean", "sum"])
def test_the_tutorials_form(small_world, of):
    (w, ours), (other, plain) = tutorial(synk.ops.shard, of), tutorial(lambda v: v, of)
    f, g = synk.function(**ours, exact=True), L.function(**plain)
    for index, size in [(0, 10), (1, 10), (2, 10), (1, 7), (3, 1), (1, 2)]:
        for found, expected in zip(f(index, size), g(index, size)):
            np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-15)
        n_rows = min(size, 23 - index * size)
        assert sum(f.last_rows) == n_rows and max(f.last_rows) - min(f.last_rows) <= 1
        for of_rank in synk.gather(w):
            np.testing.assert_allclose(of_rank, other.get_value(), rtol=1e-10)


@pytest.mark.parametrize("mode", [L.full, L.quick], ids=["FAST_RUN", "FAST_COMPILE"])
def test_averages_whatever_is_computed_first(threads, mode):
    data, n, w = L.shared(DATA, "data"), T.lscalar("n"), L.shared(np.full(3, 0.3), "w")
    h = T.dot(synk.ops.shard(data[:n].T, axis=1).T, w)
    f = synk.function([n], [T.sqr(h).mean(), h.mean(), T.sqr(h - h.mean()).mean()], exact=True, mode=mode)
    for n_rows in (7, 3, 2, 1):
        expected = DATA[:n_rows] @ np.full(3, 0.3)
        np.testing.assert_allclose(f(n_rows), [(expected**2).mean(), expected.mean(), expected.var()], atol=1e-12)


def test_without_exact_every_rank_computes_with_its_rows(threads):
    data, w, index = L.shared(DATA, "data"), L.shared(0.0, "w"), T.lscalar("index")
    rows = synk.ops.shard(data[index:])
    f = synk.function([index], [rows.mean(), rows.sum(axis=1)], updates=[(w, w + rows.sum())])
    mean, sums = f(16)
    np.testing.assert_allclose(mean, DATA[16:].mean())
    np.testing.assert_allclose(sums, DATA[16:].sum(axis=1))
    parts = [DATA[16:18], DATA[18:21], DATA[21:]] if f.last_rows == [2, 3, 2] else [DATA[16:19], DATA[19:21], DATA[21:]]
    np.testing.assert_allclose(synk.gather(w), [part.sum() for part in parts])
    # A rank without rows returns and updates nothing.
    before = synk.gather(w)
    np.testing.assert_allclose(f(21)[0], DATA[21:].mean())
    assert sorted(f.last_rows) == [0, 1, 1]
    after = synk.gather(w)
    assert [a == b for a, b in zip(before, after)] == [n == 0 for n in f.last_rows]


@pytest.mark.thorough
def test_beside_scattered_inputs(small_world):
    x, targets = T.dmatrix("x"), L.shared(TARGETS, "targets")
    errors = T.sqr(x.sum(axis=1) - synk.ops.shard(targets[: 2 * 4]))
    f = synk.function([x], [errors, errors.mean()])
    serial = L.function([x], [errors, errors.mean()])
    expected = (DATA[:8].sum(axis=1) - TARGETS[:8]) ** 2
    for found in (serial(DATA[:8]), f(DATA[:8]), f(DATA[:8], num_slices=2), f(DATA[::-1], batch=slice(22, 14, -1))):
        np.testing.assert_allclose(found[0], expected)
        np.testing.assert_allclose(found[1], expected.mean())
    with refuses(ValueError, "synkhronos.ops.shard", "length 7", "length 8"):
        f(DATA[:7])
    np.testing.assert_allclose(f(DATA[:8])[1], expected.mean())


@pytest.mark.thorough
def test_beside_data_of_each_rank(threads):
    s, targets = L.shared(DATA[:0], "s"), L.shared(TARGETS, "targets")
    product = s.sum(axis=1) * synk.ops.shard(targets[:12])
    f = synk.function([], [product, product.sum()], sliceable_shareds=[s])
    synk.scatter(s, DATA[:12])
    expected = DATA[:12].sum(axis=1) * TARGETS[:12]
    for num_slices in (1, 2, 5):
        found = f(num_slices=num_slices)
        np.testing.assert_allclose(found[0], expected)
        np.testing.assert_allclose(found[1], expected.sum())


def test_another_axis(small_world):
    data = L.shared(DATA, "data")
    time_first = synk.ops.shard(data.T, axis=1)
    f = synk.function([], [time_first * 2, time_first.mean(axis=1), time_first.mean()])
    for found, expected in zip(f(), [DATA.T * 2, DATA.mean(axis=0), DATA.mean()]):
        np.testing.assert_allclose(found, expected)


@pytest.mark.thorough
def test_gradients(small_world):
    """Gradients with respect to the sharded value equal the serial program's: ranks' contributions are summed."""
    v, scale = L.shared(TARGETS[:7], "v"), T.dscalar("scale")
    cost = (T.exp(scale * synk.ops.shard(v)) ** 2).mean()
    gradient = T.grad(cost, v)
    second = T.grad((gradient**3).sum(), v)
    forward = T.Rop(cost, v, v * 2)
    plain = L.function([scale], [cost, gradient, second, forward])
    f = synk.function([], [cost, gradient, second, forward], bcast_inputs=[scale], exact=True)
    for found, expected in zip(f(0.5), plain(0.5)):
        np.testing.assert_allclose(found, expected, rtol=1e-10)
    h = 1e-6
    numerical = [
        (np.mean(np.exp(0.5 * (TARGETS[:7] + h * unit)) ** 2) - np.mean(np.exp(0.5 * (TARGETS[:7] - h * unit)) ** 2))
        / (2 * h)
        for unit in np.eye(7)
    ]
    np.testing.assert_allclose(f(0.5)[1], numerical, rtol=1e-6)


@pytest.mark.thorough
def test_steps(threads):
    data, count, w = L.shared(DATA, "data"), L.shared(np.int64(0), "count"), L.shared(0.0, "w")
    rows = synk.ops.shard(data[count * 7 : (count + 1) * 7])
    updates = [(count, count + 1), (w, w + T.sqr(rows.mean()))]
    f = synk.function([], [rows.mean(), rows[:, 0], rows.max()], updates=updates, exact=True)
    means, columns, largest = f.steps(n_steps=3)
    for k in range(3):
        part = DATA[7 * k : 7 * (k + 1)]
        np.testing.assert_allclose([means[k], largest[k]], [part.mean(), part.max()])
        np.testing.assert_allclose(columns[k], part[:, 0])
    assert sum(f.last_rows) == 21
    np.testing.assert_allclose(synk.gather(w), [sum(DATA[7 * k : 7 * (k + 1)].mean() ** 2 for k in range(3))] * 3)
    # On all ranks: the master's error is raised, unless another rank's arrived first.
    with reports((ValueError, synk.WorkerError), "synkhronos.ops.shard", 2, 7):
        count.set_value(3)  # two rows, then the rows of the first step again
        synk.broadcast(count)
        g = synk.function([], rows.mean(), updates=[(count, (count + 1) % 4)], exact=True)
        g.steps(n_steps=2)
    count.set_value(0)
    synk.broadcast(count)
    total = f.steps(n_steps=2, total=True)
    np.testing.assert_allclose([total[0], total[2]], [DATA[:14].mean(), DATA[:14].max()])
    np.testing.assert_allclose(total[1], DATA[:14, 0])


@pytest.mark.thorough
def test_steps_with_ranks_without_rows(threads):
    data = L.shared(DATA, "data")
    rows = synk.ops.shard(data[:2])
    f = synk.function([], [rows.sum(), rows.prod(), rows.min(), rows[:, 1]])
    sums, products, smallest, column = f.steps(n_steps=2)
    for k in range(2):
        np.testing.assert_allclose(
            [sums[k], products[k], smallest[k]], [DATA[:2].sum(), DATA[:2].prod(), DATA[:2].min()]
        )
        np.testing.assert_allclose(column[k], DATA[:2, 1])


@pytest.mark.thorough
def test_random_numbers_for_each_row(threads):
    data = L.shared(DATA, "data")
    stream = T.shared_randomstreams.RandomStreams(5)
    rows = synk.ops.shard(data)
    f = synk.function([], rows * stream.binomial(rows.shape, p=0.5), exact=True)
    found = f()
    assert found.shape == DATA.shape and set(np.unique(found / DATA)) == {0.0, 1.0}


def test_outside_of_calls_it_is_the_value():
    v = L.shared(DATA, "v")
    rows = synk.ops.shard(v)
    np.testing.assert_array_equal(L.function([], rows)(), DATA)
    np.testing.assert_array_equal(rows.eval(), DATA)
    f = synk.function([], rows.sum())
    np.testing.assert_allclose(f.as_theano(), DATA.sum())


def test_what_cannot_be(threads, capfd):
    x, v, row = T.dmatrix("x"), L.shared(DATA, "v"), T.drow("row")
    with refuses(TypeError, "v", "a variable", "ndarray"):
        synk.ops.shard(DATA)
    with refuses(ValueError, "axis", "float64 matrix", "2"):
        synk.ops.shard(v, axis=2)
    with refuses(TypeError, "axis", "an int", "None"):
        synk.ops.shard(v, axis=None)
    with refuses(ValueError, "axis", "any length", "broadcastable"):
        synk.ops.shard(row)
    with refuses(TypeError, "output", None, "already divided"):
        synk.function([x], synk.ops.shard(x) * 2, exact=True)
    f = synk.function([], [synk.ops.shard(v).sum(), synk.ops.shard(v[:5]).sum()])
    with refuses(ValueError, "synkhronos.ops.shard", "length", "length"):
        f()
    assert capfd.readouterr() == ("", "")  # Theano prints nothing about the exception either


def test_a_function_that_divides_nothing_is_told(threads, caplog):
    index, data = T.lscalar("index"), L.shared(DATA, "data")
    with caplog.at_level(logging.WARNING, "synkhronos"):
        f = synk.function([index], data[index].sum(), name="whole")
        f(1), f(2)
    (record,) = [each for each in caplog.records if "whole" in each.getMessage()]
    assert "synkhronos.ops.shard" in record.getMessage() and "every rank" in record.getMessage()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "synkhronos"):
        synk.function([], data.sum())()
        synk.function([], data[index].sum(), bcast_inputs=[index])(1)
        synk.function([index], synk.ops.shard(data[:index]).sum())(4)
        T_x = T.dvector("x")
        synk.function([index, T_x], T_x.sum() * index)(1, TARGETS)
    assert not caplog.records
