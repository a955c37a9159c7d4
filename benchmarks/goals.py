"""Performance goals: required speed relative to the peers, for two pinned ranks on a quiet machine."""

from typing import Callable, NamedTuple, Optional

from . import inputs, loading, start
from .at_once import CEILING
from .collectives import BOUND
from .contenders import BY_HAND, IN_STEPS, PLAIN, UNUSED, WITH_THEANO
from .peers.group import COLLECTIVES, DDP, KINDS


class Goal(NamedTuple):
    """Goal of a measurement, a row of the table of goals."""

    what: str  # name in the table
    case: str  # case of the result row
    limit: Optional[float]  # upper limit of the ratio; lower limit if `least`; None for none
    beside: str = "mp.Barrier pair"  # contender to compare with, or the fastest of `REFERENCES`; "" for none
    n: int = 2
    nbytes: Optional[int] = None  # selects the row if there are several sizes
    statistic: str = "median"  # statistic of the times to compare
    least: bool = False
    ours: str = "synkhronos"  # our contender
    of_best: Optional[float] = None  # if lower than the limit, this fraction of the machine's best case is required
    bound: str = ""  # contender that moves the least number of bytes


#: Names of groups of contenders; the fastest contender of a group is the reference.
REFERENCES = {
    name: [KINDS[kind].name for kind in kinds] for name, kinds in (("best peer", COLLECTIVES), ("best DDP", DDP))
}
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
    Goal(f"all_reduce in slots, {name}", "all_reduce, in slots", limit, "best peer", nbytes=nbytes, bound=BOUND)
    for name, nbytes, limit in (
        ("4 KB", 4 * KB, None),
        ("64 KB", 64 * KB, None),
        ("1 MB", MB, 0.35),
        ("16 MB", 16 * MB, 0.35),
        ("100 MB", 100 * MB, 0.30),
        ("400 MB", 400 * MB, 0.22),
    )
]
GOALS += [
    Goal(
        f"all_reduce in slots, {name}, relative to memcpy",
        "all_reduce, in slots",
        1.5,
        "memcpy",
        nbytes=nbytes,
        bound=BOUND,
    )
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
GOALS += [
    Goal("call after set_value of its learning rate", "call after set_value of a learning rate", 1.15, UNUSED),
]
GOALS += [Goal("ResNet-50's 161 variables in one call", "all_reduce, 161 variables", 1.15, "one flat variable")]
GOALS += [
    # Small arrays have no goal, because calls from Python take longer than MPI; small reductions belong in `steps`.
    Goal(f"{what}, {name}", what, None if nbytes < MB and what != "reduce" else 1.0, "best peer", nbytes=nbytes)
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
    Goal("distribute, relative to unpickling alone", "distribute, 159 variables", 1.3, "unpickling"),
    Goal("distribute ResNet-50, relative to unpickling alone", "distribute, ResNet-50", 1.3, "unpickling"),
    Goal("memory of a data set, in data sets", start.OF_DATA, 1.05, beside=""),
    Goal("memory of a constant, in constants", start.OF_CONSTANT, 1.05, beside="", n=start.HOLDERS),
    Goal("memory of variables on 8 ranks together, in their size", start.OF_VARIABLES, 2.2, beside="", n=start.MANY),
    Goal("private memory of a function, ResNet-50, MB", start.OF_FUNCTION.format("ResNet-50"), 150.0, beside=""),
]
GOALS += [
    *(
        Goal(f"epoch with {source}, relative to data in memory", f"epoch with {source}", 1.05, loading.THERE, n)
        for source, n in ((loading.WAITS, 2), (loading.COMPUTES, 1))
    ),
    *(
        Goal(f"epoch with Adam and exact=True, {model}", f"epoch with Adam, {model}", 1.03, BY_HAND)
        for model in ("mlp", "cnn")
    ),
    *(
        Goal(
            f"building a step of Adam, relative to plain Theano, {model}",
            f"building a step of Adam, {model}",
            1.15,
            PLAIN,
        )
        for model in ("mlp", "cnn")
    ),
    Goal(
        "call that trains an MLP with SGD: with heal, relative to without",
        "healing: call with sgd, relative to one without heal",
        1.10,
        beside="",
    ),
    Goal(
        "call that trains an MLP with Adam: with heal, relative to without",
        "healing: call with adam, relative to one without heal",
        1.15,
        beside="",
    ),
    Goal("seconds to replace a rank, with a standby", "healing: seconds of a death, with a standby", 0.150, beside=""),
    Goal("all_reduce of 4 KB inside steps, per step, us", "all_reduce of 4 KB inside steps, us", 15.0, beside=""),
    Goal(
        "speedup of PyTorch DDP over its own single process, relative to ours, cnn",
        "speedup of PyTorch DDP, epoch of MNIST, cnn",
        1.0,
        beside="",
    ),
]
GOALS += [
    *(
        Goal(f"call, {case}, beyond the plain call", f"call with PyTensor, {case}", 1.3, WITH_THEANO)
        for case in ("no inputs", "two Data, slice", "two Data, 1,024 shuffled", "20 Data")
    ),
    *(
        Goal(f"{case}, n = {n}, nothing cached", case, 1.3, PLAIN, n=n)
        for case in ("compiling an MLP", "compiling an MLP, processor time")
        for n in (2, 3)
    ),
]
#: Required speedups: pairs of a limit and a fraction of the machine's best case; the lower one is required. In the best
#: case, two simultaneous programs never communicate. Gradients count from `GRADIENT_MS` of work on.
GRADIENT, GRADIENT_MS = (None, 0.95), 0.5
#: A thousand tiny steps per command (True), or steps of a millisecond (False).
STEPS = {True: (1.1, 0.95), False: (1.82, 0.95)}
#: Epochs: with three commands per step (gradients, all_reduce, update), and with one per epoch.
IN_CALLS = {"epoch of MNIST, mlp": [(1.8, 0.95)], "epoch of MNIST, cnn": [(1.8, 0.95)]}
EPOCHS = {
    "epoch of MNIST, mlp": [(1.5, None), (None, 0.90)],
    "epoch of MNIST, cnn": [(None, 0.97)],
    "epoch of MNIST, LSTM": [(None, 0.97)],
    "5 steps of ResNet-20": [(None, 0.97)],
}
#: Largest accepted time of an epoch, relative to PyTorch DDP's.
BESIDE_DDP = {"epoch of MNIST, mlp": 0.95}
#: Up to this multiple of the time of a goal's `bound`, the speed of the memory determines our time.
AT_BOUND = 1.1


class Verdict(NamedTuple):
    """Goal with its measurement."""

    goal: Goal
    ratio: float
    ours: float
    other: float
    name: str = ""  # of the reference
    best: Optional[float] = None  # the machine's best speedup in that run, if measured
    of_bound: Optional[float] = None  # our time relative to the goal's bound, if measured

    @property
    def limit(self):
        """Limit of the goal, or a fraction of the machine's best case if that is lower; None if there is neither."""
        limits = [self.goal.limit]
        if self.best is not None and self.goal.of_best is not None:
            limits.append(self.goal.of_best * self.best)
        return min([limit for limit in limits if limit is not None], default=None)

    @property
    def met(self):
        """Whether the goal was met; None if there is no limit."""
        if self.limit is None:
            return None
        return self.ratio >= self.limit if self.goal.least else self.ratio <= self.limit

    @property
    def is_at_bound(self):
        """Whether the goal was not met because the memory does not allow it."""
        return self.met is False and self.of_bound is not None and self.of_bound <= AT_BOUND


def judge(rows):
    """Return a verdict for every goal that has a result row."""
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
            ours, other, name = found
            best = row["times"][CEILING].median if goal.least and CEILING in row["times"] else None
            ratio = other / ours if goal.least else ours / other
            bound = row["times"][goal.bound].median if goal.bound in row.get("times", ()) else None
            verdicts.append(Verdict(goal, ratio, ours, other, name, best and other / best, bound and ours / bound))
    return verdicts


def numbers(goal, row):
    """Return our number, and the reference's number and name; None if a contender is missing."""
    if "value" in row:
        return row["value"], row.get("of", 1.0), ""
    times = row["times"]
    if goal.statistic in times:  # the goal names our number, as in `inputs.COPY`
        statistic: Callable = lambda name: times[name].median  # noqa: E731
        ours = times[goal.statistic].median
    else:
        statistic = lambda name: getattr(times[name], goal.statistic)  # noqa: E731
        if goal.ours not in times:
            return None
        ours = statistic(goal.ours)
    names = [name for name in REFERENCES.get(goal.beside, [goal.beside]) if name in times]
    return (ours, *min((statistic(name), name) for name in names)) if names else None


def speedup_goals(rows):
    """Return the goals of whole programs, which depend on the measured work."""
    goals = []
    for row in rows:
        case = row["case"]
        required = {"synkhronos": IN_CALLS.get(case, []), IN_STEPS: EPOCHS.get(case, [])}
        if case.startswith("MLP gradient") and row["times"][PLAIN].median >= 1e3 * GRADIENT_MS:
            required["synkhronos"] = [GRADIENT]
        elif case.startswith("steps of"):
            required["synkhronos"] = [STEPS[case.startswith("steps of 1,000")]]
        for ours, limits in required.items():
            what = f"speedup, {case}" + ", in steps" * (ours == IN_STEPS)
            goals += [Goal(what, case, limit, PLAIN, least=True, ours=ours, of_best=best) for limit, best in limits]
        if case in BESIDE_DDP:
            goals.append(Goal(f"{case}, in steps", case, BESIDE_DDP[case], "best DDP", ours=IN_STEPS))
    return goals
