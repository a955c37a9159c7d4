"""Reductions over hosts: what the ranks of each host do, around what the bridges do."""

import threading

import numpy as np
import pytest

from synkhronos.kernels.reduce import Portion
from synkhronos.memory.attach import PoolMap
from synkhronos.memory.pool import Pool
from synkhronos.reductions import ReduceOp
from synkhronos.sync.hosts import Hosts
from synkhronos.transports.base import Mix
from synkhronos.transports.layouts import Layout, Placed
from synkhronos.transports.over_hosts import MAX_PARTS, OverHosts, together

TIMEOUT_S = 30.0


class Bridges:
    """All bridges in one: threads come as ranks do, and the last one reduces what there is."""

    def __init__(self, counts, pools):
        self.counts, self.pools = counts, pools
        self.meeting = threading.Barrier(sum(counts))
        self.asked = {}

    def of(self, rank, host):
        return Fetcher(self, host)


class Fetcher:
    """A rank's end."""

    def __init__(self, bridges, host):
        self.bridges, self.host = bridges, host

    def all_reduce(self, parts, meanwhile=False):
        bridges = self.bridges
        bridges.asked[self.host] = parts
        if not bridges.meeting.wait(TIMEOUT_S):
            for of_hosts in zip(*[bridges.asked[host] for host in range(len(bridges.counts))]):
                attach = bridges.pools.attach
                given = [attach(of_hosts[host].partial) for host in of_hosts[0].givers]
                taken = [attach(of_hosts[host].result) for host in of_hosts[0].takers]
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


def reduced(counts, op, arrays, weights=None, times=1, mixes=None, errors=None, **options):
    """Reduce arrays (by rank, and by position) over hosts with so many ranks; return what each rank has then."""
    size = sum(counts)
    mixes = mixes or [Mix(None if weights is None else tuple(weights))]
    own = [Pool(rank) for rank in range(size)]
    pools = PoolMap()
    for pool in own:
        pools.add(pool.ident, pool)
    bridges = Bridges(counts, pools)
    parts, placed, targets = [], [], []
    keys = (("shared", 0),)
    for rank in range(size):
        hosts = Hosts.of_counts(tuple(map(str, range(len(counts)))), counts)
        hosts = hosts._replace(own=hosts.of(rank))
        parts.append(OverHosts(hosts, rank, own[rank], bridges.of(rank, hosts.own)))
        current = []
        for array in arrays[rank]:
            there = own[rank].allocate(array.shape, array.dtype)
            there[...] = array
            current.append(Placed.at(there, own[rank].handle(there)))
        placed.append([*current, *parts[-1].room(keys, arrays[rank], len(mixes))])
        targets.append([np.empty_like(array) for array in arrays[rank]])
    layout = Layout([[each.handle for each in of_rank] for of_rank in placed], pools)
    layouts = [layout] + [Layout(layout.handles, pools) for _ in range(size - 1)]

    def run(rank):
        part = parts[rank]
        ways = [part._way(mix, part._counting(mix)) for mix in mixes]
        for _ in range(times):
            begun = part.begin(layouts[rank], keys, arrays[rank], ReduceOp(op), mixes, ways, **options)
            part.finish(begun, targets[rank], None if errors is None else errors[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    return targets


def values(size, kinds):
    """Return small whole numbers."""
    random = np.random.RandomState(size)
    return [[np.asarray(random.randint(-4, 5, shape), dtype) for shape, dtype in kinds] for _ in range(size)]


KINDS = [((100, 7), "float32"), ((), "float64"), ((33,), "float32"), ((0, 2), "float32"), ((5, 1, 3), "float64")]


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (3, 1), (1, 2, 1)])
@pytest.mark.parametrize("weights", [None, "all", "of the last", "none"])
def test_average(counts, weights):
    size = sum(counts)
    given = {"all": list(range(1, size + 1)), "of the last": [0] * (size - 1) + [3], "none": [0] * size}.get(weights)
    arrays = values(size, KINDS)
    results = reduced(counts, "avg", arrays, given, times=2)
    for i in range(len(KINDS)):
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


