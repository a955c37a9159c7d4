"""In exact functions, random numbers that all rows share (noise on weights) equal the serial program's on all ranks."""

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T
from refusals import refuses

import synkhronos as synk
from synkhronos.testing import numpy_engine

pytestmark = getattr(pytest.mark, NAME)


def streams_of(seed):
    """Return the engine's faster kind of random streams."""
    return L.streams(seed)[0]


FAST = dict(mode=L.quick)


def rows(n, seed=0):
    return np.random.RandomState(seed).randn(n, 3)


def noise(streams):
    """Return the weights, inputs, outputs and updates of a regression with noise and a mask on its weights."""
    x, w = T.dmatrix("x"), L.shared(np.array([0.4, -1.0, 0.3]), "w")
    noisy = w + 0.1 * streams.normal((3,), avg=0.0, std=1.0)
    masked = noisy * T.cast(streams.binomial((3,), p=0.7), "float64")
    loss = T.sqr(T.dot(x, masked) - 1).mean()
    g = T.grad(loss, w)
    return w, [x], [loss, masked, T.dot(x, masked)], [(w, w - 0.1 * g / (T.sqrt(T.sqr(g).sum()) + 0.1))]


def chain(streams):
    """Return a model with a Markov chain, drawn in a scan and kept between calls; its loss also depends on rows."""
    x, w = T.dmatrix("x"), L.shared(np.array([0.4, -1.0, 0.3]), "w")
    particles = L.shared(np.zeros((2, 3)), "particles")

    def step(v):
        return T.cast(streams.binomial((2, 3), p=T.nnet.sigmoid(v * w)), "float64")

    states, of_scan = L.scan(step, outputs_info=[particles], n_steps=3)
    cost = T.dot(x, w).mean() - T.dot(states[-1], w).mean()
    g = T.grad(cost, w, consider_constant=[states])
    return w, [x], [cost], [(w, w - 0.1 * T.tanh(g)), (particles, states[-1]), *of_scan.items()]


@pytest.mark.thorough("threads-1")
@pytest.mark.parametrize("kind", range(2 if IS_THEANO else 1))
@pytest.mark.parametrize("build", [noise, chain])
def test_all_ranks_draw_what_the_serial_program_draws(small_world, build, kind):
    (w, inputs, outputs, updates), (other, *plain) = (build(L.streams(7)[kind]) for _ in range(2))
    f = synk.function(inputs, outputs, updates=updates, exact=True, **FAST)
    g = L.function(plain[0], plain[1], updates=plain[2], **FAST)
    for i, n in enumerate([6, 4, 2, 7]):  # with three ranks, one rank has no rows in the third call
        for found, expected in zip(f(rows(n, i)), g(rows(n, i))):
            np.testing.assert_allclose(found, expected, rtol=1e-10)
        for of_rank in synk.gather(w):
            np.testing.assert_allclose(of_rank, other.get_value(), rtol=1e-10)
    found = f.steps(rows(9, 5), batches=[slice(0, 4), slice(4, 9)])
    for k, batch in enumerate([slice(0, 4), slice(4, 9)]):
        np.testing.assert_allclose(found[0][k], g(rows(9, 5)[batch])[0], rtol=1e-10)


def test_rows_have_numbers_of_their_own_beside(threads):
    x, streams = T.dmatrix("x"), streams_of(3)
    f = synk.function([x], [x + streams.uniform(x.shape), streams.uniform((2,))], exact=True, **FAST)
    own, common = f(np.zeros((9, 1)))
    assert len(np.unique(own)) == 9 and common.shape == (2,)
    reference = streams_of(3)
    reference.uniform(x.shape)
    np.testing.assert_allclose(common, L.function([], reference.uniform((2,)))())


def test_a_copy_draws_likewise(threads):
    w, inputs, outputs, updates = noise(streams_of(7))
    f = synk.function(inputs, outputs, updates=updates, exact=True, **FAST).copy()
    assert len(f.common_streams) == 2
    masked = f(rows(6))[1]
    _, plain, expected, _ = noise(streams_of(7))
    np.testing.assert_allclose(masked, L.function(plain, expected, **FAST)(rows(6))[1])


def test_slices_are_refused(threads):
    w, inputs, outputs, updates = noise(streams_of(7))
    f = synk.function(inputs, outputs[:1], updates=updates, exact=True, **FAST)
    with refuses(ValueError, "num_slices", "random", "2"):
        f(rows(6), num_slices=2)
    assert np.isfinite(f(rows(6))[0])


def test_without_exact_it_is_unknown(threads):
    _, inputs, outputs, _ = noise(streams_of(7))
    with refuses(TypeError, "outputs[0]", None, "differ"):
        synk.function(inputs, outputs[1:], **FAST)


def test_a_stream_that_ranks_have_split_before_is_refused(threads):
    streams, x = streams_of(7), T.dmatrix("x")
    draw = streams.uniform((3,))
    early = synk.function([x], [(x.sum(axis=0) + draw, "gather")], **FAST)
    late = synk.function([x], x.sum(axis=0) + draw, exact=True, name="late", **FAST)
    synk.close()
    synk.fork(2)
    assert np.isfinite(late(rows(4))).all()  # this function is first, so the stream is common
    synk.close()
    del late
    synk.fork(2)
    early(rows(4))
    late = synk.function([x], x.sum(axis=0) + draw, exact=True, name="late", **FAST)
    with refuses(ValueError, "function late", "streams", "earlier"):
        late(rows(4))
    assert early(rows(4))[0].shape == (6,)


