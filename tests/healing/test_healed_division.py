"""Ranks die before, during and after divided updates, and training ends with the serial program's bits.

Expected values come from the library's own function: all values are small multiples of powers of two, so that sums are
exact in any order.

Modules: `synkhronos.transports.common`, `synkhronos.runtime.deposits`.
"""

import os
import signal

import numpy as np
import pytest
from killer import kill
from library import NAME, L, T
from worlds import over_hosts

import synkhronos as synk
from synkhronos import engines
from synkhronos.engines.graph import dividing
from synkhronos.errors import WorkerError
from synkhronos.program.program import PROGRAM
from synkhronos.replication.replicator import replicator_of
from synkhronos.runtime.command import Command

pytestmark = [getattr(pytest.mark, NAME), pytest.mark.slow, pytest.mark.usefixtures("keeper")]

N_IN, N_OUT = 96, 96
X = np.random.RandomState(0).randint(-3, 4, (12, N_IN + N_OUT)).astype(float)
BATCHES = [slice(i, i + 5) for i in range(4)]

#: Ranks on each host, and a rank that dies. Rank 2 has the common memory of the second host.
DEATHS = [((3,), 1), ((2, 2), 1), ((2, 2), 2), ((2, 2), 3)]
over_deaths = pytest.mark.parametrize("counts, rank", DEATHS, ids=["one host", "first host", "leader", "second host"])


def forked(counts, **options):
    options.update(heal=99, threads=1)
    synk.fork(*counts, **options) if len(counts) == 1 else over_hosts(counts, **options)
    return PROGRAM.session


def momentum(function, **options):
    """Return a function whose large updates are divided, and its variables."""
    x, w = T.dmatrix("x"), L.shared(np.ones((N_IN, N_OUT)), "w")
    v = L.shared(np.zeros((N_IN, N_OUT)), "v")
    new = 0.5 * v - T.dot(x[:, :N_IN].T, x[:, N_IN:])
    f = function([x], x.sum(), updates=[(v, new), (w, w + 0.25 * new)], mode=L.Mode("py", "fast_compile"), **options)
    return f, [w, v]


class Training:
    """The same training in the serial program and on ranks."""

    def __init__(self):
        self.serial, self.expected = momentum(L.function)
        self.parallel, self.shareds = momentum(synk.function, exact=True)
        assert set(engines.get(NAME).why_whole(self.parallel.on_ranks)) == {""}
        synk.distribute()

    def call(self):
        np.testing.assert_array_equal(self.parallel(X), self.serial(X))

    def steps(self):
        found = self.parallel.steps(X, batches=BATCHES)
        np.testing.assert_array_equal(found, [self.serial(X[batch]) for batch in BATCHES])

    def check(self, *apart):
        """Check the values on all ranks; those that are not ``apart`` are in each host's memory once."""
        assert PROGRAM.session.context.transport.common.is_open
        for shared, expected in zip(self.shareds, self.expected):
            for got in synk.gather(shared, nd_up=1):
                np.testing.assert_array_equal(got, expected.get_value())
            number = replicator_of(PROGRAM.session).find(engines.get(NAME), shared)
            found = PROGRAM.session.run(Location(number))
            for ranks in PROGRAM.session.hosts.ranks:
                assert len({found[rank] for rank in ranks}) == 1
            assert (found[0] is None) == (shared in apart)


class Location(Command):
    """Return the location of this rank's value in common memory; None if it is in the rank's own memory."""

    def __init__(self, number):
        self.number = number

    def run(self, context):
        entry = context.registry.shareds[self.number]
        placed = context.transport.common.placed(entry.key, entry.cell[0])
        return None if placed is None else (placed.handle.pool, placed.handle.offset)


class Disturb(Command):
    """Kill a rank, or let it raise an exception, when one of its objects calls a method for the n-th time from now."""

    def __init__(self, rank, owner, method, n, raises=False):
        self.rank, self.owner, self.method, self.left, self.raises = rank, owner, method, n, raises

    def run(self, context):
        if context.rank != self.rank:
            return
        owner, number = getattr(context, self.owner), context.barrier.command
        right = getattr(owner, self.method)

        def disturbed(*args, **kwargs):
            if context.barrier.command > number:
                self.left -= 1
                if not self.left and self.raises:
                    raise ArithmeticError("of this rank")
                if not self.left:
                    os.kill(os.getpid(), signal.SIGKILL)
            return right(*args, **kwargs)

        setattr(owner, self.method, disturbed)


#: Moments of a rank in a call or a step: it computes its part, or writes the second one, or commits, or makes changes.
MOMENTS = [("transport", "part", 1), ("transport", "part", 4), ("transaction", "commit", 1)]
MOMENTS += [("transaction", "_make_or_undo", 1), ("transaction", "_make_or_undo", 3), ("transport", "common_spares", 2)]


@over_deaths
@pytest.mark.parametrize("moment", MOMENTS, ids="{0[1]}-{0[2]}".format)
def test_deaths_in_calls_and_steps(counts, rank, moment):
    session = forked(counts)
    training = Training()
    training.call()
    for train in (training.call, training.steps, training.steps):
        session.run(Disturb(rank, *moment))
        train()
        training.check()
        training.call()
    training.check()
    assert 2 <= len(session.healing.deaths) <= 3


@over_deaths
def test_deaths_between_calls_twice_in_a_row(counts, rank):
    session = forked(counts, shard_updates=True)
    training, others = Training(), session.others
    for train in (training.call, training.steps):
        for _ in range(2):
            kill(rank)
            train()
            kill(rank)
            training.check()
        for each in others:
            kill(each)
        train()
    training.check()
    assert len(session.healing.deaths) == 2 * (4 + len(others))


@pytest.mark.parametrize("dies", [False, True], ids=["error", "death"])
@pytest.mark.parametrize("counts", [(3,), (2, 2)], ids=["one host", "two hosts"])
def test_a_failed_update_of_a_variable_that_is_kept_apart(counts, dies, monkeypatch):
    """Its new values pass through common memory, whose arrays contain no rank's value. Ranks must agree on them."""
    monkeypatch.setattr(dividing, "DIVIDED_FROM_BYTES", 1 << 14)
    session = forked(counts)
    training = Training()
    w, of_serial = training.shareds[0], training.expected[0]
    mode = L.Mode("py", "fast_run")  # in place
    twice = synk.function([], updates=[(w, w * 2.0)], mode=mode, exact=False)
    twice_serially = L.function([], updates=[(of_serial, of_serial * 2.0)], mode=mode)
    for rank in session.others:
        for moment in (("transport", "common_spares", 1), ("transaction", "commit", 1)):
            twice(), twice_serially()
            training.call()
            session.run(Disturb(rank, *moment, raises=not dies))
            if not dies:
                with pytest.raises(WorkerError):
                    training.parallel(X)
            for _ in range(4):
                training.call()
                training.check(w)
            training.steps()
            training.check(w)
