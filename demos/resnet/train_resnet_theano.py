"""Train a residual network in plain Theano, as the baseline for train_resnet.py.

    python -m synkhronos demos/resnet/train_resnet_theano.py --depth 20 --batches 50

BLAS may use one thread or all cores (Theano's own loops always use one thread). Either setting can be faster, so both
are run, and speedups are relative to the faster run.
"""

import os

import lasagne
import theano
from report import print_table
from threadpoolctl import threadpool_limits
from workload import argument_parser, build_task, build_validation, load_images, make_settings, parse, prepare, train


def train_with_theano(images, settings):
    """Train in this process, with one BLAS thread and with one per core; return the runs, the faster run first."""
    print("Theano: compiling the network (a minute or more the first time)", flush=True)
    task = build_task(settings)
    updates = getattr(lasagne.updates, settings.rule)(task.loss, task.params, learning_rate=settings.learning_rate)
    train_fn = theano.function(task.inputs, task.loss, updates=updates)
    settle_fn, valid_fn = build_validation(theano.function, task) if images.can_validate else (None, None)
    initial = [(shared, shared.get_value()) for shared in train_fn.get_shared()]

    runs = []
    for blas_threads in sorted({1, len(os.sched_getaffinity(0))}):
        for shared, value in initial:
            shared.set_value(value)
        name = f"Theano, {blas_threads} BLAS thread{'s' if blas_threads > 1 else ''}"
        with threadpool_limits(limits=blas_threads):
            runs.append(train_serially(name, train_fn, settle_fn, valid_fn, images, settings))
    return sorted(runs, key=lambda run: run.seconds)


def train_serially(name, train_fn, settle_fn, valid_fn, images, settings):
    """Train in plain Theano, starting from the current values of the shared variables."""

    def steps(batches, on_step):
        losses = []
        for i, batch_idxs in enumerate(batches):
            losses.append(train_fn(images.X_train[batch_idxs], images.y_train[batch_idxs]))
            on_step(i, losses[-1])
        return losses

    def settle(batch_idxs):
        settle_fn(images.X_train[batch_idxs], images.y_train[batch_idxs])

    def validate():
        return valid_fn(images.X_valid, images.y_valid)

    return train(name, steps, settle, validate, images, settings)


def main(**given):
    """Train a residual network in plain Theano, and print the table of runs.

    Parameters
    ----------
    **given
        Fields of `workload.Settings` that replace the defaults for the depth.

    Returns
    -------
    list of Run
        The runs, starting with the faster run.
    """
    settings = make_settings(**given)
    prepare(settings)
    images = load_images(settings)
    print(images.source, flush=True)
    runs = train_with_theano(images, settings)
    print_table(runs)
    return runs


if __name__ == "__main__":
    main(**parse(argument_parser(__doc__.split("\n")[0])))
