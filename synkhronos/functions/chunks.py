"""Many steps as several commands of about a second each, if ranks that die are replaced.

A command in which a rank dies is repeated from its beginning: so no more is lost than that.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from .steps import Steps

#: Steps of the first command, and seconds that the later ones take.
FIRST_STEPS, SECONDS = 16, 1.0


class Results(NamedTuple):
    """What `RunSteps.finish` returns, and whether the program wants no more steps."""

    outputs: List[Any]
    rows: Optional[List[int]]
    n_steps: int
    has_ended: bool = False


def run_in_chunks(steps: Steps, table: Any, run: Callable[[Steps], Results]) -> Results:
    """Make steps, some at a time; all at once if their outputs are accumulated.

    Parameters
    ----------
    steps : Steps
        All of them.
    table : ndarray
        Theirs.
    run : callable
        Makes those that it is given, and returns `Results`.
    """
    if len(table) <= FIRST_STEPS or steps.total:
        return run(steps)
    found: List[Results] = []
    n_steps, n_most = 0, FIRST_STEPS
    while n_steps < len(table):
        counts = np.bincount(table[n_steps : n_steps + n_most, 0], minlength=len(steps.plans)).tolist()
        began = time.monotonic()
        found.append(run(steps._replace(begin=n_steps, counts=counts)))
        n_steps += found[-1].n_steps
        if found[-1].has_ended:
            break
        n_most = max(1, int(sum(counts) * min(4.0, SECONDS / max(time.monotonic() - began, 1e-6))))
    rows = [each.rows for each in found if each.rows is not None]
    return Results(
        [_joined(parts) for parts in zip(*[each.outputs for each in found])],
        [sum(of_rank) for of_rank in zip(*rows)] if rows else None,
        n_steps,
        found[-1].has_ended,
    )


def _joined(parts: Sequence[Any]) -> Any:
    """Return the values of an output in all steps, as they come out of one command."""
    if all(isinstance(part, np.ndarray) for part in parts) and len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    return list(_each(parts))


def _each(parts: Sequence[Any]) -> Iterator[Any]:
    for part in parts:
        yield from (np.asarray(value) for value in part) if isinstance(part, np.ndarray) else part
