"""Compare what hosts tell of themselves: one finding for each thing that must be so, or the same, on all of them.

Every check is a function of a list of `Facts`, host 0's first; nothing is asked of this machine.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv4Network
from typing import Callable, Dict, Hashable, Iterable, List, Sequence, Tuple

from ...host.units import readable_bytes
from ...launchers.hosts.environment import INTERFACE, ONE_PER_HOST, with_variable
from ..doctor import ENOUGH_SHM_BYTES, MISSING, OK, WARN, Finding
from .facts import PACKAGES, Facts, labels

#: Seconds by which clocks may differ: files on a shared file system seem to come from the future otherwise.
CLOCK_TOLERANCE_S = 1.0
#: Hosts are named up to this number.
MOST_NAMES = 4

#: What lets a process use all cores of its host.
UNBOUND = {
    "Open MPI": "start with --bind-to none",
    "PMIx": "start with --bind-to none",
    "PMI": "start with -bind-to none",
    "Slurm": "start with --cpus-per-task=C, for C cores per host",
}


def check_processes(facts: List[Facts]) -> Finding:
    """Check that there is one process per host."""
    several = [each for each in facts if each.local_size > 1]
    if several and not all(each.one_machine for each in several):
        text = f"{several[0].local_size} processes on {joined(sorted({each.host for each in several}))}"
        return Finding("Processes", MISSING, text, f"one per host: start with {ONE_PER_HOST[several[0].started_by]}")
    machines = " on one machine, as hosts to try things out" if several else ", one per host"
    return Finding("Processes", OK, f"{len(facts)}{machines}, started by {facts[0].started_by}")


def check_names(facts: List[Facts]) -> Finding:
    """Check that no two hosts have the same name."""
    times = Counter(each.host for each in facts if each.local_size == 1)
    same = sorted(name for name, n in times.items() if n > 1)
    if same:
        text = f"several hosts are called {joined(same)}: messages about one of them do not say which"
        return Finding("Names", WARN, text, "hostnamectl set-hostname NAME")
    return Finding("Names", OK, joined(labels(facts)))


def check_python(facts: List[Facts]) -> Finding:
    """Check that all have the same Python."""
    if all_same([each.python for each in facts]):
        return Finding("Python", OK, facts[0].python)
    minors = [tuple(each.python.split(".")[:2]) for each in facts]
    status = WARN if all_same(minors) else MISSING
    text = by_value(facts, [each.python for each in facts])
    remedy = "functions travel between hosts, and with them code of Python: install one version on all"
    return Finding("Python", status, text, remedy)


def check_packages(facts: List[Facts]) -> Finding:
    """Check that all have the same versions of what functions and arrays are made of."""
    parts, lines = [], []
    for name in PACKAGES:
        versions = [each.versions.get(name, "none") for each in facts]
        if not all_same(versions):
            parts.append(f"{name} {by_value(facts, versions)}")
            lines.append(f"{name}=={versions[0]}" if versions[0] != "none" else name)
    if parts:
        return Finding("Packages", MISSING, "; ".join(parts), "pip install " + " ".join(lines) + ", on all hosts")
    return Finding("Packages", OK, ", ".join(f"{name} {version}" for name, version in facts[0].versions.items()))


def check_library(facts: List[Facts]) -> Finding:
    """Check that all run the same sources of this library."""
    prints = [each.library for each in facts]
    if all_same(prints):
        return Finding("Synkhronos", OK, f"the same sources ({prints[0]})")
    text = "different sources: " + by_value(facts, prints)
    return Finding("Synkhronos", MISSING, text, "install the same release on all hosts")


def check_machines(facts: List[Facts]) -> Finding:
    """Check that all have the same architecture and byte order, and the same processors."""
    machines = [each.machine for each in facts]
    if not all_same(machines):
        text = by_value(facts, machines)
        return Finding("Machines", MISSING, text, "use hosts of one kind: arrays travel as they lie in memory")
    processors = [each.processor for each in facts]
    if not all_same(processors):
        text = f"{by_value(facts, processors)}: what ranks compute may differ in the last bits"
        remedy = "hosts of one kind, for equal speed; each compiles for its own processor"
        return Finding("Machines", WARN, text, remedy)
    return Finding("Machines", OK, f"{machines[0]}, {processors[0]}")


def check_kernels(facts: List[Facts]) -> Finding:
    """Check that the library's kernels in C were built everywhere."""
    without = [label for label, each in zip(labels(facts), facts) if not each.kernels]
    if without:
        text = f"not built on {joined(without)}: collectives of all hosts wait for them"
        remedy = "install g++ and Python's headers there, then: install Synkhronos there once more"
        return Finding("Kernels", WARN, text, remedy)
    return Finding("Kernels", OK, "built")


