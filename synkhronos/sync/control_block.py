"""The control block: shared memory through which the ranks of a session synchronize.

It is an unnamed file that all ranks and the keeper map. Other modules implement the protocols. ::

    first lines   words of the session (`SESSION_WORDS`)
    lines of r    words of rank r (`RANK_WORDS`)
    semaphores    arrivals | releases, by rank | commands, by rank | answers, by rank | fetched, by rank
    command       the command in progress, or its handle if it is long
    answers       by rank: its answer to the command
    notices       by rank, twice: its notice to the other ranks at a barrier
    fetches       by rank: its request to other hosts
    fatal errors  by rank: the error that ended it
    announcements modules that ranks can load while they wait: see `runtime.prefetch`
    spans         by rank: its recorded activity, if any: see `profile`

A line is a cache line of eight 64-bit words, so that ranks do not slow each other down by writing. The tables list the
writer of each word. Apart from resets and copies from other hosts, only ``abort_requested`` has several writers.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..memory.memfd import nameless_file
from . import semaphore
from .event_fd import EventFd
from .hosts import Hosts
from .semaphore import Semaphore

COMMAND_BYTES = 1 << 16  # longer commands are sent through the master's pool
ANSWER_BYTES = NOTICE_BYTES = 1 << 14  # longer answers and notices are sent through the rank's pool
FETCH_BYTES = 1 << 12  # longer requests to other hosts are sent through the rank's pool
FATAL_ERROR_BYTES = 1 << 14  # maximum size of the text of an error that ends a rank
ANNOUNCEMENT_BYTES = 1 << 18  # size of a session's announcements, enough for more than a thousand modules

#: The words of the session: name, writer, meaning. On hosts other than the first, a deputy replaces the bridge.
SESSION_WORDS = (
    ("decided", "root", "the last barrier that the root has decided"),
    ("abort_requested", "any rank", "the last command that a rank has asked to abort (all write the same number)"),
    ("aborted", "root", "the last command that the root has aborted"),
    ("command_number", "root", "the command in progress, or the last command"),
    ("command_length", "root", "bytes of the command in its slot; negative for the handle of a longer command"),
    ("deaths", "keeper", "whether the keeper has seen any rank end"),
    ("stop_requested", "root", "the last command whose remaining steps the program has canceled"),
    ("announced", "root", "bytes of announcements"),
    ("let_go", "deputy", "the last aborted command that no longer writes into this host's memory"),
)

RANK_WORDS = (
    ("ended", "keeper", "whether the keeper has seen the process end"),
    ("status", "keeper", "its exit code, or the negative signal number"),
    ("memory", "keeper", "its peak memory in bytes; 0 if unknown"),
    ("arrived", "the rank", "the barrier that it has reached"),
    ("finished", "the rank", "the command that it has answered"),
    ("answer_length", "the rank", "bytes of its answer in the slot; negative for a handle"),
    ("notice_length_0", "the rank", "bytes of its notice in the first slot; negative for a handle"),
    ("notice_length_1", "the rank", "bytes of its notice in the second slot; negative for a handle"),
    ("steps_command", "the rank", "the command that the next two words refer to"),
    ("steps", "the rank", "number of steps of that command that the rank has completed"),
    ("undone", "the rank", "number of these steps that the rank has undone"),
    ("noticed_0", "the rank", "the barrier of the notice in the first slot"),
    ("noticed_1", "the rank", "the barrier of the notice in the second slot"),
    ("fetch_asked", "the rank", "number of its requests to other hosts"),
    ("fetch_length", "the rank", "bytes of its request in the slot; negative for a handle"),
    ("fetch_done", "bridge", "number of answered requests; negative if the slot has a 0-terminated error message"),
    ("received", "bridge", "bytes received from other hosts for its requests"),
    ("promised", "the rank", "the barrier whose completion makes the answer slot's content its answer"),
    ("printed", "the rank", "with several hosts: bytes of its output before its answer"),
    ("shown", "bridge", "bytes of this output that have reached the first host"),
)

#: Indices of the session's words in `ControlBlock.words`, for hot paths.
DECIDED, ABORT_REQUESTED, ABORTED, COMMAND_NUMBER, COMMAND_LENGTH, DEATHS, STOP_REQUESTED, ANNOUNCED, LET_GO = range(
    len(SESSION_WORDS)
)

_LINE_WORDS = 8  # words in a cache line
_SESSION_LINES, _RANK_LINES = (-(-len(words) // _LINE_WORDS) for words in (SESSION_WORDS, RANK_WORDS))
_WORD_BYTES = 8


def _regions(size: int, span_bytes: int) -> Tuple[Dict[str, Tuple[int, int, int]], int]:
    """Return each region's first byte, number of items and bytes per item, by name, and the total size."""
    found, begin = {}, 0
    for name, count, nbytes in (
        ("words", _SESSION_LINES + _RANK_LINES * size, _LINE_WORDS * _WORD_BYTES),
        ("semaphores", 1 + 4 * size, semaphore.SEMAPHORE_BYTES),
        ("command", 1, COMMAND_BYTES),
        ("answers", size, ANSWER_BYTES),
        ("notices", 2 * size, NOTICE_BYTES),  # two per rank, because one may be read while the next is written
        ("fetches", size, FETCH_BYTES),
        ("fatal errors", size, FATAL_ERROR_BYTES),  # separate from the answers, which may still be unread
        ("announcements", 1, ANNOUNCEMENT_BYTES),
        ("spans", size, span_bytes),  # last, because span_bytes of an existing block is computed from its length
    ):
        found[name] = (begin, count, nbytes)
        begin += count * nbytes
    return found, begin


