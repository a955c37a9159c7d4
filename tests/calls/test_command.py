"""Calls: the rows that every rank receives, and how its results are combined.

Modules: `arguments`, `rank_call`.
"""

import re
import threading

import numpy as np
import pytest
from refusals import is_local, refuses, reports
from worlds import ENGINES, FEWER_WORLDS

import synkhronos as synk

pytestmark = FEWER_WORLDS

ROWS = np.arange(7.0) + 1  # uneven over 2 and 3 ranks; results of all ops differ for 1 to 7


def batches(n):
    """Return every form of ``batch`` for n rows."""
    some = [5, 0, 0, 3, 1]
    return {
        "nothing": None,
        "number": 4,
        "zero": 0,
        "all": n,
        "numpy number": np.int32(3),
        "0-d array": np.array(2),
        "slice": slice(1, 5),
        "open slice": slice(2, None),
        "from the end": slice(-3, None),
        "to the end": slice(0, -2),
        "step": slice(0, None, 2),
        "backwards": slice(None, None, -1),
        "backwards in steps": slice(6, 0, -2),
        "empty slice": slice(3, 3),
        "list": some,
        "tuple": tuple(some),
        "array": np.array(some),
        "bytes": np.array(some, "uint8"),
        "negative": [-1, 0, -7],
        "empty list": [],
        "range": range(6, 0, -2),
        "long list": list(np.arange(1000) % n),
    }


def selected(values, batch):
    """Return the rows that ``batch`` selects, computed by NumPy alone."""
    if batch is None:
        return values
    if isinstance(batch, (int, np.integer)) or isinstance(batch, np.ndarray) and batch.ndim == 0:
        return values[: int(batch)]
    return values[batch if isinstance(batch, slice) else np.array(list(batch), int)]


# -- ops -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "c_"])
@pytest.mark.parametrize("n_rows", [7, 1])
def test_every_op_of_an_output(world, words, shards, prefix, n_rows):
    x = words.variable("x")
    ops = [prefix + name for name in ("avg", "sum", "prod", "min", "max", "gather", "gather")]
    f = words.function(
        [x],
        [words.mean(x)]
        + list(zip([words.mean(x), words.sum(x), words.prod(x), words.min(x), words.max(x), x * 2, words.sum(x)], ops))
        + [(words.sum(x), None), (x * 2, None)],
    )
    assert f.output_modes == ["avg"] + ops + [None, None]
    rows = ROWS[:n_rows]
    parts = shards(rows, world.n, world.root)
    expected = [
        rows.mean(),
        rows.mean(),
        rows.sum(),
        rows.prod(),
        rows.min(),
        rows.max(),
        rows * 2,
        [part.sum() for part in parts if len(part)],
        parts[world.root].sum(),
        parts[world.root] * 2,
    ]
    for result, truth in zip(f(rows), expected):
        np.testing.assert_allclose(result, truth, rtol=1e-14)
        assert type(result) is np.ndarray and result.dtype == "float64" and result.shape == np.shape(truth)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_the_average_of_uneven_shards_is_the_serial_mean(make_world, numpy_words, n):
    make_world("threads", n)
    x = numpy_words.variable("x")
    f = synk.function([x], [numpy_words.mean(x), numpy_words.max(x)])
    assert f(np.arange(10.0))[0] == 4.5
    assert f(np.full(7, 0.1))[1] == 0.1  # exactly, not only approximately


def test_a_row_of_weight_0_does_not_count(make_world, numpy_words):
    world = make_world("threads", 3, 1)
    x = numpy_words.variable("x")
    f = synk.function([x], [numpy_words.mean(x), (numpy_words.sum(x), "sum")])
    assert f([5.0]) == [5, 5]
    assert f.last_rows == [0, 1, 0] and f([1.0, 2.0]) == [1.5, 3] and f.last_rows == [1, 1, 0]
    assert world.n == 3


