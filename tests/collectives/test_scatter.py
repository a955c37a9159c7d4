import functools

import numpy as np
import pytest
import table

import synkhronos as synk
from synkhronos.testing import numpy_engine as engine


def shares(rows, n, root):
    """Return the shards by the docs' rule, without partition.py: as even as possible, in rank order, the root first."""
    if len(rows) < n:
        served = ([root] + [rank for rank in range(n) if rank != root])[: len(rows)]
        counts = [int(rank in served) for rank in range(n)]
    else:
        counts = [len(part) for part in np.array_split(np.arange(len(rows)), n)]
    ends = np.cumsum([0] + counts)
    return [rows[ends[rank] : ends[rank + 1]] for rank in range(n)]


def assert_scattered(world, variable, rows):
    for got, want in zip(world.values(variable), shares(rows, world.n, world.root)):
        table.assert_same_bits([got], want)


#: Accepted values of ``batch``, and the rows that they select in NumPy.
BATCHES = [
    (None, slice(None)),
    (7, slice(7)),
    (0, slice(0)),
    (np.int64(5), slice(5)),
    (slice(2, 9), slice(2, 9)),
    (slice(None, None, 3), slice(None, None, 3)),
    (slice(None, None, -1), slice(None, None, -1)),
    (slice(-4, None), slice(-4, None)),
    (slice(9, 2, -2), slice(9, 2, -2)),
    (slice(5, 500), slice(5, 500)),
    (slice(3, 3), slice(3, 3)),
    ([3, 1, 10], [3, 1, 10]),
    ([-1, -11, 0], [-1, -11, 0]),
    ([], []),
    ((4, 4, 4, 4, 4), [4, 4, 4, 4, 4]),
    (range(1, 11, 2), list(range(1, 11, 2))),
    (np.array([5, 2, 9, 1]), [5, 2, 9, 1]),
    (np.array([1, 3], "uint8"), [1, 3]),
    (np.arange(11)[::-2], list(range(10, -1, -2))),
    (np.random.RandomState(0).permutation(11), np.random.RandomState(0).permutation(11)),
]


@pytest.mark.parametrize("batch, rows", BATCHES, ids=lambda value: repr(value)[:30])
def test_batch(threads, batch, rows):
    X, y = threads.shareds([np.zeros((1, 2)), np.zeros(1, "int32")])
    values = [table.value("float64", (11, 3)), table.value("int32", (11,))]
    keep = np.arange(11)[rows if isinstance(rows, slice) else np.asarray(rows, int)]
    for given in (
        values,
        [np.asfortranarray(values[0]), list(map(int, values[1]))],
        list(map(synk.data, values)),
        [synk.data(values[0]), values[1]],
    ):
        synk.scatter([X, y], given, batch=batch)
        assert_scattered(threads, X, values[0][keep])
        assert_scattered(threads, y, values[1][keep])


@pytest.mark.parametrize("dtype", table.DTYPES)
@pytest.mark.parametrize("length", range(5))
def test_dtype_and_length(threads, dtype, length):
    variables = threads.shareds([np.zeros((1,) * ndim, dtype) for ndim in (1, 2, 3, 4)])
    values = [table.value(dtype, (length,) + (2, 3, 1)[:ndim]) for ndim in range(4)]
    synk.scatter(variables, values)
    for variable, value in zip(variables, values):
        assert_scattered(threads, variable, value)


def test_in_every_world(world, tmp_path):
    X, y = world.shareds([np.zeros((1, 2), "float32"), np.zeros(1, "int64")])
    values, labels = table.value("float32", (50, 3)), table.value("int64", (50,))
    np.save(tmp_path / "x.npy", values)
    indices = np.random.RandomState(1).permutation(50)
    for given in (values, synk.data(values), synk.data(tmp_path / "x.npy")):
        for batch in (None, 9, slice(40, 3, -3), indices[:1], indices):
            rows = slice(None) if batch is None else slice(batch) if isinstance(batch, int) else batch
            synk.scatter((X, y), (given, labels), batch=batch)
            assert_scattered(world, X, values[rows])
            assert_scattered(world, y, labels[rows])


def test_mistake_of_2017_data_values_with_index_lists(world):
    X = world.shared(np.zeros((1, 2)))
    values = synk.data(table.value("float64", (9, 2)))
    synk.scatter(X, values, batch=[8, 0, -2, 3])
    assert_scattered(world, X, values.data[[8, 0, -2, 3]])


def test_mistake_of_2017_two_partition_rules(threads):
    """`scatter` and functions assign the same row numbers to a rank; in 2017, their rules differed."""
    x = engine.variable("x", "float64", 1)
    X = threads.shared(np.zeros(1), "X")
    differ = synk.function([x], [(x - X, "gather")])
    for length in range(threads.n, 3 * threads.n + 2):
        values = np.arange(float(length))
        synk.scatter(X, values)
        np.testing.assert_array_equal(differ(values)[0], np.zeros(length))


def test_lengths_may_differ_between_variables_without_batch(three):
    a, b = three.shareds([np.zeros(1), np.zeros(1)])
    values = [table.value("float64", (7,)), table.value("float64", (4,))]
    synk.scatter([a, b], values)
    assert_scattered(three, a, values[0])
    assert_scattered(three, b, values[1])


