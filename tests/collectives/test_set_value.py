import functools

import numpy as np
import pytest
import table

import synkhronos as synk


@pytest.mark.parametrize("dtype", table.DTYPES)
def test_only_that_rank_changes(threads, differing, dtype):
    variables, parts = differing(threads, [dtype], [(), (3,), (2, 2)])
    values = [table.value(dtype, shape, seed=1) for shape in ((), (5,), (0, 3))]
    for rank in range(threads.n):
        for variable, of_ranks in zip(variables, parts):
            threads.set_values(variable, of_ranks)
        synk.set_value(rank, variables, [values[0], synk.data(values[1]), np.array(values[2], order="F")])
        for variable, of_ranks, value in zip(variables, parts, values):
            for other, got in enumerate(threads.values(variable)):
                table.assert_same_bits([got], value if other == rank else of_ranks[other])


def test_in_every_world(world, differing, tmp_path):
    """Values may be arrays, Data or mapped files, with all forms of ``batch``; Data and index lists failed in 2017."""
    X, y = world.shareds([np.zeros((1, 2), "float32"), np.zeros(1, "int64")])
    values, labels = table.value("float32", (20, 3)), table.value("int64", (20,))
    np.save(tmp_path / "x.npy", values)
    for given in (values, synk.data(values), synk.data(tmp_path / "x.npy")):
        for batch in (None, 9, slice(15, 3, -3), [1], [3, -1, 3], np.arange(20)[::-1], ()):
            rows = slice(batch) if batch is None or isinstance(batch, int) else batch
            rows = np.asarray(rows, int) if isinstance(rows, tuple) else rows
            rank = world.n - 1
            synk.set_value(rank, (X, y), (given, labels), batch=batch)
            table.assert_same_bits([world.values(X)[rank]], values[rows])
            table.assert_same_bits([world.values(y)[rank]], labels[rows])
    if world.n > 1:
        table.assert_same_bits(world.values(X)[:-1], np.zeros((1, 2), "float32"))


def test_minibatch_data_hold_the_selected_rows_already(three, refused):
    X, y = three.shareds([np.zeros((1, 2)), np.zeros(1)], ["X", "y"])
    held, labels = synk.data(table.value("float64", (4, 2)), minibatch=True), table.value("float64", (11,))
    synk.set_value(2, [X, y], [held, labels], batch=[10, 3, 5])
    table.assert_same_bits(three.values(X)[2:], held.data[:3])
    table.assert_same_bits(three.values(y)[2:], labels[[10, 3, 5]])
    call = functools.partial(synk.set_value, 0, [X, y], [held, labels], batch=5)
    refused(three, ValueError, call, argument="values for X", expected="as many rows as batch selects (5)", got="4")


def test_large_values(make_world):
    world = make_world("fork", 2, 1)
    variable = world.shared(np.zeros(1))
    value = table.value("float64", (500_001,))
    synk.set_value(0, variable, value)
    table.assert_same_bits(world.values(variable)[:1], value)
    synk.set_value(0, variable, value, batch=slice(None, None, -2))
    table.assert_same_bits(world.values(variable)[:1], value[::-2])
    table.assert_same_bits(world.values(variable)[1:], np.zeros(1))


@pytest.mark.parametrize(
    "rank, error, expected, got",
    [
        (3, ValueError, "an int from 0 to 2", "3"),
        (-1, ValueError, "an int from 0 to 2", "-1"),
        (True, TypeError, "an int", "True of type bool"),
        (np.bool_(True), TypeError, "an int", f"{np.bool_(True)!r} of type bool"),
        (1.0, TypeError, "an int", "1.0 of type float"),
        ("1", TypeError, "an int", "'1' of type str"),
        (None, TypeError, "an int", "None"),
        ([0], TypeError, "an int", "[0] of type list"),
    ],
)
def test_bad_rank(three, refused, rank, error, expected, got):
    variable = three.shared(np.ones(2), "W")
    for call in (lambda: synk.set_value(variable, np.zeros(2), rank), lambda: synk.get_value(variable, rank)):
        refused(three, error, call, argument="rank", expected=expected, got=got)
    table.assert_same_bits(three.values(variable), np.ones(2))


def test_bad_values(three, refused):
    W, scale = three.shareds([np.ones((2, 2)), np.ones(())], ["W", "scale"])
    for value, got in [(np.zeros(2), "(2,)"), (np.zeros((2, 2), complex), "complex128"), (None, "None")]:
        refused(three, TypeError, lambda value=value: synk.set_value(0, W, value), argument="values for W", got=got)
    for batch, error, got in [([2], ValueError, "index 2"), ([1.5], TypeError, "1.5")]:
        call = functools.partial(synk.set_value, 0, W, np.zeros((2, 2)), batch=batch)
        refused(three, error, call, argument="batch", got=got)
    call = functools.partial(synk.set_value, 0, scale, 1.0, batch=1)
    refused(three, ValueError, call, got="scale with 0 dimensions, which has no rows", hint="batch")
    call = functools.partial(synk.set_value, 0, [W, scale], [np.zeros((2, 2))])
    refused(three, ValueError, call, argument="values", expected="a list of length 2", got="1")
    table.assert_same_bits(three.values(W), np.ones((2, 2)))


def test_the_order_of_2017(three):
    """As in 2017, the rank may come first, as an int of any kind, with or without keywords."""
    variable = three.shared(np.zeros(2), "W")
    synk.set_value(1, variable, [1.0, 2.0])
    synk.set_value(np.int64(2), variable, values=[3.0, 4.0])
    synk.set_value(rank=0, shared_vars=variable, values=[5.0, 6.0, 7.0], batch=[2, 0])
    expected = [[7.0, 5.0], [1.0, 2.0], [3.0, 4.0]]
    np.testing.assert_array_equal(three.values(variable), expected)
    for rank in range(3):
        found = [synk.get_value(rank, variable), synk.get_value(rank, shared_vars=variable)]
        np.testing.assert_array_equal([*found, synk.get_value(variable, rank)], [expected[rank]] * 3)
    for call in (
        lambda: synk.get_value(1),
        lambda: synk.set_value(1, variable),
        lambda: synk.get_value(1, variable, 2),
    ):
        with pytest.raises(TypeError):
            call()
