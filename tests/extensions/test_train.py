"""Training functions compared with Lasagne's rules in one process, and with ranks simulated one after another.

Modules: `average_batch_norm`, `gradients`, `scalars`, `shared_variables`, `train_function`, `train_theano`.
"""

import numpy as np
import pytest
from refusals import refuses

import synkhronos as synk

pytest.importorskip("theano")

import theano  # noqa: E402
import theano.tensor as T  # noqa: E402

from synkhronos.extensions import rules, train, updates  # noqa: E402

pytestmark = pytest.mark.theano

#: Python code only, without the C compiler.
MODE = theano.Mode(linker="py", optimizer="fast_compile")
OPTIONS = {"mode": MODE}
RANDOM = np.random.RandomState(0)
X, Y = RANDOM.randn(40, 2), RANDOM.randn(40)
BATCHES = [
    np.arange(7),
    np.array([9, 3, 30, 4, 8]),
    np.array([12]),
    np.arange(39, 33, -1),
    np.array([5, 20]),
    np.arange(10, 27),
]


class Model:
    """A small smooth network with a scalar among its parameters."""

    def __init__(self, x=None, y=None):
        random = np.random.RandomState(1)
        self.w = theano.shared(random.randn(2, 3), "w")
        self.v = theano.shared(random.randn(3), "v")
        self.c = theano.shared(np.asarray(0.5), "c")
        self.params = [self.w, self.v, self.c]
        self.x, self.y = T.dmatrix("x") if x is None else x, T.dvector("y") if y is None else y
        self.errors = T.dot(T.tanh(T.dot(self.x, self.w)), self.v) + self.c - self.y
        self.loss = T.sqr(self.errors).mean()

    def values(self):
        return np.concatenate([param.get_value().ravel() for param in self.params])

    def step(self, make, rule, **options):
        """Return the training step that `make` makes, at the rate 0.1."""
        return make(self.loss, self.params, self.x, self.y, rule, 0.1, function_options=OPTIONS, **options)

    def check(self, losses, rule, batches=BATCHES):
        """Compare losses and the parameters' values to those of Lasagne's rule at the rate 0.1."""
        expected_losses, expected = serial(rule, batches, learning_rate=0.1)
        np.testing.assert_allclose(losses, expected_losses, rtol=1e-11)
        np.testing.assert_allclose(self.values(), expected, rtol=1e-9)


def lasagne_updates():
    return pytest.importorskip("lasagne").updates


def serial(rule, batches=BATCHES, between=None, **options):
    """Train with one of Lasagne's rules; return the losses and the model's values."""
    model = Model()
    step = theano.function(
        [model.x, model.y],
        model.loss,
        mode=MODE,
        updates=getattr(lasagne_updates(), rule)(model.loss, model.params, **options),
    )
    losses = [float(step(X[batch], Y[batch])) for batch in batches]
    return losses, model.values()


@pytest.fixture(params=["make_train_function", "make_train_function_theano"])
def made_by(request):
    """Return a function that returns a maker of steps, for its number of ranks (0: no session) or for the twin."""

    def maker(n=0):
        if n and request.param == "make_train_function":
            synk.fork(n, use_gpu=False)
        return getattr(train, request.param)

    return maker


@pytest.fixture(autouse=True)
def closed():
    """Close the session after each test."""
    yield
    synk.close()


# -- the serial step ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, root", [(1, 0), (2, 1), (3, 0)])
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_ranks_take_the_serial_steps(n, root, rule):
    """Ranks take the serial steps, for uneven batches and for batches with fewer rows than ranks."""
    synk.fork(n, use_gpu=False, master_rank=root)
    model = Model()
    step = model.step(train.make_train_function, getattr(updates, rule))
    X_data, Y_data = synk.data(X), synk.data(Y)
    losses = [float(step(X_data, Y_data, batch=batch)) for batch in BATCHES]
    model.check(losses, rule)
    assert synk.in_sync(model.params + step.state)


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_twin_takes_the_serial_steps(rule):
    model = Model()
    step = model.step(train.make_train_function_theano, getattr(updates, rule))
    losses = [float(step(X, Y, batch=batch)) for batch in BATCHES]
    model.check(losses, rule)


