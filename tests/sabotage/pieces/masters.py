"""The master or the keeper is killed, or Ctrl-C is sent, at random moments of a program."""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Callable, List, NamedTuple

import numpy as np
from everyday import Program, Wrong

import synkhronos as synk
from pieces.report import Row, check_nothing_left, clean, names_left, processes, scaled
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command

TIMES = 200

#: Time limits in seconds: for ranks to end after their master, and for reporting Ctrl-C.
GONE, INTERRUPTED = 2.0, 3.0

#: Simultaneous programs: they wait most of the time.
AT_A_TIME = 6


class Shared(ctypes.Structure):
    """The program's report to the harness."""

    _fields_ = [
        ("ready", ctypes.c_int),
        ("caught", ctypes.c_double),
        ("works", ctypes.c_int),
        ("text", ctypes.c_char * 4000),
    ]


class Stuck(Command):
    """Make one rank or the master miss a barrier."""

    title = "stuck"

    def __init__(self, who: int) -> None:
        self.who = who

    def run(self, context: Any) -> None:
        if context.rank == self.who:
            time.sleep(30)
        context.barrier.wait()


def everyday(shared: Shared) -> None:
    """Repeat all operations, including the start of the keeper and of the first session."""
    program = Program(3)
    shared.ready = 1
    while True:
        if synk.is_forked():
            synk.close()
        program.run()


def idle(shared: Shared) -> None:
    synk.fork(3)
    shared.ready = 1
    time.sleep(30)


def stuck(who: int) -> Callable[[Shared], None]:
    def work(shared: Shared) -> None:
        synk.fork(3)
        shared.ready = 1
        PROGRAM.session.run(Stuck(who))

    return work


SITUATIONS = {"everyday": everyday, "idle": idle, "a rank does not come": stuck(2), "the master does not": stuck(0)}


class Case(NamedTuple):
    situation: str
    delay: float
    signals: int
    to_group: bool
    number: int = signal.SIGINT


def program(case: Case, shared: Shared) -> None:
    """Run the program until it is interrupted, then check that it still works."""

    def swallowed(what: Any) -> None:  # Python discards exceptions in callbacks of weak references
        if what.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0.002)  # repeat it later; in here, it would be discarded again
        else:
            sys.__unraisablehook__(what)

    sys.unraisablehook = swallowed
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        try:
            SITUATIONS[case.situation](shared)
        finally:
            ignore_interrupts()
    except KeyboardInterrupt:
        shared.caught = time.monotonic()
    ignore_interrupts()
    again = Program(3)
    for _ in range(2):
        if synk.is_forked():
            again.recover()
        elif again.run() != (None, None, None):
            raise Wrong("after the interrupt")
    PROGRAM.shut_down()
    shared.works = 1


def ignore_interrupts() -> None:
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def living(session: int) -> List[int]:
    """Return the running processes of a Unix session, except for its leader."""
    return [pid for pid, stat in processes() if stat[3] == str(session) and pid != session and stat[0] != "Z"]


def play(case: Case) -> float:
    """Start a program, send the signal, check; return the seconds until the error, or until all processes end."""
    memory = mmap.mmap(-1, ctypes.sizeof(Shared))
    shared = Shared.from_buffer(memory)
    said = os.memfd_create("said")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setsid()
            os.dup2(said, 1)
            os.dup2(said, 2)
            sys.stdout, sys.stderr = (os.fdopen(fd, "w", 1, closefd=False) for fd in (1, 2))
            signal.signal(signal.SIGINT, signal.default_int_handler)
            program(case, shared)
            status = 0
        except BaseException:
            shared.text = traceback.format_exc()[-3900:].encode()
        finally:
            os._exit(status)
    try:
        wait_until(lambda: shared.ready, 30, f"it did not come so far: {case}")
        time.sleep(case.delay)
        sent = time.monotonic()
        for i in range(case.signals):
            time.sleep(0.03 * i)
            (os.killpg if case.to_group else os.kill)(pid, case.number)
        if case.number == signal.SIGKILL:
            os.waitpid(pid, 0)
            wait_until(lambda: not living(pid), GONE, f"left behind: {case}")
            seconds = time.monotonic() - sent
        else:
            ended = wait_until(
                lambda: os.waitpid(pid, os.WNOHANG)[1:] if shared.works or shared.text or gone(pid) else None,
                60,
                f"it hangs: {case}",
            )
            if not shared.works:
                raise Wrong(f"{case}: status {ended}, {shared.text.decode()}")
            seconds = shared.caught - sent
            if seconds > INTERRUPTED:
                raise Wrong(f"{case}: told after {seconds:.3f} s")
            wait_until(lambda: not living(pid), 2.0, f"left behind: {case}")
        text = os.pread(said, 100000, 0).decode()
        if text:
            raise Wrong(f"{case}: it said {text}")
        return seconds
    finally:
        for other in living(pid) + [pid]:
            try:
                os.kill(other, signal.SIGKILL)
            except ProcessLookupError:
                pass
        os.close(said)


