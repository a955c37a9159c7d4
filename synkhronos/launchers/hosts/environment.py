"""Who this process is among those that an MPI launcher started, by the environment alone: MPI is not imported.

::

    mpirun, srun -- environment --> `place`: process 1 of 3
                                    `refusal`: what is wrong with that
                 <- environment --- `settings`: before ``mpi4py.MPI`` is imported
                                    `for_ranks`: in ranks, which are no processes of that launcher

Every function takes the environment as a mapping and changes nothing.
"""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from ...errors import ArgumentValueError
from ...host.interfaces import Interface

#: If "1", several processes on one machine count as a host each: for trying things out.
ON_ONE_MACHINE = "SYNK_HOSTS_ON_ONE_MACHINE"
#: Names of interfaces, or networks such as 10.0.0.0/16, by commas: those by which hosts reach each other.
INTERFACE = "SYNK_HOSTS_INTERFACE"

#: What launchers tell their processes begins with these. Another process that inherits it hangs in MPI_Init.
OF_LAUNCHERS = ("OMPI_", "PMIX_", "PRTE_", "PMI_", "MPI_LOCAL", "HYD", "PALS_", "SLURM_PMI")

#: Bytes that Open MPI sends over TCP without asking first. It asks at 64 KiB, and for pieces, so that a connection
#: waits for each answer: with 1 MiB, what we send at a time, both directions of a link are busy at the same time.
OPEN_MPI_EAGER_BYTES = 1 << 20
OPEN_MPI_EAGER = ("btl_tcp_eager_limit", "btl_tcp_rndv_eager_limit", "btl_tcp_max_send_size")

#: By what started the processes: the option that starts one on each host.
ONE_PER_HOST = {
    "Open MPI": "--map-by ppr:1:node",
    "PMIx": "--map-by ppr:1:node",
    "PMI": "-ppn 1",
    "Slurm": "--ntasks-per-node=1",
}


class Place(NamedTuple):
    """The place of a process among those that a launcher started.

    Attributes
    ----------
    process : int
        Its number, from 0.
    n_processes : int, optional
        How many there are, more than one; None if only MPI can tell.
    local_size : int, optional
        How many of them are on this host; None if only MPI can tell.
    started_by : str
        "Open MPI", "PMIx", "PMI" (MPICH and its relatives) or "Slurm".
    """

    process: int
    n_processes: Optional[int]
    local_size: Optional[int]
    started_by: str


def place(environ: Mapping[str, str]) -> Optional[Place]:
    """Return the place of this process, or None if no MPI launcher has started it with others.

    A variable of Slurm's alone is no sign: the script of a job has them too, and is one process.

    Examples
    --------
    >>> place({"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALNRANKS": "1"})
    Place(process=1, n_processes=3, local_size=1, started_by='PMI')
    >>> place({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None
    True
    """
    for look in (_of_open_mpi, _of_pmix, _of_pmi, _of_slurm):
        found = look(environ)
        if found is not None:
            return None if found.n_processes is not None and found.n_processes < 2 else found
    return None


