"""Reduce ops compared with NumPy; averages compared with exact fractions.

Modules: `accumulator`, `combining`, `op`.
"""

import pickle
import warnings
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.extra import numpy as hnp  # noqa: E402
from refusals import refuses  # noqa: E402

from synkhronos.reductions import (  # noqa: E402
    MISSING,
    Accumulator,
    ReduceOp,
    check_dtype,
    combine,
    combine_pieces,
    mean,
)
from synkhronos.reductions.combining import gather_outputs  # noqa: E402

AVG, SUM, PROD, MIN, MAX = (ReduceOp(name) for name in ("avg", "sum", "prod", "min", "max"))
GATHER, NONE = ReduceOp("gather"), ReduceOp(None)
UFUNCS = {SUM: np.add, PROD: np.multiply, MIN: np.minimum, MAX: np.maximum}
FLOATS = ["f2", "f4", "f8"]
COMPLEXES = ["c8", "c16"]
INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]
INF, NAN = np.inf, np.nan


@pytest.fixture(autouse=True)
def no_warnings():
    """Turn every warning and floating-point flag into an error: `combine` must be silent with any settings."""
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        yield


def dtypes_of(op):
    return FLOATS + COMPLEXES + ([] if op == AVG else INTEGERS + ["?"])


def elements(dtype):
    """Return small numbers, including signed zeros, so that NumPy's results are exact enough."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return st.booleans()
    if dtype.kind in "iu":
        return st.integers(0 if dtype.kind == "u" else -11, 11)
    real = st.floats(-100, 100, width=16) | st.sampled_from([0.0, -0.0, 1.0])
    return st.builds(complex, real, real) if dtype.kind == "c" else real


def any_float(dtype):
    return st.floats(width=8 * np.dtype(dtype).itemsize)


def finite_float(dtype):
    return st.floats(width=8 * np.dtype(dtype).itemsize, allow_nan=False, allow_infinity=False)


def bits(array):
    """Return the bits of an array with all NaNs made equal: NumPy does not define which of two NaNs results."""
    array = array.copy()
    for part in (array.real, array.imag) if array.dtype.kind == "c" else (array,):
        if array.dtype.kind in "fc":
            part[np.isnan(part)] = NAN
    return array.dtype.str, array.shape, array.tobytes()


# --- ReduceOp ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["avg", "sum", "prod", "min", "max", "gather"])
def test_parse_knows_every_op_with_and_without_the_prefix(name):
    assert ReduceOp.parse(name) == ReduceOp(name, on_host=False)
    assert ReduceOp.parse("c_" + name) == ReduceOp(name, on_host=True)
    assert ReduceOp.parse(ReduceOp(name, True)) == ReduceOp(name, True)
    assert str(ReduceOp.parse("c_" + name)) == "c_" + name
    assert str(ReduceOp.parse(name)) == name


def test_none_is_an_op():
    assert ReduceOp.parse(None) == ReduceOp(None, on_host=False)


@pytest.mark.parametrize("op", ["mean", "", "c_", "AVG", "c_c_sum", "None", "c_None", "sum "])
def test_unknown_ops_are_refused_with_the_known_ones(op):
    with refuses(ValueError, "op", "'avg', 'sum', 'prod', 'min', 'max', 'gather', None (with prefix 'c_'", repr(op)):
        ReduceOp.parse(op)


@pytest.mark.parametrize("op", [1, True, np.add, ("avg",), ["avg"], b"avg", MISSING])
def test_ops_of_another_type_are_refused(op):
    with refuses(TypeError, "the op of output 0", "'avg', 'sum'", " of type "):
        ReduceOp.parse(op, argument="the op of output 0")


@pytest.mark.parametrize("op", ["gather", "c_gather", None, GATHER])
def test_ops_that_make_no_sense_where_they_stand_are_refused(op):
    with refuses(ValueError, "op", "'avg', 'sum' ("):
        ReduceOp.parse(op, allowed=("avg", "sum"))


def test_ops_are_values():
    op = ReduceOp.parse("c_sum")
    assert {op: 1}[ReduceOp("sum", True)] == 1
    assert pickle.loads(pickle.dumps(op)) == op
    assert op != SUM
    with pytest.raises(AttributeError):
        op.name = "avg"


@pytest.mark.parametrize("dtype", FLOATS + COMPLEXES)
def test_the_default_op_of_floats_is_avg(dtype):
    assert ReduceOp.for_output(MISSING, dtype, "output 0") == AVG


@pytest.mark.parametrize("dtype", INTEGERS + ["?"])
def test_integers_have_no_default_op_and_no_average(dtype):
    for op in (MISSING, "avg", "c_avg"):
        with refuses(TypeError, "output 1 ('count')", "floating-point", np.dtype(dtype).name, "'sum'") as caught:
            ReduceOp.for_output(op, dtype, "output 1 ('count')")
        assert "None" in caught.value.hint and "cast" in caught.value.hint
    for op in ("sum", "prod", "min", "max", "gather", None):
        assert ReduceOp.for_output(op, dtype, "output 1") == ReduceOp(op)


def test_a_wrong_op_of_an_output_is_named():
    with refuses(ValueError, "the op of output 2"):
        ReduceOp.for_output("mean", "f4", "output 2")


@pytest.mark.parametrize("dtype", ["O", "U3", "M8[s]", "V4"])
def test_what_is_no_number_can_only_be_gathered(dtype):
    for op in (AVG, SUM, PROD, MIN, MAX):
        with refuses(TypeError, "names", f"'{op}'", str(np.dtype(dtype)), "'gather' or None"):
            check_dtype(op, dtype, "names")
    check_dtype(GATHER, dtype, "names")
    check_dtype(NONE, dtype, "names")


# --- weights ----------------------------------------------------------------------------------------------------------


def shares(weights):
    """Return each weight's share of their sum, as an average of unit vectors."""
    return combine(AVG, list(np.eye(len(weights))), weights)


