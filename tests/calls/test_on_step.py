"""Changes that `on_step` makes to exact functions' variables; for dying ranks, see healing/test_healed_on_step.py."""

import numpy as np
import pytest
from library import NAME, L, T

import synkhronos as synk
from synkhronos import trace
from synkhronos.calls.steps import RunSteps
from synkhronos.program.program import PROGRAM

pytestmark = getattr(pytest.mark, NAME)


@pytest.fixture(params=[("threads", 3, 1), ("fork", 2, 0)], ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param, engine=NAME)


class Model:
    """A function that adds the mean of its rows, times a rate, to a variable, on the ranks or in the serial program."""

    def __init__(self, function, **kwargs):
        x = T.dvector("x")
        self.w, self.rate = L.shared(np.ones(3), "w"), L.shared(1.0, "rate")
        self.f = function([x], self.w.sum(), updates=[(self.w, self.w + self.rate * x.mean())], mode=L.quick, **kwargs)


def write(model, i):
    model.w.get_value(borrow=True)[i % 3] += 1


def test_what_it_writes_into_an_updated_array_counts(world):
    ours, serial = Model(synk.function, exact=True), Model(L.function)
    rows, expected = np.arange(6.0), []
    for i in range(6):
        expected.append(float(serial.f(rows)))
        if i in (1, 2, 4):
            write(serial, i)
    found = ours.f.steps(rows, n_steps=6, on_step=lambda i, output: i in (1, 2, 4) and write(ours, i) or None)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    write(ours, 0), write(serial, 0)
    np.testing.assert_allclose(ours.f(rows), serial.f(rows), rtol=1e-12)
    for value in world.values(ours.w):
        np.testing.assert_allclose(value, serial.w.get_value(), rtol=1e-12)


@pytest.mark.parametrize("change", [write, lambda model, i: model.w.set_value(np.full(3, 0.5))], ids=["write", "set"])
def test_what_it_changes_before_it_raises_counts(world, change):
    ours, seen = Model(synk.function, exact=True), []

    def on_step(i, output):
        if i == 2:
            change(ours, i)
            seen.append(ours.w.get_value())
            raise OverflowError("of on_step")

    with pytest.raises(OverflowError):
        ours.f.steps(np.ones(4), n_steps=6, on_step=on_step)
    assert ours.w.get_value().tolist() == seen[0].tolist()
    assert ours.f(np.ones(4)) == seen[0].sum()
    assert [value.tolist() for value in world.values(ours.w)] == [(seen[0] + 1).tolist()] * world.n


class Commands(trace.TraceObserver):
    """Observer that counts the commands that run steps."""

    def __init__(self):
        self.n = 0

    def begin(self, point, owner, arguments):
        if point.method == "execute" and owner is PROGRAM.session.context:
            self.n += isinstance(arguments[0].command, RunSteps)


def test_arrays_that_it_only_reads_end_no_command(world):
    ours, commands = Model(synk.function, exact=True), Commands()
    trace.observe(commands)
    try:
        ours.f.steps(np.ones(4), n_steps=9, on_step=lambda i, output: ours.w.get_value(borrow=True).sum() and None)
    finally:
        trace.ignore(commands)
    assert commands.n == 1
