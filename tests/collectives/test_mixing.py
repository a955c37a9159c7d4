"""`synkhronos.all_reduce` with a matrix of weights, and with groups; expected values come from NumPy."""

import functools

import numpy as np
import pytest
import table
from refusals import refuses

import synkhronos as synk
from synkhronos.testing import numpy_engine as engine

SHAPES = [(3,), (2, 40_000)]  # ranks divide the work on them in different ways


def truth(matrix, parts):
    """Return every rank's expected result."""
    matrix = np.asarray(matrix, np.float64)
    return np.tensordot(matrix / matrix.sum(axis=1, keepdims=True), np.asarray(parts, np.float64), 1)


@pytest.fixture(
    params=[("threads", 4, 1), ("fork", 3, 0), ("threads", 2, 0), ("threads", 1, 0)], ids="{0[0]}-{0[1]}".format
)
def world(request, make_world):
    return make_world(*request.param)


def differing(world, dtype="float64", seed=0):
    """Return variables whose values differ between ranks, and these values."""
    random = np.random.RandomState(seed)
    variables = world.shareds([np.zeros(shape, dtype) for shape in SHAPES])
    parts = [[random.randn(*shape).astype(dtype) for _ in range(world.n)] for shape in SHAPES]
    for variable, of_ranks in zip(variables, parts):
        world.set_values(variable, of_ranks)
    return variables, parts


@pytest.mark.parametrize("dtype, digits", [("float64", 1e-14), ("float32", 1e-6), ("float16", 2e-3)])
def test_any_matrix(world, dtype, digits):
    matrix = np.random.RandomState(1).rand(world.n, world.n) + 0.1
    variables, parts = differing(world, dtype)
    synk.all_reduce(variables, weights=matrix)
    for variable, of_ranks in zip(variables, parts):
        for found, expected in zip(world.values(variable), truth(matrix, of_ranks)):
            assert found.dtype == dtype
            np.testing.assert_allclose(found, expected, rtol=digits, atol=digits)


def test_two_matrices_are_their_product(world):
    random = np.random.RandomState(2)
    first, second = random.rand(2, world.n, world.n)
    variables, parts = differing(world)
    synk.all_reduce(variables, weights=first.tolist())
    synk.all_reduce(variables, weights=second.tolist())
    product = np.dot(*[each / each.sum(axis=1, keepdims=True) for each in (second, first)])
    for variable, of_ranks in zip(variables, parts):
        np.testing.assert_allclose(world.values(variable), truth(product, of_ranks), rtol=1e-12, atol=1e-13)


def test_matrix_of_equal_rows_has_the_bits_of_a_vector(world):
    weights = np.random.RandomState(3).rand(world.n)
    variables, parts = differing(world)
    synk.all_reduce(variables, weights=weights)
    vectors = [world.values(variable)[0] for variable in variables]
    for variable, of_ranks in zip(variables, parts):
        world.set_values(variable, of_ranks)
    synk.all_reduce(variables, weights=[weights] * world.n)
    for variable, vector in zip(variables, vectors):
        table.assert_same_bits(world.values(variable), vector)


def test_identity_leaves_values_as_they_are(world):
    """An identity matrix as weights changes no value, including infinities, NaN and -0."""
    variables, _ = differing(world)
    special = [np.array([np.nan, -0.0, np.inf]) * (rank + 1) for rank in range(world.n)]
    world.set_values(variables[0], special)
    synk.all_reduce(variables, weights=5 * np.eye(world.n))
    for found, expected in zip(world.values(variables[0]), special):
        assert found.tobytes() == expected.tobytes()


def test_permutation_hands_values_on_to_the_bit(world):
    (variable, _), (parts, _) = differing(world)
    parts[0] = np.array([np.nan, -0.0, np.inf])
    world.set_values(variable, parts)
    synk.all_reduce(variable, weights=0.3 * np.roll(np.eye(world.n), 1, axis=0))
    for rank, found in enumerate(world.values(variable)):
        assert found.tobytes() == parts[rank - 1].tobytes()


@pytest.mark.parametrize("options", [{"weights": 0.3 * np.eye(3)}, {"groups": [[2], [0], [1]]}])
@pytest.mark.parametrize("wait", [True, False])
def test_own_values_come_into_others_to_the_bit(make_world, options, wait):
    """Values that ranks copy from themselves are those from the start of the collective."""
    world = make_world("threads", 3, 1)
    source, target = world.shareds([np.zeros(3)] * 2)
    parts = [np.array([np.nan, -0.0, 0.1 * rank]) for rank in range(3)]
    world.set_values(source, parts)
    started = synk.all_reduce(source, into=target, wait=wait, **options)
    if not wait:
        world.set_values(source, np.zeros((3, 3)))
        started.wait()
    for found, expected in zip(world.values(target), parts):
        assert found.tobytes() == expected.tobytes()


