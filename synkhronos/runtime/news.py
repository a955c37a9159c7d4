"""New values of shared variables that travel with a command: those that the program has given them on the master.

A learning rate that changes before each call costs no command of its own then. Each rank but the master makes them
current before it runs the command, so they are the same on all ranks, whatever becomes of that. A command that was
frozen stays so: its bytes come after theirs. ::

    frozen                        [ pickle of the envelope         ]    begins with \\x80, as pickles do
    with news   [ "N" ][ length ][ pickle of the news ][ the same ]
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple, Sequence, Tuple

import numpy as np

from .registry import Origin, SharedEntry

#: Bytes of values that travel with a command, at most; larger ones are broadcast.
MAX_NEWS_BYTES = 1 << 10

#: What a payload begins with if it has news.
MARK = b"N"

#: Bytes of their length, after the mark.
LENGTH_BYTES = 4


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


def attached(news: Sequence[News], payload: bytes) -> bytes:
    """Return the payload of a command with news."""
    pickled = pickle.dumps([tuple(each) for each in news], pickle.HIGHEST_PROTOCOL)
    return b"".join([MARK, len(pickled).to_bytes(LENGTH_BYTES, "little"), pickled, payload])


def detached(payload: bytes) -> Tuple[bytes, Sequence[News]]:
    """Return a payload without its news, and these.

    Examples
    --------
    >>> detached(b"\\x80..."), detached(attached([News(1, "<f4", (), b"....")], b"\\x80..."))
    ((b'\\x80...', ()), (b'\\x80...', [(1, '<f4', (), b'....')]))
    """
    if payload[:1] != MARK:
        return payload, ()
    begin = len(MARK) + LENGTH_BYTES
    end = begin + int.from_bytes(payload[len(MARK) : begin], "little")
    return payload[end:], pickle.loads(payload[begin:end])