def test_without_scattered_inputs_all_ranks_count_the_same(world, words):
    a, w = words.variable("a", 0), world.shared(np.zeros(2), "w")
    world.set_values(w, [[rank, 2.0 * rank] for rank in range(world.n)])
    f = words.function([], [w + a, (w + a, "sum"), (w + a, None), (w + a, "gather")], bcast_inputs=[a])
    ranks = np.arange(world.n)
    values = np.stack([ranks, 2.0 * ranks], 1) + 1
    for result, truth in zip(f(1.0), [values.mean(0), values.sum(0), values[world.root], values.ravel()]):
        np.testing.assert_allclose(result, truth)
    assert f.last_rows == [1] * world.n


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128", "int8", "bool"])
def test_results_keep_their_dtype(make_world, numpy_words, dtype):
    make_world("threads", 3)
    x = numpy_words.variable("x", 2, dtype)
    exact = dtype in ("int8", "bool")
    f = synk.function([x], [(x, "sum" if exact else "avg"), (x, "max"), (x, "gather"), (x, None)])
    data = (np.arange(12).reshape(6, 2) % 2).astype(dtype)
    results = f(data)
    assert [result.dtype for result in results] == [np.dtype(int if dtype == "bool" else dtype)] + [dtype] * 3
    np.testing.assert_array_equal(results[2], data)
    np.testing.assert_array_equal(results[0], data[:2].astype(results[0].dtype) * (3 if exact else 1))


def test_outputs_whose_shapes_differ_between_ranks_are_named(world, words):
    x = words.variable("x")
    y = x * 2
    y.name = "twice"
    f = words.function([x], [(words.sum(x), "avg"), (y, "avg")], name="f")
    if world.n > 1:
        with refuses(ValueError, "outputs[1] (twice) of function f", got="on rank 1"):
            f(ROWS)
        with refuses(ValueError, "outputs[1] (twice)"):
            f(ROWS, output_subset=[1])
    np.testing.assert_array_equal(f(np.arange(world.n * 2.0))[1].shape, (2,))


# -- arguments -----------------------------------------------------------------------------------------------------


def test_every_kind_of_argument(world, words, tmp_path):
    x, y, a = words.variable("x", 2), words.variable("y"), words.variable("a", 0)
    f = words.function([x, y], [(words.sum(x * a), "sum"), (y, "gather"), (words.sum(y), "sum")], bcast_inputs=[a])
    matrix, vector = np.arange(14.0).reshape(7, 2), ROWS * 3
    np.save(tmp_path / "x.npy", matrix)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    forms = [
        matrix,
        matrix.tolist(),
        np.asfortranarray(matrix),
        matrix[::-1][::-1],
        mapped,
        synk.data(matrix),
        synk.data(mapped),
        synk.data(str(tmp_path / "x.npy")),
        matrix.astype("float32"),
        synk.data(matrix.astype("float32")),
        synk.data(np.vstack([matrix, matrix]))[:7],
    ]
    for i, form in enumerate(forms):
        ys = [vector, list(vector), synk.data(vector)][i % 3]
        scale = [2, 2.0, np.float32(2), np.array(2.0), synk.data(2.0)][i % 5]
        total, gathered, sum_y = f(form, ys, scale)
        assert total == matrix.sum() * 2 and sum_y == vector.sum()
        np.testing.assert_array_equal(gathered, vector)
    assert f(a=3.0, y=vector, x=forms[5])[0] == matrix.sum() * 3


