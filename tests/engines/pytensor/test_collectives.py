"""Collectives in PyTensor's graphs: scans, conditions, linkers, and errors. Expected values come from NumPy.

Modules: `hidden`, `operations`, `scans`.
"""

import itertools

import numpy as np
import pytest
from calls import Recorder, call_on_ranks, record
from refusals import refuses

from synkhronos.errors import ArgumentValueError, WorkerDied
from synkhronos.reductions import ReduceOp

pytestmark = pytest.mark.pytensor
pytensor = pytest.importorskip("pytensor")
pt = pytest.importorskip("pytensor.tensor")

from pytensor.compile.builders import OpFromGraph  # noqa: E402
from pytensor.compile.debug.debugmode import DebugMode  # noqa: E402
from pytensor.compile.mode import Mode  # noqa: E402
from pytensor.graph.replace import vectorize_graph  # noqa: E402
from pytensor.scan.utils import until  # noqa: E402
from pytensor.tensor import optimize  # noqa: E402
from pytensor.tensor.blockwise import Blockwise  # noqa: E402

from synkhronos.engines.pytensor.engine import ENGINE  # noqa: E402

try:
    from pytensor.conditional.op import ifelse
except ImportError:  # before PyTensor 3.3
    from pytensor.ifelse import ifelse

X = np.array([[1.0, 2.0], [3.0, 5.0], [-1.0, 0.5]])
MODES = {
    "py": Mode("py", "fast_run"),
    "vm": Mode("vm", "fast_run"),
    "FAST_COMPILE": Mode("py", "fast_compile"),
    "None": Mode("py", None),
}


def all_reduce(x, op="avg"):
    results = ENGINE.all_reduce(x if isinstance(x, list) else [x], ReduceOp(op))
    return results if isinstance(x, list) else results[0]


def scan(*args, **kwargs):
    return pytensor.scan(*args, return_updates=False, **kwargs)


def snapshot(inputs, outputs, updates=(), mode=MODES["py"], **kwargs):
    return ENGINE.snapshot(inputs, outputs, list(updates), None, mode=mode, on_unused_input="ignore", **kwargs)


def on_ranks(inputs, outputs, updates=(), mode=MODES["py"], **kwargs):
    return ENGINE.variant(snapshot(inputs, outputs, updates, mode, **kwargs), False, [])


def equal(results, truths):
    assert len(results) == len(truths)
    for result, truth in zip(results, truths):
        np.testing.assert_allclose(result, truth, 1e-14)


@pytest.mark.parametrize("mode", MODES)
def test_constants_are_not_folded(mode):
    f = on_ranks([], [all_reduce(pt.constant(X), "sum"), all_reduce(pt.constant(2.0)) * 3], mode=MODES[mode])
    results, recorder = record(ENGINE, f)
    equal(results, [2 * X + 1, (4 + 2) * 3])
    assert recorder.numbers == [0, 1]


@pytest.mark.parametrize("mode", MODES)
def test_a_scan_is_in_the_chain(mode):
    x, w = pt.dmatrix("x"), pytensor.shared(np.ones(2), "w")

    def step(row, h):
        first = all_reduce(row * 2)
        return all_reduce(h + first, "max") + all_reduce(w, "min")  # the last one depends on nothing that changes

    states = scan(step, sequences=[x], outputs_info=[pt.zeros(2)])
    f = on_ranks([x], [all_reduce(x), states, all_reduce(states[-1])], [(w, w + 1)], mode=MODES[mode])
    results, recorder = record(ENGINE, f, X)
    ops = {number: op for number, op, _ in recorder.seen}
    assert recorder.numbers == [0] + [1, 2, 3] * 3 + [4]
    number = {op: k for k, op in ops.items() if k in (1, 2, 3)}
    truth, h = [], np.zeros(2)
    for row in X:
        h = 2 * (h + 2 * row * 2 + number["avg"] + 1) + number["max"] + 1 + (2 + number["min"] + 1)
        truth.append(h)
    equal(results, [2 * X + 1, truth, 2 * truth[-1] + 5, [2, 2]])


