"""The code around NCCL's calls, on ranks with real devices and a stand-in for NCCL.

NCCL itself needs CUDA devices: with them (SYNK_TEST_DEVICE=cuda0), the same tests use the real library. Otherwise, a
communicator with pygpu's interface works on the host (pygpu_stand_in.py).
"""

import numpy as np
import pytest
import theano
from pygpu_stand_in import Communicator
from refusals import refuses, reports
from worlds import DEVICE, World

import synkhronos as synk
from synkhronos.reductions import ReduceOp
from synkhronos.reductions.device import empty
from synkhronos.runtime.command import Command, Stop
from synkhronos.transports.nccl import KNOWN, Clique, NcclProgress
from synkhronos.transports.strategy import Reduction

REAL = DEVICE.startswith("cuda")


class Slow(NcclProgress):
    """A device that has finished at the fourth query, or later, or never."""

    def __init__(self):
        self.looks, self.never, self.aborts = 0, False, 0
        self.until = lambda: True

    def mark(self):
        self.looks = 0

    def is_done(self):
        self.looks += 1
        return self.looks > 3 and not self.never and self.until()

    def abort(self):
        self.aborts += 1


class Join(Command):
    """Create a clique over the stand-in on every rank."""

    def run(self, context):
        transport = context.transport
        transport.nccl = Clique(
            Communicator(transport.host, KNOWN),
            transport.context,
            context.rank,
            context.size,
            context.root,
            Slow(),
            transport.host.barrier.look_alone,
        )


class Calls(Command):
    """Return the communicator's calls since the last query."""

    def run(self, context):
        calls, context.transport.nccl.comm.calls = context.transport.nccl.comm.calls, []
        return calls


class Fail(Command):
    """Raise on one rank before NCCL is entered, or while the other ranks' devices work."""

    def __init__(self, number, rank, late):
        self.number, self.rank, self.late = number, rank, late

    def run(self, context):
        transport = context.transport
        _, variable = context.registry.shareds[self.number]
        array = variable.container.storage[0]
        if not self.late:
            if context.rank == self.rank:
                raise RuntimeError("before")
            transport.all_reduce([("shared", self.number)], [array], Reduction(ReduceOp("sum")), str)
            return
        clique = transport.nccl
        clique.progress.never = True
        try:
            out = clique.all_reduce(array, ReduceOp("sum"))
            if context.rank == self.rank:
                raise RuntimeError("in the middle")
            clique.finish()
            variable.container.storage[0] = out
        finally:
            clique.progress.never = False


class ReduceValues(Command):
    """Reduce a rank's value of a variable, and an array on the host, like a collective inside a function."""

    def __init__(self, number, op, weights):
        self.number, self.op, self.weights = number, ReduceOp(op), weights

    def run(self, context):
        _, variable = context.registry.shareds[self.number]
        value = variable.container.storage[0]
        host = np.full(3, float(context.rank))
        key = ("function", 0, 0)
        results = context.transport.all_reduce_values(key, [value, host], self.op, self.weights, lambda: "it")
        return type(results[0]) is type(value), [np.asarray(result) for result in results]


class State(Command):
    def run(self, context):
        return context.transport.nccl.broken, context.transport.nccl.progress.aborts > 0


# Hosts are first, because their launcher must run before this process opens a device.
SESSIONS = [("2 uneven hosts", 3, 1), ("fork", 1, 0), ("fork", 2, 0), ("fork", 3, 1)]


@pytest.fixture(params=SESSIONS, ids=str, scope="module")
def session(request):
    """Return a world of ranks with devices; tests share it, since opening devices takes a while."""
    synk.close()
    world = World(*request.param, "theano")
    yield world
    synk.close()


@pytest.fixture
def ranks(session):
    """Return the world, with a new clique."""
    transport = session.session.context.transport
    if not REAL:
        session.session.run(Join())
    assert transport.nccl is not None, transport.why
    return session


def calls(world):
    """Return the communicator's calls, which are the same on every rank."""
    if REAL:
        return None
    of_ranks = world.session.run(Calls())
    assert all(each == of_ranks[0] for each in of_ranks)
    return of_ranks[0]


def make(world, shape, dtype="float32", special=False):
    values = [np.asarray(np.random.RandomState(r).randn(*shape) * 4).astype(dtype) for r in range(world.n)]
    if special:
        values[0].flat[0], values[-1].flat[1], values[0].flat[2] = np.nan, np.inf, -np.inf
    variable = world.shared(np.zeros(shape, dtype), "v")
    world.set_values(variable, values)
    calls(world)
    return variable, values


def truth(op, values, weights=None):
    stacked = np.stack([value.astype("float64") for value in values])
    with np.errstate(all="ignore"):
        if op == "avg":
            weights = [1] * len(values) if weights is None else weights
            return sum(w * value for w, value in zip(weights, stacked) if w) / sum(weights)
        return {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}[op](stacked, axis=0)


