"""Random streams: the position at which each rank's begins."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Callable, Iterable, Optional, Tuple

from ..errors import ArgumentValueError


class RandomStreams:
    """The random streams of one session.

    What the master holds when a stream is first sent is where rank 0 begins, which then draws what the program alone
    would; rank r begins r long jumps further on the same sequence. A stream that is sent once more, because no
    function used it for a while, is not moved again: the master goes on, and the others begin as many jumps after it
    as they come after it in the circle of ranks, at numbers that no rank has drawn.

    A stream from which an exact function draws what all rows have in common begins at the same state on all ranks.

    Parameters
    ----------
    seed : int, optional
        Streams are seeded by it, instead of beginning at what the master holds.
    split : bool
        Whether ranks begin long jumps apart; otherwise all begin where rank 0 does.
    root : int
        The master's rank.
    """

    def __init__(self, seed: Optional[int], split: bool, root: int) -> None:
        self.seed, self.split, self.root = seed, split, root
        self._sent: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._common: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._indices: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        self._next = itertools.count()

    def begin(self, engine: Any, shared: Any, functions: Iterable[Any]) -> Tuple[Any, Optional[int]]:
        """Return the state that is sent, and the rank that begins there (None: all ranks do).

        Parameters
        ----------
        engine : Engine
        shared
            Holds the master's state, which is not changed.
        functions
            All that the program has, in the order in which they were built: so streams are numbered, whichever is
            sent first.
        """
        state, again = engine.get(shared), shared in self._sent
        if self.seed is not None and not again:
            state = engine.reseeded(shared, state, self.seed, self._index(shared, functions))
        self._sent.add(shared)
        identity = engine.identity(shared)
        of_engine = [function for function in functions if function.engine is engine]
        if any(engine.identity(other) == identity for function in of_engine for other in function.common_streams):
            self._common.add(shared)
        if not self.split or shared in self._common:
            return state, None
        return state, self.root if again else 0

    def check(self, function: Any, functions: Iterable[Any], find: Callable[[Any, Any], Any]) -> None:
        """Refuse a function if ranks draw the same numbers from a stream in some functions, and each its own in others.

        Those of the others are made by ranks that have rows, slice by slice: ranks draw from the stream unequally
        often, and no longer have the same state. ``functions`` are all that the program has; ``find(engine, shared)``
        returns the number of a variable that ranks hold, or None.

        Raises
        ------
        ArgumentValueError
        """
        engine = function.engine
        common = [engine.identity(other) for other in self._common if engine.owns(other)]
        for shared in function.common_streams:
            if find(engine, shared) is not None and engine.identity(shared) not in common:
                raise ArgumentValueError(
                    f"function {function.name}",
                    "random streams of its own, for it is exact and draws what all rows have in common",
                    f"one from which another function draws, which the ranks were given before "
                    f"({engine.label(shared)})",
                    "build it before the first call of the other function, or give it another stream",
                )
        users = dict.fromkeys(common, "")  # functions that are gone have no name
        for other in functions:
            if other.engine is engine:
                users.update({engine.identity(shared): f" {other.name}" for shared in other.common_streams})
        for shared in function.own_streams:
            user = users.get(engine.identity(shared))
            if user is not None:
                raise ArgumentValueError(
                    f"function {function.name}",
                    "random streams of its own, for its ranks draw from them as often as they have rows",
                    f"one from which the exact function{user} draws what all rows have in common "
                    f"({engine.label(shared)})",
                    "build both with exact=True, or give it another stream",
                )

    def undo(self, shared: Any) -> None:
        """Forget that the stream was sent; the caller gives it its old state back."""
        self._sent.discard(shared)

    def _index(self, shared: Any, functions: Iterable[Any]) -> int:
        for function in functions:
            for other in function.get_shared():
                if function.engine.is_random(other) and other not in self._indices:
                    self._indices[other] = next(self._next)
        if shared not in self._indices:  # no function uses it yet
            self._indices[shared] = next(self._next)
        return self._indices[shared]
