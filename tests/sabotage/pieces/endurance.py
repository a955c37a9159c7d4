"""Many consecutive sessions, very many calls in one, and an hour of everything: memory and call times do not grow."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any, Dict, List

import numpy as np
from everyday import Program, Wrong

import synkhronos as synk
from pieces.report import Row, check_nothing_left, clean, names_left, processes, scaled
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command
from synkhronos.testing import numpy_engine as engine

SESSIONS, CALLS = 1000, 1000000

#: Length of the soak. A session of the soak has a number of rounds, each with calls, steps, collectives, and a program
#: with many functions and variables that is built, used and dropped.
SOAK_S = 3600.0
ROUNDS, ROUND_CALLS, PROGRAM_FUNCTIONS, PROGRAM_VARIABLES = 4, 10000, 500, 10000

#: Sessions of the soak, and rounds of a session, after which memory must not grow any more.
WARM_SESSIONS, WARM_ROUNDS = 3, 2

#: Accepted difference of memory in bytes, for memory that an allocator keeps.
SLACK = 8 << 20

#: Bytes that a session may leave in the master, in the second half of many: less than an object with its name needs.
PER_SESSION = 512

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory(Command):
    """Return a rank's resident memory, open files and threads."""

    title = "memory"

    def run(self, context: Any) -> Any:
        gc.collect()
        return measure(os.getpid())


def measure(pid: int) -> Dict[str, int]:
    """Return a process's memory, files, mappings and threads."""
    with open(f"/proc/{pid}/statm") as file:
        resident = int(file.read().split()[1]) * _PAGE
    with open(f"/proc/{pid}/maps") as file:
        maps = sum(1 for _ in file)
    return {
        "bytes": resident,
        "files": min(_n_files(pid) for _ in range(20)),
        "maps": maps,
        "threads": len(os.listdir(f"/proc/{pid}/task")),
    }


def _n_files(pid: int) -> int:
    time.sleep(0.001)  # a process may have the file of its last answer open for a moment after the answer has arrived
    return len(os.listdir(f"/proc/{pid}/fd"))


def check_same(what: str, before: Dict[str, int], after: Dict[str, int]) -> None:
    """Raise if a value has grown."""
    if (
        after["files"] > before["files"]
        or after["threads"] != before["threads"]
        or after["bytes"] > before["bytes"] + SLACK
        or after["maps"] > before["maps"] + 4
    ):
        raise Wrong(f"{what}: before {before}, after {after}")


