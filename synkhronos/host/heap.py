"""The C library's heap: it keeps what is freed, for functions that take as much again with every call.

By itself it gives large pieces, and what is free at its end, back to the kernel, which zeroes them page by page when
they are taken again. Whether that happens depends on how the heap of a process came to lie: one rank may lose a
quarter of its time to it, and with it all that wait for it.
"""

from __future__ import annotations

import ctypes

#: Bytes from which on a piece is taken from the kernel by itself and given back at once: the most that glibc takes.
MMAP_THRESHOLD_BYTES = 32 << 20

#: Bytes at the end of the heap that stay while nobody uses them.
TRIM_THRESHOLD_BYTES = 512 << 20

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> bool:
    """Have this process keep freed memory, from now on; tell whether the C library has a way to.

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
