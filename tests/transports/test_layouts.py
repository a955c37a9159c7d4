"""The ranks' records of arrays' locations: one test for each row of the table in `transports.layouts`."""

import numpy as np
import pytest

import synkhronos as synk
from synkhronos.memory.attach import PoolMap
from synkhronos.memory.pool import Pool
from synkhronos.transports.layouts import EAGER_BYTES, MAX_LAYOUTS, EagerLayouts, Layouts, PooledArray


class CountingMap:
    """A `PoolMap` that records attached handles."""

    def __init__(self, pools):
        self.pools, self.attached = pools, []

    def here(self, handle):
        self.attached.append(handle)
        return self.pools.attach(handle)


@pytest.fixture
def pool():
    made = Pool(0, 1 << 20)
    yield made
    made.close()


@pytest.fixture
def pools(pool):
    made = PoolMap()
    made.add(0, pool)
    return CountingMap(made)


@pytest.fixture
def place(pool):
    """Return a function that places a value in the pool."""

    def make(value):
        value = np.asarray(value)
        array = pool.allocate(value.shape, value.dtype)
        array[...] = value
        return PooledArray.at(array, pool.handle(array))

    return make


def test_arrays_that_have_been_told_are_not_pickled_again(pools, place):
    layouts = Layouts(pools)
    a, b = place(np.arange(3.0)), place(np.arange(4.0))
    notice = layouts.notice([a, b])
    assert layouts.notice([a, b]) is notice
    assert layouts.notice([b, a]) not in (notice,) and layouts.notice([a]) != notice
    assert layouts.notice([a, None]) != layouts.notice([a]) != layouts.notice([None, a])


def test_a_new_array_has_a_new_stamp(pools, place):
    """Even an array at an old location has one: its handle is equal, but its shape and dtype may differ."""
    layouts = Layouts(pools)
    first = place(np.arange(4.0))
    notice, offset = layouts.notice([first]), first.handle.offset
    del first
    again = place(np.arange(8, dtype="float32"))
    assert again.handle.offset == offset
    assert layouts.notice([again]) != notice
    (array,) = layouts.of((layouts.notice([again]),)).arrays(0)
    np.testing.assert_array_equal(array, np.arange(8, dtype="float32"))


def test_the_same_notices_of_all_ranks_are_one_layout(pools, place):
    layouts = Layouts(pools)
    mine, theirs = place(np.arange(3.0)), place(np.arange(3.0) + 10)
    notices = (layouts.notice([mine]), layouts.notice([theirs]))
    layout = layouts.of(notices)
    for _ in range(2):
        assert layouts.of(tuple(bytes(bytearray(notice)) for notice in notices)) is layout
        np.testing.assert_array_equal(layout.arrays(0), [np.arange(3.0), np.arange(3.0) + 10])
    assert len(pools.attached) == 2
    mine.array[:] = 7  # layouts store locations, not values
    np.testing.assert_array_equal(layouts.of(notices).arrays(0)[0], [7, 7, 7])


@pytest.mark.parametrize("rank", [0, 1])
def test_another_notice_of_any_rank_is_another_layout(pools, place, rank):
    layouts = Layouts(pools)
    placed = [place(np.arange(3.0) + 10 * i) for i in range(3)]
    notices = [layouts.notice([each]) for each in placed[:2]]
    layout = layouts.of(tuple(notices))
    layout.plans["all_reduce", (0, 1)] = "a share"
    notices[rank] = layouts.notice(placed[2:])
    other = layouts.of(tuple(notices))
    assert other is not layout and not other.plans
    np.testing.assert_array_equal(other.arrays(0)[rank], np.arange(3.0) + 20)


def test_ranks_without_an_array(pools, place):
    layouts = Layouts(pools)
    layout = layouts.of((layouts.notice([None]), layouts.notice([place(np.arange(3.0))])))
    nothing, array = layout.arrays(0)
    assert nothing is None and layout.of_ranks(0)[0] is None
    np.testing.assert_array_equal(array, np.arange(3.0))


def test_no_more_layouts_are_kept_than_that(pools, place):
    layouts = Layouts(pools)
    placed = [place(np.full(2, float(i))) for i in range(MAX_LAYOUTS + 1)]
    first = layouts.of((layouts.notice(placed[:1]),))
    first.plans["x", ()] = "kept"
    for each in placed[1:]:
        layouts.of((layouts.notice([each]),))
    again = layouts.of((layouts.notice(placed[:1]),))
    assert again is not first and not again.plans
    np.testing.assert_array_equal(again.arrays(0)[0], [0, 0])


