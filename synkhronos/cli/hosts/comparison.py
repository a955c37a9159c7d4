"""Checks that compare the `MachineFacts` of all hosts, beginning with host 0."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Callable, Dict, Hashable, Iterable, List, Sequence, Tuple

from ...cluster.environment import INTERFACE, OPTIONS, with_variable
from ...host.units import readable_bytes
from ..doctor import ENOUGH_SHM_BYTES, MISSING, MOUNT, OK, WARN, Finding
from .facts import PACKAGES, MachineFacts, labels

#: Largest accepted difference between clocks; beyond it, files on shared file systems may have future dates.
CLOCK_TOLERANCE_S = 1.0
MOST_NAMES = 4


def check_processes(facts: List[MachineFacts]) -> Finding:
    """Check that there is one process per host, unless hosts are simulated on one machine."""
    several = [each for each in facts if each.local_size > 1]
    if several and not all(each.one_machine for each in several):
        text = f"{several[0].local_size} processes per host on {joined(sorted({each.host for each in several}))}"
        option = OPTIONS[several[0].started_by].one_per_host
        return Finding("Processes", MISSING, text, f"start one per host with {option}")
    machines = " on one machine, to simulate hosts" if several else ", one per host"
    return Finding("Processes", OK, f"{len(facts)}{machines}, started by {facts[0].started_by}")


def check_names(facts: List[MachineFacts]) -> Finding:
    """Check that no two hosts have the same name."""
    times = Counter(each.host for each in facts if each.local_size == 1)
    same = sorted(name for name, n in times.items() if n > 1)
    if same:
        text = f"several hosts are called {joined(same)}, so messages cannot distinguish them"
        return Finding("Names", WARN, text, "hostnamectl set-hostname NAME")
    return Finding("Names", OK, joined(labels(facts)))


def check_python(facts: List[MachineFacts]) -> Finding:
    """Check that all hosts have the same version of Python."""
    minors = [tuple(each.python.split(".")[:2]) for each in facts]
    remedy = "install one version on all hosts, because functions are sent between hosts as Python bytecode"
    failed = Finding("Python", WARN if all_same(minors) else MISSING, "", remedy)
    return compared(facts, [each.python for each in facts], failed)


def check_packages(facts: List[MachineFacts]) -> Finding:
    """Check that all hosts have the same versions of `PACKAGES`."""
    parts, lines = [], []
    for name in PACKAGES:
        versions = [each.versions.get(name, "none") for each in facts]
        if not all_same(versions):
            parts.append(f"{name} {by_value(facts, versions)}")
            lines.append(f"{name}=={versions[0]}" if versions[0] != "none" else name)
    if parts:
        return Finding("Packages", MISSING, "; ".join(parts), "pip install " + " ".join(lines) + ", on all hosts")
    return Finding("Packages", OK, ", ".join(f"{name} {version}" for name, version in facts[0].versions.items()))


def check_library(facts: List[MachineFacts]) -> Finding:
    """Check that all hosts run the same sources of this library."""
    prints = [f"sources {each.library}" for each in facts]
    return compared(facts, prints, Finding("Synkhronos", MISSING, "", "install the same release on all hosts"))


def check_machines(facts: List[MachineFacts]) -> Finding:
    """Check that all hosts have the same architecture, byte order and processor."""
    remedy = "use hosts of one kind, because arrays are sent as raw memory"
    found = compared(facts, [each.machine for each in facts], Finding("Machines", MISSING, "", remedy))
    if found.status != OK:
        return found
    processors = [each.processor for each in facts]
    if all_same(processors):
        return Finding("Machines", OK, f"{found.text}, {processors[0]}")
    text = f"{by_value(facts, processors)}, so results of ranks may differ in the last bits"
    remedy = "use hosts of one kind, for equal speed; each host compiles for its own processor"
    return Finding("Machines", WARN, text, remedy)


def check_kernels(facts: List[MachineFacts]) -> Finding:
    """Check that the library's C kernels were built on all hosts."""
    without = where(facts, lambda each: not each.kernels)
    if without:
        text = f"not built on {joined(without)}: large collectives take longer there, and all hosts wait"
        remedy = "install g++ and Python's headers there, then reinstall Synkhronos there"
        return Finding("Kernels", WARN, text, remedy)
    return Finding("Kernels", OK, "built")


