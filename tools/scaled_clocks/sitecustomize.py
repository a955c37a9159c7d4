"""Scaled clocks: sleeps and timeouts of every Python process last CLOCK_SCALE times as long, with clocks to match.

No test may depend on how fast the machine is, or on the lengths of sleeps and timeouts. Runs with a scale of 0.2 and
with a scale of 5 must therefore pass::

    CLOCK_SCALE=5 PYTHONPATH=$PWD/tools/scaled_clocks make test

Every wait is scaled together with the monotonic clocks, so that both agree. The date (`time.time`) is not scaled. The
limit of pytest-timeout is scaled only if it becomes longer.
"""

import functools
import importlib.abc
import importlib.machinery
import os
import select
import signal
import socket
import struct
import sys
import time

SCALE = float(os.environ.get("CLOCK_SCALE", "1"))
SEMAPHORES = "synkhronos.sync.semaphore"  # its deadlines are passed to the kernel


def scaled(seconds):
    """Return how long a wait of ``seconds`` lasts; None and negative numbers mean no limit."""
    return seconds if seconds is None or seconds < 0 else seconds * SCALE


def scale_last(wait):
    """Return a method or function whose last positional argument (if a number) and ``timeout`` are scaled."""

    @functools.wraps(wait)  # so that it can be pickled
    def longer(*args, **others):
        *before, last = args if args else (None,)
        if isinstance(last, (int, float)):
            args = (*before, scaled(last))
        if "timeout" in others:
            others["timeout"] = scaled(others["timeout"])
        return wait(*args, **others)

    return longer


class Clock:
    """The module `time` before it was changed."""

    monotonic, time, CLOCK_MONOTONIC = time.monotonic, time.time, time.CLOCK_MONOTONIC


class Polled:
    """Scaled `select.poll` or `select.epoll` object."""

    def __init__(self, poll):
        self._poll, self.poll = poll, scale_last(poll.poll)

    def __getattr__(self, name):
        return getattr(self._poll, name)


class Semaphores(importlib.abc.MetaPathFinder):
    """Changes the module of semaphores when it is imported."""

    @staticmethod
    def find_spec(name, path, target=None):
        if name != SEMAPHORES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.time = Clock
            module.Semaphore.acquire = scale_last(module.Semaphore.acquire)

        spec.loader.exec_module = exec_module
        return spec


def scale_clocks():
    """Scale all clocks and waits of this process."""
    monotonic, perf_counter = time.monotonic, time.perf_counter
    monotonic_ns, perf_counter_ns = time.monotonic_ns, time.perf_counter_ns
    time.monotonic = lambda: monotonic() / SCALE
    time.perf_counter = lambda: perf_counter() / SCALE
    time.monotonic_ns = lambda: int(monotonic_ns() / SCALE)
    time.perf_counter_ns = lambda: int(perf_counter_ns() / SCALE)
    time.sleep = scale_last(time.sleep)

    import threading  # binds time.monotonic

    threading.Condition.wait = scale_last(threading.Condition.wait)
    threading.Thread.join = scale_last(threading.Thread.join)

    poll, epoll, old_select = select.poll, select.epoll, select.select
    select.poll = lambda: Polled(poll())
    select.epoll = lambda *args, **others: Polled(epoll(*args, **others))
    select.select = lambda r, w, x, timeout=None: old_select(r, w, x, scaled(timeout))

    settimeout, setsockopt = socket.socket.settimeout, socket.socket.setsockopt
    socket.socket.settimeout = scale_last(settimeout)
    gettimeout = socket.socket.gettimeout
    socket.socket.gettimeout = lambda self: None if gettimeout(self) is None else gettimeout(self) / SCALE

    def set_option(self, level, option, *value):
        if (level, option) == (socket.SOL_SOCKET, socket.SO_RCVTIMEO):
            seconds, micros = struct.unpack("ll", value[0])
            moment = scaled(seconds + micros * 1e-6)
            value = (struct.pack("ll", int(moment), int(moment % 1 * 1e6)),)
        setsockopt(self, level, option, *value)

    socket.socket.setsockopt = set_option
    setitimer = signal.setitimer
    signal.setitimer = lambda which, *seconds: setitimer(which, *(s * max(1.0, SCALE) for s in seconds))
    sys.meta_path.insert(0, Semaphores())


if SCALE != 1.0:
    scale_clocks()
