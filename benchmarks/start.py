"""What starting costs: `fork`, `distribute` of a large network's functions, `close`; and the memory of a rank."""

import os
import pickle
import sys

import numpy as np
import theano
import theano.tensor as T

import synkhronos as synk

from .calls import children
from .measure import Local, measure_in_turn


def deep_network(layers, width):
    """Return input, loss and parameters of a deep network of small layers, as many as ResNet-50 has."""
    x, params = T.fmatrix("x"), []
    hidden = x
    for i in range(layers):
        w = theano.shared(np.eye(width, dtype="float32"), "w%d" % i)
        b, gain = theano.shared(np.zeros(width, "float32"), "b%d" % i), theano.shared(np.ones(width, "float32"))
        params += [w, b, gain]
        hidden = T.nnet.relu(T.dot(hidden, w) * gain + b) + hidden
    return x, hidden.mean(), params


def run(groups, n=2, layers=53, width=64, set_bytes=1 << 30, repeats=5):
    """Measure; yield a row per case."""
    x, loss, params = deep_network(layers, width)
    grads = T.grad(loss, params)
    inputs, changes = [x], [(p, p - np.float32(0.01) * g) for p, g in zip(params, grads)]
    function = synk.function(inputs, loss, updates=changes)
    plain = theano.function(inputs, loss, updates=changes)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10 ** 6)
    try:
        pickled = pickle.dumps(plain, pickle.HIGHEST_PROTOCOL)

        def open_again():
            if synk.is_forked():
                synk.close()
            synk.fork(n, use_gpu=False)

        loading = Local(lambda: pickle.loads(pickled))
        times = measure_in_turn({"synkhronos": Local(synk.distribute, synk.is_forked, before=open_again),
                                 "unpickling": loading}, repeats, rounds=repeats)
    finally:
        sys.setrecursionlimit(limit)
    yield {"case": "distribute, %d variables" % len(params), "n": n, "times": times}
    synk.close()
    times = measure_in_turn({"fork": Local(lambda: synk.fork(n, use_gpu=False), before=synk.close),
                             "close": Local(synk.close, before=open_again)}, repeats)
    yield {"case": "fork and close", "n": n, "times": times}
    open_again()
    rows = np.zeros((1, width), "float32")
    function(rows)
    before = memory_of_ranks()
    data = synk.data(shape=(set_bytes // 4 // width, width), dtype="float32", var=x)
    data[:] = 1
    function(data, batch=slice(0, 64))
    look = synk.function([x], (x.sum(axis=1).max(), "max"))
    for begin in range(0, len(data), 1 << 16):
        look(data, batch=slice(begin, begin + (1 << 16)))
    after = memory_of_ranks()
    yield {"case": "memory per rank, MB", "n": n, "value": max(before[1:]) / (1 << 20)}
    yield {"case": "memory that a data set of %d MB adds, MB" % (set_bytes >> 20), "n": n,
           "value": (sum(after) - sum(before)) / (1 << 20)}
    synk.close()


def memory_of_ranks():
    """Return the proportional share of memory (PSS) of the master and of every other rank, in bytes."""
    pids = [os.getpid()] + [pid for keeper in children(os.getpid()) for pid in children(keeper)]
    found = []
    for pid in pids:
        with open("/proc/%d/smaps_rollup" % pid) as file:
            found.append(sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:")))
    return found

