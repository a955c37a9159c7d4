"""Variants of all kinds of Theano functions; expected values come from equivalent functions built by Theano."""

from __future__ import annotations

import numpy as np
import pytest
from peer import prepare_theano
from refusals import refuses

prepare_theano()
theano = pytest.importorskip("theano")
import theano.tensor as T  # noqa: E402
from theano.compile.nanguardmode import NanGuardMode  # noqa: E402
from theano.ifelse import ifelse  # noqa: E402
from theano.sandbox.rng_mrg import MRG_RandomStreams  # noqa: E402
from theano.tensor import raw_random  # noqa: E402
from theano.tensor.shared_randomstreams import RandomStreams  # noqa: E402

from synkhronos.engines.theano.engine import ENGINE  # noqa: E402

pytestmark = pytest.mark.theano
PYTHON = theano.Mode(linker=theano.gof.vm.VM_Linker(use_cloop=True, c_thunks=False), optimizer="fast_run")
X = np.array([[1.0, 2.0], [3.0, 5.0], [-1.0, 0.5]])


def snapshot(inputs, outputs, updates=(), givens=None, mode=PYTHON, **kwargs):
    return ENGINE.snapshot(inputs, outputs, list(updates), givens, mode=mode, **kwargs)


def plain(inputs, outputs, updates=(), **kwargs):
    """Compile a function by Theano alone."""
    return theano.function(inputs, outputs, updates=list(updates), mode=PYTHON, on_unused_input="ignore", **kwargs)


def same(results, truths):
    assert len(results) == len(truths)
    for one, other in zip(results, truths):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


def values(*shareds):
    return [shared.get_value() for shared in shareds]


# -- graphs --------------------------------------------------------------------------------------------------------


def test_a_training_step_on_data_in_givens():
    rng = np.random.RandomState(0)
    x, y, i = T.matrix("x"), T.ivector("y"), T.iscalar("i")
    w, b, v = (theano.shared(rng.randn(*shape), name) for name, shape in (("w", (2, 3)), ("b", (3,)), ("v", (2, 3))))
    data, labels = theano.shared(rng.randn(8, 2), "data"), theano.shared(np.arange(8, dtype="int32") % 3, "labels")
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(x, w) + b), y).mean()
    grads = T.grad(loss, [w, b])
    updates = [(v, 0.9 * v - grads[0]), (w, w + 0.1 * v), (b, b - 0.1 * grads[1])]
    kept = snapshot([i], loss, updates, {x: data[i:], y: labels[i:]})
    assert ENGINE.updated_in(kept) == [v, w, b]
    before = values(v, w, b)
    rows = rng.randn(5, 2), labels.get_value()[::-1][:5].copy()
    sliced, applied = ENGINE.variant(kept, True, [data, labels]), ENGINE.variant(kept, False, [labels, data])
    truth = plain([x, y], [loss] + [new for _, new in updates])
    expected = truth(rows[0][3:], rows[1][3:])
    for _ in range(2):
        same(ENGINE.call(sliced, [3, *rows]), expected)
    same(values(v, w, b), before)
    same(ENGINE.call(applied, [3, *rows[::-1]]), expected[:1])
    same(values(v, w, b), expected[1:])


@pytest.mark.parametrize("broadcastable", [(), (False,), (True,), (True, False), (False, True, False), (False,) * 4])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_an_input_has_the_type_of_its_variable(broadcastable, dtype):
    value = np.arange(2 ** broadcastable.count(False), dtype=dtype).reshape([1 if b else 2 for b in broadcastable])
    s = theano.shared(value, "s", broadcastable=broadcastable)
    other = theano.shared(np.ones((2,) * len(broadcastable), dtype), "other")
    kept = snapshot([], [s + other, s.sum()], [(other, other * s), (s, s + s)])
    f = ENGINE.variant(kept, True, [s])
    (given,) = ENGINE.inputs(f)
    assert given.type == ENGINE.shared_type(s) and given.variable.type == s.type
    new, ones = value + np.asarray(1, dtype), other.get_value()
    results = ENGINE.call(f, [new])
    same(values(s, other), [value, ones])
    s.set_value(new)
    same(results, plain([], [s + other, s.sum(), other * s, s + s])())


