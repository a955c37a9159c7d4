"""The C modules that this process has compiled, given to ranks that would compile them once more.

Theano's cache on disk gives a module to every process by its key. Modules of an operation without a version it gives to
none: each process compiles them for itself, under the lock that all processes share. Operations whose ``__props__`` are
empty (``Alloc``, ``ScalarFromTensor``, the cross-entropy of a softmax) count as such by a fault of Theano 1.0.5, so
nearly every program has some, at half a second or more each. But in memory Theano also knows modules by the hash of
their source and compiler options: that is what travels. ::

    master   hash -> file   --- with the functions --->   rank   the same source has the same hash: load the file

The files are deleted when the master ends. A rank that does not find one compiles as before.

Files are also told one by one, as soon as they are loaded here, so that other processes can load them, too (`watch`,
`preload`).
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, Dict, Mapping, Optional

from theano import config
from theano.gof import cmodule


def unshared() -> Dict[str, str]:
    """Return the files of the modules that the cache on disk does not give to other processes, by hash."""
    cache = cmodule._module_cache  # None if nothing has been compiled
    known = {} if cache is None else cache.module_hash_to_key_data
    return {
        of_source: data.get_entry()
        for of_source, data in list(known.items())
        if data.keys and not all(version for version, _ in data.keys)
    }


def share(files: Mapping[str, str]) -> None:
    """Have Theano find these modules of another process, by hash, as if this one had compiled them."""
    if files:
        known = cmodule.get_module_cache(config.compiledir).module_hash_to_key_data
        for of_source, file in files.items():
            if of_source not in known and os.path.exists(file):
                no_keys = os.path.join(os.path.dirname(file), "key.pkl")  # which is not there
                known[of_source] = cmodule.KeyData(set(), of_source, no_keys, file)


def watch(tell: Optional[Callable[[str], object]]) -> None:
    """Call ``tell(file)`` for every module that this process has loaded or will load; None ends that."""
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
    """Load a module of another process; before the first, read the index of the cache on disk, and ask the compiler.

    (What the processor can do, of which Theano makes part of every key.)
    """
    if cmodule._module_cache is None:
        # Tidying up would take the lock, which the other process may hold to compile.
        cmodule.get_module_cache(config.compiledir, {"do_refresh": False}).refresh(cleanup=False)
        if config.cxx:
            cmodule.GCC_compiler.compile_args()
    # Not into Theano's tables: it enters what is in them only once, when it reads the key. It is Python that finds the
    # module loaded.
    cmodule.dlimport(file)