def test_0d_and_broadcastable_inputs_go_whole(world, words):
    x, s = words.variable("x", 2), words.variable("s", 0)
    row = words.variable("row", 2, broadcastable=(True, False))
    f = words.function([x, s, row], [(words.sum(row) * s, "gather"), (words.sum(x), "sum")])
    whole, total = f(np.ones((world.n, 3)), 2.0, [[1.0, 2.0, 3.0]])
    np.testing.assert_array_equal(whole, [12.0] * world.n)
    assert total == 3 * world.n
    with refuses(ValueError, "batch", "None", "1"):
        words.function([s], s)(1.0, batch=1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("launcher", ["threads", "fork"])
def test_mutable_inputs_leave_the_users_data_alone(make_world, words_of, launcher, engine):
    make_world(launcher, 2, engine=engine)
    words = words_of(engine)
    x = words.variable("x")
    options = {} if engine == "numpy" else {"mode": type(words.mode)(words.mode.linker, "fast_run")}  # in-place mode
    f = words.function([words.In(x, mutable=True)], [(x * 2, "gather")], **options)
    mine = ROWS.copy()
    f.as_theano(mine)
    assert not np.array_equal(mine, ROWS)  # without protection, the argument is overwritten
    data, array = synk.data(ROWS), ROWS.copy()
    for value in (data, array, data, array):
        for batch in (None, [0, 1, 2], slice(0, 4)):
            np.testing.assert_array_equal(f(value, batch=batch)[0], selected(ROWS, batch) * 2)
    np.testing.assert_array_equal(data, ROWS)
    np.testing.assert_array_equal(array, ROWS)


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_inputs_that_are_no_arrays_travel_whole(make_world, words_of, engine):
    import scipy.sparse

    sparse, words = pytest.importorskip(f"{engine}.sparse"), words_of(engine)
    for launcher in ("threads", "fork"):
        make_world(launcher, 2, 1, engine)
        s, x = sparse.csr_matrix("s"), words.variable("x", 2)
        f = words.function([x], [(sparse.dot(x, s), "gather")], bcast_inputs=[s])
        matrix = scipy.sparse.random(4, 3, 0.5, "csr", random_state=1)
        data = np.arange(20.0).reshape(5, 4)
        np.testing.assert_allclose(f(data, matrix)[0], data @ matrix.toarray())
        with refuses(TypeError, "input 's' (argument 1)", got="a Data"):
            f(data, synk.data(matrix.toarray()))
        with refuses(TypeError, "inputs", got="s, which is not a dense array", hint="bcast_inputs"):
            words.function([s], sparse.dense_from_sparse(s))
        with refuses(TypeError, "output", "dense", hint="(variable, None)"):
            words.function([], s * 2, bcast_inputs=[s])
        g = words.function([], (s * 2, None), bcast_inputs=[s])
        assert (g(matrix) != matrix * 2).nnz == 0


def test_a_value_that_does_not_pickle_is_named(make_world, numpy_words):
    make_world("threads", 2)
    thing, x = numpy_words.variable("thing", dtype=None), numpy_words.variable("x")
    f = synk.function(
        [x],
        (numpy_words.apply(lambda a, b: a + len(b), x, thing, dtype="float64", ndim=1), "gather"),
        bcast_inputs=[thing],
    )
    with refuses(TypeError, "input 'thing' (argument 1)", "pickled", "list"):
        f(ROWS, [threading.Lock()])
    np.testing.assert_array_equal(f(ROWS, {"a": 1, "b": 2}), ROWS + 2)


# -- batch ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", batches(7))
def test_every_form_of_batch(make_world, numpy_words, name):
    check_batch(make_world("threads", 3, 1), numpy_words, batches(7)[name])


@pytest.mark.parametrize("name", ["number", "backwards", "negative", "long list", "empty list"])
def test_batch_on_processes_and_theano(world, words, name):
    check_batch(world, words, batches(7)[name])


def check_batch(world, words, batch):
    x, y = words.variable("x", 2), words.variable("y")
    f = words.function([x, y], [(x, "gather"), (y, "gather"), (words.sum(y), "sum")])
    matrix = np.arange(14.0).reshape(7, 2)
    vector = np.arange(7.0) if batch is None else np.arange(8.0)  # the shortest input counts
    now = selected(vector[:7], batch)
    minibatch = synk.data(np.concatenate([now, [99.0]]) if batch is not None else now, minibatch=True)
    for xs, ys in [
        (matrix, vector),
        (synk.data(matrix), synk.data(vector)),
        (matrix, synk.data(vector)),
        (synk.data(matrix), minibatch),
    ]:
        rows, gathered, total = f(xs, ys, batch=batch)
        if len(now) == 0:  # no rank has a row, so the result is Theano's for no rows
            assert rows.shape == (0, 2) and gathered.shape == (0,) and total == 0
            continue
        np.testing.assert_array_equal(rows, selected(matrix, batch))
        np.testing.assert_array_equal(gathered, now)
        assert total == now.sum()


def test_the_rows_of_every_rank_with_batch(world, words, shards):
    x, w = words.variable("x"), world.shared(np.zeros(3), "w")
    f = words.function([x], updates=[(w, x)])
    batch = [6, 1, 1, 0, 3, 2, 5]
    for data in (ROWS, synk.data(ROWS)):
        f(data, batch=batch)
        for value, part in zip(world.values(w), shards(ROWS[batch], world.n, world.root)):
            np.testing.assert_array_equal(value, part)
    assert f.last_rows == [len(part) for part in shards(batch, world.n, world.root)]


BAD_BATCHES = [
    (8, ValueError, "at most 7, the length of the shortest scattered input", "8"),
    (-1, ValueError, "0 or more", "-1"),
    ([7], ValueError, "the shortest scattered input, which has length 7", "index 7"),  # valid for the other input
    ([0, -8], ValueError, "length 7", "index -8"),
    (np.array([0, 7]), ValueError, "length 7", "index 7"),
    (1.5, TypeError, "integers", "1.5"),
    ([0.0, 1.0], TypeError, "integers", "a list with 0.0"),
    (np.array([0.0]), TypeError, "integers", "an array of type float64"),
    ([[0, 1]], ValueError, "1-D", "more than one dimension"),
    (np.zeros((2, 2), int), ValueError, "1-D", "an array of shape (2, 2)"),
    (True, TypeError, "an int", "True of type bool"),
    ([True, False], TypeError, "integers", "a list with bools"),
    (np.ones(7, bool), TypeError, "integers", "an array of type bool"),
    ("abc", TypeError, "integers", "'abc'"),
    (slice(0, 3, 0), ValueError, "a step other than 0", "slice(0, 3, 0)"),
    (slice(0.5, 3), TypeError, "a slice of integers or None", "slice(0.5, 3, None)"),
]


@pytest.mark.parametrize("batch,error,expected,got", BAD_BATCHES, ids=lambda value: repr(value)[:20])
def test_batches_that_are_none(make_world, numpy_words, batch, error, expected, got):
    make_world("threads", 2)
    x, y = numpy_words.variable("x"), numpy_words.variable("y")
    f = synk.function([x, y], (numpy_words.sum(x * y), "sum"))
    with refuses(error, "batch", expected, got) as raised:
        f(ROWS, synk.data(np.ones(9)), batch=batch)
    assert is_local(raised.value, error)
    assert f(ROWS, synk.data(np.ones(9)), batch=7) == ROWS.sum()


def test_a_minibatch_that_is_too_short(world, words):
    x, y = words.variable("x"), words.variable("y")
    f = words.function([x, y], (words.sum(x * y), "sum"))
    data, minibatch = synk.data(ROWS), synk.data(np.ones(3), minibatch=True)
    with refuses(ValueError, "input 'y' (argument 1)", "as many rows as batch selects (4)", "3", "write"):
        f(data, minibatch, batch=[0, 1, 2, 3])
    assert f(data, minibatch, batch=[6, 5]) == 13


def test_lengths_must_be_equal(world, words):
    x, y = words.variable("x"), words.variable("y")
    f = words.function([x, y], (words.sum(x) + words.sum(y), "sum"))
    got = "7 of input 'x' (argument 0), 6 of input 'y' (argument 1)"
    with refuses(ValueError, "scattered inputs", "length", got):
        f(ROWS, ROWS[:6])
    assert f(ROWS, ROWS[:6], batch=6) == 2 * ROWS[:6].sum()


# -- few rows ------------------------------------------------------------------------------------------------------


def test_ranks_without_rows_make_no_call(world, words):
    x, w = words.variable("x"), world.shared(np.zeros(()), "w")
    f = words.function([x], [words.mean(x), (words.sum(x), "gather")], updates=[(w, w + 1)])
    average, each = f([3.0])
    assert average == 3 and each.tolist() == [3]
    assert [float(value) for value in world.values(w)] == [float(rank == world.root) for rank in range(world.n)]
    f(np.ones(world.n))
    assert [float(value) for value in world.values(w)] == [1.0 + (rank == world.root) for rank in range(world.n)]


def test_with_no_rows_all_ranks_call(world, words):
    x, w = words.variable("x"), world.shared(np.zeros(()), "w")
    f = words.function(
        [x], [words.mean(x), (words.sum(x), "sum"), (words.sum(x), "gather"), (x, "gather")], updates=[(w, w + 1)]
    )
    with np.errstate(all="ignore"):
        results, serial = f([]), f.as_theano([])
    for result, truth in zip(results, serial):
        np.testing.assert_array_equal(result, truth)
        assert result.dtype == truth.dtype and result.shape == truth.shape
    assert [float(value) for value in world.values(w)] == [1.0 + (rank == world.root) for rank in range(world.n)]
    assert f.last_rows == [0] * world.n


def test_the_error_without_rows_is_the_engines(world, words):
    x = words.variable("x")
    f = words.function([x], (words.max(x), "avg"))
    with pytest.raises(ValueError) as serial:
        f.as_theano([])
    with pytest.raises(ValueError) as parallel:
        f([])
    assert str(serial.value).split("\n")[0] in str(parallel.value)
    assert f(ROWS[: world.n]) == ROWS[: world.n].mean()


def test_an_error_that_only_some_ranks_can_see(world, words):
    """An error on some ranks reaches the caller: n + 1 rows on n ranks make one shard of 2 rows and others of 1 row."""
    x = words.variable("x")
    column = (2, 1)
    pair = (
        words.apply(np.reshape, x, column, ndim=2, dtype="float64")
        if world.engine_name == "numpy"
        else x.reshape(column)
    )
    f = words.function([x], (pair, "gather"), name="pairs")
    rows = np.arange(2.0 * world.n)
    np.testing.assert_array_equal(f(rows)[:, 0], rows)
    if world.n > 1:
        # PyTensor does not reshape here, but only checks the shape.
        kind, word = (AssertionError, "shape") if world.engine_name == "pytensor" else (ValueError, "reshape")
        with pytest.raises((kind, synk.WorkerError)) as error:
            f(rows[: world.n + 1])
        if world.root == 0:  # the master's own call succeeded
            assert isinstance(error.value, synk.WorkerError) and error.value.rank == 1
            assert re.search(rf"rank 1 (on host \w+ )?raised {kind.__name__}", str(error.value))
            assert error.value.function == "pairs" and word in str(error.value.__cause__)
        else:
            assert isinstance(error.value, kind)
    np.testing.assert_array_equal(f(rows)[:, 0], rows)


# -- results -------------------------------------------------------------------------------------------------------


def test_results_do_not_change_later(world, words):
    x, w = words.variable("x"), world.shared(np.ones(4), "w")
    f = words.function(
        [x],
        [(x, None), (x, "gather"), (words.sum(x), "sum"), (w, None), (w, "avg"), (x * 2, None)],
        updates=[(w, w * 2)],
    )
    data = synk.data(np.arange(4.0))
    kept = []
    for i in range(4):
        data[:] = np.arange(4.0) + i
        for value in (data, np.arange(4.0) + i):
            for batch in (None, slice(0, 4), [0, 1, 2, 3]):
                results = f(value, batch=batch)
                kept.append((results, [result.copy() for result in results]))
    for results, copies in kept:
        for result, copy in zip(results, copies):
            np.testing.assert_array_equal(result, copy)
            assert result.flags.writeable


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_results_that_a_library_lends_do_not_change_later(make_world, words_of, engine):
    from library import IS_THEANO, L

    make_world("fork", 2, engine=engine)
    words = words_of(engine)
    x = words.variable("x")
    w = L.shared(np.ones(2), "w")
    keep_all = L.Mode(linker=L.VMLinker(use_cloop=IS_THEANO, allow_gc=False), optimizer="fast_run")

    def lent(expression):
        return L.Out(expression, borrow=True), None

    for mode in (words.mode, keep_all):
        f = words.function(
            [L.In(x, borrow=True)],
            [lent(x), lent(x * 2), lent(w), (w, None), lent(w * 2)],
            updates=[(w, w + 1)],
            mode=mode,
        )
        data = synk.data([1.0, 2.0, 3.0])
        kept = []
        for _ in range(3):
            results = f(data)
            kept.append((results, [result.copy() for result in results]))
            data[:] += 1
        assert [results[0][0] for results, _ in kept] == [1, 2, 3]
        for results, copies in kept:
            for result, copy in zip(results, copies):
                np.testing.assert_array_equal(result, copy)


def test_a_result_can_be_given_to_the_next_call(world, words):
    x = words.variable("x")
    f = words.function([x], (x + 1, "gather"))
    value = f(ROWS)
    for _ in range(5):
        value = f(value)
    np.testing.assert_array_equal(value, ROWS + 6)


def test_different_shapes_one_after_another(world, words):
    x = words.variable("x", 2)
    f = words.function([x], [(x, "gather"), (words.sum(x), "sum")])
    for shape in [(7, 2), (3, 5), (100, 10), (1, 1), (0, 4), (7, 2)]:
        value = np.random.RandomState(0).rand(*shape)
        rows, total = f(value)
        np.testing.assert_array_equal(rows, value)
        np.testing.assert_allclose(total, value.sum())


# -- output_subset -------------------------------------------------------------------------------------------------


def test_output_subset_and_back_to_all_outputs(world, words):
    """`output_subset` applies to one call only (in the 2017 version, it also applied to later calls)."""
    x, w = words.variable("x"), world.shared(np.zeros(()), "w")
    f = words.function([x], [(words.sum(x), "sum"), (x * 2, "gather"), (words.max(x), "max")], updates=[(w, w + 1)])
    everything = [ROWS.sum(), ROWS * 2, ROWS.max()]
    for subset in (None, [0], None, [1], [2, 0], [], [0, 0], (1, 2), None):
        result = f(ROWS, output_subset=subset)
        expected = everything if subset is None else [everything[i] for i in subset]
        assert type(result) is list and len(result) == len(expected)
        for value, truth in zip(result, expected):
            np.testing.assert_array_equal(value, truth)
    assert [float(value) for value in world.values(w)] == [9] * world.n


def test_output_subset_by_key(world, words):
    if world.engine_name == "pytensor":
        pytest.skip("functions of PyTensor return no dicts")
    x = words.variable("x")
    f = words.function([x], {"total": (words.sum(x), "sum"), "all": (x, "gather"), "mean": words.mean(x)})
    assert f(ROWS, output_subset=["mean", "total"]) == {"mean": 4, "total": 28}
    assert sorted(f(ROWS)) == ["all", "mean", "total"]
    assert f(ROWS, output_subset=["total"]) == {"total": 28}
    with refuses(ValueError, "output_subset", "'all', 'mean', 'total'", "'min'"):
        f(ROWS, output_subset=["min"])


# -- callers -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["threads", "fork"])
def test_calls_from_several_threads(make_world, numpy_words, launcher):
    make_world(launcher, 2)
    x, y = numpy_words.variable("x"), numpy_words.variable("y")
    functions = [synk.function([x], [(x, "gather"), (numpy_words.sum(x), "sum")]) for _ in range(2)]
    wrong, done = [], []

    def work(seed):
        random = np.random.RandomState(seed)
        own = synk.function([y], (y * seed, "gather"))
        for i in range(15):
            value = random.rand(random.randint(1, 400))
            rows, total = functions[(i + seed) % 2](value)
            if not (np.array_equal(rows, value) and np.allclose(total, value.sum())):
                wrong.append(seed)
            if i % 5 == 0:
                synk.distribute()
            if not np.array_equal(own(value), value * seed):
                wrong.append(seed)
        done.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(6)) and not wrong


