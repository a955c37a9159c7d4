"""Random streams of the ranks, compared with the serial program and with the jumps of tests/engines."""

import gc
import threading

import numpy as np
import pytest
from refusals import refuses, reports
from worlds import FEWER_WORLDS, WORLDS

import synkhronos as synk
from synkhronos.engines.random_states import jumped_random_state, seeded_random_state
from synkhronos.program.program import PROGRAM
from synkhronos.testing import numpy_engine as engine

pytestmark = [*FEWER_WORLDS, pytest.mark.slow]

PLACES = [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
all_places = pytest.mark.parametrize("n, root", PLACES)


@pytest.fixture(autouse=True)
def no_other_functions():
    """Free functions of earlier tests, which would be sent first: a seed numbers streams in the order of sending."""
    synk.close()
    if PROGRAM.functions:
        gc.unfreeze()
        gc.collect()
        gc.freeze()


def drawing(stream, count=3):
    """Return a function without inputs; every rank draws ``count`` numbers."""
    return synk.function([], (engine.uniform(stream, (count,)), "gather"), name="draw")


def drawn(state, n, count, calls=1, split=True, skip=0):
    """Return the draws of n ranks in each call, with shape (n, count), if rank 0 begins at ``state``."""
    ranks = [jumped_random_state(state, rank if split else 0) for rank in range(n)]
    for rank in ranks:
        rank.random_sample(skip)
    return [np.stack([rank.random_sample(count) for rank in ranks]) for _ in range(calls)]


def assert_drawn(function, expected):
    for numbers in expected:
        np.testing.assert_array_equal(function().reshape(numbers.shape), numbers)


def seed_1():
    return np.random.RandomState(1)


# -- initial states ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher, n, root, name", WORLDS)
def test_ranks_draw_long_jumps_apart(make_world, launcher, n, root, name):
    synk.close()
    f = drawing(engine.random_stream(1))
    make_world(launcher, n, root)
    expected = drawn(seed_1(), n, 3, calls=4)
    np.testing.assert_array_equal(np.stack(expected)[:, 0].ravel(), seed_1().random_sample(12))  # the plain numbers
    assert_drawn(f, expected)


@pytest.mark.parametrize("launcher, n, root, name", WORLDS)
def test_the_same_streams_on_all_ranks(make_world, launcher, n, root, name):
    make_world(launcher, n, root, random="same")
    expected = np.tile(seed_1().random_sample((2, 1, 3)), (1, n, 1))
    assert_drawn(drawing(engine.random_stream(1)), expected)


@all_places
def test_a_stream_begins_once(make_world, n, root):
    """Neither `distribute` nor another function restarts a stream."""
    make_world("threads", n, root)
    stream = engine.random_stream(1)
    f, other = drawing(stream), drawing(engine.random_stream(2))
    expected = drawn(seed_1(), n, 3, calls=5)
    assert_drawn(f, expected[:1])
    synk.distribute()
    assert_drawn(f, expected[1:2])
    stream.default_update = None
    g = drawing(stream)
    synk.distribute()
    assert_drawn(g, expected[2:3])
    assert_drawn(other, drawn(np.random.RandomState(2), n, 3))
    assert_drawn(f, expected[3:4])
    del f
    gc.collect()
    assert_drawn(g, expected[4:])


@all_places
def test_it_begins_where_the_masters_is(make_world, n, root):
    """The master may draw alone before and between the ranks' calls."""
    stream = engine.random_stream(1)
    f = drawing(stream)
    f.as_theano()
    make_world("threads", n, root)
    f.as_theano()
    expected = drawn(seed_1(), n, 3, calls=3, skip=6)
    assert_drawn(f, expected[:1])
    np.testing.assert_array_equal(f.as_theano(), expected[1][root])
    third = f().reshape(n, 3)
    np.testing.assert_array_equal(third[root], expected[2][root])
    np.testing.assert_array_equal(np.delete(third, root, 0), np.delete(expected[1], root, 0))


def test_explicit_updates(make_world):
    """Without a default update, only a function's explicit updates change the state."""
    make_world("threads", 3, 1)
    stream = engine.random_stream(1)
    numbers = engine.uniform(stream, (3,))
    after, stream.default_update = stream.default_update, None
    f = synk.function([], (numbers, "gather"), updates=[(stream, after)])
    still = synk.function([], (numbers, "gather"))
    expected = drawn(seed_1(), 3, 3, calls=3)
    assert_drawn(f, expected[:2])
    assert_drawn(still, [expected[2], expected[2]])


@pytest.mark.parametrize("launcher", ["threads", "fork"])
def test_ranks_do_not_meet(make_world, launcher):
    make_world(launcher, 3, 1)
    f, g = drawing(engine.random_stream(1), 20000), drawing(engine.random_stream(2), 20000)
    numbers = np.concatenate([f(), g(), f(), g()])
    assert len(np.unique(numbers)) == 12 * 20000  # 53 random bits each


# -- seeds -------------------------------------------------------------------------------------------------------------


@pytest.mark.thorough(but="^0")
@pytest.mark.parametrize("random", ["split", "same"])
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_streams_are_numbered_as_their_functions_were_built(make_world, seed, random):
    streams = [engine.random_stream(i) for i in range(4)]
    f = synk.function([], [(engine.uniform(streams[i], (3,)), "gather") for i in (1, 0)])
    g, h = drawing(streams[2]), drawing(streams[3])
    for n, root, order in ((3, 0, (f, g, h)), (3, 1, (h, g, f)), (3, 2, ()), (1, 0, (g,))):
        make_world("threads", n, root, seed=seed, random=random)
        for function in order:  # the functions are distributed one by one
            function()
        synk.close()
        make_world("threads", n, root, seed=seed, random=random)
        synk.distribute()
        expected = [drawn(seeded_random_state(seed, i), n, 3, split=random == "split")[0] for i in range(4)]
        np.testing.assert_array_equal(np.reshape(f(), (2, n, 3)), expected[:2])
        assert_drawn(g, expected[2:3])
        assert_drawn(h, expected[3:])
        later = engine.random_stream(7)
        assert_drawn(drawing(later), drawn(seeded_random_state(seed, 4), n, 3, split=random == "split"))


@all_places
def test_order_of_calls_changes_nothing(make_world, n, root):
    f, g = drawing(engine.random_stream(1)), drawing(engine.random_stream(2))
    numbers = []
    for order in ((f, g, g), (g, g, f)):
        make_world("threads", n, root, seed=5)
        results = {f: [], g: []}
        for function in order:
            results[function].append(function())
        numbers.append(results)
        synk.close()
    for function in (f, g):
        np.testing.assert_array_equal(numbers[0][function], numbers[1][function])


def test_fork_takes_seed_and_random():
    f = drawing(engine.random_stream(1))
    for random in ("split", "same"):
        for _ in range(2):
            synk.fork(3, use_gpu=False, master_rank=2, seed=np.int64(0), random=random)
            assert_drawn(f, drawn(seeded_random_state(0, 0), 3, 3, calls=2, split=random == "split"))
            synk.close()


@pytest.mark.parametrize(
    "error, argument, got, arguments",
    [
        (ValueError, "seed", "-1", {"seed": -1}),
        (TypeError, "seed", "1.0 of type float", {"seed": 1.0}),
        (TypeError, "seed", "True", {"seed": True}),
        (ValueError, "random", "'other'", {"random": "other"}),
        (ValueError, "random", "None", {"random": None}),
    ],
)
def test_wrong_arguments_start_nothing(error, argument, got, arguments):
    synk.close()
    with refuses(error, argument, got=got):
        synk.fork(2, use_gpu=False, **arguments)
    assert not synk.is_forked()


# -- consecutive sessions, and functions that are built and dropped ----------------------------------------------------


def test_another_session_begins_where_the_master_is(make_world):
    """Rank 0 continues the stream of the last master, whatever its rank."""
    f = drawing(engine.random_stream(1))
    state = seed_1()
    for n, root in ((2, 1), (3, 2), (2, 0), (1, 0), (3, 1)):
        make_world("threads", n, root)
        assert_drawn(f, drawn(state, n, 3, calls=2))
        synk.close()
        state = jumped_random_state(state, root)
        state.random_sample(6)
        np.testing.assert_array_equal(f.as_theano(), state.random_sample(3))


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"random": "same"}])
@all_places
def test_a_stream_that_was_dropped_and_is_sent_again(make_world, n, root, options):
    """The master continues; no rank repeats numbers of any rank."""
    make_world("threads", n, root, **options)
    stream = engine.random_stream(1)
    state = seeded_random_state(3, 0) if options.get("seed") else seed_1()
    split = "random" not in options
    numbers = []
    for i in range(3):
        stream.default_update = None
        f = drawing(stream)
        numbers.append(f().reshape(n, 3))
        del f
        gc.collect()
        synk.distribute()
        other = drawing(engine.random_stream(2))
        other()  # with this command, ranks drop the deleted stream
        np.testing.assert_array_equal(numbers[i][root], drawn(state, n, 3, calls=3, split=split)[i][root])
    assert len(np.unique(numbers)) == (9 * n if split else 9)


