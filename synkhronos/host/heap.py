"""The C library's heap: have it keep what is freed, for functions that need as much again in every call.

By default it gives large pieces, and what is free at its end, back to the kernel, which zeroes them page by page when
they are needed again. Whether that happens depends on the layout of a process's heap: one rank may lose a quarter of
its time to it, and so do all ranks that wait for it. The setting holds until the process ends; with
``fork(keep_heap=False)`` it is never made.
"""

from __future__ import annotations

import ctypes

#: Bytes from which on a piece is mapped by itself and given back at once: the largest value that glibc accepts.
MMAP_THRESHOLD_BYTES = 32 << 20

#: Bytes at the end of the heap that are kept while they are free.
TRIM_THRESHOLD_BYTES = 512 << 20

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> bool:
    """Have this process keep freed memory from now on; return whether the C library can.

    Examples
    --------
    >>> keep_freed_memory() in (True, False)
    True
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) and mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES))
