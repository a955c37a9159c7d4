"""Repairs for objects of Theano's graphs whose pickles fail or are useless to other processes.

==============================  ==============================  ====================================================
Fault in Theano                 Repair                          Test
==============================  ==============================  ====================================================
A ``Function`` compares input   Send only the maker, name and   test_the_value_on_the_master_does_not_matter,
values when it is unpickled,    ``trust_input``                 test_defaults_and_trust_input
which fails for NaN             (`graph.slim_pickles`)
``ScipyGer`` keeps SciPy's      Omit the routine, because       test_outer_products_travel
routine in the tag of its node  each rank looks it up when it
                                creates the function
``as_op`` creates operations    Send the Python function by     test_operations_of_main_travel_by_value
that pickle by module and name  value, if it is in __main__
                                or cannot be imported
``DebugMode`` loses the         Send these settings with        test_debug_mode_checks_there_what_it_was_told_to
settings of its checks          the mode's state
A ``ProfileStats`` keeps the    Send an empty object, because   test_profiles_travel
nodes that it has counted       each rank counts its own calls
A reduction on a GPU keeps its  Omit the kernel, which each     test_a_function_that_was_called_before_still_travels
compiled kernel in its node     rank creates again
==============================  ==============================  ====================================================
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from theano.compile.debugmode import DebugMode
from theano.compile.ops import FromFunctionOp
from theano.compile.profiling import ProfileStats
from theano.gof import Apply
from theano.gof.utils import scratchpad

from ..graph.pickled_settings import reduce_debug_mode, reduce_from_function, reduce_profile
from . import gpu

_BLAS = "local_ger"  # the tag's attribute where `ScipyGer` stores SciPy's routine


def reduce(thing: Any) -> Any:
    """Return the ``__reduce__`` value of an object that needs repair; NotImplemented for all other objects."""
    if type(thing) is FromFunctionOp:
        return reduce_from_function(thing, FromFunctionOp)
    if isinstance(thing, Apply) and gpu.KERNEL_OF_REDUCTION in vars(thing):
        return gpu.without_kernel(thing)
    if isinstance(thing, scratchpad) and _BLAS in vars(thing):
        return _new_tag, ({name: value for name, value in vars(thing).items() if name != _BLAS},)
    if type(thing) is ProfileStats:
        return reduce_profile(thing, _new_profile)
    if type(thing) is DebugMode:
        return reduce_debug_mode(thing)
    return NotImplemented


def _new_tag(state: Dict[str, Any]) -> Any:
    tag = scratchpad()
    vars(tag).update(state)
    return tag


def _new_profile(message: Optional[str], flag_time_thunks: bool) -> Any:
    return ProfileStats(False, flag_time_thunks, gpu_checks=False, message=message)
