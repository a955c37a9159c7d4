"""Rows of shared variables, selected by ``batch_s`` on every rank and sliced; expected values come from NumPy."""

import numpy as np
import pytest
from refusals import is_local, refuses
from worlds import FEWER_WORLDS, INSTALLED

import synkhronos as synk

pytestmark = [*FEWER_WORLDS, pytest.mark.thorough("fork-2-root0-theano", but="theano-list$"), pytest.mark.slow]

LENGTHS = [5, 4, 6, 5]  # lengths of the ranks' data


def data_of(world, columns=None, scale=1.0):
    """Return every rank's data; all values differ."""
    return [
        scale
        * (100 * rank + np.arange(float(LENGTHS[rank])))[(slice(None), *[None] * bool(columns))]
        * np.ones(columns or ())
        for rank in range(world.n)
    ]


def scattered(world, name, columns=None, scale=1.0):
    """Return a shared variable and its values on all ranks."""
    values = data_of(world, columns, scale)
    shared = world.shared(np.zeros(values[0].shape), name)
    world.set_values(shared, values)
    return shared, values


def forms(n):
    """Return every form of ``batch_s`` with the rows that it selects on each rank."""
    each = [[0, 3], [3, 3, -1], [2], [1, 1]][:n]
    one = {
        "nothing": None,
        "slice": slice(1, 3),
        "open slice": slice(2, None),
        "from the end": slice(-2, None),
        "step": slice(None, None, 2),
        "backwards": slice(None, None, -1),
        "past the end": slice(3, 100),
        "list": [3, 0, 0, -1],
        "tuple": (1, 2),
        "array": np.array([2, -4]),
        "bytes": np.array([1, 3], "uint8"),
        "range": range(3, 0, -2),
        "long list": list(np.arange(1000) % 4),
        "long array": np.arange(600) % 4,
    }
    many = {
        "slices": [slice(rank, None) for rank in range(n)],
        "lists": each,
        "tuples": tuple(map(tuple, each)),
        "arrays": [np.array(rows) for rows in each],
        "mixed": [slice(1, 4), [0, -1], np.array([2, 1]), [3]][:n],
        "long lists": [list(np.arange(300 + rank) % LENGTHS[rank]) for rank in range(n)],
        "some empty": [[3], [], slice(0, 2), [1, 2]][-n:] if n > 1 else [[1]],
    }
    truth = {name: [rows] * n for name, rows in one.items()}
    truth.update(many)
    return {name: (one.get(name, many.get(name)), rows) for name, rows in truth.items()}


def take(values, rows):
    """Return each rank's selected rows, computed by NumPy alone."""
    return [
        value if row is None else value[row if isinstance(row, slice) else np.array(list(row), int)]
        for value, row in zip(values, rows)
    ]


@pytest.fixture
def program(world, words):
    """Return a function without inputs, with shared data in its ``givens`` and in its graph."""
    return build(world, words)


def build(world, words):
    x = words.variable("x", 2)
    s, ss = scattered(world, "s", 2)
    t, ts = scattered(world, "t", None, 3.0)
    total = words.sum(x, axis=1) + t
    f = words.function(
        [],
        [words.mean(total), (words.sum(t), "sum"), (total, "gather"), (words.max(x), "max"), (words.sum(t), "gather")],
        givens=[(x, s)],
        sliceable_shareds=[s, t],
    )
    return f, ss, ts


def check(results, ss, ts, k=1):
    totals = np.concatenate([s.sum(1) + t for s, t in zip(ss, ts)])
    each = [part.sum() for t in ts if len(t) for part in np.array_split(t, max(1, min(k, len(t))))]
    truths = [totals.mean(), sum(t.sum() for t in ts), totals, max(s.max() for s in ss if len(s)), each]
    for result, truth in zip(results, truths):
        np.testing.assert_allclose(result, truth, rtol=1e-13)


@pytest.mark.parametrize("name", forms(3))
def test_every_form(make_world, numpy_words, name):
    for n, root in ((3, 1), (2, 0), (1, 0)):
        world = make_world("threads", n, root)
        check_form(world, build(world, numpy_words), name)


