"""Each change that the program makes on the master alone causes a warning; changes made by synkhronos do not.

This applies to functions that are not exact; for exact ones, see test_program_values.py.
"""

import timeit
import weakref

import numpy as np
import pytest
from refusals import reports

import synkhronos as synk
from synkhronos.calls.plan import FunctionVariables
from synkhronos.runtime.registry import SharedEntry
from synkhronos.testing import numpy_engine as engine

TWO = [("threads", 2, 0, "numpy"), ("threads", 3, 1, "numpy"), ("fork", 2, 0, "numpy")]
GRAPHS = [
    pytest.param(("fork", 2, 0, name), marks=getattr(pytest.mark, name), id=name) for name in ("theano", "pytensor")
]
TWO += GRAPHS
BOTH = [("threads", 2, 0, "numpy"), *GRAPHS]


@pytest.fixture
def small(request, make_world, words_of):
    world = make_world(*request.param)
    return world, words_of(world.engine_name)


all_small = pytest.mark.parametrize("small", TWO, indirect=True, ids=str)
both_small = pytest.mark.parametrize("small", BOTH, indirect=True, ids=str)


# -- warnings --------------------------------------------------------------------------------------------------------


@all_small
def test_every_value_that_is_set_on_the_master_is_told(small, told):
    world, words = small
    x, use_noise, other = words.variable("x"), words.shared(0.0, "use_noise"), words.shared(1.0, "other")
    f = words.function([x], (x * 0 + use_noise + other, "gather"), name="drop")
    rows = np.ones(world.n)
    use_noise.set_value(np.array(2.0))  # set before the function is distributed, so the ranks receive this value
    np.testing.assert_array_equal(f(rows), [3.0] * world.n)
    assert told() == []
    use_noise.set_value(np.array(5.0))
    expected = [6.0 if rank == world.root else 3.0 for rank in range(world.n)]
    np.testing.assert_array_equal(f(rows), expected)
    (text,) = told()
    assert "function drop" in text and "use_noise was changed on the master alone" in text, text
    assert "synk.broadcast(use_noise)" in text and "other" not in text.replace("the other ranks", ""), text
    np.testing.assert_array_equal(f(rows), expected)
    assert told() == []
    use_noise.set_value(np.array(0.0))
    f(rows)
    assert len(told()) == 1
    synk.broadcast(use_noise)
    np.testing.assert_array_equal(f(rows), [1.0] * world.n)
    other.set_value(np.array(4.0))
    f.steps(rows, n_steps=2)
    (text,) = told()
    assert "synk.broadcast(other)" in text, text


@both_small
def test_several_at_once_are_one_line(small, told):
    world, words = small
    x = words.variable("x")
    params = [words.shared(np.zeros(2), name) for name in ("w", "b", None)]
    f = words.function([x], (words.sum(x) + words.sum(params[0] + params[1] + params[2]), "avg"), name="f")
    f(np.ones(world.n))
    for param in params:
        param.set_value(np.ones(2))
    f(np.ones(world.n))
    (text,) = told()
    place = f"f.get_shared()[{[each is params[2] for each in f.get_shared()].index(True)}]"
    names = {each: getattr(each, "name", None) or place for each in f.get_shared()}
    assert f"synk.broadcast([{', '.join(names[each] for each in f.get_shared())}])" in text, text
    assert f"{place} (float64 vector)" in text, text


@both_small
def test_it_is_told_by_the_next_function_that_uses_the_variable(small, told):
    world, words = small
    x, w = words.variable("x"), words.shared(np.zeros(()), "w")
    f = words.function([x], words.sum(x * w), updates=[(w, w + 1)], name="first")
    f(np.ones(world.n))
    w.set_value(np.array(7.0))
    synk.gather(w), synk.get_value(1, w), synk.in_sync(w)  # these calls move values, but leave them different
    g, without = words.function([x], words.sum(x * w), name="second"), words.function([x], words.sum(x))
    without(np.ones(world.n))
    assert told() == []
    g(np.ones(world.n))
    (text,) = told()
    assert "function second" in text
    f(np.ones(world.n))
    assert told() == []


