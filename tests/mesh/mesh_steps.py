"""Steps on a mesh, in one loop on the devices or one by one; expected values come from NumPy. Run by test_mesh.py."""

import copy

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.random.utils import RandomStream
from refusals import reports

import synkhronos as synk
from synkhronos.calls import steps_together
from synkhronos.engines.pytensor.jax_graph import JaxGraph
from synkhronos.mesh.mesh import RankArray, StepArray
from synkhronos.mesh.program import MeshProgram

N = jax.local_device_count()
ROWS = np.random.default_rng(0).normal(size=(12 * N, 3))
SUMS = ROWS @ [1.0, -2.0, 3.0]


@pytest.fixture(autouse=True)
def session():
    synk.fork(devices="jax", master_rank=N // 2)
    yield
    synk.close()


@pytest.fixture
def loops(monkeypatch):
    """Return a list to which each loop on the devices adds its number of steps; the clock stands still."""
    found, repeated = [], MeshProgram.repeated
    monkeypatch.setattr(steps_together, "clock", lambda: 0.0)

    def record(self, parts, steps, n_steps, *others):
        results = repeated(self, parts, steps, n_steps, *others)
        found.append(n_steps)
        return results

    monkeypatch.setattr(MeshProgram, "repeated", record)
    return found


def training(**options):
    x, y, w = pt.dmatrix("x"), pt.dvector("y"), pytensor.shared(np.zeros(3), "w")
    loss = pt.sqr(x @ w - y).mean()
    outputs = [loss, (y, "gather"), (w, None)]
    return w, synk.function([x, y], outputs, updates=[(w, w - 0.1 * pt.grad(loss, w))], exact=True, **options)


def by_numpy(batches):
    """Return the losses, the rows, the weights before each step, and the last weights."""
    w, losses, before = np.zeros(3), [], []
    for batch in batches:
        x, y = ROWS[batch], SUMS[batch]
        losses.append(((x @ w - y) ** 2).mean())
        before.append(w)
        w = w - 0.2 * x.T @ (x @ w - y) / len(x)
    return losses, [SUMS[batch] for batch in batches], before, w


def near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def on_devices():
    return synk.data(ROWS, device=True), synk.data(SUMS, device=True)


def some(n_steps, n_rows=2 * N, seed=0):
    return [np.random.default_rng(seed + k).permutation(len(ROWS))[:n_rows] for k in range(n_steps)]


RANGES = [slice(k, k + 2 * N) for k in range(0, 8 * N, 2 * N)]
BATCHES = {
    "one loop": (some(5), [1, 1, 3]),
    "several loops": (some(130), [1, 1, 64, 64]),
    "ranges": (RANGES, [1, 1, 2]),
    "ranges with a stride": ([slice(k, 4 * N + k, 2) for k in range(3)], [1, 1, 1]),
    "two lengths": (some(3) + some(4, 4 * N) + some(2), [1, 1, 1, 1, 1, 2, 2]),
    "uneven rows": (some(3, 2 * N + 1), [1, 1, 1] if N == 1 else []),
    "a step": (some(1), []),
}


@pytest.mark.parametrize("name", BATCHES)
def test_steps_with_data_on_devices(name, loops):
    batches, expected = BATCHES[name]
    w, train = training()
    losses, rows, before, after = by_numpy(batches)
    found = train.steps(*on_devices(), batches=batches)
    near(found[0], losses)
    for one, wanted in zip(found[1], rows):
        near(one, wanted)
    near(found[2], before)
    near(synk.gather(w), [after] * N)
    assert loops == expected


def test_ranges_and_lists_in_one_command(loops):
    batches = [*RANGES, *some(3), slice(0, 2 * N)]
    w, train = training()
    losses, _, _, after = by_numpy(batches)
    near(train.steps(*on_devices(), batches=batches)[0], losses)
    near(synk.gather(w), [after] * N)


def test_totals_and_later_commands(loops):
    batches = some(6)
    w, train = training()
    losses, rows, before, after = by_numpy(batches + batches)
    x, y = on_devices()
    found = train.steps(x, y, batches=batches, total=True, output_subset=[0, 1])
    near(found[0], np.mean(losses[:6]))
    near(found[1], np.concatenate(rows[:6]))
    near(w.get_value(), before[6])
    near(train.steps(x, y, batches=batches, output_subset=[0]), [losses[6:]])
    near(w.get_value(), after)
    assert loops == [1, 1, 4, 6]


def test_on_step_sees_each_step(loops):
    batches, seen = some(6), []
    variable, train = training()
    _, _, before, _ = by_numpy(batches)
    own = [np.split(batch, N)[N // 2] for batch in batches]  # `on_step` receives the outputs of the program's rank

    def on_step(i, outputs):
        seen.append(float(outputs[0]))
        near(variable.get_value(), before[i + 1])
        return i < 3

    assert len(train.steps(*on_devices(), batches=batches, on_step=on_step)[0]) == 4
    near(seen, [((ROWS[part] @ w - SUMS[part]) ** 2).mean() for part, w in zip(own[:4], before)])
    assert loops == []


@pytest.mark.parametrize("is_on_device", [True, False])
def test_updates_of_each_rank(is_on_device, loops):
    """Variables that ranks update on their own, also to the value of each other, or without reading them."""
    x = pt.dmatrix("x")
    a, b, c = (pytensor.shared(np.full(3, value), "abc"[int(value)]) for value in (0.0, 1.0, 2.0))
    f = synk.function([x], (x.sum(), "sum"), updates=[(a, b), (b, a + x.sum(0)), (c, x.max(0))], exact=False)
    batches, values = some(5), [[np.zeros(3), np.ones(3), None] for _ in range(N)]
    found = f.steps(synk.data(ROWS, device=is_on_device), batches=batches)
    near(found, [ROWS[batch].sum() for batch in batches])
    for batch in batches:
        for of_rank, part in zip(values, np.split(ROWS[batch], N)):
            of_rank[:] = of_rank[1], of_rank[0] + part.sum(0), part.max(0)
    for variable, expected in zip((a, b, c), zip(*values)):
        near(synk.gather(variable), expected)


def test_variables_that_grow(loops):
    x, w = pt.dmatrix("x"), pytensor.shared(np.zeros(1), "w")
    f = synk.function([x], (x.sum(), "sum"), updates=[(w, pt.concatenate([w, w + 1]))], exact=True)
    f.steps(synk.data(ROWS, device=True), batches=some(3))
    near(np.sort(synk.get_value(0, w)), [0, 1, 1, 1, 2, 2, 2, 3])
    assert loops == []


def test_random_numbers(loops):
    """Each step draws one word from each rank's generator, as single calls do."""
    x, stream = pt.dmatrix("x"), RandomStream(3)
    f = synk.function([x], (stream.normal(size=x.shape), "gather"))
    data = synk.data(np.zeros((4 * N, 3)), device=True)
    f(data)
    (state,) = f.get_shared()
    expected = [copy.deepcopy(synk.get_value(rank, state)) for rank in range(N)]
    found = np.array(f.steps(data, batches=[slice(0, 4 * N)] * 7))
    assert loops == [1, 1, 5] and len(np.unique(found)) == found.size
    for rank, generator in enumerate(expected):
        generator.bit_generator.random_raw(7)
        assert synk.get_value(rank, state).bit_generator.state == generator.bit_generator.state


def test_collectives_and_functions_between_commands(loops):
    batches = some(4)
    w, train = training()
    other = pytensor.function([], updates=[(w, w * 1)])
    x, y = on_devices()
    for k in range(3):
        train.steps(x, y, batches=batches, output_subset=[0])
        synk.all_reduce(w, "avg")
        other()
        near(synk.gather(w), [by_numpy(batches * (k + 1))[3]] * N)
    assert loops == [1, 1, 2, 4, 4]


def test_few_compilations(monkeypatch):
    traced, evaluate = [], JaxGraph.evaluate
    w, train = training()
    x, y = on_devices()
    monkeypatch.setattr(JaxGraph, "evaluate", lambda *args: traced.append(1) or evaluate(*args))
    for n_steps in (5, 6, 7, 8, 5):
        train.steps(x, y, batches=some(n_steps), output_subset=[0])
    assert len(traced) <= 3  # the shapes of outputs, the loop's results, and the loop


def test_the_devices_do_not_wait(monkeypatch):
    """The outputs of a step are fetched after the next step has begun."""
    events, run, on_host = [], MeshProgram._run, RankArray.on_host
    w, train = training()
    train(ROWS[: 2 * N], SUMS[: 2 * N])
    monkeypatch.setattr(MeshProgram, "_run", lambda *args: events.append("begin") or run(*args))
    monkeypatch.setattr(RankArray, "on_host", lambda self: events.append("fetch") or on_host(self))
    monkeypatch.setattr(StepArray, "on_host", RankArray.on_host, raising=False)
    train.steps(ROWS, SUMS, batches=some(3), output_subset=[0])
    fetches = ["fetch"] * N
    assert events[-(3 + 3 * N) :] == ["begin", "begin", *fetches, "begin", *fetches, *fetches]


@pytest.mark.parametrize("fails_at", [0, 2, 4])
def test_errors_keep_the_completed_steps(fails_at, monkeypatch):
    batches, run, calls = some(5), MeshProgram._on_mesh, []
    w, train = training(name="f")
    train(ROWS[: 2 * N], SUMS[: 2 * N])
    w.set_value(np.zeros(3))

    def fail(*args):
        calls.append(1)
        if len(calls) == fails_at + 1:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes")
        return run(*args)

    monkeypatch.setattr(MeshProgram, "_on_mesh", fail)
    with reports(MemoryError, "function f") as caught:
        train.steps(ROWS, SUMS, batches=batches)
    monkeypatch.undo()
    assert caught.value.steps == [fails_at] * N
    near(synk.gather(w), [by_numpy(batches[:fails_at])[3]] * N)
    near(train.steps(*on_devices(), batches=batches[fails_at:])[0], by_numpy(batches)[0][fails_at:])
