"""Fixtures for sabotage: checks for leftovers, and separate programs."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest

import synkhronos as synk
from synkhronos.program.program import PROGRAM


def open_files():
    """Return the files behind the open descriptors of this process, except for sockets and pools."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            found[int(fd)] = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            pass
    return {fd: name for fd, name in found.items() if "synkhronos-pool" not in name and not name.startswith("socket:")}


@pytest.fixture(autouse=True)
def nothing_more_stays(nothing_stays):
    """Check that a test leaves no additional open files or threads."""
    synk.close()
    files, threads = open_files(), threading.active_count()
    yield
    synk.close()
    gc.collect()
    after = {fd: name for fd, name in open_files().items() if files.get(fd) != name}
    assert not after, f"open files left: {after}"
    assert threading.active_count() <= threads, threading.enumerate()


@pytest.fixture
def fresh_keeper():
    """Start the test without a keeper, so that ranks inherit the test's changes to this process."""
    PROGRAM.shut_down()
    yield
    PROGRAM.shut_down()


class Script:
    """A program in a separate session of processes, and all processes that it starts."""

    def __init__(self, code, *, launch=None, stdin=None, options=(), **kwargs):
        command = launch or [sys.executable, *options, "-c", PRELUDE + textwrap.dedent(code)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            **kwargs,
        )
        if stdin is not None:
            self.process.stdin.write(stdin)
        self._given = stdin is not None

    @property
    def pid(self):
        return self.process.pid

    def read(self):
        """Return the next line, read byte by byte, because `finish` would miss what a file object reads ahead."""
        line, byte = b"", None
        while byte not in (b"", b"\n"):
            byte = os.read(self.process.stdout.fileno(), 1)
            line += byte
        return line.decode().strip()

    def until(self, text):
        """Read output up to this line."""
        while True:
            line = self.read()
            if line == text:
                return
            if not line and self.process.poll() is not None:
                raise AssertionError(f"the program ended before it printed {text!r}: {self.process.stderr.read()}")

    def others(self):
        """Return the other running processes of the program's session."""
        found = []
        for pid in psutil.pids():
            try:
                if (
                    pid != self.pid
                    and os.getsid(pid) == self.pid
                    and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(pid)
            except (ProcessLookupError, psutil.NoSuchProcess):
                pass
        return found

    def wait_others(self, seconds=30.0):
        """Return the processes that do not end within this time."""
        until = time.monotonic() + seconds
        while self.others() and time.monotonic() < until:
            time.sleep(0.01)
        return self.others()

    def finish(self, timeout=90):
        """Wait for the end; return exit status, remaining output and errors."""
        if not self._given:
            self.process.stdin.close()
            self.process.stdin = None
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    def end(self):
        for pid in [self.pid] * (self.process.poll() is None) + self.others():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        self.process.wait()


#: First lines of programs: everyday operations in a session, with the NumPy engine.
PRELUDE = """
import mmap, os, signal, sys, time, threading
import numpy as np
import synkhronos as synk
from synkhronos.runtime.command import Command
from synkhronos.testing import numpy_engine as engine
from synkhronos.program.program import PROGRAM
from synkhronos.sync.barrier import Barrier

MASTER = os.getpid()
flag = mmap.mmap(-1, 1)  # shared with the ranks

def say(*words):
    print(*words, flush=True)

w = engine.shared(np.zeros(3), "w")

def build(function=None, updates=True):
    x = engine.variable("x", "float64", 1)
    y = engine.apply(function, x, dtype="float64", ndim=1) if function else x
    return synk.function([x], (engine.mean(y), "avg"), updates=[(w, w + 1)] if updates else None)

def works():
    n = synk.size()
    w.set_value(np.arange(3.0))
    synk.broadcast(w)
    f = build()
    assert f(np.arange(12.0)) == 5.5
    assert np.array_equal(w.get_value(), np.arange(3.0) + 1)
    synk.broadcast(w)
    synk.all_reduce(w, op="sum")
    assert np.array_equal(w.get_value(), n * (np.arange(3.0) + 1)), w.get_value()
"""


@pytest.fixture
def prelude():
    """Return the first lines of `script` programs."""
    return PRELUDE


@pytest.fixture
def script():
    """Return a function that starts programs; no process may remain."""
    started = []

    def start(code="", **kwargs):
        started.append(Script(code, **kwargs))
        return started[-1]

    yield start
    left = []
    for program in started:
        left += program.wait_others() if program.process.poll() is not None else []
        program.end()
    assert not left, f"processes left: {left}"
