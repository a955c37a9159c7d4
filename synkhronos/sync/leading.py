"""How ranks of different hosts tell each other of commands and barriers: directly, without other processes.

The root has a link to the first rank of each other host, its *leader*. ::

    host 0                                                       host 1
    ranks of host 0 <-- control block --> root <═══ link ═══> leader <-- control block --> ranks of host 1

Each host has a control block of its own for all ranks. Root and leader copy between that and the link, where they have
nothing else to do: while they wait (`Leading.wait`) for a command, at a barrier, or for answers. So what crosses the
network once in each direction takes two switches between processes. Whatever may come at any other time goes by the
processes that speak for hosts (`launchers.hosts`): deaths, commands that are given up, what ranks print.

===========  ==============  ===============================================================================
message      from, to        says
===========  ==============  ===============================================================================
``command``  root, leader    there is one; and which was the last one that was given up
``decided``  root, leader    a barrier is complete; and what ranks of other hosts have told there
``arrived``  leader, root    ranks of its host have come to a barrier; what they tell, and answer if it is complete
``answers``  leader, root    ranks of its host have answered a command
===========  ==============  ===============================================================================

As with the words of the control block, what is told twice is told once.
"""

from __future__ import annotations

import os
import select
from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ..errors import SynkhronosError
from ..memory import messages
from ..memory.attach import PoolMap
from ..memory.pool import Pool
from .barrier import is_due, turn_of
from .control_block import (
    ABORTED,
    COMMAND_LENGTH,
    COMMAND_NUMBER,
    DEATHS,
    DECIDED,
    LET_GO,
    STOP_REQUESTED,
    ControlBlock,
)
from .hosts import Hosts
from .link import Link
from .semaphore import POLL_INTERVAL_S, WaitPolicy

_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


class Leading(ABC):
    """What a rank does that speaks for the ranks of its host.

    Parameters
    ----------
    rank : int
        This rank.
    hosts : Hosts
    block : ControlBlock
        Its host's.
    pool : Pool
        Its memory.
    pools : PoolMap
        All memory that is known here.
    links : sequence of Link
    """

    def __init__(
        self, rank: int, hosts: Hosts, block: ControlBlock, pool: Pool, pools: PoolMap, links: Sequence[Link]
    ) -> None:
        self.rank, self.hosts, self.block, self.pool, self.pools = rank, hosts, block, pool, pools
        self.others = [each for each in hosts.near if each != rank]  # of this host
        self._links = {link.fileno(): link for link in links}
        self._poll = select.poll()
        self._poll.register(block.lead, select.POLLIN)
        for link in links:
            self._poll.register(link, select.POLLIN | select.POLLRDHUP)
        self._keep: List[Dict[int, Any]] = [{}, {}]  # by turn and rank: long notices
        self._long: Dict[int, Any] = {}  # by rank: long answers

    def close(self) -> None:
        """Close the links."""
        while self._links:
            self._links.popitem()[1].close()

    def wait(self, done: Callable[[], object], watch: Callable[[], object], policy: WaitPolicy) -> None:
        """Copy between the control block and the links, however long it takes.

        Parameters
        ----------
        done : callable
            Returns whether the wait is over.
        watch : callable
            Called now and then; ends the wait by raising, or by returning True.
        policy : WaitPolicy
        """
        for _ in range(policy.tries):
            self.receive()
            self.tell(watch)  # after it, as below: or what the bell has rung for would wait till it rings again
            if done():
                return
            if policy.yields:
                os.sched_yield()
        while True:
            is_quiet = not self._poll.poll(POLL_INTERVAL_S * 1000)
            self.receive()
            self.tell(watch, is_quiet)
            if done() or watch():
                return

    def receive(self) -> None:
        """Deal with what has come, without waiting."""
        for fd, event in self._poll.poll(0):
            link = self._links.get(fd)
            if link is None:
                self.block.lead.drain()
                continue
            link.receive(self._deal_with, bool(event & _GONE))
            if link.is_lost:
                self._poll.unregister(fd)

    def has_news(self) -> bool:
        """Return whether something may have come from other hosts, or from ranks of this one."""
        return bool(self._poll.poll(0))

    def _deal_with(self, kind: str, *what: Any) -> None:
        getattr(self, "on_" + kind)(*what)

    @abstractmethod
    def tell(self, watch: Callable[[], object], is_overdue: bool = False) -> None:
        """Tell other hosts what is new in the block.

        Parameters
        ----------
        watch : callable
            As of `Link.send`.
        is_overdue : bool
            Whether what is incomplete is to be told as well.
        """

    def notice_of(self, rank: int, number: int) -> Optional[bytes]:
        """Return what a rank tells the others at a barrier; None if nothing."""
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


