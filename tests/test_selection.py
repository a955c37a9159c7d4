"""`batch` and `batch_s` arguments, compared with NumPy's and Python's own indexing."""

import enum
import pickle
import tracemalloc

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from refusals import refuses, reports  # noqa: E402

from synkhronos.selection import Indices, RowRange, parse, parse_per_rank  # noqa: E402

INTEGER_DTYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4", ">u8"]


class Size(enum.IntEnum):
    SMALL = 2


class ArrayLike:
    """Stand-in for a `Data`: not an ndarray, but convertible to one."""

    def __init__(self, values):
        self.values = np.array(values)

    def __array__(self, dtype=None):
        return self.values


def select(batch, length, **kwargs):
    """Return the selected row numbers, after checking the members that every selection has."""
    selection = parse(batch, length, **kwargs)
    rows = selection.take(np.arange(length)).tolist()
    assert len(selection) == len(rows)
    return rows


@pytest.mark.parametrize(
    "batch, expected",
    [
        (None, range(10)),
        (0, []),
        (4, range(4)),
        (10, range(10)),
        (np.int8(3), range(3)),
        (np.uint64(3), range(3)),
        (np.array(3), range(3)),
        (Size.SMALL, range(2)),
        ([], []),
        ((), []),
        (range(0), []),
        (np.array([], dtype=int), []),
        ([3, 3, 0], [3, 3, 0]),
        ((9, -1, -10), [9, 9, 0]),
        ([np.uint64(1), -1], [1, 9]),
        ([np.int8(1), np.uint64(2), np.array(3), Size.SMALL], [1, 2, 3, 2]),
        (range(8, 2, -3), [8, 5]),
        (range(-2, 2), [8, 9, 0, 1]),
        (range(3, 2**70, 2**70), [3]),
        (np.array([1, 2]), [1, 2]),
        (ArrayLike([2, -2]), [2, 8]),
        (slice(None), range(10)),
        (slice(np.int64(2), np.uint8(5)), range(2, 5)),
        (slice(-3, None), [7, 8, 9]),
        (slice(None, None, -1), range(9, -1, -1)),
        (slice(5, 100), range(5, 10)),
        (slice(-(2**80), 2**80, 2**80), [0]),
        (slice(7, 3), []),
        (slice(3, 7, -1), []),
    ],
)
def test_parse_table(batch, expected):
    assert select(batch, 10) == list(expected)


ends = st.none() | st.integers(-25, 25)


@given(st.integers(0, 12), ends, ends, ends.filter(lambda step: step != 0), st.integers(0, 5))
@settings(deadline=None)
def test_slices_select_what_numpy_selects(length, start, stop, step, surplus):
    batch = slice(start, stop, step)
    selection = parse(batch, length)
    expected = np.arange(length)[batch]
    longer = np.arange(length + surplus)  # the length of the shortest input determines batch
    assert isinstance(selection, RowRange) and selection.is_view
    np.testing.assert_array_equal(selection.take(longer), expected)
    assert len(selection) == len(expected)
    assert pickle.loads(pickle.dumps(selection)) == selection


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(-n, n - 1)))))
@settings(deadline=None)
def test_index_lists_select_what_numpy_selects(length_and_list):
    length, indices = length_and_list
    expected = [list(range(length))[index] for index in indices]
    for batch in (indices, tuple(indices), np.array(indices, dtype=int), np.array(indices * 2, dtype="i2")[::2][:0]):
        assert select(batch, length) == (expected if len(batch) else [])
    assert select(np.repeat(np.array(indices, dtype=int), 2)[::2], length) == expected


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
def test_indices_of_every_integer_type(dtype):
    selection = parse(np.array([3, 0, 7], dtype=dtype), 10)
    assert selection.array.dtype == np.intp and selection.array.flags.c_contiguous
    assert selection.array.tolist() == [3, 0, 7]


@pytest.mark.parametrize("batch", [None, 7, slice(1, 9, 2), slice(None, None, -3), [5, -1, 2, 2, 0], []])
@pytest.mark.parametrize("shape", [(10,), (10, 3), (10, 0), (12, 2, 2)])
def test_take_from_arrays_of_any_layout(batch, shape):
    index = slice(batch) if isinstance(batch, int) else slice(None) if batch is None else batch
    original = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    selection = parse(batch, 10)
    wide = np.zeros((shape[0] * 2,) + shape[1:], dtype="f4")
    wide[::2] = original
    unaligned = np.frombuffer(b"x" + original.tobytes(), dtype="f4", offset=1).reshape(shape)
    for array in (original, np.asfortranarray(original), original[::-1][::-1], wide[::2], unaligned):
        expected = original[:10][np.array(index, dtype=int) if isinstance(index, list) else index]
        taken = selection.take(array)
        np.testing.assert_array_equal(taken, expected)
        if expected.size:
            assert np.shares_memory(taken, array) == selection.is_view
        out = np.full_like(expected, -1)
        assert selection.take(array, out=out) is out
        np.testing.assert_array_equal(out, expected)
        assert not np.shares_memory(out, array)


