"""Update rules compared with Lasagne's, or with papers where Lasagne has none, and on ranks with serial results.

Modules: `synkhronos.extensions.scalars`, `synkhronos.extensions.shared_variables`.
"""

from collections import OrderedDict

import numpy as np
import pytest
from refusals import refuses, reports

import synkhronos as synk

pytest.importorskip("theano")

import theano  # noqa: E402
import theano.tensor as T  # noqa: E402

from synkhronos.extensions import updates as rules  # noqa: E402

pytestmark = pytest.mark.theano

#: Python code only, without the C compiler.
MODE = theano.Mode(linker="py", optimizer="fast_compile")
BATCHES = np.random.RandomState(0).randn(20, 7, 2)


class Model:
    """A small smooth network whose parameters are a matrix, a broadcasting row, a vector and a scalar."""

    def __init__(self, dtype="float64", last=None):
        random = np.random.RandomState(1)
        self.w = theano.shared(random.randn(2, 3).astype(dtype), "w")
        self.b = theano.shared(random.randn(1, 3).astype(dtype), "b", broadcastable=(True, False))
        self.v = theano.shared(random.randn(3).astype(last or dtype), "v")
        self.c = theano.shared(np.asarray(0.5, last or dtype), "c")
        self.params = [self.w, self.b, self.v, self.c]
        self.x = T.matrix("x", dtype=dtype)
        hidden = T.tanh(T.dot(self.x, self.w) + self.b)
        self.loss = T.mean(T.sqr(T.dot(hidden, self.v) + self.c - T.sin(self.x[:, 0])))
        self.before = self.values()

    def values(self):
        return [param.get_value() for param in self.params]

    def batches(self):
        return BATCHES.astype(self.x.dtype)


def flat(values):
    return np.concatenate([np.ravel(value) for value in values]).astype("float64")


def check(model, expected, rtol):
    """Compare the model's values with the expected ones, and check that they have changed."""
    for param, value, before in zip(model.params, model.values(), model.before):
        assert value.shape == before.shape and value.dtype == before.dtype == param.dtype
        assert np.abs(value - before).max() > 1e-4
    np.testing.assert_allclose(flat(model.values()), flat(expected), rtol=rtol, atol=rtol)


def train(model, made, between=None):
    """Train by one of our rules, in plain Theano."""
    grad_updates, param_updates, _ = made
    gradient = theano.function([model.x], updates=grad_updates, mode=MODE)
    step = theano.function([], updates=param_updates, mode=MODE)
    for i, batch in enumerate(model.batches()):
        if between:
            between(i)
        gradient(batch)
        step()


def train_serial(model, updates, between=None, batches=None):
    """Train by the updates of one dictionary, in plain Theano."""
    step = theano.function([model.x], updates=updates, mode=MODE)
    for i, batch in enumerate(model.batches() if batches is None else batches):
        if between:
            between(i)
        step(batch)
    return model.values()


# -- against Lasagne ---------------------------------------------------------------------------------------------------

LASAGNE = ["sgd", "momentum", "nesterov_momentum", "adagrad", "rmsprop", "adadelta", "adam"]
ROUNDING = {"float32": 1e-5, "float64": 1e-11}


def lasagne_updates():
    pytest.importorskip("lasagne")
    import lasagne.updates

    return lasagne.updates


