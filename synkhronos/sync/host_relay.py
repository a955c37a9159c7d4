"""Direct exchange of commands, barrier messages and answers between the leading ranks of hosts.

The root has a link to the first rank of each other host, its *leader*. ::

    host 0                                                       host 1
    ranks of host 0 <-- control block --> root <═══ link ═══> leader <-- control block --> ranks of host 1

The root and each leader relay messages between their control blocks and links while they wait (`HostRelay.wait`) for
a command, at a barrier, or for answers. So no other process delays a message. The bridge and the deputies of `cluster`
handle all other events: deaths, aborts, output, fetches.

===========  ==============  ===============================================================================
message      from, to        content
===========  ==============  ===============================================================================
``command``  root, leader    a command, and the number of the last aborted command
``notices``  root, leader    notices of the root's host before a barrier is decided, if this saves time
``decided``  root, leader    completion of a barrier; the other notices of ranks on other hosts
``arrived``  leader, root    arrivals of its host's ranks at a barrier; their notices and promised answers
``answers``  leader, root    answers of its host's ranks to a command
===========  ==============  ===============================================================================

A rank's *notice* is its message to all ranks at a barrier. Receiving a message twice has no further effect. Long
notices, which contain values, travel in both directions at once: the root does not wait for arrivals on other hosts. So
do short ones between two hosts, if the leader may continue with all notices (`barrier_over_hosts`).
"""

from __future__ import annotations

import os
import select
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, Callable, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

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
from .semaphore import POLL_INTERVAL_S, WaitPolicy, Watch

#: By rank: the command of its steps, and the numbers of steps completed and undone.
Steps = Dict[int, Tuple[int, int, int]]

_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR

#: Minimum size of the root's notice for a separate message, unless the leader then need not wait for the decision.
EARLY_BYTES = 3 << 12


class Relay:
    """The relay of a rank that leads no host, which has no links and waits for semaphores."""

    forward: Callable[..., object] = bool  # does nothing, and costs no Python call

    def waiting_for(self, semaphore: Any) -> Any:
        """Return the object whose ``wait`` this rank calls for signals to a semaphore of the block."""
        return semaphore

    def receive(self) -> Any:
        """Process received messages and signals without waiting; return whether there were any."""

    def has_news(self) -> Any:
        """Return whether messages may have arrived, from other hosts or from ranks of this host."""

    def reconnect(self, leader: int, link: Link) -> None:
        """Use a new link to a host whose leader was replaced; repeat the last command and decision there."""

    def finish(self, watch: Watch, policy: WaitPolicy) -> None:
        """Close the links after the last command; a leader first forwards the answers of its host's other ranks."""

    def close(self) -> None:
        """Close the links."""


NO_RELAY = Relay()


