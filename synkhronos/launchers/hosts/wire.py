"""Connections between the processes that speak for hosts: a star around the first, opened as in `sync.meeting`.

What is urgent goes by other connections (`sync.leading`). Signs of life are sent over these, so that the kernel notices
within seconds that a cable was cut.
"""

from __future__ import annotations

import os
import pickle
import queue
import socket
import struct
import threading
from collections import deque
from typing import Any, Callable, Deque, Iterator, List, Optional, Sequence, Tuple

from ...sync.meeting import Listener, Meeting, connect

#: Seconds between two signs of life.
SIGN_INTERVAL_S = 0.5

#: Bytes that are read at a time, at most.
READ_BYTES = 1 << 16

_LENGTH = struct.Struct("!Q")


class Line:
    """One end of a connection, for messages. Several threads may send, one receives.

    Nobody waits until something has been sent: two peers that wait until the other has received would wait for ever.
    What the kernel does not take at once, a thread sends.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._lock = sock, threading.Lock()
        self._partial = bytearray()  # of messages that have not come whole
        self._received: Deque[Tuple[Any, ...]] = deque()
        self._unsent: queue.SimpleQueue[Optional[memoryview]] = queue.SimpleQueue()
        self._n_unsent = 0  # messages with which the thread is not done
        self._thread: Optional[threading.Thread] = None
        self._closed = threading.Event()
        threading.Thread(target=self._send_signs, name="synkhronos-signs", daemon=True).start()

    def __del__(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor; there is something to read if a message may have come."""
        return self._socket.fileno()

    def send(self, *message: Any) -> None:
        """Send a message; it arrives after those that were sent before.

        Raises
        ------
        ConnectionError
            The peer is gone.
        """
        self._send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def _send(self, payload: bytes) -> None:
        content = memoryview(_LENGTH.pack(len(payload)) + payload)
        with self._lock:
            if not self._n_unsent:
                try:
                    content = content[self._socket.send(content, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
                except BlockingIOError:
                    pass
                except OSError as error:  # closed here, or by the peer, or it cannot be reached
                    raise ConnectionError(str(error)) from error
            if content:
                self._n_unsent += 1
                if self._thread is None:
                    self._thread = threading.Thread(target=self._send_rest, name="synkhronos-send", daemon=True)
                    self._thread.start()
                self._unsent.put(content)

    def _send_rest(self) -> None:
        while True:
            content = self._unsent.get()
            if content is None:
                return
            try:
                self._socket.sendall(content, socket.MSG_NOSIGNAL)
            except OSError:  # who receives here is told
                pass
            with self._lock:
                self._n_unsent -= 1

    def _send_signs(self) -> None:
        while not self._closed.wait(SIGN_INTERVAL_S):
            if not self._n_unsent:
                try:
                    self._send(b"")
                except ConnectionError:  # who receives here is told
                    return

    def receive(self) -> Tuple[Any, ...]:
        """Wait for a message.

        Raises
        ------
        EOFError, OSError
            The peer is gone.
        """
        while not self._received:
            self._read()
        return self._received.popleft()

    def messages(self) -> Iterator[Tuple[Any, ...]]:
        """Iterate over the messages that have come; without waiting, if there is something to read.

        Raises
        ------
        EOFError, OSError
            As in `receive`.
        """
        self._read()
        while self._received:
            yield self._received.popleft()

    def _read(self) -> None:
        content = os.read(self._socket.fileno(), READ_BYTES)
        if not content:
            raise EOFError("the connection was closed")
        partial, begin = self._partial, 0
        partial += content
        while len(partial) >= begin + _LENGTH.size:
            first = begin + _LENGTH.size
            last = first + _LENGTH.unpack_from(partial, begin)[0]
            if len(partial) < last:
                break
            if first < last:  # else it is a sign of life
                with memoryview(partial) as whole, whole[first:last] as payload:
                    self._received.append(pickle.loads(payload))
            begin = last
        del partial[:begin]

    def close(self) -> None:
        """End the connection; whoever receives from it, at either end, gets EOFError."""
        self._closed.set()
        self._unsent.put(None)
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def host(addresses: Sequence[str], tell: Callable[[Meeting], int]) -> List[Line]:
    """Wait for all others; return the lines to them, in the order in which they have come.

    Parameters
    ----------
    addresses : sequence of str
        Of this host, at which others may reach it.
    tell : callable
        Is given the `Meeting`, tells the others, and returns how many they are.

    Raises
    ------
    SynkhronosError
        Not all have come in time.
    """
    with Listener(addresses) as listener:  # only until all have come
        return [Line(sock) for sock in listener.accept(tell(listener.meeting))]


def join(meeting: Meeting) -> Line:
    """Connect to the first host.

    Raises
    ------
    SynkhronosError
        None of its addresses can be reached.
    """
    return Line(connect(meeting))