def refuse(where):
    raise ValueError("no loading " + where)


class DoesNotLoad:
    def __reduce__(self):
        return refuse, ("here",)


@pytest.mark.parametrize(
    "hindrance, error, fact",
    [
        (threading.Lock, TypeError, "_thread.lock"),
        (DoesNotLoad, synk.WorkerError, "no loading here"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"seed": 3}])
def test_what_could_not_be_sent_has_changed_nothing(make_world, options, hindrance, error, fact):
    world = make_world("threads", 3, 2, **options)
    stream = engine.random_stream(1)
    numbers = engine.uniform(stream, (3,))
    here = hindrance()
    bad = synk.function([], (engine.apply(lambda x: (here, x)[1], numbers, dtype="float64", ndim=1), "gather"))
    before = stream.get_value()
    for _ in range(2):
        with reports(error, fact):
            synk.distribute()
        assert stream.get_value() is before and before.get_state()[2] == 624
    stream.default_update = None
    good = drawing(stream)
    assert_drawn(good, drawn(seeded_random_state(3, 0) if options else seed_1(), 3, 3, calls=2))
    assert world.session.closed is None
    del bad


# -- calls -------------------------------------------------------------------------------------------------------------


@all_places
def test_states_advance_from_slice_to_slice(make_world, n, root):
    make_world("threads", n, root)
    x, w = engine.variable("x", "float64", 1), engine.shared(np.zeros(()), "w")
    noise = engine.uniform(engine.random_stream(1), engine.apply(np.shape, x, dtype="int64", ndim=1), ndim=1)
    f = synk.function([x], (x + noise, "gather"), updates=[(w, w + engine.sum(noise), "sum")])
    rows = np.arange(7.0)
    ranks = [jumped_random_state(seed_1(), rank) for rank in range(n)]
    for num_slices in (2, 1, 3):  # the same numbers, drawn in several parts
        expected = [part + state.random_sample(len(part)) for part, state in zip(np.array_split(rows, n), ranks)]
        before = w.get_value()
        np.testing.assert_array_equal(f(rows, num_slices=num_slices), np.concatenate(expected))
        growth = (expected[root] - np.array_split(rows, n)[root]).sum()
        pieces = min(num_slices, len(expected[root]))  # each slice adds to the original value
        np.testing.assert_allclose(w.get_value(), before * pieces + growth, rtol=1e-12)


