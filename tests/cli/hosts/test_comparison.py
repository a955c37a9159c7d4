"""Findings about hosts that are not compatible, from facts that are made up.

Modules: `facts`, `links`, `report`.
"""

import os
import sys
from pathlib import Path

import pytest
from distributions import put_numpy_of_theano

from synkhronos.cli import doctor
from synkhronos.cli.hosts import comparison, facts, links, report
from synkhronos.cli.hosts.facts import CompileFolder, MachineFacts
from synkhronos.cli.hosts.links import HostLink
from synkhronos.cluster.environment import ProcessPlace
from synkhronos.host.interfaces import Interface

pytestmark = pytest.mark.slow

OK, WARN, MISSING = doctor.OK, doctor.WARN, doctor.MISSING
GB = 1 << 30
VERSIONS = {"numpy": "1.23.5", "cloudpickle": "3.1.2", "theano": "1.0.5", "mpi4py": "4.1.2"}


def eth0(process):
    return Interface("eth0", f"10.1.0.{process + 1}/16")


def host(process, **changes):
    """Return the facts of one of several compatible hosts, with changes."""
    these = {
        "process": process,
        "started_by": "Open MPI",
        "local_size": 1,
        "one_machine": False,
        "host": f"node{process}",
        "python": "3.11.7",
        "machine": "x86_64, little-endian",
        "processor": "Some CPU @ 2.50GHz",
        "versions": VERSIONS,
        "library": "0123456789ab",
        "kernels": True,
        "memfd": True,
        "mpi": "Open MPI v5.0.11",
        "cores": 16,
        "all_cores": 16,
        "chosen": (eth0(process),),
        "folders": (CompileFolder("theano", "/home/me/.theano"),),
        "clock": 0.001 * process,
        "memory": 60 * GB,
        "shm": 32 * GB,
        "n_gpus": 0,
    }
    return MachineFacts(**{**these, **changes})


def hosts(*changes):
    """Return the facts of as many hosts as there are changes."""
    return [host(process, **each) for process, each in enumerate(changes)]


def one_kind(**changes):
    """Return the facts of three hosts, all with these changes."""
    return hosts(changes, changes, changes)


def docker(process, address="172.17.0.1/16"):
    """Return the interfaces of a host that has an interface of Docker, too."""
    return (eth0(process), Interface("docker0", address))


