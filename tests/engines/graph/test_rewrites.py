"""Exact functions return the values of the serial function of the same mode, even if its rewrites change values.

Modules: `classes`, `descriptions`, `engine`, `exact`, `library`, `placing`, `snapshot`,
`synkhronos.engines.theano.rewrites`, `synkhronos.engines.pytensor.rewrites`, `synkhronos.engines.theano.lengths`,
`synkhronos.engines.pytensor.formulas`.
"""

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T
from refusals import refuses

import synkhronos as synk
from synkhronos.engines.graph.rewrites import LATER, MADE, OF_ELEMENTS

pytestmark = getattr(pytest.mark, NAME)

#: All rewrites of the library, with Python code.
FULL = L.Mode(linker="py" if IS_THEANO else L.full.linker, optimizer="fast_run").excluding("fusion", "inplace")
MODES = {"fast_run": FULL, "fast_compile": L.quick, "None": L.slow}

ROWS = np.array([[1.0, 2], [3, 5], [2, 2], [7, 1], [4, 4]])
COLUMN = np.array([0.0, 1, 10, 11, 12])
FAR = COLUMN + 1000


def _log_sum_exp(v):
    return T.log(T.sum(T.exp(v)))


#: Functions of a vector of rows, with rows that give different values in at least one mode.
OF_VECTORS = {
    "log-sum-exp": (_log_sum_exp, FAR),
    "its gradient": (lambda v: T.grad(_log_sum_exp(v), v), COLUMN),
    "a soft minimum": (lambda v: -T.log(T.sum(T.exp(-3 * v))) / 3, FAR),
    "with a weight": (lambda v: 2 * _log_sum_exp(v / 4) + v.mean(), FAR * 4),
    "equal sums": (lambda v: T.sum(v) / T.sum(v), 0 * COLUMN),
    "multiples of a sum": (lambda v: (2 * T.sum(v)) / (3 * T.sum(v)), 0 * COLUMN),
    "rows by their sum": (lambda v: v / T.sum(v) * T.sum(v), 0 * COLUMN),
    "the sum of shares": (lambda v: T.sum(T.exp(v) / T.sum(T.exp(v))), FAR),
    "a sum less itself": (lambda v: T.sum(v) - T.sum(v), np.full(5, np.inf)),
    "a sum by zero": (lambda v: 0 * T.sum(v), np.full(5, np.inf)),
    "zero by a sum": (lambda v: 0 / T.sum(v), 0 * COLUMN),
    "a power of a sum": (lambda v: T.sum(v) ** 3 / T.sum(v) ** 2, 0 * COLUMN),
    "a mean by itself": (lambda v: v.mean() / v.mean() + T.sqr(v - v.mean()).mean(), 0 * COLUMN),
    "a maximum less itself": (lambda v: v.max() - v.max(), np.full(5, np.inf)),
    "a switch by a sum": (lambda v: T.switch(v.sum() > 0, v.mean(), 0.0) * T.sum(1 / v), -COLUMN),
    "softplus of a sum": (lambda v: T.log(1 + T.exp(v.sum())), FAR),
    "the sigmoid of a sum": (lambda v: T.log(T.nnet.sigmoid(v.sum())), -FAR),
    "one less the sigmoid": (lambda v: T.log(1 - T.nnet.sigmoid(v.sum())), FAR),
    "log of a sum and one": (lambda v: T.log(1 + 1e-19 * v.sum()) * 1e19, COLUMN),
}
OF_MATRICES = {
    "log-sum-exp of each column": (lambda x: T.log(T.sum(T.exp(x), axis=0)), 800 + ROWS),
    "with its axis": (lambda x: T.log(T.sum(T.exp(x), axis=0, keepdims=True)), 800 + ROWS),
    "of all": (lambda x: T.log(T.sum(T.exp(x))), 800 + ROWS),
    "log-softmax over rows": (lambda x: x - T.log(T.sum(T.exp(x), axis=0)), 800 + ROWS),
    "of the softmax": (lambda x: T.log(T.exp(x) / T.exp(x).sum(axis=0)), 800 + ROWS),
    "log-softmax of each row": (lambda x: T.log(T.exp(x) / T.exp(x).sum(axis=1, keepdims=True)), 800 * ROWS),
    "of the library's softmax": (lambda x: T.log(T.nnet.softmax(x)), 800 * ROWS),
    "of the library's softmax of columns": (lambda x: T.log(T.nnet.softmax(x.T)), 800 * ROWS),
    "softmax of columns": (lambda x: T.nnet.softmax(x.T), ROWS),
    "its gradient": (lambda x: T.grad(T.sqr(T.nnet.softmax(x.T)).sum(), x), ROWS),
    "the gradient of its logarithm": (lambda x: T.grad((T.log(T.nnet.softmax(x.T)) * x.T).sum(), x), 800 * ROWS),
    "log-softmax of columns": (lambda x: T.nnet.logsoftmax(x.T), 800 * ROWS),
    "of each row, and the mean": (lambda x: T.log(T.exp(x).sum(axis=1)).mean(), 800 + ROWS),
    "of the transpose": (lambda x: T.log(T.exp(x.T).sum(axis=1)), 800 + ROWS),
    "of a projection": (lambda x: T.log(T.exp(T.dot(x, np.full((2, 3), 200.0))).sum(axis=0)), ROWS),
}


