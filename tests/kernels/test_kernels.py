"""The kernels refuse buffers that do not fit, and write nothing beyond them."""

import array
import gc
import re
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from synkhronos.kernels import copy as streaming

kernels = streaming.kernels
pytestmark = pytest.mark.skipif(kernels is None, reason="needs the kernels in C: make install, with a compiler")

SUM, MIDPOINT, MEAN = range(3)


def unaligned(size):
    """Return an array of doubles that begins at an odd address."""
    return np.zeros(8 * size + 1, np.uint8)[1:].view(np.float64)


def read_only(size):
    values = np.zeros(size)
    values.flags.writeable = False
    return values


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", [0, 1, 7, 1024, 5000, 40000])
def test_reduces_into_every_target_and_nowhere_else(dtype, stream, size):
    random = np.random.RandomState(size)
    parts = [random.standard_normal(size).astype(dtype) for _ in range(3)]
    guarded = [np.full(size + 32, 9, dtype) for _ in range(2)]
    pieces = kernels.Pieces([(parts, [target[16 : 16 + size] for target in guarded])], dtype)
    for op, chosen, weights, total, expected in (
        (SUM, (0, 1, 2), (), 1.0, parts[0] + parts[1] + parts[2]),
        (SUM, (2,), (), 1.0, parts[2]),
        (MIDPOINT, [2, 0], (), 1.0, (parts[2] + parts[0]) * np.dtype(dtype).type(0.5)),
        (MEAN, np.array([0, 1]), [1.0, 3.0], 4.0, (parts[0] + 3 * parts[1]) / np.dtype(dtype).type(4)),
    ):
        pieces.reduce(op, chosen, weights, total, stream)
        for target in guarded:
            np.testing.assert_allclose(target[16 : 16 + size], expected, rtol=1e-6, atol=1e-6)
            assert set(target[:16]) | set(target[16 + size :]) == {9}


