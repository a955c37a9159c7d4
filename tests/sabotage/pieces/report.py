"""Reports of the campaign's pieces: rows of the table in docs/reliability.md."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import synkhronos as synk
from synkhronos.program.program import PROGRAM


class Row(NamedTuple):
    """One line of the table."""

    what: str
    done: int  # number of repetitions
    result: str
    seconds: List[float] = []  # until the exception, by repetition

    def to_json(self) -> Dict[str, Any]:
        """Return the row with a summary of the times."""
        times = sorted(self.seconds)
        told = (
            [] if not times else [times[len(times) // 2], times[min(len(times) - 1, len(times) * 99 // 100)], times[-1]]
        )
        return {"what": self.what, "done": self.done, "result": self.result, "told": told}


class Progress:
    """Prints a piece's progress, at most every few seconds."""

    def __init__(self, piece: str, every: float = 5.0) -> None:
        self.piece, self.every = piece, every
        self._begun = self._said = time.monotonic()

    def __call__(self, what: str, done: int, of: int) -> None:
        now = time.monotonic()
        if now - self._said > self.every or done == of:
            self._said = now
            print(
                f"{self.piece:<10}{what:<42}{(f'{done:,}'):>9} of {(f'{of:,}')}{now - self._begun:8.0f} s", flush=True
            )


def scaled(number: int, scale: float) -> int:
    """Return the scaled number, at least 1."""
    return max(1, round(number * scale))


def processes() -> Iterator[Tuple[int, List[str]]]:
    """Yield (id, fields of /proc/<pid>/stat from the state on) of all processes of this machine."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path("/proc", name, "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            yield int(name), text.rpartition(")")[2].split()


def names_left() -> List[str]:
    """Return our names in shared memory that remain for a second; another program's name is removed sooner."""
    folder = Path("/dev/shm")
    names = list(folder.glob("*synkhronos*"))
    if names:
        time.sleep(1.0)
    return [str(name) for name in names if name.exists()]


def check_nothing_left() -> None:
    """Raise if our processes, names in shared memory or threads remain without a session."""
    assert not synk.is_forked()
    parents = [str(os.getpid()), str(PROGRAM.keeper_pid)]
    left = [f"process {pid}" for pid, stat in processes() if stat[1] in parents and pid != PROGRAM.keeper_pid]
    left += names_left()
    left += [thread.name for thread in threading.enumerate() if thread.name.startswith("synkhronos")]
    assert not left, f"left behind: {left}"


def clean(what: Sequence[str] = ()) -> str:
    """Return the result of a row without faults; a fault raises an error, so that there is no row."""
    return "; ".join(["0 hangs, 0 leftovers, 0 wrong results", *what])
