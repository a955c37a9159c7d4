"""`synkhronos.all_reduce` in 16 bits; expected values come from NumPy and, for bfloat16, from explicit arithmetic."""

import functools

import numpy as np
import pytest
import table
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.collectives.exchange import FeedbackErrors
from synkhronos.kernels.encoding import rounded

ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
FORMS = pytest.mark.parametrize("form", ROUNDOFF)


def nearest_bfloat16(x):
    """Return the nearest value with 8 significant bits, ties to even, computed in long double."""
    mantissa, exponent = np.frexp(np.asarray(x, np.longdouble))
    return np.ldexp(np.rint(mantissa * 256), exponent - 8).astype(np.float64)


@pytest.fixture(params=[("threads", 3, 1), ("fork", 2, 0), ("threads", 1, 0)], ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param)


def made(world, dtype, shape=(50, 7), seed=0):
    random = np.random.RandomState(seed)
    parts = [random.uniform(0.5, 2, shape).astype(dtype) for _ in range(world.n)]
    variable = world.shared(np.zeros(shape, dtype))
    world.set_values(variable, parts)
    return variable, parts


@FORMS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["avg", "sum"])
def test_error_is_of_the_rounding_of_each_value_and_of_the_result(world, form, dtype, op):
    variable, parts = made(world, dtype)
    synk.all_reduce(variable, op, exchange=form)
    values = world.values(variable)
    table.assert_same_bits(values)
    parts = np.asarray(parts, np.float64)
    u, true = ROUNDOFF[form], {"avg": np.mean, "sum": np.sum}[op](parts, axis=0)
    allowed = u * {"avg": np.mean, "sum": np.sum}[op](np.abs(parts), axis=0) + u * np.abs(true) * (1 + u)
    error = np.abs(values[0] - true)
    assert (error <= allowed).all() and error.max() > u / 20  # (values are indeed rounded)


def test_bfloat16_is_rounded_to_the_nearest():
    random = np.random.RandomState(1)
    x = (random.randn(10_000) * 2.0 ** random.randint(-60, 60, 10_000)).astype(np.float32)
    ties = np.arange(1 << 9, 1 << 10, dtype=np.float32)  # every second value is a tie
    for values in (x, ties, -ties):
        np.testing.assert_array_equal(rounded(values, "bfloat16"), nearest_bfloat16(values).astype(np.float32))


def test_float16_of_values_that_it_holds_is_numpys():
    x = np.random.RandomState(2).randn(1000).astype(np.float16)
    for dtype in (np.float16, np.float32, np.float64):
        np.testing.assert_array_equal(rounded(x.astype(dtype), "float16"), x.astype(dtype))


@pytest.mark.parametrize("size", [1e-40, 1e-9, 1.0, 65_504.0, 1e30])
def test_float16_is_scaled(make_world, size):
    """The sum of the ranks' largest values does not overflow, and tiny values are not lost."""
    world = make_world("threads", 4)
    variable = world.shared(np.zeros(3))
    world.set_values(variable, [np.array([size, -size / 3, size / 7]) * (1 + rank) for rank in range(4)])
    synk.all_reduce(variable, "sum", exchange="float16")
    np.testing.assert_allclose(world.values(variable)[2], np.array([10, -10 / 3, 10 / 7]) * size, rtol=2**-10)


def test_values_are_not_added_up_in_16_bits(make_world):
    """Sums are not accumulated in 16 bits, as in HeAT, where 256 plus seven times 1 would remain 256."""
    world = make_world("threads", 8)
    variable = world.shared(np.zeros(1, "float32"))
    world.set_values(variable, [np.full(1, 256.0 if rank == 0 else 1.0, "float32") for rank in range(8)])
    synk.all_reduce(variable, "sum", exchange="bfloat16")
    assert world.values(variable)[3] == nearest_bfloat16(263) == 264


@FORMS
def test_representable_values_arrive_as_they_are(world, form):
    variable = world.shared(np.zeros((4, 4)))
    parts = [np.arange(16.0).reshape(4, 4) * 2**rank for rank in range(world.n)]
    world.set_values(variable, parts)
    synk.all_reduce(variable, "sum", exchange=form)
    total = np.sum(parts, axis=0)
    table.assert_same_bits(world.values(variable), total)


@FORMS
def test_what_is_not_finite_arrives(make_world, form):
    world = make_world("threads", 2)
    variable = world.shared(np.zeros(4, "float32"))
    world.set_values(
        variable, [np.array(each, "float32") for each in ([np.nan, np.inf, np.inf, 1], [1, 1, -np.inf, 1])]
    )
    synk.all_reduce(variable, exchange=form)
    np.testing.assert_array_equal(world.values(variable)[1], np.array([np.nan, np.inf, np.nan, 1], "float32"))


