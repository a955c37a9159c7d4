"""Couriers over threads: messages arrive, all hosts get the same bits, and operations can be given up.

Modules: `all_reduce`, `operation`, `progress`, `transfer`.
"""

import itertools
import logging
import threading
import time

import numpy as np
import pytest
from gates import until
from message_passing import World
from refusals import reports

from synkhronos.cluster import all_reduce as module
from synkhronos.cluster.all_reduce import borders
from synkhronos.cluster.mpi_thread import MpiThread
from synkhronos.cluster.operation import WINDOW
from synkhronos.kernels.encoding import rounded
from synkhronos.reductions import ReduceOp
from synkhronos.sync.fetching import HostReduction

pytestmark = pytest.mark.slow


#: So small that arrays of a few hundred elements have several chunks.
CHUNK_BYTES = 1 << 10

SIZES = (0, 1, 2, 3, 17, 127, 128, 129, 1000, 3333)


@pytest.fixture
def start():
    """Return a function that starts couriers of n hosts."""
    started = []

    def start(n, chunk_bytes=CHUNK_BYTES, last_tag=32767, **options):
        world = World(n, **options)
        couriers = [MpiThread(comm, last_tag, chunk_bytes) for comm in world.comms]
        started.append((world, couriers))
        return world, couriers

    yield start
    for world, couriers in started:
        world.held.clear()
        if any(courier.error for courier in couriers):
            for courier in couriers:
                courier._begun.put(None)  # an error, because a courier does not end without the others
        else:
            close_together(couriers)


def close_together(couriers):
    """Close the couriers of all hosts, which wait for each other."""
    for courier in couriers:
        courier.close(0)
    assert all([courier.close(30) for courier in couriers])


def await_all(tickets):
    assert all([ticket.wait(30) for ticket in tickets])


def begin(couriers, number, partials, results, op="sum", **others):
    """Start an all_reduce on every courier; return the tickets."""
    return [
        courier.all_reduce(number, HostReduction(partial, result, ReduceOp(op), **others))
        for courier, partial, result in zip(couriers, partials, results)
    ]


def reduced(couriers, number, partials, results, op, **others):
    """Start an all_reduce on every courier, and wait for the results."""
    await_all(begin(couriers, number, partials, results, op, **others))


def values(dtype, size, host, op="sum"):
    random = np.random.RandomState(host)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return random.rand(size) < 0.6
    if dtype.kind in "iu":
        return random.randint(1, 5, size).astype(dtype)
    if dtype.kind == "c":
        return (random.rand(size) + 1j * random.rand(size)).astype(dtype)
    return (random.rand(size) * 2 + 0.1).astype(dtype)


def expected_of(op, partials, weights=None):
    """Return NumPy's reduction of the partial values."""
    stacked = np.array(partials)
    dtype = stacked.dtype
    if op == "avg":
        return np.average(stacked.astype("c16" if dtype.kind == "c" else "f8"), axis=0, weights=weights).astype(dtype)
    if op in ("sum", "prod") and dtype == np.bool_:
        return stacked.any(0) if op == "sum" else stacked.all(0)
    wide = np.float64 if dtype.kind == "f" else dtype
    return (
        getattr(np, op)(stacked, axis=0, dtype=wide).astype(dtype)
        if op in ("sum", "prod")
        else getattr(np, op)(stacked, 0)
    )