@pytest.mark.thorough
def test_all_in_scan():
    h, s, w = T.vector("h"), theano.shared(X, "s"), theano.shared(np.array([0.5, -1.0]), "w")
    states, _ = theano.scan(lambda row, h: T.tanh(h * w + row + s.sum()), sequences=s, outputs_info=h, mode=PYTHON)
    kept = snapshot([h], states, [(w, w + states[-1])])
    f = ENGINE.variant(kept, True, [s, w])
    same(
        ENGINE.call(f, [np.ones(2), X[1:], X[0]]),
        plain([h], [states, w + states[-1]], givens=[(s, T.constant(X[1:])), (w, T.constant(X[0]))])(np.ones(2)),
    )
    same(values(s, w), [X, np.array([0.5, -1.0])])


@pytest.mark.parametrize("update", ["of scan", "by default"])
def test_random_numbers_in_scan(update):
    def build():
        streams, w = MRG_RandomStreams(7), theano.shared(np.array([1.0, 2.0]), "w")
        h = T.vector("h")
        result, updates = theano.scan(lambda h: h * w + streams.uniform((2,)), outputs_info=h, n_steps=4, mode=PYTHON)
        (state,) = [variable for variable in updates if variable is not w]
        return h, w, result, state, list(updates.items()) if update == "of scan" else []

    h, w, result, state, updates = build()
    truth = plain([h], [result, w + result[-1]], updates)
    expected = [truth(X[0]) for _ in range(3)]
    h, w, result, state, updates = build()
    kept = snapshot([h], result, updates + [(w, w + result[-1])])
    assert set(ENGINE.updated_in(kept)) == {state, w} and ENGINE.is_random(state)
    f = ENGINE.variant(kept, True, [])
    for one in expected:
        same(ENGINE.call(f, [X[0]]), one)
    same(values(w), [np.array([1.0, 2.0])])


def test_ifelse():
    x, s, w = T.matrix("x"), theano.shared(X, "s"), theano.shared(np.ones((1, 2)), "w")
    chosen = ifelse(T.gt(x.sum(), 0), s * 2, s + T.addbroadcast(w, 0))
    f = ENGINE.variant(snapshot([x], chosen, [(w, chosen[:1])]), True, [s])
    same(ENGINE.call(f, [X, X[1:]]), [X[1:] * 2, X[1:2] * 2])
    same(ENGINE.call(f, [-X, X[1:]]), [X[1:] + 1, X[1:2] + 1])


def test_batch_normalisation_as_in_lasagne():
    x, running = T.matrix("x"), theano.shared(np.zeros(2), "running")
    clone = theano.clone(running, share_inputs=False)
    clone.default_update = 0.9 * clone + 0.1 * x.mean(0)
    kept = snapshot([x], x - (x.mean(0) + 0 * clone))
    assert ENGINE.updated_in(kept) == [clone]
    f = ENGINE.variant(kept, True, [])
    for value in (X, X[1:]):
        same(ENGINE.call(f, [value]), [value - value.mean(0), 0.1 * value.mean(0)])
    same(values(running, clone), [np.zeros(2), np.zeros(2)])
    ENGINE.call(ENGINE.variant(kept, False, []), [X])
    same(values(running), [0.1 * X.mean(0)])


def test_sparse_and_other_objects():
    sparse = pytest.importorskip("scipy.sparse")
    import theano.sparse

    matrix = sparse.csr_matrix(np.array([[0.0, 2.0], [3.0, 0.0]]))
    w, x = theano.shared(matrix, "w"), T.matrix("x")
    thing = theano.shared({"a": 2}, "thing")
    seen = theano.compile.ops.FromFunctionOp(
        lambda x, thing: x * thing["a"], [T.dmatrix, theano.gof.generic], [T.dmatrix], None
    )
    kept = snapshot([x], seen(theano.sparse.structured_dot(w, x), thing), [(w, theano.sparse.mul(w, 3.0))])
    product, new = ENGINE.call(ENGINE.variant(kept, True, [thing]), [X[:2], {"a": 5}])
    np.testing.assert_array_equal(product, matrix.toarray() @ X[:2] * 5)
    np.testing.assert_array_equal(new.toarray(), matrix.toarray() * 3)
    product, new = ENGINE.call(ENGINE.variant(kept, True, [w]), [X[:2], matrix * 10])
    np.testing.assert_array_equal(product, matrix.toarray() @ X[:2] * 20)
    np.testing.assert_array_equal(new.toarray(), matrix.toarray() * 30)
    np.testing.assert_array_equal(w.get_value().toarray(), matrix.toarray())


