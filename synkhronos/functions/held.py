"""The values that every rank holds of shared variables, brought to the master."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np

from ..runtime.command import Command
from ..runtime.context import RankContext
from ..runtime.session import Session


class HeldValues(Command):
    """Copy every rank's values of dense variables to the master.

    Parameters
    ----------
    numbers : list of int
        The variables, in the registry.
    """

    title = "values of shared variables"

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers

    def run(self, context: RankContext) -> Optional[List[List[np.ndarray[Any, Any]]]]:
        gathered = context.transport.gather(*context.bind(self.numbers))
        return None if gathered is None else [[np.array(part) for part in parts] for parts in gathered]

    def finish(self, results: List[Any], context: RankContext) -> Any:
        return results[context.root]


def held(session: Session, numbers: Sequence[int]) -> List[List[np.ndarray[Any, Any]]]:
    """Return, for each of the variables, its values by rank; nothing changes."""
    found: List[List[np.ndarray[Any, Any]]] = session.run(HeldValues(list(numbers))) if numbers else []
    return found
