"""Train a residual network on all cores or GPUs, report how time is spent, and compare the results with plain Theano.

    python -m synkhronos demos/resnet/train_resnet.py --depth 20 --batches 50
    python -m synkhronos --profile out demos/resnet/train_resnet.py --depth 50 --batches 2     # also writes a timeline

Every rank computes the gradients of its share of a batch, an all_reduce inside the graph averages them, and all ranks
apply the same update. One command runs many steps. The program for plain Theano is the same, but without the
all_reduce.

The program checks its losses. Without batch normalization (--no-batch-norm), the loss of a batch is a mean over its
rows, so the losses must equal the serial program's up to rounding. The same holds if ranks normalize by the mean and
variance of all rows (--sync-bn), with collectives in every normalization layer. Rounding errors grow quickly in these
networks, so with --sync-bn, only the losses of the first batches are compared. By default, each rank normalizes by the
mean and variance of its own shard. These statistics vary more than the statistics of the whole batch and change the
loss, so results differ. With either kind of normalization, training must reach about the same loss and accuracy, within
`LOSS_TOLERANCE` and `ACCURACY_TOLERANCE`.
"""

import sys
import tempfile

import lasagne
import numpy as np
import theano
from lasagne import layers
from report import images_per_second, print_table
from train_resnet_theano import train_with_theano
from workload import (
    argument_parser,
    build_task,
    build_validation,
    load_images,
    make_settings,
    parse,
    prepare,
    resume,
    train,
)

import synkhronos as synk
from synkhronos.extensions import checkpoint
from synkhronos.extensions.train import average_batch_norm

# Tolerances with batch normalization: relative excess of the mean loss over the serial program's, in the last half of
# the batches, and absolute deficit of the validation accuracy.
LOSS_TOLERANCE = 0.25
ACCURACY_TOLERANCE = 0.05
# Tolerance without batch normalization: the largest relative difference of any batch's loss. With --sync-bn, it applies
# only to the first batches. (After 50 batches in float32, plain Theano's losses with one and two BLAS threads also
# differ by several percent.)
ROUNDING = {"float32": 1e-3, "float64": 1e-9}
FIRST_BATCHES = 3
# Rules that are linear in the gradient: their update from the mean gradient is the mean of the slices' updates.
LINEAR_RULES = ("sgd", "momentum", "nesterov_momentum")


