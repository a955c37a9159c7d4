"""300 training steps of a compiled network give the same bits if ranks are killed at random moments."""

import sys

import numpy as np
import pytest
from killer import Killer, flat
from library import NAME, L, T
from worlds import over_hosts

import synkhronos as synk
from synkhronos.program.program import PROGRAM

pytestmark = [getattr(pytest.mark, NAME), pytest.mark.timeout(600), pytest.mark.long]

STEPS, ROWS, INPUTS, HIDDEN = 300, 96, 12, 20


def network(exact):
    """Return a step of momentum with dropout, one without, and their parameters and velocities."""
    random = np.random.RandomState(7)
    x, y = T.dmatrix("x"), T.dvector("y")
    w = L.shared(random.randn(INPUTS, HIDDEN) / 4, "w")
    v = L.shared(random.randn(HIDDEN) / 4, "v")
    hidden = T.tanh(T.dot(x, w))
    dropped = hidden
    for stream in L.streams(4):
        dropped = dropped * (stream.uniform((HIDDEN,)) > 0.1)
    found = []
    for layer in (dropped, hidden):
        loss = T.sqr(T.dot(layer, v) - y).mean()
        updates, kept = [], []
        for param, gradient in zip((w, v), T.grad(loss, [w, v])):
            velocity = L.shared(np.zeros_like(param.get_value()), "velocity")
            step = 0.9 * velocity - 0.02 * gradient
            updates += [(velocity, step), (param, param + step)]
            kept.append(velocity)
        found.append((synk.function([x, y], (loss, "avg"), updates=updates, exact=exact), kept))
    (noisy, of_noisy), (plain, of_plain) = found
    return noisy, plain, [w, v, *of_noisy, *of_plain]


def trained(disturb=lambda: None):
    """Train by calls, slices and `steps`, with collectives inside functions and between calls; return all results."""
    random = np.random.RandomState(1)
    images, labels = random.rand(ROWS, INPUTS), random.rand(ROWS)
    noisy, plain, variables = network(exact=False)
    _, joint, others = network(exact=True)
    data, found, step = [synk.data(images), synk.data(labels)], [], 0
    while step < STEPS:
        batches = [random.permutation(ROWS)[:24] for _ in range(20)]
        for batch in batches[:10]:
            disturb()
            found.append(noisy(*data, batch=batch))
        disturb()
        found.append(plain(*data, batch=batches[0], num_slices=2))
        disturb()
        found.append(noisy.steps(*data, batches=batches))
        disturb()
        found.append(joint.steps(*data, batches=batches))
        disturb()
        found.append(joint(*data, batch=batches[1], num_slices=2))
        disturb()
        synk.all_reduce(variables)
        step += 52
    return found, [synk.gather(variable, nd_up=1) for variable in [*variables, *others]]


@pytest.mark.parametrize("n", [2, 3])
def test_the_bits_are_those_of_the_undisturbed_training(n):
    synk.fork(n, seed=2)
    expected = flat(trained())
    synk.close()
    synk.fork(n, seed=2, heal=1000)
    with Killer(PROGRAM.session.others, likely=0.7) as killer:
        found = flat(trained(killer))
    assert found == expected
    assert killer.kills >= len(PROGRAM.session.healing.deaths) >= 30


def test_the_bits_over_hosts(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "STEPS", 52)
    over_hosts((2, 2), seed=2)
    expected = flat(trained())
    synk.close()
    session = over_hosts((2, 2), seed=2, heal=1000)
    with Killer(session.others, likely=0.7) as killer:
        found = flat(trained(killer))
    assert found == expected
    assert killer.kills >= len(session.healing.deaths) >= 5