def compare(variable, output, values, mode):
    """Compare an exact function with the serial one of the same mode; return its value."""
    target = L.shared(np.full((3,) * output.ndim, np.nan), "target")
    f = synk.function([variable], output, updates=[(target, output)], exact=True, mode=mode)
    with np.errstate(all="ignore"):
        want = L.function([variable], output, mode=mode)(values)
        got = f(values)
        np.testing.assert_allclose(got, want, rtol=1e-10, equal_nan=True)
        for value in np.atleast_1d(synk.gather(target, nd_up=1)):
            np.testing.assert_allclose(value, want, rtol=1e-10, equal_nan=True)
    return got


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OF_VECTORS)
def test_of_vectors(threads, name, mode):
    build, values = OF_VECTORS[name]
    v = T.dvector("v")
    output = build(v)
    if output.ndim:
        output = output * 1.0  # a value with rows
        with np.errstate(all="ignore"):
            f = synk.function([v], output, exact=True, mode=MODES[mode])
            np.testing.assert_allclose(f(values), L.function([v], output, mode=MODES[mode])(values), rtol=1e-10)
    else:
        compare(v, output, values, MODES[mode])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", OF_MATRICES)
def test_of_matrices(threads, name, mode):
    build, values = OF_MATRICES[name]
    x = T.dmatrix("x")
    output = build(x)
    with np.errstate(all="ignore"):
        f = synk.function([x], output, exact=True, mode=MODES[mode])
        np.testing.assert_allclose(f(values), L.function([x], output, mode=MODES[mode])(values), rtol=1e-10)


def test_the_values_are_those_that_stabilization_is_for(threads):
    v = T.dvector("v")
    assert np.isfinite(compare(v, _log_sum_exp(v), FAR, FULL))
    assert compare(v, T.sum(v) / T.sum(v), 0 * COLUMN, FULL) == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_program_may_leave_rewrites_out(threads):
    v = T.dvector("v")
    without = FULL.excluding("local_log_sum_exp", *([] if IS_THEANO else ["stabilize"]))  # (by either name)
    assert compare(v, _log_sum_exp(v), FAR, without) == np.inf


def test_equal_nodes_are_reduced_once(threads):
    """A gradient that a program contains twice, for its norm and for an update, is reduced once."""
    for mode in MODES.values():
        x, w = T.dmatrix("x"), L.shared(np.ones((2, 3)), "w")
        loss = T.sqr(T.dot(x, w)).mean()
        norm, gradient = T.sqrt(T.sqr(T.grad(loss, w)).sum()), T.grad(T.sqr(T.dot(x, w)).mean(), w)
        f = synk.function([x], norm, updates=[(w, w - 0.1 * T.sgn(gradient) * gradient)], exact=True, mode=mode)
        (inside,) = f.sharding().collectives
        assert len(inside.variables) == 1, inside
        want = L.function([x], norm, mode=mode)(ROWS)
        np.testing.assert_allclose(f(ROWS), want, rtol=1e-10)


def test_names_stay_the_programs(threads):
    x, w = T.dmatrix("x"), L.shared(np.ones((2, 3)), "w")
    loss = T.log(T.exp(T.dot(x, w)).sum(axis=0)).sum()
    loss.name = "loss"
    gradient = T.grad(loss, w)
    gradient.name = "gradient"
    f = synk.function([x], loss, updates=[(w, w - T.sgn(gradient))], exact=True, mode=FULL)
    names = [one for inside in f.sharding().collectives for one in inside.variables]
    assert any(one.startswith("gradient") for one in names), names
    assert f.sharding().collectives[-1].updates == ["w"]


def test_a_refusal_names_what_the_program_has_written(threads):
    x, w = T.dmatrix("x"), L.shared(np.ones((2, 2)), "w")
    wrong = w - T.dot(x, -x.T).sum()
    messages = []
    for mode in MODES.values():
        with refuses(ValueError, got="dot of x and x.T") as caught:
            synk.function([x], [], updates=[(w, wrong)], exact=True, mode=mode)
        messages.append(str(caught.value))
    assert len(set(messages)) == 1


