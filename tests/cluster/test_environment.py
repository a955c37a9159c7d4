"""A process's interpretation of its environment, for environments that launchers were observed to set.

Modules: `synkhronos.host.interfaces`.
"""

import contextlib
import itertools
import socket

import pytest
from refusals import refuses, reports

from synkhronos.cluster import environment
from synkhronos.cluster.environment import ProcessPlace
from synkhronos.cluster.wire import listener_of
from synkhronos.errors import SynkhronosError
from synkhronos.host.interfaces import Interface, interfaces


def open_mpi(process=1, n=3, local=1):
    """Return the environment that Open MPI 5 sets for a process, shortened."""
    return {
        "OMPI_COMM_WORLD_RANK": str(process),
        "OMPI_COMM_WORLD_SIZE": str(n),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local),
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_MCA_num_procs": str(n),
        "PMIX_RANK": str(process),
        "PMIX_NAMESPACE": "prterun-vm-14078@1",
        "PMIX_SERVER_URI41": "prterun-vm-14078@0.0;tcp4://127.0.0.1:58435",
        "PRTE_LAUNCHED": "1",
    }


def prterun(process=1):
    """Return the environment that prterun sets if it does not run as Open MPI's mpirun."""
    return {"PMIX_RANK": str(process), "PMIX_NAMESPACE": "prterun-vm-14078@1", "PRTE_LAUNCHED": "1"}


def mpich(process=1, n=3, local=1):
    """Return the environment that MPICH's hydra sets for a process."""
    return {
        "PMI_RANK": str(process),
        "PMI_SIZE": str(n),
        "PMI_FD": "9",
        "PMI_HOSTNAME": "vm",
        "MPI_LOCALNRANKS": str(local),
        "MPI_LOCALRANKID": "0",
        "HYDI_CONTROL_FD": "7",
        "GFORTRAN_UNBUFFERED_PRECONNECTED": "y",
    }


def slurm(process=1, n=3, per_node="1(x3)", node=1):
    """Return the environment that srun sets for a process, according to Slurm's documentation."""
    return {
        "SLURM_JOB_ID": "77",
        "SLURM_PROCID": str(process),
        "SLURM_NTASKS": "8",
        "SLURM_STEP_NUM_TASKS": str(n),
        "SLURM_STEP_TASKS_PER_NODE": per_node,
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": "0",
    }


def slurm_pmix(**options):
    """Return the environment of a process under ``srun --mpi=pmix``."""
    of_slurm = slurm(**options)
    more = {
        "PMIX_RANK": of_slurm["SLURM_PROCID"],
        "PMIX_NAMESPACE": "slurm.pmix.77.0",
        "SLURM_PMIX_MAPPING_SERV": "(vector,(0,3,1))",
        "SLURM_PMIXP_ABORT_AGENT_PORT": "34567",
    }
    return {**of_slurm, **more}


def slurm_pmi2(**options):
    """Return the environment of a process under ``srun --mpi=pmi2``."""
    of_slurm = slurm(**options)
    more = {"PMI_RANK": of_slurm["SLURM_PROCID"], "PMI_SIZE": of_slurm["SLURM_STEP_NUM_TASKS"], "PMI_FD": "9"}
    return {**of_slurm, **more}


#: Environment of a batch script and of a shell inside it: one process, although the job has several.
BATCH = {"SLURM_JOB_ID": "77", "SLURM_PROCID": "0", "SLURM_NTASKS": "3", "SLURM_NODEID": "0", "SLURM_NNODES": "3"}
SALLOC = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "3", "SLURM_NNODES": "3", "SLURM_TASKS_PER_NODE": "1(x3)"}
USER = {"HOME": "/home/me", "PATH": "/bin", "OMP_NUM_THREADS": "2", "MPICH_ASYNC_PROGRESS": "0"}

