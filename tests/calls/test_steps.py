"""Many steps in one command yield the same bits as single calls, and NumPy's values; errors can end them early.

Modules: `plan_builder`, `rank_steps`, `step_outputs`.
"""

import gc
import threading

import numpy as np
import pytest
from gates import Gate
from refusals import refuses, reports
from worlds import FEWER_WORLDS, Tables

import synkhronos as synk
from synkhronos.errors import SharedMemoryError, StateError, WorkerError
from synkhronos.runtime.context import RankContext
from synkhronos.testing import numpy_engine as engine

pytestmark = FEWER_WORLDS

RANDOM = np.random.RandomState(0)
X, Y = RANDOM.standard_normal((23, 3)), RANDOM.standard_normal(23)

#: As many rows as ranks, fewer, none on one rank, uneven last batches, and each kind of ``batch``.
BATCHES = [[0, 1, 2, 3, 4], slice(3, 9), [5], np.arange(20, 23), 7, (4, 4, -1, 0), range(2, 7), slice(None, None, -3)]


@pytest.fixture(params=[(1, 0), (2, 0), (2, 1), (3, 1)], ids=lambda world: "{}-root{}".format(*world))
def ranks(request, make_world):
    """Return a world of one to three ranks as threads."""
    return make_world("threads", *request.param)


@pytest.fixture
def two(make_world):
    """Return a world of two ranks as threads."""
    return make_world("threads", 2)


class Program:
    """A function with every kind of output and update; two instances are equal programs."""

    def __init__(self, words, **options):
        x, y, c = words.variable("x", 2), words.variable("y"), words.variable("c", 0)
        self.w, self.count = words.shared(np.zeros(3), name="w"), words.shared(np.array(0), name="count")
        products = x * self.w + c
        self.f = words.function(
            [x, y],
            [
                words.mean(products),
                (words.mean(products), "sum"),
                (words.max(x), "max"),
                (words.mean(y), "min"),
                (words.sum(y), "prod"),
                (words.mean(x, axis=0), "avg"),
                (words.sum(x, axis=0), "sum"),
                (x, "gather"),
                (words.sum(y), "gather"),
                (products, None),
                (self.count, "max"),
            ],
            bcast_inputs=[c],
            updates=[(self.w, self.w * 0.5 + words.mean(x, axis=0) + words.mean(y)), (self.count, self.count + 1)],
            **options,
        )

    def values(self, world):
        return world.values(self.w) + world.values(self.count)


def same_bits(steps, calls):
    """Check that the outputs of steps have the same bits as those of calls."""
    assert type(steps) is type(calls[0]) and len(steps) == len(calls[0])
    for i, output in enumerate(steps):
        of_calls = [call[i] for call in calls]
        assert len(output) == len(of_calls)
        if isinstance(output, np.ndarray):
            assert output.dtype == of_calls[0].dtype
        for got, truth in zip(output, of_calls):
            got = np.asarray(got)
            assert (got.shape, got.dtype, got.tobytes()) == (truth.shape, truth.dtype, truth.tobytes()), i


def both(words):
    """Return two equal programs."""
    return Program(words), Program(words)


# -- equal to calls ----------------------------------------------------------------------------------------------------


def test_bit_for_bit_what_calls_give(world, words):
    steps, calls = both(words)
    outputs = steps.f.steps(X, Y, 2.0, batches=BATCHES)
    by_call, rows = [], np.zeros(world.n, int)
    for batch in BATCHES:
        by_call.append(calls.f(X, Y, 2.0, batch=batch))
        rows += calls.f.last_rows
    same_bits(outputs, by_call)
    assert steps.f.last_rows == rows.tolist()
    for got, truth in zip(steps.values(world), calls.values(world)):
        assert got.tobytes() == truth.tobytes()
    assert [type(output) for output in outputs] == [np.ndarray] * 7 + [list] * 2 + [list, np.ndarray]