@pytest.mark.parametrize(
    "weights, expected",
    [
        ([3, 1], [0.75, 0.25]),
        ([1], [1]),
        ([0, 5, 0], [0, 1, 0]),
        ([0, 0], [0.5, 0.5]),
        ([0, 0, 0, 0], [0.25] * 4),
        ([1e308, 1e308, 1e308, 1e308], [0.25] * 4),
        ([5e-324, 5e-324], [0.5, 0.5]),
        ([1.5, 0.5], [0.75, 0.25]),
        (np.array([1, 3], dtype="i4"), [0.25, 0.75]),
        ((np.float32(1), np.array(3)), [0.25, 0.75]),
        ([True, Fraction(3)], [0.25, 0.75]),
    ],
)
def test_shares_of_weights(weights, expected):
    assert shares(weights).tolist() == expected


@given(st.lists(st.floats(0, 1e308), min_size=1, max_size=9))
@settings(deadline=None)
def test_shares_are_parts_of_the_sum(weights):
    exact = [Fraction(weight) for weight in weights]
    if any(exact):
        expected = [float(weight / sum(exact)) for weight in exact]
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(shares(weights), expected, rtol=1e-14, atol=1e-300)
    assert abs(shares(weights).sum() - 1) < 1e-14


@pytest.mark.parametrize(
    "weights, error, position, got",
    [
        ([1, -1], ValueError, 1, "-1"),
        ([NAN, 1], ValueError, 0, "nan"),
        ([1, 1, INF], ValueError, 2, "inf"),
        ([1, 10**400], ValueError, 1, "1000"),
        ([1, "2"], TypeError, 1, "'2' of type str"),
        ([None, 1], TypeError, 0, "None of type NoneType"),
        ([1j], TypeError, 0, "1j of type complex"),
        ([np.ones(1)], TypeError, 0, "of type ndarray"),
    ],
)
@pytest.mark.parametrize("shape", [(2,), ()], ids=["array", "number"])
def test_bad_weights_are_refused(weights, error, position, got, shape):
    expected = "finite" if error is ValueError else "real"
    with refuses(error, f"weights[{position}]", expected, got):
        combine(AVG, [np.ones(shape)] * len(weights), weights)


# --- combine: sum, prod, min, max -------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", UFUNCS, ids=str)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_ops_are_those_of_numpy(op, data):
    dtype = data.draw(st.sampled_from([dtype for dtype in dtypes_of(op) if dtype not in ("f2", "?")]))
    shape = data.draw(st.sampled_from([(), (0,), (5,), (2, 3), (0, 2), (1, 2, 2)]))
    parts = data.draw(st.lists(hnp.arrays(dtype, shape, elements=elements(dtype)), min_size=1, max_size=4))
    with np.errstate(all="ignore"):
        expected = reduce(lambda x, y: UFUNCS[op](x, y, dtype=dtype), parts)
        in_place = np.array(parts[0], dtype)  # in-place products of complex numbers may round differently
        for part in parts[1:]:
            UFUNCS[op](in_place, part, out=in_place)
    result = combine(op, parts)
    assert type(result) is np.ndarray
    assert bits(result) in (bits(np.asarray(expected)), bits(in_place))
    assert not any(np.shares_memory(result, part) for part in parts)