def gone(pid: int) -> bool:
    """Return whether a child has ended, without reaping it."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_until(condition: Callable[[], Any], seconds: float, otherwise: str) -> Any:
    until = time.monotonic() + seconds
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > until:
            raise Wrong(otherwise)
        time.sleep(0.002)


def cases(count: int, seed: int, **kwargs: Any) -> List[Case]:
    """Draw situations and moments; half of them are everyday operations."""
    draw = random.Random(seed)
    names = ["everyday"] * (len(SITUATIONS) - 1) + [name for name in SITUATIONS if name != "everyday"]
    return [Case(names[i % len(names)], draw.uniform(0, 0.12), **kwargs) for i in range(count)]


def kill_keeper(count: int, progress: Any, seed: int = 1) -> Row:
    """Kill the keeper at random moments of this process's program."""
    draw, here, seconds = random.Random(seed), Program(3), []
    here.run()
    killed = mmap.mmap(-1, 8)
    for i in range(count):
        keeper, delay = PROGRAM.keeper_pid, draw.uniform(0, 0.06)
        killer = os.fork()
        if killer == 0:
            time.sleep(delay)
            killed[:] = np.float64(time.monotonic()).tobytes()
            os.kill(keeper, signal.SIGKILL)
            os._exit(0)
        error = None
        while error is None and PROGRAM.keeper_pid == keeper:  # without a session, the next fork() replaces it
            operation, error, moment = here.run()
        if error is not None:
            if f"keeper process (pid {keeper})" not in str(error):
                raise error
            seconds.append(moment - np.frombuffer(killed[:])[0])
            if seconds[-1] > 1.0:
                raise Wrong(f"told after {seconds[-1]:.3f} s: {error}")
        os.waitpid(killer, 0)
        del error
        if synk.is_forked():
            synk.close()
        here.recover()
        check_nothing_left()
        progress("kill -9 of the keeper", i + 1, count)
    PROGRAM.shut_down()
    return Row(
        "kill -9 of the keeper",
        count,
        clean([f"an error {len(seconds)} times; in the remaining cases no session was open"]),
        seconds,
    )


def run(scale: float, progress: Any, seed: int = 1) -> List[Row]:
    """Run the piece."""
    count = scaled(TIMES, scale)
    kinds = [
        (
            "kill -9 of the master; times until its ranks are gone",
            dict(signals=1, to_group=False, number=signal.SIGKILL),
        )
    ]
    kinds += [
        (f"Ctrl-C to {where}, {times}", dict(signals=number, to_group=where == "the group"))
        for where in ("the group", "the master alone")
        for number, times in ((1, "once"), (2, "twice"))
    ]
    rows = []
    with ProcessPoolExecutor(AT_A_TIME, multiprocessing.get_context("fork")) as pool:
        for k, (what, kwargs) in enumerate(kinds):
            seconds = []
            for i, took in enumerate(pool.map(play, cases(count, seed + k, **kwargs))):
                seconds.append(took)
                progress(what.split(";")[0], i + 1, count)
            rows.append(Row(what, count, clean(), seconds))
    left = names_left()
    if left:
        raise Wrong(f"left behind: {left}")
    return rows + [kill_keeper(count, progress, seed)]
