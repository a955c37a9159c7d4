import functools

import numpy as np
import pytest
import table

import synkhronos as synk


@pytest.mark.parametrize("dtype", table.DTYPES)
def test_the_masters_value_reaches_all(threads, differing, dtype):
    variables, parts = differing(threads, [dtype], table.SHAPES)
    for nccl in (True, False):
        synk.broadcast(variables, nccl=nccl)
        for variable, of_ranks in zip(variables, parts):
            table.assert_same_bits(threads.values(variable), of_ranks[threads.root])


@pytest.mark.parametrize("dtype", table.DTYPES)
def test_values(threads, dtype):
    """Values may be arrays, lists or Data, and their shapes may differ from the variables'."""
    variables = threads.shareds([np.zeros((2, 3), dtype), np.zeros(1, dtype), np.zeros((), dtype)])
    values = [table.value(dtype, shape) for shape in ((5, 2), (0,), ())]
    for form in (lambda value: value, lambda value: np.array(value, order="F"), synk.data):
        synk.broadcast(variables, [form(value) for value in values])
        for variable, value in zip(variables, values):
            table.assert_same_bits(threads.values(variable), value)
    synk.broadcast(variables[0], [[1, 0], [0, 1]])
    table.assert_same_bits(threads.values(variables[0]), np.eye(2).astype(dtype))


def test_in_every_world(world, differing, tmp_path):
    variables, parts = differing(world, table.DTYPES, [(3, 2)])
    synk.broadcast(variables)
    for variable, of_ranks in zip(variables, parts):
        table.assert_same_bits(world.values(variable), of_ranks[world.root])
    values = [table.value(dtype, (2, 5), seed=3) for dtype in table.DTYPES]
    np.save(tmp_path / "last.npy", values[-1])
    given = [synk.data(value) if i % 2 else value for i, value in enumerate(values[:-1])]
    synk.broadcast(tuple(variables), tuple(given) + (synk.data(tmp_path / "last.npy"),))
    for variable, value in zip(variables, values):
        table.assert_same_bits(world.values(variable), value)


def test_mistake_of_2017_values_as_data(world):
    variable = world.shared(np.zeros((2, 2)))
    values = synk.data(table.value("float64", (7, 3)))
    synk.broadcast(variable, values)
    table.assert_same_bits(world.values(variable), values.data)
    values[:] = 0  # the result was a copy
    table.assert_same_bits(world.values(variable), table.value("float64", (7, 3)))


def test_ranks_may_have_had_any_shape(three):
    variable = three.shared(np.zeros((2, 2)))
    three.set_values(variable, [np.zeros((9, 9)), table.value("float64", (3, 4)), np.zeros((0, 1))])
    synk.broadcast(variable)
    table.assert_same_bits(three.values(variable), table.value("float64", (3, 4)))


@pytest.mark.parametrize("size", [1_000_003, 262_145])
def test_large_arrays(make_world, size):
    world = make_world("fork", 2, 1)
    variable = world.shared(np.zeros(1, "float32"))
    value = table.value("float32", (size,))
    synk.broadcast(variable, value)
    table.assert_same_bits(world.values(variable), value)
    variable.set_value(value[::2])
    synk.broadcast(variable)
    table.assert_same_bits(world.values(variable), value[::2])


def test_bad_values(three, refused):
    W, b = three.shareds([np.ones((2, 2), "float32"), np.ones(2, "float32")], ["W", "b"])
    for values, got in [
        (np.ones((2, 2)), "float64"),
        (np.ones(2, "float32"), "(2,)"),
        (synk.data(np.ones(2, "float32")), "(2,)"),
        (synk.data(np.ones((2, 2))), "float64"),
        ("text", ""),
    ]:
        refused(three, TypeError, lambda values=values: synk.broadcast(W, values), argument="values for W", got=got)
    one = np.zeros((1, 1), "float32")
    for values, got in [([one], "1"), ([one, one[0], one], "3"), (one, "ndarray")]:
        call = functools.partial(synk.broadcast, [W, b], values)
        refused(three, ValueError, call, argument="values", expected="a list of length 2", got=got)
    refused(three, TypeError, lambda: synk.broadcast([W, b], [one, one]), argument="values for b", got="(1, 1)")
    for got in three.values(W):
        table.assert_same_bits([got], np.ones((2, 2), "float32"))
    freed = synk.data(one)
    freed.free_memory()
    refused(three, synk.StateError, lambda: synk.broadcast(W, freed), got="free_memory")


@pytest.mark.parametrize("size", [3, 1 << 15])  # in the ranks' own memory, and in common memory
def test_values_that_the_program_has_borrowed(world, size):
    (variable,) = world.shareds([np.zeros(size)])
    synk.broadcast(variable)
    lent = variable.get_value(borrow=True)
    for number in (1.0, 2.0):
        lent[-1] = number
        synk.broadcast(variable)
        table.assert_same_bits(world.values(variable), np.append(np.zeros(size - 1), number))
    del lent
    for number in (3.0, 4.0):
        variable.get_value(borrow=True)[-1] = number  # the program no longer refers to the array
        synk.broadcast(variable)
        table.assert_same_bits(world.values(variable), np.append(np.zeros(size - 1), number))
