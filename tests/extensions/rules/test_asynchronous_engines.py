"""Asynchronous runs with Theano or PyTensor, repeated from their logs, with steps by the library's functions."""

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T
from refusals import refuses
from replay import Replay

import synkhronos as synk
from synkhronos.extensions import rules

pytestmark = getattr(pytest.mark, NAME)

RANDOM = np.random.RandomState(0)
X, Y = RANDOM.randn(200, 20).astype("float32"), RANDOM.randn(200).astype("float32")
BEGIN = RANDOM.randn(20).astype("float32")


def graph():
    """Return inputs, loss, updates, parameter and momentum of a graph with order-dependent sums."""
    x, y = L.variable("float32", 2, "x"), L.variable("float32", 1, "y")
    w, m = L.shared(BEGIN.copy(), "w"), L.shared(np.zeros(20, "float32"), "m")
    loss = T.mean(T.tanh(T.dot(x, w) - y) ** 2)
    new = np.float32(0.9) * m - np.float32(0.05) * T.grad(loss, w)
    return [x, y], loss, [(m, new), (w, w + new)], w, m


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["EASGD", "ASGD", "Gossip"])
def test_the_log_gives_the_run_again(make_world, name):
    inputs, loss, updates, w, m = graph()
    function = synk.function(inputs, (loss, "avg"), updates=updates, mode=L.full, exact=False)
    inputs, loss, updates, own_w, own_m = graph()
    serial = L.function(inputs, loss, updates=updates, mode=L.full)
    world = make_world("fork", 2, 0, NAME, pin=False)
    synk.distribute()
    rule = getattr(rules, name)(function, [w], every=2, **(dict(probability=0.7) if name == "Gossip" else {}))
    momenta, losses = [np.zeros(20, "float32") for _ in range(2)], {}
    batches = [RANDOM.permutation(200)[: RANDOM.randint(1, 40)] for _ in range(40)]

    def step(rank, x, batch):
        own_w.set_value(x)
        own_m.set_value(momenta[rank])
        losses[batch] = serial(X[batches[batch]], Y[batches[batch]]).item()
        momenta[rank] = own_m.get_value()
        return own_w.get_value()

    replay = Replay(2, [BEGIN, BEGIN], step, BEGIN)
    found = rule.run(X, Y, batches=batches, asynchronous=True, record=True)
    replay.run(rule.log, (name, getattr(rule, "alpha", None) or getattr(rule, "rate", None)))
    assert [each.tobytes() for each in world.values(w)] == [each.tobytes() for each in replay.x]
    assert [each.tobytes() for each in world.values(m)] == [each.tobytes() for each in momenta]
    assert found.tolist() == [losses[i] for i in range(40)]


@pytest.mark.thorough
@pytest.mark.skipif(not IS_THEANO, reason="training functions are Theano's")
def test_a_training_function(make_world):
    """Local steps may run asynchronously; functions with collectives, or with steps in parts, are refused."""
    from synkhronos.extensions import train, updates

    synk.close()
    world = make_world("fork", 2, 0, NAME, pin=False)
    x, y, w = L.variable("float32", 2, "x"), L.variable("float32", 1, "y"), L.shared(BEGIN.copy(), "w")
    loss = T.sqr(T.dot(x, w) - y).mean()

    def make(**options):
        options = dict(learning_rate=0.02, function_options={"mode": L.quick}, **options)
        return train.make_train_function(loss, [w], x, y, updates.momentum, **options)

    batches = [RANDOM.permutation(200)[:20] for _ in range(60)]
    with refuses(ValueError, "function", got="synkhronos.ops"):
        rules.EASGD(make()).run(X, Y, batches=batches, asynchronous=True)
    with refuses(ValueError, "function", "one command"):
        rules.EASGD(make(communicate_every=4)).run(X, Y, batches=batches, asynchronous=True)
    function = make(communicate_every=0)
    rule = rules.EASGD(function, every=5)
    losses = rule.run(X, Y, batches=batches, asynchronous=True)
    # One rank makes at least 30 of the steps; the other rank may begin only after them.
    assert losses.shape == (60,) and np.sort(losses)[:20].mean() < np.mean((np.dot(X, BEGIN) - Y) ** 2) / 4
    assert sum(function.last_rows) == 60 * 20
    assert np.ptp(world.values(rule.centre[0]), axis=0).max() == 0
