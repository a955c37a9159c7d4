"""One rank's call in slices: the combined outputs and updates. Expected values come from NumPy."""

import weakref

import numpy as np
import pytest
from refusals import refuses, reports

from synkhronos.calls import rank_call
from synkhronos.calls.rank_call import LAST, Agreement
from synkhronos.errors import ArgumentValueError
from synkhronos.reductions import ReduceOp

ROWS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
PARTS = [ROWS[:2], ROWS[2:4], ROWS[4:]]
OPS = {"avg": np.mean, "sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}


def in_slices(call, weights, outputs, updates):
    """Call `rank_call.in_slices` with one weight for all values of a slice."""
    each = [[weight] * (len(outputs) + len(updates)) for weight in weights]
    return rank_call.in_slices(call, each, outputs, updates)


def test_values_of_a_slice_may_weigh_differently_or_not_count():
    rows = [3.0, 5.0, 100.0, 7.0]
    outputs, news = rank_call.in_slices(
        lambda i: [np.array(rows[i]), np.array(rows[i]), np.array(i)],
        [[1, 4, 1], [None, 0, 1], [None, None, None], [2, 4, 1]],
        [("a", ReduceOp("avg"))],
        [("w", ReduceOp("avg")), ("state", LAST)],
    )
    np.testing.assert_allclose(outputs, [np.average([3, 7], weights=[1, 2])])
    np.testing.assert_allclose(news[0], np.average([3, 5, 7], weights=[4, 0, 4]))
    assert news[1] == 3
    outputs, news = rank_call.in_slices(lambda i: [1, 2], [[None, None]], [("a", ReduceOp("avg"))], [("state", LAST)])
    assert outputs == [None] and news == [None]


@pytest.mark.parametrize("name", OPS)
def test_outputs_and_updates_are_as_of_all_rows(name):
    op = ReduceOp(name)
    outputs, news = in_slices(
        lambda i: [OPS[name](PARTS[i]), PARTS[i][:1] * 0 + OPS[name](PARTS[i])], [2, 2, 1], [("a", op)], [("w", op)]
    )
    truth = OPS[name](ROWS)
    np.testing.assert_allclose(outputs, [truth], rtol=1e-15)
    np.testing.assert_allclose(news, [[truth]], rtol=1e-15)


def test_gather():
    outputs, news = in_slices(
        lambda i: [PARTS[i].sum(), PARTS[i]], [2, 2, 1], [("a", ReduceOp("gather")), ("b", ReduceOp("gather"))], []
    )
    np.testing.assert_array_equal(outputs[0], [3, 12, 16])
    np.testing.assert_array_equal(outputs[1], ROWS)
    assert news == []


def test_bools():
    flags = [np.array([True, False]), np.array([True, True])]
    (count,), (both,) = in_slices(
        lambda i: [flags[i], flags[i]], [1, 1], [("a", ReduceOp("sum"))], [("w", ReduceOp("prod"))]
    )
    assert count.dtype == int and count.tolist() == [2, 1]
    assert both.dtype == bool and both.tolist() == [True, False]  # an update keeps its dtype


def test_calls_are_made_in_order_and_results_not_kept():
    """The memory of a slice's results is freed before the next slice is computed."""
    made, alive = [], []

    class Result(np.ndarray):
        pass

    def call(i):
        alive.append([reference() is not None for reference in made])
        values = [np.full(3, float(i)).view(Result) for _ in range(3)]
        made.extend(map(weakref.ref, values))
        return values

    (total, least), (new,) = in_slices(
        call, [1, 1, 1], [("a", ReduceOp("sum")), ("b", ReduceOp("min"))], [("w", ReduceOp("max"))]
    )
    assert alive == [[], [False] * 3, [False] * 6]
    assert total.tolist() == [3, 3, 3] and least.tolist() == [0, 0, 0] and new.tolist() == [2, 2, 2]


def test_updates_that_must_agree():
    outputs, (new,) = in_slices(lambda i: [np.array([7, 8])], [2, 1], [], [("c", None)])
    assert outputs == [] and new.tolist() == [7, 8]
    with refuses(ValueError, "the update of c", hint="(shared, expression, 'sum')"):
        in_slices(lambda i: [np.array(i)], [2, 1], [], [("c", None)])


def test_what_agreed_is_a_copy():
    value = np.array([1, 2])
    agreement = Agreement()
    agreement.add(value)
    value[:] = 9
    assert agreement.finish()[0].tolist() == [1, 2]


@pytest.mark.parametrize("op", ["avg", "sum", "prod", "min", "max"])
def test_shapes_that_differ_are_named(op):
    op = ReduceOp(op)
    with reports(ArgumentValueError, "outputs[1] (y)", f"'{op}'", "float64(2,) and float64(1,)"):
        in_slices(lambda i: [np.ones(()), PARTS[i]], [2, 2, 1], [("a", op), ("outputs[1] (y)", op)], [])
    with reports(ArgumentValueError, "the update of w", f"'{op}'", "float64(2,) and float64(1,)"):
        in_slices(lambda i: [PARTS[i]], [2, 2, 1], [], [("w", op)])


def test_shapes_that_cannot_be_gathered_are_named():
    with reports(ArgumentValueError, "rows", "'gather'", "(2, 0) and (2, 1)"):
        in_slices(lambda i: [np.ones((2, i))], [1, 1], [("rows", ReduceOp("gather"))], [])