def test_what_numpy_says(ranks, numpy_words, shards):
    """Outputs and parameters equal NumPy's; without collectives, every rank trains its own parameters."""
    program = Program(numpy_words)
    outputs = program.f.steps(X, Y, 2.0, batches=BATCHES)
    own = [np.zeros(3) for _ in range(ranks.n)]
    for i, batch in enumerate(BATCHES):
        batch = slice(batch) if isinstance(batch, int) else batch if isinstance(batch, slice) else list(batch)
        rows = np.arange(23)[batch]
        parts = shards(rows, ranks.n, ranks.root)
        losses = [(X[part] * w + 2).mean() for part, w in zip(parts, own) if len(part)]
        weights = [len(part) for part in parts if len(part)]
        np.testing.assert_allclose(outputs[0][i], np.average(losses, weights=weights), rtol=1e-13)
        np.testing.assert_array_equal(outputs[7][i], X[rows])
        np.testing.assert_allclose(outputs[5][i], X[rows].mean(0), rtol=1e-13)
        own = [w * 0.5 + X[part].mean(0) + Y[part].mean() if len(part) else w for part, w in zip(parts, own)]
    for got, truth in zip(ranks.values(program.w), own):
        np.testing.assert_allclose(got, truth, rtol=1e-13)
    assert outputs[0].shape == (len(BATCHES),) and outputs[5].shape == (len(BATCHES), 3)


def test_all_forms_of_arguments(two, numpy_words):
    steps, calls = both(numpy_words)
    batches = RANDOM.randint(-23, 23, (5, 4))
    forms = [(X, Y), (synk.data(X), synk.data(Y)), (synk.data(X), Y), (X[::-1], Y.tolist())]
    for xs, ys in forms:
        for given in (batches, list(batches), batches.tolist(), (row for row in batches)):
            same_bits(steps.f.steps(xs, ys, c=1.0, batches=given), [calls.f(xs, ys, 1.0, batch=row) for row in batches])


def test_n_steps_with_the_same_arguments(ranks, numpy_words):
    steps, calls = both(numpy_words)
    same_bits(steps.f.steps(X, Y, 1.0, n_steps=4), [calls.f(X, Y, 1.0) for _ in range(4)])
    assert steps.f.last_rows == [4 * rows for rows in calls.f.last_rows]
    assert [value.tolist() for value in steps.values(ranks)] == [value.tolist() for value in calls.values(ranks)]


def test_without_rows_to_scatter(ranks, numpy_words):
    w = numpy_words.shared(np.arange(3.0), name="w")
    p = numpy_words.variable("p", 1)
    f = synk.function([], [(w, "sum"), (w, "gather"), (p, None)], [p], updates=[(w, w * 2 + p)])
    summed, gathered, own = f.steps(np.ones(3), n_steps=3)
    powers = [np.arange(3.0), np.arange(3.0) * 2 + 1, np.arange(3.0) * 4 + 3]
    np.testing.assert_array_equal(summed, [value * ranks.n for value in powers])
    assert [list(value) for value in gathered] == [list(value) * ranks.n for value in powers]
    np.testing.assert_array_equal(own, np.ones((3, 3)))
    assert f.last_rows == [3] * ranks.n


def test_steps_without_rows(ranks, numpy_words):
    """In a step without rows, every rank makes the call, and the master's result counts."""
    x = numpy_words.variable("x")
    build = lambda: synk.function([x], [(numpy_words.sum(x), "sum"), (x, "gather"), (numpy_words.sum(x) + 1, "max")])  # noqa: E731
    f, g = build(), build()
    batches = [[], [1, 2], slice(0, 0)]
    same_bits(f.steps(Y, batches=batches), [g(Y, batch=batch) for batch in batches])
    total, rows, most = f.steps(Y, batches=batches, total=True)
    np.testing.assert_allclose(total, Y[1] + Y[2], rtol=1e-15)
    assert rows.tolist() == [Y[1], Y[2]]
    assert f.steps(Y, batches=[[], []], total=True)[2] == 1.0


def test_numbers_of_every_rank_in_all_steps(ranks, numpy_words):
    """A step with rows contributes one number per rank; a step without rows contributes the master's."""
    x = numpy_words.variable("x")
    f = synk.function([x], (numpy_words.sum(x), "gather"))
    batches = [[0, 1, 2], [], [4, 5, 6]]
    found = f.steps(Y, batches=batches, total=True)
    expected = [np.atleast_1d(f(Y, batch=batch)) for batch in batches]
    np.testing.assert_array_equal(found, np.concatenate(expected))
    assert len(found) == 2 * ranks.n + 1