@pytest.mark.parametrize("keep_dtype", [False, True])
def test_bools(keep_dtype):
    a, b, c = (np.array(values) for values in ([True, True, False], [True, False, False], [True, True, False]))
    expected = {
        SUM: (np.add, [3, 2, 0], [True, True, False]),
        PROD: (np.multiply, [1, 0, 0], [True, False, False]),
    }
    for op, (ufunc, numbers, bools) in expected.items():
        result = combine(op, [a, b, c], keep_dtype=keep_dtype)
        assert result.tolist() == (bools if keep_dtype else numbers)
        assert result.dtype == (bool if keep_dtype else ufunc.reduce(np.stack([a, b, c]), axis=0, dtype=int).dtype)
    assert combine(SUM, [a, b, c]).dtype == np.sum([a, b, c], axis=0).dtype
    assert combine(SUM, [a]).dtype == np.sum(a).dtype
    assert combine(MIN, [a, b, c], keep_dtype=keep_dtype).tolist() == [True, False, False]
    assert combine(MAX, [a, b, c], keep_dtype=keep_dtype).tolist() == [True, True, False]


def test_integers_wrap_as_in_numpy():
    parts = [np.array([200, 1], dtype="u1")] * 2
    assert combine(SUM, parts).tolist() == [144, 2]
    assert combine(SUM, parts).dtype == np.uint8
    assert combine(PROD, [np.array(2**62)] * 2).tolist() == 0


@pytest.mark.parametrize("dtype", FLOATS + COMPLEXES)
@pytest.mark.parametrize("op", [AVG, *UFUNCS], ids=str)
def test_nan_propagates_from_every_rank(op, dtype):
    for rank in range(3):
        parts = [np.array([1.0, 2.0], dtype=dtype) for _ in range(3)]
        parts[rank][1] = NAN
        assert np.isnan(combine(op, parts)).tolist() == [False, True]
        assert np.isnan(combine(op, parts[rank : rank + 1])).tolist() == [False, True]


@pytest.mark.parametrize("op", [SUM, PROD, AVG], ids=str)
def test_float16_accumulates_in_float32(op):
    rng = np.random.RandomState(1)
    parts = [rng.uniform(0.5, 2, 1000).astype("f2") for _ in range(7)]
    wide = np.stack(parts).astype("f4")
    expected = {SUM: wide.sum(0), PROD: wide.prod(0), AVG: wide.mean(0, dtype="f8")}[op].astype("f2")
    result = combine(op, parts)
    assert result.dtype == np.float16
    assert (result == expected).mean() > 0.99  # equal up to rounding of float32
    narrow = reduce({PROD: np.multiply}.get(op, np.add), parts)
    assert op == AVG or (narrow == expected).mean() < 0.8


def test_float16_may_overflow_on_the_way_but_not_at_the_end():
    big = np.array([60000, 60000], dtype="f2")
    assert combine(SUM, [big, big, -big]).tolist() == [60000, 60000]
    assert combine(SUM, [big, big]).tolist() == [INF, INF]
    assert combine(AVG, [big, big, big]).tolist() == [60000, 60000]


def test_overflow_of_a_sum_is_infinite_and_silent():
    assert combine(SUM, [np.array([1e308])] * 3).tolist() == [INF]
    assert combine(PROD, [np.array([1e-308])] * 3).tolist() == [0]


def test_order_is_strictly_that_of_the_ranks():
    parts = [np.array([1.0]), np.array([1e16]), np.array([-1e16])]
    assert combine(SUM, parts).tolist() == [0.0]
    assert combine(SUM, parts[::-1]).tolist() == [1.0]


