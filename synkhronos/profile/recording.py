"""Observer that records this process's ranks: each run of a trace point becomes a span in a rank's ring."""

from __future__ import annotations

import functools
import time
from threading import Lock, get_ident
from typing import Any, Callable, Dict, Optional, Tuple

from ..trace import Point, TraceObserver, ignore, observe
from .ring import MAX_OPEN, NUMBERS, OPEN, OPEN_PLACES, RECORD_BYTES, RECORDS_BEGIN, SPAN, WRITTEN, RingBuffer

#: Points that are not recorded; their time counts as the enclosing span's.
_LEFT_OUT = ("memory", "test")
_LEFT_OUT_METHODS = ("RankEnd.__init__", "Barrier.begin", "Transaction._make_or_undo", "RankContext.forget")


class _RecordingLane:
    """Recording state of one thread of a rank."""

    __slots__ = ("ring", "thread", "level", "levels_written")

    def __init__(self, ring: RingBuffer, thread: int) -> None:
        self.ring: Optional[RingBuffer] = ring
        self.thread = thread
        #: Nesting depth, and the number of levels whose open spans are written.
        self.level = 0
        self.levels_written = 0 if thread else MAX_OPEN


class Recording(TraceObserver):
    """Observer that records the ranks of this process: one rank, or the master and the ranks that run as threads.

    `clock` returns nanoseconds. The default, ``CLOCK_MONOTONIC``, is common to all processes of a host.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock = clock
        self._rings: Dict[int, RingBuffer] = {}  # by rank
        self._lanes: Dict[int, _RecordingLane] = {}  # by thread
        self._threads: Dict[int, int] = {}  # by rank: number of its lanes, minus 1
        self._of_others = -1  # the rank that unknown threads belong to; -1 if none
        self._lock = Lock()

    def wants(self, point: Point) -> bool:
        return point.name not in _LEFT_OUT and point.label not in _LEFT_OUT_METHODS

    def add(self, rank: int, memory: memoryview, any_thread: bool = False) -> None:
        """Start recording a rank, on this thread or on all threads that belong to no other rank."""
        with self._lock:  # all ranks wait until the first rank has registered the observer
            self._rings[rank] = RingBuffer(memory)
            if any_thread:
                self._of_others = rank
            else:
                self._lanes[get_ident()] = self._lane(rank)
            if len(self._rings) == 1:
                observe(self)

    def remove(self, rank: int) -> None:
        ring = self._rings.pop(rank, None)
        if ring is not None:
            for ident, lane in list(self._lanes.items()):
                if lane.ring is ring:
                    lane.ring = None  # open spans are dropped
                    del self._lanes[ident]
            self._threads.pop(rank, None)
            if rank == self._of_others:
                self._of_others = -1
            if not self._rings:
                ignore(self)

    def _lane(self, rank: int) -> _RecordingLane:
        thread = self._threads[rank] = self._threads.get(rank, -1) + 1
        return _RecordingLane(self._rings[rank], min(thread, 255))

    def _lane_of_others(self) -> Optional[_RecordingLane]:
        """Create and return a lane for this unknown thread; return None if no rank records such threads."""
        if self._of_others not in self._rings:
            return None
        lane = self._lanes[get_ident()] = self._lane(self._of_others)
        return lane

    def around(self, point: Point, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method to write its span; the code is inlined, because a call by the program has about ten spans."""
        lanes, clock, key = self._lanes, self.clock, f"{point.name}\t{point.label}"
        is_call, is_command, is_collective = [point.name == name for name in ("call", "command", "collective")]
        write, write_numbers, write_open, open_places = SPAN.pack_into, NUMBERS.pack_into, OPEN.pack_into, OPEN_PLACES

        @functools.wraps(method)
        def recorded(owner: Any, *args: Any, **kwargs: Any) -> Any:
            lane = lanes.get(get_ident()) or self._lane_of_others()
            if lane is None:
                return method(owner, *args, **kwargs)
            level, moved = lane.level, 0.0
            ring: Any = lane.ring
            if is_command:
                ring.command, traffic = owner.barrier.command, owner.transport.traffic
                moved = traffic.read + traffic.sent
            name, command = ring.numbers.get(key) or ring.number(key), ring.command
            lane.level = level + 1
            begin = clock()
            if level < lane.levels_written:
                write_open(ring.memory, open_places[level], begin, ring.written + 1, name, command)
            try:
                return method(owner, *args, **kwargs)
            finally:
                end = clock()
                lane.level = level
                if lane.ring is not None:  # None if the session has ended in the meantime
                    written, memory = ring.written, ring.memory
                    place = RECORDS_BEGIN + RECORD_BYTES * (written % ring.capacity)
                    if is_call:
                        command = 0 if ring.command == command else ring.command  # 0 if the call ran no command
                    elif is_command:
                        name, *numbers = _of_command(ring, owner, args[0].command, moved)
                        write_numbers(memory, place + SPAN.size, *numbers)
                    elif is_collective:
                        nbytes = sum([array.size * array.dtype.itemsize for array in args[2]])
                        write_numbers(memory, place + SPAN.size, -1, nbytes, -1, len(args[2]))
                    write(memory, place, begin, end, command, name, lane.thread, level)
                    ring.words[WRITTEN] = ring.written = written + 1

        return recorded


def _of_command(ring: RingBuffer, context: Any, command: Any, moved: float) -> Tuple[int, int, int, int, int]:
    """Count a finished command; return the number of its name, and its rows, bytes, bytes moved and arrays."""
    traffic = context.transport.traffic
    try:
        kind, title, rows, nbytes, arrays = command.amounts(context)
        moved = traffic.read + traffic.sent - moved
    except LookupError:  # the command failed before it was executed here
        kind, title, rows, nbytes, arrays, moved = "other", command.title, -1, 0, 0, 0.0
    name = ring.number_of_command(kind, title)
    return name, rows, nbytes, int(moved) if moved > 0 else 0, arrays  # negative after a change of transport


RECORDING = Recording()