def test_in_slices(ranks, numpy_words):
    x = numpy_words.variable("x", 2)

    def build():
        w = numpy_words.shared(np.zeros(3), name="w")
        outputs = [
            numpy_words.mean(x * w),
            (x, "gather"),
            (numpy_words.sum(x), "gather"),
            (numpy_words.mean(x, 0), "avg"),
        ]
        return synk.function([x], outputs, updates=[(w, w * 0.5 + numpy_words.mean(x, 0))]), w

    (f, w), (g, v) = build(), build()
    batches = [[0, 1, 2, 3, 4, 5, 6], slice(3, 20), [5, 4, 3, 2, 1, 0], np.arange(6)]
    same_bits(f.steps(X, batches=batches, num_slices=2), [g(X, batch=batch, num_slices=2) for batch in batches])
    assert [value.tolist() for value in ranks.values(w)] == [value.tolist() for value in ranks.values(v)]


def test_bools_are_counted_in_slices_too(two, numpy_words):
    x = numpy_words.variable("x", 1, "bool")
    f = synk.function([x], [(numpy_words.apply(np.any, x), "sum"), (x[:2], "sum")])
    data = np.array([True, False] * 8)
    for k in (1, 2):
        any_, sums = f.steps(data, n_steps=2, num_slices=k)
        assert any_.tolist() == [2 * k] * 2 and any_.dtype == np.int_
        assert sums.tolist() == [[2 * k, 0]] * 2 and sums.dtype == np.int_


def test_rows_of_shared_variables(ranks, numpy_words):
    data, column = numpy_words.shared(np.zeros((0, 3)), name="data"), numpy_words.shared(np.zeros(0), name="column")

    def build():
        outputs = [numpy_words.mean(data), (column, "gather"), (numpy_words.sum(data, 0), "sum")]
        return synk.function([], outputs, sliceable_shareds=[data, column])

    f, g = build(), build()
    synk.distribute()
    synk.scatter([data, column], [X, Y])
    batches_s = [slice(0, 3), [0, -1], [[rank] * (rank + 1) for rank in range(ranks.n)], slice(None), np.array([2, 1])]
    for k in (1, 2):
        given = [each for each in batches_s] if k == 1 else batches_s[:2] + batches_s[3:]
        same_bits(f.steps(batches_s=given, num_slices=k), [g(batch_s=batch_s, num_slices=k) for batch_s in given])
    same_bits(f.steps(n_steps=2), [g(), g()])
    same_bits(f.steps(n_steps=2, num_slices=2), [g(num_slices=2), g(num_slices=2)])


def test_rows_of_both(two, numpy_words):
    data, x = numpy_words.shared(np.zeros(0), name="data"), numpy_words.variable("x")
    build = lambda: synk.function([x], [numpy_words.mean(x * data), (data, "gather")], sliceable_shareds=[data])  # noqa: E731
    f, g = build(), build()
    synk.distribute()
    synk.scatter(data, Y)
    batches, batches_s = [[0, 1, 2, 3], slice(4, 10)], [[5, 6], [[0, 1, 2], slice(4, 7)]]
    same_bits(
        f.steps(Y, batches=batches, batches_s=batches_s),
        [g(Y, batch=batch, batch_s=batch_s) for batch, batch_s in zip(batches, batches_s)],
    )
    with refuses(ValueError, "batches_shared[1]", "rows"):
        f.steps(Y, batches=[[0, 1, 2, 3], [1]], batches_s=[[5, 6], [7]])


