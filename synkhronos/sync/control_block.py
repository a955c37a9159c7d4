"""The control block: the shared memory through which the ranks of a session meet.

A small file without a name that every rank, the master and the keeper map. It has no logic. ::

    first lines   words of the session (`SESSION_WORDS`)
    lines of r    words of rank r (`RANK_WORDS`)
    semaphores    arrivals | releases, by rank | commands, by rank | answers, by rank | fetched, by rank
    command       the command in progress, or the handle of a longer one
    answers       by rank: its answer to the command
    notices       by rank, twice: what it tells the others at a barrier
    fatal errors  by rank: what it died of
    fetches       by rank: what it wants to have of other hosts' memory
    announcements what ranks may load while they wait: see `runtime.prefetch`
    spans         by rank: what it has done when, if it is recorded: see `profiling`

A line is a cache line of eight words of 64 bits: ranks that write to their own words do not slow each other. Words are
written by one process each, as the tables say; a semaphore only wakes its waiters to look at the words.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..memory.memfd import nameless_file
from . import semaphore
from .bell import Bell
from .hosts import Hosts
from .semaphore import Semaphore

#: Bytes of a command that travel in the block itself; longer ones go through the master's pool.
COMMAND_BYTES = 1 << 16
#: Bytes of an answer, and of a notice, likewise.
ANSWER_BYTES = NOTICE_BYTES = 1 << 14
#: Bytes of what a rank wants to have of other hosts, likewise.
FETCH_BYTES = 1 << 12
#: Bytes of what a rank can leave when it ends.
FATAL_ERROR_BYTES = 1 << 14
#: Bytes of the announcements of a session: of more than a thousand modules.
ANNOUNCEMENT_BYTES = 1 << 18

#: The words of the session: name, writer, meaning.
SESSION_WORDS = (
    ("decided", "root", "the last barrier that the root has decided to be complete"),
    ("abort_requested", "any rank", "the last command that some rank asked to give up (all write the same)"),
    ("aborted", "root", "the last command that the root gave up"),
    ("command_number", "root", "the command in progress, or the last one"),
    ("command_length", "root", "bytes of the command in its slot; negative if they are the handle of a longer one"),
    ("deaths", "keeper", "whether the keeper has seen any rank end"),
    ("stop_requested", "root", "the last command whose further steps the program does not want"),
    ("announced", "root", "bytes of announcements"),
    ("let_go", "bridge", "the last command given up of which nothing more is written into this host's memory"),
)

#: The words of every rank, likewise.
RANK_WORDS = (
    ("ended", "keeper", "whether the keeper has seen the process end"),
    ("status", "keeper", "and how: its exit code, or minus the signal's number"),
    ("memory", "keeper", "and its peak memory in bytes; 0 if unknown"),
    ("arrived", "the rank", "the barrier that it has reached"),
    ("finished", "the rank", "the command that it has answered"),
    ("answer_length", "the rank", "bytes of its answer in the slot; negative as for commands"),
    ("notice_length_0", "the rank", "bytes of its notice in the first slot; negative as for commands"),
    ("notice_length_1", "the rank", "and in the second"),
    ("steps_command", "the rank", "the command that the next two words are about"),
    ("steps", "the rank", "how many steps of it the rank has made"),
    ("undone", "the rank", "and how many of these it has undone"),
    ("noticed_0", "the rank", "the barrier that its notice in the first slot is for"),
    ("noticed_1", "the rank", "and in the second: it may have come to the next one before the last is told elsewhere"),
    ("fetch_asked", "the rank", "how often it has asked for memory of other hosts"),
    ("fetch_length", "the rank", "bytes of what it asks for in the slot; negative as for commands"),
    ("fetch_done", "bridge", "how often it was answered; negative if the slot says, up to a 0, what went wrong"),
    ("received", "bridge", "bytes that have come from other hosts because it has asked"),
    ("promised", "the rank", "the barrier which, once complete, makes what is in the slot its answer"),
    ("printed", "the rank", "with several hosts: bytes that it had printed when it answered"),
    ("shown", "bridge", "and bytes of these that the first host has"),
)

#: Places of the session's words in `ControlBlock.words`, for code on a hot path.
DECIDED, ABORT_REQUESTED, ABORTED, COMMAND_NUMBER, COMMAND_LENGTH, DEATHS, STOP_REQUESTED, ANNOUNCED, LET_GO = range(
    len(SESSION_WORDS)
)

_LINE_WORDS = 8  # words in a cache line
_SESSION_LINES, _RANK_LINES = (-(-len(words) // _LINE_WORDS) for words in (SESSION_WORDS, RANK_WORDS))
_WORD_BYTES = 8


def _regions(size: int, span_bytes: int) -> Tuple[Dict[str, Tuple[int, int, int]], int]:
    """Return where everything lies, by name: first byte, number of items, bytes of each; and the bytes of all."""
    found, begin = {}, 0
    for name, count, nbytes in (
        ("words", _SESSION_LINES + _RANK_LINES * size, _LINE_WORDS * _WORD_BYTES),
        ("semaphores", 1 + 4 * size, semaphore.SEMAPHORE_BYTES),
        ("command", 1, COMMAND_BYTES),
        ("answers", size, ANSWER_BYTES),
        ("notices", 2 * size, NOTICE_BYTES),  # two per rank, in turn: one may be read while the next is written
        ("fetches", size, FETCH_BYTES),
        ("fatal errors", size, FATAL_ERROR_BYTES),  # apart from the answers, which may still wait to be read
        ("announcements", 1, ANNOUNCEMENT_BYTES),
        ("spans", size, span_bytes),  # last: who opens the block finds by its length whether there are any
    ):
        found[name] = (begin, count, nbytes)
        begin += count * nbytes
    return found, begin


def _session_word(name: str) -> property:
    """Make a word of the session an attribute, for code that is not on a hot path."""
    index = [word[0] for word in SESSION_WORDS].index(name)

    def read(block: ControlBlock) -> int:
        return block.words[index]

    def write(block: ControlBlock, value: int) -> None:
        block.words[index] = value

    return property(read, write)


class ControlBlock:
    """Words, semaphores and slots shared by ``size`` ranks.

    Parameters
    ----------
    size : int
        Number of ranks.
    fd : int, optional
        Descriptor of a block that another process created; without it a new one is made.
    hosts : Hosts, optional
        If the ranks are on several. Each has a block of its own for all of them, in which the rank that speaks for it
        (`leading`) and the process that does (the *bridge*, or on other hosts than the first a deputy) write what
        happens elsewhere.
    bells : sequence of int
        Then the descriptors of the bells of such a block, which the caller may close afterwards.
    span_bytes : int
        Of a new block: what each rank has to record what it does; a multiple of 8, or 0.

    Attributes
    ----------
    words : memoryview of int
        All words, one line after the other.
    arrivals : Semaphore
        Counts the ranks that have arrived at a barrier; the root waits.
    releases, commands, answers : list of (Semaphore or Bell)
        By rank: the root lets it pass a barrier; there is a command for it; there is its answer for the master.
    bridge, lead : Bell
        If there are several hosts: there may be something for the process, or for the rank, that speaks for this one.
    fetched : list of Semaphore
        By rank: what it has asked for is there.
    command_slot, announcements : memoryview
    answer_slots, fetch_slots, fatal_error : list of memoryview
        By rank.
    spans : list of memoryview
        By rank; empty memory if nothing is recorded.
    notice_slots, notice_length, noticed : pairs of list of memoryview, and of memoryview of int
        By turn and by rank.
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
            self.bridge, self.lead = map(Bell, bells)
            self._bridge_over(hosts)

        (self.command_slot,), (self.announcements,) = items("command"), items("announcements")
        self.answer_slots, self.fetch_slots = items("answers"), items("fetches")
        self.fatal_error, self.spans = items("fatal errors"), items("spans")
        notices = items("notices")
        self.notice_slots = notices[:size], notices[size:]

    def _bridge_over(self, hosts: Hosts) -> None:
        """Have whatever would wake the rank that speaks for this host ring its bell, which it can wait for with links.

        And have the bridge look whenever ranks of other hosts are to be woken: at a command that is given up.
        """
        self.arrivals, self.answers = self.lead, [self.lead] * self.size
        if hosts.own > 0:
            self.releases[hosts.near[0]] = self.commands[hosts.near[0]] = self.lead
        for rank in hosts.far:
            self.releases[rank] = self.commands[rank] = self.bridge

    def call_root(self) -> None:
        """Have the root, wherever it is, look at the words while it waits at a barrier."""
        self.arrivals.release()
        if self.bridge is not None:
            self.bridge.release()

    def steps_of(self, rank: int) -> Tuple[int, int, int]:
        """Return about which command the steps of a rank are, how many it has made, and how many of these undone."""
        return self.steps_command[rank], self.steps[rank], self.undone[rank]

    def note_steps(self, steps: Dict[int, Tuple[int, int, int]]) -> None:
        """Write what ranks of other hosts have made, unless it is older: it comes by two ways."""
        for rank, made in steps.items():
            if made > self.steps_of(rank):
                _, self.steps[rank], self.undone[rank] = made
                self.steps_command[rank] = made[0]

    def reset(self, rank: int) -> None:
        """Prepare the words of a rank that has ended for another one, which waits for the next command."""
        self.ended[rank] = self.status[rank] = self.memory[rank] = self.promised[rank] = 0
        self.finished[rank] = self.command_number
        self.fatal_error[rank][:] = bytes(len(self.fatal_error[rank]))
        for semaphores in (self.releases, self.commands, self.answers):
            semaphores[rank].drain()

    def close(self) -> None:
        """Close the descriptor; the memory lives as long as this object."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1  # first, so that nothing is closed twice, whatever interrupts
            os.close(fd)
