"""Errors report a rank's peak memory, and the variables that its call may have updated."""

import os
import re
import signal

import numpy as np
import pytest
from refusals import lacks, reports

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.testing import numpy_engine as engine

pytestmark = pytest.mark.slow

MASTER = os.getpid()


def test_memory_of_a_killed_rank(script):
    # In a separate program, because a rank's peak memory includes the memory of the process that forked it.
    program = script(
        """
        class Grow(Command):
            title = "grow"

            def __init__(self, megabytes):
                self.megabytes = megabytes

            def run(self, context):
                if context.rank == 1:
                    kept = np.ones(self.megabytes << 20, np.uint8)
                    os.kill(os.getpid(), signal.SIGKILL)
                    kept[0] = 0
                context.barrier.wait()

        for megabytes in (0, 200):
            PROGRAM.open(3, 0, pin=False)
            try:
                PROGRAM.session.run(Grow(megabytes))
            except synk.WorkerDied as error:
                say(error.memory, str(error).replace("\\n", " "))
        """
    )
    status, out, err = program.finish()
    assert status == 0, err
    memory, messages = zip(*(line.split(" ", 1) for line in out.splitlines()))
    for message in messages:
        assert re.search(r"out of memory, unless a user sent the signal; peak memory of the rank: \d+ MB", message)
        assert not lacks(message, "grow")
    assert 195 << 20 < int(memory[1]) - int(memory[0]) < 230 << 20


def fatal(what):
    """Return an elementwise function for graphs that fails on rank 1 alone, if its last row is 9."""

    def apply(x):
        if os.getpid() != MASTER and x[-1] == 9:
            if what == "raise":
                raise ValueError("nine")
            os.kill(os.getpid(), what)
        return x

    return apply


@pytest.fixture
def learner(fresh_keeper):
    """Return a builder of a function that updates ``w`` and a random state, and fails on rank 1."""

    def make(what, **options):
        w, draws = engine.shared(np.zeros(2), "w"), engine.random_stream(1, "draws")
        x = engine.variable("x", "float64", 1)
        y = engine.apply(fatal(what), x, dtype="float64", ndim=1)
        f = synk.function([x], engine.mean(y) + 0 * engine.sum(engine.uniform(draws, (2,))), updates=[(w, w + 1)])
        PROGRAM.open(2, 0, pin=False, **options)
        f([1.0, 2.0])
        return f, w

    return make


@pytest.mark.parametrize(
    "what, kind, options",
    [
        (signal.SIGKILL, synk.WorkerDied, {}),
        (signal.SIGSTOP, synk.WorkerTimeout, {"timeout": 0.3}),
        ("raise", synk.WorkerError, {}),
    ],
)
def test_variables_that_the_call_may_have_updated(what, kind, options, learner):
    f, w = learner(what, **options)
    with pytest.raises(kind) as caught:
        f([1.0, 9.0])
    assert caught.value.updated == ["w", "draws"]
    assert str(caught.value).endswith("\nThe failed call may have updated these variables on some ranks: w, draws")
    assert np.array_equal(w.get_value(), [2.0, 2.0])  # the new values, because the master's part was complete


def test_in_slices_only_random_states_advance(learner):
    f, w = learner(signal.SIGKILL)
    with pytest.raises(synk.WorkerDied) as caught:
        f([1.0, 2.0, 3.0, 9.0], num_slices=2)
    assert caught.value.updated == ["draws"]
    assert np.array_equal(w.get_value(), [1.0, 1.0])


def test_a_rank_that_died_before_the_call_has_updated_nothing(learner):
    f, w = learner("raise")
    os.kill(PROGRAM.session.launcher.pid(1), signal.SIGKILL)
    while not PROGRAM.session.block.ended[1]:
        pass
    with reports(synk.WorkerDied, "before", rank=1, exitcode=-signal.SIGKILL) as caught:
        f([1.0, 2.0])
    assert caught.value.updated == [] and "draws" not in str(caught.value)
    assert np.array_equal(w.get_value(), [1.0, 1.0])


def test_a_collective_updates_all_or_nothing(learner):
    f, w = learner("raise")
    os.kill(PROGRAM.session.launcher.pid(1), signal.SIGKILL)
    with pytest.raises(synk.WorkerDied) as caught:
        while True:
            synk.all_reduce(w, op="max")
    assert caught.value.updated == []
