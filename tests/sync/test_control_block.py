"""The control block."""

import os

import pytest

from synkhronos.sync.control_block import (
    ANNOUNCEMENT_BYTES,
    ANSWER_BYTES,
    COMMAND_BYTES,
    DECIDED,
    FATAL_ERROR_BYTES,
    N_SESSION_WORDS,
    NOTICE_BYTES,
    RANK_WORDS,
    ControlBlock,
)

RANK_NAMES = [name for name in RANK_WORDS if not name.startswith("notice")]  # (each notice is a pair of words)


@pytest.mark.parametrize("size", [1, 2, 3, 17, 200])
def test_nothing_overlaps(size):
    """Whatever is written through one process's view is read through another's, and nothing else changes."""
    ours = ControlBlock(size)
    theirs = ControlBlock(size, os.dup(ours.fd))
    expected = {}
    for number in range(N_SESSION_WORDS):
        ours.words[number] = expected[number] = -number - 1
    for rank in range(size):
        for number, name in enumerate(RANK_NAMES):
            getattr(ours, name)[rank] = 1000 * rank + number
        for turn in range(2):
            ours.notice_length[turn][rank] = 1000 * rank + 100 + turn
        ours.answer_slots[rank][:] = bytes([rank % 256]) * ANSWER_BYTES
        ours.fatal_error[rank][:] = bytes([(rank + 3) % 256]) * FATAL_ERROR_BYTES
        for turn in range(2):
            ours.notice_slots[turn][rank][:] = bytes([(rank + 7 * turn + 1) % 256]) * NOTICE_BYTES
    ours.command_slot[:] = b"c" * COMMAND_BYTES
    ours.announcements[:] = b"a" * ANNOUNCEMENT_BYTES
    for semaphore in [ours.arrivals] + ours.releases + ours.commands + ours.answers:
        semaphore.release()

    assert {number: theirs.words[number] for number in range(N_SESSION_WORDS)} == expected
    for rank in range(size):
        assert [getattr(theirs, name)[rank] for name in RANK_NAMES] == [1000 * rank + i for i in range(len(RANK_NAMES))]
        assert [theirs.notice_length[turn][rank] for turn in range(2)] == [1000 * rank + 100, 1000 * rank + 101]
        assert bytes(theirs.answer_slots[rank]) == bytes([rank % 256]) * ANSWER_BYTES
        assert bytes(theirs.fatal_error[rank]) == bytes([(rank + 3) % 256]) * FATAL_ERROR_BYTES
        for turn in range(2):
            assert bytes(theirs.notice_slots[turn][rank]) == bytes([(rank + 7 * turn + 1) % 256]) * NOTICE_BYTES
    assert bytes(theirs.command_slot) == b"c" * COMMAND_BYTES
    assert bytes(theirs.announcements) == b"a" * ANNOUNCEMENT_BYTES
    semaphores = [theirs.arrivals] + theirs.releases + theirs.commands + theirs.answers
    assert len(semaphores) == 1 + 3 * size
    assert [semaphore.try_acquire() for semaphore in semaphores] == [True] * len(semaphores)
    assert not any(semaphore.try_acquire() for semaphore in semaphores)
    ours.close()
    theirs.close()


def test_fresh_block_is_zero():
    block = ControlBlock(3)
    assert not any(block.words) and not any(bytes(block.command_slot))
    block.close()


def test_has_no_name_and_belongs_to_its_owner():
    block = ControlBlock(2)
    assert os.readlink(f"/proc/self/fd/{block.fd}").startswith("/memfd:")
    assert os.fstat(block.fd).st_mode & 0o777 == 0o600
    assert not os.get_inheritable(block.fd)
    block.close()


def test_close_twice_and_use_after():
    block = ControlBlock(2)
    fd = block.fd
    block.close()
    block.close()
    with pytest.raises(OSError):
        os.fstat(fd)
    block.words[DECIDED] = 5
    assert block.words[DECIDED] == 5


def test_every_rank_writes_to_cache_lines_of_its_own():
    block = ControlBlock(3)
    touched = []
    for rank in (None, 0, 1, 2):
        block.words[:] = memoryview(bytes(block.words.nbytes)).cast("q")
        if rank is None:
            for number in range(N_SESSION_WORDS):
                block.words[number] = 1
        else:
            for words in [getattr(block, name) for name in RANK_NAMES] + [*block.notice_length, *block.noticed]:
                words[rank] = 1
        touched.append({place // 8 for place, word in enumerate(block.words) if word})
    assert touched == [{0, 1}, {2, 3, 4}, {5, 6, 7}, {8, 9, 10}]
    block.close()
