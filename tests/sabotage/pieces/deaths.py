"""Ranks that crash, exit or stop at steps of the protocol."""

from __future__ import annotations

import signal
from typing import Any, List
from unittest import mock

from everyday import Wrong
from kill_steps import OS_EXIT, SYS_EXIT

import synkhronos.program.program
from pieces.kills import Victims, check_death
from pieces.report import Row, clean, scaled
from synkhronos.errors import WorkerError, WorkerTimeout
from synkhronos.program.program import PROGRAM

OTHERS, STOPS = 100, 60

#: Other ways for ranks to end: an action, and the description of the end.
DEATHS = [
    (signal.SIGSEGV, "SIGSEGV"),
    (signal.SIGABRT, "SIGABRT"),
    (signal.SIGTERM, "SIGTERM"),
    (OS_EXIT, "os._exit(0)"),
    (SYS_EXIT, "sys.exit"),
]

#: Timeout in seconds of sessions with stopped ranks.
TIMEOUT = 0.5


def die_otherwise(victims: Victims, count: int, progress) -> List[Row]:
    """Make ranks crash or exit."""
    rows = []
    for action, label in DEATHS:
        seconds, raised = [], 0
        for i in range(count):
            victims.plan(action)
            rank = victims.rank
            operation, step, error, told = victims.run()
            if step is None:
                raise Wrong(f"{label} did not come to its step")
            if isinstance(error, WorkerError) and action == SYS_EXIT and error.rank == rank:
                raised += 1  # inside a command, SystemExit is an ordinary exception
                if "SystemExit: sabotage" not in str(error):
                    raise Wrong(str(error))
            elif error is not None:
                check_death(error, rank, 70 if action == SYS_EXIT else -action, told)
            if error is not None:
                seconds.append(told)
            died = not isinstance(error, WorkerError)
            del error
            victims.recover(died)
            progress(label, i + 1, count)
        more = [f"{raised} as WorkerError, and the session continued"] if raised else []
        rows.append(Row(f"{label} on a rank", count, clean(more), seconds))
    return rows


def stop(victims: Victims, count: int, progress) -> List[Row]:
    """Stop ranks (SIGSTOP), which only the deadline detects; times count from the deadline on."""
    seconds, told_where = [], 0
    for program in victims.programs.values():
        program.options["timeout"] = TIMEOUT
    for i in range(count):
        victims.plan(signal.SIGSTOP)
        rank = victims.rank
        operation, step, error, told = victims.run()
        if error is not None:
            if not isinstance(error, WorkerTimeout) or f"rank {rank} (pid" not in str(error):
                raise Wrong(f"expected a timeout of rank {rank}, got {error!r}")
            if "T (stopped)" not in str(error):
                raise Wrong(str(error))
            told_where += 1
            seconds.append(max(0.0, told - TIMEOUT))
        del error
        victims.recover()
        progress("SIGSTOP", i + 1, count)
    return [
        Row(
            f"SIGSTOP of a rank, fork(timeout={TIMEOUT:.1f})",
            count,
            clean([f"the error shows the stopped rank's state {told_where} times; otherwise it was in close()"]),
            seconds,
        )
    ]


def run(scale: float, progress: Any, seed: int = 1) -> List[Row]:
    """Run the piece."""
    victims = Victims(seed)
    rows = die_otherwise(victims, scaled(OTHERS, scale), progress)
    with mock.patch.object(synkhronos.program.program, "START_TIMEOUT_S", TIMEOUT):  # the default of fork() is a minute
        rows += stop(victims, scaled(STOPS, scale), progress)
    PROGRAM.shut_down()
    return rows
