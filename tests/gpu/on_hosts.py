"""A user's program, on any kind of array, with devices on two hosts, which are processes of this machine.

Expected values come from NumPy, over all rows.
"""

import os
import signal

import numpy as np
import psutil
import pytest
import theano
from refusals import reports
from simulated_hosts import StartedWorld
from theano import tensor as T
from worlds import DEVICE

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command

HOSTS = ["here", "there"]
X = np.random.RandomState(0).randn(11, 4).astype("float32")


class Device(Command):
    """Return a rank's process, device name, cache of kernels, and the type of new shared variables."""

    def run(self, context):
        kind = type(theano.shared(np.zeros(2, "float32"))).__name__
        return os.getpid(), context.transport.device, os.environ.get("POCL_CACHE_DIR"), kind


@pytest.fixture(scope="module", autouse=True)
def hosts():
    """Start the program with two hosts: the process that starts ranks must exist before a device is opened."""
    PROGRAM.meet(StartedWorld(HOSTS, [__name__]))
    bridge = PROGRAM._bridge
    yield bridge
    PROGRAM._bridge = bridge
    PROGRAM.shut_down()


@pytest.fixture(autouse=True)
def met(hosts):
    """Restore the program's connection to the hosts, which every test removes."""
    PROGRAM._bridge = hosts


def forked(n, root=0):
    """Open a session with n ranks on each host, after closing the last one."""
    synk.close()
    assert synk.fork(devices=[DEVICE] * n, master_rank=root) == 2 * n
    return PROGRAM.current()


@pytest.fixture(scope="module", params=[(1, 0), (2, 1)], ids=str)
def ranks(request, hosts):
    """Open a session that tests share, since opening devices takes a while."""
    PROGRAM._bridge = hosts
    yield forked(*request.param)
    synk.close()


def values_of(variable):
    return np.array(synk.gather(variable, nccl=False))


def spread(shape, dtype="float32"):
    """Return a variable on the devices, and the list of the ranks' values."""
    n = synk.size()
    values = [np.asarray(np.random.RandomState(rank).randn(*shape) * 4).astype(dtype) for rank in range(n)]
    variable = theano.shared(values[0], "v")
    assert type(variable).__name__ == "GpuArraySharedVariable"
    synk.function([], updates=[(variable, variable + 0)])
    synk.distribute()
    for rank, value in enumerate(values):
        synk.set_value(rank, variable, value)
    return variable, values


def test_every_rank_has_its_own(ranks, hosts):
    n = ranks.size // 2
    assert [host.ranks for host in synk.hosts()] == [tuple(range(n)), tuple(range(n, 2 * n))]
    seen = ranks.run(Device())
    assert {(name, kind) for _, name, _, kind in seen} == {(DEVICE, "GpuArraySharedVariable")}
    assert seen[ranks.root][0] == os.getpid()
    _, keeper = hosts.hosts()[1].processes
    assert {psutil.Process(pid).ppid() for pid, _, _, _ in seen[n:]} == {keeper}
    if DEVICE.startswith("opencl"):
        assert len({cache for _, _, cache, _ in seen}) == 2 * n


def test_functions(ranks):
    x = T.fmatrix("x")
    w = theano.shared(np.arange(4, dtype="float32"), "w")
    f = synk.function(
        [x],
        [x.dot(w).mean(), (x.dot(w), "gather"), (x.sum(axis=0), "sum"), (x.max(), "max")],
        updates=[(w, w + x.mean(axis=0))],
    )
    before = np.arange(4, dtype="float32")
    for rows, k in ((11, 1), (11, 2), (1, 1)):
        w.set_value(before)
        synk.broadcast(w)
        part = X[:rows]
        got = f(part, num_slices=k)
        for result, truth in zip(got, (part.dot(before).mean(), part.dot(before), part.sum(axis=0), part.max())):
            np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-5)
        synk.all_reduce(w, weights=f)
        expected = before + part.mean(axis=0)
        np.testing.assert_allclose(values_of(w), [expected] * ranks.size, rtol=1e-4, atol=1e-5)
        assert synk.in_sync(w)


def test_training_with_gradients_that_are_averaged_inside(ranks):
    x, start = T.fmatrix("x"), np.random.RandomState(2).randn(4, 3).astype("float32")
    w = theano.shared(start, "w")
    loss = T.sqr(T.tanh(x.dot(w)) - 0.5).mean()
    step = synk.function([x], loss, updates=[(w, w - np.float32(0.5) * synk.ops.all_reduce(T.grad(loss, w)))])
    value = start.astype("float64")
    for rows in ([0, 1, 2, 3, 4, 5], [6, 2, 4, 9], [3], [5, 1, 0, 10, 7]):
        out = np.tanh(X[rows].dot(value))
        np.testing.assert_allclose(step(X, batch=rows), np.mean((out - 0.5) ** 2), rtol=1e-4)
        value = value - 0.5 * X[rows].T.dot(2 * (out - 0.5) * (1 - out**2) / out.size)
    np.testing.assert_allclose(w.get_value(), value, rtol=1e-4, atol=1e-6)
    assert synk.in_sync(w)