# --- combine: avg -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values, weights, expected",
    [
        ([1, 3], None, 2),
        ([1, 4, 6.5, 8.5], [3, 3, 2, 2], 4.5),  # 0, 1, ..., 9 over 4 ranks
        ([0, 1, 2], None, 1),
        ([0, 1, 2], [0, 0, 0], 1),
        ([1, 3], [0, 0], 2),
        ([NAN, 3, INF], [0, 2, 0], 3),
        ([NAN, 3, 5], [0, 1, 1], 4),
        ([NAN, 3], [1, 1], NAN),
        ([INF, INF], None, INF),
        ([INF, 1], [1, 1000], INF),
        ([INF, 1], [1e-60, 1], INF),
        ([INF, 1], [5e-324, 1e308], INF),
        ([-INF, 1, 1], None, -INF),
        ([INF, -INF], None, NAN),
        ([INF, -INF, 1], None, NAN),
        ([-0.0, -0.0], None, -0.0),
        ([-0.0, -0.0, -0.0], None, -0.0),
        ([1, 2], [1e308, 1e308], 1.5),
        ([1, 5], [3 * 2.0**1021, 2.0**1021], 2),
        ([1, 2], [5e-324, 5e-324], 1.5),
        ([7], [3], 7),
        ([7], [0], 7),
        ([7, None], [3, 0], 7),
        ([None, 1, None, 3], None, 2),
        ([None, 1, None, 3], [5, 1, 5, 3], 2.5),
        ([None, 1, None, 3], [5, 0, 5, 0], 2),
    ],
)
@pytest.mark.parametrize("dtype", FLOATS)
def test_avg_table(values, weights, expected, dtype):
    parts = [None if value is None else np.array(value, dtype=dtype) for value in values]
    result = combine(AVG, parts, weights)
    assert result.shape == () and result.dtype == dtype
    np.testing.assert_array_equal(result, np.array(expected, dtype=dtype))
    assert np.signbit(result) == np.signbit(np.array(expected, dtype=dtype)) or np.isnan(expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_avg_is_the_exact_average_but_for_rounding(dtype, data):
    values = data.draw(st.lists(finite_float(dtype), min_size=1, max_size=6))
    weights = data.draw(
        st.none()
        | st.lists(st.integers(0, 1000), min_size=len(values), max_size=len(values))
        | st.lists(st.floats(0, 1e308), min_size=len(values), max_size=len(values))
    )
    shares = [Fraction(weight) for weight in (weights if weights and any(weights) else [1] * len(values))]
    info = np.finfo(dtype)
    tiny = Fraction(2) ** (info.minexp - info.nmant)
    eps = Fraction(2) ** -info.nmant
    exact = sum(share * Fraction(value) for share, value in zip(shares, values)) / sum(shares)
    scale = sum(share * abs(Fraction(value)) for share, value in zip(shares, values)) / sum(shares)
    result = float(combine(AVG, [np.array([value], dtype=dtype) for value in values], weights)[0])
    taking_part = [value for share, value in zip(shares, values) if share]
    assert min(taking_part) <= result <= max(taking_part)
    # Rounding errors of the values, and of weights that are tiny compared with the others.
    tolerance = eps * scale + 2 * tiny * (1 + Fraction(max(map(abs, values))))
    assert abs(Fraction(result) - exact) <= (len(values) + 2) * tolerance


@pytest.mark.parametrize("dtype", FLOATS)
@given(data=st.data())
@settings(deadline=None)
def test_avg_of_equal_values_is_that_value(dtype, data):
    value = np.array([data.draw(any_float(dtype))], dtype=dtype)
    weights = data.draw(st.lists(st.floats(0, 1e308) | st.integers(0, 9), min_size=1, max_size=7))
    assert bits(combine(AVG, [value] * len(weights), weights)) == bits(value)
    assert bits(combine(AVG, [value] * len(weights))) == bits(value)


@pytest.mark.parametrize("dtype", FLOATS)
def test_avg_is_exact_at_both_ends_of_the_range_at_once(dtype):
    info = np.finfo(dtype)
    part = np.array([info.max, -info.max, 2.0 ** (info.minexp - info.nmant), 1], dtype)
    for n in (2, 3):
        assert bits(combine(AVG, [part] * n)) == bits(part)


@pytest.mark.parametrize("dtype", COMPLEXES)
@given(data=st.data())
@settings(deadline=None)
def test_avg_of_complex_numbers_averages_their_parts(dtype, data):
    real = np.zeros(0, dtype=dtype).real.dtype
    n = data.draw(st.integers(1, 4))
    weights = data.draw(st.none() | st.lists(st.integers(0, 5), min_size=n, max_size=n))
    halves = data.draw(hnp.arrays(real, (n, 2, 3), elements=any_float(real)))
    parts = []
    for first, second in halves:
        part = np.empty(3, dtype=dtype)
        part.real, part.imag = first, second
        parts.append(part)
    result = combine(AVG, parts, weights)
    assert result.dtype == dtype
    assert bits(result.real.copy()) == bits(combine(AVG, list(halves[:, 0]), weights))
    assert bits(result.imag.copy()) == bits(combine(AVG, list(halves[:, 1]), weights))


@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_avg_over_uneven_shards_is_the_mean_of_all_rows(n_rows, n_ranks, seed):
    rows = np.random.RandomState(seed).randn(n_rows, 3)
    shards = np.array_split(rows, n_ranks)
    parts = [shard.mean(axis=0) if len(shard) else None for shard in shards]
    result = combine(AVG, parts, [len(shard) for shard in shards])
    np.testing.assert_allclose(result, rows.mean(axis=0), rtol=1e-13, atol=1e-14)


def test_avg_of_integers_is_refused():
    with refuses(TypeError, expected="'avg'", got="int64"):
        combine(AVG, [np.array([1]), np.array([2])])


# --- combine: form ----------------------------------------------------------------------------------------------------

HARD = [0.0, -0.0, 1.0, -1.5, 3e-8, 6e4, -6e4, INF, -INF, NAN, 0.1, 1 / 3]


def hard_parts(dtype, n, size, seed):
    """Return parts full of infinities, NaN, and numbers that overflow or underflow."""
    rng = np.random.RandomState(seed)
    dtype = np.dtype(dtype)
    parts = []
    for _ in range(n):
        if dtype.kind in "fc":
            with np.errstate(all="ignore"):
                values = rng.choice(HARD + [float(np.finfo(dtype).max), float(np.finfo(dtype).tiny) / 8], size)
                part = values.astype(dtype)
                if dtype.kind == "c":
                    part.imag = rng.permutation(values)
        else:
            part = rng.randint(0, 2 if dtype.kind == "b" else 120, size).astype(dtype)
        parts.append(part)
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("block_bytes", [16, 112, 1 << 17])
@pytest.mark.parametrize("op", [AVG, *UFUNCS], ids=str)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_blocks_have_the_bits_of_the_whole(op, block_bytes, data):
    dtype = data.draw(st.sampled_from(dtypes_of(op)))
    n = data.draw(st.integers(1, 4))
    size = data.draw(st.integers(0, 70))
    weights = data.draw(st.none() | st.lists(st.integers(0, 3) | st.floats(0, 1), min_size=n, max_size=n))
    parts = hard_parts(dtype, n, size, data.draw(st.integers(0, 999)))
    parts[data.draw(st.integers(0, n - 1))] = None if n > 1 else parts[0]
    whole = combine(op, parts, weights)
    cuts = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=4))})
    out = np.empty_like(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mean, "BLOCK_BYTES", block_bytes)
        for start, stop in zip(cuts, cuts[1:]):
            cut = [None if part is None else part[start:stop] for part in parts]
            combine_pieces(op, [(cut, [out[start:stop]])], weights)
    assert bits(out) == bits(whole)


