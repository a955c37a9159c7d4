"""Division of calls: every row is used once, on the right rank, in the right slice. Expected values come from NumPy."""

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from refusals import is_local, refuses  # noqa: E402

from synkhronos.calls.division import divide  # noqa: E402


def pieces(division, size):
    """Return every rank's slices as lists of row numbers: (weight, rows of inputs, rows of shared variables)."""
    return [
        [(weight, list(range(*rows)), list(range(*shared))) for weight, rows, shared in division.pieces(rank)]
        for rank in range(size)
        if division.takes_part(rank)
    ]


# -- tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size,root,n_rows,k,expected",
    [
        (1, 0, 5, 1, [[[0, 1, 2, 3, 4]]]),
        (1, 0, 5, 2, [[[0, 1, 2], [3, 4]]]),
        (2, 0, 5, 2, [[[0, 1], [2]], [[3], [4]]]),
        (2, 1, 5, 5, [[[0], [1], [2]], [[3], [4]]]),
        (2, 1, 5, 9, [[[0], [1], [2]], [[3], [4]]]),
        (3, 0, 0, 4, [[[]], [[]], [[]]]),
        (3, 2, 2, 2, [[[0]], [[1]]]),  # two ranks have one row each, and therefore one slice each
        (3, 1, 1, 1, [[[0]]]),
        (3, 0, 0, 1, [[[]], [[]], [[]]]),  # without rows, every rank makes a call
    ],
)
def test_slices_of_scattered_rows(size, root, n_rows, k, expected):
    division = divide(size, root, n_rows=n_rows, num_slices=k)
    assert [[rows for _, rows, _ in rank] for rank in pieces(division, size)] == expected
    assert [[weight for weight, _, _ in rank] for rank in pieces(division, size)] == [
        [len(rows) for rows in rank] for rank in expected
    ]
    assert division.shared_rows is None and division.shared_counts is None and not division.rows_differ


@pytest.mark.parametrize(
    "counted,k,expected",
    [
        (dict(n_rows=5), 9, 3),
        (dict(n_rows=1), 9, 1),
        (dict(n_rows=0), 9, 1),
        (dict(lengths=[[2], [1]]), 4, 2),
        (dict(lengths=[[0], [0]]), 4, 1),
        (dict(lengths=[[9], [9]], batch_s=[0]), 3, 1),
        (dict(lengths=[[9], [9]], batch_s=[[], [0, 1]]), 3, 2),
    ],
)
@pytest.mark.parametrize("all_ranks_call", [False, True])
def test_no_more_slices_than_rows(counted, k, expected, all_ranks_call):
    division = divide(2, 0, num_slices=k, all_ranks_call=all_ranks_call, **counted)
    assert division.num_slices == expected
    if all_ranks_call:
        assert [len(division.pieces(rank)) for rank in (0, 1)] == [expected] * 2
        assert all(any(division.pieces(rank)[i][0] for rank in (0, 1)) or division.is_empty for i in range(expected))


def test_who_takes_part():
    division = divide(3, 1, n_rows=1)
    assert [division.takes_part(rank) for rank in range(3)] == [False, True, False] and division.weights == [0, 1, 0]
    assert divide(3, 1, n_rows=0).is_empty and not division.is_empty
    nothing = divide(3, 1)
    assert nothing.weights is None and not nothing.is_empty and all(map(nothing.takes_part, range(3)))
    assert nothing.bounds is None and nothing.pieces(2) == [(0, (0, 0), (0, 0))]


