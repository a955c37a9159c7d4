"""What the bridge of a host and the deputies have in common: they copy between a control block and the wire.

Two kinds of threads do it. One waits for the *bridge* semaphore of the block, and sends what is new there (`look`). One
for each line waits for messages, and writes what they say into the block: a message ``("decided", 7)`` calls
``on_decided(line, 7)``. The words of the block say all; the semaphore only wakes, and the thread looks anyway once in a
while.
"""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import threading
import traceback
from abc import ABC, abstractmethod
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import numpy as np

from ...memory import messages
from ...memory.attach import PoolMap
from ...memory.pool import WINDOW_BYTES, Pool
from ...memory.ranges import Ranges
from ...sync.control_block import ControlBlock
from ...sync.hosts import Hosts
from .wire import Line

logger = logging.getLogger("synkhronos")

#: Seconds after which the block is looked at even if nobody has woken the thread.
LOOK_EVERY_S = 0.05

#: Seconds that what some ranks of this host have reached is kept back until the others have reached it, too.
TOGETHER_S = 0.005

Key = Tuple[int, Ranges]


class Copying(ABC):
    """One session, as seen by the bridge of a host.

    Parameters
    ----------
    hosts : Hosts
    block : ControlBlock
        This host's.
    pools : dict of int to descriptor
        The memory of this host's ranks, the shadows of others, and the program's or its shadow, by ident.
    pool : Pool
        For messages to ranks of this host.
    """

    def __init__(self, hosts: Hosts, block: ControlBlock, pools: Dict[int, int], pool: Pool) -> None:
        self.hosts, self.block, self.pool = hosts, block, pool
        self.pools = PoolMap()
        self.memory: Dict[int, _Memory] = {}
        for ident, fd in pools.items():
            self.pools.add(ident, fd)
            self.memory[ident] = _Memory(fd)
        self.pools.add(pool.ident, pool)
        self.lock = threading.RLock()
        self.ended = False
        self._asked = [0] * hosts.size  # by rank: its requests that have been seen
        self._epoch = -1
        self._fetched: Dict[Key, _Fetch] = {}
        self._fetches: Dict[int, _Fetch] = {}
        self._number = 0
        self._keep: List[Any] = [None, None]
        self._thread = threading.Thread(target=self._wait, name="synkhronos-look", daemon=True)

    # -- threads -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start to look at the block."""
        self._thread.start()

    def end(self) -> None:
        """Stop, and let go of the session's memory."""
        with self.lock:
            self.ended = True
        self.block.bridge.release()
        if self._thread is not threading.current_thread() and self._thread.is_alive():
            self._thread.join()
        self.memory.clear()

    def _wait(self) -> None:
        overdue, seconds = False, LOOK_EVERY_S
        while not self.ended:
            overdue = not self.block.bridge.acquire(seconds)
            with self.lock:
                if self.ended:
                    return
                try:
                    self._look_at_fetches()
                    waits = self.look(overdue)
                except (ConnectionError, EOFError):  # who receives from there is told, too
                    waits = False
                except Exception:
                    self.fail(traceback.format_exc())
                    return
            seconds = TOGETHER_S if waits else LOOK_EVERY_S

    @abstractmethod
    def look(self, overdue: bool) -> bool:
        """Send what is new in the block.

        Parameters
        ----------
        overdue : bool
            Whether what is incomplete is to be sent as well.

        Returns
        -------
        bool
            Whether something incomplete waits for the rest.
        """

    def receive(self, line: Line, message: Tuple[Any, ...]) -> None:
        """Do what a message says."""
        with self.lock:
            if not self.ended:
                try:
                    getattr(self, "on_" + message[0])(line, *message[1:])
                except (ConnectionError, EOFError):  # another host is gone, and who receives from there is told
                    pass
                except Exception:
                    self.fail(traceback.format_exc())

    @abstractmethod
    def fail(self, reason: str) -> None:
        """End the session after an error that must not be, rather than have ranks wait for ever."""

    # -- memory --------------------------------------------------------------------------------------------------

    @abstractmethod
    def line_to(self, host: int) -> Line:
        """Return the line by which a host is reached, though it may lead to another one first."""

    def _look_at_fetches(self) -> None:
        """See what ranks of this host want to have; each thing is asked for once, however many ranks want it."""
        block = self.block
        for rank in self.hosts.near:
            asked = block.fetch_asked[rank]
            if asked == self._asked[rank]:
                continue
            self._asked[rank] = asked
            payload = messages.get(block.fetch_length[rank], block.fetch_slots[rank], self.pools)
            epoch, wanted = pickle.loads(payload)
            if epoch != self._epoch:  # ranks have met since: what was fetched before may have changed
                self._epoch, self._fetched = epoch, {}
            waits = _Waits(rank, asked)
            for pool, starts, stops in wanted:
                ranges = Ranges(pool, starts, stops)
                fetch = self._fetched.get((pool, ranges))
                if fetch is None or rank in fetch.ranks:
                    fetch = self._fetched[pool, ranges] = self._ask(ranges)
                fetch.ranks.add(rank)
                if not fetch.is_done:
                    fetch.waiting.append(waits)
                    waits.open += 1
            if not waits.open:
                self._tell(waits)

    def _ask(self, ranges: Ranges) -> _Fetch:
        self._number += 1
        fetch = self._fetches[self._number] = _Fetch(ranges)
        host = self.hosts.of(ranges.pool)
        self.line_to(host).send("fetch", self.hosts.own, self._number, host, *ranges)
        return fetch

    def on_fetch(self, line: Line, asker: int, number: int, host: int, pool: int, starts: Any, stops: Any) -> None:
        """Send what another host wants to have."""
        if host != self.hosts.own:
            self.line_to(host).send("fetch", asker, number, host, pool, starts, stops)
            return
        parts = Ranges(pool, starts, stops).of(self.memory[pool].up_to(int(stops.max())))
        self.line_to(asker).send("memory", asker, number, b"".join(parts))

    def on_memory(self, line: Line, asker: int, number: int, content: bytes) -> None:
        """Write what this host has asked for into the shadow, and tell those who wait for it."""
        if asker != self.hosts.own:
            self.line_to(asker).send("memory", asker, number, content)
            return
        fetch = self._fetches.pop(number)
        ranges, place, view = fetch.ranges, 0, memoryview(content)
        memory = self.memory[ranges.pool]
        for start, stop in zip(ranges.starts.tolist(), ranges.stops.tolist()):
            memory.write(view[place : place + stop - start], start)
            place += stop - start
        fetch.is_done = True
        for waits in fetch.waiting:
            waits.open -= 1
            if not waits.open:
                self._tell(waits)

    def _tell(self, waits: _Waits) -> None:
        self.block.fetch_done[waits.rank] = waits.number
        self.block.fetched[waits.rank].release()

    # -- what ranks say ------------------------------------------------------------------------------------------

    def notice_of(self, rank: int, number: int) -> Optional[bytes]:
        """Return what a rank of this host tells the others at a barrier; None if nothing."""
        block, turn = self.block, number % 2
        if block.noticed[rank] != number:
            return None
        return bytes(messages.get(block.notice_length[turn][rank], block.notice_slots[turn][rank], self.pools))

    def write_notices(self, number: int, notices: Dict[int, Optional[bytes]]) -> None:
        """Write what ranks of other hosts tell at a barrier."""
        block, turn = self.block, number % 2
        keep = []
        for rank, notice in notices.items():
            if notice is not None:
                slot = block.notice_slots[turn][rank]
                block.notice_length[turn][rank], kept = messages.put(notice, slot, self.pool)
                block.noticed[rank] = number
                keep.append(kept)
        self._keep[turn] = keep

    def wake(self, ranks: Sequence[int]) -> None:
        """Have ranks of this host look at the words, wherever they wait."""
        for rank in ranks:
            self.block.releases[rank].release()
            self.block.fetched[rank].release()