@pytest.mark.slow
@pytest.mark.parametrize("op", [AVG, *UFUNCS], ids=str)
@pytest.mark.parametrize("weights", [None, [1, 1, 1, 1], [4, 0, 2, 1], [0, 3, 0, 3], [0, 0, 2, 0]])
def test_out_may_be_any_of_the_parts(op, weights):
    for dtype in dtypes_of(op):
        for n in (1, 2, 3, 4):
            expected = combine(op, hard_parts(dtype, n, 50, 7), weights and weights[:n], keep_dtype=True)
            for rank in range(n):
                parts = hard_parts(dtype, n, 50, 7)
                others = [part.copy() for part in parts]
                result = combine(op, parts, weights and weights[:n], out=parts[rank], keep_dtype=True)
                assert result is parts[rank]
                assert bits(result) == bits(expected)
                assert all(bits(parts[i]) == bits(others[i]) for i in range(n) if i != rank)


@pytest.mark.parametrize("op", [AVG, *UFUNCS], ids=str)
def test_layouts(op):
    rng = np.random.RandomState(3)
    memory = rng.randint(1, 9, (3, 8, 9)).astype("f4")
    plain = [np.ascontiguousarray(part[::2, ::-1]) for part in memory]
    expected = combine(op, plain)
    for parts in ([np.asfortranarray(part) for part in plain], [part[::2, ::-1] for part in memory.copy()]):
        for out in (None, np.empty((4, 9), "f4"), np.empty((9, 4), "f4").T, parts[0], parts[2]):
            result = combine(op, [part if part is out else part.copy(order="K") for part in parts], out=out)
            assert out is None or result is out
            assert bits(result) == bits(expected)
            parts = [part.copy() for part in plain] if out is not None and out is parts[0] else parts


def test_out_may_overlap_the_parts_in_any_way(monkeypatch):
    monkeypatch.setattr(mean, "BLOCK_BYTES", 16)
    for shift in (-3, -1, 1, 3):
        memory = np.arange(40.0)
        first, second = memory[10:20], memory[25:35]
        expected = first + second
        out = memory[10 + shift : 20 + shift]
        np.testing.assert_array_equal(combine(SUM, [first, second], out=out), expected)
    memory = np.arange(12.0)
    expected = memory[::-1] + 1
    np.testing.assert_array_equal(combine(SUM, [memory[::-1], np.ones(12)], out=memory), expected)