def test_ranks_without_rows_do_not_draw(make_world):
    make_world("threads", 3, 1)
    x = engine.variable("x", "float64", 1)
    f = synk.function([x], (x * 0 + engine.uniform(engine.random_stream(1), (1,)), "gather"))
    ranks = [jumped_random_state(seed_1(), rank) for rank in range(3)]
    for rows, served in ((1, [1]), (2, [0, 1]), (3, [0, 1, 2]), (1, [1])):
        assert f(np.ones(rows)).tolist() == [ranks[rank].random_sample() for rank in served]


# -- saved and continued -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher, n, root", [("threads",) + place for place in PLACES] + [("fork", 3, 1)])
def test_saved_and_continued(make_world, launcher, n, root):
    """Saved streams continue in another session, after other draws."""
    make_world(launcher, n, root)
    stream, w = engine.random_stream(1, "stream"), engine.shared(np.zeros(2), "w")
    f = synk.function([], (engine.uniform(stream, (3,)) + engine.sum(w), "gather"))
    expected = drawn(seed_1(), n, 3, calls=4)
    assert_drawn(f, expected[:2])
    saved = [synk.get_value(rank, [w, stream]) for rank in range(n)]
    assert_drawn(f, expected[2:])  # the saved states are copies
    synk.close()

    make_world(launcher, n, (root + 1) % n, seed=9)
    stream, w = engine.random_stream(7, "stream"), engine.shared(np.ones(2), "w")
    f = synk.function([], (engine.uniform(stream, (3,)) + engine.sum(w), "gather"))
    for rank, values in enumerate(saved):
        synk.set_value(rank, [w, stream], values)
    assert_drawn(f, expected[2:])
    for rank, (_, state) in enumerate(saved):  # passed states are copied, too
        synk.set_value(rank, stream, state)
    assert_drawn(f, expected[2:])