INSIDE = []  # the function to call; then, on the master, the error that it raised


def call_inside(value):
    if threading.current_thread() is threading.main_thread() and INSIDE:
        with reports(synk.StateError, "thread") as error:
            INSIDE[0]()
        INSIDE.append(error)
    return value * 2


@pytest.mark.parametrize("call", ["same", "other", "unsent", "distribute", "collective"])
def test_a_call_inside_a_call(make_world, numpy_words, call):
    world = make_world("threads", 3)
    x, w = numpy_words.variable("x"), world.shared(np.ones(2), "w")
    other = synk.function([x], (x, "gather"))
    other(ROWS)
    unsent = synk.function([x], (x, "gather"))
    calls = {
        "same": lambda: f(ROWS * 0),
        "other": lambda: other(ROWS * 0),
        "unsent": lambda: unsent(ROWS),
        "distribute": synk.distribute,
        "collective": lambda: synk.all_reduce(w),
    }
    f = synk.function([x], (numpy_words.apply(call_inside, x, dtype="float64", ndim=1), "gather"))
    INSIDE.append(calls[call])
    try:
        result = f(ROWS)
        np.testing.assert_array_equal(result, ROWS * 2)  # the outer call's rows are unchanged
        assert len(INSIDE) == 2
    finally:
        INSIDE.clear()
    np.testing.assert_array_equal(unsent(ROWS), ROWS)


