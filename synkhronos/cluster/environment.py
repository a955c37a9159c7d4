"""This process's place among an MPI launcher's processes, read from the environment without importing MPI.

No function changes the environment: `settings`, `settings_of_nccl` and `for_ranks` return new dicts.
"""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..errors import ArgumentValueError
from ..host.interfaces import Interface

ON_ONE_MACHINE = "SYNK_HOSTS_ON_ONE_MACHINE"  # if "1", each of several processes on one machine counts as a host
INTERFACE = "SYNK_HOSTS_INTERFACE"  # comma-separated interfaces or networks (10.0.0.0/16) for traffic between hosts
SLURM_NODES = "SLURM_JOB_NUM_NODES"  # Slurm's number of nodes of a job
PORTS = "SYNK_HOSTS_PORTS"  # range of ports (50000-50100) of the first host's listener and of MPI

#: Prefixes of launchers' variables; a child process that inherits these variables could hang in MPI_Init.
OF_LAUNCHERS = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPI_LOCAL", "HYD", "PALS_", "SLURM_PMI")

#: Size limit of messages that Open MPI sends over TCP without a handshake (its default: 64 KiB). A handshake would
#: delay the next message, so two hosts would not send to each other at the same time.
OPEN_MPI_EAGER_BYTES = 1 << 20
OPEN_MPI_EAGER = ("btl_tcp_eager_limit", "btl_tcp_rndv_eager_limit", "btl_tcp_max_send_size")


class LauncherOptions(NamedTuple):
    """The name of a launcher's MPI, and options of its command line; the last sets a variable for all processes."""

    mpi: str
    one_per_host: str  # starts one process on each host
    unbound: str  # advice: how a process may use all cores of its host
    variable: str


OPTIONS = {
    "Open MPI": LauncherOptions("Open MPI", "--map-by ppr:1:node", "start with --bind-to none", "mpirun -x {}={} ..."),
    "PMIx": LauncherOptions("Open MPI", "--map-by ppr:1:node", "start with --bind-to none", "mpirun -x {}={} ..."),
    "PMI": LauncherOptions("MPICH (or a derivative)", "-ppn 1", "start with -bind-to none", "mpirun -genv {} {} ..."),
    "Slurm": LauncherOptions(
        "Slurm", "--ntasks-per-node=1", "start with --cpus-per-task=C, for C cores per host", "{}={} srun ..."
    ),
}


class ProcessPlace(NamedTuple):
    """Place of a process in an MPI job: its number, from 0, and the numbers of processes in the job and on its host."""

    process: int
    n_processes: Optional[int]  # number of the job's processes; None if the environment lacks the number
    local_size: Optional[int]  # number of processes on this host; None if the environment lacks the number
    started_by: str  # "Open MPI", "PMIx", "PMI" (MPICH and derivatives) or "Slurm"


def place(environ: Mapping[str, str]) -> Optional[ProcessPlace]:
    """Return this process's `ProcessPlace`; None if no MPI launcher has started it together with other processes."""
    found = _place(environ)
    return None if found is None or (found.n_processes is not None and found.n_processes < 2) else found


