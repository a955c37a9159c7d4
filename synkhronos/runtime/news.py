"""News: values set on the master by the program, sent to the ranks along with the next command.

For example, a learning rate that changes before each call needs no extra command. Each rank sets the values before it
runs the command, so all ranks agree even if the command fails. The news precedes the bytes of a frozen command::

    frozen                        [ pickle of the envelope         ]    begins with \\x80, as pickles do
    with news   [ "N" ][ length ][ pickle of the news ][ same pickle ]
"""

from __future__ import annotations

import pickle
from typing import Any, Sequence, Tuple

import numpy as np

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


def attached(news: Sequence[News], payload: bytes) -> bytes:
    """Return the payload of a command, prefixed with news."""
    pickled = pickle.dumps(news, pickle.HIGHEST_PROTOCOL)
    return b"".join([MARK, len(pickled).to_bytes(LENGTH_BYTES, "little"), pickled, payload])


def detached(payload: bytes) -> Tuple[bytes, Sequence[News]]:
    """Return a payload without its news, and the news.

    >>> detached(b"\\x80..."), detached(attached([(1, "<f4", (), b"....")], b"\\x80..."))
    ((b'\\x80...', ()), (b'\\x80...', [(1, '<f4', (), b'....')]))
    """
    if payload[:1] != MARK:
        return payload, ()
    begin = len(MARK) + LENGTH_BYTES
    end = begin + int.from_bytes(payload[len(MARK) : begin], "little")
    return payload[end:], pickle.loads(payload[begin:end])
