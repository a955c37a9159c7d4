"""Connections between the processes that serve hosts: a star around the first host, opened as in `sync.rendezvous`.

Commands and barriers use other links (`sync.host_relay`). Heartbeats let the kernel detect a cut cable within seconds.
"""

from __future__ import annotations

import os
import pickle
import queue
import socket
import struct
import threading
from collections import deque
from contextlib import suppress
from typing import Any, Callable, Deque, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..host.interfaces import Interface
from ..sync.rendezvous import Listener, Rendezvous, connect
from .environment import chosen_interfaces, chosen_ports

SIGN_INTERVAL_S = 0.5  # time between two heartbeats
READ_BYTES = 1 << 16  # maximum number of bytes per read

_LENGTH = struct.Struct("!Q")


class Line:
    """One end of a connection for messages; several threads may send, but only one may receive.

    Sending never blocks, because two peers that wait for each other to receive would deadlock. A separate thread
    sends heartbeats, and the part that the kernel does not accept immediately.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._lock = sock, threading.Lock()
        self._partial = bytearray()  # an incomplete received message
        self._received: Deque[Tuple[Any, ...]] = deque()
        self._unsent: queue.SimpleQueue[Optional[memoryview]] = queue.SimpleQueue()
        self._n_unsent = 0  # number of messages that the sending thread has not sent completely
        threading.Thread(target=self._send_rest, name="synkhronos-send", daemon=True).start()

    def __del__(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor, which is readable if a message may have arrived."""
        return self._socket.fileno()

    def send(self, message: Tuple[Any, ...]) -> None:
        """Send a message; messages arrive in order. Raise `ConnectionError` if the connection is known to be lost."""
        self._send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def _send(self, payload: bytes) -> None:
        content = memoryview(_LENGTH.pack(len(payload)) + payload)
        with self._lock:
            if not self._n_unsent:
                try:
                    content = content[self._socket.send(content, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]
                except BlockingIOError:
                    pass
                except OSError as error:  # closed here or by the peer, or unreachable
                    raise ConnectionError(str(error)) from error
            if content:
                self._n_unsent += 1
                self._unsent.put(content)

    def _send_rest(self) -> None:
        """Send heartbeats, and what the kernel did not accept immediately, until the connection is closed."""
        while True:
            try:
                content = self._unsent.get(timeout=SIGN_INTERVAL_S)
                if content is None:
                    return
                self._socket.sendall(content, socket.MSG_NOSIGNAL)
            except queue.Empty:
                try:
                    self._send(b"")
                except ConnectionError:
                    return  # the next receive reports the loss
                continue
            except OSError:  # the next receive reports the loss
                pass
            with self._lock:
                self._n_unsent -= 1

    def receive(self) -> Tuple[Any, ...]:
        """Wait for a message and return it; raise `EOFError` or `OSError` if the connection is lost."""
        while not self._received:
            self._read()
        return self._received.popleft()

    def messages(self) -> Iterator[Tuple[Any, ...]]:
        """Iterate over arrived messages, without waiting if the descriptor is readable; raise errors like `receive`."""
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
            if first < last:  # otherwise the message is a heartbeat
                with memoryview(partial) as whole, whole[first:last] as payload:
                    self._received.append(pickle.loads(payload))
            begin = last
        del partial[:begin]

    def close(self) -> None:
        """Close the connection; receivers at both ends get `EOFError`."""
        self._unsent.put(None)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


def listener_of(environ: Mapping[str, str], interfaces: Sequence[Interface]) -> Listener:
    """Return a listener at the chosen interfaces and ports of this host; peers try IPv4 addresses first."""
    addresses = sorted([each.ip for each in chosen_interfaces(environ, interfaces)], key=lambda ip: int(ip.version))
    return Listener(list(map(str, addresses)), chosen_ports(environ))


def host(listener: Listener, tell: Callable[[Rendezvous], int]) -> List[Line]:
    """Send the rendezvous with ``tell``, which returns the number of other hosts; return the connections to them."""
    with listener:  # open only until all hosts have connected
        return [Line(sock) for _, sock in listener.accept(tell(listener.meeting))]


def join(meeting: Rendezvous) -> Line:
    """Connect to the first host; raise `SynkhronosError` if none of its addresses is reachable."""
    return Line(connect(meeting))
