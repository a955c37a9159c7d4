"""A link: a connection between ranks of different hosts, whose messages Ctrl-C cannot cut.

KeyboardInterrupt may come between any two steps of the master: after the kernel has taken what is sent, say, and before
that was noted. So messages are cut into *frames*, each of which the kernel takes whole or not at all, and what has come
is dealt with before it is taken out of the kernel's queue. ::

    | bytes: 4 | which one: 4 | is last: 1 | part of a message, pickled |

What was interrupted is done again. So a message may come twice, and dealing with it again must change nothing.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
from typing import Any, Callable, List, Tuple

from .meeting import PATIENCE_S
from .semaphore import POLL_INTERVAL_S

#: Bytes of a frame, at most: fewer than the kernel has room for if it says that it has any.
FRAME_BYTES = 1 << 14

#: Bytes for which the kernel is asked to have room at either end. What it counts against that may be several times of
#: what can be read: with its default of 128 KiB it may have no room for the rest of a frame.
BUFFER_BYTES = 1 << 18

#: What the kernel is asked for. A rank that computes does not read: so, unlike elsewhere (`meeting`), an end that has
#: had no room for a while is not gone. (The bridge and the deputies notice that a host is.) When nothing has come for
#: half a minute, the kernel asks whether the other end is there: firewalls forget connections that are quiet.
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
_RANK = struct.Struct("!I")


def introduce(sock: socket.socket, rank: int) -> None:
    """Tell who listens which rank has come."""
    sock.sendall(_RANK.pack(rank))


def introduced(sock: socket.socket) -> int:
    """Return which rank has come.

    Raises
    ------
    OSError
        It does not say that in time.
    """
    sock.settimeout(PATIENCE_S)
    said = sock.recv(_RANK.size, socket.MSG_WAITALL)
    if len(said) < _RANK.size:
        raise ConnectionError("a rank of another host has come, and was gone before it said which one")
    return int(_RANK.unpack(said)[0])


class Link:
    """One end of a link.

    Parameters
    ----------
    sock : socket
        Connected, and used by nobody else.

    Attributes
    ----------
    is_lost : bool
        Whether nothing can be sent any more: it is thrown away then. The other end finds its own lost, too.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        for option in _OPTIONS:
            sock.setsockopt(*option)
        self._socket = sock
        self.is_lost = False
        self._poll = select.poll()
        self._poll.register(sock, select.POLLOUT)
        self._buffer = memoryview(bytearray(2 * (_HEADER.size + FRAME_BYTES)))
        self._thrown_away = bytearray(len(self._buffer))
        self._parts: List[bytes] = []  # of a message that has not come whole

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self.is_lost = True
        self._socket.close()

    def send(self, message: Tuple[Any, ...], watch: Callable[[], object]) -> None:
        """Send a message.

        Parameters
        ----------
        message : tuple
        watch : callable
            Called now and then while the other end does not read; raises if waiting has become pointless.
        """
        payload = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        parts = [payload]
        if len(payload) > FRAME_BYTES:
            parts = [payload[begin : begin + FRAME_BYTES] for begin in range(0, len(payload), FRAME_BYTES)]
        for i, part in enumerate(parts):
            while not self.is_lost and not self._poll.poll(POLL_INTERVAL_S * 1000):
                watch()
            try:
                frame = _HEADER.pack(len(part), i, i == len(parts) - 1) + part
                if not self.is_lost and self._socket.send(frame, socket.MSG_NOSIGNAL) < len(frame):
                    self._lose()  # the kernel is out of memory: the other end cannot make anything of a part
            except OSError:
                self._lose()

    def _lose(self) -> None:
        self.is_lost = True
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # so that the other end need not find that out by itself
        except OSError:
            pass

    def receive(self, deal_with: Callable[..., object], is_gone: bool = False) -> None:
        """Deal with the messages that have come.

        Parameters
        ----------
        deal_with : callable
            Is given the parts of each message.
        is_gone : bool
            Whether nothing more can come.
        """
        try:
            n = self._socket.recv_into(self._buffer, 0, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            n = 0
        at = 0
        while n - at >= _HEADER.size:
            length, i, is_last = _HEADER.unpack_from(self._buffer, at)
            begin, needed = at + _HEADER.size, _HEADER.size + length
            if n - at < needed:  # the rest is on its way
                break
            part = self._buffer[begin : begin + length]
            if is_last and not i:
                deal_with(*pickle.loads(part))
            else:
                self._parts[i:] = [bytes(part)]
                if is_last:
                    deal_with(*pickle.loads(b"".join(self._parts)))
            self._socket.recv_into(self._thrown_away, needed)
            if is_last:
                self._parts = []
            at += needed
        if not at and (is_gone or not n):
            self.is_lost = True
