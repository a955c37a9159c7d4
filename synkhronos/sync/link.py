"""Links: interrupt-safe message connections between ranks of different hosts.

KeyboardInterrupt may arrive between any two steps of the master, for example after the kernel has accepted data but
before the master has recorded it. So messages are split into *frames*, which the kernel accepts whole or not at all.
Received frames are processed before they leave the kernel's queue. ::

    | length: 4 bytes | index: 4 | is last: 1 | part of a pickled message |

Interrupted operations are retried. A message may be processed twice, so processing must be idempotent. A processed
frame leaves the queue when the next one is read. By then, an answer has usually acknowledged it for the kernel.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
from contextlib import suppress
from typing import Any, Callable, List, Sequence, Tuple

from .semaphore import POLL_INTERVAL_S

#: Maximum payload of a frame: less than the free space of a socket that the kernel reports as writable.
FRAME_BYTES = 1 << 14

#: Size of socket buffers, including the kernel's overhead, which can be several times the payload. The default of
#: 128 KiB may leave no space for the rest of a frame.
BUFFER_BYTES = 1 << 18

#: Socket options. A full buffer does not mean a lost host, because a rank does not read while it computes. The bridge
#: and the deputies detect lost hosts. Keepalive starts after 30 s, because firewalls drop idle connections.
_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES),
    (socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
)

_HEADER = struct.Struct("!IIB")


class Link:
    """One end of a link; owns its socket. After a loss (``is_lost``) at one end, both ends discard messages."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        for option in _OPTIONS:
            sock.setsockopt(*option)
        self._socket = sock
        self.is_lost = False
        #: Called while `send` waits. It must receive messages, because the other end may wait until this end reads.
        self.on_wait: Callable[[], object] = lambda: None
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN | select.POLLOUT)
        self._buffer = memoryview(bytearray(2 * (_HEADER.size + FRAME_BYTES)))
        self._discarded = bytearray(len(self._buffer))
        self._n_processed = 0  # size of a processed frame in the kernel's queue
        self._n_awaited = 1  # the socket is readable once it has this number of bytes
        self._parts: List[bytes] = []  # parts of a long message

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self.is_lost, self.on_wait = True, lambda: None
        self._socket.close()

    def send(self, message: Tuple[Any, ...], watch: Callable[[], object]) -> None:
        """Send a message; ``watch`` is called while the other end does not read, and may raise to end the wait."""
        payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        parts: Sequence[Any] = (payload,)
        if len(payload) > FRAME_BYTES:
            whole = memoryview(payload)
            parts = [whole[begin : begin + FRAME_BYTES] for begin in range(0, len(payload), FRAME_BYTES)]
        for i, part in enumerate(parts):
            while not self.is_lost:
                events = self._poll.poll(POLL_INTERVAL_S * 1000)
                if events and events[0][1] != select.POLLIN:  # it can be written, or is lost
                    break
                self.on_wait()
                watch()
            try:
                frame = _HEADER.pack(len(part), i, i == len(parts) - 1) + part
                if not self.is_lost and self._socket.send(frame, socket.MSG_NOSIGNAL) < len(frame):
                    self._lose()  # the kernel is out of memory, and the other end cannot use a partial frame
            except OSError:
                self._lose()

    def _lose(self) -> None:
        self.is_lost = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # so that the other end notices immediately

    def receive(self, deal_with: Callable[..., object], is_gone: bool = False) -> None:
        """Call ``deal_with(*message)`` for each message received; with ``is_gone``, no further message can arrive."""
        try:
            if self._n_awaited > 1:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                self._n_awaited = 1
            self._discard()
            n = self._socket.recv_into(self._buffer, 0, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            n = 0
        at, needed = 0, _HEADER.size
        while n - at >= _HEADER.size:
            length, i, is_last = _HEADER.unpack_from(self._buffer, at)
            begin, needed = at + _HEADER.size, _HEADER.size + length
            if n - at < needed:  # the rest has not arrived yet
                break
            self._discard()
            part = self._buffer[begin : begin + length]
            self._parts[i:] = () if is_last and not i else (bytes(part),)
            if is_last:
                deal_with(*pickle.loads(b"".join(self._parts) or part))
            self._n_processed = needed
            at += needed
        if not at and (is_gone or not n):
            self.is_lost = True
        elif not at:  # Otherwise polls would not wait for the rest, which never arrives from a lost host.
            self._n_awaited = needed  # first, because an interrupt may follow
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, needed)

    def _discard(self) -> None:
        """Remove the processed frame from the kernel's queue; if this is interrupted, it is processed again."""
        if self._n_processed:
            n, self._n_processed = self._n_processed, 0
            self._socket.recv_into(self._discarded, n)
