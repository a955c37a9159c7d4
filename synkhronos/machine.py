"""What this machine has."""

from __future__ import annotations

import os


def available_memory() -> int:
    """Return the bytes of memory that may still be had.

    Returns
    -------
    int
        The kernel's estimate; where there is none, the free pages.
    """
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
