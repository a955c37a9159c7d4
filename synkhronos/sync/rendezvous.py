"""Rendezvous of processes on different hosts: one listens, all others connect, and both ends prove who they are.

::

    peer                                                listener
    hello: 32 random bytes, the peer's number   --->
                                                <---    32 random bytes, HMAC(token, "listener", hello, these bytes)
    HMAC(token, "peer", hello, the listener's)  --->
                                                <---    one byte: accepted

A trusted channel distributes the endpoints and the token. Nothing else is read before both ends have proved that they
have the token. The listener serves all connections at once, each with one time limit, so that foreign connections do
not delay the peers. It closes once all peers have connected. The kernel detects the end of a peer's process
immediately. ``TCP_USER_TIMEOUT`` lets it detect a cut cable within seconds while data is being sent; `link` disables
this timeout again.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import secrets
import selectors
import socket
import struct
import time
from collections import Counter
from multiprocessing import AuthenticationError
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..errors import SynkhronosError

CONNECT_TIMEOUT_S = 60.0  # time limit for all peers to connect
ANSWER_TIMEOUT_S = 5.0  # time limit for each end of a handshake, as a whole
TURN_TIMEOUT_S = 180.0  # time limit for a listener that first waits until other hosts have loaded modules
REACH_TIMEOUT_S = 2.0  # time limit for reaching one of the listener's addresses
LOOK_EVERY_S = 0.1  # time between checks that the missing peers can still connect
UNRECEIVED_MS = 3500  # time limit for the acknowledgment of sent data

#: Maximum number of unfinished handshakes, or twice the number of peers; a further connection ends the oldest handshake
#: with the address that has most of them. (Most processes may open 1,024 files.)
MAX_HANDSHAKES = 256

#: Errors if the process or the system lacks files or memory for a connection.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

RANDOM_BYTES = PROOF_BYTES = 32
ACCEPTED = b"\1"
_HELLO = struct.Struct(f"!{RANDOM_BYTES}sI")


class Rendezvous(NamedTuple):
    """The addresses and ports of a listener, and the token that proves who a peer is."""

    endpoints: Sequence[Tuple[str, int]]
    token: bytes


class Listener:
    """The listening end, at ``addresses`` of this host and the first free of ``ports``; send its ``meeting`` to peers.

    By default, the kernel chooses the ports.
    """

    def __init__(self, addresses: Sequence[str], ports: Sequence[int] = (0,)) -> None:
        self._sockets, wrong = [], []
        for address in addresses:
            try:
                self._sockets.append(_bound(address, ports))
            except OSError as error:
                wrong.append(f"at {address}: {error}")
        if not self._sockets:
            wrong = wrong or ["because no network interface is active"]
            raise SynkhronosError(f"this host cannot listen {'; '.join(wrong)}")
        self._wrong = "".join(f"this host cannot listen {each}; " for each in wrong)
        endpoints = [sock.getsockname()[:2] for sock in self._sockets]
        self.meeting = Rendezvous(tuple(endpoints), secrets.token_bytes(32))

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()

    def accept(self, n: int, watch: Callable[[], object] = bool) -> Iterator[Tuple[int, socket.socket]]:
        """Yield the numbers of ``n`` peers, and connections to them; raise `SynkhronosError` if a peer is missing.

        ``watch`` is called repeatedly, and its errors propagate.
        """
        until, missing = time.monotonic() + CONNECT_TIMEOUT_S, n
        refused: Counter[str] = Counter()
        handshakes: List[Handshake] = []  # the unfinished ones, the oldest first
        selector = selectors.DefaultSelector()

        def end(handshake: Handshake, reason: str) -> None:
            handshakes.remove(handshake)
            selector.unregister(handshake.sock)
            if reason:
                refused[f"{handshake.address}: {reason}"] += 1
                handshake.sock.close()

        def begin(listening: Any) -> None:
            try:
                sock, (address, *_) = listening.accept()
            except OSError as error:
                if error.errno in EXHAUSTED:
                    refused[f"this host: {error} (see ulimit -n)"] += 1
                    if handshakes:
                        end(_of_most(handshakes), "ended, because this host cannot open more files")
                    else:
                        time.sleep(LOOK_EVERY_S)
                return  # otherwise the connection is already gone
            if len(handshakes) >= max(MAX_HANDSHAKES, 2 * n):
                end(_of_most(handshakes), "many unfinished connections")
            handshakes.append(Handshake(sock, address, self.meeting.token))
            selector.register(sock, selectors.EVENT_READ, handshakes[-1])

        try:
            for listening in self._sockets:
                selector.register(listening, selectors.EVENT_READ)
            while missing:
                for key, _ in selector.select(LOOK_EVERY_S):
                    if key.data is None:
                        begin(key.fileobj)
                    elif key.data in handshakes:  # otherwise it has ended in this turn
                        try:
                            number = key.data.advance()
                        except (OSError, AuthenticationError) as error:
                            end(key.data, str(error))
                            continue
                        if number is not None:
                            end(key.data, "")
                            key.data.sock.setblocking(True)
                            missing -= 1
                            yield number, key.data.sock
                            if not missing:
                                return
                now = time.monotonic()
                for handshake in [each for each in handshakes if now >= each.until]:
                    end(handshake, f"no handshake within {ANSWER_TIMEOUT_S:g} s")
                watch()
                if now > until:
                    raise SynkhronosError(self._missing(missing, n, refused))
        finally:
            selector.close()
            for handshake in handshakes:
                handshake.sock.close()

    def _missing(self, missing: int, n: int, refused: Counter[str]) -> str:
        ends = ", ".join(f"{address} port {port}" for address, port in self.meeting.endpoints)
        others = "; ".join(f"{count} x {reason}" for reason, count in refused.most_common(3))
        return (
            f"other hosts that did not connect to this host within {CONNECT_TIMEOUT_S:g} s: {missing} of {n}; "
            + (f"it refused other connections ({others}); " if others else "")
            + self._wrong
            + f"check that the hosts can reach {ends} (interfaces, firewall)"
        )


class Handshake:
    """The listener's end of one handshake, until a time limit; it never waits."""

    def __init__(self, sock: socket.socket, address: str, token: bytes) -> None:
        self.sock, self.address, self._token = sock, address, token
        self.until = time.monotonic() + ANSWER_TIMEOUT_S
        self._received, self._random = b"", secrets.token_bytes(RANDOM_BYTES)
        sock.setblocking(False)
        _prepare(sock)

    def advance(self) -> Optional[int]:
        """Read what has arrived; return the peer's number once it has proved that it has the token, else None."""
        is_greeting = len(self._received) < _HELLO.size
        try:
            content = self.sock.recv((_HELLO.size if is_greeting else _HELLO.size + PROOF_BYTES) - len(self._received))
        except BlockingIOError:
            return None
        if not content:
            raise ConnectionError("disconnected during the handshake")
        self._received += content
        hello, proof = self._received[: _HELLO.size], self._received[_HELLO.size :]
        if is_greeting and len(hello) == _HELLO.size:
            self.sock.send(self._random + _proof(self._token, b"listener", hello, self._random), socket.MSG_NOSIGNAL)
        if len(proof) < PROOF_BYTES:
            return None
        if not hmac.compare_digest(proof, _proof(self._token, b"peer", hello, self._random)):
            raise AuthenticationError("a wrong token, for example of another program")
        self.sock.send(ACCEPTED, socket.MSG_NOSIGNAL)
        return int(_HELLO.unpack(hello)[1])