def test_data_that_changes_its_length(two, numpy_words):
    data, whole = numpy_words.shared(np.arange(10.0), name="data"), numpy_words.shared(np.arange(10.0), name="whole")
    f = synk.function([], (data, "gather"), updates=[(data, data[1:])], sliceable_shareds=[data])
    with reports((ValueError, WorkerError), "sliceable_shareds", "data", 10, 2) as caught:  # relative to the rows
        f.steps(batches_s=[[9, 8, 7], [9, 8, 7]])
    assert caught.value.step == 1 and max(caught.value.steps) == 1
    two.set_values(data, [np.arange(10.0)] * 2)
    assert len(f.steps(batches_s=[[9, 8, 7]])) == 1  # there is no later step
    two.set_values(data, [np.arange(10.0)] * 2)
    other = numpy_words.shared(np.arange(10.0), name="other")
    g = synk.function([], (other, "gather"), updates=[(other, whole * 2)], sliceable_shareds=[other])
    assert [rows.tolist() for rows in g.steps(batches_s=[[8], [8]])] == [[8.0] * 2, [16.0] * 2]


@pytest.mark.parametrize("form", ["dict", "single", "subset", "none"])
def test_the_form_of_the_outputs(two, numpy_words, form):
    x = numpy_words.variable("x")
    mean, top = numpy_words.mean(x), (numpy_words.max(x), "max")
    if form == "dict":
        results = synk.function([x], {"mean": mean, "top": top}).steps(Y, batches=[[0, 1], [2, 3]])
        assert sorted(results) == ["mean", "top"] and results["top"].tolist() == [Y[:2].max(), Y[2:4].max()]
    elif form == "single":
        assert synk.function([x], top).steps(Y, batches=[[0, 1], [2, 3]]).tolist() == [Y[:2].max(), Y[2:4].max()]
    elif form == "subset":
        (result,) = synk.function([x], [mean, top]).steps(Y, batches=[[0, 1], [2, 3]], output_subset=[1])
        assert result.tolist() == [Y[:2].max(), Y[2:4].max()]
    else:
        assert synk.function([x]).steps(Y, n_steps=2) == []


def positions(x):
    return np.flatnonzero(x > 0)


