"""The control block: shared memory through which the ranks of a session synchronize.

It is an unnamed file that all ranks and the keeper map. Other modules implement the protocols. ::

    first lines   words of the session
    lines of r    words of rank r (`RANK_WORDS`)
    semaphores    arrivals | releases, by rank | commands, by rank | answers, by rank | fetched, by rank
    command       the command in progress, or its handle if it is long
    answers       by rank: its answer to the command
    notices       by rank, twice: its notice to the other ranks at a barrier
    fetches       by rank: its request to other hosts
    fatal errors  by rank: the error that ended it
    announcements modules that ranks can load while they wait: see `runtime.prefetch`
    spans         by rank: its recorded activity, if any: see `profile`

A line is a cache line of eight 64-bit words, so that ranks do not slow each other down by writing. Comments
name the writer of each word. Apart from resets and copies from other hosts, only `ABORT_REQUESTED` has several writers.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Dict, List, Tuple

from ..memory.memfd import nameless_file
from . import semaphore
from .semaphore import Semaphore

COMMAND_BYTES = 1 << 16  # longer commands are sent through the master's pool
ANSWER_BYTES = NOTICE_BYTES = 1 << 14  # longer answers and notices are sent through the rank's pool
FETCH_BYTES = 1 << 12  # longer requests to other hosts are sent through the rank's pool
FATAL_ERROR_BYTES = 1 << 14  # maximum size of the text of an error that ends a rank
ANNOUNCEMENT_BYTES = 1 << 18  # size of a session's announcements, enough for more than a thousand modules

N_SESSION_WORDS = 9

#: The words of the session, as indices of `ControlBlock.words`, with the writer of each. On hosts other than the first,
#: a deputy replaces the bridge.
(
    DECIDED,  # root: the last barrier that the root has decided
    ABORT_REQUESTED,  # any rank: the last command that a rank has asked to abort (all write the same number)
    ABORTED,  # root: the last command that the root has aborted
    COMMAND_NUMBER,  # root: the command in progress, or the last command
    COMMAND_LENGTH,  # root: bytes of the command in its slot; negative for the handle of a longer command
    DEATHS,  # keeper: whether the keeper has seen any rank end
    STOP_REQUESTED,  # root: the last command whose remaining steps the program has canceled
    ANNOUNCED,  # root: bytes of announcements
    LET_GO,  # deputy: the last aborted command that no longer writes into this host's memory
) = range(N_SESSION_WORDS)


class _RankWords:
    """The words of the ranks, by rank, with the writer of each."""

    ended: memoryview  # keeper: whether the keeper has seen the process end
    status: memoryview  # keeper: its exit code, or the negative signal number
    memory: memoryview  # keeper: its peak memory in bytes; 0 if unknown
    arrived: memoryview  # the rank: the barrier that it has reached
    finished: memoryview  # the rank: the command that it has answered
    answer_length: memoryview  # the rank: bytes of its answer in the slot; negative for a handle
    notice_length_0: memoryview  # the rank: bytes of its notice in the first slot; negative for a handle
    notice_length_1: memoryview  # the rank: bytes of its notice in the second slot; negative for a handle
    steps_command: memoryview  # the rank: the command that the next two words refer to
    steps: memoryview  # the rank: number of steps of that command that the rank has completed
    undone: memoryview  # the rank: number of these steps that the rank has undone
    noticed_0: memoryview  # the rank: the barrier of the notice in the first slot
    noticed_1: memoryview  # the rank: the barrier of the notice in the second slot
    fetch_asked: memoryview  # the rank: number of its requests to other hosts
    fetch_length: memoryview  # the rank: bytes of its request in the slot; negative for a handle
    fetch_done: memoryview  # bridge: number of answered requests; negative if the slot has a 0-terminated error message
    received: memoryview  # bridge: bytes received from other hosts for its requests
    promised: memoryview  # the rank: the barrier whose completion makes the answer slot's content its answer
    printed: memoryview  # the rank: with several hosts: bytes of its output before its answer
    shown: memoryview  # bridge: bytes of this output that have reached the first host


RANK_WORDS = tuple(_RankWords.__annotations__)

_LINE_WORDS = 8  # words in a cache line
_SESSION_LINES, _RANK_LINES = (-(-count // _LINE_WORDS) for count in (N_SESSION_WORDS, len(RANK_WORDS)))
_WORD_BYTES = 8


def _regions(size: int, span_bytes: int, notice_bytes: int) -> Tuple[Dict[str, Tuple[int, int, int]], int]:
    """Return each region's first byte, number of items and bytes per item, by name, and the total size."""
    found, begin = {}, 0
    for name, count, nbytes in (
        ("words", _SESSION_LINES + _RANK_LINES * size, _LINE_WORDS * _WORD_BYTES),
        ("semaphores", 1 + 4 * size, semaphore.SEMAPHORE_BYTES),
        ("command", 1, COMMAND_BYTES),
        ("answers", size, ANSWER_BYTES),
        ("notices", 2 * size, notice_bytes),  # two per rank, because one may be read while the next is written
        ("fetches", size, FETCH_BYTES),
        ("fatal errors", size, FATAL_ERROR_BYTES),  # separate from the answers, which may still be unread
        ("announcements", 1, ANNOUNCEMENT_BYTES),
        ("spans", size, span_bytes),  # last, because span_bytes of an existing block is computed from its length
    ):
        found[name] = (begin, count, nbytes)
        begin += count * nbytes
    return found, begin


