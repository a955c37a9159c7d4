"""The strategy of a reduction: a table of sizes, hosts and reductions, with the work that each must lead to.

The sizes in this table are written out, not computed from the limits of the module.
"""

import numpy as np
import pytest

from synkhronos.reductions import ReduceOp
from synkhronos.sync.hosts import Hosts
from synkhronos.transports.strategy import (
    EAGER_BYTES,
    FEW_EAGER_BYTES,
    MAX_PARTS,
    Reduction,
    Weighting,
    eager_bytes_of,
    participants,
    route_of,
    strategy,
)

KB, MB = 1 << 10, 1 << 20
ROOT = (Weighting(destinations=(0,)),)


def hosts_of(counts, places=True):
    names = tuple("abcdef"[: len(counts)])
    return Hosts.of_counts(names, counts, places=tuple(range(len(counts))) if places else None)


def results_of(rows):
    """Return one result for each distinct row of a matrix of weights."""
    rows = [tuple(map(float, row)) for row in rows]
    return tuple(Weighting(row, tuple(i for i, each in enumerate(rows) if each == row)) for row in dict.fromkeys(rows))


def chosen(kinds, counts, op="avg", results=None, commits=True, places=True, **options):
    hosts = None if counts is None else hosts_of(counts, places)
    reduction = Reduction(ReduceOp(op), results or (Weighting(),), **options)
    kinds = [(shape, np.dtype(dtype)) for shape, dtype in kinds]
    return strategy(kinds, reduction, hosts, commits)


