"""Collectives between calls, of values on devices; expected values come from NumPy. Run by test_mesh.py."""

import os
import sys

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import table
from refusals import refuses, reports
from test_exchange import nearest_bfloat16

import synkhronos as synk
from synkhronos.mesh import collectives
from synkhronos.mesh.mesh import JaxMesh, RankArray
from synkhronos.program.program import PROGRAM

N = jax.local_device_count()
ROOT = N - 1
REAL = [(op, dtype) for op, dtype in table.DEFINED if not dtype.startswith("complex")]
#: Shapes of a rank's values: every device combines all values, or its share.
SHAPES = {"small": (3, 2), "large": (40_001, 1)}


@pytest.fixture(autouse=True)
def session():
    synk.fork(devices="jax", master_rank=ROOT)
    yield
    synk.close()


def cells(variable):
    """Return the value of a variable in every rank's registry."""
    contexts = PROGRAM.session.launcher.all_contexts(PROGRAM.session.context)
    number = next(n for n, entry in PROGRAM.session.context.registry.shareds.items() if entry.reference() is variable)
    return [context.registry.shareds[number].cell[0] for context in contexts]


def on_devices(parts, name="w"):
    """Return a variable with these values of the ranks, on the devices after a call."""
    x = pt.tensor(dtype=parts[0].dtype, shape=(None, *parts[0].shape[1:]), name="x")
    variable = pytensor.shared(parts[0], name, shape=x.type.shape)
    function = synk.function([x], updates=[(variable, x)], exact=False)
    function(np.concatenate(parts))
    variable.function = function  # keeps the variable on the ranks
    return variable


def are_on_devices(variable):
    """Return whether all ranks' values are one array on the devices."""
    found = cells(variable)
    return all(type(cell) is RankArray and cell.whole is found[0].whole for cell in found)


def drawn(dtype, size, seed=0):
    return [table.value(dtype, SHAPES[size], rank, seed) for rank in range(N)]


def check(variable, expected, op="avg"):
    """Compare all ranks' values with ``expected``, by rank, and check that they stay on the devices."""
    assert are_on_devices(variable)
    for found, wanted in zip(synk.gather(variable), expected):
        table.assert_reduced(op, found, wanted)
    assert are_on_devices(variable)


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("op, dtype", REAL)
def test_all_reduce(op, dtype, size):
    parts = drawn(dtype, size)
    w = on_devices(parts)
    synk.all_reduce(w, op)
    check(w, [table.expected(op, parts)] * N, op)
    assert synk.in_sync(w) and are_on_devices(w)
    assert cells(w)[0].dtype == dtype
    v = on_devices(parts, "v")
    synk.reduce(v, op)
    check(v, [table.expected(op, parts) if rank == ROOT else part for rank, part in enumerate(parts)], op)
    v = on_devices(parts, "v")
    table.assert_reduced(op, synk.reduce(v, op, in_place=False), table.expected(op, parts))
    check(v, parts, "sum")