def test_all_reduce_and_reduce(ranks):
    for dtype in ("float32", "float64", "float16", "int32", "int64"):
        for op in ("avg", "sum", "prod", "min", "max"):
            if op == "avg" and dtype.startswith("int"):
                continue
            variable, values = make(ranks, (3, 2), dtype, special=dtype.startswith("float"))
            expected, close = truth(op, values), dict(rtol=2e-3 if dtype == "float16" else 1e-6)
            np.testing.assert_allclose(synk.reduce(variable, op, in_place=False), expected, **close)
            synk.reduce(variable, op)
            np.testing.assert_allclose(ranks.values(variable)[ranks.root], expected, **close)
            ranks.set_values(variable, values)
            synk.all_reduce(variable, op)
            for value in ranks.values(variable):
                np.testing.assert_allclose(value, expected, err_msg=op, **close)
                assert value.dtype == dtype
            done = calls(ranks)
            if op == "avg":  # extreme values clamp the mean if no wider type exists
                names = ["sum", "min", "max"] if dtype == "float64" else ["sum"]
            else:
                names = ["sum", op] if op in ("min", "max") and dtype.startswith("float") else [op]
            reduces = [f"reduce to {ranks.root} {name}" for name in names]
            assert REAL or done == reduces * 2 + ["all_reduce " + name for name in names]


def test_arrays_without_elements_keep_their_type(ranks):
    """Empty results keep their dtype, also float16, although it is added in single precision."""
    for dtype in ("float16", "float32", "int64"):
        for op in ("sum", "prod", "min", "max") + (("avg",) if dtype.startswith("float") else ()):
            variable, _ = make(ranks, (2, 0), dtype)
            assert np.asarray(synk.reduce(variable, op, in_place=False)).dtype == dtype
            synk.all_reduce(variable, op)
            assert all(value.dtype == dtype and value.shape == (2, 0) for value in ranks.values(variable))


def test_values_inside_functions(ranks):
    for op in ("avg", "sum", "min", "max"):
        for weights in (None, [2, 3, 1][: ranks.n], [2] + [0] * (ranks.n - 1)):
            variable, values = make(ranks, (4, 2), "float64")
            counting = [rank for rank in range(ranks.n) if weights is None or weights[rank]]
            chosen = [weights[rank] for rank in counting] if weights else None
            expected = truth(op, [values[rank] for rank in counting], chosen)
            on_host = truth(op, [np.full(3, float(rank)) for rank in counting], chosen)
            number = ranks._number(variable)
            for same_type, results in ranks.session.run(ReduceValues(number, op, weights)):
                assert same_type
                np.testing.assert_allclose(results[0], expected, rtol=1e-12)
                np.testing.assert_allclose(results[1], on_host, rtol=1e-12)


def test_weights(ranks):
    variable, values = make(ranks, (4,))
    for weights in ([1, 2, 3], [1, 0, 0], [1e300, 1e300, 1e300], [0.3, 0.3, 0.1]):
        weights = weights[: ranks.n]
        ranks.set_values(variable, values)
        synk.all_reduce(variable, weights=weights)
        scaled = [w / max(weights) for w in weights]
        for value in ranks.values(variable):
            np.testing.assert_allclose(value, truth("avg", values, scaled), rtol=1e-6)


def test_weight_0_excludes_what_is_not_finite(ranks):
    if ranks.n == 1:
        return
    variable = ranks.shared(np.zeros(2, "float32"), "v")
    ranks.set_values(variable, [np.full(2, np.nan if r == 1 else 5, "float32") for r in range(ranks.n)])
    synk.all_reduce(variable, weights=[1, 0, 1][: ranks.n])
    np.testing.assert_array_equal(ranks.values(variable), 5)


