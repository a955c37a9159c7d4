"""Sharing of compiled C modules with ranks, which would otherwise compile them again.

Theano's disk cache does not share modules of operations without a version, so each process compiles them itself, under
a common lock. Nearly every program has such operations, because a fault in Theano 1.0.5 leaves operations with empty
``__props__`` (``Alloc``, ``ScalarFromTensor``) without a version. Compiling a module takes at least half a second.
In memory, Theano also finds modules by a hash of source and compiler options, which is sent to the ranks::

    master   hash -> file   --- with the functions --->   rank   the same source has the same hash: load the file

The files are deleted when the master ends; a rank that finds no file compiles the module. In addition, `watch` reports
each loaded file, so that other processes can `preload` it.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, Dict, Mapping, Optional

from theano import config
from theano.gof import cmodule


def unshared() -> Dict[str, str]:
    """Return, by hash, the files of modules that the disk cache does not share with other processes."""
    cache = cmodule._module_cache  # None if this process has not used the cache
    known = {} if cache is None else cache.module_hash_to_key_data
    return {
        of_source: data.get_entry()
        for of_source, data in list(known.items())
        if data.keys and not all(version for version, _ in data.keys)
    }


def share(files: Mapping[str, str]) -> None:
    """Register modules of another process, by hash, as if this process had compiled them."""
    if files:
        known = cmodule.get_module_cache(config.compiledir).module_hash_to_key_data
        for of_source, file in files.items():
            if of_source not in known and os.path.exists(file):
                no_keys = os.path.join(os.path.dirname(file), "key.pkl")  # does not exist
                known[of_source] = cmodule.KeyData(set(), of_source, no_keys, file)


def watch(tell: Optional[Callable[[str], object]]) -> None:
    """Call ``tell`` with the file of each module that this process has loaded or will load; None stops the calls."""
    load = getattr(cmodule.dlimport, "load", cmodule.dlimport)
    cmodule.dlimport = load if tell is None else _telling(load, tell)
    if tell is not None and cmodule._module_cache is not None:
        for file in list(cmodule._module_cache.module_from_name):
            tell(file)


def _telling(load: Callable[..., Any], tell: Callable[[str], object]) -> Callable[..., Any]:
    @functools.wraps(load)
    def load_and_tell(file: str, *args: Any, **kwargs: Any) -> Any:
        module = load(file, *args, **kwargs)
        tell(file)
        return module

    load_and_tell.load = load  # type: ignore[attr-defined]
    return load_and_tell


def preload(file: str) -> None:
    """Load another process's module, after reading the disk cache's index and querying the compiler if needed.

    The query determines the processor's features, which are part of every cache key.
    """
    if cmodule._module_cache is None:
        # Cleaning up would require the lock, which the other process may hold while it compiles.
        cmodule.get_module_cache(config.compiledir, {"do_refresh": False}).refresh(cleanup=False)
        if config.cxx:
            cmodule.GCC_compiler.compile_args()
    # Register the module with Python only: in Theano's tables, its keys in the disk cache would be ignored.
    cmodule.dlimport(file)
