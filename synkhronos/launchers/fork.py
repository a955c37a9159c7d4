"""Ranks as processes, forked by the keeper."""

from __future__ import annotations

import time
from typing import Any, Dict, List

from ..control_block import ControlBlock
from ..errors import SynkhronosError
from ..shared_array import Pool
from .base import Launcher, RankConfig
from .keeper import Keeper


class ForkLauncher(Launcher):
    """Has the keeper fork the ranks."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self._pids: Dict[int, int] = {}
        self._block: Any = None

    def start(self, configs: List[RankConfig], block: ControlBlock, pools: Dict[int, Any]) -> None:
        self._block = block
        if configs:
            pids = self.keeper.spawn(configs, block, {
                ident: pool.fileno() if isinstance(pool, Pool) else pool for ident, pool in pools.items()})
            self._pids = {config.rank: pid for config, pid in zip(configs, pids)}

    def check(self) -> None:
        if self._pids and not self.keeper.alive():
            raise SynkhronosError("the keeper process (pid %d), which watches over the ranks, is gone: %s; the session "
                                  "is closed, synkhronos.fork() starts a new one" % (
                                      self.keeper.pid, self.keeper.epitaph()))

    def pid(self, rank: int) -> int:
        return self._pids[rank]

    def join(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not all(self._block.ended[rank] for rank in self._pids):
            if time.monotonic() > until or not self.keeper.alive():
                return False
            time.sleep(0.0005)
        return True

    def kill(self) -> None:
        if self._pids:
            self.keeper.kill()
