"""Exact functions of ops that only PyTensor has: batched ops, random variables, softmax over all axes, convolutions.

Expected values come from the same function, built by PyTensor alone and called with all rows, or from NumPy.
"""

import re
import shutil

import numpy as np
import pytest
from refusals import refuses
from worlds import LINKER

import synkhronos as synk

pytestmark = [
    pytest.mark.pytensor,
    pytest.mark.filterwarnings("ignore:Numba will use object mode to run Convolve2d"),
]
pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")

from pytensor.tensor.signal import convolve1d, convolve2d  # noqa: E402

MODE = pytensor.compile.mode.Mode(LINKER, "fast_compile")
ROWS = [6, 7, 2, 5]


@pytest.fixture(params=[("threads", 3, 1), ("fork", 2, 0)], ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param, engine="pytensor")


@pytest.fixture
def threads(make_world):
    return make_world("threads", 3, 1, engine="pytensor")


def trained(loss_of, value):
    """Return a builder of a function that takes gradient steps on rows of shape (4, 3), and of its parameter."""

    def build(make, **options):
        x, w = pt.tensor3("x"), pytensor.shared(np.array(value), "w")
        loss, rows = loss_of(x, w)
        gradient = pt.grad(loss, w)
        update = w - 0.1 * gradient / (pt.sqrt(pt.sqr(gradient).sum()) + 0.1)
        return make([x], [loss, rows], updates=[(w, update)], mode=MODE, **options), w

    return build


def products(x, w):
    return pt.tanh(x @ w).mean(), x @ w


def solutions(x, w):
    """Return a loss and its outputs: the solution of a linear system for each row."""
    normal = x.transpose((0, 2, 1)) @ x + pt.eye(3)
    solved = pt.linalg.solve(normal, (x @ w).sum(axis=1)[:, :, None])
    return pt.sqr(solved).mean(), solved


def attention(x, w):
    weights = pt.special.softmax(x @ w @ x.transpose((0, 2, 1)), axis=-1)
    return pt.log(1 + pt.sqr(weights @ x).sum()), weights @ x


def over_all(x, w):
    """Return a loss and its outputs: a softmax without an axis, which normalizes over all elements of all rows."""
    shares = pt.special.softmax(pt.join_dims(x @ w, 1))
    return -(shares * pt.log(shares)).sum(), shares


def regrouped(x, w):
    flat = pt.join_dims(x, 0, 2) @ w
    return pt.log(pt.sqr(flat).sum() + 1), pt.split_dims(flat, (x.shape[0], x.shape[1]), axis=0)


def packed(x, w):
    together, shapes = pt.pack(x, (x @ w).sum(axis=2), keep_axes=0)
    first, second = pt.unpack(pt.tanh(together), packed_shapes=shapes, keep_axes=0)
    return first.mean() * second.sum(), together


def filtered(x, w):
    """Return a loss of two convolutions, along the middle axis and over images, and the images."""
    moved = convolve1d(x.transpose((0, 2, 1)), w.mean(axis=0), mode="valid")
    images = convolve2d(x, w[None, :2], mode="full")
    return pt.sqrt(pt.sqr(moved).mean()) + pt.sqr(images).mean(), images


def summed(x, w):
    """Return a log-sum-exp over rows, and the scores in it, an einsum."""
    scores = pt.einsum("nij,jk->nik", x, w)
    return pt.logsumexp(scores.sum(axis=(1, 2)), axis=0), scores


KERNEL = np.random.RandomState(2).randn(3, 3)


@pytest.mark.parametrize(
    "loss_of",
    [products, solutions, attention, over_all, regrouped, packed, filtered, summed],
    ids=lambda one: one.__name__,
)
def test_programs(world, loss_of):
    build = trained(loss_of, KERNEL)
    (f, w), (g, other) = build(synk.function, exact=True), build(pytensor.function)
    for i, n in enumerate(ROWS):
        x = np.random.RandomState(i).randn(n, 4, 3)
        for found, expected in zip(f(x), g(x)):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        for of_rank in synk.gather(w, nd_up=1):
            np.testing.assert_allclose(of_rank, other.get_value(), rtol=1e-9)


@pytest.mark.parametrize("loss_of", [products, attention, filtered], ids=lambda one: one.__name__)
def test_a_plain_mean_of_updates_is_another_program(threads, loss_of):
    build = trained(loss_of, KERNEL)
    (f, w), (g, other) = build(synk.function), build(pytensor.function)
    x = np.random.RandomState(0).randn(7, 4, 3)
    f(x), g(x)
    assert np.abs(synk.gather(w, nd_up=1)[0] - other.get_value()).max() > 1e-4


