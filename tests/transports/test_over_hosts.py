"""Reductions over hosts: the work of the ranks before and after that of the bridges.

Modules: `synkhronos.memory.lending`.
"""

import threading
from operator import itemgetter

import numpy as np
import pytest

from synkhronos.kernels.reduce import Portion
from synkhronos.memory.attach import PoolMap
from synkhronos.memory.lending import Lender
from synkhronos.memory.pool import Pool
from synkhronos.reductions import ReduceOp
from synkhronos.sync.hosts import Hosts
from synkhronos.transports.layouts import Layout, PooledArray
from synkhronos.transports.over_hosts import HostPlan, HostTransport, joined, together
from synkhronos.transports.strategy import HostRoute, Reduction, Weighting, route_of
from synkhronos.transports.value_buffers import ArrayBlock, kinds_of

TIMEOUT_S = 30.0


class Bridges:
    """Stand-in for all bridges: threads arrive as ranks do, and one of them reduces all parts."""

    def __init__(self, counts, pools):
        self.counts, self.pools = counts, pools
        self.meeting = threading.Barrier(sum(counts))
        self.asked = {}

    def of(self, rank, host):
        return Fetcher(self, host)


class Fetcher:
    """A rank's end of a bridge."""

    def __init__(self, bridges, host):
        self.bridges, self.host = bridges, host

    def all_reduce(self, parts, meanwhile=False):
        bridges = self.bridges
        bridges.asked[self.host] = parts
        if not bridges.meeting.wait(TIMEOUT_S):
            for of_hosts in zip(*[bridges.asked[host] for host in range(len(bridges.counts))]):
                attach = bridges.pools.attach
                given = [attach(of_hosts[host].partial) for host in of_hosts[0].sources]
                taken = [attach(of_hosts[host].result) for host in of_hosts[0].destinations]
                result = np.empty_like(given[0])
                Portion([given], [[result]], 0, 1).combine(of_hosts[0].op, of_hosts[0].weights)
                for each in taken:
                    each[...] = result
                if of_hosts[0].leaves_errors:
                    for each in given:
                        each[...] = 0.25
        bridges.meeting.wait(TIMEOUT_S)
        return 7

    def finish(self, number):
        assert number == 7


def placed_in(pool, arrays, together=False):
    """Return copies of arrays in a pool: each placed separately, or all in one block."""
    there = ArrayBlock(pool, kinds_of(arrays)).placed if together else []
    for array in arrays[len(there) :]:
        there.append(placed_at(pool, pool.allocate(array.shape, array.dtype)))
    for each, array in zip(there, arrays):
        each.array[...] = array
    return there


def placed_at(pool, array):
    return PooledArray.at(array, pool.handle(array))


def reduced(
    counts, op, arrays, weights=None, times=1, mixes=None, errors=None, gives=False, takes=False, found=None, **options
):
    """Reduce arrays (by rank and by position) over hosts with ``counts`` ranks; return each rank's results.

    With ``gives`` and ``takes``, hosts may send the arrays themselves, and write into those that take the results.
    """
    size = sum(counts)
    mixes = mixes or [Weighting(None if weights is None else tuple(weights))]
    reduction = Reduction(ReduceOp(op), tuple(mixes), **options)
    own = [Pool(rank) for rank in range(size)]
    pools = PoolMap()
    for pool in own:
        pools.add(pool.ident, pool)
    bridges = Bridges(counts, pools)
    parts, placed, targets, rooms = [], [], [], []
    keys = (("shared", 0),)
    for rank in range(size):
        hosts = Hosts.of_counts(tuple(map(str, range(len(counts)))), counts)
        hosts = hosts._replace(own=hosts.of(rank))
        parts.append(HostTransport(hosts, rank, own[rank], bridges.of(rank, hosts.own)))
        current = placed_in(own[rank], arrays[rank], gives)
        results = placed_in(own[rank], [np.zeros_like(array) for array in arrays[rank]], takes)
        taken = takes and any(mix.destinations is None or rank in mix.destinations for mix in mixes)
        rooms.append(parts[-1].room(keys, current, results if taken else (), len(mixes), gives))
        placed.append([*current, *rooms[-1].placed])
        targets.append([each.array for each in results])
    if found is not None:
        found += [(room.gives, room.takes) for room in rooms]
    layout = Layout([[each.handle for each in of_rank] for of_rank in placed], pools)
    layouts = [layout] + [Layout(layout.handles, pools) for _ in range(size - 1)]

    def run(rank):
        part = parts[rank]
        ways = [route_of(hosts, mix) for mix in mixes]
        for _ in range(times):
            begun = part.begin(layouts[rank], keys, rooms[rank], arrays[rank], reduction, ways)
            part.finish(begun, targets[rank], () if errors is None else errors[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    return targets


def values(size, kinds):
    """Return arrays of small integers."""
    random = np.random.RandomState(size)
    return [[np.asarray(random.randint(-4, 5, shape), dtype) for shape, dtype in kinds] for _ in range(size)]


KINDS = [((100, 7), "float32"), ((), "float64"), ((33,), "float32"), ((0, 2), "float32"), ((5, 1, 3), "float64")]


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (3, 1), (1, 2, 1)])
@pytest.mark.parametrize("weights", [None, "all", "of the last", "none"])
@pytest.mark.parametrize("gives, takes", [(False, False), (True, False), (False, True), (True, True)])
def test_average(counts, weights, gives, takes):
    size, found = sum(counts), []
    kinds = sorted(KINDS, key=itemgetter(1)) if gives or takes else KINDS
    given = {"all": list(range(1, size + 1)), "of the last": [0] * (size - 1) + [3], "none": [0] * size}.get(weights)
    arrays = values(size, kinds)
    results = reduced(counts, "avg", arrays, given, times=2, gives=gives, takes=takes, found=found)
    alone = [count == 1 for count in counts for _ in range(count)]
    assert found == [(gives and each, takes and each) for each in alone]
    for i in range(len(kinds)):
        counted = given if given and any(given) else [1] * size
        right = sum(weight * of_rank[i].astype(float) for weight, of_rank in zip(counted, arrays)) / sum(counted)
        np.testing.assert_allclose(results[0][i], right, 1e-5, 1e-5)
        assert len({of_rank[i].tobytes() for of_rank in results}) == 1


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float32"])
def test_other_ops(op, dtype):
    arrays = values(4, [((300,), dtype)])
    results = reduced((3, 1), op, arrays)
    function = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    right = function.reduce(np.stack([of_rank[0] for of_rank in arrays]), axis=0, dtype=dtype)
    for (result,) in results:
        np.testing.assert_array_equal(result, right)


