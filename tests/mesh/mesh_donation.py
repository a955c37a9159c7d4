"""Memory of variables on a mesh that new values use; expected values come from NumPy. Run by test_mesh.py."""

import os
import sys

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from refusals import reports

import synkhronos as synk
from synkhronos.mesh.mesh import RankArray
from synkhronos.mesh.program import MeshProgram
from synkhronos.program.program import PROGRAM

N = jax.local_device_count()
ROWS = np.random.default_rng(0).normal(size=(4 * N, 3))


@pytest.fixture(autouse=True)
def session():
    synk.fork(devices="jax", master_rank=N - 1)
    yield
    synk.close()


def shared(value=0.0):
    return pytensor.shared(np.full(3, value), "w")


def cells(variable):
    """Return the value of a variable in every rank's registry."""
    contexts = PROGRAM.session.launcher.all_contexts(PROGRAM.session.context)
    number = next(n for n, entry in PROGRAM.session.context.registry.shareds.items() if entry.reference() is variable)
    return [context.registry.shareds[number].cell[0] for context in contexts]


def equal(variable, expected):
    np.testing.assert_allclose(synk.gather(variable), [expected] * N, rtol=1e-12)


def training(w, **options):
    x = pt.dmatrix("x")
    return synk.function([x], x.sum(), updates=[(w, w + x.sum(0))], exact=True, **options)


def addresses(variable):
    return [cell.block.unsafe_buffer_pointer() for cell in cells(variable)]


def test_new_values_use_the_memory_of_the_old_ones():
    w = shared()
    f = training(w)
    f(ROWS)
    before, old = addresses(w), cells(w)[0].whole
    f(ROWS)
    assert all(type(cell) is RankArray for cell in cells(w))
    assert addresses(w) == before and old.is_deleted()
    equal(w, 2 * ROWS.sum(0))


def test_variables_that_become_equal_or_change_places():
    a, b, c = shared(1.0), shared(2.0), shared(3.0)
    x = pt.dvector("x")
    mean = synk.ops.all_reduce(x.mean())
    same = synk.function([x], mean, updates=[(a, b), (b, b), (c, b)])
    swap = synk.function([x], mean, updates=[(a, c), (c, a)])
    add = synk.function([x], mean, updates=[(a, a + 1)])
    for _ in range(3):
        same(np.ones(N))
        add(np.ones(N))
        swap(np.ones(N))
        add(np.ones(N))
        equal(b, np.full(3, 2.0))
        equal(a, np.full(3, 3.0))
        equal(c, np.full(3, 3.0))
        a.set_value(np.full(3, 9.0))


def test_functions_share_variables_with_each_other_and_the_program():
    w = shared()
    first, second = training(w), training(w)
    own = pytensor.function([], w.sum(), updates=[(w, w + 1)])
    expected = np.zeros(3)
    for _ in range(3):
        first(ROWS)
        second(ROWS)
        expected = expected + 2 * ROWS.sum(0)
        lent = w.get_value(borrow=True)
        np.testing.assert_allclose(lent, expected)
        np.testing.assert_allclose(own(), expected.sum())
        expected = expected + 1
        first(ROWS)
        expected = expected + ROWS.sum(0)
        kept = w.get_value(borrow=True)
        kept += 1  # an array that the program may write to
        expected = expected + 1
        second(ROWS)
        expected = expected + ROWS.sum(0)
        equal(w, expected)


def test_collectives_between_calls_slices_and_uneven_rows():
    x, w = pt.dmatrix("x"), shared()
    f = synk.function([x], (x.sum(), "sum"), updates=[(w, w + x.mean(0))], exact=False)
    expected = np.zeros((N, 3))
    for rows, slices in ((4 * N, 1), (4 * N, 2), (4 * N, 1), (3 * N + 1, 1), (4 * N, 1)):
        np.testing.assert_allclose(f(ROWS[:rows], num_slices=slices), ROWS[:rows].sum())
        bounds = np.cumsum([0, *f.last_rows])
        expected = expected + [ROWS[begin:end].mean(0) for begin, end in zip(bounds, bounds[1:])]
        np.testing.assert_allclose(synk.gather(w), expected)
        synk.all_reduce(w, "avg")
        expected[:] = expected.mean(0)


def test_outputs_stay_valid_after_later_calls():
    x, w = pt.dmatrix("x"), shared()
    f = synk.function([x], [(w, None), (x, "gather")], updates=[(w, w + x.sum(0))], exact=True)
    found = [f(ROWS)[0] for _ in range(3)]
    np.testing.assert_allclose(found, [k * ROWS.sum(0) for k in range(3)], atol=1e-12)


def test_errors_change_nothing(monkeypatch):
    w, x, y = shared(1.0), pt.dmatrix("x"), pt.dvector("y")
    f = synk.function([x], bcast_inputs=[y], outputs=(x @ y).sum(), updates=[(w, w + x.sum(0))], exact=True)
    f(ROWS, np.ones(3))
    expected = 1 + ROWS.sum(0)
    with reports(TypeError, "incompatible shapes"):
        f(ROWS[:, :2], np.ones(3))
    monkeypatch.setattr(MeshProgram, "_run", lambda *_: 1 / 0)
    with reports(ZeroDivisionError, "zero"):
        f(ROWS, np.ones(3))
    monkeypatch.undo()
    equal(w, expected)


class Interrupted(Exception):
    pass


def test_interrupts_lose_no_value():
    """An exception is raised at every line of a call, as handlers of signals do: all ranks have the old or new value."""
    w, x = shared(), pt.dmatrix("x")
    f = synk.function([x], x.sum(), updates=[(w, w + 1 + 0 * x.sum(0))], exact=True)
    f(ROWS)
    f(ROWS)
    done, left, interrupts = 2, [0], 0

    def trace(frame, event, argument):
        if os.sep + "synkhronos" + os.sep + "mesh" not in frame.f_code.co_filename:
            return trace if event == "call" else None
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                raise Interrupted
        return trace

    for k in range(1, 1000):
        left[0] = k
        try:
            sys.settrace(trace)
            f(ROWS)
        except Interrupted:
            interrupts += 1
        finally:
            sys.settrace(None)
        values = synk.gather(w)
        assert values[0, 0] in (done, done + 1)
        done = values[0, 0]
        np.testing.assert_array_equal(values, np.full((N, 3), done))
        if left[0] > 0:
            break
    assert interrupts > 50 and done > 3