TROUBLES = [
    # (check, hosts, status, words of the text, words of the remedy)
    (
        "processes",
        one_kind(local_size=3, host="node0"),
        MISSING,
        ["3 processes per host on node0"],
        ["--map-by ppr:1:node"],
    ),
    ("processes", one_kind(local_size=2, started_by="PMI"), MISSING, ["2 processes"], ["-ppn 1"]),
    ("processes", one_kind(local_size=2, started_by="Slurm"), MISSING, ["2 processes"], ["--ntasks-per-node=1"]),
    ("names", hosts({"host": "box"}, {}, {"host": "box"}), WARN, ["several hosts are called box"], ["hostnamectl"]),
    (
        "python",
        hosts({}, {}, {"python": "3.10.4"}),
        MISSING,
        ["3.11.7 on node0 and node1, 3.10.4 on node2"],
        ["install one version"],
    ),
    ("python", hosts({}, {"python": "3.11.9"}), WARN, ["3.11.7 on node0, 3.11.9 on node1"], ["install one version"]),
    (
        "packages",
        hosts({}, {"versions": {**VERSIONS, "numpy": "1.22.4"}}),
        MISSING,
        ["numpy 1.23.5 on node0, 1.22.4 on node1"],
        ["pip install numpy==1.23.5, on all hosts"],
    ),
    (
        "packages",
        hosts({}, {"versions": {name: VERSIONS[name] for name in ("numpy", "cloudpickle", "mpi4py")}}),
        MISSING,
        ["theano 1.0.5 on node0, none on node1"],
        ["theano==1.0.5"],
    ),
    (
        "packages",
        hosts({}, {"versions": {**VERSIONS, "pytensor": "3.3.7", "mpi4py": "4.0.0"}}),
        MISSING,
        ["pytensor none on node0, 3.3.7 on node1", "mpi4py 4.1.2 on node0, 4.0.0 on node1"],
        ["pip install pytensor mpi4py==4.1.2"],
    ),
    ("library", hosts({}, {"library": "ba9876543210"}), MISSING, ["ba9876543210 on node1"], ["the same release"]),
    (
        "machines",
        hosts({}, {"machine": "s390x, big-endian", "processor": "IBM"}),
        MISSING,
        ["x86_64, little-endian on node0, s390x, big-endian on node1"],
        ["one kind"],
    ),
    ("machines", hosts({}, {"processor": "Other CPU"}), WARN, ["Other CPU on node1", "last bits"], ["equal speed"]),
    ("kernels", hosts({}, {"kernels": False}), WARN, ["not built on node1"], ["g++"]),
    (
        "mpi",
        hosts({}, {"mpi": "MPICH 5.0.2"}),
        MISSING,
        ["Open MPI v5.0.11 on node0, MPICH 5.0.2 on node1"],
        ["one MPI library, in one version"],
    ),
    ("mpi", hosts({}, {"mpi": "Open MPI v4.1.4"}), MISSING, ["Open MPI v4.1.4 on node1"], ["in one version"]),
    ("cores", one_kind(cores=1), WARN, ["1 of 16 cores on node0, node1 and node2", "all ranks"], ["--bind-to none"]),
    ("cores", hosts({}, {"cores": 8}), WARN, ["8 of 16 cores on node1"], ["--bind-to none"]),  # bound to a NUMA node
    ("cores", one_kind(cores=1, started_by="PMI"), WARN, ["1 of 16 cores"], ["-bind-to none"]),
    ("cores", one_kind(cores=1, started_by="Slurm"), WARN, ["1 of 16 cores"], ["--cpus-per-task=C"]),
    (
        "gpus",
        hosts({"n_gpus": 2}, {}, {"n_gpus": 1}),
        WARN,
        ["2 on node0, none on node1, 1 on node2", "CPU processes"],
        ["CUDA_VISIBLE_DEVICES", "--gpus-per-node=N"],
    ),
    (
        "interfaces",
        hosts({"chosen": docker(0)}, {"chosen": docker(1)}),
        MISSING,
        ["docker0 has the same address 172.17.0.1 on node0 and node1"],
        ["-x SYNK_HOSTS_INTERFACE=10.1.0.0/16", "--mca btl_tcp_if_include 10.1.0.0/16"],
    ),
    (
        "interfaces",
        hosts(*({"chosen": docker(i), "mpi": "MPICH 5.0.2", "started_by": "PMI"} for i in range(2))),
        WARN,
        ["172.17.0.1 on node0 and node1"],
        ["mpirun -genv SYNK_HOSTS_INTERFACE 10.1.0.0/16"],
    ),
    (
        "interfaces",
        hosts({"chosen": docker(0)}, {}, {"chosen": docker(2)}),
        MISSING,
        ["172.17.0.1 on node0 and node2"],
        ["10.1.0.0/16"],
    ),
    (
        "interfaces",
        hosts({}, {"chosen": (Interface("eth0", "10.2.0.1/16"),)}),
        WARN,
        ["no network is common", "node0: eth0 (10.1.0.1/16); node1: eth0 (10.2.0.1/16)"],
        ["routes"],
    ),
    ("interfaces", hosts({}, {"chosen": ()}), WARN, ["no network is common", "node1: none"], ["routes"]),
    (
        "folders",
        hosts({}, {"folders": (CompileFolder("theano", "", "PermissionError: /nfs"),)}),
        WARN,
        ["theano on node1: PermissionError: /nfs"],
        ["THEANO_FLAGS=base_compiledir=FOLDER"],
    ),
    (
        "folders",
        hosts({}, {"folders": (CompileFolder("theano", "", "no"), CompileFolder("pytensor", "", "no"))}),
        WARN,
        ["theano on node1: no; pytensor on node1: no"],
        ["PYTENSOR_FLAGS=base_compiledir=FOLDER and THEANO_FLAGS="],
    ),
    (
        "clocks",
        hosts({}, {"clock": -3.25}, {"clock": 86400.0}),
        WARN,
        ["node1 is 3.2 s behind host 0, node2 is 86400.0 s ahead of host 0"],
        ["chrony"],
    ),
    ("memory", hosts({}, {"memory": 12 * GB}), WARN, ["12.0 GiB available on node1", "60.0 GiB"], ["fewer ranks"]),
    (
        "shared_memory",
        hosts({}, {"memfd": False, "shm": 64 << 20}),
        WARN,
        ["no memfd on node1"],
        ["--shm-size=4g"],
    ),
]


@pytest.mark.parametrize("check, of, status, words, remedies", TROUBLES)
def test_trouble(check, of, status, words, remedies):
    finding = getattr(comparison, "check_" + check)(of)
    assert finding.status == status
    assert [word for word in words if word not in finding.text] == []
    assert [word for word in remedies if word not in finding.remedy] == []
    assert "\n" not in finding.text + finding.remedy


@pytest.mark.parametrize("check, of, status, words, remedies", TROUBLES)
def test_no_other_check_finds_a_trouble(check, of, status, words, remedies):
    """Each trouble is reported by one check only. (Hosts with several processes also share a name.)"""
    found = {each.__name__ for each in comparison.CHECKS if each(of).status != OK}
    assert found == {"check_" + check}