def test_an_input_that_is_itself_computed():
    x, s = T.matrix("x"), theano.shared(X, "s")
    middle = s * 2 + x
    f = ENGINE.variant(snapshot([middle], middle + s), False, [s])
    same(ENGINE.call(f, [X, X[::-1]]), [X + X[::-1]])


def test_givens_of_another_type():
    x, s = T.matrix("x"), theano.shared(X.astype("float32"), "s")
    kept = snapshot([], x * 2, givens=[(x, s)], rebuild_strict=False)
    f = ENGINE.variant(kept, False, [s])
    same(ENGINE.call(f, [X[1:].astype("float32")]), [X[1:].astype("float32") * 2])


# -- inputs and outputs --------------------------------------------------------------------------------------------


def test_outputs_that_may_be_overwritten_are_not_where_slices_need_them():
    x, w = T.vector("x"), theano.shared(np.zeros(3), "w")
    outputs = [theano.Out(output, borrow=True) for output in (x * 2, x, w)]
    f = ENGINE.variant(
        snapshot(
            [theano.In(x, mutable=True), theano.In(T.vector("y"), borrow=True)],
            outputs,
            [(w, x)],
            mode=theano.Mode("cvm_nogc", "fast_run"),
        ),
        True,
        [],
    )
    assert [given.mutable for given in ENGINE.inputs(f)] == [True, False]
    arguments = [np.array([1.0, 2.0, 3.0]) * k for k in (1, 10)]
    results = [ENGINE.call(f, [argument.copy(), argument]) for argument in arguments]
    for result, argument in zip(results, arguments):
        same(result, [argument * 2, argument, np.zeros(3), argument])


def test_later_changes_of_an_input_do_not_matter():
    x, y = T.vector("x"), T.vector("y")
    given = theano.In(x, value=[1.0], name="why")
    kept = snapshot([y, given], x + y)
    given.value, given.name, given.mutable = [5.0], "later", True
    f = ENGINE.variant(kept, False, [])
    assert (ENGINE.inputs(f)[1].name, ENGINE.inputs(f)[1].mutable) == ("why", False)
    same(f([1.0]), [np.array([2.0])])


def test_inputs_keep_how_they_convert():
    x, y, z = T.fvector("x"), T.fvector("y"), T.vector("z")
    kept = snapshot(
        [x, theano.In(y, strict=True), theano.In(z, value=[1.0], allow_downcast=False)],
        x + y + z,
        allow_input_downcast=True,
    )
    f = ENGINE.variant(kept, True, [])
    one, other, _ = ENGINE.inputs(f)
    assert ENGINE.convert(one, np.ones(1), "x").dtype == "float32"
    with refuses(TypeError, "y"):
        ENGINE.convert(other, np.ones(1), "y")
    same([f(np.ones(1), np.ones(1, "float32"))[0]], [np.array([3.0])])


def test_inputs_as_tuples():
    x, y = T.vector("x"), T.vector("y")
    f = ENGINE.variant(snapshot([(x, np.ones(2)), ("why", y)], x * y, mode=PYTHON), True, [])
    assert [(given.name, given.has_default) for given in ENGINE.inputs(f)] == [("x", True), ("why", False)]
    same(f(why=[2.0, 3.0]), [np.array([2.0, 3.0])])


def test_mode_name_and_profile_are_those_of_the_function():
    x, s = T.vector("x"), theano.shared(np.ones(2), "s")
    profile = theano.compile.ProfileStats(atexit_print=False)
    f = ENGINE.variant(snapshot([x], x * s, [(s, s + x)], name="step", profile=profile), True, [s])
    assert f.maker.mode is PYTHON and f.profile is profile and f.name == "step (sliced, s as input)"
    same(ENGINE.call(f, [X[0], X[1]]), [X[0] * X[1], X[0] + X[1]])
    assert profile.fct_callcount == 1
    assert ENGINE.variant(snapshot([x], x, name="step"), True, []).name == "step (sliced)"
    assert __file__ in ENGINE.variant(snapshot([x], x), True, []).name
    with theano.change_flags(mode="NanGuardMode"):
        kept = snapshot([x], x, mode=None)
    assert type(ENGINE.variant(kept, False, []).maker.mode) is NanGuardMode


