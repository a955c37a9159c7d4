"""Training steps in one command, and the same in parts, compared with plain Theano on all rows.

Modules: `train_function`, `training_graph`.
"""

from collections import OrderedDict

import numpy as np
import pytest
from refusals import refuses

import synkhronos as synk
from synkhronos import in_graph
from synkhronos.runtime.session import Session

pytest.importorskip("theano")

import theano  # noqa: E402
import theano.tensor as T  # noqa: E402

from synkhronos.extensions import train, updates  # noqa: E402
from synkhronos.extensions.gradients import gradients_of  # noqa: E402

pytestmark = pytest.mark.theano

#: Python code only, without the C compiler.
MODE = theano.Mode(linker="py", optimizer="fast_compile")
OPTIONS = {"mode": MODE}
RANDOM = np.random.RandomState(0)
X, Y = RANDOM.randn(40, 2), RANDOM.randn(40)
#: For three ranks: uneven batches, one with a row for only one rank, one with rows for two ranks.
BATCHES = [np.arange(7), np.array([12]), np.array([9, 3, 30, 4, 8]), np.array([5, 20]), np.arange(10, 27)]


class Model:
    """A small smooth network; its parameters include a broadcasting row and a scalar of another dtype."""

    def __init__(self):
        random = np.random.RandomState(1)
        self.w = theano.shared(random.randn(2, 3), "w")
        self.b = theano.shared(random.randn(1, 3), "b", broadcastable=(True, False))
        self.v = theano.shared(random.randn(3), "v")
        self.c = theano.shared(np.float32(0.5), "c")
        self.params = [self.w, self.b, self.v, self.c]
        self.x, self.y = T.dmatrix("x"), T.dvector("y")
        self.errors = T.dot(T.tanh(T.dot(self.x, self.w) + self.b), self.v) + self.c - self.y
        self.loss = T.sqr(self.errors).mean()

    def make(self, made_by, rule, *args, loss=None, **kwargs):
        loss = self.loss if loss is None else loss
        return getattr(train, made_by)(
            loss, self.params, self.x, self.y, rule, *args, function_options=OPTIONS, **kwargs
        )

    def values(self):
        return np.concatenate([param.get_value().ravel() for param in self.params])


def in_one(step, *args, **kwargs):
    return step(*args, **kwargs)


def in_parts(step, *args, **kwargs):
    """Take a step in parts, by its public functions."""
    loss = step.gradient_fn(*args, **kwargs)
    synk.all_reduce(step.grad_shared, weights=step.gradient_fn)
    step.step_fn()
    return loss


def same_steps(rule, *args, take=in_one, batches=BATCHES, **kwargs):
    """Compare all steps on the ranks with plain Theano's; return both training functions."""
    model, other = Model(), Model()
    step = model.make("make_train_function", rule, *args, **kwargs)
    twin = other.make("make_train_function_theano", rule, *args, **kwargs)
    before = model.values()
    for batch in batches:
        np.testing.assert_allclose(take(step, X, Y, batch=batch), twin(X, Y, batch=batch), rtol=1e-5)
        np.testing.assert_allclose(model.values(), other.values(), rtol=1e-5, atol=1e-7)
    assert np.abs(model.values() - before).min() > 1e-6
    assert synk.in_sync(step.params + step.state)
    for ours, theirs in zip(step.state, twin.state):
        np.testing.assert_allclose(ours.get_value(), theirs.get_value(), rtol=1e-5, atol=1e-7)
    return step, twin


def replicas(variables, n):
    return [[np.array(value) for value in synk.get_value(rank, variables)] for rank in range(n)]


@pytest.fixture(autouse=True)
def closed():
    """Close the session after each test."""
    yield
    synk.close()


@pytest.fixture
def three_ranks():
    synk.fork(3, use_gpu=False, master_rank=1)


@pytest.fixture
def commands(monkeypatch):
    """Return a list of the commands that the master sends from now on."""
    sent, run = [], Session.run

    def recorded(self, command, *args, **kwargs):
        sent.append(command.title)
        return run(self, command, *args, **kwargs)

    monkeypatch.setattr(Session, "run", recorded)
    return sent