def test_two_scans_come_one_after_the_other():
    """Two scans run one after the other: PyTensor would merge loops of equal length and mix their collectives."""
    x = pt.dmatrix("x")
    loops = [scan(lambda row, k=k: all_reduce(row + k), sequences=[x]) for k in range(2)]
    results, recorder = record(ENGINE, on_ranks([x], loops), X)
    equal(results, [2 * X + 1, 2 * (X + 1) + 2])
    assert recorder.numbers == [0, 0, 0, 1, 1, 1]


def test_scans_of_every_kind():
    x, n = pt.dmatrix("x"), pt.iscalar("n")
    nested = scan(
        lambda row: scan(lambda e, h: all_reduce(e + h), sequences=[row], outputs_info=[pt.zeros(())]),
        sequences=[x],
    )
    ended = scan(lambda h: (all_reduce(h), until(h > 20)), outputs_info=[pt.ones(())], n_steps=50)
    taps = scan(lambda a, b: all_reduce(a + b), outputs_info=[dict(initial=pt.ones(2), taps=[-2, -1])], n_steps=n)
    f = on_ranks([x, n], [nested, ended[-1], taps[-1]])
    results, recorder = record(ENGINE, f, X, np.int32(3))
    truth = []
    for row in X:
        h, steps = 0.0, []
        for e in row:
            h = 2 * (e + h) + 1
            steps.append(h)
        truth.append(steps)
    h = 1.0
    while True:
        stop, h = h > 20, 2 * h + 2
        if stop:
            break
    a, b = 1.0, 1.0
    for _ in range(3):
        a, b = b, 2 * (a + b) + 3
    equal(results, [truth, h, b])
    assert [number for number, _ in itertools.groupby(recorder.numbers)] == [0, 1, 2]


def test_a_scan_in_a_branch():
    x, i = pt.dmatrix("x"), pt.iscalar("i")
    loop = scan(lambda s: all_reduce(s), sequences=[pt.arange(3.0)])
    f = on_ranks([x, i], [ifelse(i, loop[-1], pt.constant(7.0)), all_reduce(x)], mode=MODES["vm"])
    for taken, calls in ((0, 1), (1, 4)):
        results, recorder = record(ENGINE, f, X, np.int32(taken))
        equal(results, [2 * 2 + 1 if taken else 7, 2 * X + 2])
        assert sorted(recorder.numbers) == [0] * (calls - 1) + [1]


def test_numbers_of_steps_that_differ_between_ranks_are_refused():
    x, y, w = pt.dtensor3("x"), pt.dmatrix("y"), pytensor.shared(np.ones((2, 2)), "w")

    def found(sequences, n_steps=None):
        loop = scan(lambda row, *rest: all_reduce(row.sum(), "max"), sequences=sequences, n_steps=n_steps)
        return ENGINE.collectives(snapshot([x, y], loop), {x: 0, y: 0})

    over_time = x.dimshuffle(1, 0, 2)
    for sequences, n_steps in (([pt.arange(3)], None), ([over_time], None)):
        assert len(found(sequences, n_steps).ops) == 1
    for sequences, n_steps in (([x], None), ([w], y.shape[0]), ([w], pt.cast(y.sum(), "int64"))):
        with refuses(ArgumentValueError, argument="all_reduce", got="steps"):
            found(sequences, n_steps)


def test_gradient_through_scan():
    shards = (2, 3)
    data, w = np.random.RandomState(1).randn(sum(shards), 4), 0.4
    x, weight = pt.dmatrix("x"), pt.dscalar("w")

    def step(column, h):
        h = pt.tanh(weight * h + column)
        return h - all_reduce(h.mean())

    states = scan(step, sequences=[x.T], outputs_info=[pt.zeros((x.shape[0],))])
    loss = pt.sqr(states).sum(axis=0).mean()
    outputs = all_reduce([loss, pytensor.grad(loss, weight)])

    def serial(w):
        h, total = np.zeros(len(data)), 0.0
        for column in data.T:
            h = np.tanh(w * h + column)
            h = h - h.mean()
            total += (h**2).mean()
        return total

    truth = (serial(w + 1e-5) - serial(w - 1e-5)) / 2e-5
    functions = [on_ranks([x, weight], outputs) for _ in shards]
    args = [[shard, np.array(w)] for shard in np.split(data, np.cumsum(shards)[:-1])]
    for value, gradient in call_on_ranks(ENGINE, functions, args, shards):
        np.testing.assert_allclose(value, serial(w), 1e-12)
        np.testing.assert_allclose(gradient, truth, 1e-7)