@both_small
def test_what_as_theano_updates_is_told(small, told):
    world, words = small
    x, w = words.variable("x"), words.shared(np.zeros(()), "w")
    f = words.function([x], words.sum(x), updates=[(w, w + 1)])
    f(np.ones(world.n))
    f.as_theano(np.ones(1))
    f(np.ones(world.n))
    assert len(told()) == 1


@pytest.mark.parametrize("small", GRAPHS, indirect=True)
def test_what_as_theano_updates_in_place_is_told(small, told):
    from library import L, T

    world, words = small
    x, w, s = T.dvector("x"), L.shared(np.zeros(2), "w"), L.shared(np.zeros(2), "s")
    f = synk.function([x], x.sum(), updates=[(w, w + 1), (s, s + x.sum())], exact=False, mode=L.full)
    f(np.ones(world.n))
    before = w.get_value(borrow=True)
    f.as_theano(np.ones(1))
    assert w.get_value(borrow=True) is before  # the array's identity does not change
    f(np.ones(world.n))
    (text,) = told()
    assert "w, s were changed on the master alone" in text, text


@both_small
def test_each_session_tells_it_anew(small, make_world, told):
    world, words = small
    x, w = words.variable("x"), words.shared(np.zeros(()), "w")
    f = words.function([x], words.sum(x * w))
    for _ in range(2):
        f(np.ones(world.n))
        w.set_value(np.array(7.0))
        f(np.ones(world.n))
        assert len(told()) == 1
        synk.close()
        w.set_value(np.array(8.0))  # set between sessions, so the ranks of the next session receive this value
        make_world(world.launcher, world.n, world.root, world.engine_name)


# -- cases without a warning -----------------------------------------------------------------------------------------


@all_small
def test_what_the_library_changes_is_not_told(small, told):
    world, words = small
    rows = np.arange(4.0 * world.n)
    x = words.variable("x")
    a, b, c, d = (words.shared(np.full(2, value), name) for value, name in zip((1.0, 2.0, 3.0, 4.0), "abcd"))
    clone = d.clone() if world.engine_name == "numpy" else d
    f = words.function([x], words.sum(x * 1), updates=[(a, b), (b, a), (c, c + words.mean(x)), (d, d * 2)])
    g = words.function([x], (words.sum(x) + words.sum(a + b + c) + words.sum(clone), "avg"))
    everything = [a, b, c, d]
    actions = [
        lambda: synk.all_reduce(everything),
        lambda: synk.all_reduce(everything, op="sum"),
        lambda: synk.broadcast(everything),
        lambda: synk.broadcast(a, np.zeros(2)),
        lambda: synk.scatter(c, np.arange(2.0 * world.n)),
        lambda: synk.set_value(world.root, a, np.ones(2)),
        lambda: synk.set_value(1 - min(world.root, 1), b, np.ones(2)),
        lambda: synk.reduce(everything),
        lambda: synk.reduce(everything, in_place=False),
        lambda: synk.gather(everything),
        lambda: synk.all_gather(d),
        lambda: synk.broadcast(d, np.ones(2)),
        lambda: synk.get_value(world.root, everything),
        lambda: synk.in_sync(everything),
        lambda: f(rows, num_slices=2),
        lambda: f.steps(rows, batches=[[0, 1], [1, 2, 3]]),
        lambda: f(rows, batch=1),
        lambda: f(rows, batch=0),
        lambda: g.as_theano(np.ones(2)),  # this call updates nothing
        lambda: a.get_value(borrow=True).sum(),
        synk.distribute,
    ]
    for i, act in enumerate(actions):
        for call in (f, g):
            with np.errstate(all="ignore"):  # the mean of no rows; importing Theano disables these warnings permanently
                act()
            call(rows)
            assert told() == [], i
    a.set_value(np.zeros(2))
    f(rows)
    assert len(told()) == 1  # no second warning
    c.get_value(borrow=True).fill(7)
    f(rows)
    assert len(told()) == 1


