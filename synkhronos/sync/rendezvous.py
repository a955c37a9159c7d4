"""Rendezvous of processes on different hosts: one listens, all others connect, and both ends prove who they are.

::

    peer                                                listener
    hello: 32 random bytes, the peer's number   --->
                                                <---    32 random bytes, HMAC(token, "listener", hello, these bytes)
    HMAC(token, "peer", hello, the listener's)  --->    done

A trusted channel, such as MPI, distributes the endpoints and the token. Nothing else is read before both ends have
proved that they have the token. The listener serves all connections at once, each with one time limit, so that foreign
connections delay nobody; it closes once all peers have connected. The kernel detects the end of a peer's process
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
LOOK_EVERY_S = 0.1  # time between checks that the missing peers can still connect
UNRECEIVED_MS = 3500  # time limit for the acknowledgment of sent data

#: Maximum number of unfinished handshakes; a further connection ends the oldest. (Most processes may open 1,024 files.)
MAX_HANDSHAKES = 256

RANDOM_BYTES = PROOF_BYTES = 32
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
                wrong.append(f"{address}: {error}")
        if not self._sockets:
            raise SynkhronosError(f"this host cannot listen: {'; '.join(wrong) or 'no network interface is active'}")
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

        def end(handshake: Handshake, reason: str = "") -> socket.socket:
            selector.unregister(handshake.sock)
            handshakes.remove(handshake)
            if reason:
                refused[f"{handshake.address}: {reason}"] += 1
                handshake.sock.close()
            return handshake.sock

        for sock in self._sockets:
            selector.register(sock, selectors.EVENT_READ)
        try:
            while missing:
                for key, _ in selector.select(LOOK_EVERY_S):
                    if key.data is None:
                        accepted = _accepted(key.fileobj)
                        if accepted is not None:
                            if len(handshakes) >= MAX_HANDSHAKES:
                                end(handshakes[0], "many unfinished connections")
                            handshakes.append(Handshake(accepted, self.meeting.token))
                            selector.register(accepted, selectors.EVENT_READ, handshakes[-1])
                    elif key.data in handshakes:  # otherwise it has ended in this turn
                        try:
                            number = key.data.advance()
                        except (OSError, AuthenticationError) as error:
                            end(key.data, str(error))
                            continue
                        if number is not None:
                            sock = end(key.data)
                            sock.setblocking(True)
                            missing -= 1
                            yield number, sock
                now = time.monotonic()
                for handshake in list(handshakes):
                    if now >= handshake.until:
                        end(handshake, f"no handshake within {ANSWER_TIMEOUT_S:g} s")
                if missing:
                    watch()
                    if now > until:
                        raise SynkhronosError(self._missing(missing, n, refused))
        finally:
            for handshake in list(handshakes):
                end(handshake).close()
            selector.close()

    def _missing(self, missing: int, n: int, refused: Counter[str]) -> str:
        ends = ", ".join(f"{address} port {port}" for address, port in self.meeting.endpoints)
        others = "; ".join(f"{count} x {reason}" for reason, count in refused.most_common(3))
        return (
            f"other hosts that did not connect to this host within {CONNECT_TIMEOUT_S:g} s: {missing} of {n}; "
            + (f"it refused other connections ({others}); " if others else "")
            + f"check that the hosts can reach {ends} (interfaces, firewall)"
        )


class Handshake:
    """The listener's end of one handshake, until a time limit; it never waits."""

    def __init__(self, sock: socket.socket, token: bytes) -> None:
        self.sock, self.address, self._token = sock, sock.getpeername()[0], token
        self.until = time.monotonic() + ANSWER_TIMEOUT_S
        self._received, self._random = b"", secrets.token_bytes(RANDOM_BYTES)

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
            self.sock.send(self._random + _proof(self._token, b"listener", hello, self._random))
        if len(proof) < PROOF_BYTES:
            return None
        if not hmac.compare_digest(proof, _proof(self._token, b"peer", hello, self._random)):
            raise AuthenticationError("a wrong token, for example of another program")
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


def _accepted(listening: Any) -> Optional[socket.socket]:
    """Return a new connection; None if it is already gone, or if no more files can be opened for now."""
    try:
        sock: socket.socket = listening.accept()[0]
        _prepare(sock)
        sock.setblocking(False)
        sock.getpeername()
        return sock
    except OSError:
        return None


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
                return _introduced(socket.create_connection((address, port), timeout=5.0), meeting.token, number)
            except (OSError, AuthenticationError) as error:
                is_there = is_there or is_worth_another_try(error, time.monotonic() - began)
                reasons.append(f"{address} port {port}: {error}")
        time.sleep(LOOK_EVERY_S if is_there else 0)
    raise SynkhronosError(f"the first host cannot be reached: {'; '.join(reasons)}")


def is_worth_another_try(error: BaseException, waited: float) -> bool:
    """Return whether an error, ``waited`` seconds after the first attempt, may mean that the listener is busy."""
    if isinstance(error, BlockingIOError):  # the listener has not begun the handshake yet
        return waited < TURN_TIMEOUT_S
    is_refused = isinstance(error, ConnectionRefusedError)
    return isinstance(error, ConnectionError) and not is_refused and waited < ANSWER_TIMEOUT_S  # it ended the handshake


def _introduced(sock: socket.socket, token: bytes, number: int) -> socket.socket:
    """Return the socket after the peer's end of the handshake; raise an error if the listener lacks the token."""
    try:
        _prepare(sock)
        hello = _HELLO.pack(secrets.token_bytes(RANDOM_BYTES), number)
        sock.sendall(hello)
        answer, until = b"", time.monotonic() + ANSWER_TIMEOUT_S
        while len(answer) < RANDOM_BYTES + PROOF_BYTES:
            sock.settimeout(max(0.0, until - time.monotonic()))
            try:
                content = sock.recv(RANDOM_BYTES + PROOF_BYTES - len(answer))
            except (socket.timeout, BlockingIOError):
                raise BlockingIOError(f"no answer within {ANSWER_TIMEOUT_S:g} s") from None
            if not content:
                raise ConnectionError("disconnected during the handshake")
            answer += content
        random, proof = answer[:RANDOM_BYTES], answer[RANDOM_BYTES:]
        if not hmac.compare_digest(proof, _proof(token, b"listener", hello, random)):
            raise AuthenticationError("another program listens there")
        sock.settimeout(None)
        sock.sendall(_proof(token, b"peer", hello, random))
        return sock
    except BaseException:
        sock.close()
        raise
