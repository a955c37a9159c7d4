"""The backing of a Data's value: one object, replaced in one step."""

import os
import signal
import sys
import uuid

import numpy as np
import pytest

from synkhronos.memory.attach import PoolMap
from synkhronos.memory.backings import FileBacking, NamedBacking, NoBacking, PoolBacking, Storage
from synkhronos.memory.pool import Pool


@pytest.fixture
def storage():
    return Storage(Pool(0), np.dtype("float64"), 2)


def attached(storage):
    peer = PoolMap()
    peer.add(0, storage.pool.fileno())
    return peer.attach(storage.handle())


def test_from_kind_to_kind(storage, tmp_path):
    value = np.arange(6.0).reshape(3, 2)
    assert type(storage.backing) is NoBacking and storage.backing.shape == (0, 0)
    storage.store(value, 1)
    assert type(storage.backing) is PoolBacking and storage.backing.fixed_handle == storage.handle()
    np.save(tmp_path / "x.npy", value + 1)
    storage.store(np.load(tmp_path / "x.npy", mmap_mode="r"), 1)
    assert type(storage.backing) is FileBacking and storage.backing.fixed_handle is None
    np.testing.assert_array_equal(attached(storage), value + 1)
    storage.reshape((2, 2), 1)
    assert type(storage.backing) is FileBacking
    np.testing.assert_array_equal(attached(storage), value[:2] + 1)
    storage.reshape((4, 2), 1)  # more rows than the file has
    assert type(storage.backing) is PoolBacking
    np.testing.assert_array_equal(attached(storage), np.vstack([value[:2] + 1, np.zeros((2, 2))]))
    storage.free()
    assert type(storage.backing) is NoBacking and storage.backing.shape == (0, 2)


def test_memory_with_a_name_goes_on_in_the_pool_without_it(storage):
    storage.name(f"/synk-test-{os.getpid()}-{uuid.uuid4().hex}", (3, 2), 1)
    storage.store(np.ones((3, 2)), 1)
    named = storage.backing
    assert type(named) is NamedBacking and named.keeps_memory and named.fixed_handle is None
    assert attached(storage).tolist() == [[1, 1]] * 3 and storage.backing is named
    named.unlink()
    assert not storage.backing.keeps_memory
    assert attached(storage).tolist() == [[1, 1]] * 3
    assert type(storage.backing) is PoolBacking


@pytest.mark.parametrize(
    "change", [lambda storage: storage.store(np.ones((9, 9)), 1), lambda storage: storage.reshape((5, 2), 1)]
)
def test_an_interrupt_finds_the_old_state(storage, monkeypatch, change):
    storage.store(np.ones((3, 2)), 1)
    before = storage.backing

    def interrupted(array):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storage.pool, "handle", interrupted)  # the last step of a new backing
        with pytest.raises(KeyboardInterrupt):
            change(storage)
    assert storage.backing is before
    assert attached(storage).tolist() == [[1, 1]] * 3
    change(storage)
    assert storage.backing is not before and attached(storage).shape == storage.backing.shape != (3, 2)


def interrupting(names, nth):
    """Return a trace function that raises SIGINT before the nth line executed in functions of these names."""
    lines = iter(range(1000))

    def trace(frame, event, argument):
        if frame.f_code.co_name not in names:
            return None
        if event == "line" and next(lines) == nth:
            signal.raise_signal(signal.SIGINT)
        return trace

    return trace


OLD = np.arange(12.0).reshape(3, 4)
NEW = 100 + np.arange(10.0).reshape(2, 5)
CORNER = np.hstack([OLD[:2], np.zeros((2, 1))])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda storage: storage.store(NEW, 1), NEW),
        (lambda storage: storage.store(OLD + 7, 1), OLD + 7),
        (lambda storage: storage.reshape((2, 5), 1), CORNER),
        (lambda storage: storage.reshape((2, 4), 1), OLD[:2]),
    ],
    ids=["another shape", "same shape", "reshape", "fewer rows"],
)
def test_an_interrupt_anywhere_finds_the_old_value_or_the_new_one(change, expected, shared):
    """Changes within the same memory leave the old value or the new one if they are interrupted."""
    came = set()
    for nth in range(30):
        storage = Storage(Pool(0), np.dtype("float64"), 2)
        if shared:
            storage.name(f"/synk-test-{os.getpid()}-{uuid.uuid4().hex}", OLD.shape, 1)
        storage.store(OLD, 1)
        memory, before = storage.backing.memory, sys.gettrace()
        sys.settrace(interrupting(("store", "reshape"), nth))
        try:
            change(storage)
        except KeyboardInterrupt:
            came.add(nth)
        finally:
            sys.settrace(before)
        shown = storage.backing.array
        assert storage.backing.memory is memory
        assert any(shown.shape == value.shape and (shown == value).all() for value in (OLD, expected)), (nth, shown)
        assert nth in came or (shown.shape == expected.shape and (shown == expected).all())
        storage.free()
    assert 5 < len(came) < 30


def test_a_file_of_0_dimensions_stays_an_array(tmp_path):
    np.save(tmp_path / "x.npy", np.float64(3))
    storage = Storage(Pool(0), np.dtype("float64"), 0)
    storage.store(np.load(tmp_path / "x.npy", mmap_mode="r"), 1)
    storage.reshape((), 1)
    assert type(storage.backing) is FileBacking and isinstance(storage.backing.array, np.ndarray)
    assert storage.backing.array.shape == () and attached(storage).tolist() == 3
