"""What the bridge of a host and the deputies have in common: they copy between a control block and the wire.

Both do it in one thread, the loop's. When the *bell* of the block rings, it sends what is new there (`look`); a message
says what to write into the block: ``("decided", 7)`` calls ``on_decided(7)``. The words of the block say all; the
bell only wakes, and the thread looks anyway once in a while.
"""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ...memory import messages
from ...memory.attach import PoolMap
from ...memory.pool import Pool
from ...sync.barrier import turn_of
from ...sync.control_block import ControlBlock
from ...sync.hosts import Hosts
from .bulk import Bulk
from .host_memory import HostMemory
from .loop import Loop
from .requests import Requests
from .wire import Line

#: Seconds after which the block is looked at even if the bell has not rung.
LOOK_EVERY_S = 0.2

#: Seconds that what some ranks of this host have reached is kept back until the others have reached it, too.
TOGETHER_S = 0.005


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
    lines : sequence of (Line or None)
        By host: by which it is reached, though it may lead to another one first.
    bulk : Bulk, optional
        What carries large arrays, if ``hosts.places`` says that something does.
    """

    def __init__(
        self,
        hosts: Hosts,
        block: ControlBlock,
        pools: Dict[int, int],
        pool: Pool,
        lines: Sequence[Optional[Line]],
        bulk: Optional[Bulk] = None,
    ) -> None:
        self.hosts, self.block, self.pool = hosts, block, pool
        self.pools = PoolMap()
        self.memory: Dict[int, HostMemory] = {}
        for ident, fd in pools.items():
            self.pools.add(ident, fd)
            self.memory[ident] = HostMemory(fd)
        self.pools.add(pool.ident, pool)
        self.requests = Requests(hosts, block, self.pools, self.memory, lines, bulk)
        self.ended = False
        self._due = 0.0  # when to look even if the bell has not rung
        self._loop: Optional[Loop] = None
        self._keep: List[Dict[int, Any]] = [{}, {}]  # by turn and rank: long notices

    # -- the loop ------------------------------------------------------------------------------------------------

    def begin(self, loop: Loop) -> None:
        """Begin to look at the block."""
        self._loop = loop
        loop.watch(self.block.bridge, self._on_bell)

    def end(self) -> None:
        """Look for the last time, and let go of the session's memory."""
        if self._loop is not None:
            self._loop.forget(self.block.bridge)
            self._loop = None
        self._look(True)
        self.ended = True
        self.requests.end()
        self.memory.clear()

    def _on_bell(self) -> None:
        self.block.bridge.clear()
        self._look(False)

    def keep_time(self) -> float:
        """Look if that is due; return the seconds until it will be."""
        left = self._due - time.monotonic()
        if left <= 0:
            self._look(True)
            left = self._due - time.monotonic()
        return max(0.0, left)

    def _look(self, overdue: bool) -> None:
        waits = False
        if not self.ended:
            try:
                self.requests.look()
                waits = self.look(overdue)
            except (ConnectionError, EOFError):  # who receives from there is told, too
                pass
            except Exception:
                self.fail(traceback.format_exc())
        self._due = time.monotonic() + (TOGETHER_S if waits else LOOK_EVERY_S)

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

    def receive(self, message: Tuple[Any, ...]) -> None:
        """Do what a message says."""
        if self.ended:
            return
        name = "on_" + message[0]
        try:
            getattr(self if hasattr(self, name) else self.requests, name)(*message[1:])
        except (ConnectionError, EOFError):  # another host is gone, and who receives from there is told
            pass
        except Exception:
            self.fail(traceback.format_exc())

    @abstractmethod
    def fail(self, reason: str) -> None:
        """End the session after an internal error, so that no rank waits for ever."""

    # -- what ranks say ------------------------------------------------------------------------------------------

    def notice_of(self, rank: int, number: int) -> Optional[bytes]:
        """Return what a rank of this host tells the others at a barrier; None if nothing."""
        block, turn = self.block, turn_of(number)
        if block.noticed[turn][rank] != number:
            return None
        return bytes(messages.get(block.notice_length[turn][rank], block.notice_slots[turn][rank], self.pools))

    def write_notices(self, number: int, notices: Dict[int, Optional[bytes]]) -> None:
        """Write what ranks of other hosts tell at a barrier."""
        block, turn = self.block, turn_of(number)
        for rank, notice in notices.items():
            if notice is not None:
                slot = block.notice_slots[turn][rank]
                block.notice_length[turn][rank], self._keep[turn][rank] = messages.put(notice, slot, self.pool)
                block.noticed[turn][rank] = number

    def wake(self, ranks: Sequence[int]) -> None:
        """Have ranks of this host look at the words, wherever they wait."""
        for rank in ranks:
            self.block.releases[rank].release()
            self.block.fetched[rank].release()
