"""Local steps of all ranks on the same loss, by the library and in NumPy, for the tests of rules."""

import numpy as np
import words
from serial import Serial

import synkhronos as synk
from synkhronos.extensions import rules
from synkhronos.testing import numpy_engine as engine
from synkhronos.testing.numpy_engine import apply, operations

RATE, MOMENTUM = 0.05, 0.8
RANDOM = np.random.RandomState(0)
A, B, BEGIN = RANDOM.randn(60, 4), RANDOM.randn(60), RANDOM.randn(4)


class Training:
    """Local steps by the library, and the same in NumPy."""

    def __init__(self, world, momentum=MOMENTUM):
        self.world = world
        a, b = engine.variable("a", "float64", 2), engine.variable("b", "float64", 1)
        self.w, self.m = engine.shared(BEGIN.copy(), "w"), engine.shared(np.zeros(4), "m")
        error = engine.dot(a, self.w) - b
        gradient = apply(np.true_divide, engine.dot(error, a), apply(operations.length, b))
        new = self.m * momentum - gradient * RATE
        loss = engine.mean(error * error)
        self.function = synk.function([a, b], loss, updates=[(self.m, new), (self.w, self.w + new)], exact=False)
        synk.distribute()
        self.serial = Serial(world.n, A, B, BEGIN, RATE, momentum)

    def batches(self, count, size=7, seed=1):
        random = np.random.RandomState(seed)
        return [random.permutation(60)[:size] for _ in range(count)]

    def serial_step(self, batch):
        self.serial.step(words.shards(batch, self.world.n, self.world.root))

    def check(self):
        np.testing.assert_allclose(self.world.values(self.w), self.serial.x, rtol=1e-11, atol=1e-12)


def local(training, **options):
    return rules.LocalSGD(training.function, [training.w], [training.m], **options)


def centred(kind, **options):
    return lambda training, every: kind(training.function, [training.w], every=every, **options)


#: By name: a function that creates a rule for a training, and the rule's exchange in the serial simulation.
RULES = {
    "LocalSGD": (lambda training, every: local(training, every=every), lambda serial, rule: serial.local_sgd()),
    "EASGD": (centred(rules.EASGD), lambda serial, rule: serial.easgd(0.9 / serial.n)),
    "EASGD alpha": (centred(rules.EASGD, alpha=0.3), lambda serial, rule: serial.easgd(0.3)),
    "DiLoCo": (centred(rules.DiLoCo), lambda serial, rule: serial.outer(0.7, 0.9, True)),
    "SlowMo": (centred(rules.SlowMo), lambda serial, rule: serial.outer(1.0, 0.5, False)),
    "ASGD": (centred(rules.ASGD), lambda serial, rule: serial.asgd(1 / serial.n)),
    "ASGD sum": (centred(rules.ASGD, rate=1), lambda serial, rule: serial.asgd(1)),
    "Gossip": (
        lambda training, every: rules.Gossip(training.function, [training.w], every=every, probability=0.5, seed=3),
        lambda serial, rule: serial.gossip(rule.sent, serial.alphas),
    ),
    "Swap": (
        lambda training, every: rules.Swap(training.function, [training.w], [training.m], every=every),
        lambda serial, rule: serial.swap(rule.pairs),
    ),
}