def _of_open_mpi(environ: Mapping[str, str]) -> Optional[Place]:
    process, n = _number(environ, "OMPI_COMM_WORLD_RANK"), _number(environ, "OMPI_COMM_WORLD_SIZE")
    if process is None or n is None:
        return None
    return Place(process, n, _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE"), "Open MPI")


def _of_pmix(environ: Mapping[str, str]) -> Optional[Place]:
    """PMIx's variables say how many there are only through its library; Slurm, if it is its server, says it as well."""
    process, namespace = _number(environ, "PMIX_RANK"), environ.get("PMIX_NAMESPACE")
    if process is None or not namespace:
        return None
    if namespace.startswith("slurm."):
        n = _number(environ, "SLURM_STEP_NUM_TASKS")
        return Place(process, n, _tasks_on_this_node(environ), "Slurm")
    return Place(process, None, None, "PMIx")


def _of_pmi(environ: Mapping[str, str]) -> Optional[Place]:
    process, n = _number(environ, "PMI_RANK"), _number(environ, "PMI_SIZE")
    if process is None or n is None:
        return None
    local = _number(environ, "MPI_LOCALNRANKS")
    if local is None and "SLURM_STEP_NUM_TASKS" in environ:  # srun --mpi=pmi2
        return Place(process, n, _tasks_on_this_node(environ), "Slurm")
    return Place(process, n, local, "PMI")


def _of_slurm(environ: Mapping[str, str]) -> Optional[Place]:
    process, n = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_STEP_NUM_TASKS")
    if process is None or n is None:
        return None
    return Place(process, n, _tasks_on_this_node(environ), "Slurm")


def _number(environ: Mapping[str, str], name: str) -> Optional[int]:
    """Return the number that a variable holds, or None."""
    text = environ.get(name, "").strip()
    return int(text) if re.fullmatch(r"\d+", text) else None


def _tasks_on_this_node(environ: Mapping[str, str]) -> Optional[int]:
    """Return how many processes of the job's step are on this node, or None."""
    node = _number(environ, "SLURM_NODEID")
    counts = tasks_per_node(environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if node is not None and node < len(counts):
        return counts[node]
    return _number(environ, "SLURM_NTASKS_PER_NODE")


def tasks_per_node(text: str) -> List[int]:
    """Return the numbers that Slurm writes in short, none if they cannot be read.

    Examples
    --------
    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]
    """
    counts: List[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if not found:
            return []
        counts += [int(found.group(1))] * int(found.group(2) or 1)
    return counts


def refusal(mine: Place, environ: Mapping[str, str], host: str) -> str:
    """Return in one sentence why this place cannot be used, with the remedy, or "".

    Parameters
    ----------
    mine : Place
        The place of this process; its ``local_size`` may have come from MPI meanwhile.
    environ : mapping
        The environment, where `ON_ONE_MACHINE` allows for several processes on a host.
    host : str
        The name of this host.
    """
    if mine.local_size is None or mine.local_size < 2 or on_one_machine(environ):
        return ""
    option = ONE_PER_HOST[mine.started_by]
    return (
        f"{mine.local_size} processes were started on host {host}, but each host needs exactly one, which forks the "
        f"ranks there: start them with {option}, and choose the number of ranks by fork(n) "
        f"({ON_ONE_MACHINE}=1 lets each process count as a host, to try things out)"
    )


def on_one_machine(environ: Mapping[str, str]) -> bool:
    """Return whether each process counts as a host, though several are on one machine.

    Examples
    --------
    >>> on_one_machine({"SYNK_HOSTS_ON_ONE_MACHINE": "1"}), on_one_machine({})
    (True, False)
    """
    return environ.get(ON_ONE_MACHINE, "") == "1"


def with_variable(started_by: str, name: str, value: str) -> str:
    """Return how a launcher is told a variable for all of its processes.

    Examples
    --------
    >>> with_variable("PMI", "SYNK_HOSTS_INTERFACE", "eth0")
    'mpirun -genv SYNK_HOSTS_INTERFACE eth0 ...'
    """
    if started_by == "PMI":
        return f"mpirun -genv {name} {value} ..."
    return f"{name}={value} srun ..." if started_by == "Slurm" else f"mpirun -x {name}={value} ..."


def wrong_world(mine: Place, world_size: int) -> str:
    """Return in one sentence why MPI's world is not the launcher's, or "".

    Parameters
    ----------
    mine : Place
        What the launcher says.
    world_size : int
        The size of ``MPI.COMM_WORLD``.

    Examples
    --------
    >>> wrong_world(Place(0, 2, 1, "PMI"), 2)
    ''
    """
    if mine.n_processes is None or mine.n_processes == world_size:
        return ""
    its = {"Open MPI": "Open MPI", "PMIx": "Open MPI", "PMI": "MPICH (or a relative of it)", "Slurm": "Slurm"}
    remedy = {
        "Slurm": "name the interface that this library knows: srun --mpi=pmix (Open MPI 5), or --mpi=pmi2 (MPICH)",
    }.get(mine.started_by, "use the mpirun of the MPI that mpi4py was installed with, which is beside its Python")
    return (
        f"the launcher of {its[mine.started_by]} started {mine.n_processes} processes, but MPI's world has "
        f"{world_size}: mpi4py uses the library of another MPI; {remedy}"
    )


# -- what is put into environments -------------------------------------------------------------------------------------


def names_of_launcher(environ: Mapping[str, str]) -> List[str]:
    """Return the variables that belong to the launcher's own processes, sorted.

    Examples
    --------
    >>> names_of_launcher({"PMI_RANK": "1", "PMI_FD": "7", "HOME": "/"})
    ['PMI_FD', 'PMI_RANK']
    """
    return sorted(name for name in environ if name.startswith(OF_LAUNCHERS) or name == "SLURM_PROCID")


def for_ranks(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment of ranks, and of all that they start: without what the launcher told this process.

    A rank that imports ``mpi4py.MPI`` with it would be taken for this process, and wait for ever with Python's lock
    held. For the same reason mpi4py does not initialise MPI there.

    Examples
    --------
    >>> for_ranks({"PMI_RANK": "1", "PMI_SIZE": "2", "HOME": "/"})
    {'HOME': '/', 'MPI4PY_RC_INITIALIZE': 'false'}
    """
    removed = set(names_of_launcher(environ))
    kept = {name: value for name, value in environ.items() if name not in removed}
    return {**kept, "MPI4PY_RC_INITIALIZE": "false"}


def settings(environ: Mapping[str, str], interfaces: Sequence[Interface]) -> Dict[str, str]:
    """Return what to put into the environment before ``mpi4py.MPI`` is imported; what the user has set stays.

    Parameters
    ----------
    environ : mapping
        The environment; `INTERFACE` names the interfaces that MPI is to use.
    interfaces : sequence of Interface
        Those of this host.

    Raises
    ------
    ValueError
        If this host has none of the interfaces that are named.
    """
    wanted = {f"OMPI_MCA_{name}": str(OPEN_MPI_EAGER_BYTES) for name in OPEN_MPI_EAGER}
    words = environ.get(INTERFACE, "")
    if words:
        names = ",".join(interface.name for interface in named(words, interfaces))
        if "OMPI_MCA_btl_tcp_if_exclude" not in environ:  # Open MPI takes one of the two
            wanted["OMPI_MCA_btl_tcp_if_include"] = names
        wanted["UCX_NET_DEVICES"] = names
        wanted["FI_TCP_IFACE"] = names.split(",")[0]  # libfabric takes one
    return {name: value for name, value in wanted.items() if name not in environ}


def settings_of_nccl(environ: Mapping[str, str], interfaces: Sequence[Interface]) -> Dict[str, str]:
    """Return what to put into the environment before NCCL is first called, as in `settings`."""
    words = environ.get(INTERFACE, "")
    if not words or "NCCL_SOCKET_IFNAME" in environ:
        return {}
    return {"NCCL_SOCKET_IFNAME": "=" + ",".join(each.name for each in named(words, interfaces))}


def chosen_interfaces(environ: Mapping[str, str], interfaces: Sequence[Interface]) -> List[Interface]:
    """Return the interfaces of this host by which others may reach it, as far as they were named, else all.

    They may be named by `INTERFACE`, or else by a variable of Open MPI, UCX or libfabric.

    Raises
    ------
    ValueError
        If this host has none of the interfaces that are named.
    """
    for variable in (INTERFACE, "OMPI_MCA_btl_tcp_if_include", "UCX_NET_DEVICES", "FI_TCP_IFACE"):
        words = environ.get(variable, "")
        if words and words != "all":
            # UCX names ports of devices, too ("mlx5_0:1"), which need not be network interfaces.
            names = ",".join(word.split(":")[0] for word in words.split(","))
            try:
                return named(names, interfaces, variable)
            except ArgumentValueError:
                if variable != "UCX_NET_DEVICES":
                    raise
    outside = [interface for interface in interfaces if not interface.is_loopback]
    return outside or list(interfaces)


def named(words: str, interfaces: Sequence[Interface], variable: str = INTERFACE) -> List[Interface]:
    """Return the interfaces that have one of these names or an address in one of these networks, in the order of words.

    Raises
    ------
    ValueError
        If there are none.
    """
    found: List[Interface] = []
    for word in filter(None, (word.strip() for word in words.split(","))):
        for interface in interfaces:
            if interface not in found and (interface.name == word or _is_in(interface, word)):
                found.append(interface)
    if not found:
        got = ", ".join(map(str, interfaces)) or "none that is up"
        raise ArgumentValueError(variable, f"interfaces or networks of this host, of which it has {got}", repr(words))
    return found


def _is_in(interface: Interface, word: str) -> bool:
    """Return whether an interface's address is in a network, if a word is one."""
    try:
        return interface.ip in ip_network(word, strict=False)
    except ValueError:
        return False
