"""Pretend hosts are separate from each other, and connected by cables that have a rate and can be cut."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pretend
import psutil
import pytest
from refusals import reports

pytestmark = pytest.mark.thorough

HERE = Path(__file__).resolve().parent

#: Answers one connection by returning the received bytes.
ECHO = """
import socket, sys
with socket.create_server(("", 7000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    with connection:
        while True:
            data = connection.recv(1 << 16)
            if not data:
                break
            connection.sendall(data)
"""
#: Sends a line, and prints the answer if it arrives within a second.
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), 5) as connection:
    connection.settimeout(1)
    connection.sendall(b"hello")
    print(connection.recv(100).decode())
"""
#: Receives bytes, and prints their number and the seconds from the first to the last byte.
SINK = """
import socket, time
with socket.create_server(("", 7000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    with connection:
        n, begin = len(connection.recv(1 << 16)), time.monotonic()
        while True:
            data = connection.recv(1 << 16)
            if not data:
                break
            n += len(data)
        print(n, time.monotonic() - begin)
"""
SOURCE = """
import socket, sys
with socket.create_connection((sys.argv[1], 7000), 5) as connection:
    connection.sendall(bytes(int(sys.argv[2])))
"""


def server(hosts, host, program):
    """Start a program that listens on a host, and return its process once it listens."""
    process = hosts.on(host, [sys.executable, "-S", "-c", program], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    return process


def said(process, timeout=30):
    """Return all that a program prints before it ends."""
    try:
        return process.communicate(timeout=timeout)[0].decode()
    finally:
        end(process)


def end(process):
    """Kill a program, reap its process, and close its pipes."""
    process.kill()
    process.wait(10)
    for stream in filter(None, (process.stdout, process.stderr)):
        stream.close()


def python(hosts, host, program, *arguments):
    """Run a Python program on a host, and return its output."""
    return hosts.run(host, [sys.executable, "-S", "-c", program, *map(str, arguments)]).strip()


def gone(pids, seconds=10):
    """Return whether all of these processes end within some seconds."""
    until = time.monotonic() + seconds
    while any(map(pretend.is_alive, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


# -- separate hosts ----------------------------------------------------------------------------------------------------


def test_hosts_have_names_and_addresses_that_all_know(make_hosts):
    hosts = make_hosts(3)
    assert hosts.names == ["h0", "h1", "h2"]
    assert [hosts.run(i, ["hostname"]).strip() for i in range(3)] == hosts.names
    program = "import socket, sys; print([socket.gethostbyname(name) for name in sys.argv[1:]])"
    expected = str([hosts.address(i) for i in range(3)])
    assert [python(hosts, i, program, *hosts.names) for i in range(3)] == [expected] * 3
    assert socket.gethostname() not in hosts.names  # the machine's own name has not changed


@pytest.mark.parametrize("server_host, client_host", [(0, 1), (1, 0), (2, 1)])
def test_hosts_reach_each_other_over_their_cables(make_hosts, server_host, client_host):
    hosts = make_hosts(3)
    echo = server(hosts, server_host, ECHO)
    before = [hosts.bytes(i) for i in range(3)]
    assert python(hosts, client_host, ASK, hosts.names[server_host]) == "hello"
    assert said(echo) == ""
    after = [hosts.bytes(i) for i in range(3)]
    for i in (server_host, client_host):
        assert after[i].sent > before[i].sent and after[i].received > before[i].received


def test_bytes_are_counted_at_the_right_end(make_hosts):
    hosts = make_hosts(2)
    sink = server(hosts, 1, SINK)
    before = [hosts.bytes(i) for i in range(2)]
    python(hosts, 0, SOURCE, "h1", 1_000_000)
    assert said(sink).split()[0] == "1000000"
    of_0, of_1 = [pretend.Traffic(*(late - early for late, early in zip(hosts.bytes(i), before[i]))) for i in range(2)]
    assert 1_000_000 < of_0.sent < 1_300_000 and 1_000_000 < of_1.received < 1_300_000
    assert of_0.received < 300_000 and of_1.sent < 300_000


def test_hosts_do_not_reach_the_machine_nor_it_them(make_hosts):
    hosts = make_hosts(2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = "import socket, sys; print(socket.socket().connect_ex(('127.0.0.1', int(sys.argv[1]))) != 0)"
        assert python(hosts, 0, program, listener.getsockname()[1]) == "True"
    echo = server(hosts, 0, ECHO)
    with socket.socket() as own:
        own.settimeout(0.5)
        if own.connect_ex((hosts.address(0), 7000)) == 0:  # another process answers: a router or a proxy
            try:
                own.sendall(b"hello")
                assert own.recv(5) != b"hello"
            except OSError:
                pass
    assert python(hosts, 1, ASK, "h0") == "hello"  # no other process has used the single connection
    end(echo)


def test_each_has_shared_memory_and_temporary_files_of_its_own(make_hosts, tmp_path):
    hosts = make_hosts(2, shared=[tmp_path])
    name = f"pretend-{os.getpid()}"
    for folder in ("/dev/shm", "/tmp"):
        path = f"{folder}/{name}"
        for i in range(2):
            hosts.run(i, ["sh", "-c", f"test ! -e {path} && hostname > {path}"])
        assert [hosts.run(i, ["cat", path]).strip() for i in range(2)] == ["h0", "h1"]
        assert not os.path.exists(path)
    (tmp_path / "shared").write_text("seen")
    assert [hosts.run(i, ["cat", tmp_path / "shared"]) for i in range(2)] == ["seen"] * 2
    hosts.run(1, ["sh", "-c", f"echo changed > {tmp_path}/shared"])
    assert (tmp_path / "shared").read_text() == "changed\n"


def test_each_has_processes_of_its_own(make_hosts):
    hosts = make_hosts(2)
    sleeper = hosts.on(0, ["sleep", "1000"])
    try:
        program = "import os; print(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()))"
        pids = [eval(python(hosts, i, program)) for i in range(2)]
        assert [len(of_host) for of_host in pids] == [3, 2]  # process 1, the sleeper and the program itself
        assert pids[0][0] == pids[1][0] == 1
        assert [[process.name() for process in hosts.processes(i)] for i in range(2)] == [["sleep"], []]
    finally:
        assert hosts.left(0, 0.1) == hosts.processes(0) != []
        end(sleeper)
    assert hosts.left(0) == []


def test_hosts_have_ipc_of_their_own(make_hosts):
    hosts = make_hosts(2)
    links = {hosts.run(i, ["readlink", "/proc/self/ns/ipc"]) for i in range(2)} | {os.readlink("/proc/self/ns/ipc")}
    assert len(links) == 3


# -- commands ----------------------------------------------------------------------------------------------------------


def test_command_has_its_environment_folder_and_status(make_hosts, tmp_path):
    hosts = make_hosts(1, shared=[tmp_path])
    words = ["sh", "-c", "echo $WORD in $(pwd); echo no >&2; exit 3"]
    process = hosts.on(
        0, words, env={"WORD": "yes", "PATH": "/bin"}, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.communicate(timeout=10) == (f"yes in {tmp_path}\n".encode(), b"no\n")
    assert process.returncode == 3
    with reports(AssertionError, "h0", 3, "no"):
        hosts.run(0, ["sh", "-c", "echo no >&2; exit 3"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_the_command_itself(make_hosts, number):
    hosts = make_hosts(1)
    program = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL); print('ready', flush=True); time.sleep(60)"
    )
    process = server(hosts, 0, program)
    (inside,) = hosts.processes(0)
    process.send_signal(number)
    try:
        assert process.wait(10) == -number
        assert gone([inside.pid])
    finally:
        end(process)


def test_agent_runs_commands_as_ssh_does(make_hosts):
    hosts = make_hosts(2)
    words = [hosts.agent, "-x", "-o", "BatchMode=yes", "h1", "read x;", "echo $x on $(hostname)$WORD;", "exit 5"]
    environment = dict(os.environ, WORD="not inherited")
    process = hosts.on(0, words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.communicate(b"heard\n", timeout=20)[0] == b"heard on h1\n"
    assert process.returncode == 5


def test_agent_of_a_host_that_is_unknown_or_off(make_hosts):
    hosts = make_hosts(3)
    hosts.off(2)
    for name in ("h2", "h7"):
        process = hosts.on(0, [hosts.agent, name, "true"], stderr=subprocess.PIPE)
        assert b"No route to host" in process.communicate(timeout=20)[1] and process.returncode == 255


# -- cables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1])
def test_a_cut_is_a_cut_until_it_is_mended(make_hosts, cut):
    hosts = make_hosts(3)
    echo = server(hosts, 0, ECHO)
    program = (
        "import socket, sys\n"
        "connection = socket.create_connection(('h0', 7000), 5)\n"
        "for line in sys.stdin:\n"
        "    connection.settimeout(float(line))\n"
        "    connection.sendall(b'x')\n"
        "    try: print(connection.recv(1), flush=True)\n"
        "    except socket.timeout: print('nothing', flush=True)\n"
    )
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    client = hosts.on(1, [sys.executable, "-S", "-u", "-c", program], **streams)

    def ask(seconds):
        client.stdin.write(b"%f\n" % seconds)
        client.stdin.flush()
        return client.stdout.readline()

    try:
        assert ask(10) == b"b'x'\n"
        hosts.cut(cut)
        assert ask(0.5) == b"nothing\n"  # no error, because the connection exists on both sides
        assert "state UP" in hosts.run(cut, ["ip", "link", "show", "eth0"])  # nothing informs the host
        hosts.mend(cut)
        assert ask(30) == b"b'x'\n"  # TCP resends what was lost
    finally:
        client.stdin.close()
        end(client)
        end(echo)


def test_a_cut_leaves_the_others_connected(make_hosts):
    hosts = make_hosts(3)
    hosts.cut(2)
    echo = server(hosts, 0, ECHO)
    assert python(hosts, 1, ASK, "h0") == "hello"
    end(echo)


def seconds_for(hosts, nbytes):
    """Return the seconds that a transfer of bytes from host 0 to host 1 takes."""
    sink = server(hosts, 1, SINK)
    python(hosts, 0, SOURCE, "h1", nbytes)
    received, seconds = said(sink).split()
    assert int(received) == nbytes
    return float(seconds)


def test_rates_limit(make_hosts):
    """Transfers take at least the time that the rate implies, also on a busy machine."""
    hosts = make_hosts(2, rate="20mbit")
    assert seconds_for(hosts, 2_000_000) > 0.8 * 0.75  # the bucket lets the first 96 KiB pass immediately
    hosts.rate("100mbit")
    assert 0.8 * 0.15 < seconds_for(hosts, 2_000_000)
    hosts.rate("20mbit")
    hosts.rate("unlimited")
    assert min(seconds_for(hosts, 2_000_000) for _ in range(5)) < 0.8 * 0.75  # no limit remains


# -- endings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [0, 1])
def test_off_kills_all_and_says_nothing(make_hosts, host):
    hosts = make_hosts(2)
    echo = server(hosts, host, ECHO)
    program = (
        "import socket, sys\n"
        f"connection = socket.create_connection(('h{host}', 7000), 5)\n"
        "print('ready', flush=True)\n"
        "connection.settimeout(1)\n"
        "try: print('heard', connection.recv(1))\n"
        "except socket.timeout: print('heard nothing')\n"
    )
    client = server(hosts, 1 - host, program)
    background = hosts.on(host, ["sh", "-c", "setsid sleep 1000 & setsid sleep 1000 & wait"])
    until = time.monotonic() + 10
    while len(hosts.processes(host)) < 4:
        assert time.monotonic() < until
        time.sleep(0.02)
    pids = [process.pid for process in hosts.processes(host)]
    hosts.off(host)
    assert not hosts.is_on(host) and hosts.is_on(1 - host)
    assert gone(pids) and hosts.processes(host) == []
    assert said(client) == "heard nothing\n"  # a killed process would have closed its connection
    assert background.wait(10) == -signal.SIGKILL
    with reports(RuntimeError, f"h{host}"):
        hosts.on(host, ["true"])
    end(echo)


def test_agent_of_a_host_that_loses_its_power_waits(make_hosts):
    hosts = make_hosts(2)
    agent = hosts.on(0, [hosts.agent, "h1", "echo ready; sleep 1000"], stdout=subprocess.PIPE)
    assert agent.stdout.readline() == b"ready\n"
    hosts.off(1)
    with pytest.raises(subprocess.TimeoutExpired):
        agent.communicate(timeout=1)  # the agent neither ends nor closes its streams
    end(agent)


def children():
    """Return the ids of all descendants of this process."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def folders():
    """Return the existing folders of this process's pretend hosts; other tests run beside it."""
    return set(Path("/tmp").glob(f"pretend-hosts-{os.getpid()}-*"))


def test_nothing_stays(make_hosts):
    """Closing the hosts also ends a process in a session of its own that ignores signals."""
    before, folders_before = children(), folders()
    hosts = make_hosts(2)
    stubborn = (
        "import signal, os\nos.setsid()\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\nsignal.pause()"
    )
    process = server(hosts, 1, "import os\nif os.fork(): os._exit(0)\n" + stubborn)
    (inside,) = hosts.processes(1)
    hosts.close()
    assert gone([inside.pid], 0) and children() - before <= {process.pid} and folders() == folders_before
    end(process)
    assert children() == before


def test_nothing_stays_after_an_exception():
    if pretend.lacking():
        pytest.skip(pretend.lacking())
    before = children()
    with pytest.raises(ZeroDivisionError):
        with pretend.Cluster(2) as hosts:
            hosts.on(1, ["sleep", "1000"])
            1 / 0  # noqa: B018
    assert children() == before and not Path(hosts.agent).parent.exists()


@pytest.mark.parametrize("with_fork", [False, True], ids=["alone", "with a fork that holds the pipe"])
def test_nothing_stays_after_a_kill_of_the_test_process(tmp_path, with_fork):
    if pretend.lacking():
        pytest.skip(pretend.lacking())
    program = f"""
import os, sys, time
sys.path.insert(0, {str(HERE)!r})
import psutil
from pretend import Cluster
hosts = Cluster(2)
process = hosts.on(1, ["sh", "-c", "setsid sleep 1000 & sleep 1000"])
while len(hosts.processes(1)) < 3:
    time.sleep(0.02)
pids = [child.pid for child in psutil.Process().children(recursive=True)]
if {with_fork} and os.fork() == 0:
    time.sleep(30)
    os._exit(0)
print(os.path.dirname(hosts.agent), *pids, flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    where, *numbers = process.stdout.readline().decode().split()
    folder, pids = Path(where), list(map(int, numbers))
    assert folder.exists()
    own = [child.pid for child in psutil.Process(process.pid).children() if child.pid not in pids]
    assert len(pids) >= 7 and len(own) == with_fork  # supervisor, switch, two hosts, nsenter, three of the command
    process.kill()
    process.wait(10)
    try:
        assert gone(pids)
        until = time.monotonic() + 10
        while folder.exists() and time.monotonic() < until:
            time.sleep(0.02)
        assert not folder.exists()
    finally:
        for pid in own:
            os.kill(pid, signal.SIGKILL)
        process.stdout.close()


def test_hosts_that_do_not_come_up_say_why(monkeypatch):
    if pretend.lacking():
        pytest.skip(pretend.lacking())
    before, folders_before = children(), folders()
    monkeypatch.setenv("PATH", "/no-such-folder")
    with reports(RuntimeError, "'ip'"):
        pretend.Cluster(1)
    assert children() == before and folders() == folders_before


# -- missing requirements ----------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch):
    """Clear the cache of `lacking` before and after a test."""
    pretend.lacking.cache_clear()
    yield monkeypatch
    pretend.lacking.cache_clear()


def test_what_is_lacking_is_one_sentence(fresh, tmp_path):
    with fresh.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        assert pretend.lacking() == "pretend hosts need Linux, and this is darwin"
    pretend.lacking.cache_clear()
    with fresh.context() as patch:
        patch.setattr(os, "geteuid", lambda: 1000)
        assert pretend.lacking() == "pretend hosts need root, who alone may make network namespaces"
    pretend.lacking.cache_clear()
    with fresh.context() as patch:
        patch.setattr(os, "geteuid", lambda: 0)
        patch.setattr(pretend.shutil, "which", lambda name: None if name in ("tc", "nsenter") else name)
        assert pretend.lacking() == "pretend hosts need the commands tc, nsenter: apt-get install iproute2 util-linux"
    pretend.lacking.cache_clear()
    with fresh.context() as patch:
        patch.setattr(os, "geteuid", lambda: 0)
        patch.setattr(pretend.shutil, "which", lambda name: name)
        patch.setenv("PATH", str(tmp_path))
        (tmp_path / "unshare").write_text("#!/bin/sh\necho unshare failed:\necho Operation not permitted >&2\nexit 1\n")
        (tmp_path / "unshare").chmod(0o755)
        assert pretend.lacking().endswith("refuses: unshare failed: Operation not permitted")
