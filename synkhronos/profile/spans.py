"""Spans: the recorded activities of every rank, on the master's clock."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from .ring import Content, Span


class Recorded(NamedTuple):
    """Spans of all ranks in a session, on one clock, and limits of this record."""

    lanes: List[List[Span]]  # by rank, ordered by start, outer spans first
    root: int  # the master's rank
    begin: int  # from here on, no span of any rank is missing
    end: int
    dropped: List[int]  # by rank: number of overwritten spans
    counts: Dict[Tuple[str, str], int]  # commands that the master has executed, by kind and name
    errors: List[int]  # by rank: largest error relative to the master's clock, in nanoseconds


def recorded(contents: Sequence[Content], root: int, now: int) -> Recorded:
    """Combine the rings of all ranks on one clock; open spans end at `now`."""
    lanes = []
    for content in contents:
        ended = [span._replace(end=now) if span.is_open else span for span in content.spans]
        lanes.append(sorted(ended, key=lambda span: (span.begin, span.thread, span.level)))
    firsts = [lane[0].begin for lane in lanes[root : root + 1] if lane]
    # All spans that ended after the oldest remaining span are recorded, with all spans nested in them.
    firsts += [min(span.end for span in lane) for lane, content in zip(lanes, contents) if lane and content.dropped]
    begin = max(firsts, default=now)
    end = max([span.end for lane in lanes for span in lane], default=now)
    counts = {}
    for name, count in contents[root].counts.items():
        point, _, rest = name.partition("\t")
        kind, has_title, title = rest.partition("\t")
        if point == "command" and has_title:  # an open command has no title yet
            counts[kind, title] = count
    dropped, errors = [content.dropped for content in contents], [content.error for content in contents]
    return Recorded(lanes, root, begin, end, dropped, counts, errors)


def parents(lane: Sequence[Span]) -> List[Optional[int]]:
    """Return, for each span, the index of the span that directly encloses it; None if no span does."""
    found: List[Optional[int]] = []
    latest: Dict[Tuple[int, int], int] = {}  # by thread and level
    for i, span in enumerate(lane):
        around = latest.get((span.thread, span.level - 1))
        found.append(around if around is not None and span.begin < max(lane[around].end, 1) else None)
        latest[span.thread, span.level] = i
    return found
