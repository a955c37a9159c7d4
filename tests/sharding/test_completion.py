"""Variables that exact functions need only for their shapes, which depend on values or on the number of rows."""

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T

import synkhronos as synk

pytestmark = getattr(pytest.mark, NAME)

FULL = L.Mode(linker="py" if IS_THEANO else L.full.linker, optimizer="fast_run").excluding("fusion", "inplace")
MODES = {"fast_run": FULL, "fast_compile": L.quick, "None": L.slow}

ROWS = np.array([[1.0, 2], [3, 5], [2, 2], [7, 1], [4, 4]])
COLUMN = np.array([0.0, 1, 10, 11, 12])


def ones(variable):
    return T.ones_like(variable).sum()


def unique(variable):
    return T.extra_ops.Unique()(variable) if IS_THEANO else T.unique(variable)


def losses_above(v):
    """Return the losses that are above their mean: hard-example mining."""
    losses = T.sqr(v - 1)
    return losses[(losses > losses.mean()).nonzero()]


def with_mask(v):
    losses = T.sqr(v - 1)
    return losses[losses > losses.mean()]


def chained(v):
    """Return a value with a mask that depends on masked losses on all ranks."""
    return (T.sqr(v) * (v > losses_above(v).mean())).sum() + losses_above(v).mean()


#: Outputs computed from a vector of rows.
OF_VECTORS = {
    "a mask": lambda v: ones(v[(v > v.mean()).nonzero()]),
    "a boolean mask": lambda v: ones(v[v > v.mean()]),
    "a mask of zeros": lambda v: T.zeros_like(v[(v > v.mean()).nonzero()]).sum() + 1 + v.sum(),
    "positions": lambda v: ones((v > v.mean()).nonzero()[0]),
    "values of a mask": lambda v: T.fill(v[(v > v.mean()).nonzero()], 3.0).sum(),
    "losses above": lambda v: losses_above(v).mean(),
    "gradient of losses above": lambda v: T.grad(losses_above(v).mean(), v),
    "gradient of a sum of losses above": lambda v: T.grad(losses_above(v).sum(), v),
    "gradient of losses by a mask": lambda v: T.grad(with_mask(v).mean(), v),
    "chained": chained,
    "gradient of chained": lambda v: T.grad(chained(v), v),
    "unique": lambda v: ones(unique(T.stack([v.sum(), 2 * v.sum(), v.sum()]))),
    "lengths from values": lambda v: ones(T.alloc(v.mean(), T.cast(v.max(), "int64"))),
    "a range of values": lambda v: ones(T.arange(T.cast(v.max(), "int64"))),
    "repeated by values": lambda v: ones(T.repeat(T.as_tensor_variable(np.ones(2)), T.cast(v.max(), "int64"))),
    "a slice up to a value": lambda v: ones(T.as_tensor_variable(np.arange(50.0))[: T.cast(v.max(), "int64")] * v.sum()),
    "a reshape by values": lambda v: ones((T.as_tensor_variable(np.ones(36)) * v.sum()).reshape((T.cast(v.max(), "int64"), -1))[0]),
}  # fmt: skip

#: Outputs computed from a matrix of rows, with centered rows.
OF_MATRICES = {
    "eye": lambda x, late: ones(T.eye(late.shape[0])),
    "eye of two lengths": lambda x, late: ones(T.eye(late.shape[0], 2)),
    "eye, and its row": lambda x, late: ones(T.eye(late.shape[0])[0]) + ones(T.eye(late.shape[0]) * late.mean()),
    "arange": lambda x, late: ones(T.arange(late.shape[0])),
    "rows of ones": lambda x, late: T.ones_like(T.arange(late.shape[0])),
    "ones of ones": lambda x, late: ones(T.ones((late.shape[0], 3)) + T.zeros_like(late).sum()),
    "equal by coincidence": lambda x, late: ones(T.dot(np.ones((5, 5)), T.eye(5) * late.mean())),
    "as long as all rows": lambda x, late: ones(T.alloc(late.mean(), 5, 5)) + late.shape[0],
    "squares": lambda x, late: ones(T.alloc(late.mean(), late.shape[0] * 1, 2)),
    "centred": lambda x, late: T.grad((T.sqr(late) + abs(late.sum())).mean(), x),
}
if IS_THEANO:
    OF_MATRICES["identity"] = lambda x, late: ones(T.identity_like(T.alloc(0.0, late.shape[1], 2)))
    OF_MATRICES["tri"] = lambda x, late: ones(T.tri(late.shape[0]))
    OF_MATRICES["tri of two lengths"] = lambda x, late: ones(T.tri(late.shape[0], late.shape[1]))


