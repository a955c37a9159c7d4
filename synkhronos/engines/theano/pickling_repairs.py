"""Objects of Theano's graphs that Theano itself cannot pickle, or not so that another process can use them.

===================================  ===================================  ====================================================
What Theano does                     What we do                           The test that holds it
===================================  ===================================  ====================================================
A ``Function`` pickles the values    Send the maker, name and             test_the_value_on_the_master_does_not_matter,
of its inputs and compares them on   ``trust_input`` alone                test_defaults_and_trust_input
arrival, which fails for NaN         (`GraphEngine.restored`)
``ScipyGer`` keeps SciPy's routine,  Leave the routine out: each rank     test_outer_products_travel
which does not pickle, in the tag    looks it up in its first call
of its node
``as_op`` makes operations that      Send the Python function by value,   test_functions_made_operations_in_main
pickle by module and name            if it is from ``__main__`` or
                                     cannot be imported
``DebugMode`` forgets what it was    Send these settings beside its       test_debug_mode_checks_there_what_it_was_told_to
told to check                        state
A ``ProfileStats`` keeps the nodes   Send an empty one: each rank counts  test_profile_travels
that it has counted                  its own calls
A reduction on a GPU keeps its       Leave the kernel out: it is          test_a_function_that_was_called_before_still_travels
compiled kernel, which does not      compiled again in the first call
pickle, in its node
===================================  ===================================  ====================================================
"""

from __future__ import annotations

import pickle
from typing import Any, Dict, Optional

from theano.compile.debugmode import DebugMode
from theano.compile.ops import FromFunctionOp
from theano.compile.profiling import ProfileStats
from theano.gof import Apply
from theano.gof.utils import scratchpad

from . import gpu

_BLAS = "local_ger"  # the attribute of the tag in which `ScipyGer` keeps SciPy's routine


def reduce(thing: Any) -> Any:
    """Return what ``__reduce__`` should return for one of these objects, NotImplemented for all others."""
    if type(thing) is FromFunctionOp:
        return _reduce_from_function(thing)
    if isinstance(thing, Apply) and gpu.KERNEL_OF_REDUCTION in vars(thing):
        return gpu.without_kernel(thing)
    if isinstance(thing, scratchpad) and _BLAS in vars(thing):
        return _new_tag, ({name: value for name, value in vars(thing).items() if name != _BLAS},)
    if type(thing) is ProfileStats:
        return _new_profile, (thing.message, thing.flag_time_thunks)
    if type(thing) is DebugMode:
        checks = ("check", "stability", "require")
        settings = {name: value for name, value in vars(thing).items() if name.split("_")[0] in checks}
        return _new_debug_mode, (thing.__getstate__(), settings)
    return NotImplemented


def _reduce_from_function(op: Any) -> Any:
    function, infer_shape = op._FromFunctionOp__fn, op._FromFunctionOp__infer_shape
    if function.__module__ != "__main__":
        try:
            return op.__reduce__()
        except pickle.PicklingError:
            pass
    return FromFunctionOp, (function, op.itypes, op.otypes, infer_shape)


def _new_tag(state: Dict[str, Any]) -> Any:
    tag = scratchpad()
    vars(tag).update(state)
    return tag


def _new_profile(message: Optional[str], flag_time_thunks: bool) -> Any:
    return ProfileStats(False, flag_time_thunks, gpu_checks=False, message=message)


def _new_debug_mode(state: Any, settings: Dict[str, Any]) -> Any:
    mode = DebugMode.__new__(DebugMode)
    mode.__setstate__(state)
    vars(mode).update(settings)
    return mode