def test_only_that_rank_is_set(make_world):
    make_world("threads", 3, 1)
    stream = engine.random_stream(1)
    f = drawing(stream)
    for rank in range(3):
        synk.set_value(rank, stream, np.random.RandomState(rank + 10))
    for rank in range(3):
        state = synk.get_value(rank, stream)
        assert state.random_sample() == np.random.RandomState(rank + 10).random_sample()
    synk.set_value(2, stream, np.random.RandomState(99))
    expected = [np.random.RandomState(seed).random_sample(3) for seed in (10, 11, 99)]
    np.testing.assert_array_equal(f().reshape(3, 3), expected)


@pytest.mark.parametrize(
    "value, batch, error, fields",
    [
        (3, None, TypeError, ("values for stream", "RandomState", "int")),
        (None, None, TypeError, ("values for stream", "RandomState", "NoneType")),
        (np.random.RandomState(np.random.PCG64(1)), None, TypeError, ("random state", "MT19937", "PCG64")),
        (np.random.RandomState(1), 1, ValueError, ("batch", None, "stream")),
    ],
)
def test_wrong_values_change_nothing(make_world, value, batch, error, fields):
    make_world("threads", 2)
    stream, w = engine.random_stream(1, "stream"), engine.shared(np.zeros(2), "w")
    f = synk.function([], (engine.uniform(stream, (3,)) + engine.sum(w), "gather"))
    for variables, values in ((stream, value), ([w, stream], [np.ones(2), value])):
        with refuses(error, *fields):
            synk.set_value(1, variables, values, batch=batch)
    assert_drawn(f, drawn(seed_1(), 2, 3))


COLLECTIVES = {
    "broadcast": synk.broadcast,
    "gather": synk.gather,
    "all_gather": synk.all_gather,
    "reduce": synk.reduce,
    "all_reduce": synk.all_reduce,
    "in_sync": synk.in_sync,
    "get_shapes": synk.get_shapes,
    "get_lengths": synk.get_lengths,
    "scatter": lambda variables: synk.scatter(variables, [np.zeros(2)] * 2),
}


@pytest.mark.parametrize("collective", COLLECTIVES.values(), ids=COLLECTIVES)
def test_collectives_refuse_states_by_name(make_world, collective):
    make_world("threads", 2)
    stream, w = engine.random_stream(1, "stream"), engine.shared(np.zeros(2), "w")
    f = synk.function([], (engine.uniform(stream, (3,)) + engine.sum(w), "gather"))
    got = "stream, which is the state of a random stream (RandomState)"
    with refuses(TypeError, "shared_vars", got=got, hint="set_value"):
        collective([w, stream])
    assert_drawn(f, drawn(seed_1(), 2, 3))


# -- Theano ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def theano_world(make_world, theano_words):
    """Return Theano's vocabulary, with three processes as ranks; the last is the master."""
    make_world("fork", 3, 2, "theano")
    return theano_words


def power(matrix, exponent, modulus):
    """Return a power of a matrix of Python integers, modulo ``modulus``."""
    result = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], object)
    matrix = np.array(matrix, object)
    for bit in bin(exponent)[2:]:
        result = result @ result % modulus
        if bit == "1":
            result = result @ matrix % modulus
    return result


def jumped(state, jumps):
    """Return a jumped state of RandomStreams, or of MRG_RandomStreams after ``jumps * 2**166`` steps of MRG31k3p."""
    if isinstance(state, np.random.RandomState):
        return jumped_random_state(state, jumps)
    m1, m2 = 2**31 - 1, 2**31 - 21069
    one = power([[0, 2**22, 129], [1, 0, 0], [0, 1, 0]], jumps << 166, m1)
    other = power([[2**15, 0, 2**15 + 1], [1, 0, 0], [0, 1, 0]], jumps << 166, m2)
    rows = state.astype(object)
    return np.hstack([rows[:, :3] @ one.T % m1, rows[:, 3:] @ other.T % m2]).astype("int32")