@pytest.mark.parametrize("op", [AVG, *UFUNCS], ids=str)
def test_parts_are_not_changed_and_nothing_aliases(op):
    for n in (1, 2, 3):
        parts = hard_parts("f8", n, 100, 5)
        copies = [part.copy() for part in parts]
        result = combine(op, parts)
        result[...] = 0
        assert [bits(part) for part in parts] == [bits(copy) for copy in copies]


@pytest.mark.parametrize("op", [AVG, *UFUNCS], ids=str)
def test_zero_dimensions_stay_arrays(op):
    for parts in ([np.array(2.0)], [np.array(2.0), np.array(2.0)], [np.float64(2), None, np.float64(2)]):
        result = combine(op, parts)
        assert type(result) is np.ndarray and result.shape == ()
        out = np.array(0.0)
        assert combine(op, parts, out=out) is out
        assert out == result


@pytest.mark.parametrize("op", [AVG, *UFUNCS], ids=str)
def test_other_byte_orders(op):
    parts = [np.array([1.5, 2.5, 7]), np.array([3.0, 1, 9]), np.array([0.0, 1, 2])]
    result = combine(op, [part.astype(">f8") for part in parts])
    assert result.dtype == np.dtype(">f8")
    np.testing.assert_array_equal(result, combine(op, parts))


def test_large_values_take_several_blocks():
    rng = np.random.RandomState(0)
    parts = [rng.randn(3, 50000) for _ in range(3)]
    np.testing.assert_array_equal(combine(SUM, parts), parts[0] + parts[1] + parts[2])
    np.testing.assert_allclose(combine(AVG, parts, [3, 2, 2]), np.average(parts, axis=0, weights=[3, 2, 2]))
    np.testing.assert_array_equal(combine(AVG, parts[:2]), (parts[0] + parts[1]) / 2)


@pytest.mark.parametrize(
    "call, error, fields",
    [
        (lambda: combine(SUM, []), ValueError, ("'sum'", "one rank", "none")),
        (lambda: combine(SUM, [None, None]), ValueError, ("'sum'", "one rank", "none")),
        (lambda: combine(SUM, [np.ones(2), np.ones(3)]), ValueError, ("'sum'", None, "float64(2,) and float64(3,)")),
        (
            lambda: combine(SUM, [np.ones(2), np.ones(2, "f4")]),
            ValueError,
            ("'sum'", None, "float64(2,) and float32(2,)"),
        ),
        (
            lambda: combine(SUM, [np.ones((1, 2)), np.ones(2)]),
            ValueError,
            ("'sum'", None, "float64(1, 2) and float64(2,)"),
        ),
        (lambda: combine(SUM, [np.ones(2)], out=np.ones(3)), ValueError, ("out", "float64(2,)", "float64(3,)")),
        (lambda: combine(SUM, [np.ones(2)], out=np.ones(2, "f4")), ValueError, ("out", "float64(2,)", "float32(2,)")),
        (lambda: combine(SUM, [np.ones(2, "?")], out=np.ones(2, "?")), ValueError, ("out", "int64(2,)", "bool(2,)")),
        (
            lambda: combine(AVG, [np.ones(2)] * 2, [1]),
            ValueError,
            ("weights", "each rank (2 in all)", "1"),
        ),
        (lambda: combine(AVG, [np.ones(())] * 2, [1]), ValueError, ("weights", "each rank (2 in all)", "1")),
        (lambda: combine(GATHER, [np.ones(2)]), ValueError, ("op", "'sum'", "'gather'")),
        (lambda: combine(NONE, [np.ones(2)]), ValueError, ("op", "'sum'", "'None'")),
        (lambda: combine(SUM, [np.array(["a"])]), TypeError, (None, "'sum'", "<U1")),
    ],
)
def test_bad_arguments_are_refused(call, error, fields):
    with refuses(error, *fields):
        call()


# --- gather -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parts, expected",
    [
        ([np.array(1), np.array(2), np.array(3)], [1, 2, 3]),
        ([np.array(1), None, np.array(3)], [1, 3]),
        ([np.float64(1)], [1]),
        ([np.array([1, 2]), np.array([]), np.array([3])], [1, 2, 3]),
        ([None, np.array([[1, 2]]), np.array([[3, 4], [5, 6]])], [[1, 2], [3, 4], [5, 6]]),
        ([np.zeros((0, 2)), np.zeros((0, 2))], np.zeros((0, 2))),
    ],
)
def test_gather_concatenates_in_rank_order(parts, expected):
    result = gather_outputs(parts)
    np.testing.assert_array_equal(result, expected)
    assert result.shape == np.shape(expected)
    assert not any(np.shares_memory(result, part) for part in parts if part is not None)


