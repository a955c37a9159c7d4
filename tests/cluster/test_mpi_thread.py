"""Couriers over threads: messages arrive, all hosts get the same bits, and operations can be cancelled.

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
from refusals import lacks, reports

from synkhronos.cluster import all_reduce as module
from synkhronos.cluster import mpi_thread as courier_module
from synkhronos.cluster.all_reduce import borders
from synkhronos.cluster.mpi_thread import MpiThread
from synkhronos.cluster.operation import Cancelled
from synkhronos.cluster.progress import MpiFailed, TransferProgress
from synkhronos.errors import StateError
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
        for courier in couriers:
            assert courier.close(10)


def reduced(couriers, number, partials, results, op, **others):
    """Start an all_reduce on every courier, and wait for the results."""
    tickets = [
        courier.all_reduce(number, HostReduction(partial, result, ReduceOp(op), **others))
        for courier, partial, result in zip(couriers, partials, results)
    ]
    for ticket in tickets:
        ticket.result(30)


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
    for ticket in tickets:
        ticket.result(30)
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
    for ticket in tickets:
        ticket.result(30)
    np.testing.assert_array_equal(there, sent)
    np.testing.assert_array_equal(back, sent[::-1])
    assert (
        world.nbytes == {(0, 1): 10000, (1, 0): 10000} and [ticket.received for ticket in tickets[1::2]] == [10000] * 2
    )


def test_nothing_to_send(start):
    world, couriers = start(2)
    couriers[0].send(1, 0, []).result(30)
    couriers[1].receive(0, 0, [np.empty((0, 3))]).result(30)
    assert world.sent == 0


def test_any_dtype(start):
    _, couriers = start(2)
    sent = [np.arange(300.0).reshape(3, 100), np.array([True, False]), np.array(3, "complex64")]
    got = [np.zeros_like(array) for array in sent]
    tickets = [couriers[0].send(1, 0, sent), couriers[1].receive(0, 0, got)]
    for ticket in tickets:
        ticket.result(30)
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

    def done(error):
        calls.append((error, threading.current_thread().name))
        over.wait(30)

    couriers[0].send(1, 0, [np.zeros(10)], done)
    couriers[1].receive(0, 0, [np.zeros(10)], done)
    over.wait(30)
    assert calls == [(None, "synkhronos-courier")] * 2


def test_what_is_called_may_fail_and_may_begin_another(start, caplog):
    _, couriers = start(2)
    second, tickets = np.zeros(5), []

    def done(error):
        tickets.append(couriers[1].receive(0, 1, [second]))
        raise OSError("of the caller")

    couriers[1].receive(0, 0, [np.zeros(5)], done)
    couriers[0].send(1, 0, [np.ones(5)]).result(30)
    couriers[0].send(1, 1, [np.ones(5)]).result(30)
    until(lambda: tickets)
    tickets[0].result(30)
    assert set(second) == {1}
    assert "of the caller" in caplog.text


# -- abandoned operations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eager", [0, 1 << 20])
@pytest.mark.parametrize("wire", [None, "float16"])
def test_cancel_in_the_middle(start, eager, wire):
    """Messages of cancelled operations are not mistaken for those of later ones, and overwrite nothing."""
    world, couriers = start(3, eager=eager)
    partials = [values("float32", 5000, host) for host in range(3)]
    results = [np.zeros(5000, "float32") for _ in range(3)]
    for number in range(0, 20, 2):
        world.held = {(number % 3, (number + 1) % 3)}
        errors, enough = [], world.sent + 20  # (before the first message)
        tickets = [
            courier.all_reduce(number, HostReduction(partial, result, ReduceOp("sum"), wire=wire), errors.append)
            for courier, partial, result in zip(couriers, partials, results)
        ]
        until(lambda enough=enough: world.sent > enough)
        cancelled = [courier.cancel(number, number) for courier in couriers]
        for ticket in cancelled:
            ticket.result(30)
        assert all(ticket.is_over() for ticket in tickets) and not all(ticket.error is None for ticket in tickets)
        assert all(isinstance(ticket.error, (Cancelled, type(None))) for ticket in tickets)
        assert len(errors) == 3
        for result in results:
            result[:] = -1
        world.held = set()
        others = [values("float32", 5000, host + 10 + number) for host in range(3)]
        fresh = [np.empty(5000, "float32") for _ in range(3)]
        reduced(couriers, number + 1, others, fresh, "sum")
        for each in fresh:
            np.testing.assert_array_equal(each, (others[0] + others[1]) + others[2])
        assert all(set(result) == {-1} for result in results)


@pytest.mark.parametrize("eager", [0, 1 << 20])
def test_messages_of_cancelled_operations_are_thrown_away(start, eager):
    """Late messages are discarded with the next cancellation, so that neither MPI nor the sender keeps them."""
    world, couriers = start(2, eager=eager, late=0)
    world.held = {(0, 1)}
    for number in range(3):
        couriers[0].send(1, number, [np.ones(3000, np.uint8)])
        couriers[1].receive(0, number, [np.zeros(3000, np.uint8)])
    until(lambda: world.sent == 9)
    for courier in couriers:
        courier.cancel(0, 2).result(30)
    world.held = set()
    assert len(world.comms[1].coming) == 9
    couriers[1].cancel(5, 5).result(30)
    until(lambda: not any(courier._progress.requests for courier in couriers))
    assert not world.comms[1].coming and not any(world.comms[1].unexpected.values())


@pytest.mark.parametrize("n", [2, 3])
def test_nobody_leaves_before_all_messages_are_taken(start, n):
    """Hosts leave after all messages are received, even of many cancelled operations; otherwise, MPI would hang."""
    world, couriers = start(n, eager=0, late=0)
    world.held = {(0, 1)}
    for number in range(100):
        couriers[0].send(1, number, [np.ones(10, np.uint8)])
    until(lambda: world.sent == 100)
    for courier in couriers:
        courier.cancel(0, 99).result(30)
    farewells = [courier.take_leave() for courier in couriers]
    assert not any([farewell.wait(0.2) for farewell in farewells])
    world.held = set()
    for farewell in farewells:
        farewell.result(30)
    assert not world.comms[1].coming and not any(world.comms[1].unexpected.values())
    assert not any(courier._progress.requests for courier in couriers)


def test_cancel_waits_for_what_is_arriving(start):
    """MPI cannot cancel a receive whose message is arriving, so the cancellation waits until it is complete."""
    world, couriers = start(2, late=0)
    target = np.zeros(3000, np.uint8)
    receive = couriers[1].receive(0, 0, [target])
    until(lambda: world.comms[1].posted)
    with world.lock:  # as if data were arriving: neither canceled nor complete
        arriving = next(iter(world.comms[1].posted[0, 0]))
        arriving.Cancel = lambda: None
        world.comms[1].posted[0, 0].remove(arriving)
    ticket = couriers[1].cancel(0, 5)
    assert not ticket.wait(0.2) and not receive.is_over()
    with world.lock:
        arriving.complete = True
    ticket.result(30)
    assert isinstance(receive.error, Cancelled)


def test_what_comes_after_its_cancellation_is_refused(start):
    _, couriers = start(2)
    couriers[0].cancel(4, 7).result(30)
    for number in (4, 7):
        with reports(Cancelled, "operation", number):
            couriers[0].send(1, number, [np.zeros(3)]).result(30)
    for number in (3, 8):
        ticket = couriers[0].send(1, number, [np.zeros(3)])
        couriers[1].receive(0, number, [np.zeros(3)]).result(30)
        ticket.result(30)


def test_tags_come_again(start):
    """With tags 0 to 19, tags repeat after ten operations; operations with the tags of cancelled ones are refused."""
    _, couriers = start(2, last_tag=19)
    for courier in couriers:
        courier.cancel(3, 4).result(30)
    for number in range(5, 45):
        target = np.zeros(2000, np.uint8)
        tickets = [
            couriers[0].send(1, number, [np.full(2000, number, np.uint8)]),
            couriers[1].receive(0, number, [target]),
        ]
        if number % 10 in (3, 4):
            for ticket in tickets:
                with reports(StateError, "operation", number, 3, 4):
                    ticket.result(30)
            assert not target.any()
        else:
            for ticket in tickets:
                ticket.result(30)
            assert set(target) == {number}


@pytest.mark.parametrize("host", [0, 1])
def test_an_exception_while_reducing(start, monkeypatch, host):
    """An exception while reducing reaches the caller on its host; other hosts wait until the operation is cancelled."""
    _, couriers = start(2)
    plain = module.Portion

    class Failing(plain):
        def combine(self, op, weights):
            if self._parts[0][0][0] == (1 if host == 0 else 2):
                raise MemoryError("planted")
            super().combine(op, weights)

    monkeypatch.setattr(module, "Portion", Failing)
    partials = [np.repeat(np.array([1, 2], "float32"), 16)] * 2  # host 0 reduces the pieces that begin with 1
    results = [np.zeros(32, "float32") for _ in range(2)]
    tickets = [
        courier.all_reduce(0, HostReduction(partial, result, ReduceOp("sum")))
        for courier, partial, result in zip(couriers, partials, results)
    ]
    with reports(MemoryError, "planted"):
        tickets[host].result(30)
    assert not tickets[1 - host].wait(0.1)
    for courier in couriers:
        courier.cancel(0, 0).result(30)
    assert isinstance(tickets[1 - host].error, Cancelled)
    monkeypatch.undo()
    reduced(couriers, 1, partials, results, "sum")
    np.testing.assert_array_equal(results[0], 2 * partials[0])


def test_close_ends_everything(start):
    world, couriers = start(2)
    tickets = [couriers[0].receive(1, number, [np.zeros(5000)]) for number in range(3)]
    assert couriers[0].close(30) and couriers[0].close(30)
    for ticket in tickets:
        with reports(Cancelled, "MPI thread"):
            ticket.result(30)
    with reports(StateError, "MPI thread", "host 0"):
        couriers[0].send(1, 5, [np.zeros(3)]).result(30)
    with reports(StateError, "MPI thread", "host 0"):
        couriers[0].cancel(5, 5).result(30)
    assert not lacks(repr(couriers[0]), "closed")


def fail(couriers):
    """Make MPI fail on host 1 by a message that is longer than its buffer; return the ticket of the receive."""
    short = couriers[1].receive(0, 0, [np.zeros(1)])
    couriers[0].send(1, 0, [np.zeros(3)])
    return short


def test_an_error_of_mpi_ends_all(start, caplog, monkeypatch):
    """An MPI error ends all operations, because the state of every request is unknown afterwards."""
    monkeypatch.setattr(courier_module, "LOSS_TIMEOUT_S", 0.3)
    _, couriers = start(2, late=0)
    waiting = couriers[1].receive(0, 1, [np.zeros(3)])
    short = fail(couriers)
    for ticket in (short, waiting):
        with reports(RuntimeError, "message truncated"):
            ticket.result(30)
    with reports(StateError, "message truncated"):
        couriers[1].send(0, 2, [np.zeros(3)]).result(30)
    assert couriers[1].close(30)
    assert "the MPI thread of host 1 cannot continue" in caplog.text


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_after_an_error_of_mpi_it_is_awaited_that_somebody_gives_up(start, caplog, monkeypatch, end):
    """After an MPI error, which a lost host may have caused, operations wait for a cancellation or `close`."""
    failed, plain = threading.Event(), TransferProgress.use_no_more
    monkeypatch.setattr(TransferProgress, "use_no_more", lambda self: (plain(self), failed.set()))
    world, couriers = start(2, late=0)
    tickets = [fail(couriers), couriers[1].receive(0, 1, [np.zeros(3)])]
    assert failed.wait(30)
    tickets += [
        couriers[1].send(0, 2, [np.zeros(3)]),
        couriers[1].all_reduce(3, HostReduction(np.zeros(9), np.zeros(9), ReduceOp("sum"))),
    ]
    assert not any(ticket.wait(0.1) for ticket in tickets)
    if end == "cancel":
        couriers[1].cancel(0, 3).result(30)
        with reports(Cancelled, "operation", 3):
            couriers[1].send(0, 3, [np.zeros(3)]).result(30)
    else:
        assert couriers[1].close(30)
    for ticket in tickets:
        with pytest.raises(Cancelled):
            ticket.result(30)
    assert couriers[1].close(30)
    assert "cannot continue" not in caplog.text


def test_a_request_that_mpi_refuses_is_its_failure(start, monkeypatch):
    """A request that MPI refuses, as ULFM does for a lost host, fails with MPI's error."""

    def refuse(*_):
        raise RuntimeError("no such process")

    monkeypatch.setattr(courier_module, "LOSS_TIMEOUT_S", 0.5)
    world, couriers = start(2)
    monkeypatch.setattr(world.comms[0], "Isend", refuse, raising=False)
    ticket = couriers[0].send(1, 0, [np.zeros(3)])
    with reports(MpiFailed, "no such process"):
        ticket.result(30)


def test_nothing_is_tested_while_nothing_is_under_way(start):
    world, couriers = start(2)
    receive = couriers[1].receive(0, 0, [np.zeros(3)])
    couriers[0].send(1, 0, [np.zeros(3)]).result(30)
    receive.result(30)

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


@pytest.mark.long
def test_what_the_other_side_has_cancelled_is_hardly_tested(start):
    world, couriers = start(2, eager=0)
    send = couriers[0].send(1, 0, [np.zeros(3)])
    until(lambda: world.sent)
    couriers[0].cancel(0, 0).result(30)
    assert isinstance(send.error, Cancelled)
    time.sleep(0.2)
    before = world.comms[0].tests
    time.sleep(0.5)
    assert world.comms[0].tests - before < 60
    farewell = couriers[0].take_leave()
    assert not farewell.wait(0.2)
    assert couriers[0].close(30)


def test_a_result_that_is_late(start):
    _, couriers = start(2)
    with pytest.raises(TimeoutError):
        couriers[0].receive(1, 0, [np.zeros(3)]).result(0.01)


@pytest.fixture(autouse=True)
def quiet(caplog):
    with caplog.at_level(logging.ERROR, "synkhronos"):
        yield