@pytest.mark.parametrize("num_slices", [1, 3, 7])
def test_slices_are_the_same_step(made_by, num_slices):
    make = made_by(2)
    model = Model()
    step = model.step(make, updates.adam)
    losses = [float(step(X, Y, batch=batch, num_slices=num_slices)) for batch in BATCHES]
    model.check(losses, "adam", BATCHES)


def test_without_batch_all_rows_are_taken(made_by):
    make = made_by(3)
    model = Model()
    step = model.step(make, updates.sgd)
    losses = [float(step(X, Y)), float(step(X, Y, batch=10)), float(step(X, Y, batch=slice(3, 20, 2)))]
    model.check(losses, "sgd", [np.arange(40), np.arange(10), np.arange(3, 20, 2)])


def test_batch_is_read_in_the_same_way(made_by):
    make = made_by(2)
    model = Model()
    step = model.step(make, updates.sgd)
    for wrong, error in ((100, ValueError), (-1, ValueError), ([40], ValueError), (np.arange(40) < 7, TypeError)):
        with refuses(error, "batch"):
            step(X, Y, batch=wrong)
    with refuses(ValueError, "batch"):
        step(X, Y[:30], batch=35)
    losses = [float(step(X, Y, batch=np.int64(7))), float(step(X, Y[:30], batch=slice(-2, None)))]
    model.check(losses, "sgd", [np.arange(7), np.array([28, 29])])


def test_gradients_are_clipped_by_their_global_norm(made_by):
    """On ranks, the norm of the mean gradient is clipped. The bound is between the occurring norms."""
    make = made_by(3)
    model, reference = Model(), Model()
    bound = 3.0
    grads = theano.grad(reference.loss, reference.params)
    clipped, norm = lasagne_updates().total_norm_constraint(grads, bound, epsilon=0, return_norm=True)
    expected_step = theano.function(
        [reference.x, reference.y], norm, mode=MODE, updates=lasagne_updates().adam(clipped, reference.params, 0.1)
    )
    step = model.step(make, updates.adam, max_norm=bound)
    norms = []
    for batch in BATCHES:
        norms.append(float(expected_step(X[batch], Y[batch])))
        step(X, Y, batch=batch)
    assert min(norms) < bound < max(norms)
    np.testing.assert_allclose(model.values(), reference.values(), rtol=1e-9)


def test_norm_goes_over_all_dtypes():
    a, b = theano.shared(np.zeros(1, "float32"), "a"), theano.shared(np.zeros(1), "b")
    x = T.dvector("x")
    loss = x.mean() * (3 * a[0] + 4 * b[0])
    for rule in (updates.sgd, updates.sgd_nonflat):
        step = train.make_train_function_theano(
            loss, [a, b], x, None, rule, 1.0, max_norm=2.5, function_options=OPTIONS
        )
        step([1.0])
        np.testing.assert_allclose([a.get_value()[0], b.get_value()[0]], [-1.5, -2.0], rtol=1e-6)
        a.set_value(np.zeros(1, "float32"))
        b.set_value(np.zeros(1))


def test_half_precision_norm_does_not_overflow():
    p, x = theano.shared(np.zeros(2, "float16"), "p"), T.vector("x", dtype="float16")
    step = train.make_train_function_theano(
        (x.mean() * p[0] * 400).sum(), [p], x, None, updates.sgd, 1.0, max_norm=2, function_options=OPTIONS
    )
    step(np.ones(1, "float16"))
    np.testing.assert_allclose(p.get_value(), [-2, 0], rtol=1e-3)


# -- inputs and outputs ------------------------------------------------------------------------------------------------


def test_further_inputs_and_outputs(made_by):
    make = made_by(2)
    a, b, scale = T.dmatrix("a"), T.dvector("b"), T.dscalar("scale")
    w = theano.shared(np.zeros(2), "w")
    errors = T.dot(a, w) + b
    loss = scale * errors.mean()
    step = make(
        loss,
        [w],
        [a, b],
        None,
        updates.sgd,
        0.5,
        bcast_inputs=[scale],
        function_options=OPTIONS,
        outputs=[errors.mean(), (errors, "gather"), (errors.max(), "max"), (errors.sum(), "c_sum")],
    )
    A, B = X[:5], Y[:5]
    got = step(A, B, 2.0)
    for value, expected in zip(got, [2 * B.mean(), B.mean(), B, B.max(), B.sum()]):
        np.testing.assert_allclose(value, expected, rtol=1e-12)
    expected_w = -0.5 * 2 * A.mean(axis=0)
    np.testing.assert_allclose(w.get_value(), expected_w, rtol=1e-12)
    new = A.dot(expected_w) + B
    for value, expected in zip(step(A, B, 2.0, num_slices=2), [2 * new.mean(), new.mean(), new, new.max(), new.sum()]):
        np.testing.assert_allclose(value, expected, rtol=1e-12)