# -- the same step -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough(but="^momentum-in_one")
@pytest.mark.long(but="^(momentum|adam|rmsprop|adadelta)-")
@pytest.mark.parametrize("take", [in_one, in_parts])
@pytest.mark.parametrize("rule", [name for name in updates.__all__ if not name.startswith("apply_")])
def test_every_rule(three_ranks, rule, take):
    same_steps(getattr(updates, rule), learning_rate=0.1, take=take)


@pytest.mark.thorough
@pytest.mark.parametrize("take", [in_one, in_parts])
@pytest.mark.parametrize("rule", [updates.adam, updates.sgd_nonflat])
def test_clipping(three_ranks, rule, take):
    """Clipped steps equal plain Theano's; the bound is between the occurring norms."""
    other = Model()
    norm = theano.function(
        [other.x, other.y], T.sqrt(sum(T.sum(T.sqr(g)) for g in theano.grad(other.loss, other.params))), mode=MODE
    )
    norms = [float(norm(X[batch], Y[batch])) for batch in BATCHES]
    assert min(norms) < 6 < max(norms)
    same_steps(rule, 0.1, max_norm=6.0, take=take)


def test_a_step_is_one_command(three_ranks, commands):
    model = Model()
    step = model.make("make_train_function", updates.adam, 0.1)
    step(X, Y, batch=[0, 1, 2])
    before = [shared.get_value() for shared in step.grad_shared]
    del commands[:]
    step(X, Y, batch=[3, 4])
    assert commands == ["call of function train"]
    for shared, value in zip(step.grad_shared, before):
        np.testing.assert_array_equal(shared.get_value(), value)


@pytest.mark.thorough
def test_slices_and_whole_steps_in_turn(three_ranks):
    """Sliced steps and whole steps continue from each other's parameters and state."""

    def take(step, *args, batch):
        return step(*args, batch=batch, num_slices=3 if len(batch) == 7 else 1)

    same_steps(updates.adam, 0.1, batches=BATCHES + BATCHES, take=take)


# -- user-defined rules ------------------------------------------------------------------------------------------------


def by_the_whole_vector(loss, params):
    """Return updates whose rate depends on the flat vectors' order, and on views of them."""
    grad_updates, param_updates, vectors = updates.sgd(loss, params, 0.1)
    size = sum(T.dot(T.arange(1.0, 1 + vector.size), T.sqr(T.cast(vector, "float64"))) for vector in vectors)
    rate = 1 / (1 + T.sqrt(size))
    return grad_updates, {p: p + T.cast(rate * (new - p), p.dtype) for p, new in param_updates.items()}, vectors


def by_vectors_without_pieces(loss, params):
    """Return updates of `by_the_whole_vector`, without information on the vectors' contents."""
    grad_updates, param_updates, vectors = by_the_whole_vector(loss, params)
    return OrderedDict(grad_updates), param_updates, vectors