class ControlBlock(_RankWords):
    """Words, semaphores and slots shared by ``size`` ranks; ``fd`` is the descriptor of an existing block.

    ``span_bytes`` (a multiple of 8, or 0) is the memory per rank for recording its activity.

    The root waits for `arrivals` at a barrier. Each rank has four semaphores. The root signals `releases` (from a
    barrier) and `commands`, the rank signals `answers`, and the bridge or deputy signals `fetched`. `notice_slots`,
    `notice_length` and `noticed` are indexed by turn and rank.
    """

    notice_bytes = NOTICE_BYTES
    bridge: Any  # an eventfd that wakes the bridge or deputy, in `BlockOverHosts`
    lead: Any  # an eventfd that wakes the leading rank, in `BlockOverHosts`

    def __init__(self, size: int, fd: int = -1, span_bytes: int = 0) -> None:
        create = fd < 0
        if not create:
            span_bytes = (os.fstat(fd).st_size - _regions(size, 0, self.notice_bytes)[1]) // size
        regions, total = _regions(size, span_bytes, self.notice_bytes)
        self.size = size
        self.fd = nameless_file("control", total) if create else fd
        memory = memoryview(mmap.mmap(self.fd, total))

        def items(name: str) -> List[memoryview]:
            begin, count, nbytes = regions[name]
            return [memory[begin + i * nbytes : begin + (i + 1) * nbytes] for i in range(count)]

        self.words = memory[: (_SESSION_LINES + _RANK_LINES * size) * _LINE_WORDS * _WORD_BYTES].cast("q")
        for index, name in enumerate(RANK_WORDS):
            setattr(self, name, self.words[_SESSION_LINES * _LINE_WORDS + index :: _RANK_LINES * _LINE_WORDS])
        self.notice_length = self.notice_length_0, self.notice_length_1
        self.noticed = self.noticed_0, self.noticed_1

        self.arrivals, *semaphores = [Semaphore(each, create) for each in items("semaphores")]
        self.releases, self.commands, self.answers, self.fetched = (
            semaphores[i * size : (i + 1) * size] for i in range(4)
        )

        (self.command_slot,), (self.announcements,) = items("command"), items("announcements")
        self.answer_slots, self.fetch_slots = items("answers"), items("fetches")
        self.fatal_error, self.spans = items("fatal errors"), items("spans")
        notices = items("notices")
        self.notice_slots = notices[:size], notices[size:]

    def bells(self) -> Tuple[int, ...]:
        """Return the descriptors of the block's eventfds, if there are any."""
        return ()

    def call_root(self) -> None:
        """If the root (on any host) waits at a barrier, wake it to read the words again."""
        self.arrivals.release()

    def drain(self) -> None:
        """Reset the semaphores of barriers; call this only on the root, while no rank executes a command."""
        for each in (self.arrivals, *self.releases):
            each.drain()

    def steps_of(self, rank: int) -> Tuple[int, int, int]:
        """Return the command of a rank's steps, and the numbers of steps completed and undone."""
        return self.steps_command[rank], self.steps[rank], self.undone[rank]

    def note_steps(self, steps: Dict[int, Tuple[int, int, int]]) -> None:
        """Write the step counts of ranks on other hosts; ignore outdated counts, which may arrive by another route."""
        for rank, made in steps.items():
            if made > self.steps_of(rank):
                _, self.steps[rank], self.undone[rank] = made
                self.steps_command[rank] = made[0]

    def reset(self, rank: int, command: int) -> None:
        """Reset the words of a dead rank for its replacement, which executes commands after number ``command``."""
        self.ended[rank] = self.status[rank] = self.memory[rank] = self.promised[rank] = 0
        self.answer_length[rank] = 0  # first, because a leader may forward this answer
        self.finished[rank] = command
        self.fatal_error[rank][:] = bytes(len(self.fatal_error[rank]))
        for each in (self.releases[rank], self.commands[rank], self.answers[rank]):
            if isinstance(each, Semaphore):  # eventfds also wake other ranks
                each.drain()

    def close(self) -> None:
        """Close the descriptor; the memory stays mapped as long as this object exists."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1  # first, so that an interrupt cannot cause a second close
            os.close(fd)
