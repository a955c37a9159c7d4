"""Run the three MNIST programs in turn; print and plot their times and accuracies.

    python -m synkhronos demos/lasagne_mnist/run_all.py --model cnn

Speedups are relative to plain Theano with one BLAS thread or one per core, whichever is faster.
"""

import os
import statistics
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # modules shared by the demos

import train_mnist_cpu_data
import train_mnist_device_data
import train_mnist_theano
import training

PLOT = "lasagne_mnist.png"


def epoch_time(run):
    """Return the median time of an epoch, excluding the first epoch, which touches memory for the first time."""
    return statistics.median(run.epoch_seconds[1:] or run.epoch_seconds)


def print_table(runs, serials):
    """Print time per epoch, speedup and accuracies of all runs."""
    best = min(map(epoch_time, serials))
    print("\n{:44s} {:>9s} {:>8s} {:>11s} {:>8s}".format("", "per epoch", "speedup", "validation", "test"))
    for run in runs:
        print(
            f"{run.name:44s} {epoch_time(run):7.3f} s {best / epoch_time(run):8.2f} "
            f"{run.accuracies[-1]:11.2%} {run.test_accuracy:8.2%}"
        )
    print()


def plot(runs, model, path):
    """Plot training loss and validation accuracy against training time."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot, because matplotlib is not installed: python -m pip install matplotlib")
        return
    figure = Figure(figsize=(10, 4))
    FigureCanvasAgg(figure)  # saves without a display
    for axes, label, values_of in zip(
        figure.subplots(1, 2),
        ("training loss", "validation accuracy"),
        (lambda run: run.losses, lambda run: run.accuracies),
    ):
        for run in runs:
            ends = [sum(run.epoch_seconds[: i + 1]) for i in range(len(run.epoch_seconds))]
            axes.plot(ends, values_of(run), marker=".", label=run.name)
        axes.set_xlabel("seconds of training")
        axes.set_ylabel(label)
    axes.legend(fontsize="small")
    figure.suptitle("MNIST, " + model)
    figure.tight_layout()
    figure.savefig(path)
    print("plotted to " + path)


def main(n_ranks=None, plot_path=PLOT, **settings):
    """Run all programs; return whether the parallel programs agree with the serial program, and the list of runs."""
    parallel = train_mnist_cpu_data.main(n_ranks, **settings)
    on_devices = train_mnist_device_data.main(n_ranks, **settings)
    serials = [train_mnist_theano.main(threads, **settings) for threads in sorted({1, len(os.sched_getaffinity(0))})]
    runs = [parallel, on_devices] + serials
    print_table(runs, serials)
    if plot_path:
        plot(runs, settings["model"], plot_path)
    # With data on the devices, minibatches differ, so the serial program must use the same minibatches.
    n_shards = n_ranks or len(os.sched_getaffinity(0))
    print("the serial program again, with the minibatches of train_mnist_device_data.py:")
    by_shards = train_mnist_theano.main(n_shards=n_shards, **settings)
    print()
    agree = [
        training.agrees(parallel, serials[-1], settings["model"]),
        training.agrees(on_devices, by_shards, settings["model"]),
    ]
    return all(agree), runs


if __name__ == "__main__":
    parser = training.parser(__doc__)
    parser.add_argument(
        "--plot", dest="plot_path", default=PLOT, help="file for the plot; default: %(default)s; '' for no plot"
    )
    agree, _ = main(**training.parse(parser))
    if not agree:
        sys.exit("a parallel program's results differ from the serial program's")