@pytest.mark.parametrize(
    "dtype, shape, op, weights, is_taken",
    [
        ("float32", (1 << 14,), "avg", None, True),
        ("float32", ((1 << 14) - 1,), "avg", None, False),
        ("float32", (1 << 14,), "avg", (1.0, 2.0), True),
        ("float32", (1 << 14,), "sum", (1.0, 2.0), False),
        ("int8", (256, 256), "max", None, True),
        ("float16", (1 << 15,), "sum", None, False),  # partials of float32 are more than the other array is
        ("bool", (1 << 16,), "sum", None, False),
        ("complex64", (1 << 13,), "sum", None, False),
        (">f4", (1 << 14,), "sum", None, False),
    ],
)
def test_what_is_taken(dtype, shape, op, weights, is_taken):
    part = OverHosts(Hosts.of_counts(("a", "b"), (1, 1)), 0, Pool(0), None)
    assert (part.ways([np.zeros(shape, dtype)], ReduceOp(op), [Mix(weights)]) is not None) == is_taken


@pytest.mark.parametrize("counts", [(1, 1), (2, 2), (1, 2, 1)])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_mixes(counts, dtype):
    size = sum(counts)
    random = np.random.RandomState(3)
    matrix = random.randint(0, 4, (size, size)) + np.roll(np.eye(size, dtype=int), 1, axis=0)
    matrix[0] = np.arange(size) < counts[0]  # of its host alone
    arrays = [[random.normal(size=shape).astype(dtype) for shape in ((100, 3), (7,))] for _ in range(size)]
    mixes = [Mix(tuple(map(float, row)), (rank,), (rank,)) for rank, row in enumerate(matrix)]
    results = reduced(counts, "avg", arrays, mixes=mixes)
    for row, result in zip(matrix, results):
        for i in range(2):
            right = np.average(np.stack([of_rank[i] for of_rank in arrays]).astype("float64"), axis=0, weights=row)
            tolerance = 1e-3 if dtype == "float16" else 1e-6
            np.testing.assert_allclose(result[i], right, tolerance, tolerance)


def test_halves_are_rounded_once():
    arrays = [[np.full(9, value, "float16")] for value in (2048, 1, 1, 2048)]
    for counts in ((2, 2), (1, 2, 1)):
        assert {each for (result,) in reduced(counts, "sum", arrays) for each in result.tolist()} == {4098 - 2}
    tiny = [[np.full(3, value, "float16")] for value in (2048, 1, 1, 0)]
    assert {each for (result,) in reduced((2, 2), "sum", tiny) for each in result.tolist()} == {2050}


@pytest.mark.parametrize("op, of_rank", [("avg", 0.25), ("sum", 0.125)])
def test_errors_of_a_host_are_those_of_its_ranks(op, of_rank):
    arrays = [[np.full(5, 1.0)] for _ in range(4)]
    errors = [[np.full(5, 9.0)] for _ in range(4)]
    mixes = [Mix((1.0, 0.0, 0.0, 0.0), (0,)), Mix((0.0, 1.0, 1.0, 1.0), (1, 2, 3))] if op == "avg" else None
    reduced((2, 2), op, arrays, mixes=mixes, errors=errors, wire="bfloat16", leaves_errors=True)
    local = 0.0 if op == "avg" else of_rank
    assert [error.tolist() for (error,) in errors] == [[local] * 5] + [[of_rank] * 5] * 3


def test_errors_stay_if_nothing_of_a_host_counts():
    errors = [[np.full(5, 9.0)] for _ in range(3)]
    arrays = [[np.full(5, 1.0)] for _ in range(3)]
    reduced((1, 2), "avg", arrays, [0, 1, 1], errors=errors, wire="bfloat16", leaves_errors=True)
    assert [error[0][0] for error in errors] == [9.0, 0.25, 0.25]


A, B = np.zeros(1 << 14, "float32"), np.zeros(1 << 15, "float16")