def test_taking_rows_copies_nothing_else():
    array = np.zeros((4000, 100))
    unaligned = np.frombuffer(b"x" * (1 + array.nbytes), dtype="f8", offset=1).reshape(array.shape)
    selection = parse(range(0, 4000, 8), 4000)
    out = np.empty((500, 100))
    for source, limit in (
        (array, out.nbytes // 2),
        (np.asfortranarray(array), 2 * out.nbytes),
        (unaligned, 2 * out.nbytes),
    ):
        tracemalloc.start()
        try:
            selection.take(source, out=out)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < limit


def test_a_huge_range_is_refused_before_it_is_written_out():
    for batch in (range(10**16), range(0, -(10**16), -1), range(-1, 2**70)):
        with refuses(ValueError, "batch", got="index"):
            parse(batch, 10)


@given(st.data())
@settings(deadline=None)
def test_a_part_is_a_piece_of_the_selected_rows(data):
    length = data.draw(st.integers(1, 12))
    batch = data.draw(
        st.builds(slice, ends, ends, ends.filter(lambda step: step != 0))
        | st.lists(st.integers(-length, length - 1))
        | st.integers(0, length)
        | st.none()
    )
    selection = parse(batch, length)
    rows = selection.take(np.arange(length)).tolist()
    hi = data.draw(st.integers(0, len(rows)))
    lo = data.draw(st.integers(0, hi))
    part = selection.part(lo, hi)
    assert type(part) is type(selection)
    assert len(part) == hi - lo
    assert part.take(np.arange(length + 3)).tolist() == rows[lo:hi]
    assert pickle.loads(pickle.dumps(part)).take(np.arange(length)).tolist() == rows[lo:hi]


def test_a_pickled_part_carries_its_own_indices_only():
    selection = parse(np.arange(10000), 10000)
    assert len(pickle.dumps(selection.part(10, 20))) < 500
    assert len(pickle.dumps(parse(slice(None, None, 2), 10000))) < 200


def test_later_changes_by_the_caller_do_not_matter():
    for caller in (np.array([1, 2]), [1, 2]):
        selection = parse(caller, 10)
        caller[0] = 7
        assert selection.take(np.arange(10)).tolist() == [1, 2]


def test_indices_are_immutable():
    selection = parse([3], 10)
    with pytest.raises(AttributeError):
        selection.array = np.array([4])
    with reports(ValueError, "read-only"):
        selection.array[0] = 4


def test_empty_rows_are_one_value():
    assert RowRange(5, 2) == RowRange(-1, -1, -1) == RowRange(0, 0, 1)


def test_ready_indices_are_taken_as_they_are():
    array = np.array([1, 2])
    assert Indices(array).array is array


@pytest.mark.parametrize("index", [100, -101, 10**6, 2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 2**80])
def test_an_index_out_of_range_is_named(index):
    sentence = f"batch: expected indices within the shortest scattered input, which has length 100, got index {index}"
    batches = [[0, index], (index, 0, -1), range(index, index + 1)]
    batches += [np.array([5, index], dtype=dtype) for dtype in ("i4", "i8", "u8") if _holds(dtype, index)]
    for batch in batches:
        with refuses(ValueError) as caught:
            parse(batch, 100)
        assert str(caught.value) == sentence
    assert select([99, -100], 100) == [99, 0]


def _holds(dtype, number):
    return np.iinfo(dtype).min <= number <= np.iinfo(dtype).max


@pytest.mark.parametrize("batch", [[0], [-1], np.array([0]), range(1)])
def test_no_index_fits_length_zero(batch):
    with refuses(ValueError, "batch", "indices within the shortest scattered input, which has length 0"):
        parse(batch, 0)
    assert select([], 0) == select(None, 0) == select(0, 0) == select(slice(None, None, -1), 0) == []


@pytest.mark.parametrize(
    "batch, error, fields",
    [
        (
            True,
            TypeError,
            dict(expected="int", got="True of type bool"),
        ),
        (np.bool_(True), TypeError, dict(got="an array of type bool")),
        (2.0, TypeError, dict(got="2.0 of type float")),
        (np.float32(2), TypeError, dict(got="an array of type float32")),
        ("ab", TypeError, dict(got="'ab' of type str")),
        ({1, 2}, TypeError, dict(got="of type set")),
        (iter([1]), TypeError, dict(got="of type list_iterator")),
        ([1.0, 2.0], TypeError, dict(got="a list with 1.0 of type float")),
        ([1, None], TypeError, dict(got="a list with None of type NoneType")),
        ([1, np.array(1.5)], TypeError, dict(got="a list with array(1.5) of type ndarray")),
        (["a"], TypeError, dict(got="a list with 'a' of type str")),
        ([True, False], TypeError, dict(got="bools", hint="np.flatnonzero(mask)")),
        ([1, True], TypeError, dict(got="bools")),
        ([np.bool_(True)], TypeError, dict(got="bools")),
        (np.ones(10, dtype=bool), TypeError, dict(got="an array of type bool", hint="np.flatnonzero(mask)")),
        (np.array([]), TypeError, dict(got="an array of type float64")),
        (np.array([1 + 1j]), TypeError, dict(got="an array of type complex128")),
        (np.array([1], dtype=object), TypeError, dict(got="an array of type object")),
        ([[0, 1], [2, 3]], ValueError, dict(got="more than one dimension: a list with the entry [0, 1]")),
        ([0, [1]], ValueError, dict(got="dimension")),
        ([np.array([1, 2])], ValueError, dict(got="dimension")),
        ([slice(1)], ValueError, dict(got="dimension")),
        (np.zeros((2, 2), dtype=int), ValueError, dict(got="an array of shape (2, 2)")),
        (
            11,
            ValueError,
            dict(expected="at most 10, the length of the shortest scattered input", got="11"),
        ),
        (2**70, ValueError, dict(expected="at most 10, the length of")),
        (np.uint64(2**64 - 1), ValueError, dict(got="18446744073709551615")),
        (-1, ValueError, dict(expected="0 or more", got="-1", hint="slice(-1, None)")),
        (slice(None, None, 0), ValueError, dict(expected="0")),
        (slice(1.5), TypeError, dict(expected="integers", got="slice(None, 1.5, None)")),
        (slice("a", None), TypeError, dict(expected="integers")),
    ],
)
def test_what_is_no_selection_is_refused(batch, error, fields):
    with refuses(error, "batch", **fields):
        parse(batch, 10)


def test_messages_use_the_names_that_the_caller_gives():
    with refuses(ValueError, "rows", "values, which has length 5", "index 5"):
        parse([5], 5, argument="rows", of="values")


@pytest.mark.parametrize(
    "batch_s, expected",
    [
        (None, [range(5), range(4)]),
        (slice(-2, None), [[3, 4], [2, 3]]),
        ([0, 1], [[0, 1], [0, 1]]),
        ((0, -1), [[0, 4], [0, 3]]),
        ([], [[], []]),
        (range(2), [[0, 1], [0, 1]]),
        (np.array([-1]), [[4], [3]]),
        (ArrayLike([-1]), [[4], [3]]),
        ([np.int8(1), np.array(2)], [[1, 2], [1, 2]]),
        ([[0, 1], [2, 3]], [[0, 1], [2, 3]]),
        (((4,), [3]), [[4], [3]]),
        ([slice(0, 2), np.array([3])], [[0, 1], [3]]),
        ([[], slice(None)], [[], range(4)]),
        ([ArrayLike([4]), range(2)], [[4], [0, 1]]),
    ],
)
def test_parse_per_rank_table(batch_s, expected):
    lengths = [5, 4]
    selections = parse_per_rank(batch_s, lengths)
    taken = [selection.take(np.arange(n)).tolist() for selection, n in zip(selections, lengths)]
    assert taken == [list(rows) for rows in expected]


def test_one_rank_may_have_one_selection_or_a_list_of_one():
    for batch_s in ([1, 2], [[1, 2]], np.array([1, 2]), (range(1, 3),)):
        (selection,) = parse_per_rank(batch_s, [5])
        assert selection.take(np.arange(5)).tolist() == [1, 2]


@pytest.mark.parametrize(
    "batch_s, error, fields",
    [
        (3, TypeError, dict(expected="slice", got="3 of type int")),
        (np.int64(3), TypeError, dict(got=f"{np.int64(3)!r} of type int64")),
        ("ab", TypeError, dict(got="'ab' of type str")),
        ([0, [1]], TypeError, dict(got="a list that mixes both: 0 among selections")),
        ([slice(1), None], TypeError, dict(got="a list that mixes both: None among selections")),
        ([0.5, 1.5], TypeError, dict(got="a list with 0.5 of type float")),
        (
            [[0, 1], [2], [3]],
            ValueError,
            dict(expected="for each rank (2 in all), or a single one for all ranks", got="3"),
        ),
        ([[0, 1]], ValueError, dict(expected="for each rank (2 in all)", got="1")),
        (np.zeros((2, 2), dtype=int), ValueError, dict(got="an array of shape (2, 2)")),
        (
            [0, 4],
            ValueError,
            dict(
                argument="batch_shared", expected="the shortest sliceable shared variable of rank 1, which has length 4"
            ),
        ),
        (
            [[4], [4]],
            ValueError,
            dict(
                argument="batch_shared[1]",
                expected="sliceable shared variable of rank 1, which has length 4",
                got="index 4",
            ),
        ),
        ([[0], [[1]]], ValueError, dict(argument="batch_shared[1]", got="dimension")),
        ([[0.5], [1]], TypeError, dict(argument="batch_shared[0]")),
    ],
)
def test_what_is_no_selection_per_rank_is_refused(batch_s, error, fields):
    with refuses(error, **dict(dict(argument="batch_shared"), **fields)):
        parse_per_rank(batch_s, [5, 4])
