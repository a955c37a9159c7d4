"""Train a residual network on all cores or GPUs, and say where the time went; then in plain Theano.

    python -m synkhronos demos/resnet/train_resnet.py --depth 20 --batches 50
    python -m synkhronos --profile out demos/resnet/train_resnet.py --depth 50 --batches 2     # keeps the timeline, too

Every rank computes the gradients of its share of a batch, an all_reduce inside the graph averages them, and all ranks
step alike; one command makes many such steps. Plain Theano's program is the same without the all_reduce.

The check. Without batch normalisation (--no-batch-norm) the loss of a batch is a mean over its rows, so the losses must
be the serial program's up to rounding. So they must be with it if ranks normalise by the mean and variance of all rows
(--sync-bn), for which they meet in every layer; roundings grow quickly in such networks, so that is asked of the first
batches. By default ranks do not meet: each normalises its shard by the shard's own mean and variance, which vary more
than the whole batch's, so it trains on another loss, and equality cannot be expected. What is asked with either kind is
that training gets as far: `LOSS_TOLERANCE` and `ACCURACY_TOLERANCE` below.
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

# With batch normalisation: how far the mean loss over the last half of the batches may be above the serial program's,
# as part of it, and the accuracy in validation below.
LOSS_TOLERANCE = 0.25
ACCURACY_TOLERANCE = 0.05
# Without: how far any batch's loss may be from the serial program's, as part of it. By the rows of all ranks: that of
# the first batches. (After 50 in float32, plain Theano's with one BLAS thread and with two are percents apart, too.)
ROUNDING = {"float32": 1e-3, "float64": 1e-9}
FIRST_BATCHES = 3
# The rules whose step by the mean gradient is the mean of their steps by the gradients of slices.
LINEAR_RULES = ("sgd", "momentum", "nesterov_momentum")


def train_with_synkhronos(images, settings, folder, n_parallel=None, num_slices=1, checkpoint_path=None, devices=None):
    """Fork, train on all ranks, close; go on from the checkpoint, if there is one. The folder is for the profile."""
    n_ranks = synk.fork(n_parallel, devices=devices, profile=folder)
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
        if settings.normalize and not settings.sync_bn:  # else all ranks have the same
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
    """Print how far the run is from the serial one; return whether that is within what is allowed."""
    losses, base_losses = np.array(run.losses), np.array(base.losses)
    agree = True
    if settings.sync_bn or not settings.normalize:
        n = min(FIRST_BATCHES, len(losses)) if settings.normalize else len(losses)
        allowed = ROUNDING[settings.dtype]
        difference = np.max(np.abs(losses - base_losses)[:n] / np.abs(base_losses)[:n])
        print(
            f"first {n} losses differ from plain Theano's by at most {difference:.1e} of them (allowed: {allowed:.0e})"
        )
        agree = difference <= allowed
    if settings.normalize:
        half = len(losses) // 2
        excess = losses[half:].mean() / base_losses[half:].mean() - 1
        print(
            f"mean loss of the last {len(losses) - half} batches: {losses[half:].mean():.4f}, plain Theano's "
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


def main(n_parallel=None, num_slices=1, baseline=True, checkpoint=None, devices=None, **given):
    """Train in parallel, then serially, and compare.

    Parameters
    ----------
    n_parallel : int, optional
        Number of ranks; default: all GPUs, or the cores this process may use.
    num_slices : int
        In how many pieces every rank computes its share of a batch, which takes less memory. (Not with ``sync_bn``,
        which would normalise every piece by itself, nor with a rule that is not linear in the gradients.)
    baseline : bool
        Whether plain Theano is run too (not with a checkpoint).
    checkpoint : str, optional
        File to save the network in, and to go on from, for so many batches more.
    devices : list of str, optional
        The device of every rank, e.g. ``["cuda0", "cuda1"]``; plain Theano then runs on the first.
    **given
        Fields of `workload.Settings` that replace the depth's defaults.

    Returns
    -------
    agree : bool
        Whether the check above passed (True without a baseline).
    runs : list of Run
        The base first, the parallel run last.
    """
    settings = make_settings(**given)
    prepare(settings)
    if num_slices > 1 and (settings.sync_bn or settings.rule not in LINEAR_RULES):
        reason = "sync_bn" if settings.sync_bn else f"{settings.rule}, which is not linear in the gradients"
        raise ValueError(f"num_slices: expected 1 with {reason}, got {num_slices}")
    images = load_images(settings)
    print(images.source, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        runs = [train_with_synkhronos(images, settings, folder, n_parallel, num_slices, checkpoint, devices)]
    baseline = baseline and not checkpoint  # it begins at the beginning
    if baseline:
        runs = train_with_theano(images, settings._replace(sync_bn=False)) + runs  # all rows are there anyway
    print_table(runs)
    if settings.normalize:
        print(f"ranks normalise by the rows of {'all ranks' if settings.sync_bn else 'each rank'}")
    if not baseline:
        return True, runs
    print(
        f"\nspeedup over {runs[0].name} (the better of plain Theano): "
        f"{images_per_second(runs[-1]) / images_per_second(runs[0]):.2f}"
    )
    return compare(runs[-1], runs[0], settings), runs


def parse_arguments():
    parser = argument_parser(__doc__.split("\n")[0])
    parser.add_argument("--n-parallel", type=int, help="number of ranks; default: all GPUs, or the usable cores")
    parser.add_argument("--devices", nargs="+", help="the device of every rank, e.g. cuda0 cuda1")
    parser.add_argument("--num-slices", type=int, help="pieces that every rank computes its share in; default: 1")
    parser.add_argument(
        "--sync-bn", action="store_true", default=None, help="normalise by the rows of all ranks; default: of each"
    )
    parser.add_argument("--checkpoint", help="file to save the network in, and to go on from; without plain Theano")
    parser.add_argument(
        "--skip-baseline", dest="baseline", action="store_false", default=None, help="do not run plain Theano"
    )
    return parse(parser)


if __name__ == "__main__":
    agree, _ = main(**parse_arguments())
    if not agree:
        sys.exit("the parallel program did not get where the serial one does")
