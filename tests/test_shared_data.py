"""Data compared with NumPy arrays after the same operations.

Modules: `synkhronos.memory.values`.
"""

import copy
import errno
import gc
import itertools
import os
import pickle
import random
import uuid
from decimal import Decimal

import numpy as np
import posix_ipc
import pytest
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.errors import SharedMemoryError, StateError
from synkhronos.host import machine
from synkhronos.memory.attach import PoolMap
from synkhronos.memory.handles import Handle, NameHandle
from synkhronos.memory.pool import Pool
from synkhronos.shared_data import Data

MIB = 1 << 20


@pytest.fixture
def pool():
    return Pool(0)


@pytest.fixture
def name():
    name = f"/synk-test-{os.getpid()}-{uuid.uuid4().hex}"
    yield name
    gc.collect()
    assert name[1:] not in os.listdir("/dev/shm")


@pytest.fixture
def npy(tmp_path):
    """Return the path of a file with an array of floats of shape (20, 3)."""
    np.save(tmp_path / "x.npy", np.arange(60.0).reshape(20, 3))
    return tmp_path / "x.npy"


def attached(data):
    """Return the array that another rank would see."""
    peer = PoolMap()
    peer.add(0, data._storage.pool.fileno())
    return peer.attach(data._handle())


def address(array):
    return array.__array_interface__["data"][0]


def same(data, expected):
    """Check value, shape and dtype, here and on another rank."""
    for array in (data.data, np.asarray(data), attached(data)):
        assert (array.shape, array.dtype) == (expected.shape, expected.dtype)
        assert array.tobytes() == expected.tobytes()
    assert (data.shape, data.dtype, data.ndim, data.size) == (
        expected.shape,
        expected.dtype,
        expected.ndim,
        expected.size,
    )


class Var:
    """Object with attributes of a Theano variable."""

    def __init__(self, dtype, ndim, name=None):
        self.dtype, self.ndim, self.name = dtype, ndim, name


# --- making ---

DTYPES = ["?", "i1", "u8", "f2", "f4", ">f8", "c8", "c16", "S3", "U5", "M8[ms]", "m8[s]", [("a", "i2"), ("b", "f8")]]
LAYOUTS = {
    "C": lambda x: x,
    "Fortran": np.asfortranarray,
    "reversed": lambda x: x[tuple(slice(None, None, -1) for _ in x.shape) or ...],
    "transposed": lambda x: x.T,
    "every other": lambda x: np.repeat(x, 2, axis=0)[::2] if x.ndim else x,
    "broadcast": lambda x: np.broadcast_to(x, (3,) + x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape) if x.size else x,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (7,), (4, 0), (3, 4), (2, 3, 4), (2, 1, 3, 2, 2)], ids=str)
def test_every_dtype_shape_and_layout(pool, dtype, shape):
    rng = np.random.default_rng(0)
    plain = rng.integers(0, 100, shape).astype("i8") if dtype != "?" else rng.integers(0, 2, shape)
    plain = plain.astype("M8[ms]" if str(dtype).startswith("M8") else "i8").astype(dtype)
    for layout in LAYOUTS.values():
        value = layout(plain)
        data = Data(pool, value)
        same(data, value)
        assert data.alloc_size == value.size
        assert data.data.flags.c_contiguous and data.data.flags.writeable
        data.set_value(plain if data.ndim == plain.ndim else value)
        same(data, plain if data.ndim == plain.ndim else value)
    gc.collect()
    del data
    assert pool.used == 0


@pytest.mark.parametrize("value", [3, 2.5, True, 1j, [1, 2], [[1.5], [2.5]], (), [], range(3), ["a", "bcd"]])
def test_python_values_become_what_numpy_makes_of_them(pool, value):
    same(Data(pool, value), np.asarray(value))


def test_value_is_copied(pool):
    value = np.arange(3.0)
    data = Data(pool, value)
    value[0] = 9
    assert data[0] == 0
    other = Data(pool, data)
    other[1] = 9
    assert data[1] == 1


def test_without_a_value(pool):
    same(Data(pool, dtype="f4", shape=(2, 3)), np.zeros((2, 3), "f4"))
    same(Data(pool, dtype="f4", shape=5), np.zeros(5, "f4"))
    same(Data(pool, dtype="i2", ndim=3), np.zeros((0, 0, 0), "i2"))
    same(Data(pool, dtype="i2", ndim=0), np.zeros((), "i2"))
    same(Data(pool, var=Var("float32", 2)), np.zeros((0, 0), "f4"))
    same(Data(pool, var=Var("float32", 2), shape=(3, 1)), np.zeros((3, 1), "f4"))


def test_zeros_also_in_memory_that_was_used(pool):
    for _ in range(3):
        data = Data(pool, shape=1000, dtype="f8")
        assert not data.data.any()
        data[:] = 7


