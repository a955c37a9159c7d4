"""What the bridge of a host and the deputies have in common: they copy between a control block and the wire.

They copy what may happen at any time; commands and barriers are the business of ranks (`sync.leading`). Both do it in
one thread, the loop's. When the *bell* of the block rings, it sends what is new there (`look`); a message says what to
write into the block: ``("abort", 7)`` calls ``on_abort(7)``. The words of the block say all; the bell only wakes, and
the thread looks anyway once in a while.
"""

from __future__ import annotations

import time
import traceback
from abc import ABC, abstractmethod
from typing import Any, Dict, Optional, Sequence, Tuple

from ...memory.attach import PoolMap
from ...sync.control_block import ControlBlock
from ...sync.hosts import Hosts
from .bulk import Bulk
from .host_memory import HostMemory
from .loop import Loop
from .requests import Requests
from .wire import Line

#: Seconds after which the block is looked at even if the bell has not rung.
LOOK_EVERY_S = 0.2

#: Seconds after which it is looked at again if something has to wait.
LOOK_AGAIN_S = 0.005


class Copying(ABC):
    """One session, as seen by the bridge of a host.

    Parameters
    ----------
    hosts : Hosts
    block : ControlBlock
        This host's.
    pools : dict of int to descriptor
        The memory of this host's ranks, the shadows of others, and the program's or its shadow, by ident.
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
        lines: Sequence[Optional[Line]],
        bulk: Optional[Bulk] = None,
    ) -> None:
        self.hosts, self.block = hosts, block
        self.pools = PoolMap()
        self.memory: Dict[int, HostMemory] = {}
        for ident, fd in pools.items():
            self.pools.add(ident, fd)
            self.memory[ident] = HostMemory(fd)
        self.requests = Requests(hosts, block, self.pools, self.memory, lines, bulk)
        self.ended = False
        self._due = 0.0  # when to look even if the bell has not rung
        self._loop: Optional[Loop] = None

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
        self.block.bridge.drain()
        self._look(time.monotonic() >= self._due)

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
        if waits or overdue:  # else the bell may ring again and again
            self._due = time.monotonic() + (LOOK_AGAIN_S if waits else LOOK_EVERY_S)

    @abstractmethod
    def look(self, overdue: bool) -> bool:
        """Send what is new in the block.

        Parameters
        ----------
        overdue : bool
            Whether to look, too, at what no bell rings for.

        Returns
        -------
        bool
            Whether something has to wait for a moment.
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

    def wake(self, ranks: Sequence[int]) -> None:
        """Have ranks of this host look at the words, wherever they wait."""
        for rank in ranks:
            self.block.releases[rank].release()
            self.block.fetched[rank].release()
