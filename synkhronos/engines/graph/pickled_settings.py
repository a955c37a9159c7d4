"""Objects of a program's graphs that pickle without what they were told, or with what no other process can use.

==============================  ==============================
What the libraries do           What we do
==============================  ==============================
``as_op`` makes operations      Send the Python function by
that pickle by module and name  value, if it is in __main__
                                or cannot be imported
``DebugMode`` forgets what it   Send these settings beside
was told to check               its state
A ``ProfileStats`` keeps the    Send an empty one: each rank
nodes that it has counted       counts its own calls
==============================  ==============================
"""

from __future__ import annotations

import pickle
from typing import Any, Callable, Dict


def reduce_from_function(op: Any, cls: Any) -> Any:
    """Return what ``__reduce__`` should return for an operation that was made of a Python function."""
    function, infer_shape = op._FromFunctionOp__fn, op._FromFunctionOp__infer_shape
    if function.__module__ != "__main__":
        try:
            return op.__reduce__()
        except pickle.PicklingError:
            pass
    return cls, (function, op.itypes, op.otypes, infer_shape)


def reduce_profile(profile: Any, new: Callable[..., Any]) -> Any:
    """Return the same for a profile."""
    return new, (profile.message, profile.flag_time_thunks)


def reduce_debug_mode(mode: Any) -> Any:
    """Return the same for a DebugMode."""
    checks = ("check", "stability", "require")
    settings = {name: value for name, value in vars(mode).items() if name.split("_")[0] in checks}
    return _new_debug_mode, (type(mode), mode.__getstate__(), settings)


def _new_debug_mode(cls: Any, state: Any, settings: Dict[str, Any]) -> Any:
    mode = cls.__new__(cls)
    mode.__setstate__(state)
    vars(mode).update(settings)
    return mode