def test_var_gives_dtype_ndim_and_name(pool):
    var = Var("float32", 1, "x")
    data = Data(pool, [1, 2], var)
    same(data, np.array([1, 2], "f4"))
    assert data.name == "x"
    assert Data(pool, [1, 2], var, name="y").name == "y"
    assert Data(pool, [1, 2], var, dtype="float32", ndim=1, shape=(2,)).name == "x"
    assert Data(pool, [1, 2]).name is None


@pytest.mark.parametrize(
    "arguments, error, argument, expected, got",
    [
        ({}, TypeError, "dtype", "a dtype", "none"),
        ({"shape": 3}, TypeError, "dtype", "a dtype", "none"),
        ({"dtype": "f4"}, TypeError, "ndim", "ndim", "none"),
        ({"value": [object()]}, TypeError, "value", "Python objects", "object"),
        ({"value": [1, None]}, TypeError, "value", "Python objects", "object"),
        ({"value": 1 << 80}, TypeError, "value", "Python objects", "object"),
        ({"value": {"a": 1}}, TypeError, "value", "Python objects", "object"),
        ({"value": [1], "dtype": object}, TypeError, "dtype", "Python objects", "object"),
        ({"shape": 3, "dtype": [("a", "O")]}, TypeError, "dtype", "Python objects", "'O'"),
        ({"value": [1], "var": 3}, TypeError, "var", "Theano", "3"),
        ({"value": [1], "var": Var(None, 1)}, TypeError, "var", "Theano", "Var"),
        ({"value": [1], "var": Var("f4", None)}, TypeError, "var", "Theano", "Var"),
        ({"value": [1.0], "var": Var("f4", 1), "dtype": "f8"}, ValueError, "dtype", "the dtype of var, f4", "float64"),
        ({"value": [1.0], "var": Var("f4", 1), "ndim": 2}, ValueError, "ndim", "the ndim of var, 1", "2"),
        ({"value": [1.0], "ndim": 2}, ValueError, "value", "ndim=2", "ndim=1 (shape (1,))"),
        ({"value": [1.0], "var": Var("f4", 0, "x")}, ValueError, "value for Data 'x'", "ndim=0", "ndim=1"),
        ({"value": [1.0], "ndim": -1}, ValueError, "ndim", "an integer from 0 to 32", "-1"),
        ({"value": [1.0], "var": np.array([None])}, TypeError, "dtype", "Python objects", "object"),
        ({"dtype": "float32", "ndim": 2**62}, ValueError, "ndim", "an integer from 0 to 32", "4611686018427387904"),
        ({"value": [1.0], "ndim": 1.5}, TypeError, "ndim", "an integer", "1.5"),
        ({"value": [1.0], "shape": (2,)}, ValueError, "shape", "(1,), the value's shape", "(2,)"),
        ({"dtype": "f4", "shape": (2,), "ndim": 2}, ValueError, "shape", "ndim=2", "(2,)"),
        ({"dtype": "f4", "shape": (2, -1)}, ValueError, "shape", "negative", "(2, -1)"),
        ({"dtype": "f4", "shape": (2, 1.5)}, TypeError, "shape", "integers", "(2, 1.5)"),
        ({"value": [1], "oversize": 0.99}, ValueError, "oversize", "from 1 to 2", "0.99"),
        ({"value": [1], "oversize": 2.01}, ValueError, "oversize", "from 1 to 2", "2.01"),
        ({"value": [1], "oversize": float("nan")}, ValueError, "oversize", "from 1 to 2", "nan"),
        ({"value": [1], "oversize": "2"}, TypeError, "oversize", "a number", "'2'"),
        ({"value": [1], "oversize": Decimal("nan")}, TypeError, "oversize", "a number", "Decimal('NaN')"),
        ({"value": [1], "oversize": None}, TypeError, "oversize", "a number", "None"),
        ({"value": [1], "minibatch": "yes"}, TypeError, "minibatch", "True", "'yes'"),
        ({"value": [1], "share_as": "x"}, ValueError, "share_as", "'/' followed", "'x'"),
        ({"value": [1.5], "dtype": "i4"}, TypeError, "value", "dtype int32 or", "float64"),
    ],
)
def test_bad_arguments(pool, arguments, error, argument, expected, got):
    with refuses(error, argument, expected, got):
        Data(pool, **arguments)
    gc.collect()
    assert pool.used == 0
    same(Data(pool, [1.0, 2.0]), np.array([1.0, 2.0]))


@pytest.mark.parametrize(
    "arguments, error, texts",
    [
        ({"value": [[1, 2], [3]]}, (TypeError, ValueError), ["unequal length", "inhomogeneous"]),
        ({"value": [1], "dtype": "nonsense"}, TypeError, ["nonsense"]),
        ({"value": [1], "no_such": 1}, TypeError, ["no_such"]),
    ],
)
def test_arguments_that_python_or_numpy_refuses(pool, arguments, error, texts):
    with pytest.raises(error) as caught:
        Data(pool, **arguments)
    assert any(text in str(caught.value) for text in texts)  # as worded by the installed NumPy
    del caught
    gc.collect()
    assert pool.used == 0
    same(Data(pool, [1.0, 2.0]), np.array([1.0, 2.0]))


# --- conversion ---

