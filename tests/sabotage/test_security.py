"""Security: no network, no named sockets, memory for the owner alone, and no files written into the package."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import synkhronos
from synkhronos.memory.memfd import nameless_file
from synkhronos.processes import fd_passing as descriptors

pytestmark = pytest.mark.slow

PROGRAM = """
    import stat
    f = build()
    synk.fork(3)
    works()
    f(np.arange(12.0))
    named = synk.data(np.arange(4.0), share_as="/of-a-test-%d" % os.getpid())
    big = synk.data(np.zeros(1 << 20))
    synk.all_gather(w)
    say("open", PROGRAM.keeper_pid, *[PROGRAM.session.launcher.pid(rank) for rank in (1, 2)])
    sys.stdin.readline()"""


def open_files(pid):
    """Return the open files of a process, by the paths of their descriptors."""
    folder = f"/proc/{pid}/fd"
    found = {}
    for name in os.listdir(folder):
        try:
            found[folder + "/" + name] = os.readlink(folder + "/" + name)
        except FileNotFoundError:
            pass
    return found


def network_inodes():
    """Return the inodes of all sockets with a network address, each with its table."""
    found = {}
    for table in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6", "packet", "netlink"):
        path = Path("/proc/net", table)
        if path.exists():
            for line in path.read_text().splitlines()[1:]:
                words = line.split()
                found[words[9] if table not in ("packet", "netlink") else words[-1]] = table
    return found


@pytest.fixture
def program(script):
    started = script(PROGRAM)
    words = started.read().split()
    assert words[0] == "open"
    yield [started.pid, *map(int, words[1:])], started
    started.process.stdin.write("end\n")
    started.process.stdin.flush()
    assert started.finish()[0] == 0


def test_no_network_and_no_named_socket(program):
    pids, _ = program
    network = network_inodes()
    named = {
        line.split()[6]: line.split()[7]
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]
        if len(line.split()) > 7
    }
    seen = 0
    for pid in pids:
        for what in open_files(pid).values():
            if what.startswith("socket:["):
                seen += 1
                inode = what[len("socket:[") : -1]
                assert inode not in network, network[inode]
                assert inode not in named, named[inode]
    assert seen >= 2  # the two sockets between master and keeper


def test_a_socket_of_the_network_would_be_found(program):
    """A network socket is detected."""
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1)
        assert open_files(os.getpid())[f"/proc/{os.getpid()}/fd/{listening.fileno()}"][8:-1] in network_inodes()


def test_memory_is_the_owners_alone(program):
    pids, _ = program
    seen = set()
    for pid in pids:
        for path, what in open_files(pid).items():
            if "synkhronos" in what:
                try:
                    mode = os.stat(path).st_mode
                except FileNotFoundError:
                    continue
                assert stat.S_IMODE(mode) == 0o600, (what, oct(mode))
                seen.add(what.split("synkhronos-")[1].split(" ")[0])
    assert {"pool", "control", "stacks", "stdout", "stderr"} <= seen
    name = f"/dev/shm/of-a-test-{pids[0]}"
    assert stat.S_IMODE(os.stat(name).st_mode) == 0o600


def test_messages_are_the_owners_alone(monkeypatch):
    """Pickles are in nameless files that only the owner may read."""
    modes = []
    monkeypatch.setattr(descriptors, "nameless_file", lambda *args: modes.append(nameless_file(*args)) or modes[-1])
    ours, theirs = descriptors.socket_pair()
    with ours, theirs:
        close, os_close = [], os.close
        monkeypatch.setattr(os, "close", lambda fd: (close.append(os.fstat(fd).st_mode), os_close(fd)))
        descriptors.send(ours, ("message",))
        monkeypatch.undo()
        assert descriptors.receive(theirs)[0] == ("message",)
    assert modes and [stat.S_IMODE(mode) for mode in close] == [0o600]


def test_nothing_is_written_into_the_package(tmp_path):
    """Only __pycache__ may change."""
    package = Path(synkhronos.__file__).parent

    def files():
        return {
            str(path): path.stat().st_mtime_ns
            for path in package.rglob("*")
            if "__pycache__" not in path.parts and path.is_file()
        }

    before = files()
    code = """
import numpy as np, synkhronos as synk
from synkhronos.testing import numpy_engine as engine
w = engine.shared(np.zeros(3), "w")
f = synk.function([], engine.sum(w), updates=[(w, w + 1)])
synk.fork(2, profile_workers=True)
f(); synk.all_reduce(w); synk.data(np.zeros(5)); synk.close()
"""
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=str(tmp_path),
        check=True,
        env=dict(os.environ, PYTHONPATH=str(package.parent)),
    )
    assert files() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["synkhronos_rank_0.prof", "synkhronos_rank_1.prof"]
