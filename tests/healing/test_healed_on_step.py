"""Changes that `on_step` makes on the master have the same effect if ranks die, at any moment."""

import contextlib
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from gates import until
from library import NAME, L, T

import synkhronos as synk
from synkhronos import trace
from synkhronos.calls import steps
from synkhronos.program.program import PROGRAM
from synkhronos.sync.control_block import DEATHS
from synkhronos.testing import numpy_engine as engine

sys.path.insert(0, str(Path(__file__).parent))
from killer import flat, kill  # noqa: E402

LARGE = np.random.RandomState(0).randn(40, 100)  # the bits of its mean depend on the order of its axes
ROWS, STEPS, CHANGED = np.arange(9.0) / 8, 28, (2, 3, 20)


@pytest.fixture(autouse=True)
def closed(monkeypatch):
    monkeypatch.setattr(steps, "SECONDS", 1e9)  # the number of steps in a command must not depend on a clock
    synk.close()
    yield
    synk.close()


class Program:
    """An exact function, whose updates depend on all earlier values, and serial functions that change its variables.

    ``divides`` says whether it has rows, and so collectives; ``inplace`` whether it writes updates into the same arrays.
    """

    def __init__(self, words, divides=True, exact=True, inplace=False):
        self.rate, self.w = words.shared(np.array(0.0), "rate"), words.shared(np.zeros(3), "w")
        self.big = words.shared(np.zeros((40, 100)), "big")
        x = words.vector("x")
        new = self.w * 0.875 + self.rate * words.mean(x) + words.mean(self.big)
        outputs = [words.sum(x) * self.rate, words.sum(self.w)]
        inputs = dict(inputs=[x]) if divides else dict(inputs=[], bcast_inputs=[x])
        self.f = synk.function(
            **inputs, outputs=outputs, updates=[(self.w, new)], exact=exact, **words.inplace(inplace)
        )
        self.some = dict(batches=[slice(i % 4, i % 4 + 5) for i in range(STEPS)]) if divides else dict(n_steps=STEPS)
        self.add = words.function(updates=[(self.big, self.big + 0.125), (self.rate, self.rate * 0.75)], inplace=True)
        self.double = words.function(updates=[(self.big, self.big * 2.0)], inplace=False)
        self.halve = words.function(updates=[(self.w, self.w * 0.5)], inplace=True)

    def begin(self):
        self.ours = []
        self.rate.set_value(np.array(0.5)), self.w.set_value(np.linspace(0.1, 1, 3))
        self.big.set_value(np.array(LARGE, order="F"), borrow=True)  # with its memory layout

    def values(self):
        variables = self.rate, self.w, self.big
        return [synk.get_value(rank, each) for rank in range(synk.size()) for each in variables]


class NumpyWords:
    shared, mean, sum = engine.shared, engine.mean, engine.sum
    vector = staticmethod(lambda name: engine.variable(name, "float64", 1))
    inplace = staticmethod(lambda inplace: {"inplace": inplace})
    function = staticmethod(lambda updates, inplace: engine.ENGINE.compile([], [], updates, None, inplace=inplace))


class LibraryWords:
    shared, vector, mean, sum = L.shared, T.dvector, T.mean, T.sum
    inplace = staticmethod(lambda inplace: {"mode": L.full if inplace else L.quick})
    function = staticmethod(
        lambda updates, inplace: L.function([], updates=updates, mode=L.full if inplace else L.quick)
    )


def set_not_updated(program, i):
    program.rate.set_value(program.rate.get_value() * 0.75 + i / 16)


def set_updated(program, i):
    program.w.set_value(program.w.get_value() * 0.5 + i)


def write_not_updated(program, i):
    program.ours.append(program.big.get_value(borrow=True))
    program.ours[-1][i] += 1.5


def write_updated(program, i):
    program.ours.append(program.w.get_value(borrow=True))
    program.ours[-1][i % 3] += 1.5


def write_into_what_was_set(program, i):
    if not program.ours:
        program.ours += [np.linspace(2, 3, 3), np.ones((40, 100))]
        program.w.set_value(program.ours[0], borrow=True)
        program.big.set_value(program.ours[1], borrow=True)
    program.ours[0] += i
    program.ours[1][3] *= 0.5


def set_over_what_was_borrowed(program, i):
    ours = program.w.get_value(borrow=True), program.big.get_value(borrow=True)
    program.ours += ours
    program.w.set_value(ours[0] * 0.5), program.big.set_value(ours[1] * 0.5)
    ours[0][...], ours[1][...] = i, i  # these arrays now belong to the program alone


def call_serial(program, i):
    program.add()


def call_serial_anew(program, i):
    program.double()


def call_serial_updating(program, i):
    program.halve()


def change_everything(program, i):
    for each in (write_not_updated, call_serial, set_not_updated, set_updated, call_serial_updating, write_updated):
        each(program, i)


CHANGES = [
    *(set_not_updated, set_updated, write_not_updated, write_updated, write_into_what_was_set),
    *(set_over_what_was_borrowed, call_serial, call_serial_anew, call_serial_updating, change_everything),
]


def run(program, change, disturb=lambda i: None):
    """Make steps, with changes by `on_step` after some of them; return all results, and all values at the end."""
    program.begin()

    def on_step(i, outputs):
        if i in CHANGED:
            change(program, i)
        disturb(i)

    found = [program.f.steps(ROWS, on_step=on_step, **program.some)]
    found += [program.values()]
    for ours in program.ours:
        ours += 0.25  # borrowed arrays are still observed
    return flat([*found, program.ours, program.f(ROWS), program.values()])