def accumulated(loss, params):
    """Return updates with gradients that accumulate over steps, so they must be kept."""
    shareds = [theano.shared(np.zeros_like(p.get_value()), broadcastable=p.broadcastable) for p in params]
    return (
        OrderedDict((g, T.cast(0.5, g.dtype) * g + new) for g, new in zip(shareds, gradients_of(loss, params))),
        OrderedDict((p, p - T.cast(0.1, p.dtype) * g) for p, g in zip(params, shareds)),
        shareds,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("take", [in_one, in_parts])
@pytest.mark.parametrize("rule", [by_the_whole_vector, by_vectors_without_pieces, accumulated])
def test_rules_of_ones_own(three_ranks, rule, take):
    step, twin = same_steps(rule, take=take)
    if rule is accumulated:
        for ours, theirs in zip(step.grad_shared, twin.grad_shared):
            for value in synk.gather(ours, nd_up=1):
                np.testing.assert_allclose(value, theirs.get_value(), rtol=1e-5)


@pytest.mark.thorough
def test_what_a_rule_counts_beside_gradients(three_ranks):
    """A rule's sum over inputs is over each rank's own rows; the step reads the new sum."""
    x, w, rows = T.dvector("x"), theano.shared(0.0, "w"), theano.shared(0.0, "rows")

    def rule(loss, params):
        g = theano.shared(0.0, "g")
        return {g: theano.grad(loss, params[0]), rows: rows + x.sum()}, {w: w - g + 0 * rows, last: rows * 1}, g

    last = theano.shared(0.0, "last")
    step = train.make_train_function(w * x.mean(), [w], x, None, rule, function_options=OPTIONS)
    step([1.0, 2.0, 4.0, 9.0])  # two rows for rank 0
    assert synk.gather(w).tolist() == [-4, -4, -4]
    assert synk.gather(rows).tolist() == [3, 4, 9]
    assert synk.gather(last).tolist() == [3, 4, 9]


# -- other contents of the graph ---------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_collective_in_the_loss_is_computed_once(monkeypatch):
    """One collective is for the loss, one for its gradient, and one for all parameters' gradients."""
    synk.fork(2, use_gpu=False)
    model, other = Model(), Model()
    loss, theirs = (
        T.sqr(m.errors - reduce(m.errors.mean())).mean()
        for m, reduce in ((model, synk.ops.all_reduce), (other, lambda mean: mean))
    )
    model.params, other.params = model.params[:3], other.params[:3]  # the last parameter cancels out
    step = model.make("make_train_function", updates.adam, 0.1, loss=loss)
    twin = other.make("make_train_function_theano", updates.adam, 0.1, loss=theirs)
    numbers = []
    reduce = in_graph.all_reduce
    monkeypatch.setattr(in_graph, "all_reduce", lambda number, *args: numbers.append(number) or reduce(number, *args))
    for batch in BATCHES:
        np.testing.assert_allclose(step(X, Y, batch=batch), twin(X, Y, batch=batch), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(model.values(), other.values(), rtol=1e-9)
    assert numbers == [0, 1, 2] * len(BATCHES)


@pytest.mark.thorough
def test_default_updates_are_each_ranks_own(three_ranks):
    """Default updates, such as running averages, depend on a rank's own rows; without rows, values are kept."""
    x, w, running = T.dvector("x"), theano.shared(0.0, "w"), theano.shared(10.0, "running")
    data = theano.shared(np.zeros(0), "data")
    average = running.clone()
    average.default_update = 0.5 * running + 0.5 * x.mean()
    loss = w * x.mean() + 0 * average
    step = train.make_train_function(
        loss,
        [w],
        None,
        None,
        updates.sgd,
        1.0,
        givens=zip([x], [data]),  # an iterator over pairs, which can be read only once
        sliceable_shareds=[data],
        function_options=OPTIONS,
    )
    synk.scatter(data, [1.0, 3.0, 5.0, 6.0])  # 1 3, 5, 6
    step(batch_s=[[0, 1], [0], []])
    assert synk.gather(running).tolist() == [6, 7.5, 10]
    assert synk.gather(w).tolist() == [-3, -3, -3]


@pytest.mark.thorough
def test_givens_are_for_the_gradients_alone(three_ranks):
    """Givens are for gradients only: the step reads the parameter itself, so one function cannot do both."""
    kept = []
    for made_by in ("make_train_function", "make_train_function_theano"):
        model = Model()
        mask = T.constant(np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]))
        masked = theano.clone(model.w, {}) * mask
        step = model.make(made_by, updates.momentum, 0.1, givens=[(model.w, T.switch(mask > 0, masked, 0.0))])
        kept.append((step, [float(step(X, Y, batch=batch)) for batch in BATCHES], model.values()))
    (step, losses, values), (_, expected_losses, expected) = kept
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-6)
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert step.function is None
    with refuses(ValueError, "givens", "reads", "a replacement of w", "once"):
        step.steps(X, Y, batches=BATCHES)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_a_step_that_fails_on_one_rank_changes_nothing():
    synk.fork(2, use_gpu=False)
    model = Model()
    labels = T.lvector("labels")
    loss = (T.sqr(model.errors) * T.constant(np.ones(3))[labels]).mean()
    step = train.make_train_function(
        loss, model.params, [model.x, model.y], labels, updates.adam, 0.1, function_options=OPTIONS
    )
    step(X[:2], Y[:2], [0, 1])
    before = replicas(step.params + step.state, 2)
    with pytest.raises(synk.WorkerError):  # only rank 1 has the row with the invalid label
        step(X[:2], Y[:2], [0, 5])
    with pytest.raises(IndexError):  # rank 0, the master, has that row
        step(X[:2], Y[:2], [5, 0])
    for ours, others in zip(replicas(step.params + step.state, 2), before):
        for value, other in zip(ours, others):
            np.testing.assert_array_equal(value, other)
    other = Model()
    twin = other.make("make_train_function_theano", updates.adam, 0.1)
    for batch in (np.arange(2), np.arange(5)):
        twin(X, Y, batch=batch)
    step(X[:5], Y[:5], [0, 1, 2, 0, 1])
    np.testing.assert_allclose(model.values(), other.values(), rtol=1e-6)


