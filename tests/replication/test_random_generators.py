"""Random streams of PyTensor: NumPy Generators that functions advance in place. NumPy's jumps are the reference.

Rank 0 draws the serial program's numbers; rank r draws from ``bit_generator.jumped(r)``.
"""

import copy

import numpy as np
import pytest
from refusals import refuses

import synkhronos as synk

pytestmark = pytest.mark.pytensor
pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")

MODE = pytensor.compile.mode.Mode("py", "fast_run")  # advances generators in place


@pytest.fixture(params=[("threads", 3, 0), ("threads", 3, 1), ("fork", 2, 0)], ids="{0[0]}-{0[1]}-root{0[2]}".format)
def world(request, make_world):
    return make_world(*request.param, engine="pytensor")


def stream(seed, kind=np.random.PCG64):
    return pytensor.shared(np.random.Generator(kind(seed)), "state")


def drawing(state, size=3, outputs=lambda drawn: (drawn, "gather"), updates=lambda drawn: [], **options):
    """Return a function that draws normal numbers and advances the state."""
    after, drawn = pt.random.normal(size=(size,), rng=state, return_next_rng=True)
    return synk.function([], outputs(drawn), updates=[(state, after), *updates(drawn)], mode=MODE, **options)


def generators(seed, n, kind=np.random.PCG64):
    """Return the ranks' expected generators."""
    return [np.random.Generator(kind(seed).jumped(rank) if rank else kind(seed)) for rank in range(n)]


def drawn(generators, size=3):
    return np.concatenate([generator.normal(size=size) for generator in generators])


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.Philox, np.random.MT19937])
def test_ranks_draw_long_jumps_apart(world, kind):
    f, truth = drawing(stream(7, kind)), generators(7, world.n, kind)
    for _ in range(3):
        np.testing.assert_array_equal(f(), drawn(truth))


def test_the_program_s_own_generator_is_not_advanced(make_world):
    """A shared variable refers to a borrowed generator only until the first call."""
    make_world("threads", 2, engine="pytensor")
    mine = np.random.default_rng(7)
    state = pytensor.shared(mine, "state", borrow=True)
    np.testing.assert_array_equal(drawing(state)(), drawn(generators(7, 2)))
    assert mine.random() == np.random.default_rng(7).random()


def test_get_and_set_value_copy(world):
    state = stream(7)
    f, truth = drawing(state), generators(7, world.n)
    f()
    drawn(truth)
    last = world.n - 1
    taken, at_root = synk.get_value(last, state), synk.get_value(world.root, state)
    np.testing.assert_array_equal(f(), drawn(truth))  # the returned generator is a copy
    after = copy.deepcopy(taken)
    synk.set_value(0, state, taken)
    truth[0] = copy.deepcopy(after)
    np.testing.assert_array_equal(f(), drawn(truth))
    assert taken.random() == after.random()  # the passed generator is copied, too
    synk.set_value(last, state, at_root)
    truth[last] = copy.deepcopy(at_root)
    np.testing.assert_array_equal(f(), drawn(truth))


def test_slices_draw_one_after_the_other(world):
    state, x = stream(7), pt.matrix("x")
    after, noise = pt.random.normal(size=x.shape, rng=state, return_next_rng=True)
    f = synk.function([x], (x + noise, "gather"), updates=[(state, after)], mode=MODE)
    truth = generators(7, world.n)
    rows = np.zeros((4 * world.n, 2))
    for k in (1, 2):
        expected = np.concatenate([generator.normal(size=(4, 2)) for generator in truth])
        np.testing.assert_array_equal(f(rows, num_slices=k), expected)


def test_a_call_with_collectives_that_fails_advances_nothing(world):
    """If a rank fails after all ranks drew numbers, they draw the same numbers again."""
    state, x, w = stream(7), pt.vector("x"), pytensor.shared(np.zeros(()), "w")
    after, noise = pt.random.normal(size=(2,), rng=state, return_next_rng=True)
    total = synk.ops.all_reduce(noise.sum(), "sum")
    outputs = [(noise, "gather"), (total, None), (pt.specify_shape(x, (2,)), "gather")]
    f = synk.function([x], outputs, updates=[(state, after), (w, w + total)], mode=MODE)
    truth = generators(7, world.n)
    two = np.ones(2 * world.n)
    for fails in (False, True, False, True, False):
        if fails:
            with pytest.raises((AssertionError, ValueError, synk.WorkerError)):
                f(np.ones(3 * world.n))
        else:
            expected = drawn(truth, 2)
            noise_of_all, sum_of_all, _ = f(two)
            np.testing.assert_array_equal(noise_of_all, expected)
            np.testing.assert_allclose(sum_of_all, expected.sum(), rtol=1e-12)


def test_steps_draw_as_calls_do(world):
    f, g = drawing(stream(7)), drawing(stream(7))
    for got, expected in zip(f.steps(n_steps=4), [g() for _ in range(4)]):
        np.testing.assert_array_equal(got, expected)


def test_the_serial_function_goes_on_from_rank_0_s_state(make_world):
    make_world("fork", 2, engine="pytensor")
    f, truth = drawing(stream(7)), generators(7, 2)
    np.testing.assert_array_equal(f(), drawn(truth))
    np.testing.assert_array_equal(f.as_theano(), truth[0].normal(size=3))
    np.testing.assert_array_equal(f(), drawn(truth))


def test_generators_without_jumps_are_refused_before_they_are_sent(make_world):
    make_world("fork", 2, engine="pytensor")
    f = drawing(stream(7, np.random.SFC64))
    with refuses(TypeError, "random state state", got="SFC64", hint="numpy.random.default_rng(seed)"):
        f()
    g = drawing(stream(7))
    np.testing.assert_array_equal(g(), drawn(generators(7, 2)))  # the session is still usable


def test_states_of_one_generator_are_each_their_own(make_world):
    """Ranks that are threads of one process advance separate generators."""
    make_world("threads", 3, engine="pytensor")
    a, b = stream(7), stream(7)
    f, g, truth = drawing(a), drawing(b), generators(7, 3)
    once = drawn(truth)
    for _ in range(2):
        np.testing.assert_array_equal(f(), once)
        np.testing.assert_array_equal(g(), once)
        once = drawn(truth)
