"""Profile of a session: the numbers in ``profile.json``.

The report and ``python -m synkhronos predict`` read them. Seconds are on the master's clock.
"""

from __future__ import annotations

import datetime
import json
import platform
import sys
import timeit
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from ..errors import ArgumentValueError
from .calls import PARTS, PARTS_OF_CALL, CallRecord, times
from .spans import Recorded

FORMAT = 1

#: Maximum number of calls listed individually for each command; only the latest calls are listed.
MAX_CALLS = 1000

#: Bytes copied to measure this machine's copy rate.
_COPIED_BYTES = 64 << 20


class Setting(NamedTuple):
    """Engine, devices, hosts, cores and link of a session."""

    engine: str
    devices: List[str]  # by rank
    hosts: List[List[int]]  # the ranks of each host
    host_names: List[str]
    cores: List[int]  # by host: cores that its ranks may use
    link: Any  # "shared_memory", "nccl", "mpi" or "tcp"; None with a single rank


def profile(record: Recorded, setting: Setting, copy_rate: float) -> Dict[str, Any]:
    """Return the profile of a record, ready for JSON."""
    found = times(record)
    by_name: Dict[Tuple[str, str], List[CallRecord]] = {}
    for call in found.calls:
        by_name.setdefault((call.kind, call.name), []).append(call)
    return {
        "format": FORMAT,
        "synkhronos": sys.modules[__name__.split(".")[0]].__version__,
        "python": platform.python_version(),
        "date": datetime.datetime.now().isoformat(timespec="seconds"),
        "ranks": len(record.lanes),
        "root": record.root,
        **setting._asdict(),
        "wall_s": _seconds(record.end - record.begin),
        "dropped": sum(record.dropped),
        "clock_error_s": [_seconds(error) for error in record.errors],
        "shares": [{part: _seconds(shares[part]) for part in PARTS} for shares in found.shares],
        "loading_s": _seconds(found.loading),
        "commands": [
            _command(kind, name, max(record.counts.get((kind, name), 0), len(calls)), calls, record.begin)
            for (kind, name), calls in by_name.items()
        ],
        "rates": {"copy": copy_rate},
    }


def _command(kind: str, name: str, count: int, calls: Sequence[CallRecord], begin: int) -> Dict[str, Any]:
    """Summarize the calls of the same kind and name: common facts, totals, and the latest calls one by one."""
    ranks = range(len(calls[0].parts))
    parts = {
        f"{part}_s": [_seconds(sum(call.parts[rank][part] for call in calls)) for rank in ranks]
        for part in PARTS_OF_CALL
    }
    return {
        "kind": kind,
        "name": name,
        "bytes": max(call.nbytes for call in calls),
        "arrays": max(call.arrays for call in calls),
        "count": count,
        "recorded": len(calls),
        "totals": {
            "master_s": _seconds(sum(call.end - call.begin for call in calls)),
            "rows": _rows([sum(max(0, call.rows[rank]) for call in calls) for rank in ranks], calls),
            "moved": sum(call.moved for call in calls),
            **parts,
        },
        "calls": [
            {
                "begin_s": _seconds(call.begin - begin),
                "master_s": _seconds(call.end - call.begin),
                "rows": _rows(call.rows, [call]),
                "steps": call.steps,
                **{f"{part}_s": [_seconds(of_rank[part]) for of_rank in call.parts] for part in PARTS_OF_CALL},
                "moved": call.moved,
            }
            for call in calls[-MAX_CALLS:]
        ],
    }


def _rows(rows: Sequence[int], calls: Sequence[CallRecord]) -> Any:
    return None if all(row < 0 for call in calls for row in call.rows) else [max(0, row) for row in rows]


def _seconds(nanoseconds: float) -> float:
    return round(1e-9 * nanoseconds, 9)


def copy_rate() -> float:
    """Measure the bytes per second that this machine copies."""
    source, target = (np.ones(_COPIED_BYTES, np.uint8) for _ in range(2))
    return _COPIED_BYTES / min(timeit.repeat(lambda: np.copyto(target, source), number=1, repeat=3))


def loaded(path: str) -> Dict[str, Any]:
    """Read a profile from a file; raise `ArgumentValueError` if it is unreadable or has another format."""
    expected = f"a profile of format {FORMAT}, written by a session with profile=..."
    try:
        with open(path) as file:
            found = json.load(file)
    except OSError as error:
        raise ArgumentValueError("profile", expected, f"{path}, which cannot be read: {error.strerror}") from None
    except ValueError:
        hint = "wait until the program that writes it has ended, or record it again"
        raise ArgumentValueError("profile", expected, f"{path}, which is not complete", hint) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        got = f"{path}, of format {found.get('format', '?')}" if isinstance(found, dict) else f"{path}, not a profile"
        by = f" by synkhronos {found['synkhronos']}" if isinstance(found, dict) and "synkhronos" in found else ""
        raise ArgumentValueError("profile", expected, got + (f", written{by}" if by else ""), "record it again")
    return found
