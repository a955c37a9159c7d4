"""A reduction over hosts, in which each element is reduced by one host, once, and then only copied.

The elements are cut into chunks, and each chunk into a piece for every host that takes the result. A host reduces the
pieces with its number, in the order of the hosts, and sends what comes out to the others that take it. So every host
holds the same bits, whatever the MPI library does. Chunks follow each other at once: the pieces of later ones travel
while the results of earlier ones do::

    host 0   [ piece 0 ][ piece 1 ]  chunk 0        piece 1 of chunk k  ------>  host 1 reduces x_0 op x_1
    host 1   [ piece 0 ][ piece 1 ]                 piece 0 of chunk k  <------
                                                    result 0 of chunk k ------>
                                                    result 1 of chunk k <------  (while pieces of chunk k + 1 travel)

If all H hosts give and take, each sends and receives ``2 (H - 1) / H`` times the bytes of the array, which no algorithm
can do without. A host that only gives receives nothing, and one that takes alone is sent each giver's values.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Deque, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentTypeError, ArgumentValueError
from ...kernels.encoding import decode, encode, message_length
from ...kernels.reduce import Portion
from ...reductions import COMBINING, ReduceOp, check_dtype, counting
from ...reductions.sixteen_bits import FORMATS
from .operation import Messages, Operation, Ticket, in_bytes

#: Chunks of one reduction that are under way at a time.
WINDOW_CHUNKS = 4

#: Pieces begin at multiples of so many bytes.
ALIGNMENT_BYTES = 64

_PIECE, _RESULT, _SENT = range(3)  # what a request has brought
_PIECES, _RESULTS = range(2)  # the streams


class Reduction(NamedTuple):
    """What is reduced over hosts, and how: the same on all hosts that take part, but for the arrays.

    Attributes
    ----------
    partial : ndarray, shape ``(n,)``
        This host's values; C-contiguous.
    result : ndarray, shape ``(n,)``
        Takes the result, on hosts that take it; C-contiguous, apart from ``partial``, and of its dtype. Or of float16,
        if ``partial`` is of float32: the result is rounded once then.
    op : ReduceOp
        ``avg``, ``sum``, ``prod``, ``min`` or ``max``.
    weights : sequence of float, optional
        Of the hosts that give, in their order, for ``avg``: how many rows each host's values stand for, say. They have
        to be finite, and 0 or more. All count the same without. (The mean is that of `reductions.mean`: hosts of weight
        0 do not count beside others.)
    wire : str, optional
        ``"bfloat16"`` or ``"float16"``: values of float32 or float64 travel in 16 bits (`reductions.sixteen_bits`; for
        float16 every message has a power of 2 of its own), are reduced in their own type, and the result is encoded
        once. A host's own values are rounded as those of others, so it does not matter who reduces.
    givers, takers : sequence of int, optional
        The hosts whose values count, and those that take the result; all by default. Others need the array all the
        same, but it is not looked at: ``np.empty`` takes no memory then.
    leaves_errors : bool
        Whether, with ``wire``, ``partial`` of a host that gives is overwritten with what encoding has left out of it.
    """

    partial: NDArray[Any]
    result: NDArray[Any]
    op: ReduceOp
    weights: Optional[Sequence[float]] = None
    wire: Optional[str] = None
    givers: Optional[Sequence[int]] = None
    takers: Optional[Sequence[int]] = None
    leaves_errors: bool = False


class Chunk:
    """A chunk that is under way.

    Attributes
    ----------
    borders : list of int
        The elements at which the takers' pieces begin, and where the last one ends.
    parts : dict
        By the host, what another gives to this host's piece, as it travels.
    results : dict
        By the host, the result of its piece, if that arrives in 16 bits.
    left : int
        What is left to do: the requests under way, and the reduction of this host's piece.
    missing : int
        Parts that have not arrived.
    borrowed : list of ndarray
        Memory to give back.
    """

    __slots__ = ("borders", "parts", "results", "left", "missing", "borrowed")

    def __init__(self, borders: List[int]) -> None:
        self.borders = borders
        self.parts: Dict[int, NDArray[Any]] = {}
        self.results: Dict[int, NDArray[Any]] = {}
        self.left, self.missing = 1, 0
        self.borrowed: List[NDArray[np.uint8]] = []


class AllReduce(Operation):
    """One host's part of a reduction.

    Parameters
    ----------
    number, ticket
        As of `Operation`.
    host, hosts : int
        This one, and how many there are.
    reduction : Reduction
    chunk_bytes : int
        What a chunk has, about: the same on all hosts.
    """

    def __init__(
        self, number: int, ticket: Ticket, host: int, hosts: int, reduction: Reduction, chunk_bytes: int
    ) -> None:
        super().__init__(number, ticket)
        check(reduction, hosts)
        self._partial, self._result, self._op, weights, self._wire, givers, takers, self._leaves_errors = reduction
        givers = sorted(range(hosts) if givers is None else givers)
        if self._op.name == "avg":
            counted, weights = counting([True] * len(givers), weights)
            givers = [givers[i] for i in counted]
        self._weights = weights
        self._host, self._givers = host, givers
        self._takers = sorted(range(hosts) if takers is None else takers)
        # A host that neither gives nor takes has nothing to do.
        self._count = self._partial.size if host in {*self._givers, *self._takers} else 0
        itemsize = 2 if self._wire else self._partial.itemsize
        unit = max(1, ALIGNMENT_BYTES // itemsize)
        self._unit, whole = unit, unit * len(self._takers)
        self._step = max(1, chunk_bytes // itemsize // whole) * whole
        self._next = 0  # the element at which the next chunk begins
        self._under_way = 0
        self._unreduced: Deque[Chunk] = deque()

    def begin(self, messages: Messages) -> None:
        self._go_on(messages)

    def _go_on(self, messages: Messages) -> None:
        """Open chunks, as many as may be under way."""
        while self._under_way < WINDOW_CHUNKS and self._next < self._count:
            begin, self._next = self._next, min(self._next + self._step, self._count)
            self._under_way += 1
            self._open(messages, Chunk(borders(begin, self._next, len(self._takers), self._unit)))

    def is_complete(self) -> bool:
        return self._next == self._count and not self._under_way

    # -- the steps of a chunk --------------------------------------------------------------------------------------

    def _open(self, messages: Messages, chunk: Chunk) -> None:
        """Begin to receive what others send, and to send them their pieces."""
        mine = self._of(self._host, chunk, self._partial)
        if mine.size:
            for giver in self._givers:
                if giver != self._host:
                    part = chunk.parts[giver] = self._message(messages, chunk, mine.size, self._partial.dtype)
                    self._receive(messages, chunk, giver, _PIECES, part, (chunk, _PIECE, giver))
                    chunk.missing += 1
        if self._host in self._takers:
            for taker in self._others():
                result = self._of(taker, chunk, self._result)
                if result.size:
                    if self._wire:
                        result = chunk.results[taker] = self._message(messages, chunk, result.size, result.dtype)
                    self._receive(messages, chunk, taker, _RESULTS, result, (chunk, _RESULT, taker))
        if self._host in self._givers:
            for taker in self._others():
                piece = self._of(taker, chunk, self._partial)
                if piece.size:
                    message = self._encoded(messages, chunk, piece)
                    if self._leaves_errors:
                        sent = self._array(messages, chunk, piece.size, piece.dtype)
                        self._leave_errors(piece, self._decoded(message, sent))
                    self._send(messages, chunk, taker, _PIECES, message)
        self._unreduced.append(chunk)
        self._reduce_what_is_there(messages)

    def landed(self, messages: Messages, what: Tuple[Chunk, int, int]) -> None:
        chunk, kind, host = what
        if kind == _PIECE:
            chunk.missing -= 1
            self._reduce_what_is_there(messages)
        elif kind == _RESULT and self._wire:
            self._decoded(chunk.results[host], self._of(host, chunk, self._result))
        self._has_done(messages, chunk)
        self._go_on(messages)

    def _reduce_what_is_there(self, messages: Messages) -> None:
        """Reduce chunks in their order, in which the others expect the results; requests may be complete in another."""
        while self._unreduced and not self._unreduced[0].missing:
            chunk = self._unreduced.popleft()
            self._reduce(messages, chunk)
            self._has_done(messages, chunk)

    def _reduce(self, messages: Messages, chunk: Chunk) -> None:
        """Reduce this host's piece, all parts of which are there, and begin to send what comes out."""
        mine = self._of(self._host, chunk, self._partial)
        if not mine.size:
            return
        parts: List[Optional[NDArray[Any]]] = []
        for giver in self._givers:
            if not self._wire:
                parts.append(chunk.parts.get(giver, mine))
                continue
            message = self._encoded(messages, chunk, mine) if giver == self._host else chunk.parts[giver]
            parts.append(self._decoded(message, self._array(messages, chunk, mine.size, mine.dtype)))
            if giver == self._host and self._leaves_errors:
                self._leave_errors(mine, parts[-1])
        result = self._of(self._host, chunk, self._result)
        if self._wire or result.dtype != mine.dtype:
            combined = self._array(messages, chunk, mine.size, mine.dtype)
        else:
            combined = result
        Portion([parts], [[combined]], 0, 1).combine(self._op, self._weights)
        if self._wire:
            message = self._encoded(messages, chunk, combined)
            self._decoded(message, result)
        else:
            message = result
            if combined is not result:
                with np.errstate(all="ignore"):
                    np.copyto(result, combined, casting="same_kind")
        for taker in self._others():
            self._send(messages, chunk, taker, _RESULTS, message)

    def _has_done(self, messages: Messages, chunk: Chunk) -> None:
        """Count that something of a chunk is done, and give back what it has borrowed if that was the last."""
        chunk.left -= 1
        if not chunk.left:
            for memory in chunk.borrowed:
                messages.give_back(memory)
            self._under_way -= 1

    # -- parts of steps --------------------------------------------------------------------------------------------

    def _others(self) -> List[int]:
        """Return the others that take, beginning with the next one: so that not all send to the same one at a time."""
        return sorted(set(self._takers) - {self._host}, key=lambda taker: (taker < self._host, taker))

    def _of(self, taker: int, chunk: Chunk, array: NDArray[Any]) -> NDArray[Any]:
        """Return a host's piece of a chunk: nothing if it does not take the result."""
        if taker not in self._takers:
            return array[:0]
        i = self._takers.index(taker)
        return array[chunk.borders[i] : chunk.borders[i + 1]]

    def _message(self, messages: Messages, chunk: Chunk, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Borrow memory for so many elements as they travel."""
        if self._wire:
            return self._array(messages, chunk, message_length(size, self._wire), np.dtype(np.uint16))
        return self._array(messages, chunk, size, dtype)

    @staticmethod
    def _array(messages: Messages, chunk: Chunk, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        memory = messages.borrow(size * dtype.itemsize)
        chunk.borrowed.append(memory)
        return memory.view(dtype)

    def _encoded(self, messages: Messages, chunk: Chunk, values: NDArray[Any]) -> NDArray[Any]:
        """Return values as they travel."""
        if not self._wire:
            return values
        message = self._message(messages, chunk, values.size, values.dtype)
        encode(values, message, self._wire)
        return message

    def _decoded(self, message: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
        """Write what a message in 16 bits says into an array; return that."""
        assert self._wire is not None
        decode(message, values, self._wire)
        return values

    @staticmethod
    def _leave_errors(values: NDArray[Any], sent: Any) -> None:
        with np.errstate(all="ignore"):
            np.subtract(values, sent, out=values)

    def _send(self, messages: Messages, chunk: Chunk, host: int, stream: int, array: NDArray[Any]) -> None:
        chunk.left += 1
        messages.send(self, host, stream, in_bytes(array), (chunk, _SENT, host))

    def _receive(
        self,
        messages: Messages,
        chunk: Chunk,
        host: int,
        stream: int,
        array: NDArray[Any],
        what: Tuple[Chunk, int, int],
    ) -> None:
        chunk.left += 1
        messages.receive(self, host, stream, in_bytes(array), what)


def check(reduction: Reduction, hosts: int) -> None:
    """Refuse a reduction that cannot be made.

    Raises
    ------
    TypeError, ValueError
        If arrays, op, wire or hosts do not fit each other.
    """
    partial, result, op, weights, wire, givers, takers, _ = reduction
    if op.name not in COMBINING:
        raise ArgumentValueError("op", f"one of {COMBINING}", repr(op.name))
    check_dtype(op, partial.dtype, "partial")
    for name, array in (("partial", partial), ("result", result)):
        if array.ndim != 1 or not array.flags.c_contiguous or not array.dtype.isnative:
            expected = "a contiguous array of one axis in the machine's byte order"
            raise ArgumentValueError(name, expected, described(array))
    if result.shape != partial.shape:
        raise ArgumentValueError("result", f"as many elements as partial has, {partial.size}", str(result.size))
    is_wide = partial.dtype == np.float32 and result.dtype == np.float16 and wire is None
    if result.dtype != partial.dtype and not is_wide:
        raise ArgumentTypeError("result", f"{partial.dtype}, as partial has", str(result.dtype))
    if np.may_share_memory(partial, result) and partial.size:
        raise ArgumentValueError("result", "memory apart from partial's", "memory that both share")
    if wire is not None:
        if wire not in FORMATS:
            raise ArgumentValueError("wire", " or ".join(map(repr, FORMATS)), repr(wire))
        if partial.dtype not in (np.float32, np.float64):
            expected = "None for values other than float32 and float64"
            raise ArgumentTypeError("wire", expected, f"{wire!r} for {partial.dtype}")
    for name, some in (("givers", givers), ("takers", takers)):
        if some is not None and (not some or len({*some}) < len(some) or not {*some} <= {*range(hosts)}):
            raise ArgumentValueError(name, f"different hosts of 0 to {hosts - 1}", repr(some))
    if weights is not None and len(weights) != (hosts if givers is None else len(givers)):
        raise ArgumentValueError("weights", "one for each host that gives", str(len(weights)))


def largest_message(chunk_bytes: int, hosts: int) -> int:
    """Return how many bytes a message of a courier may have, whose chunks have so many."""
    return max(chunk_bytes, ALIGNMENT_BYTES * hosts) + ALIGNMENT_BYTES


def borders(begin: int, end: int, pieces: int, unit: int) -> List[int]:
    """Divide a range of elements into pieces that begin at multiples of a unit after its begin.

    Examples
    --------
    >>> borders(100, 200, 2, 16), borders(0, 5, 3, 16)
    ([100, 164, 200], [0, 5, 5, 5])
    """
    size = end - begin
    return [begin, *[begin + min(size, -(-size * i // (pieces * unit)) * unit) for i in range(1, pieces)], end]


def described(array: NDArray[Any]) -> str:
    """Return how error messages describe an array."""
    return f"{array.dtype.str} of shape {array.shape}, strides {array.strides}"