@pytest.mark.parametrize("communicate_every", [0, 1, 2])
def test_inputs_that_keep_their_value(communicate_every):
    """With the rate `0.5 / t`, steps in one command and in parts share one counter."""
    synk.fork(2, use_gpu=False)
    x, t, w = T.dvector("x"), T.dscalar("t"), theano.shared(np.zeros(()), "w")
    counted = theano.In(t, value=1.0, update=t + 1)
    step = train.make_train_function(
        (w * x).mean() / t,
        [w],
        x,
        None,
        updates.sgd,
        0.5,
        outputs=[(t, "max")],
        bcast_inputs=[counted],
        communicate_every=communicate_every,
        function_options=OPTIONS,
    )
    expected = np.zeros(2)
    for i, num_slices in enumerate([1, 2, 2, 1, 2, 1], 1):
        assert step([2.0, 2.0, 6.0, 6.0], num_slices=num_slices)[1] == i
        expected -= 0.5 / i * (np.array([2, 6]) if communicate_every != 1 else 4)
        if communicate_every == 2 and i % 2 == 0:
            expected[:] = expected.mean()
    np.testing.assert_allclose(synk.gather(w, nd_up=1), expected)
    assert counted.value == 1


def test_one_output_need_not_be_in_a_list(made_by):
    make = made_by(2)
    model = Model()
    for outputs, shape in (((model.errors, "gather"), (5,)), (T.sqr(model.errors).sum(), ())):
        step = make(
            model.loss, model.params, model.x, model.y, updates.sgd, 0.1, outputs=outputs, function_options=OPTIONS
        )
        assert [np.shape(value) for value in step(X[:5], Y[:5])] == [(), shape]


def test_inputs_by_name():
    synk.fork(2, use_gpu=False)
    model = Model()
    step = model.step(train.make_train_function, updates.sgd)
    np.testing.assert_allclose(step(y=Y, x=X), serial("sgd", [np.arange(40)], learning_rate=0.1)[0][0], rtol=1e-11)


@pytest.mark.parametrize("num_slices", [1, 3])
def test_rows_in_shared_variables(made_by, num_slices):
    """Each rank selects rows of its scattered data; the step is that of all these rows together."""
    x, y = T.dmatrix("x"), T.dvector("y")
    model = Model(x, y)
    X_shared, Y_shared = theano.shared(X, "X"), theano.shared(Y, "Y")
    picks = [np.arange(3), np.array([1, 7, 4, 2, 9]), np.array([0, 3, 5])]
    make = made_by(2)
    step = make(
        model.loss,
        model.params,
        None,
        None,
        updates.adam,
        0.1,
        givens={x: X_shared, y: Y_shared},
        sliceable_shareds=[X_shared, Y_shared],
        function_options=OPTIONS,
    )
    batches = picks
    if synk.is_forked():
        synk.distribute()
        synk.scatter([X_shared, Y_shared], [X, Y])
        batches = [np.concatenate([pick, 20 + pick]) for pick in picks]
    losses = [float(step(batch_s=pick if i else slice(0, 3), num_slices=num_slices)) for i, pick in enumerate(picks)]
    model.check(losses, "adam", batches)


def test_twin_takes_a_list_of_one_selection():
    """The plain twin takes a list of one selection, as programs on one rank pass one per rank."""
    x, shared = T.dvector("x"), theano.shared(np.arange(6.0), "rows")
    w = theano.shared(0.0, "w")
    step = train.make_train_function_theano(
        w * x.mean(),
        [w],
        None,
        None,
        updates.sgd,
        1.0,
        givens={x: shared},
        outputs=x.sum(),
        sliceable_shareds=[shared],
        function_options=OPTIONS,
    )
    assert [float(step(batch_s=batch_s)[1]) for batch_s in (None, [slice(0, 2)], [np.array([5, 1])], [5, 1], [5])] == [
        15,
        1,
        6,
        6,
        5,
    ]