FINE = [
    one_kind(),
    hosts({}),
    hosts(*[{}] * 64),
    one_kind(all_cores=1, cores=1),  # the host has no other core
    one_kind(cores=8, started_by="Slurm"),  # as requested
    hosts({"cores": 4, "all_cores": 4}, {}),  # unequal hosts
    hosts({"n_gpus": 2}, {"n_gpus": 1}),
    # Addresses that differ, or exist on every host.
    hosts({"chosen": docker(0)}, {"chosen": docker(1, "172.18.0.1/16")}),
    hosts(*({"chosen": (Interface("lo", "127.0.0.1/8"), eth0(i))} for i in range(2))),
    one_kind(local_size=3, one_machine=True, host="node0", chosen=(eth0(0),)),
    hosts({"clock": 0.9}, {"clock": -0.9}),
    hosts({"memory": 31 * GB}, {}),
    one_kind(memfd=False),
    hosts({"folders": ()}, {"folders": ()}),
    hosts({"folders": (CompileFolder("theano", "/scratch/0"),)}, {"folders": (CompileFolder("theano", "/scratch/1"),)}),
]


@pytest.mark.parametrize("of", FINE, ids=range(len(FINE)))
def test_hosts_that_go_together(of):
    findings = [check(of) for check in comparison.CHECKS]
    assert [finding for finding in findings if finding.status != OK or finding.remedy] == []
    assert not [finding for finding in findings if "\n" in finding.text or not finding.text]


def test_every_check_is_in_the_list_and_has_a_trouble():
    checks = [value for name, value in vars(comparison).items() if name.startswith("check_")]
    assert list(comparison.CHECKS) == checks
    assert {"check_" + row[0] for row in TROUBLES} == {check.__name__ for check in checks}


def test_many_hosts_are_not_all_named():
    of = hosts(*[{}] * 60, *[{"python": "3.10.4"}] * 4)
    assert (
        comparison.check_python(of).text
        == "3.11.7 on node0, node1, node2 and 57 more, 3.10.4 on node60, node61, node62 and node63"
    )


def test_hosts_of_one_name_are_told_apart():
    assert facts.labels(hosts({"host": "a"}, {"host": "b"}, {"host": "a"})) == ["a#0", "b", "a#2"]


# -- links -------------------------------------------------------------------------------------------------------------

NAMES = ["a", "b", "c"]
GOOD = [HostLink(0, 1, 20e-6, 117e6), HostLink(0, 2, 25e-6, 115e6), HostLink(1, 2, 22e-6, 116e6)]


@pytest.mark.parametrize(
    "of, status, words, remedy",
    [
        (GOOD, OK, ["20 to 25 us", "115 MB/s (0.92 Gbit/s) or more"], ""),
        (GOOD[:1], OK, ["117 MB/s"], ""),
        ([], OK, ["single host"], ""),
        ([*GOOD[:2], HostLink(1, 2, 20e-6, 50e6)], WARN, ["b - c: less than half", "50 MB/s"], "cables"),
        ([HostLink(0, 1, 20e-6, 11.7e6)], WARN, ["a - b: 11.7 MB/s", "100 MB of gradients take 9 s"], "faster network"),
        ([*GOOD[:2], HostLink(1, 2, 4e-3, 116e6)], WARN, ["b - c: a message takes 4.0 ms"], "steps"),
    ],
)
def test_links(of, status, words, remedy):
    finding = links.check_links(of, NAMES)
    assert finding.status == status and [word for word in words if word not in finding.text] == []
    assert remedy in finding.remedy and bool(remedy) == bool(finding.remedy)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 64])
