"""What the value of a Data lies in: one object, replaced in one step."""

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
    storage.name(f"/synk-test-{uuid.uuid4().hex}", (3, 2), 1)
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
        patch.setattr(storage.pool, "handle", interrupted)  # the last thing that a new backing asks for
        with pytest.raises(KeyboardInterrupt):
            change(storage)
    assert storage.backing is before
    assert attached(storage).tolist() == [[1, 1]] * 3
    change(storage)
    assert storage.backing is not before and attached(storage).shape == storage.backing.shape != (3, 2)