OPS = [
    (op, dtype)
    for op, dtype in itertools.product(
        ("avg", "sum", "prod", "min", "max"),
        ("float32", "float64", "float16", "int64", "int8", "uint16", "bool", "complex64"),
    )
    if op != "avg" or np.dtype(dtype).kind in "fc"
]


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("op, dtype", OPS)
def test_all_reduce(start, n, op, dtype):
    _, couriers = start(n)
    for number, size in enumerate((1, 257, 1500)):
        partials = [values(dtype, size, host) for host in range(n)]
        before = [partial.copy() for partial in partials]
        results = [np.full(size + 2, 1, dtype) for _ in range(n)]
        reduced(couriers, number, partials, [result[1:-1] for result in results], op)
        expected = expected_of(op, partials)
        tolerance = {"float16": 2e-3, "float32": 1e-6, "complex64": 1e-6}.get(dtype, 1e-12)
        np.testing.assert_allclose(results[0][1:-1], expected, rtol=tolerance)
        for result in results:
            assert result.tobytes() == results[0].tobytes()
            assert result[0] == result[-1] == np.ones((), dtype)
        for partial, was in zip(partials, before):
            np.testing.assert_array_equal(partial, was)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("wire", [None, "bfloat16", "float16"])
def test_sizes(start, n, size, wire):
    _, couriers = start(n)
    partials = [values("float32", size, host) for host in range(n)]
    results = [np.full(size, np.nan, "float32") for _ in range(n)]
    reduced(couriers, 0, partials, results, "sum", wire=wire)
    expected = sum(partials).astype("float64")
    for result in results:
        assert result.tobytes() == results[0].tobytes()
        np.testing.assert_allclose(result, expected, rtol={None: 1e-6, "bfloat16": 2**-7, "float16": 2**-10}[wire])


def test_the_order_is_that_of_hosts(start):
    """Values are added in the order of hosts: in float32, 1e8 + 1 - 1e8 is 0, but with the 1 last, the sum is 1."""
    _, couriers = start(3)
    for number, order in enumerate(itertools.permutations((1e8, 1.0, -1e8))):
        partials = [np.full(700, x, "float32") for x in order]
        results = [np.empty(700, "float32") for _ in range(3)]
        reduced(couriers, number, partials, results, "sum")
        expected = (partials[0][0] + partials[1][0]) + partials[2][0]
        for result in results:
            assert set(result) == {expected}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_weights(start, dtype):
    _, couriers = start(3)
    partials = [values(dtype, 700, host) for host in range(3)]
    for number, weights in enumerate([(1, 2, 5), (0, 3, 1), (0, 0, 4), (0, 0, 0), (1e-300, 1e-300, 2e-300)]):
        used = weights
        if not any(weights):
            used = (1, 1, 1)
        if weights[0] == 0 and any(weights):
            partials[0][:] = np.nan  # a partial without weight does not count if others have weights
        else:
            partials[0] = values(dtype, 700, 0)
        results = [np.empty(700, dtype) for _ in range(3)]
        reduced(couriers, number, partials, results, "avg", weights=weights)
        there = [i for i in range(3) if used[i]]
        expected = expected_of("avg", [partials[i] for i in there], [used[i] for i in there])
        for result in results:
            np.testing.assert_allclose(result, expected, rtol=2e-3 if dtype == "float16" else 1e-6)
            assert result.tobytes() == results[0].tobytes()


def test_the_average_of_equal_values_is_that_value(start):
    _, couriers = start(3)
    partials = [np.full(1000, 0.1, "float32") for _ in range(3)]
    results = [np.empty(1000, "float32") for _ in range(3)]
    reduced(couriers, 0, partials, results, "avg", weights=(1, 1, 5))
    assert all(set(result) == {np.float32(0.1)} for result in results)


def test_wide_partials_of_halves(start):
    """Partial sums of float16 stay in float32: 60000 + 60000 - 60000 would be infinite if rounded earlier."""
    _, couriers = start(3)
    partials = [np.full(900, x, "float32") for x in (60000, 60000, -60000)]
    results = [np.empty(900, "float16") for _ in range(3)]
    reduced(couriers, 0, partials, results, "sum")
    assert all(set(result) == {60000} for result in results)


