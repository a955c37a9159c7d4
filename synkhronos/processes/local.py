"""Ranks in the master's process: the master alone, or with one thread per other rank.

A session of one rank needs no fork. In tests, other ranks are threads, which start instantly. Commands and shared
memory work as with processes. A thread cannot be killed, so its rank raises `SimulatedDeath` instead.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from typing import Callable, Dict, Iterable, List, Sequence

from ..memory.pool import Pool
from ..profile.recording import RECORDING
from ..runtime.channel import RankEnd
from ..runtime.context import RankContext
from ..runtime.launcher import Launcher, RankConfig
from ..runtime.serve import serve
from ..sync.control_block import ControlBlock
from ..sync.semaphore import WaitPolicy
from .keeper import record_exit
from .rank_main import EXIT_CODE_FAILED


class SimulatedDeath(BaseException):
    """Exception that ends a rank without an answer, as a signal ends a process."""


class LocalLauncher(Launcher):
    """Runs every rank except the master in a thread of this process."""

    def __init__(self) -> None:
        self._threads: Dict[int, threading.Thread] = {}
        self._fatal_errors: Dict[int, str] = {}
        self._killed = False
        self.contexts: Dict[int, RankContext] = {}  # of the ranks that are threads

    def start(self, configs: List[RankConfig], block: ControlBlock, pools: Dict[int, Pool]) -> None:
        for config in configs:
            thread = threading.Thread(
                target=self._live, args=(config, block, pools), daemon=True, name=f"synkhronos-rank-{config.rank}"
            )
            self._threads[config.rank] = thread
            thread.start()

    def _live(self, config: RankConfig, block: ControlBlock, pools: Dict[int, Pool]) -> None:
        status = EXIT_CODE_FAILED
        try:
            pool, policy, hosts = pools[config.rank], WaitPolicy.of_threads(), config.hosts
            context = RankContext.create(config.rank, config.root, block, pool, pools, self._watch, policy, hosts)
            context.transport.common.is_open &= self.runs_python
            self.contexts[config.rank] = context
            if len(block.spans[config.rank]):
                RECORDING.add(config.rank, block.spans[config.rank])
            serve(context, RankEnd(block, config.rank, pool, context.pools, policy), self._watch)
            status = 0
        except SimulatedDeath:
            status = -9
        except BaseException:
            self._fatal_errors[config.rank] = traceback.format_exc()
        finally:
            self.contexts.pop(config.rank, None)
            RECORDING.remove(config.rank)
            record_exit(block, config.rank, status)

    def _watch(self) -> None:
        if self._killed:
            raise SimulatedDeath

    def is_alive(self) -> bool:
        return True

    def pid(self, rank: int) -> int:
        return self._threads[rank].native_id or 0

    def fatal_error(self, rank: int) -> str:
        return self._fatal_errors.get(rank, "")

    def inspect(self, ranks: Iterable[int], seconds: float) -> Dict[int, str]:
        frames = sys._current_frames()
        threads = {rank: self._threads[rank] for rank in ranks}
        return {
            rank: "".join(traceback.format_stack(frames[thread.ident])).rstrip() if thread.ident in frames else "gone"
            for rank, thread in threads.items()
        }

    def forward(self, idle: bool = False) -> None:
        pass  # threads print to the streams of the process

    def write_if_killed(self, write: Callable[[Sequence[memoryview]], object]) -> None:
        pass  # the ranks end with the master

    def join(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        for thread in self._threads.values():
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads.values())

    def kill(self) -> None:
        self._killed = True
        self.join(5.0)
