"""Initial states of random streams on each rank."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Callable, Iterable, Optional, Tuple

from ..errors import ArgumentValueError


class RandomStreams:
    """The random streams of one session.

    When a stream is first sent, rank 0 starts at the master's state and draws the same numbers as the serial program.
    With ``seed``, streams are seeded instead. With ``split``, rank r starts r long jumps further on in the sequence.
    Otherwise, and for numbers that all rows of an exact function share, all ranks start at the same state.

    When a stream is sent again, the master continues without a jump. Every other rank starts d long jumps ahead of the
    master, where d is its distance from the master in the ring of ranks. A rank that has drawn more numbers than the
    master may then draw some of them again.
    """

    def __init__(self, seed: Optional[int], split: bool, root: int) -> None:
        self.seed, self.split, self.root = seed, split, root
        self._sent: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._common: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._indices: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        self._next = itertools.count()

    def begin(self, engine: Any, shared: Any, functions: Iterable[Any]) -> Tuple[Any, Optional[int]]:
        """Return the state to send and the rank that starts there (None: all); ``functions`` are in building order."""
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
        """Raise ValueError if this function and another draw from the same stream, but only one draws common numbers.

        The ranks' states would diverge, because ranks do not draw equally often. ``functions`` are all functions of the
        program. ``find(engine, shared)`` returns the number of a variable, or None if the ranks do not have it.
        """
        engine = function.engine
        common = [engine.identity(other) for other in self._common if engine.owns(other)]
        for shared in function.common_streams:
            if find(engine, shared) is not None and engine.identity(shared) not in common:
                raise ArgumentValueError(
                    f"function {function.name or 'without a name'}",
                    "separate random streams, because it is exact and draws numbers that all rows share",
                    f"a stream of another function, which was sent to the ranks earlier ({engine.label(shared)})",
                    "build it before the first call to the other function, or use a separate stream in it",
                )
        users = dict.fromkeys(common, "")  # no names, because their functions may have been dropped
        for other in functions:
            if other.engine is engine:
                users.update({engine.identity(shared): f" {other.name}" for shared in other.common_streams})
        for shared in function.own_streams:
            user = users.get(engine.identity(shared))
            if user is not None:
                raise ArgumentValueError(
                    f"function {function.name or 'without a name'}",
                    "separate random streams, because each rank draws numbers for its own rows",
                    f"a stream that the exact function{user} uses for numbers that all rows share "
                    f"({engine.label(shared)})",
                    "build both with exact=True, or use a separate stream in one of them",
                )

    def undo(self, shared: Any) -> None:
        """Mark a stream as not sent, because sending it failed; the variable's state is unchanged."""
        self._sent.discard(shared)

    def _index(self, shared: Any, functions: Iterable[Any]) -> int:
        for function in functions:
            for other in function.get_shared():
                if function.engine.is_random(other) and other not in self._indices:
                    self._indices[other] = next(self._next)
        if shared not in self._indices:  # no function uses it yet
            self._indices[shared] = next(self._next)
        return self._indices[shared]
