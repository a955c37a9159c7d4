import functools
import warnings

import numpy as np
import pytest
import table
from refusals import refuses

import synkhronos as synk
from synkhronos.testing import numpy_engine as engine

# -- results -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op, dtype", table.DEFINED)
def test_op_and_dtype(threads, differing, op, dtype):
    variables, parts = differing(threads, [dtype], table.SHAPES)
    synk.all_reduce(variables, op=op)
    first = [threads.values(variable) for variable in variables]
    for values, of_ranks in zip(first, parts):
        table.assert_same_bits(values)
        table.assert_reduced(op, values[0], table.expected(op, of_ranks))
    for variable, of_ranks in zip(variables, parts):
        threads.set_values(variable, of_ranks)
    synk.all_reduce(variables, op="c_" + op, nccl=False)  # equal inputs have equal bits
    for variable, values in zip(variables, first):
        table.assert_same_bits(threads.values(variable), values[0])


def test_in_every_world(world, differing):
    """In every world, one call reduces variables of all dtypes with sum or max, and of inexact dtypes with avg."""
    for op in ("sum", "max"):
        variables, parts = differing(world, table.DTYPES, [(3, 2)])
        synk.all_reduce(tuple(variables), op)
        for variable, of_ranks in zip(variables, parts):
            values = world.values(variable)
            table.assert_same_bits(values)
            table.assert_reduced(op, values[0], table.expected(op, of_ranks))
    variables, parts = differing(world, ["float16", "float32", "float64", "complex64", "complex128"], [(), (2, 3)])
    synk.all_reduce(variables)
    for variable, of_ranks in zip(variables, parts):
        values = world.values(variable)
        table.assert_same_bits(values)
        table.assert_reduced("avg", values[0], table.expected("avg", of_ranks))


@pytest.mark.parametrize("op, dtype", table.UNDEFINED)
def test_op_that_the_dtype_does_not_have(make_world, op, dtype):
    world = make_world()
    variable = world.shared(table.value(dtype, (3,)), "counts")
    with refuses(TypeError, "counts", "floating-point", str(dtype)):
        synk.all_reduce(variable, op)
    table.assert_same_bits(world.values(variable), table.value(dtype, (3,)))


def test_default_is_avg(three, differing):
    (variable,), (parts,) = differing(three, ["float64"], [(4,)])
    synk.all_reduce(variable)
    table.assert_reduced("avg", three.values(variable)[0], table.expected("avg", parts))