def test_debug_mode_is_refused():
    x, mode = pt.dmatrix("x"), DebugMode(check_c_code=False)
    with refuses(ArgumentValueError, argument="mode", got="DebugMode"):
        ENGINE.collectives(snapshot([x], all_reduce(x), mode=mode), {x: 0})
    assert ENGINE.collectives(snapshot([x], x * 2, mode=mode), {x: 0}) is None


def test_what_is_vectorized_or_minimized_is_refused():
    """Collectives in vectorized or minimized functions are refused, because ranks would not compute them together."""
    x, rows, v = pt.dvector("x"), pt.dmatrix("rows"), pt.dscalar("v")
    loss, shard = all_reduce(pt.sqr(x - v).mean()), ENGINE.shard(x * v, 0)
    loop = scan(lambda row: all_reduce(row * v), sequences=[x])
    inner = OpFromGraph([x, v], [loss])(x, v)
    for hidden, op, argument in (
        (vectorize_graph(loss, {x: rows}), "Blockwise{AllReduce{avg}", "all_reduce"),
        (vectorize_graph(shard * 2, {x: rows}), "Blockwise{TakeShare", "shard"),
        (Blockwise(inner.owner.op, signature="(n),()->()")(rows, v), "Blockwise", "all_reduce"),
        (optimize.minimize_scalar(loss, v)[0], "MinimizeScalarOp", "all_reduce"),
        (optimize.minimize_scalar(inner, v)[0], "MinimizeScalarOp", "all_reduce"),
        (optimize.minimize_scalar(loop.sum(), v)[0], "MinimizeScalarOp", "all_reduce"),
        (optimize.minimize_scalar(pt.sqr(shard).mean(), v)[0], "MinimizeScalarOp", "shard"),
        (optimize.root_scalar(loss - 1, v)[0], "RootScalarOp", "all_reduce"),
        (scan(lambda one: vectorize_graph(loss, {x: rows}).sum() + one, [x]), "Blockwise", "all_reduce"),
    ):
        with refuses(ArgumentValueError, argument, got=f"inside {op}"):
            snapshot([x, v, rows], hidden)
    best, _ = optimize.minimize_scalar(pt.sqr(all_reduce(x.mean()) - v), v)  # computed before the collective
    assert len(ENGINE.collectives(snapshot([x, v], [best, all_reduce(best)]), {x: 0}).ops) == 2


def test_linkers_that_may_reorder_are_refused():
    from pytensor.link.jax.linker import JAXLinker

    x, mode = pt.dmatrix("x"), Mode(JAXLinker(), "fast_compile")
    with refuses(ArgumentValueError, argument="mode", got="JAX", hint="leave out"):
        ENGINE.collectives(snapshot([x], all_reduce(x), mode=mode), {x: 0})
    assert ENGINE.collectives(snapshot([x], x * 2, mode=mode), {x: 0}) is None


@pytest.mark.parametrize("inside", ["function", "scan"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "error",
    [
        lambda: WorkerDied("rank 1 died", 1, pid=5, exitcode=-9, updated=["w"]),
        lambda: KeyboardInterrupt("^C"),
        lambda: SystemExit(3),
    ],
    ids=["WorkerDied", "KeyboardInterrupt", "SystemExit"],
)
def test_errors_come_out_as_they_are(error, mode, inside, capfd):
    error, cause = error(), ValueError("cause")
    x = pt.dmatrix("x")
    y = scan(lambda row: all_reduce(row), sequences=[x]) if inside == "scan" else all_reduce(x)
    f = on_ranks([x], y + 1, mode=MODES[mode])
    fields, args = dict(vars(error)), error.args

    class Failing(Recorder):
        def all_reduce(self, number, op, arrays):
            raise error from cause

    with pytest.raises(type(error)) as caught:
        with Failing():
            ENGINE.call(f, [X])
    assert caught.value is error
    assert (vars(error), error.args, error.__cause__) == (fields, args, cause)
    assert capfd.readouterr() == ("", "")
    results, _ = record(ENGINE, f, X)  # the function still works
    equal(results, [2 * X + 1 + 1])
