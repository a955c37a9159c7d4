import numpy as np
import pytest
import table

import synkhronos as synk


@pytest.mark.parametrize("dtype", table.DTYPES)
def test_stacked_and_concatenated(threads, differing, dtype):
    variables, parts = differing(threads, [dtype], table.SHAPES)
    for result, of_ranks in zip(synk.gather(variables), parts):
        table.assert_same_bits([result], np.stack(of_ranks))
    for result, of_ranks in zip(synk.gather(tuple(variables), nd_up=0, nccl=False), parts):
        table.assert_same_bits([result], np.concatenate(list(map(np.atleast_1d, of_ranks))))
    for variable, of_ranks in zip(variables, parts):
        for got, before in zip(threads.values(variable), of_ranks):
            table.assert_same_bits([got], before)


def test_in_every_world(world, differing):
    variables, parts = differing(world, table.DTYPES, [(), (3, 2), (0, 4)])
    for result, of_ranks in zip(synk.gather(variables), parts):
        table.assert_same_bits([result], np.stack(of_ranks))


def test_lengths_that_differ(three):
    parts = [table.value("float32", (length, 2), length) for length in (3, 0, 5)]
    variable = three.shared(parts[0])
    three.set_values(variable, parts)
    table.assert_same_bits([synk.gather(variable, nd_up=0)], np.concatenate(parts))
    result = synk.gather(variable)
    assert isinstance(result, list) and len(result) == 3
    for got, part in zip(result, parts):
        table.assert_same_bits([got], part)


@pytest.mark.parametrize("nd_up", [0, 1])
def test_shapes_that_do_not_fit_come_as_a_list(three, nd_up):
    parts = [table.value("float64", shape) for shape in ((2, 3), (2, 2), (1, 4))]
    fits, odd = three.shareds([np.zeros(2), parts[0]])
    three.set_values(odd, parts)
    stacked, result = synk.gather([fits, odd], nd_up=nd_up)
    assert stacked.shape == ((6,), (3, 2))[nd_up]
    for got, part in zip(result, parts):
        table.assert_same_bits([got], part)


def test_what_is_returned_is_the_users(three, differing):
    (variable,), (parts,) = differing(three, ["float64"], [(3,)])
    results = [synk.gather(variable), synk.gather(variable, nd_up=0)]
    copies = [result.copy() for result in results]
    for _ in range(3):
        synk.all_reduce(variable, "sum")
    for result, copy in zip(results, copies):
        table.assert_same_bits([result], copy)
        result[...] = -1  # the user's write changes no rank's value
    for got in three.values(variable):
        assert (got != -1).all()


def test_program_of_2017_takes_what_gather_returns_as_an_array(three, differing):
    (variable,), (parts,) = differing(three, ["float32"], [(2, 2)])
    assert np.asarray(synk.gather(variable)).shape == (3, 2, 2)
    assert np.asarray(synk.gather([variable])).shape == (1, 3, 2, 2)


@pytest.mark.parametrize("nd_up", [2, -1, None, True, "1", 0.5])
def test_bad_nd_up(three, refused, nd_up):
    variable = three.shared(np.zeros(2))
    refused(three, ValueError, lambda: synk.gather(variable, nd_up=nd_up), argument="nd_up", got=repr(nd_up))


@pytest.mark.parametrize("nd_up", [0, 1])
def test_large_results_stay_when_others_follow(three, nd_up):
    """The memory of results is reused, but not before the user has dropped them."""
    size = 200000
    variable = three.shared(np.zeros(size))
    kept = []
    for step in range(4):
        parts = [np.full(size, 10.0 * step + rank) for rank in range(3)]
        three.set_values(variable, parts)
        result = synk.gather(variable, nd_up=nd_up)
        kept.append((result, (np.concatenate if nd_up == 0 else np.stack)(parts)))
        if step == 1:
            del kept[0], result
    for result, expected in kept:
        table.assert_same_bits([result], expected)