def test_rows_of_shared_variables():
    lengths = [[4, 4], [3, 3], [0, 0]]
    whole = divide(3, 0, lengths=lengths)
    assert whole.shared_rows is None and whole.weights == [4, 3, 0]  # used without selection, and weighted by rows
    assert not whole.takes_part(2)
    sliced = divide(3, 0, lengths=lengths, num_slices=2)
    assert pieces(sliced, 3) == [[(2, [], [0, 1]), (2, [], [2, 3])], [(2, [], [0, 1]), (1, [], [2])]]
    chosen = divide(3, 0, lengths=lengths, batch_s=[[3, 0, 0], slice(1, None), []], num_slices=2)
    assert chosen.weights == chosen.shared_counts == [3, 2, 0]
    assert [list(rows.take(np.arange(4))) for rows in chosen.shared_rows[:2]] == [[3, 0, 0], [1, 2]]
    assert [[shared for _, _, shared in rank] for rank in pieces(chosen, 3)] == [[[0, 1], [2]], [[0], [1]]]
    assert divide(2, 0, lengths=[[2, 5], [3, 1]], batch_s=[[0, 1], [0]]).weights == [2, 1]


def test_scattered_inputs_weigh_where_there_are_both():
    same = divide(2, 0, n_rows=5, lengths=[[3], [2]], num_slices=3)
    assert same.weights == [3, 2] and not same.rows_differ
    assert pieces(same, 2) == [[(1, [0], [0]), (1, [1], [1]), (1, [2], [2])], [(1, [3], [0]), (1, [4], [1])]]
    other = divide(2, 0, n_rows=5, lengths=[[3], [3]], batch_s=slice(0, 2), num_slices=3)
    assert other.weights == [3, 2] and other.rows_differ
    assert pieces(other, 2) == [[(2, [0, 1], [0]), (1, [2], [1])], [(1, [3], [0]), (1, [4], [1])]]
    assert divide(2, 0, n_rows=5, lengths=[[3], [3]]).rows_differ
    few = divide(2, 0, n_rows=1, lengths=[[3], [3]], batch_s=[[0], []])
    assert [few.takes_part(rank) for rank in range(2)] == [True, False] and not few.rows_differ
    none = divide(2, 0, n_rows=4, lengths=[[3], [3]], batch_s=[], num_slices=2)  # rows to slice, but none selected
    assert pieces(none, 2) == [[(2, [0, 1], [])], [(2, [2, 3], [])]]


# -- properties ----------------------------------------------------------------------------------------------------


