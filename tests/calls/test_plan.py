"""Plans: parts of calls that do not change are sent once, and changed parts are always detected.

There is one test for each row of the table in `synkhronos.calls.plan`, except ``row_buffers``, which are only memory:
what is reused, and what invalidates it. Results of calls are compared with NumPy.
"""

import gc

import numpy as np
import pytest
from worlds import ENGINES

import synkhronos as synk
from synkhronos import engines
from synkhronos.calls.arguments import Arguments
from synkhronos.calls.command import CallFunction
from synkhronos.calls.plan import MAX_PLANS, CallMemory
from synkhronos.memory.pool import Pool
from synkhronos.program.program import PROGRAM


def watch(session, monkeypatch):
    """Return a list; every call of a function appends whether its plan was sent to the ranks."""
    travelled, run = [], session.run

    def watched(command, *args, **kwargs):
        if isinstance(command, CallFunction):
            travelled.append(command.plan is not None)
        return run(command, *args, **kwargs)

    monkeypatch.setattr(session, "run", watched)
    return travelled


@pytest.fixture
def two(make_world):
    """Return a world of two ranks as threads."""
    return make_world("threads", 2)


@pytest.fixture
def travelled(two, monkeypatch):
    """Return a list that records for each call whether its plan was sent."""
    return watch(two.session, monkeypatch)


@pytest.fixture
def checks(monkeypatch):
    """Return a list of the names of inputs that were checked, in order."""
    engine, seen = engines.get("numpy"), []
    check = engine.check

    def watched(given, *args):
        seen.append(given.name)
        return check(given, *args)

    monkeypatch.setattr(engine, "check", watched)
    return seen


def contexts(world):
    """Return the contexts of all ranks."""
    return [world.session.context, *world.session.launcher.contexts.values()]


# -- transferred data ----------------------------------------------------------------------------------------------


def test_a_known_plan_is_a_pair_of_numbers(two, monkeypatch, numpy_words):
    """The size of a command with a known plan does not grow with the number of inputs and outputs."""
    sizes, send = [], two.session.channel.send

    def watched(number, payload, watch):
        sizes.append(len(payload))
        return send(number, payload, watch)

    monkeypatch.setattr(two.session.channel, "send", watched)
    data, known = synk.data(np.arange(100.0)), []
    for n in (1, 9):
        xs = [numpy_words.variable(f"x{i}") for i in range(n)]
        f = synk.function(xs, [(numpy_words.sum(x), "sum") for x in xs], name="f")
        for begin in range(0, 60, 20):
            assert f(*[data] * n, batch=slice(begin, begin + 20)) == [np.arange(begin, begin + 20.0).sum()] * n
        assert sizes[-1] == sizes[-2] < sizes[-3]
        known.append(sizes[-1])
    assert known[0] == known[1]


def test_a_plan_counts_as_known_after_a_call_without_errors(travelled, numpy_words):
    x = numpy_words.variable("x")
    f = synk.function([x], (numpy_words.apply(third, x, dtype="float64", ndim=0), "max"))
    data = synk.data(np.arange(100.0))
    for _ in range(2):
        with pytest.raises(IndexError):
            f(data, batch=4)  # two rows for each rank
    assert f(data, batch=6) == 5 and f(data, batch=6) == 5
    assert travelled == [True, True, True, False]


def third(x):
    return x[2]


def test_values_that_are_not_arrays_are_not_kept(two, travelled, numpy_words):
    thing = numpy_words.variable("thing", dtype=None)
    f = synk.function([], (numpy_words.apply(len, thing, dtype="int64", ndim=0), "sum"), bcast_inputs=[thing])
    for value in ({1: 1}, {1: 1, 2: 2}, {1: 1}):
        assert f(value) == 2 * len(value)
    assert travelled == [True] * 3 and not any(context.kept(CallMemory).plans for context in contexts(two))


# -- Arguments.taken: the check of a Data --------------------------------------------------------------------------


@pytest.fixture
def doubled(two, numpy_words):
    """Return a function that doubles one scattered input."""
    x = numpy_words.variable("x")
    return synk.function([x], (x * 2, "gather"))


def test_the_same_data_is_checked_once(doubled, checks, travelled):
    data = synk.data(np.arange(10.0))
    for rows in (slice(0, 4), slice(4, 8), [1, 3, 5, 7], [2, 2, 9, 0]):
        np.testing.assert_array_equal(doubled(data, batch=rows), 2 * np.arange(10.0)[rows])
    data[:] = 7  # changing the values does not change the Data object
    np.testing.assert_array_equal(doubled(data, batch=4), [14] * 4)
    assert checks == ["x"] and travelled == [True, False, True, False, False]


def test_another_data_is_checked(doubled, checks, travelled):
    first, second = synk.data(np.arange(4.0)), synk.data(np.arange(4.0) + 10)
    for data in (first, second, first):
        np.testing.assert_array_equal(doubled(data), 2 * np.array(data))
    assert checks == ["x"] * 3 and travelled == [True, True, False]
    with pytest.raises(TypeError):
        doubled(synk.data(np.zeros((4, 1))))