def test_shapes_that_differ(ranks, numpy_words):
    """If shapes differ between steps, the output is a list; if they differ between ranks, the error names the step."""
    x = numpy_words.variable("x")
    positive = numpy_words.apply(positions, x, dtype="int64", ndim=1)
    f = synk.function([x], [(positive, "gather"), (positive, None), (x[:1], "max")])
    data = np.array([1.0, -1, 2, -2, 3, 3, -4, -5, -6, -7, 8, -9])
    batches = np.arange(12).reshape(2, 6)
    gathered, own, largest = f.steps(data, batches=batches)
    calls = [f(data, batch=batch) for batch in batches]
    for i, call in enumerate(calls):
        assert gathered[i].tolist() == call[0].tolist() and own[i].tolist() == call[1].tolist()
    assert type(own) is list and largest.shape == (2, 1)
    if ranks.n > 1:
        g = synk.function([x], (positive, "sum"))
        even = np.tile([1.0, -1], 12)
        odd = np.concatenate([even, [1.0] * 12, [-1.0] * 12])
        with refuses(ValueError, "step 1", got="int64(0,)") as caught:
            g.steps(odd, batches=[slice(0, 24), slice(24, 48)])
        assert caught.value.step == 1 and caught.value.steps == [2] * ranks.n
        assert len(f.steps(data, batches=batches)[0]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("op", ["avg", "sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [1000, 40000])
def test_large_and_small_outputs_have_the_bits_of_calls(ranks, numpy_words, op, dtype, size):
    """The bits agree, although calls reduce arrays above 64 KB on all ranks, in C, and steps reduce on the master."""
    x = numpy_words.variable("x", 2, dtype)
    build = lambda: synk.function([x], [(engine.max(x, 0), op), (engine.max(x), op)])  # noqa: E731
    f, g = build(), build()
    data = (RANDOM.standard_normal((9, size)) * 10.0 ** RANDOM.uniform(-30, 30, (9, size))).astype(dtype)
    data[0, :3] = np.inf, -np.inf, np.finfo(dtype).max
    data[1, :3] = 1, 2, np.finfo(dtype).max
    batches = [[0, 1, 2], [3, 4, 5, 6, 7], [8], [1, 0]]
    with np.errstate(all="ignore"):
        same_bits(f.steps(data, batches=batches), [g(data, batch=batch) for batch in batches])


def test_random_streams_advance_as_in_calls(ranks, numpy_words):
    def build():
        stream = engine.random_stream(7)
        x = numpy_words.variable("x")
        return synk.function([x], [(engine.uniform(stream, (2,)), "gather"), numpy_words.mean(x)])

    f, g, batches = build(), build(), [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    found = f.steps(Y, batches=batches)
    same_bits(found, [g(Y, batch=batch) for batch in batches])
    assert len(set(np.ravel(found[0]).tolist())) == 3 * 2 * ranks.n


def test_inputs_that_may_be_destroyed(two, numpy_words):
    x = numpy_words.variable("x")
    f = synk.function([numpy_words.In(x, mutable=True)], [(x * 2, "gather")])
    data = synk.data(Y)
    for given in (data, Y):
        (found,) = f.steps(given, batches=[slice(0, 4), [0, 1], slice(0, 4)])
        assert [rows.tolist() for rows in found] == [(Y[:4] * 2).tolist(), (Y[:2] * 2).tolist(), (Y[:4] * 2).tolist()]
    assert data.data.tolist() == Y.tolist()


def test_minibatch_data_for_one_step(two, numpy_words):
    x, y = numpy_words.variable("x"), numpy_words.variable("y")
    f = synk.function([x, y], [(x, "gather"), (y, "gather")])
    mine = synk.data(np.arange(3.0), minibatch=True)
    xs, ys = f.steps(Y, mine, batches=[[5, 6, 7]])
    assert xs[0].tolist() == Y[5:8].tolist() and ys[0].tolist() == [0, 1, 2]
    with refuses(ValueError, "'y'", got="minibatch"):
        f.steps(Y, mine, batches=[[0, 1], [2, 3]])
    with refuses(ValueError, "'y'", got="minibatch"):
        f.steps(Y[:3], mine, n_steps=2)


def test_objects_and_values_of_any_kind(two, numpy_words):
    scale, x = numpy_words.variable("scale", dtype=None), numpy_words.variable("x")
    whole = engine.apply(np.multiply, x, engine.apply(float, scale, dtype="float64", ndim=0))
    f = synk.function([x], [(whole, "gather"), (scale, None)], [scale])
    rows, objects = f.steps(Y, 3, batches=[[0, 1], [2, 3, 4]])
    assert rows[1].tolist() == (Y[2:5] * 3).tolist() and objects == [3, 3]


# -- total -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_slices", [1, 2])
def test_total_is_over_all_rows(ranks, numpy_words, shards, num_slices):
    x = numpy_words.variable("x", 2)
    f = synk.function(
        [x],
        [
            numpy_words.mean(x),
            (numpy_words.sum(x, 0), "sum"),
            (numpy_words.max(x), "max"),
            (numpy_words.apply(np.min, x), "min"),
            (x, "gather"),
            (numpy_words.mean(x, 0), "avg"),
        ],
    )
    batches = [slice(0, 8), slice(8, 16), slice(16, 23)]
    mean, sums, top, low, rows, columns = f.steps(X, batches=batches, total=True, num_slices=num_slices)
    np.testing.assert_allclose(mean, X.mean(), rtol=1e-13)
    np.testing.assert_allclose(sums, X.sum(0), rtol=1e-13)
    np.testing.assert_allclose(columns, X.mean(0), rtol=1e-13)
    assert top == X.max() and low == X.min() and rows.tolist() == X.tolist()
    assert abs(mean - np.mean([X[batch].mean() for batch in batches])) > 1e-6  # not the mean of the batches' means
    assert f.last_rows == [
        sum(len(shards(np.arange(23)[batch], ranks.n, ranks.root)[rank]) for batch in batches)
        for rank in range(ranks.n)
    ]


def test_total_without_rows_counts_steps(two, numpy_words):
    w = numpy_words.shared(np.array(0.0), name="w")
    f = synk.function([], w, updates=[(w, w + 1)])
    assert f.steps(n_steps=4, total=True) == 1.5


def test_total_refuses_the_masters_own(two, numpy_words):
    x = numpy_words.variable("x")
    f = synk.function([x], [numpy_words.mean(x), (x, None)])
    with refuses(ValueError, "total", got="True", hint="output_subset"):
        f.steps(Y, n_steps=2, total=True)
    np.testing.assert_allclose(f.steps(Y, n_steps=2, total=True, output_subset=[0]), [Y.mean()])


# -- on_step -----------------------------------------------------------------------------------------------------------


def test_on_step_sees_the_masters_own_outputs(ranks, numpy_words, shards):
    x = numpy_words.variable("x")
    f = synk.function([x], {"top": (numpy_words.max(x), "max"), "rows": (x, "gather")})
    batches, seen = [[0, 1, 2, 3], [4, 5, 6], [7]], []
    f.steps(Y, batches=batches, on_step=lambda i, outputs: seen.append((i, outputs)))
    assert [i for i, _ in seen] == [0, 1, 2]
    for batch, (_, outputs) in zip(batches, seen):
        own = Y[shards(np.array(batch), ranks.n, ranks.root)[ranks.root]]
        assert outputs["rows"].tolist() == own.tolist() and outputs["top"] == own.max()
        assert type(outputs["top"]) is np.ndarray


@pytest.mark.parametrize("no", [False, np.False_])
def test_on_step_ends_the_steps(ranks, numpy_words, no):
    steps, calls = both(numpy_words)
    seen = []

    def on_step(i, outputs):
        seen.append(i)
        return no if i == 3 else None

    outputs = steps.f.steps(X, Y, 1.0, n_steps=2000, on_step=on_step)
    made = len(outputs[0])
    assert seen == [0, 1, 2, 3] and 4 <= made <= 2000
    assert ranks.n > 1 or made == 4
    assert {value.tolist() for value in ranks.values(steps.count)} == {made}  # equal on all ranks
    same_bits(outputs, [calls.f(X, Y, 1.0) for _ in range(made)])
    assert sum(steps.f.last_rows) == made * 23


def test_on_step_that_goes_on(two, numpy_words):
    f = synk.function([], numpy_words.shared(np.array(1.0), name="w"))
    for answer in (None, True, 0, "", np.True_):
        assert len(f.steps(n_steps=5, on_step=lambda i, outputs, answer=answer: answer)) == 5


def test_what_on_step_raises_ends_the_command(ranks, numpy_words):
    steps = Program(numpy_words)

    def on_step(i, outputs):
        if i == 5:
            raise KeyError("enough")

    with reports(KeyError, "enough") as caught:
        steps.f.steps(X, Y, 1.0, n_steps=100000, on_step=on_step)
    made = caught.value.steps
    assert caught.value.step == 5 and made[ranks.root] == 6
    assert [value.tolist() for value in ranks.values(steps.count)] == made
    assert max(made) < 100000
    assert len(steps.f.steps(X, Y, 1.0, n_steps=2)[0]) == 2


def test_a_command_inside_on_step(two, numpy_words):
    program = Program(numpy_words)
    for command in (
        lambda: program.f(X, Y, 1.0),
        lambda: synk.all_reduce(program.w),
        lambda: program.f.steps(X, Y, 1.0, n_steps=1),
    ):
        with reports(StateError, "thread"):
            program.f.steps(X, Y, 1.0, n_steps=3, on_step=lambda i, outputs, command=command: command())
    assert program.f.steps(X, Y, 1.0, n_steps=2)[0].shape == (2,)


def test_on_step_is_not_pickled(make_world, numpy_words):
    make_world("fork", 2)
    lock = threading.Lock()  # a lock cannot be pickled
    program = Program(numpy_words)
    seen = []
    program.f.steps(X, Y, 1.0, n_steps=3, on_step=lambda i, outputs: seen.append(lock.locked()))
    assert seen == [False] * 3


# -- failures ----------------------------------------------------------------------------------------------------------


class Failing:
    """Operation that fails in one step on one rank."""

    def __init__(self, rank, step, error=ValueError):
        self.rank, self.step, self.error = rank, step, error

    def __call__(self, x, count):
        if count == self.step and int(x.flat[0]) == self.rank:
            raise self.error("on purpose")
        return x.sum()


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_in_a_step(make_world, numpy_words, failing):
    world = make_world("threads", 3, 1)
    x, count = numpy_words.variable("x"), numpy_words.shared(np.array(0), name="count")
    value = engine.apply(Failing(failing, 7), x, count, dtype="float64", ndim=0)
    f = synk.function([x], (value, "sum"), updates=[(count, count + 1)])
    ranks = np.repeat(np.arange(3.0), 4)
    with reports(ValueError if failing == 1 else WorkerError, "on purpose") as caught:
        f.steps(ranks, n_steps=100000)
    error = caught.value
    assert error.step == 7 and error.steps[failing] == 7 and max(error.steps) < 100000
    assert [value.tolist() for value in world.values(count)] == error.steps
    if failing != 1:
        assert error.rank == failing and error.command.startswith("steps of function")
        assert "step 7" in str(error) and "count" in error.updated
    world.set_values(count, [0, 0, 0])
    assert f.steps(ranks, n_steps=2).tolist() == [12.0, 12.0]


class Meanwhile:
    """Sum that fails on rows of 2s, once the rank with 1s is in mid-run and that with 0s has made all its steps."""

    def __init__(self, folder, n_steps):
        self.is_in_the_middle, self.has_made_all = Gate(folder / "middle"), Gate(folder / "all")
        self.n_steps, self.made = n_steps, 0

    def __call__(self, x):
        row = int(x.max())
        if row == 2:
            self.is_in_the_middle.until_reached()
            self.has_made_all.until_reached()
            raise ValueError("on purpose")
        self.made += 1
        if row == 1 and self.made == 10:
            self.is_in_the_middle.wait()
        if self.made == self.n_steps:
            self.has_made_all.reach()
        return x.sum()


def test_a_rank_with_steps_to_make_is_ended_when_another_fails(make_world, numpy_words, tmp_path, monkeypatch):
    """A failure on one rank ends the steps of another rank, although the master has made all of its steps."""
    make_world("threads", 3)
    x, meanwhile = numpy_words.variable("x"), Meanwhile(tmp_path, 200)
    y = numpy_words.apply(meanwhile, x, dtype="float64", ndim=0)
    f = synk.function([x], (y, "sum"), exact=False)
    abort = RankContext.abort

    def abort_and_go_on(context):
        abort(context)
        if context.rank == 0:  # rank 0 decides for all ranks
            meanwhile.is_in_the_middle.open()

    monkeypatch.setattr(RankContext, "abort", abort_and_go_on)
    with reports(WorkerError, "ValueError: on purpose", rank=2) as caught:
        f.steps(np.arange(3.0), n_steps=200)
    assert caught.value.step == 0 and caught.value.steps == [200, 10, 0]


def test_other_commands_have_no_steps(two, numpy_words):
    x = numpy_words.variable("x")
    f = synk.function([x], engine.apply(Failing(1, 0), x, 0, dtype="float64", ndim=0))
    with pytest.raises(WorkerError) as caught:
        f(np.repeat([0.0, 1.0], 2))
    assert caught.value.step is None and caught.value.steps is None


@pytest.mark.slow
def test_no_memory_for_the_outputs(ranks, numpy_words):
    x, count = numpy_words.variable("x"), numpy_words.shared(np.array(0), name="count")
    big = engine.apply(np.resize, x, 1 << 22)
    f = synk.function([x], (big, "avg"), updates=[(count, count + 1)])
    with pytest.raises((SharedMemoryError, WorkerError)) as caught:
        f.steps(Y, n_steps=1 << 16)
    assert "iB" in str(caught.value)
    assert caught.value.steps == [0] * ranks.n
    assert {value.tolist() for value in ranks.values(count)} == {0}
    assert f.steps(Y, n_steps=2, output_subset=[]) == []


def test_memory_of_outputs_is_given_back(two, numpy_words):
    x = numpy_words.variable("x")
    f = synk.function([x], [(engine.apply(np.resize, x, 1000), "avg"), (x, "gather")])
    used = []
    for _ in range(5):
        f.steps(Y, batches=[[0, 1], [2]] * 50)
        f(Y)
        gc.collect()
        used.append([used for _, _, used in two.session.run(Tables())])
    assert used[1] == used[2] == used[4]


REFUSED = {
    "nothing to vary": (dict(), ValueError, "n_steps"),
    "no such row": (dict(batches=[[0], [23]]), ValueError, "batches[1]"),
    "a flat array": (dict(batches=np.arange(4)), TypeError, "batches"),
    "a ragged array": (dict(batches=np.array([[0, 1], [2]], object)), TypeError, "batches"),
    "no batches": (dict(batches=[]), ValueError, "batches"),
    "a number": (dict(batches=3), TypeError, "batches"),
    "no such variables": (dict(batches_s=[[0]]), ValueError, "batches_shared"),
    "no slices": (dict(batches=[[0, 1, 2], [0]], num_slices=0, output_subset=[0]), ValueError, "num_slices"),
    "slices of another type": (dict(n_steps=1, num_slices=1.0), TypeError, "num_slices"),
    "steps of another type": (dict(n_steps="2"), TypeError, "n_steps"),
    "a bool": (dict(n_steps=True), TypeError, "n_steps"),
    "no steps": (dict(n_steps=0), ValueError, "n_steps"),
    "what cannot be called": (dict(n_steps=1, on_step=3), TypeError, "on_step"),
    "a total of another type": (dict(n_steps=1, total=1), TypeError, "total"),
    "a total of several": (dict(n_steps=1, total=np.ones(2)), TypeError, "total"),
    "no such output": (dict(n_steps=1, output_subset=[99]), ValueError, "output_subset"),
    "a timeout of nothing": (dict(n_steps=1, timeout=0), ValueError, "timeout"),
    "no such keyword": (dict(batch=[0], n_steps=1), TypeError, "function"),
    "the wrong type": (dict(n_steps=1, y="abc"), TypeError, "'y'"),
    "other lengths": (dict(n_steps=1, y=Y[:5]), ValueError, "scattered inputs"),
    "other lengths in one step": (dict(batches=[[0], None], y=Y[:5]), ValueError, "scattered inputs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_refused_before_anything_runs(two, numpy_words, case):
    options, error, argument = REFUSED[case]
    program = Program(numpy_words)
    synk.distribute()
    options = dict({"y": Y, "c": 1.0}, **options)
    with refuses(error, argument):
        program.f.steps(X, **options)
    assert {value.tolist() for value in two.values(program.count)} == {0}
    assert program.f.steps(X, Y, 1.0, n_steps=2)[10].tolist() == [0, 1]


def test_before_fork_and_after_close(make_world, numpy_words):
    program = Program(numpy_words)
    synk.close()
    with pytest.raises(StateError):
        program.f.steps(X, Y, 1.0, n_steps=1)
    make_world("threads", 2)
    assert program.f.steps(X, Y, 1.0, n_steps=1)[10].tolist() == [0]


@pytest.mark.parametrize("name", ["batches", "batches_shared", "batches_s", "n_steps", "on_step", "total"])
def test_names_that_are_not_reserved(two, numpy_words, name):
    x, n = numpy_words.variable("x"), numpy_words.variable(name, 0)
    f = synk.function([x], numpy_words.mean(x) * n, [n])
    np.testing.assert_allclose(f(Y, **{name: 2.0}), Y.mean() * 2)
    np.testing.assert_allclose(f.steps(Y, 2.0, n_steps=3), [Y.mean() * 2] * 3)
    own = {"n_steps": 1, "on_step": print, "total": True}.get(name, [[0]])
    with refuses(TypeError, "function", "by position", name):
        f.steps(Y, **{"n_steps": 1, name: own})
    with refuses(TypeError, "function", f"'{name}'"):
        f.steps(Y, **({"batches": [[0]]} if name == "n_steps" else {"n_steps": 1}))


def test_weights_of_all_reduce_are_the_rows_of_all_steps(two, numpy_words):
    x, w = numpy_words.variable("x"), numpy_words.shared(np.array(0.0), name="w")
    f = synk.function([x], (numpy_words.sum(x), "sum"), updates=[(w, w + numpy_words.sum(x))])
    f.steps(Y, batches=[[0, 1, 2], [3], [4, 5, 6]])
    of_ranks = [float(value) for value in two.values(w)]
    synk.all_reduce(w, op="avg", weights=f)
    np.testing.assert_allclose(two.values(w)[0], np.average(of_ranks, weights=[5, 2]), rtol=1e-15)
