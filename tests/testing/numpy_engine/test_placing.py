"""Placements and exact functions of the NumPy engine, in cases that random programs do not contain.

Modules: `collectives`, `operations`, `synkhronos.engines.exact`.
"""

import operator

import numpy as np
import pytest
from refusals import refuses

import synkhronos as synk
from synkhronos.sharding import Shard
from synkhronos.testing import numpy_engine as engine
from synkhronos.testing.numpy_engine import ENGINE, apply, operations

X = engine.variable("x", "float64", 2)
Y = engine.variable("y", "float64", 1)
B = engine.variable("b", "bool", 1)
W = engine.shared(np.ones(3), "w")
ROW = engine.variable("row", "float64", 2, (True, False))


def one_of_two(x):
    """Return x; the engine has no rule for this function."""
    return x


@pytest.mark.parametrize(
    "expression, placement",
    [
        (W * 2, "Replicate"),
        (X * W + 1, "Shard(0)"),
        (X + ROW, "Shard(0)"),
        (X[:, 0], "Shard(0)"),
        (X[:, 1:], "Shard(0)"),
        (apply(np.transpose, X), "Shard(1)"),
        (engine.dot(X, W), "Shard(0)"),
        (apply(np.exp, X), "Shard(0)"),
        (apply(np.greater, Y, 0), "Shard(0)"),
        (engine.mean(X, 1), "Shard(0)"),
        (engine.mean(X), "Partial(avg)"),
        (engine.mean(X, 0) * W * 2, "Partial(avg)"),
        (engine.mean(X, 0) + W, "Partial(avg)"),
        (engine.sum(X, -2), "Partial(sum)"),
        (engine.dot(Y, X), "Partial(sum)"),
        (apply(np.true_divide, engine.sum(Y), apply(operations.length, Y)), "Partial(avg)"),
        (apply(np.prod, Y), "Partial(prod)"),
        (apply(np.min, X, 0), "Partial(min)"),
        (apply(np.negative, engine.max(X)), "Partial(min)"),
        (apply(np.any, B), "Partial(max)"),
        (engine.dot(B, B), "Partial(max)"),
        (apply(operations.cast, engine.sum(Y), "float32"), "Partial(sum)"),
        (apply(operations.cast, engine.sum(Y), "int64"), "Unknown"),
        (apply(operations.cast, apply(operations.cast, engine.sum(B), "int8"), "float64"), "Unknown"),
        (apply(operations.length, X), "Size"),
        (apply(np.shape, X), "Size"),
        (X[0], "Unknown"),
        (apply(np.any, Y), "Unknown"),
        (apply(np.argmax, Y), "Unknown"),
        (engine.dot(X, apply(np.transpose, X)), "Unknown"),
        (apply(one_of_two, X), "Unknown"),
        (apply(one_of_two, W), "Replicate"),
        (engine.sum(X, 0) + W, "Unknown"),
        (engine.uniform(engine.random_stream(1), (3,)), "Unknown"),
        (engine.uniform(engine.random_stream(1), apply(np.shape, X), ndim=2), "Shard(0)"),
        (apply(one_of_two, engine.random_stream(1), dtype="float64", ndim=1), "Unknown"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_placement(expression, placement):
    snapshot = ENGINE.snapshot([X, Y, B, ROW], expression, [], None)
    found, *_ = ENGINE.placed(snapshot, dict.fromkeys([X, Y, B], Shard(0)))
    assert str(found) == placement


def test_refused_update(make_world):
    make_world("threads", 2)
    first = apply(operator.getitem, X, 0, name="first")
    with refuses(ValueError, "the update of w", "exactly", "getitem (first) works along the axis of the rows"):
        synk.function([X], updates=[(W, first)], exact=True)


def test_dropout_is_drawn_for_the_ranks_own_rows(make_world):
    """Ranks draw random numbers for their own rows, and an update that uses them is equal on all ranks."""
    make_world("threads", 2)
    stream, total = engine.random_stream(3, "stream"), engine.shared(0.0, "total")
    drawn = engine.uniform(stream, apply(np.shape, X), ndim=2)
    f = synk.function([X], drawn, updates=[(total, apply(np.sqrt, engine.sum(drawn * drawn)))], exact=True)
    for num_slices in (1, 2):
        numbers = f(np.zeros((5, 3)), num_slices=num_slices)
        assert len(np.unique(numbers)) == 15
        np.testing.assert_allclose(synk.gather(total), [np.linalg.norm(numbers)] * 2)


def test_placements_of_outputs_and_then_of_updates():
    snapshot = ENGINE.snapshot([X, ROW], [apply(np.sum, X)], [(W, W * 2)], None)
    assert [str(one) for one in ENGINE.placed(snapshot, {X: Shard(0)})] == ["Partial(sum)", "Replicate"]
