"""Every moment of every rank, counted once: in the parts of a session, and in those of each command.

=================  =============================================================================================
part               what a rank does
=================  =============================================================================================
``computing``      it is in a compiled function, without the collectives in its graph
``communicating``  it copies between ranks, reduces, or makes results current
``waiting``        it waits for other ranks: at a barrier, for answers, or for the master, which is still busy
``copying``        it brings arguments into shared memory, or takes its rows of them
``overhead``       it does what else the library does around calls, commands and replication
``idle``           there is no command: the program does something else
=================  =============================================================================================
"""

from __future__ import annotations

import bisect
import itertools
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from .spans import Recorded, Span, parents

#: In the order of the tables.
PARTS = ("computing", "communicating", "waiting", "copying", "overhead", "idle")

#: The parts of one command; ``commit`` is a part of communicating.
PARTS_OF_CALL = ("engine", "transport", "wait", "copy", "commit", "overhead")

_PART_OF_POINT = {
    "engine": "engine",
    "collective": "transport",
    "transport": "transport",
    "barrier": "wait",
    "commit": "commit",
    "copy": "copy",
    "call": "overhead",
    "replication": "overhead",
    "other": "overhead",
}

_PART_OF_SESSION = {
    "engine": "computing",
    "transport": "communicating",
    "commit": "communicating",
    "wait": "waiting",
    "copy": "copying",
    "overhead": "overhead",
}


class Call(NamedTuple):
    """A command, on all ranks.

    Attributes
    ----------
    number : int
    kind, name : str
    begin, end : int
        Nanoseconds, of the call on the master: from the program's call to its return.
    rows : list of int
        By rank; -1 if not known.
    nbytes, arrays : int
        Of what was reduced or moved, of one rank; inside functions added up.
    steps : int
        That the command has made: 1 unless its kind is "steps".
    moved : float
        Bytes that a rank has read of others' memory and written to it; the mean over ranks.
    parts : list of dict of str to int
        By rank: nanoseconds of each of `PARTS_OF_CALL`, which add up to ``end - begin``.
    """

    number: int
    kind: str
    name: str
    begin: int
    end: int
    rows: List[int]
    nbytes: int
    arrays: int
    steps: int
    moved: float
    parts: List[Dict[str, int]]


class Times(NamedTuple):
    """Where the time went.

    Attributes
    ----------
    shares : list of dict of str to int
        By rank: nanoseconds of each of `PARTS`, from the beginning of the record to its end, or the rank's.
    loading : int
        Nanoseconds of the master's idle time in which the program waited for a loader.
    calls : list of Call
        Those that are in the record from beginning to end.
    """

    shares: List[Dict[str, int]]
    loading: int
    calls: List[Call]


class _Run(NamedTuple):
    """A command on the master.

    Attributes
    ----------
    command : int
    called : int
        When the program made the call, whose time this is.
    begin, end : int
        From when to when ranks were in it; after the end of the one before, whatever other threads wait for.
    returned : int
        When the call returned.
    """

    command: int
    called: int
    begin: int
    end: int
    returned: int


def times(record: Recorded) -> Times:
    """Return where the time of a session went."""
    runs = _runs(record.lanes[record.root])
    lanes = [_Lane(record, rank, runs) for rank in range(len(record.lanes))]
    calls = [_call(run, lanes, record.root) for run in runs if run.called >= record.begin]
    return Times([lane.shares for lane in lanes], lanes[record.root].loading, [call for call in calls if call])


def _runs(lane: Sequence[Span]) -> List[_Run]:
    """Return the commands of the master's lane that have ended."""
    spans = sorted(
        [span for span in lane if span.label == "Session.run" and span.command and not span.is_open],
        key=lambda span: span.end,
    )
    calls = {span.command: span for span in lane if span.point == "call" and span.level == 0 and not span.is_open}
    found, before = [], 0
    for span in spans:
        begin = max(span.begin, before)
        call = calls.get(span.command, span)
        # What a call has run before its own command, a function's distribution for example, is a command of its own.
        found.append(_Run(span.command, min(begin, max(call.begin, before)), begin, span.end, max(span.end, call.end)))
        before = span.end
    return found