def check_mpi(facts: List[Facts]) -> Finding:
    """Check that all have the same MPI."""
    libraries = [each.mpi for each in facts]
    if all_same(libraries):
        return Finding("MPI", OK, libraries[0])
    return Finding("MPI", MISSING, by_value(facts, libraries), "install one MPI, of one version, on all hosts")


def check_cores(facts: List[Facts]) -> Finding:
    """Check that no launcher has bound a process, and so the ranks that it will fork, to some of the cores."""

    def is_bound(each: Facts) -> bool:
        most = each.all_cores - 1 if each.started_by in ("Open MPI", "PMIx") else 1
        return each.cores <= most

    bound = [(label, each) for label, each in zip(labels(facts), facts) if is_bound(each) and each.all_cores > 1]
    if bound:
        cores = bound[0][1]
        text = (
            f"the process may use {cores.cores} of {cores.all_cores} cores on {joined([label for label, _ in bound])}, "
            "and so may all ranks there"
        )
        return Finding("Cores", WARN, text, UNBOUND[cores.started_by])
    return Finding("Cores", OK, by_value(facts, [f"{each.cores} of {each.all_cores}" for each in facts]))


def check_gpus(facts: List[Facts]) -> Finding:
    """Check that all hosts have GPUs, or none."""
    text = by_value(facts, [str(each.n_gpus or "none") for each in facts])
    if len({bool(each.n_gpus) for each in facts}) > 1:
        remedy = "CUDA_VISIBLE_DEVICES must show them; a job of Slurm gets some by --gpus-per-node=N"
        return Finding("GPUs", WARN, f"{text}: fork() starts CPU processes on all hosts", remedy)
    return Finding("GPUs", OK, text)


def check_interfaces(facts: List[Facts]) -> Finding:
    """Check that hosts have a network in common, and no address that is on several of them."""
    if any(each.one_machine for each in facts) or len(facts) < 2:
        return Finding("Interfaces", OK, ", ".join(map(str, facts[0].chosen)) or "none")
    common = common_networks(facts)
    option = str(common[0]) if common else "NETWORK/BITS"
    for name, address, on in shared_addresses(facts):
        text = f"{name} has the same address {address} on {joined(on)}: hosts that talk to it reach themselves"
        remedy = with_variable(facts[0].started_by, INTERFACE, option)
        if "Open MPI" in facts[0].mpi:  # which uses all interfaces, and hangs; others choose one
            return Finding("Interfaces", MISSING, text, f"{remedy}, or mpirun --mca btl_tcp_if_include {option} ...")
        return Finding("Interfaces", WARN, text, remedy)
    if not common:
        each = "; ".join(f"{label}: {joined(map(str, of.chosen)) or 'none'}" for label, of in zip(labels(facts), facts))
        text = f"no network is common to all hosts ({each})"
        return Finding("Interfaces", WARN, text, "there must be routes between them, which the links below show")
    return Finding("Interfaces", OK, f"all are in {joined(map(str, common))}")


def check_folders(facts: List[Facts]) -> Finding:
    """Check that every host can keep what it compiles."""
    parts, engines = [], []
    for label, each in zip(labels(facts), facts):
        for folder in each.folders:
            if folder.trouble:
                parts.append(f"{folder.engine} on {label}: {folder.trouble}")
                engines.append(folder.engine)
    if parts:
        flags = " and ".join(f"{engine.upper()}_FLAGS=base_compiledir=FOLDER" for engine in sorted(set(engines)))
        return Finding("Compiled", WARN, "; ".join(parts), f"{flags}, with a folder that every host may write to")
    paths = [", ".join(folder.path for folder in each.folders) or "none" for each in facts]
    return Finding("Compiled", OK, by_value(facts, paths))


