"""The environment that launchers really pass to their processes."""

import socket

import pytest

from synkhronos.host.interfaces import Interface

pytestmark = pytest.mark.thorough

PROGRAM = """
import os, subprocess, sys
from synkhronos.cluster import environment
from synkhronos.host.interfaces import interfaces

place = environment.place(os.environ)
import_mpi = "from mpi4py import MPI; print(MPI.Is_initialized())"
of_rank = subprocess.run([sys.executable, "-c", import_mpi], env=environment.for_ranks(os.environ),
                         stdout=subprocess.PIPE, timeout=30).stdout.decode().strip()
os.environ.update(environment.settings(os.environ, interfaces()), MPI4PY_RC_INITIALIZE="true")
from mpi4py import MPI
comm = MPI.COMM_WORLD
facts = comm.gather((tuple(place), comm.rank, comm.size, of_rank, [tuple(i) for i in interfaces()],
                     environment.refusal(place, os.environ, "here")[:11]))
if comm.rank == 0:
    print(facts)
"""


@pytest.fixture
def program(tmp_path):
    """A program that prints what `environment` reads from its environment, and what MPI reports."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


STARTED_BY = {"openmpi": "Open MPI", "mpich": "PMI"}


def test_on_hosts(mpi, make_hosts, program, tmp_path, variables):
    hosts = make_hosts(3, shared=[tmp_path, mpi.prefix])
    status, printed = mpi.run([program], hosts=hosts, variables={**variables, "SYNK_HOSTS_INTERFACE": "10.77.0.0/16"})
    assert status == 0, printed
    for process, (place, rank, size, of_rank, interfaces, refusal) in enumerate(eval(printed.splitlines()[-1])):
        assert place == (process, 3, 1, STARTED_BY[mpi.kind]) and (rank, size) == (process, 3)
        assert of_rank == "False" and refusal == ""
        interfaces = [each for each in interfaces if ":" not in each[1]]  # (hosts may also have IPv6)
        assert interfaces == [Interface("lo", "127.0.0.1/8"), Interface("eth0", hosts.address(process) + "/24")]


@pytest.mark.parametrize("allowed", ["0", "1"])
def test_on_one_machine(mpi, program, variables, allowed):
    status, printed = mpi.run([program], n=2, variables={**variables, "SYNK_HOSTS_ON_ONE_MACHINE": allowed})
    assert status == 0, printed
    for process, (place, rank, size, of_rank, _, refusal) in enumerate(eval(printed.splitlines()[-1])):
        assert place == (process, 2, 2, STARTED_BY[mpi.kind]) and (rank, size) == (process, 2)
        assert of_rank == "False" and refusal == ("" if allowed == "1" else "2 processes"), socket.gethostname()
