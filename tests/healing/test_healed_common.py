"""Ranks die while variables are in common memory; the replacements map the same arrays, and no value is lost.

Expected values come from NumPy: all sums are exact in float64. tests/simulation lets ranks die at every point.

Modules: `synkhronos.transports.common`, `synkhronos.runtime.deposits`.
"""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from fragile_training import ROUNDS
from killer import Killer, kill
from worlds import over_hosts

import synkhronos as synk
from synkhronos.errors import WorkerError
from synkhronos.program.program import PROGRAM
from synkhronos.replication.replicator import replicator_of
from synkhronos.runtime.command import Command
from synkhronos.testing import numpy_engine as engine

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("keeper")]

N = 10_000  # above the minimum size of common values
START = np.arange(-5000.0, 5000.0)
ROWS = np.arange(40.0)

RANK, CALLS = [0], [0]  # this process's number, and its calls of `Disturbing` since `Name` was run

#: Ranks on each host. With two hosts, rank 2 has the second host's common memory, and its pool contains no other array.
WORLDS = [(3,), (2, 2)]
over_worlds = pytest.mark.parametrize("counts", [*WORLDS, pytest.param((1, 2, 1), marks=pytest.mark.thorough)])


def forked(counts, heal, **options):
    return synk.fork(*counts, heal=heal, **options) if len(counts) == 1 else over_hosts(counts, heal=heal, **options)


class Places(Command):
    """Return the locations of this rank's values in common memory; None if the rank has its own memory."""

    def __init__(self, numbers):
        self.numbers = numbers

    def run(self, context):
        common, entries = context.transport.common, context.entries(self.numbers)
        placed = [common.placed(entry.key, entry.cell[0]) for entry in entries]
        return [each and each.handle for each in placed]


def places(*variables):
    """Return the ranks' locations of variables, by rank."""
    numbers = [replicator_of(PROGRAM.session).find(engine.ENGINE, each) for each in variables]
    return PROGRAM.session.run(Places(numbers))


class Arrays(Command):
    """Return the locations of this rank's arrays in common memory, by role."""

    def run(self, context):
        roles = [[slot.current, slot.spare, slot.third] for slot in context.transport.common.slots.values()]
        return [[each and each.handle for each in slot] for slot in roles]


def assert_copies_are_known():
    """Check that the root knows all arrays of other hosts; a new first rank keeps them even if some ranks write there."""
    arrays, common = PROGRAM.session.run(Arrays()), PROGRAM.session.context.transport.common
    for first, *others in PROGRAM.session.hosts.ranks[1:]:
        there = {repr(each) for slot in arrays[first] for each in slot if each is not None}
        assert {repr(each) for each in common.copies(first)} == there and there
        assert [arrays[rank] for rank in others] == [arrays[first]] * len(others)


def assert_one(variable, value):
    """Check that all ranks of a host have this value in the same memory, in its first rank's pool."""
    assert_copies_are_known()
    found = [place for (place,) in places(variable)]
    for first, *others in PROGRAM.session.hosts.ranks:
        assert found[first].pool == (first or PROGRAM.session.pool.ident)
        assert [found[rank] for rank in others] == [found[first]] * len(others)
    for got in synk.gather(variable, nd_up=1):
        np.testing.assert_array_equal(got, value)


class Disturbing:
    """A function that returns its argument, and kills its rank or raises once for a file ``RANK-STEP`` in a folder."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __call__(self, x):
        CALLS[0] += 1
        for path in Path(self.folder).glob(f"*-{CALLS[0]}"):
            dies, who, _ = path.name.split("-")
            if int(who) == RANK[0]:
                path.unlink()
                if dies == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("of this rank")
        return x


class Name(Command):
    """Give each rank's process its number."""

    def run(self, context):
        RANK[0], CALLS[0] = context.rank, 0


def momentum(folder=None):
    """Return an exact function that adds twice the sum of the rows so far to w, and its variables."""
    w, v = engine.shared(START, "w"), engine.shared(np.zeros(N), "v")
    x = engine.variable("x", "float64", 1)
    total = engine.sum(x)
    if folder is not None:
        total = engine.apply(Disturbing(folder), total, dtype="float64", ndim=0)
    new = v + total
    return synk.function([x], total, updates=[(v, new), (w, w + 2 * new)], exact=True), w, v