PLACES = [
    (open_mpi(), ProcessPlace(1, 3, 1, "Open MPI")),
    (open_mpi(0, 2, 2), ProcessPlace(0, 2, 2, "Open MPI")),
    (prterun(), ProcessPlace(1, None, None, "PMIx")),
    (prterun(0), ProcessPlace(0, None, None, "PMIx")),
    (mpich(), ProcessPlace(1, 3, 1, "PMI")),
    (mpich(2, 3, 3), ProcessPlace(2, 3, 3, "PMI")),
    ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ProcessPlace(1, 2, None, "PMI")),
    (slurm(), ProcessPlace(1, 3, 1, "Slurm")),
    (slurm(4, 5, "2(x2),1", 2), ProcessPlace(4, 5, 1, "Slurm")),
    (slurm(1, 5, "2(x2),1", 0), ProcessPlace(1, 5, 2, "Slurm")),
    (slurm_pmix(), ProcessPlace(1, 3, 1, "Slurm")),
    (slurm_pmix(process=3, n=4, per_node="2(x2)"), ProcessPlace(3, 4, 2, "Slurm")),
    (slurm_pmi2(), ProcessPlace(1, 3, 1, "Slurm")),
    ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS_PER_NODE": "2"}, ProcessPlace(1, 4, 2, "Slurm")),
    ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, ProcessPlace(1, 4, None, "Slurm")),
]
ALONE = [
    {},
    BATCH,
    SALLOC,
    {**BATCH, "SLURM_STEP_NUM_TASKS": "1"},
    open_mpi(0, 1),
    mpich(0, 1),
    slurm(0, 1, "1"),
    slurm_pmix(process=0, n=1, per_node="1"),
    {"OMPI_MCA_btl": "tcp,self"},
    {"PMI_RANK": "0"},
    {"PMIX_RANK": "0"},
    {"PMI_RANK": "none", "PMI_SIZE": "many"},
    {"OMPI_COMM_WORLD_RANK": "", "OMPI_COMM_WORLD_SIZE": ""},
]


@pytest.mark.parametrize("environ, expected", PLACES)
@pytest.mark.parametrize("inside", [{}, BATCH, SALLOC], ids=["", "batch", "salloc"])
def test_place(environ, expected, inside):
    """A process's place is found in its environment; in a Slurm job, mpirun's variables take precedence."""
    assert environment.place({**USER, **inside, **environ}) == expected


@pytest.mark.parametrize("environ", ALONE)
def test_a_process_alone_has_no_place(environ):
    assert environment.place({**USER, **environ}) is None


@pytest.mark.parametrize(
    "make", [open_mpi, mpich, lambda process: slurm(process), lambda process: slurm_pmix(process=process), prterun]
)
def test_all_processes_decide_alike(make):
    places = [environment.place(make(process)) for process in range(3)]
    assert [place.process for place in places] == [0, 1, 2]
    assert len({place._replace(process=0) for place in places}) == 1


@pytest.mark.parametrize(
    "text, expected",
    [
        ("", []),
        ("1", [1]),
        ("2(x3)", [2, 2, 2]),
        ("2(x3),1", [2, 2, 2, 1]),
        ("4,2(x1)", [4, 2]),
        ("x", []),
        ("2(x)", []),
    ],
)
def test_tasks_per_node(text, expected):
    assert environment.tasks_per_node(text) == expected


# -- unusable environments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environ, option",
    [
        (open_mpi(1, 4, 2), "--map-by ppr:1:node"),
        (mpich(1, 4, 2), "-ppn 1"),
        (slurm(1, 4, "2(x2)"), "--ntasks-per-node=1"),
        (slurm_pmix(process=1, n=4, per_node="2(x2)"), "--ntasks-per-node=1"),
    ],
)
def test_several_processes_on_a_host_are_refused(environ, option):
    mine = environment.place(environ)
    said = environment.refusal(mine, environ, "node7")
    assert said.startswith("2 processes were started on host node7") and option in said and "\n" not in said
    assert environment.refusal(mine._replace(local_size=1), environ, "node7") == ""
    assert environment.refusal(mine._replace(local_size=None), environ, "node7") == ""
    on_one = {**environ, "SYNK_HOSTS_ON_ONE_MACHINE": "1"}
    assert environment.on_one_machine(on_one) and environment.refusal(mine, on_one, "node7") == ""
    for other in ("0", "", "yes"):
        assert environment.refusal(mine, {**environ, "SYNK_HOSTS_ON_ONE_MACHINE": other}, "node7") == said