def test_values_of_ranks_without_weight_do_not_matter():
    arrays = [[np.full(9, value)] for value in (np.nan, 2.0, np.inf, 4.0)]
    results = reduced((2, 2), "avg", arrays, [0, 1, 0, 3])
    assert {each for (result,) in results for each in result.tolist()} == {3.5}
    results = reduced((2, 2), "avg", arrays, [0, 1, 0, 0])
    assert {each for (result,) in results for each in result.tolist()} == {2.0}


def test_huge_weights_and_values():
    huge = np.finfo(float).max
    results = reduced((2, 1), "avg", [[np.full(3, huge)]] * 3, [huge, huge, huge / 2])
    assert {each for (result,) in results for each in result.tolist()} == {huge}


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (1, 2, 1)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("directly", [False, True])
def test_mixes(counts, dtype, directly):
    size = sum(counts)
    random = np.random.RandomState(3)
    matrix = random.randint(0, 4, (size, size)) + np.roll(np.eye(size, dtype=int), 1, axis=0)
    matrix[0] = np.arange(size) < counts[0]  # the first row uses only the first host's values
    arrays = [[random.normal(size=shape).astype(dtype) for shape in ((100, 3), (7,))] for _ in range(size)]
    mixes = [Weighting(tuple(map(float, row)), (rank,), (rank,)) for rank, row in enumerate(matrix)]
    results = reduced(counts, "avg", arrays, mixes=mixes, gives=directly, takes=directly)
    for row, result in zip(matrix, results):
        for i in range(2):
            right = np.average(np.stack([of_rank[i] for of_rank in arrays]).astype("float64"), axis=0, weights=row)
            tolerance = 1e-3 if dtype == "float16" else 1e-6
            np.testing.assert_allclose(result[i], right, tolerance, tolerance)


def test_halves_are_rounded_once():
    arrays = [[np.full(9, value, "float16")] for value in (2048, 1, 1, 2048)]
    for counts in ((2, 2), (1, 2, 1)):
        for directly in (False, True):
            results = reduced(counts, "sum", arrays, gives=directly, takes=directly)
            assert {each for (result,) in results for each in result.tolist()} == {4098 - 2}
    tiny = [[np.full(3, value, "float16")] for value in (2048, 1, 1, 0)]
    assert {each for (result,) in reduced((2, 2), "sum", tiny) for each in result.tolist()} == {2050}


@pytest.mark.parametrize("op, of_rank", [("avg", 0.25), ("sum", 0.125)])
def test_errors_of_a_host_are_those_of_its_ranks(op, of_rank):
    arrays = [[np.full(5, 1.0)] for _ in range(4)]
    errors = [[np.full(5, 9.0)] for _ in range(4)]
    mixes = [Weighting((1.0, 0.0, 0.0, 0.0), (0,)), Weighting((0.0, 1.0, 1.0, 1.0), (1, 2, 3))] if op == "avg" else None
    reduced((2, 2), op, arrays, mixes=mixes, errors=errors, wire="bfloat16", keeps_errors=True)
    local = 0.0 if op == "avg" else of_rank
    assert [error.tolist() for (error,) in errors] == [[local] * 5] + [[of_rank] * 5] * 3


