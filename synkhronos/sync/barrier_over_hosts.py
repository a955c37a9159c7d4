"""The barrier of a rank that speaks for its host: the others of this host meet as always, and it meets other hosts.

**Two at once.** Between hosts every barrier costs a round trip. If all ranks, the root included, have ``promised``
their answer for barrier k + 1 when they come to barrier k, then nothing can fail between the two, and the root does not
decide k: it goes on to k + 1, and decides both. The others need not arrive there.
"""

from __future__ import annotations

from typing import Callable, Optional

from ..errors import Aborted
from .barrier import Barrier
from .control_block import ABORT_REQUESTED, ABORTED, DEATHS, DECIDED
from .leading import Leading
from .semaphore import WaitPolicy


class BarrierOverHosts(Barrier):
    """The barrier of the root, or of a leader.

    Parameters
    ----------
    leading : Leading
        By which this rank speaks for its host.
    root : int
    watch, policy
        As of `Barrier`.
    watch_telling : callable, optional
        Called instead while other hosts do not take what they are told of a decision: then others may be done with
        the command. By default ``watch``.
    """

    def __init__(
        self,
        leading: Leading,
        root: int,
        watch: Callable[[], object],
        policy: WaitPolicy,
        watch_telling: Optional[Callable[[], object]] = None,
    ) -> None:
        super().__init__(leading.block, leading.rank, root, watch, policy)
        self._watch_telling = watch_telling or watch
        self._leading, self._promised = leading, leading.block.promised
        self._held = -1  # number of a barrier that the root decides together with the next one

    def _decide(self) -> None:
        current, leading = self.current, self._leading
        if self._held != current - 1:
            leading.wait(self._is_gathered, self.look, self.policy)
        self.check()
        if self._held != current - 1 and all([promised > current for promised in self._promised]):
            self._held = current
            return
        self._words[DECIDED] = current  # from here on it is complete, for every rank, whatever happens
        leading.tell(self._watch_telling)
        for rank in leading.others:
            self.block.releases[rank].release()

    def _is_gathered(self) -> bool:
        if self._words[ABORT_REQUESTED] >= self.command or self._words[DEATHS]:
            return True
        arrived, current = self._arrived, self.current
        return all([arrived[rank] >= current for rank in self._others])

    def _follow(self) -> None:
        self._leading.wait(self._is_over, self._watch_other, self.policy)
        if self._words[DECIDED] < self.current:  # else it is complete, whatever has become of the command since
            raise Aborted

    def _is_over(self) -> bool:
        return self._words[DECIDED] >= self.current or self._words[ABORTED] >= self.command
