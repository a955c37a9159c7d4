"""New values of shared variables that travel with a command: those that the program has given them on the master.

A learning rate that changes before each call costs no command of its own then. Each rank but the master makes them
current before it runs the command, so they are the same on all ranks, whatever becomes of that.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence, Tuple

import numpy as np

from .registry import Origin, SharedEntry

#: Bytes of values that travel with a command, at most; larger ones are broadcast.
MAX_NEWS_BYTES = 1 << 12


class News(NamedTuple):
    """A value of a dense array, by the number of the variable."""

    number: int
    dtype: str
    shape: Tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, entry: SharedEntry) -> News:
        """Return the value that the master has."""
        value = entry.engine.to_host(entry.cell[0])
        return cls(entry.number, value.dtype.str, value.shape, value.tobytes())


def learn(context: Any, news: Sequence[News]) -> None:
    """Make values of the master this rank's own."""
    for number, dtype, shape, content in news:
        entry = context.shareds[number]
        value = np.frombuffer(content, dtype).reshape(shape).copy()
        entry.set(entry.engine.to_device(entry.reference(), value), Origin.COMMON)
