"""Borrowed values: whether the program has changed them, and whether it still refers to them."""

import numpy as np
import pytest

from synkhronos.memory.pool import Pool
from synkhronos.runtime.borrowed import FEW_BYTES, Borrowed

VALUES = {
    "number": np.array(1.0),
    "vector": np.arange(5.0),
    "matrix": np.arange(6.0).reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "strided": np.arange(12.0)[::2],
    "reversed": np.arange(12.0)[::-1],
    "not a number": np.array([np.nan, -0.0]),
    "large": np.arange(FEW_BYTES / 4),
    "large columns": np.asfortranarray(np.arange(FEW_BYTES / 4).reshape(2, -1)),
    "large strided": np.arange(FEW_BYTES / 2)[::2],
    "truths": np.array([True, False]),
    "objects": np.array([1, None], object),
    "nothing": np.zeros((0, 3)),
}


@pytest.fixture
def pool():
    return Pool(-1)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_change_is_seen(value):
    borrowed = Borrowed(value)
    assert borrowed.is_forgotten and borrowed.has_changed()
    borrowed.remember()
    assert not borrowed.is_forgotten and not borrowed.has_changed()
    if value.size:
        last = (-1,) * value.ndim
        before, value[last] = value[last], 99
        assert borrowed.has_changed() or value.dtype == bool
        value[last] = not before if value.dtype == bool else 98
        assert borrowed.has_changed()
        borrowed.remember()
        assert not borrowed.has_changed()
        value[last] = before
        assert borrowed.has_changed()
    borrowed.forget()
    assert borrowed.has_changed()


def test_signs_of_zero_count():
    value = np.zeros(6)
    borrowed = Borrowed(value)
    borrowed.remember()
    value[0] = -0.0
    assert borrowed.has_changed()


def test_objects_are_compared_by_their_pickles(pool):
    state = np.random.RandomState(1)
    borrowed = Borrowed(state)
    borrowed.remember()
    assert not borrowed.has_changed()
    state.rand()
    assert borrowed.has_changed()
    other = Borrowed(lambda: 1)  # a value that cannot be pickled, and therefore not sent
    other.remember()
    assert not other.has_changed() and not other.is_forgotten


def test_whether_the_program_holds_it(pool):
    cell = [np.ones(3)]
    borrowed = Borrowed(cell[0])
    assert not borrowed.is_held(cell, pool)
    for hold in (lambda: cell[0], lambda: cell[0][1:], lambda: cell[0].T[::2], lambda: memoryview(cell[0])):
        held = hold()
        assert borrowed.is_held(cell, pool)
        del held
        assert not borrowed.is_held(cell, pool)
    kept = cell[0]
    assert borrowed.is_held(cell, pool) and not borrowed.is_held(cell, pool, 1)  # not if the reference is the library's
    del kept
    cell[0] = None
    assert not borrowed.is_held(cell, pool)


def test_whether_the_program_holds_an_array_of_the_pool(pool):
    cell = [pool.allocate((4,), np.dtype(float))]
    borrowed = Borrowed(cell[0])
    assert not borrowed.is_held(cell, pool)
    for hold in (lambda: cell[0], lambda: cell[0][1:], lambda: cell[0].reshape(2, 2)[0]):
        held = hold()
        assert borrowed.is_held(cell, pool)
        del held
        assert not borrowed.is_held(cell, pool)


def test_a_part_of_an_array_of_the_programs_always_counts_as_held(pool):
    for value in (np.zeros(4)[1:], np.frombuffer(bytearray(16)), np.zeros((2, 3)).T):
        assert Borrowed(value).is_held([value], pool)
