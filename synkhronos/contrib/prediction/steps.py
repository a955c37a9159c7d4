"""Find the repeated step of a profiled program: a call to its main function, and all commands until the next call."""

from __future__ import annotations

from typing import Dict, NamedTuple

import numpy as np

from ...errors import ArgumentValueError
from .profiles import HOW_TO, Array, Calls, Key, RunProfile

#: Fewest steps of a function that count as repeated.
MIN_STEPS = 5

#: Number of first calls that are skipped, because they touch memory for the first time.
WARM_UP_CALLS = 2

FUNCTIONS = ("function", "steps")


class StepPart(NamedTuple):
    """Cost of a command in a step of a profiled program, by call; seconds are per step."""

    per_step: float  # executions per step
    rows: Array  # (calls,): of all ranks
    work: Array  # (calls, ranks)
    transport: Array  # (calls,): mean over ranks; the minimum if there are several hosts
    fetching: Array  # (calls,): additional time of ranks on other hosts, which receive their rows from the first host
    overhead: Array  # (calls,): on the master, beyond the slowest rank's work, transport and fetching
    after: float  # median time until the program's next call


class Step(NamedTuple):
    """A step of a profiled program."""

    main: Key  # the function called in every step
    rows: float  # the most frequent number of rows of a step, over all ranks
    parts: Dict[Key, StepPart]


def step_of(profile: RunProfile) -> Step:
    """Determine the step of a program; raise `ArgumentValueError` if no function was called repeatedly."""
    repeated = {
        key: calls
        for key, calls in profile.commands.items()
        if key[0] in FUNCTIONS and float(calls.steps.sum()) >= MIN_STEPS
    }
    if not repeated:
        most = max(
            (int(calls.steps.sum()) for key, calls in profile.commands.items() if key[0] in FUNCTIONS), default=0
        )
        called = f"whose largest number of calls to one function is {most}" if most else "which calls no function"
        expected = f"a program that calls a function at least {MIN_STEPS} times"
        raise ArgumentValueError("profile", expected, f"{profile.path}, {called}", f"{HOW_TO} and train longer")
    main = max(repeated, key=lambda key: float(repeated[key].master.sum()))
    calls = repeated[main]
    first = calls.begin[0]
    # Of several calls, the last is excluded, because the rest of its step may be missing.
    end = calls.begin[-1] if len(calls.begin) > 1 else first + calls.master[0]
    n_steps = float(calls.steps[calls.begin < end].sum())
    gaps = gaps_after(profile)
    parts = {}
    for key, each in profile.commands.items():
        inside = (each.begin >= first) & (each.begin < end)
        if not inside.any():
            continue
        per_step = float(each.steps[inside].sum()) / n_steps
        parts[key] = part_of(Calls(*(column[inside] for column in each)), per_step, gaps[key], profile.layout.hosts > 1)
    rows, counts = np.unique(np.round(calls.rows / calls.steps), return_counts=True)
    return Step(main, float(rows[len(rows) - 1 - int(np.argmax(counts[::-1]))]), parts)


def part_of(calls: Calls, per_step: float, gap: float, is_over_hosts: bool) -> StepPart:
    """Return the cost per step of one command's calls."""
    calls = calls.later(WARM_UP_CALLS)
    transport = calls.transport.min(axis=1) if is_over_hosts else calls.transport.mean(axis=1)
    fetching = calls.transport.max(axis=1) - transport if is_over_hosts else np.zeros(len(transport))
    overhead = calls.master - calls.work.max(axis=1) - transport - fetching
    steps = calls.steps
    return StepPart(
        per_step,
        calls.rows / steps,
        calls.work / steps[:, None],
        transport / steps,
        fetching / steps,
        np.maximum(overhead, 0) / steps,
        gap / float(np.median(steps)),
    )


def gaps_after(profile: RunProfile) -> Dict[Key, float]:
    """Return, by command, the median time in seconds until the program's next call."""
    keys = list(profile.commands)
    begins = np.concatenate([profile.commands[key].begin for key in keys])
    ends = np.concatenate([profile.commands[key].begin + profile.commands[key].master for key in keys])
    which = np.concatenate([np.full(len(profile.commands[key].begin), i) for i, key in enumerate(keys)])
    order = np.argsort(begins, kind="stable")
    gaps = np.maximum(begins[order][1:] - ends[order][:-1], 0)
    of = which[order][:-1]
    return {key: float(np.median(gaps[of == i])) if (of == i).any() else 0.0 for i, key in enumerate(keys)}