@pytest.mark.parametrize(
    "parts, got",
    [
        ([np.ones((2, 3)), None, np.ones((2, 4))], "(2, 3) and (2, 4)"),
        ([np.ones(2), np.ones((2, 1))], "(2,) and (2, 1)"),
        ([np.array(1.0), np.ones(1)], "() and (1,)"),
        ([None], "none"),
    ],
)
def test_gather_refuses_shapes_that_do_not_fit(parts, got):
    with refuses(ValueError, "'gather'", got=got):
        gather_outputs(parts)


# --- Accumulator ------------------------------------------------------------------------------------------------------


def accumulate(op, slices, weights, **kwargs):
    accumulator = Accumulator(op, **kwargs)
    for value, weight in zip(slices, weights):
        accumulator.add(value, weight)
    return accumulator.finish()


@pytest.mark.slow
@pytest.mark.thorough("prod|min|max")
@pytest.mark.parametrize("op", [AVG, *UFUNCS], ids=str)
@given(data=st.data())
@settings(deadline=None)
def test_accumulating_slices_and_then_ranks_is_combining_all_slices_at_once(op, data):
    dtype = data.draw(st.sampled_from(dtypes_of(op)))
    exact = elements(dtype) if op == AVG else st.sampled_from([0, 1, 2] + [-1, -2] * (np.dtype(dtype).kind in "ifc"))
    slices = st.tuples(hnp.arrays(dtype, (2,), elements=exact.map(np.dtype(dtype).type)), st.integers(0, 3))
    ranks = data.draw(st.lists(st.lists(slices, max_size=4), min_size=1, max_size=3).filter(any))
    if not any(weight for slices in ranks for _, weight in slices):
        ranks = [[(value, 1) for value, _ in slices] for slices in ranks]
    values, weights = zip(*(accumulate(op, *zip(*slices)) if slices else accumulate(op, [], []) for slices in ranks))
    result = combine(op, values, weights)
    expected = combine(op, *zip(*(pair for slices in ranks for pair in slices)))
    assert result.dtype == expected.dtype
    atol = 100 * 20 * float(np.finfo(dtype).eps) if op == AVG else 0
    np.testing.assert_allclose(result, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "values, weights, expected, total",
    [
        ([1, 5], [3, 1], 2, 4),
        ([1, 2, 6], [1, 1, 1], 3, 3),
        ([1, 2, 6], [0, 0, 0], 3, 0),
        ([NAN, 2, NAN, 4], [0, 1, 0, 1], 3, 2),
        ([2, NAN], [0, 1], NAN, 1),
        ([INF, INF, 1], [1, 1, 1], INF, 3),
        ([1e308, 1e308, 1e308], [1, 1, 1], 1e308, 3),
        ([0.1] * 7, [3, 1, 4, 1, 5, 9, 2], 0.1, 25),
        ([4], [2], 4, 2),
        ([4], [0], 4, 0),
    ],
)
def test_accumulated_averages(values, weights, expected, total):
    result, weight = accumulate(AVG, [np.array(value, dtype=float) for value in values], weights)
    assert type(result) is np.ndarray and result.shape == ()
    np.testing.assert_array_equal(result, expected)
    assert weight == total


def test_accumulating_float16_rounds_once():
    slices = [np.array([1.0], "f2")] + [np.array([2.0**-12], "f2")] * 64
    result, _ = accumulate(SUM, slices, [1] * 65)
    assert result.dtype == np.float16
    assert result.tolist() == [1 + 2.0**-6]
    result, _ = accumulate(SUM, [np.array([60000.0], "f2")] * 2, [1, 1])
    assert result.tolist() == [INF]


def test_accumulating_bools():
    slices = [np.array([True, False])] * 3
    result, _ = accumulate(SUM, slices, [1] * 3)
    assert result.dtype == np.sum(slices).dtype and result.tolist() == [3, 0]
    result, _ = accumulate(SUM, slices, [1] * 3, keep_dtype=True)
    assert result.dtype == bool and result.tolist() == [True, False]