def test_learning_rate_that_changes():
    synk.fork(2, use_gpu=False)
    model, reference = Model(), Model()
    rate, reference_rate = theano.shared(0.1, "rate"), theano.shared(0.1)
    step = train.make_train_function(
        model.loss, model.params, model.x, model.y, updates.momentum, rate, momentum=0.5, function_options=OPTIONS
    )
    expected = theano.function(
        [reference.x, reference.y],
        mode=MODE,
        updates=lasagne_updates().momentum(reference.loss, reference.params, reference_rate, momentum=0.5),
    )
    for i, batch in enumerate(BATCHES):
        synk.broadcast(rate, 0.1 / (i + 1))
        reference_rate.set_value(0.1 / (i + 1))
        step(X, Y, batch=batch)
        expected(X[batch], Y[batch])
    np.testing.assert_allclose(model.values(), reference.values(), rtol=1e-9)


def test_state_is_all_that_the_rule_keeps():
    """Parameters and state, copied into a program with more ranks, continue the same training."""

    def build():
        model = Model()
        return model, train.make_train_function(
            model.loss, model.params, model.x, model.y, updates.adam, 0.1, function_options=OPTIONS
        )

    synk.fork(2, use_gpu=False)
    model, step = build()
    for batch in BATCHES[:3]:
        step(X, Y, batch=batch)
    saved = [shared.get_value() for shared in step.params + step.state]
    assert len(step.state) == 1 + 2 * len(model.params) and len(set(step.state) | set(step.params)) == 10
    synk.close()
    synk.fork(3, use_gpu=False)
    model, step = build()
    for shared, value in zip(step.params + step.state, saved):
        shared.set_value(value)
    for batch in BATCHES[3:]:
        step(X, Y, batch=batch)
    np.testing.assert_allclose(model.values(), serial("adam", learning_rate=0.1)[1], rtol=1e-9)


# -- local SGD ---------------------------------------------------------------------------------------------------------


def shards(batch, n, root):
    """Return each rank's rows, divided evenly in rank order; if there are too few, the root gets one first."""
    if len(batch) < n:
        served = sorted(sorted(range(n), key=lambda rank: (rank != root, rank))[: len(batch)])
        return [batch[served.index(rank)][None] if rank in served else batch[:0] for rank in range(n)]
    return np.array_split(batch, n)


def simulated_local_sgd(n, root, every, batches, final=False):
    """Simulate local SGD by n models in plain Theano, one after another."""
    models = [Model() for _ in range(n)]
    lasagne = lasagne_updates()
    rules = [lasagne.momentum(model.loss, model.params, 0.1) for model in models]
    steps = [theano.function([m.x, m.y], updates=rule, mode=MODE) for m, rule in zip(models, rules)]
    rows = np.zeros(n)
    for i, batch in enumerate(batches, 1):
        for rank, part in enumerate(shards(batch, n, root)):
            if len(part):
                steps[rank](X[part], Y[part])
                rows[rank] += len(part)
        if i % every == 0 or final and i == len(batches):
            for variables in zip(*[list(rule) for rule in rules]):
                mean = np.average([variable.get_value() for variable in variables], axis=0, weights=rows)
                for variable in variables:
                    variable.set_value(mean)
            rows[:] = 0
    return [model.values() for model in models]


def replicas(params, n):
    return np.array([np.concatenate([np.ravel(value) for value in synk.get_value(rank, params)]) for rank in range(n)])


