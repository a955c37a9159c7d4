"""Shared memory with a name, seen from unrelated programs."""

import errno
import os
import subprocess
import sys
import uuid
from pathlib import Path

import numpy as np
import posix_ipc
import pytest
from refusals import refuses, reports

from synkhronos.errors import SharedMemoryError
from synkhronos.host import machine
from synkhronos.memory.attach import PoolMap
from synkhronos.memory.handles import NameHandle
from synkhronos.memory.pool import Pool
from synkhronos.memory.posix_names import NamedMemory

ROOT = Path(__file__).parents[2]


@pytest.fixture
def name():
    name = f"/synk-test-{os.getpid()}-{uuid.uuid4().hex}"
    yield name
    assert not exists(name)


def exists(name):
    return name[1:] in os.listdir("/dev/shm")


def test_an_unrelated_program_reads_and_writes(name):
    memory = NamedMemory(name, 80)
    assert memory.memory.tobytes() == bytes(80)
    array = np.ndarray((10,), "f8", memory.memory)
    array[:] = np.arange(10)
    program = f"""if True:
        import mmap
        with open('/dev/shm{name}', 'r+b') as file:
            memory = mmap.mmap(file.fileno(), 0)
        print(memoryview(memory).cast('d').tolist())
        memoryview(memory).cast('d')[3] = -1
        """
    printed = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, timeout=60, check=True).stdout
    assert eval(printed) == list(range(10))
    assert array[3] == -1
    assert os.stat(f"/dev/shm{name}").st_mode & 0o777 == 0o600
    memory.unlink()


def test_unlink_leaves_the_memory(name):
    memory = NamedMemory(name, 8)
    assert memory.linked
    memory.unlink()
    memory.unlink()
    assert not memory.linked and not exists(name)
    memory.memory[:] = 1
    again = NamedMemory(name, 8)
    assert again.memory.sum() == 0
    memory.unlink()
    assert exists(name)
    again.unlink()


def test_dropping_it_takes_the_name(name):
    memory = NamedMemory(name, 8)
    view = memory.memory[2:]
    del memory
    assert not exists(name)
    view[:] = 1


def test_exit_takes_the_name_and_a_forked_child_does_not(name):
    program = f"""if True:
        import os, sys
        from synkhronos.memory.posix_names import NamedMemory
        memory = NamedMemory({name!r}, 8)
        if os.fork() == 0:
            sys.exit()
        os.wait()
        print(os.path.exists('/dev/shm' + {name!r}))
        """
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    printed = subprocess.run(
        [sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, timeout=60, check=True
    ).stdout
    assert printed == b"True\n"


def test_a_name_that_somebody_else_made_anew_is_left_alone(name):
    memory = NamedMemory(name, 8)
    posix_ipc.unlink_shared_memory(name)
    other = NamedMemory(name, 8)
    memory.unlink()
    assert exists(name)
    other.unlink()
    gone = NamedMemory(name, 8)
    posix_ipc.unlink_shared_memory(name)
    gone.unlink()


def test_existing_name_is_refused(name):
    memory = NamedMemory(name, 8)
    memory.memory[:] = 3
    with refuses(ValueError, "share_as", got=name, hint="choose another"):
        NamedMemory(name, 800)
    assert memory.memory.tolist() == [3] * 8 and exists(name)
    memory.unlink()


@pytest.mark.parametrize("bad", ["", "/", "name", "/a/b", "/" + "x" * 255, "/a\0b"])
def test_names_that_cannot_be(bad):
    with refuses(ValueError, "share_as", expected="'/' followed", got=repr(bad)):
        NamedMemory(bad, 8)


@pytest.mark.parametrize("bad", [3, b"/name", ["/name"]])
def test_names_that_are_no_str(bad):
    with refuses(TypeError, "share_as", expected="a str", got=repr(bad)):
        NamedMemory(bad, 8)


def test_memory_that_cannot_be_had_leaves_no_name(name, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(machine, "available_memory", lambda: 0)
        with reports(SharedMemoryError, "4.0 KiB"):
            NamedMemory(name, 4096)
    assert not exists(name)

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with reports(SharedMemoryError, "No space left"):
        NamedMemory(name, 8)
    assert not exists(name)


@pytest.mark.parametrize("shape", [(), (3,), (0, 4), (2, 3)])
def test_ranks_attach_by_name(name, shape):
    memory = NamedMemory(name, 8 * int(np.prod(shape)))
    array = np.ndarray(shape, "f8", memory.memory)
    array[...] = 2
    peer, handle = PoolMap(), memory.handle(array)
    seen = peer.attach(handle)
    np.testing.assert_array_equal(seen, np.full(shape, 2.0))
    seen[...] = 5
    np.testing.assert_array_equal(array, np.full(shape, 5.0))
    assert peer.attach(handle).base is seen.base
    memory.unlink()
    with reports(ValueError, name, "exists"):
        PoolMap().attach(handle)
    other = NamedMemory(name, 100)
    with reports(ValueError, name, "replaced"):
        PoolMap().attach(handle)
    other.unlink()


def test_handle_that_is_longer_than_the_memory(name):
    memory = NamedMemory(name, 8)
    handle = memory.handle(memory.memory)
    with reports(ValueError, name, "shortened"):
        PoolMap().attach(NameHandle(name, (9000,), handle.dtype, handle.identity))
    memory.unlink()


def test_pool_takes_all_names_at_once(name):
    pool = Pool(0)
    memories = [pool.share(name + str(number), 8) for number in range(3)]
    dropped = pool.share(name, 8)
    del dropped
    assert not exists(name)
    pool.unshare()
    pool.unshare()
    assert not any(memory.linked or exists(memory.name) for memory in memories)