def test_steps_with_noise_for_each_row(world):
    """Each rank draws random variables for its own rows only; the program updates the random state."""
    x, w = pt.matrix("x"), pytensor.shared(np.ones(3), "w")
    state = pytensor.shared(np.random.default_rng(5), "state")
    after, noise = pt.random.normal(x, 1.0, rng=state, return_next_rng=True)
    loss = pt.log(1 + pt.sqr((x + noise) @ w).sum())
    updates = [(w, w - 0.1 * pt.grad(loss, w)), (state, after)]
    f = synk.function([x], [loss, noise], updates=updates, exact=True, mode=MODE)
    value, expected = np.random.RandomState(0).randn(7, 3), np.ones(3)
    drawn = []
    for _ in range(3):
        found, of_rows = f(value)
        moved = value + of_rows
        error = moved @ expected
        np.testing.assert_allclose(found, np.log(1 + error @ error), rtol=1e-12)
        expected = expected - 0.1 * 2 * error @ moved / (1 + error @ error)
        np.testing.assert_allclose(synk.gather(w, nd_up=1), [expected] * world.n, rtol=1e-10)
        drawn.append(of_rows)
    assert len(np.unique(drawn)) == 3 * value.size


def test_draws_that_rows_have_in_common_are_the_serial_program_s(world):
    def build(make, **options):
        x, w = pt.matrix("x"), pytensor.shared(np.ones(3), "w")
        state = pytensor.shared(np.random.default_rng(5), "state")
        after, mask = pt.random.bernoulli(0.7, size=(3,), rng=state, return_next_rng=True)
        loss = pt.sqr(x @ (w * mask) - 1).mean()
        updates = [(w, w - 0.1 * pt.grad(loss, w)), (state, after)]
        return make([x], [loss, mask], updates=updates, mode=MODE, **options), w

    (f, w), (g, other) = build(synk.function, exact=True), build(pytensor.function)
    for n in ROWS:
        value = np.random.RandomState(n).randn(n, 3)
        for found, expected in zip(f(value), g(value)):
            np.testing.assert_allclose(found, expected, rtol=1e-12)
        np.testing.assert_allclose(synk.gather(w, nd_up=1), [other.get_value()] * world.n, rtol=1e-12)


def test_a_column_that_does_not_broadcast_says_so_as_pytensor_does(threads):
    """A shared value of shape (3, 1) leaves the length of the second axis unknown, unless the program declares it."""
    x, column = pt.matrix("x"), pytensor.shared(np.ones((3, 1)), "column")
    f = synk.function([x], x @ (column * pt.ones((3, 4))), mode=MODE, exact=True)
    with pytest.raises((ValueError, synk.WorkerError)) as caught:
        f(np.ones((6, 3)))
    assert re.search("broadcast|[Ii]ncompatible", str(caught.value))  # PyTensor's own message
    known = pytensor.shared(np.ones((3, 1)), "column", shape=(None, 1))
    f = synk.function([x], x @ (known * pt.ones((3, 4))), mode=MODE, exact=True)
    np.testing.assert_array_equal(f(np.ones((6, 3))), np.full((6, 4), 3))


def test_a_convolution_along_the_rows_is_refused(threads):
    x, kernel = pt.vector("x"), pytensor.shared(np.ones(3), "kernel")
    with refuses(TypeError, "output", got="axis"):
        synk.function([x], convolve1d(x, kernel, mode="valid"), exact=True, mode=MODE)
    with refuses(ValueError, "the update of kernel", got="axis"):
        synk.function([x], updates=[(kernel, convolve1d(kernel, x[:3]))], exact=True, mode=MODE)


@pytest.mark.thorough
@pytest.mark.parametrize("linker", ["numba", "cvm"])
def test_linkers(make_world, linker):
    """Exact steps, also in slices, equal NumPy's with each linker."""
    make_world("fork", 2, 0, engine="pytensor")
    if linker == "cvm" and not shutil.which("g++"):
        pytest.skip("needs a C++ compiler")
    x, y, w = pt.matrix("x"), pt.vector("y"), pytensor.shared(np.ones(3), "w")
    loss = pt.sqr(x @ w - y).mean()
    gradient = pt.grad(loss, w)
    updates = [(w, w - 0.1 * gradient / pt.sqrt(pt.sqr(gradient).sum()))]
    with pytensor.config.change_flags(cxx=shutil.which("g++") or ""):
        mode = pytensor.compile.mode.Mode(linker, "fast_run")
        f = synk.function([x, y], loss, updates=updates, exact=True, mode=mode)
        X, Y, expected = np.random.RandomState(0).randn(7, 3), np.arange(7.0), np.ones(3)
        for k in (1, 2, 1):
            error = X @ expected - Y
            np.testing.assert_allclose(f(X, Y, num_slices=k), np.mean(error**2), rtol=1e-10)
            expected = expected - 0.1 * error @ X / np.linalg.norm(error @ X)
            np.testing.assert_allclose(synk.gather(w, nd_up=1), [expected] * 2, rtol=1e-10)