@pytest.mark.parametrize(
    "sources, destinations", [(None, (0,)), ((1, 2), None), ((2,), (0, 1)), ((0, 1), (1,)), ((1,), (1,))]
)
@pytest.mark.parametrize("wire", [None, "bfloat16"])
def test_some_give_and_some_take(start, sources, destinations, wire):
    _, couriers = start(3)
    partials = [values("float32", 800, host) for host in range(3)]
    results = [np.full(800, 7, "float32") for _ in range(3)]
    reduced(couriers, 0, partials, results, "sum", sources=sources, destinations=destinations, wire=wire)
    expected = np.sum([partials[i] for i in sources or range(3)], axis=0)
    for host, result in enumerate(results):
        if host in (destinations or range(3)):
            np.testing.assert_allclose(result, expected, rtol=2**-7 if wire else 1e-6)
        else:
            assert set(result) == {7}


@pytest.mark.parametrize("wire", ["bfloat16", "float16"])
@pytest.mark.parametrize("op", ["sum", "avg", "max", "prod"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sixteen_bits(start, wire, op, dtype):
    """Each part and the result are rounded as by `rounded`, message by message."""
    n, size = 3, 1000
    _, couriers = start(n)
    partials = [values(dtype, size, host) * 10.0**-host for host in range(n)]
    results = [np.empty(size, dtype) for _ in range(n)]
    reduced(couriers, 0, partials, results, op, wire=wire)
    expected, step = np.empty(size, dtype), CHUNK_BYTES // 2 // (32 * n) * (32 * n)
    for begin in range(0, size, step):
        cuts = borders(begin, min(begin + step, size), n, 32)
        for low, high in zip(cuts, cuts[1:]):
            parts = [rounded(partial[low:high], wire) for partial in partials]
            if op == "avg":
                combined = np.array(parts, "float64").mean(0).astype(dtype)
            else:
                ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum}[op]
                combined = ufunc(ufunc(parts[0], parts[1]), parts[2])
            expected[low:high] = rounded(combined, wire)
    for result in results:
        assert result.tobytes() == results[0].tobytes()
        if op == "avg":
            np.testing.assert_allclose(result, expected, rtol=2**-7)
        else:
            np.testing.assert_array_equal(result, expected)


def test_sixteen_bits_of_infinities_and_nan(start):
    _, couriers = start(2)
    special = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 3e38, 1e-40, 1] * 40, "float32")
    for number, wire in enumerate(("bfloat16", "float16")):
        results = [np.empty_like(special) for _ in range(2)]
        reduced(couriers, number, [special, np.zeros_like(special)], results, "max", wire=wire)
        for result in results:
            assert np.isposinf(result[0::8]).all() and not result[1::8].any() and np.isnan(result[2::8]).all()
            np.testing.assert_allclose(result[5::8], 3e38, rtol=2**-8)


def test_many_operations_at_once(start):
    """Operations progress concurrently, in whatever order hosts begin them."""
    n = 3
    world, couriers = start(n)
    partials = [[values("float64", 300 + 40 * k, host) for k in range(12)] for host in range(n)]
    results = [[np.empty(300 + 40 * k) for k in range(12)] for _ in range(n)]
    tickets = []
    for host, courier in enumerate(couriers):
        for k in np.random.RandomState(host).permutation(12):
            reduction = HostReduction(partials[host][k], results[host][k], ReduceOp("sum"))
            tickets.append(courier.all_reduce(int(k), reduction))
    await_all(tickets)
    for k in range(12):
        expected = partials[0][k] + partials[1][k] + partials[2][k]
        for host in range(n):
            np.testing.assert_array_equal(results[host][k], expected)


def cut(array, sizes):
    """Return an array in parts of these sizes, followed by the rest."""
    return np.split(array, np.cumsum(sizes))


