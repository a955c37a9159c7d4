"""Semaphores in shared memory."""

import mmap
import os
import signal
import threading
import time

import pytest

from synkhronos.sync.semaphore import SEMAPHORE_BYTES, Semaphore, WaitPolicy


@pytest.fixture
def memory():
    return mmap.mmap(-1, 2 * SEMAPHORE_BYTES)


def test_counts(memory):
    semaphore = Semaphore(memory, create=True)
    assert not semaphore.try_acquire()
    for _ in range(3):
        semaphore.release()
    assert [semaphore.try_acquire() for _ in range(4)] == [True, True, True, False]
    assert not semaphore.acquire(0)
    semaphore.release()
    assert semaphore.acquire(0) and not semaphore.try_acquire()


def test_two_objects_are_one_semaphore_and_neighbours_are_not(memory):
    whole = memoryview(memory)
    first, second = Semaphore(whole[:SEMAPHORE_BYTES], create=True), Semaphore(whole[SEMAPHORE_BYTES:], create=True)
    first.release()
    assert not second.try_acquire()
    assert Semaphore(whole[:SEMAPHORE_BYTES]).try_acquire() and not first.try_acquire()


def test_drain(memory):
    semaphore = Semaphore(memory, create=True)
    semaphore.drain()
    for _ in range(5):
        semaphore.release()
    semaphore.drain()
    assert not semaphore.try_acquire()


@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.15])
def test_waits_so_long(memory, seconds):
    semaphore = Semaphore(memory, create=True)
    began = time.monotonic()
    assert not semaphore.acquire(seconds)
    assert seconds <= time.monotonic() - began


def test_wakes_a_thread_that_waits(memory):
    """Waiting lets other Python threads run."""
    semaphore = Semaphore(memory, create=True)
    taken = []
    thread = threading.Thread(target=lambda: taken.append(semaphore.acquire(60)))
    thread.start()
    time.sleep(0.02)
    semaphore.release()
    thread.join()
    assert taken == [True]


def test_wakes_a_process_that_waits(memory):
    there, back = (
        Semaphore(memoryview(memory)[:SEMAPHORE_BYTES], create=True),
        Semaphore(memoryview(memory)[SEMAPHORE_BYTES:], create=True),
    )
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for _ in range(100):
                assert there.acquire(60)
                back.release()
            status = 0
        finally:
            os._exit(status)
    for _ in range(100):
        there.release()
        assert back.acquire(60)
    assert os.waitpid(pid, 0)[1] == 0
    assert not there.try_acquire() and not back.try_acquire()


def test_dead_waiter_takes_nothing(memory):
    semaphore = Semaphore(memoryview(memory)[:SEMAPHORE_BYTES], create=True)
    pid = os.fork()
    if pid == 0:
        semaphore.acquire(60)
        os._exit(1)
    time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    semaphore.release()
    assert semaphore.acquire(60)


def test_signal_ends_a_wait_early(memory):
    """After a signal, Python can run its handler."""
    semaphore = Semaphore(memory, create=True)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert not semaphore.acquire(1000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_memory_that_is_too_small():
    with pytest.raises(ValueError):
        Semaphore(memoryview(mmap.mmap(-1, SEMAPHORE_BYTES))[: SEMAPHORE_BYTES - 1], create=True)


class TestWait:
    def setup_method(self):
        self.semaphore = Semaphore(mmap.mmap(-1, SEMAPHORE_BYTES), create=True)

    def test_takes_one(self):
        self.semaphore.release()
        self.semaphore.wait(lambda: 1 / 0, WaitPolicy(3, False))
        assert not self.semaphore.try_acquire()

    def test_yields(self):
        self.semaphore.release()
        self.semaphore.wait(lambda: 1 / 0, WaitPolicy(3, True))

    def test_watch_ends_it(self):
        with pytest.raises(ZeroDivisionError):
            self.semaphore.wait(lambda: 1 / 0, WaitPolicy(3, False))

    def test_watch_that_returns_true_ends_it_without_a_token(self):
        calls = []
        self.semaphore.wait(lambda: calls.append(1) or len(calls) == 2, WaitPolicy(0, False))
        assert len(calls) == 2 and not self.semaphore.try_acquire()


def test_wait_policy():
    assert WaitPolicy.of_processes(2, 2, pinned=True) == WaitPolicy(600, False)
    # Yield if the peer may need the core.
    assert (
        WaitPolicy.of_processes(3, 2, pinned=False)
        == WaitPolicy.of_processes(2, 2, pinned=False)
        == WaitPolicy(60, True)
    )