class _Waits:
    """A rank that waits for the answer to its request of that number."""

    def __init__(self, rank: int, number: int) -> None:
        self.rank, self.number, self.open = rank, number, 0


class _Fetch:
    """Ranges that are on their way here, or have come."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges, self.is_done = ranges, False
        self.ranks: Set[int] = set()
        self.waiting: List[_Waits] = []


class _Memory:
    """A pool or a shadow as bytes, mapped as far as was needed."""

    def __init__(self, fd: int) -> None:
        self._fd, self._map = os.dup(fd), memoryview(b"")

    def __del__(self) -> None:
        os.close(self._fd)

    def write(self, content: memoryview, start: int) -> None:
        """Write bytes, whose pages need not be there.

        Raises
        ------
        OSError
            There is no memory for them. (Through the mapping that would end the process.)
        """
        while len(content):
            written = os.pwrite(self._fd, content, start)
            content, start = content[written:], start + written

    def up_to(self, stop: int) -> memoryview:
        """Return its bytes, at least so many."""
        if stop > len(self._map):
            size = os.fstat(self._fd).st_size
            self._map = memoryview(mmap.mmap(self._fd, min(size, max(1 << 30, 1 << stop.bit_length()))))
        return self._map


def shadow(fd: int) -> int:
    """Make a nameless file one that has the places of a pool; return it."""
    size = WINDOW_BYTES
    while True:
        try:
            os.ftruncate(fd, size)
            return fd
        except OSError:  # a limit of this process (ulimit -f)
            size //= 2
            if size < np.iinfo(np.int16).max:
                raise
