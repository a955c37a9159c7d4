"""Fit a program's model to its profiles: medians first, then least squares over the medians."""

from __future__ import annotations

import math
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ...errors import ArgumentValueError
from . import links
from .least_squares import nonnegative
from .links import HostLinkModel, RingModel, SharedMemory
from .model import CommandCost, Model
from .profiles import HOW_TO, Array, RankLayout, RunProfile
from .steps import Step, StepPart, step_of

#: Lower bound on measured overheads, because `nonnegative` needs positive values.
LEAST_OVERHEAD_S = 1e-6

#: Smallest number of calls that gives a median its full weight.
FULL_WEIGHT_CALLS = 30

#: Maximum number of quantiles that describe the spread of a command's work.
MAX_QUANTILES = 1000

#: Assumed bytes per second that one core copies, if no profile contains the rate.
USUAL_COPY_RATE = 8e9


class CallGroup(NamedTuple):
    """Work of each rank in one command's calls with equal numbers of rows."""

    rows: float  # per rank
    at_once: float  # number of ranks that compute on the machine at the same time
    seconds: float  # median for a rank that shares its core with no other rank
    calls: int
    spread: Array  # work of every rank in every call, divided by the median


HINT = "pass profiles of one program only; if it was edited between runs, name its functions: function(..., name=)"


def fit(profiles: Sequence[RunProfile]) -> Model:
    """Fit the model of a program to its profiles, preferably for one and for two ranks, with two row counts each.

    Raises `ArgumentValueError` if main functions differ, a profile has no repeated steps, or all lack computing time.
    """
    steps = [step_of(profile) for profile in profiles]
    main = steps[0].main
    for profile, step in zip(profiles[1:], steps[1:]):
        if step.main != main:
            expected = f"profiles of one program, whose steps call {main[1]!r} as in {profiles[0].path}"
            got = f"{step.main[1]!r} in {profile.path}"
            raise ArgumentValueError("profile", expected, got, HINT)
    notes: List[str] = []
    runs = list(zip(profiles, steps))
    rows_of_rank = sorted(group.rows for profile, step in runs for group in groups_of(profile, step.parts[main]))
    if not rows_of_rank:
        got = f"none in {', '.join(profile.path for profile in profiles)}"
        raise ArgumentValueError("profile", f"computing time of {main[1]!r}", got, HOW_TO)
    memory, between = fit_links(runs, notes)
    commands = {}
    for key in dict.fromkeys(key for step in steps for key in step.parts):
        own = [(profile, step, step.parts[key]) for profile, step in runs if key in step.parts]
        groups = [group for profile, _, part in own for group in groups_of(profile, part)]
        fixed, per_row = fit_work(groups)
        nbytes = max(profile.nbytes[key] for profile, _, _ in own)
        commands[key] = CommandCost(
            float(np.median([part.per_step for _, _, part in own])),
            float(np.median([part.rows.mean() / max(step.parts[main].rows.mean(), 1) for _, step, part in own])),
            fixed,
            per_row,
            fit_overhead([(profile, part) for profile, _, part in own]),
            nbytes,
            fit_row_bytes(own, between),
            quantiles([group.spread for group in groups]),
        )
    if len(set(rows_of_rank)) == 1:
        notes.append(
            f"all calls to {main[1]} have the same number of rows per rank, {rows_of_rank[0]:.0f}, so their fixed time "
            "is unknown and assumed to be 0; also profile other numbers of rows or ranks"
        )
    if len({profile.layout.of_machine for profile in profiles}) == 1:
        notes.append(
            "all profiles have the same number of ranks per machine, so the mutual slowdown of ranks that share "
            "memory is unknown and assumed to be 0"
        )
    return Model(
        commands,
        main,
        steps[0].rows,
        float(np.median([sum(part.per_step * part.after for part in step.parts.values()) for step in steps])),
        memory,
        between,
        RankLayout(max(each.layout.ranks for each in profiles), max(each.layout.hosts for each in profiles)),
        (rows_of_rank[0], rows_of_rank[-1]),
        notes,
    )


def groups_of(profile: RunProfile, part: StepPart) -> Iterator[CallGroup]:
    """Group a command's calls by their number of rows per rank."""
    layout = profile.layout
    crowd = max(1.0, layout.of_machine / layout.cores)
    rows = np.round(part.rows / layout.ranks)
    for each in np.unique(rows):
        of_these = rows == each
        work = part.work[of_these] / crowd
        median = float(np.median(work))
        if median <= 0:
            continue
        yield CallGroup(float(each), layout.at_once, median, len(work), (work / median).ravel())


def quantiles(spreads: Sequence[Array]) -> Tuple[float, ...]:
    """Return evenly spaced quantiles of all values together."""
    if not spreads:
        return (1.0,)
    values = np.sort(np.concatenate(list(spreads)))
    number = min(len(values), MAX_QUANTILES)
    return tuple(np.quantile(values, (np.arange(number) + 0.5) / number).tolist())


