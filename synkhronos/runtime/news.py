"""News, and the rows of a call: they are sent along with a frozen command.

News are values set on the master by the program. For example, a learning rate that changes before each call needs no
extra command. Each rank sets the values before it runs the command, so all ranks agree even if the command fails. ::

    frozen                                     [ pickle of the envelope ]    begins with \\x80, as pickles do
    with either   [ "N" ][ length ][ pickle of both ][ same pickle      ]
"""

from __future__ import annotations

import pickle
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from ..selection import RowRange
from .registry import Origin, SharedEntry

MAX_NEWS_BYTES = 1 << 10  #: Maximum total size of the values sent with a command; larger values are broadcast.
MARK = b"N"  #: First byte of a payload that has news.
LENGTH_BYTES = 4  #: Size of the length field after the mark.


#: The new value of one shared variable, a dense array: the variable's number, and the value's dtype, shape and bytes.
News = Tuple[int, str, Tuple[int, ...], bytes]


def news_of(entry: SharedEntry) -> News:
    value = entry.engine.to_host(entry.cell[0])
    return entry.number, value.dtype.str, value.shape, value.tobytes()


def learn(context: Any, news: Sequence[News]) -> None:
    """Set this rank's variables to the values in ``news``."""
    for number, dtype, shape, content in news:
        entry = context.registry.shareds[number]
        value: Any = np.ndarray(shape, dtype, content).copy()
        entry.set(entry.engine.to_device(entry.reference(), value), Origin.COMMON)


def attached(payload: bytes, news: Sequence[News], rows: Optional[RowRange]) -> bytes:
    """Return the payload of a command, prefixed with news and rows."""
    numbers = None if rows is None else (rows.start, rows.stop, rows.step)
    pickled = pickle.dumps((news, numbers), pickle.HIGHEST_PROTOCOL)
    return b"".join([MARK, len(pickled).to_bytes(LENGTH_BYTES, "little"), pickled, payload])


def detached(payload: bytes) -> Tuple[bytes, Sequence[News], Optional[RowRange]]:
    """Return a payload without its prefix, the news, and the rows.

    >>> detached(b"\\x80..."), detached(attached(b"\\x80...", [(1, "<f4", (), b"....")], RowRange(2, 9)))
    ((b'\\x80...', (), None), (b'\\x80...', [(1, '<f4', (), b'....')], RowRange(start=2, stop=9, step=1)))
    """
    if payload[:1] != MARK:
        return payload, (), None
    begin = len(MARK) + LENGTH_BYTES
    end = begin + int.from_bytes(payload[len(MARK) : begin], "little")
    news, numbers = pickle.loads(payload[begin:end])
    return payload[end:], news, None if numbers is None else RowRange(*numbers)
