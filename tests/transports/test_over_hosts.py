"""Reductions over hosts: what the ranks of each host do, around what the bridges do."""

import threading

import numpy as np
import pytest

from synkhronos.kernels.reduce import Portion
from synkhronos.memory.attach import PoolMap
from synkhronos.memory.pool import Pool
from synkhronos.reductions import ReduceOp
from synkhronos.sync.hosts import Hosts
from synkhronos.transports.layouts import Layout, Placed
from synkhronos.transports.over_hosts import OverHosts, together

TIMEOUT_S = 30.0


class Bridges:
    """All bridges in one: threads come as ranks do, and the last one reduces what there is."""

    def __init__(self, counts, pools):
        self.counts, self.pools = counts, pools
        self.meeting = threading.Barrier(sum(counts))
        self.asked = {}

    def of(self, rank, host):
        def all_reduce(pairs, op, weights):
            self.asked[host] = pairs
            if not self.meeting.wait(TIMEOUT_S):
                for i in range(len(pairs)):
                    given, taken = zip(*[self.asked[host][i] for host in range(len(self.counts))])
                    parts = [self.pools.attach(handle) for handle in given]
                    Portion([parts], [[self.pools.attach(handle) for handle in taken]], 0, 1).combine(op, weights)
            self.meeting.wait(TIMEOUT_S)

        return all_reduce


def reduced(counts, op, arrays, weights=None, times=1):
    """Reduce arrays (by rank, and by position) over hosts with so many ranks; return what each rank has then."""
    size = sum(counts)
    own = [Pool(rank) for rank in range(size)]
    pools = PoolMap()
    for pool in own:
        pools.add(pool.ident, pool)
    bridges = Bridges(counts, pools)
    parts, placed, targets = [], [], []
    for rank in range(size):
        hosts = Hosts.of_counts(tuple(map(str, range(len(counts)))), counts)
        hosts = hosts._replace(own=hosts.of(rank))
        parts.append(OverHosts(hosts, rank, own[rank], bridges.of(rank, hosts.own)))
        current = []
        for array in arrays[rank]:
            there = own[rank].allocate(array.shape, array.dtype)
            there[...] = array
            current.append(Placed.at(there, own[rank].handle(there)))
        placed.append([*current, *parts[-1].room((("shared", 0),), arrays[rank])])
        targets.append([np.empty_like(array) for array in arrays[rank]])
    layout = Layout([[each.handle for each in of_rank] for of_rank in placed], pools)
    layouts = [layout] + [Layout(layout.handles, pools) for _ in range(size - 1)]

    def run(rank):
        for _ in range(times):
            parts[rank].all_reduce(layouts[rank], targets[rank], len(arrays[0]), ReduceOp(op), weights)

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
        ("float16", (1 << 15,), "sum", None, False),
        ("bool", (1 << 16,), "sum", None, False),
        ("complex64", (1 << 13,), "sum", None, False),
        (">f4", (1 << 14,), "sum", None, False),
    ],
)
def test_what_is_taken(dtype, shape, op, weights, is_taken):
    part = OverHosts(Hosts.of_counts(("a", "b"), (1, 1)), 0, Pool(0), None)
    assert part.takes([np.zeros(shape, dtype)], ReduceOp(op), weights) == is_taken


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
