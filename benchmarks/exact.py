"""What ``exact=True`` costs: an epoch with Adam beside the same with collectives put in by hand, and building it."""

import functools

import numpy as np
import theano

import synkhronos as synk

from . import demo_networks
from .contenders import BY_HAND, PLAIN
from .measure import Local, WrongResult, measure_in_turn
from .training import InSteps


def run(groups, n=2, models=("mlp", "cnn"), epochs=10, digits=None, builds=8):
    """Measure; yield two rows per network of demos/lasagne_mnist: an epoch in steps, and building its function.

    Parameters
    ----------
    groups : Groups
        Not used: the peers are our own calls, and plain Theano.
    n, models, epochs, digits
        Ranks; the networks, how many epochs of each, of how many digits (all by default).
    builds : int
        How often functions are built.
    """
    for model in models:
        make = functools.partial(demo_networks.mnist, model, digits)
        with demo_networks.single_precision():
            exact, by_hand = (InSteps(make, "adam", exact) for exact in (True, False))
        synk.fork(n, use_gpu=False)
        try:
            exact.share()
            by_hand.share()
            contenders = {
                "synkhronos": Local(exact.epoch, before=exact.begin),
                BY_HAND: Local(by_hand.epoch, before=by_hand.begin),
            }
            times = measure_in_turn(contenders, epochs, rounds=epochs, warm=0)
        finally:
            synk.close()
        difference = abs(np.mean(exact.losses) / np.mean(by_hand.losses) - 1)
        if not difference <= exact.task.tolerance:
            raise WrongResult(f"{model}: mean loss of the exact program is off by {difference:g} of it")
        yield {"case": f"epoch with Adam, {model}", "n": n, "times": times}
        yield {"case": f"building a step of Adam, {model}", "n": n, "times": building(make, builds)}


def building(make, builds):
    """Return how long it takes to build a training step: exact, and in plain Theano (compiled C code is there)."""
    import lasagne

    with demo_networks.single_precision():
        task = make()
        updates = lasagne.updates.adam(task.loss, task.params, learning_rate=task.rate)

        def build(function, **options):
            with demo_networks.single_precision():
                function(task.inputs, task.loss, updates=updates, **options)

        contenders = {
            "synkhronos": Local(functools.partial(build, synk.function, exact=True)),
            PLAIN: Local(functools.partial(build, theano.function)),
        }
        return measure_in_turn(contenders, builds, rounds=builds, warm=0)
