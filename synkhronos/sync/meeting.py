"""How processes of different hosts meet: one listens, the others connect, and both prove that they know a token.

Who listens tells the others where and by which token, on a way that is safe already: by MPI, or in the environment.
Nothing that a peer has sent is unpickled before it has proved that it knows the token, as the peers of
`multiprocessing.connection` do. When all have come nobody listens any more. The kernel watches the connections
(``TCP_USER_TIMEOUT``): it notices within seconds that a cable was cut, and at once that a process has ended. Links undo
the former: see `link`.
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

#: Seconds in which all must have come.
CONNECT_TIMEOUT_S = 60.0

#: Seconds in which who listens must answer when it is asked for the token.
ANSWER_TIMEOUT_S = 5

#: Seconds for which who listens waits for a peer that has come, before it looks whether others have gone: one that
#: did not answer so soon comes again.
PATIENCE_S = 1

#: Seconds in which who listens must have turned to a peer: it may wait until other hosts have loaded modules before.
TURN_TIMEOUT_S = 180.0

#: Seconds between two looks whether those who are awaited can still come.
LOOK_EVERY_S = 0.1

#: Milliseconds in which what was sent must have been received.
UNRECEIVED_MS = 3500


class Meeting(NamedTuple):
    """Where processes meet.

    Attributes
    ----------
    addresses : sequence of str
        Of the host that listens, at each.
    port : int
    token : bytes
    """

    addresses: Sequence[str]
    port: int
    token: bytes


class Listener:
    """Who waits for the others; a context manager.

    Parameters
    ----------
    addresses : sequence of str
        Of this host, at which others may reach it.

    Attributes
    ----------
    meeting : Meeting
        What the others have to be told.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self._socket = socket.create_server(("", 0), backlog=socket.SOMAXCONN)
        self.meeting = Meeting(tuple(addresses), self._socket.getsockname()[1], secrets.token_bytes(32))

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def accept(self, n: int, watch: Callable[[], object] = bool) -> Iterator[socket.socket]:
        """Iterate over connections to so many others, in the order in which they come.

        Parameters
        ----------
        n : int
        watch : callable
            Called now and then; raises if waiting has become pointless.

        Raises
        ------
        SynkhronosError
            Not all have come in time.
        """
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
            except (OSError, EOFError, AuthenticationError):  # somebody else
                pass
            if missing and time.monotonic() > until:
                raise SynkhronosError(
                    f"{missing} of {n} other hosts did not connect to this one within {CONNECT_TIMEOUT_S:g} s: "
                    f"can they reach port {self.meeting.port} of {', '.join(self.meeting.addresses)} (firewall, "
                    "interfaces)?"
                )


def connect(meeting: Meeting) -> socket.socket:
    """Connect to who listens, again and again if that is there but does not turn to this process.

    Raises
    ------
    SynkhronosError
        None of the addresses can be reached.
    """
    began, is_there = time.monotonic(), True
    while is_there:
        reasons, is_there = [], False
        for address in meeting.addresses:
            try:
                sock = socket.create_connection((address, meeting.port), timeout=5.0)
                return authenticated(sock, meeting.token, answers_first=True)
            except (OSError, EOFError, AuthenticationError, AssertionError) as error:  # (asserted of the first words)
                is_there = is_there or is_worth_another_try(error, time.monotonic() - began)
                reasons.append(f"{address}: {error}")
        time.sleep(LOOK_EVERY_S if is_there else 0)
    raise SynkhronosError(f"the first host cannot be reached at port {meeting.port}: {'; '.join(reasons)}")


def is_worth_another_try(error: BaseException, waited: float) -> bool:
    """Return whether who listens may only be busy, for which so many seconds were waited."""
    if isinstance(error, BlockingIOError):  # it has not asked for the token in time
        return waited < TURN_TIMEOUT_S
    return isinstance(error, (EOFError, ConnectionResetError)) and waited < ANSWER_TIMEOUT_S  # it had no patience


def authenticated(sock: socket.socket, token: bytes, answers_first: bool = False) -> socket.socket:
    """Return a socket, whose peer has proved that it knows the token.

    Raises
    ------
    AuthenticationError, OSError, EOFError
    """
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
