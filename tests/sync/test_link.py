"""Links between ranks of different hosts: messages arrive complete, despite interrupts."""

import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from synkhronos.sync import rendezvous as meeting
from synkhronos.sync.link import FRAME_BYTES, Link


def connected():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        return ours, listener.accept()[0]


@pytest.fixture
def links():
    """Return both ends of a link."""
    ends = [Link(each) for each in connected()]
    yield ends
    for end in ends:
        end.close()


def nothing():
    pass


def receive(link, n, deal_with=None):
    """Return the next ``n`` messages."""
    found = []

    def note(*message):
        found.append(message)
        if deal_with is not None:
            deal_with(len(found))

    while len(found) < n and not link.is_lost:
        assert select.select([link], [], [], 30)[0]
        link.receive(note)
    return found


SIZES = [0, 10, FRAME_BYTES - 40, FRAME_BYTES, FRAME_BYTES + 1, 3 * FRAME_BYTES, 5_000_000, 1]


def test_messages_of_all_sizes_arrive_in_their_order(links):
    ours, theirs = links
    sent = [("command", i, bytes([i]) * size) for i, size in enumerate(SIZES)]
    sender = threading.Thread(target=lambda: [ours.send(message, nothing) for message in sent])
    sender.start()
    assert receive(theirs, len(sent)) == sent
    sender.join()


def test_who_sends_looks_whether_waiting_has_become_pointless(links):
    ours, _ = links  # the other end does not read

    class Pointless(Exception):
        pass

    def watch():
        raise Pointless

    with pytest.raises(Pointless):
        for _ in range(100):
            ours.send(("command", b"x" * 1_000_000), watch)


def test_both_ends_may_send_more_than_the_network_holds(links):
    """Each end receives while it cannot send; otherwise, both would wait for the other end to read."""
    sent, found = [("arrived", bytes([i]) * 5_000_000) for i in range(2)], [[], []]

    def live(i):
        def hear():
            links[i].receive(lambda *message: found[i].append(message))

        links[i].on_wait = hear
        links[i].send(sent[i], nothing)
        while not found[i]:
            assert select.select([links[i]], [], [], 30)[0]
            hear()

    threads = [threading.Thread(target=live, args=(i,), daemon=True) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [[sent[1]], [sent[0]]]


def test_who_does_not_read_for_long_is_not_gone(monkeypatch):
    """A link to a rank that computes without reading is not lost; other connections would be."""
    monkeypatch.setattr(meeting, "UNRECEIVED_MS", 300)
    with meeting.Listener(["127.0.0.1"]) as listener, ThreadPoolExecutor(1) as thread:
        coming = thread.submit(meeting.connect, listener.meeting)
        ours = Link(next(listener.accept(1))[1])
        theirs = Link(coming.result())
        sent = ("answers", b"x" * 3_000_000)
        began, waited = time.monotonic(), thread.submit(ours.send, sent, nothing)
        time.sleep(2)
        assert receive(theirs, 1) == [sent]
        waited.result()
        assert time.monotonic() - began >= 2
    ours.close()
    theirs.close()


def test_who_has_lost_an_end_lets_the_other_know(links):
    """A link is shut down after only part of a message was sent."""
    ours, theirs = links
    sock = ours._socket

    class OutOfMemory:
        def send(self, frame, flags):
            return sock.send(frame[:100], flags)

        def shutdown(self, how):
            sock.shutdown(how)

    ours._socket = OutOfMemory()
    ours.send(("decided", b"x" * 1000), nothing)
    ours._socket = sock
    assert ours.is_lost
    theirs._socket.settimeout(5)
    assert len(theirs._socket.recv(1000)) == 100 and theirs._socket.recv(1000) == b""


@pytest.mark.parametrize("size", [10, 3 * FRAME_BYTES])
def test_an_interrupted_receiver_gets_it_again(links, size):
    """A message is received again if Ctrl-C interrupts its processing."""
    ours, theirs = links
    ours.send(("arrived", 1, b"a" * size), nothing)
    ours.send(("arrived", 2, b"b" * size), nothing)

    def interrupt(n):
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            receive(theirs, 1, interrupt)
    assert receive(theirs, 2) == [("arrived", 1, b"a" * size), ("arrived", 2, b"b" * size)]


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_an_interrupted_sender_sends_it_again(links, after):
    """An interrupted message is sent again from the beginning; received parts are dropped."""
    ours, theirs = links
    message = ("command", 7, b"x" * (4 * FRAME_BYTES))
    sock = ours._socket

    class Interrupted:
        """Sends some frames, and is interrupted after the kernel has accepted the last of them."""

        left = after

        def send(self, *arguments):
            sent = sock.send(*arguments)
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            return sent

    ours._socket = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        ours.send(message, nothing)
    ours._socket = sock
    theirs.receive(nothing)  # it may already have checked
    ours.send(message, nothing)
    ours.send(("decided", 1), nothing)
    assert receive(theirs, 2) == [message, ("decided", 1)]


def test_a_frame_that_has_not_come_whole_waits(links):
    ours, theirs = links
    ours.send(("decided", b"x" * 5000), nothing)
    assert select.select([theirs], [], [], 30)[0]
    content = theirs._socket.recv(1 << 16)
    for piece in (content[:3], content[3:20]):
        ours._socket.send(piece)
        assert select.select([theirs], [], [], 30)[0]
        theirs.receive(pytest.fail)
    ours._socket.send(content[20:4000])
    assert not select.select([theirs], [], [], 0.05)[0]  # who polls must not spin until the rest arrives
    theirs.receive(pytest.fail)
    ours._socket.send(content[4000:])
    assert receive(theirs, 1) == [("decided", b"x" * 5000)]


def test_the_end_of_the_other(links):
    ours, theirs = links
    ours.send(("answers", 1), nothing)
    ours.close()
    found = []
    theirs.receive(lambda *message: found.append(message), is_gone=True)
    assert found == [("answers", 1)] and not theirs.is_lost
    theirs.receive(pytest.fail, is_gone=True)
    assert theirs.is_lost
    for _ in range(3):
        theirs.send(("decided", b"x" * 1_000_000), pytest.fail)  # no error must occur


def test_the_end_of_the_other_in_the_middle_of_a_frame(links):
    ours, theirs = links
    ours._socket.send(b"\0\0\0\x50")
    ours.close()
    theirs.receive(pytest.fail)
    theirs.receive(pytest.fail, is_gone=True)
    assert theirs.is_lost