def _session_word(name: str) -> property:
    """Return a property for a word of the session; hot paths use indices."""
    index = [word[0] for word in SESSION_WORDS].index(name)

    def read(block: ControlBlock) -> int:
        return block.words[index]

    def write(block: ControlBlock, value: int) -> None:
        block.words[index] = value

    return property(read, write)


class ControlBlock:
    """Words, semaphores and slots shared by ``size`` ranks; ``fd`` is the descriptor of an existing block.

    ``span_bytes`` (a multiple of 8, or 0) is the memory per rank for recording its activity. With several ``hosts``,
    each host has a block for all ranks. Its leading rank (`host_relay`) and its bridge or deputy process copy the state
    of other hosts into it. ``bells`` are the descriptors of an existing block's eventfds, which are duplicated.

    The root waits for `arrivals` at a barrier. Each rank has four semaphores. The root signals `releases` (from a
    barrier) and `commands`, the rank signals `answers`, and the bridge or deputy signals `fetched`. The eventfd
    `bridge` wakes the bridge or deputy, and `lead` wakes the leading rank. `notice_slots`, `notice_length` and
    `noticed` are indexed by turn and rank.
    """

    decided = _session_word("decided")
    abort_requested = _session_word("abort_requested")
    aborted = _session_word("aborted")
    command_number = _session_word("command_number")
    command_length = _session_word("command_length")
    deaths = _session_word("deaths")
    stop_requested = _session_word("stop_requested")
    announced = _session_word("announced")
    let_go = _session_word("let_go")

    def __init__(
        self,
        size: int,
        fd: int = -1,
        hosts: Optional[Hosts] = None,
        bells: Sequence[int] = (-1, -1),
        span_bytes: int = 0,
    ) -> None:
        create = fd < 0
        if not create:
            span_bytes = (os.fstat(fd).st_size - _regions(size, 0)[1]) // size
        regions, total = _regions(size, span_bytes)
        self.size = size
        self.fd = nameless_file("control", total) if create else fd
        memory = memoryview(mmap.mmap(self.fd, total))

        def items(name: str) -> List[memoryview]:
            begin, count, nbytes = regions[name]
            return [memory[begin + i * nbytes : begin + (i + 1) * nbytes] for i in range(count)]

        self.words = memory[: (_SESSION_LINES + _RANK_LINES * size) * _LINE_WORDS * _WORD_BYTES].cast("q")
        of_ranks = {
            word[0]: self.words[_SESSION_LINES * _LINE_WORDS + index :: _RANK_LINES * _LINE_WORDS]
            for index, word in enumerate(RANK_WORDS)
        }
        self.ended, self.status, self.memory = of_ranks["ended"], of_ranks["status"], of_ranks["memory"]
        self.arrived, self.finished = of_ranks["arrived"], of_ranks["finished"]
        self.answer_length = of_ranks["answer_length"]
        self.steps_command, self.steps, self.undone = (of_ranks[name] for name in ("steps_command", "steps", "undone"))
        self.notice_length = of_ranks["notice_length_0"], of_ranks["notice_length_1"]

        self.noticed = of_ranks["noticed_0"], of_ranks["noticed_1"]
        self.fetch_asked, self.fetch_length, self.fetch_done, self.received = (
            of_ranks[name] for name in ("fetch_asked", "fetch_length", "fetch_done", "received")
        )
        self.promised, self.printed, self.shown = (of_ranks[name] for name in ("promised", "printed", "shown"))

        self.arrivals, *semaphores = [Semaphore(each, create) for each in items("semaphores")]
        self.releases, self.commands, self.answers, self.fetched = (
            semaphores[i * size : (i + 1) * size] for i in range(4)
        )
        self.bridge: Any = None
        self.lead: Any = None
        if hosts is not None:
            self.bridge, self.lead = map(EventFd, bells)
            self._bridge_over(hosts)

        (self.command_slot,), (self.announcements,) = items("command"), items("announcements")
        self.answer_slots, self.fetch_slots = items("answers"), items("fetches")
        self.fatal_error, self.spans = items("fatal errors"), items("spans")
        notices = items("notices")
        self.notice_slots = notices[:size], notices[size:]

    def _bridge_over(self, hosts: Hosts) -> None:
        """Replace semaphores with the two eventfds, so that the leading rank can wait for them and its links together.

        Ranks on other hosts share the bridge's eventfd, because an abort reaches them through the bridge.
        """
        self.arrivals, self.answers = self.lead, [self.lead] * self.size
        if hosts.own > 0:
            self.releases[hosts.near[0]] = self.commands[hosts.near[0]] = self.lead
        for rank in hosts.far:
            self.releases[rank] = self.commands[rank] = self.bridge

    def call_root(self) -> None:
        """If the root (on any host) waits at a barrier, wake it to read the words again."""
        self.arrivals.release()
        if self.bridge is not None:
            self.bridge.release()

    def steps_of(self, rank: int) -> Tuple[int, int, int]:
        """Return the command of a rank's steps, and the numbers of steps completed and undone."""
        return self.steps_command[rank], self.steps[rank], self.undone[rank]

    def note_steps(self, steps: Dict[int, Tuple[int, int, int]]) -> None:
        """Write the step counts of ranks on other hosts; ignore outdated counts, which may arrive by another route."""
        for rank, made in steps.items():
            if made > self.steps_of(rank):
                _, self.steps[rank], self.undone[rank] = made
                self.steps_command[rank] = made[0]

    def reset(self, rank: int) -> None:
        """Reset the words of a dead rank for its replacement, which waits for the next command."""
        self.ended[rank] = self.status[rank] = self.memory[rank] = self.promised[rank] = 0
        self.finished[rank] = self.command_number
        self.fatal_error[rank][:] = bytes(len(self.fatal_error[rank]))
        for semaphores in (self.releases, self.commands, self.answers):
            semaphores[rank].drain()

    def close(self) -> None:
        """Close the descriptor; the memory stays mapped as long as this object exists."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1  # first, so that an interrupt cannot cause a second close
            os.close(fd)
