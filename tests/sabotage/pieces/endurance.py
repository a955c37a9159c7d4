"""Many consecutive sessions, and very many calls in one: memory and call times do not grow."""

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
        "files": len(os.listdir(f"/proc/{pid}/fd")),
        "maps": maps,
        "threads": len(os.listdir(f"/proc/{pid}/task")),
    }


def check_same(what: str, before: Dict[str, int], after: Dict[str, int]) -> None:
    """Raise if a value has grown."""
    if (
        after["files"] != before["files"]
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


def soak(count: int, progress: Any) -> Row:
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


def run(scale: float, progress: Any) -> List[Row]:
    """Run the piece."""
    rows = [sessions(scaled(SESSIONS, scale), progress), soak(scaled(CALLS, scale), progress)]
    PROGRAM.shut_down()
    return rows
