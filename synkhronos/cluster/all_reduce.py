"""Reduction over hosts: each element is reduced by one host and sent to the other receivers.

The array is cut into chunks, and each chunk into one piece per receiving host. Every receiver reduces its own piece, in
the order of the hosts, and sends the result to the other receivers. All receivers therefore get the same bits with any
MPI library. Chunks are pipelined: pieces of later chunks travel together with results of earlier chunks::

    host 0   [ piece 0 ][ piece 1 ]  chunk 0        piece 1 of chunk k  ------>  host 1 reduces x_0 op x_1
    host 1   [ piece 0 ][ piece 1 ]                 piece 0 of chunk k  <------
                                                    result 0 of chunk k ------>
                                                    result 1 of chunk k <------  (while pieces of chunk k + 1 travel)

If all H hosts contribute and receive, each sends and receives ``2 (H - 1) / H`` times the bytes of the array, the
minimum for any algorithm. A host that only contributes receives nothing. A sole receiver receives all hosts' values.

If the reduction is abandoned, the same messages travel without data, and nothing is computed: arrays that have not been
touched need no memory.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.encoding import decode, encode, message_length
from ..kernels.reduce import Portion
from ..reductions import counting
from ..sync.fetching import HostReduction
from .operation import BulkOperation, Ticket, in_bytes
from .progress import TransferProgress

ALIGNMENT_BYTES = 64  # within a chunk, pieces begin at multiples of this size

_PIECES, _RESULTS, _SENT = range(3)  # streams of received messages, and any sent message


class Chunk:
    """A chunk in progress, on one host.

    ``borders``: the first positions of the receivers' pieces, and the end of the last piece. ``parts[host]``:
    another host's values for this host's piece. ``results[host]``: the encoded result of that host's piece. ``left``
    counts pending requests, plus 1 until this host's piece is reduced. ``missing`` counts parts that have not arrived.
    """

    __slots__ = ("borders", "parts", "results", "left", "missing", "borrowed")

    def __init__(self, borders: List[int]) -> None:
        self.borders = borders
        self.parts: Dict[int, NDArray[Any]] = {}
        self.results: Dict[int, NDArray[Any]] = {}
        self.left, self.missing = 1, 0
        self.borrowed: List[NDArray[np.uint8]] = []


class HostAllReduce(BulkOperation):
    """One host's part of a reduction; ``chunk_bytes`` is an approximate size, and must be equal on all hosts."""

    def __init__(
        self, number: int, ticket: Ticket, host: int, hosts: int, reduction: HostReduction, chunk_bytes: int
    ) -> None:
        super().__init__(number, ticket)
        self._partial, self._result, self._op, weights, sources, destinations, self._wire, self._leaves_errors = (
            reduction
        )
        sources = sorted(sources or range(hosts))
        if self._op.name == "avg":
            counted, weights = counting([True] * len(sources), weights)
            sources = [sources[i] for i in counted]
        self._weights = weights
        self._host, self._sources = host, sources
        self._destinations = sorted(destinations or range(hosts))
        # A host that neither contributes nor receives has no work.
        self._count = self._partial.size if host in {*self._sources, *self._destinations} else 0
        itemsize = 2 if self._wire else self._partial.itemsize
        unit = max(1, ALIGNMENT_BYTES // itemsize)
        self._unit, whole = unit, unit * len(self._destinations)
        self._step = max(1, chunk_bytes // itemsize // whole) * whole
        self._next = 0  # first element of the next chunk
        self._under_way = 0
        self._unreduced: Deque[Chunk] = deque()

    def begin(self, messages: TransferProgress) -> None:
        self._go_on(messages)

    def _go_on(self, messages: TransferProgress) -> None:
        while self._under_way < self.window and self._next < self._count:
            begin, self._next = self._next, min(self._next + self._step, self._count)
            self._under_way += 1
            self._open(messages, Chunk(borders(begin, self._next, len(self._destinations), self._unit)))

    def is_complete(self) -> bool:
        return self._next == self._count and not self._under_way

    # -- the steps of a chunk --------------------------------------------------------------------------------------

    def _open(self, messages: TransferProgress, chunk: Chunk) -> None:
        """Start receiving values and results from other hosts, and start sending pieces to other hosts."""
        mine = self._of(self._host, chunk, self._partial)
        if mine.size:
            for source in self._sources:
                if source != self._host:
                    part = chunk.parts[source] = self._message(messages, chunk, mine.size, self._partial.dtype)
                    self._receive(messages, chunk, source, _PIECES, part)
                    chunk.missing += 1
        if self._host in self._destinations:
            for destination in self._others():
                result = self._of(destination, chunk, self._result)
                if result.size:
                    if self._wire:
                        result = chunk.results[destination] = self._message(messages, chunk, result.size, result.dtype)
                    self._receive(messages, chunk, destination, _RESULTS, result)
        if self._host in self._sources:
            for destination in self._others():
                piece = self._of(destination, chunk, self._partial)
                if piece.size:
                    self._send(messages, chunk, destination, _PIECES, self._outgoing(messages, chunk, piece))
        self._unreduced.append(chunk)
        self._reduce_what_is_there(messages)

    def _outgoing(self, messages: TransferProgress, chunk: Chunk, piece: NDArray[Any]) -> NDArray[Any]:
        """Return the message with a piece of this host's values, and leave its encoding errors behind."""
        if self.ticket.is_abandoned:
            return piece
        message = self._encoded(messages, chunk, piece)
        if self._leaves_errors:
            sent = self._array(messages, chunk, piece.size, piece.dtype)
            self._leave_errors(piece, self._decoded(message, sent))
        return message

    def landed(self, messages: TransferProgress, what: Tuple[Chunk, int, int]) -> None:
        chunk, kind, host = what
        if kind == _PIECES:
            chunk.missing -= 1
            self._reduce_what_is_there(messages)
        elif kind == _RESULTS and self._wire and not self.ticket.is_abandoned:
            self._decoded(chunk.results[host], self._of(host, chunk, self._result))
        self._has_done(messages, chunk)
        self._go_on(messages)

    def _reduce_what_is_there(self, messages: TransferProgress) -> None:
        """Reduce complete chunks in order, because the other hosts expect results in that order."""
        while self._unreduced and not self._unreduced[0].missing:
            chunk = self._unreduced.popleft()
            self._reduce(messages, chunk)
            self._has_done(messages, chunk)

    def _reduce(self, messages: TransferProgress, chunk: Chunk) -> None:
        """Reduce this host's piece, now that all its parts have arrived, and start sending the result."""
        mine = self._of(self._host, chunk, self._partial)
        if mine.size:
            message = mine if self.ticket.is_abandoned else self._combined(messages, chunk, mine)
            for destination in self._others():
                self._send(messages, chunk, destination, _RESULTS, message)

    def _combined(self, messages: TransferProgress, chunk: Chunk, mine: NDArray[Any]) -> NDArray[Any]:
        """Write the result of this host's piece; return the message with it."""
        parts: List[Optional[NDArray[Any]]] = []
        for source in self._sources:
            part = self._encoded(messages, chunk, mine) if source == self._host else chunk.parts[source]
            if self._wire:
                part = self._decoded(part, self._array(messages, chunk, mine.size, mine.dtype))
            parts.append(part)
            if source == self._host and self._leaves_errors:
                self._leave_errors(mine, part)
        result = self._of(self._host, chunk, self._result)
        if self._wire or result.dtype != mine.dtype:
            combined = self._array(messages, chunk, mine.size, mine.dtype)
        else:
            combined = result
        Portion([parts], [[combined]], 0, 1).combine(self._op, self._weights)
        if self._wire:
            message = self._encoded(messages, chunk, combined)
            self._decoded(message, result)
            return message
        if combined is not result:
            with np.errstate(all="ignore"):
                np.copyto(result, combined, casting="same_kind")
        return result

    def _has_done(self, messages: TransferProgress, chunk: Chunk) -> None:
        chunk.left -= 1
        if not chunk.left:
            for memory in chunk.borrowed:
                messages.give_back(memory)
            self._under_way -= 1

    def _others(self) -> List[int]:
        """Return the other receivers, starting after this host, so that not all hosts send to the same host first."""
        return sorted(
            set(self._destinations) - {self._host}, key=lambda destination: (destination < self._host, destination)
        )

    def _of(self, destination: int, chunk: Chunk, array: NDArray[Any]) -> NDArray[Any]:
        """Return a host's piece of a chunk of an array; empty if the host does not receive the result."""
        if destination not in self._destinations:
            return array[:0]
        i = self._destinations.index(destination)
        return array[chunk.borders[i] : chunk.borders[i + 1]]

    def _message(self, messages: TransferProgress, chunk: Chunk, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Borrow memory for a message of ``size`` elements, which are encoded if a wire format is set."""
        if self._wire:
            return self._array(messages, chunk, message_length(size, self._wire), np.dtype(np.uint16))
        return self._array(messages, chunk, size, dtype)

    @staticmethod
    def _array(messages: TransferProgress, chunk: Chunk, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        memory = messages.borrow(size * dtype.itemsize)
        chunk.borrowed.append(memory)
        return memory.view(dtype)

    def _encoded(self, messages: TransferProgress, chunk: Chunk, values: NDArray[Any]) -> NDArray[Any]:
        if not self._wire:
            return values
        message = self._message(messages, chunk, values.size, values.dtype)
        encode(values, message, self._wire)
        return message

    def _decoded(self, message: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
        assert self._wire is not None
        decode(message, values, self._wire)
        return values

    @staticmethod
    def _leave_errors(values: NDArray[Any], sent: Any) -> None:
        with np.errstate(all="ignore"):
            np.subtract(values, sent, out=values)

    def _send(self, messages: TransferProgress, chunk: Chunk, host: int, stream: int, array: NDArray[Any]) -> None:
        chunk.left += 1
        messages.send(self, host, stream, in_bytes(array), (chunk, _SENT, host))

    def _receive(self, messages: TransferProgress, chunk: Chunk, host: int, stream: int, array: NDArray[Any]) -> None:
        chunk.left += 1
        messages.receive(self, host, stream, in_bytes(array), (chunk, stream, host))


def borders(begin: int, end: int, pieces: int, unit: int) -> List[int]:
    """Return the borders of pieces that divide a range of elements, at multiples of ``unit`` from ``begin``.

    >>> borders(100, 200, 2, 16), borders(0, 5, 3, 16)
    ([100, 164, 200], [0, 5, 5, 5])
    """
    size = end - begin
    return [begin, *[begin + min(size, -(-size * i // (pieces * unit)) * unit) for i in range(1, pieces)], end]