@FORMS
def test_errors_that_are_fed_back_are_not_lost(world, form):
    """Over 30 exchanges, the results add up to the means, up to the last errors and the rounding of 30 results."""
    random = np.random.RandomState(3)
    w, mean, error = [world.shared(np.zeros(40), name) for name in ("w", "mean", "error")]
    arrived, sent, encoded = np.zeros(40), np.zeros(40), np.zeros(40)
    kept = [np.zeros(40) for _ in range(world.n)]
    for _ in range(30):
        parts = [random.uniform(0.5, 2, 40) for _ in range(world.n)]
        world.set_values(w, parts)
        synk.all_reduce(w, into=mean, exchange=form, feedback=error)
        arrived += world.values(mean)[0]
        sent += np.mean(parts, axis=0)
        for rank, part in enumerate(parts):
            code = rounded(part + kept[rank], form)
            kept[rank] = part + kept[rank] - code
            encoded += code / world.n
    np.testing.assert_allclose(world.values(error), kept, atol=1e-15)
    np.testing.assert_allclose(encoded + np.mean(kept, axis=0), sent, rtol=1e-13)
    u = ROUNDOFF[form]
    assert np.abs(arrived - (sent - np.mean(kept, axis=0))).max() < 30 * 2 * u
    assert np.abs(world.values(error)).max() < 4 * u


@FORMS
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_errors_that_ranks_keep_are_those_of_variables(world, form, later):
    """Errors that ranks keep have the same bits as errors in variables, for any division of variables into lists."""
    random = np.random.RandomState(4)
    names = [("w", (40,)), ("c", ()), ("u", (0, 3))]
    ours, others, errors = ([world.shared(np.zeros(shape), f"{name}{i}") for name, shape in names] for i in range(3))
    for turn in range(12):
        for one, other in zip(ours, others):
            parts = [np.asarray(random.uniform(0.5, 2, one.get_value().shape)) for _ in range(world.n)]
            world.set_values(one, parts)
            world.set_values(other, parts)
        lists = [[0, 1, 2]] if turn % 2 else [[2, 0], [1]]
        for chosen in lists:
            started = synk.all_reduce([ours[i] for i in chosen], exchange=form, feedback=True, wait=not later)
            if later:
                started.wait()
        synk.all_reduce(others, exchange=form, feedback=errors)
        for one, other in zip(ours, others):
            for found, expected in zip(world.values(one), world.values(other)):
                table.assert_same_bits([found], expected)


def context_of(world, rank):
    return world.session.context if rank == world.root else world.session.launcher.contexts[rank]


def test_errors_that_ranks_keep_end_with_the_shape_the_variable_and_the_session(make_world):
    value = np.array([1.0, 1.0 + 2**-9, 1.0 + 2**-8])

    def exchanged(variable, value=value):
        synk.broadcast(variable, value)
        synk.all_reduce(variable, exchange="bfloat16", feedback=True)
        return synk.get_value(1, variable).tolist()

    world = make_world("threads", 2)
    w, v = world.shared(np.zeros(3), "w"), world.shared(np.zeros(3), "v")
    first = exchanged(w)
    assert first == nearest_bfloat16(value).tolist()
    second = exchanged(w)
    assert second == nearest_bfloat16(value + (value - nearest_bfloat16(value))).tolist() != first
    assert exchanged(v) == first  # (the value of another variable)
    exchanged(w, np.ones(5))
    assert exchanged(w) == first
    for rank in range(2):
        assert len(context_of(world, rank).kept(FeedbackErrors).errors) == 2
    del v
    world._functions.pop()
    synk.all_reduce(w)
    assert [len(context_of(world, rank).kept(FeedbackErrors).errors) for rank in range(2)] == [1, 1]
    make_world("threads", 2)
    assert synk.function([], w.storage is None or (w, None)) and exchanged(w) == first


def test_errors_that_ranks_keep_after_an_exchange_that_fails(make_world):
    """An exchange that fails does not change the errors that ranks keep."""
    world = make_world("threads", 2)
    w, value = world.shared(np.zeros(1), "w"), np.array([1.0 + 2**-9 + 2**-12])
    synk.broadcast(w, value)
    synk.all_reduce(w, exchange="bfloat16", feedback=True)
    errors = [context_of(world, rank).kept(FeedbackErrors).errors.copy() for rank in range(2)]
    synk.set_value(1, w, np.zeros(2))
    with refuses(ValueError, "w", got="float64 (2,) on rank 1"):
        synk.all_reduce(w, exchange="bfloat16", feedback=True)
    for rank in range(2):
        now = context_of(world, rank).kept(FeedbackErrors).errors
        assert now.keys() == errors[rank].keys() and all(now[key] is errors[rank][key] for key in now)