def states_of(function):
    return [shared for shared in function.get_shared() if getattr(shared.tag, "is_rng", False)]


def assert_as_plain(words, inputs, output, updates, rows, calls=3, begin=None, split=True):
    """Compare every rank's rows with plain Theano's, whose streams start from that rank's expected states."""
    rows = np.array_split(np.asarray(rows), 3)
    plain = words.theano.function(inputs, output, updates=updates, mode=words.mode)
    f = words.function(inputs, (output, "gather"), updates=updates)
    streams = states_of(f)
    begin = [stream.get_value() for stream in streams] if begin is None else begin
    expected = []
    before = [stream.get_value() for stream in streams]
    for rank in range(3):
        for stream, state in zip(streams, begin):
            stream.set_value(jumped(state, rank if split else 0))
        expected.append([plain(*[rows[rank]] * len(inputs)) for _ in range(calls)])
    for stream, state in zip(streams, before):
        stream.set_value(state)
    for call in range(calls):
        got = f(*[np.concatenate(rows)] * len(inputs))
        np.testing.assert_array_equal(got, np.concatenate([of_rank[call] for of_rank in expected]))
    assert not any(np.array_equal(of_rank[0], of_rank[1]) for of_rank in expected)  # the draws differ
    return f, streams


def streams_of(words, kind, seed=123):
    if kind == "mrg":
        from theano.sandbox.rng_mrg import MRG_RandomStreams as Streams
    else:
        from theano.tensor.shared_randomstreams import RandomStreams as Streams
    return Streams(seed)


@pytest.mark.thorough("mrg")
@pytest.mark.theano
@pytest.mark.parametrize("kind", ["mrg", "shared"])
def test_streams_of_theano(theano_world, kind):
    """Functions may have default updates, several streams, or a stream that is used twice."""
    streams, x = streams_of(theano_world, kind), theano_world.variable("x", 2)
    options = {"nstreams": 4} if kind == "mrg" else {}
    noise = streams.uniform((x.shape[0], 2), **options) + streams.normal((x.shape[0], 2), **options)
    f, states = assert_as_plain(theano_world, [x], x + noise + streams.normal((1, 2)) * noise, [], np.ones((7, 2)))
    assert len(states) == 3
    for state in states:
        with refuses(TypeError, "shared_vars", got="state"):
            synk.gather(state)


@pytest.mark.thorough(but="^0")
@pytest.mark.theano
@pytest.mark.parametrize("kind", ["mrg", "shared"])
@pytest.mark.parametrize("seed, random", [(0, "split"), (5, "split"), (5, "same"), (None, "same")])
def test_seeds_of_theano(make_world, theano_words, kind, seed, random):
    make_world("fork", 3, 1, "theano", seed=seed, random=random)
    streams, x = streams_of(theano_words, kind), theano_words.variable("x", 2)
    options = {"nstreams": 4} if kind == "mrg" else {}
    noise = streams.uniform((2, 2), **options) + streams.uniform((2, 2), **options)
    begin = None
    if seed is not None and kind == "shared":
        begin = [seeded_random_state(seed, i) for i in range(2)]
    elif seed:  # like a program that sets this seed at the start
        like = streams_of(theano_words, kind, seed)
        [like.uniform((2, 2), **options) for _ in range(2)]
        begin = [update[0].get_value() for update in like.state_updates]
    elif seed == 0:
        from synkhronos.engines.random_states import seeded_mrg

        begin = [seeded_mrg(np.zeros((4, 6), "int32"), 0, i) for i in range(2)]
    assert_as_plain(theano_words, [x], x[:2] + noise, [], np.ones((6, 2)), begin=begin, split=random == "split")


@pytest.mark.thorough
@pytest.mark.theano
@pytest.mark.parametrize("kind", ["mrg", "shared"])
def test_explicit_updates_and_scan(theano_world, kind):
    streams, x = streams_of(theano_world, kind), theano_world.variable("x", 2)
    options = {"nstreams": 2} if kind == "mrg" else {}
    steps, updates = theano_world.theano.scan(
        lambda row, total: total * 0.5 + row + streams.uniform((2,), **options),
        sequences=x,
        outputs_info=theano_world.T.zeros((2,)),
        mode=theano_world.mode,
    )
    assert len(updates) == 1
    assert_as_plain(theano_world, [x], steps, updates, np.ones((7, 2)))


