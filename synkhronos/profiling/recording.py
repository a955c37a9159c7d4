"""An observer that writes what it sees at the library's named points into the rings of this process's ranks."""

from __future__ import annotations

import time
from threading import get_ident
from typing import Any, Callable, Dict, List, Tuple

from ..trace import Observer, Point, ignore, observe
from .ring import Ring

#: The points at which nothing is recorded: their time is that of what is around them.
_LEFT_OUT = ("memory", "test")
_LEFT_OUT_METHODS = ("RankEnd.__init__", "Barrier.begin", "RankContext.settle", "RankContext.forget")

_PLAIN, _CALL, _COMMAND, _COLLECTIVE = range(4)


class _Lane:
    """A thread of a rank."""

    __slots__ = ("ring", "thread", "stack", "known")

    def __init__(self, ring: Ring, thread: int) -> None:
        self.ring, self.thread = ring, thread
        #: Of what has begun: the point, when, its name, its kind, the command then, and what had been moved.
        self.stack: List[Tuple[Point, int, int, int, int, float]] = []
        #: Name and kind by the id of the point, which lives as long as the program.
        self.known: Dict[int, Tuple[int, int]] = {}

    def learn(self, point: Point) -> Tuple[int, int]:
        """Return the name and the kind of a point."""
        kind = {"call": _CALL, "command": _COMMAND, "collective": _COLLECTIVE}.get(point.name, _PLAIN)
        found = self.known[id(point)] = self.ring.number(f"{point.name}\t{point.label}"), kind
        return found


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
            self._lanes = {ident: lane for ident, lane in self._lanes.items() if lane.ring is not ring}
            self._threads.pop(rank, None)
            if rank == self._of_others:
                self._of_others = -1
            if not self._rings:
                ignore(self)

    def _lane(self, rank: int) -> _Lane:
        thread = self._threads[rank] = self._threads.get(rank, -1) + 1
        return _Lane(self._rings[rank], min(thread, 255))

    def begin(self, point: Point, owner: Any, arguments: Any) -> None:
        lane = self._lanes.get(get_ident())
        if lane is None:
            if self._of_others not in self._rings:
                return
            lane = self._lanes[get_ident()] = self._lane(self._of_others)
        name, kind = lane.known.get(id(point)) or lane.learn(point)
        ring, stack, moved = lane.ring, lane.stack, 0.0
        if kind == _COMMAND:
            ring.command = owner.barrier.command
            moved = owner.transport.traffic.read + owner.transport.traffic.sent
        command, now = ring.command, self.clock()
        if lane.thread == 0:
            ring.begin(len(stack), now, name, command)
        stack.append((point, now, name, kind, command, moved))

    def end(self, point: Point, owner: Any, arguments: Any) -> None:
        now = self.clock()
        lane = self._lanes.get(get_ident())
        if lane is None:
            return
        stack = lane.stack
        while stack:
            begun, since, name, kind, before, moved = stack.pop()
            if begun is point:
                break
        else:  # it began before there was this recording
            return
        ring, level = lane.ring, len(stack)
        if kind == _PLAIN:
            ring.end(since, now, ring.command, name, lane.thread, level)
        elif kind == _CALL:  # one that has come to no command is about none
            command = 0 if ring.command == before else ring.command
            ring.end(since, now, command, name, lane.thread, level)
        elif kind == _COMMAND:
            self._end_command(lane, since, now, level, owner, arguments[0].command, moved)
        else:
            arrays = arguments[2]
            nbytes = sum([array.size * array.dtype.itemsize for array in arrays])
            ring.end(since, now, ring.command, name, lane.thread, level, -1, nbytes, -1, len(arrays))

    def _end_command(
        self, lane: _Lane, since: int, now: int, level: int, context: Any, command: Any, moved: float
    ) -> None:
        """Write the span of a command: its rows, bytes, what has been moved, and its arrays."""
        ring, traffic = lane.ring, context.transport.traffic
        kind, title, numbers = "other", command.title, (-1, 0, 0, 0)
        try:
            kind, title, rows, nbytes, arrays = command.amounts(context)
            moved = max(0.0, traffic.read + traffic.sent - moved)  # another transport counts from 0
            numbers = rows, nbytes, int(moved), arrays
        except LookupError:  # it has failed before this rank knew what it was about
            pass
        name = ring.number(f"command\t{kind}\t{title}")
        ring.end(since, now, ring.command, name, lane.thread, level, *numbers)
        ring.count(name)


#: That of this process.
RECORDING = Recording()