@pytest.mark.parametrize("op, ufunc", [("sum", np.add), ("max", np.maximum)])
def test_takers_and_ops_have_shares_of_their_own(make_world, op, ufunc):
    """Only the master takes the result of `reduce` in place, but all ranks take that of `all_reduce`."""
    world = make_world("threads", 2, 1)
    variable = world.shared(np.zeros(40000))
    for _ in range(3):
        parts = [np.arange(40000.0), np.arange(40000.0)[::-1].copy()]
        world.set_values(variable, parts)
        want = ufunc(*parts)
        np.testing.assert_array_equal(synk.reduce(variable, op, in_place=False), want)
        synk.reduce(variable, op)
        np.testing.assert_array_equal(world.values(variable), [parts[0], want])
        synk.all_reduce(variable, op)
        np.testing.assert_array_equal(world.values(variable), [ufunc(parts[0], want)] * 2)


@pytest.fixture
def elsewhere(pools):
    """Return a function that places values in memory of rank 1, which is on another host and cannot be attached."""
    own = Pool(1, 1 << 20)

    def make(value):
        value = np.asarray(value)
        array = own.allocate(value.shape, value.dtype)
        array[...] = value
        return PooledArray.at(array, own.handle(array))

    yield make
    own.close()


def test_values_of_few_bytes_travel_behind_the_notice(pools, place, elsewhere):
    here, there = EagerLayouts(pools, far=[1]), EagerLayouts(pools, far=[0])
    mine = place(np.arange(3.0))
    theirs = [elsewhere(np.arange(5, dtype="int8")), None, elsewhere(2.5), elsewhere(np.zeros(2)), elsewhere([])]

    def layout():
        return here.of((here.notice([mine] * 5, n_given=5), there.notice(theirs, n_given=3)))

    first = layout()
    assert [first.is_eager(1, i) for i in range(5)] == [True, True, True, False, False]
    assert first.is_eager(0, 4) and first.is_all_eager  # also for this rank itself
    np.testing.assert_array_equal(first.arrays(0)[1], np.arange(5))
    assert first.arrays(0)[1].dtype == "int8" and first.arrays(1)[1] is None
    assert first.array(1, 2) == 2.5 and first.array(1, 2).shape == ()
    theirs[0].array[:], theirs[2].array[...] = 7, -1
    np.testing.assert_array_equal(first.arrays(0)[1], np.arange(5))  # the values at the time of the exchange
    assert layout() is first
    np.testing.assert_array_equal(first.arrays(0)[1], [7] * 5)
    assert first.array(1, 2) == -1
    assert pools.attached == []
    assert not here.of((here.notice([mine] * 5), there.notice(theirs, n_given=3))).is_all_eager


@pytest.mark.parametrize("n, n_given, is_eager", [(0, 0, True), (0, 1, False), (1, 0, False)])
def test_which_values_travel_behind_the_notice(pools, elsewhere, n, n_given, is_eager):
    """The limit of bytes applies to all arrays that others read, together."""
    there = EagerLayouts(pools, far=[0])
    placed = [elsewhere(np.zeros(EAGER_BYTES - 8 + n, "uint8")), elsewhere(np.zeros(8, "uint8")), elsewhere(0.0)]
    here = EagerLayouts(pools, far=[1])
    layout = here.of((here.notice([None] * 3), there.notice(placed, n_given=2 + n_given)))
    assert layout.is_eager(1, 0) == layout.is_eager(1, 1) == is_eager
    assert not layout.is_eager(1, 2)


def test_a_lower_limit_of_values_behind_the_notice(pools, elsewhere):
    """The limit is part of the notice's key, because one array may be sent by several collectives."""
    here, there, placed = (
        EagerLayouts(pools, far=[1]),
        EagerLayouts(pools, far=[0]),
        [elsewhere(np.zeros(100, "uint8"))],
    )
    for limit in (99, 100, 99):
        layout = here.of((here.notice([None]), there.notice(placed, n_given=1, eager_bytes=limit)))
        assert layout.is_eager(1, 0) == (limit == 100)


def test_an_array_is_alone_if_nothing_refers_to_it_or_its_base(pool):
    """So that a slot's spare array is written again without a search of all variables."""
    array = pool.allocate((4, 5), "float64")
    placed = PooledArray.at(array, pool.handle(array))
    assert not placed.is_alone
    del array
    assert placed.is_alone
    for refer in (lambda: placed.array, lambda: placed.array[1:], lambda: placed.array.T[0], lambda: placed.array.base):
        held = [refer()]
        assert not placed.is_alone
        held.clear()
        assert placed.is_alone
    with memoryview(placed.array):
        assert not placed.is_alone
    assert placed.is_alone
