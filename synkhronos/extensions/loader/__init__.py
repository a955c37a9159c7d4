"""Batches that processes of their own prepare while the ranks compute. ::

    the program                              loader process 0                  loader process 1
    ─────────────────────────────────────    ──────────────────────────────    ──────────────────
    for x, y in loader:                      makes batch 0, copies it into     batch 1
        f(x, y)  batch 0, no copy            shared memory; makes batch 2      batch 3
        f(x, y)  batch 1                     ... up to `depth` ahead

`loading` has what users call, `process` the program's side of a loader process, `work` what such a process does.
"""

from .loading import Loader, loader

__all__ = ["Loader", "loader"]