class Root(Leading):
    """The root: copies commands and decisions to the leaders, and what their ranks reach and answer into its block.

    ``links`` are in the order of the other hosts.
    """

    def __init__(
        self, rank: int, hosts: Hosts, block: ControlBlock, pool: Pool, pools: PoolMap, links: Sequence[Link]
    ) -> None:
        super().__init__(rank, hosts, block, pool, pools, links)
        # By link: the ranks that are not there, and the last command and decision that were told.
        elsewhere = [[rank for rank in range(hosts.size) if rank not in ranks] for ranks in hosts.ranks[1:]]
        self._told = [(link, others, [0, 0]) for link, others in zip(links, elsewhere)]

    def tell(self, watch: Callable[[], object], is_overdue: bool = False) -> None:
        words = self.block.words
        number, decided = words[COMMAND_NUMBER], words[DECIDED]
        for link, others, told in self._told:
            if told[0] < number:
                payload = bytes(messages.get(words[COMMAND_LENGTH], self.block.command_slot, self.pools))
                link.send(("command", number, words[ABORTED], payload), watch)
                told[0] = number
            if told[1] < decided:
                link.send(self._decided(decided, others, told[1]), watch)
                told[1] = decided

    def _decided(self, number: int, others: Sequence[int], told: int) -> Tuple[Any, ...]:
        """Return what a host is told of a barrier, given the ranks of others, and the last one that it was told of."""
        of = number
        notices = {rank: self.notice_of(rank, of) for rank in others}
        if None in notices.values() and told < number - 1:  # maybe that one was decided with the one before
            of = number - 1
            notices = {rank: self.notice_of(rank, of) for rank in others}
        if None in notices.values():
            notices = {}
        return "decided", number, self.block.words[STOP_REQUESTED], of, notices

    def on_arrived(
        self,
        number: int,
        notices: Dict[int, Any],
        promises: Dict[int, Tuple[int, bytes]],
        steps: Dict[int, Tuple[int, int, int]],
        printed: Dict[int, int],
    ) -> None:
        """Ranks have reached a barrier, and some have said what they answer once it, or the next one, is complete."""
        block = self.block
        self.write_notices(number, notices)
        for rank, (barrier, payload) in promises.items():
            self._write_answer(rank, payload)
            block.promised[rank] = barrier
        self._note(steps, printed)
        for rank in notices:
            block.arrived[rank] = number

    def on_answers(
        self,
        number: int,
        answers: Dict[int, bytes],
        steps: Dict[int, Tuple[int, int, int]],
        printed: Dict[int, int],
    ) -> None:
        """Ranks have answered a command."""
        block = self.block
        self._note(steps, printed)
        for rank, payload in answers.items():
            self._write_answer(rank, payload)
            block.finished[rank] = number

    def _note(self, steps: Dict[int, Tuple[int, int, int]], printed: Dict[int, int]) -> None:
        self.block.note_steps(steps)
        for rank, nbytes in printed.items():
            self.block.printed[rank] = nbytes

    def _write_answer(self, rank: int, payload: bytes) -> None:
        slot = self.block.answer_slots[rank]
        self.block.answer_length[rank], self._long[rank] = messages.put(payload, slot, self.pool)


