"""Rows of each rank, compared with `numpy.array_split`."""

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from refusals import refuses  # noqa: E402

from synkhronos.partition import split_rows, split_slices  # noqa: E402


def lengths(bounds):
    return [stop - start for start, stop in bounds]


def array_split(n_rows, n_parts):
    return [part.tolist() for part in np.array_split(np.arange(n_rows), n_parts)]


def rows(bounds):
    return [list(range(start, stop)) for start, stop in bounds]


@pytest.mark.parametrize(
    "n_rows, n_ranks, root, expected",
    [
        (10, 4, 0, ((0, 3), (3, 6), (6, 8), (8, 10))),
        (10, 4, 3, ((0, 3), (3, 6), (6, 8), (8, 10))),
        (4, 4, 2, ((0, 1), (1, 2), (2, 3), (3, 4))),
        (7, 1, 0, ((0, 7),)),
        (1, 3, 0, ((0, 1), (1, 1), (1, 1))),
        (1, 3, 1, ((0, 0), (0, 1), (1, 1))),
        (1, 3, 2, ((0, 0), (0, 0), (0, 1))),
        (2, 3, 0, ((0, 1), (1, 2), (2, 2))),
        (2, 3, 2, ((0, 1), (1, 1), (1, 2))),
        (3, 5, 4, ((0, 1), (1, 2), (2, 2), (2, 2), (2, 3))),
        (0, 3, 1, ((0, 0), (0, 0), (0, 0))),
        (0, 1, 0, ((0, 0),)),
    ],
)
def test_split_rows_table(n_rows, n_ranks, root, expected):
    assert split_rows(n_rows, n_ranks, root) == expected


@pytest.mark.parametrize("n_ranks", range(1, 10))
def test_enough_rows_are_divided_as_array_split_does_whatever_the_root(n_ranks):
    for n_rows in range(n_ranks, 40):
        for root in range(n_ranks):
            assert rows(split_rows(n_rows, n_ranks, root)) == array_split(n_rows, n_ranks)


@pytest.mark.parametrize("n_ranks", range(1, 10))
def test_too_few_rows_go_to_the_root_and_then_to_the_lowest_ranks(n_ranks):
    for n_rows in range(n_ranks):
        for root in range(n_ranks):
            bounds = split_rows(n_rows, n_ranks, root)
            others = [length for rank, length in enumerate(lengths(bounds)) if rank != root]
            assert sum(rows(bounds), []) == list(range(n_rows))
            assert bounds[root][1] - bounds[root][0] == (n_rows > 0)
            assert others == [1] * (n_rows - 1) + [0] * (n_ranks - max(n_rows, 1))


@given(st.integers(0, 10**15), st.integers(1, 300), st.data())
@settings(deadline=None)
def test_split_rows_covers_every_row_once_and_evenly(n_rows, n_ranks, data):
    root = data.draw(st.integers(0, n_ranks - 1))
    bounds = split_rows(n_rows, n_ranks, root)
    starts, stops = zip(*bounds)
    assert len(bounds) == n_ranks
    assert starts[0] == 0 and stops[-1] == n_rows
    assert starts[1:] == stops[:-1]
    assert 0 <= max(lengths(bounds)) - min(lengths(bounds)) <= 1
    assert lengths(bounds)[root] > 0 or n_rows == 0


@pytest.mark.parametrize("num_slices", range(1, 12))
def test_slices_are_as_array_split_and_none_is_empty(num_slices):
    for n_rows in range(1, 25):
        assert rows(split_slices(n_rows, num_slices)) == array_split(n_rows, min(num_slices, n_rows))


def test_without_rows_there_is_one_empty_slice():
    assert split_slices(0, 1) == split_slices(0, 5) == ((0, 0),)


@pytest.mark.parametrize(
    "split, arguments, argument, expected, got",
    [
        (split_rows, (-1, 2), "n_rows", "0 or more", "-1"),
        (split_rows, (3, 0), "n_ranks", "1 or more", "0"),
        (split_rows, (3, 2, 2), "root", "a rank, 0 to 1", "2"),
        (split_rows, (3, 2, -1), "root", "a rank, 0 to 1", "-1"),
        (split_slices, (-1, 2), "n_rows", "0 or more", "-1"),
        (split_slices, (3, 0), "num_slices", "1 or more", "0"),
    ],
)
def test_numbers_out_of_range_are_refused(split, arguments, argument, expected, got):
    with refuses(ValueError, argument, expected, got):
        split(*arguments)
