"""What a step of a program is: the function that takes most of its time, and what is called with it."""

from __future__ import annotations

from typing import Dict, NamedTuple

import numpy as np

from ..errors import ArgumentValueError
from .profiles import HOW_TO, Array, Calls, Key, Profile

#: Of the function, at least, for its steps to count as repeated.
MIN_STEPS = 5

#: The first calls of every command are slower: memory is touched for the first time.
WARM_UP_CALLS = 2

#: What one rank or many do alike: functions, once or many times in one command.
FUNCTIONS = ("function", "steps")


class Part(NamedTuple):
    """What a command takes in a step of a profiled program, by calls; seconds are those of one step of a call.

    Attributes
    ----------
    per_step : float
        How often the command runs in a step.
    rows : array of (calls,)
        Of all ranks.
    work : array of (calls, ranks)
    transport : array of (calls,)
        Of all ranks together.
    fetching : array of (calls,)
        More on ranks of other hosts than the first, to which rows travel.
    overhead : array of (calls,)
        What the call took on the master beyond the slowest rank's work, transport and fetching.
    after : float
        Until the program makes its next call.
    """

    per_step: float
    rows: Array
    work: Array
    transport: Array
    fetching: Array
    overhead: Array
    after: float


class Step(NamedTuple):
    """A step of a profiled program.

    Attributes
    ----------
    main : (kind, name)
        Of the function that a step is a call of.
    rows : float
        Of a step, of all ranks: what is most frequent.
    parts : dict of (kind, name) to Part
    """

    main: Key
    rows: float
    parts: Dict[Key, Part]


def step_of(profile: Profile) -> Step:
    """Return what a step of the program is.

    Raises
    ------
    ArgumentValueError
        If no function was called again and again.
    """
    repeated = {
        key: calls
        for key, calls in profile.commands.items()
        if key[0] in FUNCTIONS and float(calls.steps.sum()) >= MIN_STEPS
    }
    if not repeated:
        most = max(
            (int(calls.steps.sum()) for key, calls in profile.commands.items() if key[0] in FUNCTIONS), default=0
        )
        got = f"{profile.path}, where {'a function was called ' + str(most) + ' times at most' if most else 'none was'}"
        raise ArgumentValueError(
            "profile", f"a program that calls a function at least {MIN_STEPS} times", got, f"{HOW_TO} and train longer"
        )
    main = max(repeated, key=lambda key: float(repeated[key].master.sum()))
    calls = repeated[main]
    first = calls.begin[0]
    # The last one may not be followed by what belongs to its step.
    end = calls.begin[-1] if len(calls.begin) > 1 else first + calls.master[0]
    n_steps = float(calls.steps[calls.begin < end].sum())
    gaps = gaps_after(profile)
    parts = {}
    for key, each in profile.commands.items():
        inside = (each.begin >= first) & (each.begin < end)
        if not inside.any():
            continue
        per_step = float(each.steps[inside].sum()) / n_steps
        parts[key] = part_of(Calls(*(column[inside] for column in each)), per_step, gaps[key], profile.hosts > 1)
    rows, counts = np.unique(np.round(calls.rows / calls.steps), return_counts=True)
    return Step(main, float(rows[len(rows) - 1 - int(np.argmax(counts[::-1]))]), parts)


def part_of(calls: Calls, per_step: float, gap: float, is_over_hosts: bool) -> Part:
    """Return what calls of one command take in a step."""
    calls = calls.later(WARM_UP_CALLS)
    transport = calls.transport.min(axis=1) if is_over_hosts else calls.transport.mean(axis=1)
    fetching = calls.transport.max(axis=1) - transport if is_over_hosts else np.zeros(len(transport))
    overhead = calls.master - calls.work.max(axis=1) - transport - fetching
    steps = calls.steps
    return Part(
        per_step,
        calls.rows / steps,
        calls.work / steps[:, None],
        transport / steps,
        fetching / steps,
        np.maximum(overhead, 0) / steps,
        gap / float(np.median(steps)),
    )


def gaps_after(profile: Profile) -> Dict[Key, float]:
    """Return for each command the median of the seconds until the program makes its next call."""
    keys = list(profile.commands)
    begins = np.concatenate([profile.commands[key].begin for key in keys])
    ends = np.concatenate([profile.commands[key].begin + profile.commands[key].master for key in keys])
    which = np.concatenate([np.full(len(profile.commands[key].begin), i) for i, key in enumerate(keys)])
    order = np.argsort(begins, kind="stable")
    gaps = np.maximum(begins[order][1:] - ends[order][:-1], 0)
    of = which[order][:-1]
    return {key: float(np.median(gaps[of == i])) if (of == i).any() else 0.0 for i, key in enumerate(keys)}
