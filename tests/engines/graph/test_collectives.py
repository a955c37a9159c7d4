"""Collectives inside a library's functions: optimizations, linkers, loops, conditions, gradients and errors.

Modules: `affine`, `collectives`, `dependence`, `operations`, `scans`, `synkhronos.engines.pytensor.operations`,
`synkhronos.engines.pytensor.scans`, `synkhronos.engines.theano.classes`, `synkhronos.engines.theano.operations`,
`synkhronos.engines.theano.scans`.
"""

import itertools
import warnings

import numpy as np
import pytest
from calls import Recorder, Unchanged, call_on_ranks, record
from library import IS_THEANO, NAME, L, T
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.engines.base import CollectiveDependence
from synkhronos.engines.graph import collectives as graph_collectives
from synkhronos.errors import ArgumentValueError, WorkerDied

pytestmark = getattr(pytest.mark, NAME)
ENGINE = L.engine
all_reduce = synk.ops.all_reduce
if IS_THEANO:

    def vm(optimizer="fast_run", **options):
        return L.Mode(linker=L.VMLinker(c_thunks=False, **options), optimizer=optimizer)

    MODES = {
        "cvm": vm(use_cloop=True),
        "vm": vm(use_cloop=False),
        "lazy": vm(use_cloop=False, lazy=True),
        "no_gc": vm(use_cloop=True, allow_gc=False),
        "py": L.Mode(linker="py", optimizer="fast_run"),
        "FAST_COMPILE": vm("fast_compile", use_cloop=False),
        "None": vm(None, use_cloop=True),
    }
else:
    MODES = {
        "vm": L.Mode("vm", "fast_run"),
        "py": L.Mode("py", "fast_run"),
        "FAST_COMPILE": L.Mode("vm", "fast_compile"),
        "None": L.Mode("vm", None),
    }
#: The modes in which most tests run; only some linkers compute a single branch of a condition.
MOST, PYTHON = [name for name in ("cvm", "vm", "FAST_COMPILE", "None") if name in MODES], MODES["vm"]
X = np.array([[1.0, 2.0], [3.0, 5.0], [-1.0, 0.5]])
SHARDS = (1, 3, 7)


def snapshot(inputs, outputs, updates=(), givens=None, mode=PYTHON, **kwargs):
    return ENGINE.snapshot(inputs, outputs, list(updates), givens, mode=mode, on_unused_input="ignore", **kwargs)


def on_ranks(inputs, outputs, updates=(), **kwargs):
    """Compile the variant of a function that ranks call."""
    return ENGINE.variant(snapshot(inputs, outputs, updates, **kwargs), False, [])


def equal(results, truths, rtol=1e-13):
    assert len(results) == len(truths)
    for result, truth in zip(results, truths):
        np.testing.assert_allclose(result, truth, rtol)


def ancestors(variables, blockers=()):
    """Return the variables that others depend on, themselves included, without looking behind ``blockers``."""
    behind = [one for node in L.io_toposort(list(blockers), variables) for one in node.inputs]
    return [*variables, *behind]


