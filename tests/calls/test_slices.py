"""Calls in slices yield the outputs and updates of calls on all of a rank's rows. Expected values come from NumPy."""

import numpy as np
import pytest
from refusals import is_local, lacks, refuses, reports
from worlds import FEWER_WORLDS

import synkhronos as synk

pytestmark = FEWER_WORLDS

ROWS = np.arange(7.0) + 1  # uneven over 2 and 3 ranks, and over 2 and 3 slices
OPS = {"avg": np.mean, "sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}


def slices(array, n, root, k, shards):
    """Return each rank's slices in a call: those of NumPy's array_split, with at most as many slices as rows."""
    return [np.array_split(part, max(1, min(k, len(part)))) if len(part) else [] for part in shards(array, n, root)]


def close(results, truths):
    assert len(results) == len(truths)
    for result, truth in zip(results, truths):
        np.testing.assert_allclose(result, truth, rtol=1e-14)
        assert type(result) is np.ndarray and result.shape == np.shape(truth)


# -- outputs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "c_"])
def test_every_op_and_every_number_of_slices(world, words, shards, prefix):
    x = words.variable("x")
    f = words.function(
        [x],
        [
            words.mean(x),
            (words.mean(x), prefix + "avg"),
            (words.sum(x), prefix + "sum"),
            (words.prod(x), prefix + "prod"),
            (words.min(x), prefix + "min"),
            (words.max(x), prefix + "max"),
            (words.sum(x), prefix + "gather"),
            (x * 2, prefix + "gather"),
        ],
    )
    for n_rows in (7, world.n, 1):
        rows = ROWS[::-1][:n_rows]
        for k in [*range(1, n_rows + 1), n_rows + 1, 100]:
            each = [piece.sum() for rank in slices(rows, world.n, world.root, k, shards) for piece in rank]
            close(
                f(rows, num_slices=k),
                [rows.mean(), rows.mean(), rows.sum(), rows.prod(), rows.min(), rows.max(), each, rows * 2],
            )
            assert f.last_rows == [len(part) for part in shards(rows, world.n, world.root)]


def test_many_rows_in_more_dimensions(world, words):
    x, y = words.variable("x", 2), words.variable("y")
    f = words.function(
        [x, y],
        [words.mean(x), (words.sum(x, axis=0), "sum"), (x, "gather"), (y, "gather"), (words.max(y), "max")],
    )
    random = np.random.RandomState(0)
    X, Y = random.rand(101, 3), random.rand(101)
    for k in (1, 2, 10, 101):
        results = f(X, Y, num_slices=k)
        close(results, [X.mean(), X.sum(0), X, Y, Y.max()])


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128", "int8", "bool"])
def test_results_keep_their_dtype(make_world, numpy_words, dtype):
    make_world("threads", 2)
    x = numpy_words.variable("x", 2, dtype)
    total = numpy_words.apply(np.sum, x, 0)
    exact = dtype in ("int8", "bool")
    f = synk.function([x], [(total, "sum"), (x[0], "max"), (x, "gather")] + ([] if exact else [numpy_words.mean(x)]))
    data = (np.arange(14).reshape(7, 2) % 2).astype(dtype)
    for k in (1, 2, 7):
        results = f(data, num_slices=k)
        assert [result.dtype for result in results[:3]] == [
            np.dtype(int if dtype == "bool" else total.type.dtype),
            data.dtype,
            data.dtype,
        ]
        assert results[0].tolist() == [0, 7] and results[1].tolist() == [0, 1]
        np.testing.assert_array_equal(results[2], data)
        if not exact:
            assert results[3].dtype == dtype and results[3] == 0.5


def test_the_average_of_equal_values_is_that_value(make_world, numpy_words):
    make_world("threads", 3)
    x = numpy_words.variable("x")
    f = synk.function([x], [numpy_words.max(x), numpy_words.mean(x)])
    for k in (2, 3, 10):
        assert f(np.full(10, 0.1), num_slices=k)[0] == 0.1
        assert f(np.arange(10.0), num_slices=k)[1] == 4.5


@pytest.mark.slow
def test_batch_data_and_plain_arrays(world, words):
    x, y, a = words.variable("x"), words.variable("y"), words.variable("a", 0)
    f = words.function([x, y], [(x, "gather"), words.mean(x * y + a), (words.sum(y), "sum")], bcast_inputs=[a])
    batches = [None, 5, slice(-2, None, -1), [6, 0, 0, 3, -1], np.arange(300) % 7]
    for batch in batches:
        rows = ROWS[:batch] if isinstance(batch, int) else ROWS if batch is None else ROWS[batch]
        minibatch = synk.data(rows * 3, minibatch=True)
        forms = [
            (ROWS, ROWS * 3),
            (synk.data(ROWS), synk.data(ROWS * 3)),
            (synk.data(ROWS), ROWS * 3),
            (synk.data(ROWS), minibatch),
        ]
        for xs, ys in forms:
            for k in (2, len(rows)):
                close(f(xs, ys, 2.0, batch=batch, num_slices=k), [rows, (rows * rows * 3 + 2).mean(), rows.sum() * 3])


def test_inputs_that_go_whole_to_every_rank_are_not_sliced(world, words):
    x, row, b = words.variable("x", 2), words.variable("row", 2, broadcastable=(True, False)), words.variable("b")
    f = words.function([x, row], [(x + row, "gather"), (words.sum(b), "max")], bcast_inputs=[b])
    X = np.arange(14.0).reshape(7, 2)
    close(f(X, [[10.0, 20.0]], [1.0, 2.0, 3.0], num_slices=3), [X + [10, 20], 6])


def test_mutable_inputs_are_private_to_every_slice(world, words):
    x, b = words.variable("x"), words.variable("b")
    f = words.function(
        [words.In(x, mutable=True)],
        [(words.sum(x * words.sum(b)), "sum"), (x * 1, "gather")],
        bcast_inputs=[words.In(b, mutable=True)],
    )
    plain = ROWS.copy()
    data = synk.data(ROWS)
    for xs in (plain, data):
        for batch in (None, slice(0, 7), [0, 1, 2, 3, 4, 5, 6]):
            for bs in (np.ones(2), synk.data(np.ones(2))):
                close(f(xs, bs, batch=batch, num_slices=2), [56, ROWS])
                np.testing.assert_array_equal(bs, np.ones(2))
    np.testing.assert_array_equal(plain, ROWS)
    np.testing.assert_array_equal(data, ROWS)


def test_a_mutable_object_is_another_one_for_every_slice(make_world, numpy_words):
    make_world("threads", 2)
    x, thing = numpy_words.variable("x"), numpy_words.variable("thing", dtype=None)
    f = synk.function(
        [x],
        (
            numpy_words.apply(
                lambda x, stack: np.array(float(stack.pop()) + 0 * x.sum()), x, thing, dtype="float64", ndim=0
            ),
            "gather",
        ),
        bcast_inputs=[numpy_words.In(thing, mutable=True)],
    )
    assert f(ROWS[:4], [5, 7], num_slices=2).tolist() == [7] * 4


def test_output_subset_and_back(world, words):
    x, w = words.variable("x"), world.shared(np.zeros(()), "w")
    f = words.function(
        [x],
        [(words.sum(x), "sum"), (x, "gather"), (words.max(x), "max"), (words.sum(x), None)],
        updates=[(w, w + words.mean(x))],
    )
    everything = [ROWS.sum(), ROWS, ROWS.max()]
    for i, subset in enumerate(([2, 0], [1], [], [0, 0], (0, 1, 2))):
        close(f(ROWS, output_subset=subset, num_slices=2), [everything[i] for i in subset])
        for value, rows in zip(world.values(w), np.array_split(ROWS, world.n)):
            np.testing.assert_allclose(value, (i + 1) * rows.mean())
    with refuses(ValueError, "num_slices", "outputs[3] has op None", "2", "output_subset"):
        f(ROWS, num_slices=2)
    close(f(ROWS)[:3], everything)
    close(f(ROWS, num_slices=1)[:3], everything)
    close(f(ROWS, num_slices=3, output_subset=[0]), everything[:1])


# -- updates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [None] + list(OPS))
def test_updates_are_computed_from_the_original_values_and_applied_once(world, words, shards, op):
    x, y = words.variable("x"), words.variable("y")
    w, v = world.shared(np.zeros(2), "w"), world.shared(np.zeros(()), "v")
    expression = {
        None: words.mean,
        "avg": words.mean,
        "sum": words.sum,
        "prod": words.prod,
        "min": words.min,
        "max": words.max,
    }[op](x)
    news = [(w, w * 2 + expression), (v, v + expression)]
    f = words.function([x, y], words.mean(x + w[0]), updates=[new + (() if op is None else (op,)) for new in news])
    reduce = OPS[op or "avg"]
    for k in (1, 2, 3):
        old = [np.array([rank, 10.0 * rank]) for rank in range(world.n)]
        world.set_values(w, old)
        world.set_values(v, np.full(world.n, 5.0))
        result = f(ROWS, ROWS, num_slices=k)
        parts = slices(ROWS, world.n, world.root, k, shards)
        shifted = [part + value[0] for part, value in zip(shards(ROWS, world.n, world.root), old)]
        np.testing.assert_allclose(result, np.concatenate(shifted).mean())
        for rank, (new_w, new_v) in enumerate(zip(world.values(w), world.values(v))):
            weights = [len(piece) for piece in parts[rank]]
            for new, base in ((new_w, 2 * old[rank]), (new_v, np.array(5.0))):
                values = np.stack([base + OPS[op or "avg"](piece) for piece in parts[rank]])
                truth = np.average(values, axis=0, weights=weights) if reduce is np.mean else reduce(values, axis=0)
                np.testing.assert_allclose(new, truth, rtol=1e-13)


def test_a_training_step_is_the_one_without_slices(world, words, shards):
    """Gradient descent on mean squares: the mean gradient over slices is the gradient over all rows of a rank."""
    x, y = words.variable("x"), words.variable("y")
    w, steps = world.shared(np.zeros(()), "w"), world.shared(np.zeros((), "int64"), "steps")
    f = words.function(
        [x, y],
        words.mean((x * w - y) * (x * w - y)),
        updates=[(w, w - 0.01 * words.mean(x * (x * w - y))), (steps, steps + 1)],
    )
    assert f.update_modes == ["avg", None]
    truth = [0.5 * rank for rank in range(world.n)]
    world.set_values(w, truth)
    for k in (2, 7, 1, 3):
        parts = shards(ROWS, world.n, world.root)
        losses = [((part * value - 2 * part) ** 2).sum() for part, value in zip(parts, truth)]
        np.testing.assert_allclose(f(ROWS, 2 * ROWS, num_slices=k), sum(losses) / 7, rtol=1e-12)
        truth = [value - 0.01 * (part * (part * value - 2 * part)).mean() for part, value in zip(parts, truth)]
        np.testing.assert_allclose(world.values(w), truth, rtol=1e-12)
    assert [int(value) for value in world.values(steps)] == [4] * world.n


def test_integer_updates_must_agree_between_slices(world, words, shards):
    x = words.variable("x", dtype="int64")
    count, w = world.shared(np.zeros((), "int64"), "count"), world.shared(np.zeros(()), "w")
    f = words.function([x], (words.sum(x), "sum"), updates=[(count, count + words.max(x)), (w, w + 1.0)])
    rows = np.full(3 * world.n, 5)
    assert f(rows, num_slices=3) == 15 * world.n
    assert [int(value) for value in world.values(count)] == [5] * world.n
    rows[-1] = 6  # slices disagree on the last rank only
    with pytest.raises((ValueError, synk.WorkerError)) as error:
        f(rows, num_slices=3)
    assert not lacks(str(error.value), "the update of count", "slices")
    assert isinstance(error.value, ValueError if world.root == world.n - 1 else synk.WorkerError)
    assert [int(value) for value in world.values(count)] == [5] * world.n  # on no rank
    assert [float(value) for value in world.values(w)] == [1] * world.n
    f(rows)
    assert [int(value) for value in world.values(count)] == [10] * (world.n - 1) + [11]
    alone = words.function([x], updates=[(count, count + words.max(x)), (w, w + 1.0)])  # no output, so no barrier
    with reports((ValueError, synk.WorkerError), "the update of count", "slices"):
        alone(rows, num_slices=3)
    assert [float(value) for value in world.values(w)] == [2] * world.n


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
def test_integer_updates_with_an_op(world, words, shards, op):
    x = words.variable("x", dtype="int64")
    c = world.shared(np.zeros((), "int64"), "c")
    f = words.function([x], updates=[(c, c + words.max(x), op)])
    rows = np.arange(1, 8)
    assert f(rows, num_slices=2) == []
    for value, pieces in zip(world.values(c), slices(rows, world.n, world.root, 2, shards)):
        assert value.dtype == "int64" and value == OPS[op]([piece.max() for piece in pieces])


def test_default_updates_and_those_of_clones(world, words):
    """As in Lasagne's batch normalization, a default update may belong to a clone that shares the variable's memory."""
    x = words.variable("x")
    running, v = world.shared(np.zeros(()), "running"), world.shared(np.zeros(()), "v")
    if world.engine_name == "theano":
        clone = words.theano.clone(running, share_inputs=False)
    else:
        clone = running.clone()
    clone.default_update = 0.5 * clone + 0.5 * words.mean(x)
    v.default_update = v + 1.0
    f = words.function([x], (x + 0 * clone + 0 * v, "gather"))
    clone.default_update = clone * 1000  # later changes have no effect
    v.default_update = None
    truth = np.zeros(world.n)
    for call, k in enumerate((1, 3, 2), 1):
        np.testing.assert_array_equal(f(ROWS, num_slices=k), ROWS)
        truth = 0.5 * truth + 0.5 * np.array([part.mean() for part in np.array_split(ROWS, world.n)])
        np.testing.assert_allclose(world.values(running), truth, rtol=1e-14)
        assert [float(value) for value in world.values(v)] == [call] * world.n


def test_swapped_and_dependent_updates(world, words):
    x = words.variable("x")
    a, b, c = world.shareds([np.zeros(2), np.ones(2), np.zeros(2)], ["a", "b", "c"])
    world.set_values(a, [np.full(2, 10.0 + rank) for rank in range(world.n)])
    f = words.function([x], (words.sum(x) + a[0] * 0, "sum"), updates=[(a, b), (b, a), (c, a + b)])
    first = [np.full(2, 10.0 + rank) for rank in range(world.n)]
    for k in (2, 3, 1, 2):
        close([f(ROWS, num_slices=k)], [ROWS.sum()])
    np.testing.assert_array_equal(world.values(a), first)
    np.testing.assert_array_equal(world.values(b), [np.ones(2)] * world.n)
    np.testing.assert_array_equal(world.values(c), [value + 1 for value in first])
    f(ROWS, num_slices=2)
    np.testing.assert_array_equal(world.values(b), first)
    if world.n > 1:
        synk.all_reduce([a, b], op="sum")
        np.testing.assert_array_equal(world.values(b), [sum(first)] * world.n)


def test_updates_of_another_shape(world, words):
    x, w = words.variable("x"), world.shared(np.zeros(1), "w")
    f = words.function([x], updates=[(w, x * 2)], name="f")
    f(np.arange(2.0 * world.n), num_slices=2)  # slices of one row each
    for rank, value in enumerate(world.values(w)):
        np.testing.assert_array_equal(value, [4 * rank + 1])
    with reports((ValueError, synk.WorkerError), "the update of w", "slices", "shape"):
        f(np.arange(3.0 * world.n), num_slices=2)
    for rank, value in enumerate(world.values(w)):
        np.testing.assert_array_equal(value, [4 * rank + 1])
    f(np.arange(3.0 * world.n), num_slices=3)


def test_outputs_whose_shapes_differ_between_slices_are_named(world, words):
    x, w = words.variable("x"), world.shared(np.zeros(()), "w")
    y = x * 2
    y.name = "twice"
    f = words.function([x], [words.mean(x), (y, "avg")], updates=[(w, w + 1)])
    with reports((ValueError, synk.WorkerError), "outputs[1] (twice)", "slices"):
        f(np.arange(3.0 * world.n), num_slices=2)
    assert [float(value) for value in world.values(w)] == [0] * world.n
    close(f(np.arange(2.0 * world.n), num_slices=2), [np.arange(2.0 * world.n).mean(), [2 * world.n - 1]])


def test_outputs_of_a_dict_are_named_by_their_keys(world, words):
    if world.engine_name == "pytensor":
        pytest.skip("functions of PyTensor return no dicts")
    x = words.variable("x")
    f = words.function([x], {"mean": words.mean(x), "twice": (x * 2, "avg")})
    for options in (dict(), dict(output_subset=["twice"])):
        with reports((ValueError, synk.WorkerError), "outputs['twice']", "slices"):
            f(np.arange(3.0 * world.n), num_slices=2, **options)


def test_ranks_without_rows_make_no_call(world, words):
    x, w = words.variable("x"), world.shared(np.zeros(()), "w")
    f = words.function([x], [words.mean(x), (words.sum(x), "gather")], updates=[(w, w + words.mean(x))])
    for batch, value in ((1, ROWS[0]), ([3], ROWS[3])):
        average, each = f(ROWS, batch=batch, num_slices=1)
        assert average == value and each.tolist() == [value]
    if world.n == 3:
        before = np.array(world.values(w))
        average, each = f(ROWS[:2], num_slices=2)
        assert average == 1.5 and each.tolist() == [1, 2]
        assert sorted(np.array(world.values(w)) - before) == [0, 1, 2]
        assert world.values(w)[world.root] > before[world.root]


# -- functions with few inputs or outputs --------------------------------------------------------------------------


def test_only_outputs_only_updates_and_nothing(world, words):
    x, w = words.variable("x"), world.shared(np.zeros(()), "w")
    only_updates = words.function([x], updates=[(w, w + words.mean(x))])
    nothing, only_outputs = words.function([x]), words.function([x], words.mean(x))
    assert only_updates(ROWS, num_slices=2) == [] == nothing(ROWS, num_slices=2)
    np.testing.assert_allclose(world.values(w), [part.mean() for part in np.array_split(ROWS, world.n)])
    close([only_outputs(ROWS, num_slices=2)], [4])
    constant = words.function([x], updates=[(w, w * 0 + 3)])
    constant(ROWS, num_slices=7)
    assert [float(value) for value in world.values(w)] == [3] * world.n


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "k,error,expected,got",
    [
        (0, ValueError, "at least 1", "0"),
        (-1, ValueError, "at least 1", "-1"),
        (True, TypeError, "an int", "True of type bool"),
        (2.0, TypeError, "an int", "2.0 of type float"),
        (None, TypeError, "an int", "None of type NoneType"),
        ([2], TypeError, "an int", "[2] of type list"),
    ],
)
def test_numbers_of_slices_that_are_none(make_world, numpy_words, k, error, expected, got):
    for launcher in ("threads", "fork"):
        world = make_world(launcher, 2)
        x, w = numpy_words.variable("x"), world.shared(np.zeros(()), "w")
        f = synk.function([x], numpy_words.mean(x), updates=[(w, w + 1)])
        with refuses(error, "num_slices", expected, got) as raised:
            f(ROWS, num_slices=k)
        assert is_local(raised.value, error) and [float(value) for value in world.values(w)] == [0, 0]
        assert f(ROWS, num_slices=np.int32(2)) == 4 and [float(value) for value in world.values(w)] == [1, 1]


