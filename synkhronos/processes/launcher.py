"""Launcher that starts ranks as processes, forked by the keeper."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

from ..errors import SynkhronosError
from ..host import machine
from ..host.affinity import CoreClaims
from ..memory.attach import PoolMap
from ..memory.memfd import nameless_file
from ..memory.pool import Pool
from ..runtime.exit_status import describe_state
from ..runtime.launcher import Launcher, Ranges, RankConfig
from ..sync.control_block import ControlBlock
from ..sync.link import Link
from ..sync.rendezvous import Rendezvous
from ..sync.semaphore import WaitPolicy
from .keeper import Descriptors, Keeper
from .output import Streams
from .rank_main import ASK_FOR_STACKS, fatal_error


def configs_of_host(
    config: RankConfig, ranks: Sequence[int], claims: CoreClaims, pin: bool, threads: Optional[int]
) -> List[RankConfig]:
    """Return ``config`` for each of a host's ranks, with its cores, threads and, if ``config`` has one, its profile."""
    budget = machine.core_budget()
    groups = claims.claim(len(ranks)) if pin and len(ranks) <= budget else [[]] * len(ranks)
    config = config._replace(threads=threads or max(1, budget // len(ranks)))
    profiles = [config.profile and os.path.abspath(f"synkhronos_rank_{rank}.prof") for rank in ranks]
    policies = [config.policy or WaitPolicy.of_processes(config.size, budget, bool(cores)) for cores in groups]
    own = zip(ranks, groups, policies, profiles)
    return [config._replace(rank=r, cores=cores, policy=policy, profile=p) for r, cores, policy, p in own]


class ProcessLauncher(Launcher):
    """Starts ranks through the keeper; with ``standby``, also a process that can replace a dead rank."""

    def __init__(self, keeper: Keeper, standby: bool = False) -> None:
        self.keeper, self._standby = keeper, standby
        self._pids: Dict[int, int] = {}
        self._configs: Dict[int, RankConfig] = {}
        self._block: Any = None
        self._stacks = -1  # a file for the ranks' stacks, while the ranks are alive
        self._streams = Streams([])

    def start(self, configs: List[RankConfig], block: ControlBlock, pools: Dict[int, Any]) -> None:
        self._block = block
        if configs:
            self._stacks = nameless_file("stacks", 0)
            try:
                self._streams = Streams(config.rank for config in configs)
                pids = self.keeper.spawn(
                    configs,
                    block.size,
                    Descriptors(
                        block.fd,
                        self._stacks,
                        self._streams.fds(),
                        {ident: pool.fileno() if isinstance(pool, Pool) else pool for ident, pool in pools.items()},
                        block.bells(),
                    ),
                    self._standby,
                )
            except BaseException:
                self._tidy()
                raise
            self._configs = {config.rank: config for config in configs}
            self._pids = {config.rank: pid for config, pid in zip(configs, pids)}
            # Used by every command, so avoid the indirection.
            self.is_alive, self.forward = self.keeper.alive, self._streams.forward  # type: ignore[method-assign]

    def is_alive(self) -> bool:
        return self._stacks < 0 or self.keeper.alive()

    def error(self) -> SynkhronosError:
        return SynkhronosError(
            f"the keeper process (pid {self.keeper.pid}), which watches the ranks, has ended: "
            f"{self.keeper.exit_reason()}; the session is closed: call synkhronos.fork() to start a new one"
        )

    def pid(self, rank: int) -> int:
        return self._pids[rank]

    def fatal_error(self, rank: int) -> str:
        return fatal_error(self._block, rank)

    def inspect(self, ranks: Iterable[int], seconds: float) -> Dict[int, str]:
        until = time.monotonic() + seconds
        found = {}
        for rank in ranks:
            begin = size = os.fstat(self._stacks).st_size
            found[rank] = describe_state(self._pids[rank])
            if self._block.ended[rank] or found[rank][0] not in "RSD":  # the process is stopped, for example
                continue
            try:
                os.kill(self._pids[rank], ASK_FOR_STACKS)
            except ProcessLookupError:
                continue
            quiet = 0
            while quiet < 10 and time.monotonic() < until:  # the stacks are written in many small pieces
                time.sleep(0.002)
                before, size = size, os.fstat(self._stacks).st_size
                quiet = quiet + 1 if size == before > begin else 0
            if size > begin:
                found[rank] += "\n" + os.pread(self._stacks, size - begin, begin).decode("utf-8", "replace").rstrip()
        return found

    def write_if_killed(self, write: Callable[[Sequence[memoryview]], object]) -> None:
        if self._stacks >= 0:
            self.keeper.write_if_killed(write)

    def join(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not all(self._block.ended[rank] for rank in self._pids):
            if time.monotonic() > until or not self.keeper.alive():
                return False
            time.sleep(0.0005)
        return True

    def end(self, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self.keeper.end_rank(self._pids[rank])

    def replace(
        self, taken: Mapping[int, Ranges], pools: PoolMap, meeting: Optional[Rendezvous] = None
    ) -> Mapping[int, Link]:
        """Replace ranks as in `Launcher.replace`; with a ``meeting``, a rank that leads its host connects there."""
        configs = list(self._configs.values())
        for rank, ranges in taken.items():
            descriptors = Descriptors(self._block.fd, self._stacks, self._streams.fds(), pools.filenos())
            config = self._configs[rank]
            config = config._replace(taken=ranges, meeting=config.meeting and meeting)
            self._pids[rank] = self.keeper.replace(config, configs, descriptors, self._standby)
        return {}

    def kill(self) -> None:
        if self._stacks >= 0:
            self.keeper.kill()
            until = time.monotonic() + 1.0
            while not all(self._block.ended[rank] or _is_gone(pid) for rank, pid in self._pids.items()):
                if time.monotonic() > until:  # only if the kernel blocks the exit of a process
                    break
                time.sleep(0.0005)
        self._tidy()

    def forward(self, idle: bool = False) -> None:
        self._streams.forward(idle)

    def outputs(self) -> Dict[int, List[int]]:
        """Return the files for standard output and standard error by rank; the caller forwards their contents."""
        self._streams.are_forwarded = False
        fds = self._streams.fds()
        return {rank: fds[2 * i : 2 * i + 2] for i, rank in enumerate(self._pids)}

    def _tidy(self) -> None:
        self._streams.close()
        if self._stacks >= 0:
            fd, self._stacks = self._stacks, -1  # first, so that an interrupt cannot cause a second close
            os.close(fd)


def _is_gone(pid: int) -> bool:
    state = describe_state(pid)
    return state == "gone" or state.startswith("Z")
