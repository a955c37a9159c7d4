"""Collectives inside functions, on every engine; NumPy computes expected values from the recorder's results."""

from __future__ import annotations

import numpy as np
import pytest
from calls import Unchanged, call_on_ranks, record
from refusals import refuses

from synkhronos.engines.base import CollectiveDependence
from synkhronos.errors import ArgumentTypeError
from synkhronos.reductions import ReduceOp

X = np.array([[1.0, 2.0], [3.0, 5.0], [-1.0, 0.5]])
AVG, SUM, MIN, MAX = map(ReduceOp, ("avg", "sum", "min", "max"))


def snapshot(language, inputs, outputs, updates=(), givens=None, **kwargs):
    return language.engine.snapshot(inputs, outputs, list(updates), givens, **language.kwargs, **kwargs)


def compile(language, inputs, outputs, updates=(), givens=None, **kwargs):
    return language.engine.compile(inputs, outputs, list(updates), givens, **language.kwargs, **kwargs)


def reduce(language, variable, op=AVG):
    (result,) = language.engine.all_reduce([variable], op)
    return result


def equal(results, truths):
    assert len(results) == len(truths)
    for result, truth in zip(results, truths):
        np.testing.assert_allclose(result, truth, 1e-14)


@pytest.mark.parametrize("op", [AVG, SUM, MIN, MAX, ReduceOp("avg", on_host=True)], ids=str)
def test_types_stay(language, op):
    variables = [
        language.variable("a", "float64", 2),
        language.variable("b", "float32", 0),
        language.variable("c", "float32", 2, (True, False)),
    ]
    for variable, result in zip(variables, language.engine.all_reduce(variables, op)):
        assert result.type == variable.type


def test_identity_outside_a_call(language):
    x, w = language.variable("x", "float64", 2), language.shared(np.ones(2), "w")
    y, z = language.engine.all_reduce([x * 2, w], SUM)
    f = compile(language, [x], [y, z, reduce(language, x, MAX)], [(w, w + z * 3)])
    equal(language.engine.call(f, [X]), [X * 2, [1, 1], X])
    np.testing.assert_array_equal(w.get_value(), [4, 4])


def test_order_is_that_of_outputs_and_then_updates(language):
    x, y = language.variable("x", "float64", 2), language.variable("y", "float64", 1)
    w, v = language.shared(np.ones(2), "w"), language.shared(np.ones(2), "v")
    first, second = reduce(language, x, SUM), language.engine.all_reduce([y, x], MAX)
    third = reduce(language, second[0] * 3)
    kept = snapshot(language, [x, y], [first, third + y], [(w, w + reduce(language, w, MIN)), (v, second[1][0])])
    rows = np.array([4.0, 5.0])
    for sliced in (False, True):
        f = language.engine.variant(kept, sliced, [])
        results, recorder = record(language.engine, f, X, rows)
        after = 2 * (2 * rows + 2) * 3 + 3
        equal(results, [2 * X + 1, after + rows, 1 + (2 + 4), 2 * X[0] + 2])
        assert recorder.seen == [
            (0, "sum", [(3, 2)]),
            (1, "max", [(2,), (3, 2)]),
            (2, "avg", [(2,)]),
            (3, "min", [(2,)]),
        ]
        equal([w.get_value(), v.get_value()], [[1, 1], [1, 1]])
    found = language.engine.collectives(kept, {x: 0, y: 0})
    assert found.ops == [SUM, MAX, AVG, MIN]


def test_equal_collectives_are_computed_each_by_its_number(language):
    x = language.variable("x", "float64", 2)
    y = reduce(language, x)
    f = language.engine.variant(snapshot(language, [x], [y + 0, reduce(language, x), y + y]), False, [])
    results, recorder = record(language.engine, f, X)
    equal(results, [2 * X + 1, 2 * X + 2, 4 * X + 2])
    assert recorder.numbers == [0, 1]


def test_a_subset_keeps_numbers_and_order(language):
    x = language.variable("x", "float64", 2)
    outputs = [reduce(language, x * i) for i in (1, 2, 3, 4)]
    f = language.engine.variant(snapshot(language, [x], outputs), False, [])
    results, recorder = record(language.engine, f, X, subset=[3, 1])
    equal(results, [2 * X * 4 + 4, 2 * X * 2 + 2])
    assert recorder.numbers == sorted(recorder.numbers) and {1, 3} <= set(recorder.numbers)


def test_random_states_are_returned_too(language):
    state, drawn = language.stream(3)
    w = language.shared(np.zeros(3), "w")
    kept = snapshot(language, [], drawn, [(w, reduce(language, drawn) + w)])
    assert language.engine.updated_in(kept) == [w, state]
    truth = language.engine.call(compile(language, [], [drawn]), [])[0]  # the call advances the stream
    state, drawn = language.stream(3)
    kept = snapshot(language, [], drawn, [(w, reduce(language, drawn) + w)])
    for sliced in (False, True):
        f = language.engine.variant(kept, sliced, [])
        for _ in range(2):  # nothing advances
            (draw, new, after), _ = record(language.engine, f)
            equal([draw, new], [truth, 2 * truth + 1])
    language.engine.put(state, after)
    other, same = language.stream(3)
    plain = compile(language, [], same)
    language.engine.call(plain, [])
    advanced = language.engine.call(compile(language, [], drawn), [])
    equal(advanced, language.engine.call(plain, []))