def test_a_data_whose_memory_moved_is_checked(doubled, checks, travelled):
    data = synk.data(np.arange(4.0))
    for value in (np.arange(4.0), np.arange(300.0), np.arange(7.0)):
        data.set_value(value)
        np.testing.assert_array_equal(doubled(data), 2 * value)
    assert checks == ["x"] * 3 and travelled == [True] * 3


def test_a_data_that_became_a_minibatch_is_checked(doubled, checks, travelled):
    data = synk.data(np.arange(6.0))
    np.testing.assert_array_equal(doubled(data, batch=[5, 4, 3]), [10, 8, 6])
    data.minibatch = True
    np.testing.assert_array_equal(doubled(data, batch=[5, 4, 3]), [0, 2, 4])  # it already contains the selected rows
    data.minibatch = False
    np.testing.assert_array_equal(doubled(data, batch=[5, 4, 3]), [10, 8, 6])
    assert checks == ["x"] * 3 and travelled == [True, True, False]


# -- Arguments.staging: memory for plain arrays and indices --------------------------------------------------------


def test_arrays_of_one_shape_use_the_same_memory(doubled, two, travelled):
    doubled(np.zeros(5))
    used = two.session.pool.used
    for value in (np.arange(5.0), [3, 1, 4, 1, 5], np.arange(5, dtype="float32")):
        np.testing.assert_array_equal(doubled(value), 2 * np.asarray(value))
    assert two.session.pool.used == used and travelled == [True, False, False, False]


def test_another_shape_is_staged_elsewhere(doubled, travelled):
    for n in (5, 4, 6, 5, 1000, 5):
        np.testing.assert_array_equal(doubled(np.arange(float(n))), 2 * np.arange(float(n)))
    assert travelled[:3] == [True] * 3


def test_another_dtype_is_staged_elsewhere(two):
    """Arrays of several dtypes can be staged for the same input."""
    arguments = Arguments(engines.get("numpy"), [], [])
    for dtype in ("float64", "int64", "float64"):
        value = np.arange(6).astype(dtype)
        handle = arguments.stage(two.session.pool, 0, value)
        attached = two.session.context.pools.attach(handle)
        assert attached.dtype == dtype
        np.testing.assert_array_equal(attached, value)


def test_another_pool_is_staged_in_that_one():
    arguments = Arguments(engines.get("numpy"), [], [])
    pools = [Pool(0), Pool(1)]
    handles = [arguments.stage(pool, 0, np.arange(4.0)) for pool in (*pools, pools[0])]
    assert [handle.pool for handle in handles] == [0, 1, 0]


def test_another_session_has_memory_and_plans_of_its_own(make_world, monkeypatch, numpy_words):
    x = numpy_words.variable("x")
    f = synk.function([x], (x * 2, "gather"))
    for n in (2, 3, 1):
        travelled = watch(make_world("threads", n).session, monkeypatch)
        for value in (np.arange(5.0), np.arange(5.0) + 1):
            np.testing.assert_array_equal(f(value), 2 * value)
        assert travelled == [True, False]


# -- Plans ---------------------------------------------------------------------------------------------------------


def test_a_list_of_indices_of_the_same_length_is_the_same_plan(doubled, travelled):
    data, values = synk.data(np.arange(50.0)), np.arange(50.0)
    for rows in ([3, 1, 2], [0, 49, 7], np.array([5, 5, 5]), [-1, -2, -3]):
        np.testing.assert_array_equal(doubled(data, batch=rows), 2 * values[rows])
    assert travelled == [True, False, False, False]
    np.testing.assert_array_equal(doubled(data, batch=[4, 8]), [8, 16])
    assert travelled[-1]
    np.testing.assert_array_equal(doubled(data, batch=[9, 8, 7]), [18, 16, 14])


@pytest.fixture
def selecting(two, numpy_words):
    """Return a function of the selected rows of a shared variable, and the variable's values on all ranks."""
    s = two.shared(np.zeros(1), "s")
    values = [np.arange(40.0), 100 + np.arange(40.0)]
    two.set_values(s, values)
    f = synk.function([], [(s * 2, "gather"), (numpy_words.sum(s), "sum")], sliceable_shareds=[s])
    return f, values


def assert_selected(results, values, rows):
    chosen = np.concatenate([of_rank[of_rows] for of_rank, of_rows in zip(values, rows)])
    np.testing.assert_array_equal(results[0], 2 * chosen)
    assert results[1] == chosen.sum()


