"""Many steps as several commands.

If ranks that die are replaced, a command takes about a second: one in which a rank dies is repeated from its beginning,
so no more is lost than that. If ``on_step`` changes a value that all ranks are to have, the command ends with that
step, and the next one takes it along.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from ..errors import ArgumentValueError
from .steps import Steps

#: Steps of the first command, and seconds that the later ones take.
FIRST_STEPS, SECONDS = 16, 1.0


class Results(NamedTuple):
    """What `RunSteps.finish` returns, and whether there are to be no more steps."""

    outputs: List[Any]
    rows: Optional[List[int]]
    n_steps: int
    has_ended: bool = False


def run_in_chunks(steps: Steps, table: Any, run: Callable[[Steps], Results], heals: bool = True) -> Results:
    """Make steps, some at a time; all at once if their outputs are accumulated.

    Parameters
    ----------
    steps : Steps
        All of them.
    table : ndarray
        Theirs.
    run : callable
        Makes those that it is given, or the first of them, and returns `Results`.
    heals : bool
        Whether ranks that die are replaced.

    Raises
    ------
    ArgumentValueError
        If outputs are accumulated, and not all steps were made.
    """
    in_pieces = heals and not steps.total and len(table) > FIRST_STEPS
    found: List[Results] = []
    n_steps, n_most = 0, FIRST_STEPS if in_pieces else len(table)
    while not found or n_steps < len(table) and not found[-1].has_ended:
        counts = np.bincount(table[n_steps : n_steps + n_most, 0], minlength=len(steps.plans)).tolist()
        began = time.monotonic()
        found.append(run(steps._replace(begin=n_steps, counts=counts)))
        n_steps += found[-1].n_steps
        if steps.total and n_steps < len(table) and not found[-1].has_ended:
            raise ArgumentValueError(
                "total",
                "False, because on_step changes a shared variable, which all ranks are given between two commands",
                f"True, and a change after step {n_steps - 1} of {len(table)}; these steps have been made",
            )
        if in_pieces:
            n_most = max(1, int(sum(counts) * min(4.0, SECONDS / max(time.monotonic() - began, 1e-6))))
    if len(found) == 1:
        return found[0]
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