# -- many steps --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_local_sgd_has_no_steps_of_one_command(three_ranks):
    step = Model().make("make_train_function", updates.sgd, 0.1, communicate_every=3)
    assert step.function is None
    with refuses(ValueError, "communicate_every", "1", "3", "once"):
        step.steps(X, Y, batches=BATCHES)


@pytest.mark.thorough
@pytest.mark.parametrize("after", ["gradient_fn", "step_fn"])
def test_a_rank_without_rows_makes_no_step_after_ctrl_c(three_ranks, monkeypatch, after):
    """An old gradient of an interrupted step is not applied by a rank without rows in the next batch."""
    model = Model()
    step = model.make("make_train_function", updates.sgd, 0.1, communicate_every=9)
    step(X, Y, batch=BATCHES[0])

    def interrupt(*args, **kwargs):
        if after == "step_fn":
            step.gradient_fn(X, Y, batch=BATCHES[0])  # (as if some ranks had not reached the step)
        raise KeyboardInterrupt

    step_fn = step.step_fn
    monkeypatch.setattr(step, "step_fn", interrupt)
    with pytest.raises(KeyboardInterrupt):
        step(X, Y, batch=BATCHES[0])
    monkeypatch.setattr(step, "step_fn", step_fn)
    before = replicas(model.params, 3)
    step(X, Y, batch=[0])
    (rank,) = (rank for rank in range(3) if step.last_rows[rank])
    for other in {0, 1, 2} - {rank}:
        for value, was in zip(replicas(model.params, 3)[other], before[other]):
            np.testing.assert_array_equal(value, was)
    assert not np.array_equal(replicas(model.params, 3)[rank][0], before[rank][0])


@pytest.mark.thorough
def test_steps_without_averages_are_one_command_too(three_ranks, commands):
    step = Model().make("make_train_function", updates.adam, 0.1, communicate_every=0)
    step(X, Y, batch=BATCHES[0])
    del commands[:]
    step(X, Y, batch=BATCHES[0])
    step.steps(X, Y, batches=BATCHES)
    step.average()
    assert len(commands) == 2 and sum(step.last_rows) == sum(len(batch) for batch in BATCHES)
    assert not synk.in_sync(step.params)


def test_many_steps_in_one_command(three_ranks, commands):
    model, other = Model(), Model()
    step = model.make("make_train_function", updates.adam, 0.1, outputs=[(model.errors.max(), "max")])
    twin = other.make("make_train_function_theano", updates.adam, 0.1, outputs=[(other.errors.max(), "max")])
    synk.distribute()
    del commands[:]
    losses, largest = step.steps(X, Y, batches=BATCHES)
    assert len(commands) == 1
    expected = [twin(X, Y, batch=batch) for batch in BATCHES]
    np.testing.assert_allclose(losses, [loss for loss, _ in expected], rtol=1e-6)
    np.testing.assert_allclose(largest, [most for _, most in expected], rtol=1e-6)
    np.testing.assert_allclose(model.values(), other.values(), rtol=1e-6)
    assert synk.in_sync(step.params + step.state)
