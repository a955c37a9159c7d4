"""Rendezvous of processes on different hosts: one listens, all others connect, and both ends authenticate by token.

A trusted channel, such as MPI, distributes the address and the token. As in `multiprocessing.connection`,
nothing from a peer is unpickled before the peer has proved that it has the token. The listener closes once all peers
have connected. The kernel detects the end of a peer's process immediately. ``TCP_USER_TIMEOUT`` lets it detect a cut
cable within seconds while data is being sent; `link` disables this timeout again.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Callable, Iterator, NamedTuple, Sequence

from ..errors import SynkhronosError

CONNECT_TIMEOUT_S = 60.0  # time limit for all peers to connect
ANSWER_TIMEOUT_S = 5  # time limit for the listener's reply during authentication

#: Time limit for a connecting peer's reply. Afterwards the listener checks for deaths, and a slow peer reconnects.
PATIENCE_S = 1

TURN_TIMEOUT_S = 180.0  # time limit for a busy listener, which may first wait until other hosts have loaded modules
LOOK_EVERY_S = 0.1  # time between checks that the missing peers can still connect
UNRECEIVED_MS = 3500  # time limit for the acknowledgment of sent data


class Rendezvous(NamedTuple):
    """The addresses and port of a listener, and the token for authentication."""

    addresses: Sequence[str]
    port: int
    token: bytes


class Listener:
    """The listening end of a rendezvous, at addresses of this host; send its ``meeting`` to the other processes."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._socket = socket.create_server(("", 0), backlog=socket.SOMAXCONN)
        self.meeting = Rendezvous(tuple(addresses), self._socket.getsockname()[1], secrets.token_bytes(32))

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def accept(self, n: int, watch: Callable[[], object] = bool) -> Iterator[socket.socket]:
        """Yield ``n`` connections; raise `SynkhronosError` if a peer is missing. Errors from ``watch`` propagate."""
        until = time.monotonic() + CONNECT_TIMEOUT_S
        missing = n
        self._socket.settimeout(LOOK_EVERY_S)
        while missing:
            try:
                sock, _ = self._socket.accept()
                yield authenticated(sock, self.meeting.token)
                missing -= 1
            except socket.timeout:
                watch()
            except (OSError, EOFError, AuthenticationError):  # a foreign process or a slow peer
                pass
            if missing and time.monotonic() > until:
                raise SynkhronosError(
                    f"other hosts that did not connect to this host within {CONNECT_TIMEOUT_S:g} s: {missing} of {n}; "
                    f"check that they can reach port {self.meeting.port} of {', '.join(self.meeting.addresses)} "
                    "(firewall, interfaces)"
                )


def connect(meeting: Rendezvous) -> socket.socket:
    """Connect to the listener, retrying while it is busy; raise `SynkhronosError` if no address is reachable."""
    began, is_there = time.monotonic(), True
    while is_there:
        reasons, is_there = [], False
        for address in meeting.addresses:
            try:
                sock = socket.create_connection((address, meeting.port), timeout=5.0)
                return authenticated(sock, meeting.token, answers_first=True)
            except (OSError, EOFError, AuthenticationError, AssertionError) as error:  # assertion: bad first message
                is_there = is_there or is_worth_another_try(error, time.monotonic() - began)
                reasons.append(f"{address}: {error}")
        time.sleep(LOOK_EVERY_S if is_there else 0)
    raise SynkhronosError(f"the first host cannot be reached at port {meeting.port}: {'; '.join(reasons)}")


def is_worth_another_try(error: BaseException, waited: float) -> bool:
    """Return whether an error, ``waited`` seconds after the first attempt, may mean that the listener is busy."""
    if isinstance(error, BlockingIOError):  # the listener did not start the authentication in time
        return waited < TURN_TIMEOUT_S
    return isinstance(error, (EOFError, ConnectionResetError)) and waited < ANSWER_TIMEOUT_S  # the listener timed out


def authenticated(sock: socket.socket, token: bytes, answers_first: bool = False) -> socket.socket:
    """Return the socket after its peer has proved that it has the token; raise an error otherwise."""
    sock.settimeout(None)
    seconds = ANSWER_TIMEOUT_S if answers_first else PATIENCE_S
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, 0))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNRECEIVED_MS)
    with Connection(os.dup(sock.fileno())) as connection:
        try:
            if answers_first:
                answer_challenge(connection, token)
                deliver_challenge(connection, token)
            else:
                deliver_challenge(connection, token)
                answer_challenge(connection, token)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))
        except BaseException:
            sock.close()
            raise
    return sock
