"""If ranks with devices die, others replace them, open the devices and restore the values."""

import logging

import numpy as np
import pytest
import theano
import theano.tensor as T
from killer import Killer, flat, kill
from refusals import lacks, reports
from theano.sandbox.rng_mrg import MRG_RandomStreams
from worlds import DEVICE

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import Command

ROWS, INPUTS, HIDDEN = 48, 6, 10


@pytest.fixture(autouse=True)
def closed():
    yield
    synk.close()


def training(rounds, disturb=lambda: None):
    """Train on the device, changing values there in every way; return all results and values."""
    random = np.random.RandomState(7)
    x = T.fmatrix("x")
    w = theano.shared(random.randn(INPUTS, HIDDEN).astype("float32"), "w")
    c = theano.shared(np.float32(1), "c")
    rows = theano.shared(random.rand(8, INPUTS).astype("float32"), "rows")
    noise = MRG_RandomStreams(3).uniform((HIDDEN,), dtype="float32")
    kept = T.cast(noise > 0.2, "float32")
    hidden = T.tanh(T.dot(x, w))
    updates = [(w, w - np.float32(0.1) * T.grad(T.sqr(hidden * kept).mean(), w)), (c, c * np.float32(0.9) + x.mean())]
    noisy = synk.function([x], (hidden.mean(), "avg"), updates=updates, exact=False)
    assert type(w).__name__ == "GpuArraySharedVariable"
    joint = synk.function([x], T.sqr(hidden).mean(), updates=[(w, w - T.grad(T.sqr(hidden).mean(), w))], exact=True)
    of_rows = synk.function([], (T.dot(rows, w).sum(), "sum"), updates=[(rows, rows * c)], exact=False)
    data, found = synk.data(random.rand(ROWS, INPUTS).astype("float32")), []
    for i in range(rounds):
        batches = [random.permutation(ROWS)[:12] for _ in range(10)]
        for function in (noisy, joint):
            disturb()
            found.append(function(data, batch=batches[0]))
            disturb()
            found.append(function(data, batch=batches[1], num_slices=2))
            disturb()
            found.append(function.steps(data, batches=batches))
            if function is noisy:
                disturb()
                synk.all_reduce([w, c])
        disturb()
        found.append(of_rows())
        disturb()
        synk.scatter(rows, random.rand(7, INPUTS).astype("float32"))
        disturb()
        synk.set_value(1, c, np.float32(i))
        disturb()
        synk.reduce(c, op="sum", in_place=True)
    return found, [synk.gather(each, nd_up=1) for each in (w, c)], synk.gather(rows)


@pytest.mark.timeout(600)  # (a process takes seconds to open OpenCL's device and to build all kernels)
def test_a_training_in_which_ranks_are_killed_ends_like_the_undisturbed_one():
    synk.fork(devices=[DEVICE] * 3, seed=2)
    expected = flat(training(1))
    synk.close()
    synk.fork(devices=[DEVICE] * 3, seed=2, heal=1000)
    with Killer(PROGRAM.session.others, likely=0.6) as killer:
        found = flat(training(1, killer))
    assert found == expected
    assert killer.kills >= len(PROGRAM.session.healing.deaths) >= 4


def test_an_error_on_one_rank_changes_nothing_on_any():
    synk.fork(devices=[DEVICE] * 2, heal=1)
    w = theano.shared(np.arange(3, dtype="float32"), "w")
    x = T.fmatrix("x")
    refused = theano.tensor.opt.Assert("too large")(x.sum(axis=0), T.lt(x.max(), 5))
    f = synk.function([x], [], updates=[(w, w + refused)], exact=False)
    f(np.ones((4, 3), "float32"))
    rows = np.ones((4, 3), "float32")
    rows[-1] = 9
    with reports(synk.WorkerError, "too large"):
        f(rows)
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), [[2, 3, 4]] * 2)
    kill(1)
    f(np.ones((4, 3), "float32"))
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), [[4, 5, 6]] * 2)


class Clique(Command):
    """Create a clique on every rank if ``is_first``; return whether a rank has none or an unbroken one."""

    def __init__(self, is_first):
        self.is_first = is_first

    def run(self, context):
        from on_nccl import Join

        if self.is_first:
            Join().run(context)
        return context.transport.nccl is None or not context.transport.nccl.broken


def test_devices_meet_anew():
    synk.fork(devices=[DEVICE] * 3, heal=2)
    w = theano.shared(np.arange(3, dtype="float32"), "w")
    synk.broadcast(w)
    PROGRAM.session.run(Clique(True))
    before = PROGRAM.session.context.transport.nccl
    synk.all_reduce(w, op="sum")
    kill(2)
    synk.all_reduce(w, op="sum")
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), [[0, 9, 18]] * 3)
    assert before.broken and before is not PROGRAM.session.context.transport.nccl
    assert all(PROGRAM.session.run(Clique(False)))


def test_what_cannot_be_opened_again_ends_the_session(caplog):
    synk.fork(devices=[DEVICE] * 2, heal=1)
    w = theano.shared(np.arange(3, dtype="float32"), "w")
    synk.broadcast(w)
    PROGRAM.session.setup.names[1] = "opencl0:77"
    kill(1)
    with caplog.at_level(logging.WARNING, "synkhronos"), pytest.raises(synk.WorkerDied) as caught:
        synk.all_reduce(w)
    assert not lacks("".join(getattr(caught.value, "__notes__", [])) + str(caught.value), "opencl0:77")
    assert not synk.is_forked()
