"""Benchmark of training on two hosts with one rank each, in seconds per epoch; run it with mpirun.

::

    mpirun ... python -m benchmarks.hosts.training cnn 3                # the ranks train a network together
    mpirun ... python -m benchmarks.hosts.training apart 3              # plain Theano on each host, with half the rows
    mpirun ... python -m benchmarks.hosts.training DASO 3 --epochs 10   # or "synchronous", or "alone"

The first two commands measure *Theano-MPI's case*: the convolutional network of demos/lasagne_mnist, with an epoch in
one command and gradients averaged in all steps. The last command measures *DASO's case*: a network with one hidden
layer is trained with a rule for some epochs from fixed initial values, and then classifies the test digits. The
first epoch, which builds the rule's functions, is not timed. The digits are constant data. As in plain Theano, each
host stores all of them, so steps send no rows.
"""

import argparse
import functools
import importlib
import sys
import time

import numpy as np

import synkhronos as synk

from .link import report

#: Settings of DASO's case. An epoch of the rule is PASSES passes over the data set, so that ranks wait less often.
UNITS, BATCH, RATE_OF_LEARNING, PASSES = 800, 512, 0.05, 5


def cnn():
    """Return a function that creates the convolutional network of demos/lasagne_mnist and its data."""
    from benchmarks import demo_networks

    return functools.partial(demo_networks.mnist, "cnn")


def together(repeats):
    """Measure epochs of the convolutional network on the ranks of all hosts."""
    synk.fork(1, threads=1)
    from benchmarks.demo_networks import single_precision
    from benchmarks.training import InSteps

    with single_precision():
        program = InSteps(cnn())
    synk.distribute()
    program.share(constant=True)
    seconds = []
    for _ in range(repeats):
        program.begin()
        begin = time.perf_counter()
        program.epoch()
        seconds.append(time.perf_counter() - begin)
    nbytes = sum(param.get_value(borrow=True).nbytes for param in program.task.params)
    steps = len(program.task.batches)
    report(seconds=seconds, nbytes=nbytes, steps=steps, loss=float(np.mean(program.losses)))
    synk.close()


def apart(repeats):
    """Measure epochs of plain Theano on all hosts at the same time, each with its part of every batch."""
    import threadpoolctl
    from mpi4py import MPI

    if not MPI.Is_initialized():  # importing the library keeps mpi4py from initializing MPI
        MPI.Init()
    from benchmarks.demo_networks import single_precision
    from benchmarks.training import Plain

    comm = MPI.COMM_WORLD
    threadpoolctl.threadpool_limits(1)
    with single_precision():
        program = Plain(cnn())
    part, seconds = slice(comm.rank, None, comm.size), []
    for _ in range(repeats):
        program.begin(part)
        comm.Barrier()
        begin = time.perf_counter()
        program.epoch(part)
        seconds.append(comm.allreduce(time.perf_counter() - begin, MPI.MAX))
    loss = comm.allreduce(float(np.mean(program.losses))) / comm.size
    if comm.rank == 0:
        report(seconds=seconds, loss=loss)
    MPI.Finalize()


def by_rule(way, repeats, epochs):
    """Measure epochs of training with a rule, and the final accuracy."""
    synk.fork(1, threads=1)
    from benchmarks.demo_networks import single_precision  # first: it adds the demos to sys.path
    from synkhronos.extensions import rules

    mnist_data, demo = map(importlib.import_module, ("mnist_data", "rules"))

    digits = mnist_data.load()
    with single_precision():
        of_all, of_each, _, accuracy_fn = demo.build(UNITS, RATE_OF_LEARNING, 0)
        groups = [list(host.ranks) for host in synk.hosts()]
        make = functools.partial(rules.DASO, of_each, groups=groups, epochs=epochs, warm_up=0, cool_down=0)
        X, Y = (synk.data(each, constant=True) for each in (digits.X_train, digits.y_train))
        X_test = np.concatenate([digits.X_valid, digits.X_test])
        Y_test = np.concatenate([digits.y_valid, digits.y_test])
        step = of_all if way == "synchronous" else of_each
        initial = [param.get_value() for param in step.params]
        seconds, accuracies = [], []
        for repeat in range(repeats + 1):  # the first repeat warms up
            synk.broadcast(step.params, initial)
            for shared in step.state:
                synk.broadcast(shared, np.zeros_like(shared.get_value()))
            rule = make() if way == "DASO" else None
            batches = shuffled(len(X), epochs if repeat else 1)
            begin = 0.0
            for i, of_epoch in enumerate(batches, 1):
                losses = (rule.run if rule else step.steps)(X, Y, batches=of_epoch)
                if rule and i % PASSES == 0:
                    rule.epoch(float(np.mean(losses)))
                begin = begin or time.perf_counter()
            if repeat:
                seconds.append((time.perf_counter() - begin) / (epochs - 1))
                if rule:
                    rule.finish()
                accuracies.append(float(accuracy_fn(X_test, Y_test)))
    nbytes = sum(value.nbytes for value in initial)
    report(way=way, seconds=seconds, accuracy=accuracies, nbytes=nbytes, steps=len(batches[0]))
    synk.close()


def shuffled(length, epochs):
    """Return the shuffled rows of every step, for some epochs."""
    random = np.random.RandomState(0)
    orders = [random.permutation(length) for _ in range(epochs)]
    return [[order[i : i + BATCH] for i in range(0, length - BATCH + 1, BATCH)] for order in orders]


def main():
    """Run the measurements selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["cnn", "apart", "synchronous", "DASO", "alone"])
    parser.add_argument("repeats", type=int)
    parser.add_argument("--epochs", type=int, default=1)
    given = parser.parse_args()
    if given.what in ("cnn", "apart"):
        {"cnn": together, "apart": apart}[given.what](given.repeats)
    else:
        by_rule(given.what, given.repeats, given.epochs)


if __name__ == "__main__":
    sys.exit(main())
