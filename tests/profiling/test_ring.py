"""Rings: what is read is what was written, the latest of it, and what has not ended."""

import numpy as np
import pytest

from synkhronos.profiling import ring


def made(n_ranks=1):
    memory = memoryview(bytearray(ring.ring_bytes(n_ranks)))
    return ring.Ring(memory), memory


def test_what_is_read_is_what_was_written():
    written, memory = made()
    engine, wait = written.number("engine\tE.call"), written.number("barrier\tB.wait")
    written.end(10, 25, 3, engine, 0, 0, 7, 8, 9, 10)
    written.count(engine)
    written.end(30, 31, 3, wait, 2, 0)
    content = ring.read(memory)
    assert content.names == ["other", "engine\tE.call", "barrier\tB.wait"]
    assert content.records == [
        ring.Record(10, 25, 3, engine, 0, 0, (7, 8, 9, 10)),
        ring.Record(30, 31, 3, wait, 2, 0, (-1, -1, -1, -1)),
    ]
    assert content.counts == {"other": 0, "engine\tE.call": 1, "barrier\tB.wait": 0} and content.dropped == 0


def test_the_oldest_are_dropped_and_counted():
    n_ranks = 1 << 16  # rings of 16 spans
    written, memory = made(n_ranks)
    assert written.capacity == 16
    name = written.number("x\ty")
    for i in range(100):
        written.end(i, i + 1, i, name, 0, 0)
        written.count(name)
    content = ring.read(memory)
    # The place of the oldest may be being written at any time, so one less than there is room for.
    assert [record.begin for record in content.records] == list(range(85, 100))
    assert content.dropped == 85 and content.counts["x\ty"] == 100


def test_what_has_not_ended_is_there():
    written, memory = made()
    command, engine = written.number("command\tC.execute"), written.number("engine\tE.call")
    written.begin(0, 5, command, 4)
    written.begin(1, 6, engine, 4)
    assert [record[:6] for record in ring.read(memory).records] == [(5, -1, 4, command, 0, 0), (6, -1, 4, engine, 0, 1)]
    written.end(6, 9, 4, engine, 0, 1)
    assert [record[:3] for record in ring.read(memory).records] == [(6, 9, 4), (5, -1, 4)]
    written.end(5, 10, 4, command, 0, 0)
    assert [record[:3] for record in ring.read(memory).records] == [(6, 9, 4), (5, 10, 4)]


@pytest.mark.parametrize("name", ["x" * 10, "é" * 500])
def test_names_that_there_is_no_room_for_are_other(name):
    written, memory = made()
    numbers = [written.number(f"{i}{name}") for i in range(2 * ring.MAX_NAMES)]
    names = ring.read(memory).names
    assert numbers[0] == 1 and numbers[-1] == 0
    assert len(names) <= ring.MAX_NAMES and names[1].startswith(f"0{name[:5]}")


def test_what_travels_to_another_host_is_read_there():
    written, memory = made()
    name = written.number("x\ty")
    for i in range(5):
        written.end(i, i + 1, 0, name, 0, 0)
    ring.set_clock(memory, 1000, 7)
    there = memoryview(bytearray(len(memory)))
    used = ring.used(memory)
    there[: len(used)] = used
    assert ring.read(there) == ring.read(memory) and ring.read(there)[-2:] == (1000, 7)
    assert len(used) < len(memory) / 10


def test_a_span_that_is_read_while_others_are_written():
    """Whatever a reader finds is what was written, not parts of two spans."""
    n_ranks = 1 << 16
    written, memory = made(n_ranks)
    name, random = written.number("x\ty"), np.random.RandomState(0)
    for i in range(200):
        written.end(i, 2 * i, 3 * i, name, 0, 0, 4 * i)
        if random.random_sample() < 0.5:
            for record in ring.read(memory).records:
                assert (record.end, record.command, record.numbers[0]) == tuple(k * record.begin for k in (2, 3, 4))