@pytest.mark.parametrize("num_slices", [1, 2])
def test_a_batch_s_of_the_same_length_is_the_same_plan(selecting, travelled, num_slices):
    f, values = selecting
    for rows in ([3, 1, 2], [0, 39, 7], np.array([5, 5, 5]), [-1, -2, -3]):
        assert_selected(f(batch_s=rows, num_slices=num_slices), values, [rows] * 2)
    assert travelled == [True, False, False, False]
    assert_selected(f(batch_s=[4, 8], num_slices=num_slices), values, [[4, 8]] * 2)
    assert travelled[-1]
    assert_selected(f(batch_s=[1, 1, 38], num_slices=num_slices), values, [[1, 1, 38]] * 2)


def test_a_batch_s_of_every_rank_of_the_same_lengths_is_the_same_plan(selecting, travelled):
    f, values = selecting
    for rows in ([[3, 1, 2], [0, 9]], [[0, 0, 39], [7, 6]]):
        assert_selected(f(batch_s=rows), values, rows)
    assert travelled == [True, False]
    for rows in ([[3, 1], [0, 9, 2]], [[3, 1, 2], [0]], [[1, 2], [3, 4]]):
        assert_selected(f(batch_s=rows), values, rows)
    assert travelled == [True, False, True, True, True]


def test_a_batch_s_that_is_a_slice_is_part_of_the_plan(selecting, travelled):
    f, values = selecting
    for rows in (slice(0, 3), slice(1, 4), slice(0, 6, 2), slice(0, 3)):
        assert_selected(f(batch_s=rows), values, [rows] * 2)
    assert travelled == [True, True, True, False]


def test_slices_and_chosen_outputs_are_part_of_the_plan(two, travelled, numpy_words):
    x = numpy_words.variable("x")
    f = synk.function([x], [(numpy_words.sum(x), "sum"), (x, "gather")])
    value = np.arange(6.0)
    for options, expected in [
        (dict(), [15, value]),
        (dict(num_slices=2), [15, value]),
        (dict(num_slices=3), [15, value]),
        (dict(output_subset=[1]), [value]),
        (dict(output_subset=[0]), [15]),
        (dict(output_subset=[1, 0], num_slices=2), [value, 15]),
    ]:
        for _ in range(2):
            results = f(value, **options)
            assert len(results) == len(expected)
            for got, want in zip(results, expected):
                np.testing.assert_array_equal(got, want)
    assert travelled == [True, False] * 6


def test_plans_are_replaced_and_sent_again(doubled, travelled):
    data, values = synk.data(np.arange(100.0)), np.arange(100.0)
    lengths = range(1, MAX_PLANS + 4)  # every length has another plan
    for n in list(lengths) * 2:
        np.testing.assert_array_equal(doubled(data, batch=n), 2 * values[:n])
    assert all(travelled)
    for n in list(lengths)[-MAX_PLANS:]:
        np.testing.assert_array_equal(doubled(data, batch=slice(50, 50 + n)), 2 * values[50 : 50 + n])
    assert travelled[-MAX_PLANS:] == [False] * MAX_PLANS


# -- Prepared: a rank's precomputed values -------------------------------------------------------------------------


def test_another_plan_in_its_place_is_prepared_from_the_start(doubled, two):
    """Every rank keeps at most MAX_PLANS plans, and a plan that replaces another one yields correct results."""
    data = synk.data(np.arange(100.0))
    for n in range(1, 3 * MAX_PLANS):
        indices = np.arange(n)[::-1]
        np.testing.assert_array_equal(doubled(data, batch=indices), 2.0 * indices)
    for context in contexts(two):
        assert sorted(place for _, place in context.kept(CallMemory).plans) == list(range(MAX_PLANS))


def test_the_plans_of_a_dropped_function_are_forgotten(two, numpy_words):
    x, s = numpy_words.variable("x"), two.shared(np.arange(4.0), "s")
    f = synk.function([x], (numpy_words.sum(x) + numpy_words.sum(s), "sum"), sliceable_shareds=[s])
    other = synk.function([x], (x * 3, "gather"))
    f(np.arange(3.0))
    f(np.arange(3.0), batch_s=[[0, 1], [2]])  # another graph, with its own plans
    other(np.arange(3.0))
    assert [len(context.kept(CallMemory).plans) for context in contexts(two)] == [3, 3]
    del f
    gc.collect()
    np.testing.assert_array_equal(other(np.arange(3.0)), [0, 3, 6])
    assert [len(context.kept(CallMemory).plans) for context in contexts(two)] == [1, 1]
    again = synk.function([x], (numpy_words.sum(x), "sum"))
    assert again(np.arange(3.0)) == 3


# -- with a library of graphs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_sparse_matrices_are_not_kept(make_world, engine):
    sparse, symbolic = pytest.importorskip("scipy.sparse"), pytest.importorskip(f"{engine}.sparse")
    make_world("fork", 2, engine=engine)
    s = symbolic.csr_matrix("s", "float64")
    f = synk.function([], symbolic.sp_sum(s), bcast_inputs=[s])
    for value in (1.0, 2.0):
        assert f(sparse.csr_matrix(np.full((2, 2), value))) == 4 * value
    assert not PROGRAM.session.context.kept(CallMemory).plans
