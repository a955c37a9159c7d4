"""Random graphs: the placements of all variables are correct.

Lengths are chosen to fit often by chance: 6 rows, and axes of 2, 3 and 6.
"""

import warnings

import numpy as np
import pytest
from library import L, T
from simulated import Program, _thunk, _value_of, check

from synkhronos.sharding import Shard

pytestmark = pytest.mark.thorough

N_ROWS = 6
SPLITS = ((2, 4), (1, 3, 2), (0, 6))
LENGTHS = (2, 3, 6)


class Growth:
    """A graph that grows by random valid operations."""

    def __init__(self, seed):
        self.rng, self.program = np.random.RandomState(seed), Program(seed)
        p = self.program
        for ndim in (1, 2, 3):
            shape = [self.length() for _ in range(ndim - 1)]
            p.rows(*shape, axis=self.rng.randint(ndim))
            p.all(*[self.length() for _ in range(ndim)])
        p.rows(dtype="int64", high=2)
        p.rows(2, axis=self.rng.randint(2), dtype="int64", high=2)
        p.all(3, dtype="int64", high=2)
        self.values = {one.variable: one.make(N_ROWS) for one in p.inputs}
        self.pool = [one.variable for one in p.inputs]

    def length(self):
        return int(self.rng.choice(LENGTHS))

    def one(self, ndim=None, dtype=None, newest=0.5):
        """Return a variable of the pool; ``newest`` is the probability of one of the last."""
        fits = [v for v in self.pool if ndim in (None, v.ndim) and (dtype is None or v.dtype.startswith(dtype))]
        if not fits:
            return self.pool[0]
        return fits[-1 - int(self.rng.randint(min(4, len(fits))))] if self.rng.rand() < newest else self.choice(fits)

    def choice(self, options):
        return options[self.rng.randint(len(options))]

    def axis(self, x):
        return int(self.rng.randint(x.ndim)) if x.ndim else None

    def grow(self):
        """Add an operation, if it can be computed for all rows."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                new = self.choice(OPERATIONS)(self)
                values = dict(self.values)
                for node in L.io_toposort(list(values), [new]):
                    values.update(zip(node.outputs, _thunk(node)([_value_of(one, values) for one in node.inputs])))
        except Exception:  # an invalid expression, which is not the subject of the test
            return
        value = values[new]
        if 0 < np.size(value) <= 400 and new.ndim <= 4:
            self.values.update(values)
            self.pool.append(new)


def _axes_mixed(g):
    x = g.one()
    return x.dimshuffle([int(axis) for axis in g.rng.permutation(x.ndim)])


def _new_axis(g):
    x = g.one()
    order = list(range(x.ndim))
    order.insert(g.rng.randint(x.ndim + 1), "x")
    return x.dimshuffle(order)


def _length_of(g, x, axis):
    return g.choice([x.shape[axis], g.values[x].shape[axis]])


def _reshaped(g):
    """Merge or split axes, exchange lengths, or use another shape."""
    x = g.one()
    shape = list(np.shape(g.values[x]))
    lengths = [_length_of(g, x, axis) for axis in range(x.ndim)]
    kind = g.rng.randint(5)
    axis = g.rng.randint(max(x.ndim - 1, 1))
    if kind == 0 and x.ndim > 1:
        lengths[axis : axis + 2] = [lengths[axis] * lengths[axis + 1]]
    elif kind == 1:
        lengths[axis : axis + 1] = g.choice([[2, shape[axis] // 2], [g.one(1).shape[0], -1], [-1, 3], [3, -1]])
    elif kind == 2 and x.ndim > 1:
        lengths[axis], lengths[axis + 1] = lengths[axis + 1], lengths[axis]
    elif kind == 3:
        other = g.one()
        lengths = [_length_of(g, other, axis) for axis in range(other.ndim)]
    else:
        lengths[axis] = -1
    return x.reshape([T.as_tensor_variable(one) for one in lengths], ndim=len(lengths))


def _reduced(g):
    x = g.one()
    op = g.choice([T.sum, T.sum, T.mean, T.max, T.min, T.prod])
    return op(x, axis=g.choice([None, g.axis(x), g.axis(x)]), keepdims=bool(g.rng.randint(2)))


def _counted(g):
    """Return a computed number of rows, or another length."""
    x = g.one()
    n, lengths = x.shape[g.axis(x)], x.shape
    return g.choice(
        [T.prod(lengths) // g.choice([x.shape[g.axis(x)], 2, 3]), n * x.shape[0] // n, 2 * n // 2, n + n, n // 2]
    )


def _of_vector(g):
    """Return an array whose shape is a computed vector."""
    x = g.one(2)
    shape = g.choice(
        [
            T.concatenate([x.shape[:1], [g.length()]]),
            T.set_subtensor(x.shape[g.rng.randint(2)], g.length()),
            T.switch(T.eq(T.arange(2), g.rng.randint(2)), x.shape, g.length()),
            x.shape[::-1],
            T.stack([_counted(g), g.length()]),
            T.stack([x.shape[1], _counted(g)]),
        ]
    )
    kind = g.rng.randint(3)
    if kind == 0:
        return T.alloc(g.choice([g.one(1), T.constant(1.0)]), shape[0], shape[1])
    return g.one().reshape(shape, ndim=2) if kind == 1 else T.tile(x, shape, ndim=2)


def _merged(g):
    """Return elements at computed positions along merged axes."""
    x = g.one(3)
    merged = x.reshape((x.shape[0] * x.shape[1], x.shape[2]))
    y = g.one(2)
    n = g.choice([merged.shape[0], x.shape[0] * x.shape[1], y.size, T.prod(y.shape)])
    labels = abs(T.cast(y.flatten(), "int64")) % x.shape[2]
    if g.rng.randint(2):
        return merged[T.arange(n), g.choice([labels, 0])]
    return merged.flatten()[T.arange(n) * g.choice([x.shape[2], g.values[x].shape[2]]) + g.choice([labels, 0])]


def _positions(g):
    x = g.one()
    n = x.shape[g.axis(x)]
    return g.choice(
        [T.arange(n), T.arange(n) * g.choice([2, 3, x.shape[0]]), T.arange(2 * n), T.arange(n) + g.one(1, "int")]
    )


def _taken(g):
    x = g.one()
    index = [slice(None)] * x.ndim
    axis = g.axis(x)
    index[axis] = g.choice(
        [0, -1, slice(1, None), slice(None, None, -1), slice(None, -1), g.one(1, "int"), g.one(1, "int")]
    )
    return x[tuple(index)]


def _set(g):
    x, axis = g.one(), 0
    axis = g.axis(x)
    index = [slice(None)] * x.ndim
    index[axis] = g.choice([0, slice(1, None), g.one(1, "int")])
    part = x[tuple(index)]
    return g.choice([T.set_subtensor, T.inc_subtensor])(part, g.choice([g.one(part.ndim), 0.0, 1.0]))


def _filled(g):
    x, value = g.one(), g.choice([g.one(0), g.one(1), T.constant(0.0), T.constant(1.0)])
    return T.alloc(
        value,
        *[g.choice([g.length(), x.shape[g.axis(x)], 2 * x.shape[g.axis(x)]]) for _ in range(1 + g.rng.randint(2))],
    )


def _scanned(g):
    x = g.one(newest=0.8)
    kind = g.rng.randint(3)
    with L.compiled_quickly():
        if kind == 0:
            return L.scan(lambda x_t: T.tanh(x_t) * 2, [x])[0]
        if kind == 1:
            return L.scan(lambda x_t, h: h + x_t, [x], [T.zeros_like(x[0])])[0]
        return L.scan(lambda x_t, h: h + x_t.sum(0), [x], [T.zeros_like(x[0].sum(0))])[0][-1]


def _gradient(g):
    y, x = g.one(newest=0.9), g.one(newest=0.1)
    return T.grad(g.choice([T.sum, T.mean])(g.choice([T.tanh, T.sqr])(y)), x)


OPERATIONS = [
    lambda g: g.choice([T.exp, T.sqr, T.neg, abs, T.tanh, T.sgn])(T.clip(g.one(), -9, 9)),
    lambda g: g.choice([T.add, T.sub, T.mul, T.maximum, T.gt, T.second])(g.one(), g.one()),
    lambda g: g.choice([T.add, T.sub, T.mul])(*[g.one(2) for _ in range(2)]),
    lambda g: g.choice([T.add, T.sub, T.mul])(*[g.one(1) for _ in range(2)]),
    lambda g: g.one() / (abs(g.one()) + 1),
    lambda g: g.one() * g.choice([2.0, 0.0, -1.0]),
    lambda g: T.switch(g.one() > 0, g.one(), g.choice([g.one(), 0.0])),
    lambda g: [x / x.shape[g.axis(x)] for x in [g.one()]][0],
    lambda g: T.dot(g.one(2), g.one(g.choice([1, 2]))),
    lambda g: T.dot(g.one(), g.one()),
    lambda g: T.tensordot(g.one(), g.one(), axes=1),
    lambda g: T.batched_dot(g.one(3), g.one(3)),
    lambda g: T.concatenate([x for x in [g.one()] for _ in range(2)], axis=g.rng.randint(2)),
    lambda g: T.concatenate([g.one(2), g.one(2)], axis=g.rng.randint(2)),
    lambda g: T.stack([g.one(1), g.one(1)], axis=g.rng.randint(2)),
    lambda g: T.repeat(g.one(2), 2, axis=g.rng.randint(2)),
    lambda g: T.nnet.softmax(g.one(2)),
    lambda g: T.cumsum(g.one(2), axis=g.rng.randint(2)),
    lambda g: T.sort(g.one(2), axis=g.rng.randint(2)),
    lambda g: T.argmax(g.one(2), axis=g.rng.randint(2)),
    lambda g: T.cast(g.one(), g.choice(["int64", "float64"])) % 2,
    lambda g: g.one().flatten(),
    lambda g: g.one(2)[T.arange(g.one(2).shape[0]), g.one(1, "int")],
    lambda g: g.one()[g.one(1, "int")],
    _axes_mixed,
    _axes_mixed,
    _new_axis,
    *[_reshaped] * 4,
    *[_reduced] * 3,
    _positions,
    *[_of_vector] * 2,
    *[_merged] * 2,
    lambda g: T.zeros((_counted(g),)) + g.choice([g.one(1), 0.0]),
    lambda g: g.one()[T.arange(_counted(g))],
    *[_taken] * 2,
    _set,
    *[_filled] * 2,
    _scanned,
    *[_gradient] * 2,
]  # fmt: skip


@pytest.mark.parametrize("exact", [False, True], ids=["plain", "exact"])
@pytest.mark.parametrize("seed", range(15))
def test_what_is_said_of_a_graph_is_true(seed, exact):
    verify(seed, exact)


def verify(seed, exact, n_operations=25):
    with L.compiled_quickly():
        growth = Growth(seed)
        for _ in range(n_operations):
            growth.grow()
        data = dict(growth.values)
        for k, one in enumerate(growth.program.inputs):  # the rows with which the graph was grown
            growth.program.inputs[k] = one._replace(make=lambda n_rows, value=data[one.variable]: value)
        return check(growth.program, growth.pool, exact, SPLITS, may_fail=True)


def test_much_of_what_grows_is_known():
    found = [one for seed in range(4) for one in verify(seed, True)]
    assert sum(isinstance(one, Shard) for one in found) > 0.2 * len(found)
