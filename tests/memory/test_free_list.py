"""The free list, compared with a model that has one flag per byte."""

import random
import sys

import pytest
from refusals import reports

from synkhronos.memory.free_list import FreeList


def runs(flags):
    """Return the free ranges in a list of flags, which are true for bytes that are taken."""
    ranges, start = [], None
    for place, taken in enumerate(flags + [True]):
        if taken and start is not None:
            ranges.append((start, place))
            start = None
        elif not taken and start is None:
            start = place
    return ranges


@pytest.mark.parametrize("seed", range(20))
def test_takes_first_fit_and_joins(seed):
    rng = random.Random(seed)
    size = 200
    free, flags, taken = FreeList(size), [False] * size, []
    for _ in range(300):
        if taken and rng.random() < 0.5:
            start, length = taken.pop(rng.randrange(len(taken)))
            flags[start : start + length] = [False] * length
            assert free.free(start, length) == next(r for r in runs(flags) if r[0] <= start < r[1])
        else:
            length = rng.randint(1, 40)
            expected = next((low for low, high in runs(flags) if high - low >= length), None)
            start = free.allocate(length)
            assert start == expected
            if start is not None:
                flags[start : start + length] = [True] * length
                taken.append((start, length))
        assert list(free) == runs(flags)
    for start, length in taken:
        free.free(start, length)
    assert list(free) == [(0, size)]


def test_exact_fit_leaves_nothing():
    free = FreeList(10)
    assert free.allocate(10) == 0
    assert list(free) == []
    assert free.allocate(1) is None
    assert free.free(0, 10) == (0, 10)


@pytest.mark.parametrize("seed", range(10))
def test_takes_ranges_that_are_named(seed):
    rng, size = random.Random(seed), 200
    free, flags = FreeList(size), [False] * size
    for _ in range(60):
        start, length = rng.randrange(size), rng.randint(1, 20)
        if start + length > size or any(flags[start : start + length]):
            with reports(ValueError, length, start):
                free.take_at(start, length)
        else:
            free.take_at(start, length)
            flags[start : start + length] = [True] * length
        assert list(free) == runs(flags)


@pytest.mark.parametrize("what", ["take", "take all of a range", "take at", "give", "give between", "give alone"])
def test_an_interrupt_between_any_two_steps_takes_or_gives_or_does_neither(what):
    """A used range never becomes free, or it would be used twice."""
    made = {
        "take": ([], lambda free: free.allocate(10)),
        "take all of a range": ([(0, 10), (20, 80)], lambda free: free.allocate(10)),
        "take at": ([], lambda free: free.take_at(30, 10)),
        "give": ([(0, 50)], lambda free: free.free(0, 50)),
        "give between": ([(20, 10)], lambda free: free.free(20, 10)),
        "give alone": ([(0, 100)], lambda free: free.free(30, 10)),
    }
    taken, change = made[what]
    if what == "take all of a range":
        taken = [(10, 90)]
    for step in range(500):  # (the first iteration of CPython 3.12.1 reports nothing)
        free, left = FreeList(100), step
        for start, size in taken:
            free.take_at(start, size)
        before = list(free)

        def trace(frame, event, argument):
            nonlocal left
            if frame.f_code.co_filename.endswith("free_list.py"):
                frame.f_trace_opcodes = True
                if event == "opcode":
                    left -= 1
                    if not left:
                        raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            change(free)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        after = FreeList(100)
        for start, size in taken:
            after.take_at(start, size)
        change(after)
        assert list(free) in (before, list(after))
        if left > 0 and step:
            break
    assert 5 < step < 499