class Truth:
    """The values of `momentum`'s variables in NumPy."""

    def __init__(self):
        self.w, self.v = START.copy(), np.zeros(N)

    def step(self, total):
        self.v = self.v + total
        self.w = self.w + 2 * self.v


@over_worlds
def test_a_replacement_maps_the_same_arrays(counts):
    forked(counts, 9, shard_updates=True)
    f, w, v = momentum()
    truth = Truth()
    for _ in range(2):
        for rank in PROGRAM.session.others:
            f(ROWS)
            truth.step(ROWS.sum())
            kill(rank)
            assert_one(w, truth.w)
            assert_one(v, truth.v)
            f.steps(ROWS, batches=[slice(i, i + 4) for i in range(5)])
            for i in range(5):
                truth.step(ROWS[i : i + 4].sum())
    assert_one(w, truth.w)
    assert len(PROGRAM.session.healing.deaths) == 2 * len(PROGRAM.session.others)


class Used(Command):
    """Return the bytes in use in this rank's pool."""

    def run(self, context):
        return context.pool.used


def test_deaths_of_a_first_rank_leave_no_memory_in_use(tmp_path):
    """Its replacements use at most three arrays for each of two variables."""
    forked((2, 2), 99)
    f, w, v = momentum(tmp_path)
    synk.distribute()
    PROGRAM.session.run(Name())
    truth, batches = Truth(), [slice(i, i + 4) for i in range(5)]
    for _ in range(6):
        (tmp_path / "kill-2-3").touch()
        f.steps(ROWS, batches=batches)
        for batch in batches:
            truth.step(ROWS[batch].sum())
        assert_one(w, truth.w)
        assert_one(v, truth.v)
        PROGRAM.session.run(Name())
        assert PROGRAM.session.run(Used())[2] < 7 * START.nbytes
    assert len(PROGRAM.session.healing.deaths) == 6


@pytest.mark.parametrize("what", ["kill", "raise"])
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("counts, rank", [((3,), 1), ((2, 2), 2), pytest.param((2, 2), 3, marks=pytest.mark.thorough)])
def test_a_disturbance_in_steps(tmp_path, counts, rank, what, step):
    """After a death, the command is repeated from its first step; after an error, complete steps keep their values."""
    forked(counts, 9)
    f, w, v = momentum(tmp_path)
    truth = Truth()
    synk.distribute()
    PROGRAM.session.run(Name())
    (tmp_path / f"{what}-{rank}-{step}").touch()
    batches, done = [slice(i, i + 6) for i in range(5)], 5
    if what == "kill":
        f.steps(ROWS, batches=batches)
    else:
        done = step - 1
        with pytest.raises(WorkerError):
            f.steps(ROWS, batches=batches)
    for i in range(done):
        truth.step(ROWS[batches[i]].sum())
    assert_one(w, truth.w)
    assert_one(v, truth.v)
    kill(2)
    for _ in range(2):
        f.steps(ROWS, batches=batches)
        f(ROWS)
        for of_step in [*batches, slice(None)]:
            truth.step(ROWS[of_step].sum())
    assert_one(w, truth.w)
    assert_one(v, truth.v)
    assert len(PROGRAM.session.healing.deaths) == 1 + (what == "kill")


@over_worlds
def test_ranks_that_differ_and_a_variable_that_is_kept_apart(counts):
    forked(counts, 99)
    n, others = sum(counts), PROGRAM.session.others
    f, w, v = momentum()
    synk.distribute()
    synk.set_value(w, START * 3, rank=1)
    for rank in others:
        kill(rank)
        assert [rank for rank, (place,) in enumerate(places(w)) if place is None] == [1]
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), [START, START * 3, *[START] * (n - 2)])
    synk.broadcast(w)
    kill(1)
    assert_one(w, START)
    for rank in others:  # no rank has the value in common memory
        synk.set_value(w, START * rank, rank=rank)
    for rank in others:
        kill(rank)
        np.testing.assert_array_equal(synk.gather(w, nd_up=1), [START * max(1, rank) for rank in range(n)])
    synk.broadcast(w)
    assert_one(w, START)
    f(ROWS)
    x = engine.variable("x", "float64", 1)
    in_place = synk.function([x], updates=[(v, v * 2.0)], inplace=True, exact=False)
    synk.distribute()
    kill(2)
    assert {place for (place,) in places(v)} == {None}
    truth = Truth()
    truth.step(ROWS.sum())
    for rank in others:
        in_place(ROWS)
        f(ROWS)
        truth.v *= 2
        truth.step(ROWS.sum())
        kill(rank)
        np.testing.assert_array_equal(synk.gather(v, nd_up=1), [truth.v] * n)
    assert_one(w, truth.w)
    synk.all_reduce(w, op="avg")
    kill(others[-1])
    f(ROWS)  # from the ranks' own memory to common memory
    truth.step(ROWS.sum())
    assert_one(w, truth.w)