def _place(environ: Mapping[str, str]) -> Optional[ProcessPlace]:
    process, n = _number(environ, "OMPI_COMM_WORLD_RANK"), _number(environ, "OMPI_COMM_WORLD_SIZE")
    if process is not None and n is not None:
        return ProcessPlace(process, n, _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE"), "Open MPI")
    n_tasks = _number(environ, "SLURM_STEP_NUM_TASKS")  # of a job step; a job script has only the job's variables
    process, namespace = _number(environ, "PMIX_RANK"), environ.get("PMIX_NAMESPACE")
    if process is not None and namespace:  # the number of processes is available only if Slurm is the PMIx server
        if namespace.startswith("slurm."):
            return ProcessPlace(process, n_tasks, _tasks_on_this_node(environ), "Slurm")
        return ProcessPlace(process, None, None, "PMIx")
    process, n, local = (_number(environ, name) for name in ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"))
    if process is not None and n is not None and (local is not None or n_tasks is None):
        return ProcessPlace(process, n, local, "PMI")
    if process is None or n is None:  # otherwise srun --mpi=pmi2 has started this process
        process, n = _number(environ, "SLURM_PROCID"), n_tasks
    if process is not None and n is not None:
        return ProcessPlace(process, n, _tasks_on_this_node(environ), "Slurm")
    return None


def _number(environ: Mapping[str, str], name: str) -> Optional[int]:
    text = environ.get(name, "").strip()
    return int(text) if re.fullmatch(r"\d+", text) else None


def _tasks_on_this_node(environ: Mapping[str, str]) -> Optional[int]:
    """Return the number of the job step's processes on this node; None if it is unknown."""
    node = _number(environ, "SLURM_NODEID")
    counts = tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if node is not None and node < len(counts):
        return counts[node]
    return _number(environ, "SLURM_NTASKS_PER_NODE")


def tasks_per_node(text: str) -> List[int]:
    """Expand Slurm's compressed list ("2(x3),1" means [2, 2, 2, 1]); return [] if the text is malformed."""
    counts: List[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if not found:
            return []
        counts += [int(found.group(1))] * int(found.group(2) or 1)
    return counts


def refusal(mine: ProcessPlace, environ: Mapping[str, str], host: str) -> str:
    """Return an error message if ``host`` has several processes that do not each count as a host; otherwise, ""."""
    if mine.local_size is None or mine.local_size < 2 or on_one_machine(environ):
        return ""
    option = OPTIONS[mine.started_by].one_per_host
    return (
        f"{mine.local_size} processes were started on host {host}, but each host needs exactly one, which forks the "
        f"ranks there: start one process per host with {option}, and set the number of ranks with fork(n) "
        f"({ON_ONE_MACHINE}=1 makes each process count as a host, for experiments)"
    )


def on_one_machine(environ: Mapping[str, str]) -> bool:
    """Return whether each process counts as a host even if several are on one machine."""
    return environ.get(ON_ONE_MACHINE, "") == "1"


def with_variable(started_by: str, name: str, value: str) -> str:
    """Return a launcher's command line that sets a variable for all processes."""
    return OPTIONS[started_by].variable.format(name, value)


def wrong_world(mine: ProcessPlace, world_size: int) -> str:
    """Return an error message if ``MPI.COMM_WORLD`` and the launcher's job differ in size; otherwise, ""."""
    if mine.n_processes is None or mine.n_processes == world_size:
        return ""
    return (
        f"the launcher of {OPTIONS[mine.started_by].mpi} started {mine.n_processes} processes, but MPI_COMM_WORLD has "
        f"{world_size}: mpi4py uses a different MPI library; {remedy(mine)}"
    )


def remedy(mine: ProcessPlace) -> str:
    """Return how to use a launcher that fits mpi4py's MPI library."""
    if mine.started_by == "Slurm":
        return (
            "select that MPI's process management interface: srun --mpi=pmix (Open MPI 5), or --mpi=pmi2 (MPICH); or "
            "use the mpirun of mpi4py's MPI library inside salloc or sbatch"
        )
    return "use the mpirun of mpi4py's MPI library, usually in the same folder as Python"


def advice(environ: Mapping[str, str], n_cores: int, n_of_machine: int) -> str:
    """Return advice if the launcher's options leave nodes of a Slurm job or most cores unused; otherwise, "".

    ``n_cores`` is the number of cores that this process may use, out of ``n_of_machine``.
    """
    mine, n_nodes = place(environ), _number(environ, SLURM_NODES) or 1
    if mine is None and n_nodes > 1 and "SLURM_STEP_NUM_TASKS" not in environ:
        command = f"srun -N {n_nodes} --ntasks-per-node=1 --cpus-per-task=C python -m synkhronos ..."
        return f"this Slurm job has {n_nodes} nodes, but the program was started on one of them alone: use {command}"
    if mine is not None and n_cores == 1 < n_of_machine and not on_one_machine(environ):
        return f"the launcher lets this process use 1 of {n_of_machine} cores: {OPTIONS[mine.started_by].unbound}"
    return ""


def names_of_launcher(environ: Mapping[str, str]) -> List[str]:
    """Return the sorted names of the launcher's variables, which only processes that it started may have."""
    return sorted(name for name in environ if name.startswith(OF_LAUNCHERS) or name == "SLURM_PROCID")


def for_ranks(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment for ranks and their child processes, without the launcher's variables.

    With these variables, a rank that imports ``mpi4py.MPI`` would impersonate this process, and wait forever while
    holding the GIL. An added variable keeps mpi4py from initializing MPI in ranks.
    """
    removed = {*names_of_launcher(environ), SLURM_NODES}  # without the number of nodes, ranks get no `advice`
    kept = {name: value for name, value in environ.items() if name not in removed}
    return {**kept, "MPI4PY_RC_INITIALIZE": "false"}


def settings(environ: Mapping[str, str], interfaces: Sequence[Interface]) -> Dict[str, str]:
    """Return the variables to set before ``mpi4py.MPI`` is imported, unless the user has set them."""
    wanted = {f"OMPI_MCA_{name}": str(OPEN_MPI_EAGER_BYTES) for name in OPEN_MPI_EAGER}
    words = environ.get(INTERFACE, "")
    if words:
        names = ",".join(dict.fromkeys(interface.name for interface in named(words, interfaces)))
        if "OMPI_MCA_btl_tcp_if_exclude" not in environ:  # Open MPI refuses both variables together
            wanted["OMPI_MCA_btl_tcp_if_include"] = names
        wanted["UCX_NET_DEVICES"] = names
        wanted["FI_TCP_IFACE"] = names.split(",")[0]  # libfabric accepts only one interface
    if environ.get(PORTS, "").strip():
        ports = chosen_ports(environ)
        for version in ("v4", "v6"):
            wanted[f"OMPI_MCA_btl_tcp_port_min_{version}"] = str(ports[0])
            wanted[f"OMPI_MCA_btl_tcp_port_range_{version}"] = str(len(ports))
        wanted["FI_TCP_PORT_LOW_RANGE"], wanted["FI_TCP_PORT_HIGH_RANGE"] = str(ports[0]), str(ports[-1])
    return {name: value for name, value in wanted.items() if name not in environ}


def settings_of_nccl(environ: Mapping[str, str], interfaces: Sequence[Interface]) -> Dict[str, str]:
    """Return the variables to set before NCCL is first used, unless the user has set them."""
    words = environ.get(INTERFACE, "")
    if not words or "NCCL_SOCKET_IFNAME" in environ:
        return {}
    return {"NCCL_SOCKET_IFNAME": "=" + ",".join(dict.fromkeys(each.name for each in named(words, interfaces)))}


def chosen_ports(environ: Mapping[str, str]) -> Sequence[int]:
    """Return the ports that the environment allows; by default 0, any port. MPI needs one besides the first host."""
    words = environ.get(PORTS, "").strip()
    if not words:
        return (0,)
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", words)
    first, last = map(int, found.groups()) if found else (0, 0)
    if not 0 < first < last <= 65535:
        raise ArgumentValueError(PORTS, "a range of two or more ports, such as 50000-50100", repr(words))
    return range(first, last + 1)


def chosen_interfaces(environ: Mapping[str, str], interfaces: Sequence[Interface]) -> List[Interface]:
    """Return the interfaces for traffic between hosts: as set in the environment or, by default, all but loopback."""
    for variable in (INTERFACE, "OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES", "FI_TCP_IFACE"):
        words = environ.get(variable, "")
        if words and words != "all":
            if variable == "UCX_NET_DEVICES":  # also device ports ("mlx5_0:1"), which need not be network interfaces
                words = ",".join(word.split(":")[0] for word in words.split(","))
            try:
                return named(words, interfaces, variable)
            except ArgumentValueError:
                if variable != "UCX_NET_DEVICES":
                    raise
    outside = [interface for interface in interfaces if not interface.is_loopback]
    return outside or list(interfaces)


def named(words: str, interfaces: Sequence[Interface], variable: str = INTERFACE) -> List[Interface]:
    """Return the interfaces with these names or in these networks, in this order; raise `ValueError` if none match."""
    found: List[Interface] = []
    for word in filter(None, (word.strip() for word in words.split(","))):
        for interface in interfaces:
            if interface not in found and (interface.name == word or _is_in(interface, word)):
                found.append(interface)
    if not found:
        got = ", ".join(map(str, interfaces)) or "no interface is up"
        raise ArgumentValueError(variable, f"interfaces or networks of this host ({got})", repr(words))
    return found


def _is_in(interface: Interface, word: str) -> bool:
    try:
        return interface.ip in ip_network(word, strict=False)
    except ValueError:
        return False