class HostRelay(Relay, ABC):
    """A leading rank's exchange of messages with other hosts, for all ranks of its host.

    ``block``, ``pool`` and ``pools`` are this host's control block, the rank's pool, and the rank's view of all pools.
    """

    handlers: ClassVar[Mapping[str, Callable[..., None]]] = {}  # methods for received messages, by kind

    def __init__(
        self, rank: int, hosts: Hosts, block: ControlBlock, pool: Pool, pools: PoolMap, links: Sequence[Link]
    ) -> None:
        self.rank, self.hosts, self.block, self.pool, self.pools = rank, hosts, block, pool, pools
        self.others = [each for each in hosts.near if each != rank]  # on this host
        self._links = {link.fileno(): link for link in links}
        self._poll = select.poll()
        self._poll.register(block.lead, select.POLLIN)
        for link in links:
            link.on_wait = self._receive_while_sending
            self._poll.register(link, select.POLLIN | select.POLLRDHUP)
        self._keep: List[Dict[int, Any]] = [{}, {}]  # memory of long notices, by turn and rank
        self._long: Dict[int, Any] = {}  # memory of long answers, by rank
        self.early = 0  # on the root: the last barrier whose notices are sent before its decision
        self._begin(links)

    @abstractmethod
    def _begin(self, links: Sequence[Link]) -> None:
        """Prepare the state of the messages to the other hosts."""

    def close(self) -> None:
        while self._links:
            self._links.popitem()[1].close()

    def waiting_for(self, semaphore: Any) -> Any:
        return self

    def wait(self, watch: Watch, policy: WaitPolicy) -> None:
        """Relay messages between block and links until some arrive, or ``watch`` returns true; see `Semaphore.wait`."""
        self.forward(watch)  # first, because the other end may be waiting
        for _ in range(policy.tries):
            if self.receive():
                self.forward(watch)  # after `receive`, which drains the signal of changes in the block
                return
            if policy.yields:
                os.sched_yield()
        while True:
            is_quiet = not self._poll.poll(POLL_INTERVAL_S * 1000)
            found = self.receive()
            self.forward(watch, is_quiet)
            if found or watch():
                return

    def receive(self) -> bool:
        events = self._poll.poll(0)
        for fd, event in events:
            link = self._links.get(fd)
            if link is None:
                self.block.lead.drain()
                continue
            link.receive(self._deal_with, bool(event & _GONE))
            if link.is_lost:
                self._poll.unregister(fd)
        return bool(events)

    def _receive_while_sending(self) -> None:
        self.receive()
        self.block.lead.release()  # otherwise changes that `forward` has not seen would wait for the next signal

    def has_news(self) -> bool:
        return bool(self._poll.poll(0))

    def _deal_with(self, kind: str, *what: Any) -> None:
        self.handlers[kind](self, *what)

    @abstractmethod
    def forward(self, watch: Watch, is_overdue: bool = False) -> None:
        """Send changes in the block to other hosts; with ``is_overdue``, even if changes by some ranks are missing."""

    def notice_of(self, rank: int, number: int) -> Optional[bytes]:
        """Return a rank's notice for a barrier, or None if there is none yet."""
        block, turn = self.block, turn_of(number)
        if block.noticed[turn][rank] != number:
            return None
        return bytes(messages.get(block.notice_length[turn][rank], block.notice_slots[turn][rank], self.pools))

    def write_notices(self, number: int, notices: Dict[int, Optional[bytes]]) -> None:
        """Write the barrier notices of other hosts' ranks into the block."""
        block, turn = self.block, turn_of(number)
        for rank, notice in notices.items():
            if notice is not None:
                slot = block.notice_slots[turn][rank]
                block.notice_length[turn][rank], self._keep[turn][rank] = messages.put(notice, slot, self.pool)
                block.noticed[turn][rank] = number