def test_a_rank_that_does_not_count_sends_nothing_that_counts(make_world):
    world = make_world("threads", 3)
    variable = world.shared(np.zeros(2))
    world.set_values(variable, [[1.0, 2.0], [np.nan, np.inf], [3.0, 6.0]])
    synk.all_reduce(variable, weights=[1, 0, 1], exchange="bfloat16")
    table.assert_same_bits(world.values(variable), np.array([2.0, 4.0]))


@pytest.mark.parametrize("options", [dict(groups=[[0, 1], [2]]), dict(weights=[1, 1, 0])], ids=["alone", "no weight"])
def test_a_rank_that_sends_nothing_keeps_its_error(make_world, options):
    """Ranks that send nothing keep their error; other errors are those of rounding 1.001 to 1 in bfloat16."""
    world = make_world("threads", 3)
    w, errors = world.shared(np.zeros(1), "w"), world.shared(np.zeros(1), "errors")
    world.set_values(w, [[1.001]] * 3)
    world.set_values(errors, [[0.0], [0.0], [0.0625]])
    synk.all_reduce(w, exchange="bfloat16", feedback=errors, **options)
    np.testing.assert_allclose(world.values(errors), [[0.001], [0.001], [0.0625]], rtol=1e-9)


def test_with_groups_and_later(make_world):
    world = make_world("threads", 4)
    w, mean = world.shared(np.zeros(2), "w"), world.shared(np.zeros(2), "mean")
    world.set_values(w, [np.full(2, 2.0**rank) for rank in range(4)])
    started = synk.all_reduce(w, into=mean, groups=[[0, 1], [2], [3]], exchange="float16", wait=False)
    synk.broadcast(w, np.zeros(2))
    started.wait()
    np.testing.assert_array_equal(world.values(mean), [[1.5, 1.5], [1.5, 1.5], [4, 4], [8, 8]])


def test_nothing_has_changed_after_an_error(make_world):
    world = make_world("threads", 2)
    w, error = world.shared(np.zeros(2), "w"), world.shared(np.zeros(2), "error")
    synk.set_value(1, w, np.full(3, 0.1))
    with reports(synk.WorkerError, "feedback", "w", "(3,)", "error", "(2,)", rank=1):
        synk.all_reduce(w, exchange="bfloat16", feedback=error)
    synk.set_value(1, error, np.zeros(3))
    with refuses(ValueError, "w", got="float64 (3,) on rank 1"):
        synk.all_reduce(w, exchange="bfloat16", feedback=error)
    assert [not synk.get_value(rank, error).any() for rank in range(2)] == [True, True]
    np.testing.assert_array_equal(synk.get_value(1, w), np.full(3, 0.1))


@pytest.mark.parametrize(
    "options, dtype, error, argument, expected",
    [
        (dict(exchange="float32"), "float32", ValueError, "exchange", "'bfloat16'"),
        (dict(exchange=16), "float32", TypeError, "exchange", "'bfloat16'"),
        (dict(exchange="float16", op="max"), "float32", ValueError, "exchange", "op 'avg' or 'sum'"),
        (dict(exchange="float16", op="sum"), "int64", TypeError, "exchange", "real floating-point"),
        (dict(exchange="float16"), "complex64", TypeError, "exchange", "real floating-point"),
        (dict(feedback=True), "float32", ValueError, "feedback", "None"),
        (dict(exchange="float16", feedback=1), "float32", TypeError, "feedback", "shared"),
        (dict(exchange="float16", feedback="error"), "float32", TypeError, "feedback", "shared"),
    ],
)
def test_bad_input(make_world, refused, options, dtype, error, argument, expected):
    world = make_world("threads", 2)
    call = functools.partial(synk.all_reduce, world.shared(np.zeros(2, dtype), "w"), **options)
    refused(world, error, call, argument=argument, expected=expected)


def test_errors_need_variables_of_their_own(make_world, refused):
    world = make_world("threads", 2)
    w, mean, error = [world.shared(np.full(2, 0.1), name) for name in ("w", "mean", "error")]
    for into, feedback in ((None, w), (mean, mean), (mean, w)):
        call = functools.partial(synk.all_reduce, w, exchange="bfloat16", into=into, feedback=feedback)
        refused(world, ValueError, call, argument="feedback", expected="errors only", got="values")
    synk.all_reduce(w, exchange="bfloat16", into=mean, feedback=error)
    np.testing.assert_array_equal(world.values(w), np.full((2, 2), 0.1))