def rop(y, x, v):
    """Return the derivative of y in the direction v, by the operations' own rules."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTensor prefers the name `pushforward`
        return L.gradient("Rop")(y, x, v, **({} if IS_THEANO else {"use_op_rop_implementation": True}))


def nodes(f):
    return [node for node in f.maker.fgraph.toposort() if isinstance(node.op, ENGINE.library.AllReduce)]


# -- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough(but="FAST_COMPILE")
@pytest.mark.parametrize("mode", MODES)
def test_order_in_every_mode(mode):
    x, w = T.dmatrix("x"), L.shared(np.ones(2), "w")
    last = all_reduce(x * 1.0)
    for _ in range(3):  # a chain that the natural order would schedule last
        last = T.tanh(last)
    early, late = all_reduce([x[0], x.sum()], "sum"), all_reduce(x[1] + last[0], "max")
    f = on_ranks([x], [late, early[0] * x[0]], [(w, w + early[1])], mode=MODES[mode])
    results, recorder = record(ENGINE, f, X)
    first = np.tanh(np.tanh(np.tanh(2 * X + 1)))
    equal(results, [2 * (X[1] + first[0]) + 2, (2 * X[0] + 3) * X[0], 1 + 2 * X.sum() + 3 + np.zeros(2)])
    assert recorder.seen == [(0, "avg", [(3, 2)]), (1, "max", [(2,)]), (2, "sum", [(2,), ()])]


@pytest.mark.parametrize("mode", MODES)
def test_every_collective_depends_on_the_one_before(mode):
    x = T.dmatrix("x")
    f = on_ranks([x], [all_reduce(x * i) for i in range(5)], mode=MODES[mode])
    before = None
    for number, node in enumerate(nodes(f)):
        assert node.op.number == number
        if before is not None:
            assert before in ancestors(node.inputs)
        before = node.outputs[1]


def test_collectives_swapped_on_one_rank_have_other_numbers(monkeypatch):
    x = T.dmatrix("x")
    kept = snapshot([x], [all_reduce(x), all_reduce(x * 2)])
    right = ENGINE.variant(kept, False, [])
    monkeypatch.setattr(graph_collectives, "count", lambda: iter([1, 0]))  # the injected fault
    wrong = ENGINE.variant(kept, False, [])
    assert record(ENGINE, right, X)[1].numbers == [0, 1]
    assert record(ENGINE, wrong, X)[1].numbers == [1, 0]
    with reports(AssertionError, "(0, 1)"):
        call_on_ranks(ENGINE, [right, wrong], [[X], [X]], [3, 3])


@pytest.mark.thorough
def test_the_same_numbers_again():
    """Collectives have the same numbers in the analyzed graph and in the compiled function."""
    x, i = T.dmatrix("x"), T.iscalar("i")
    loop, _ = L.scan(lambda s: all_reduce(s, "max"), sequences=[T.arange(2.0)])
    outputs = [
        all_reduce(x.sum(), "min"),
        loop[-1],
        L.ifelse(i, all_reduce(x[0, 0], "sum"), x[1, 1]),
        all_reduce(x.max()),
    ]
    kept = snapshot([x, i], outputs)
    ops = ENGINE.collectives(kept, {x: 0}).ops
    _, recorder = record(ENGINE, ENGINE.variant(kept, False, []), X, np.int32(1))
    assert {number: op for number, op, _ in recorder.seen} == {i: str(op) for i, op in enumerate(ops)}
    assert sorted(str(op) for op in ops) == ["avg", "max", "min", "sum"]


# -- features of the library -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_constants_are_not_folded(mode):
    f = on_ranks([], [all_reduce(T.constant(X), "sum"), all_reduce(T.constant(2.0)) * 3], mode=MODES[mode])
    results, recorder = record(ENGINE, f)
    equal(results, [2 * X + 1, (4 + 2) * 3])
    assert recorder.numbers == [0, 1]


def test_a_shape_needs_no_collective():
    x = T.dmatrix("x")
    y = all_reduce(T.exp(x))
    f = on_ranks([x], [y.shape[0], y.shape])
    results, recorder = record(ENGINE, f, X)
    equal(results, [3, (3, 2)])
    assert recorder.seen == []


def test_an_unused_result_is_reduced_with_the_others():
    x = T.dmatrix("x")
    f = on_ranks([x], all_reduce([x, x * 2, x[0]])[2])
    results, recorder = record(ENGINE, f, X)
    equal(results, [2 * X[0] + 1])
    assert recorder.seen == [(0, "avg", [(3, 2), (3, 2), (2,)])]


def test_an_unused_collective_does_not_break_the_chain():
    x = T.dmatrix("x")
    unused = all_reduce(x * 3)
    f = on_ranks([x], [all_reduce(x), unused.shape[1], all_reduce(x + 1)])
    results, recorder = record(ENGINE, f, X)
    equal(results, [2 * X + 1, 2, 2 * (X + 1) + 3])
    assert recorder.numbers == [0, 1, 2]


@pytest.mark.parametrize("mode", MODES)
def test_plain_functions_compute_the_identity(mode):
    x, w = T.dmatrix("x"), L.shared(X, "w", borrow=False)
    y, z = all_reduce([x, w], "sum")
    f = L.function([x], [T.exp(y) - x, z], updates=[(w, z * 2 + y)], mode=MODES[mode])
    results = f(X + 1)
    equal(results, [np.exp(X + 1) - X - 1, X])
    equal([w.get_value()], [X * 2 + X + 1])
    equal([results[1]], [X])
    with Recorder() as recorder:
        f(X)
    assert {number for number, _, _ in recorder.seen} == {-1}  # not the numbered graph that ranks call


@pytest.mark.parametrize("mode", MODES)
def test_arguments_may_be_overwritten_later(mode):
    """Arguments that a collective returns do not change visibly, although the library computes in place where it can."""
    x = T.dmatrix("x")
    a = T.exp(x)
    y = all_reduce(a)
    f = on_ranks([x], [T.sqrt(a), y, T.log(y) + 1, T.inc_subtensor(a[0], 5.0)], mode=MODES[mode])
    with Unchanged():
        results = ENGINE.call(f, [X])
    truth = np.exp(X)
    plus = truth.copy()
    plus[0] += 5
    equal(results, [np.sqrt(truth), truth, np.log(truth) + 1, plus], 1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", "complex128"])
@pytest.mark.parametrize("op", ["avg", "sum"])
def test_dtypes(dtype, op):
    x = L.variable(dtype, 1, "x")
    f = on_ranks([x], all_reduce(x, op))
    value = np.array([1, 2, 3], dtype)
    (result,), _ = record(ENGINE, f, value)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, 2 * value + 1)


def test_copies_have_collectives():
    x, w, v = T.dmatrix("x"), L.shared(np.ones(2), "w"), L.shared(np.zeros(2), "v")
    y = all_reduce(x[0])
    compiled = ENGINE.compile([x], y, [(w, w + y)], None, mode=PYTHON)
    _, kept = ENGINE.copy(compiled, snapshot([x], y, [(w, w + y)]), swap={w: v})
    results, recorder = record(ENGINE, ENGINE.variant(kept, False, []), X)
    equal(results, [2 * X[0] + 1, 2 * X[0] + 1])
    assert recorder.numbers == [0] and ENGINE.updated_in(kept) == [v]


# -- conditions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MOST)
def test_only_the_branch_that_is_taken(mode):
    x, i = T.dmatrix("x"), T.iscalar("i")
    first, behind = all_reduce(x.sum(), "max"), all_reduce(x[0], "min")
    y = L.ifelse(T.eq(i % 10, 0), all_reduce(x[1] + first, "sum"), all_reduce(x[2] * 3, "avg"))
    f = on_ranks([x, i], [y, behind], mode=MODES[mode])
    seen = {}
    for step in (0, 1, 20):
        results, recorder = record(ENGINE, f, X, np.int32(step))
        k = {op: number + 1 for number, op, _ in recorder.seen}
        assert set(k) == ({"avg", "min"} if step == 1 else {"sum", "max", "min"}) and len(k) == len(recorder.seen)
        argument = X[2] * 3 if step == 1 else X[1] + 2 * X.sum() + k["max"]
        equal(results, [2 * argument + k["avg" if step == 1 else "sum"], 2 * X[0] + k["min"]])
        assert seen.setdefault(step == 1, k) == k
    assert set(seen[True].values()) | set(seen[False].values()) == {1, 2, 3, 4}


@pytest.mark.thorough
def test_a_scan_in_a_branch():
    x, i = T.dmatrix("x"), T.iscalar("i")
    loop, _ = L.scan(lambda s: all_reduce(s), sequences=[T.arange(3.0)])
    f = on_ranks([x, i], [L.ifelse(i, loop[-1], T.constant(7.0)), all_reduce(x)])
    for taken, calls in ((0, 1), (1, 4)):
        results, recorder = record(ENGINE, f, X, np.int32(taken))
        equal(results, [2 * 2 + 1 if taken else 7, 2 * X + 2])
        assert sorted(recorder.numbers) == [0] * (calls - 1) + [1]


def test_conditions_that_differ_between_ranks_are_refused():
    x, i, s = T.dmatrix("x"), T.iscalar("i"), L.shared(X, "s")
    local, w = L.shared(0.0, "local"), L.shared(0.0, "w")
    draw = L.streams(1)[0].uniform(())
    reduced = all_reduce(x.sum())
    alike = [i > 0, T.gt(reduced, 0), T.eq(x.shape[1], 2), T.gt(s.sum(), 0), T.gt(w, 0)]
    differing = [T.gt(x.sum(), 0), T.gt(x.shape[0], 2), T.gt(draw, 0.5), T.gt(reduced * x[0, 0], 1)]

    def found(condition, scattered, updates=()):
        y = L.ifelse(condition, all_reduce(x[0]), x[1])
        return ENGINE.collectives(snapshot([x, i], y, updates), dict.fromkeys(scattered, 0))

    for condition in alike:
        assert len(found(condition, [x]).ops) >= 1
    for condition in differing:
        with refuses(ArgumentValueError, argument="all_reduce", got="scattered", hint="another all_reduce"):
            found(condition, [x])
    with refuses(ArgumentValueError, got="condition"):
        found(alike[3], [x, s])  # the call selects rows of s
    assert found(T.gt(local, 0), [x]) is not None
    with refuses(ArgumentValueError, got="condition"):
        found(T.gt(local, 0), [x], [(local, local + x.sum())])  # each rank updates its own value
    with refuses(ArgumentValueError, got="condition"):
        found(T.gt(w, 0), [x], [(local, local + x.sum()), (w, w + local)])
    assert found(T.gt(local, 0), [x], [(local, local + reduced)]) is not None
    # A condition without collectives in its branches may depend on anything, and so may one that is computed anyway.
    for y in (L.ifelse(x.sum() > 0, x[0], x[1]) + all_reduce(x[0]), L.ifelse(x.sum() > 0, reduced, x.sum()) + reduced):
        assert ENGINE.collectives(snapshot([x], y), {x: 0}) is not None


# -- loops -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough(but=MOST[0])
@pytest.mark.parametrize("mode", MOST)
def test_a_scan_is_in_the_chain(mode):
    x, w = T.dmatrix("x"), L.shared(np.ones(2), "w")

    def step(row, h):
        first = all_reduce(row * 2)
        return all_reduce(h + first, "max") + all_reduce(w, "min")  # the last one depends on nothing that changes

    states, _ = L.scan(step, sequences=[x], outputs_info=[T.zeros(2)])
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
    """Two scans run one after the other: the library would merge loops of equal length and mix their collectives."""
    x = T.dmatrix("x")
    loops = [L.scan(lambda row, k=k: all_reduce(row + k), sequences=[x])[0] for k in range(2)]
    results, recorder = record(ENGINE, on_ranks([x], loops), X)
    equal(results, [2 * X + 1, 2 * (X + 1) + 2])
    assert recorder.numbers == [0, 0, 0, 1, 1, 1]


@pytest.mark.thorough
def test_scans_of_every_kind():
    x, n = T.dmatrix("x"), T.iscalar("n")
    nested, _ = L.scan(
        lambda row: L.scan(lambda e, h: all_reduce(e + h), sequences=[row], outputs_info=[T.zeros(())])[0],
        sequences=[x],
    )
    until, _ = L.scan(lambda h: (all_reduce(h), L.until(h > 20)), outputs_info=[T.ones(())], n_steps=50)
    taps, _ = L.scan(lambda a, b: all_reduce(a + b), outputs_info=[dict(initial=T.ones(2), taps=[-2, -1])], n_steps=n)
    f = on_ranks([x, n], [nested, until[-1], taps[-1]])
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


def test_numbers_of_steps_that_differ_between_ranks_are_refused():
    x, y, n, w = T.dtensor3("x"), T.dmatrix("y"), T.iscalar("n"), L.shared(np.ones((2, 2)), "w")

    def found(sequences=(), n_steps=None, step=lambda row, *rest: all_reduce(row.sum(), "max"), outputs_info=None):
        loop, _ = L.scan(step, sequences=list(sequences), n_steps=n_steps, outputs_info=outputs_info)
        return ENGINE.collectives(snapshot([x, y, n], loop), {x: 0, y: 0})

    over_time = x.dimshuffle(1, 0, 2)
    for sequences, n_steps in (([T.arange(3)], None), ([w], n), ([over_time], None), ([T.dot(over_time, w)], None)):
        assert len(found(sequences, n_steps).ops) == 1
    for sequences, n_steps in (([x], None), ([w], y.shape[0]), ([w], T.cast(y.sum(), "int64")), ([over_time, y], None)):
        with refuses(ArgumentValueError, argument="all_reduce", got="steps"):
            found(sequences, n_steps)
    until = L.until
    assert found([T.arange(9.0)], None, lambda s: (all_reduce(s), until(s > 5))) is not None
    assert found([], 9, lambda h: (h + all_reduce(w.sum()), until(h > 5)), [T.zeros(())]) is not None
    for last in (T.constant(5.0), y.sum()):  # whether states are equal on all ranks is not examined
        with refuses(ArgumentValueError, got="until"):
            found([], 9, lambda h, last=last: (h + all_reduce(y.sum()), until(h > last)), [T.zeros(())])
    inside = lambda row: L.ifelse(row.sum() > 0, all_reduce(row), row)  # noqa: E731
    with refuses(ArgumentValueError, got="condition"):
        found([over_time[:, 0]], None, inside)
    assert found([w], None, inside) is not None


def test_graphs_inside_other_operations_are_refused():
    x, y = T.dmatrix("x"), T.dmatrix("y")
    inside = L.OpFromGraph([x], [all_reduce(x)])
    with refuses(ArgumentValueError, argument="all_reduce", got="OpFromGraph"):
        ENGINE.collectives(snapshot([y], inside(y)), {y: 0})


def test_debug_mode_is_refused():
    x = T.dmatrix("x")
    kept = snapshot([x], all_reduce(x), mode=L.DebugMode(check_c_code=False))
    with refuses(ArgumentValueError, argument="mode", got="DebugMode"):
        ENGINE.collectives(kept, {x: 0})
    assert ENGINE.collectives(snapshot([x], x * 2, mode=L.DebugMode(check_c_code=False)), {x: 0}) is None


# -- dependences -----------------------------------------------------------------------------------------------------


def test_affine_operations():
    x, w, i = T.dmatrix("x"), L.shared(np.ones((2, 2)), "w"), T.iscalar("i")
    y = all_reduce(x)
    affine = [
        y.T,
        y.reshape((2, 3)),
        y.dimshuffle(0, "x", 1).sum(axis=1),
        y.mean(axis=0),
        T.dot(y, w),
        T.dot(w, y.T).T,
        T.concatenate([y, x]),
        y[i:],
        y[[0, 1]],
        T.set_subtensor(w[0], y[0]),
        T.inc_subtensor(y[0], x[1]),
        T.switch(i > 0, y, x),
        L.ifelse(i > 0, y, x * 1),
        T.cast(y, "float32"),
        y / w.sum() - 3,
        T.zeros_like(y) + y,
        L.gradient("disconnected_grad")(y),
    ]
    others = [T.dot(y, y.T), T.dot(y, x.T), x / y, T.sqr(y), abs(y), T.switch(y > 0, y, 0), w[0][T.cast(y[0], "int64")]]
    others += [y[T.cast(x[0, 0], "int64") :], T.maximum(y, 0), L.ifelse(T.gt(y.sum(), 0), y, x * 1), T.cast(y, "int64")]
    for variables, truth in ((affine, CollectiveDependence.AFFINE), (others, CollectiveDependence.OTHER)):
        for variable in variables:
            target = L.shared(np.zeros((1,) * variable.ndim, variable.dtype))
            found = ENGINE.collectives(snapshot([x, i], variable, [(target, variable)]), {x: 0})
            assert (found.replicated_updates, found.outputs) == ([True], [truth]), str(variable)
            is_mixed = x in ancestors([variable], [y])  # of rows that slices weight differently
            assert found.updates == [CollectiveDependence.OTHER if is_mixed else truth], str(variable)
    shape = L.shared(np.zeros(2, "int64"))
    found = ENGINE.collectives(snapshot([x], y, [(shape, y.shape * 2)]), {x: 0})
    assert (found.updates, found.outputs) == ([CollectiveDependence.NONE], [CollectiveDependence.AFFINE])


# -- gradients -------------------------------------------------------------------------------------------------------


def gradient_of_shards(op, wrt, seed=0):
    """Return data of 1, 3 and 7 rows, and a builder of the ranks' gradient of a loss with a collective in it.

    With ``avg``, the loss and the statistics in it are means over rows; with ``sum``, they are sums.
    """
    data = np.random.RandomState(seed).randn(sum(SHARDS), 2)
    x, w = T.dmatrix("x"), T.dvector("w")
    over_rows = (lambda a: a.mean(axis=0)) if op == "avg" else (lambda a: a.sum(axis=0))
    h = T.tanh(x * w)
    centre, square = all_reduce([over_rows(h), over_rows(T.sqr(h))], op)
    loss = over_rows(T.sqr(h - 0.5 * centre).sum(axis=1) * T.log(2 + square.sum()))
    return data, lambda: on_ranks([x, w], all_reduce([loss, wrt(loss, w)], op))


def serial_loss(op, data, w):
    over_rows = (lambda a: a.mean(axis=0)) if op == "avg" else (lambda a: a.sum(axis=0))
    h = np.tanh(data * w)
    centre, square = over_rows(h), over_rows(h**2)
    return over_rows(((h - 0.5 * centre) ** 2).sum(axis=1) * np.log(2 + square.sum()))


def numerical_gradient(function, w, eps=1e-5):
    return np.array([(function(w + eps * e) - function(w - eps * e)) / (2 * eps) for e in np.eye(len(w))])


def call_shards(data, compiled, *args):
    """Call a function on every shard; every rank is a thread here and compiles a separate copy."""
    shards = np.split(data, np.cumsum(SHARDS)[:-1])
    return call_on_ranks(ENGINE, [compiled() for _ in SHARDS], [[shard, *args] for shard in shards], SHARDS)


@pytest.mark.parametrize("op", ["avg", "sum"])
def test_gradient_over_uneven_shards_is_the_serial_one(op):
    w = np.array([0.3, -1.2])
    data, f = gradient_of_shards(op, L.module.grad)
    for loss, gradient in call_shards(data, f, w):
        np.testing.assert_allclose(loss, serial_loss(op, data, w), 1e-12)
        np.testing.assert_allclose(gradient, numerical_gradient(lambda w: serial_loss(op, data, w), w), 1e-7)


@pytest.mark.parametrize("op", ["avg", "sum"])
def test_gradient_of_gradient(op):
    w, v = np.array([0.3, -1.2]), np.array([0.7, 2.0])

    def wrt(loss, variable):
        first = all_reduce(L.module.grad(loss, variable), op)
        # A contribution that ranks have in common must count once in their sum.
        share = 1.0 if op == "avg" else 1.0 / len(SHARDS)
        return L.module.grad((first * v).sum() * share, variable)

    data, f = gradient_of_shards(op, wrt)

    def directional(w):
        return numerical_gradient(lambda w: serial_loss(op, data, w), w) @ v

    for _, second in call_shards(data, f, w):
        np.testing.assert_allclose(second, numerical_gradient(directional, w, 1e-3), 1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("op", ["avg", "sum"])
def test_r_operator(op):
    w, v = np.array([0.3, -1.2]), np.array([0.7, 2.0])
    data, f = gradient_of_shards(op, lambda loss, variable: rop(loss, variable, v))
    truth = numerical_gradient(lambda t: serial_loss(op, data, w + t[0] * v), np.zeros(1))[0]
    for _, directional in call_shards(data, f, w):
        np.testing.assert_allclose(directional, truth, 1e-7)


@pytest.mark.thorough
def test_gradient_through_scan():
    data, w = np.random.RandomState(1).randn(sum(SHARDS), 4), 0.4
    x, weight = T.dmatrix("x"), T.dscalar("w")

    def step(column, h):
        h = T.tanh(weight * h + column)
        return h - all_reduce(h.mean())

    states, _ = L.scan(step, sequences=[x.T], outputs_info=[T.zeros((x.shape[0],))])
    loss = T.sqr(states).sum(axis=0).mean()
    outputs = all_reduce([loss, L.module.grad(loss, weight)])

    def serial(w):
        h, total = np.zeros(len(data)), 0.0
        for column in data.T:
            h = np.tanh(w * h + column)
            h = h - h.mean()
            total += (h**2).mean()
        return total

    truth = (serial(w + 1e-5) - serial(w - 1e-5)) / 2e-5
    for value, gradient in call_shards(data, lambda: on_ranks([x, weight], outputs), w):
        np.testing.assert_allclose(value, serial(w), 1e-12)
        np.testing.assert_allclose(gradient, truth, 1e-7)
    assert ENGINE.collectives(snapshot([x, weight], [loss, L.module.grad(loss, weight)]), {x: 0}).ops


def test_gradients_of_one_op_are_one_collective():
    x = T.dmatrix("x")
    a, b, c = x[0], x[1] * 2, x[2] * 3
    p, q, r = all_reduce([a, b, c])
    grads = L.module.grad((T.sqr(p) + r).sum(), [a, c])
    _, recorder = record(ENGINE, on_ranks([x], grads), X)
    assert recorder.seen == [(0, "avg", [(2,), (2,), (2,)]), (1, "avg", [(2,), (2,)])]
    with pytest.raises(L.gradient("DisconnectedInputError")):
        L.module.grad(T.sqr(p).sum(), b)
    alone = L.module.grad(T.sqr(p).sum(), b, disconnected_inputs="ignore")
    assert L.function([x], alone, on_unused_input="ignore", mode=PYTHON)(X).tolist() == [0, 0]


def test_integers_have_a_gradient_of_zero():
    i, x = T.lvector("i"), T.dvector("x")
    k, y = all_reduce([i, x], "sum")
    f = L.function([i, x], L.module.grad((k * T.sqr(y)).sum(), [x, i], disconnected_inputs="ignore"), mode=PYTHON)
    equal(f([1, 2], [3.0, 4.0]), [[6, 16], [0, 0]])


@pytest.mark.parametrize("op", ["min", "max"])
def test_extremes_have_no_gradient(op):
    x = T.dvector("x")
    y = all_reduce(x * 2, op).sum()
    with reports(L.gradient("NullTypeGradError"), f"'{op}'", "'avg' or 'sum'"):
        L.module.grad(y, x)
    with reports(NotImplementedError, f"'{op}'", "'avg' or 'sum'"):
        rop(y, x, x)


# -- errors ----------------------------------------------------------------------------------------------------------


class NeedsArguments(Exception):
    """Exception that a library cannot create again from a message."""

    def __init__(self, one, other):
        super().__init__(f"{one} {other}")
        self.one, self.other = one, other


@pytest.mark.parametrize("inside", ["function", "scan"])
@pytest.mark.parametrize("mode", [name for name in MODES if name in ("cvm", "vm", "py", "FAST_COMPILE")])
@pytest.mark.parametrize(
    "error",
    [
        lambda: NeedsArguments(1, other=2),
        lambda: WorkerDied("rank 1 died", 1, pid=5, exitcode=-9, updated=["w"]),
        lambda: KeyboardInterrupt("^C"),
        lambda: SystemExit(3),
    ],
    ids=["NeedsArguments", "WorkerDied", "KeyboardInterrupt", "SystemExit"],
)
def test_errors_come_out_as_they_are(error, mode, inside, capfd):
    error, cause = error(), ValueError("cause")
    x = T.dmatrix("x")
    if inside == "scan":
        y, _ = L.scan(lambda row: all_reduce(row), sequences=[x])
    else:
        y = all_reduce(x)
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
    assert capfd.readouterr() == ("", "")  # Theano would print a line if it cannot extend a message
    results, _ = record(ENGINE, f, X)  # the function still works
    equal(results, [2 * X + 1 + 1])