@pytest.mark.thorough
@pytest.mark.theano
def test_dropout_of_lasagne(theano_world):
    layers = pytest.importorskip("lasagne.layers")
    x = theano_world.variable("x", 2)
    network = layers.DropoutLayer(layers.DropoutLayer(layers.InputLayer((None, 100), x), 0.3), 0.5)
    # Wide enough that no two calls drop the same elements by chance: Lasagne's seeds are random.
    x_rows = np.arange(1.0, 701.0).reshape(7, 100)
    f, states = assert_as_plain(theano_world, [x], layers.get_output(network), [], x_rows)
    assert len(states) == 2
    still = theano_world.function([x], (layers.get_output(network, deterministic=True), "gather"))
    np.testing.assert_array_equal(still(x_rows), x_rows)


@pytest.mark.theano
@pytest.mark.parametrize("kind", ["mrg", "shared"])
def test_slices_of_theano(theano_world, kind):
    streams, x = streams_of(theano_world, kind), theano_world.variable("x", 2)
    noise = streams.uniform((x.shape[0], 2), **({"nstreams": 2} if kind == "mrg" else {}))
    plain = theano_world.theano.function([x], x + noise, mode=theano_world.mode)
    f = theano_world.function([x], (x + noise, "gather"))
    (stream,) = states_of(f)
    begin, rows = stream.get_value(), np.arange(24.0).reshape(12, 2)
    expected = []
    for rank, of_rank in enumerate(np.array_split(rows, 3)):
        stream.set_value(jumped(begin, rank))
        expected.append([np.concatenate([plain(piece) for piece in np.array_split(of_rank, k)]) for k in (2, 1, 4)])
    stream.set_value(begin)
    for i, k in enumerate((2, 1, 4)):
        np.testing.assert_array_equal(f(rows, num_slices=k), np.concatenate([of_rank[i] for of_rank in expected]))


@pytest.mark.theano
def test_pairs_of_mrg_do_not_meet(theano_world):
    streams = streams_of(theano_world, "mrg")
    numbers = [streams.uniform((1000,), nstreams=2, dtype="float64") for _ in range(2)]
    f = theano_world.function([], [(number, "gather") for number in numbers])
    drawn = np.concatenate([np.reshape(part, (-1, 2)) for _ in range(2) for part in f()])  # 31 random bits each
    assert len(np.unique(drawn, axis=0)) == len(drawn) == 6000


@pytest.mark.theano
@pytest.mark.parametrize("kind", ["mrg", "shared"])
def test_theano_saved_and_continued(make_world, theano_words, tmp_path, kind):
    """Random states can be saved and restored as documented."""
    import pickle

    def program(seed):
        streams, w = streams_of(theano_words, kind, seed), theano_words.shared(np.zeros(3), "w")
        noise = streams.uniform((3,), **({"nstreams": 2} if kind == "mrg" else {})) + streams.normal((3,))
        f = theano_words.function([], (noise + w, "gather"))
        return f, states_of(f)

    make_world("fork", 3, 2, "theano")
    f, states = program(1)
    f()
    with open(str(tmp_path / "states"), "wb") as stream:
        pickle.dump([synk.get_value(rank, states) for rank in range(3)], stream)
    expected = [f(), f()]
    make_world("fork", 3, 0, "theano")
    f, states = program(2)
    f()
    with open(str(tmp_path / "states"), "rb") as stream:
        for rank, values in enumerate(pickle.load(stream)):
            synk.set_value(rank, states, values)
    np.testing.assert_array_equal([f(), f()], expected)
    wrong = np.zeros((2, 5), "int32") if kind == "mrg" else 3
    with pytest.raises(TypeError):
        synk.set_value(1, states, [wrong] * len(states))


@pytest.mark.theano
@pytest.mark.parametrize("n", [1, 2])
def test_states_of_an_unknown_kind(make_world, theano_words, n):
    """Unknown random states cannot be split, but all ranks can have the same one."""
    state = theano_words.shared(np.zeros(3), "clock")
    state.tag.is_rng = True
    f = theano_words.function([], (state * 1, "gather"), updates=[(state, state + 1)])
    make_world("threads", n, n - 1, "theano")
    with refuses(TypeError, "random state clock", "MRG_RandomStreams"):
        f()
    make_world("threads", n, n - 1, "theano", random="same")
    assert f().tolist() == [0] * 3 * n and f().tolist() == [1] * 3 * n