@pytest.mark.parametrize(
    "counts, array, weights, ways",
    [
        ((2, 2), A, [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]], None),  # nothing travels
        ((2, 2), A, [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]], [((0, 1), (0, 1))] * 2),
        (
            (2, 2),
            A,
            [[1, 0, 0, 2], [1, 2, 0, 0], [0, 1, 2, 0], [0, 0, 1, 2]],
            [((0, 1), (0,)), ((0,), (0,)), ((0, 1), (1,)), ((1,), (1,))],
        ),
        ((1, 1, 2), A, [[1, i, 2, 3] for i in range(1, 5)], None),  # four partials for the last host, or two arrays
        ((2, 2), B, [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]], None),
        ((2, 2), B, [[1, 1, 1, 1]] * 4, [((0, 1), (0, 1))]),
    ],
)
def test_ways(counts, array, weights, ways):
    part = OverHosts(Hosts.of_counts(tuple("abc"[: len(counts)]), counts), 0, Pool(0), None)
    rows = [tuple(map(float, row)) for row in weights]
    mixes = [Mix(row, tuple(i for i, each in enumerate(rows) if each == row)) for row in dict.fromkeys(rows)]
    assert part.ways([array], ReduceOp("avg"), mixes) == ways


def test_values_that_travel_in_16_bits():
    part = OverHosts(Hosts.of_counts(("a", "b"), (1, 1)), 0, Pool(0), None)
    assert part.ways([A], ReduceOp("sum"), [Mix()], True) is not None
    assert part.ways([A, B], ReduceOp("sum"), [Mix()], True) is None
    groups = [Mix((1.0, 0.0, 1.0, 0.0), (0, 2)), Mix((0.0, 1.0, 0.0, 1.0), (1, 3))]
    ring = [Mix((1.0, 0.0, 0.0, 1.0), (0,)), Mix((0.0, 1.0, 1.0, 0.0), (1, 2, 3))]
    part = OverHosts(Hosts.of_counts(("a", "b"), (2, 2)), 0, Pool(0), None)
    for mixes, has_errors_of_hosts in ((groups, True), (ring, False)):
        assert part.ways([A], ReduceOp("avg"), mixes, True) is not None
        assert (part.ways([A], ReduceOp("avg"), mixes, True, True) is not None) == has_errors_of_hosts


def test_more_mixes_than_can_be_told_apart():
    part = OverHosts(Hosts.of_counts(("a", "b"), (20, 20)), 0, Pool(0), None)
    groups = [tuple(float(rank in (i, i + 20)) for rank in range(40)) for i in range(20)]
    mixes = [Mix(row, (i, i + 20)) for i, row in enumerate(groups)]
    assert part.ways([A], ReduceOp("avg"), mixes[:MAX_PARTS]) is not None
    assert part.ways([A], ReduceOp("avg"), mixes) is None


def test_room_is_kept_until_the_key_is_forgotten():
    part = OverHosts(Hosts.of_counts(("a", "b"), (1, 1)), 0, Pool(0), None)
    arrays = [np.zeros(5), np.zeros(3, "int32")]
    keys = (("shared", 1), ("shared", 2))
    room = part.room(keys, arrays)
    assert [(each.array.shape, each.array.dtype) for each in room] == [((8,), "f8"), ((16,), "i4")] * 2
    assert part.room(keys, arrays) is room
    assert part.room(keys, [np.zeros(9), arrays[1]]) is not room
    room = part.room(keys, arrays)
    part.forget(("shared", 3))
    assert part.room(keys, arrays) is room
    part.forget(("shared", 2))
    assert part.room(keys, arrays) is not room


def test_only_the_first_rank_of_a_host_has_room():
    for rank, there in ((0, 2), (1, 0), (2, 2), (3, 0)):
        hosts = Hosts.of_counts(("a", "b"), (2, 2), own=rank // 2)
        assert len(OverHosts(hosts, rank, Pool(rank), None).room((("shared", 0),), [np.zeros(9)])) == there


def test_arrays_of_one_dtype_are_together():
    f4, i2 = np.dtype("f4"), np.dtype("i2")
    found = together([((3,), f4), ((40,), i2), ((), f4), ((0,), f4), ((17,), f4)])
    assert [(each.dtype, each.size, each.begins) for each in found] == [
        (f4, 16 + 16 + 32, {0: 0, 2: 16, 3: 32, 4: 32}),
        (i2, 64, {1: 0}),
    ]