@pytest.mark.parametrize(
    "theirs, ours",
    [([], []), ([5], [7, 0, 3]), ([100] * 90, []), ([], [100] * 90), ([1023, 1, 1025, 3000], [1, 1, 1, 4096])],
)
@pytest.mark.parametrize("chunk_bytes", [1 << 10, 1 << 20])
def test_send_and_receive(start, theirs, ours, chunk_bytes):
    """Data arrives even if sender and receiver divide it into different buffers."""
    world, couriers = start(2, chunk_bytes)
    sent = np.random.RandomState(0).randint(0, 256, 10000).astype(np.uint8)
    there, back = np.zeros(10000, np.uint8), np.zeros(10000, np.uint8)
    tickets = [
        couriers[0].send(1, 3, cut(sent, theirs)),
        couriers[1].receive(0, 3, cut(there, ours)),
        couriers[1].send(0, 3, cut(sent[::-1].copy(), ours)),
        couriers[0].receive(1, 3, cut(back, theirs)),
    ]
    await_all(tickets)
    np.testing.assert_array_equal(there, sent)
    np.testing.assert_array_equal(back, sent[::-1])
    assert (
        world.nbytes == {(0, 1): 10000, (1, 0): 10000} and [ticket.received for ticket in tickets[1::2]] == [10000] * 2
    )


def test_nothing_to_send(start):
    world, couriers = start(2)
    assert couriers[0].send(1, 0, []).wait(30) and couriers[1].receive(0, 0, [np.empty((0, 3))]).wait(30)
    assert world.sent == 0


def test_any_dtype(start):
    _, couriers = start(2)
    sent = [np.arange(300.0).reshape(3, 100), np.array([True, False]), np.array(3, "complex64")]
    got = [np.zeros_like(array) for array in sent]
    tickets = [couriers[0].send(1, 0, sent), couriers[1].receive(0, 0, got)]
    await_all(tickets)
    for array, arrived in zip(sent, got):
        np.testing.assert_array_equal(arrived, array)


def test_traffic_is_the_least_that_is_possible(start):
    """Each of H hosts sends and receives 2 (H - 1) / H times the bytes, and half of that in 16 bits."""
    for n in (2, 4):
        size = 64 * n * 10
        for wire, factor in ((None, 1), ("bfloat16", 0.5)):
            world, couriers = start(n)
            partials = [np.ones(size, "float32") for _ in range(n)]
            reduced(couriers, 0, partials, [np.empty(size, "float32") for _ in range(n)], "sum", wire=wire)
            expected = factor * 4 * size * 2 * (n - 1) / n
            for host in range(n):
                sent = sum(nbytes for (source, _), nbytes in world.nbytes.items() if source == host)
                received = sum(nbytes for (_, dest), nbytes in world.nbytes.items() if dest == host)
                assert sent == received == expected


def test_done_is_called_once_in_the_thread_of_the_courier(start):
    _, couriers = start(2)
    calls, over = [], threading.Barrier(3)

    def done(ticket):
        calls.append((ticket, threading.current_thread().name))
        over.wait(30)

    tickets = [couriers[0].send(1, 0, [np.zeros(10)], done), couriers[1].receive(0, 0, [np.zeros(10)], done)]
    over.wait(30)
    assert sorted(calls, key=lambda call: tickets.index(call[0])) == [(each, "synkhronos-courier") for each in tickets]


def test_what_is_called_may_begin_another(start):
    _, couriers = start(2)
    second, tickets = np.zeros(5), []

    def done(ticket):
        tickets.append(couriers[1].receive(0, 1, [second]))

    couriers[1].receive(0, 0, [np.zeros(5)], done)
    for number in range(2):
        assert couriers[0].send(1, number, [np.ones(5)]).wait(30)
    until(lambda: tickets)
    assert tickets[0].wait(30) and set(second) == {1}


# -- operations that are given up ------------------------------------------------------------------------------------


