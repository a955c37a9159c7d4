"""Rendezvous of processes on different hosts."""

import contextlib
import random
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from refusals import reports

from synkhronos.errors import SynkhronosError
from synkhronos.sync import rendezvous as meetings
from synkhronos.sync.rendezvous import Listener, Rendezvous, connect

HERE = "127.0.0.1"
FOREVER_S = 1000.0


class Pointless(Exception):
    """Raised to end a wait."""


def closes(sock):
    """Wait until the other end closes a connection; return what arrived before."""
    sock.settimeout(30)
    found = b""
    try:
        while True:
            content = sock.recv(1000)
            if not content:
                return found
            found += content
    except ConnectionResetError:
        return found


def strangers(listener, n):
    """Return n connections to a listener that send nothing."""
    return [socket.create_connection(listener.meeting.endpoints[0]) for _ in range(n)]


@pytest.fixture
def accepting():
    """Return a function that accepts connections in a thread, and returns the future list of (number, socket)."""
    accepted = []

    def accept(listener, n):
        accepted.append([])
        for each in listener.accept(n):
            accepted[-1].append(each)
        return accepted[-1]

    with ThreadPoolExecutor(1) as thread:
        yield lambda listener, n: thread.submit(accept, listener, n)
    for of_listener in accepted:
        for _, sock in of_listener:
            sock.close()


def test_peers_with_their_numbers(accepting):
    with Listener([HERE]) as listener:
        found = accepting(listener, 3)
        socks = {number: connect(listener.meeting, number) for number in (70_000, 0, 2)}
        accepted = dict(found.result(30))
        assert set(accepted) == set(socks)
        for number, sock in socks.items():
            sock.sendall(b"words of %d" % number)
            assert accepted[number].recv(100) == b"words of %d" % number
            accepted[number].close()
            sock.close()


def test_who_comes_and_says_nothing_does_not_keep_others_from_being_looked_after():
    """The watch is called even if a connected process does not answer."""

    def watch():
        raise Pointless

    with Listener([HERE]) as listener:
        with strangers(listener, 1)[0]:
            with pytest.raises(Pointless):
                next(listener.accept(1, watch))


def test_silent_and_slow_connections_delay_nobody(monkeypatch, accepting):
    """Without time limits for strangers, the peer is accepted, although it comes last."""
    monkeypatch.setattr(meetings, "ANSWER_TIMEOUT_S", FOREVER_S)
    with Listener([HERE]) as listener:
        others = strangers(listener, 200)
        for i, sock in enumerate(others[::2]):
            sock.sendall(b"x" * (i % 36))  # part of a hello
        found = accepting(listener, 1)
        with connect(listener.meeting, 5) as sock:
            ((number, accepted),) = found.result(30)
            assert number == 5
            accepted.sendall(b"there")
            assert sock.recv(10) == b"there"
            accepted.close()
        for other in others:
            closes(other)
            other.close()


def test_the_time_limit_is_for_the_whole_handshake(monkeypatch, accepting):
    """One byte at a time does not extend it."""
    monkeypatch.setattr(meetings, "ANSWER_TIMEOUT_S", 0.5)
    with Listener([HERE]) as listener:
        found = accepting(listener, 1)
        stop = threading.Event()
        with strangers(listener, 1)[0] as slow:

            def trickle():
                while not stop.wait(0.05):
                    try:
                        slow.send(b"x")
                    except OSError:
                        return

            thread = threading.Thread(target=trickle)
            thread.start()
            try:
                closes(slow)  # by the listener
            finally:
                stop.set()
                thread.join()
        monkeypatch.setattr(meetings, "ANSWER_TIMEOUT_S", 30)
        with connect(listener.meeting), found.result(30)[0][1]:
            pass


def test_many_strangers_do_not_use_up_files(monkeypatch, accepting):
    monkeypatch.setattr(meetings, "ANSWER_TIMEOUT_S", FOREVER_S)
    monkeypatch.setattr(meetings, "MAX_HANDSHAKES", 5)
    with Listener([HERE]) as listener:
        others = strangers(listener, 20)
        found = accepting(listener, 1)
        for other in others[:15]:
            assert closes(other) == b""
        with connect(listener.meeting), found.result(30)[0][1]:
            pass
        for other in others:
            other.close()


