"""Random streams: the position at which each rank's begins."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Iterable, Optional, Tuple


class RandomStreams:
    """The random streams of one session.

    What the master holds when a stream is first sent is where rank 0 begins, which then draws what the program alone
    would; rank r begins r long jumps further on the same sequence. A stream that is sent once more, because no
    function used it for a while, is not moved again: the master goes on, and the others begin as many jumps after it
    as they come after it in the circle of ranks, at numbers that no rank has drawn.

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
        return state, None if not self.split else self.root if again else 0

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
