"""Spans: what every rank did from when to when, on the clock of the master."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from .ring import Content


class Span(NamedTuple):
    """Something that a rank did.

    Attributes
    ----------
    begin, end : int
        Nanoseconds of the master's clock.
    point, label : str
        The named point, and the method: ``"barrier"``, ``"Barrier.wait"``; of a command its kind.
    name : str
        Of a command, of the function or the collective; "" otherwise.
    command : int
        The number of the command that it is part of.
    thread, level : int
        In which thread of the rank, and within how many other spans.
    rows, nbytes, moved, arrays : int
        -1 if not known.
    is_open : bool
        Whether it has not ended: the rank was killed in it, or is still at it.
    """

    begin: int
    end: int
    point: str
    label: str
    name: str
    command: int
    thread: int
    level: int
    rows: int = -1
    nbytes: int = -1
    moved: int = -1
    arrays: int = -1
    is_open: bool = False

    @property
    def is_command(self) -> bool:
        """Whether this is the execution of a command."""
        return self.point == "command"


class Recorded(NamedTuple):
    """What was recorded of a session.

    Attributes
    ----------
    lanes : list of list of Span
        By rank, in the order in which they began, outer ones first.
    root : int
        The master's rank.
    begin, end : int
        From when on all spans of all ranks are there, and until when there are any.
    dropped : list of int
        By rank: how many are not there any more.
    counts : dict of (str, str) to int
        How many commands of a kind and name the master has executed.
    errors : list of int
        By rank: how many nanoseconds its moments may be wrong, seen from the master.
    """

    lanes: List[List[Span]]
    root: int
    begin: int
    end: int
    dropped: List[int]
    counts: Dict[Tuple[str, str], int]
    errors: List[int]


def recorded(contents: Sequence[Content], root: int, now: int) -> Recorded:
    """Return what the rings of all ranks contain, on one clock; what is open ends now."""
    lanes = [_lane(content, now) for content in contents]
    firsts = [lane[0].begin for lane in lanes[root : root + 1] if lane]
    # What has ended since the oldest span that is still there is complete, with all that was inside of it.
    firsts += [min(span.end for span in lane) for lane, content in zip(lanes, contents) if lane and content.dropped]
    begin = max(firsts, default=now)
    end = max([span.end for lane in lanes for span in lane], default=now)
    counts = {}
    for name, count in contents[root].counts.items():
        point, _, rest = name.partition("\t")
        kind, has_title, title = rest.partition("\t")
        if point == "command" and has_title:  # else it is how one is called that has not ended
            counts[kind, title] = count
    dropped, errors = [content.dropped for content in contents], [content.error for content in contents]
    return Recorded(lanes, root, begin, end, dropped, counts, errors)


def _lane(content: Content, now: int) -> List[Span]:
    """Return the spans of a rank in order."""
    found = []
    for record in content.records:
        point, _, rest = content.names[record.name].partition("\t")
        label, _, name = rest.partition("\t")
        is_open = record.end < 0
        span = Span(
            record.begin - content.offset,
            now if is_open else record.end - content.offset,
            point,
            label,
            name,
            record.command,
            record.thread,
            record.level,
            *record.numbers,
            is_open,
        )
        found.append(span)
    return sorted(found, key=_order)


def _order(span: Span) -> Tuple[int, int, int]:
    return span.begin, span.thread, span.level


def parents(lane: Sequence[Span]) -> List[Optional[int]]:
    """Return the position of the span that is directly around each, or None."""
    found: List[Optional[int]] = []
    latest: Dict[Tuple[int, int], int] = {}  # by thread and level
    for i, span in enumerate(lane):
        around = latest.get((span.thread, span.level - 1))
        found.append(around if around is not None and span.begin < max(lane[around].end, 1) else None)
        latest[span.thread, span.level] = i
    return found
