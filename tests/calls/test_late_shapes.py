"""In exact functions, shapes that depend on common values or on the number of rows are the serial function's.

A value needed only for its shape may come from the graph without collectives only if it has the same shape there.
"""

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T

import synkhronos as synk

pytestmark = getattr(pytest.mark, NAME)

X = np.arange(15.0).reshape(5, 3) ** 1.3


def eye(x, w):
    return T.ones_like(T.eye((x - x.mean(axis=0)).shape[0])).sum()


def above_the_mean(x, w):
    v = T.dot(x, w)
    return T.ones_like(v[(v > v.mean()).nonzero()]).sum()


def losses_above_the_mean(x, w):
    losses = T.dot(x, w) ** 2
    return losses[(losses > losses.mean()).nonzero()].mean()


def gradient_of_losses_above_the_mean(x, w):
    return T.grad(losses_above_the_mean(x, w), w).sum()


def ones_like_a_gradient(x, w):
    return T.ones_like(T.grad(T.sqr(T.dot(x, w)).mean(), w)).sum()


FORMS = [
    eye,
    above_the_mean,
    losses_above_the_mean,
    gradient_of_losses_above_the_mean,
    ones_like_a_gradient,
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_late_shapes(make_world, n_ranks, form):
    make_world("threads", n_ranks)

    def built(function, **kwargs):
        x, w, p = T.dmatrix("x"), L.shared(np.array([1.0, 2.0, 3.0]), "w"), L.shared(np.zeros(()), "p")
        value = T.cast(form(x, w), "float64")
        return function([x], value, updates=[(p, p + value)], mode="FAST_COMPILE", **kwargs), p

    (f, p), (serial, q) = built(synk.function, exact=True), built(L.function)
    for rows in (5, 3, 4):
        np.testing.assert_allclose(f(X[:rows]), serial(X[:rows]), rtol=1e-12)
    np.testing.assert_allclose(p.get_value(), q.get_value(), rtol=1e-12)
    assert synk.in_sync([p])


@pytest.mark.theano
@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_an_axis_that_is_said_to_be_of_length_1(make_world, n_ranks):
    """Several rows are refused even if each rank has one, because the serial function gets all of them."""
    make_world("threads", n_ranks)
    x = T.dmatrix("x")
    e = T.addbroadcast(x, 0).sum()
    with pytest.raises(ValueError):
        L.function([x], e, mode="FAST_COMPILE")(X[:3])
    f = synk.function([x], e, exact=True, mode="FAST_COMPILE")
    with pytest.raises((AssertionError, synk.WorkerError)):
        f(X[:3])
    np.testing.assert_allclose(f(X[:1]), X[:1].sum())


def test_lengths_of_several_rows_together(make_world):
    """The length of an array that is reshaped into groups of several rows is that of all ranks together."""
    make_world("threads", 3)
    x = T.dmatrix("x")
    v = x.reshape((-1, 2, 3))
    outputs = [v.sum() / T.prod(v.shape), v.sum() / v.shape[0], T.ones_like(v.sum(axis=(1, 2))).sum()]
    f = synk.function([x], outputs, exact=True, mode="FAST_COMPILE")
    serial = L.function([x], outputs, mode="FAST_COMPILE")
    for value in (np.arange(36.0).reshape(12, 3), np.arange(18.0).reshape(6, 3)):
        np.testing.assert_allclose(f(value), serial(value), rtol=1e-12)


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "FAST_RUN"])
@pytest.mark.parametrize("form", [lambda v: v.shape[0], lambda v: T.eye(v.shape[0]), lambda v: T.ones_like(v).sum()])
def test_rows_that_leave_elements_over_in_a_reshape(make_world, form, mode):
    """Leftover elements are an error, even if only the shape of the reshaped array is needed."""
    make_world("threads", 2)
    x = T.dvector("x")
    e = form(T.tanh(x.reshape((-1, 3))))
    mode = L.quick if mode == "FAST_COMPILE" else L.Mode("py" if IS_THEANO else L.full.linker, "fast_run")
    f, serial = synk.function([x], e, exact=True, mode=mode), L.function([x], e, mode=mode)
    np.testing.assert_array_equal(f(np.ones(12)), serial(np.ones(12)))
    for given in (f, lambda value: f(value, num_slices=3)):
        with pytest.raises((AssertionError, ValueError, synk.WorkerError)):
            given(np.ones(3))
    np.testing.assert_array_equal(f(np.ones(6)), serial(np.ones(6)))


def test_sums_of_ranks_that_leave_elements_over_in_a_reshape(make_world):
    make_world("threads", 2)
    x = T.dvector("x")
    f = synk.function([x], (T.ones_like(x.reshape((-1, 3))).sum(), "sum"), mode=L.quick)
    assert f(np.ones(12)) == 12
    with pytest.raises((AssertionError, ValueError, synk.WorkerError)):
        f(np.ones(3))
