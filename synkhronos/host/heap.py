"""The C library's heap: keep freed memory, for functions that allocate the same amount in every call.

By default the C library returns large blocks, and free memory at the end of the heap, to the kernel. The kernel must
zero the pages when they are needed again. Whether this happens depends on the heap's layout: one rank may lose a
quarter of its time while all other ranks wait. ``fork(keep_heap=False)`` keeps the C library's defaults.
"""

from __future__ import annotations

import contextlib
import ctypes

#: Blocks of at least this size are mapped separately and returned when freed; glibc's maximum.
MMAP_THRESHOLD_BYTES = 32 << 20

TRIM_THRESHOLD_BYTES = 512 << 20  # maximum free bytes kept at the end of the heap

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h


def keep_freed_memory() -> bool:
    """Make this process keep freed memory until it ends; return whether the C library supports this."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) and mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES))


def return_freed_memory() -> None:
    """Return all freed memory to the kernel once, for example after loading, which takes as much again as it leaves."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