@pytest.mark.parametrize("dtype", ["f", "d"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("position", [0, 5, 36, 1023, 1024, 2050])
def test_mean_of_two_values_whose_sum_overflows(dtype, sign, position):
    """One overflow anywhere in a chunk is found; infinite values stay infinite."""
    largest = sign * np.finfo(dtype).max
    for size, values, expected in (
        (2051, (largest, largest), largest),
        (40003, (largest, largest), largest),
        (2051, (sign * np.inf, 1), sign * np.inf),
    ):
        parts = [np.ones(size, dtype), np.full(size, 3, dtype)]
        for part, value in zip(parts, values):
            part[position] = value
        target = np.zeros(size, dtype)
        kernels.Pieces([(parts, [target])], dtype).reduce(MIDPOINT, (0, 1), (), 1.0, False)
        assert target[position] == expected
        assert set(np.delete(target, position)) == {2}


def test_any_kind_of_buffer():
    first, second, target = array.array("d", [1, 2]), memoryview(bytes(16)).cast("d"), array.array("d", [7, 7])
    kernels.Pieces([([first, second], [target])], "d").reduce(SUM, (0, 1), (), 1.0, False)
    assert list(target) == [1, 2]


def test_no_pieces_and_many():
    kernels.Pieces([], "d").reduce(SUM, (0,), (), 1.0, False)
    parts = [np.full(size, 2.0) for size in range(50)]
    targets = [np.zeros(size) for size in range(50)]
    pieces = kernels.Pieces([([part], [target]) for part, target in zip(parts, targets)], "d")
    pieces.reduce(SUM, (0,), (), 1.0, False)
    for part, target in zip(parts, targets):
        np.testing.assert_array_equal(target, part)


@pytest.mark.parametrize(
    "parts, targets, typecode, error",
    [
        ([], [np.zeros(4)], "d", ValueError),
        ([np.ones(4)], [], "d", ValueError),
        ([np.ones(4)] * 65, [np.zeros(4)], "d", ValueError),
        ([np.ones(4)], [np.zeros(3)], "d", ValueError),
        ([np.ones(3)], [np.zeros(4)], "d", ValueError),
        ([np.ones(4), np.ones(5)], [np.zeros(4)], "d", ValueError),
        ([np.ones(4)], [np.zeros(4), np.zeros(5)], "d", ValueError),
        ([np.ones(4)], [np.zeros(4)], "f", ValueError),
        ([np.ones(4, "f")], [np.zeros(4, "f")], "d", ValueError),
        ([np.ones(4, "i8")], [np.zeros(4)], "d", ValueError),
        ([np.ones(4, ">f8")], [np.zeros(4)], "d", ValueError),
        ([np.ones(4)], [np.zeros(4, "i8")], "d", ValueError),
        ([np.ones(32, "u1")], [np.zeros(4)], "d", ValueError),
        ([bytes(32)], [np.zeros(4)], "d", ValueError),
        ([np.ones(8)[::2]], [np.zeros(4)], "d", (ValueError, BufferError)),
        ([np.ones(4)], [np.zeros(8)[::2]], "d", (ValueError, BufferError)),
        ([np.ones(4)], [np.zeros((2, 2)).T], "d", (ValueError, BufferError)),
        ([np.ones(4)], [read_only(4)], "d", (ValueError, BufferError)),
        ([unaligned(4)], [np.zeros(4)], "d", ValueError),
        ([np.ones(4)], [unaligned(4)], "d", ValueError),
        ([np.ones(4).ctypes.data], [np.zeros(4)], "d", TypeError),
        ([np.ones(4)], [np.zeros(4).ctypes.data], "d", TypeError),
        ([None], [np.zeros(4)], "d", TypeError),
        (3, [np.zeros(4)], "d", TypeError),
        ([np.ones(4)], None, "d", TypeError),
        ([np.ones(4, "i")], [np.zeros(4, "i")], "i", ValueError),
        ([np.ones(4)], [np.zeros(4)], "dd", TypeError),
        ([np.ones(4)], [np.zeros(4)], 3, TypeError),
    ],
)
def test_buffers_that_do_not_fit_are_refused(parts, targets, typecode, error):
    with pytest.raises(error):
        kernels.Pieces([(parts, targets)], typecode)
    with pytest.raises(error):  # nor as one of several portions
        kernels.Pieces([([np.ones(2)], [np.zeros(2)]), (parts, targets)], typecode)


@pytest.mark.parametrize(
    "pieces, error",
    [
        (3, TypeError),
        ([3], TypeError),
        ([()], ValueError),
        ([([np.ones(4)],)], ValueError),
        ([([np.ones(4)], [np.zeros(4)], [])], ValueError),
        ([([np.ones(4)], [np.zeros(4)]), ([np.ones(4)] * 2, [np.zeros(4)])], ValueError),
        ([([np.ones(4)], [np.zeros(4)]), ([np.ones(4)], [np.zeros(4)] * 2)], ValueError),
        ([([np.ones(4)], [np.zeros(4)] * 2), ([np.ones(4)] * 2, [np.zeros(4)])], ValueError),
    ],
)
def test_pieces_that_differ_are_refused(pieces, error):
    with pytest.raises(error):
        kernels.Pieces(pieces, "d")
    with pytest.raises(TypeError):
        kernels.Pieces(pieces, typecode="d")


@pytest.mark.parametrize(
    "wrong",
    [
        {"op": 3},
        {"op": -1},
        {"op": "sum"},
        {"op": 1 << 40},
        {"chosen": ()},
        {"chosen": (0, 2)},
        {"chosen": (-1, 0)},
        {"chosen": (1 << 70, 0)},
        {"chosen": (0.5, 1.0)},
        {"chosen": range(65)},
        {"chosen": ("a", "b")},
        {"chosen": 3},
        {"op": MIDPOINT, "chosen": (0,)},
        {"op": MIDPOINT, "chosen": (0, 1, 1)},
        {"op": MEAN, "weights": (1.0,)},
        {"op": MEAN, "weights": (1.0, 1.0, 1.0)},
        {"op": MEAN, "weights": (1.0, "x")},
        {"op": MEAN, "weights": None},
        {"weights": (1.0, 1.0)},
        {"total": "x"},
    ],
)
def test_calls_that_do_not_fit_are_refused(wrong):
    target = np.zeros(4)
    pieces = kernels.Pieces([([np.ones(4), np.ones(4)], [target])], "d")
    given = dict(op=SUM, chosen=(0, 1), weights=(), total=1.0, stream=False)
    pieces.reduce(*given.values())
    assert list(target) == [2, 2, 2, 2]
    given.update(wrong)
    target[:] = 7
    with pytest.raises((TypeError, ValueError, OverflowError)):
        pieces.reduce(*given.values())
    assert list(target) == [7, 7, 7, 7]


def test_buffers_stay_while_they_can_be_written_to():
    """While the kernel uses them, a bytearray cannot be resized, and an array is not freed."""
    memory, part = bytearray(16), np.ones(2)
    alive = weakref.ref(part)
    pieces = kernels.Pieces([([part], [memoryview(memory).cast("d")])], "d")
    with pytest.raises(BufferError):
        memory.clear()
    del part
    gc.collect()
    assert alive() is not None
    pieces.reduce(SUM, (0,), (), 1.0, False)
    assert list(memoryview(memory).cast("d")) == [1, 1]
    del pieces
    gc.collect()
    assert alive() is None
    memory.clear()


def test_a_refused_piece_lets_go_of_the_others():
    memory = bytearray(16)
    with pytest.raises(ValueError):
        kernels.Pieces([([np.ones(2)], [memoryview(memory).cast("d")]), ([np.ones(2)], [np.ones(3)])], "d")
    gc.collect()
    memory.clear()


def test_numbers_that_change_their_sequence_while_they_are_read():
    weights = [None] * 2

    class Clearing:
        def __float__(self):
            weights.clear()
            return 1.0

    weights[:] = [Clearing(), 1.0]
    target = np.zeros(2)
    pieces = kernels.Pieces([([np.ones(2), np.full(2, 3.0)], [target])], "d")
    pieces.reduce(MEAN, (0, 1), weights, 2.0, False)
    assert list(target) == [2, 2]


def test_none_is_returned_with_a_reference():
    """Kernels return a new reference to None, whatever headers they were built with; otherwise, Python would crash."""
    numbers, halves = np.ones(4, np.float32), np.zeros(4, np.uint16)
    pieces, empty = kernels.Pieces([([numbers], [numbers.copy()])], "f"), kernels.Pieces([], "f")
    calls = [
        lambda: pieces.reduce(SUM, [0], [], 1.0, False),
        lambda: empty.reduce(SUM, [0], [], 1.0, False),
        lambda: kernels.copy(np.zeros(4, np.float32), numbers),
        lambda: kernels.encode_bfloat16(halves, numbers),
        lambda: kernels.decode_bfloat16(np.zeros(4, np.float32), halves),
    ]
    for call in calls:
        before = sys.getrefcount(None)
        for _ in range(1000):
            assert call() is None
        assert sys.getrefcount(None) > before - 500
    for source in Path(streaming.__file__).parent.glob("*.c"):
        assert not re.findall(r"Py_RETURN_\w+;", source.read_text())


def meeting(n=2, rank=0, root=0, words=(0, 1, 2, 5), **changed):
    """Return the kernel of a rank's barriers and its buffers, with some of them changed."""
    buffers = {"words": np.zeros(9, np.int64)}
    for name in ("arrived", "noticed_0", "noticed_1", "length_0", "length_1"):
        buffers[name] = np.zeros(8 * n, np.int64)[::8]
    buffers["arrivals"] = np.zeros(64, np.uint8)
    for name in ("releases", "slots_0", "slots_1"):
        buffers.update({f"{name} {i}": np.zeros(64, np.uint8) for i in range(n)})
    buffers.update(changed)
    return kernels.Meeting(list(buffers.values()), words, n, rank, root, 2, False), buffers


@pytest.mark.parametrize(
    "unsuitable",
    [
        {"words": np.zeros(5, np.int64)},
        {"words": np.zeros(9, np.int32)},
        {"arrived": np.zeros(1, np.int64)},
        {"length_1": np.zeros((2, 1), np.int64)},
        {"arrivals": np.zeros(8, np.uint8)},
        {"releases 1": np.zeros(65, np.uint8)[1:]},
        {"slots_1 1": np.zeros(64, np.int64)},
        {"slots_0 0": np.zeros(128, np.uint8)[::2]},
        {"slots_0 0": read_only(8).view(np.uint8)},
        {"another": np.zeros(64, np.uint8)},
        {"rank": 2},
        {"root": -1},
        {"n": 0},
        {"words": (0, 1, 2, 9)},
        {"words": (0, 1, 2, -1)},
        {"words": (0, 1, 2)},
    ],
)
def test_barriers_refuse_unsuitable_buffers(unsuitable):
    with pytest.raises((ValueError, BufferError)):
        meeting(**unsuitable)


def test_barriers_write_only_their_own_words_and_slot():
    """The root of two ranks waits in vain for the other one, and then finds its notice."""
    barrier, buffers = meeting(2)
    assert barrier.meet(7, 1, 1, b"abc", True) == 0
    written = {name: each for name, each in buffers.items() if each.any()}
    assert {name: each.tolist() for name, each in written.items() if each.dtype == np.int64} == {
        "arrived": [7, 0],
        "noticed_1": [7, 0],
        "length_1": [3, 0],
    }
    assert bytes(written.pop("slots_1 0")) == b"abc" + bytes(61) and len(written) == 3
    buffers["slots_1 1"][:2], buffers["length_1"][1] = (1, 2), 2
    found = barrier.notices(1, ())
    assert found == (b"abc", b"\1\2") and barrier.notices(1, found) is found
    for expected in ((), ("abc", b"\1\2"), (b"abc", b"\1\2\0"), (b"abc",), (b"abc", b"\1\3"), [*found]):
        assert barrier.notices(1, expected) == found
    buffers["length_1"][1] = -2  # the handle of a long notice
    assert barrier.notices(1, found) is None
    for wrong in ((7, 1, 2, b"", True), (7, 1, 0, bytes(65), True)):
        with pytest.raises(ValueError):
            barrier.meet(*wrong)
    with pytest.raises(ValueError):
        barrier.notices(2, ())