@pytest.mark.parametrize("nccl", [True, False])
def test_mixes_of_some_ranks(ranks, nccl):
    """Each rank has a row of a matrix as weights; if it contains that rank only, the value stays unchanged."""
    n = ranks.n
    variable, values = make(ranks, (2, 3), "float64")
    target, _ = make(ranks, (2, 3), "float64")
    matrix = np.eye(n) + 2 * np.roll(np.eye(n), 1, axis=0)
    matrix[-1] = 0.3 * np.eye(n)[-1]
    expected = [truth("avg", values, row) for row in matrix.tolist()]
    expected[-1] = values[-1]
    for into in (target, None):
        synk.all_reduce(variable, nccl=nccl, weights=matrix, into=into)
        for rank, value in enumerate(ranks.values(variable if into is None else into)):
            np.testing.assert_allclose(value, expected[rank], rtol=1e-12, atol=0 if rank == n - 1 else 1e-12)
        if into is not None:
            np.testing.assert_array_equal(ranks.values(variable), values)
    ranks.set_values(variable, values)
    synk.all_reduce(variable, nccl=nccl, groups=[list(range(n - 1)), [n - 1]] if n > 1 else [[0]])
    found = ranks.values(variable)
    np.testing.assert_array_equal(found[-1], values[-1])
    for value in found[:-1]:
        np.testing.assert_allclose(value, np.mean(values[:-1], axis=0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nccl", [True, False])
def test_later_results(ranks, nccl):
    variable, values = make(ranks, (3,), "float64")
    target, _ = make(ranks, (3,), "float64")
    started = synk.all_reduce(variable, nccl=nccl, into=target, wait=False)
    synk.broadcast(variable, np.zeros(3))
    started.wait()
    for value in ranks.values(target):
        np.testing.assert_allclose(value, np.mean(values, axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(ranks.values(variable), np.zeros((ranks.n, 3)))


@pytest.mark.parametrize("nccl", [True, False])
def test_16_bits(ranks, nccl):
    """The sum of what was received, with errors fed back, differs from the true sum by the last errors only."""
    variable, values = make(ranks, (500,))
    errors, _ = make(ranks, (500,))
    ranks.set_values(errors, np.zeros((ranks.n, 500), "float32"))
    mean, arrived = np.mean(values, axis=0), np.zeros(500)
    for _ in range(8):
        ranks.set_values(variable, values)
        synk.all_reduce(variable, nccl=nccl, exchange="bfloat16", feedback=errors)
        found = ranks.values(variable)
        assert all(value.tobytes() == found[0].tobytes() for value in found)
        arrived += found[0]
    assert np.abs(found[0] - mean).max() > 1e-3 and np.abs(ranks.values(errors)).max() < 0.1
    bound = 2.0**-8 * np.abs(mean)  # (each result is rounded once more, about equally in both directions)
    np.testing.assert_allclose(arrived / 8 + np.mean(ranks.values(errors), axis=0) / 8, mean, rtol=0, atol=bound.max())


def test_broadcast(ranks):
    variable, values = make(ranks, (2, 3), "int64")
    synk.broadcast(variable)
    np.testing.assert_array_equal(ranks.values(variable), [values[ranks.root]] * ranks.n)
    assert REAL or calls(ranks) == [f"broadcast from {ranks.root}"]


@pytest.mark.parametrize("lengths", [(2, 2, 2), (3, 0, 1), (0, 4, 1), (0, 0, 0)])
def test_all_gather_of_any_lengths(ranks, lengths):
    variable = ranks.shared(np.zeros((1, 2), "float32"), "v")
    values = [np.random.RandomState(r).randn(lengths[r], 2).astype("float32") for r in range(ranks.n)]
    ranks.set_values(variable, values)
    calls(ranks)
    synk.all_gather(variable)
    np.testing.assert_array_equal(ranks.values(variable), [np.concatenate(values)] * ranks.n)
    assert REAL or calls(ranks) == ["all_gather 0"] * any(lengths[: ranks.n])


def test_the_way_through_the_host(ranks):
    """The host is used for ``c_`` ops and nccl=False, for dtypes that NCCL lacks, and for variables there."""
    variable, values = make(ranks, (3,))
    for collective in (
        lambda: synk.all_reduce(variable, "c_max"),
        lambda: synk.all_reduce(variable, "max", nccl=False),
        lambda: synk.broadcast(variable, nccl=False),
        lambda: synk.reduce(variable, "max", nccl=False),
        lambda: synk.all_gather(variable, nccl=False),
    ):
        collective()
        assert REAL or calls(ranks) == []
    flags, _ = make(ranks, (4,), "bool")
    synk.all_reduce(flags, "max")
    assert REAL or calls(ranks) == []
    count = theano.shared(np.array(3), "count")
    both = [count, ranks.shared(np.ones(2, "float32"), "d")]
    synk.function([], count * 1.0)()
    calls(ranks)  # so that later counts exclude the distribution
    names = [None, "host"]
    synk.all_reduce(both, "sum")  # arrays take separate routes; the results are in order
    assert [value.tolist() for value in synk.reduce(both, "sum", in_place=False)] == [
        3 * ranks.n**2,
        [ranks.n**2] * 2,
    ], names
    assert REAL or calls(ranks) == ["all_reduce sum", f"reduce to {ranks.root} sum"]


def test_shapes_that_differ_are_refused_before_nccl(ranks):
    if ranks.n == 1:
        return
    variable = ranks.shared(np.zeros(1, "float32"), "v")
    ranks.set_values(variable, [np.zeros(1 + r, "float32") for r in range(ranks.n)])
    calls(ranks)
    with refuses(ValueError, "v", got="float32 (2,) on rank 1"):
        synk.all_reduce(variable)
    assert REAL or calls(ranks) == []


def test_functions(ranks):
    x = theano.tensor.fmatrix("x")
    f = synk.function(
        [x], [x.mean(), (x.sum(axis=0), "sum"), (x.min(), "c_min"), (x * 1, "gather"), (x.prod(), "prod")]
    )
    X = np.random.RandomState(0).randn(7, 2).astype("float32")
    for rows, k in ((7, 1), (7, 2), (1, 1), (2, 1)):  # a rank without rows contributes neutral values
        got = f(X[:rows], num_slices=k)
        part = X[:rows]
        for result, expected in zip(got, (part.mean(), part.sum(axis=0), part.min(), part, part.prod())):
            assert isinstance(result, np.ndarray)
            np.testing.assert_allclose(result, expected, rtol=1e-5)
        assert REAL or [call for call in calls(ranks) if "sum" in call or "prod" in call] == [
            f"reduce to {ranks.root} sum"
        ] * 2 + [f"reduce to {ranks.root} prod"]


def test_exact_functions(ranks):
    """Exact functions return arrays on the host, also for sums in a wider dtype."""
    x = theano.tensor.fmatrix("x")
    step = synk.function([x], [theano.tensor.sqr(x).mean(), x.sum(axis=0), x.max(axis=0), x.sum()], exact=True)
    X = np.random.RandomState(0).randn(7, 2).astype("float32")
    for rows in (7, 2, 1):
        part = X[:rows].astype("float64")
        found = step(X[:rows])
        for result, expected in zip(found, ((part**2).mean(), part.sum(axis=0), part.max(axis=0), part.sum())):
            assert isinstance(result, np.ndarray) and result.dtype == "float32"
            np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.skipif(REAL, reason="a stand-in that waits for the other ranks' answers")
def test_who_only_sends_may_be_done_first(ranks):
    """NCCL's reduce returns early on ranks that only send; the waiting root must not take them for failed."""
    variable, values = make(ranks, (3,))
    session, clique = ranks.session, ranks.session.context.transport.nccl
    look, seen = clique._look, []

    def look_and_note():
        session.context.leading.receive()  # answers from other hosts
        seen.append(all(session.channel.has_answered(rank, session._number) for rank in session.others))
        look()

    clique._look, clique.progress.until = look_and_note, lambda: True in seen
    np.testing.assert_allclose(synk.reduce(variable, "sum", in_place=False), truth("sum", values), rtol=1e-6)
    assert seen[-1] and not clique.progress.aborts


@pytest.mark.skipif(REAL, reason="a stand-in that says what was called")
def test_the_communicator_ends_with_the_session(ranks):
    """The command `Stop` frees the communicator once, without waiting for ranks that may have ended."""
    clique = ranks.session.context.transport.nccl
    Stop().run(Ended(ranks.session.context.transport))
    assert clique.progress.aborts == 1
    Stop().run(Ended(ranks.session.context.transport))
    assert clique.progress.aborts == 1
    ranks.session.run(Join())


class Ended:
    """A stand-in for the part of a rank's context that the command `Stop` uses."""

    def __init__(self, transport):
        self.transport, self.stopped = transport, False


def test_who_fails_before_leaves_nobody_in_nccl(ranks):
    if ranks.n == 1:
        return
    variable, values = make(ranks, (3,))
    other = (ranks.root + 1) % ranks.n
    with reports(synk.WorkerError, "before"):
        ranks.session.run(Fail(ranks._number(variable), other, late=False))
    np.testing.assert_array_equal(ranks.values(variable), values)
    assert not any(broken for broken, _ in ranks.session.run(State())) if not REAL else True
    synk.all_reduce(variable, "sum")
    np.testing.assert_allclose(ranks.values(variable), [truth("sum", values)] * ranks.n, rtol=1e-6)


@pytest.mark.skipif(REAL, reason="a stand-in that never finishes")
def test_who_fails_in_the_middle_frees_the_others(ranks):
    if ranks.n == 1:
        return
    variable, values = make(ranks, (3,))
    other = (ranks.root + 1) % ranks.n
    with reports(synk.WorkerError, "middle"):
        ranks.session.run(Fail(ranks._number(variable), other, late=True))
    np.testing.assert_array_equal(ranks.values(variable), values)
    states = ranks.session.run(State())
    assert [state for rank, state in enumerate(states) if rank != other] == [(True, True)] * (ranks.n - 1)
    with reports(Exception, "NCCL"):
        synk.all_reduce(variable)
    synk.all_reduce(variable, nccl=False)  # the host's transport is always available


def test_results_are_new_memory(ranks):
    """Collectives write to new arrays only, so they change all values or none."""
    assert empty((0,), "float32", ranks.session.context.transport.context).shape == (0,)
    variable, values = make(ranks, (3,))
    before = variable.container.storage[0]
    synk.all_reduce(variable)
    np.testing.assert_array_equal(np.asarray(before), values[ranks.root])
