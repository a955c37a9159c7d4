"""Data on pretend hosts over each MPI, compared with NumPy; and bad input that only MPI or the network reveals."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.thorough

PROGRAM = """
import sys
import numpy as np
import synkhronos as synk
from synkhronos.testing import numpy_engine as engine

times, constant = int(sys.argv[1]), sys.argv[2] == "constant"
rows = np.random.RandomState(0).randint(0, 100, (20_000, 50)).astype("float64")  # 8 MB
synk.fork(2)
x = engine.variable("x", "float64", 2)
f = synk.function([x], (engine.sum(x, axis=0), "sum"))
data = synk.data(rows, constant=constant)
random = np.random.RandomState(1)
for _ in range(times):
    for batch in (None, slice(10, 15_000, 3), random.randint(0, 20_000, 1000)):
        np.testing.assert_array_equal(f(data, batch=batch), rows[slice(None) if batch is None else batch].sum(axis=0))
synk.close()
print("right")
"""
NBYTES = 8_000_000

FORK = "import synkhronos as synk\nsynk.fork(1)\nprint('has begun')\n"
#: Reports an exception slowly, as on a busy machine.
SLOW_REPORT = """
import sys, time, traceback
def report(*error):
    for line in "".join(traceback.format_exception(*error)).splitlines():
        print(line, file=sys.stderr, flush=True)
        time.sleep(0.1)
sys.excepthook = report
"""
TAKE_PORTS = """
import socket, time
taken = [socket.create_server(("0.0.0.0", port)) for port in (50000, 50001)]
print("taken", flush=True)
time.sleep(1000)
"""
NO_CABLE = "ip link add eth9 type veth peer name end9 && ip addr add 10.78.0.1/24 dev eth9 && ip link set eth9 up"


@pytest.mark.parametrize("way", ["constant", "written"])
def test_what_travels_of_data(mpi, make_hosts, variables, tmp_path, way):
    (tmp_path / "program.py").write_text(PROGRAM)
    hosts = make_hosts(2, shared=[tmp_path, mpi.prefix])
    sent = []
    for times in (1, 4):
        before = hosts.bytes(0).sent
        program = ["-m", "synkhronos", tmp_path / "program.py", times, way]
        status, printed = mpi.run(program, hosts=hosts, variables=variables)
        assert status == 0 and "right" in printed.splitlines(), printed
        sent.append(hosts.bytes(0).sent - before)
    once, more = sent[0], sent[1] - sent[0]
    assert once > NBYTES if way == "constant" else once > NBYTES / 2
    # (The amount of headers and of resent packets varies between runs.)
    assert more < NBYTES / 8 if way == "constant" else more > 3 * NBYTES / 2


def test_several_processes_on_a_host(mpi, variables, tmp_path):
    (tmp_path / "program.py").write_text(SLOW_REPORT + FORK)
    variables["SYNK_HOSTS_ON_ONE_MACHINE"] = "0"
    status, printed = mpi.run(["-m", "synkhronos", tmp_path / "program.py"], n=2, variables=variables)
    option = {"openmpi": "--map-by ppr:1:node", "mpich": "-ppn 1"}[mpi.kind]
    assert status != 0 and "has begun" not in printed, printed
    reason = f"one, which forks the ranks there: start one process per host with {option}"
    assert printed.count(reason) == 2, printed  # both processes report it before mpirun ends them
    assert "more than once" not in printed, printed  # MPI is initialized only once


def refused(mpi, hosts, tmp_path, variables):
    """Return what a program prints that cannot begin; it ends on all hosts."""
    (tmp_path / "program.py").write_text(FORK)
    status, printed = mpi.run(["-m", "synkhronos", tmp_path / "program.py"], hosts=hosts, variables=variables)
    assert status != 0 and "has begun" not in printed, printed
    return printed


def test_ports_that_are_taken(mpi, make_hosts, variables, tmp_path):
    hosts = make_hosts(2, shared=[tmp_path, mpi.prefix])
    other = hosts.on(0, [sys.executable, "-c", TAKE_PORTS], stdout=subprocess.PIPE)
    assert other.stdout.readline() == b"taken\n"
    printed = refused(mpi, hosts, tmp_path, {**variables, "SYNK_HOSTS_PORTS": "50000-50001"})
    assert "host h0: this host cannot listen" in printed and "ports from 50000 to 50001 are in use" in printed, printed
    other.kill()
    other.communicate()
    assert hosts.left(0) == hosts.left(1) == []


@pytest.mark.parametrize("host", [0, 1])
def test_an_interface_that_a_host_has_not(mpi, make_hosts, variables, tmp_path, host):
    """MPI may end the processes because it cannot connect them, but the reason is printed before."""
    hosts = make_hosts(2, shared=[tmp_path, mpi.prefix])
    hosts.run(1 - host, ["sh", "-c", NO_CABLE])
    printed = refused(mpi, hosts, tmp_path, {**variables, "SYNK_HOSTS_INTERFACE": "eth9"})
    assert f"synkhronos: host h{host}: SYNK_HOSTS_INTERFACE" in printed and "'eth9'" in printed, printed
    assert hosts.left(0) == hosts.left(1) == []


def test_other_versions(mpi, make_hosts, variables, tmp_path):
    hosts = make_hosts(2, shared=[tmp_path, mpi.prefix])
    folder = "/tmp/other"  # of h1 alone
    hosts.run(1, ["mkdir", "-p", f"{folder}/cloudpickle-0.1.dist-info"])
    metadata = "Name: cloudpickle\nVersion: 0.1\n"
    hosts.run(1, ["sh", "-c", f"printf '{metadata}' > {folder}/cloudpickle-0.1.dist-info/METADATA"])
    variables["PYTHONPATH"] = os.pathsep.join([folder, variables["PYTHONPATH"]])
    printed = refused(mpi, hosts, tmp_path, variables)
    assert "the hosts are incompatible: cloudpickle is " in printed and "but 0.1 on h1" in printed, printed
    assert hosts.left(0) == hosts.left(1) == []
