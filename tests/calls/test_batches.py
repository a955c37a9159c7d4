"""The batches of steps as one table; expected rows come from NumPy's indexing."""

import itertools

import numpy as np
import pytest
from refusals import refuses, reports

from synkhronos.calls.batches import read, read_all, selection, table_of, table_per_rank

DATA = np.arange(10) * 11


def rows_of(table):
    """Return the rows of DATA that each step selects."""
    return [selection(row, table.indices).take(DATA).tolist() for row in table.rows.tolist()]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64"])
def test_a_2d_array_has_a_row_for_each_step(dtype):
    low = 0 if dtype.startswith("u") else -10
    batches = np.random.RandomState(0).randint(low, 10, (7, 3)).astype(dtype)
    for given in (batches, list(batches), batches[:, ::-1][:, ::-1], np.asfortranarray(batches)):
        table = table_of(read(given, None), 10)
        assert rows_of(table) == DATA[batches.astype(int)].tolist()
        assert table.counts.tolist() == [3] * 7 and table.rows.shape == (7, 3)
        assert table.indices.dtype == np.intp and table.rows.dtype == np.int64


@pytest.mark.parametrize(
    "batches",
    [
        [[0, 1], [2, 3, 4], [5]],
        [np.arange(3), np.arange(3, 10), np.array([], int)],
        [np.array([1], "uint64"), np.array([-1], "int8")],  # NumPy would convert both to floats
        [slice(0, 3), slice(None, None, -1), slice(8, 100), slice(-1, None, -4), slice(5, 2)],
        [3, [0], slice(2), range(4, 6), (7, 7, -1), np.int64(1), None, np.array(2)],
        [np.array([1, 2]), [3, 4]],
        ([0, 1], [2]),
    ],
)
def test_any_sequence_of_batches(batches):
    def of_numpy(batch):
        if isinstance(batch, (int, np.integer)) or isinstance(batch, np.ndarray) and batch.ndim == 0:
            return DATA[: int(batch)]
        return DATA if batch is None else DATA[batch] if isinstance(batch, slice) else DATA[np.array(list(batch), int)]

    table = table_of(read(batches, None), 10)
    assert rows_of(table) == [of_numpy(batch).tolist() for batch in batches]
    assert table.counts.tolist() == [len(of_numpy(batch)) for batch in batches]
    assert rows_of(table_of(read((batch for batch in batches), None), 10)) == rows_of(table)


def test_no_more_than_n_steps_are_read():
    taken = []
    endless = (taken.append(i) or [i % 10] for i in itertools.count())
    assert read(endless, 3) == [[0], [1], [2]] and taken == [0, 1, 2]
    assert len(read(np.zeros((5, 2), int), 2)) == 2
    assert len(read([[1], [2]], 9)) == 2


@pytest.mark.parametrize("endless", [itertools.repeat([1]), itertools.count(), range(10**12)])
def test_what_has_no_end_is_refused_if_nobody_says_how_much_to_read(endless):
    with refuses(ValueError, "batches"):
        read(endless, None)


def test_slices_hold_no_indices():
    table = table_of([slice(0, 5), slice(5, 10)], 10)
    assert table.indices.size == 0 and table.rows.tolist() == [[0, 5, 1], [5, 10, 1]]


def test_a_thousand_arrays_are_looked_at_together(monkeypatch):
    from synkhronos.calls import batches

    def parse(*args):
        raise AssertionError("one by one")

    monkeypatch.setattr(batches, "parse", parse)
    table_of(np.zeros((1000, 5), int), 10)
    table_of(list(np.zeros((1000, 5), int)), 10)


def test_per_rank():
    table = table_per_rank([slice(0, 2), [[1, 2], [3]], [0, -1], None], [10, 5])
    found = [
        [selection(row, table.indices).take(np.arange(length)).tolist() for row, length in zip(step, [10, 5])]
        for step in table.rows.tolist()
    ]
    assert found == [[[0, 1], [0, 1]], [[1, 2], [3]], [[0, 9], [0, 4]], [list(range(10)), list(range(5))]]
    assert table.counts.tolist() == [[2, 2], [2, 1], [2, 2], [10, 5]]
    shifted = table.shifted(4)
    joined = np.concatenate([np.full(4, 99), table.indices])
    for before, after in zip(table.rows.reshape(-1, 3).tolist(), shifted.rows.reshape(-1, 3).tolist()):
        assert selection(before, table.indices).take(np.arange(10)).tolist() == (
            selection(after, joined).take(np.arange(10)).tolist()
        )


