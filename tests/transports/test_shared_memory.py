"""Parts of the transport that the tests of the collectives do not check separately.

Modules: `base`.
"""

import gc
import threading

import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

import synkhronos as synk  # noqa: E402
from synkhronos.kernels.reduce import portions_of  # noqa: E402
from synkhronos.memory.pool import Pool  # noqa: E402
from synkhronos.sync import control_block  # noqa: E402
from synkhronos.testing import numpy_engine as engine  # noqa: E402

KEY = ("shared", -1)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=6).map(tuple), st.integers(1, 9))
def test_shares_cover_every_byte_once_and_meet_at_cache_lines(sizes, ranks):
    shares = portions_of(sizes, ranks)
    assert len(shares) == ranks
    for i, size in enumerate(sizes):
        pieces = sorted((begin, end) for share in shares for array, begin, end in share if array == i)
        assert [begin for begin, _ in pieces] == ([0] + [end for _, end in pieces[:-1]] if size else [])
        assert not size or pieces[-1][1] == size
        assert all(end % 64 == 0 for _, end in pieces[:-1])
    amounts = [sum(end - begin for _, begin, end in share) for share in shares]
    # Equal shares, except for rounding to cache lines at both ends.
    assert max(amounts) - sum(sizes) / ranks <= 64 + 1


@pytest.fixture
def transport(make_world):
    return make_world("threads", 1).session.context.transport


@pytest.mark.parametrize(
    "make",
    [np.asarray, np.asfortranarray, lambda array: np.repeat(array, 2, axis=1)[:, ::2], lambda array: array[::-1][::-1]],
)
def test_binding_copies_once(transport, make):
    value = make(np.arange(12.0).reshape(3, 4))
    (bound,) = transport.bind([KEY], [value])
    assert bound is not value and bound.flags.c_contiguous
    np.testing.assert_array_equal(bound, value)
    assert transport.bind([KEY], [bound])[0] is bound
    assert transport.bind([KEY], [bound[:]])[0] is bound  # the same memory
    reversed_ = np.array(bound[::-1])
    np.testing.assert_array_equal(transport.bind([KEY], [bound[::-1]])[0], reversed_)


def test_binding_leaves_alone_what_another_variable_has_borrowed(transport):
    (first,) = transport.bind([KEY], [np.zeros(3)])
    borrowed = first[1:]
    transport._borrowed = lambda: {id(borrowed.base)}
    (second,) = transport.bind([KEY], [np.ones(3)])
    assert not np.shares_memory(borrowed, second) and not borrowed.any()
    address = second.__array_interface__["data"]
    (third,) = transport.bind([KEY], [np.zeros(3)])
    assert third.__array_interface__["data"] == address  # the memory was not borrowed, so it is reused


def test_results_lie_beside_the_current_array_until_they_are_swapped_in(transport):
    (current,) = transport.bind([KEY], [np.zeros(3)])
    result = transport.allocate(KEY, (3,), np.dtype("float64"))
    result[:] = 1
    assert not np.shares_memory(current, result) and not current.any()
    transport.swap_in(KEY, result)
    transport.swap_in(KEY, result)  # an interrupt may repeat this call
    assert transport.bind([KEY], [result])[0] is result
    transport.forget({("shared",)})
    assert transport.bind([KEY], [result])[0] is not result


@pytest.mark.parametrize("which", [1, 2])  # 1: the current array's handle; 2: the spare array's handle
def test_ctrl_c_between_an_array_and_its_handle(make_world, monkeypatch, which):
    """After an interrupt, no rank reads or writes at an array's old location."""
    world = make_world("threads", 2)
    variable, borrower = world.shareds([np.zeros(4), np.zeros(4)])
    synk.broadcast(variable)
    world.set_values(variable, [[1.0] * 4, [2.0] * 4])
    slot = world.session.context.transport._slots["shared", world._number(variable)]
    borrower.storage[0] = slot.current.array  # so that the next collective creates an array
    make, left = Pool.handle, [which]

    def handle(pool, array):
        if threading.current_thread() is threading.main_thread() and array.shape == (4,):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
        return make(pool, array)

    monkeypatch.setattr(Pool, "handle", handle)
    with pytest.raises(KeyboardInterrupt):
        synk.all_reduce(variable, "sum")
    gc.collect()  # the interrupted frames refer to the array
    for first in (1.0, 5.0):
        world.set_values(variable, [[first] * 4, [2.0] * 4])
        synk.all_reduce(variable, "sum")
        np.testing.assert_array_equal(world.values(variable), np.full((2, 4), first + 2))


def test_exchange_of_notices_larger_than_their_slots(make_world):
    world = make_world("threads", 3, 1)
    many = world.shareds([np.full(i % 5, 1.0) for i in range(700)])
    assert 700 * 2 * 13 > control_block.NOTICE_BYTES  # minimum number of bytes of 700 pairs of handles
    for _ in range(3):
        synk.all_reduce(many, "sum")
    np.testing.assert_array_equal(synk.get_value(2, many[699]), np.full(4, 27.0))


@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("collective", ["broadcast", "all_gather", "all_reduce"])
def test_a_collective_of_thousands_searches_all_variables_once(make_world, collective, holds):
    """Whether a variable has borrowed an array's memory depends on all variables, so n searches would take n * n.

    If nothing else refers to the arrays, no search is necessary.
    """
    session = make_world("threads", 2).session
    x, ws = engine.variable("x", "float64", 1), [engine.shared(np.zeros(3)) for _ in range(50)]
    _user = synk.function([x], engine.mean(x), updates=[(w, w + 1) for w in ws])
    synk.distribute()
    transport, searches = session.context.transport, []
    borrowed = transport._borrowed

    def counted():
        searches.append(1)
        return borrowed()

    transport._borrowed, held = counted, []
    try:
        for _ in range(2):
            for i, w in enumerate(ws):
                w.set_value(np.full(3, float(i)))
            getattr(synk, collective)(ws)
            if holds:
                held += [w.get_value(borrow=True)[1:] for w in ws]
    finally:
        transport._borrowed = borrowed
    if holds:
        assert len(searches) <= 8  # two for each collective, and for what sends the program's values
        assert searches or collective == "all_gather"  # whose results need new memory
    else:
        assert not searches