@pytest.mark.parametrize("seed", range(20))
def test_garbage_is_no_peer(seed, accepting):
    chance = random.Random(seed)
    with Listener([HERE]) as listener:
        found = accepting(listener, 1)
        for other in strangers(listener, 5):
            other.sendall(bytes(chance.randrange(256) for _ in range(chance.choice([1, 35, 36, 67, 68, 69, 500]))))
            if chance.random() < 0.5:
                with contextlib.suppress(OSError):  # already refused
                    other.shutdown(socket.SHUT_WR)
                assert len(closes(other)) in (0, 64)
            other.close()
        with connect(listener.meeting), found.result(30)[0][1]:
            pass


def test_a_wrong_token_and_a_repeated_handshake(monkeypatch, accepting):
    monkeypatch.setattr(meetings, "CONNECT_TIMEOUT_S", 1.0)
    with Listener([HERE]) as listener:
        found = accepting(listener, 1)
        endpoint = listener.meeting.endpoints[0]
        with reports(SynkhronosError, HERE, endpoint[1], "another program"):
            connect(listener.meeting._replace(token=b"guessed"))
        with socket.create_connection(endpoint) as other:  # repeats the listener's own proof
            other.sendall(b"h" * 36)
            answer = b""
            while len(answer) < 64:
                answer += other.recv(64)
            other.sendall(answer[32:])
            closes(other)
        with reports(SynkhronosError, "1 of 1", "wrong token", HERE):
            found.result(30)


def test_the_error_names_what_happened(monkeypatch, accepting):
    monkeypatch.setattr(meetings, "CONNECT_TIMEOUT_S", 1.0)
    monkeypatch.setattr(meetings, "ANSWER_TIMEOUT_S", 0.25)
    with Listener([HERE]) as listener:
        found = accepting(listener, 2)
        others = strangers(listener, 7)
        gone = strangers(listener, 2)
        for each in gone:
            each.close()
        with connect(listener.meeting):
            with reports(
                SynkhronosError, "1 of 2", "7 x 127.0.0.1: no handshake", "2 x 127.0.0.1: disconnected", "firewall"
            ):
                found.result(30)
        for each in others:
            each.close()
    with Listener([HERE]) as listener:
        with pytest.raises(SynkhronosError) as caught:
            list(listener.accept(1))
        assert "refused" not in str(caught.value)


def test_who_was_too_slow_comes_again(monkeypatch):
    """A process connects again after the listener has closed its slow connection."""
    prove, slow = meetings._proof, [True]

    def late(token, end, *content):
        if slow and end == b"peer" and threading.current_thread() is not threading.main_thread():
            slow.clear()
            monkeypatch.setattr(meetings, "ANSWER_TIMEOUT_S", 30)
            time.sleep(0.5)
        return prove(token, end, *content)

    monkeypatch.setattr(meetings, "ANSWER_TIMEOUT_S", 0.2)
    monkeypatch.setattr(meetings, "_proof", late)
    with Listener([HERE]) as listener, ThreadPoolExecutor(1) as thread:
        coming = thread.submit(connect, listener.meeting)
        _, sock = next(listener.accept(1))
        with sock, coming.result(30) as peer:
            peer.sendall(b"here")
            assert sock.recv(4) == b"here" and not slow


def test_more_peers_than_handshakes_at_once(monkeypatch, accepting):
    """All peers wait before the listener accepts, and none believes that it is connected when it is not."""
    monkeypatch.setattr(meetings, "MAX_HANDSHAKES", 3)
    n, silent = 12, 20
    with Listener([HERE]) as listener, ThreadPoolExecutor(n) as threads:
        others = strangers(listener, silent)
        coming = [threads.submit(connect, listener.meeting, number) for number in range(n)]
        time.sleep(0.2)
        found = dict(accepting(listener, n).result(60))
        assert sorted(found) == list(range(n))
        for number, each in enumerate(coming):
            with each.result(30) as peer:
                peer.sendall(b"%d" % number)
                assert found[number].recv(10) == b"%d" % number
        for other in others:
            other.close()