@pytest.mark.parametrize("batch", [4, slice(9, 1, -2), [8, 8, 0, -1], slice(0, 0)])
def test_minibatch_data_hold_the_selected_rows_already(three, batch):
    X, y = three.shareds([np.zeros((1, 2)), np.zeros(1)])
    labels = table.value("float64", (11,))
    rows = labels[slice(batch) if isinstance(batch, int) else batch]
    held = table.value("float64", (6, 2))  # additional rows are ignored
    synk.scatter([X, y], [synk.data(held, minibatch=True), labels], batch=batch)
    assert_scattered(three, X, held[: len(rows)])
    assert_scattered(three, y, rows)
    synk.scatter([X, y], [synk.data(held, minibatch=True), labels])  # without batch, all rows count
    assert_scattered(three, X, held)


def test_minibatch_alone_does_not_limit_the_indices(three):
    X = three.shared(np.zeros((1, 2)))
    held = synk.data(table.value("float64", (2, 2)), minibatch=True)
    synk.scatter(X, held, batch=[5000, 7])
    assert_scattered(three, X, held.data)


def test_large_values_and_long_index_lists(make_world):
    world = make_world("fork", 2)
    X = world.shared(np.zeros((1, 2), "float32"))
    values = synk.data(table.value("float32", (100_003, 7)))
    indices = np.random.RandomState(2).permutation(100_003)
    synk.scatter(X, values, batch=indices)
    assert_scattered(world, X, values.data[indices])


def test_bad_input(three, refused):
    X, y, scale = three.shareds([np.ones((1, 2)), np.ones(1), np.ones(())], ["X", "y", "scale"])
    values = [np.zeros((10, 2)), np.zeros(9)]
    for batch, error, expected, got in [
        ([0, 9], ValueError, "shortest value, which has length 9", "index 9"),  # an index equal to the length
        (np.array([3, 9]), ValueError, "length 9", "index 9"),
        ([-10], ValueError, "length 9", "index -10"),
        (10, ValueError, "at most 9, the length", "10"),
        (-1, ValueError, "0 or more", "-1"),
        ([1.0], TypeError, "integers", "1.0"),
        (np.array([1.0]), TypeError, "integers", "float64"),
        (2.5, TypeError, "integers", "2.5"),
        ([[1, 2]], ValueError, "integers", "dimension"),
        (np.ones((2, 2), int), ValueError, "1-D", "(2, 2)"),
        (True, TypeError, "integers", "bool"),
        (np.ones(9, bool), TypeError, "integers", "bool"),
        (slice(None, None, 0), ValueError, "step", "0"),
        (slice(0, 2.5), TypeError, "integers", "2.5"),
        ("rows", TypeError, "integers", "'rows'"),
    ]:
        call = functools.partial(synk.scatter, [X, y], values, batch=batch)
        refused(three, error, call, argument="batch", expected=expected, got=got)
    for given, error, argument, got in [
        (values[:1], ValueError, "values", "1"),
        (None, ValueError, "values", "NoneType"),
        ([values[0].astype("complex128"), values[1]], TypeError, "values for X", "complex128"),
        ([values[1], values[1]], TypeError, "values for X", "(9,)"),
        ([values[0], 3.0], TypeError, "values for y", "()"),
    ]:
        refused(three, error, lambda given=given: synk.scatter([X, y], given), argument=argument, got=got)
    refused(three, ValueError, lambda: synk.scatter([X, scale], [values[0], 3.0]), got="scale with 0", hint="broadcast")
    few = synk.data(values[0][:2], minibatch=True)
    call = functools.partial(synk.scatter, [X, y], [few, values[1]], batch=3)
    refused(three, ValueError, call, argument="values for X", expected="as many rows as batch selects (3)", got="2")
    table.assert_same_bits(three.values(X), np.ones((1, 2)))
    table.assert_same_bits(three.values(y), np.ones(1))


def test_part_that_does_not_suit_the_variable(make_world, refused):
    """Parts that do not fit the variable's type, which requires exactly one row, are refused."""
    row = engine.shared(np.ones((1, 2)), "row", broadcastable=(True, False))
    function = synk.function([], [(row, None)])
    world = make_world("threads", 3, 1)
    world.set_values(world.shared(np.ones(1)), [np.ones(1)] * 3)
    for call, argument, expected, got in [
        (lambda: synk.scatter(row, np.zeros((4, 2))), "values for row", "length 1", "(4, 2)"),
        (lambda: synk.scatter(row, np.zeros((1, 2))), "rank 0's part of the values for row", "exactly 1 row", "0"),
        (
            lambda: synk.set_value(0, row, np.zeros((1, 2)), batch=[]),
            "the selected rows of the values for row",
            "exactly 1 row",
            "0",
        ),
        (lambda: synk.all_gather(row), "all ranks' rows of row", "exactly 1 row", "3"),
    ]:
        refused(world, TypeError, call, argument=argument, expected=expected, got=got)
    table.assert_same_bits(synk.gather(row, nd_up=0), np.ones(2))
    alone = make_world("threads", 1)
    synk.scatter(row, np.full((1, 3), 2.0))
    synk.all_gather(row)
    table.assert_same_bits(synk.get_value(0, row), np.full(3, 2.0))
    del function, alone
