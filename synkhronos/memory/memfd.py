"""Shared memory without a name: a file that exists only through its descriptors.

A name in /dev/shm would outlive a ``kill -9``, and containers limit /dev/shm
to 64 MB; a file of `os.memfd_create` has neither fault. Where there is none, a
POSIX shared memory object is opened and unlinked at once.
"""

from __future__ import annotations

import os
import secrets


def nameless_file(label: str, size: int) -> int:
    """Create a file of ``size`` bytes in memory, readable and writable by its owner alone.

    Nothing is reserved yet: use `os.posix_fallocate` before a range is touched.

    Parameters
    ----------
    label : str
        Shown by ``ls -l /proc/<pid>/fd``; need not be unique.
    size : int
        Bytes.

    Returns
    -------
    int
        A descriptor, which executed programs do not inherit.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("synkhronos-" + label, os.MFD_CLOEXEC)
    else:
        import posix_ipc

        memory = posix_ipc.SharedMemory("/synkhronos-" + secrets.token_hex(8), posix_ipc.O_CREX, mode=0o600)
        memory.unlink()
        fd = memory.fd
        os.set_inheritable(fd, False)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd
