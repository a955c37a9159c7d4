"""Resources of the machine that are available to this process: cores, memory, files.

``root`` is the parent of ``/proc`` and ``/sys``; tests pass a fake root.
"""

from __future__ import annotations

import os
import re
import resource
from itertools import chain
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple


def usable_cores() -> List[int]:
    """Return the sorted numbers of the cores that this process may run on (its affinity)."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def descriptor_limit() -> int:
    """Return the maximum number of open files of this process; 1 << 20 if unlimited."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def working_directory() -> str:
    """Return the working directory, or "" if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def boot_id(root: str = "/") -> str:
    """Return an id that identifies this machine, even from inside a container, until it reboots."""
    return Path(root, "proc/sys/kernel/random/boot_id").read_text().strip()


def core_budget(root: str = "/") -> int:
    """Return the number of `usable_cores`, or the CPU quota (rounded down) if that is lower; at least 1."""
    budget = len(usable_cores())
    quota = cpu_quota(root)
    if quota is not None:
        budget = min(budget, int(quota))
    return max(budget, 1)


def cpu_quota(root: str = "/") -> Optional[float]:
    """Return the CPU quota of the process's control group in cores, or None if there is none."""
    pairs = chain.from_iterable(map(_quota_and_period, _control_groups(root, "cpu")))
    return min([quota / period for quota, period in pairs if quota > 0 and period > 0], default=None)


def available_memory(root: str = "/") -> int:
    """Return the bytes of memory available without swapping, including file cache that the kernel can drop.

    The result is the minimum of the kernel's estimate and the memory left in each control group.
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
    """Return the size of the largest cache that a core has or shares; 32 MiB if unknown."""
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = []
    for path in Path(root, "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        found = re.fullmatch(r"(\d+)([KMG]?)", "".join(_lines(path)).strip())
        if found:
            sizes.append(int(found.group(1)) * units[found.group(2)])
    return max(sizes, default=32 << 20)


def _kernel_available(root: str) -> int:
    """Return ``MemAvailable``, or the machine's whole memory if the kernel does not report it (macOS)."""
    table = _table(Path(root, "proc/meminfo"))
    if "MemAvailable" in table:
        return 1024 * table["MemAvailable"]
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _control_groups(root: str, controller: str) -> Iterator[Path]:
    """Yield the folders of the process's control group and of its ancestors, for one controller.

    A limit applies to all descendants, so all levels count. In a container the path may be the host's, so some folders
    may not exist.
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
    """Yield each CPU quota of one control group with its period, both in microseconds."""
    for line in _lines(folder / "cpu.max"):
        quota, period = line.split()
        if quota != "max":
            yield int(quota), int(period)
    v1_quota, v1_period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    if v1_quota is not None and v1_period is not None:
        yield v1_quota, v1_period


def _lines(path: Path) -> List[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(path: Path) -> Optional[int]:
    """Return the number in a file, or None if the file is missing or contains "max"."""
    lines = _lines(path)
    return int(lines[0]) if lines and re.fullmatch(r"-?\d+", lines[0].strip()) else None


def _table(path: Path) -> Dict[str, int]:
    """Return the ``name number`` lines of a file as a dict."""
    return {name: int(value) for name, value in re.findall(r"^([\w()]+):?\s+(\d+)", "\n".join(_lines(path)), re.M)}