def test_what_only_mpi_knows_is_refused_too():
    mine = environment.place(prterun())
    assert "ppr:1:node" in environment.refusal(mine._replace(local_size=2), {}, "node7")


@pytest.mark.parametrize(
    "environ, words",
    [
        (open_mpi(), ["launcher of Open MPI started 3 processes", "MPI_COMM_WORLD has 1", "same folder as Python"]),
        (mpich(), ["launcher of MPICH", "started 3 processes", "MPI_COMM_WORLD has 1", "same folder as Python"]),
        (slurm(), ["launcher of Slurm", "MPI_COMM_WORLD has 1", "--mpi=pmix", "--mpi=pmi2"]),
    ],
)
def test_a_world_of_another_mpi(environ, words):
    mine = environment.place(environ)
    said = environment.wrong_world(mine, 1)
    assert [word for word in words if word not in said] == [] and "\n" not in said
    assert environment.wrong_world(mine, 3) == ""


def test_a_world_of_unknown_size_is_that_of_mpi():
    assert environment.wrong_world(environment.place(prterun()), 5) == ""


# -- environments of ranks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("environ, inside", list(itertools.product([e for e, _ in PLACES], [{}, BATCH])))
def test_ranks_are_no_processes_of_the_launcher(environ, inside):
    whole = {**USER, **inside, **environ}
    of_ranks = environment.for_ranks(whole)
    assert environment.place(of_ranks) is None
    assert not [name for name in of_ranks if name.startswith(("OMPI_", "PMIX_", "PRTE_", "PMI_", "HYD", "MPI_LOCAL"))]
    assert {name: of_ranks[name] for name in USER} == USER
    assert of_ranks["MPI4PY_RC_INITIALIZE"] == "false"
    removed = set(whole) - set(of_ranks)
    assert removed == set(environment.names_of_launcher(whole)) and "SLURM_JOB_ID" not in removed


def test_an_environment_without_a_launcher_stays():
    assert environment.names_of_launcher({**USER, **SALLOC}) == []
    assert environment.for_ranks(USER) == {**USER, "MPI4PY_RC_INITIALIZE": "false"}


# -- settings ----------------------------------------------------------------------------------------------------------

LO, ETH0, ETH1 = Interface("lo", "127.0.0.1/8"), Interface("eth0", "10.1.2.3/16"), Interface("eth1", "10.2.0.9/24")
DOCKER = Interface("docker0", "172.17.0.1/16")
ALL = [LO, ETH0, ETH1, DOCKER]
EAGER = {
    "OMPI_MCA_btl_tcp_eager_limit": "1048576",
    "OMPI_MCA_btl_tcp_rndv_eager_limit": "1048576",
    "OMPI_MCA_btl_tcp_max_send_size": "1048576",
}


def test_settings_without_a_word_of_the_user():
    assert environment.settings(USER, ALL) == EAGER


@pytest.mark.parametrize("name", sorted(EAGER))
def test_what_the_user_has_set_stays(name):
    assert environment.settings({name: "4096"}, ALL) == {other: EAGER[other] for other in EAGER if other != name}


@pytest.mark.parametrize(
    "words, names",
    [
        ("eth1", "eth1"),
        ("10.1.0.0/16", "eth0"),
        ("10.1.0.7/16", "eth0"),
        ("10.0.0.0/8", "eth0,eth1"),
        ("eth1, 10.1.0.0/16", "eth1,eth0"),
        ("10.1.2.3", "eth0"),
    ],
)
def test_interfaces_that_are_named(words, names):
    found = environment.settings({"SYNK_HOSTS_INTERFACE": words}, ALL)
    first = names.split(",")[0]
    expected = {"OMPI_MCA_btl_tcp_if_include": names, "UCX_NET_DEVICES": names, "FI_TCP_IFACE": first}
    assert found == {**EAGER, **expected}
    assert ",".join(i.name for i in environment.chosen_interfaces({"SYNK_HOSTS_INTERFACE": words}, ALL)) == names


