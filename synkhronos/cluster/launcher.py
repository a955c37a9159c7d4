"""Launcher for several hosts: the keeper starts this host's ranks, and the bridge asks other hosts to start theirs."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence

from ..errors import SynkhronosError
from ..host.interfaces import interfaces
from ..memory.attach import PoolMap
from ..memory.pool import Pool
from ..processes.launcher import ProcessLauncher
from ..processes.output import Streams
from ..processes.rank_main import fatal_error
from ..runtime.exit_status import WAITS
from ..runtime.failures import worker_died
from ..runtime.launcher import Launcher, Ranges, RankConfig
from ..sync.control_block import COMMAND_NUMBER, ControlBlock
from ..sync.link import Link
from ..sync.rendezvous import Rendezvous
from .bridge import Bridge
from .messages import SessionSpec
from .wire import listener_of

RESTORATION = "restoration of a replaced rank"
PRINTS_TIMEOUT_S = 2.0  # time limit for the arrival of output from other hosts


class HostsLauncher(Launcher):
    """Starts ranks on this host with a process launcher, and ranks on other hosts through the bridge."""

    def __init__(self, local: ProcessLauncher, bridge: Bridge, spec: SessionSpec) -> None:
        self.local, self.bridge, self.spec = local, bridge, spec
        self._block: Any = None
        self._pids: Dict[int, int] = {}
        self._links: Dict[int, Link] = {}  # to the other hosts' leaders, by rank
        self._streams = Streams([])
        self._shown = 0  # bytes of output that had arrived at the last call to `forward` with ``idle``

    def start(self, configs: List[RankConfig], block: ControlBlock, pools: Dict[int, Any]) -> None:
        hosts = self.spec.hosts
        self._block = block
        self.local.start([config for config in configs if config.rank in hosts.near], block, pools)
        self._streams = Streams(hosts.far)
        files = {ident: pool.fileno() if isinstance(pool, Pool) else pool for ident, pool in pools.items()}
        streams, leaders = self._streams.fds(), [ranks[0] for ranks in hosts.ranks[1:]]

        def open_on_hosts(meeting: Rendezvous) -> Dict[int, int]:
            config = self.spec.config._replace(meeting=meeting)
            return self.bridge.open(self.spec._replace(config=config), block, streams, files)

        self._links = self._connected(leaders, open_on_hosts, "fork")
        self.links = [self._links[rank] for rank in leaders]

    def _connected(
        self, leaders: Sequence[int], start: Callable[[Rendezvous], Dict[int, int]], when: str
    ) -> Dict[int, Link]:
        """Start ranks on other hosts with ``start``, which returns their process ids; return links to ``leaders``."""
        with listener_of(os.environ, interfaces()) as listener:  # open until the leaders have connected
            started = start(listener.meeting)
            self._pids.update(started)
            connected = listener.accept(len(leaders), lambda: self._check(started, when))
            return {rank: Link(sock) for rank, sock in connected}

    def _check(self, ranks: Iterable[int], when: str) -> None:
        block = self._block
        for rank in ranks:
            if block.ended[rank]:
                how = block.status[rank], block.memory[rank], f"in {when}", self.fatal_error(rank)
                raise worker_died(rank, self._pids[rank], *how, (), f" on host {self.host(rank)}")
        if not self.is_alive():
            raise self.error()

    def end(self, ranks: Iterable[int]) -> None:
        ranks = list(ranks)
        self.local.end([rank for rank in ranks if rank not in self._pids])
        self.bridge.end_ranks([rank for rank in ranks if rank in self._pids])

    def replace(self, taken: Mapping[int, Ranges], pools: PoolMap) -> Mapping[int, Link]:
        far = {rank: taken[rank] for rank in taken if rank in self._pids}
        near = {rank: taken[rank] for rank in taken if rank not in far}
        self.local.replace(near, pools)
        leaders, number = [rank for rank in far if rank in self._links], self._block.words[COMMAND_NUMBER]
        if not leaders:
            self._pids.update(self.bridge.replace(far, number))
            return {}
        found = self._connected(leaders, lambda meeting: self.bridge.replace(far, number, meeting), RESTORATION)
        self._links.update(found)  # the relay closes the old links
        return found

    def is_alive(self) -> bool:
        return self.local.is_alive() and self.bridge.alive()

    def error(self) -> SynkhronosError:
        if not self.local.is_alive():
            return self.local.error()
        return SynkhronosError(
            f"the bridge process (pid {self.bridge.pid}), which connects to the other hosts, has ended: "
            f"{self.bridge.exit_reason()}; the session is closed: call synkhronos.fork() to start a new one"
        )

    def pid(self, rank: int) -> int:
        return self._pids[rank] if rank in self._pids else self.local.pid(rank)

    def host(self, rank: int) -> str:
        return self.spec.hosts.names[self.spec.hosts.of(rank)]

    def fatal_error(self, rank: int) -> str:
        return fatal_error(self._block, rank)

    def inspect(self, ranks: Iterable[int], seconds: float) -> Dict[int, str]:
        found = self.bridge.inspect(list(ranks), seconds)
        near = [rank for rank in found if rank not in self._pids and found[rank] != WAITS]
        return {**found, **self.local.inspect(near, seconds)}

    def write_if_killed(self, write: Callable[[Sequence[memoryview]], object]) -> None:
        self.local.write_if_killed(write)  # the local keeper has no recorded activity of ranks on other hosts

    def join(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not all(self._block.ended[rank] for rank in self._pids):
            if time.monotonic() > until or not self.is_alive():
                return False
            time.sleep(0.0005)
        return self.local.join(max(0.0, until - time.monotonic()))

    def kill(self) -> None:
        self.local.kill()
        for link in self._links.values():
            link.close()
        if self._pids:
            self.bridge.kill()
            self._pids = {}
        self._streams.close()

    def forward(self, idle: bool = False) -> None:
        if idle:
            self._await_prints()
        self.local.forward(idle)
        shown = sum([self._block.shown[rank] for rank in self._pids])
        if not idle or shown != self._shown:
            self._streams.forward(idle)
        if idle:
            self._shown = shown

    def _await_prints(self) -> None:
        """Wait for output that other hosts' ranks printed before answering; it arrives on a separate connection."""
        printed, shown = self._block.printed, self._block.shown
        until = time.monotonic() + PRINTS_TIMEOUT_S
        for rank in self._pids:
            while printed[rank] > shown[rank] and not self._block.ended[rank] and time.monotonic() < until:
                time.sleep(0.0002)
