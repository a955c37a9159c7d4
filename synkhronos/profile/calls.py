"""Split each rank's time into parts: computing, communicating, waiting, copying, overhead, idle.

=================  =============================================================================================
part               activity of the rank
=================  =============================================================================================
``computing``      running a compiled function, without the collectives in its graph
``communicating``  copying between ranks, reducing, or committing results
``waiting``        waiting for other ranks: at a barrier, for answers, or for the master to finish
``copying``        copying arguments into shared memory, or copying the rank's rows from there
``overhead``       other work of the library around calls, commands and replication
``idle``           running no command, while the program does other work
=================  =============================================================================================
"""

from __future__ import annotations

import bisect
import itertools
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from .ring import Span
from .spans import Recorded, parents

PARTS = ("computing", "communicating", "waiting", "copying", "overhead", "idle")

#: Parts of a command's time, each with the part of the session's time that it belongs to.
PARTS_OF_CALL = {
    "engine": "computing",
    "transport": "communicating",
    "commit": "communicating",
    "wait": "waiting",
    "copy": "copying",
    "overhead": "overhead",
}

#: Parts of a command's time by trace point; all other points are overhead.
_PART_OF_POINT = {name: name for name in ("engine", "transport", "commit", "copy")}
_PART_OF_POINT.update(collective="transport", barrier="wait")


class CallRecord(NamedTuple):
    """Record of a command on all ranks."""

    number: int
    kind: str
    name: str
    begin: int  # nanoseconds, when the program made the call
    end: int  # when the call returned
    rows: List[int]  # by rank; -1 if unknown
    nbytes: int  # bytes that one rank reduces or moves; summed over collectives inside functions
    arrays: int
    steps: int  # 1 unless `kind` is "steps"
    moved: float  # bytes that a rank reads from and writes to other ranks' memory; mean over ranks
    parts: List[Dict[str, int]]  # by rank: nanoseconds of each of `PARTS_OF_CALL`, with ``end - begin`` as their sum


class Times(NamedTuple):
    """Time of a session, by rank and by command."""

    shares: List[Dict[str, int]]  # by rank: nanoseconds of each of `PARTS` in the whole record
    loading: int  # nanoseconds of the master's idle time that the program spent waiting for a loader
    calls: List[CallRecord]  # calls entirely within the record


class _Run(NamedTuple):
    """Times of one command on the master, in nanoseconds."""

    command: int
    called: int  # when the program made the call
    begin: int  # when the master began the command; not before the end of the previous command
    end: int
    returned: int  # when the call returned


def times(record: Recorded) -> Times:
    """Divide the time of a session into parts, by rank and by command."""
    runs = _runs(record.lanes[record.root])
    lanes = [_CallLane(record, rank, runs) for rank in range(len(record.lanes))]
    calls = [_call(run, lanes, record.root) for run in runs if run.called >= record.begin]
    return Times([lane.shares for lane in lanes], lanes[record.root].loading, [call for call in calls if call])


def _runs(lane: Sequence[Span]) -> List[_Run]:
    spans = [span for span in lane if span.label == "Session.run" and span.command and not span.is_open]
    calls = {span.command: span for span in lane if span.point == "call" and span.level == 0 and not span.is_open}
    found, before = [], 0
    for span in sorted(spans, key=lambda span: span.end):
        begin = max(span.begin, before)
        call = calls.get(span.command, span)
        # Commands that a call runs before its main command, such as distributing a function, count separately.
        found.append(_Run(span.command, min(begin, max(call.begin, before)), begin, span.end, max(span.end, call.end)))
        before = span.end
    return found