@pytest.mark.parametrize(
    "batches, error, fields",
    [
        (np.arange(4), TypeError, {"got": "shape (4,)", "hint": "reshape"}),
        ([1, 2, 3], TypeError, {"got": "integers (length 3)", "hint": "reshape"}),
        ([np.int32(1)], TypeError, {"hint": "reshape"}),
        (range(3), TypeError, {"hint": "reshape"}),
        (np.array(3), ValueError, {"got": "shape ()"}),
        (np.zeros((2, 2, 2), int), ValueError, {"got": "shape (2, 2, 2)"}),
        (np.array([[0, 1], [2]], object), TypeError, {"got": "object", "hint": "list"}),
        (np.zeros((2, 2)), TypeError, {"got": "float64"}),
        (np.zeros((2, 2), bool), TypeError, {"got": "bool"}),
        ([], ValueError, {"got": "none"}),
        (np.zeros((0, 3), int), ValueError, {"got": "none"}),
        (iter(()), ValueError, {"got": "none"}),
        (slice(3), TypeError, {"got": "slice"}),
        (5, TypeError, {"got": "5"}),
        (object(), TypeError, {"got": "object"}),
    ],
)
def test_what_is_no_sequence_of_batches(batches, error, fields):
    with refuses(error, "batches", **fields):
        read(batches, None)


@pytest.mark.parametrize(
    "batches, argument, fields",
    [
        (np.array([[0, 1], [2, 10], [11, 0]]), "batches[1]", {"got": "10"}),
        (np.array([[0, 1], [2, -11]]), "batches[1]", {"got": "-11"}),
        ([np.array([0, 1]), np.array([2]), np.array([3, 12])], "batches[2]", {"got": "12"}),
        ([np.array([2**63], "uint64")], "batches[0]", {"got": str(2**63)}),
        ([slice(0, 2), slice(0, 2, 0)], "batches[1]", {"got": "slice"}),
        ([[0], 11], "batches[1]", {}),
        ([[0], [0.5]], "batches[1]", {"got": "0.5"}),
        ([[0], [True]], "batches[1]", {}),
        ([np.array([0]), np.array([0.0])], "batches[1]", {"got": "float"}),
        ([[0], np.zeros((2, 2), int)], "batches[1]", {}),
        ([[0], "ab"], "batches[1]", {}),
    ],
)
def test_a_wrong_batch_is_named(batches, argument, fields):
    with refuses((TypeError, ValueError), argument, **fields):
        table_of(read(batches, None), 10)


def test_a_wrong_batch_of_a_rank_is_named():
    with refuses(ValueError, "batches_shared[1]", got="5"):
        table_per_rank([[0], [5]], [10, 5])
    with refuses(ValueError, "batches_shared[0][1]", got="7"):
        table_per_rank([[[9], [7]]], [10, 5])
    with refuses(TypeError, "batches_shared", hint="reshape"):
        read_all(None, [1, 2], None)


@pytest.mark.parametrize(
    "given, error, argument",
    [
        ((None, None, None), ValueError, "n_steps"),
        ((None, None, True), TypeError, "n_steps"),
        ((None, None, 2.0), TypeError, "n_steps"),
        ((None, None, 0), ValueError, "n_steps"),
        (([[0]], None, -1), ValueError, "n_steps"),
        (([[0]], [[0], [1]], None), ValueError, "batches_shared"),
    ],
)
def test_how_many_steps_there_are(given, error, argument):
    with refuses(error, argument):
        read_all(*given)
    assert read_all(None, None, np.int64(3)) == (None, None)


def test_what_a_generator_raises_comes_out():
    def failing():
        yield [0]
        raise TypeError("mine")

    with reports(TypeError, "mine"):
        read(failing(), None)