def test_beside_streams_of_another_engine(threads):
    """Exact functions draw correctly if a function of another engine draws from a separate stream."""
    drawn = numpy_engine.uniform(numpy_engine.random_stream(1), (3,))
    f = synk.function([], (drawn, "gather"), name="of NumPy")
    w, inputs, outputs, updates = noise(streams_of(3))
    g = synk.function(inputs, outputs, updates=updates, exact=True, **FAST)
    for function, given in ((g, [rows(7)]), (f, []), (g, [rows(5)])):
        function(*given)
    numbers = np.random.RandomState(1).random_sample(9)
    np.testing.assert_array_equal(f().reshape(3, 3)[0], numbers[3:6])  # rank 0 draws the serial program's numbers


def common_and_own(streams, with_collective=False):
    """Return an exact function, one that is not exact, and the serial function, which all draw from one stream."""
    x, draw = T.dmatrix("x"), streams.uniform((3,))
    more = [synk.ops.all_reduce(x.mean())] * with_collective
    exact = synk.function([x], x.sum(axis=0) + draw, name="exact", exact=True, **FAST)
    own = synk.function([x], [(draw.sum() + x.sum(), "avg"), *more], name="own", **FAST)
    return exact, own, L.function([x], x.sum(axis=0) + draw, **FAST)


@pytest.mark.parametrize("random", ["split", "same"])
@pytest.mark.parametrize("with_collective", [False, True])
def test_one_stream_in_an_exact_function_and_in_another(make_world, random, with_collective):
    """The other function refuses calls that leave a rank without rows, because this rank would draw less often."""
    make_world("threads", 3, 1, engine=NAME, random=random)
    f, own, _ = common_and_own(streams_of(7), with_collective)
    serial = common_and_own(streams_of(7))[2]
    np.testing.assert_allclose(f(rows(7)), serial(rows(7)))
    with refuses(ValueError, "function own", "streams", "exact function exact uses", "exact=True"):
        own(rows(1))
    np.testing.assert_allclose(f(rows(2)), serial(rows(2)))
    synk.close()
    make_world("threads", 3, 1, engine=NAME, random=random)
    with refuses(ValueError, "function own"):  # even before the first call to the exact function
        own(rows(1))
    np.testing.assert_allclose(f(rows(2)), serial(rows(2)))


@pytest.mark.parametrize("mode", [L.quick, L.full], ids=["another object", "in place"])
def test_what_the_master_draws_alone_is_drawn(small_world, mode):
    """Draws by `as_theano` on the master advance the stream on all ranks, as in the serial program."""
    streams, x = [streams_of(7), streams_of(7)], T.dmatrix("x")
    f, serial = (
        make([x], x.sum(axis=0) + stream.uniform((3,)), mode=mode, **options)
        for make, stream, options in zip((synk.function, L.function), streams, ({"exact": True}, {}))
    )
    (state,) = L.states(streams[0])
    for call in (f, f.as_theano, f, f.as_theano, f.as_theano, f):
        np.testing.assert_allclose(call(rows(7)), serial(rows(7)))
        if call is f:
            after = [synk.get_value(rank, state) for rank in range(small_world.n)]
            assert all(state_of(one) == state_of(after[0]) for one in after)
    serial(rows(7))
    state.set_value(L.states(streams[1])[0].get_value())  # a state set by the program counts, too
    np.testing.assert_allclose(f(rows(1)), serial(rows(1)))
    np.testing.assert_allclose(f(rows(7)), serial(rows(7)))
    before = synk.get_value(small_world.root, state)
    f(rows(7)), serial(rows(7))
    if small_world.n > 1:
        synk.set_value((small_world.root + 1) % small_world.n, state, before)  # on one rank; then on all ranks
    np.testing.assert_allclose(f(rows(7)), serial(rows(7)))
    for rank in range(small_world.n):
        synk.set_value(rank, state, before)
    L.states(streams[1])[0].set_value(before)
    np.testing.assert_allclose(f(rows(7)), serial(rows(7)))


def state_of(value):
    """Return a random state in a form that can be compared."""
    return str(value.bit_generator.state) if isinstance(value, np.random.Generator) else value.tolist()


def test_exact_functions_that_draw_from_one_stream(small_world):
    def build(make, **options):
        x, draw = T.dmatrix("x"), streams_of(7).uniform((3,))
        return [make([x], output, **options, **FAST) for output in (x.sum(axis=0) + draw, x.sum() * draw.sum())]

    for i, n in enumerate([7, 1, 2, 7, 4]):
        if i == 0:
            ours, plain = build(synk.function, exact=True), build(L.function)
        np.testing.assert_allclose(ours[i % 2](rows(n)), plain[i % 2](rows(n)))


@pytest.mark.parametrize("random", ["split", "same"])
def test_a_stream_from_which_ranks_have_drawn_each_by_itself_is_refused(make_world, random):
    make_world("threads", 3, 1, engine=NAME, random=random)
    x, draw = T.dmatrix("x"), streams_of(7).uniform((3,))
    own = synk.function([x], (draw.sum() + x.sum(), "avg"), name="own", **FAST)
    own(rows(1))
    late = synk.function([x], x.sum(axis=0) + draw, name="late", exact=True, **FAST)
    with refuses(ValueError, "function late", "streams"):
        late(rows(7))
