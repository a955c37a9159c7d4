"""Benchmark of `fork(heal=)`: calls with and without this option, and the time that a rank's death adds to a call."""

import os
import signal
import time

import numpy as np

import synkhronos as synk
from synkhronos.program.program import PROGRAM

from .gradients import mlp
from .library import T, function, grad, shared

#: MLP of the MNIST demo, and its rows; update rules with different amounts of state.
LAYERS, ROWS = (784, 800, 800, 10), 500
RULES = ("sgd", "adam")


def run(groups, n=2, repeats=40, rounds=5, deaths=20, layers=LAYERS, rows=ROWS, pause=2.0):
    """Yield the slowdown of calls per update rule, and the seconds to replace a rank with and without a standby."""
    random = np.random.RandomState(0)
    images = random.rand(rows, layers[0]).astype("float32")
    labels = random.randint(0, layers[-1], rows).astype("int32")
    functions = {rule: trained(rule, layers, synk.function) for rule in RULES}
    for rule, f in functions.items():
        seconds = {0: [], 1: []}
        for _ in range(rounds):  # alternating, so that other load on the machine affects both equally
            for heal in seconds:
                seconds[heal] += calls(f, n, heal, images, labels, repeats)
        value = np.median(seconds[1]) / np.median(seconds[0])
        yield {"case": f"healing: call with {rule}, relative to one without heal", "n": n, "value": value}
    for standby in (True, False):
        seconds = repaired(functions["sgd"], n, standby, images, labels, deaths, pause)
        words = "with a standby" if standby else "without a standby"
        yield {"case": f"healing: seconds of a death, {words}", "n": n, "value": np.median(seconds)}
        yield {"case": f"healing: seconds of a death, {words}, maximum", "n": n, "value": max(seconds)}


def trained(rule, layers, compile=function):
    """Return a function that trains an MLP, with each rank on its own rows."""
    x, y, loss, params = mlp(layers)
    rate, updates = np.float32(1e-3), []
    for param, gradient in zip(params, grad(loss, params)):
        if rule == "sgd":
            updates.append((param, param - rate * gradient))
            continue
        mean, square = (shared(np.zeros_like(param.get_value())) for _ in range(2))
        new_mean = np.float32(0.9) * mean + np.float32(0.1) * gradient
        new_square = np.float32(0.999) * square + np.float32(0.001) * gradient**2
        step = rate * new_mean / (T.sqrt(new_square) + np.float32(1e-8))
        updates += [(mean, new_mean), (square, new_square), (param, param - step)]
    return compile([x, y], loss, updates=updates)


def calls(f, n, heal, images, labels, repeats):
    """Return the seconds of calls in a new session, with ``fork(heal=heal)``."""
    synk.fork(n, use_gpu=False, heal=heal)
    try:
        data = synk.data(images), synk.data(labels)
        found = []
        for _ in range(3 + repeats):
            began = time.perf_counter()
            f(*data)
            found.append(time.perf_counter() - began)
        return found[3:]
    finally:
        synk.close()


def repaired(f, n, standby, images, labels, deaths, pause):
    """Return the additional seconds of a call during which a rank dies, for each of `deaths` deaths."""
    synk.fork(n, use_gpu=False, heal=deaths, standby=standby)
    try:
        data = synk.data(images), synk.data(labels)
        f(*data)
        found = []
        for _ in range(deaths):
            time.sleep(pause)  # lets the next standby start and load the state
            plain = time.perf_counter()
            f(*data)
            plain = time.perf_counter() - plain
            os.kill(PROGRAM.session.launcher.pid(1), signal.SIGKILL)
            began = time.perf_counter()
            f(*data)
            found.append(time.perf_counter() - began - plain)
        return found
    finally:
        synk.close()
