"""Passing messages with file descriptors over an anonymous socket pair."""

from __future__ import annotations

import array
import pickle
import socket
from typing import Any, List, Sequence, Tuple

#: The kernel takes at most 253 descriptors with one message.
MOST = 250


def send(sock: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """Send one message, which may carry descriptors."""
    payload = pickle.dumps(message)
    fds = list(fds)
    head = len(payload).to_bytes(8, "little") + len(fds).to_bytes(8, "little")
    sock.sendall(head)
    for begin in range(0, len(fds), MOST):
        some = array.array("i", fds[begin:begin + MOST])
        sock.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, some)])
    sock.sendall(payload)


def receive(sock: socket.socket) -> Tuple[Any, List[int]]:
    """Receive one message and its descriptors.

    Raises
    ------
    EOFError
        Where the other end is closed.
    """
    head = _exactly(sock, 16)
    length, n_fds = int.from_bytes(head[:8], "little"), int.from_bytes(head[8:], "little")
    fds: List[int] = []
    while len(fds) < n_fds:
        some = array.array("i")
        data, ancillary, flags, _ = sock.recvmsg(1, socket.CMSG_SPACE(MOST * some.itemsize))
        if not data:
            raise EOFError
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                some.frombytes(content[:len(content) - len(content) % some.itemsize])
        if flags & socket.MSG_CTRUNC or not some:
            raise OSError("file descriptors could not be received: the limit of open files (ulimit -n) is too low")
        fds.extend(some)
    return pickle.loads(_exactly(sock, length)), fds


def _exactly(sock: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        some = sock.recv(length - len(data))
        if not some:
            raise EOFError
        data += some
    return bytes(data)
