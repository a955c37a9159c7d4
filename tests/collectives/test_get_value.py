import numpy as np
import pytest
import table

import synkhronos as synk


@pytest.mark.parametrize("dtype", table.DTYPES)
def test_one_ranks_value(threads, differing, dtype):
    variables, parts = differing(threads, [dtype], table.SHAPES)
    for rank in map(np.int64, range(threads.n)):
        for got, of_ranks in zip(synk.get_value(rank, variables), parts):
            assert type(got) is np.ndarray
            table.assert_same_bits([got], of_ranks[rank])


def test_in_every_world(world, differing):
    variables, parts = differing(world, table.DTYPES, [(), (3, 2)])
    for rank in range(world.n):
        for got, of_ranks in zip(synk.get_value(rank, tuple(variables)), parts):
            table.assert_same_bits([got], of_ranks[rank])


def test_other_shapes_on_other_ranks(three):
    variable = three.shared(np.zeros((1, 1)))
    parts = [table.value("float64", shape) for shape in ((0, 3), (5, 2), (1, 1))]
    three.set_values(variable, parts)
    for rank in range(3):
        table.assert_same_bits([synk.get_value(rank, variable)], parts[rank])


def test_what_is_returned_is_the_users(three, differing):
    (variable,), (parts,) = differing(three, ["float64"], [(3,)])
    for rank in range(3):
        got = synk.get_value(rank, variable)
        assert got.flags.owndata
        got[...] = np.nan
        table.assert_same_bits([three.values(variable)[rank]], parts[rank])
