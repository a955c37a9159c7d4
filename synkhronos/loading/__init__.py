"""Data loading: separate processes prepare batches while the ranks compute. ::

    the program                              loader process 0                  loader process 1
    ─────────────────────────────────────    ──────────────────────────────    ──────────────────
    for x, y in loader:                      makes batch 0, copies it into     batch 1
        f(x, y)  batch 0, no copy            shared memory; makes batch 2      batch 3
        f(x, y)  batch 1                     ... up to `depth` ahead

Modules: `passes` (public interface), `process` (the program's side of a loader process), `work` (the process itself).
"""

from .passes import Loader, loader

__all__ = ["Loader", "loader"]
