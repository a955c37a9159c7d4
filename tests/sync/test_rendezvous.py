"""Rendezvous of processes on different hosts."""

import select
import socket
import threading

import pytest
from refusals import reports

from synkhronos.errors import SynkhronosError
from synkhronos.sync import rendezvous as meetings
from synkhronos.sync.rendezvous import Listener, Rendezvous, connect


class Pointless(Exception):
    """Raised to end a wait."""


def test_who_comes_and_says_nothing_does_not_keep_others_from_being_looked_after():
    """The watch is called even if a connected process does not answer."""

    def watch():
        raise Pointless

    with Listener(["127.0.0.1"]) as listener:
        with socket.create_connection(("127.0.0.1", listener.meeting.port)):
            with pytest.raises(Pointless):
                next(listener.accept(1, watch))


def test_who_was_too_slow_comes_again(monkeypatch):
    """A process connects again after the listener has closed its slow connection."""
    answer, slow = meetings.answer_challenge, [True]

    def late(connection, token):
        if slow and threading.current_thread() is not threading.main_thread():
            closed = select.poll()
            closed.register(connection, select.POLLRDHUP)
            slow.clear()
            closed.poll()
        answer(connection, token)

    monkeypatch.setattr(meetings, "answer_challenge", late)
    with Listener(["127.0.0.1"]) as listener:
        found = []
        thread = threading.Thread(target=lambda: found.append(connect(listener.meeting)))
        thread.start()
        sock = next(listener.accept(1))
        thread.join()
    found[0].sendall(b"here")
    assert sock.recv(4) == b"here" and not slow
    for each in (sock, *found):
        each.close()


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    with reports(SynkhronosError, f"port {port}", "127.0.0.1", "refused"):
        connect(Rendezvous(["127.0.0.1"], port, b"t" * 32))
