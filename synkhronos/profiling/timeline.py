"""``timeline.json``: what every rank did when, in the trace event format of Chrome, which Perfetto opens.

Ranks are its processes, one lane each (and one more for every other thread of the program that made calls). A command
has a flow from the master, when it was sent, to every rank, when that began with it.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List

from .losses import short
from .spans import Recorded, Span


def timeline(record: Recorded, profile: Dict[str, Any]) -> str:
    """Return the timeline of what was recorded, as JSON.

    Parameters
    ----------
    record : Recorded
    profile : dict
        From `profile.profile`: of the ranks' hosts and devices.
    """
    host_of = {rank: i for i, ranks in enumerate(profile["hosts"]) for rank in ranks}
    events: List[Dict[str, Any]] = []
    for rank, lane in enumerate(record.lanes):
        where = f" on {profile['host_names'][host_of[rank]]}" if profile["host_names"] else ""
        role = ", the master" if rank == record.root else ""
        title = f"rank {rank}{role}{where} ({profile['devices'][rank]})"
        events.append({"ph": "M", "name": "process_name", "pid": rank, "tid": 0, "args": {"name": title}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}})
        for span in lane:
            events.append(_event(span, rank, record.begin))
            if span.is_command or span.label == "MasterEnd.send":
                events += _flow(span, rank, record)
    about = {key: profile[key] for key in ("format", "synkhronos", "date", "ranks", "dropped", "clock_error_s")}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}, separators=(",", ":"))


def _event(span: Span, rank: int, begin: int) -> Dict[str, Any]:
    arguments: Dict[str, Any] = {"command": span.command}
    for key in ("rows", "nbytes", "moved", "arrays"):
        if getattr(span, key) > 0:
            arguments["bytes" if key == "nbytes" else key] = getattr(span, key)
    if span.is_open:
        arguments["unfinished"] = True
    name = short(span.name) if span.is_command else "idle" if span.label == "RankEnd.wait" else span.label
    category = f"command,{span.label}" if span.is_command else span.point
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": rank,
        "tid": span.thread,
        "ts": (span.begin - begin) / 1e3,
        "dur": (span.end - span.begin) / 1e3,
        "args": arguments,
    }


def _flow(span: Span, rank: int, record: Recorded) -> List[Dict[str, Any]]:
    """Return the beginning of a command's flow at its sending, or its end where another rank begins with it."""
    event = {"name": "command", "cat": "flow", "pid": rank, "tid": span.thread}
    moment = (span.begin - record.begin) / 1e3
    if span.label == "MasterEnd.send":
        return [
            {**event, "ph": "s", "id": f"{span.command + 1}.{other}", "ts": moment}
            for other in range(len(record.lanes))
            if other != rank
        ]
    if rank == record.root:
        return []
    return [{**event, "ph": "f", "bp": "e", "id": f"{span.command}.{rank}", "ts": moment}]
