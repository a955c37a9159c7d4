"""The control block: the shared memory through which the ranks of a session meet.

A small nameless file that every rank, the master and the keeper map: words
that say who has arrived where, semaphores to wait on, and slots for the
command in progress, the ranks' answers, their notices to each other and their last words. It has no logic; what the
words mean stands with those who use them (`barrier`, `launchers.channel`).
"""

from __future__ import annotations

import mmap
import os
from typing import List

from ..memory.memfd import nameless_file
from . import semaphore
from .semaphore import Semaphore

#: Bytes of a command that travel in the block itself; longer ones go through the master's pool.
COMMAND_BYTES = 1 << 16
#: Bytes of an answer, and of a notice, likewise.
ANSWER_BYTES = NOTICE_BYTES = 1 << 14
#: Bytes of what a rank can leave when it ends.
FATAL_ERROR_BYTES = 1 << 14

_LINE = 8  # words in a cache line: every rank writes its own words to a line of its own


# The words of the session, by their place in `ControlBlock.words`. Each has one writer, except `ABORT_REQUESTED`, into
# which all write the same.
DECIDED = 0  # the last barrier that the root has decided to be complete
ABORT_REQUESTED = 1  # the last command that some rank asked to give up
ABORTED = 2  # the last command that the root gave up
COMMAND_NUMBER = 3
COMMAND_LENGTH = 4
DEATHS = 5  # whether the keeper has seen any rank end


def _word(index: int) -> property:
    """Make a word of the session an attribute, for code that is not in a hurry."""

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
    """

    # Words of the session; see the constants.
    decided = _word(DECIDED)
    abort_requested = _word(ABORT_REQUESTED)
    aborted = _word(ABORTED)
    command_number = _word(COMMAND_NUMBER)
    command_length = _word(COMMAND_LENGTH)
    deaths = _word(DEATHS)

    def __init__(self, size: int, fd: int = -1) -> None:
        create = fd < 0
        n_words = (1 + size) * _LINE
        n_semaphores = 1 + 3 * size
        begin_semaphores = -(-n_words * 8 // semaphore.SIZE) * semaphore.SIZE
        begin_command = begin_semaphores + n_semaphores * semaphore.SIZE
        begin_acks = begin_command + COMMAND_BYTES
        begin_notices = begin_acks + size * ANSWER_BYTES
        begin_last = begin_notices + 2 * size * NOTICE_BYTES
        total = begin_last + size * FATAL_ERROR_BYTES
        self.size = size
        self.fd = nameless_file("control", total) if create else fd
        memory = memoryview(mmap.mmap(self.fd, total))
        self.words = memory[: n_words * 8].cast("q")

        # Words of the ranks.
        self.ended = self.words[_LINE + 0 :: _LINE]  # whether the keeper has seen the process end
        self.status = self.words[_LINE + 1 :: _LINE]  # and how: its exit code, or minus the signal's number
        self.arrived = self.words[_LINE + 2 :: _LINE]  # the barrier that it has reached
        self.memory = self.words[_LINE + 3 :: _LINE]  # and the bytes it held at most, by then
        self.finished = self.words[_LINE + 4 :: _LINE]  # the command that it has answered
        self.answer_length = self.words[_LINE + 5 :: _LINE]  # of its answer in the slot
        self.notice_length = (
            self.words[_LINE + 6 :: _LINE],
            self.words[_LINE + 7 :: _LINE],
        )  # of its notices to the other ranks

        def semaphore_at(index: int) -> Semaphore:
            begin = begin_semaphores + index * semaphore.SIZE
            return Semaphore(memory[begin : begin + semaphore.SIZE], create)

        self.arrivals = semaphore_at(0)  # counts the ranks that have arrived, for the root
        self.releases = [semaphore_at(1 + rank) for rank in range(size)]  # the root lets the rank pass
        self.commands = [semaphore_at(1 + size + rank) for rank in range(size)]  # there is a command for the rank
        self.answers = [semaphore_at(1 + 2 * size + rank) for rank in range(size)]  # there is the rank's answer
        self.command_slot = memory[begin_command:begin_acks]

        def slots(begin: int, length: int) -> List[memoryview]:
            return [memory[begin + rank * length : begin + (rank + 1) * length] for rank in range(size)]

        self.answer_slots = slots(begin_acks, ANSWER_BYTES)
        # Two per rank, used in turn: one may still be read while the next is written.
        self.notice_slots = (
            slots(begin_notices, NOTICE_BYTES),
            slots(begin_notices + size * NOTICE_BYTES, NOTICE_BYTES),
        )
        # Apart from the answers: a rank can end while its last answer waits to be read.
        self.fatal_error = slots(begin_last, FATAL_ERROR_BYTES)

    def close(self) -> None:
        """Close the descriptor; the memory lives as long as this object."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1  # first, so that nothing is closed twice, whatever interrupts
            os.close(fd)