def test_calls_before_fork_and_after_close(make_world, numpy_words):
    synk.close()
    x = numpy_words.variable("x")
    f = synk.function([x], (numpy_words.sum(x), "sum"))
    for _ in range(2):
        with reports(synk.StateError, "synkhronos.fork()"):
            f(ROWS)
        with reports(synk.StateError, "synkhronos.fork()"):
            synk.distribute()
        assert f.as_theano(ROWS) == 28
        make_world("threads", 2)
        assert f(ROWS) == 28
        synk.close()


def test_a_call_with_its_own_timeout(make_world, numpy_words):
    make_world("threads", 2)
    x = numpy_words.variable("x")
    f = synk.function([x], (numpy_words.sum(x), "sum"))
    for timeout in (0, -1, float("inf"), float("nan"), "1", 10**400):
        with refuses(ValueError, "timeout", "seconds", repr(timeout)):
            f(ROWS, timeout=timeout)
    assert f(ROWS, timeout=60) == 28


@pytest.mark.slow
def test_rows_are_copied_into_memory_that_calls_use_again(make_world):
    """Rows that an update keeps, and outputs that a call returned, are not overwritten by the next call."""
    theano = pytest.importorskip("theano")
    make_world("fork", 2, engine="theano")
    x = theano.tensor.dvector("x")
    old, new = theano.shared(np.zeros(2), "old"), theano.shared(np.zeros(2), "new")
    keep = synk.function([x], [(x, "gather"), (x[::-1], None)], updates=[(old, new), (new, x)])
    data = synk.data(np.arange(10.0))
    gathered, own = keep(data, batch=[1, 3, 5, 7])
    keep(data, batch=[0, 2, 4, 6])
    assert gathered.tolist() == [1, 3, 5, 7] and own.tolist() == [3, 1]
    assert synk.gather(old, nd_up=0).tolist() == [1, 3, 5, 7]
    assert synk.gather(new, nd_up=0).tolist() == [0, 2, 4, 6]
    keep.free()
    assert keep(data, batch=[9, 8, 7])[0].tolist() == [9, 8, 7]
