"""Invalid arguments, and valid ones that look odd; made anew each time, because some can be used up."""

from __future__ import annotations

import datetime
import decimal
import fractions
import functools
import itertools
import random
import types
from typing import Any, Callable, List

import numpy as np

import synkhronos as synk
from synkhronos.reductions import ReduceOp
from synkhronos.selection import RowRange
from synkhronos.testing import numpy_engine as engine


class Evil(Exception):
    """Raised by the objects below; calls may raise it unchanged."""


class Raises:
    """An object whose methods raise."""

    def __init__(self, *names: str) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def raising(*names: str) -> Any:
    """Return an object whose methods of these names raise."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise Evil("sabotage")

    return type("Raising", (), dict.fromkeys(names, method))()


class Liar:
    """A sequence whose ``len`` is too large."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> float:
        if i > 0:
            raise IndexError(i)
        return 1.0


class FloatIndex:
    def __index__(self) -> Any:
        return 1.5


class OddArray:
    """An object whose ``__array__`` returns no array."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return "no array"


class IntSubclass(int):
    pass


class ListSubclass(list):
    pass


#: Numbers used as sizes: small ones, and sizes beyond any memory; none between, which would use all memory.
NUMBERS: List[Callable[[], Any]] = [
    functools.partial(lambda value: value, value)
    for value in (
        None,
        True,
        False,
        0,
        1,
        2,
        3,
        4,
        7,
        -1,
        -2,
        -5,
        2**40,
        2**62,
        2**63,
        2**64,
        -(2**63),
        -(2**70),
        10**400,
        0.0,
        -0.0,
        0.5,
        1.0,
        1.5,
        2.0,
        2.5,
        1e308,
        -1e308,
        float("nan"),
        float("inf"),
        -float("inf"),
        1j,
        complex("nan"),
        fractions.Fraction(3, 2),
        decimal.Decimal("1.5"),
        decimal.Decimal("nan"),
        IntSubclass(2),
        np.int8(2),
        np.uint64(2**63),
        np.int64(-3),
        np.float16(1.5),
        np.float32("nan"),
        np.bool_(True),
        np.complex64(1j),
        np.array(2),
        np.array(2.0),
        np.array([2]),
        np.datetime64("2020-01-01"),
        np.timedelta64(3, "s"),
    )
]

TEXTS: List[Callable[[], Any]] = [
    functools.partial(lambda value: value, value)
    for value in (
        "",
        "avg",
        "sum",
        "prod",
        "min",
        "max",
        "gather",
        "c_avg",
        "c_sum",
        "c_",
        "AVG",
        "avg ",
        "None",
        "x",
        "float64",
        "int8",
        ">f8",
        "object",
        "S3",
        "V8",
        "i4,f4",
        "\0",
        "\udc80",
        "x" * 1000,
        "%s %d",
        "{0}",
        "/",
        "/a/b",
        ".",
        "/dev/null",
        "no/such/file.npy",
        b"avg",
        b"",
        bytearray(3),
        memoryview(b"abc"),
        np.str_("avg"),
    )
]

ARRAYS: List[Callable[[], Any]] = [
    lambda: np.arange(4.0),
    lambda: np.arange(8.0),
    lambda: np.arange(4, dtype="float32"),
    lambda: np.zeros(0),
    lambda: np.arange(4),
    lambda: np.arange(8.0)[::2],
    lambda: np.arange(4.0)[::-1],
    lambda: np.arange(4, dtype=">f8"),
    lambda: np.ones((4, 4)),
    lambda: np.ones((4, 1)),
    lambda: np.ones((0, 3)),
    lambda: np.ones((1,) * 32),
    lambda: np.array(5.0),
    lambda: np.array([None, 1], object),
    lambda: np.array(["a", "b"]),
    lambda: np.array([b"a"]),
    lambda: np.zeros(3, "i4,f8"),
    lambda: np.array([True, False, True, True]),
    lambda: np.ones(4, complex),
    lambda: np.ones(4, "float16"),
    lambda: np.array([np.nan, np.inf, 1, 2]),
    lambda: np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0]),
    lambda: np.asmatrix("1 2; 3 4"),
    lambda: np.broadcast_to(1.0, (4,)),
    lambda: np.zeros(4, "M8[s]"),
    lambda: np.rec.array([(1, 2.0)], dtype="i4,f8"),
    lambda: np.array([3, 0, 1], "uint8"),
    lambda: np.array([0, 9]),
    lambda: np.array([-1, -9]),
    lambda: np.full(3, 2**63, "uint64"),
    lambda: np.random.RandomState(0),
    lambda: np.frombuffer(b"x" * 33, "u1")[1:].view("f8"),
    lambda: np.float64,
    lambda: np.dtype("f8"),
]

THINGS: List[Callable[[], Any]] = [
    lambda: [],
    lambda: (),
    lambda: {},
    lambda: set(),
    lambda: [1, 2],
    lambda: (0, 1),
    lambda: [0, 1, 2, 3, 0],
    lambda: [1.0, 2.0, 3.0, 4.0],
    lambda: [[1.0], [2.0]],
    lambda: [[1.0], [2.0, 3.0]],
    lambda: [None],
    lambda: [[]],
    lambda: ["avg"],
    lambda: [True, False],
    lambda: [2**70],
    lambda: [-1, 2],
    lambda: [1, "a"],
    lambda: {0: 1},
    lambda: {"a": 1},
    lambda: range(3),
    lambda: range(0),
    lambda: range(10**12),
    lambda: (i for i in range(3)),
    lambda: itertools.count(),
    lambda: iter([1, 2]),
    lambda: ListSubclass([1, 2]),
    lambda: slice(None),
    lambda: slice(1, 3),
    lambda: slice(-3, None, 2),
    lambda: slice(0, 0),
    lambda: slice(None, None, 0),
    lambda: slice("a", "b"),
    lambda: slice(1.5),
    lambda: slice(2**70),
    lambda: slice(None, None, -1),
    lambda: [slice(0, 1), slice(1, 2)],
    lambda: [[0], [1]],
    lambda: [slice(0, 2)] * 3,
    lambda: Ellipsis,
    lambda: NotImplemented,
    lambda: print,
    lambda: lambda: 1,
    lambda: int,
    lambda: np,
    lambda: object(),
    lambda: types.SimpleNamespace(name="x", dtype="float64", ndim=1),
    lambda: datetime.datetime(2020, 1, 1),
    lambda: Exception("x"),
    lambda: Liar(),
    lambda: FloatIndex(),
    lambda: OddArray(),
    lambda: Raises(),
    lambda: raising("__len__"),
    lambda: raising("__getitem__", "__len__"),
    lambda: raising("__array__"),
    lambda: raising("__iter__"),
    lambda: raising("__index__"),
    lambda: raising("__eq__"),
    lambda: raising("__bool__"),
    lambda: raising("__repr__"),
    lambda: raising("__str__"),
    lambda: raising("__hash__"),
    lambda: raising("__float__"),
    lambda: raising("__getattr__"),
    lambda: raising("__getattribute__"),
    lambda: raising("__reduce__"),
    lambda: engine.shared(np.zeros(3), "foreign"),
    lambda: engine.random_stream(1, "stream"),
    lambda: engine.variable("z", "float64", 1),
    lambda: engine.variable("z", "int32", 0),
    lambda: ReduceOp("avg"),
    lambda: RowRange(0, 2),
    lambda: synk.data(np.arange(4.0)),
    lambda: synk.data(np.arange(4)),
    lambda: synk.data(np.ones((4, 2))),
    lambda: synk.data(np.arange(6.0), minibatch=True),
    lambda: freed(),
    lambda: synk.StateError,
    lambda: synk.Data,
]


def freed() -> Any:
    """Return a Data without memory."""
    data = synk.data(np.arange(3.0))
    data.free_memory()
    return data


EVERYTHING = NUMBERS + TEXTS + ARRAYS + THINGS


def odd(draw: random.Random, nested: bool = True) -> Any:
    """Return an odd value, or sometimes several in a list, a tuple or a dict."""
    if nested and draw.random() < 0.1:
        some = [odd(draw, False) for _ in range(draw.randrange(4))]
        return draw.choice([list, tuple, lambda values: dict(enumerate(values))])(some)
    return draw.choice(draw.choice([NUMBERS, TEXTS, ARRAYS, THINGS]))()