@pytest.mark.thorough("^3")
@pytest.mark.parametrize("n, root, every, exact", [(2, 0, 2, False), (3, 1, 2, True), (3, 0, 4, True)])
def test_local_sgd(n, root, every, exact, caplog):
    """Local SGD works even with `fork(exact=True)`, since `communicate_every` explicitly asks for it."""
    synk.fork(n, use_gpu=False, master_rank=root, exact=exact)
    model = Model()
    step = train.make_train_function(
        model.loss,
        model.params,
        model.x,
        model.y,
        updates.momentum,
        0.1,
        communicate_every=every,
        function_options=OPTIONS,
    )
    for i, batch in enumerate(BATCHES, 1):
        step(X, Y, batch=batch)
        np.testing.assert_allclose(
            replicas(model.params, n), simulated_local_sgd(n, root, every, BATCHES[:i]), rtol=1e-9
        )
        assert bool(synk.in_sync(model.params)) == (i % every == 0)
    step(X, Y, batch=BATCHES[0])
    step.average()
    expected = simulated_local_sgd(n, root, every, BATCHES + BATCHES[:1], final=True)
    np.testing.assert_allclose(replicas(model.params, n), expected, rtol=1e-9)
    assert synk.in_sync(model.params + step.state)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_local_sgd_in_slices():
    synk.fork(2, use_gpu=False)
    model = Model()
    step = model.step(train.make_train_function, updates.momentum, communicate_every=2)
    batches = [BATCHES[0], BATCHES[5]]
    for batch in batches:
        step(X, Y, batch=batch, num_slices=3)
    np.testing.assert_allclose(replicas(model.params, 2), simulated_local_sgd(2, 0, 2, batches), rtol=1e-9)


def test_local_sgd_in_another_session():
    synk.fork(2, use_gpu=False)
    model = Model()
    step = function_of(model, communicate_every=2)
    step(X, Y, batch=BATCHES[0])
    assert not synk.in_sync(model.params)
    synk.close()
    synk.fork(3, use_gpu=False)
    step(X, Y, batch=BATCHES[1])
    assert synk.in_sync(model.params)
    step(X, Y, batch=BATCHES[1])
    assert not synk.in_sync(model.params)
    step.average()
    assert synk.in_sync(model.params)


def test_local_sgd_after_a_call_that_failed():
    """A gradient that was computed in a failed call is not applied later."""
    synk.fork(2, use_gpu=False)
    model = Model()
    labels = T.lvector("labels")
    loss = (T.sqr(model.errors) * T.constant(np.ones(3))[labels]).mean()
    step = train.make_train_function(
        loss,
        model.params,
        [model.x, model.y],
        labels,
        updates.momentum,
        0.1,
        communicate_every=2,
        function_options=OPTIONS,
    )
    with pytest.raises(synk.WorkerError):  # only rank 1 has the row with the invalid label
        step(X[:2], Y[:2], [0, 5])
    with pytest.raises(IndexError):  # rank 0, the master, has that row
        step(X[:2], Y[:2], [5, 0])
    before = replicas(model.params, 2)
    step(X[12:13], Y[12:13], [0])  # a row for rank 0 only
    after = replicas(model.params, 2)
    assert (after[1] == before[1]).all() and (after[0] != before[0]).any()


def function_of(model, rule=updates.momentum, **options):
    """Return the training function of a model, at a rate of 0.1."""
    return train.make_train_function(
        model.loss, model.params, model.x, model.y, rule, 0.1, function_options=OPTIONS, **options
    )


@pytest.mark.thorough("(slices|run)-3")
@pytest.mark.parametrize("n, root, exact", [(2, 0, True), (3, 1, False)])
@pytest.mark.parametrize("by", ["calls", "slices", "run"])
def test_steps_of_their_own_and_a_rule(n, root, exact, by, caplog):
    """The rule reads parameters, state and row counts from the function; results equal simulated local SGD."""
    synk.fork(n, use_gpu=False, master_rank=root, exact=exact)
    model = Model()
    step = function_of(model, communicate_every=0)
    rule = rules.LocalSGD(step, every=2)
    assert step.last_rows is None and rule.kept == step.state
    batches = [batch for batch in BATCHES if by != "slices" or len(batch) >= 2 * n]
    if by == "run":
        losses = rule.run(X, Y, batches=batches)
        assert losses.shape == (len(batches),)
    else:
        for i, batch in enumerate(batches, 1):
            step(X, Y, batch=batch, num_slices=1 if by == "calls" else 2)
            assert step.last_rows == [len(part) for part in shards(batch, n, root)]
            assert rule() == (i % 2 == 0)
    np.testing.assert_allclose(replicas(model.params, n), simulated_local_sgd(n, root, 2, batches), rtol=1e-9)
    rule.finish()
    assert synk.in_sync(step.params + step.state)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.thorough("adam")