def rate_of(kind, dtype):
    """Return a learning rate, and a function that changes it or None."""
    if kind == "number":
        return 0.05, None
    shared = theano.shared(np.asarray(0.05, dtype), "rate")
    return shared if kind == "shared" else shared * T.exp(-shared), lambda i: shared.set_value(
        np.asarray(0.05 / (1 + i // 5), dtype)
    )


@pytest.mark.thorough("float64")
@pytest.mark.parametrize(
    "dtype, kind",
    [
        ("float32", "number"),
        ("float32", "expression"),
        ("float64", "number"),
        ("float64", "shared"),
        ("float64", "expression"),
    ],
)
@pytest.mark.parametrize("name", LASAGNE)
def test_as_lasagne(name, dtype, kind):
    with theano.change_flags(floatX=dtype):
        ours, theirs = Model(dtype), Model(dtype)
        rate, between = rate_of(kind, dtype)
        train(ours, getattr(rules, name)(ours.loss, ours.params, rate), between)
        rate, between = rate_of(kind, dtype)
        expected = train_serial(theirs, getattr(lasagne_updates(), name)(theirs.loss, theirs.params, rate), between)
    check(ours, expected, ROUNDING[dtype])


OTHERS = {
    "momentum": ["momentum"],
    "nesterov_momentum": ["momentum"],
    "adagrad": ["epsilon"],
    "rmsprop": ["rho", "epsilon"],
    "adadelta": ["rho", "epsilon"],
    "adam": ["beta1", "beta2", "epsilon"],
}
NUMBERS = {"momentum": 0.7, "rho": 0.8, "beta1": 0.6, "beta2": 0.9, "epsilon": 0.01}


@pytest.mark.parametrize("name", list(OTHERS))
def test_other_scalars_as_lasagne(name):
    """Options other than the defaults, as shared variables, work like Lasagne's numbers."""
    ours, theirs = Model(), Model()
    options = {option: theano.shared(NUMBERS[option], option) for option in OTHERS[name]}
    train(ours, getattr(rules, name)(ours.loss, ours.params, learning_rate=0.05, **options))
    numbers = {option: NUMBERS[option] for option in OTHERS[name]}
    updates = getattr(lasagne_updates(), name)(theirs.loss, theirs.params, learning_rate=0.05, **numbers)
    check(ours, train_serial(theirs, updates), 1e-11)


@pytest.mark.parametrize("name", LASAGNE[3:])
def test_default_learning_rate_as_lasagne(name):
    ours, theirs = Model(), Model()
    train(ours, getattr(rules, name)(ours.loss, ours.params))
    updates = getattr(lasagne_updates(), name)(theirs.loss, theirs.params)
    check(ours, train_serial(theirs, updates), 1e-11)


@pytest.mark.parametrize("apply", ["apply_momentum", "apply_nesterov_momentum"])
@pytest.mark.parametrize("some", [False, True])
def test_momentum_on_other_updates_as_lasagne(apply, some):
    ours, theirs = Model(), Model()
    name = "adagrad" if some else "sgd"  # (momentum must not apply to adagrad's squares)
    grad_updates, param_updates, grad_shared = getattr(rules, name)(ours.loss, ours.params, 0.05)
    given = dict(param_updates)
    changed = getattr(rules, apply)(param_updates, ours.params[1:] if some else None, momentum=0.8)
    assert dict(param_updates) == given
    train(ours, (grad_updates, changed, grad_shared))
    updates = getattr(lasagne_updates(), name)(theirs.loss, theirs.params, 0.05)
    updates = getattr(lasagne_updates(), apply)(updates, theirs.params[1:] if some else None, momentum=0.8)
    check(ours, train_serial(theirs, updates), 1e-11)


def test_momentum_on_a_list_of_updates():
    ours, theirs = Model(), Model()
    grad_updates, param_updates, grad_shared = rules.sgd(ours.loss, ours.params, 0.05)
    train(ours, (grad_updates, rules.apply_momentum(list(param_updates.items())), grad_shared))
    check(ours, train_serial(theirs, lasagne_updates().momentum(theirs.loss, theirs.params, 0.05)), 1e-11)


# -- against the papers ------------------------------------------------------------------------------------------------


def paper_sgd(t, state, g, a):
    return a * g


def paper_adamax(t, state, g, a, b1=0.9, b2=0.999, e=1e-8):
    """Return a step of Adamax: Kingma and Ba (2015), algorithm 2."""
    state["m"] = b1 * state.get("m", 0) + (1 - b1) * g
    state["u"] = np.maximum(b2 * state.get("u", 0), abs(g))
    return a / (1 - b1**t) * state["m"] / (state["u"] + e)


def paper_amsgrad(t, state, g, a, b1=0.9, b2=0.999, e=1e-8):
    """Return a step of AMSGrad: Reddi et al. (2018), algorithm 2, with Kingma and Ba's step sizes."""
    state["m"] = b1 * state.get("m", 0) + (1 - b1) * g
    state["v"] = b2 * state.get("v", 0) + (1 - b2) * g**2
    state["largest"] = np.maximum(state.get("largest", 0), state["v"])
    return a * np.sqrt(1 - b2**t) / (1 - b1**t) * state["m"] / (np.sqrt(state["largest"]) + e)


PAPERS = {"sgd_nonflat": paper_sgd, "adamax": paper_adamax, "amsgrad": paper_amsgrad}


def train_by_paper(model, name, rates, batches=None, **options):
    """Train in NumPy, with only the gradients from Theano."""
    gradient = theano.function([model.x], theano.grad(model.loss, model.params), mode=MODE)
    states = [{} for _ in model.params]
    for t, batch in enumerate(model.batches() if batches is None else batches, 1):
        for param, state, grad in zip(model.params, states, gradient(batch)):
            step = PAPERS[name](t, state, grad.astype("float64"), rates[t - 1], **options)
            param.set_value((param.get_value() - step).astype(param.dtype))
    return model.values()


@pytest.mark.thorough("float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["number", "shared", "expression"])
@pytest.mark.parametrize("name", list(PAPERS))
def test_as_paper(name, dtype, kind):
    with theano.change_flags(floatX=dtype):
        ours, theirs = Model(dtype), Model(dtype)
        rate, between = rate_of(kind, dtype)
        rates = np.full(len(BATCHES), 0.05) if kind == "number" else 0.05 / (1 + np.arange(len(BATCHES)) // 5)
        rates = rates * np.exp(-rates) if kind == "expression" else rates
        train(ours, getattr(rules, name)(ours.loss, ours.params, rate), between)
        expected = train_by_paper(theirs, name, rates)
    # (1 - 0.999 ** t in float32, as in Lasagne's Adam)
    check(ours, expected, 2e-5 if dtype == "float32" else 1e-11)


@pytest.mark.parametrize("name, rate", [("adamax", 0.002), ("amsgrad", 0.001)])
def test_other_scalars_as_paper(name, rate):
    ours, theirs = Model(), Model()
    options = {option: NUMBERS[option] for option in ("beta1", "beta2", "epsilon")}
    train(ours, getattr(rules, name)(ours.loss, ours.params, **options))
    check(ours, train_by_paper(theirs, name, [rate] * 20, b1=0.6, b2=0.9, e=0.01), 1e-11)


def test_largest_of_amsgrad_makes_a_difference():
    """AMSGrad differs from Adam when gradients become small."""
    g, w = theano.shared(np.array([10.0])), theano.shared(np.zeros(1), "w")
    rates = []
    for name in ("adam", "amsgrad"):
        w.set_value([0.0])
        grad_updates, param_updates, _ = getattr(rules, name)([g * 1], [w], beta2=0.5)
        both = (
            theano.function([], updates=grad_updates, mode=MODE),
            theano.function([], updates=param_updates, mode=MODE),
        )
        for value in (10.0, 1.0, 1.0, 1.0, 1.0):
            g.set_value([value])
            for f in both:
                f()
        rates.append(-w.get_value()[0])
    assert rates[0] > 1.3 * rates[1] > 0


# -- on ranks ----------------------------------------------------------------------------------------------------------

ALL = LASAGNE + list(PAPERS)
SIZES = [7, 5, 1, 6, 2, 7]  # includes fewer rows than ranks


def train_on_ranks(model, made, sizes):
    grad_updates, param_updates, grad_shared = made
    grad_fn = synk.function([model.x], model.loss, updates=grad_updates, mode=MODE)
    param_fn = synk.function([], updates=param_updates, mode=MODE)
    for batch, size in zip(model.batches(), sizes):
        grad_fn(batch[:size])
        synk.all_reduce(grad_shared, weights=grad_fn)
        param_fn()
    assert synk.in_sync(model.params)


@pytest.fixture
def fork():
    """Return `synkhronos.fork`; close the session at the end."""
    yield synk.fork
    synk.close()


@pytest.mark.thorough
@pytest.mark.parametrize("n", [2, 3])
def test_ranks_compute_what_the_serial_program_does(fork, n):
    batches = [batch[:size] for batch, size in zip(BATCHES, SIZES)]
    fork(n)
    for name in ALL:
        ours, theirs = Model(), Model()
        train_on_ranks(ours, getattr(rules, name)(ours.loss, ours.params, 0.05), SIZES)
        if name in PAPERS:
            expected = train_by_paper(theirs, name, [0.05] * len(SIZES), batches)
        else:
            expected = train_serial(
                theirs, getattr(lasagne_updates(), name)(theirs.loss, theirs.params, 0.05), batches=batches
            )
        check(ours, expected, 1e-10)


def test_ranks_with_mixed_dtypes_momentum_and_slices(fork):
    """Mixed float32 and float64 parameters agree with a serial program in float64."""
    ours, theirs = Model("float64", last="float32"), Model()
    fork(2)
    grad_updates, param_updates, grad_shared = rules.sgd(ours.loss, ours.params, theano.shared(0.05, "rate"))
    param_updates = rules.apply_momentum(param_updates, ours.params)
    assert [shared.dtype for shared in grad_shared] == ["float64", "float32"]
    grad_fn = synk.function([ours.x], updates=grad_updates, mode=MODE)
    param_fn = synk.function([], updates=param_updates, mode=MODE)
    for batch in BATCHES:
        grad_fn(batch, num_slices=2)
        synk.all_reduce(grad_shared, weights=grad_fn)
        param_fn()
    check(ours, train_serial(theirs, lasagne_updates().momentum(theirs.loss, theirs.params, 0.05)), 1e-5)


# -- return values -----------------------------------------------------------------------------------------------------


def test_one_flat_vector():
    model = Model()
    grad_updates, param_updates, grad_shared = rules.adam(model.loss, model.params)
    assert isinstance(grad_updates, OrderedDict) and list(grad_updates) == [grad_shared]
    assert grad_shared.get_value().shape == (6 + 3 + 3 + 1,) and grad_shared.dtype == "float64"
    theano.function([model.x], updates=grad_updates, mode=MODE)(BATCHES[0])
    expected = theano.function([model.x], theano.grad(model.loss, model.params), mode=MODE)(BATCHES[0])
    np.testing.assert_allclose(grad_shared.get_value(), flat(expected), rtol=1e-12)
    assert set(model.params) < set(param_updates) and grad_shared not in param_updates


def test_gradients_are_written_in_place():
    model = Model()
    grad_updates, _, vector = rules.sgd(model.loss, model.params, 0.1)
    # `MODE` has too few optimizations for in-place operations.
    gradients = theano.function([model.x], updates=grad_updates, mode=theano.Mode("py", "fast_run"))
    there = vector.get_value(borrow=True)
    gradients(model.batches()[0])
    assert vector.get_value(borrow=True) is there
    serial = theano.function([model.x], T.grad(model.loss, model.params), mode=MODE)(model.batches()[0])
    np.testing.assert_allclose(there, flat(serial), rtol=1e-12)


def test_gradients_of_each_parameter():
    model = Model("float32", last="float64")
    grad_updates, _, grad_shared = rules.sgd_nonflat(model.loss, model.params, 0.1)
    assert list(grad_updates) == grad_shared and isinstance(grad_shared, list)
    assert [shared.type for shared in grad_shared] == [param.type for param in model.params]
    assert [shared.get_value().shape for shared in grad_shared] == [(2, 3), (1, 3), (3,), ()]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("floatX", ["float32", "float64"])
def test_scalars_of_any_dtype_leave_parameters_theirs(name, floatX):
    """The updates have the types of their variables, since Theano refuses others."""
    with theano.change_flags(floatX=floatX):
        model = Model("float32", last="float64")
        for rate in (
            theano.shared(np.float32(0.1)),
            theano.shared(0.1),
            theano.shared(1),
            np.float64(0.1),
            np.array(1),
        ):
            for updates in getattr(rules, name)(model.loss, model.params, rate)[:2]:
                assert [new.type for new in updates.values()] == [shared.type for shared in updates]


def test_learning_rate_may_be_an_input():
    model, rate = Model(), T.dscalar("rate")
    grad_updates, param_updates, _ = rules.sgd([T.ones_like(param) for param in model.params], model.params, rate)
    theano.function([], updates=grad_updates, mode=MODE)()
    theano.function([rate], updates=param_updates, mode=MODE)(0.25)
    np.testing.assert_allclose(flat(model.values()), flat(model.before) - 0.25, rtol=1e-12)


def test_given_gradients_are_brought_to_their_parameters():
    """Gradients of another dtype or broadcasting pattern are converted to their parameters'."""
    w = theano.shared(np.zeros((2, 3), "float32"), "w")
    row = theano.shared(np.zeros((1, 3), "float32"), "row", broadcastable=(True, False))
    empty = theano.shared(np.zeros((0, 4), "float32"), "empty")
    given = [
        theano.shared(np.array([[1.0, 2.0, 3.0]]), broadcastable=(True, False)) * 1.0,
        theano.shared(np.array([[4.0, 5.0, 6.0]])) * 1.0,
        T.zeros_like(empty),
    ]
    grad_updates, param_updates, grad_shared = rules.sgd(given, (p for p in (w, row, empty)), 1)
    theano.function([], updates=grad_updates, mode=MODE)()
    assert grad_shared.get_value().tolist() == [1, 2, 3, 1, 2, 3, 4, 5, 6]
    theano.function([], updates=param_updates, mode=MODE)()
    assert w.get_value().tolist() == [[-1, -2, -3]] * 2 and row.get_value().tolist() == [[-4, -5, -6]]


def test_a_gradient_of_another_shape_moves_nothing():
    a, b = theano.shared(np.zeros(2), "a"), theano.shared(np.zeros(3), "b")
    given = [theano.shared(np.ones(3)) * 1, theano.shared(np.ones(2)) * 1]  # five elements in total, as expected
    gradient = theano.function([], updates=rules.sgd(given, [a, b], 1)[0], mode=MODE)
    with pytest.raises(ValueError):
        gradient()


# -- bad input ---------------------------------------------------------------------------------------------------------


class DeviceType(T.TensorType):
    """A stand-in for the type of a variable on a GPU."""

    context_name = "dev1"


def bad_params():
    model, other = Model(), theano.shared(np.zeros(3), "other")
    on_device = T.sharedvar.TensorSharedVariable("far", DeviceType("float64", (False,)), np.zeros(3), False)
    sparse = pytest.importorskip("scipy.sparse").csr_matrix(np.eye(2))
    loss, w = model.loss, model.w
    return OrderedDict(
        [
            ("unused", (loss, [w, other], ValueError, "params[1] ('other')", "the loss depends on")),
            ("unused in list", ([w * 1, None], [w, other], ValueError, "'other'", "the loss depends on")),
            (
                "nameless",
                (loss, [theano.shared(0.0), w], ValueError, "params[0] (without a name)", "the loss depends on"),
            ),
            (
                "no shared",
                (loss, [w, model.b * 2], TypeError, "params[1] ", "a shared variable", "TensorType"),
            ),
            (
                "array",
                (loss, [w, np.zeros(2)], TypeError, "params[1]", "shared variable", "of type ndarray"),
            ),
            (
                "twice",
                (
                    loss,
                    [w, model.b, w],
                    ValueError,
                    "params[2] ('w')",
                    None,
                    "listed twice (it shares the value of params[0])",
                ),
            ),
            ("clone", (loss, [w, w.clone()], ValueError, "params[1] ('w')", None, "listed twice")),
            (
                "integers",
                (
                    loss,
                    [theano.shared(np.arange(3), "n")],
                    TypeError,
                    "('n')",
                    "floating-point numbers",
                    "TensorType(int64, vector)",
                ),
            ),
            ("sparse", (loss, [theano.shared(sparse, "s")], TypeError, "('s')", "a dense array")),
            ("one", (loss, w, TypeError, "params", "a list of shared variables", "w")),
            ("number", (loss, 3, TypeError, "params", "a list of shared variables", "3")),
            ("none", (loss, [], ValueError, "params", "at least one")),
            (
                "device",
                (
                    loss,
                    [w, on_device],
                    ValueError,
                    "params[1] ('far')",
                    "target='cpu', like params[0] ('w')",
                    "target='dev1'",
                ),
            ),
            ("loss of rows", (model.x.sum(axis=1), [w], TypeError, "loss_or_grads", "0-dimensional", None, "average")),
            ("integer loss", (T.argmax(w), [w], TypeError, "loss_or_grads", "floating-point", "int64")),
            ("number as loss", (1.0, [w], TypeError, "loss_or_grads", None, "1.0 of type float")),
            (
                "too few",
                ([w * 1], [w, model.b], ValueError, "loss_or_grads", "one gradient per parameter (2 in total)", "1"),
            ),
            ("dimensions", ([w * 1, w * 1], [w, model.v], TypeError, "params[1] ('v')", "ndim=1", "matrix")),
            ("complex", ([w * 1j], [w], TypeError, "params[0] ('w')", "a real gradient")),
            (
                "number as gradient",
                ([0.0], [w], TypeError, "params[0] ('w')", "a real gradient", "0.0"),
            ),
        ]
    )


@pytest.mark.parametrize("name", ["sgd", "adam", "sgd_nonflat"])
def test_bad_params_are_named(name):
    for case, (loss, params, error, *fields) in bad_params().items():
        with refuses(error, *fields):
            getattr(rules, name)(loss, params, 0.1)
            pytest.fail(f"{case} was accepted")


@pytest.mark.parametrize(
    "bad", ["0.1", None, True, 1j, [0.1], np.array([0.1]), T.dvector("rates"), T.zscalar("z")], ids=repr
)
def test_bad_scalars_are_named(bad):
    model = Model()
    for name in ALL:
        with refuses(TypeError, "learning_rate", "number"):
            getattr(rules, name)(model.loss, model.params, bad)
        for option in OTHERS.get(name, []):
            with refuses(TypeError, option, "a number"):
                getattr(rules, name)(model.loss, model.params, 0.1, **{option: bad})


@pytest.mark.parametrize("bad", [np.nan, np.inf, np.float32(-np.inf), 10**400])
def test_scalars_are_finite(bad):
    model = Model()
    with refuses(ValueError, "learning_rate", "finite", repr(bad)):
        rules.rmsprop(model.loss, model.params, bad)


@pytest.mark.parametrize("name", ALL)
def test_unknown_options_are_named(name):
    model = Model()
    with reports(TypeError, "'decay'"):
        getattr(rules, name)(model.loss, model.params, learning_rate=0.1, decay=0.5)


@pytest.mark.parametrize("apply", [rules.apply_momentum, rules.apply_nesterov_momentum])
def test_bad_updates_are_named(apply):
    model = Model()
    made = rules.sgd(model.loss, model.params[:2], 0.1)
    with refuses(TypeError, "param_updates", "a rule"):
        apply(made)
    with refuses(ValueError, "params[1] ('v')", "param_updates"):
        apply(made[1], [model.w, model.v])
    with refuses(ValueError, "params[1] ('w')", got="listed twice"):
        apply(made[1], [model.w, model.w])
    with refuses(TypeError, "momentum", "a number"):
        apply(made[1], momentum="much")