def test_no_more_than_the_expected_peers(accepting):
    with Listener([HERE]) as listener:
        endpoint, token = listener.meeting.endpoints[0], listener.meeting.token
        socks = [socket.create_connection(endpoint) for _ in range(3)]
        found = accepting(listener, 1)
        for sock in socks:
            sock.sendall(b"h" * 36)
        proofs = []
        for sock in socks:
            answer = b""
            while len(answer) < 64:
                answer += sock.recv(64 - len(answer))
            proofs.append(meetings._proof(token, b"peer", b"h" * 36, answer[:32]))
        for sock, proof in zip(socks, proofs):
            with contextlib.suppress(OSError):
                sock.sendall(proof)
        assert len(found.result(30)) == 1
        for sock in socks:
            sock.close()


OUT_OF_FILES = """
import resource, sys, time
from synkhronos.sync.rendezvous import Listener, connect
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
with Listener(["127.0.0.1"]) as listener:
    print(listener.meeting.endpoints[0][1], listener.meeting.token.hex(), flush=True)
    sys.stdin.readline()
    ((number, sock),) = listener.accept(1)
    print(number, time.process_time() < 5, flush=True)
"""


def test_a_process_that_may_open_few_files():
    """Handshakes end early if no more files can be opened, and the peer still connects."""
    command = [sys.executable, "-c", OUT_OF_FILES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        port, token = process.stdout.readline().split()
        meeting = Rendezvous([(HERE, int(port))], bytes.fromhex(token))
        others = [socket.create_connection((HERE, int(port))) for _ in range(200)]
        with ThreadPoolExecutor(1) as thread:
            coming = thread.submit(connect, meeting, 9)
            print("go", file=process.stdin, flush=True)
            assert process.stdout.readline().split() == ["9", "True"]
            coming.result(30).close()
        for other in others:
            other.close()


def test_a_stranger_that_disconnects_does_not_end_the_program():
    """Programs may restore SIGPIPE, so that ``| head`` ends them."""
    program = (
        "import signal, socket, struct, threading; from synkhronos.sync.rendezvous import Listener, connect\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "with Listener(['127.0.0.1']) as listener:\n"
        "    for _ in range(20):\n"
        "        sock = socket.create_connection(listener.meeting.endpoints[0]); sock.sendall(b'h' * 36)\n"
        "        sock.shutdown(socket.SHUT_WR)\n"
        "        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); sock.close()\n"
        "    coming = threading.Thread(target=lambda: connect(listener.meeting)); coming.start()\n"
        "    print(len(list(listener.accept(1)))); coming.join()"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, universal_newlines=True)
    assert (done.returncode, done.stdout) == (0, "1\n")


def test_nobody_listens():
    with socket.create_server((HERE, 0)) as other:
        port = other.getsockname()[1]
    with reports(SynkhronosError, port, HERE, "refused"):
        connect(Rendezvous([(HERE, port)], b"t" * 32))


# -- addresses and ports -----------------------------------------------------------------------------------------------


def test_it_listens_at_the_given_addresses_alone():
    with Listener([HERE, "127.0.0.3"]) as listener:
        assert [address for address, _ in listener.meeting.endpoints] == [HERE, "127.0.0.3"]
        for address, port in listener.meeting.endpoints:
            socket.create_connection((address, port)).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port))


def test_ipv6(accepting):
    if not socket.has_ipv6:
        pytest.skip("this Python has no IPv6")
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    with Listener(["::1"]) as listener:
        found = accepting(listener, 1)
        with connect(listener.meeting, 4) as sock:
            ((number, accepted),) = found.result(30)
            assert number == 4 and accepted.family == sock.family == socket.AF_INET6
            accepted.close()


def test_a_range_of_ports():
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        ports = [port, *range(port - 1, port - 100, -1)]
        with Listener([HERE], ports) as listener:
            ((_, found),) = listener.meeting.endpoints
            assert found in ports[1:]
        with reports(SynkhronosError, HERE, f"{port} to {port}"):
            Listener([HERE], [port])


def test_an_address_that_is_not_there(monkeypatch):
    monkeypatch.setattr(meetings, "CONNECT_TIMEOUT_S", 0.1)
    with Listener([HERE, "192.0.2.1"]) as listener:  # an address for documentation, which no machine has
        assert [address for address, _ in listener.meeting.endpoints] == [HERE]
        with reports(SynkhronosError, "cannot listen at 192.0.2.1"):
            list(listener.accept(1))
    with reports(SynkhronosError, "192.0.2.1", "cannot listen"):
        Listener(["192.0.2.1"])
    with reports(SynkhronosError, "interface"):
        Listener([])
