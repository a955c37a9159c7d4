"""A rank reduces its share of its own large new values from where they are, and copies only what other ranks read.

Expected values come from NumPy.

Modules: `synkhronos.transports.shared_memory`, `synkhronos.kernels.reduce`.
"""

import numpy as np
import pytest
from refusals import refuses

import synkhronos as synk
from synkhronos.reductions import ReduceOp
from synkhronos.runtime.command import Command
from synkhronos.runtime.registry import Origin
from synkhronos.transports.shared_memory import OWN_FROM_BYTES

pytestmark = pytest.mark.slow

#: Values above and below the minimum size, some of dtypes that the kernel cannot reduce.
KINDS = [
    ((OWN_FROM_BYTES // 8 + 3,), "float64"),
    ((7, 20_000), "float32"),
    ((3, 2), "float64"),
    ((20_000,), "float64"),
    ((OWN_FROM_BYTES // 8 + 1,), "int64"),
    ((400, 500), "float64"),
]
#: How a rank's new value may lie in memory.
LAYOUTS = {
    "C": np.array,
    "Fortran": np.asfortranarray,
    "every second": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
}


@pytest.fixture(params=[("threads", 3, 1), ("threads", 4, 0), ("fork", 2, 0)], ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param)


class New(Command):
    """Give each variable a new array on each rank, like a function that updates it."""

    def __init__(self, numbers, values, layout):
        self.numbers, self.values, self.layout = numbers, values, layout

    def run(self, context):
        for entry, value in zip(context.entries(self.numbers), self.values[context.rank]):
            entry.set(LAYOUTS[self.layout](value), Origin.FUNCTION)


class Mark(Command):
    """Overwrite the unused arrays of a variable's slot with NaN."""

    def __init__(self, number):
        self.number = number

    def run(self, context):
        context.transport._slots["shared", self.number].current.array[...] = np.nan


class Marked(Command):
    """Return whether each element of the array with a variable's last own value has been copied there."""

    def __init__(self, number):
        self.number = number

    def run(self, context):
        return ~np.isnan(context.transport._slots["shared", self.number].current.array)


class Reduced(Command):
    """Return this rank's part of each sum of the ranks' arrays, computed twice, and the parts' places."""

    def __init__(self, values, weights):
        self.values, self.weights = values, weights

    def run(self, context):
        transport, found = context.transport, []
        for arrays in self.values[context.rank]:
            results = transport.reduce_parts(("function", -1), arrays, ReduceOp("sum"), self.weights, lambda: "it")
            found.append([result.copy() for result in results])
            context.barrier.wait()
            for array in arrays:
                array[...] = -1
        return found, [transport.part(array.size) for array in arrays]


def drawn(world, seed, kinds=KINDS):
    """Return whole numbers by rank and variable."""
    random = np.random.RandomState(seed)
    return [[random.randint(-100, 100, shape).astype(dtype) for shape, dtype in kinds] for _ in range(world.n)]


def check(world, variables, expected):
    for variable, value in zip(variables, expected):
        for got in world.values(variable):
            np.testing.assert_allclose(got, value, rtol=1e-6)
            assert got.dtype == value.dtype


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op, ufunc", [("sum", np.add), ("max", np.maximum)])
def test_values_that_change_before_each_collective(world, op, ufunc, layout):
    variables = world.shareds([np.zeros(shape, dtype) for shape, dtype in KINDS])
    numbers = list(map(world._number, variables))
    for seed in range(4):
        values = drawn(world, seed)
        world.session.run(New(numbers, values, layout))
        synk.all_reduce(variables, op=op)
        check(world, variables, [ufunc.reduce([of_rank[i] for of_rank in values]) for i in range(len(KINDS))])


@pytest.mark.parametrize("weights", [None, [3, 1, 2, 5], [0, 2, 0, 0], [0, 4, 1, 0]])
def test_averages(world, weights):
    kinds = [kind for kind in KINDS if kind[1] != "int64"]
    variables = world.shareds([np.zeros(shape, dtype) for shape, dtype in kinds])
    numbers, weights = list(map(world._number, variables)), weights and weights[: world.n]
    for seed in range(3):
        values = drawn(world, seed, kinds)
        world.session.run(New(numbers, values, "C"))
        synk.all_reduce(variables, weights=weights)
        means = [np.average([of_rank[i] for of_rank in values], axis=0, weights=weights) for i in range(len(kinds))]
        check(world, variables, [mean.astype(dtype) for mean, (_, dtype) in zip(means, kinds)])


def test_a_rank_copies_only_what_others_read(world):
    (w,) = world.shareds([np.zeros(OWN_FROM_BYTES // 8)])
    number, n = world._number(w), OWN_FROM_BYTES // 8
    values = [[np.full(n, float(rank))] for rank in range(world.n)]
    for marks in (False, True):
        world.session.run(New([number], values, "C"))
        if marks:
            world.session.run(Mark(number))
        synk.all_reduce(w, op="sum")
        check(world, [w], [np.full(n, sum(range(world.n)), "float64")])
    copied = world.session.run(Marked(number))
    np.testing.assert_array_equal(np.sum(copied, axis=0), np.full(n, world.n - 1))


@pytest.mark.parametrize("collective", [synk.all_reduce, synk.all_gather])
def test_a_failed_collective_leaves_the_new_values(world, collective):
    (w,) = world.shareds([np.zeros((3, OWN_FROM_BYTES // 8))])
    values = [[np.full((3, OWN_FROM_BYTES // 8 + (rank == 1)), float(rank))] for rank in range(world.n)]
    world.session.run(New([world._number(w)], values, "C"))
    with refuses(ValueError, got=f"(3, {OWN_FROM_BYTES // 8 + 1})"):
        collective(w)
    for got, (value,) in zip(world.values(w), values):
        np.testing.assert_array_equal(got, value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_gather_of_new_values(world, layout):
    """Some ranks have few rows, so that only the other ranks' values are large."""
    (w,) = world.shareds([np.zeros((3, 300))])
    random, number = np.random.RandomState(0), world._number(w)
    for lengths in ([700, 3, 500, 0], [3, 900, 600, 600], [700, 700, 700, 700], [2, 1, 0, 3], [500, 400, 3, 600]):
        values = [[random.randn(length, 300)] for length in lengths[: world.n]]
        world.session.run(New([number], values, layout))
        synk.all_gather(w)
        whole = np.concatenate([array for (array,) in values])
        check(world, [w], [whole])
        synk.all_gather(w)  # of the result, which may be in common memory
        check(world, [w], [np.concatenate([whole] * world.n)])
        synk.all_reduce(w)
        check(world, [w], [np.concatenate([whole] * world.n)])


@pytest.mark.parametrize("weights", [None, [0, 1, 1, 1]])
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[1], KINDS[2], KINDS[4]])
def test_parts_of_values_inside_functions(world, kind, weights):
    rounds = [drawn(world, seed, [kind, ((5,), "float32")]) for seed in range(3)]
    by_rank = [[of_round[rank] for of_round in rounds] for rank in range(world.n)]
    counting = [rank for rank in range(world.n) if not weights or weights[rank]]
    want = [[sum(np.array(of_round[rank][i]) for rank in counting) for i in range(2)] for of_round in rounds]
    for found, places in world.session.run(Reduced(by_rank, weights and weights[: world.n])):
        for got, wanted in zip(found, want):
            for part, whole, (begin, end) in zip(got, wanted, places):
                np.testing.assert_array_equal(part, whole.reshape(-1)[begin:end])
