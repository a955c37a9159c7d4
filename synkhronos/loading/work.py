"""Main loop of a loader process: make batches, and copy them into the program's shared memory."""

from __future__ import annotations

import os
import pickle
import random
import select
import socket
from collections import deque
from contextlib import ExitStack, suppress
from typing import Any, Deque, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentTypeError
from ..memory.attach import PoolMap
from ..runtime.failures import Failure

#: Alignment of arrays in a buffer: one cache line.
_ALIGNMENT_BYTES = 64
#: Seconds between checks that the watched program is alive.
_LOOK_INTERVAL_S = 0.5


class Work(NamedTuple):
    """Batches of one process in a pass: every ``step``-th batch from ``first``, seeded with ``seed`` and ``epoch``."""

    source: Any
    items: Optional[Sequence[Any]]
    first: int
    step: int
    seed: int
    epoch: int

    def batches(self) -> Iterator[Tuple[int, Any]]:
        if self.items is not None:
            for number in range(self.first, len(self.items), self.step):
                self.start_random_numbers(number)
                yield number, self.source(self.items[number])
            return
        with ExitStack() as stack:
            batches = iter(self.source() if callable(self.source) else self.source)
            if hasattr(batches, "close"):
                stack.callback(batches.close)
            number = 0
            while True:
                self.start_random_numbers(number)
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                yield number, batch
                number += 1

    def start_random_numbers(self, number: int) -> None:
        """Seed the generators of NumPy and Python for one batch, independently of the process that makes it."""
        words = np.random.SeedSequence([self.seed, self.epoch, number]).generate_state(8)
        np.random.seed(words)
        random.seed(words.tobytes())


class BufferSlot(NamedTuple):
    """Shape, dtype and offset in bytes of an array in its buffer."""

    shape: Tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    def of(self, memory: NDArray[Any]) -> NDArray[Any]:
        return np.ndarray(self.shape, self.dtype, memory, self.offset)


class Delivery:
    """Connection from a loader process to the program, which provides the buffers for the batches.

    The program sends ``("buffer", number, handle)``, or ``("larger",)``, which revokes all free buffers.
    ``watched`` is the program's process id, to be polled; None if the kernel ends this process when the program ends.
    """

    def __init__(self, sock: socket.socket, pools: PoolMap, watched: Optional[int] = None) -> None:
        self._socket, self._pools, self._watched = sock, pools, watched
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._free: Deque[Tuple[int, NDArray[Any]]] = deque()

    def send(self, *message: Any) -> None:
        """Send a message; raise `Ended` if the program is gone or has closed the connection."""
        payload = pickle.dumps(message)
        try:
            self._socket.send(payload)
        except ConnectionError:
            raise Ended from None

    def deliver(self, number: int, batch: Any) -> None:
        self._look()
        single = not isinstance(batch, (tuple, list))
        arrays = [_as_array(number, i, each) for i, each in enumerate([batch] if single else batch)]
        placed, nbytes = _place(arrays)
        which, memory = self._buffer(nbytes)
        for array, place in zip(arrays, placed):
            np.copyto(place.of(memory), array)
        self.send("batch", number, which, placed, single)

    def _buffer(self, nbytes: int) -> Tuple[int, NDArray[Any]]:
        while not self._free:
            self._receive()
        if self._free[0][1].nbytes < nbytes:
            self.send("larger", nbytes)
            while self._receive() != "larger":
                pass
            return self._buffer(nbytes)
        return self._free.popleft()

    def _receive(self) -> str:
        while self._watched is not None and not self._poll.poll(_LOOK_INTERVAL_S * 1000):
            self._look()
        try:
            payload = self._socket.recv(1 << 16)
        except ConnectionError:
            raise Ended from None
        if not payload:
            raise Ended
        kind, *rest = pickle.loads(payload)
        if kind == "larger":
            self._free.clear()
        else:
            number, handle = rest
            self._free.append((number, self._pools.attach(handle)))
        return str(kind)

    def _look(self) -> None:
        if self._watched is not None and os.getppid() != self._watched:
            raise Ended


class Ended(BaseException):
    """Raised when the program needs no further batches."""


def serve(work: Work, delivery: Delivery) -> None:
    """Deliver the batches of a pass, then send a message that the pass has ended, or the error that ended it."""
    try:
        for number, batch in work.batches():
            delivery.deliver(number, batch)
        delivery.send("end")
    except Ended:
        pass
    except BaseException as error:
        with suppress(Ended):
            delivery.send("error", Failure(error))


def _as_array(number: int, i: int, value: Any) -> NDArray[Any]:
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise ArgumentTypeError(f"array {i} of batch {number}", "numbers, in rows of equal length", repr(value)[:200])
    return array


def _place(arrays: Sequence[NDArray[Any]]) -> Tuple[List[BufferSlot], int]:
    """Return positions for arrays placed one after another, and the total size in bytes."""
    placed, nbytes = [], 0
    for array in arrays:
        placed.append(BufferSlot(array.shape, array.dtype, nbytes))
        nbytes += -(-array.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return placed, nbytes
