"""Passing messages with file descriptors over an anonymous socket pair.

A message arrives whole or not at all: it is in a nameless file whose descriptor travels first, in packets of as many
descriptors as the kernel takes. So nothing that fails or is interrupted on one side leaves the other with half a
message.
"""

from __future__ import annotations

import array
import os
import pickle
import socket
from typing import Any, List, Sequence, Tuple

from ...memory.memfd import nameless_file

#: The kernel takes at most 253 descriptors with one packet.
MAX_FDS_PER_PACKET = 250


def pair() -> Tuple[socket.socket, socket.socket]:
    """Return two connected sockets that keep packets apart."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """Send one message, which may carry descriptors."""
    payload = pickle.dumps(message)
    file = nameless_file("message", 0)
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(payload)
        everything = [file, *fds]
        for begin in range(0, len(everything), MAX_FDS_PER_PACKET):
            some = array.array("i", everything[begin : begin + MAX_FDS_PER_PACKET])
            # Not with SIGPIPE, which programs may set to end them.
            sock.sendmsg(
                [b"%d %d" % (begin, len(everything))],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, some)],
                socket.MSG_NOSIGNAL,
            )
    finally:
        os.close(file)


def receive(sock: socket.socket) -> Tuple[Any, List[int]]:
    """Receive one message and its descriptors.

    Raises
    ------
    EOFError
        The other end is closed.
    OSError
        The descriptors cannot be received; the message is lost, the next one can be received.
    """
    fds: List[int] = []
    try:
        expected = 1
        while len(fds) < expected:
            some = array.array("i")
            head, ancillary, flags, _ = sock.recvmsg(
                64, socket.CMSG_SPACE(MAX_FDS_PER_PACKET * some.itemsize), socket.MSG_CMSG_CLOEXEC
            )
            if not head:
                raise EOFError
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    some.frombytes(content[: len(content) - len(content) % some.itemsize])
            begin, total = map(int, head.split())
            if begin == 0:
                _close(fds)  # of a message that broke off
            elif begin != len(fds):
                _close(list(some))  # the rest of one
                continue
            expected = total
            fds.extend(some)
            if flags & socket.MSG_CTRUNC or len(fds) != min(begin + MAX_FDS_PER_PACKET, expected):
                raise OSError(
                    "file descriptors could not be received: the limit of open files is too low (see ulimit -n)"
                )
        with open(fds.pop(0), "rb") as stream:
            stream.seek(0)  # the position is the sender's, too
            message = pickle.load(stream)
    except BaseException:
        _close(fds)
        raise
    return message, fds


def _close(fds: List[int]) -> None:
    while fds:
        os.close(fds.pop())