def check_mpi(facts: List[MachineFacts]) -> Finding:
    """Check that all hosts have the same MPI library in the same version."""
    failed = Finding("MPI", MISSING, "", "install one MPI library, in one version, on all hosts")
    return compared(facts, [each.mpi for each in facts], failed)


def check_cores(facts: List[MachineFacts]) -> Finding:
    """Check that the launcher has not bound processes, and thus the ranks that they fork, to a few cores."""

    def is_bound(each: MachineFacts) -> bool:
        most = each.all_cores - 1 if each.started_by in ("Open MPI", "PMIx") else 1
        return each.cores <= most and each.all_cores > 1

    bound = next(filter(is_bound, facts), None)
    if bound is not None:
        text = f"the process may use {bound.cores} of {bound.all_cores} cores on {joined(where(facts, is_bound))}"
        remedy = OPTIONS[bound.started_by].unbound
        return Finding("Cores", WARN, f"{text}, and all ranks there share these cores", remedy)
    return Finding("Cores", OK, by_value(facts, [f"{each.cores} of {each.all_cores}" for each in facts]))


def check_gpus(facts: List[MachineFacts]) -> Finding:
    """Check that either all hosts have GPUs or none has."""
    text = by_value(facts, [str(each.n_gpus or "none") for each in facts])
    if len({bool(each.n_gpus) for each in facts}) > 1:
        remedy = "CUDA_VISIBLE_DEVICES must list the GPUs; a Slurm job requests GPUs with --gpus-per-node=N"
        return Finding("GPUs", WARN, f"{text}, so fork() starts CPU processes on all hosts", remedy)
    return Finding("GPUs", OK, text)


def check_interfaces(facts: List[MachineFacts]) -> Finding:
    """Check that the hosts share a network, and that no two of them have the same address."""
    if any(each.one_machine for each in facts) or len(facts) < 2:
        return Finding("Interfaces", OK, ", ".join(map(str, facts[0].chosen)) or "none")
    if "Open MPI" in facts[0].mpi:  # usually without IPv6
        facts = [replace(of, chosen=tuple(one for one in of.chosen if one.ip.version == 4)) for of in facts]
    common = common_networks(facts)
    option = str(common[0]) if common else "NETWORK/BITS"
    for name, address, on in shared_addresses(facts):
        text = f"{name} has the same address {address} on {joined(on)}, so hosts that connect to it reach themselves"
        remedy = with_variable(facts[0].started_by, INTERFACE, option)
        if "Open MPI" in facts[0].mpi:  # Open MPI uses all interfaces and hangs; other MPI libraries choose one
            return Finding("Interfaces", MISSING, text, f"{remedy}, or mpirun --mca btl_tcp_if_include {option} ...")
        return Finding("Interfaces", WARN, text, remedy)
    if not common:
        each = "; ".join(f"{label}: {joined(map(str, of.chosen)) or 'none'}" for label, of in zip(labels(facts), facts))
        text = f"no network is common to all hosts ({each})"
        return Finding("Interfaces", WARN, text, "hosts need routes to each other: see the links below")
    return Finding("Interfaces", OK, f"all are in {joined(map(str, common))}")


def check_folders(facts: List[MachineFacts]) -> Finding:
    """Check that every host can write to its compilation caches."""
    parts, engines = [], []
    for label, each in zip(labels(facts), facts):
        for folder in each.folders:
            if folder.trouble:
                parts.append(f"{folder.engine} on {label}: {folder.trouble}")
                engines.append(folder.engine)
    if parts:
        flags = " and ".join(f"{engine.upper()}_FLAGS=base_compiledir=FOLDER" for engine in sorted(set(engines)))
        return Finding("Compiled", WARN, "; ".join(parts), f"set {flags}, with a folder that every host can write to")
    paths = [", ".join(folder.path for folder in each.folders) or "none" for each in facts]
    return Finding("Compiled", OK, by_value(facts, paths))


def check_clocks(facts: List[MachineFacts]) -> Finding:
    """Check that the clocks agree."""
    parts = [
        f"{label} is {abs(each.clock):.1f} s {'ahead of' if each.clock > 0 else 'behind'} host 0"
        for label, each in zip(labels(facts), facts)
        if abs(each.clock) > CLOCK_TOLERANCE_S
    ]
    if parts:
        text = ", ".join(parts) + ", so shared files seem older or newer than they are"
        return Finding("Clocks", WARN, text, "run chrony or systemd-timesyncd on all hosts")
    worst = max(abs(each.clock) for each in facts)
    return Finding("Clocks", OK, f"they agree within {1e3 * worst:.1f} ms")


