"""Handles of memory-mapped files, checked against what NumPy reads from them."""

import errno
import os
import pickle

import numpy as np
import pytest
from refusals import refuses, reports

from synkhronos.memory import mapped_file
from synkhronos.memory.attach import PoolMap
from synkhronos.memory.mapped_file import describe, is_mapped

VIEWS = {
    "whole": lambda m: m,
    "rows": lambda m: m[10:20],
    "step": lambda m: m[1::3],
    "view of view": lambda m: m[5:][::-1][2:7, 1:],
    "columns": lambda m: m[:, ::-2],
    "transposed": lambda m: m[3:].T,
    "reshaped": lambda m: m[::2].reshape(-1, 2, 3) if m.flags.c_contiguous else m[:, None],
    "other dtype": lambda m: m.view("i4") if m.flags.c_contiguous else m,
    "element": lambda m: m[7, 2:3].reshape(()),
}


@pytest.fixture
def values():
    return np.random.default_rng(0).integers(0, 1000, (40, 6)).astype("f8")


def memmaps(values, path):
    """Return the same values in files of every kind: with a header, in Fortran order, at an offset within a page."""
    np.save(path / "c.npy", values)
    np.save(path / "f.npy", np.asfortranarray(values))
    with open(path / "raw", "wb") as file:
        file.write(b"x" * 5000 + values.tobytes())
    return [
        np.load(path / "c.npy", mmap_mode="r"),
        np.load(str(path / "f.npy"), mmap_mode="r+"),
        np.memmap(path / "raw", "f8", "r", offset=5000, shape=values.shape),
    ]


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_lie_where_numpy_reads_them(values, tmp_path, view):
    for array in memmaps(values, tmp_path):
        part = view(array)
        expected = np.array(part)
        handle = pickle.loads(pickle.dumps(describe(part)))
        seen = PoolMap().attach(handle)
        assert (seen.shape, seen.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(seen, expected)
        assert seen.flags.writeable == (array.mode == "r+")


def test_only_arrays_over_a_file_are_mapped(values, tmp_path):
    array = memmaps(values, tmp_path)[0]
    assert is_mapped(array) and is_mapped(array[3:]) and is_mapped(array.T)
    for computed in (array.copy(), array * 2, array[[1, 2]], array.sum(), np.array(array), array[:0], values):
        assert not is_mapped(computed)
    with refuses(TypeError, "value", expected="np.memmap"):
        describe(array.copy())


def test_writes_reach_the_file(tmp_path):
    array = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "i4", (5,))
    array[:] = 0
    seen = PoolMap().attach(describe(array[1:]))
    seen[0] = 3
    assert array[1] == 3
    del array, seen
    assert np.load(tmp_path / "x.npy").tolist() == [0, 3, 0, 0, 0]


def test_read_only_view_of_a_writable_file_stays_so(tmp_path):
    array = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "i4", (5,))
    array.flags.writeable = False
    assert not PoolMap().attach(describe(array)).flags.writeable


def test_relative_path_survives_a_change_of_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(3))
    array = np.load("x.npy", mmap_mode="r")
    monkeypatch.chdir("/")
    assert PoolMap().attach(describe(array)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["with space", "new\nline", "x (deleted)"])
def test_odd_names(tmp_path, name):
    array = np.memmap(tmp_path / name, "u1", "w+", shape=10)
    array[:] = 4
    assert PoolMap().attach(describe(array)).tolist() == [4] * 10
    (tmp_path / "other").write_bytes(bytes(10))
    os.replace(tmp_path / "other", tmp_path / name)
    with refuses(ValueError, "value", got="found"):
        describe(array)


def test_copy_on_write_is_refused(values, tmp_path):
    np.save(tmp_path / "x.npy", values)
    with refuses(ValueError, "value", got="mode 'c'", hint="'r+'"):
        describe(np.load(tmp_path / "x.npy", mmap_mode="c")[2:])