def _proof(token: bytes, end: bytes, hello: bytes, random: bytes) -> bytes:
    return hmac.new(token, end + hello + random, hashlib.sha256).digest()


def _bound(address: str, ports: Sequence[int]) -> socket.socket:
    """Return a socket that listens at an address and the first free port; raise `OSError` if there is none."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in ports:
        try:
            sock = socket.create_server((address, port), family=family, backlog=socket.SOMAXCONN)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            sock.setblocking(False)
            return sock
    raise OSError(f"all ports from {ports[0]} to {ports[-1]} are in use")


def _of_most(handshakes: Sequence[Handshake]) -> Handshake:
    """Return the oldest handshake with the address that has most of them."""
    counts = Counter([each.address for each in handshakes])
    return max(handshakes, key=lambda each: counts[each.address])  # the first of several


def _prepare(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNRECEIVED_MS)


def connect(meeting: Rendezvous, number: int = 0) -> socket.socket:
    """Connect to the listener as peer ``number``; retry while it is busy, and raise `SynkhronosError` if that fails."""
    began, is_there = time.monotonic(), True
    while is_there:
        reasons, is_there = [], False
        for address, port in meeting.endpoints:
            try:
                sock = socket.create_connection((address, port), timeout=REACH_TIMEOUT_S)
                return _introduced(sock, meeting.token, number)
            except (OSError, AuthenticationError) as error:
                is_there = is_there or is_worth_another_try(error, time.monotonic() - began)
                reasons.append(f"{address} port {port}: {error}")
        time.sleep(LOOK_EVERY_S if is_there else 0)
    raise SynkhronosError(f"the first host cannot be reached: {'; '.join(reasons)}")


def is_worth_another_try(error: BaseException, waited: float) -> bool:
    """Return whether an error, ``waited`` seconds after the first attempt, may mean that the listener is busy."""
    if isinstance(error, BlockingIOError):  # the listener has not begun the handshake yet
        return waited < TURN_TIMEOUT_S
    has_ended = isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError)
    return (has_ended or isinstance(error, socket.timeout)) and waited < CONNECT_TIMEOUT_S  # many others connect


def _introduced(sock: socket.socket, token: bytes, number: int) -> socket.socket:
    """Return the socket after the peer's end of the handshake; raise an error if the listener lacks the token."""
    try:
        _prepare(sock)
        hello = _HELLO.pack(secrets.token_bytes(RANDOM_BYTES), number)
        sock.sendall(hello, socket.MSG_NOSIGNAL)
        answer = _received(sock, RANDOM_BYTES + PROOF_BYTES)
        random, proof = answer[:RANDOM_BYTES], answer[RANDOM_BYTES:]
        if not hmac.compare_digest(proof, _proof(token, b"listener", hello, random)):
            raise AuthenticationError("another program listens there")
        sock.sendall(_proof(token, b"peer", hello, random), socket.MSG_NOSIGNAL)
        _received(sock, len(ACCEPTED))
        sock.settimeout(None)
        return sock
    except BaseException:
        sock.close()
        raise


def _received(sock: socket.socket, n: int) -> bytes:
    """Return the next ``n`` bytes from the listener; raise `BlockingIOError` if they do not arrive in time."""
    found, until = b"", time.monotonic() + ANSWER_TIMEOUT_S
    while len(found) < n:
        sock.settimeout(max(1e-3, until - time.monotonic()))
        try:
            content = sock.recv(n - len(found))
        except socket.timeout:
            raise BlockingIOError(f"no answer within {ANSWER_TIMEOUT_S:g} s") from None
        if not content:
            raise ConnectionError("disconnected during the handshake")
        found += content
    return found
