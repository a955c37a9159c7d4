"""Benchmark of ``exact=True``: an epoch with Adam compared with explicit collectives, and building the function."""

import functools

import numpy as np
import theano

import synkhronos as synk

from . import demo_networks
from .contenders import BY_HAND, PLAIN
from .measure import Local, WrongResult, measure_in_turn
from .training import InSteps


def run(groups, n=2, models=("mlp", "cnn"), epochs=10, digits=None, builds=8):
    """Yield two result rows per network of demos/lasagne_mnist: an epoch in one command, and building its function.

    Parameters
    ----------
    groups : Groups
        Not used, because the peers are our own calls and plain Theano.
    n, models, epochs, digits
        Number of ranks; networks; number of epochs of each; number of digits (all by default).
    builds : int
        Number of times that functions are built.
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
            raise WrongResult(f"{model}: the mean loss of the exact program has a relative error of {difference:g}")
        yield {"case": f"epoch with Adam, {model}", "n": n, "times": times}
        yield {"case": f"building a step of Adam, {model}", "n": n, "times": building(make, builds)}


def building(make, builds):
    """Return the times to build a training step with ``exact=True``, and in plain Theano (with cached C code)."""
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
