"""Connections between hosts: a star around the first, authenticated before anything is unpickled.

The first host listens, and tells the others where and by which token: by MPI, or in the environment. A connection is
one of `multiprocessing.connection`, whose peers prove to each other that they know the token. When all have come nobody
listens any more. The kernel watches the connections (``SO_KEEPALIVE``, ``TCP_USER_TIMEOUT``): it notices within seconds
that a cable was cut, and at once that a process has ended.
"""

from __future__ import annotations

import os
import pickle
import queue
import secrets
import socket
import struct
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from ...errors import SynkhronosError

#: Seconds in which all hosts must have come.
CONNECT_TIMEOUT_S = 60.0

#: Seconds in which a peer must answer when it is asked for the token.
ANSWER_TIMEOUT_S = 5

#: Seconds between two signs of life.
SIGN_INTERVAL_S = 0.5

#: Bytes of a message that is sent at once; a thread sends longer ones, since two peers that wait until the other has
#: received would wait for ever.
AT_ONCE_BYTES = 1 << 15

#: Milliseconds in which what was sent, a sign of life at least, must have been received.
UNRECEIVED_MS = 3500


class Meeting(NamedTuple):
    """Where the hosts meet.

    Attributes
    ----------
    addresses : sequence of str
        Of the first host; it listens at each.
    port : int
    token : bytes
    """

    addresses: Sequence[str]
    port: int
    token: bytes


class Line:
    """One end of a connection. Several threads may send, one receives."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self._long: queue.SimpleQueue[Optional[bytes]] = queue.SimpleQueue()
        self._n_long = 0  # of messages that the thread has not sent yet
        self._thread: Optional[threading.Thread] = None
        self._closed = threading.Event()
        threading.Thread(target=self._send_signs, name="synkhronos-signs", daemon=True).start()

    def send(self, *message: Any) -> None:
        """Send a message; it arrives after those that were sent before.

        Raises
        ------
        ConnectionError
            The peer is gone.
        """
        payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._lock:
            if len(payload) <= AT_ONCE_BYTES and not self._n_long:
                self._write(payload)
                return
            self._n_long += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._send_long, name="synkhronos-send", daemon=True)
                self._thread.start()
            self._long.put(payload)

    def _send_signs(self) -> None:
        while not self._closed.wait(SIGN_INTERVAL_S):
            with self._lock:
                if not self._n_long:
                    try:
                        self._write(b"")
                    except ConnectionError:  # who receives here is told
                        return

    def _write(self, payload: bytes) -> None:
        try:
            self._connection.send_bytes(payload)
        except OSError as error:  # closed here, or by the peer, or it cannot be reached
            raise ConnectionError(str(error)) from error

    def _send_long(self) -> None:
        while True:
            payload = self._long.get()
            if payload is None:
                return
            try:
                self._write(payload)
            except ConnectionError:  # who receives here is told
                pass
            with self._lock:
                self._n_long -= 1

    def receive(self) -> Tuple[Any, ...]:
        """Wait for a message.

        Raises
        ------
        EOFError, OSError
            The peer is gone.
        """
        payload = b""
        while not payload:  # a sign of life
            payload = self._connection.recv_bytes()
        message: Tuple[Any, ...] = pickle.loads(payload)
        return message

    def close(self) -> None:
        """Close this end, and free the threads that wait here."""
        self._closed.set()
        self._long.put(None)
        try:
            with socket.socket(fileno=os.dup(self._connection.fileno())) as sock:
                sock.shutdown(socket.SHUT_RDWR)
            self._connection.close()
        except OSError:
            pass


def host(addresses: Sequence[str], tell: Any, n: int) -> List[Line]:
    """Wait for n others; return the lines to them, in the order in which they have come.

    Parameters
    ----------
    addresses : sequence of str
        Of this host, at which others may reach it.
    tell : callable
        Is given the `Meeting`, and tells the others.
    n : int

    Raises
    ------
    SynkhronosError
        Not all have come in time.
    """
    token = secrets.token_bytes(32)
    with socket.create_server(("", 0), backlog=n) as listener:  # only until all have come
        port = listener.getsockname()[1]
        tell(Meeting(tuple(addresses), port, token))
        lines: List[Line] = []
        until = time.monotonic() + CONNECT_TIMEOUT_S
        while len(lines) < n:
            listener.settimeout(max(0.01, until - time.monotonic()))
            try:
                sock, _ = listener.accept()
            except socket.timeout:
                raise SynkhronosError(
                    f"{n - len(lines)} of {n} other hosts did not connect to this one within {CONNECT_TIMEOUT_S:g} s: "
                    f"can they reach port {port} of {', '.join(addresses)} (firewall, interfaces)?"
                ) from None
            try:
                lines.append(Line(_authenticated(sock, token)))
            except (OSError, EOFError, AuthenticationError):  # somebody else
                pass
    return lines


def join(meeting: Meeting) -> Line:
    """Connect to the first host.

    Raises
    ------
    SynkhronosError
        None of its addresses can be reached.
    """
    reasons = []
    for address in meeting.addresses:
        try:
            connection = _authenticated(
                socket.create_connection((address, meeting.port), timeout=5.0), meeting.token, answers_first=True
            )
        except (OSError, EOFError, AuthenticationError) as error:
            reasons.append(f"{address}: {error}")
        else:
            return Line(connection)
    raise SynkhronosError(f"the first host cannot be reached at port {meeting.port}: {'; '.join(reasons)}")


def _authenticated(sock: socket.socket, token: bytes, answers_first: bool = False) -> Any:
    """Return the connection over a socket, whose peer has proved that it knows the token.

    Raises
    ------
    AuthenticationError, OSError, EOFError
    """
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", ANSWER_TIMEOUT_S, 0))
    _watch(sock)
    connection: Any = Connection(sock.detach())
    try:
        if answers_first:
            answer_challenge(connection, token)
            deliver_challenge(connection, token)
        else:
            deliver_challenge(connection, token)
            answer_challenge(connection, token)
        with socket.socket(fileno=os.dup(connection.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
    except BaseException:
        connection.close()
        raise
    return connection


def _watch(sock: socket.socket) -> None:
    """Have the kernel watch over the connection."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNRECEIVED_MS)