def test_both_names(make_world, numpy_words):
    """`batch_s`, the name from 2017, means the same as `batch_shared`."""
    f, ss, ts = build(make_world("threads", 2, 0), numpy_words)
    rows = [[2, 0], slice(1, 3)]
    truth = [np.concatenate([(s.sum(1) + t)[each] for s, t, each in zip(ss, ts, one)]) for one in (rows, rows[::-1])]
    for name in ("batch_shared", "batch_s"):
        np.testing.assert_allclose(f(**{name: rows})[2], truth[0], rtol=1e-13)
        np.testing.assert_allclose(f.compare(**{name: rows}).results[2], truth[0], rtol=1e-13)
    for name in ("batches_shared", "batches_s"):
        found = f.steps(**{name: [rows, rows[::-1]]})
        assert [each.tolist() for each in found[2]] == [each.tolist() for each in truth]
    for call, name, former in (
        (f, "batch_shared", "batch_s"),
        (f.compare, "batch_shared", "batch_s"),
        (f.steps, "batches_shared", "batches_s"),
    ):
        with refuses(TypeError, former, name, got=repr([rows])):
            call(**{name: [rows], former: [rows]})


@pytest.mark.parametrize("name", ["nothing", "backwards", "list", "long list", "mixed", "long lists", "some empty"])
def test_forms_on_processes_and_theano(world, program, name):
    check_form(world, program, name)


def check_form(world, program, name):
    f, ss, ts = program
    batch_s, rows = forms(world.n)[name]
    ss, ts = take(ss, rows), take(ts, rows)
    for k in (1, 2, 5):
        if k <= sum(map(len, ts)):
            check(f(batch_s=batch_s, num_slices=k), ss, ts, k)
            assert f.last_rows == list(map(len, ts))
        check(f(batch_s=batch_s), ss, ts)


def test_one_call_after_another(world, program):
    """Calls of every kind follow one another; no call affects the next."""
    f, ss, ts = program
    for batch_s, k in [(None, 1), (slice(1, 3), 1), (None, 3), ([0, 2], 2), (None, 1), (slice(0, 4), 4), ([1], 1)]:
        rows = [batch_s] * world.n
        check(f(batch_s=batch_s, num_slices=k), take(ss, rows), take(ts, rows), k)


def test_the_caller_may_change_the_list_later(world, program):
    f, ss, ts = program
    for length in (3, 400):
        rows = np.arange(length) % 4
        result = f(batch_s=rows)
        kept = [value.copy() for value in result]
        first = rows.copy()
        rows[:] = 0
        check(f(batch_s=rows), take(ss, [rows] * world.n), take(ts, [rows] * world.n))
        check(kept, take(ss, [first] * world.n), take(ts, [first] * world.n))
        for value, copy in zip(result, kept):
            np.testing.assert_array_equal(value, copy)