def train_with_synkhronos(images, settings, folder, n_ranks=None, num_slices=1, checkpoint_path=None, devices=None):
    """Train on all ranks in a new session, from the checkpoint if it exists; write the profile to `folder`."""
    n_ranks = synk.fork(n_ranks, devices=devices, profile=folder)
    name = f"Synkhronos, {n_ranks} rank{'s' if n_ranks > 1 else ''}"
    print(f"{name}: compiling the network (a minute or more the first time)", flush=True)
    task = build_task(settings)
    grads = synk.ops.all_reduce(theano.grad(task.loss, task.params))
    updates = getattr(lasagne.updates, settings.rule)(grads, task.params, learning_rate=settings.learning_rate)
    train_fn = synk.function(task.inputs, task.loss, updates=updates, name="train")
    saved = layers.get_all_params(task.network) + [shared for shared in updates if shared not in task.params]
    settle_fn, valid_fn = build_validation(synk.function, task) if images.can_validate else (None, None)
    synk.distribute()
    first = resume(checkpoint_path, saved)
    X_train, y_train = synk.data(images.X_train), synk.data(images.y_train)

    def steps(batches, on_step):
        return train_fn.steps(X_train, y_train, batches=batches, num_slices=num_slices, on_step=on_step)

    def settle(batch_idxs):
        settle_fn(X_train, y_train, batch=batch_idxs, num_slices=num_slices)

    def average_statistics():
        if settings.normalize and not settings.sync_bn:  # with sync_bn, statistics are equal on all ranks
            average_batch_norm(task.network)

    def validate():
        average_statistics()
        pieces = -(-len(images.X_valid) // (n_ranks * settings.batch_size))
        return valid_fn(images.X_valid, images.y_valid, num_slices=pieces)

    def save(n_batches):
        if checkpoint_path:
            average_statistics()
            checkpoint.save(checkpoint_path, saved, batches=n_batches)

    run = train(name, steps, settle, validate, images, settings, first, save)
    print(f"\n{synk.report()}\n")
    synk.close()
    return run


def compare(run, base, settings):
    """Print the differences between a run and the serial run; return whether they are within the tolerances."""
    losses, base_losses = np.array(run.losses), np.array(base.losses)
    agree = True
    if settings.sync_bn or not settings.normalize:
        n = min(FIRST_BATCHES, len(losses)) if settings.normalize else len(losses)
        allowed = ROUNDING[settings.dtype]
        difference = np.max(np.abs(losses - base_losses)[:n] / np.abs(base_losses)[:n])
        print(
            f"losses of batches 1 to {n} differ from plain Theano's by at most {difference:.1e} "
            f"(relative; allowed: {allowed:.0e})"
        )
        agree = difference <= allowed
    if settings.normalize:
        half = len(losses) // 2
        excess = losses[half:].mean() / base_losses[half:].mean() - 1
        print(
            f"mean loss of the last batches ({len(losses) - half} of them): {losses[half:].mean():.4f}, plain Theano's "
            f"{base_losses[half:].mean():.4f} (allowed: {LOSS_TOLERANCE:.0%} more)"
        )
        agree = agree and excess <= LOSS_TOLERANCE
        if run.valid_accuracy is not None:
            print(
                f"accuracy {run.valid_accuracy:.2%}, plain Theano's {base.valid_accuracy:.2%} (allowed: "
                f"{ACCURACY_TOLERANCE:.0%} less)"
            )
            agree = agree and run.valid_accuracy >= base.valid_accuracy - ACCURACY_TOLERANCE
    return bool(agree)


def main(n_ranks=None, num_slices=1, baseline=True, checkpoint=None, devices=None, **given):
    """Train in parallel, then serially, and compare the results.

    Parameters
    ----------
    n_ranks : int, optional
        Number of ranks; by default, the number of GPUs or of usable cores.
    num_slices : int
        Number of slices of a rank's share of a batch; more slices need less memory. It must be 1 with ``sync_bn``,
        which would normalize every slice separately, and with rules that are not linear in the gradients.
    baseline : bool
        Whether to run plain Theano as well (never with a checkpoint).
    checkpoint : str, optional
        File to save the network to and to resume from, for another `batches` batches.
    devices : list of str, optional
        The device of each rank, e.g. ``["cuda0", "cuda1"]``; plain Theano then runs on the first device.
    **given
        Fields of `workload.Settings` that replace the defaults for the depth.

    Returns
    -------
    agree : bool
        Whether the check described in the module docstring passed (True without a baseline).
    runs : list of Run
        The runs: the fastest serial run first, the parallel run last.
    """
    settings = make_settings(**given)
    prepare(settings)
    if num_slices > 1 and (settings.sync_bn or settings.rule not in LINEAR_RULES):
        reason = "sync_bn" if settings.sync_bn else f"{settings.rule}, which is not linear in the gradients"
        raise ValueError(f"num_slices: expected 1 with {reason}, got {num_slices}")
    images = load_images(settings)
    print(images.source, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = [train_with_synkhronos(images, settings, folder, n_ranks, num_slices, checkpoint, devices)]
    baseline = baseline and not checkpoint  # plain Theano cannot resume
    if baseline:
        runs = train_with_theano(images, settings._replace(sync_bn=False)) + runs  # one process has all rows anyway
    print_table(runs)
    if settings.normalize:
        print(f"ranks normalize over the rows of {'all ranks' if settings.sync_bn else 'each rank'}")
    if not baseline:
        return True, runs
    print(
        f"\nspeedup over {runs[0].name} (the faster run of plain Theano): "
        f"{images_per_second(runs[-1]) / images_per_second(runs[0]):.2f}"
    )
    return compare(runs[-1], runs[0], settings), runs


def parse_arguments():
    parser = argument_parser(__doc__.split("\n")[0])
    parser.add_argument(
        "--n-ranks", "--n-parallel", type=int, help="number of ranks; default: the number of GPUs or of usable cores"
    )
    parser.add_argument("--devices", nargs="+", help="device of each rank, e.g. cuda0 cuda1")
    parser.add_argument("--num-slices", type=int, help="slices of each rank's share of a batch; default: 1")
    parser.add_argument(
        "--sync-bn",
        action="store_true",
        default=None,
        help="normalize over the rows of all ranks; default: over each rank's own rows",
    )
    parser.add_argument("--checkpoint", help="file to save the network to and to resume from; implies --skip-baseline")
    parser.add_argument(
        "--skip-baseline", dest="baseline", action="store_false", default=None, help="do not run plain Theano"
    )
    return parse(parser)


if __name__ == "__main__":
    agree, _ = main(**parse_arguments())
    if not agree:
        sys.exit("the parallel program did not reach the results of the serial program")
