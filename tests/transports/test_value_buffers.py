"""Values that ranks reduce and then use in the middle of a call, and that belong to no shared variable."""

import functools

import numpy as np
import pytest
from refusals import refuses, reports

from synkhronos.errors import SynkhronosError
from synkhronos.reductions import ReduceOp
from synkhronos.runtime.command import Command
from synkhronos.transports.shared_memory import OWN_FROM_BYTES
from synkhronos.transports.strategy import OWN_BELOW_BYTES

UFUNCS = {"sum": np.add, "min": np.minimum, "max": np.maximum}
#: Lengths in float32: every rank reduces the whole first array, its share of the second, and the third without copying it.
LENGTHS = [3, OWN_BELOW_BYTES // 4 + 5, OWN_FROM_BYTES // 4 + 5]


class Reduce(Command):
    """Reduce arrays in rounds; return copies of the results, whether these stayed equal, and the pool's growth."""

    def __init__(self, rounds, op="sum", weights=None, labels=None, hold=True):
        self.rounds, self.op, self.weights, self.hold = rounds, ReduceOp(op), weights, hold
        self.labels = labels or ["it"] * len(rounds[0])

    def run(self, context):
        found, copies, used = [], [], []
        for of_ranks in self.rounds:
            arrays, label = of_ranks[context.rank], self.labels[context.rank]
            key, text = ("function", 0, label), functools.partial(str, label)
            found.append(context.transport.all_reduce_values(key, arrays, self.op, self.weights, text))
            copies.append([array.copy() for array in found[-1]])
            for array in of_ranks[context.rank]:
                array[...] = -1  # the result is the rank's own array
            if not self.hold:
                found.clear()
            used.append(context.pool.used)
        context.barrier.wait()
        same = all(np.array_equal(a, b) for one, two in zip(found, copies) for a, b in zip(one, two))
        return copies, same, used[-1] - used[0]


def rounds_of(ranks, count, *shapes, dtype="float32", seed=0):
    """Return arrays of random values, by round, by rank and by position."""
    random = np.random.RandomState(seed)
    return [
        [[np.asarray(8 * random.randn(*shape)).astype(dtype) for shape in shapes] for _ in range(ranks)]
        for _ in range(count)
    ]


def expected(rounds, ufunc, counting):
    """Return NumPy's results, by round and by position."""
    return [
        [np.array(functools.reduce(ufunc, [of_ranks[rank][i] for rank in counting])) for i in range(len(of_ranks[0]))]
        for of_ranks in rounds
    ]


@pytest.mark.slow
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
@pytest.mark.parametrize("op", UFUNCS)
@pytest.mark.parametrize("n, weights", [(1, None), (2, None), (3, None), (3, [2, 0, 1]), (2, [0, 4])])
def test_every_rank_has_the_result(make_world, n, weights, op, dtype, length):
    rounds = rounds_of(n, 5, (length,), (2, 3), (), dtype=dtype)
    counting = [rank for rank in range(n) if weights is None or weights[rank]]
    want = expected(rounds, UFUNCS[op], counting)
    for copies, same, _ in make_world("threads", n, n - 1).session.run(Reduce(rounds, op, weights)):
        for got, wanted in zip(copies, want):
            for a, b in zip(got, wanted):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
                assert a.dtype == b.dtype and a.shape == b.shape
        assert same or n == 1  # (a single rank receives its own arrays, which the test overwrites)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("weights", [None, [1, 2, 5], [0, 1, 3], [0, 0, 2]])
def test_averages_are_weighted(make_world, weights, length):
    rounds = rounds_of(3, 2, (length,), dtype="float64")
    want = [np.average([arrays[0] for arrays in of_ranks], axis=0, weights=weights) for of_ranks in rounds]
    for copies, _, _ in make_world("threads", 3, 0).session.run(Reduce(rounds, "avg", weights)):
        np.testing.assert_allclose([got[0] for got in copies], want, rtol=1e-12)


@pytest.mark.parametrize("length", LENGTHS)
def test_values_that_do_not_count_are_not_looked_at(make_world, length):
    """Values of weight 0 are ignored, even infinity."""
    rounds = rounds_of(2, 1, (length,))
    want = rounds[0][1][0].copy()
    rounds[0][0][0][...] = np.inf
    for op in ("avg", "sum", "min", "max"):
        for copies, _, _ in make_world("threads", 2, 0).session.run(Reduce(rounds[:1], op, [0, 3])):
            np.testing.assert_array_equal(copies[0][0], want)
        rounds = rounds_of(2, 1, (length,))
        rounds[0][0][0][...] = np.nan


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("launcher", ["threads", "fork"])
def test_memory_is_used_again_when_nothing_refers_to_it(make_world, launcher, hold):
    world, length = make_world(launcher, 2, 0), LENGTHS[1]
    for _ in range(2):
        for _, _, grown in world.session.run(Reduce(rounds_of(2, 6, (length,)), hold=hold)):
            assert 0 <= grown - (5 * 4 * length if hold else 0) < 4096


@pytest.mark.parametrize("length", LENGTHS)
def test_ranks_that_come_for_different_things(make_world, length):
    world = make_world("threads", 2, 0)
    with reports(SynkhronosError, "rank 0: one", "rank 1: another thing"):
        world.session.run(Reduce(rounds_of(2, 1, (length,)), labels=["one", "another thing"]))
    rounds = rounds_of(2, 1, (length,))
    want = expected(rounds, np.add, [0, 1])
    for copies, _, _ in world.session.run(Reduce(rounds)):
        np.testing.assert_array_equal(copies[0][0], want[0][0])


@pytest.mark.parametrize("shapes", [((2,), (3,)), ((2,), (40000,)), ((40000,), (40001,)), ((2,), (2, 1))])
def test_shapes_that_differ_between_ranks(make_world, shapes):
    world = make_world("threads", 2, 1)
    rounds = [[[np.zeros(shape)] for shape in shapes]]
    with refuses(ValueError, "array 0 of it", got=f"{shapes[1]} on rank 1"):
        world.session.run(Reduce(rounds))
    rounds = [[[np.ones(shapes[0])] for _ in shapes]]
    for copies, _, _ in world.session.run(Reduce(rounds)):
        np.testing.assert_array_equal(copies[0][0], np.full(shapes[0], 2))


def test_other_shapes_in_the_next_call(make_world):
    world = make_world("threads", 2, 0)
    for shape in [(2,), (40000,), (3, 3), (2,)]:
        rounds = rounds_of(2, 2, shape)
        want = expected(rounds, np.add, [0, 1])
        for copies, _, _ in world.session.run(Reduce(rounds)):
            np.testing.assert_array_equal(copies, want)
