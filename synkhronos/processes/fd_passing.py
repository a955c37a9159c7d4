"""Messages with file descriptors over an anonymous socket pair.

An unnamed file stores the content of a message. Its descriptor is sent first, then all other descriptors, in packets
of the size that the kernel allows. A message therefore arrives whole or not at all, even if one side fails.
"""

from __future__ import annotations

import array
import os
import pickle
import socket
from typing import Any, List, Sequence, Tuple

from ..memory.memfd import nameless_file

MAX_FDS_PER_PACKET = 250  # the kernel allows 253


def socket_pair() -> Tuple[socket.socket, socket.socket]:
    """Return two connected sockets that preserve packet boundaries."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    payload = pickle.dumps(message)
    file = nameless_file("message", 0)
    try:
        with open(file, "wb", closefd=False) as stream:
            stream.write(payload)
        everything = [file, *fds]
        for begin in range(0, len(everything), MAX_FDS_PER_PACKET):
            some = array.array("i", everything[begin : begin + MAX_FDS_PER_PACKET])
            # MSG_NOSIGNAL, because SIGPIPE may be set to end the program.
            sock.sendmsg(
                [b"%d %d" % (begin, len(everything))],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, some)],
                socket.MSG_NOSIGNAL,
            )
    finally:
        os.close(file)


def receive(sock: socket.socket) -> Tuple[Any, List[int]]:
    """Receive a message and its descriptors; raise `EOFError` if the other end is closed.

    Raise `OSError` if descriptors cannot be received; that message is lost, but later messages can be received.
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
                _close(fds)  # from an incomplete message
            elif begin != len(fds):
                _close(list(some))  # the rest of an incomplete message
                continue
            expected = total
            fds.extend(some)
            if flags & socket.MSG_CTRUNC or len(fds) != min(begin + MAX_FDS_PER_PACKET, expected):
                raise OSError(
                    "file descriptors could not be received: the limit on open files is too low (see ulimit -n)"
                )
        with open(fds.pop(0), "rb") as stream:
            stream.seek(0)  # the file position is shared with the sender
            message = pickle.load(stream)
    except BaseException:
        _close(fds)
        raise
    return message, fds


def _close(fds: List[int]) -> None:
    while fds:
        os.close(fds.pop())
