"""The table of a comparison, as table 1 of the 2017 paper: where the time of each training run went."""

ROWS = ("function", "shuffling", "waiting", "all_reduce")


def print_table(runs):
    """Print where the time of each run went.

    All of it is on one process's clock. "other" is what is left of the total: calls on their way to the ranks and back,
    this program's own Python.

    Parameters
    ----------
    runs : list of Run
        The first is what the others are compared with: "scaling" is the first one's time over theirs.
    """
    line = "{:34s}" + " {:>23s}" * len(runs)
    print("\n" + line.format("", *(run.name for run in runs)))
    print(
        line.format(
            "images per second",
            *(f"{images_per_second(run):.1f}" + spaced_scaling(runs[0], run, "total") for run in runs),
        )
    )
    for label, key in (
        ("total", "total"),
        ("in the function", "function"),
        ("in shuffling", "shuffling"),
        ("waiting for the slowest rank", "waiting"),
        ("in all_reduce and the update", "all_reduce"),
        ("other", "other"),
    ):
        print(line.format(label, *(cell(runs[0], run, key) for run in runs)))
    print(line.format("loss of the last batch", *(f"{run.losses[-1]:.4f}" + " " * 8 for run in runs)))
    if runs[0].valid_accuracy is not None:
        print(line.format("loss in validation", *(f"{run.valid_loss:.4f}" + " " * 8 for run in runs)))
        print(line.format("accuracy in validation", *(f"{run.valid_accuracy:.2%}" + " " * 8 for run in runs)))


def images_per_second(run):
    return run.n_images / run.seconds["total"]


def seconds_of(run, key):
    """Return a row's seconds, or None if the run has no such row."""
    if key == "other":
        return run.seconds["total"] - sum(run.seconds.get(row, 0.0) for row in ROWS)
    return run.seconds.get(key)


def cell(base, run, key):
    seconds = seconds_of(run, key)
    if seconds is None:
        return "-" + " " * 8
    return f"{seconds:.3f} s" + spaced_scaling(base, run, key)


def spaced_scaling(base, run, key):
    """Return how many times quicker than the base, in eight characters."""
    if run is base or key == "other" or key not in base.seconds:
        return " " * 8
    return f"  {base.seconds[key] / run.seconds[key]:5.2f}x"