SAFE = [
    ("f4", "f8"),
    ("i4", "i8"),
    ("u1", "i2"),
    ("i2", "f4"),
    ("?", "f4"),
    ("f8", "c16"),
    (">f4", "<f4"),
    ("U2", "U5"),
]
LOSSY = [("f8", "f4"), ("i8", "i4"), ("i8", "f4"), ("f4", "i4"), ("c8", "f4"), ("i4", "u4"), ("f4", "?"), ("U5", "U2")]


@pytest.mark.parametrize("came, kept", SAFE)
def test_arrays_convert_where_nothing_is_lost(pool, came, kept):
    value = np.array([0, 1, 1], came)
    expected = value.astype(kept)
    same(Data(pool, value, dtype=kept), expected)
    data = Data(pool, dtype=kept, ndim=1)
    np.testing.assert_array_equal(data.condition_data(value), expected)
    assert data.size == 0
    data.set_value(value)
    same(data, expected)


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("came, kept", LOSSY)
def test_arrays_that_would_lose_need_force(pool, came, kept):
    value = np.array([0, 1, 3]).astype(came)
    data = Data(pool, np.zeros(2, kept))
    for refuse in (data.set_value, data.condition_data, lambda v: Data(pool, v, dtype=kept)):
        with refuses(TypeError, "value", f"dtype {np.dtype(kept)} or", str(np.dtype(came)), "force_cast=True"):
            refuse(value)
    same(data, np.zeros(2, kept))
    expected = value.astype(kept)
    data.set_value(value, force_cast=True)
    same(data, expected)
    same(Data(pool, value, dtype=kept, force_cast=True), expected)
    np.testing.assert_array_equal(data.condition_data(value, force_cast=True), expected)


@pytest.mark.parametrize(
    "value, dtype",
    [
        ([0.1, 0.2], "f4"),
        ([1, 2], "f4"),
        ([1, 2], "f2"),
        ([1, 2], "i1"),
        ([0, 255], "u1"),
        ([-128, 127], "i1"),
        ([True, False], "f4"),
        ([1.5], "c8"),
        ([1j], "c8"),
        ([], "i4"),
        ([], "?"),
        ([np.float64(0.1)], "f4"),
    ],
)
def test_python_numbers_have_no_precision_of_their_own(pool, value, dtype):
    same(Data(pool, value, dtype=dtype), np.array(value).astype(dtype))


@pytest.mark.parametrize(
    "value, dtype",
    [([256], "u1"), ([-1], "u8"), ([1.0], "i8"), ([1j], "f8"), ([1], "?"), (["abc"], "U2"), (["1"], "f8")]
    + [([0, 2**24 + 1], "f4"), (-(2**24) - 1, "c8"), ([2**53 + 1], "f4"), ([2**63 - 1], "f4"), ([2**64 - 1], "f4")]
    + [([2049], "f2"), ([65519], "f2"), ([-(2**63) + 1], "c8")],
)
def test_python_values_that_would_lose_need_force(pool, value, dtype):
    with refuses(TypeError, "value", hint="force_cast=True"):
        Data(pool, value, dtype=dtype)


@pytest.mark.parametrize(
    "value, dtype",
    [([2**24, -(2**24), 2**24 + 2], "f4"), ([-(2**63), 2**62], "f4"), ([2**63], "c8"), (-(2**40), "c8")]
    + [([2048, 65504, -2050], "f2"), (7, "f4"), ([[]], "f4")],
)
def test_integers_that_a_float_holds(pool, value, dtype):
    data = Data(pool, value, dtype=dtype)
    assert data.data.tolist() == value


def test_numpy_scalar_is_an_array(pool):
    with refuses(TypeError, "value", got="float64"):
        Data(pool, np.float64(0.1), dtype="f4")
    same(Data(pool, 0.1, dtype="f4"), np.array(0.1, "f4"))


@pytest.mark.parametrize("size", [10_000, 40_000])
@pytest.mark.parametrize("share", [False, True])
def test_conversion_that_fails_half_way_changes_nothing(pool, name, size, share):
    before = np.arange(20_000.0)
    data = Data(pool, before, share_as=name if share else None, oversize=2)
    used = pool.used
    with pytest.raises(ValueError):
        data.set_value(["5"] * (size - 1) + ["no number"], force_cast=True)
    same(data, before)
    gc.collect()
    assert pool.used == used
    with reports(ValueError, "no number") as caught:
        Data(pool, ["no number"], dtype="f8", force_cast=True, share_as=name + "2")
    assert name[1:] + "2" not in os.listdir("/dev/shm")
    del caught


def test_condition_data(pool):
    data = Data(pool, np.zeros((2, 2), "f4"))
    value = np.ones((3, 2), "f4")
    assert data.condition_data(value) is value
    fortran = data.condition_data(np.asfortranarray(value))
    assert fortran.flags.c_contiguous
    assert data.condition_data([[1, 2]]).dtype == np.float32
    with refuses(ValueError, "value", "ndim=2", "ndim=1"):
        data.condition_data([1.0])
    scalar = Data(pool, 1.5)
    assert scalar.condition_data(2).shape == ()
    same(data, np.zeros((2, 2), "f4"))