class _CallLane:
    """One rank's time, divided into parts of the session and of each command."""

    def __init__(self, record: Recorded, rank: int, runs: Sequence[_Run]) -> None:
        self.shares = dict.fromkeys(PARTS, 0)
        self.loading = 0
        self.commands: Dict[int, Span] = {}
        self.parts: Dict[int, Dict[str, int]] = {}
        self.inside: Dict[int, Tuple[int, int]] = {}  # by command: bytes and arrays of collectives inside functions
        self._runs, self._ends = runs, [run.end for run in runs]
        lane, is_root = record.lanes[rank], rank == record.root
        around = parents(lane)
        whole = [max(0, span.end - max(span.begin, record.begin)) for span in lane]
        own = list(whole)
        for nanoseconds, above in zip(whole, around):
            if above is not None:
                own[above] -= nanoseconds
        covered, last = 0, record.begin
        for i, span in enumerate(lane):
            if span.is_command:
                self.commands[span.command] = span
            if around[i] is None:
                covered += max(0, span.end - max(span.begin, last))
                last = max(last, span.end)
            command = span.command
            if span.point == "copy" and is_root:  # arguments are copied before their command begins
                command = _called(lane, around, i)
            self._count(span, own[i], command, record.begin)
        # Between spans, the master runs the program, but other ranks are busy with the library's work.
        self.shares["idle" if is_root else "overhead"] += max(0, last - record.begin - covered)
        self.shares["idle"] += max(0, record.end - last) if lane else 0  # a lost host's lanes are empty

    def _count(self, span: Span, own: int, command: int, begin: int) -> None:
        if span.point == "loader":
            self.shares["idle"] += own
            self.loading += own
            return
        if span.label == "RankEnd.wait":
            self._count_wait(span, begin)
            return
        part = "overhead"
        if span.label == "MasterEnd.wait":
            part = "wait"
        elif span.label.startswith("Fetcher.") or span.is_command and span.label == "collective":
            part = "transport"
        elif span.point in _PART_OF_POINT:
            part = _PART_OF_POINT[span.point]
        if span.point == "collective":
            nbytes, arrays = self.inside.get(span.command, (0, 0))
            self.inside[span.command] = nbytes + max(0, span.nbytes), arrays + max(0, span.arrays)
        self.shares[PARTS_OF_CALL[part]] += own
        if part != "overhead":
            self._parts_of(command)[part] += own

    def _parts_of(self, command: int) -> Dict[str, int]:
        return self.parts.setdefault(command, dict.fromkeys(PARTS_OF_CALL, 0))

    def _count_wait(self, span: Span, begin: int) -> None:
        """Divide a wait into waiting for the end of the last command, overhead of later commands, and idle time."""
        since, left = max(span.begin, begin), max(0, span.end - max(span.begin, begin))
        first = bisect.bisect_left(self._ends, since)
        for run in itertools.islice(self._runs, first, None):
            if run.begin >= span.end:
                break
            together = max(0, min(run.end, span.end) - max(run.begin, since))
            left -= together
            if run.command == span.command:
                self.shares["waiting"] += together
                self._parts_of(run.command)["wait"] += together
            else:
                self.shares["overhead"] += together
        self.shares["idle"] += max(0, left)


def _called(lane: Sequence[Span], around: Sequence[Optional[int]], i: int) -> int:
    """Return the number of the command whose call contains span `i`."""
    command = lane[i].command
    above = around[i]
    while above is not None:
        if lane[above].is_command:
            return lane[above].command
        command, above = lane[above].command, around[above]
    return command


def _call(run: _Run, lanes: Sequence[_CallLane], root: int) -> Optional[CallRecord]:
    """Return a command's record, combined over ranks; None if the master has not executed the command."""
    number, begin, end = run.command, run.called, run.returned
    own = lanes[root].commands.get(number)
    if own is None:
        return None
    of_ranks, parts = [lane.commands.get(number) for lane in lanes], []
    rows = [-1 if here is None else here.rows for here in of_ranks]
    moved = sum(max(0, here.moved) for here in of_ranks if here is not None)
    for lane in lanes:
        of_rank = dict(lane.parts.get(number, dict.fromkeys(PARTS_OF_CALL, 0)))
        of_rank["overhead"] = max(0, end - begin - sum(of_rank.values()))
        parts.append(of_rank)
    nbytes, arrays, steps = max(0, own.nbytes), max(0, own.arrays), 1
    if own.label == "steps":
        arrays, steps = 0, max(1, own.arrays)
    if number in lanes[root].inside:
        nbytes, arrays = lanes[root].inside[number]
    return CallRecord(number, own.label, own.name, begin, end, rows, nbytes, arrays, steps, moved / len(lanes), parts)