def check_memory(facts: List[MachineFacts]) -> Finding:
    """Check that every host has at least half as much available memory as any other host."""
    sizes = [each.memory for each in facts]
    least = min(range(len(facts)), key=sizes.__getitem__)
    text = f"{short(sizes[least])} available on {labels(facts)[least]}, up to {short(max(sizes))} on other hosts"
    if 2 * min(sizes) < max(sizes):
        return Finding("Memory", WARN, text, "fork fewer ranks on that host, or free memory there")
    return Finding("Memory", OK, text if len(facts) > 1 else short(sizes[0]))


def check_shared_memory(facts: List[MachineFacts]) -> Finding:
    """Check that ``/dev/shm`` is large enough on hosts without ``memfd_create``."""
    small = where(facts, lambda each: not each.memfd and each.shm < ENOUGH_SHM_BYTES and not each.one_machine)
    if small:
        text, remedy = f"no memfd on {joined(small)}, and a small /dev/shm", MOUNT.format("/dev/shm")
        return Finding("Shared memory", WARN, text, remedy)
    return Finding("Shared memory", OK, "memfd" if all(each.memfd for each in facts) else "memfd, or a large /dev/shm")


#: All checks, in order: the functions of this module that are called ``check_...``.
CHECKS: Tuple[Callable[[List[MachineFacts]], Finding], ...] = tuple(
    function for name, function in globals().items() if name.startswith("check_")
)


def common_networks(facts: List[MachineFacts]) -> List[Any]:
    """Return the networks where every host has a chosen interface with a unique address."""
    doubtful = {address for _, address, _ in shared_addresses(facts)}
    each = [
        {
            interface.network
            for interface in of.chosen
            if str(interface.ip) not in doubtful and not interface.is_loopback
        }
        for of in facts
    ]
    return sorted(set.intersection(*each), key=lambda network: (network.version, network))


def shared_addresses(facts: List[MachineFacts]) -> List[Tuple[str, str, List[str]]]:
    """Return (interface name, address, host labels) for each chosen address that several hosts have."""
    names: Dict[str, str] = {}
    on: Dict[str, List[str]] = {}
    for label, of in zip(labels(facts), facts):
        for interface in of.chosen:
            if not interface.is_loopback:
                names.setdefault(str(interface.ip), interface.name)
                on.setdefault(str(interface.ip), []).append(label)
    return [(names[address], address, hosts) for address, hosts in on.items() if len(hosts) > 1]


def compared(facts: List[MachineFacts], values: Sequence[str], failed: Finding) -> Finding:
    """Return a finding without a problem if all hosts have the same value, otherwise `failed` with all values."""
    if all_same(values):
        return Finding(failed.subject, OK, values[0])
    return failed._replace(text=by_value(facts, values))


def where(facts: List[MachineFacts], condition: Callable[[MachineFacts], bool]) -> List[str]:
    """Return the labels of the hosts that meet a condition."""
    return [label for label, each in zip(labels(facts), facts) if condition(each)]


def all_same(values: Sequence[Hashable]) -> bool:
    """Return whether all values are equal."""
    return len(set(values)) < 2


def by_value(facts: List[MachineFacts], values: Sequence[str]) -> str:
    """Return text that lists the hosts with each value, or the value alone if all hosts have it."""
    if all_same(values):
        return values[0]
    names = labels(facts)
    parts = []
    for value in dict.fromkeys(values):
        parts.append(f"{value} on {joined([name for name, each in zip(names, values) if each == value])}")
    return ", ".join(parts)


def joined(names: Iterable[str]) -> str:
    """Join names with commas and "and"; abbreviate long lists.

    >>> joined(["a"]), joined(["a", "b", "c"]), joined(list("abcdefg"))
    ('a', 'a, b and c', 'a, b, c and 4 more')
    """
    names = list(names)
    if len(names) > MOST_NAMES:
        names = names[: MOST_NAMES - 1] + [f"{len(names) - MOST_NAMES + 1} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def short(nbytes: int) -> str:
    """Format a number of bytes in binary units only, such as 3.0 GiB."""
    return readable_bytes(nbytes).split(" (")[0]
