"""The plans of a function's calls that the ranks keep, so that each travels once."""

from __future__ import annotations

import weakref
from typing import Any, List, Optional, Tuple

from ..runtime.session import Session
from .call import Plan

#: Plans of one function that the ranks keep at a time: the batches of an epoch, and the shorter one at its end.
MAX_PLANS = 8


class Kept:
    """A plan with its place on the ranks."""

    __slots__ = ("key", "plan", "place", "known", "session")

    def __init__(self, key: Any, plan: Plan, place: Optional[Tuple[int, int]], session: Any) -> None:
        self.key, self.plan, self.place, self.session = key, plan, place, session
        self.known = False  # by all ranks: after a call in which nothing went wrong


class Plans:
    """The plans that the ranks of one session keep of one function.

    Parameters
    ----------
    session : Session
    """

    def __init__(self, session: Session) -> None:
        self._session = weakref.ref(session)
        self._kept: List[Kept] = []
        self._next = 0

    def are_of(self, session: Session) -> bool:
        """Tell whether they are this session's."""
        return self._session() is session

    def find(self, key: Any) -> Optional[Kept]:
        """Return the plan that was made for an equal key."""
        for kept in self._kept:
            if kept.key == key:
                return kept
        return None

    def add(self, key: Any, plan: Plan) -> Kept:
        """Keep a plan, in the place of the oldest where there are enough of them."""
        if any(argument.kind == "value" for argument in plan.arguments):
            return Kept(key, plan, None, self._session)  # of any size, and rarely the same again
        kept = Kept(key, plan, (plan.number, self._next), self._session)
        self._next = (self._next + 1) % MAX_PLANS
        self._kept = [other for other in self._kept if other.place[1] != kept.place[1]]  # type: ignore[index]
        self._kept.append(kept)
        return kept
