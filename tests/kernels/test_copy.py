"""Copying that bypasses the CPU caches."""

import os
import subprocess
import sys

import numpy as np
import pytest
from refusals import reports

from synkhronos.kernels import copy as streaming
from synkhronos.selection import Indices

kernels = streaming.kernels
needs_kernels = pytest.mark.skipif(kernels is None, reason="needs the kernels in C: make install, with a compiler")


@pytest.fixture(params=["past the caches", "through NumPy", "by size"])
def way(request, monkeypatch):
    if request.param == "past the caches":
        if kernels is None:
            pytest.skip("needs the kernels in C")
        monkeypatch.setattr(streaming, "CACHE_BYTES", 0)
    elif request.param == "through NumPy":
        monkeypatch.setattr(streaming, "kernels", None)


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 63, 64, 65, 1000, 4097])
@pytest.mark.parametrize("offsets", [(0, 0), (1, 0), (0, 3), (5, 5), (7, 13)])
def test_copy_into_any_place(way, size, offsets):
    expected = np.random.RandomState(size).randint(0, 256, size).astype(np.uint8)
    source, target = np.zeros(size + 32, np.uint8), np.full(size + 32, 99, np.uint8)
    source[offsets[0] : offsets[0] + size] = expected
    streaming.copy_into(target[offsets[1] : offsets[1] + size], source[offsets[0] : offsets[0] + size])
    np.testing.assert_array_equal(target[offsets[1] : offsets[1] + size], expected)
    assert set(target[: offsets[1]]) | set(target[offsets[1] + size :]) == {99}


@pytest.mark.parametrize(
    "source",
    [
        np.arange(24.0).reshape(4, 6),
        np.arange(24.0).reshape(6, 4).T,
        np.arange(48.0).reshape(4, 12)[:, ::2],
        np.arange(24).reshape(4, 6),
        np.arange(24.0, dtype=">f8").reshape(4, 6),
        np.ones((4, 6), bool),
        np.ones((4, 6)) * 1j,
    ],
)
def test_copy_into_any_array(way, source):
    dtype = source.dtype if source.dtype.kind == "c" else np.float64
    for target in (np.zeros((4, 6), dtype), np.zeros((6, 4), dtype).T, np.zeros((4, 12), dtype)[:, ::2]):
        streaming.copy_into(target, source)
        np.testing.assert_array_equal(target, source)


def test_copy_into_needs_no_elements(way):
    target = np.array(1.0)
    streaming.copy_into(target, np.array(2.0))
    streaming.copy_into(np.empty((0, 3)), np.empty((0, 3)))
    assert target == 2


def test_copy_into_takes_every_dtype(way):
    source = np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")])
    target = np.zeros_like(source)
    streaming.copy_into(target, source)
    assert target.tolist() == [(1, 2.0), (3, 4.0)]
    dates, copies = np.array(["2026-11-20"], "M8[D]"), np.zeros(1, "M8[D]")
    streaming.copy_into(copies, dates)
    assert copies == dates


@pytest.mark.parametrize("dtype", ["?", "f2", "f4", ">f8", "c16", "g", "M8[D]", "O", [("a", "i1"), ("b", "f8")]])
@pytest.mark.parametrize("row", [(), (1,), (7,), (3, 300), (0,)])
def test_take_rows_of_every_dtype_and_size(way, dtype, row):
    source = np.random.RandomState(1).randint(0, 2, (7, *row)).astype("i1").astype(dtype)
    for indices in ([], [2], [0, 6, 6, 3], [*range(6, -1, -1)] * 3):
        guarded = np.zeros((len(indices) + 2, *row), dtype)
        before = guarded.tolist()
        Indices(np.array(indices, np.intp)).take(source, guarded[1:-1])
        assert guarded.tolist() == [before[0], *[source.tolist()[i] for i in indices], before[-1]]


def test_take_rows_into_any_place(way):
    source, indices = np.arange(40.0).reshape(10, 4), np.array([9, 0, 4])
    for target in (np.zeros((4, 3)).T, np.zeros((3, 8))[:, ::2], np.zeros((6, 4))[::-2]):
        Indices(indices).take(source, target)
        np.testing.assert_array_equal(target, source[indices])


@needs_kernels
@pytest.mark.parametrize("wrong", [4, -1, 2**62, -(2**63)])
@pytest.mark.parametrize("position", [0, 7, 8, 19])
def test_take_writes_only_rows_before_a_wrong_index(wrong, position):
    source, target, indices = np.ones((4, 300)), np.zeros((20, 300)), np.zeros(20, np.intp)
    indices[position] = wrong
    with reports(IndexError, f"index {position}", "4 rows"):
        kernels.take(target, source, indices)
    assert target.all(axis=1).tolist() == [i < position for i in range(20)]


@needs_kernels
@pytest.mark.parametrize(
    "target, source, indices",
    [
        (np.zeros(5), np.zeros(8), np.zeros(2, np.intp)),
        (np.zeros(4), np.zeros(7), np.zeros(2, np.intp)),
        (np.zeros(4), np.zeros(8), np.zeros(3, np.int32)),
        (np.zeros(4), np.zeros(8), np.frombuffer(bytes(17), np.intp, 2, offset=1)),
        (np.zeros(4), np.zeros(8), np.zeros(0, np.intp)),
    ],
)
def test_take_refuses_buffers_that_do_not_fit(target, source, indices):
    with reports(ValueError, "do not fit"):
        kernels.take(target, source, indices)


@needs_kernels
def test_copy_refuses_other_sizes():
    with reports(ValueError, "8 and 16"):
        kernels.copy(np.zeros(1), np.zeros(2))
    with pytest.raises((TypeError, ValueError, BufferError)):
        kernels.copy(b"constant", np.zeros(1))


def test_without_kernels(monkeypatch):
    """The library works even if no compiler was available at installation."""
    import importlib
    import sys

    import synkhronos

    monkeypatch.setitem(sys.modules, "synkhronos.kernels._kernels", None)
    monkeypatch.delattr(synkhronos.kernels, "_kernels", raising=False)
    fresh = importlib.util.module_from_spec(importlib.util.find_spec("synkhronos.kernels.copy"))
    fresh.__spec__.loader.exec_module(fresh)
    assert fresh.kernels is None
    target = np.zeros(3)
    fresh.copy_into(target, np.arange(3.0))
    assert list(target) == [0, 1, 2]


def test_missing_kernels_are_logged_once(tmp_path):
    """Only the first `fork` logs missing kernels, with the cause."""
    program = """
import sys
sys.modules["synkhronos.kernels._kernels"] = None
import synkhronos as synk
for _ in range(2):
    synk.fork(1)
    synk.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=str(tmp_path),
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    assert done.returncode == 0, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "the C kernels are missing (" in line]
    assert "_kernels" in line and "python -m synkhronos doctor" in line
