"""How processes of different hosts meet."""

import socket
import threading
import time

import pytest

from synkhronos.errors import SynkhronosError
from synkhronos.sync import meeting as meetings
from synkhronos.sync.meeting import PATIENCE_S, Listener, Meeting, connect


class Pointless(Exception):
    """Nobody can come any more."""


def test_who_comes_and_says_nothing_does_not_keep_others_from_being_looked_after():
    """A cable may be cut between its coming and its answer."""

    def watch():
        raise Pointless

    with Listener(["127.0.0.1"]) as listener:
        with socket.create_connection(("127.0.0.1", listener.meeting.port)):
            began = time.monotonic()
            with pytest.raises(Pointless):
                next(listener.accept(1, watch))
            assert time.monotonic() - began < PATIENCE_S + 2


def test_who_was_too_slow_comes_again(monkeypatch):
    """The one who listens has closed the connection, as it had no patience."""
    answer, slow = meetings.answer_challenge, [PATIENCE_S + 0.5]

    def late(connection, token):
        if slow and threading.current_thread() is not threading.main_thread():
            time.sleep(slow.pop())
        answer(connection, token)

    monkeypatch.setattr(meetings, "answer_challenge", late)
    with Listener(["127.0.0.1"]) as listener:
        found = []
        thread = threading.Thread(target=lambda: found.append(connect(listener.meeting)))
        thread.start()
        sock = next(listener.accept(1))
        thread.join(30)
    found[0].sendall(b"here")
    assert sock.recv(4) == b"here" and not slow
    for each in (sock, *found):
        each.close()


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(SynkhronosError, match=f"cannot be reached at port {port}: 127.0.0.1: .*refused"):
        connect(Meeting(["127.0.0.1"], port, b"t" * 32))
    assert time.monotonic() - began < 5