def compare(inputs, output, values, mode):
    """Compare an exact function with the serial one of the same mode, as an output and as an update."""
    target = L.shared(0.0, "target")
    new = T.cast(T.sqr(output).sum(), "float64")
    f = synk.function(inputs, output, updates=[(target, new)], exact=True, mode=mode)
    want, updated = L.function(inputs, [output, new], mode=mode)(values)
    np.testing.assert_allclose(f(values), want, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(synk.gather(target, nd_up=1), [updated] * 3, rtol=1e-10)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OF_VECTORS)
def test_of_vectors(threads, name, mode):
    v = T.dvector("v")
    for values in (COLUMN, COLUMN[::-1]):
        compare([v], OF_VECTORS[name](v), values, MODES[mode])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OF_MATRICES)
def test_of_matrices(threads, name, mode):
    x = T.dmatrix("x")
    compare([x], OF_MATRICES[name](x, x - x.mean(axis=0)), ROWS, MODES[mode])


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_is_filled_before_it_is_known(threads, mode):
    """A loss's gradient starts with ones in the loss's shape, and needs no additional collective."""
    x, w = T.dmatrix("x"), L.shared(np.ones(2), "w")
    error = T.dot(x, w) - 1
    loss = (T.sqr(error) + abs(x.mean())).sum()
    f = synk.function([x], loss, updates=[(w, w - 0.1 * T.grad(loss, w))], exact=True, mode=MODES[mode])
    assert len(f._variants.collectives.ops) == 1
    want = L.function([x], [loss, w - 0.1 * T.grad(loss, w)], mode=MODES[mode])(ROWS)
    np.testing.assert_allclose(f(ROWS), want[0])
    np.testing.assert_allclose(w.get_value(), want[1])


def test_multiples_of_a_partial_array(threads):
    """Arrays that are multiplied by numbers are reduced before the multiplication, once for several multiples."""
    x, (w, v, u) = T.dmatrix("x"), [L.shared(np.full(2, i + 1.0), name) for i, name in enumerate("wvu")]
    rate, scales = L.shared(0.1, "rate"), T.as_tensor_variable(np.array([1.0, 2.0]))

    def updates():
        g = T.grad(T.sqr(T.dot(x, w)).sum(), w)
        g.name = "g"
        return [(w, w - rate * (0.5 * g)), (v, 0.9 * v - g / 4), (u, u + rate * (T.sqr(x).sum(0) * scales))]

    expected = L.function([x], [new for _, new in updates()], mode=L.quick)(ROWS)
    f = synk.function([x], updates=updates(), exact=True, mode=L.quick)
    f(ROWS)
    (collective,) = f.sharding().collectives
    assert str(collective.variables[0]).startswith("g ") and len(collective.variables) == 2
    for variable, wanted in zip((w, v, u), expected):
        np.testing.assert_allclose(synk.gather(variable, nd_up=1), [wanted] * 3)


def test_in_steps_and_when_compared(threads):
    v, w = T.dvector("v"), L.shared(1.0, "w")
    loss = losses_above(v * w).mean()
    f = synk.function([v], loss, updates=[(w, w - 0.01 * T.grad(loss, w))], exact=True, mode=L.quick)
    other = L.shared(1.0)
    again = losses_above(v * other).mean()
    g = L.function([v], again, updates=[(other, other - 0.01 * T.grad(again, other))], mode=L.quick)
    batches = [np.arange(5), np.array([0, 2, 4]), np.array([1, 3, 4, 2])]
    assert f.compare(COLUMN)
    g(COLUMN)
    np.testing.assert_allclose(f.steps(COLUMN, batches=batches), [g(COLUMN[batch]) for batch in batches])
    np.testing.assert_allclose(synk.gather(w, nd_up=1), [other.get_value()] * 3)
