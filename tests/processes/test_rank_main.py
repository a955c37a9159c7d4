"""The setup of a process that becomes a rank."""

import os
import signal
import sys
import time

import psutil
import pytest
from gates import until

import synkhronos as synk
from synkhronos.processes.rank_main import (
    die_with_parent,
    fatal_error,
    record_fatal_error,
    take_default_signals,
)
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command
from synkhronos.sync.control_block import FATAL_ERROR_BYTES, ControlBlock

pytestmark = pytest.mark.slow


class Look(Command):
    """Command that returns a rank's environment, signal handlers and other process state."""

    def run(self, context):
        if context.rank == context.root:
            return None
        return {
            "environment": dict(os.environ),
            "path": list(sys.path),
            "directory": os.getcwd(),
            "stdin": os.read(0, 1),
            "inside": sys.modules["synkhronos.program.program"].PROGRAM.inside_rank,
            "signals": {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)},
            "interrupt": callable(signal.getsignal(signal.SIGINT)),
            "mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
            "parent": os.getppid(),
        }


@pytest.fixture(autouse=True)
def closed():
    yield
    synk.close()


def test_rank_is_set_up(tmp_path, monkeypatch):
    PROGRAM.shut_down()  # so that a new keeper inherits the handler
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    try:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("SYNK_TEST_OF_RANKS", "yes")
        monkeypatch.syspath_prepend(str(tmp_path))
        synk.fork(2)
        seen = PROGRAM.session.run(Look())[1]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen["environment"]["SYNK_TEST_OF_RANKS"] == "yes" and seen["path"] == sys.path
    assert seen["directory"] == str(tmp_path) and seen["stdin"] == b"" and seen["inside"]
    assert set(seen["signals"].values()) == {signal.SIG_DFL} and seen["mask"] == set() and seen["interrupt"]
    assert seen["parent"] == PROGRAM.keeper_pid and not PROGRAM.inside_rank


def test_environment_of_the_next_session(monkeypatch):
    """Ranks have the program's environment at the time of fork(), not of the keeper's start."""
    monkeypatch.setenv("SYNK_TEST_OF_RANKS", "first")
    synk.fork(2)
    synk.close()
    monkeypatch.delenv("SYNK_TEST_OF_RANKS")
    synk.fork(2)
    assert "SYNK_TEST_OF_RANKS" not in PROGRAM.session.run(Look())[1]["environment"]


def in_child(work):
    pid = os.fork()
    if pid == 0:
        status = 9
        try:
            status = work()
        finally:
            os._exit(status)
    return pid


def is_gone(pid):
    """Return whether a process has ended, even if its parent has not waited for it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_dies_with_its_parent():
    read, write = os.pipe()

    def parent():
        def child():
            die_with_parent(os.getppid())
            os.write(write, b"%d." % os.getpid())
            time.sleep(1000)

        in_child(child)
        time.sleep(1000)

    pid = in_child(parent)
    child = int(os.read(read, 20).split(b".")[0])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until(lambda: is_gone(child))
    os.close(read)
    os.close(write)


def test_parent_that_is_gone_already():
    pid = in_child(lambda: die_with_parent(1234567) or 5)
    assert os.waitpid(pid, 0)[1] == 0


def test_default_signals():
    def child():
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        take_default_signals()
        return (
            0
            if (
                signal.getsignal(signal.SIGUSR1),
                signal.getsignal(signal.SIGUSR2),
                signal.pthread_sigmask(signal.SIG_BLOCK, []),
            )
            == (signal.SIG_DFL, signal.SIG_IGN, set())
            else 1
        )

    assert os.waitpid(in_child(child), 0)[1] == 0


@pytest.mark.parametrize("text", ["short", "x" * 10**6, "\u00fc" * 10**5, "\udc80", "a\0b"])
def test_last_words(text):
    block = ControlBlock(2)
    assert fatal_error(block, 1) == ""
    record_fatal_error(block, 1, ValueError(text))
    words = fatal_error(block, 1)
    assert words.rstrip().endswith(text[-1:] if text != "\udc80" else "?") and len(words.encode()) <= FATAL_ERROR_BYTES
    assert fatal_error(block, 0) == ""
    block.close()
