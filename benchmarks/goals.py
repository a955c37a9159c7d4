"""The goals: what is to be how fast beside what, for two pinned ranks on a quiet machine."""

from typing import Callable, NamedTuple, Optional

from . import inputs, start


class Goal(NamedTuple):
    """One line of the table.

    Attributes
    ----------
    what : str
        How the table says it.
    case : str
        The row of the results; `nbytes` says which, if there are several sizes.
    limit : float
        The ratio must not exceed it (must reach it, if `least`).
    beside : str
        The contender that ours is divided by; "best peer" for the fastest of those that are libraries.
    statistic : str
        Of the times.
    """

    what: str
    case: str
    limit: float
    beside: str = "mp.Barrier pair"
    n: int = 2
    nbytes: Optional[int] = None
    statistic: str = "median"
    least: bool = False


PEERS = ("Open MPI", "MPICH", "Gloo")
KB, MB = 1 << 10, 1 << 20

GOALS = [
    Goal("call, no inputs, p50", "call, no inputs", 0.15),
    Goal("call, no inputs, p99", "call, no inputs", 0.5, statistic="p99"),
    Goal("call, two Data and a slice", "call, two Data, slice", 0.25),
    Goal("call, two Data and 1,024 indices (with the copy)", "call, two Data, 1,024 shuffled", 0.4),
    Goal("call after a pause of 100 ms", "call, after 100 ms", 0.6),
    Goal("call, n = 4 on 2 cores", "call, no inputs", 0.4, n=4),
    Goal("waiting ranks, % CPU", "idle ranks, % CPU", 1.0, beside=""),
]
GOALS += [
    Goal(f"all_reduce in slots, {name}", "all_reduce, in slots", limit, "best peer", nbytes=nbytes)
    for name, nbytes, limit in (
        ("4 KB", 4 * KB, 1.0),
        ("64 KB", 64 * KB, 0.35),
        ("1 MB", MB, 0.35),
        ("16 MB", 16 * MB, 0.35),
        ("100 MB", 100 * MB, 0.22),
        ("400 MB", 400 * MB, 0.22),
    )
]
GOALS += [
    Goal(f"all_reduce in slots, {name}, beside memcpy", "all_reduce, in slots", 1.5, "memcpy", nbytes=nbytes)
    for name, nbytes in (("1 MB", MB), ("16 MB", 16 * MB), ("100 MB", 100 * MB), ("400 MB", 400 * MB))
]
GOALS += [
    Goal(f"all_reduce of updated values, {name}", "all_reduce, updated", limit, "best peer", nbytes=nbytes)
    for name, nbytes, limit in (
        ("64 KB", 64 * KB, 0.8),
        ("1 MB", MB, 0.8),
        ("16 MB", 16 * MB, 0.6),
        ("100 MB", 100 * MB, 0.35),
    )
]
GOALS += [Goal("ResNet-50's 161 variables in one call", "all_reduce, 161 variables", 1.15, "one flat variable")]
GOALS += [
    Goal(f"{what}, {name}", what, 1.0, "best peer", nbytes=nbytes)
    for what in ("broadcast", "scatter", "gather", "all_gather", "reduce")
    for name, nbytes in (
        ("64 KB", 64 * KB),
        ("1 MB", MB),
        ("16 MB", 16 * MB),
        ("100 MB", 100 * MB),
        ("400 MB", 400 * MB),
    )
]
GOALS += [
    Goal("copy of shuffled rows", "batch of 1024 shuffled rows", 1.1, inputs.TAKE, statistic=inputs.COPY),
    Goal("distribute, beside unpickling alone", "distribute, 159 variables", 1.3, "unpickling"),
    Goal("distribute ResNet-50, beside unpickling alone", "distribute, ResNet-50", 1.3, "unpickling"),
    Goal("memory of a data set, in data sets", start.OF_DATA, 1.05, beside=""),
    Goal("memory of a constant, in constants", start.OF_CONSTANT, 1.05, beside="", n=start.HOLDERS),
]
#: Of whole programs: how many times faster than plain Theano, for work of so many ms per call at least.
SPEEDUPS = [(0.1, 1.8), (1.0, 1.9)]


class Verdict(NamedTuple):
    """A goal and what was measured."""

    goal: Goal
    ratio: float
    ours: float
    other: float

    @property
    def met(self):
        """Whether the goal was met."""
        return self.ratio >= self.goal.limit if self.goal.least else self.ratio <= self.goal.limit


def judge(rows):
    """Return a verdict for every goal that the rows say something about."""
    verdicts = []
    for goal in GOALS + speedup_goals(rows):
        row = next(
            (
                row
                for row in rows
                if row["case"] == goal.case and row["n"] == goal.n and goal.nbytes in (None, row.get("nbytes"))
            ),
            None,
        )
        found = row and numbers(goal, row)
        if found:
            ours, other = found
            verdicts.append(Verdict(goal, (other / ours if goal.least else ours / other), ours, other))
    return verdicts


def numbers(goal, row):
    """Return our number and the one it is divided by; None if there is no such contender."""
    if "value" in row:
        return row["value"], row.get("of", 1.0)
    times = row["times"]
    if goal.statistic in times:  # a contender of ours that is itself a difference
        statistic: Callable = lambda name: times[name].median  # noqa: E731
        ours = times[goal.statistic].median
    else:
        statistic = lambda name: getattr(times[name], goal.statistic)  # noqa: E731
        ours = statistic("synkhronos")
    names = [name for name in (PEERS if goal.beside == "best peer" else (goal.beside,)) if name in times]
    return (ours, min(map(statistic, names))) if names else None


def speedup_goals(rows):
    """Return the goals of whole programs, by the work that each turned out to be."""
    goals = []
    for row in rows:
        if row["case"].startswith("MLP gradient"):
            work = row["times"]["plain Theano"].median / 1e3
            limits = [limit for least, limit in SPEEDUPS if work >= least]
            if limits:
                goals.append(Goal("speedup, " + row["case"], row["case"], limits[-1], "plain Theano", least=True))
        elif row["case"].startswith("epoch of MNIST"):
            goals.append(Goal("speedup, " + row["case"], row["case"], 1.8, "plain Theano", least=True))
    return goals