def test_accumulating_gather_gives_one_entry_per_slice():
    result, weight = accumulate(GATHER, [np.array(1.0), np.array(2.0)], [2, 3])
    assert result.tolist() == [1, 2] and weight == 5
    result, _ = accumulate(GATHER, [np.ones((2, 2)), np.zeros((1, 2))], [2, 1])
    assert result.tolist() == [[1, 1], [1, 1], [0, 0]]


def test_op_none_takes_one_slice():
    value = np.array(["any", "type"])
    accumulator = Accumulator(NONE)
    accumulator.add(value, 3)
    assert accumulator.finish()[0].tolist() == ["any", "type"]
    with refuses(ValueError, "op", got="'None'"):
        accumulate(NONE, [np.ones(1)] * 2, [1, 1])


@pytest.mark.parametrize("op", [AVG, *UFUNCS, GATHER, NONE], ids=str)
def test_without_slices_there_is_nothing(op):
    assert Accumulator(op).finish() == (None, 0)


@pytest.mark.parametrize("dtype", ["f2", "f8"])
@pytest.mark.parametrize("op", [AVG, *UFUNCS, GATHER, NONE], ids=str)
def test_slices_may_come_in_one_buffer_that_is_used_again(op, dtype):
    buffer = np.empty(3, dtype)
    accumulator = Accumulator(op)
    n = 1 if op == NONE else 3
    for value in range(1, n + 1):
        buffer[...] = value
        accumulator.add(buffer, 1)
        assert buffer.tolist() == [value] * 3
        buffer[...] = 99
    result, _ = accumulator.finish()
    values = [np.full(3, value, dtype) for value in range(1, n + 1)]
    expected = {GATHER: gather_outputs, NONE: lambda values: values[0]}.get(op, lambda values: combine(op, values))
    np.testing.assert_array_equal(result, expected(values))
    assert result.dtype == dtype


@pytest.mark.parametrize(
    "op, second, error",
    [
        (AVG, np.ones(3), ValueError),
        (SUM, np.ones(2, "f4"), ValueError),
        (SUM, np.ones(2, "c16"), ValueError),
        (GATHER, np.ones((2, 2)), ValueError),
    ],
)
def test_slices_must_fit_each_other(op, second, error):
    with pytest.raises(error):
        accumulate(op, [np.ones(2), second], [1, 1])


def test_accumulated_weights_are_checked():
    for weights in ([-1], [1, -1], [1, NAN]):
        with refuses(ValueError, "weights", "finite"):
            accumulate(AVG, [np.ones(2)] * len(weights), weights)


def is_close_to_serial_mean(rows, shards, num_slices):
    accumulated = []
    for shard in shards:
        accumulator = Accumulator(AVG)
        for slice_ in np.array_split(shard, num_slices):
            if len(slice_):
                accumulator.add(slice_.mean(axis=0), len(slice_))
        accumulated.append(accumulator.finish())
    result = combine(AVG, *zip(*accumulated))
    return np.allclose(result, rows.mean(axis=0), rtol=1e-12, atol=1e-13)


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_slices_of_uneven_shards_give_the_mean_of_all_rows(n_rows, n_ranks, num_slices, seed):
    rows = np.random.RandomState(seed).randn(n_rows, 3)
    assert is_close_to_serial_mean(rows, np.array_split(rows, n_ranks), num_slices)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["avg", "sum"])
def test_single_numbers_are_combined_as_arrays_are(name, n):
    """The shorter code for single numbers gives the same results as the code for arrays."""
    random = np.random.RandomState(n)
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, 1e-300, 5e-324, -1e300]
    for trial in range(300):
        values = random.randn(n) * 10.0 ** random.randint(-3, 4, n)
        if trial % 3 == 0:
            values[random.randint(n)] = odd[random.randint(len(odd))]
        weights = [None, [1] * n, list(random.randint(0, 4, n)), list(random.rand(n))][random.randint(4)]
        if name == "sum":
            weights = None
        numbers = combine(ReduceOp(name), [np.array(value) for value in values], weights)
        arrays = combine(ReduceOp(name), [np.array([value]) for value in values], weights)
        assert numbers.shape == () and numbers.dtype == arrays.dtype
        assert np.array_equal(numbers, arrays[0], equal_nan=True) and np.signbit(numbers) == np.signbit(arrays[0])


def test_single_numbers_of_float32_are_rounded_once():
    third = np.float32(1 / 3)
    assert combine(ReduceOp("avg"), [np.array(third)] * 3, [1, 2, 4]) == third
    total = combine(ReduceOp("sum"), [np.array(third), np.array(np.float32(1e-9)), np.array(third)])
    assert total.dtype == np.float32 and total == np.float32(float(third) + float(np.float32(1e-9)) + float(third))
