"""Values that functions keep between calls, or that the program assigns to them, survive deaths of ranks."""

import logging

import numpy as np
import pytest
from killer import Killer, flat, kill
from library import NAME, L, T, needs_theano

import synkhronos as synk
from synkhronos import trace
from synkhronos.calls.command import CallFunction
from synkhronos.program.program import PROGRAM

pytestmark = [getattr(pytest.mark, NAME), needs_theano, pytest.mark.thorough]

ROWS = np.random.RandomState(0).randn(31, 3)


def function_with_states():
    """Return a function that keeps an average, a count and a random state, and adds to a variable."""
    from theano.tensor import raw_random

    x, s, count = T.dmatrix("x"), T.dvector("s"), T.dscalar("count")
    state, w = raw_random.random_state_type("state"), L.shared(np.zeros(3), "w")
    new_state, drawn = raw_random.normal(state, (3,))
    kept = [
        L.In(s, value=np.zeros(3), update=0.9 * s + x.mean(axis=0) + 0.01 * drawn),
        L.In(count, value=0.0, update=count + 1),
        L.In(state, value=np.random.RandomState(4), update=new_state),
    ]
    outputs, updates = [(s * 1, "max"), (drawn, "gather")], [(w, w + s / (count + 1))]
    return synk.function([x], outputs, bcast_inputs=kept, updates=updates, exact=False, mode="FAST_COMPILE")


def run(rounds, disturb=lambda: None):
    """Call the function, setting values in between; return all results and every rank's values at the end."""
    f, found = function_with_states(), []
    for i in range(rounds):
        disturb()
        if i % 4 == 1:
            f["count"] = float(i)
        elif i % 4 == 2:
            f["state"] = np.random.RandomState(i)
            f["s"] += 1
        elif i % 4 == 3:
            found.append(f.steps(ROWS, n_steps=3))
        found.append(f(ROWS, batch=slice(0, 5 + i), num_slices=1 + i % 2))
    variables = [shared for shared in f.get_shared() if shared.name != "state"]
    return found, [synk.get_value(rank, shared) for rank in range(synk.size()) for shared in variables]


def test_the_bits_are_those_of_the_undisturbed_program():
    synk.fork(3, use_gpu=False)
    expected = flat(run(16))
    synk.close()
    synk.fork(3, use_gpu=False, heal=1000)
    with Killer(PROGRAM.session.others) as killer:
        assert flat(run(16, killer)) == expected
    assert killer.kills


def changing_program(rounds, disturb=lambda: None):
    """Change variables of an exact function between calls, and in the middle of steps; return all its results."""
    x, rate, w, big = T.dvector("x"), L.shared(1.0, "rate"), L.shared(np.ones(3), "w"), L.shared(np.ones(2000), "big")
    new = w + rate * x.mean() + big.mean() * 1e-3
    f = synk.function([x], [x.sum() * rate, (w * 1.0).sum()], updates=[(w, new)], exact=True, mode="FAST_COMPILE")
    add, found = L.function([], updates=[(big, big + 1)], mode="FAST_COMPILE"), []
    rows = np.arange(9.0)

    def on_step(i, outputs):
        if i == 2:
            rate.set_value(0.5)

    for i in range(rounds):
        if i % 5 == 0:
            rate.set_value(1.0 / (i + 1))
        elif i % 5 == 1:
            add()
        elif i % 5 == 2:
            big.get_value(borrow=True)[i] += 1
        elif i % 5 == 3:
            w.set_value(w.get_value() * 0.5)
        disturb()
        found.append(f.steps(rows, n_steps=4, on_step=on_step) if i % 4 == 3 else f(rows))
    return found, [synk.get_value(rank, shared) for rank in range(synk.size()) for shared in (rate, w, big)]


def test_what_the_program_changes_counts_on_ranks_that_are_replaced():
    synk.fork(3, use_gpu=False)
    expected = flat(changing_program(20))
    synk.close()
    synk.fork(3, use_gpu=False, heal=1000)
    with Killer(PROGRAM.session.others) as killer:
        assert flat(changing_program(20, killer)) == expected
    assert killer.kills


class InCall(trace.TraceObserver):
    """Kills rank 1 when the next call has begun, before the master executes its part."""

    due = False

    def begin(self, point, owner, arguments):
        if self.due and point.method == "execute" and isinstance(arguments[0].command, CallFunction):
            self.due = False
            kill(1)


def test_a_death_in_the_call_after_a_value_was_put_there(caplog):
    synk.fork(2, use_gpu=False)
    expected = flat(run(12))
    synk.close()
    synk.fork(2, use_gpu=False, heal=100)
    killer = InCall()

    def disturb():
        killer.due = True

    trace.observe(killer)
    try:
        with caplog.at_level(logging.WARNING, "synkhronos"):
            assert flat(run(12, disturb)) == expected
    finally:
        trace.ignore(killer)
    assert len(PROGRAM.session.healing.deaths) == 12
