"""Table that compares training runs: speed, losses and accuracy."""


def print_table(runs):
    """Print a column for each run; speedups are relative to the first run."""
    line = "{:34s}" + " {:>23s}" * len(runs)
    print("\n" + line.format("", *(run.name for run in runs)))
    base = images_per_second(runs[0])
    print(line.format("images per second", *(f"{images_per_second(run):.1f}" + scaling(base, run) for run in runs)))
    print(line.format("total", *(f"{run.seconds:.3f} s" + " " * 8 for run in runs)))
    print(line.format("loss of the last batch", *(f"{run.losses[-1]:.4f}" + " " * 8 for run in runs)))
    if runs[0].valid_accuracy is not None:
        print(line.format("validation loss", *(f"{run.valid_loss:.4f}" + " " * 8 for run in runs)))
        print(line.format("validation accuracy", *(f"{run.valid_accuracy:.2%}" + " " * 8 for run in runs)))


def images_per_second(run):
    return run.n_images / run.seconds


def scaling(base, run):
    """Return the speed relative to the base run, as a string of eight characters."""
    ratio = images_per_second(run) / base
    return f"  {ratio:5.2f}x" if ratio != 1 else " " * 8