@both_small
def test_random_streams_are_the_masters_own(small, told):
    """Drawing on the master alone causes no warning, because every rank has its own stream."""
    world, words = small
    if world.engine_name != "numpy":
        from library import L

        stream = L.streams(1)[0]  # (Theano's state is a dense array)
        f = words.function([], (stream.uniform((2,)), "gather"))
    else:
        stream = engine.random_stream(1)
        f = synk.function([], (engine.uniform(stream, (2,)), "gather"))
    f(), f.as_theano(), f()
    assert told() == []


@all_small
def test_a_value_that_is_set_in_the_middle_of_steps_is_told(small, told):
    """A value that `on_step` sets on the master causes one warning; the other ranks continue with the old value."""
    world, words = small
    w, rate, other = words.shared(0.0, "w"), words.shared(1.0, "rate"), words.shared(1.0, "other")
    f = words.function([], (w + other, "gather"), updates=[(w, w + rate)], name="train")

    def set_once(i, outputs):
        if i == 0:
            rate.set_value(np.array(0.0))

    f.steps(n_steps=4, on_step=set_once)
    (text,) = told()
    assert text.startswith("function train: rate was changed on the master alone") and "broadcast(rate)" in text
    at_the_end = [float(each) for each in world.values(w)]
    assert [at_the_end[rank] for rank in range(world.n) if rank != world.root] == [4.0] * (world.n - 1)
    assert at_the_end[world.root] == 1.0
    f.steps(n_steps=2, on_step=lambda i, outputs: None)
    f()
    assert told() == []
    f.steps(n_steps=2, on_step=lambda i, outputs: w.set_value(np.array(9.0)))  # w is updated by the steps themselves
    assert len(told()) == 1


def refusing_negatives(array):
    if (array < 0).any():
        raise ValueError("on purpose")
    return array


def test_a_call_that_fails_leaves_nothing_to_tell(make_world, numpy_words, told):
    make_world("threads", 2)
    x, w = numpy_words.variable("x", ndim=1), numpy_words.shared(np.zeros(()), "w")
    y = numpy_words.apply(refusing_negatives, x, dtype="float64", ndim=1)
    f = synk.function([x], (y, "gather"), updates=[(w, w + 1)])
    for rows in ([1, 2], [1, -2], [-1, 2], [1, 2, 3], [1, 2]):  # the call fails only on rank 1, then on the master
        if min(rows) < 0:
            with reports((ValueError, synk.WorkerError), "on purpose"):
                f(np.array(rows, float))
        else:
            f(np.array(rows, float))
    assert told() == [] and w.get_value() == 4  # the master had updated its own value when rank 1 failed


def test_one_rank_has_nobody_to_differ_from(make_world, numpy_words, told):
    make_world("threads", 1)
    x, w = numpy_words.variable("x"), numpy_words.shared(np.zeros(()), "w")
    f = synk.function([x], numpy_words.sum(x * w))
    f(np.ones(2))
    w.set_value(np.array(3.0))
    assert f(np.ones(2)) == 6 and told() == []


def test_values_of_before_need_no_memory_in_steps(make_world, numpy_words):
    make_world("threads", 2)
    x, w = numpy_words.variable("x"), numpy_words.shared(np.zeros(5), "w")
    f = synk.function([x], numpy_words.sum(x), updates=[(w, w + 1)])
    f(np.ones(2))  # from here on, w has its own memory
    before, alive = weakref.ref(w.get_value(borrow=True)), []
    f.steps(np.ones(2), n_steps=2, on_step=lambda i, outputs: alive.append(before() is not None))
    assert alive == [False, False] and w.get_value().tolist() == [3.0] * 5


# -- costs -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_looking_at_20_variables_takes_less_than_a_microsecond():
    entries = [SharedEntry(i, None, None, [np.zeros(i)], False) for i in range(20)]
    variables = FunctionVariables(entries)
    assert variables.are_unchanged()
    took = min(timeit.repeat(variables.are_unchanged, number=1000, repeat=50)) / 1000
    assert took < 1e-6, f"{took * 1e6:.2f} us"
    entries[19].cell[0] = np.zeros(19)
    assert not variables.are_unchanged()
    variables.record()
    assert variables.are_unchanged()