@pytest.mark.parametrize("rule", ["momentum", "adam"])
@pytest.mark.parametrize("groups", [[[0, 2], [1]], [[1], [2], [0]], [[2, 1, 0]]])
def test_gradients_averaged_in_groups(groups, rule):
    """A group takes the serial steps of its own rows; a group without rows takes none."""
    synk.fork(3, use_gpu=False, exact=True)
    model = Model()
    step = function_of(model, getattr(updates, rule), groups=groups)
    twins = [Model() for _ in groups]
    steps = [
        train.make_train_function_theano(
            m.loss, m.params, m.x, m.y, getattr(updates, rule), 0.1, groups=groups, function_options=OPTIONS
        )
        for m in twins
    ]
    for batch in BATCHES + [np.arange(1)]:
        step(X, Y, batch=batch)
        parts = shards(batch, 3, 0)
        for group, twin in zip(groups, steps):
            rows = np.concatenate([parts[rank] for rank in group])
            if len(rows):
                twin(X, Y, batch=rows)
    found = replicas(model.params, 3)
    for group, twin in zip(groups, twins):
        np.testing.assert_allclose(found[group], [twin.values()] * len(group), rtol=1e-6)
    if len(groups) > 1:
        assert np.abs(found[groups[0][0]] - found[groups[1][0]]).max() > 1e-3


@pytest.mark.thorough
def test_daso_of_gradients_is_that_of_parameters():
    """With plain SGD, averaging a group's gradients is equivalent to averaging its parameters."""
    synk.fork(3, use_gpu=False)
    groups, found = [[0, 2], [1]], []
    for options in (dict(groups=groups), dict(communicate_every=0)):
        model = Model()
        step = function_of(model, updates.sgd, **options)
        rule = rules.DASO(step, groups=groups, warm_up=1, patience=0)
        for _ in range(3):
            for batch in BATCHES[:5]:
                step(X, Y, batch=batch)
                rule()
                found.append(replicas(model.params, 3))
            rule.epoch(1.0)
    of_gradients, of_parameters = np.array(found).reshape(2, 15, 3, -1)
    np.testing.assert_allclose(of_gradients, of_parameters, rtol=1e-9)
    assert np.ptp(of_gradients[6], axis=0).max() > 1e-3  # (groups differ after the first epoch)


def test_groups_that_are_wrong():
    synk.fork(2, use_gpu=False)
    model = Model()
    with refuses(ValueError, "groups", "ranks", "[[0], [0, 1]]"):
        function_of(model, groups=[[0], [0, 1]])
    with refuses(ValueError, "communicate_every", "1 with groups", "4"):
        function_of(model, groups=[[0], [1]], communicate_every=4)
    step = function_of(model, groups=[[0], [1]])
    with refuses(ValueError, "groups", "None", "[[0], [1]]", "once"):
        step.steps(X, Y, batches=BATCHES)


def test_average_of_gradients_needs_no_average_of_parameters():
    synk.fork(2, use_gpu=False)
    model = Model()
    step = model.step(train.make_train_function, updates.sgd)
    step(X, Y)
    before = replicas(model.params, 2)
    step.average()
    np.testing.assert_array_equal(replicas(model.params, 2), before)


# -- batch normalization -----------------------------------------------------------------------------------------------


def test_statistics_are_averaged():
    synk.fork(3, use_gpu=False)
    x = T.dmatrix("x")
    mean, count = theano.shared(np.zeros(2), "mean"), theano.shared(0, "count")
    frozen = theano.shared(RANDOM.randn(2), "frozen")
    observe = synk.function(
        [x], frozen.sum(), updates=[(mean, 0.5 * mean + 0.5 * x.mean(axis=0)), (count, count + 1)], mode=MODE
    )
    before = frozen.get_value()
    observe(X[:8])
    train.average_batch_norm([mean, count, frozen])
    expected = np.mean([0.5 * part.mean(axis=0) for part in np.array_split(X[:8], 3)], axis=0)
    for rank in range(3):
        np.testing.assert_allclose(synk.get_value(rank, mean), expected, rtol=1e-12)
        np.testing.assert_array_equal(synk.get_value(rank, frozen), before)