# --- as an array ---


def test_reads_and_writes_like_numpy(pool):
    twin = np.arange(24.0).reshape(6, 4)
    data = Data(pool, twin)
    for index in (2, -1, slice(1, 5, 2), (slice(None), 2), [0, 3, 3], twin[:, 0] > 5, (1, 2), ..., None):
        np.testing.assert_array_equal(data[index], twin[index])
        data[index] = twin[index] = np.asarray(twin[index]) * 2 + 1
        same(data, twin)
    assert len(data) == 6
    assert [row.tolist() for row in data] == twin.tolist()
    assert np.mean(data) == twin.mean()
    with pytest.raises(IndexError):
        data[6]
    scalar = Data(pool, 3.0)
    assert scalar[()] == 3
    for unsized in (len, iter):
        with pytest.raises(TypeError):
            unsized(scalar)


def test_asarray_copies_only_where_it_must(pool):
    data = Data(pool, np.arange(3.0))
    assert address(np.asarray(data)) == address(data.data)
    assert np.asarray(data, "f4").dtype == np.float32
    assert np.array(data) is not data.data and address(np.array(data)) != address(data.data)
    assert address(data.__array__(copy=True)) != address(data.data)
    assert address(data.__array__(copy=False)) == address(data.data)
    with refuses(ValueError, "dtype", "float64", "float32"):
        data.__array__("f4", copy=False)


def test_minibatch(pool):
    data = Data(pool, [1], minibatch=True)
    assert data.minibatch is True
    data.minibatch = np.bool_(False)
    assert data.minibatch is False
    with refuses(TypeError, "minibatch", "True", "1"):
        data.minibatch = 1
    assert data.minibatch is False


def test_what_is_fixed(pool):
    data = Data(pool, [1])
    for attribute in ("data", "dtype", "shape", "ndim", "size", "alloc_size"):
        with pytest.raises(AttributeError):
            setattr(data, attribute, 3)


def test_repr(pool, name, npy):
    assert repr(Data(pool, np.zeros((2, 3), "f4"), name="x", minibatch=True)) == "<Data 'x': float32 (2, 3), minibatch>"
    assert repr(Data(pool, np.memmap(npy, "u1", "r", shape=5))) == f"<Data: uint8 (5,), mapped from {npy}>"
    data = Data(pool, [1.0], share_as=name)
    assert repr(data) == f"<Data: float64 (1,), shared as {name}>"
    data.free_memory()
    assert repr(data) == "<Data: float64 (0,), freed>"


# --- changes ---


def test_set_value_that_fits_moves_nothing(pool):
    data = Data(pool, np.arange(12.0).reshape(4, 3))
    where, used = address(data.data), pool.used
    for shape in [(2, 3), (3, 4), (1, 12), (0, 5), (4, 3)]:
        value = np.random.default_rng(0).random(shape)
        data.set_value(value)
        same(data, value)
        assert data.alloc_size == 12
        assert shape[0] == 0 or address(data.data) == where
        assert pool.used == used


def test_set_value_that_does_not_fit_leaves_views_alone(pool):
    data = Data(pool, np.arange(4.0))
    view = data[1:]
    data.set_value(np.ones(100), oversize=1.5)
    assert view.tolist() == [1, 2, 3]
    view[:] = 9
    same(data, np.ones(100))
    assert data.alloc_size == 150
    del view
    gc.collect()
    assert pool.used == 150 * 8 + 16  # rounded up to a multiple of 64