def test_weight_0_excludes_what_would_spoil_a_result(make_world):
    world = make_world("threads", 3)
    variable = world.shared(np.zeros(1))
    world.set_values(variable, [[1.0], [np.nan], [3.0]])
    synk.all_reduce(variable, weights=[[1, 0, 1], [1, 0, 0], [0, 1, 1]])
    np.testing.assert_array_equal(world.values(variable), [[2.0], [1.0], [np.nan]])


def test_equal_rows_share_the_bits(make_world):
    """Ranks whose rows of weights are equal after normalization get the same bits."""
    world = make_world("threads", 4, 3)
    (_, variable), (_, parts) = differing(world)
    synk.all_reduce(variable, weights=[[1, 3, 0, 0], [0, 0, 2, 2], [2, 6, 0, 0], [0, 0, 1e308, 1e308]])
    values = world.values(variable)
    table.assert_same_bits([values[0], values[2]])
    table.assert_same_bits([values[1], values[3]])
    np.testing.assert_allclose(values[0], 0.25 * parts[0] + 0.75 * parts[1], rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(values[1], 0.5 * parts[2] + 0.5 * parts[3], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("weights", [None, [3, 1, 0, 0, 2]], ids=["alike", "weighted"])
def test_groups(make_world, weights):
    world = make_world("threads", 5, 2)
    variables, parts = differing(world)
    synk.all_reduce(variables, groups=[[0, 4, 1], (3, 2)], weights=weights)
    mean = functools.partial(np.average, axis=0)
    for variable, of_ranks in zip(variables, parts):
        values = world.values(variable)
        inside = None if weights is None else [3, 2, 1]
        first = mean([of_ranks[0], of_ranks[4], of_ranks[1]], weights=inside)
        second = mean([of_ranks[2], of_ranks[3]])  # (all of their weights are 0)
        for rank, expected in enumerate([first, first, second, second, first]):
            np.testing.assert_allclose(values[rank], expected, rtol=1e-13, atol=1e-14)
        table.assert_same_bits([values[0], values[1], values[4]])


def test_groups_of_one_keep_their_values(make_world):
    world = make_world("threads", 3)
    (variable, _), (parts, _) = differing(world)
    synk.all_reduce(variable, groups=[[2], [0], [1]])
    table.assert_same_bits(world.values(variable)[1:2], parts[1])


def test_weights_of_a_function_in_groups(make_world):
    """With a function as weights, each group's result is the mean of the rows of its ranks."""
    world = make_world("threads", 4)
    x, w = engine.variable("x", "float64", 1), world.shared(np.zeros(()), "w")
    step = synk.function([x], updates=[(w, engine.mean(x))])
    rows = np.arange(7.0) ** 2
    step(rows)  # two rows for every rank but the last, which has one
    synk.all_reduce(w, groups=[[0, 1], [2, 3]], weights=step)
    np.testing.assert_allclose(world.values(w), [np.mean(rows[:4])] * 2 + [np.mean(rows[4:])] * 2)


def test_exact_functions_notice_that_ranks_differ(make_world):
    world = make_world("threads", 2)
    x, w = engine.variable("x", "float64", 1), world.shared(np.zeros(()), "w")
    f = synk.function([x], engine.mean(x) + w, exact=True)
    f([1.0, 3.0])
    synk.set_value(1, w, 4.0)
    synk.all_reduce(w, weights=[[0, 1], [1, 0]])
    with refuses(ValueError, "w", got="0 on rank 1, 4 on"):
        f([1.0, 3.0])
    synk.all_reduce(w, weights=[[3, 1], [6, 2]])
    assert f([1.0, 3.0]) == 2 + 3.0


@pytest.mark.parametrize(
    "groups, error",
    [
        ([[0, 1]], ValueError),
        ([[0, 1], [1, 2]], ValueError),
        ([[0, 1], [2, 3]], ValueError),
        ([[0, 1, 2], []], ValueError),
        ([[0, -1], [2]], ValueError),
        ([0, 1, 2], TypeError),
        ([[0, True], [2]], TypeError),
        ([["0", 1], [2]], TypeError),
        (3, TypeError),
    ],
)
def test_wrong_groups(make_world, refused, groups, error):
    world = make_world("threads", 3)
    call = functools.partial(synk.all_reduce, world.shared(np.zeros(2), "W"), groups=groups)
    refused(
        world, error, call, argument="groups", expected="each rank from 0 to 2 in exactly one list", got=str(groups)
    )


def test_groups_with_what_they_do_not_go_with(make_world, refused):
    world = make_world("threads", 3)
    variable = world.shared(np.zeros(2), "W")
    groups = [[0, 1], [2]]
    call = functools.partial(synk.all_reduce, variable, "sum", groups=groups)
    refused(world, ValueError, call, argument="groups", expected="op 'avg'", got="op 'sum'")
    call = functools.partial(synk.all_reduce, variable, weights=np.eye(3), groups=groups)
    refused(world, TypeError, call, argument="weights", got="a matrix", hint="matrix")