@pytest.mark.parametrize("replaced", [False, True])
def test_file_without_its_name_is_refused(values, tmp_path, replaced):
    array = memmaps(values, tmp_path)[0]
    handle = describe(array)
    np.save(tmp_path / "other.npy", values + 1)
    if replaced:
        os.replace(tmp_path / "other.npy", tmp_path / "c.npy")
    else:
        os.remove(tmp_path / "c.npy")
    with refuses(ValueError, "value", got=str(tmp_path / "c.npy"), hint="keep"):
        describe(array[1:])
    for use in (mapped_file.check, PoolMap().attach):
        with reports(ValueError, tmp_path / "c.npy", "replaced" if replaced else os.strerror(errno.ENOENT)):
            use(handle)


def test_anonymous_file_is_refused(tmp_path):
    with open(os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT), "w+b") as file:
        array = np.memmap(file, "u1", "w+", shape=10)
        with refuses(ValueError, "value", got="found"):
            describe(array)


def test_one_mapping_serves_all_arrays_of_a_file(values, tmp_path):
    array = memmaps(values, tmp_path)[0]
    peer = PoolMap()
    first, second = peer.attach(describe(array)), peer.attach(describe(array[3:]))
    assert first.base is second.base
    peer.forget(str(tmp_path / "other"))
    assert peer.attach(describe(array)).base is first.base
    peer.forget(str(tmp_path / "c.npy"))
    assert peer.attach(describe(array)).base is not first.base
    assert first[1, 1] == values[1, 1]


def test_few_files_stay_mapped(tmp_path):
    peer, before = PoolMap(), len(os.listdir("/proc/self/fd"))
    for number in range(100):
        np.save(tmp_path / f"{number}.npy", np.full(3, number))
        assert peer.attach(describe(np.load(tmp_path / f"{number}.npy", mmap_mode="r"))).tolist() == [number] * 3
    assert len(os.listdir("/proc/self/fd")) - before <= 17


def test_file_that_grew_is_mapped_again_and_one_that_was_cut_refused(tmp_path):
    path = tmp_path / "raw"
    peer = PoolMap()
    np.arange(1000).tofile(path)
    old = np.memmap(path, "i8", "r")
    peer.attach(describe(old))
    with open(path, "ab") as file:
        np.arange(1000, 3000).tofile(file)
    handle = describe(np.memmap(path, "i8", "r"))
    np.testing.assert_array_equal(peer.attach(handle), np.arange(3000))
    os.truncate(path, 100)
    for use in (mapped_file.check, PoolMap().attach):
        with reports(ValueError, 24000, 100):
            use(handle)


def test_without_proc_files_are_taken_as_they_are(values, tmp_path, monkeypatch):
    array = memmaps(values, tmp_path)[0]

    def missing(*args, **kwargs):
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", missing)
    assert describe(array).path == str(tmp_path / "c.npy")
    os.remove(tmp_path / "c.npy")
    with refuses(ValueError, "value", got="found"):
        describe(array)


# --- on other hosts ---


def test_other_hosts_take_a_copy(tmp_path):
    x = np.arange(100_000.0)
    path = tmp_path / "x.npy"
    np.save(path, x)
    handle = mapped_file.describe(np.load(path, mmap_mode="r"))
    copied = tmp_path / "copy.npy"
    copied.write_bytes(path.read_bytes() + b"and more")  # the file has grown
    os.rename(copied, path)
    mapping = mapped_file.open_mapping(handle, elsewhere=True)
    np.testing.assert_array_equal(np.ndarray(handle.shape, handle.dtype, mapping, handle.offset), x)
    with reports(ValueError, path, "replaced"):
        mapped_file.open_mapping(handle)


@pytest.mark.parametrize("place", [0, 100, 400_000, 800_000], ids=str)
def test_other_hosts_refuse_another_content(tmp_path, place):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(100_000.0))
    handle = mapped_file.describe(np.load(path, mmap_mode="r"))
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(b"\x07" * 60_000 if place else b"\x07")
    with reports(ValueError, "x.npy", path.stat().st_size, 800128):
        mapped_file.open_mapping(handle, elsewhere=True)


def test_what_is_written_to_need_not_be_the_same(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(10.0))
    x = np.load(path, mmap_mode="r+")
    handle = mapped_file.describe(x)
    x[:] = 7
    mapping = mapped_file.open_mapping(handle, elsewhere=True)
    assert np.ndarray(handle.shape, handle.dtype, mapping, handle.offset).tolist() == [7.0] * 10