def kill_and_wait(rank):
    kill(rank)
    until(lambda: PROGRAM.session.block.ended[rank] and PROGRAM.session.block.words[DEATHS])  # as seen by the master


def check(program, n, changes):
    """Kill a rank after each change; compare the results with those of a session without kills."""
    synk.fork(n, heal=1)
    expected = [run(program, change) for change in changes]
    synk.close()
    synk.fork(n, heal=1000)
    for i, change in enumerate(changes):
        kills = kill_and_wait if i % 2 else kill  # seen by the master before the step ends, or perhaps later
        found = run(program, change, lambda i, kills=kills: i in CHANGED and kills(1 + i % (n - 1)))
        assert found == expected[i], change
    assert len(PROGRAM.session.healing.deaths) == len(CHANGED) * len(changes)


@pytest.mark.parametrize("n, divides", [(2, True), (3, False)])
def test_a_death_after_a_change(n, divides):
    check(Program(NumpyWords, divides), n, CHANGES)


@getattr(pytest.mark, NAME)
@pytest.mark.parametrize("divides", [True, False])
def test_a_death_after_a_change_in_compiled_functions(divides):
    check(Program(LibraryWords, divides), 2, CHANGES)


class AtPoints(trace.TraceObserver):
    """Kills ranks at trace points of the master: ``due`` has pairs of a number of points to skip and a rank."""

    def __init__(self):
        self.due, self._pid = [], os.getpid()

    def wants(self, point):
        return point.name in ("barrier", "commit", "channel", "command", "collective", "engine")

    def begin(self, point, owner, arguments):
        if self.due and os.getpid() == self._pid:
            self.due[0][0] -= 1
            if self.due[0][0] < 0:
                with contextlib.suppress(ProcessLookupError):  # another process is replacing it
                    kill(self.due.pop(0)[1])


@pytest.fixture
def at_points():
    observer = AtPoints()
    trace.observe(observer)
    yield observer
    trace.ignore(observer)


#: Numbers of trace points from a change to the kill of rank 1, and from that to the kill of rank 2.
MOMENTS = [*((first, None) for first in range(9)), *((0, second) for second in range(0, 45, 6)), (5, 12)]


@pytest.mark.thorough
def test_deaths_at_all_moments_after_a_change(at_points):
    """One or two ranks die in a command, the second one during its repetition or the first one's replacement."""
    program = Program(NumpyWords)
    synk.fork(3, heal=1)
    expected = run(program, change_everything)
    synk.close()
    synk.fork(3, heal=1000)
    for first, second in MOMENTS:

        def disturb(i, due=((first, 1), (second, 2))):
            if i in CHANGED[1:]:
                at_points.due = [[count, rank] for count, rank in due if count is not None]

        assert run(program, change_everything, disturb) == expected, (first, second)
    assert len(PROGRAM.session.healing.deaths) >= 2 * len(MOMENTS)


# -- functions that are not exact --------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [set_not_updated, write_updated, call_serial])
def test_what_counts_on_the_master_alone_cannot_be_repeated(change):
    """Changes count on the master from the next step on, so commands that contain them cannot be repeated."""
    program = Program(NumpyWords, exact=False)
    synk.fork(2, heal=9)

    def on_step(i, outputs):
        if i == 3:
            change(program, i)
        if i == 5:
            kill_and_wait(1)

    program.begin(), synk.broadcast([program.rate, program.w, program.big])
    with pytest.raises(synk.WorkerDied) as caught:
        program.f.steps(ROWS, on_step=on_step, **program.some)
    (note,) = caught.value.__notes__
    assert re.search(
        r"not replaced \(heal=9\): on_step has changed (rate|w|big, rate|rate, big), so the steps cannot", note
    )
    assert caught.value.steps[0] == 6 and not synk.is_forked()


def test_a_random_state_that_was_set_on_the_master_alone():
    """After a random state is set, its command cannot be repeated, but later ones can. Reading it is harmless."""
    w, stream, x = (
        engine.shared(np.zeros(3), "w"),
        engine.random_stream(5, "stream"),
        engine.variable("x", "float64", 1),
    )
    f = synk.function([x], engine.mean(x), updates=[(w, w + engine.uniform(stream, (3,)))], exact=False)
    synk.fork(2, heal=9)

    def on_step(i, outputs):
        stream.get_value()
        if i in (3, 40):
            stream.set_value(engine.random_stream(i).get_value())
        if i in (20, 45):
            kill_and_wait(1)

    with pytest.raises(synk.WorkerDied) as caught:
        f.steps(ROWS, n_steps=60, on_step=on_step)
    assert "on_step has changed stream, so the steps cannot be repeated" in caught.value.__notes__[0]
    assert caught.value.steps[0] == 46


def test_what_on_step_only_reads_is_no_change():
    """Functions may update the array that `on_step` reads in place; changes of earlier commands are kept."""
    program = Program(NumpyWords, exact=False, inplace=True)

    def found(disturb):
        program.begin(), synk.broadcast([program.rate, program.w, program.big])
        seen = []

        def on_step(i, outputs):
            seen.append(program.w.get_value(borrow=True).sum())
            if i == 15:  # the last step of a command
                program.rate.set_value(2.0)
            disturb(i)

        return flat([program.f.steps(ROWS, on_step=on_step, **program.some), seen, program.values()])

    synk.fork(2, heal=9)
    found(lambda i: None)  # later broadcasts store the large array in another order of its axes
    expected = found(lambda i: None)
    assert found(lambda i: i in (8, 20) and kill_and_wait(1)) == expected
    assert len(PROGRAM.session.healing.deaths) == 2
