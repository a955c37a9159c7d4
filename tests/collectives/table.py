"""The table of the collectives: the ops that are defined for each dtype, and NumPy's results.

The tests in this folder are generated from the table, and ``tools/collectives_table.py`` prints it for the docs. This
module does not use synkhronos.
"""

import functools
import zlib

import numpy as np

OPS = ("avg", "sum", "prod", "min", "max")

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)

#: 0 to 4 dimensions; the second dimension of some equals a number of ranks; none is a multiple of 64 bytes.
SHAPES = ((), (5,), (4, 2), (3, 3), (2, 3, 3), (1, 2, 3, 2), (0, 3))

#: (number of ranks, root)
PLACES = ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2))

_UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def defined(op, dtype):
    """Return whether NumPy's result for arrays of the dtype has the same dtype."""
    ones = np.ones(2, dtype)
    return (ones.mean() if op == "avg" else _UFUNCS[op](ones, ones)).dtype == ones.dtype


#: Defined combinations of op and dtype, then undefined ones.
DEFINED = [(op, dtype) for op in OPS for dtype in DTYPES if defined(op, dtype)]
UNDEFINED = [(op, dtype) for op in OPS for dtype in DTYPES if not defined(op, dtype)]


def value(dtype, shape, rank=0, seed=0):
    """Return an array for a rank; equal arguments yield equal arrays."""
    dtype = np.dtype(dtype)
    random = np.random.RandomState(zlib.crc32(repr((dtype.str, shape, rank, seed)).encode()))
    if dtype.kind in "bui":
        limits = np.iinfo(dtype if dtype.kind != "b" else np.uint8)
        whole = random.randint(max(limits.min, -(2**62)), min(limits.max, 2**62), shape)
        return np.asarray(whole % 2 if dtype.kind == "b" else whole).astype(dtype)
    array = random.standard_normal(shape)
    if dtype.kind == "c":
        array = array + 1j * random.standard_normal(shape)
    return np.asarray(array).astype(dtype)


def expected(op, parts, weights=None):
    """Return NumPy's reduction of the ranks' arrays, for `assert_reduced`."""
    parts = [np.asarray(part) for part in parts]
    dtype = parts[0].dtype
    with np.errstate(all="ignore"):
        if op == "avg":
            wide = np.clongdouble if dtype.kind == "c" else np.longdouble
            weights = np.ones(len(parts)) if weights is None else weights
            pairs = [(part.astype(wide), np.longdouble(weight)) for part, weight in zip(parts, weights) if weight]
            total = sum(weight for _, weight in pairs)
            return np.asarray(sum(part * (weight / total) for part, weight in pairs)).astype(dtype)
        if dtype == np.float16:  # accumulates in float32
            parts = [part.astype(np.float32) for part in parts]
        return np.asarray(functools.reduce(_UFUNCS[op], parts)).astype(dtype)


def assert_reduced(op, got, want):
    """Compare a result with `expected`, exactly except for averages and complex products, which may be rounded."""
    got = np.asarray(got)
    assert got.dtype == want.dtype and got.shape == want.shape
    if op == "avg" or (op == "prod" and want.dtype.kind == "c"):
        real = np.finfo(want.dtype)
        np.testing.assert_allclose(got, want, rtol=8 * real.eps, atol=8 * real.eps)
    else:
        np.testing.assert_array_equal(got, want)


def assert_same_bits(values, want=None):
    """Check that all arrays (the ranks' values) have the same type, shape and bits, and those of ``want`` if given."""
    want = np.asarray(values[0] if want is None else want)
    for got in values:
        assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape, want.dtype, want.shape)
        assert got.tobytes() == want.tobytes(), (got, want)


def document():
    """Return the table for the docs, as reStructuredText."""
    rule = " ".join(["=" * 10] + ["=" * 4] * len(OPS))
    rows = [("dtype", OPS)] + [(dtype, ["yes" if defined(op, dtype) else "no" for op in OPS]) for dtype in DTYPES]
    lines = [" ".join([f"{name:<10}"] + [f"{cell:<4}" for cell in cells]).rstrip() for name, cells in rows]
    return "\n".join([rule, lines[0], rule] + lines[1:] + [rule]) + "\n"