def test_nothing_to_slice(world, words):
    a, w = words.variable("a", 0), world.shared(np.ones(4), "w")
    row = words.variable("row", 2, broadcastable=(True, False))
    f = words.function([a, row], words.mean(w) + a + words.sum(row))
    with refuses(ValueError, "num_slices", "nothing", "2"):
        f(1.0, [[1.0, 2.0]], num_slices=2)
    assert f(1.0, [[1.0, 2.0]], num_slices=1) == 5
    x = words.variable("x")
    g = words.function([x], words.mean(x))
    close([g(ROWS, batch=[1, 2], num_slices=2)], [2.5])
    close([g(ROWS, batch=[1, 2], num_slices=3)], [2.5])


def test_no_rows_in_slices(world, words):
    """Without any rows, every rank makes one call; results and updates are those without slices."""
    x, w = words.variable("x"), world.shared(np.zeros(()), "w")
    f = words.function([x], [(words.sum(x), "sum"), (x * 2, "gather")], updates=[(w, w + words.sum(x) + 1)])
    for k in (1, 2, 5):
        total, rows = f([], num_slices=k)
        assert total == 0 and rows.shape == (0,)
    assert [float(value) for value in world.values(w)] == [3] * world.n
    for batches in ([[0], [], [1, 2, 3, 4, 5, 6]], [[], [0]]):
        for of_step, total, rows in zip(batches, *f.steps(ROWS, batches=batches, num_slices=2)):
            close([np.asarray(total), rows], [ROWS[np.array(of_step, int)].sum(), ROWS[np.array(of_step, int)] * 2])


def test_an_error_in_a_slice_changes_nothing(make_world, numpy_words):
    for launcher, root in (("threads", 0), ("fork", 1)):
        world = make_world(launcher, 2, root)
        x, w = numpy_words.variable("x"), world.shared(np.zeros(()), "w")
        f = synk.function([x], (numpy_words.apply(refuse_nine, x, ndim=0), "sum"), updates=[(w, w + 1)], name="f")
        assert f(ROWS, num_slices=3) == 28
        with reports((ZeroDivisionError, synk.WorkerError), "nine"):
            f(np.append(ROWS, 9.0), num_slices=3)
        assert [float(value) for value in world.values(w)] == [1, 1]
        assert f(ROWS, num_slices=3) == 28 and [float(value) for value in world.values(w)] == [2, 2]


def refuse_nine(x):
    if 9 in x:
        raise ZeroDivisionError("nine")
    return x.sum()
