"""Connections between hosts."""

import pickle
import select
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from synkhronos.cluster import wire
from synkhronos.cluster.wire import Line
from synkhronos.sync import rendezvous as meetings
from synkhronos.sync.rendezvous import Listener, Rendezvous


@pytest.fixture
def pair():
    """Return a line and the socket at its other end."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(30)
    line = Line(ours)
    yield line, theirs
    line.close()
    theirs.close()
    ours.close()


def framed(message):
    """Return the bytes sent for a message: its length in 8 bytes, and its pickle; for a heartbeat, only the length."""
    payload = b"" if message is None else pickle.dumps(message)
    return len(payload).to_bytes(8, "big") + payload


def all_of(line, n):
    """Return the next n messages."""
    found = []
    until = time.monotonic() + 30
    while len(found) < n:
        assert select.select([line], [], [], until - time.monotonic())[0], found
        found += line.messages()
    return found


def test_messages_in_any_pieces(pair):
    line, theirs = pair
    sent = [("decided", 7), ("memory", b"\0" * 300_000), ("abort",), ("steps", {3: (1, 2, 3)})]
    content = framed(None) + b"".join(framed(each) + framed(None) for each in sent)
    for piece in (len(content), 100_003, 4_099):
        pieces = [content[i : i + piece] for i in range(0, len(content), piece)]
        sender = threading.Thread(target=lambda pieces=pieces: [theirs.sendall(each) for each in pieces])
        sender.start()
        assert all_of(line, len(sent)) == sent
        sender.join()


def test_a_message_byte_by_byte(pair):
    line, theirs = pair
    content = framed(("decided", 7))
    for i in range(len(content)):
        theirs.sendall(content[i : i + 1])
        assert all_of(line, 0) == []
        assert select.select([line], [], [], 30)[0]
        assert list(line.messages()) == ([("decided", 7)] if i == len(content) - 1 else [])


def test_long_and_short_messages_arrive_in_their_order(pair):
    line, theirs = pair
    theirs.settimeout(None)
    other = Line(theirs.dup())
    sent = [("memory", bytes([i]) * (3_000_000 if i % 3 == 0 else 10)) for i in range(9)]
    for message in sent:
        line.send(message)  # does not wait for the other end
    assert [other.receive() for _ in sent] == sent
    other.close()


def test_two_that_send_before_they_read_do_not_wait_for_each_other(pair):
    line, theirs = pair
    theirs.settimeout(None)
    other = Line(theirs.dup())
    sent = [("memory", i, b"x" * 10_000) for i in range(500)]
    for message in sent:
        line.send(message)
        other.send(message)
    assert [line.receive() for _ in sent] == [other.receive() for _ in sent] == sent
    other.close()


def test_signs_of_life_are_sent(pair):
    _, theirs = pair
    assert theirs.recv(8, socket.MSG_WAITALL) == bytes(8)


def test_the_end_of_the_other(pair):
    line, theirs = pair
    theirs.sendall(framed(("bye", True)))
    theirs.close()
    assert line.receive() == ("bye", True)
    with pytest.raises(EOFError):
        list(line.messages())
    with pytest.raises(ConnectionError):
        for _ in range(100):
            line.send(("there",))
            time.sleep(0.01)


def test_closing_ends_both(pair):
    line, theirs = pair
    line.close()
    with pytest.raises(EOFError):
        line.receive()
    while True:  # skips heartbeats
        came = theirs.recv(8)
        if not came:
            break
        assert came == bytes(8)


class Harm:
    """Object with a side effect when it is unpickled."""

    done = []

    def __reduce__(self):
        return self.done.append, (1,)


def test_nothing_is_read_of_somebody_without_the_token(monkeypatch):
    monkeypatch.setattr(meetings, "ANSWER_TIMEOUT_S", 1.0)
    told, lines = [], []
    host = threading.Thread(
        target=lambda: lines.extend(wire.host(Listener(["127.0.0.1"]), lambda meeting: told.append(meeting) or 1))
    )
    host.start()
    while not told:
        time.sleep(0.001)
    with socket.create_connection(told[0].endpoints[0], timeout=30) as somebody:
        somebody.sendall(framed(Harm()) * 2)
    with pytest.raises((AuthenticationError, OSError, EOFError)):
        Client(told[0].endpoints[0], authkey=b"guessed").close()
    line = wire.join(Rendezvous(*told[0]))
    host.join(30)
    assert not host.is_alive() and len(lines) == 1
    line.send(("hello", 1))
    assert lines[0].receive() == ("hello", 1)
    assert Harm.done == []
    for each in (line, *lines):
        each.close()


def test_a_lost_peer_is_an_error_though_the_program_ends_by_sigpipe():
    """Programs may restore SIGPIPE, so that ``| head`` ends them; a lost peer still raises an error."""
    program = (
        "import signal, socket; from synkhronos.cluster.wire import Line\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "ours, theirs = socket.socketpair(); line = Line(ours); theirs.close()\n"
        "try: line.send(('there',))\n"
        "except ConnectionError: print('told')"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, universal_newlines=True)
    assert (done.returncode, done.stdout) == (0, "told\n")


def test_somebody_else_listens_at_one_of_the_addresses():
    with Listener(["127.0.0.1"]) as listener, socket.create_server(("127.0.0.2", 0)) as wrong:

        def greet():
            sock, _ = wrong.accept()
            sock.sendall(b"SSH-2.0-something of another kind, which is as long as the answer of a listener"[:64])
            sock.close()

        lines = []
        accept = lambda: lines.extend(Line(sock) for _, sock in listener.accept(1))  # noqa: E731
        threads = [threading.Thread(target=each) for each in (greet, accept)]
        for thread in threads:
            thread.start()
        line = wire.join(listener.meeting._replace(endpoints=[wrong.getsockname(), *listener.meeting.endpoints]))
        for thread in threads:
            thread.join(30)
    line.send(("hello",))
    assert lines[0].receive() == ("hello",)
    for each in (line, *lines):
        each.close()


def test_who_listens_may_have_to_wait_for_others_first(monkeypatch):
    """A host that connects early may wait longer than the timeout, until the master has seen all other hosts."""
    monkeypatch.setattr(meetings, "ANSWER_TIMEOUT_S", 1)
    with meetings.Listener(["127.0.0.1"]) as listener, ThreadPoolExecutor(1) as thread:
        coming = thread.submit(meetings.connect, listener.meeting)
        time.sleep(2.5)
        with next(listener.accept(1))[1] as ours, coming.result() as theirs:
            theirs.sendall(b"words")
            assert ours.recv(10) == b"words"
