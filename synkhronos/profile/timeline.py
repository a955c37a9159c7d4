"""``timeline.json``: every rank's spans in Chrome's trace event format, for Perfetto.

Each rank is a process with one lane, plus a lane for every other thread that called the library. For each command,
flow arrows lead from the point where the master sends it to its start on every other rank.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List

from .losses import short
from .ring import Span
from .spans import Recorded


def timeline(record: Recorded, profile: Dict[str, Any]) -> str:
    """Return the timeline of a record as JSON; `profile` supplies hosts and devices."""
    host_of = {rank: i for i, ranks in enumerate(profile["hosts"]) for rank in ranks}
    events: List[Dict[str, Any]] = []
    for rank, lane in enumerate(record.lanes):
        where = f" on {profile['host_names'][host_of[rank]]}" if len(profile["hosts"]) > 1 else ""
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
    """Return the starts of a command's flows if the span sends it, or the end of a flow if another rank executes it."""
    event = {"name": "command", "cat": "flow", "pid": rank, "tid": span.thread}
    moment = (span.begin - record.begin) / 1e3
    if span.label == "MasterEnd.send":
        others = [other for other in range(len(record.lanes)) if other != rank]
        return [{**event, "ph": "s", "id": f"{span.command + 1}.{other}", "ts": moment} for other in others]
    if rank == record.root:
        return []
    return [{**event, "ph": "f", "bp": "e", "id": f"{span.command}.{rank}", "ts": moment}]
