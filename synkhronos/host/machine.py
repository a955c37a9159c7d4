"""What of this machine the process may use: cores, memory, files.

``root`` is the folder with ``/proc`` and ``/sys``; tests make a fake one.
"""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple


def usable_cores() -> List[int]:
    """Return the numbers of the cores that this process may run on (its affinity), sorted.

    Examples
    --------
    >>> len(usable_cores()) >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def descriptor_limit() -> int:
    """Return how many files this process may have open at a time.

    Examples
    --------
    >>> descriptor_limit() > 10
    True
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def working_directory() -> str:
    """Return the working directory, or "" if it has been deleted.

    Examples
    --------
    >>> working_directory() == os.getcwd()
    True
    """
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def boot_id(root: str = "/") -> str:
    """Return what tells this machine from all others, also from within a container, until it is started again.

    Examples
    --------
    >>> boot_id() == boot_id()
    True
    """
    return Path(root, "proc/sys/kernel/random/boot_id").read_text().strip()


def core_budget(root: str = "/") -> int:
    """Return how many cores' worth of time this process can get, at least 1.

    That is the number of `usable_cores`, or the whole cores in the CPU quota of the process's control group if
    this is less: a container with 2.5 CPUs on a machine with 64 has a budget of 2.

    Examples
    --------
    >>> 1 <= core_budget() <= len(usable_cores())
    True
    """
    budget = len(usable_cores())
    quota = cpu_quota(root)
    if quota is not None:
        budget = min(budget, int(quota))
    return max(budget, 1)


def cpu_quota(root: str = "/") -> Optional[float]:
    """Return the CPU quota of the process's control group in cores, or None if there is none."""
    quotas = []
    for folder in _control_groups(root, "cpu"):
        for quota, period in _quota_and_period(folder):
            if quota > 0 and period > 0:
                quotas.append(quota / period)
    return min(quotas) if quotas else None


def available_memory(root: str = "/") -> int:
    """Return how many bytes of memory are still available without swapping.

    That is the least of what the kernel calls available and what the memory limits of the process's control groups
    leave; file cache that the kernel would drop counts as free in both.

    Examples
    --------
    >>> available_memory() > 0
    True
    """
    free = [_kernel_available(root)]
    for folder in _control_groups(root, "memory"):
        for limit_file, usage_file, cache_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _number(folder / limit_file), _number(folder / usage_file)
            if limit is not None and usage is not None:
                cache = _table(folder / "memory.stat").get(cache_key, 0)
                free.append(limit - usage + min(cache, usage))
    return max(min(free), 0)


def cache_size(root: str = "/") -> int:
    """Return the bytes of the largest cache that a core has or shares; 32 MB if the kernel does not say.

    Examples
    --------
    >>> cache_size() > 0
    True
    """
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = []
    for path in Path(root, "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KMG]?)", "".join(_lines(path)).strip())
        if found:
            sizes.append(int(found.group(1)) * units[found.group(2)])
    return max(sizes, default=32 << 20)


def _kernel_available(root: str) -> int:
    """Return ``MemAvailable``, or all of the machine's memory if the kernel does not say (macOS)."""
    table = _table(Path(root, "proc/meminfo"))
    if "MemAvailable" in table:
        return 1024 * table["MemAvailable"]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _control_groups(root: str, controller: str) -> Iterator[Path]:
    """Yield the folders of the process's control group and of all above it, for one controller.

    A limit holds for everything below, so all levels count. Inside a container the path in ``/proc/self/cgroup``
    may be that of the host: folders that do not exist are simply found empty later.
    """
    for line in _lines(Path(root, "proc/self/cgroup")):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            mounts = [Path(root, "sys/fs/cgroup"), Path(root, "sys/fs/cgroup/unified")]
        elif controller in controllers.split(","):
            mounts = [Path(root, "sys/fs/cgroup", controllers), Path(root, "sys/fs/cgroup", controller)]
        else:
            continue
        names = [name for name in path.split("/") if name not in ("", "..")]
        for mount in mounts:
            for depth in range(len(names), -1, -1):
                yield mount.joinpath(*names[:depth])


def _quota_and_period(folder: Path) -> Iterator[Tuple[int, int]]:
    """Yield the CPU quotas that one control group sets, in microseconds per period."""
    for line in _lines(folder / "cpu.max"):
        quota, period = line.split()
        if quota != "max":
            yield int(quota), int(period)
    v1_quota, v1_period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    if v1_quota is not None and v1_period is not None:
        yield v1_quota, v1_period


def _lines(path: Path) -> List[str]:
    """Return the lines of a small file, none if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> Optional[int]:
    """Return the number a file holds, or None ("max" and a missing file are none)."""
    lines = _lines(path)
    return int(lines[0]) if lines and re.fullmatch(r"-?\d+", lines[0].strip()) else None


def _table(path: Path) -> Dict[str, int]:
    """Return the ``name number`` lines of a file as a dict."""
    return {name: int(value) for name, value in re.findall(r"^([\w()]+):?\s+(\d+)", "\n".join(_lines(path)), re.M)}