@pytest.mark.parametrize("size", SHAPES)
def test_weights(size):
    parts = drawn("float64", size)
    weights = [float(rank % 3 + (rank == ROOT)) for rank in range(N)]
    parts[0][0] = np.nan if N > 1 else 1  # the weight is 0
    w = on_devices(parts)
    synk.all_reduce(w, weights=weights)
    check(w, [table.expected("avg", parts, weights)] * N)
    w = on_devices(drawn("float32", size))
    matrix = np.eye(N) + np.roll(np.eye(N), 1, axis=1) * 3
    matrix[0] = np.eye(N)[0]
    synk.all_reduce(w, weights=matrix)
    parts = drawn("float32", size)
    check(w, [table.expected("avg", parts, row) for row in matrix])
    np.testing.assert_array_equal(synk.get_value(w, rank=0), parts[0])
    w = on_devices(parts)
    groups = [list(range(N // 2)), list(range(N // 2, N))] if N > 1 else [[0]]
    synk.all_reduce(w, groups=groups)
    wanted = {rank: table.expected("avg", [parts[one] for one in group]) for group in groups for rank in group}
    check(w, [wanted[rank] for rank in range(N)])
    w = on_devices(parts)
    synk.all_reduce(w, weights=w.function)  # the rows of the last call
    check(w, [table.expected("avg", parts)] * N)


def test_averages_of_special_values():
    """Equal values keep their bits, and huge values do not overflow."""
    for value in (0.1, -0.0, 1e308, -1.7e308, 3e-300, np.inf, -np.inf):
        w = on_devices([np.full((1, 3), value)] * N)
        synk.all_reduce(w)
        np.testing.assert_array_equal(synk.gather(w), np.full((N, 1, 3), value))
        assert np.signbit(synk.gather(w)).all() == np.signbit(value)
    w = on_devices([np.array([[1e308, rank, np.nan if rank == ROOT else 1]]) for rank in range(N)])
    synk.all_reduce(w)
    np.testing.assert_allclose(synk.gather(w), [[[1e308, (N - 1) / 2, np.nan]]] * N)


def test_broadcast_is_bit_for_bit():
    for dtype in ("bool", "int8", "uint16", "int64", "float16", "float32", "float64"):
        parts = drawn(dtype, "small")
        if dtype.startswith("float"):
            parts[ROOT][0] = [-0.0, np.nan]
        w = on_devices(parts)
        synk.broadcast(w)
        assert are_on_devices(w)
        assert {value.tobytes() for value in synk.gather(w)} == {parts[ROOT].tobytes()}
        assert cells(w)[0].dtype == dtype


def test_all_gather():
    parts = drawn("float32", "small")
    w = on_devices(parts)
    synk.all_gather(w)
    check(w, [np.concatenate(parts)] * N)


def test_later_calls_continue_from_the_result():
    parts, others = drawn("float64", "small"), drawn("float64", "large", 1)
    w, v = on_devices(parts), on_devices(others, "v")
    into = pytensor.shared(np.zeros((3, 2)), "into", shape=(None, 2))
    grow = synk.function([], updates=[(w, 2 * w), (into, into + 1)], exact=False)
    synk.all_reduce(w, into=into)
    check(into, [table.expected("avg", parts)] * N)
    check(w, parts)
    mean = np.mean(parts, axis=0)
    for k in range(1, 4):
        grow()
        synk.all_reduce([w, v], "avg")
        check(w, [2**k * mean] * N)
        check(v, [np.mean(others, axis=0)] * N)
        check(into, [mean + k] * N)  # has memory of its own
    w.set_value(parts[0])  # the other ranks keep their values, and the master's comes from the host
    synk.all_reduce(w)
    np.testing.assert_allclose(synk.gather(w), [((N - 1) * 8 * mean + parts[0]) / N] * N)
    assert N == 1 or are_on_devices(w)
    lent = w.get_value(borrow=True)
    synk.broadcast(w)
    lent[:] = 0  # no longer the variable's value on other ranks
    np.testing.assert_allclose(synk.get_value(w, rank=0), 0 if N == 1 else ((N - 1) * 8 * mean + parts[0]) / N)


def test_types_and_shapes_for_the_host():
    """Complex numbers, values of different shapes and the prefix ``c_`` go through the host."""
    parts = drawn("complex128", "small")
    w = on_devices(parts)
    synk.all_reduce(w)
    np.testing.assert_allclose(synk.gather(w), [np.mean(parts, axis=0)] * N)
    parts = [np.arange(2.0 * (rank + 1)).reshape(-1, 2) for rank in range(N)]
    w = on_devices(drawn("float64", "small"))
    for rank in range(N):
        synk.set_value(w, parts[rank], rank=rank)
    if N > 1:
        with refuses(ValueError, argument="w", expected="same shape"):
            synk.all_reduce(w)
    synk.all_gather(w)
    np.testing.assert_array_equal(synk.gather(w), [np.concatenate(parts)] * N)
    w = on_devices(drawn("float64", "small"))
    synk.all_reduce(w, "c_avg")
    np.testing.assert_allclose(synk.gather(w), [np.mean(drawn("float64", "small"), axis=0)] * N)


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("op", ["avg", "sum"])
def test_exchange_in_16_bits(op, dtype, size):
    """bfloat16: the exact result of NumPy. float16: the error is that of two roundings, relative to the largest value."""
    random = np.random.default_rng(0)
    parts = [random.uniform(0.5, 2, SHAPES[size]).astype(dtype) for _ in range(N)]
    w = on_devices(parts)
    synk.all_reduce(w, op, exchange="bfloat16")
    rounded = [nearest_bfloat16(part).astype(dtype) for part in parts]
    wanted = nearest_bfloat16(table.expected(op, rounded)).astype(dtype)
    found = synk.gather(w)
    assert are_on_devices(w) and {value.tobytes() for value in found} == {found[0].tobytes()}
    np.testing.assert_allclose(found[0], wanted, rtol=2.0**-7)  # ties of the result may differ by rounding
    assert (found[0] == wanted).mean() > 0.99
    np.testing.assert_array_equal(nearest_bfloat16(found[0]).astype(dtype), found[0])
    parts = [part * part.dtype.type(2.0 ** (0 if dtype == "float16" else 40)) for part in parts]
    w = on_devices(parts)
    synk.all_reduce(w, op, exchange="float16")
    found, wanted = synk.gather(w), table.expected(op, [part.astype("longdouble") for part in parts])
    largest = max(np.abs(parts).max(), np.abs(wanted).max())
    np.testing.assert_allclose(found, [wanted] * N, rtol=0, atol=float((N + 1) * 2.0**-11 * largest))
    assert dtype == "float16" or np.any(found[0] != table.expected(op, parts))


def test_traffic():
    w = on_devices(drawn("float64", "large"))
    for name, call, read, sent in (
        ("all_reduce", synk.all_reduce, (N - 1) / (N if N > 2 else 1), (N - 1) / N * (N > 2)),
        ("broadcast", synk.broadcast, [rank != ROOT for rank in range(N)], 0),
        ("gather", synk.gather, [(N - 1) * (rank == ROOT) for rank in range(N)], 0),
        ("in_sync", synk.in_sync, [(N - 1) * (rank == ROOT) for rank in range(N)], 0),
        ("get_value", lambda w: synk.get_value(w, rank=0), [float(N > 1 and rank == ROOT) for rank in range(N)], 0),
        ("all_gather", synk.all_gather, N - 1, 0),
    ):
        call(w)
        counted = synk.traffic()[name]
        assert counted.calls == 1 and counted.seconds > 0
        np.testing.assert_allclose(counted.read, np.full(N, read) * 8 * 40_001, atol=0.5)
        np.testing.assert_allclose(counted.sent, np.full(N, sent) * 8 * 40_001, atol=0.5)


def test_nothing_is_copied_to_the_host(monkeypatch):
    w = on_devices(drawn("float64", "large"))
    synk.all_reduce(w)
    monkeypatch.setattr(RankArray, "on_host", lambda self: 1 / 0)
    monkeypatch.setattr(JaxMesh, "spread", lambda *_: 1 / 0)
    for _ in range(3):
        synk.all_reduce(w)
        synk.broadcast(w)
    monkeypatch.undo()
    check(w, [np.mean(drawn("float64", "large"), axis=0)] * N)


def test_errors_change_nothing(monkeypatch):
    parts = drawn("float64", "small")
    w, v = on_devices(parts), on_devices(parts, "v")

    def fail(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes\nmore")

    monkeypatch.setattr(collectives.jax, "block_until_ready", fail)
    with reports(MemoryError, "all_reduce w", "allocating 8 bytes"):
        synk.all_reduce([w, v])
    monkeypatch.undo()
    check(w, parts)
    check(v, parts)
    synk.all_reduce([w, v])
    check(v, [np.mean(parts, axis=0)] * N)


class Interrupted(Exception):
    pass


def test_interrupts_are_all_or_nothing():
    """An exception is raised at every line of a collective, as handlers of signals do."""
    w, v = on_devices([np.full((1, 2), float(rank)) for rank in range(N)]), on_devices([np.ones((1, 1))] * N, "v")
    add = synk.function([], updates=[(v, v + 1)], exact=False)
    synk.all_reduce([w, v], "sum")
    left, interrupts = [0], 0

    def trace(frame, event, argument):
        _, found, place = frame.f_code.co_filename.rpartition(os.sep + "synkhronos" + os.sep)
        if not found:
            return trace if event == "call" else None
        if event == "line" and place.startswith(("mesh", "collectives")):
            left[0] -= 1
            if left[0] == 0:
                raise Interrupted
        return trace

    for k in range(1, 1000):
        add()
        before = [synk.gather(w), synk.gather(v)]
        left[0] = k
        try:
            sys.settrace(trace)
            synk.all_reduce([w, v], "max" if k % 2 else "sum")
        except Interrupted:
            interrupts += 1
        finally:
            sys.settrace(None)
        after, factor = [synk.gather(w), synk.gather(v)], 1 if k % 2 else N
        is_done = not np.array_equal(after[1], before[1])
        for one, other in zip(after, before):
            np.testing.assert_array_equal(one, other * factor if is_done else other)
        synk.broadcast([w, v], [np.full((1, 2), 1.0), np.full((1, 1), 1.0)])
        add()
        if left[0] > 0:
            break
    assert interrupts > 30
