"""A transfer of bytes between two hosts, from a list of buffers to another list of the same total size.

Messages divide the concatenation of all buffers, so both hosts cut at the same positions even if buffer sizes differ::

    buffers of the sender     [ a                        ][ b  ][ c ][ d                      ]
    messages                  |   0     |   1     |   2      |   3     |   4     |   5        |
                                 a         a         a b c d    d         d         d

A message that spans several buffers is joined before sending, or divided on arrival. Other messages are not copied.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import List, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from .operation import BulkOperation, Ticket, in_bytes
from .progress import TransferProgress

Bytes = NDArray[np.uint8]


class Transfer(BulkOperation):
    """One end of a transfer with ``host``; ``message_bytes`` must be equal at both ends."""

    def __init__(
        self, number: int, ticket: Ticket, host: int, buffers: Sequence[NDArray[np.generic]], message_bytes: int
    ) -> None:
        super().__init__(number, ticket)
        self._host = host
        self._buffers = [in_bytes(buffer) for buffer in buffers if buffer.nbytes]
        self._begins = [0]
        for buffer in self._buffers:
            self._begins.append(self._begins[-1] + buffer.nbytes)
        self._nbytes, self._message_bytes = self._begins[-1], message_bytes
        self._at = 0

    def begin(self, messages: TransferProgress) -> None:
        self._go_on(messages)

    def _go_on(self, messages: TransferProgress) -> None:
        while self._at < self._nbytes and self.pending < self.window:
            begin, self._at = self._at, min(self._at + self._message_bytes, self._nbytes)
            self._post(messages, self._pieces(begin, self._at), self._at - begin)

    def _post(self, messages: TransferProgress, pieces: List[Bytes], nbytes: int) -> None:
        raise NotImplementedError

    def is_complete(self) -> bool:
        return self._at == self._nbytes

    def _pieces(self, begin: int, end: int) -> List[Bytes]:
        pieces = []
        i = bisect_right(self._begins, begin) - 1
        while begin < end:
            low, high = begin - self._begins[i], min(end, self._begins[i + 1]) - self._begins[i]
            pieces.append(self._buffers[i][low:high])
            begin += high - low
            i += 1
        return pieces


class Sending(Transfer):
    def _post(self, messages: TransferProgress, pieces: List[Bytes], nbytes: int) -> None:
        joined = None
        if len(pieces) > 1:
            joined = messages.borrow(nbytes)
            np.concatenate(pieces, out=joined)
        messages.send(self, self._host, 0, pieces[0] if joined is None else joined, joined)

    def landed(self, messages: TransferProgress, what: Bytes) -> None:
        if what is not None:
            messages.give_back(what)
        self._go_on(messages)


class Receiving(Transfer):
    def _post(self, messages: TransferProgress, pieces: List[Bytes], nbytes: int) -> None:
        joined = messages.borrow(nbytes) if len(pieces) > 1 else None
        messages.receive(self, self._host, 0, pieces[0] if joined is None else joined, (joined, pieces))

    def landed(self, messages: TransferProgress, what: Tuple[Bytes, List[Bytes]]) -> None:
        joined, pieces = what
        if joined is not None:
            begin = 0
            for piece in pieces:
                piece[:] = joined[begin : begin + piece.nbytes]
                begin += piece.nbytes
            messages.give_back(joined)
        self._go_on(messages)
