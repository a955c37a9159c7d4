"""Benchmark of separate arrays for new values in functions with collectives, for each of Lasagne's update rules.

The cost is measured on one rank, where collectives cost almost nothing. Plain Theano updates in place. Our functions
store new values in separate arrays and then swap them in.
"""

import functools

import numpy as np
import theano

import synkhronos as synk

from .contenders import PLAIN
from .demo_networks import single_precision
from .measure import Local, WrongResult, measure_in_turn

#: Whether each rule has a learning rate.
RULES = {
    "sgd": True,
    "momentum": True,
    "nesterov_momentum": True,
    "adagrad": True,
    "rmsprop": True,
    "adadelta": False,
    "adam": True,
}


class Rule:
    """Steps of a rule for one parameter with a given gradient."""

    def __init__(self, name, gradient, elements, function):
        import lasagne

        self.param = theano.shared(np.ones(elements, "float32"), "param")
        rate = {"learning_rate": np.float32(1e-3)} if RULES[name] else {}
        self.updates = getattr(lasagne.updates, name)([gradient], [self.param], **rate)
        self.function = function([], updates=self.updates)

    def loop(self, count):
        """Run steps one by one, as a plain program does."""
        for _ in range(count):
            self.function()


def run(groups, n=1, rules=tuple(RULES), elements=1 << 20, repeats=30, count=10):
    """Yield a row per rule with the times of `count` steps, and a row with the memory of the new values."""
    gradient = theano.shared(np.full(elements, 0.5, "float32"), "gradient")
    pairs = {}
    with single_precision():
        for name in rules:
            ours = Rule(name, synk.ops.all_reduce(gradient), elements, synk.function)
            pairs[name] = ours, Rule(name, gradient, elements, theano.function)
    synk.fork(n, use_gpu=False)
    try:
        for name, (ours, plain) in pairs.items():
            contenders = {
                "synkhronos": Local(functools.partial(ours.function.steps, n_steps=count)),
                PLAIN: Local(functools.partial(plain.loop, count)),
            }
            times = measure_in_turn(contenders, repeats)
            for shared in list(ours.updates) + list(plain.updates):
                shared.set_value(np.ones_like(shared.get_value()))
            ours.function.steps(n_steps=2)
            plain.loop(2)
            if not np.allclose(ours.param.get_value(), plain.param.get_value(), rtol=1e-5):
                raise WrongResult(f"the parameters differ after two steps of {name}")
            yield {"case": f"{count} steps of {name}, {elements:,} parameters", "n": n, "times": times}
            beside = sum(shared.get_value(borrow=True).nbytes for shared in ours.updates)
            yield {
                "case": f"memory of new values, {name}, in parameter sizes",
                "n": n,
                "value": beside / ours.param.get_value(borrow=True).nbytes,
            }
    finally:
        synk.close()