@pytest.mark.parametrize("counts, rank", [((3,), 1), ((2, 2), 2)])
@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_death_in_steps_that_begin_with_the_ranks_own_values(tmp_path, counts, rank, step):
    """After `set_value` on each rank, the current arrays in common memory are no rank's values, nor deposits."""
    forked(counts, 9)
    f, w, v = momentum(tmp_path)
    truth, batches = Truth(), [slice(i, i + 8) for i in range(5)]
    f(ROWS)
    truth.step(ROWS.sum())
    for own in range(sum(counts)):
        synk.set_value([w, v], [truth.w, truth.v], rank=own)
    PROGRAM.session.run(Name())
    (tmp_path / f"kill-{rank}-{step}").touch()
    for _ in range(2):
        f.steps(ROWS, batches=batches)
        for batch in batches:
            truth.step(ROWS[batch].sum())
        assert_one(w, truth.w)
        assert_one(v, truth.v)
    assert len(PROGRAM.session.healing.deaths) == 1


@pytest.mark.parametrize("counts, rank", [((2,), 1), ((1, 2), 1), ((1, 2), 2)])
def test_what_the_program_changes_between_steps(counts, rank):
    forked(counts, 9)
    f, w, v = momentum()
    truth = Truth()
    done = []

    def on_step(i, outputs):
        if not done and i == 2:
            done.append(i)
            v.set_value(np.ones(N))
            kill(rank)

    f.steps(ROWS, batches=[slice(i, i + 4) for i in range(6)], on_step=on_step)
    for i in range(6):
        truth.step(ROWS[i : i + 4].sum())
        truth.v = np.ones(N) if i == 2 else truth.v
    assert_one(w, truth.w)
    assert_one(v, truth.v)
    w.get_value(borrow=True)[...] += 1
    kill(rank)
    f(ROWS)
    truth.w += 1
    truth.step(ROWS.sum())
    assert_one(w, truth.w)


@over_worlds
def test_kills_at_any_time(counts):
    """Calls, slices, steps, broadcasts and collectives; ranks die before and during each of them."""
    forked(counts, 1000)
    f, w, v = momentum()
    truth = Truth()
    with Killer(PROGRAM.session.others, likely=0.7) as killer:
        for i in range(3 * ROUNDS):
            killer()
            f(ROWS[i % 7 :])
            truth.step(ROWS[i % 7 :].sum())
            killer()
            batches = [slice(j, j + 5) for j in range(1 + i % 20)]
            f.steps(ROWS, batches=batches)
            for of_step in batches:
                truth.step(ROWS[of_step].sum())
            killer()
            kind = i % 4
            if kind == 0:
                synk.all_reduce([w, v], op="max")
            elif kind == 1:
                truth.v = np.full(N, float(i))
                synk.broadcast(v, truth.v)
            elif kind == 2:
                truth.w = truth.w % 7
                w.set_value(truth.w)
            else:
                assert synk.in_sync(w) and synk.in_sync(v)
            if kind != 2:  # otherwise, the master's value is sent with the next call
                np.testing.assert_array_equal(synk.get_value(w, rank=1 + i % 2), truth.w)
    f(ROWS)
    truth.step(ROWS.sum())
    assert_one(w, truth.w)
    assert_one(v, truth.v)
    assert killer.kills >= len(PROGRAM.session.healing.deaths) >= ROUNDS