@given(st.integers(1, 7), st.data())
def test_every_row_once_and_in_order(size, data):
    root = data.draw(st.integers(0, size - 1))
    n_rows = data.draw(st.integers(1, 40))
    k = data.draw(st.integers(1, n_rows + 3))
    division = divide(size, root, n_rows=n_rows, num_slices=k)
    ranks = pieces(division, size)
    assert [row for rank in ranks for _, rows, _ in rank for row in rows] == list(range(n_rows))
    for rank in ranks:
        counts = [len(rows) for _, rows, _ in rank]
        assert 1 <= len(rank) == min(k, sum(counts)) and max(counts) - min(counts) <= 1 and min(counts) >= 1
        assert counts == [weight for weight, _, _ in rank]
    assert division.takes_part(root) and sum(division.weights) == n_rows
    totals = [sum(weight for weight, _, _ in rank) for rank in ranks]
    assert max(totals) - min(totals) <= 1


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.data())
def test_every_selected_row_of_shared_variables_once_and_in_order(lengths, data):
    def selections(length):
        indices = st.lists(st.integers(-length, length - 1), max_size=12) if length else st.just([])
        ends = st.none() | st.integers(-12, 12)
        return st.one_of(
            indices,
            indices.map(lambda rows: np.array(rows, int)),
            st.builds(slice, ends, ends, st.sampled_from([None, 1, 2, -1, -3])),
        )

    given_rows = [data.draw(selections(length)) for length in lengths]
    truth = [
        np.arange(length)[rows if isinstance(rows, slice) else np.array(rows, int)]
        for length, rows in zip(lengths, given_rows)
    ]
    total = sum(map(len, truth))
    k = data.draw(st.integers(1, total + 3))
    size = len(lengths)
    division = divide(size, 0, lengths=[[length, length + 3] for length in lengths], batch_s=given_rows, num_slices=k)
    assert division.weights == division.shared_counts == list(map(len, truth))
    for rank in range(size):
        if not len(truth[rank]) and total:
            assert division.pieces(rank) == []  # this rank makes no call
            continue
        parts = [division.shared_rows[rank].part(*shared).take(np.arange(20)) for _, _, shared in division.pieces(rank)]
        np.testing.assert_array_equal(np.concatenate(parts), truth[rank])
        assert len(parts) == max(1, min(k, len(truth[rank])))
        assert [len(part) for part in parts] == [weight for weight, _, _ in division.pieces(rank)]


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kwargs,error,argument,expected,got",
    [
        (dict(n_rows=4, num_slices=True), TypeError, "num_slices", "an int", "True of type bool"),
        (
            dict(n_rows=4, num_slices=np.bool_(1)),
            TypeError,
            "num_slices",
            "an int",
            f"{np.bool_(1)!r} of type {np.bool_.__name__}",
        ),
        (dict(n_rows=4, num_slices=2.0), TypeError, "num_slices", "an int", "2.0 of type float"),
        (dict(n_rows=4, num_slices=None), TypeError, "num_slices", "an int", "None of type NoneType"),
        (dict(n_rows=4, num_slices="2"), TypeError, "num_slices", "an int", "'2' of type str"),
        (dict(n_rows=4, num_slices=np.array(2)), TypeError, "num_slices", "an int", "array(2) of type ndarray"),
        (dict(n_rows=4, num_slices=0), ValueError, "num_slices", "at least 1", "0"),
        (dict(n_rows=4, num_slices=-2), ValueError, "num_slices", "at least 1", "-2"),
        (dict(num_slices=2), ValueError, "num_slices", "nothing", "2"),
        (
            dict(lengths=[[2, 2], [2, 3]], num_slices=2),
            ValueError,
            "sliceable_shareds",
            "equal length",
            "[2, 3] on rank 1",
        ),
        (dict(lengths=[[2, 2], [2, 3]]), ValueError, "sliceable_shareds", "equal length", "[2, 3] on rank 1"),
        (dict(n_rows=4, batch_s=[0]), ValueError, "batch_shared", "None, because", "[0]"),
        (dict(lengths=[[3], [2]], batch_s=[2]), ValueError, "batch_shared", "of rank 1, which has length 2", "index 2"),
        (
            dict(lengths=[[3, 2], [3, 3]], batch_s=[[-3], []]),
            ValueError,
            "batch_shared[0]",
            "of rank 0, which has",
            "-3",
        ),
        (dict(lengths=[[3], [3]], batch_s=[slice(1)] * 3), ValueError, "batch_shared", "for each rank (2 in all)", "3"),
        (dict(lengths=[[3], [3]], batch_s=[slice(1)]), ValueError, "batch_shared", "for each rank (2 in all)", "1"),
        (dict(lengths=[[3], [3]], batch_s=2), TypeError, "batch_shared", "integers", "2"),
        (dict(lengths=[[3], [3]], batch_s=[[0], 1]), TypeError, "batch_shared", "integers", "mixes both: 1"),
        (dict(lengths=[[3], [3]], batch_s=[0.5]), TypeError, "batch_shared", "integers", "a list with 0.5"),
        (dict(lengths=[[3], [3]], batch_s=np.ones(3, bool)), TypeError, "batch_shared", "integers", "bool"),
        (dict(lengths=[[3], [3]], batch_s=np.zeros((2, 2), int)), ValueError, "batch_shared", "1-D", "shape (2, 2)"),
    ],
)
def test_what_is_refused(kwargs, error, argument, expected, got):
    with refuses(error, argument, expected, got) as raised:
        divide(2, 0, **kwargs)
    assert is_local(raised.value, error)


def test_a_hint_says_how_to_use_variables_of_several_lengths():
    with refuses(ValueError, "sliceable_shareds", hint="batch_shared"):
        divide(2, 0, lengths=[[2, 2], [2, 3]], num_slices=2)
