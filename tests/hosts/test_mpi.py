"""Both MPIs start one process on each pretend host, and two on one machine."""

import os
import subprocess
import sys
import time

import mpi as mpi_module
import pytest

pytestmark = pytest.mark.thorough

PROGRAM = """
import os, socket, sys
from mpi4py import MPI
import numpy as np

comm = MPI.COMM_WORLD
total = np.empty(3)
comm.Allreduce(np.arange(3.0) * 10 ** comm.rank, total)
version = MPI.Get_library_version().split("\\n")[0]
there = comm.Split_type(MPI.COMM_TYPE_SHARED).size
facts = comm.gather((comm.rank, socket.gethostname(), os.environ.get("WORD"), there, total.tolist()))
if comm.rank == 0:
    print(version)
    print(facts)
"""
NAMES = {"openmpi": "Open MPI", "mpich": "MPICH"}


@pytest.fixture
def program(tmp_path):
    """A program that prints what its MPI reports."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize("n", [2, 3])
def test_one_process_on_each_pretend_host(mpi, make_hosts, tmp_path, program, n):
    hosts = make_hosts(n, shared=[tmp_path, mpi.prefix])
    before = [hosts.bytes(i) for i in range(n)]
    status, printed = mpi.run([program], hosts=hosts, variables={"WORD": "said"})
    assert status == 0, printed
    version, facts = printed.splitlines()[-2:]
    assert version.startswith(NAMES[mpi.kind])
    total = [sum(10.0**rank for rank in range(n)) * i for i in range(3)]
    assert eval(facts) == [(rank, f"h{rank}", "said", 1, total) for rank in range(n)]
    assert all(hosts.bytes(i).sent > before[i].sent for i in range(n))
    assert all(hosts.left(i) == [] for i in range(n))


def test_some_of_the_pretend_hosts(mpi, make_hosts, tmp_path, program):
    hosts = make_hosts(3, shared=[tmp_path, mpi.prefix])
    status, printed = mpi.run([program], hosts=hosts, names=["h2", "h0"])
    assert status == 0, printed
    assert [fact[1] for fact in eval(printed.splitlines()[-1])] == ["h2", "h0"]


def test_two_processes_on_one_machine(mpi, program):
    status, printed = mpi.run([program], n=2, variables={"WORD": "said"})
    assert status == 0, printed
    assert [fact[:4] for fact in eval(printed.splitlines()[-1])] == [
        (rank, os.uname().nodename, "said", 2) for rank in range(2)
    ]


FAILS = """
import sys
from mpi4py import MPI
sys.stdout.write("rank %d\\n" % MPI.COMM_WORLD.rank)
sys.exit(3)
"""
WAITS = """
import sys, time
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
time.sleep(60)
"""


def test_exit_status(mpi, program):
    program.write_text(FAILS)
    status, printed = mpi.run([program], n=2)
    assert status != 0 and "rank 0" in printed


def test_kill(mpi, program):
    program.write_text(WAITS)
    process = mpi.start([program], n=2, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"ready\n"
    finally:
        process.kill()
        process.communicate(timeout=30)  # ends when no process has the pipe open
        time.sleep(1.1)
        mpi_module.remove_what_stays()


@pytest.fixture
def forgotten(monkeypatch):
    """Clear the cache of `mpi.find` before and after a test, and unset its variables."""
    mpi_module.find.cache_clear()
    for name in mpi_module.VARIABLES.values():
        monkeypatch.delenv(name, raising=False)
    yield monkeypatch
    mpi_module.find.cache_clear()


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_named_pythons_are_found(forgotten, tmp_path, kind):
    forgotten.setenv("PATH", "/bin")
    for has_mpi4py in (False, True):
        python = tmp_path / str(has_mpi4py) / "python"
        python.parent.mkdir()
        for path, status in ((python, not has_mpi4py), (python.parent / mpi_module.LAUNCHERS[kind], 0)):
            path.write_text(f"#!/bin/sh\nexit {status:d}\n")
            path.chmod(0o755)
        forgotten.setenv(mpi_module.VARIABLES[kind], str(python))
        mpi_module.find.cache_clear()
        found = mpi_module.find(kind)
        if has_mpi4py:
            assert found == (kind, str(python), str(python.parent / mpi_module.LAUNCHERS[kind]))
            assert mpi_module.lacking(kind) == ""
        else:
            assert found is None and mpi_module.VARIABLES[kind] in mpi_module.lacking(kind)


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_an_environment_beside_this_one_is_found(forgotten, tmp_path, kind):
    forgotten.setenv("PATH", "/bin")
    forgotten.setattr(sys, "prefix", str(tmp_path / ".venv"))
    folder = tmp_path / f".venv-{kind}" / "bin"
    folder.mkdir(parents=True)
    for name in ("python", mpi_module.LAUNCHERS[kind]):
        (folder / name).write_text("#!/bin/sh\nexit 0\n")
        (folder / name).chmod(0o755)
    assert mpi_module.find(kind) == (kind, str(folder / "python"), str(folder / mpi_module.LAUNCHERS[kind]))


@pytest.mark.parametrize("kind", ["openmpi", "mpich"])
def test_without_mpi_a_sentence_says_what_is_lacking(forgotten, tmp_path, kind):
    forgotten.setenv("PATH", "/no-such-folder")
    forgotten.setattr(sys, "executable", str(tmp_path / "python"))
    forgotten.setattr(sys, "prefix", str(tmp_path))
    assert mpi_module.find(kind) is None
    assert "make install-hosts" in mpi_module.lacking(kind) and "\n" not in mpi_module.lacking(kind)
    forgotten.setenv(mpi_module.VARIABLES[kind], str(tmp_path / "no-such-python"))
    mpi_module.find.cache_clear()
    assert mpi_module.find(kind) is None