class RootRelay(HostRelay):
    """The root's relay: sends commands and decisions to leaders, and writes arrivals and answers into its block."""

    def _begin(self, links: Sequence[Link]) -> None:
        # For each link: the ranks on all hosts but the link's, and the last command and decision sent.
        hosts = self.hosts
        elsewhere = [[rank for rank in range(hosts.size) if rank not in ranks] for ranks in hosts.ranks[1:]]
        self._told = [(link, others, [0, 0]) for link, others in zip(links, elsewhere)]
        self._sent_early: Dict[Link, int] = {}  # the last barrier whose notices were sent before its decision

    def forward(self, watch: Watch, is_overdue: bool = False) -> None:
        words = self.block.words
        number, decided = words[COMMAND_NUMBER], words[DECIDED]
        for link, others, told in self._told:
            if told[0] < number:
                payload = bytes(messages.get(words[COMMAND_LENGTH], self.block.command_slot, self.pools))
                link.send(("command", number, words[ABORTED], payload), watch)
                told[0], self.early = number, 0
            if self.early > decided:
                self._send_early(link, watch)
            if told[1] < decided:
                link.send(self._decided(decided, others, told[1], self._sent_early.get(link)), watch)
                told[1] = decided

    def _send_early(self, link: Link, watch: Watch) -> None:
        """Send the notices of this host's ranks for barrier `early` once, if all of them have arrived."""
        arrived, number = self.block.arrived, self.early
        if self._sent_early.get(link) != number and all([arrived[rank] >= number for rank in self.others]):
            link.send(("notices", number, {rank: self.notice_of(rank, number) for rank in self.hosts.near}), watch)
            self._sent_early[link] = number

    def _decided(self, number: int, others: Sequence[int], told: int, early: Optional[int]) -> Tuple[Any, ...]:
        """Return the message about a decided barrier, with notices of ``others``; ``told`` is the last barrier sent.

        The notices of this host for barrier ``early`` have been sent.
        """
        stop = self.block.words[STOP_REQUESTED]
        for of in range(number, max(told, number - 2), -1):  # two barriers may have been decided together
            unsent = [rank for rank in others if rank not in self.hosts.near] if of == early else others
            notices = {rank: self.notice_of(rank, of) for rank in unsent}
            if None not in notices.values():
                return "decided", number, stop, of, notices
        return "decided", number, stop, number, {}

    def reconnect(self, leader: int, link: Link) -> None:
        host = self.hosts.of(leader) - 1
        old, others, _ = self._told[host]
        with suppress(KeyError, ValueError):  # unregistered after its loss
            self._poll.unregister(old)
        self._links = {fd: each for fd, each in self._links.items() if each is not old}
        old.close()
        self._links[link.fileno()], link.on_wait = link, self._receive_while_sending
        self._poll.register(link, select.POLLIN | select.POLLRDHUP)
        self._told[host] = link, others, [0, 0]

    def on_arrived(
        self, number: int, notices: Dict[int, Any], promises: Dict[int, Tuple[int, bytes]], *news: Dict[int, Any]
    ) -> None:
        """Record ranks that have reached a barrier, and the answers that they promise for this barrier or the next."""
        block = self.block
        self.write_notices(number, notices)
        for rank, (barrier, payload) in promises.items():
            self._write_answer(rank, payload)
            block.promised[rank] = barrier
        self._note(*news)
        for rank in notices:
            block.arrived[rank] = number

    def on_answers(self, number: int, answers: Dict[int, bytes], *news: Dict[int, Any]) -> None:
        self._note(*news)
        for rank, payload in answers.items():
            self._write_answer(rank, payload)
            self.block.finished[rank] = number

    handlers = {"arrived": on_arrived, "answers": on_answers}

    def _note(self, steps: Steps, printed: Dict[int, int]) -> None:
        self.block.note_steps(steps)
        for rank, nbytes in printed.items():
            self.block.printed[rank] = nbytes

    def _write_answer(self, rank: int, payload: bytes) -> None:
        slot = self.block.answer_slots[rank]
        self.block.answer_length[rank], self._long[rank] = messages.put(payload, slot, self.pool)


