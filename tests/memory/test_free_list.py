"""The free list against a model: one flag per byte."""

import random

import pytest

from synkhronos.memory.free_list import FreeList


def runs(flags):
    """Return the free ranges that a list of taken flags shows."""
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
            assert free.give(start, length) == next(r for r in runs(flags) if r[0] <= start < r[1])
        else:
            length = rng.randint(1, 40)
            expected = next((low for low, high in runs(flags) if high - low >= length), None)
            start = free.take(length)
            assert start == expected
            if start is not None:
                flags[start : start + length] = [True] * length
                taken.append((start, length))
        assert list(free) == runs(flags)
    for start, length in taken:
        free.give(start, length)
    assert list(free) == [(0, size)]


def test_exact_fit_leaves_nothing():
    free = FreeList(10)
    assert free.take(10) == 0
    assert list(free) == []
    assert free.take(1) is None
    assert free.give(0, 10) == (0, 10)


@pytest.mark.parametrize("seed", range(10))
def test_takes_ranges_that_are_named(seed):
    rng, size = random.Random(seed), 200
    free, flags = FreeList(size), [False] * size
    for _ in range(60):
        start, length = rng.randrange(size), rng.randint(1, 20)
        if start + length > size or any(flags[start : start + length]):
            with pytest.raises(ValueError, match=f"the range of {length} from {start} on is not free"):
                free.take_at(start, length)
        else:
            free.take_at(start, length)
            flags[start : start + length] = [True] * length
        assert list(free) == runs(flags)
