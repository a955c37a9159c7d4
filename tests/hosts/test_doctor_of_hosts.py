"""``python -m synkhronos doctor``, started by mpirun on pretend hosts with and without faults."""

import os
import subprocess

import pytest
from mpi import find, lacking

pytestmark = pytest.mark.thorough

DOCTOR = ["-m", "synkhronos", "doctor"]
#: A bridge that is up and has the same address on every host, as created by docker.
DOCKER = (
    "ip link add docker0 type bridge && ip addr add 172.17.0.1/16 dev docker0 && "
    "ip link add veth0 type veth peer name veth1 && ip link set veth0 master docker0 && "
    "ip link set veth0 up && ip link set veth1 up && ip link set docker0 up"
)


def subjects(printed):
    """Return the printed status of every subject."""
    lines = [line.split(None, 2) for line in printed.splitlines()]
    return {words[1]: words[0] for words in lines if words and words[0] in ("ok", "warn", "missing")}


def links(printed, names):
    """Return the rates between pairs of hosts, in MB/s."""
    lines = [line.split() for line in printed.splitlines()]
    return {(w[0], w[2]): float(w[5]) for w in lines if len(w) > 5 and w[1] == "-" and w[0] in names and w[2] in names}


@pytest.mark.long("mpich-2|openmpi-3")
@pytest.mark.parametrize("n", [2, 3])
def test_hosts_without_a_trouble(mpi, make_hosts, variables, n):
    hosts = make_hosts(n, rate="400mbit", shared=[mpi.prefix])
    status, printed = mpi.run(DOCTOR, hosts=hosts, variables=variables, timeout=110)
    assert status == 0 and "All required components are present." in printed, printed
    found = subjects(printed)
    assert {found[name] for name in ("Processes", "Names", "Python", "Packages", "Synkhronos", "MPI")} == {"ok"}, (
        printed
    )
    assert {found[name] for name in ("Cores", "Interfaces", "Compiled", "Clocks")} == {"ok"}, printed
    rates = links(printed, hosts.names)
    assert set(rates) == {(f"h{a}", f"h{b}") for b in range(n) for a in range(b)}
    assert 0 < max(rates.values()) < 55  # 400 Mbit/s, and a little for the first burst
    for i in range(n):
        assert f"eth0 ({hosts.address(i)}/24)" in printed and hosts.left(i) == []


@pytest.mark.long
def test_the_address_of_docker(mpi, make_hosts, variables):
    """MPICH chooses the right interface by itself. Open MPI does not connect, which the doctor reports."""
    hosts = make_hosts(2, shared=[mpi.prefix])
    for i in range(2):
        hosts.run(i, ["sh", "-c", DOCKER])
    status, printed = mpi.run(DOCTOR, hosts=hosts, variables=variables, timeout=110)
    assert "docker0" in printed and "SYNK_HOSTS_INTERFACE" in printed, printed
    if mpi.kind == "openmpi":
        assert status != 0 and "was not connected to all other hosts within 30 s" in printed, printed
    else:
        assert status == 0 and subjects(printed)["Interfaces"] == "warn", printed
    status, printed = mpi.run(
        DOCTOR, hosts=hosts, variables={**variables, "SYNK_HOSTS_INTERFACE": "10.77.0.0/16"}, timeout=110
    )
    assert status == 0 and subjects(printed)["Interfaces"] == "ok", printed


def test_bound_to_one_core(mpi, make_hosts, variables):
    """The doctor warns if the launcher binds processes to one core, which all ranks would inherit."""
    hosts = make_hosts(2, shared=[mpi.prefix])
    options = ["--bind-to", "core"] if mpi.kind == "openmpi" else ["-bind-to", "core"]
    command = mpi.command(DOCTOR, hosts=hosts, variables=variables)
    if mpi.kind == "openmpi":
        at = command.index("--bind-to")
        command[at : at + 2] = options
    else:
        command[1:1] = options
    printed = hosts.run(0, command, timeout=110)
    assert subjects(printed)["Cores"] == "warn", printed
    assert "the process may use 1 of" in printed and "bind-to none" in printed, printed


def test_versions_that_differ(mpi, make_hosts, variables, tmp_path):
    """The doctor reports that one of the hosts has another version of NumPy."""
    hosts = make_hosts(2, shared=[mpi.prefix])
    fake = "/tmp/other/numpy-1.0.0.dist-info"
    hosts.run(
        1,
        [
            "sh",
            "-c",
            f"mkdir -p {fake} && printf 'Metadata-Version: 2.1\\nName: numpy\\nVersion: 1.0.0\\n' > {fake}/METADATA",
        ],
    )
    path = f"/tmp/other:{variables['PYTHONPATH']}"
    status, printed = mpi.run(DOCTOR, hosts=hosts, variables={**variables, "PYTHONPATH": path}, timeout=110)
    assert status != 0 and subjects(printed)["Packages"] == "missing", printed
    assert "1.0.0 on h1" in printed and "Missing: Packages" in printed, printed


def test_several_processes_on_one_machine(mpi, variables):
    status, printed = mpi.run(DOCTOR, n=2, variables={**variables, "SYNK_HOSTS_ON_ONE_MACHINE": "0"}, timeout=110)
    assert status != 0 and "2 processes per host on" in printed and "start one per host with" in printed, printed
    status, printed = mpi.run(DOCTOR, n=2, variables={**variables, "SYNK_HOSTS_ON_ONE_MACHINE": "1"}, timeout=110)
    assert status == 0 and subjects(printed)["Processes"] == "ok", printed


def test_mpirun_of_another_mpi(variables):
    """The doctor reports once that each process is alone in its MPI world."""
    why_not = lacking("openmpi") or lacking("mpich")
    if why_not:
        pytest.skip(why_not)
    openmpi, mpich = find("openmpi"), find("mpich")
    command = [mpich.launcher, "-n", "2", openmpi.python, *DOCTOR]
    own = openmpi.environment(variables)
    done = subprocess.run(
        command, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=110
    )
    printed = done.stdout.decode()
    assert done.returncode != 0 and printed.count("MPI_COMM_WORLD has 1") == 1, printed
