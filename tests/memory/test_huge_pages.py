"""Large ranges of shared memory are moved into huge pages, and their contents stay the same."""

import ctypes
import errno
import mmap
import os
import re
from pathlib import Path

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.memory import huge_pages
from synkhronos.memory.huge_pages import HUGE_BYTES, use_huge_pages
from synkhronos.memory.memfd import give_back, nameless_file
from synkhronos.memory.pool import Pool


@pytest.fixture
def file():
    """Return a file of five huge pages and a bit."""
    fd = nameless_file("test", 5 * HUGE_BYTES + 4096)
    yield fd
    os.close(fd)


def in_huge_pages(fd, start, size):
    """Return how many bytes of a range, which starts at a multiple of `HUGE_BYTES`, are mapped as huge pages."""
    with huge_pages._aligned(fd, start, size) as address:
        pages = np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))
        assert pages[::4096].max() < 256  # reads every page
        maps = Path("/proc/self/smaps").read_text()
        return 1024 * int(re.search(r"ShmemPmdMapped: +(\d+)", maps[maps.index(f"\n{address:x}-") :]).group(1))


@pytest.fixture
def huge():
    """Skip the test unless the system moves pages of shared memory into huge pages; this does not use the library."""
    fd, size = os.memfd_create("probe"), 6 * HUGE_BYTES
    os.posix_fallocate(fd, 0, size)
    libc = ctypes.CDLL(None)
    with mmap.mmap(-1, size + HUGE_BYTES) as window:
        address = -(-ctypes.addressof(ctypes.c_char.from_buffer(window)) // HUGE_BYTES) * HUGE_BYTES
        libc.mmap.restype, arguments = ctypes.c_void_p, (3, mmap.MAP_SHARED | 0x10, fd, ctypes.c_long(0))
        assert libc.mmap(ctypes.c_void_p(address), ctypes.c_size_t(size), *arguments) == address
        failed = libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), 25)
    os.close(fd)
    if failed:
        pytest.skip("needs Linux 6.1 or later with transparent huge pages, and six free huge pages")


def test_a_range_lies_in_huge_pages(file, huge):
    assert use_huge_pages(file, 0, 5 * HUGE_BYTES + 4096) == 5 * HUGE_BYTES
    assert in_huge_pages(file, 0, 5 * HUGE_BYTES) == 5 * HUGE_BYTES


@pytest.mark.parametrize("start, size", [(0, 5 * HUGE_BYTES), (5, HUGE_BYTES), (HUGE_BYTES - 3, 2 * HUGE_BYTES + 7)])
def test_contents_stay_the_same(file, start, size):
    """Bytes in the range, around it, and written meanwhile through another mapping stay the same."""
    written = np.random.RandomState(0).randint(0, 256, 5 * HUGE_BYTES + 4096).astype(np.uint8)
    os.pwrite(file, written.tobytes(), 0)
    with mmap.mmap(file, 5 * HUGE_BYTES + 4096) as pages:
        array = np.frombuffer(pages, np.uint8)
        use_huge_pages(file, start, size)
        np.testing.assert_array_equal(array, written)
        del array
    assert os.fstat(file).st_blocks * 512 == 5 * HUGE_BYTES + 4096


@pytest.mark.parametrize("number, steps", [(errno.EINVAL, 1), (errno.ENOMEM, 1), (errno.EAGAIN, 3)])
def test_a_system_that_refuses(monkeypatch, file, number, steps):
    """If the system has no huge page, or does not know the request, the range stays as it is."""
    calls = []

    class Libc:
        mmap = huge_pages._libc.mmap

        def madvise(self, address, size, advice):
            calls.append((size, advice))
            ctypes.set_errno(number)
            return -1

    monkeypatch.setattr(huge_pages, "_libc", Libc())
    monkeypatch.setattr(huge_pages, "_STEP_BYTES", 2 * HUGE_BYTES)
    os.pwrite(file, b"x" * 100, 0)
    assert use_huge_pages(file, 0, 5 * HUGE_BYTES + 4096) == 0
    assert calls == [(2 * HUGE_BYTES, 25), (2 * HUGE_BYTES, 25), (HUGE_BYTES, 25)][:steps]
    assert os.pread(file, 101, 0) == b"x" * 100 + b"\0"


def test_no_address_space(monkeypatch, file):
    def refuse(*args):
        raise OSError(errno.ENOMEM, "no address space")

    monkeypatch.setattr(huge_pages.mmap, "mmap", refuse)
    assert use_huge_pages(file, 0, 5 * HUGE_BYTES) == 0


def test_ranges_smaller_than_a_huge_page_are_left_alone(monkeypatch, file):
    monkeypatch.setattr(huge_pages, "_libc", None)
    assert use_huge_pages(file, 1, 2 * HUGE_BYTES - 2) == 0


def test_memory_in_huge_pages_is_given_back(file):
    use_huge_pages(file, 0, 5 * HUGE_BYTES)
    before = os.fstat(file).st_blocks * 512
    give_back(file, HUGE_BYTES, 2 * HUGE_BYTES + 8192)  # a huge page, and a part of the next one
    assert os.fstat(file).st_blocks * 512 == before - HUGE_BYTES - 8192
    assert os.pread(file, 3, 2 * HUGE_BYTES) == b"\0\0\0"


def test_arrays_of_a_pool(huge):
    pool = Pool(0)
    first = pool.allocate((100,), np.uint8)  # the next array does not begin at a multiple of a huge page
    array = pool.allocate((4, HUGE_BYTES), np.uint8)
    array[:], first[:] = 7, 6
    assert pool.use_huge_pages(array) == 3 * HUGE_BYTES
    assert in_huge_pages(pool.fileno(), HUGE_BYTES, 3 * HUGE_BYTES) == 3 * HUGE_BYTES
    assert array.min() == array.max() == 7 and first.min() == first.max() == 6


def test_ranks_that_have_mapped_the_data(make_world, numpy_words, huge):
    """Ranks that read the data before it is moved see the same values, and later changes, afterwards."""
    make_world("fork", 2)
    value = np.random.RandomState(0).randn(500_000)
    data, x = synk.data(value), numpy_words.variable("x")
    f = synk.function([x], (numpy_words.max(x), "max"))
    assert f(data) == value.max()
    assert data.use_huge_pages() >= 4_000_000 // HUGE_BYTES * HUGE_BYTES - HUGE_BYTES
    np.testing.assert_array_equal(data, value)
    assert f(data) == value.max()
    data[400_000] = 1e6
    assert f(data) == 1e6


def test_data_without_memory_of_the_pool(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(500_000))
    assert synk.data(str(tmp_path / "x.npy")).use_huge_pages() == 0
    assert synk.data(ndim=1, dtype="float32").use_huge_pages() == 0
    freed = synk.data(np.ones(500_000))
    freed.free_memory()
    assert freed.use_huge_pages() == 0
