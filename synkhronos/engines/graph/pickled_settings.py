"""Repairs for objects whose pickles lose settings or include process-specific data.

``as_op`` pickles a Python function by name, so functions that are in ``__main__`` or cannot be imported are sent by
value. Pickles of ``DebugMode`` lack the settings of its checks, so these are sent with its state. ``ProfileStats``
keeps the nodes that it counted, so an empty object is sent instead.
"""

from __future__ import annotations

import pickle
from typing import Any, Callable, Dict


def reduce_from_function(op: Any, cls: Any) -> Any:
    """Return the ``__reduce__`` value of an operation made from a Python function."""
    function, infer_shape = op._FromFunctionOp__fn, op._FromFunctionOp__infer_shape
    if function.__module__ != "__main__":
        try:
            return op.__reduce__()
        except pickle.PicklingError:
            pass
    return cls, (function, op.itypes, op.otypes, infer_shape)


def reduce_profile(profile: Any, new: Callable[..., Any]) -> Any:
    return new, (profile.message, profile.flag_time_thunks)


def reduce_debug_mode(mode: Any) -> Any:
    checks = ("check", "stability", "require")
    settings = {name: value for name, value in vars(mode).items() if name.split("_")[0] in checks}
    return _new_debug_mode, (type(mode), mode.__getstate__(), settings)


def _new_debug_mode(cls: Any, state: Any, settings: Dict[str, Any]) -> Any:
    mode = cls.__new__(cls)
    mode.__setstate__(state)
    vars(mode).update(settings)
    return mode