@pytest.mark.parametrize("eager", [0, 1 << 20])
@pytest.mark.parametrize("wire", [None, "float16"])
def test_one_host_gives_up_in_the_middle(start, eager, wire):
    """The operation ends on all hosts, soon and without most of its data, and overwrites nothing afterwards."""
    world, couriers = start(3, eager=eager)
    size = 50_000
    partials = [values("float32", size, host) for host in range(3)]
    results = [np.zeros(size, "float32") for _ in range(3)]
    for number in range(0, 20, 2):
        world.held = {(number % 3, (number + 1) % 3)}
        over, before = [], (world.sent, sum(world.nbytes.values()))
        tickets = [
            courier.all_reduce(number, HostReduction(partial, result, ReduceOp("sum"), wire=wire), over.append)
            for courier, partial, result in zip(couriers, partials, results)
        ]
        until(lambda before=before: world.sent > before[0] + 20)
        tickets[number % 3].is_abandoned = True
        world.held = set()
        await_all(tickets)
        assert all(ticket.is_abandoned for ticket in tickets) and set(over) == set(tickets)
        assert sum(world.nbytes.values()) - before[1] < partials[0].nbytes
        for result in results:
            result[:] = -1
        others = [values("float32", 5000, host + 10 + number) for host in range(3)]
        fresh = [np.empty(5000, "float32") for _ in range(3)]
        reduced(couriers, number + 1, others, fresh, "sum")
        for each in fresh:
            np.testing.assert_array_equal(each, (others[0] + others[1]) + others[2])
        assert all(set(result) == {-1} for result in results)


@pytest.mark.parametrize("wire", [None, "bfloat16"])
def test_a_host_takes_part_in_what_others_have_given_up(start, wire):
    """Its arrays are neither read nor written, except by messages that were on their way."""
    _, couriers = start(3, late=0)
    size = 50_000
    partials = [values("float32", size, host) for host in range(3)]
    results = [np.zeros(size, "float32") for _ in range(2)]
    tickets = begin(couriers[:2], 0, partials, results, wire=wire, leaves_errors=wire is not None)
    assert not any([ticket.wait(0.1) for ticket in tickets])
    for ticket in tickets:
        ticket.is_abandoned = True
    untouched = np.full(size, 7, "float32")
    before = partials[2].copy()
    reduction = HostReduction(partials[2], untouched, ReduceOp("sum"), wire=wire, leaves_errors=wire is not None)
    await_all([*tickets, couriers[2].all_reduce(0, reduction, is_abandoned=True)])
    assert partials[2].tobytes() == before.tobytes() and set(untouched) == {7}


@pytest.mark.parametrize("side", [0, 1])
def test_a_transfer_is_abandoned(start, side):
    """A receiver alone cannot stop a transfer; a sender stops it, and the receiver notices that data is missing."""
    world, couriers = start(2, eager=0)
    sent, there = np.ones(100_000, np.uint8), np.zeros(100_000, np.uint8)
    world.held = {(0, 1)}
    tickets = [couriers[0].send(1, 0, [sent]), couriers[1].receive(0, 0, np.split(there, [50, 7000]))]
    until(lambda: world.sent == WINDOW)
    tickets[side].is_abandoned = True
    world.held = set()
    await_all(tickets)
    assert tickets[1].is_abandoned
    assert tickets[1].received == world.nbytes[0, 1] == (WINDOW * CHUNK_BYTES, len(sent))[side]


def test_hosts_close_together(start):
    """No message is left, not even of operations that were given up; otherwise, MPI's shutdown would hang."""
    world, couriers = start(3, eager=0, late=0)
    world.held = {(0, 1)}
    tickets = [couriers[0].send(1, number, [np.ones(9000)]) for number in range(30)]
    tickets += [couriers[1].receive(0, number, [np.zeros(9000)]) for number in range(30)]
    for ticket in tickets[:15]:
        ticket.is_abandoned = True
    assert not any([courier.close(0.1) for courier in couriers])
    world.held = set()
    close_together(couriers)
    assert all(ticket.is_over() for ticket in tickets) and all(courier.close() for courier in couriers)
    assert not any(world.comms[1].unexpected.values()) and not any(courier._progress.requests for courier in couriers)