def test_errors_stay_if_nothing_of_a_host_counts():
    errors = [[np.full(5, 9.0)] for _ in range(3)]
    arrays = [[np.full(5, 1.0)] for _ in range(3)]
    reduced((1, 2), "avg", arrays, [0, 1, 1], errors=errors, wire="bfloat16", keeps_errors=True)
    assert [error[0][0] for error in errors] == [9.0, 0.25, 0.25]


def test_room_is_kept_until_the_key_is_forgotten():
    pool = Pool(0)
    part = HostTransport(Hosts.of_counts(("a", "b"), (1, 1)), 0, pool, None)
    arrays = placed_in(pool, [np.zeros(5), np.zeros(3, "int32")])
    keys = (("shared", 1), ("shared", 2))

    def room(given=arrays, targets=(), n_mixes=1):
        return [each.stamp for each in part.room(keys, given, targets, n_mixes).placed]

    there = part.room(keys, arrays).placed
    assert [(each.array.shape, each.array.dtype) for each in there] == [((5,), "f8"), ((3,), "i4")] * 2
    first = room()
    assert room() == first and len({*first}) == 4
    assert room(targets=arrays) == [*first[:2], *[each.stamp for each in arrays]]
    assert room() == first
    assert {*room(n_mixes=2)}.isdisjoint(first)
    assert {*room(placed_in(pool, [np.zeros(9), np.zeros(3, "int32")]))}.isdisjoint(first)
    first = room()
    part.forget({("shared", 3)})
    assert room() == first
    part.forget({("shared", 2)})
    assert {*room()}.isdisjoint(first)


def test_only_the_first_rank_of_a_host_has_room():
    for rank, there in ((0, 2), (1, 0), (2, 2), (3, 0)):
        pool, hosts = Pool(rank), Hosts.of_counts(("a", "b"), (2, 2), own=rank // 2)
        room = HostTransport(hosts, rank, pool, None).room((("shared", 0),), placed_in(pool, [np.zeros(9)]))
        assert len(room.placed) == there


@pytest.mark.parametrize(
    "kinds, is_one_piece",
    [
        ([((9,), "f4")], True),
        ([((9,), "f4"), ((2, 3), "f8")], True),  # one of each dtype
        ([((9,), "f4"), ((2, 3), "f4")], False),
    ],
)
def test_arrays_that_lie_in_one_piece(kinds, is_one_piece):
    pool = Pool(0)
    kinds = [(shape, np.dtype(dtype)) for shape, dtype in kinds]
    arrays = [np.zeros(shape, dtype) for shape, dtype in kinds]
    apart = [placed_in(pool, [np.zeros(1000), array]) for array in arrays]
    assert (joined([array for _, array in apart], together(kinds)) is not None) == is_one_piece
    found = joined(placed_in(pool, arrays, True), together(kinds))
    assert [each.handle.shape for each in found] == [(each.size,) for each in together(kinds)]


def test_what_mpi_may_still_write_into_is_kept():
    """After an aborted reduction, memory is kept until another one has begun."""
    pool = Pool(0)

    class Failing:
        error = KeyboardInterrupt

        def all_reduce(self, parts, meanwhile):
            if self.error is not None:
                raise self.error()
            return 1

    fetcher, keys = Failing(), (("shared", 0),)
    part = HostTransport(Hosts.of_counts(("a", "b"), (1, 1)), 0, pool, fetcher)
    arrays = placed_in(pool, [np.zeros(9)])

    def reduce(lender):
        targets = [placed_at(pool, lender.block.view("f8"))]
        room = part.room(keys, arrays, targets, gives=True)
        assert room.gives and room.takes
        layout = Layout([[each.handle for each in (*arrays, *room.placed)]] * 2, None)
        part._plan = lambda *_: HostPlan([None], [[]], [[]], [[]])
        given, ways = [arrays[0].array], [HostRoute((0, 1), (0, 1))]
        part.begin(layout, keys, room, given, Reduction(ReduceOp("sum")), ways, lent=[lender.lend()])

    first, second = Lender(pool, 72), Lender(pool, 72)
    with pytest.raises(KeyboardInterrupt):
        reduce(first)
    assert first.is_lent
    fetcher.error = None
    reduce(second)
    assert not first.is_lent and not second.is_lent


def test_arrays_of_one_dtype_are_together():
    f4, i2 = np.dtype("f4"), np.dtype("i2")
    found = together([((3,), f4), ((40,), i2), ((), f4), ((0,), f4), ((17,), f4)])
    assert [(each.dtype, each.size, each.begins) for each in found] == [
        (f4, 32 + 17, {0: 0, 2: 16, 3: 32, 4: 32}),
        (i2, 40, {1: 0}),
    ]
