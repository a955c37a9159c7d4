"""The barrier of ranks that lead a host: the root and the leaders of other hosts exchange messages.

**Two barriers in one round trip.** Between hosts every barrier costs a round trip. Suppose all ranks, including the
root, have ``promised`` their answer for barrier k + 1 on arrival at barrier k. Then nothing can fail between the two
barriers. So the root does not decide k, but continues to k + 1 and decides both. Other ranks need not arrive at k + 1.
A leader that has made this promise continues as soon as it has the notices of all ranks for barrier k.
"""

from __future__ import annotations

from typing import Optional

from ..errors import Aborted
from .barrier import Barrier, turn_of
from .control_block import ABORTED, DECIDED
from .host_relay import EARLY_BYTES, HostRelay, LeaderRelay
from .semaphore import WaitPolicy, Watch


class BarrierOverHosts(Barrier):
    """The barrier of a rank that leads its host.

    While a decision cannot be sent to another host, ``watch_alone`` is called instead of ``watch``.
    """

    def __init__(
        self, leading: HostRelay, root: int, watch: Watch, policy: WaitPolicy, watch_alone: Optional[Watch] = None
    ) -> None:
        super().__init__(leading.block, leading.rank, root, watch, policy, watch_alone)
        self._leading, self._promised = leading, leading.block.promised
        self._are_two = len(leading.hosts.names) == 2  # so that a leader has all notices before the decision
        self._held = -1  # number of a barrier that is decided together with the next barrier

    def _decide(self) -> None:
        current, leading, block = self.current, self._leading, self.block
        if self._held != current - 1:
            turn = turn_of(current)
            if self._noticed[turn][self.rank] == current and (
                not 0 <= block.notice_length[turn][self.rank] < EARLY_BYTES  # negative if the notice is in the pool
                or (self._are_two and self._promised[self.rank] > current)
            ):
                leading.early = current
            leading.forward(self.look)  # even if all have arrived, because early notices may spare a leader the wait
            while not self._is_gathered():
                leading.wait(self.look, self.policy)
        self.check()
        if self._held != current - 1 and all([promised > current for promised in self._promised]):
            self._held = current
            return
        self._words[DECIDED] = current  # from here on the barrier is complete for every rank
        leading.forward(self.watch_alone)
        for rank in leading.others:
            block.releases[rank].release()

    def _follow(self) -> None:
        leading, words, current = self._leading, self._words, self.current
        assert isinstance(leading, LeaderRelay)
        is_safe = self._are_two and self._promised[self.rank] > current  # so that the notices suffice to continue
        leading.forward(self._watch_other)  # first, because then it may already have all
        while not (self._is_over() or is_safe and leading.has_all(current)):
            leading.wait(self._watch_other, self.policy)
        if words[ABORTED] >= self.command and words[DECIDED] < current:
            raise Aborted