@pytest.mark.parametrize("shape", [(3, 2), (150, 200)], ids=["small", "large"])
def test_collectives(ranks, shape):
    """Collectives work for small arrays, and for those too large for messages."""
    n, root = ranks.size, ranks.root
    variable, values = spread(shape)
    close = dict(rtol=1e-5, atol=1e-5)
    assert np.array_equal(synk.gather(variable), values)
    for op, truth in (("sum", np.sum), ("max", np.max), ("avg", np.mean)):
        np.testing.assert_allclose(synk.reduce(variable, op, in_place=False), truth(values, axis=0), **close)
        for rank, value in enumerate(values):
            synk.set_value(rank, variable, value)
        synk.all_reduce(variable, op)
        found = values_of(variable)
        np.testing.assert_allclose(found, [truth(values, axis=0)] * n, **close)
        assert all(value.tobytes() == found[0].tobytes() for value in found)
        for rank, value in enumerate(values):
            synk.set_value(rank, variable, value)
    weights = np.arange(1.0, n + 1)
    synk.all_reduce(variable, weights=weights.tolist())
    np.testing.assert_allclose(values_of(variable), [np.average(values, axis=0, weights=weights)] * n, **close)
    synk.set_value(n - 1, variable, values[-1])
    np.testing.assert_array_equal(synk.get_value(n - 1, variable), values[-1])
    synk.broadcast(variable, values[0])
    np.testing.assert_array_equal(values_of(variable), [values[0]] * n)
    synk.set_value(root, variable, values[-1])
    synk.broadcast(variable)
    np.testing.assert_array_equal(values_of(variable), [values[-1]] * n)
    synk.all_gather(variable)
    np.testing.assert_array_equal(values_of(variable), [np.concatenate([values[-1]] * n)] * n)
    rows = np.arange(7.0 * shape[1], dtype="float32").reshape(7, shape[1])
    synk.scatter(variable, rows)
    np.testing.assert_array_equal(np.concatenate(synk.gather(variable)), rows)


def test_an_error_of_a_far_device(ranks):
    variable = theano.shared(np.zeros(3, "float32"), "v")
    n = theano.shared(np.float32(1), "n")
    f = synk.function([], (T.alloc(np.float32(1), 10**6, T.cast(n, "int64")) + variable[0]).sum())
    synk.distribute()
    last = ranks.size - 1
    synk.set_value(last, n, np.float32(10**7))
    with reports(synk.SynkhronosError, f"rank {last}", "on host there", "memory") as caught:
        f()
    del caught
    synk.set_value(last, n, np.float32(1))
    f()


def test_data_that_lies_on_the_devices(ranks):
    s = theano.shared(np.zeros((0, 4), "float32"), "s")
    f = synk.function([], [s.mean(), (s.sum(axis=1), "gather")], sliceable_shareds=[s])
    synk.scatter(s, X)
    parts = np.split(X, np.cumsum(synk.get_lengths(s))[:-1])
    assert sum(map(len, parts)) == len(X) and len(parts) == ranks.size
    for batch_s in (None, [0, 1, 0]):
        taken = np.concatenate([part if batch_s is None else part[batch_s] for part in parts])
        mean, sums = f(batch_s=batch_s)
        np.testing.assert_allclose(mean, taken.mean(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(sums, taken.sum(axis=1), rtol=1e-4, atol=1e-5)


# -- separate sessions, after the shared ones --------------------------------------------------------------------------


def test_what_cannot_be_is_said_before_a_rank_is_started():
    synk.close()
    n = synk.get_n_gpu()
    for keywords, error, facts in [
        (dict(devices=[f"cuda{n}"]), ValueError, ["devices[0]", n, "host"]),
        (dict(use_gpu=True, n_ranks=n + 1), (ValueError, synk.SynkhronosError), ["GPUs" if n else "no GPU", "host"]),
        (dict(devices=[DEVICE], n_ranks=2), ValueError, ["n_ranks", 1, "devices", 2]),
        (dict(devices=[DEVICE], master_rank=1), ValueError, ["master_rank", 0, 1]),
    ]:
        with reports(error, *facts):
            synk.fork(**keywords)
        assert not synk.is_forked()


def test_a_rank_elsewhere_that_is_killed():
    session = forked(1)
    w = theano.shared(np.zeros(3, "float32"), "w")
    step = synk.function([], updates=[(w, w + 1)])
    step()
    far = session.run(Device())[1][0]
    os.kill(far, signal.SIGKILL)
    with reports(synk.WorkerDied, "on host there", "SIGKILL", rank=1, pid=far):
        synk.all_reduce(w)
        synk.all_reduce(w)
    np.testing.assert_array_equal(w.get_value(), 1)
    forked(1)  # earlier functions are distributed again
    step()
    np.testing.assert_array_equal(values_of(w), [np.full(3, 2)] * 2)
    synk.close()


@pytest.mark.parametrize("rank", [2, 3])
def test_a_rank_that_is_replaced(rank):
    """Rank 2 leads the other host."""
    synk.close()
    assert synk.fork(devices=[DEVICE] * 2, heal=1) == 4
    w = theano.shared(np.zeros(3, "float32"), "w")
    step = synk.function([], updates=[(w, w + 1)])
    step()
    device = PROGRAM.session.run(Device())[rank]
    os.kill(device[0], signal.SIGKILL)
    step()
    synk.all_reduce(w, "sum")
    np.testing.assert_array_equal(values_of(w), [np.full(3, 8)] * 4)
    found = PROGRAM.session.run(Device())[rank]
    assert found[0] != device[0] and found[1:] == device[1:]
    synk.close()