class Leader(Leading):
    """The first rank of another host: copies commands and decisions into the block, and what ranks say out of it."""

    def __init__(
        self, rank: int, hosts: Hosts, block: ControlBlock, pool: Pool, pools: PoolMap, links: Sequence[Link]
    ) -> None:
        super().__init__(rank, hosts, block, pool, pools, links)
        (self._link,) = links
        self._near: Sequence[int] = hosts.near
        n = hosts.size
        self._arrived, self._finished, self._promised = [0] * n, [0] * n, [0] * n
        self._steps, self._printed = [(0, 0, 0)] * n, [0] * n
        self._command: Optional[Tuple[int, int, bytes]] = None  # that ranks have not been given
        self._long_command: Any = None

    def receive(self) -> None:
        """Deal with what has come, without waiting.

        Raises
        ------
        SynkhronosError
            Nothing can come any more, nor be told. This rank is to end: that is told by other ways.
        """
        super().receive()
        if self._link.is_lost:
            raise SynkhronosError("the connection to the master, by which this rank speaks for its host, is lost")

    def tell(self, watch: Callable[[], object], is_overdue: bool = False) -> None:
        if self._command is not None:
            self._deliver()
        block, near = self.block, self._near
        if not self._is_anything_new():
            return
        arrived, finished = newer(block.arrived, self._arrived, near), newer(block.finished, self._finished, near)
        for rank, number in list(finished.items()):
            if is_due(block, self._promised[rank], number):  # the root has its answer
                self._finished[rank] = finished.pop(rank)
        if not is_overdue:
            living = [rank for rank in near if not block.ended[rank]] if block.words[DEATHS] else near
            if not is_whole(finished, block.finished, living):
                finished = {}
            if not finished and not is_whole(arrived, block.arrived, living):
                return  # (those that have answered do not come to a barrier any more)
        for number in sorted(set(arrived.values())):
            ranks = [rank for rank in arrived if arrived[rank] == number]
            notices = {rank: self.notice_of(rank, number) for rank in ranks}
            promises = {
                rank: (block.promised[rank], self._answer_of(rank)) for rank in ranks if block.promised[rank] >= number
            }
            self._link.send(("arrived", number, notices, promises, *self._news()), watch)
            for rank in ranks:
                self._arrived[rank] = number
                self._promised[rank] = promises[rank][0] if rank in promises else 0
        for number in sorted(set(finished.values())):
            ranks = [rank for rank in finished if finished[rank] == number]
            answers = {rank: self._answer_of(rank) for rank in ranks}
            self._link.send(("answers", number, answers, *self._news()), watch)
            for rank in ranks:
                self._finished[rank] = number

    def _is_anything_new(self) -> bool:
        arrived, finished = self.block.arrived, self.block.finished
        for rank in self._near:
            if arrived[rank] != self._arrived[rank] or finished[rank] != self._finished[rank]:
                return True
        return False

    def _answer_of(self, rank: int) -> bytes:
        block = self.block
        return bytes(messages.get(block.answer_length[rank], block.answer_slots[rank], self.pools))

    def _news(self) -> Tuple[Dict[int, Tuple[int, int, int]], Dict[int, int]]:
        """Return what is new of the steps of ranks, and of how much they have printed."""
        block, steps, printed = self.block, {}, {}
        for rank in self.hosts.near:
            made, nbytes = block.steps_of(rank), block.printed[rank]
            if made != self._steps[rank]:
                steps[rank] = self._steps[rank] = made
            if nbytes != self._printed[rank]:
                printed[rank] = self._printed[rank] = nbytes
        return steps, printed

    def on_command(self, number: int, aborted: int, payload: bytes) -> None:
        """There is a command."""
        if number > self.block.words[COMMAND_NUMBER]:
            self._command = number, aborted, payload
            self._deliver()

    def _deliver(self) -> None:
        """Give it to the ranks, once nothing of one that was given up is written into their memory any more."""
        assert self._command is not None
        block, (number, aborted, payload) = self.block, self._command
        if block.words[LET_GO] >= aborted:
            block.words[COMMAND_LENGTH], self._long_command = messages.put(payload, block.command_slot, self.pool)
            block.words[COMMAND_NUMBER] = number
            self._command = None
            for rank in self.others:
                block.commands[rank].release()

    def on_decided(self, number: int, stop: int, of: int, notices: Dict[int, Any]) -> None:
        """A barrier is complete, and maybe the one before, for which the notices are then."""
        words = self.block.words
        if number > words[DECIDED]:
            self.write_notices(of, notices)
            words[STOP_REQUESTED] = stop
            words[DECIDED] = number
            for rank in self.others:
                self.block.releases[rank].release()

    def have_answered(self) -> bool:
        """Return whether all ranks of this host that live have answered the last command."""
        block = self.block
        return all(block.ended[rank] or block.finished[rank] >= block.words[COMMAND_NUMBER] for rank in self.hosts.near)


def newer(words: Any, known: Sequence[int], ranks: Sequence[int]) -> Dict[int, int]:
    """Return the words of ranks that are larger than those that are known, each read once: ranks go on meanwhile."""
    now = {rank: words[rank] for rank in ranks}
    return {rank: number for rank, number in now.items() if number > known[rank]}


def is_whole(newer: Dict[int, int], words: Any, ranks: Sequence[int]) -> bool:
    """Return whether all ranks have reached the largest of the newer numbers, or there are none."""
    return not newer or min([words[rank] for rank in ranks], default=0) >= max(newer.values())