@pytest.mark.parametrize("given", ["OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude", "UCX_NET_DEVICES"])
def test_interfaces_that_the_user_has_told_mpi_stay(given):
    found = environment.settings({"SYNK_HOSTS_INTERFACE": "eth1", given: "eth0"}, ALL)
    assert given not in found
    assert ("OMPI_MCA_btl_tcp_if_include" in found) == (given == "UCX_NET_DEVICES")


def test_what_nccl_is_told():
    assert environment.settings_of_nccl({}, ALL) == {}
    words = {"SYNK_HOSTS_INTERFACE": "eth1, 10.1.0.0/16"}
    assert environment.settings_of_nccl(words, ALL) == {"NCCL_SOCKET_IFNAME": "=eth1,eth0"}
    assert environment.settings_of_nccl({**words, "NCCL_SOCKET_IFNAME": "ib"}, ALL) == {}
    with refuses(ValueError, "SYNK_HOSTS_INTERFACE", got="'eth7'"):
        environment.settings_of_nccl({"SYNK_HOSTS_INTERFACE": "eth7"}, ALL)


@pytest.mark.parametrize("words", ["eth7", "192.168.0.0/16", ","])
def test_interfaces_that_are_not_there(words):
    with refuses(ValueError, "SYNK_HOSTS_INTERFACE", "lo (127.0.0.1/8), eth0 (10.1.2.3/16)", repr(words)):
        environment.settings({"SYNK_HOSTS_INTERFACE": words}, ALL)
    with refuses(ValueError, "SYNK_HOSTS_INTERFACE", "no interface", repr(words)):
        environment.settings({"SYNK_HOSTS_INTERFACE": words}, [])


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({}, [ETH0, ETH1, DOCKER]),
        ({"OMPI_MCA_btl_tcp_if_include": "10.2.0.0/16"}, [ETH1]),
        ({"SYNK_HOSTS_INTERFACE": "eth0", "OMPI_MCA_btl_tcp_if_include": "eth1"}, [ETH0]),
        ({"UCX_NET_DEVICES": "eth1"}, [ETH1]),
        ({"UCX_NET_DEVICES": "mlx5_0:1,eth1"}, [ETH1]),
        ({"UCX_NET_DEVICES": "mlx5_0:1"}, [ETH0, ETH1, DOCKER]),
        ({"UCX_NET_DEVICES": "all"}, [ETH0, ETH1, DOCKER]),
        ({"FI_TCP_IFACE": "eth1"}, [ETH1]),
    ],
)
def test_chosen_interfaces(environ, expected):
    assert environment.chosen_interfaces(environ, ALL) == expected


def test_ipv6_networks_can_be_chosen():
    of_ipv6 = Interface("eth1", "fd00:1::2/64")
    for words in ("fd00:1::/64", "fd00:1::2", "fd00:2::/64,fd00:1::/64"):
        assert environment.chosen_interfaces({"SYNK_HOSTS_INTERFACE": words}, [*ALL, of_ipv6]) == [of_ipv6]


def test_a_machine_without_a_network_has_itself():
    assert environment.chosen_interfaces({}, [LO]) == [LO] and environment.chosen_interfaces({}, []) == []


def test_interfaces_of_this_machine():
    found = interfaces()
    assert len(set(found)) == len(found) and Interface("lo", "127.0.0.1/8") in found
    of_ipv4 = [each.name for each in found if each.ip.version == 4]
    assert len(set(of_ipv4)) == len(of_ipv4)