def test_pairs(n):
    pairs = links.pairs(n)
    assert len(set(pairs)) == len(pairs) and all(0 <= a < b < n for a, b in pairs)
    assert {host for pair in pairs for host in pair} == (set(range(n)) if n > 1 else set())
    assert len(pairs) == (n * (n - 1) // 2 if n <= 8 else 2 * n - 3)


# -- facts of this machine ---------------------------------------------------------------------------------------------


def test_facts_of_this_machine():
    environ = {"SYNK_HOSTS_ON_ONE_MACHINE": "1", "SYNK_HOSTS_INTERFACE": "lo"}
    mine = facts.gather(ProcessPlace(1, 2, 1, "PMI"), environ, "MPICH Version: 5.0.2\n", 2, 0.5)
    numpy = sys.modules["numpy"].__version__
    assert (mine.process, mine.started_by, mine.local_size, mine.one_machine) == (1, "PMI", 2, True)
    assert (
        mine.host == os.uname().nodename and mine.python == sys.version.split()[0] and mine.versions["numpy"] == numpy
    )
    assert mine.machine.endswith(sys.byteorder + "-endian") and mine.mpi == "MPICH 5.0.2" and mine.clock == 0.5
    assert mine.cores == len(os.sched_getaffinity(0)) and mine.all_cores == os.cpu_count()
    assert mine.chosen[0] == Interface("lo", "127.0.0.1/8") and {each.name for each in mine.chosen} == {"lo"}
    assert mine.memory > 0 and mine.shm > 0
    assert [folder.engine for folder in mine.folders] == [name for name in doctor.ENGINES if doctor.installed(name)]
    assert all(os.access(folder.path, os.W_OK) and not folder.trouble for folder in mine.folders)


def test_fingerprint_changes_with_any_module(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.py").write_text("1")
    first = facts.fingerprint(tmp_path)
    assert first == facts.fingerprint(tmp_path)
    (tmp_path / "cache").write_text("no module")
    assert facts.fingerprint(tmp_path) == first
    (tmp_path / "a" / "b.py").write_text("2")
    second = facts.fingerprint(tmp_path)
    (tmp_path / "a" / "b.py").rename(tmp_path / "a" / "c.py")
    assert len({first, second, facts.fingerprint(tmp_path)}) == 3


def test_processor(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Some CPU @ 2.50GHz\n\nmodel name\t: other\n")
    assert facts.processor(str(tmp_path / "cpuinfo")) == "Some CPU @ 2.50GHz"
    assert facts.processor(str(tmp_path / "none")) != ""


def test_a_folder_that_cannot_be_written_to(monkeypatch, tmp_path):
    (tmp_path / "theano.py").write_text("class config:\n    base_compiledir = '/proc/no-such-folder'")
    put_numpy_of_theano(tmp_path)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
    monkeypatch.setenv("PYTHONPATH", path)
    found = facts.compile_folder("theano")
    assert found.path == "" and "No such file or directory: '/proc/no-such-folder'" in found.trouble


def test_shared_memory_that_is_not_there(tmp_path):
    assert facts.size_of_shm(str(tmp_path / "none")) == 0 and facts.size_of_shm(str(tmp_path)) > 0


# -- the report --------------------------------------------------------------------------------------------------------


def test_table_of_hosts():
    lines = report.table_of_hosts(hosts({}, {"host": "a-long-name", "cores": 8, "chosen": docker(1)}))
    assert lines[0].split() == ["host", "Python", "cores", "memory", "/dev/shm", "clock", "interfaces"]
    assert lines[1].split() == "node0 3.11.7 16 of 16 60.0 GiB 32.0 GiB - eth0 (10.1.0.1/16)".split()
    assert lines[2].split()[:5] == "a-long-name 3.11.7 8 of 16".split() and "docker0 (172.17.0.1/16)" in lines[2]
    assert len({line.index(word) for line, word in zip(lines, ("Python", "3.11.7", "3.11.7"))}) == 1


@pytest.mark.parametrize(
    "started_by, chosen, one_machine, remedy",
    [
        ("Open MPI", docker(0), False, "mpirun -x SYNK_HOSTS_INTERFACE=10.1.0.0/16 ..."),
        ("PMI", docker(0), False, "mpirun -genv SYNK_HOSTS_INTERFACE 10.1.0.0/16 ..."),
        ("Slurm", docker(0), False, "SYNK_HOSTS_INTERFACE=10.1.0.0/16 srun ..."),
        ("Open MPI", docker(0)[:1], False, "firewalls"),
        ("Open MPI", (), False, "firewalls"),
        ("Open MPI", docker(0)[:1], True, "mpirun -x SYNK_HOSTS_INTERFACE=lo ..."),
    ],
)
def test_what_a_host_says_that_hears_nothing(started_by, chosen, one_machine, remedy):
    finding = report.silence(ProcessPlace(0, 2, 1, started_by), "node0", chosen, 30.0, one_machine)
    assert finding.status == MISSING and remedy in finding.remedy and "node0 was not connected" in finding.text
    assert [interface for interface in chosen if str(interface) not in finding.text] == []


@pytest.fixture
def environ(monkeypatch):
    """Return a copy that replaces the environment during a test."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    return os.environ


def test_interface_that_is_not_there(environ, capsys):
    environ["SYNK_HOSTS_INTERFACE"] = "eth77"
    assert report.main(ProcessPlace(0, 2, 1, "PMI")) == 1
    said = capsys.readouterr().out
    assert said.startswith("missing  Interfaces") and "SYNK_HOSTS_INTERFACE: expected" in said and "eth77" in said


def test_host_without_mpi4py(environ, monkeypatch, capsys):
    monkeypatch.setattr(report, "installed", lambda package: package != "mpi4py")
    assert report.main(ProcessPlace(0, 2, 1, "PMI")) == 1
    said = capsys.readouterr().out
    assert f"no mpi4py on {os.uname().nodename}" in said and 'pip install "mpi4py>=4.1"' in said
