"""Errors that devices report after a computation has begun; expected values come from NumPy. Run by test_mesh.py."""

import os
import resource
import signal

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.link.jax.dispatch import jax_funcify
from refusals import reports

import synkhronos as synk
from synkhronos.calls import steps_together, together
from synkhronos.mesh.mesh import StepArray

N = jax.local_device_count()
ROWS = np.random.default_rng(0).normal(size=(40 * N, 3))
#: A single CPU device raises ValueError at once.
FAILURE = jax.errors.JaxRuntimeError if N > 1 else (jax.errors.JaxRuntimeError, ValueError)
BATCHES = np.arange(40 * N).reshape(20, 2 * N)


@pytest.fixture(autouse=True)
def session():
    synk.fork(devices="jax", master_rank=N // 2)
    yield
    synk.close()


class Limited(Op):
    """Return the argument; JAX's form calls Python, which raises an error if an element is greater than 1000."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0].copy()


def checked(x):
    if np.max(x) > 1000:
        raise OverflowError("an element is too large")
    return np.asarray(x)


@jax_funcify.register(Limited)
def _(op, **_):
    return lambda x: jax.pure_callback(checked, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def training(has_output=True, **options):
    """Return a function that adds limited rows to a variable; the variable; and a variable that it only reads."""
    x, factor = pt.dmatrix("x"), pytensor.shared(np.ones(3), "factor")
    w = pytensor.shared(np.zeros(3), "w")
    new = w + synk.ops.all_reduce(Limited()(factor * x).sum(0), "sum")
    outputs = (x.sum(), "sum") if has_output else None
    return synk.function([x], outputs, updates=[(w, new)], exact=False, name="f", **options), w, factor


def equal(variable, expected):
    np.testing.assert_allclose(synk.gather(variable), [expected] * N)


LIMITED = pytest.mark.parametrize("has_output", [True, False])


@LIMITED
def test_the_first_computation_changes_nothing(has_output):
    f, w, factor = training(has_output)
    with reports(FAILURE, "too large") as caught:
        f(ROWS + 2000)
    assert any("function f" in note and "changed no values" in note for note in caught.value.__notes__)
    equal(w, np.zeros(3))
    f(ROWS)
    equal(w, ROWS.sum(0))


@LIMITED
def test_a_later_computation_names_the_lost_values(has_output):
    f, w, factor = training(has_output)
    f(ROWS)
    with reports(FAILURE, "too large") as caught:
        f(ROWS + 2000)
    (note,) = [note for note in caught.value.__notes__ if "lost" in note]
    assert "function f" in note and " w " in note and "factor" not in note and "checkpoint" in note
    assert np.isnan(w.get_value()).all() and np.isnan(synk.gather(w)).all()
    equal(factor, np.ones(3))
    synk.broadcast(w, np.full(3, 2.0))
    f(ROWS)
    equal(w, 2 + ROWS.sum(0))


def test_outputs_that_are_arrays():
    """New values do not use the memory of old ones, so that no value is lost."""
    x, w = pt.dmatrix("x"), pytensor.shared(np.zeros(3), "w")
    outputs = [(Limited()(x), "gather")]
    f = synk.function([x], outputs, updates=[(w, w + synk.ops.all_reduce(x.sum(0), "sum"))], exact=False, name="f")
    for k in range(3):
        equal(w, k * ROWS.sum(0))
        with reports(FAILURE, "too large"):
            f(ROWS + 2000)
        equal(w, k * ROWS.sum(0))
        f(ROWS)


@pytest.mark.parametrize("is_on_device", [True, False])
@LIMITED
def test_steps(has_output, is_on_device, monkeypatch):
    monkeypatch.setattr(steps_together, "clock", lambda: 0.0)
    f, w, factor = training(has_output)
    data = synk.data(ROWS, device=is_on_device)
    f.steps(data, batches=BATCHES)
    equal(w, ROWS.sum(0))
    broken = ROWS.copy()
    broken[-2 * N :] = 2000  # on all devices: otherwise, the other devices would wait forever in the collective
    with reports(FAILURE, "too large") as caught:
        f.steps(synk.data(broken, device=is_on_device), batches=BATCHES)
    notes = "\n".join(caught.value.__notes__)
    assert "function f" in notes and "values of w are lost" in notes and "in step" in notes
    assert caught.value.steps == [0 if is_on_device else 19] * N  # whose outputs have arrived; one loop has all steps
    assert np.isnan(synk.gather(w)).all()
    synk.broadcast(w, np.zeros(3))
    f.steps(data, batches=BATCHES)
    equal(w, ROWS.sum(0))


def test_memory_that_runs_out():
    """The first call with too many rows raises an error; it changes no value, and slices need less memory."""
    x, w = pt.dvector("x"), pytensor.shared(0.0, "w")
    table = pt.sort(pt.outer(x, x).ravel())
    f = synk.function([x], (table[5], "max"), updates=[(w, w + synk.ops.all_reduce(x.sum(), "sum"))], exact=False)
    f(np.ones(2 * N))
    with open("/proc/self/statm") as file:
        limit = int(file.read().split()[0]) * resource.getpagesize() + (300 << 20)
    before = resource.getrlimit(resource.RLIMIT_AS)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
        with reports(MemoryError, "Out of memory", "num_slices") as caught:
            f(np.ones(10_000 * N))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert "changed no values" in caught.value.__notes__[0]
    equal(w, 2 * N)
    assert f(np.ones(2 * N)) == 1
    equal(w, 4 * N)


def times(monkeypatch, seconds):
    """Let each loop on the devices take as long as its steps; return a list of the loops' numbers of steps."""
    now, sizes, call, fetch = [0.0], [], together.call_together, steps_together.on_host

    def begin(*args):
        made = call(*args)
        sizes.append(len(made))
        return made

    left = []

    def arrive(*args):
        if not left:
            left.extend([None] * sizes[arrive.loop])
            now[0] += seconds * sizes[arrive.loop]
            arrive.loop += 1
        left.pop()
        return fetch(*args)

    arrive.loop = 0
    monkeypatch.setattr(steps_together, "call_together", begin)
    monkeypatch.setattr(steps_together, "on_host", arrive)
    monkeypatch.setattr(steps_together, "clock", lambda: now[0])
    return sizes


def additions():
    x, w = pt.dmatrix("x"), pytensor.shared(np.zeros(3), "w")
    f = synk.function([x], (x.sum(), "sum"), updates=[(w, w + synk.ops.all_reduce(x.sum(0), "sum"))], exact=False)
    return f, w, synk.data(ROWS, device=True)


@pytest.mark.parametrize("seconds, expected", [(0.0, [1, 1, 18]), (0.1, [1, 1, *[2] * 9]), (9.0, [1] * 20)])
def test_loops_are_short(seconds, expected, monkeypatch):
    """A loop, which nothing can interrupt, takes at most a quarter of a second, or one step."""
    f, w, data = additions()
    sizes = times(monkeypatch, seconds)
    f.steps(data, batches=BATCHES)
    assert sizes == expected
    equal(w, ROWS.sum(0))


@pytest.mark.parametrize("at", range(5))
def test_interrupts_in_loops(at, monkeypatch):
    """Ctrl-C arrives while the program waits for a loop: ``error.steps`` counts the steps whose updates were made."""
    f, w, data = additions()
    times(monkeypatch, 0.1)
    arrivals, on_host = [], StepArray.on_host

    def interrupted(self):
        found = on_host(self)
        arrivals.append(1)
        if len(arrivals) == 1 + 4 * at * N:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(StepArray, "on_host", interrupted)
    with reports(KeyboardInterrupt) as caught:
        f.steps(data, batches=BATCHES)
    (n_steps,) = set(caught.value.steps)
    assert 1 < n_steps <= 20
    equal(w, ROWS[BATCHES[:n_steps]].sum((0, 1)))
    monkeypatch.undo()
    f.steps(data, batches=BATCHES[n_steps - 1 :])
    equal(w, ROWS.sum(0) + ROWS[BATCHES[n_steps - 1]].sum(0))