class LeaderRelay(HostRelay):
    """A leader's relay: writes commands and decisions into its block, and sends arrivals and answers to the root."""

    def _begin(self, links: Sequence[Link]) -> None:
        (self._link,) = links
        self._near: Sequence[int] = self.hosts.near
        n = self.hosts.size
        self._arrived, self._finished, self._promised = list(self.block.arrived), [0] * n, [0] * n
        self._finished[self.rank] = self.block.finished[self.rank]  # unless 0, of a previous process
        self._steps, self._printed = [(0, 0, 0)] * n, [0] * n
        self._command: Optional[Tuple[int, int, bytes]] = None  # a command not delivered yet
        self._long_command: Any = None

    def receive(self) -> bool:
        """Do the same as `HostRelay.receive`; if the link is lost, raise `SynkhronosError` to end this rank."""
        found = super().receive()
        if self._link.is_lost:
            raise SynkhronosError("this rank, which leads the ranks of its host, has lost its connection to the master")
        return found

    def forward(self, watch: Watch, is_overdue: bool = False) -> None:
        if self._command is not None:
            self._deliver()
        block, near = self.block, self._near
        arrived, finished = newer(block.arrived, self._arrived, near), newer(block.finished, self._finished, near)
        if not arrived and not finished:
            return
        decided = block.words[DECIDED]
        for rank, number in [*arrived.items()]:
            if number <= decided:
                self._arrived[rank] = arrived.pop(rank)
            elif self._arrived[rank] == number - 1 > decided:  # the root may decide both barriers together
                del arrived[rank]
        for rank, number in [*finished.items()]:
            if is_due(block, self._promised[rank], number):  # the root already has this answer
                self._finished[rank] = finished.pop(rank)
        if not is_overdue:
            living = [rank for rank in near if not block.ended[rank]] if block.words[DEATHS] else near
            if not is_whole(finished, block.finished, living):
                finished = {}
            if not finished and not is_whole(arrived, block.arrived, living):
                return  # wait for more arrivals; ranks that have answered arrive at no further barrier
        for number in sorted({*arrived.values()}):
            notices, promises = {}, {}
            for rank in [rank for rank in arrived if arrived[rank] == number]:
                notices[rank] = self.notice_of(rank, number)
                if block.promised[rank] >= number:
                    promises[rank] = block.promised[rank], self._answer_of(rank)
            self._link.send(("arrived", number, notices, promises, *self._news()), watch)
            for rank in notices:
                self._arrived[rank] = number
                self._promised[rank] = promises[rank][0] if rank in promises else 0
        for number in sorted({*finished.values()}):
            answers = {rank: self._answer_of(rank) for rank in finished if finished[rank] == number}
            self._link.send(("answers", number, answers, *self._news()), watch)
            for rank in answers:
                self._finished[rank] = number

    def _answer_of(self, rank: int) -> bytes:
        block = self.block
        return bytes(messages.get(block.answer_length[rank], block.answer_slots[rank], self.pools))

    def _news(self) -> Tuple[Steps, Dict[int, int]]:
        """Return, by rank, the step counts and printed bytes that have changed since the last message."""
        block, steps, printed = self.block, {}, {}
        for rank in self.hosts.near:
            made, nbytes = block.steps_of(rank), block.printed[rank]
            if made != self._steps[rank]:
                steps[rank] = self._steps[rank] = made
            if nbytes != self._printed[rank]:
                printed[rank] = self._printed[rank] = nbytes
        return steps, printed

    def on_command(self, number: int, aborted: int, payload: bytes) -> None:
        if number > self.block.words[COMMAND_NUMBER]:
            self._command = number, aborted, payload
        self._deliver()

    def _deliver(self) -> None:
        """Deliver a new command once no aborted one writes into memory; wake ranks that a dead leader has not woken."""
        block = self.block
        if self._command is not None:
            number, aborted, payload = self._command
            if block.words[LET_GO] < aborted:
                return
            block.words[COMMAND_LENGTH], self._long_command = messages.put(payload, block.command_slot, self.pool)
            block.words[COMMAND_NUMBER] = number
            self._command = None
        for rank in self.others:
            block.commands[rank].release()

    def on_notices(self, number: int, notices: Dict[int, Any]) -> None:
        if number > self.block.words[DECIDED]:
            self.write_notices(number, notices)

    def on_decided(self, number: int, stop: int, of: int, notices: Dict[int, Any]) -> None:
        """Record that a barrier is complete; ``of`` is the barrier of the notices, possibly the previous barrier."""
        words = self.block.words
        if number > words[DECIDED]:
            self.write_notices(of, notices)
            words[STOP_REQUESTED] = stop
            words[DECIDED] = number
            for rank in self.others:
                self.block.releases[rank].release()

    handlers = {"command": on_command, "notices": on_notices, "decided": on_decided}

    def finish(self, watch: Watch, policy: WaitPolicy) -> None:
        while not self.have_answered():
            self.wait(watch, policy)
        self.forward(watch)  # `wait` may end before it forwards the last answer
        self.close()

    def has_all(self, number: int) -> bool:
        """Return whether the notices of all ranks for a barrier are here, and its arrivals have been sent."""
        noticed = self.block.noticed[turn_of(number)]
        return self._arrived[self.rank] >= number and all([each == number for each in noticed])

    def have_answered(self) -> bool:
        """Return whether all living ranks of this host have answered the last command."""
        block = self.block
        return all(block.ended[rank] or block.finished[rank] >= block.words[COMMAND_NUMBER] for rank in self.hosts.near)


def newer(words: Any, known: Sequence[int], ranks: Sequence[int]) -> Dict[int, int]:
    """Return the ranks' words that exceed the known numbers; read each word once, because ranks keep writing."""
    return {rank: number for rank in ranks if (number := words[rank]) > known[rank]}


def is_whole(newer: Dict[int, int], words: Any, ranks: Sequence[int]) -> bool:
    """Return whether all ranks have reached the largest of the newer numbers; True if there are no newer numbers."""
    return not newer or min([words[rank] for rank in ranks], default=0) >= max(newer.values())
