"""File locks: one holder at a time among all processes, and none after its end."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from synkhronos.memory.attach import PoolMap
from synkhronos.memory.pool import Pool
from synkhronos.sync.file_lock import FileLock

HOLDER = """
import os, sys, time
from synkhronos.sync.file_lock import FileLock
lock = FileLock(os.open(sys.argv[1], os.O_RDWR), 3)
print(lock.try_acquire(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def locks(tmp_path):
    """Return a function that makes locks on bytes of a file."""
    path, made = tmp_path / "file", []
    path.write_bytes(b"")

    def make(position=0):
        made.append(FileLock(os.open(str(path), os.O_RDWR), position))
        return made[-1]

    make.path = path
    yield make
    for lock in made:
        lock.close()


def test_one_holder_at_a_time(locks):
    one, other, third = locks(), locks(), locks(1)
    assert one.try_acquire() and not other.try_acquire() and third.try_acquire()
    assert one.try_acquire()  # the caller already has the lock
    one.release()
    one.release()
    assert other.try_acquire() and not one.try_acquire()
    other.close()
    other.close()
    assert one.try_acquire()


def test_a_killed_process_holds_none(locks):
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(locks.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "True\n"
        lock = locks(3)
        assert not lock.try_acquire()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert lock.try_acquire()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_threads_count_in_turn(locks):
    """Without the lock, counts would be lost."""
    counter = np.zeros(1, np.int64)

    def count():
        lock = locks()
        for _ in range(200):
            while not lock.try_acquire():
                pass
            value = int(counter[0])
            if value % 7 == 0:
                os.sched_yield()
            counter[0] = value + 1
            lock.release()

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter[0] == 600


def test_locks_on_the_file_of_a_pool():
    """A pool's process and one with its descriptor share its locks."""
    pool = Pool(0)
    own, peer = PoolMap(), PoolMap()
    own.add(0, pool)
    peer.add(0, pool.fileno())
    one, other = FileLock(own.reopen(0), 64), FileLock(peer.reopen(0), 64)
    assert one.try_acquire() and not other.try_acquire()
    one.close()
    assert other.try_acquire()
    other.close()
    own.remove(0)
    with pytest.raises(KeyError):
        own.reopen(0)