def test_after_scatter_with_uneven_lengths(world, words, shards):
    s, w = world.shared(np.zeros(0), "s"), world.shared(np.zeros(()), "w")
    f = words.function([], [words.mean(s), (s, "gather")], updates=[(w, w + words.mean(s))], sliceable_shareds=[s])
    for n_rows in (7, 10, 4):
        values = np.arange(float(n_rows)) ** 2
        synk.scatter(s, values)
        mean, gathered = f(num_slices=2)
        np.testing.assert_allclose(mean, values.mean())
        np.testing.assert_array_equal(gathered, values)
        mean, gathered = f(batch_s=[0, 0])
        firsts = [part[0] for part in shards(values, world.n, world.root)]
        np.testing.assert_allclose(mean, np.mean(firsts))
        np.testing.assert_array_equal(gathered, np.repeat(firsts, 2))
        rows = [np.arange(len(part))[::-1] for part in shards(values, world.n, world.root)]
        np.testing.assert_array_equal(
            f(batch_s=rows)[1], np.concatenate([part[::-1] for part in shards(values, world.n, world.root)])
        )
        if world.n == 3:  # only the last rank has this row
            with refuses(
                ValueError, "batch_shared", "shortest sliceable shared variable of rank", f"index {n_rows // 3}"
            ):
                f(batch_s=[n_rows // 3])


def test_a_rank_whose_data_is_empty_makes_no_call(make_world, words_of):
    for launcher, engine in [("threads", "numpy"), *(("fork", engine) for engine in INSTALLED)]:
        world, words = make_world(launcher, 3, 1, engine), words_of(engine)
        s, w = world.shared(np.zeros(0), "s"), world.shared(np.zeros(()), "w")
        f = words.function([], [words.mean(s), (s, "gather")], updates=[(w, w + 1)], sliceable_shareds=[s])
        world.set_values(s, [[1.0, 2.0, 3.0], [], [5.0]])
        for k in (1, 2):
            mean, rows = f(num_slices=k)
            assert mean == 11 / 4 and rows.tolist() == [1, 2, 3, 5] and f.last_rows == [3, 0, 1]
        assert [float(value) for value in world.values(w)] == [2, 0, 2]
        assert f(batch_s=[[], [], [0]])[1].tolist() == [5]
        assert [float(value) for value in world.values(w)] == [2, 0, 3]
        with np.errstate(all="ignore"):
            mean, rows = f(batch_s=[])  # without rows, every rank makes the call
        assert np.isnan(mean) and rows.shape == (0,)
        assert [float(value) for value in world.values(w)] == [3, 1, 4]


def test_a_master_without_rows_has_no_result_of_its_own(make_world, numpy_words):
    world = make_world("threads", 2, 1)
    s, w = world.shared(np.arange(3.0), "s"), world.shared(np.zeros(()), "w")
    f = synk.function([], [(s, None), (numpy_words.sum(s), "sum")], updates=[(w, w + 1)], sliceable_shareds=[s])
    with refuses(ValueError, "outputs[0] (s)", "op None", "no rows", "output_subset"):
        f(batch_s=[[0, 1], []])
    assert [float(value) for value in world.values(w)] == [0, 0]
    assert f(batch_s=[[0, 1], []], output_subset=[1]) == [1]
    rows, total = f(batch_s=[[], [2]])
    assert rows.tolist() == [2] and total == 2
    np.testing.assert_array_equal(f(batch_s=[])[0], [])  # without rows, every rank makes the call


# -- with scattered inputs -----------------------------------------------------------------------------------------


def test_with_scattered_inputs_of_as_many_rows(world, words):
    x, a = words.variable("x"), words.variable("a", 0)
    s, ss = scattered(world, "s")
    rows = np.arange(2.0 * world.n + 1)
    parts = np.array_split(rows, world.n)
    f = words.function(
        [x], [words.mean(x * s + a), (x + s, "gather"), (words.sum(x), "sum")], bcast_inputs=[a], sliceable_shareds=[s]
    )
    for batch_s in ([np.arange(len(part)) for part in parts], [slice(0, len(part)) for part in parts]):
        chosen = take(ss, batch_s)
        for k in (1, 2, 3):
            results = f(rows, 1.0, batch_s=batch_s, num_slices=k)
            np.testing.assert_allclose(results[0], (np.concatenate(chosen) * rows + 1).mean(), rtol=1e-13)
            np.testing.assert_array_equal(results[1], np.concatenate(chosen) + rows)
            assert results[2] == rows.sum()
            assert f.last_rows == list(map(len, parts))
    order = rows[::-1]
    results = f(synk.data(rows), 1.0, batch=slice(None, None, -1), batch_s=batch_s, num_slices=2)
    np.testing.assert_array_equal(results[1], np.concatenate(chosen) + order)


def test_with_scattered_inputs_of_other_rows_there_is_no_average(world, words):
    x, w = words.variable("x"), world.shared(np.zeros(()), "w")
    s, ss = scattered(world, "s")
    f = words.function(
        [x], [words.mean(x), (words.sum(x), "sum"), (words.sum(s), "sum"), (words.max(s), "max")], sliceable_shareds=[s]
    )
    g = words.function([x], (words.sum(s), "sum"), updates=[(w, w + words.sum(s))], sliceable_shareds=[s])
    rows = np.arange(6.0)
    chosen = take(ss, [[0, 1, 3]] * world.n)
    fields = ("batch_shared", "'avg'", "different numbers", "select")
    if world.n == 2:
        rows = np.arange(5.0)  # equal on rank 0, unequal on rank 1
    if world.n == 1:
        rows = np.arange(4.0)
    for k in (1, 2):
        with refuses(ValueError, *fields):
            f(rows, batch_s=[0, 1, 3], num_slices=k)
        results = f(rows, batch_s=[0, 1, 3], num_slices=k, output_subset=[1, 2, 3])
        np.testing.assert_allclose(results, [rows.sum(), np.sum(chosen), np.max(chosen)])
    assert g(rows, batch_s=[0, 1, 3]) == np.sum(chosen)  # without slices, updates need no weights
    np.testing.assert_allclose(world.values(w), np.sum(chosen, axis=1))
    with refuses(ValueError, *fields):
        g(rows, batch_s=[0, 1, 3], num_slices=2)
    np.testing.assert_allclose(world.values(w), np.sum(chosen, axis=1))
    with refuses(ValueError, *fields):
        f(rows)
    lengths = [[i % 3 for i in range(len(part))] for part in np.array_split(rows, world.n)]
    np.testing.assert_allclose(f(rows, batch_s=lengths)[0], rows.mean())


# -- uses ----------------------------------------------------------------------------------------------------------


def test_in_givens_and_in_the_graph_and_both(world, words):
    x, y = words.variable("x"), words.variable("y")
    s, ss = scattered(world, "s")
    for k in (1, 2):
        for batch_s in (slice(1, 3), [3, 0, 2]):
            chosen = np.concatenate(take(ss, [batch_s] * world.n))
            for outputs, givens, truth in [
                (x * 2, [(x, s)], chosen * 2),
                (s * 2, [], chosen * 2),
                (x + s, [(x, s)], chosen * 2),
                (x * y + s, [(x, s * 2), (y, s)], chosen * chosen * 2 + chosen),
            ]:
                f = words.function([], (outputs, "gather"), givens=givens, sliceable_shareds=[s])
                np.testing.assert_array_equal(f(batch_s=batch_s, num_slices=k), truth)


def test_what_is_not_named_is_used_as_it_is(world, words):
    s, ss = scattered(world, "s")
    t, ts = scattered(world, "t")
    f = words.function([], (s * words.sum(t), "gather"), sliceable_shareds=[s])
    for k in (1, 3):
        np.testing.assert_array_equal(
            f(batch_s=slice(0, 3), num_slices=k),
            np.concatenate([value[:3] * other.sum() for value, other in zip(ss, ts)]),
        )


def test_an_update_of_what_is_selected(world, words):
    """The new value is computed from the selected rows and replaces the variable's whole value."""
    s, ss = scattered(world, "s")
    c = world.shared(np.zeros(()), "c")
    f = words.function([], (s, "gather"), updates=[(s, s * 2), (c, c + words.sum(s), "sum")], sliceable_shareds=[s])
    chosen = take(ss, [[2, 0]] * world.n)
    np.testing.assert_array_equal(f(batch_s=[2, 0]), np.concatenate(chosen))
    for value, rows in zip(world.values(s), chosen):
        np.testing.assert_array_equal(value, 2 * rows)
    np.testing.assert_array_equal(f(batch_s=[1, 0], num_slices=2), np.concatenate([2 * rows[::-1] for rows in chosen]))
    for value, total, rows in zip(world.values(s), world.values(c), chosen):
        np.testing.assert_array_equal(value, [4 * rows.mean()])  # the mean of the two slices' new values
        assert total == 2 * rows.sum() + 2 * rows.sum()  # each slice adds to the old value; op "sum" adds slices
    np.testing.assert_array_equal(f(), np.concatenate([[4 * rows.mean()] for rows in chosen]))


def test_a_slice_of_a_variable_is_not_an_alias_of_results_or_of_another_variable(world, words):
    s, ss = scattered(world, "s")
    t = world.shared(np.zeros(3), "t")
    f = words.function([], [(s, None), (s, "gather")], updates=[(t, s)], sliceable_shareds=[s])
    results = f(batch_s=slice(0, 3))
    kept = [result.copy() for result in results]
    for result in results:
        result[...] = -1
    for value, other, truth in zip(world.values(s), world.values(t), ss):
        np.testing.assert_array_equal(value, truth)
        np.testing.assert_array_equal(other, truth[:3])
    double = words.function([], updates=[(t, t * 2)])
    double()
    synk.all_reduce(t, op="sum")
    np.testing.assert_array_equal(world.values(s)[world.root], ss[world.root])
    np.testing.assert_array_equal(f(batch_s=slice(0, 3))[0], kept[0])


@pytest.mark.parametrize("op", ["avg", "sum", "min", "max"])
def test_updates_over_slices_of_shared_data(world, words, op):
    s, ss = scattered(world, "s")
    w = world.shared(np.zeros(()), "w")
    reduce = {"avg": np.mean, "sum": np.sum, "min": np.min, "max": np.max}[op]
    expression = {"avg": words.mean, "sum": words.sum, "min": words.min, "max": words.max}[op](s)
    f = words.function([], updates=[(w, expression, op)], sliceable_shareds=[s])
    for k in (1, 2, 4, 5):
        world.set_values(w, np.zeros(world.n))
        f(num_slices=k)
        np.testing.assert_allclose(world.values(w), [reduce(value) for value in ss], rtol=1e-14)


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher,n,engine", [("threads", 3, "numpy"), *(("fork", 2, engine) for engine in INSTALLED)])
def test_what_is_refused(make_world, words_of, launcher, n, engine):
    world, words = make_world(launcher, n, 1, engine), words_of(engine)
    f, ss, ts = build(world, words)
    x = words.variable("x")
    without = words.function([x], words.mean(x))
    wrong = [
        ([0, 4], ValueError, "batch_shared", "index 4"),
        ([[0]] * (n - 1) + [[-99]], ValueError, f"batch_shared[{n - 1}]", "index -99"),
        ([slice(0, 2)] * (n + 1), ValueError, "batch_shared", str(n + 1)),
        (3, TypeError, "batch_shared", "3 of type int"),
        (True, TypeError, "batch_shared", "True of type bool"),
        ("abc", TypeError, "batch_shared", "'abc' of type str"),
        (1.5, TypeError, "batch_shared", "1.5 of type float"),
        ([0, 1.0], TypeError, "batch_shared", "a list with 1.0 of type float"),
        ([True, False], TypeError, "batch_shared", "bools"),
        ([[0], 1], TypeError, "batch_shared", "a list that mixes both: 1"),
        (slice(0, 3, 0), ValueError, "batch_shared", "slice(0, 3, 0)"),
        (np.array([0.5]), TypeError, "batch_shared", "an array of type float64"),
        ([[[0, 1]]] * n, ValueError, "batch_shared[0]", "dimension"),
    ]
    for batch_s, error, argument, got in wrong:
        for k in (1, 2):
            with refuses(error, argument, got=got) as raised:
                f(batch_s=batch_s, num_slices=k)
            assert is_local(raised.value, error)
        check(f(batch_s=[2, 3]), take(ss, [[2, 3]] * n), take(ts, [[2, 3]] * n))
    with refuses(ValueError, "batch_shared", "no sliceable_shareds", "[0]"):
        without([1.0] * n, batch_s=[0])
    assert without([1.0] * n) == 1
    for more, all_of_them in zip(f(batch_s=[2, 3], num_slices=7), f(batch_s=[2, 3], num_slices=2)):
        np.testing.assert_array_equal(more, all_of_them)
    s, t = f.get_shared()
    world.set_values(t, [np.zeros((rank + 9,) + value.shape[1:]) for rank, value in enumerate(world.values(t))])
    with refuses(ValueError, "sliceable_shareds", "length", "on rank 0", "batch_shared"):
        f(num_slices=2)
    assert len(f(batch_s=[2, 3], num_slices=2)[2]) == 2 * n


def test_sliceable_shareds_that_are_none(words_of):
    for engine in INSTALLED:
        words = words_of(engine)
        s, other = (words.shared(np.ones((1, 3)), name) for name in ("s", "other"))
        row, scalar = words.shared(np.ones((1, 3)), "row", broadcastable=(True, False)), words.shared(1.0, "scalar")
        thing, x = words.shared({"a": 1}, "thing"), words.variable("x", 2)
        outputs = words.mean(s + row + scalar)
        for sliceable, error, got in [
            ([other], ValueError, "other, which is unused"),
            ([s, s], ValueError, "s, which is listed twice"),
            ([s, s.clone()], ValueError, "s, which is unused"),
            ([row], ValueError, "row with broadcastable rows"),
            ([scalar], ValueError, "scalar with 0 dimensions"),
            ([thing], TypeError, "thing, which is not a dense array of data"),
            ([x], TypeError, "x"),
            (["s"], TypeError, "'s'"),
            (s, TypeError, type(s).__name__),
        ]:
            with refuses(error, "sliceable_shareds", got=got):
                words.function([], outputs, sliceable_shareds=sliceable)
        assert words.function([], outputs, sliceable_shareds=(s,))