class _Lane:
    """One rank's moments: in the parts of the session, and in those of commands."""

    def __init__(self, record: Recorded, rank: int, runs: Sequence[_Run]) -> None:
        self.shares = dict.fromkeys(PARTS, 0)
        self.loading = 0
        self.commands: Dict[int, Span] = {}
        self.parts: Dict[int, Dict[str, int]] = {}
        self.inside: Dict[int, Tuple[int, int]] = {}  # bytes and arrays of collectives inside functions
        self._runs, self._ends = runs, [run.end for run in runs]
        lane, is_root = record.lanes[rank], rank == record.root
        around = parents(lane)
        own = [max(0, span.end - max(span.begin, record.begin)) for span in lane]  # without what is inside
        for i, span in enumerate(lane):
            above = around[i]
            if above is not None:
                own[above] -= max(0, span.end - max(span.begin, record.begin))
        covered, last = 0, record.begin
        for i, span in enumerate(lane):
            if span.is_command:
                self.commands[span.command] = span
            if around[i] is None:
                covered += max(0, span.end - max(span.begin, last))
                last = max(last, span.end)
            command = span.command
            if span.point == "copy" and is_root:  # arguments are brought there before there is a command
                command = _called(lane, around, i)
            self._count(span, own[i], command, record.begin)
        # The program does other things between the master's spans; another rank has work around its own until it ends.
        self.shares["idle" if is_root else "overhead"] += max(0, last - record.begin - covered)
        self.shares["idle"] += max(0, record.end - last) if lane else 0  # of a host that was lost nothing is known

    def _count(self, span: Span, own: int, command: int, begin: int) -> None:
        """Count a span's own time."""
        if span.point == "loader":
            self.shares["idle"] += own
            self.loading += own
            return
        if span.label == "RankEnd.wait":
            self._count_wait(span, begin)
            return
        if span.point == "channel":
            part = "wait" if span.label == "MasterEnd.wait" else "overhead"
            if span.label.startswith("Fetcher."):
                part = "transport"
        elif span.is_command:
            part = "transport" if span.label == "collective" else "overhead"
        else:
            part = _PART_OF_POINT.get(span.point, "overhead")
        if span.point == "collective":
            nbytes, arrays = self.inside.get(span.command, (0, 0))
            self.inside[span.command] = nbytes + max(0, span.nbytes), arrays + max(0, span.arrays)
        self.shares[_PART_OF_SESSION[part]] += own
        if part != "overhead":
            self.parts.setdefault(command, dict.fromkeys(PARTS_OF_CALL, 0))[part] += own

    def _count_wait(self, span: Span, begin: int) -> None:
        """Divide what a rank has waited for a command: until the master was done with the last, idle, on the way."""
        since, left = max(span.begin, begin), max(0, span.end - max(span.begin, begin))
        first = bisect.bisect_left(self._ends, since)
        for run in itertools.islice(self._runs, first, None):
            if run.begin >= span.end:
                break
            together = max(0, min(run.end, span.end) - max(run.begin, since))
            left -= together
            if run.command == span.command:
                self.shares["waiting"] += together
                self.parts.setdefault(run.command, dict.fromkeys(PARTS_OF_CALL, 0))["wait"] += together
            else:
                self.shares["overhead"] += together
        self.shares["idle"] += max(0, left)


def _called(lane: Sequence[Span], around: Sequence[Optional[int]], i: int) -> int:
    """Return the command for which the program has made the call that a span is part of."""
    command = lane[i].command
    above = around[i]
    while above is not None:
        if lane[above].is_command:
            return lane[above].command
        command, above = lane[above].command, around[above]
    return command


def _call(run: _Run, lanes: Sequence[_Lane], root: int) -> Optional[Call]:
    """Return a command on all ranks; None if the master has not executed it."""
    number, begin, end = run.command, run.called, run.returned
    own = lanes[root].commands.get(number)
    if own is None:
        return None
    rows, moved, parts = [], 0, []
    for lane in lanes:
        here = lane.commands.get(number)
        rows.append(-1 if here is None else here.rows)
        moved += 0 if here is None else max(0, here.moved)
        of_rank = dict(lane.parts.get(number, dict.fromkeys(PARTS_OF_CALL, 0)))
        of_rank["overhead"] = max(0, end - begin - sum(of_rank.values()))
        parts.append(of_rank)
    nbytes, arrays, steps = max(0, own.nbytes), max(0, own.arrays), 1
    if own.label == "steps":
        arrays, steps = 0, max(1, own.arrays)
    if number in lanes[root].inside:
        nbytes, arrays = lanes[root].inside[number]
    return Call(number, own.label, own.name, begin, end, rows, nbytes, arrays, steps, moved / len(lanes), parts)