def sessions(count: int, progress: Any) -> Row:
    """Open and close sessions of 2 and 3 ranks, with all operations in each."""
    programs = [Program(2), Program(3)]

    def everything() -> List[Any]:
        gc.collect()
        return [
            measure(os.getpid()),
            measure(PROGRAM.keeper_pid),
            PROGRAM.pool.used,
            threading.active_count(),
            len(names_left()),
            len([pid for pid, stat in processes() if stat[1] in (str(os.getpid()), str(PROGRAM.keeper_pid))]),
        ]

    for i in range(max(4, min(20, count))):
        programs[i % 2].run()
    before = middle = everything()
    for i in range(count):
        if programs[i % 2].run() != (None, None, None):
            raise Wrong(f"session {i}")
        progress("sessions", i + 1, count)
        if i + 1 == count // 2:
            middle = everything()
    after = everything()
    grown = after[0]["bytes"] - middle[0]["bytes"]
    if count >= 1000 and grown > PER_SESSION * (count - count // 2) + SLACK // 16:
        raise Wrong(f"the master has grown by {grown} bytes in the second half of {count} sessions")
    check_same(f"the master after {count} sessions", before[0], after[0])
    check_same(f"the keeper after {count} sessions", before[1], after[1])
    if after[2:] != before[2:]:
        raise Wrong(f"memory of the pool, threads, names, processes: before {before[2:]}, after {after[2:]}")
    check_nothing_left()
    return Row(
        "sessions one after another in one process, with every operation in each",
        count,
        clean(
            [
                f"open files {after[0]['files']}, threads {after[3]}, processes and names unchanged; memory of the master {(after[0]['bytes'] - before[0]['bytes']) / 2**20:+.1f} MB, of the keeper {(after[1]['bytes'] - before[1]['bytes']) / 2**20:+.1f} MB"
            ]
        ),
    )


def calls(count: int, progress: Any) -> Row:
    """Call a function very often, and a collective every 100 calls; check memory and the slowest calls."""
    w = engine.shared(np.zeros(100), "w")
    x = engine.variable("x", "float64", 1)
    f = synk.function([x], (engine.mean(x), "avg"), updates=[(w, w + 1)])
    synk.fork(2)
    data, plain = synk.data(np.arange(100.0)), np.arange(50.0)

    def call(i: int) -> None:
        got = f(data) if i % 2 else f(plain)
        if got != (49.5 if i % 2 else 24.5):
            raise Wrong(f"call {i} returned {got!r}")
        if i % 100 == 0:
            synk.all_reduce(w, op="max")

    for i in range(max(500, min(2000, count))):
        call(i)
    gc.collect()
    begin, base = PROGRAM.session.run(Memory()), float(w.get_value()[0])
    seconds = np.empty(count)
    clock = time.perf_counter
    for i in range(count):
        began = clock()
        call(i)
        seconds[i] = clock() - began
        if i % 1000 == 999:
            progress("calls", i + 1, count)
    gc.collect()
    for rank, (before, after) in enumerate(zip(begin, PROGRAM.session.run(Memory()))):
        after["bytes"] -= seconds.nbytes if rank == 0 else 0
        check_same(f"rank {rank} after {count} calls", before, after)
    if not np.array_equal(w.get_value(), np.full(100, base + count)):
        raise Wrong(f"the updates of some calls are missing: {w.get_value()!r}")
    # Compare tenths of all calls, so that a single disturbance of the machine does not look like a trend.
    parts = np.array_split(seconds, min(10, count))
    p99 = [float(np.percentile(part, 99)) * 1e6 for part in parts]
    if np.median(p99[-3:]) > 3 * np.median(p99[:3]) + 100:
        raise Wrong(f"calls get slower: 99 of 100 take at most {p99} us")
    synk.close()
    return Row(
        "calls in one session (2 ranks), of plain arrays and Data, with an all_reduce every 100",
        count,
        clean(
            [
                f"memory, files and threads of both ranks unchanged; p50 {np.median(seconds) * 1e6:.0f} us, p99 {np.median(p99[:3]):.0f} us in the first three tenths and {np.median(p99[-3:]):.0f} us "
                "in the last three"
            ]
        ),
    )


class LargeProgram:
    """Functions that each update some of many variables; they are built, used once and dropped."""

    def __init__(self, n_functions: int, n_variables: int) -> None:
        self.variables = [engine.shared(np.full(2, float(i)), f"v{i}") for i in range(n_variables)]
        each = n_variables // n_functions
        self.functions = [
            synk.function([], [], updates=[(v, v + 1) for v in self.variables[i * each : (i + 1) * each]], exact=False)
            for i in range(n_functions)
        ]

    def use(self) -> None:
        """Call all functions, and compare all variables, and some on the last rank, with their values by NumPy."""
        for function in self.functions:
            function()
        for i, variable in enumerate(self.variables):
            if not np.array_equal(variable.get_value(), np.full(2, i + 1.0)):
                raise Wrong(f"variable {i} of a large program is {variable.get_value()!r}")
        for i in range(0, len(self.variables), max(1, len(self.variables) // 20)):
            got = synk.get_value(synk.size() - 1, self.variables[i])
            if not np.array_equal(got, np.full(2, i + 1.0)):
                raise Wrong(f"variable {i} of a large program is {got!r} on the last rank")


def soak(seconds: float, progress: Any) -> Row:
    """Open, use and close sessions for some time; measure all their processes at the same moments of each."""
    w, x = engine.shared(np.zeros(100), "w"), engine.variable("x", "float64", 1)
    f = synk.function([x], (engine.mean(x), "avg"), updates=[(w, w + 1)])
    g = synk.function([x], engine.mean(x), updates=[(w, w + engine.sum(x) * 0 + 1)], exact=True)
    plain, batches = np.arange(50.0), [list(range(i, i + 10)) for i in range(0, 50, 10)]
    share = min(1.0, seconds / 600.0)  # of the usual amounts, in a short soak
    n_functions, n_calls = max(2, int(share * PROGRAM_FUNCTIONS)), max(20, int(share * ROUND_CALLS))
    n_variables = n_functions * (PROGRAM_VARIABLES // PROGRAM_FUNCTIONS)
    done, found = {"calls": 0, "programs": 0}, []  # found: by session, the measures of the master and the keeper

    def one_round() -> None:
        for i in range(n_calls):
            if (g if i % 10 == 0 else f)(plain) != 24.5:
                raise Wrong("a call returned a wrong mean")
        if not np.array_equal(f.steps(plain, batches=batches), [np.mean(plain[batch]) for batch in batches]):
            raise Wrong("steps returned wrong means")
        synk.all_reduce(w, op="max")
        synk.broadcast(w, np.zeros(100))
        if synk.gather(w).size != 100 * synk.size() or not synk.in_sync(w):
            raise Wrong("the values of the ranks are wrong")
        LargeProgram(n_functions, n_variables).use()
        gc.collect()
        done["calls"] += n_calls + len(batches) + n_functions
        done["programs"] += 1

    began = time.monotonic()
    while time.monotonic() < began + seconds or len(found) < WARM_SESSIONS + 2:
        number = len(found)
        PROGRAM.open(2 + number % 2, 0, pin=False, heal=number % 4 // 2, timeout=120.0)
        for i in range(ROUNDS):
            one_round()
            progress("seconds of soak", min(int(seconds), int(time.monotonic() - began)), int(seconds))
            if i + 1 == WARM_ROUNDS:
                before = PROGRAM.current().run(Memory())
        for rank, (early, late) in enumerate(zip(before, PROGRAM.current().run(Memory()))):
            check_same(f"rank {rank} in session {number} of the soak", early, late)
        synk.close()
        gc.collect()
        found.append((measure(os.getpid()), measure(PROGRAM.keeper_pid)))
    for i, name in enumerate(("master", "keeper")):
        check_same(f"the {name} in {len(found)} sessions of the soak", found[WARM_SESSIONS][i], found[-1][i])
    check_nothing_left()
    of_master, of_keeper = ((found[-1][i]["bytes"] - found[WARM_SESSIONS][i]["bytes"]) / 2**20 for i in range(2))
    return Row(
        f"calls in {len(found)} sessions of 2 and 3 ranks during {seconds / 60:.3g} minutes, with steps, collectives, "
        f"and {done['programs']:,} programs with {n_functions} functions and {n_variables:,} variables",
        done["calls"],
        clean(
            [
                "files and threads of all processes unchanged; memory of the ranks within a session unchanged, "
                f"of the master {of_master:+.1f} MB, of the keeper {of_keeper:+.1f} MB"
            ]
        ),
    )


def run(scale: float, progress: Any) -> List[Row]:
    """Run the piece; the soak takes an hour at scale 1."""
    rows = [
        sessions(scaled(SESSIONS, scale), progress),
        calls(scaled(CALLS, scale), progress),
        soak(SOAK_S * scale, progress),
    ]
    PROGRAM.shut_down()
    return rows