def floats(nbytes):
    return [((nbytes // 4,), "float32")]


CASES = {
    # one host: variables, values inside a function, results for the master
    "variables": (floats(4), None, {}, "SHARED"),
    "large variables": (floats(100 * MB), None, {}, "SHARED"),
    "variables for the root": (floats(4), None, {"results": ROOT}, "SHARED"),
    "values": (floats(64 * KB), None, {"commits": False}, "OWN"),
    "many values": ([*floats(32 * KB), *floats(32 * KB), ((), "float32")], None, {"commits": False}, "SHARED"),
    "large values": (floats(64 * KB + 4), None, {"commits": False}, "SHARED"),
    "outputs": (floats(64 * KB), None, {"commits": False, "results": ROOT}, "OWN"),
    "large outputs": (floats(64 * KB + 4), None, {"commits": False, "results": ROOT}, "SHARED"),
    "gathered outputs": (floats(MB), None, {"commits": False, "results": ROOT, "op": "gather"}, "OWN"),
    "outputs of the master": (floats(MB), None, {"commits": False, "results": ROOT, "op": None}, "OWN"),
    "bools, whose sum is a count": ([((MB,), "bool")], None, {"commits": False, "results": ROOT, "op": "sum"}, "OWN"),
    "bools that stay bools": ([((MB,), "bool")], None, {"commits": False, "op": "max"}, "SHARED"),
    # several hosts
    "two ranks": (floats(64 * KB), (1, 1), {}, "OWN"),
    "two ranks, more": (floats(64 * KB + 4), (1, 1), {}, "HOSTS"),
    "three ranks": (floats(64 * KB - 4), (2, 1), {}, "OWN"),
    "three ranks, more": (floats(64 * KB), (2, 1), {}, "HOSTS"),
    "without MPI": (floats(MB), (2, 1), {"places": False}, "SHARED"),
    "for the root": (floats(8 * KB), (1, 1, 1), {"results": ROOT}, "OWN"),
    "for the root, more": (floats(8 * KB + 4), (1, 1, 1), {"results": ROOT}, "SHARED"),
    "for the root, large": (floats(MB), (2, 2), {"results": ROOT}, "HOSTS"),
    "for the root, few ranks": (floats(MB), (1, 1), {"results": ROOT, "op": "sum"}, "HOSTS"),
    "values over hosts": (floats(64 * KB), (2, 2), {"commits": False}, "OWN"),
    "large values over hosts": (floats(64 * KB + 4), (2, 2), {"commits": False}, "HOSTS"),
    "large outputs over hosts": (floats(MB), (2, 2), {"commits": False, "results": ROOT}, "SHARED"),
    "weights": (floats(128 * KB), (1, 1), {"results": (Weighting((1.0, 2.0)),)}, "HOSTS"),
    "weights of a sum": (floats(128 * KB), (1, 1), {"op": "sum", "results": (Weighting((1.0, 2.0)),)}, "SHARED"),
    "integers": ([((512, 512), "int8")], (1, 1), {"op": "max"}, "HOSTS"),
    "bools": ([((MB,), "bool")], (1, 1), {"op": "sum"}, "SHARED"),
    "complex": ([((MB,), "complex64")], (1, 1), {"op": "sum"}, "SHARED"),
    "other byte order": ([((MB,), ">f4")], (1, 1), {"op": "sum"}, "SHARED"),
    # float32 partials of float16 have more bytes than the other rank's array
    "halves of two ranks": ([((MB,), "float16")], (1, 1), {"op": "sum"}, "SHARED"),
    "halves of four ranks": ([((MB,), "float16")], (2, 2), {"op": "sum"}, "HOSTS"),
    "groups inside hosts": (
        floats(MB),
        (2, 2),
        {"results": results_of([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]])},
        "SHARED",
    ),
    # four partials for the last host, or two arrays
    "a matrix": (floats(MB), (1, 1, 2), {"results": results_of([[1, i, 2, 3] for i in range(1, 5)])}, "SHARED"),
    "16 bits": (floats(MB), (1, 1), {"op": "sum", "wire": "bfloat16"}, "HOSTS"),
    "16 bits of float16": ([*floats(MB), ((MB,), "float16")], (1, 1), {"op": "sum", "wire": "bfloat16"}, "SHARED"),
    "16 bits of few values": (floats(KB), (1, 1), {"op": "sum", "wire": "bfloat16"}, "OWN"),
}


@pytest.mark.parametrize("name", CASES)
def test_work(name):
    kinds, counts, options, work = CASES[name]
    assert chosen(kinds, counts, **options).algorithm.name == work


CROSSED = [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]]
GROUPS = [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]


@pytest.mark.parametrize(
    "counts, dtype, weights, routes",
    [
        ((2, 2), "float32", CROSSED, [((0, 1), (0, 1))] * 2),
        (
            (2, 2),
            "float32",
            [[1, 0, 0, 2], [1, 2, 0, 0], [0, 1, 2, 0], [0, 0, 1, 2]],
            [((0, 1), (0,)), ((0,), (0,)), ((0, 1), (1,)), ((1,), (1,))],
        ),
        ((2, 2), "float16", CROSSED, []),
        ((2, 2), "float16", [[1, 1, 1, 1]] * 4, [((0, 1), (0, 1))]),
    ],
)
def test_routes(counts, dtype, weights, routes):
    found = chosen([((1 << 20,), dtype)], counts, results=results_of(weights))
    assert list(found.routes) == routes


def test_routes_of_some_ranks():
    hosts = hosts_of((1, 2))
    assert route_of(hosts, Weighting((0.0, 1.0, 0.0), (0, 2))) == ((1,), (0, 1))
    assert route_of(hosts, Weighting((0.0, 1.0, 0.0), (1,))).is_local


def test_errors_of_a_host_are_kept_if_its_ranks_receive_the_result():
    groups = (Weighting((1.0, 0.0, 1.0, 0.0), (0, 2)), Weighting((0.0, 1.0, 0.0, 1.0), (1, 3)))
    ring = (Weighting((1.0, 0.0, 0.0, 1.0), (0,)), Weighting((0.0, 1.0, 1.0, 0.0), (1, 2, 3)))
    for results, work in ((groups, "HOSTS"), (ring, "SHARED")):
        assert chosen(floats(MB), (2, 2), results=results, wire="bfloat16").algorithm.name == "HOSTS"
        assert chosen(floats(MB), (2, 2), results=results, wire="bfloat16", keeps_errors=True).algorithm.name == work


def test_more_results_than_can_be_told_apart():
    groups = [tuple(float(rank in (i, i + 20)) for rank in range(40)) for i in range(20)]
    results = tuple(Weighting(row, (i, i + 20)) for i, row in enumerate(groups))
    assert chosen(floats(MB), (20, 20), results=results[:MAX_PARTS]).algorithm.name == "HOSTS"
    assert chosen(floats(MB), (20, 20), results=results).algorithm.name == "SHARED"


@pytest.mark.parametrize(
    "counts, weights, limit",
    [
        ((1, 1), None, EAGER_BYTES),
        ((2, 1), None, EAGER_BYTES - 1),  # MPI is faster for 64 KiB
        ((1, 1, 1), [[1, 3, 2]] * 3, EAGER_BYTES - 1),
        ((2, 2), CROSSED, EAGER_BYTES - 1),
        ((2, 2), GROUPS, FEW_EAGER_BYTES),
        ((1, 1, 1), [[1, 1, 0], [1, 1, 0], [0, 0, 1]], FEW_EAGER_BYTES),  # the third host needs nothing
        ((1, 1, 1), [[1, 1, 0], [0, 1, 1], [1, 0, 1]], FEW_EAGER_BYTES),  # every host needs one of two arrays
    ],
)
def test_values_that_travel_with_notices(counts, weights, limit):
    hosts = hosts_of(counts)
    assert eager_bytes_of(hosts, (Weighting(),) if weights is None else results_of(weights)) == limit
    assert eager_bytes_of(hosts, (Weighting((0.0, *[1.0] * (hosts.size - 1))),)) >= EAGER_BYTES - 1


@pytest.mark.parametrize(
    "counts, limit",
    [
        ((1, 1), EAGER_BYTES),
        ((2, 2), EAGER_BYTES - 1),
        ((3, 1), FEW_EAGER_BYTES),  # one value to the first host, three values from it
        ((1, 1, 1), FEW_EAGER_BYTES),
    ],
)
def test_values_for_the_root_that_travel_with_notices(counts, limit):
    assert eager_bytes_of(hosts_of(counts), ROOT) == limit


def test_participants():
    assert participants(None) is participants([1.0, 2.0]) is participants([0.0, 0.0]) is None
    assert participants([2.0, 0.0, 1.0]) == (True, False, True)
