"""A program for mpirun, a process per host: what is large travels, is reduced, and is given up half-way.

It is imported as a module, ``python -c "import bulk; bulk.main(2, 2)"``, so that ranks find its commands. Prints "fine" if
all is as it must be.
"""

import os
import signal
import time

import numpy as np

import synkhronos as synk
from synkhronos.errors import WorkerDied, WorkerError
from synkhronos.reductions import ReduceOp
from synkhronos.runtime.command import Command
from synkhronos.testing import numpy_engine as engine
from synkhronos.transports.base import Mix

#: Of each array.
NBYTES = 1 << 20

#: What is reduced: ops, by dtype. (Halves take another way than the others.)
OPS = {
    "float32": ("avg", "sum", "prod", "min", "max"),
    "float64": ("avg", "sum"),
    "int32": ("sum", "prod", "max"),
    "int8": ("sum", "min"),
    "uint16": ("sum",),
    "float16": ("avg", "max"),
    "complex64": ("avg", "sum"),
}
ROUNDS = 6


class Failing(Command):
    """Reduce or broadcast large arrays, with one rank that fails somewhere."""

    title = "failing"

    def __init__(self, bad, where):
        self.bad, self.where = bad, where

    def run(self, context):
        transport = context.transport
        array = np.full(NBYTES // 4, context.rank, "float32")
        if context.rank == self.bad:
            if self.where == "before":
                raise KeyError("before it has come")
            if self.where in ("half-way", "death"):
                transport._over_hosts = Broken(transport._over_hosts, die if self.where == "death" else fail)
            else:
                transport.pools.fetch = fail
        try:
            if self.where == "fetch":
                transport.all_gather([("failing",)], [array], str)
            else:
                transport.all_reduce([("failing",)], [array], ReduceOp("sum"), [Mix()], str)
            context.barrier.wait()
        finally:
            if isinstance(transport._over_hosts, Broken):
                transport._over_hosts = transport._over_hosts.whole
            vars(transport.pools).pop("fetch", None)


class Broken:
    """A rank's part in reductions that fails when others have written their shares."""

    def __init__(self, whole, what=None):
        self.whole, self.what = whole, what or fail

    def __getattr__(self, name):
        return getattr(self.whole, name)

    def all_reduce(self, *arguments):
        self.what()


def fail(*arguments):
    raise KeyError("half-way")


def die():
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


def values(n, dtype, seed, shape=None):
    """Return what each of n ranks has."""
    size = (NBYTES // np.dtype(dtype).itemsize,) if shape is None else shape
    return [np.random.RandomState(10 * seed + rank).randint(-3, 4, size).astype(dtype) for rank in range(n)]


def expected(op, ranks, weights=None):
    """Return what NumPy makes of the ranks' values."""
    if op == "avg":
        wide = "complex128" if ranks[0].dtype.kind == "c" else "float64"
        return np.average(np.stack(ranks).astype(wide), axis=0, weights=weights)
    function = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
    result = ranks[0]
    for each in ranks[1:]:
        result = function(result, each)
    return result


def put(variable, ranks):
    """Give every rank its value."""
    for rank, value in enumerate(ranks):
        synk.set_value(rank, variable, value)


def check(variable, right, what):
    """Check that all ranks have the same bits, and the right ones."""
    there = synk.gather(variable)
    there = there.reshape((-1,) + np.shape(right))
    assert all(each.tobytes() == there[0].tobytes() for each in there), f"{what}: not the same on all ranks"
    tolerance = 2e-3 if there.dtype == np.float16 else 1e-6
    np.testing.assert_allclose(there[0].astype(np.asarray(right).dtype), right, tolerance, tolerance, err_msg=what)


def made(dtypes_and_shapes):
    """Return shared variables that the ranks have."""
    variables = [engine.shared(np.zeros(shape, dtype)) for dtype, shape in dtypes_and_shapes]
    synk.function([], [], updates=[(each, each + each) for each in variables])()
    return variables


def reduce_all(n):
    """Reduce arrays of all dtypes by all ops."""
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


def fail_somewhere(n):
    """Let ranks fail before they have come and half-way; what follows at once is right."""
    (variable,) = made([("float32", NBYTES // 4)])
    session = engine_session()
    for i in range(ROUNDS):
        for where in ("half-way", "before", "fetch"):
            bad = (i + len(where)) % n
            try:
                session.run(Failing(bad, where))
            except (WorkerError, KeyError):
                pass
            else:
                raise AssertionError(f"rank {bad} was to fail {where}")
            ranks = values(n, "float32", i)
            put(variable, ranks)
            synk.all_reduce(variable, op="sum")
            check(variable, expected("sum", ranks), f"after rank {bad} has failed {where}")
    synk.set_value(n - 1, variable, np.zeros(NBYTES // 4 + 1, "float32"))
    try:
        synk.all_reduce(variable, op="sum")
    except ValueError as error:
        assert f"on rank {n - 1}" in str(error), error
    else:
        raise AssertionError("shapes differ")
    ranks = values(n, "float32", 99)
    put(variable, ranks)
    synk.all_reduce(variable, op="max")
    check(variable, expected("max", ranks), "after shapes had differed")


def interrupt_constants():
    """Press Ctrl-C while a constant is on its way; the next call has it whole, and so have those after it."""
    x = engine.variable("x", "float64", 2)
    f = synk.function([x], (engine.sum(x, axis=0), "sum"))
    rows = np.random.RandomState(3).randint(-5, 5, (1 << 15, 64)).astype("float64")  # 16 MiB
    f(rows[:100])
    interrupted = 0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    for i in range(ROUNDS):
        data = synk.data(rows + i, constant=True)  # mostly where the last one was
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
    assert interrupted == ROUNDS


def engine_session():
    """Return the session of this program."""
    from synkhronos.program.program import PROGRAM

    return PROGRAM.session


def main(hosts, ranks):
    """Do all of it with so many ranks on each host."""
    n = synk.fork(ranks)
    assert n == hosts * ranks
    assert engine_session().hosts.places == tuple(range(hosts))
    reduce_all(n)
    move_all(n)
    fail_somewhere(n)
    interrupt_constants()
    try:
        engine_session().run(Failing(n - 1, "death"))
    except WorkerDied as error:
        assert f"rank {n - 1}" in str(error), error
    else:
        raise AssertionError("a rank was to die")
    synk.close()
    synk.fork(1)  # numbers go on where they were
    (variable,) = made([("float32", NBYTES // 4)])
    ranks = values(hosts, "float32", 8)
    put(variable, ranks)
    synk.all_reduce(variable, op="prod")
    check(variable, expected("prod", ranks), "another session")
    synk.close()
    print("fine", flush=True)
