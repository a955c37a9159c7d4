"""Benchmark of start-up (`fork`, `distribute` of a large network's functions, `close`), and of the memory of a rank."""

import gc
import os
import pickle
import sys

import numpy as np

import synkhronos as synk
from synkhronos.program.program import PROGRAM

from .library import T, grad, relu, shared, without_networks
from .measure import Local, measure_in_turn
from .unpickling import Unpickling

MB = 1 << 20
#: Names of memory cases; number of ranks that have a function with a large constant.
OF_DATA, OF_CONSTANT, HOLDERS = "memory that a data set adds, MB", "memory that a constant adds, MB", 3
OF_VARIABLES, MANY = "memory of distributed variables, all ranks, MB", 8
OF_FUNCTION = "private memory that distributing adds to a rank, {}, MB"


def deep_network(layers, width):
    """Return input, loss and parameters of a deep network of small layers."""
    x, params = T.fmatrix("x"), []
    hidden = x
    for i in range(layers):
        w = shared(np.eye(width, dtype="float32"), f"w{i}")
        b, gain = shared(np.zeros(width, "float32"), f"b{i}"), shared(np.ones(width, "float32"))
        params += [w, b, gain]
        hidden = relu(T.dot(hidden, w) * gain + b) + hidden
    return x, hidden.mean(), params


def small_functions(layers, width):
    """Return a list with the training function of a deep network of small layers, and its number of variables."""
    x, loss, params = deep_network(layers, width)
    changes = [(p, p - np.float32(0.01) * g) for p, g in zip(params, grad(loss, params))]
    return [synk.function([x], loss, updates=changes)], len(params)


def resnet_functions(depth):
    """Return a list with the training function of demos/resnet."""
    from synkhronos.extensions import train, updates

    from . import demo_networks  # with Theano only

    with demo_networks.single_precision():
        task, settings = demo_networks.resnet_graph(depth)
        step = train.make_train_function(
            task.loss, task.params, *task.inputs, updates.nesterov_momentum, learning_rate=settings.learning_rate
        )
    return [step.function]


def run(groups, n=2, layers=53, width=64, set_bytes=1 << 30, constant_bytes=1 << 28, repeats=5, depth=50):
    """Yield the result rows of start-up and memory; ``depth=None`` skips the residual network, which takes minutes."""
    open_again(n)  # before functions are built, as in programs, so that ranks must load all functions
    with Unpickling() as unpickling:
        functions, n_variables = small_functions(layers, width)
        yield from distributed(f"{n_variables} variables", n, functions, unpickling, repeats)
        del functions
        if depth is not None and without_networks() is None:
            yield from distributed(f"ResNet-{depth}", n, resnet_functions(depth), unpickling, min(repeats, 3))
    open_again(n)
    times = measure_in_turn(
        {
            "fork": Local(lambda: synk.fork(n, use_gpu=False), before=synk.close),
            "close": Local(synk.close, before=lambda: open_again(n)),
        },
        repeats,
    )
    yield {"case": "fork and close", "n": n, "times": times}
    x = T.fmatrix("x")
    look = synk.function([x], (x.sum(axis=1).max(), "max"))
    open_again(n)
    look(np.zeros((n, width), "float32"))
    before = memory_of_ranks()
    data = synk.data(shape=(set_bytes // 4 // width, width), dtype="float32", var=x)
    data[:] = 1
    for begin in range(0, len(data), 1 << 16):
        look(data, batch=slice(begin, begin + (1 << 16)))
    after = memory_of_ranks()
    synk.close()
    yield {"case": "memory of a rank, MB", "n": n, "value": max(before[1:]) / MB}
    yield {"case": OF_DATA, "n": n, "value": (sum(after) - sum(before)) / MB, "of": set_bytes / MB}
    for case, nbytes in zip((OF_VARIABLES, OF_VARIABLES + ", after an update"), variables_memory(set_bytes)):
        yield {"case": case, "n": MANY, "value": nbytes / MB, "of": set_bytes / MB}
    yield {"case": OF_CONSTANT, "n": HOLDERS, "value": constant_memory(constant_bytes) / MB, "of": constant_bytes / MB}


def open_again(n):
    """Close the session if one is open, and fork new ranks, which have no functions."""
    if synk.is_forked():
        synk.close()
    synk.fork(n, use_gpu=False)


def distributed(what, n, functions, unpickling, repeats):
    """Yield the times to distribute functions and to unpickle them, and their memory on the ranks."""
    gc.collect()  # so that deleted functions are not distributed
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        pickled = pickle.dumps([function.compiled for function in functions], pickle.HIGHEST_PROTOCOL)
        times = measure_in_turn(
            {
                "synkhronos": Local(synk.distribute, synk.is_forked, before=lambda: open_again(n)),
                "unpickling": unpickling.contender(pickled),
            },
            repeats,
            rounds=repeats,
            warm=0,
        )
    finally:
        sys.setrecursionlimit(limit)
    yield {"case": "distribute, " + what, "n": n, "times": times}
    open_again(n)
    cases = {f"memory that distributing adds to a rank, {what}, MB": "Pss", OF_FUNCTION.format(what): "Pss_Anon"}
    before = [memory_of_ranks(kind) for kind in cases.values()]
    synk.distribute()
    after = [memory_of_ranks(kind) for kind in cases.values()]
    synk.close()
    for case, *memory in zip(cases, before, after):
        yield {"case": case, "n": n, "value": max(now - then for then, now in list(zip(*memory))[1:]) / MB}


def variables_memory(nbytes):
    """Return the memory of variables which all ranks have alike, on all ranks together, and again after an update.

    The variables are created while the ranks wait, so that the program's own values count, too. After the update, new
    values and intermediate results also count.
    """
    open_again(MANY)
    gc.collect()
    before = sum(memory_of_ranks())
    variables = [shared(np.ones(nbytes // 16, "float32"), borrow=True) for _ in range(4)]
    halve = synk.function([], updates=[(variable, variable * np.float32(0.5)) for variable in variables], exact=True)
    synk.distribute()
    distributed = sum(memory_of_ranks())
    halve()
    gc.collect()
    updated = sum(memory_of_ranks())
    synk.close()
    return distributed - before, updated - before


def constant_memory(nbytes):
    """Return the memory that a function with a large constant adds to all ranks, beyond the program's own copy.

    A copy per rank takes more memory than one shared copy only with more than two ranks. (Theano checks every element
    with an array of bools. A rank keeps this array's freed memory if it is below `heap.MMAP_THRESHOLD_BYTES`.)
    """
    index = T.lscalar("index")
    rows = T.constant(np.ones(nbytes // 4, "float32"))
    function = synk.function([], T.zeros(()))
    open_again(HOLDERS)
    function()
    holding = synk.function([index], (rows[index], "max"))
    gc.collect()
    before = memory_of_ranks()
    synk.distribute()
    holding(0)
    gc.collect()
    after = memory_of_ranks()
    synk.close()
    return sum(after) - sum(before)


def memory_of_ranks(kind="Pss"):
    """Return the proportional set size (PSS) of the master and of every other rank in bytes, or a part of this size."""
    session, found = PROGRAM.session, []
    pids = [os.getpid(), *(session.launcher.pid(rank) for rank in session.others)]
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            found.append(sum(int(line.split()[1]) << 10 for line in file if line.startswith(f"{kind}:")))
    return found
