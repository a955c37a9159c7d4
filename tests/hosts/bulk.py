"""A program for mpirun, one process per host: large arrays are sent, reduced, and abandoned half-way.

It is imported as a module, ``python -c "import bulk; bulk.main(2, 2)"``, so that ranks find its commands. It prints
"fine" if all checks pass.
"""

import os
import signal
import sys
import time

import numpy as np

import synkhronos as synk
from synkhronos.errors import StateError, WorkerDied, WorkerError
from synkhronos.reductions import ReduceOp
from synkhronos.runtime.command import Command
from synkhronos.testing import numpy_engine as engine
from synkhronos.transports.strategy import Reduction, Weighting

#: Size of each array.
NBYTES = 1 << 20

#: Ops to reduce with, by dtype. (Complex numbers take a different route.)
OPS = {
    "float32": ("avg", "sum", "prod", "min", "max"),
    "float64": ("avg", "sum"),
    "int32": ("sum", "prod", "max"),
    "int8": ("sum", "min"),
    "uint16": ("sum",),
    "float16": ("avg", "max"),
    "complex64": ("avg", "sum"),
}
ROUNDS = 3


class Failing(Command):
    """Reduce or broadcast large arrays, with one rank that fails at a given point."""

    title = "failing"

    def __init__(self, bad, where):
        self.bad, self.where = bad, where

    def run(self, context):
        transport = context.transport
        array = np.full(NBYTES // 4, context.rank, "float32")
        whole = transport._over_hosts
        if context.rank == self.bad:
            if self.where == "before":
                raise KeyError("before it has come")
            if self.where == "fetch":
                transport.pools.fetch = fail
            else:
                transport._over_hosts = Broken(whole, self.where)
        keys, n = [("failing",)], context.size
        try:
            if self.where == "fetch":
                transport.all_gather(keys, [array], str)
            elif self.where == "groups":  # each row is a separate reduction
                results = Weighting((1.0,) * n, (0,)), Weighting((1.0,) * (n - 1) + (2.0,), tuple(range(1, n)))
                transport.all_reduce(keys, [array], Reduction(ReduceOp("avg"), results), str)
            elif self.where in ("begun", "finish"):
                started = transport.start(keys, [array], Reduction(ReduceOp("sum"), wire="bfloat16"), str)
                transport.finish(started, keys)
            else:
                transport.all_reduce(keys, [array], Reduction(ReduceOp("sum")), str)
            context.barrier.wait()
        finally:
            transport._over_hosts = whole
            vars(transport.pools).pop("fetch", None)


class Broken:
    """A rank's part in reductions, which fails at a given point."""

    def __init__(self, whole, where):
        self.whole, self.where = whole, where

    def __getattr__(self, name):
        return getattr(self.whole, name)

    def begin(self, *arguments):
        if self.where == "death":
            die()
        if self.where != "finish":
            if self.where == "begun":  # it has asked its bridge, like all other ranks
                self.whole.begin(*arguments)
            fail()
        return self.whole.begin(*arguments)

    def finish(self, *arguments):
        fail()


def fail(*arguments):
    raise KeyError("half-way")


def die():
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


def values(n, dtype, seed, shape=None):
    """Return a value for each of n ranks."""
    size = (NBYTES // np.dtype(dtype).itemsize,) if shape is None else shape
    return [np.random.RandomState(10 * seed + rank).randint(-3, 4, size).astype(dtype) for rank in range(n)]


def expected(op, ranks, weights=None):
    """Return the ranks' values, reduced by NumPy."""
    if op == "avg":
        wide = "complex128" if ranks[0].dtype.kind == "c" else "float64"
        return np.average(np.stack(ranks).astype(wide), axis=0, weights=weights)
    function = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    result = ranks[0]
    for each in ranks[1:]:
        result = function(result, each)
    return result


def put(variable, ranks):
    """Set every rank's value of a variable."""
    for rank, value in enumerate(ranks):
        synk.set_value(rank, variable, value)


def check(variable, right, what):
    """Check that all ranks have the same bits, and the expected value."""
    there = synk.gather(variable)
    there = there.reshape((-1,) + np.shape(right))
    assert all(each.tobytes() == there[0].tobytes() for each in there), f"{what}: not the same on all ranks"
    tolerance = 2e-3 if there.dtype == np.float16 else 1e-6
    np.testing.assert_allclose(there[0].astype(np.asarray(right).dtype), right, tolerance, tolerance, err_msg=what)


def made(dtypes_and_shapes):
    """Return shared variables that exist on all ranks."""
    variables = [engine.shared(np.zeros(shape, dtype)) for dtype, shape in dtypes_and_shapes]
    synk.function([], [], updates=[(each, each + each) for each in variables])()
    return variables


def reduce_all(n):
    """Reduce arrays of all dtypes with all ops."""
    for seed, (dtype, ops) in enumerate(OPS.items()):
        size = NBYTES // np.dtype(dtype).itemsize
        (variable,) = made([(dtype, size)])
        for op in ops:
            ranks = values(n, dtype, seed)
            put(variable, ranks)
            synk.all_reduce(variable, op=op)
            check(variable, expected(op, ranks), f"{op} of {dtype}")
    (variable,) = made([("float32", NBYTES // 4)])
    for weights in ([rank + 1.0 for rank in range(n)], [0.0] * (n - 1) + [2.0]):
        ranks = values(n, "float32", 77)
        put(variable, ranks)
        synk.all_reduce(variable, weights=weights)
        check(variable, expected("avg", ranks, weights), f"avg with weights {weights}")
    several = [("float32", (300, 100)), ("float64", (7, 11)), ("float32", (1,)), ("int16", (5000, 3)), ("float32", ())]
    variables = made(several)
    given = [values(n, dtype, i, shape) for i, (dtype, shape) in enumerate(several)]
    for variable, ranks in zip(variables, given):
        put(variable, ranks)
    synk.all_reduce(variables, op="sum")
    for variable, ranks, kind in zip(variables, given, several):
        check(variable, expected("sum", ranks), f"sum of {kind} among others")


def move_all(n):
    """Broadcast, gather and scatter large arrays, and call a function with them."""
    (variable,) = made([("float64", NBYTES // 8)])
    ranks = values(n, "float64", 5)
    put(variable, ranks)
    np.testing.assert_array_equal(synk.gather(variable).reshape(n, -1), np.stack(ranks))
    synk.broadcast(variable)
    check(variable, ranks[0], "broadcast")
    x = engine.variable("x", "float64", 2)
    f = synk.function([x], [(engine.sum(x), "sum"), (synk.ops.all_reduce(x * 2.0, "sum"), "gather")])
    rows = np.random.RandomState(3).randint(-5, 5, (NBYTES // 64 // n * n, 32)).astype("float64")
    for _ in range(3):
        total, sums = f(rows)
        np.testing.assert_allclose(total, rows.sum())
        together = 2 * rows.reshape(n, -1, 32).sum(axis=0)
        np.testing.assert_allclose(sums, np.tile(together, (n, 1)))


def received(variable, **arguments):
    """Reduce a variable; return the number of bytes that each host receives."""

    def total():
        hosts = len(synk.hosts())
        return np.sum([np.zeros(hosts), *[each.received for each in synk.traffic().values()]], axis=0)

    before = total()
    synk.all_reduce(variable, **arguments)
    return total() - before


def exchange_all(n):
    """Reduce arrays with 16-bit exchanges; errors are at most two roundings, and each number takes two bytes."""
    random = np.random.RandomState(7)
    hosts = len(synk.hosts())
    for dtype, form, unit in (
        ("float32", "bfloat16", 2**-8),
        ("float32", "float16", 2**-11),
        ("float64", "float16", 2**-11),
    ):
        size = NBYTES // np.dtype(dtype).itemsize
        (variable,) = made([(dtype, size)])
        for op, weights in (("avg", None), ("sum", None), ("avg", [float(rank) for rank in range(n)])):
            ranks = [random.normal(size=size).astype(dtype) for _ in range(n)]
            put(variable, ranks)
            moved = received(variable, op=op, weights=weights, exchange=form)
            there = synk.gather(variable).reshape(n, size)
            what = f"{op} of {dtype} in {form}"
            assert all(each.tobytes() == there[0].tobytes() for each in there), f"{what}: not the same on all ranks"
            right = expected(op, ranks, weights).astype("float64")
            largest = sum(np.abs(each.astype("float64")) for each in ranks)
            assert (np.abs(there[0] - right) <= 2.1 * unit * largest + 1e-6).all(), what
            assert (there[0] != right).any(), f"{what}: nothing was rounded"
            counted = hosts - (weights is not None and n == hosts)  # (one host then has no weight)
            most = size * 2 * 2 * (hosts - 1) / hosts
            assert moved.max() <= 1.01 * most + 1000, f"{what}: {moved} bytes travelled, not {most}"
            assert moved.max() >= 0.99 * size * 2 * (counted - 1 + hosts - 1) / hosts, f"{what}: {moved}"


def feed_back(n):
    """Reduce with feedback: each host's values less its error are 16-bit numbers, and yield the result."""
    size, random = NBYTES // 4, np.random.RandomState(11)
    hosts = [host.ranks for host in synk.hosts()]
    for op in ("avg", "sum"):
        variable, result, error = made([("float32", size)] * 3)
        errors = np.zeros((n, size), "float32")
        for i in range(4):
            ranks = [random.normal(size=size).astype("float32") for _ in range(n)]
            put(variable, ranks)
            exchange = dict(into=result, exchange="bfloat16", feedback=error)
            if i % 2:
                started = synk.all_reduce(variable, op=op, wait=False, **exchange)
                synk.set_value(0, variable, np.zeros(size, "float32"))
                started.wait()
            else:
                synk.all_reduce(variable, op=op, **exchange)
            given = [ranks[rank] + errors[rank] for rank in range(n)]
            errors = synk.gather(error).reshape(n, size)
            sent = []
            for of_host in hosts:
                whole = sum(given[rank] for rank in of_host) / np.float32(len(of_host) if op == "avg" else 1)
                left_out = errors[of_host[0]] * np.float32(1 if op == "avg" else len(of_host))
                assert all(np.array_equal(errors[rank], errors[of_host[0]]) for rank in of_host)
                assert left_out.any() and (np.abs(left_out) <= 2**-8 * np.abs(whole)).all(), op
                sent.append(whole - left_out)
                assert not (sent[-1].view("uint32") & 0xFFFF).any(), f"{op}: not what travels in 16 bits"
            arrived = synk.gather(result).reshape(n, size)
            assert all(each.tobytes() == arrived[0].tobytes() for each in arrived)
            right = np.sum(sent, axis=0, dtype="float64") / (len(hosts) if op == "avg" else 1)
            assert (np.abs(arrived[0] - right) <= 2**-8 * np.abs(right) + 1e-6).all(), op


def reduce_groups(n):
    """Average within groups and by matrices: only needed values are sent, and none for averages inside a host."""
    hosts = [host.ranks for host in synk.hosts()]
    random = np.random.RandomState(5)
    across = [[ranks[i] for ranks in hosts] for i in range(len(hosts[0]))]
    ring = np.eye(n) / 2 + np.roll(np.eye(n), 1, axis=1) / 2
    of_hosts = np.repeat(np.repeat(random.randint(1, 5, (len(hosts),) * 2), len(hosts[0]), 0), len(hosts[0]), 1)
    alone = np.eye(n)
    alone[0, 0], alone[0, -1] = 0, 1
    for dtype in ("float32", "float16"):
        size = NBYTES // np.dtype(dtype).itemsize
        (variable,) = made([(dtype, size)])
        nbytes = size * np.dtype(dtype).itemsize
        wide = 1 if dtype == "float32" else 2  # half-precision values are added and sent in float32
        cases = [
            ("inside hosts", dict(groups=hosts), 0),
            ("across hosts", dict(groups=across), len(across) * nbytes * (len(hosts) - 1) / len(hosts) * (1 + wide)),
            ("a ring", dict(weights=ring), nbytes * (n - len(hosts[0]))),
            ("equal for ranks of a host", dict(weights=of_hosts), nbytes * (len(hosts) - 1) * wide),
            ("one takes", dict(weights=alone), nbytes),
        ]
        for what, arguments, most in cases:
            ranks = [random.normal(size=size).astype(dtype) for _ in range(n)]
            put(variable, ranks)
            moved = received(variable, **arguments)
            there = synk.gather(variable).reshape(n, size)
            matrix = arguments.get("weights")
            if matrix is None:
                matrix = [
                    [float(any({i, j} <= {*group} for group in arguments["groups"])) for j in range(n)]
                    for i in range(n)
                ]
            for rank, row in enumerate(matrix):
                right = np.average(np.stack(ranks).astype("float64"), axis=0, weights=row)
                tolerance = 2e-3 if dtype == "float16" else 1e-6
                np.testing.assert_allclose(there[rank], right, tolerance, tolerance, err_msg=f"{what}, rank {rank}")
                for other in range(rank):
                    if np.array_equal(matrix[other], row):
                        assert there[rank].tobytes() == there[other].tobytes(), (
                            f"{what}: not the same on {rank}, {other}"
                        )
            assert moved.max() <= 1.01 * most + (most > 0) * 1000, f"{what}: {moved} bytes travelled, not {most}"
        put(variable, ranks)
        assert not received(variable, groups=hosts, exchange="bfloat16").any()


def start_some(n):
    """Reduce during other commands: waiting gives the started reduction's result; failures have no later effects."""
    a, b, result = made([("float32", NBYTES // 4)] * 3)
    for i, arguments in enumerate([{}, dict(exchange="float16"), dict(op="max"), dict(weights=[1.0] * n)] * 2):
        op = arguments.get("op", "avg")
        first, second, third = (values(n, "float32", 20 + 3 * i + j) for j in range(3))
        put(a, first)
        put(b, second)
        started = synk.all_reduce(a, into=result, wait=False, **arguments)
        other = synk.all_reduce([b], op="min", wait=False)
        put(a, third)
        if i % 2:  # then another command fails
            fail_in("half-way" if i % 4 == 1 else "before", i % n)
        synk.all_reduce(a, op="sum")
        check(a, expected("sum", third), "beside what was started")
        started.wait()
        other.wait()
        there = synk.gather(result).reshape(n, -1)
        assert all(each.tobytes() == there[0].tobytes() for each in there)
        tolerance = 2**-9 if "exchange" in arguments else 1e-6
        np.testing.assert_allclose(there[0], expected(op, first), tolerance, tolerance, err_msg=str(arguments))
        check(b, expected("min", second), "started, in place")
        put(a, first)
        given_up = synk.all_reduce(a, into=result, wait=False)
        given_up.drop()
        put(a, second)
        again = synk.all_reduce(a, into=result, wait=False)
        put(a, third)
        again.wait()
        check(result, expected("avg", second), "after another one was dropped")


def fail_in(where, bad):
    """Let a rank fail at a given point."""
    try:
        engine_session().run(Failing(bad, where))
    except (WorkerError, KeyError):
        pass
    else:
        raise AssertionError(f"rank {bad} was to fail {where}")


def fail_somewhere(n):
    """Let ranks fail before a collective and half-way; the next results are right."""
    variable, result = made([("float32", NBYTES // 4)] * 2)
    for i in range(ROUNDS):
        for where in ("half-way", "before", "fetch", "groups", "begun", "finish"):
            bad = (i + len(where)) % n
            fail_in(where, bad)
            ranks = values(n, "float32", i)
            put(variable, ranks)
            if i % 2:
                synk.all_reduce(variable, op="sum", into=result, wait=False).wait()
            else:
                synk.all_reduce(variable, op="sum", into=result)
            check(result, expected("sum", ranks), f"after rank {bad} has failed {where}")
    synk.set_value(n - 1, variable, np.zeros(NBYTES // 4 + 1, "float32"))
    for arguments in ({}, dict(wait=False), dict(exchange="float16"), dict(groups=[list(range(n))])):
        try:
            synk.all_reduce(variable, **arguments)
        except ValueError as error:
            assert f"on rank {n - 1}" in str(error), error
        else:
            raise AssertionError("shapes differ")
    ranks = values(n, "float32", 99)
    put(variable, ranks)
    synk.all_reduce(variable, op="max")
    check(variable, expected("max", ranks), "after shapes had differed")


def interrupt_constants():
    """Press Ctrl-C while a constant is being sent; the next call, and those after it, receive it completely.

    Python discards an interrupt that arrives in a finalizer, such as that of the last constant's memory.
    """
    x = engine.variable("x", "float64", 2)
    f = synk.function([x], (engine.sum(x, axis=0), "sum"))
    rows = np.random.RandomState(3).randint(-5, 5, (1 << 15, 64)).astype("float64")  # 16 MiB
    f(rows[:100])
    interrupted, discarded = 0, []
    sys.unraisablehook = lambda unraisable: discarded.append(unraisable.exc_type)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    for i in range(ROUNDS):
        data = synk.data(rows + i, constant=True)  # mostly at the previous array's address
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.004 * (i + 1))
            f(data)
            time.sleep(0.1)
        except KeyboardInterrupt:
            interrupted += 1
        for batch in (slice(1, 1 << 15), [5, 30_000], slice(0, 1 << 15, 7)):
            np.testing.assert_array_equal(f(data, batch=batch), (rows + i)[batch].sum(axis=0))
        del data
    signal.signal(signal.SIGALRM, before)
    sys.unraisablehook = sys.__unraisablehook__
    assert interrupted + len(discarded) == ROUNDS and set(discarded) <= {KeyboardInterrupt}


def interrupt_reductions(n):
    """Press Ctrl-C while hosts reduce: all have the old values or the new ones, and no other memory is changed."""
    size, hosts = NBYTES, len(synk.hosts())
    variable, result = made([("float32", size)] * 2)
    ranks, largest = [np.full(size, rank + 1, "float32") for rank in range(n)], np.full(size, n, "float32")
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    interrupted = 0
    for i in range(2 * ROUNDS):
        put(variable, ranks)
        synk.all_reduce(variable, into=result, op="min")  # all memory is allocated
        put(variable, ranks)
        others = made([("complex64", size // 2)] * 2)  # these use free memory, but do not start a courier
        given = [values(n, "complex64", i, (size // 2,)) for _ in others]
        for other, of_ranks in zip(others, given):
            put(other, of_ranks)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001 * (i + 1) * hosts)
            synk.all_reduce(variable, op="max")
            time.sleep(0.1)
        except KeyboardInterrupt:
            interrupted += 1
        synk.all_reduce(others, op="sum")
        there = synk.gather(variable).reshape(n, -1)
        assert any((there == right).all() for right in (ranks, largest)), f"interrupted, {i}: {there}"
        for other, of_ranks in zip(others, given):
            check(other, expected("sum", of_ranks), f"interrupted, {i}")
        put(variable, ranks)
        synk.all_reduce(variable, op="sum", into=result)
        check(result, expected("sum", ranks), f"after an interrupt, {i}")
    signal.signal(signal.SIGALRM, before)
    assert interrupted == 2 * ROUNDS, interrupted


def engine_session():
    """Return the session of this program."""
    from synkhronos.program.program import PROGRAM

    return PROGRAM.session


def main(hosts, ranks):
    """Run all checks with a number of ranks on each host."""
    n = synk.fork(ranks)
    assert n == hosts * ranks
    assert engine_session().hosts.places == tuple(range(hosts))
    reduce_all(n)
    move_all(n)
    exchange_all(n)
    feed_back(n)
    reduce_groups(n)
    start_some(n)
    fail_somewhere(n)
    interrupt_constants()
    interrupt_reductions(n)
    try:
        engine_session().run(Failing(n - 1, "death"))
    except WorkerDied as error:
        assert f"rank {n - 1}" in str(error), error
    else:
        raise AssertionError("a rank was to die")
    synk.close()
    synk.fork(1)  # numbering continues
    (variable,) = made([("float32", NBYTES // 4)])
    ranks = values(hosts, "float32", 8)
    put(variable, ranks)
    synk.all_reduce(variable, op="prod")
    check(variable, expected("prod", ranks), "another session")
    synk.all_reduce(variable, wait=False)
    try:
        synk.close()  # the collective was abandoned
    except StateError as error:
        assert "did not wait for this" in str(error), error
    else:
        raise AssertionError("something was under way")
    synk.fork(1)
    (variable,) = made([("float32", NBYTES // 4)])
    put(variable, ranks)
    synk.all_reduce(variable, op="sum")
    check(variable, expected("sum", ranks), "after one was given up")
    synk.close()
    print("fine", flush=True)