def test_debug_mode():
    x, s = T.vector("x"), theano.shared(np.ones(2), "s")
    mode = theano.compile.DebugMode(check_c_code=False, stability_patience=1)
    f = ENGINE.variant(snapshot([x], x * s, [(s, s + x)], mode=mode), True, [s])
    assert f.maker.mode is mode
    same(ENGINE.call(f, [X[0], X[1]]), [X[0] * X[1], X[0] + X[1]])


# -- random streams ------------------------------------------------------------------------------------------------


def pairs_drawn(drawn, times):
    """Return all pairs of consecutive numbers in a draw (single numbers repeat by chance)."""
    f = theano.function([], drawn, mode=theano.Mode("cvm", None))
    numbers = np.concatenate([f() for _ in range(times)])
    return set(zip(numbers[:-1], numbers[1:]))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [MRG_RandomStreams, RandomStreams])
def test_ranks_do_not_meet(kind):
    def draw(jumps):
        if kind is MRG_RandomStreams:
            drawn = kind(5).uniform((10**4,), dtype="float64", nstreams=1)
            (state,) = ENGINE.updated_in(snapshot([], drawn))
        else:
            drawn = kind(5).uniform((10**4,), dtype="float64")
            state = drawn.rng
        if jumps is not None:
            ENGINE.put(state, ENGINE.jumped(state, ENGINE.get(state), jumps))
        return pairs_drawn(drawn, 10)

    ranks = [draw(rank) for rank in range(3)]
    assert [len(rank) for rank in ranks] == [10**5 - 1] * 3
    assert len(set.union(*ranks)) == 3 * (10**5 - 1)
    assert draw(None) == ranks[0]  # rank 0 draws the numbers of plain Theano


def test_mrg_states_keep_their_rows_apart():
    drawn = MRG_RandomStreams(5).normal((6,))
    (state,) = ENGINE.updated_in(snapshot([], drawn))
    value = state.get_value()
    jumped = ENGINE.jumped(state, value, 3)
    assert jumped.shape == value.shape and jumped.dtype == value.dtype == "int32" and len(value) > 1
    np.testing.assert_array_equal(value, state.get_value())
    for row, expected in list(zip(value, jumped))[::1000]:
        np.testing.assert_array_equal(ENGINE.jumped(state, row[np.newaxis], 3)[0], expected)


def test_reseeded_mrg_streams_are_those_of_that_seed():
    def build(seed):
        streams = MRG_RandomStreams(seed)
        drawn = [streams.uniform((2,)), streams.normal((3,)), streams.binomial((4,))]
        return drawn, [state for state, *_ in streams.state_updates]

    truth, (drawn, states) = build(77)[0], build(5)
    for index, state in enumerate(states):
        state.set_value(ENGINE.reseeded(state, ENGINE.get(state), 77, index))
    f, g = plain([], drawn), plain([], truth)
    for _ in range(2):
        same(f(), g())


def test_a_random_state_without_streams():
    state = theano.shared(np.random.RandomState(3), "state")
    assert ENGINE.is_random(state)
    new, drawn = raw_random.uniform(state, (2,))
    f = ENGINE.variant(snapshot([], drawn, [(state, new)]), True, [])
    truth = np.random.RandomState(3)
    for _ in range(3):
        same(ENGINE.call(f, []), [truth.uniform(size=(2,))])


@pytest.mark.parametrize("value", [np.ones((3, 6)), np.ones(6, "int32"), {"a": 1}], ids=repr)
def test_unknown_random_states_are_refused(value):
    state = theano.shared(value, "state")
    state.tag.is_rng = True
    assert ENGINE.is_random(state)
    for refused in (lambda: ENGINE.jumped(state, value, 1), lambda: ENGINE.reseeded(state, value, 1, 0)):
        with refuses(TypeError, "random state state", expected="MRG"):
            refused()