def test_givens_defaults_and_as_inputs(language):
    x, y = language.variable("x", "float64", 2), language.variable("y", "float64", 2)
    s, w = language.shared(X, "s"), language.shared(np.ones(2), "w")
    w.default_update = w + reduce(language, s[0])
    kept = snapshot(language, [y], [reduce(language, x) + w + y], givens={x: s * 3})
    f = language.engine.variant(kept, False, [s])
    rows = X + 100
    results, recorder = record(language.engine, f, X, rows)
    equal(results, [2 * rows * 3 + 1 + 1 + X, 1 + 2 * rows[0] + 2])
    assert recorder.numbers == [0, 1]


def test_results_are_nobody_elses(language):
    x = language.variable("x", "float64", 2)
    a = x * 2
    y, z = language.engine.all_reduce([a, x], SUM)
    kept = snapshot(language, [x], [y, z, y + 1, a - 1, y])
    f = language.engine.variant(kept, False, [])
    with Unchanged():
        results = language.engine.call(f, [X.copy()])
    equal(results, [2 * X, X, 2 * X + 1, 2 * X - 1, 2 * X])
    value = X.copy()
    with Unchanged():
        results = language.engine.call(f, [value])
    assert not any(np.shares_memory(value, result) for result in results)


def test_what_ranks_may_share_is_not_written_to(language):
    x = language.variable("x", "float64", 2)
    y = reduce(language, x)
    f = language.engine.variant(snapshot(language, [x], [(y + 1) * 2 - x, y * 3]), False, [])
    results, recorder = record(language.engine, f, X)
    equal(results, [(2 * X + 2) * 2 - X, (2 * X + 1) * 3])
    for array, copy in recorder.given:
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("rows", [(1, 3, 7), (2, 2), (5,)])
def test_ranks_reduce(language, rows):
    x, w = language.variable("x", "float64", 2), language.shared(np.ones(2), "w")
    mean = reduce(language, language.mean(x, 0))
    kept = snapshot(language, [x], [mean, reduce(language, x[0], MIN)], [(w, w + mean * 0.5)])
    data = np.random.RandomState(0).randn(sum(rows), 2)
    shards = np.split(data, np.cumsum(rows)[:-1])
    functions = [language.engine.variant(kept, False, []) for _ in rows]
    for results in call_on_ranks(language.engine, functions, [[shard] for shard in shards], rows):
        truth = data.mean(0)
        least = np.min([shard[0] for shard in shards], axis=0)
        for result, expected in zip(results, [truth, least, 1 + truth * 0.5]):
            np.testing.assert_allclose(result, expected, 1e-12)


def test_collectives_travel(language, master):
    x, w = language.variable("x", "float64", 2), language.shared(np.ones(2), "w")
    kept = snapshot(language, [x], [reduce(language, x) + w], [(w, w + reduce(language, x[0]))], name="step")
    f = master.send(language.engine.variant(kept, False, []))
    equal(master.peer.call(f, [X]), [X + 1, X[0] + 1])  # an identity here, because the peer is not in a call


# -- results of the analysis -----------------------------------------------------------------------------------------


def test_no_collectives(language):
    x, w = language.variable("x", "float64", 2), language.shared(np.ones(2), "w")
    assert language.engine.collectives(snapshot(language, [x], [x * 2], [(w, w + x[0])]), {x: 0}) is None


def updates_of_every_kind(language, x, w, y, draw):
    """Return new values, whether all ranks compute them, and their dependence on collectives (None: also on rows)."""
    varying = language.mean(x, 0)
    lowest = reduce(language, x[0], MIN)
    none, affine, other = CollectiveDependence
    return [
        (w + 1, True, none),  # depends on nothing that differs between ranks
        (w * w + varying * varying, False, none),
        (draw + w, False, none),
        (y, True, affine),
        (w - y * 0.5, True, affine),
        (w * 0.9 + (w * y - w), True, affine),
        (w * y - varying, True, None),
        (reduce(language, varying + y * 2), True, affine),
        (y * y, True, other),
        (y * varying, True, other),
        (y * draw, True, other),
        (lowest + w, True, other),
        (reduce(language, x[0], SUM), True, other),
        (reduce(language, y * y), True, other),
        (lowest * 0 + y, True, other),
    ]


def test_common_and_degree(language):
    x = language.variable("x", "float64", 2)
    _, draw = language.stream(1)
    w = language.shared(np.ones(3), "w")
    y = reduce(language, language.mean(x, 0))
    kinds = updates_of_every_kind(language, x, w, y, draw)
    targets = [language.shared(np.ones(3), f"w{i}") for i in range(len(kinds))]
    kept = snapshot(language, [x], [], list(zip(targets, [new for new, _, _ in kinds])))
    found = language.engine.collectives(kept, {x: 0})
    assert language.engine.updated_in(kept)[: len(targets)] == targets
    assert found.replicated_updates == [common for _, common, _ in kinds] + [False]  # and the random state
    assert found.updates == [CollectiveDependence.OTHER if degree is None else degree for _, _, degree in kinds] + [
        CollectiveDependence.NONE
    ]
    as_outputs = snapshot(language, [x], [new for new, _, _ in kinds], [])
    found = language.engine.collectives(as_outputs, {x: 0})
    assert found.outputs == [CollectiveDependence.AFFINE if degree is None else degree for _, _, degree in kinds]


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_integers_have_no_average(language, dtype):
    x, i = language.variable("x", "float64", 1), language.variable("i", dtype, 1)
    with refuses(ArgumentTypeError, argument="i", expected="floating-point", got=dtype, hint="'sum'"):
        language.engine.all_reduce([x, i], AVG)
    assert language.engine.all_reduce([x, i], MAX)[1].type == i.type


def test_only_dense_arrays(language):
    x = language.variable("x", "float64", 1)
    for thing in (language.generic("g"), 1.0, X, "x", None):
        with refuses(ArgumentTypeError, argument="x[1]", expected="dense array"):
            language.engine.all_reduce([x, thing], SUM)