def check_clocks(facts: List[Facts]) -> Finding:
    """Check that clocks agree."""
    far = [(label, each) for label, each in zip(labels(facts), facts) if abs(each.clock) > CLOCK_TOLERANCE_S]
    if far:
        parts = [
            f"{label} is {abs(each.clock):.1f} s {'ahead of' if each.clock > 0 else 'behind'} host 0"
            for label, each in far
        ]
        text = ", ".join(parts) + ": files that hosts share seem older or newer than they are"
        return Finding("Clocks", WARN, text, "let chrony or systemd-timesyncd run on all hosts")
    worst = max(abs(each.clock) for each in facts)
    return Finding("Clocks", OK, f"they agree to {1e3 * worst:.1f} ms")


def check_memory(facts: List[Facts]) -> Finding:
    """Check that no host has far less memory than the others."""
    sizes = [each.memory for each in facts]
    least = min(range(len(facts)), key=sizes.__getitem__)
    text = f"{short(sizes[least])} available on {labels(facts)[least]}, {short(max(sizes))} on the best"
    if 2 * min(sizes) < max(sizes):
        return Finding("Memory", WARN, text, "fork fewer ranks on that host, or free memory there")
    return Finding("Memory", OK, text if len(facts) > 1 else short(sizes[0]))


def check_shared_memory(facts: List[Facts]) -> Finding:
    """Check that ``/dev/shm`` is large enough where nameless memory cannot be made."""
    small = [
        label
        for label, each in zip(labels(facts), facts)
        if not each.memfd and each.shm < ENOUGH_SHM_BYTES and not each.one_machine
    ]
    if small:
        text = f"no memfd on {joined(small)}, and a small /dev/shm"
        return Finding(
            "Shared memory", WARN, text, "mount -o remount,size=4g /dev/shm, or docker run --shm-size=4g ..."
        )
    return Finding("Shared memory", OK, "memfd" if all(each.memfd for each in facts) else "memfd, or a large /dev/shm")


CHECKS: Tuple[Callable[[List[Facts]], Finding], ...] = (
    check_processes,
    check_names,
    check_python,
    check_packages,
    check_library,
    check_machines,
    check_kernels,
    check_mpi,
    check_cores,
    check_gpus,
    check_interfaces,
    check_folders,
    check_clocks,
    check_memory,
    check_shared_memory,
)


def common_networks(facts: List[Facts]) -> List[IPv4Network]:
    """Return the networks that all hosts have chosen interfaces in, where each has an address of its own."""
    doubtful = {address for _, address, _ in shared_addresses(facts)}
    each = [
        {
            interface.network
            for interface in of.chosen
            if str(interface.ip) not in doubtful and not interface.is_loopback
        }
        for of in facts
    ]
    return sorted(set.intersection(*each))


def shared_addresses(facts: List[Facts]) -> List[Tuple[str, str, List[str]]]:
    """Return chosen interfaces whose address is on several hosts, as names, addresses and labels of hosts."""
    names: Dict[str, str] = {}
    on: Dict[str, List[str]] = {}
    for label, of in zip(labels(facts), facts):
        for interface in of.chosen:
            if not interface.is_loopback:
                names.setdefault(str(interface.ip), interface.name)
                on.setdefault(str(interface.ip), []).append(label)
    return [(names[address], address, hosts) for address, hosts in on.items() if len(hosts) > 1]


def all_same(values: Sequence[Hashable]) -> bool:
    """Return whether all values are equal."""
    return len(set(values)) < 2


def by_value(facts: List[Facts], values: Sequence[str]) -> str:
    """Return which hosts have which value, as text; the value alone if all have the same."""
    if all_same(values):
        return values[0]
    names = labels(facts)
    parts = []
    for value in dict.fromkeys(values):
        parts.append(f"{value} on {joined([name for name, each in zip(names, values) if each == value])}")
    return ", ".join(parts)


def joined(names: Iterable[str]) -> str:
    """Return names as text, not all of them if they are many.

    Examples
    --------
    >>> joined(["a"]), joined(["a", "b", "c"]), joined(list("abcdefg"))
    ('a', 'a, b and c', 'a, b, c and 4 more')
    """
    names = list(names)
    if len(names) > MOST_NAMES:
        names = names[: MOST_NAMES - 1] + [f"{len(names) - MOST_NAMES + 1} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def short(nbytes: int) -> str:
    """Return a number of bytes in binary units alone.

    Examples
    --------
    >>> short(3 << 30)
    '3.0 GiB'
    """
    return readable_bytes(nbytes).split(" (")[0]