def test_statistics_of_a_lasagne_network():
    layers = pytest.importorskip("lasagne").layers

    class Normalised(layers.Layer):
        def __init__(self, incoming):
            super().__init__(incoming)
            self.mean = self.add_param(theano.shared(np.zeros(2), "mean"), (2,), trainable=False)
            self.beta = self.add_param(theano.shared(np.zeros(2), "beta"), (2,))

        def get_output_for(self, input, **kwargs):
            return input - self.mean + self.beta

    network = Normalised(Normalised(layers.InputLayer((None, 2))))
    x = T.dmatrix("x")
    synk.fork(2, use_gpu=False)
    f = synk.function([x], layers.get_output(network, x).sum(), mode=MODE)
    f(X)
    means, betas = layers.get_all_params(network, trainable=False), layers.get_all_params(network, trainable=True)
    for i, shared in enumerate(means + betas):
        synk.set_value(1, shared, np.full(2, 2.0 * i + 2))
    train.average_batch_norm(network)
    assert [synk.gather(shared).tolist() for shared in means] == [[[1, 1], [1, 1]], [[2, 2], [2, 2]]]
    assert [synk.gather(shared).tolist() for shared in betas] == [[[0, 0], [6, 6]], [[0, 0], [8, 8]]]


@pytest.mark.parametrize(
    "layers, error, got",
    [
        (3, TypeError, "3 of type int"),
        ([], ValueError, "nothing"),
        ([theano.shared(3, "n")], ValueError, "nothing"),
    ],
)
def test_what_has_no_statistics(layers, error, got):
    synk.fork(2, use_gpu=False)
    with refuses(error, "layers", got=got):
        train.average_batch_norm(layers)


# -- bad input ---------------------------------------------------------------------------------------------------------


def bad_arguments():
    model, other = Model(), theano.shared(np.zeros(3), "other")
    rate = T.dscalar("rate")
    good = {
        "loss": model.loss,
        "params": model.params,
        "x": model.x,
        "y": model.y,
        "update_rule": updates.sgd,
        "learning_rate": 0.1,
    }
    n = T.lscalar("n")
    scalar, variable = "a 0-dimensional floating-point expression", "an input variable"
    average = "integers have no average"
    return good, [
        ({"params": model.params + [other]}, ValueError, "params[3] ('other')", "the loss depends on", None),
        ({"params": model.params + [model.c]}, ValueError, "params[3] ('c')", None, "listed twice"),
        ({"params": [model.w * 2]}, TypeError, "params[0]", None, None),
        ({"params": []}, ValueError, "params", "at least one", None),
        ({"loss": model.errors}, TypeError, "loss", scalar, None),
        ({"loss": [model.loss]}, TypeError, "loss", scalar, "a list"),
        ({"loss": 1.0}, TypeError, "loss", scalar, None),
        ({"x": X}, TypeError, "x", variable, None),
        ({"x": 3}, TypeError, "x", variable, "3"),
        ({"y": model.y * 2}, TypeError, "y", variable, None),
        ({"y": model.c}, TypeError, "y", variable, "c of type TensorType(float64, scalar), which is a shared variable"),
        ({"update_rule": "sgd"}, TypeError, "update_rule", "a rule of synkhronos.extensions.updates", None),
        (
            {"update_rule": lambda loss, params, learning_rate: {}},
            TypeError,
            "update_rule <lambda>",
            "(grad_updates, param_updates, grad_shared)",
            "dict",
        ),
        (
            {"learnig_rate": 0.1},
            TypeError,
            "update_rule sgd",
            "its options (learning_rate)",
            "unexpected keyword argument 'learnig_rate'",
        ),
        (
            {"update_rule": updates.adam, "beta3": 0.1},
            TypeError,
            "update_rule adam",
            "its options (learning_rate, beta1, beta2, epsilon)",
            None,
        ),
        ({"learning_rate": "high"}, TypeError, "learning_rate", "a number", None),
        (
            {"learning_rate": rate},
            ValueError,
            "the step of w",
            "shared variables",
            "rate of type TensorType(float64, scalar)",
        ),
        ({"max_norm": 0}, ValueError, "max_norm", "a positive number", "0"),
        ({"max_norm": "1"}, TypeError, "max_norm", "a number", None),
        ({"outputs": T.argmax(model.errors)}, TypeError, "outputs[0] (argmax)", average, "int64"),
        ({"outputs": [model.loss, 3]}, TypeError, "outputs[1]", "an expression or (expression, op)", "3"),
        ({"outputs": [(model.errors, "mean")]}, ValueError, "outputs[0]", "avg, ", "'mean'"),
        ({"outputs": [(n, "avg")]}, TypeError, "outputs[0] (n)", average, "int64"),
    ]