def test_tags_come_again(start):
    """With tags 0 to 19, tags repeat after ten operations, also those of operations that were given up."""
    _, couriers = start(2, last_tag=19)
    for number in range(45):
        target = np.zeros(20_000, np.uint8)
        tickets = [
            couriers[0].send(1, number, [np.full(20_000, number, np.uint8)]),
            couriers[1].receive(0, number, [target]),
        ]
        if number % 10 in (3, 4):
            tickets[0].is_abandoned = True
        await_all(tickets)
        assert tickets[1].is_abandoned or set(target) == {number}
        assert number % 10 in (3, 4) or not tickets[1].is_abandoned


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_exception_ends_the_thread(start, monkeypatch):
    """The next operations stay pending on this host, and its `error` is the cause."""
    world, couriers = start(2)
    plain = module.Portion

    class Failing(plain):
        def combine(self, op, weights):
            if self._parts[0][0][0] == 1:  # on host 0
                raise MemoryError("planted")
            super().combine(op, weights)

    monkeypatch.setattr(module, "Portion", Failing)
    partials = [np.repeat(np.array([1, 2], "float32"), 16)] * 2  # host 0 reduces the pieces that begin with 1
    tickets = begin(couriers, 0, partials, [np.zeros(32, "float32") for _ in range(2)])
    until(lambda: couriers[0].error)
    with reports(MemoryError, "planted"):
        raise couriers[0].error
    assert "planted" in repr(couriers[0]) and not couriers[0].close(30)
    assert not any([ticket.wait(0.1) for ticket in tickets]) and couriers[1].error is None


def test_an_exception_of_what_is_called_ends_the_thread(start):
    _, couriers = start(2)

    def done(ticket):
        raise OSError("of the caller")

    couriers[1].receive(0, 0, [np.zeros(5)], done)
    assert couriers[0].send(1, 0, [np.ones(5)]).wait(30)
    until(lambda: couriers[1].error)
    with reports(OSError, "of the caller"):
        raise couriers[1].error


def fail(couriers):
    """Make MPI fail on host 1 by a message that is longer than its buffer; return the ticket of the receive."""
    short = couriers[1].receive(0, 0, [np.zeros(1)])
    couriers[0].send(1, 0, [np.zeros(3)])
    return short


def test_an_error_of_mpi_ends_the_thread(start):
    _, couriers = start(2, late=0)
    waiting = couriers[1].receive(0, 1, [np.zeros(3)])
    short = fail(couriers)
    until(lambda: couriers[1].error)
    with reports(RuntimeError, "message truncated"):
        raise couriers[1].error
    assert not short.is_over() and not waiting.is_over() and not couriers[1].close(30)


def test_a_request_that_mpi_refuses_is_its_failure(start, monkeypatch):
    """A request that MPI refuses, as ULFM does for a lost host, fails with MPI's error."""

    def refuse(*_):
        raise RuntimeError("no such process")

    world, couriers = start(2)
    monkeypatch.setattr(world.comms[0], "Isend", refuse, raising=False)
    couriers[0].send(1, 0, [np.zeros(3)])
    until(lambda: couriers[0].error)
    with reports(RuntimeError, "no such process"):
        raise couriers[0].error


def test_nothing_is_tested_while_nothing_is_under_way(start):
    world, couriers = start(2)
    receive = couriers[1].receive(0, 0, [np.zeros(3)])
    await_all([couriers[0].send(1, 0, [np.zeros(3)]), receive])

    def stands_still():
        before = [comm.tests for comm in world.comms]
        time.sleep(0.2)
        return [comm.tests for comm in world.comms] == before

    until(stands_still)


@pytest.mark.long
def test_tests_become_rare_while_nothing_happens(start):
    """Tests are separated by a sixteenth of the time waited so far, so that their number grows logarithmically."""
    world, couriers = start(2)
    couriers[1].receive(0, 0, [np.zeros(3)])
    time.sleep(0.5)
    assert 10 < world.comms[1].tests < 400
    couriers[0].send(1, 0, [np.zeros(3)])


@pytest.fixture(autouse=True)
def quiet(caplog):
    with caplog.at_level(logging.ERROR, "synkhronos"):
        yield
