import functools

import numpy as np
import pytest
import table

import synkhronos as synk


@pytest.mark.parametrize("op, dtype", table.DEFINED)
def test_op_and_dtype(threads, differing, op, dtype):
    variables, parts = differing(threads, [dtype], table.SHAPES)
    results = synk.reduce(variables, op, in_place=False)
    for variable, result, of_ranks in zip(variables, results, parts):
        assert type(result) is np.ndarray
        table.assert_reduced(op, result, table.expected(op, of_ranks))
        for got, before in zip(threads.values(variable), of_ranks):  # no value has changed
            table.assert_same_bits([got], before)
    kept = [result.copy() for result in results]
    assert synk.reduce(tuple(variables), "c_" + op, nccl=False) is None
    for variable, result, of_ranks in zip(variables, kept, parts):
        values = threads.values(variable)
        for rank in range(threads.n):
            table.assert_same_bits([values[rank]], result if rank == threads.root else of_ranks[rank])
    for result, copy in zip(results, kept):
        table.assert_same_bits([result], copy)  # the result belongs to the user


def test_in_every_world(world, differing):
    variables, parts = differing(world, table.DTYPES, [(), (3, 2), (2, 0)])
    for result, of_ranks in zip(synk.reduce(variables, "sum", in_place=False), parts):
        table.assert_reduced("sum", result, table.expected("sum", of_ranks))
    synk.reduce(variables, "min")
    for variable, of_ranks in zip(variables, parts):
        table.assert_reduced("min", world.values(variable)[world.root], table.expected("min", of_ranks))


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype, op", [("float32", "avg"), ("float16", "sum"), ("int8", "prod"), ("complex128", "sum"), ("bool", "max")]
)
@pytest.mark.parametrize("n, root", [(1, 0), (2, 1), (3, 1)])
def test_large_arrays_of_odd_sizes(make_world, dtype, op, n, root):
    """Arrays that are too large for the root to reduce alone are reduced together with small ones in one call."""
    world = make_world("threads", n, root)
    parts = [table.value(dtype, (100_003, 3), rank) for rank in range(n)]
    variables = world.shareds([parts[0], parts[0][:17], np.zeros((2, 3), dtype)])
    world.set_values(variables[0], parts)
    first, second, third = synk.reduce(variables, op, in_place=False)
    table.assert_reduced(op, first, table.expected(op, parts))
    table.assert_reduced(op, second, table.expected(op, [parts[0][:17]] * n))
    copy = first.copy()
    synk.reduce(variables, op)
    table.assert_same_bits([world.values(variables[0])[root]], copy)
    synk.reduce(variables, op)
    table.assert_same_bits([first], copy)


@pytest.mark.parametrize("shape", [(4, 2), (4, 3), (2, 2, 5), (3, 3, 3), (90_001, 2), (50_001, 3)])
def test_mistake_of_2017_second_dimension_equal_to_the_number_of_ranks(threads, shape):
    parts = [table.value("float32", shape, rank) for rank in range(threads.n)]
    variable = threads.shared(parts[0])
    threads.set_values(variable, parts)
    table.assert_reduced("sum", synk.reduce(variable, "sum", in_place=False), table.expected("sum", parts))


def test_default_is_avg_in_place_and_a_variable_alone_gives_its_result_alone(three, differing):
    (variable,), (parts,) = differing(three, ["float64"], [(4,)])
    assert isinstance(synk.reduce(variable, in_place=False), np.ndarray)
    assert isinstance(synk.reduce([variable], in_place=False), list)
    assert synk.reduce(variable) is None
    table.assert_reduced("avg", three.values(variable)[three.root], table.expected("avg", parts))


@pytest.mark.parametrize("in_place", [True, False])
def test_bad_input(three, refused, in_place):
    counts, W = three.shareds([np.zeros(3, "int32"), np.zeros((2, 2))], ["counts", "W"])
    refused(three, TypeError, lambda: synk.reduce([W, counts], in_place=in_place), argument="counts", got="int32")
    refused(three, ValueError, lambda: synk.reduce(W, "mean", in_place), argument="op", got="'mean'")
    for rank in range(3):
        shapes = [(2, 2)] * 3
        shapes[rank] = (2, 1)
        parts = [table.value("float64", shape) for shape in shapes]
        three.set_values(W, parts)
        call = functools.partial(synk.reduce, [counts, W], "sum", in_place)
        refused(three, ValueError, call, argument="W", got=f"(2, 1) on rank {rank}")
        for got, part in zip(three.values(W), parts):
            table.assert_same_bits([got], part)