@pytest.mark.parametrize("oversize, expected", [(1, 10), (1.25, 13), (np.float32(1.5), 15), (2, 20)])
def test_oversize(pool, oversize, expected):
    data = Data(pool, np.arange(10.0).reshape(5, 2), oversize=oversize)
    same(data, np.arange(10.0).reshape(5, 2))
    assert data.alloc_size == expected
    where = address(data.data)
    data.set_length(expected // 2)
    assert address(data.data) == where
    data.set_length(expected // 2 + 1, oversize=2)
    assert address(data.data) != where
    assert data.alloc_size == (expected // 2 + 1) * 4
    assert data[:5].tolist() == np.arange(10.0).reshape(5, 2).tolist()


OVERLAPS = {
    "itself": lambda x: x,
    "reversed": lambda x: x[::-1],
    "shifted": lambda x: x[1:],
    "transposed": lambda x: x.T,
    "broadcast": lambda x: np.broadcast_to(x[3], (4, 5)),
    "larger broadcast": lambda x: np.broadcast_to(x[3], (40, 5)),
    "every other": lambda x: x[::2, ::-1],
}


@pytest.mark.parametrize("part", OVERLAPS.values(), ids=OVERLAPS)
@pytest.mark.parametrize("share", [False, True])
def test_value_that_is_part_of_itself(pool, name, part, share):
    twin = np.arange(25.0).reshape(5, 5)
    data = Data(pool, twin, share_as=name if share else None, oversize=1 if not share else 2)
    if share and part(twin).size > 50:
        with refuses(ValueError, "shape", "cannot grow"):
            data.set_value(part(data.data))
        same(data, twin)
    else:
        data.set_value(part(data.data))
        same(data, part(twin).copy())


def test_set_length(pool):
    data = Data(pool, np.arange(6).reshape(3, 2))
    data.set_length(5)
    same(data, np.array([[0, 1], [2, 3], [4, 5], [0, 0], [0, 0]]))
    data[:] = 7
    data.set_length(1)
    same(data, np.array([[7, 7]]))
    assert data.alloc_size == 10
    data.set_length(3)  # removed rows do not reappear
    same(data, np.array([[7, 7], [0, 0], [0, 0]]))
    data.set_length(0)
    same(data, np.zeros((0, 2), int))
    data.set_length(np.int32(2))
    same(data, np.zeros((2, 2), int))


def test_views_keep_the_memory_they_show(pool):
    data = Data(pool, np.arange(3.0))
    before = data.data
    data.set_length(1000)
    before[0] = 9
    assert data[0] == 0
    inside = data[:2]
    data.set_length(10)
    inside[0] = 5
    assert data[0] == 5


@pytest.mark.parametrize("seed", range(10))
def test_set_shape_keeps_the_common_corner(pool, seed):
    rng = random.Random(seed)
    ndim = rng.randint(1, 4)
    shape = tuple(rng.randint(0, 5) for _ in range(ndim))
    twin = np.random.default_rng(seed).integers(1, 100, shape)
    data = Data(pool, twin, oversize=rng.choice([1, 2]))
    for _ in range(15):
        shape = tuple(rng.randint(0, 5) if rng.random() < 0.6 else n for n in shape)
        grown = np.zeros(shape, twin.dtype)
        corner = tuple(slice(min(pair)) for pair in zip(shape, twin.shape))
        grown[corner] = twin[corner]
        twin = grown
        before, alloc, where = data.data, data.alloc_size, address(data.data)
        data.set_shape(shape, oversize=rng.choice([1, 1.5]))
        same(data, twin)
        assert data.alloc_size == alloc if twin.size <= alloc else data.alloc_size >= twin.size
        if 0 < twin.size <= alloc and before.size:
            assert address(data.data) == where
        data[...] = twin = twin + 1
    del data, before
    gc.collect()
    assert pool.used == 0


@pytest.mark.parametrize("dtype", ["S3", "U2", "M8[s]", [("a", "i4"), ("b", "S2")], "?", "c8"], ids=str)
def test_growth_of_other_dtypes(pool, dtype):
    data = Data(pool, np.zeros((2, 2), dtype))
    data.set_shape((3, 4))
    same(data, np.zeros((3, 4), dtype))


def test_zero_dimensions(pool):
    data = Data(pool, 3.0)
    data.set_shape(())
    same(data, np.array(3.0))
    data.set_value(4)
    same(data, np.array(4.0))
    with refuses(ValueError, "n", "0 dimensions", "3"):
        data.set_length(3)


@pytest.mark.parametrize(
    "method, arguments, error, argument, expected, got",
    [
        ("set_length", (-1,), ValueError, "shape", "negative", "(-1, 2)"),
        ("set_length", (1.5,), TypeError, "shape", "integer", "(1.5, 2)"),
        ("set_length", (3, 0.5), ValueError, "oversize", "from 1 to 2", "0.5"),
        ("set_length", (3, float("nan")), ValueError, "oversize", "from 1 to 2", "nan"),
        ("set_shape", ((3,),), ValueError, "shape", "ndim=2", "(3,)"),
        ("set_shape", (3,), ValueError, "shape", "ndim=2", "(3,)"),
        ("set_shape", ((3, -1),), ValueError, "shape", "negative", "(3, -1)"),
        ("set_shape", ((3, "a"),), TypeError, "shape", "integers", "(3, 'a')"),
        ("set_shape", (range(10**12),), ValueError, "shape", "at most 32 sizes", "range(0, 1000000000000)"),
        ("set_shape", (itertools.count(),), ValueError, "shape", "at most 32 sizes", "count("),
        ("set_shape", ((10**400, 0),), ValueError, "shape", "elements", "0)"),
        ("set_shape", ([2**62] * 32, 1.5), ValueError, "shape", "elements", str(2**62)),
        ("set_length", (10**400, 1.5), ValueError, "shape", "elements", ", 2)"),
        ("set_shape", ((3, 2), 3), ValueError, "oversize", "from 1 to 2", "3"),
        ("set_value", ([1.0],), ValueError, "value for Data 'x'", "ndim=2", "ndim=1"),
        ("set_value", ([["a"]],), TypeError, "value for Data 'x'", "dtype float64 or", "<U1"),
        ("set_value", ([[None]],), TypeError, "value for Data 'x'", "Python objects", "object"),
        ("set_value", ([[1.0]], False, 0), ValueError, "oversize", "from 1 to 2", "0"),
        ("set_value", (None,), TypeError, "value for Data 'x'", "Python objects", "object"),
    ],
)
def test_bad_changes_change_nothing(pool, method, arguments, error, argument, expected, got):
    before = np.arange(6.0).reshape(3, 2)
    data = Data(pool, before, name="x")
    used = pool.used
    with refuses(error, argument, expected, got):
        getattr(data, method)(*arguments)
    same(data, before)
    assert pool.used == used
    data.set_value(before + 1)
    same(data, before + 1)


@pytest.mark.parametrize("change", [lambda d: d.set_value(np.ones(MIB)), lambda d: d.set_length(MIB)])
def test_memory_that_cannot_be_had_changes_nothing(pool, monkeypatch, change):
    data = Data(pool, np.arange(10.0))
    used = pool.used
    with monkeypatch.context() as patch:
        patch.setattr(machine, "available_memory", lambda: 33 * MIB)
        with reports(SharedMemoryError, "8.0 MiB", "1.0 MiB"):
            change(data)
    same(data, np.arange(10.0))
    assert pool.used == used
    change(data)
    assert len(data) == MIB


def test_free_memory(pool):
    data = Data(pool, np.arange(6.0).reshape(3, 2), name="x")
    view = data[1:]
    data.free_memory()
    assert (data.shape, data.size, data.alloc_size, len(data), data.ndim) == ((0, 2), 0, 0, 0, 2)
    assert view.tolist() == [[2, 3], [4, 5]]
    del view
    gc.collect()
    assert pool.used == 0
    for use in (lambda: data[0], lambda: data.data, data._handle, lambda: np.asarray(data), lambda: list(data)):
        with reports(StateError, "'x'", "free_memory()", "set_value"):
            use()
    with pytest.raises(StateError):
        data[:] = 1
    data.free_memory()
    data.set_length(2)
    same(data, np.zeros((2, 2)))
    data.free_memory()
    data.set_value([[1, 2, 3]])
    same(data, np.array([[1.0, 2, 3]]))
    data.free_memory()
    with pytest.raises(TypeError):
        data.set_value([["a"]])
    assert data.size == 0
    scalar = Data(pool, 3.0)
    scalar.free_memory()
    assert (scalar.shape, scalar.size) == ((), 0)
    scalar.set_shape(())
    same(scalar, np.array(0.0))


def test_dropped_data_gives_its_memory_back(pool):
    data = Data(pool, np.ones(1000))
    view = data[::2]
    del data
    gc.collect()
    assert view.sum() == 500
    del view
    gc.collect()
    assert pool.used == 0


# --- mapped files ---


def test_file_is_mapped_not_copied(pool, npy):
    expected = np.load(npy)
    for value in (npy, str(npy), np.load(npy, mmap_mode="r"), Data(pool, npy)):
        data = Data(pool, value)
        same(data, expected)
        assert pool.used == 0
        assert data._handle().path == str(npy)
        assert data.alloc_size == 60
        with reports(ValueError, "read-only"):
            data[0] = 1
    part = Data(pool, np.load(npy, mmap_mode="r")[4:16:3, ::-1])
    np.testing.assert_array_equal(attached(part), expected[4:16:3, ::-1])
    assert pool.used == 0


def test_file_larger_than_memory(pool, tmp_path, monkeypatch):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(3 << 30)
    monkeypatch.setattr(machine, "available_memory", lambda: MIB)
    data = Data(pool, np.memmap(tmp_path / "sparse", "f4", "r"))
    assert len(data) == 3 << 28
    assert attached(data)[-1] == 0
    with pytest.raises(SharedMemoryError):
        data.set_length((3 << 28) + 1)
    assert len(data) == 3 << 28


def test_indexing_writes_into_a_writable_file(pool, npy):
    data = Data(pool, np.load(npy, mmap_mode="r+"))
    data[3] = -1
    attached(data)[4] = -2
    assert np.load(npy)[3:5].tolist() == [[-1] * 3, [-2] * 3]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.set_value(np.full((20, 3), 9.0)),
        lambda d: d.set_value(np.full((2, 3), 9.0)),
        lambda d: d.set_length(30),
        lambda d: d.set_shape((20, 2)),
        lambda d: d.free_memory(),
    ],
)
def test_other_changes_leave_the_file_alone(pool, npy, change):
    before = np.load(npy)
    data, twin = Data(pool, np.load(npy, mmap_mode="r+")), Data(pool, before)
    change(data)
    change(twin)
    if twin.size:
        same(data, twin.data)
        assert isinstance(data._handle(), Handle)
        data[:] = 5
    np.testing.assert_array_equal(np.load(npy), before)


def test_fewer_rows_of_a_file_stay_mapped(pool, npy):
    data = Data(pool, npy)
    data.set_length(5)
    same(data, np.load(npy)[:5])
    data.set_shape((0, 3))
    same(data, np.zeros((0, 3)))
    assert pool.used == 0
    data.set_length(2)
    same(data, np.zeros((2, 3)))


def test_set_value_maps_and_unmaps(pool, npy):
    data = Data(pool, np.ones((2, 3)))
    data.set_value(npy)
    same(data, np.load(npy))
    gc.collect()
    assert pool.used == 0
    data.set_value(data.data[::-1])
    np.testing.assert_array_equal(attached(data), np.load(npy)[::-1])
    assert isinstance(data.condition_data(npy), np.memmap)
    data.set_value([[1.0]])
    same(data, np.array([[1.0]]))


def test_file_of_another_dtype_is_converted_by_the_rule_for_arrays(pool, npy):
    with refuses(TypeError, "value", "dtype float32 or", "float64"):
        Data(pool, npy, dtype="f4")
    data = Data(pool, npy, dtype="f4", force_cast=True)
    same(data, np.load(npy).astype("f4"))
    assert isinstance(data._handle(), Handle)
    same(Data(pool, npy, dtype="c16"), np.load(npy).astype("c16"))
    with refuses(ValueError, "value", "ndim=1", "ndim=2"):
        Data(pool, npy, ndim=1)


def test_result_of_a_computation_on_a_file_is_copied(pool, npy):
    array = np.load(npy, mmap_mode="r")
    for value in (array.copy(), array[[1, 2]], array * 2, array[:0]):
        data = Data(pool, value)
        same(data, np.array(value))
        assert isinstance(data._handle(), Handle)


def test_files_that_cannot_be_mapped(pool, tmp_path, npy):
    with pytest.raises(FileNotFoundError):
        Data(pool, tmp_path / "missing.npy")
    (tmp_path / "bad.npy").write_text("no array")
    (tmp_path / "empty.npy").write_text("")
    np.savez(tmp_path / "x.npz", a=1)
    np.save(tmp_path / "objects.npy", np.array([None, 1]), allow_pickle=True)
    for bad in ("bad.npy", "empty.npy", "x.npz", "objects.npy"):
        with refuses(ValueError, "value", "a .npy file", bad):
            Data(pool, tmp_path / bad)
    data = Data(pool, [[1.0]])
    with refuses(ValueError, "value", got="mode 'c'"):
        data.set_value(np.load(npy, mmap_mode="c"))
    same(data, np.array([[1.0]]))
    mapped = np.load(npy, mmap_mode="r")
    data.set_value(mapped)
    os.remove(npy)
    with reports(ValueError, npy, os.strerror(errno.ENOENT)):
        data._handle()
    with refuses(ValueError, "value", got="found"):
        Data(pool, mapped)
    data.set_value(np.array(mapped))
    assert attached(data)[1, 0] == 3


def test_empty_file_of_rows(pool, tmp_path):
    np.save(tmp_path / "none.npy", np.zeros((0, 3)))
    same(Data(pool, tmp_path / "none.npy"), np.zeros((0, 3)))


# --- with a name ---


def test_share_as(pool, name):
    data = Data(pool, np.arange(6.0).reshape(2, 3), share_as=name, oversize=2)
    assert isinstance(data._handle(), NameHandle)
    same(data, np.arange(6.0).reshape(2, 3))
    assert (data.alloc_size, pool.used) == (12, 0)
    outside = np.fromfile(f"/dev/shm{name}", "f8")
    assert outside.tolist() == [0, 1, 2, 3, 4, 5] + [0] * 6
    data.set_length(4)
    data[3] = 7
    same(data, np.array([[0, 1, 2], [3, 4, 5], [0, 0, 0], [7, 7, 7]], "f8"))
    data.set_value(data.data[::-1])
    assert np.fromfile(f"/dev/shm{name}", "f8")[:3].tolist() == [7, 7, 7]
    assert posix_ipc.SharedMemory(name).size == 96


@pytest.mark.parametrize("change", [lambda d: d.set_length(3), lambda d: d.set_value(np.ones(3))])
def test_memory_with_a_name_does_not_grow(pool, name, change):
    data = Data(pool, np.arange(2.0), share_as=name)
    with refuses(
        ValueError, "shape", f"that fits the 16 bytes of the shared memory {name}", "(3,), which needs 24", "oversize"
    ):
        change(data)
    same(data, np.arange(2.0))
    data.unshare()
    change(data)
    assert len(data) == 3
    assert isinstance(data._handle(), Handle)


def test_value_lives_on_without_the_name(pool, name):
    data = Data(pool, np.arange(3.0), share_as=name)
    view = data.data
    pool.unshare()
    assert name[1:] not in os.listdir("/dev/shm")
    view[0] = 5
    same(data, np.array([5.0, 1, 2]))  # also on ranks that start only now
    assert data._handle() == data._handle()
    assert isinstance(data._handle(), Handle)
    data.unshare()
    again = Data(pool, np.zeros(1), share_as=name)
    same(again, np.zeros(1))
    again.free_memory()
    assert name[1:] not in os.listdir("/dev/shm")
    again.set_value([1])
    same(again, np.array([1.0]))


def test_name_that_exists_or_memory_that_is_short(pool, name, monkeypatch):
    data = Data(pool, np.arange(3.0), share_as=name)
    with refuses(ValueError, "share_as", got="exists"):
        Data(pool, [1], share_as=name)
    same(data, np.arange(3.0))
    data.free_memory()
    monkeypatch.setattr(machine, "available_memory", lambda: 0)
    with pytest.raises(SharedMemoryError):
        Data(pool, np.zeros(3), share_as=name)


def test_name_over_a_file_and_without_a_value(pool, name, npy):
    data = Data(pool, npy, share_as=name)
    same(data, np.load(npy))
    np.testing.assert_array_equal(np.fromfile(f"/dev/shm{name}", "f8").reshape(20, 3), np.load(npy))
    data.set_value(npy)  # also into the named memory
    assert isinstance(data._handle(), NameHandle)
    data.free_memory()
    same(Data(pool, dtype="f4", shape=(0, 3), share_as=name), np.zeros((0, 3), "f4"))


def test_published_function_takes_everything_by_name_and_by_place():
    made = synk.data([[1.5]], None, "float32", 2, (1, 1), True, True, 2, "x")
    assert (made.dtype, made.shape, made.minibatch, made.alloc_size, made.name) == ("float32", (1, 1), True, 2, "x")
    with reports(TypeError, "positional"):
        synk.data([[1.5]], None, "float32", 2, (1, 1), True, True, 2, "x", "/name")
    assert synk.data(value=3).shape == ()


# --- what is easily taken for something else ---


@pytest.mark.parametrize("text", ["train.npz", "typo.np", "/no/where/file.dat", "words"])
def test_a_string_that_is_no_npy_path(pool, text):
    with refuses(ValueError, "value", ".npy", repr(text), "np.save"):
        Data(pool, text)
    same(Data(pool, np.array(text)), np.array(text))


@pytest.mark.parametrize("value, dtype", [([1e300], "f4"), (1e300, "f4"), ([1.0, -1e6], "f2"), ([1e300 + 1j], "c8")])
def test_python_numbers_that_are_too_large(pool, value, dtype):
    with refuses(TypeError, "value", "loss"):
        Data(pool, value, dtype=dtype)
    same(Data(pool, [np.inf, np.nan, 0.1], dtype="f4"), np.array([np.inf, np.nan, 0.1], "f4"))


def test_copies_have_memory_of_their_own(pool):
    data = Data(pool, np.arange(4.0), name="d", minibatch=True)
    for copied in (copy.copy(data), copy.deepcopy(data)):
        assert (copied.name, copied.minibatch) == ("d", True)
        copied.set_length(2)
        copied.set_length(4)
        copied[0] = 7
        same(data, np.arange(4.0))
    with reports(TypeError, repr(data), "np.array(data)"):
        pickle.dumps(data)


def test_close_takes_the_names_back():
    data = synk.data(np.ones(3), share_as="/synk-test-close")
    assert os.path.exists("/dev/shm/synk-test-close")
    synk.close()
    assert not os.path.exists("/dev/shm/synk-test-close")
    np.testing.assert_array_equal(data, np.ones(3))


# --- constants ---


def test_a_constant_is_never_written(pool, npy):
    plain = np.arange(6.0).reshape(2, 3)
    for value in (plain, npy, np.load(npy, mmap_mode="r+")):
        data = Data(pool, value, name="x", constant=True)
        expected = plain if value is plain else np.load(npy)
        assert data.constant and "constant" in repr(data) and not data.data.flags.writeable
        changes = [
            lambda data=data: data.__setitem__(0, 1),
            lambda data=data: data.set_value(plain),
            lambda data=data: data.set_length(1),
            lambda data=data: data.set_length(30, oversize=2),
            lambda data=data: data.set_shape((1, 1)),
        ]
        for change in changes:
            with reports(StateError, repr(data), "constant=True"):
                change()
        with reports(ValueError, "read-only"):
            np.asarray(data)[0] = 1
        same(data, expected)
        np.testing.assert_array_equal(data.condition_data(plain), plain)
        other = copy.copy(data)
        other[0] = 7
        assert not other.constant and other.data[0].tolist() == [7.0] * 3
        same(data, expected)
    assert not Data(pool, plain).constant


def test_a_constant_that_was_freed(pool):
    data = Data(pool, np.arange(3.0), constant=True)
    data.free_memory()
    assert len(data) == 0 and pool.used == 0
    with reports(StateError, repr(data), "constant=True"):
        data.set_value([1.0])
    with reports(StateError, repr(data), "free_memory()"):
        data._handle()


def test_constants_are_told_apart(pool):
    handles = []
    for _ in range(3):
        data = Data(pool, np.arange(3.0), constant=True)
        assert data._handle() is data._handle()
        handles.append(data._handle())
        data.free_memory()
    assert len({handle.constant for handle in handles} - {0}) == 3
    assert Data(pool, np.arange(3.0))._handle().constant == 0


@pytest.mark.parametrize("arguments", [{"dtype": "f4", "ndim": 1}, {"value": [1.0], "share_as": "/synk-constant"}])
def test_what_cannot_be_constant(pool, arguments):
    with refuses(ValueError, "constant", hint="written"):
        Data(pool, constant=True, **arguments)