def fit_work(groups: Sequence[CallGroup]) -> Tuple[Tuple[float, float], Tuple[float, float]]:
    """Fit fixed and per-row seconds, each as a pair: for one rank alone, and the increase per rank computing beside it.

    If only one number of rows was profiled per number of ranks, work that does not shrink with more ranks counts as
    fixed. If all calls have the same positive number of rows per rank, no work counts as fixed.
    """
    if not groups:
        return (0.0, 0.0), (0.0, 0.0)
    rows = np.array([group.rows for group in groups])
    others = np.array([group.at_once - 1 for group in groups])
    if len(set(others)) == 1:
        others = np.zeros(len(groups))
    is_fixed = np.full(len(groups), float(rows[0] == 0 or len(set(rows)) > 1))
    matrix = np.stack([is_fixed, rows, is_fixed * others, rows * others], axis=1)
    weights = np.array([float(min(group.calls, FULL_WEIGHT_CALLS)) for group in groups])
    fixed, per_row, fixed_more, per_row_more = map(
        float, nonnegative(matrix, np.array([group.seconds for group in groups]), weights)
    )
    return (fixed, fixed_more), (per_row, per_row_more)


def fit_overhead(measured: Sequence[Tuple[RunProfile, StepPart]]) -> Tuple[float, float, float]:
    """Fit the overhead for one rank alone, for each additional rank of a host, and for each doubling of hosts."""
    layouts = [profile.layout for profile, _ in measured]
    matrix = np.array([[1.0, layout.of_host - 1, math.log2(layout.hosts)] for layout in layouts])
    values = np.array([max(float(np.median(part.overhead)), LEAST_OVERHEAD_S) for _, part in measured])
    alone, of_rank, of_hosts = nonnegative(matrix, values)
    return float(alone), float(of_rank), float(of_hosts)


def fit_row_bytes(
    measured: Sequence[Tuple[RunProfile, Step, StepPart]], between: Optional[Union[RingModel, HostLinkModel]]
) -> float:
    """Return the bytes per row that a command sends to another host; 0 if unknown."""
    if not isinstance(between, HostLinkModel) or not between.per_byte:
        return 0.0
    found = []
    for profile, _, part in measured:
        rows = float(np.median(part.rows)) * (1 - 1 / profile.layout.hosts)
        if rows:
            found.append(float(np.median(part.fetching)) / rows / between.per_byte)
    return float(np.median(found)) if found else 0.0


def fit_links(
    runs: Sequence[Tuple[RunProfile, Step]], notes: List[str]
) -> Tuple[SharedMemory, Optional[Union[RingModel, HostLinkModel]]]:
    """Fit the links within a host, and between hosts or devices; add assumptions to `notes`."""
    seen: Dict[str, List[Tuple[RankLayout, float, float]]] = {"memory": [], "nccl": [], "hosts": []}
    for profile, step in runs:
        for key, part in step.parts.items():
            seconds, nbytes = float(np.median(part.transport)), profile.nbytes[key]
            if profile.layout.ranks > 1 and nbytes and seconds > 0:
                kind = "nccl" if profile.link == "nccl" else "hosts" if profile.layout.hosts > 1 else "memory"
                seen[kind].append((profile.layout, nbytes, seconds))
    rates = [profile.copy_rate for profile, _ in runs if profile.copy_rate]
    per_byte = 1 / (float(np.median(rates)) if rates else USUAL_COPY_RATE)
    memory = fit_memory([(layout.of_host, nbytes, seconds) for layout, nbytes, seconds in seen["memory"]], per_byte)
    if not seen["memory"] and not seen["nccl"]:
        known = "the machine's copy rate" if rates else f"a copy rate of {USUAL_COPY_RATE / 1e9:g} GB/s"
        notes.append(f"no profile has a reduction between ranks of a host, so its time is estimated from {known}")
    if seen["nccl"]:
        matrix = np.array(
            [[2.0 * (at.ranks - 1), 2 * (at.ranks - 1) / at.ranks * size] for at, size, _ in seen["nccl"]]
        )
        latency, per_byte = nonnegative(matrix, np.array([seconds for _, _, seconds in seen["nccl"]]))
        return memory, RingModel(float(latency), 1 / float(per_byte) if per_byte else math.inf)
    between = [
        (at.hosts, nbytes, seconds - memory.seconds(at.of_host, nbytes)) for at, nbytes, seconds in seen["hosts"]
    ]
    between = [each for each in between if each[2] > 0]
    return memory, links.fit(between) if between else None


def fit_memory(measured: Sequence[Tuple[int, float, float]], per_byte: float) -> SharedMemory:
    """Fit `SharedMemory` to measurements ``(ranks, nbytes, seconds)``; `per_byte` is the assumed time to copy a byte.

    If ``ranks * nbytes`` is equal for all measurements, the time beyond copying counts as start-up time.
    """
    if not measured:
        return SharedMemory(0.0, per_byte)
    moved = np.array([ranks * nbytes for ranks, nbytes, _ in measured])
    times = np.array([seconds for _, _, seconds in measured])
    if len(set(moved)) > 1:
        start, slope = nonnegative(np.stack([np.ones(len(moved)), moved], axis=1), times)
        return SharedMemory(float(start), float(slope))
    per_byte = min(per_byte, float(np.median(times)) / moved[0])
    return SharedMemory(float(np.median(times)) - moved[0] * per_byte, per_byte)
