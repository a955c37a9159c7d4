"""Benchmark of ``exact=True``: epochs with Adam, building of functions, calls after `set_value` of a learning rate."""

import functools
import gc

import numpy as np
import theano
import theano.tensor as T

import synkhronos as synk

from . import demo_networks
from .contenders import BY_HAND, PLAIN, UNUSED
from .measure import Local, WrongResult, measure_in_turn
from .training import InSteps


def run(groups, n=2, models=("mlp", "cnn"), epochs=10, digits=None, builds=8, calls=10000):
    """Yield a result row for a new learning rate, and two rows per network of demos/lasagne_mnist.

    Parameters
    ----------
    groups : Groups
        Not used, because the peers are our own calls and plain Theano.
    n, models, epochs, digits
        Number of ranks; networks; number of epochs of each; number of digits (all by default).
    builds, calls : int
        Number of times that functions are built, and number of calls with a new learning rate.
    """
    yield {"case": "call after set_value of a learning rate", "n": n, "times": new_rate(n, calls)}
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
            # A full collection of garbage takes as long as a build, and would occur in every second or third of them.
            "synkhronos": Local(functools.partial(build, synk.function, exact=True), before=gc.collect),
            PLAIN: Local(functools.partial(build, theano.function), before=gc.collect),
        }
        return measure_in_turn(contenders, builds, rounds=builds, warm=0)


def new_rate(n, calls):
    """Return the times of a small call after `set_value` of its learning rate, or of a variable it does not use."""
    with demo_networks.single_precision():
        x, unused = T.fmatrix("x"), theano.shared(np.float32(0.0))
        trained = [(theano.shared(np.ones(4, "float32")), theano.shared(np.float32(rate))) for rate in (0.1, 0.0)]
        functions = []
        for w, rate in trained:
            loss = ((x.dot(w) - 1) ** 2).mean()
            functions.append(synk.function([x], loss, updates=[(w, w - rate * T.grad(loss, w))], exact=True))
    synk.fork(n, use_gpu=False)
    try:
        rows = synk.data(np.ones((4 * n, 4), "float32"))
        (stays, rate), _ = trained

        def contender(function, shared, check=None):
            return Local(functools.partial(function, rows), check, functools.partial(shared.set_value, np.float32(0.0)))

        contenders = {
            "synkhronos": contender(functions[0], rate, lambda: synk.in_sync(stays) and (stays.get_value() == 1).all()),
            UNUSED: contender(functions[1], unused),
        }
        return measure_in_turn(contenders, calls, rounds=calls // 20)
    finally:
        synk.close()
