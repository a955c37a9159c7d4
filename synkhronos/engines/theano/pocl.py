"""A cache of compiled kernels for every process that uses PoCL, the OpenCL of CPUs.

If two processes compile the same kernel into one cache at the same moment, one of them now and then fails with
"clBuildProgram: Unknown error" (seen with PoCL 3.1: 3 of 216 kernels that three processes compiled at once; with a
cache for each, none). Ranks do compile the same kernels at the same moment.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
from typing import Optional

_PREFIX = "synkhronos-"

#: The lock of this process's cache, which it holds until it ends.
_lock: Optional[int] = None


def claim() -> None:
    """Have PoCL use a cache that no other living process uses; call it before the first device is opened.

    Caches are numbered, so that a later process finds what an earlier one has compiled. If none can be made, PoCL's
    own stays in use.
    """
    global _lock
    if _lock is not None:
        return
    try:
        for i in itertools.count():
            folder = os.path.join(_base(), _PREFIX + str(i))
            os.makedirs(folder, exist_ok=True)
            fd = os.open(os.path.join(folder, "lock"), os.O_CREAT | os.O_RDWR, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                continue
            _lock = fd
            os.environ["POCL_CACHE_DIR"] = folder
            return
    except OSError:
        pass


def _base() -> str:
    """Return the folder that PoCL itself would use; the environment of ranks, which is the master's, may name ours."""
    given = os.environ.get("POCL_CACHE_DIR", "")
    if re.fullmatch(_PREFIX + r"\d+", os.path.basename(given)):
        return os.path.dirname(given)
    default = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return given or os.path.join(default, "pocl", "kcache")