def test_random_streams_and_scans_pass_through(threads):
    x, w = T.dmatrix("x"), L.shared(np.ones(2), "w")
    noise = L.streams(7)[0].normal((2,))
    states, _ = L.scan(lambda h: 0.5 * h, outputs_info=x, n_steps=3)
    new = w + 0 * noise + T.log(T.exp(states[-1]).sum(axis=0))
    f = synk.function([x], [], updates=[(w, new)], exact=True, mode=FULL)
    f(8 * (800 + ROWS))
    want = 1 + np.logaddexp.reduce(800 + ROWS, axis=0)
    for value in synk.gather(w, nd_up=1):
        np.testing.assert_allclose(value, want)


def test_what_is_not_followed_after_all_rewrites_is_after_fewer(threads):
    """A product of quotients is exact: after all rewrites, it would be divided by a power of the number of rows."""
    x = T.dmatrix("x")
    product = T.prod(x / x.shape[0], axis=0)
    f = synk.function([x], [product, T.log(T.exp(x).sum(axis=0))], exact=True, mode=FULL)
    got, stable = f(800 + ROWS)
    np.testing.assert_allclose(got, np.prod((800 + ROWS) / 5, axis=0))
    np.testing.assert_allclose(stable, np.logaddexp.reduce(800 + ROWS, axis=0))


def test_rewrites_are_made_once(threads):
    x = T.dmatrix("x")
    f = synk.function([x], [T.log(T.sqr(x).sum(axis=0))], exact=True, mode=FULL)
    left = f._variants.snapshot.settings["mode"].provided_optimizer
    assert set(MADE) <= set(left.exclude) and not set(MADE) & set(FULL.provided_optimizer.exclude)
    looped = L.scan(lambda h: 0.5 * h, outputs_info=x, n_steps=3)[0][-1].sum(axis=0)
    f = synk.function([x], [looped], exact=True, mode=FULL)  # expressions that replace a loop later are rewritten, too
    assert not set(MADE) & set(f._variants.snapshot.settings["mode"].provided_optimizer.exclude)


def test_the_other_passes_are_made_whole(threads):
    """The other passes make all their rewrites, even those tagged with the name of an omitted pass."""
    x = T.dmatrix("x")
    f = synk.function([x], [T.log(T.sqr(x).sum(axis=0))], exact=True, mode=FULL)
    ours, serial = rewrites_of(f._variants.snapshot.settings["mode"]), rewrites_of(FULL)
    assert ours == {name: found for name, found in serial.items() if name not in MADE} != serial
    assert "specialize" in ours and sum(map(len, ours.values())) > 50


def rewrites_of(mode):
    """Return the names of the rewrites in each pass of a mode and its linker."""
    if IS_THEANO:
        from theano.compile.mode import optdb
    else:
        optdb = mode.optdb
    return {one.name: sorted(names_in(one)) for one in optdb.query(mode._optimizer)}


def names_in(rewriter):
    """Yield the names of a rewriter's parts, recursively."""
    method = "get_local_optimizers" if IS_THEANO else "get_node_rewriters"
    parts = list(getattr(rewriter, method, list)())
    parts += list(rewriter) if hasattr(rewriter, "__iter__") else []
    for one in parts:
        yield str(getattr(one, "name", None) or one)
        yield from names_in(one)


@pytest.mark.skipif(IS_THEANO, reason="Theano's linkers exclude no rewrites")
@pytest.mark.parametrize("linker", ["py", "cvm", "numba"])
def test_rewrites_that_a_linker_excludes_are_not_made(threads, linker):
    """The fusion of a product with a logarithm is only made for C code: Python ignores the logarithm, Numba raises."""
    from pytensor.compile.mode import Mode

    x = T.dmatrix("x")
    mode = Mode(linker, "fast_run")
    f = synk.function([x], [T.log(x.sum(axis=1) + 1).prod(axis=0)], exact=True, mode=mode)
    ours, serial = rewrites_of(f._variants.snapshot.settings["mode"]), rewrites_of(mode)
    assert ours == {name: found for name, found in serial.items() if name not in MADE} != serial
    if linker != "cvm":  # cvm compiles C code, which takes seconds
        assert not [name for name, found in ours.items() if "local_careduce_fusion" in found]
        np.testing.assert_allclose(f(abs(ROWS))[0], np.log(abs(ROWS).sum(axis=1) + 1).prod())


def test_rewrites_that_are_left_out_exist():
    """Most names of omitted rewrites exist in the engine; names from the other engine have no effect."""
    if IS_THEANO:
        from theano.compile.mode import optdb
    else:
        from pytensor.compile.mode import optdb
    found = {"scan", *optdb._names}
    for name in ("canonicalize", "stabilize", "specialize"):
        found |= set(optdb[name]._names)
    names = {*LATER, *OF_ELEMENTS, *MADE}
    assert len(names & found) > 0.6 * len(names), names - found
    specialized = set(optdb["specialize"]._names)
    made_later = {name for name in LATER if name in set(optdb["canonicalize"]._names)}
    assert made_later and made_later <= specialized
