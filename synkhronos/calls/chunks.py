"""If dead ranks are replaced, split many steps into commands of about a second, so that a death costs little work.

A command also ends after a step if ``on_step`` changes a value that all ranks need; the next command sends the value.
"""

from __future__ import annotations

import time
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

import numpy as np

from ..errors import ArgumentValueError
from .rank_steps import StepSequence

#: Number of steps of the first command; target duration of later commands in seconds.
FIRST_STEPS, SECONDS = 16, 1.0


class Results(NamedTuple):
    """The result of `RunSteps.finish`, and whether the program has ended the steps."""

    outputs: List[Any]
    rows: Optional[List[int]]
    n_steps: int
    has_ended: bool = False


def run_in_chunks(
    steps: StepSequence, table: Any, run: Callable[[StepSequence], Results], heals: bool = True
) -> Results:
    """Run steps in one or more commands; with ``total``, raise if ``on_step`` changes a value that all ranks need.

    With ``heals``, dead ranks are replaced. Up to `FIRST_STEPS` steps are one command nevertheless, as are all steps
    with ``total``. ``run`` completes all steps that it receives, or only the first few.
    """
    in_chunks = heals and not steps.total and len(table) > FIRST_STEPS
    found: List[Results] = []
    n_steps, n_most = 0, FIRST_STEPS if in_chunks else len(table)
    while not found or n_steps < len(table) and not found[-1].has_ended:
        counts = np.bincount(table[n_steps : n_steps + n_most, 0], minlength=len(steps.plans)).tolist()
        began = time.monotonic()
        found.append(run(steps._replace(begin=n_steps, counts=counts)))
        n_steps += found[-1].n_steps
        if steps.total and n_steps < len(table) and not found[-1].has_ended:
            raise ArgumentValueError(
                "total",
                "False, because on_step changes a shared variable, which is sent to all ranks between two commands",
                f"True, and a change after step {n_steps - 1} of {len(table)}; all steps up to this one are complete",
            )
        if in_chunks:
            n_most = max(1, int(sum(counts) * min(4.0, SECONDS / max(time.monotonic() - began, 1e-6))))
    if len(found) == 1:
        return found[0]
    rows = [each.rows for each in found if each.rows is not None]
    return Results(
        [joined(parts) for parts in zip(*[each.outputs for each in found])],
        [sum(of_rank) for of_rank in zip(*rows)] if rows else None,
        n_steps,
        found[-1].has_ended,
    )


def joined(parts: Sequence[Any]) -> Any:
    if all(isinstance(part, np.ndarray) for part in parts) and len({part.shape[1:] for part in parts}) == 1:
        return np.concatenate(parts)
    return [np.asarray(value) if isinstance(part, np.ndarray) else value for part in parts for value in part]