def test_ipv6_addresses_that_other_hosts_can_use(tmp_path, monkeypatch):
    rows = [
        ("fd000000000000000000000000000002", "40", "00", "82", "lo"),
        ("fe80000000000000000000000000fc01", "40", "20", "80", "lo"),  # of one link
        ("fd000000000000000000000000000003", "40", "00", "40", "lo"),  # not yet known to be unique
        ("00000000000000000000000000000001", "80", "10", "80", "lo"),
        ("fd000000000000000000000000000004", "40", "00", "80", "eth77"),  # of an interface that is gone
        ("fd000000000000000000000000000006", "40", "00", "01", "lo"),  # temporary
    ]
    (tmp_path / "if_inet6").write_text(
        "".join(f"{a} 01 {prefix} {scope} {flags} {on}\n" for a, prefix, scope, flags, on in rows)
    )
    monkeypatch.setattr("synkhronos.host.interfaces.IF_INET6", str(tmp_path / "if_inet6"))
    of_lo = [each for each in interfaces() if each.name == "lo" or each.ip.version == 6]
    assert of_lo == [LO, Interface("lo", "fd00::2/64")]
    assert [each.is_loopback for each in of_lo] == [True, False]
    monkeypatch.setattr("synkhronos.host.interfaces.IF_INET6", str(tmp_path / "none"))
    assert [each for each in interfaces() if each.name == "lo"] == [LO]


@pytest.mark.parametrize("words, ports", [("", [0]), (" ", [0]), (" 50000-50003 ", range(50000, 50004))])
def test_ports(words, ports):
    assert list(environment.chosen_ports({"SYNK_HOSTS_PORTS": words})) == list(ports)
    assert list(environment.chosen_ports({})) == [0]


@pytest.mark.parametrize(
    "words", ["0", "50000", "50000-50000", "http", "50010-50000", "0-9", "1-70000", "-5", "5-", "1,2"]
)
def test_ports_that_are_none(words):
    with refuses(ValueError, "SYNK_HOSTS_PORTS", "50000-50100", repr(words)):
        environment.chosen_ports({"SYNK_HOSTS_PORTS": words})


def test_mpi_uses_the_same_ports_unless_it_has_its_own():
    found = environment.settings({"SYNK_HOSTS_PORTS": "50000-50099", "FI_TCP_PORT_LOW_RANGE": "7"}, ALL)
    of_open_mpi = {
        f"OMPI_MCA_btl_tcp_port_{name}_{version}": value
        for name, value in (("min", "50000"), ("range", "100"))
        for version in ("v4", "v6")
    }
    assert found == {**EAGER, **of_open_mpi, "FI_TCP_PORT_HIGH_RANGE": "50099"}


def test_the_listener_is_at_the_chosen_interfaces_and_ports():
    with listener_of({"SYNK_HOSTS_INTERFACE": "lo"}, [*ALL, Interface("lo", "127.0.0.2/8")]) as found:
        assert [address for address, _ in found.meeting.endpoints] == ["127.0.0.1", "127.0.0.2"]
    with socket.create_server(("127.0.0.1", 0)) as taken, contextlib.ExitStack() as others:
        port = taken.getsockname()[1]
        with contextlib.suppress(OSError):
            others.enter_context(socket.create_server(("127.0.0.1", port - 1)))
        with reports(SynkhronosError, f"{port - 1} to {port}"):
            listener_of({"SYNK_HOSTS_INTERFACE": "127.0.0.1/32", "SYNK_HOSTS_PORTS": f"{port - 1}-{port}"}, ALL)


# -- advice ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "environ, words",
    [
        ({}, []),
        ({"SLURM_JOB_NUM_NODES": "1"}, []),
        ({"SLURM_JOB_NUM_NODES": "4", "SLURM_PROCID": "0"}, ["4 nodes", "srun -N 4 --ntasks-per-node=1"]),
        ({"SLURM_JOB_NUM_NODES": "4", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, []),  # srun -n 1, as intended
        ({**open_mpi(), "SLURM_JOB_NUM_NODES": "4"}, ["1 of 16 cores", "--bind-to none"]),  # mpirun in salloc
        ({**open_mpi(), "SYNK_HOSTS_ON_ONE_MACHINE": "1"}, []),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}, ["1 of 16 cores", "--cpus-per-task=C"]),
    ],
)
def test_advice(environ, words):
    found = environment.advice(environ, 1, 16)
    assert bool(found) == bool(words) and all(word in found for word in words), found
    assert environment.advice(environment.for_ranks(environ), 1, 16) == ""  # a program that a rank starts
    if "cores" in found:
        assert environment.advice(environ, 2, 16) == environment.advice(environ, 1, 1) == ""