@pytest.mark.thorough("2 hosts")
def test_many_variables_of_many_shapes_in_one_call(world):
    """One call reduces 161 variables, as many as ResNet-50 has; a second call follows, because buffers alternate."""
    shapes = [(i % 7 + 1, i % 3 + 1, 5)[: i % 4] for i in range(161)]
    dtypes = ["float32", "float64", "float16", "complex64"]
    kinds = [(dtypes[i % 4], shape) for i, shape in enumerate(shapes)]
    variables = world.shareds([np.full(shape, i, dtype) for i, (dtype, shape) in enumerate(kinds)])
    for i in range(0, 161, 40):
        dtype, shape = kinds[i]
        world.set_values(variables[i], [np.full(shape, i + rank, dtype) for rank in range(world.n)])
    synk.all_reduce(variables, "sum")
    synk.all_reduce(variables[::-1], "sum")
    for i in list(range(0, 161, 40)) + [1, 159]:
        dtype, shape = kinds[i]
        total = world.n * i + (0 if i % 40 else sum(range(world.n)))
        table.assert_same_bits(world.values(variables[i]), np.full(shape, world.n * total, dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype, size",
    [("float32", 1_000_003), ("float64", 524_289), ("complex128", 131_077), ("int8", 2_000_001), ("float16", 700_001)],
)
@pytest.mark.parametrize("n", [2, 3])
def test_large_arrays_of_odd_sizes(make_world, dtype, size, n):
    world = make_world("threads", n)
    parts = [table.value(dtype, (size,), rank) for rank in range(n)]
    op = "sum" if dtype == "int8" else "avg"
    variables = world.shareds([parts[0], parts[0][:17]])
    world.set_values(variables[0], parts)
    synk.all_reduce(variables, op)
    values = world.values(variables[0])
    table.assert_same_bits(values)
    table.assert_reduced(op, values[0], table.expected(op, parts))
    table.assert_reduced(op, world.values(variables[1])[-1], table.expected(op, [parts[0][:17]] * n))


def test_large_arrays_on_processes(make_world):
    world = make_world("fork", 2, 1)
    parts = [table.value("float32", (1001, 1003), rank) for rank in range(2)]
    variable = world.shared(parts[0])
    world.set_values(variable, parts)
    synk.all_reduce(variable, "sum")
    values = world.values(variable)
    table.assert_same_bits(values)
    table.assert_reduced("sum", values[0], table.expected("sum", parts))


@pytest.mark.parametrize("shape", [(4, 2), (4, 3), (2, 2, 5), (3, 3, 3), (7, 1)])
def test_mistake_of_2017_second_dimension_equal_to_the_number_of_ranks(threads, shape):
    """Arrays of two or more dimensions are reduced correctly; in 2017, they were divided along the wrong axis."""
    parts = [table.value("float64", shape, rank) for rank in range(threads.n)]
    variable = threads.shared(parts[0])
    threads.set_values(variable, parts)
    synk.all_reduce(variable, "sum")
    for got in threads.values(variable):
        table.assert_reduced("sum", got, table.expected("sum", parts))


# -- averages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_average_of_equal_values_is_that_value(make_world, dtype, n):
    world = make_world("threads", n)
    real = np.finfo(dtype)
    extremes = [
        0.1,
        -1 / 3,
        real.max,
        -real.max,
        real.tiny,
        real.tiny / 2,
        real.tiny * real.eps,
        np.inf,
        -np.inf,
        -0.0,
        1 - real.eps,
    ]
    with np.errstate(all="ignore"):
        value = np.array(extremes + list(np.random.RandomState(0).standard_normal(500))).astype(dtype)
    if value.dtype.kind == "c":
        value.imag = value.real[::-1]
    variable = world.shared(value)
    for weights in (None, [3.7] * n, list(range(1, n + 1))):
        synk.all_reduce(variable, weights=weights)
        for got in world.values(variable):
            np.testing.assert_array_equal(got, value)


def test_average_does_not_overflow(three):
    huge = np.finfo("float64").max
    variable = three.shared(np.zeros(2))
    three.set_values(variable, [[huge, huge], [huge, -huge], [huge / 2, 0]])
    synk.all_reduce(variable)
    for got in three.values(variable):
        np.testing.assert_allclose(got, [huge / 1.2, 0], rtol=1e-15)


def test_nothing_warns(three):
    variable = three.shared(np.array([np.finfo("float32").max, np.nan, np.inf], "float32"))
    three.set_values(variable, [variable.get_value(), variable.get_value(), -variable.get_value()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for op in table.OPS:
            synk.all_reduce(variable, op)


@pytest.mark.parametrize("op", table.OPS)
def test_nan_of_one_rank_reaches_all(three, op):
    variable = three.shared(np.zeros(3))
    three.set_values(variable, [[1.0, np.nan, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    synk.all_reduce(variable, op)
    for got in three.values(variable):
        assert np.isnan(got).tolist() == [False, True, False]
    table.assert_same_bits(three.values(variable))


WEIGHTS = [
    ([1, 2, 3], [1, 2, 3]),
    ((0.5, 0.25, 0.25), (0.5, 0.25, 0.25)),
    (np.array([3, 0, 1]), [3, 0, 1]),
    (np.array([0.1, 0.2, 0.7], "float32"), np.array([0.1, 0.2, 0.7], "float32")),
    ([np.float32(1), np.int8(1), 2], [1, 1, 2]),
    ([1e308, 1e308, 5e307], [2, 2, 1]),
    ([1e-320, 0, 1e-320], [1, 0, 1]),
    ([10**20, 10**20, 0], [1, 1, 0]),
    ([0, 0, 5], [0, 0, 1]),
]


@pytest.mark.parametrize("weights, meant", WEIGHTS, ids=lambda value: str(value))
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_weights(three, differing, weights, meant, dtype):
    (variable,), (parts,) = differing(three, [dtype], [(3, 4)])
    synk.all_reduce(variable, weights=weights)
    values = three.values(variable)
    table.assert_same_bits(values)
    table.assert_reduced("avg", values[0], table.expected("avg", parts, meant))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weight_0_excludes_what_would_spoil_the_average(three, bad):
    variable = three.shared(np.zeros(2))
    three.set_values(variable, [[1.0, 2.0], [bad, bad], [3.0, 6.0]])
    synk.all_reduce(variable, weights=[1, 0, 1])
    table.assert_same_bits(three.values(variable), np.array([2.0, 4.0]))


def test_weights_of_a_function_are_the_rows_of_its_last_call(three):
    x = engine.variable("x", "float64", 1)
    total = three.shared(np.zeros(()), "total")
    step = synk.function([x], updates=[(total, engine.mean(x))])
    synk.distribute()
    step(np.arange(10.0))  # 0-3, 4-6, 7-9: an average of averages would be 4.5 only with these weights
    synk.all_reduce(total, weights=step)
    table.assert_same_bits(three.values(total), np.array(4.5))
    step(np.array([5.0]))  # only the root has a row; the other ranks' values do not count, even if they are NaN
    three.set_values(total, [np.nan, 5.0, np.nan])
    synk.all_reduce([total], weights=step)
    table.assert_same_bits(three.values(total), np.array(5.0))


def test_mistake_of_2017_averages_of_uneven_shards(make_world):
    world = make_world("threads", 3)
    x = engine.variable("x", "float64", 1)
    total = world.shared(np.zeros(()), "total")
    step = synk.function([x], updates=[(total, engine.mean(x))])
    step(np.array([0.0, 1.0, 5.0, 6.0]))
    synk.all_reduce(total, weights=step)
    table.assert_same_bits(world.values(total), np.array(3.0))


def test_weights_of_a_function_do_not_outlive_the_session(make_world, refused):
    x = engine.variable("x", "float64", 1)
    total = engine.shared(np.zeros(()), "total")
    step = synk.function([x], updates=[(total, engine.mean(x))])
    for _ in range(2):
        world = make_world("threads", 2)
        call = functools.partial(synk.all_reduce, total, weights=step)
        refused(world, ValueError, call, argument="weights", got="called", hint="call")
        step(np.arange(4.0))
        synk.all_reduce(total, weights=step)


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights, error, argument, expected, got",
    [
        ([1, 2], ValueError, "weights", "3, one per rank", "2"),
        ([1, 2, 3, 4], ValueError, "weights", "3, one per rank", "4"),
        ([1, -1, 1], ValueError, "weights[1]", "nonnegative", "-1"),
        ([1, 1, np.nan], ValueError, "weights[2]", "finite", "nan"),
        ([np.inf, 1, 1], ValueError, "weights[0]", "finite", "inf"),
        ([np.float32(np.inf), 1, 1], ValueError, "weights[0]", "finite", "inf"),
        ([10**400, 1, 1], ValueError, "weights[0]", "finite", "1000"),
        ([0, 0, 0], ValueError, "weights", "positive", "[0, 0, 0]"),
        ([1, True, 1], TypeError, "weights[1]", "a number", "True of type bool"),
        ([1, "2", 1], TypeError, "weights[1]", "a number", "'2' of type str"),
        ([1, None, 1], TypeError, "weights[1]", "a number", "None"),
        ([[1], [1, 2], 1], TypeError, "weights[0]", "a number", "list"),
        (np.ones((3, 1)), ValueError, "weights[0]", "3, one per rank", "1"),
        (np.ones((3, 3, 3)), TypeError, "weights", "one", "array"),
        (np.eye(4), ValueError, "weights", "3, one row per rank", "4"),
        ([[1, 0, 0], [0, 1, 0], [0, 0, 0]], ValueError, "weights[2]", "positive", "[0, 0, 0]"),
        ([[1, 0, 0], [0, 1, -1], [0, 0, 1]], ValueError, "weights[1][2]", "nonnegative", "-1"),
        ([[1, 0, 0], [0, np.nan, 1], [0, 0, 1]], ValueError, "weights[1][1]", "finite", "nan"),
        ([[1, 0, 0], [0, "1", 1], [0, 0, 1]], TypeError, "weights[1][1]", "a number", "str"),
        (3, TypeError, "weights", "one", "3"),
        (np.array(3.0), TypeError, "weights", "one", "array(3.)"),
        ({0: 1}, TypeError, "weights", "one", "{0: 1}"),
    ],
)
def test_wrong_weights(three, refused, weights, error, argument, expected, got):
    variable = three.shared(np.zeros(2), "W")
    call = functools.partial(synk.all_reduce, variable, weights=weights)
    refused(three, error, call, argument=argument, expected=expected, got=got)


@pytest.mark.parametrize("op", ["sum", "c_max"])
def test_weights_with_another_op_than_avg(three, refused, op):
    variable = three.shared(np.zeros(2), "W")
    call = functools.partial(synk.all_reduce, variable, op, weights=[1, 1, 1])
    refused(three, ValueError, call, argument="weights", expected="op 'avg'", got=f"op {op!r}")


@pytest.mark.parametrize(
    "op, error",
    [
        ("mean", ValueError),
        ("gather", ValueError),
        (None, ValueError),
        ("c_", ValueError),
        ("AVG", ValueError),
        (3, TypeError),
        (np.add, TypeError),
    ],
)
def test_unknown_op(three, refused, op, error):
    variable = three.shared(np.zeros(2), "W")
    refused(three, error, lambda: synk.all_reduce(variable, op), argument="op", got=repr(op))


@pytest.mark.parametrize("shapes", [[(2, 3), (2, 3), (3, 2)], [(2, 3), (6, 1), (6, 1)], [(0, 3), (1, 3), (1, 3)]])
def test_shapes_that_differ_between_ranks(three, refused, shapes):
    good, bad = three.shareds([np.zeros(2), np.zeros((2, 3))], ["good", "bad"])
    three.set_values(good, [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    parts = [table.value("float64", shape, rank) for rank, shape in enumerate(shapes)]
    three.set_values(bad, parts)
    got = [f"float64 {shape} on rank {rank}" for rank, shape in enumerate(shapes)]
    refused(three, ValueError, lambda: synk.all_reduce([good, bad], "sum"), argument="bad", got=got)
    for rank in range(3):
        table.assert_same_bits([three.values(bad)[rank]], parts[rank])
        table.assert_same_bits([three.values(good)[rank]], np.full(2, rank + 1.0))


def test_dtypes_that_differ_between_ranks(three, refused):
    variable = three.shared(np.zeros(2), "W")
    three.set_values(variable, [np.zeros(2), np.zeros(2), np.zeros(2, "float32")])
    refused(three, ValueError, lambda: synk.all_reduce(variable), argument="W", got="float32 (2,) on rank 2")


def test_error_that_all_ranks_see_is_told_once(three):
    variable = three.shared(np.zeros(2), "W")
    three.set_values(variable, [np.zeros(1), np.zeros(2), np.zeros(3)])
    with pytest.raises(ValueError) as caught:
        synk.all_reduce(variable)
    assert not getattr(caught.value, "__notes__", [])
