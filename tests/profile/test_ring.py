"""Rings: a reader gets the latest spans as they were written, and those that have not ended.

Modules: `recording`.
"""

import threading

import numpy as np
import pytest
from scripted import POINTS, Command, Rank

from synkhronos.profile import ring
from synkhronos.profile.recording import Recording

#: With this number of ranks, rings have 16 spans.
MANY = 1 << 16
ENGINE, WAIT = "engine\tEngine.call", "barrier\tBarrier.wait"
MS = 1_000_000


def test_what_is_read_is_what_was_written():
    rank = Rank(0, 1)
    rank.executing(3, Command("function", "f", 7, 8, 10), 10, 25, rank.doing("Engine.call", 12, 24), moved=9)()
    thread = threading.Thread(target=rank.doing("Barrier.wait", 30, 31))
    thread.start()
    thread.join()
    content = rank.content()
    command = "command\tRankContext.execute"
    assert content.names == ["other", command, ENGINE, "command\tfunction\tf", WAIT]
    assert content.spans == [
        ring.Span(12 * MS, 24 * MS, "engine", "Engine.call", "", 3, 0, 1),
        ring.Span(10 * MS, 25 * MS, "command", "function", "f", 3, 0, 0, 7, 8, 9, 10),
        ring.Span(30 * MS, 31 * MS, "barrier", "Barrier.wait", "", 3, 1, 0),
    ]
    assert content.counts == {"other": 0, command: 0, ENGINE: 0, "command\tfunction\tf": 1, WAIT: 0}
    assert content.dropped == 0


def test_the_oldest_are_dropped_and_counted():
    rank = Rank(0, MANY)
    for i in range(100):
        rank.executing(i, Command("function", "f"), i, i + 1)()
    content = rank.content()
    # The oldest span may be being overwritten at any time, so the ring returns one span fewer than it has room for.
    assert [span.begin for span in content.spans] == [i * MS for i in range(85, 100)]
    assert content.dropped == 85 and content.counts["command\tfunction\tf"] == 100


@pytest.mark.parametrize("n_before", [0, 3, 50], ids="{} before".format)
def test_what_has_not_ended_is_there(n_before):
    """Open spans are read whatever was recorded before at the same or deeper levels, even if it was dropped."""
    rank, found = Rank(0, MANY), []
    deep = rank.doing("Engine.call", 1, 1, rank.doing("Barrier.wait", 1, 1, rank.doing("Barrier.wait", 1, 1)))
    for _ in range(n_before):
        deep()

    def look():
        found.append([span[:2] + span[6:8] for span in rank.content().spans if span.begin > MS])

    rank.do("Barrier.wait", 5, 10, look, rank.doing("Engine.call", 6, 9, look), look)
    look()
    wait, engine = (5 * MS, -1, 0, 0), (6 * MS, -1, 0, 1)
    assert found == [
        [wait],
        [wait, engine],
        [(6 * MS, 9 * MS, 0, 1), wait],
        [(6 * MS, 9 * MS, 0, 1), (5 * MS, 10 * MS, 0, 0)],
    ]


def test_what_is_nested_deeper_than_there_is_room_is_there_once_it_has_ended():
    rank, found = Rank(0, 1), []

    def deeper(level):
        if level < ring.MAX_OPEN + 5:
            rank.do("Barrier.wait", 1, 2, lambda: deeper(level + 1))
        else:
            found.append(rank.content())

    deeper(0)
    assert [span.level for span in found[0].spans] == list(range(ring.MAX_OPEN))
    assert sorted(span.level for span in rank.content().spans) == list(range(ring.MAX_OPEN + 5))


@pytest.mark.parametrize("name", ["x" * 10, "é" * 500])
def test_names_that_there_is_no_room_for_are_other(name):
    memory = memoryview(bytearray(ring.ring_bytes(1)))
    written = ring.RingBuffer(memory)
    numbers = [written.number(f"{i}{name}") for i in range(2 * ring.MAX_NAMES)]
    names = ring.read(memory).names
    assert numbers[0] == 1 and numbers[-1] == 0
    assert len(names) <= ring.MAX_NAMES and names[1].startswith(f"0{name[:5]}")


def test_what_travels_to_another_host_is_read_there():
    rank = Rank(0, 1)
    for i in range(5):
        rank.do("Engine.call", i, i + 1)
    ring.set_clock(rank.memory, 1000, 7)
    there = memoryview(bytearray(len(rank.memory)))
    used = ring.used(rank.memory)
    there[: len(used)] = used
    assert ring.read(there) == rank.content() and ring.read(there).error == 7
    assert [span.begin for span in ring.read(there).spans] == [i * MS - 1000 for i in range(5)]
    assert len(used) < len(rank.memory) / 10


def test_a_span_that_is_read_while_others_are_written():
    """A reader finds only spans that were written, never parts of two spans."""
    rank, random = Rank(0, MANY), np.random.RandomState(0)
    for i in range(200):
        rank.executing(3 * i, Command("function", "f", 4 * i), i, 2 * i)()
        if random.random_sample() < 0.5:
            for span in rank.content().spans:
                i_of_it = span.begin // MS
                assert (span.end, span.command, span.rows) == (2 * span.begin, 3 * i_of_it, 4 * i_of_it)


def test_what_is_in_progress_when_recording_ends_is_not_written():
    """By then, the memory may belong to another session."""
    memory = memoryview(bytearray(ring.ring_bytes(1)))
    recording = Recording(lambda: 1)
    recording.add(0, memory, any_thread=True)
    try:
        wait = recording.around(POINTS["Barrier.wait"], lambda _: recording.remove(0))
        wait(None)
    finally:
        recording.remove(0)
    assert [span.end for span in ring.read(memory).spans] == [-1]