def test_bad_arguments_are_named(made_by):
    good, cases = bad_arguments()
    make = made_by()
    for change, error, *fields in cases:
        with refuses(error, *fields):
            make(**dict(good, **change))
            pytest.fail(f"{change!r} was accepted")


@pytest.mark.parametrize(
    "every, error, expected",
    [
        (-1, ValueError, "at least 0"),
        (2.0, TypeError, "an int"),
        (True, TypeError, "an int"),
    ],
)
def test_communicate_every_is_a_number_of_steps(every, error, expected):
    good, _ = bad_arguments()
    with refuses(error, "communicate_every", expected, repr(every)):
        train.make_train_function(communicate_every=every, **good)


def test_a_bad_call_changes_nothing():
    synk.fork(2, use_gpu=False)
    model = Model()
    step = model.step(train.make_train_function, updates.adam)
    before = model.values()
    for args, options, error in (
        ((X, Y[:3]), {}, ValueError),
        ((X,), {}, TypeError),
        ((X, Y), {"batch": [50]}, ValueError),
        ((X, Y), {"num_slices": 0}, ValueError),
        ((X, Y), {"batch_s": [1]}, ValueError),
    ):
        with pytest.raises(error):
            step(*args, **options)
    np.testing.assert_array_equal(model.values(), before)
    for batch in BATCHES:
        step(X, Y, batch=batch)
    np.testing.assert_allclose(model.values(), serial("adam", learning_rate=0.1)[1], rtol=1e-9)


@pytest.mark.parametrize(
    "args, options, error, argument, got",
    [
        ((X,), {}, TypeError, "args", "1"),
        ((X, Y), {"num_slices": 0}, ValueError, "num_slices", "0"),
    ],
)
def test_bad_calls_of_the_twin(args, options, error, argument, got):
    model = Model()
    step = train.make_train_function_theano(
        model.loss,
        model.params,
        model.x,
        model.y,
        updates.sgd,
        0.1,
        outputs=(model.loss, None),
        function_options=OPTIONS,
    )
    with refuses(error, argument, got=got):
        step(*args, **options)
    with refuses(ValueError, "num_slices", "op None", "2"):
        step(X, Y, num_slices=2)


@pytest.mark.parametrize("through", ["groups", "givens"])
def test_rules_run_by_functions_whose_steps_are_several_commands(through):
    """`DASO.run`, with the function that docs/communicating_less.rst recommends, equals alternating calls of both."""

    def trained(by_run):
        synk.close()
        synk.fork(3, use_gpu=False)
        model = Model()
        groups = [[0, 1], [2]]
        rows = (model.x.sum(axis=1), "gather")
        more = dict(groups=groups) if through == "groups" else dict(givens={model.params[0]: model.params[0] * 1})
        step = train.make_train_function(
            model.loss,
            model.params,
            model.x,
            model.y,
            updates.momentum,
            0.1,
            outputs=[rows],
            function_options=OPTIONS,
            **more,
        )
        assert step.function is None
        rule = rules.DASO(step, groups=groups, warm_up=0, largest=4)
        if by_run:
            results = rule.run(X, Y, batches=BATCHES)
            (subset,) = rule.run(X, Y, batches=BATCHES[:2], output_subset=[0])
        else:
            results = []
            for batch in BATCHES:
                results.append(step(X, Y, batch=batch))
                rule()
            results = np.array([float(loss) for loss, _ in results]), [rows for _, rows in results]
            subset = []
            for batch in BATCHES[:2]:
                subset.append(float(step(X, Y, batch=batch)[0]))
                rule()
        values = [synk.gather(param, nd_up=1) for param in model.params]
        return results, subset, values, (rule.n_steps, rule.n_exchanges)

    (losses, rows), subset, values, counts = trained(True)
    (other_losses, other_rows), other_subset, other_values, other_counts = trained(False)
    np.testing.assert_array_equal(losses, other_losses)
    np.testing.assert_array_equal(subset, other_subset)
    assert losses.shape == (len(BATCHES),) and counts == other_counts and counts[1] > 1
    for one, other, batch in zip(rows, other_rows, BATCHES):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, X[batch].sum(axis=1), rtol=1e-6)
    for one, other in zip(values, other_values):
        np.testing.assert_array_equal(one, other)
