"""An observer that writes what it sees at the library's named points into the rings of this process's ranks."""

from __future__ import annotations

import functools
import time
from threading import get_ident
from typing import Any, Callable, Dict, Optional, Tuple

from ..trace import Observer, Point, ignore, observe
from .ring import MAX_OPEN, NUMBERS, OPEN, OPEN_PLACES, RECORD_BYTES, RECORDS_BEGIN, SPAN, WRITTEN, Ring

#: The points at which nothing is recorded: their time is that of what is around them.
_LEFT_OUT = ("memory", "test")
_LEFT_OUT_METHODS = ("RankEnd.__init__", "Barrier.begin", "RankContext.settle", "RankContext.forget")


class _Lane:
    """A thread of a rank."""

    __slots__ = ("ring", "thread", "level", "levels_written")

    def __init__(self, ring: Ring, thread: int) -> None:
        self.ring: Optional[Ring] = ring
        self.thread = thread
        #: Within how many spans it is; and of how many levels the beginnings are written down.
        self.level = 0
        self.levels_written = 0 if thread else MAX_OPEN


class Recording(Observer):
    """Records the ranks of this process: one, or the master and those that are threads.

    Parameters
    ----------
    clock : callable
        Returns nanoseconds; ``CLOCK_MONOTONIC``, which all processes of a host have in common.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.clock = clock
        self._rings: Dict[int, Ring] = {}  # by rank
        self._lanes: Dict[int, _Lane] = {}  # by thread
        self._threads: Dict[int, int] = {}  # of each rank: how many lanes it has had
        self._of_others = -1  # the rank to which a thread belongs that is not known

    def wants(self, point: Point) -> bool:
        return point.name not in _LEFT_OUT and point.label not in _LEFT_OUT_METHODS

    def add(self, rank: int, memory: memoryview, any_thread: bool = False) -> None:
        """Record a rank from now on: what this thread does, or any thread that is no other rank's."""
        self._rings[rank] = Ring(memory)
        if any_thread:
            self._of_others = rank
        else:
            self._lanes[get_ident()] = self._lane(rank)
        if len(self._rings) == 1:
            observe(self)

    def remove(self, rank: int) -> None:
        """Record that rank no more."""
        ring = self._rings.pop(rank, None)
        if ring is not None:
            for ident, lane in list(self._lanes.items()):
                if lane.ring is ring:
                    lane.ring = None  # what has begun is not recorded any more
                    del self._lanes[ident]
            self._threads.pop(rank, None)
            if rank == self._of_others:
                self._of_others = -1
            if not self._rings:
                ignore(self)

    def _lane(self, rank: int) -> _Lane:
        thread = self._threads[rank] = self._threads.get(rank, -1) + 1
        return _Lane(self._rings[rank], min(thread, 255))

    def _lane_of_others(self) -> Optional[_Lane]:
        """Return a lane for this thread, which has none; None if it is nobody's."""
        if self._of_others not in self._rings:
            return None
        lane = self._lanes[get_ident()] = self._lane(self._of_others)
        return lane

    def around(self, point: Point, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return the method, with its span written; without calls of others, since a call of the program has ten."""
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
                if lane.ring is not None:  # else the session has ended meanwhile
                    written, memory = ring.written, ring.memory
                    place = RECORDS_BEGIN + RECORD_BYTES * (written % ring.capacity)
                    if is_call:
                        command = 0 if ring.command == command else ring.command  # it may have come to none
                    elif is_command:
                        name, *numbers = _of_command(ring, owner, args[0].command, moved)
                        write_numbers(memory, place + SPAN.size, *numbers)
                    elif is_collective:
                        nbytes = sum([array.size * array.dtype.itemsize for array in args[2]])
                        write_numbers(memory, place + SPAN.size, -1, nbytes, -1, len(args[2]))
                    write(memory, place, begin, end, command, name, lane.thread, level)
                    ring.words[WRITTEN] = ring.written = written + 1

        return recorded


def _of_command(ring: Ring, context: Any, command: Any, moved: float) -> Tuple[int, int, int, int, int]:
    """Return the name of a command that has ended, which is counted; its rows, bytes, bytes moved, and arrays."""
    traffic = context.transport.traffic
    try:
        kind, title, rows, nbytes, arrays = command.amounts(context)
        moved = traffic.read + traffic.sent - moved
    except LookupError:  # it has failed before this rank knew what it was about
        kind, title, rows, nbytes, arrays, moved = "other", command.title, -1, 0, 0, 0.0
    name = ring.number_of_command(kind, title)
    return name, rows, nbytes, int(moved) if moved > 0 else 0, arrays  # another transport counts from 0


#: That of this process.
RECORDING = Recording()
