import numpy as np
import pytest
import table

import synkhronos as synk


@pytest.mark.parametrize("dtype", table.DTYPES)
def test_everyone_has_the_concatenation(threads, differing, dtype):
    variables, parts = differing(threads, [dtype], [shape for shape in table.SHAPES if shape])
    synk.all_gather(variables)
    for variable, of_ranks in zip(variables, parts):
        table.assert_same_bits(threads.values(variable), np.concatenate(of_ranks))
    synk.all_gather(variables[0], nccl=False)  # this variable has grown
    table.assert_same_bits(threads.values(variables[0]), np.concatenate([np.concatenate(parts[0])] * threads.n))


def test_mistake_of_2017_all_gather_on_cpu_processes(world, differing):
    """In every world, one call gathers variables of all dtypes; in 2017, this failed on CPU processes."""
    variables, parts = differing(world, table.DTYPES, [(3, 2), (0, 4)])
    synk.all_gather(variables)
    for variable, of_ranks in zip(variables, parts):
        table.assert_same_bits(world.values(variable), np.concatenate(of_ranks))


@pytest.mark.parametrize("lengths", [(3, 0, 5), (0, 0, 0), (1, 2, 3), (0, 0, 100_003)])
def test_lengths_that_differ(three, lengths):
    parts = [table.value("float32", (length, 2), length) for length in lengths]
    variable = three.shared(parts[0])
    three.set_values(variable, parts)
    synk.all_gather(variable)
    table.assert_same_bits(three.values(variable), np.concatenate(parts))


def test_scatter_then_all_gather_is_the_whole(world):
    values = table.value("float32", (11, 3))
    variable = world.shared(values[:1])
    synk.scatter(variable, values)
    assert synk.get_lengths(variable) == [len(part) for part in np.array_split(values, world.n)]
    synk.all_gather(variable)
    table.assert_same_bits(world.values(variable), values)


def test_bad_input(three, refused):
    W, scale = three.shareds([np.zeros((2, 2)), np.zeros(())], ["W", "scale"])
    refused(three, ValueError, lambda: synk.all_gather([W, scale]), got="scale with 0", hint="use gather")
    parts = [table.value("float64", shape) for shape in ((2, 2), (1, 2), (2, 3))]
    three.set_values(W, parts)
    shapes = ["float64 (2, 2) on rank 0", "float64 (1, 2) on rank 1", "float64 (2, 3) on rank 2"]
    refused(three, ValueError, lambda: synk.all_gather(W), argument="W", expected="(except axis 0)", got=shapes)
    for got, part in zip(three.values(W), parts):
        table.assert_same_bits([got], part)
