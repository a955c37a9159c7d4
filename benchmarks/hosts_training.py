"""Training on two pretend hosts with a rank each, beside programs that do not communicate and what the link needs.

::

    python -m benchmarks.hosts_training --mpi mpich

*Theano-MPI's case*: an epoch of the convolutional network of demos/lasagne_mnist over a link of 1 Gbit/s, all steps
averaging the gradients; beside plain Theano in two programs at once, half the rows each, plus the time in which the link
can carry the gradients. *DASO's case*: a network whose gradients take the link as long as its steps take to compute,
trained by every rule for the same epochs: how long it takes, and how many test digits it gets right.
"""

import argparse
import functools
import sys
import time

import numpy as np

from .hosts_link import pretend_hosts, report

HOSTS = 2
RATE = 1e9
#: Of DASO's case: hidden units, rows of a step, and how far accuracies may be apart, in points.
UNITS, BATCH, POINTS = 800, 512, 1.5
SYNCHRONOUS, DELAYED, ALONE = "synchronous", "DASO", "no communication"


def epochs_of_cnn(repeats):
    """Measure epochs of the network on the ranks of all hosts."""
    import synkhronos as synk

    from . import demo_networks
    from .training import InSteps

    with demo_networks.single_precision():
        program = InSteps(functools.partial(demo_networks.mnist, "cnn"))
    synk.fork(1, threads=1)
    program.share()
    seconds = []
    for _ in range(repeats):
        program.begin()
        begin = time.perf_counter()
        program.epoch()
        seconds.append(time.perf_counter() - begin)
    nbytes = sum(param.get_value(borrow=True).nbytes for param in program.task.params)
    report(seconds=seconds, nbytes=nbytes * len(program.task.batches), loss=float(np.mean(program.losses)))
    synk.close()


def epochs_at_once(repeats):
    """Measure epochs of plain Theano on every host at the same time, each with its part of the rows."""
    import mpi4py

    mpi4py.rc.initialize = True
    import threadpoolctl
    from mpi4py import MPI

    if not MPI.Is_initialized():
        MPI.Init()
    from . import demo_networks
    from .training import Plain

    comm = MPI.COMM_WORLD
    threadpoolctl.threadpool_limits(1)
    with demo_networks.single_precision():
        program = Plain(functools.partial(demo_networks.mnist, "cnn"))
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


def epochs_by(way, epochs, repeats):
    """Train by a rule (or without any communication), some times; measure time and the accuracy afterwards."""
    import synkhronos as synk  # first: it prepares what Theano needs
    import theano

    theano.config.floatX = "float32"
    from synkhronos.extensions import rules

    from . import demo_networks  # noqa: F401 (finds the demos)
    import mnist_data
    import rules as demo

    digits = mnist_data.load()
    synk.fork(1, threads=1)
    together, alone, _, accuracy_fn = demo.build(UNITS, 0.05, 0)
    params = together.params
    X, Y = synk.data(digits.X_train), synk.data(digits.y_train)
    X_test, Y_test = [np.concatenate(both) for both in zip((digits.X_valid, digits.y_valid), (digits.X_test, digits.y_test))]
    initial = [param.get_value() for param in params]
    seconds, accuracies = [], []
    for _ in range(repeats):
        step = together if way == SYNCHRONOUS else alone
        synk.broadcast(params, initial)
        for shared in step.state:
            synk.broadcast(shared, np.zeros_like(shared.get_value()))
        rule = rules.DASO(alone, groups=[list(host.ranks) for host in synk.hosts()], warm_up=0, cool_down=0) if way == DELAYED else None
        run = rule.run if rule else step.steps
        random = np.random.RandomState(0)
        order = [random.permutation(len(X)) for _ in range(epochs + 1)]
        batches = [[rows[i : i + BATCH] for i in range(0, len(rows) - BATCH + 1, BATCH)] for rows in order]
        run(X, Y, batches=batches.pop())
        begin = time.perf_counter()
        for of_epoch in batches:
            losses = run(X, Y, batches=of_epoch)
            if rule:
                rule.epoch(float(np.mean(losses)))
        seconds.append((time.perf_counter() - begin) / epochs)
        if rule:
            rule.finish()
        accuracies.append(float(accuracy_fn(X_test, Y_test)))
    nbytes = sum(value.nbytes for value in initial)
    report(seconds=seconds, accuracy=accuracies, nbytes=nbytes, steps=len(batches[0]))
    synk.close()


def theano_mpi(kind, rounds, repeats):
    """Return the times of epochs of the network, of ours and of two programs at once, and the link's bound."""
    ours, apart = [], []
    with pretend_hosts(kind, HOSTS, RATE) as start:
        for _ in range(rounds):
            found = start(f"hosts_training.epochs_of_cnn({repeats})")
            beside = start(f"hosts_training.epochs_at_once({repeats})")
            ours += found["seconds"]
            apart += beside["seconds"]
            if abs(found["loss"] / beside["loss"] - 1) > 0.2:
                raise SystemExit(f"mean losses differ: {found['loss']} and {beside['loss']}")
    bound = 2 * (HOSTS - 1) / HOSTS * found["nbytes"] * 8 / RATE
    return float(np.median(ours)), float(np.median(apart)), bound


def daso(kind, epochs, repeats):
    """Return the times of epochs, and accuracies, by what was done; over a link as slow as the steps are."""
    with pretend_hosts(kind, HOSTS, None) as start:
        alone = start(f"hosts_training.epochs_by({ALONE!r}, 1, {repeats})")
    step = float(np.median(alone["seconds"])) / alone["steps"]
    rate = 2 * (HOSTS - 1) / HOSTS * alone["nbytes"] * 8 / step
    found = {}
    with pretend_hosts(kind, HOSTS, rate) as start:
        for way in (ALONE, SYNCHRONOUS, DELAYED):
            each = start(f"hosts_training.epochs_by({way!r}, {epochs}, {repeats})")
            found[way] = float(np.median(each["seconds"])), float(np.median(each["accuracy"]))
    return step, rate, found


def main():
    """Measure, and say how far the goals were met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mpi", choices=["openmpi", "mpich"], default="mpich")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--only", choices=["cnn", "daso"])
    given = parser.parse_args()
    if given.only != "daso":
        ours, apart, bound = theano_mpi(given.mpi, given.rounds, given.repeats)
        part = (apart + bound) / ours
        print(f"epoch of MNIST, CNN: {ours:.3f} s; two programs at once {apart:.3f} s, the link {bound:.3f} s: {part:.2f}")
    if given.only != "cnn":
        step, rate, found = daso(given.mpi, given.epochs, given.repeats)
        print(f"DASO's case: a step takes {1e3 * step:.1f} ms, the link has {rate / 1e6:.0f} Mbit/s")
        for way, (seconds, accuracy) in found.items():
            of = seconds / found[SYNCHRONOUS][0]
            print(f"{way:20} epoch {seconds:.3f} s ({of:.2f} of synchronous), accuracy {100 * accuracy:.1f} %")


if __name__ == "__main__":
    sys.exit(main())
