"""Repairs for objects of PyTensor's graphs whose pickles fail or are useless to other processes.

These are the objects of `graph.pickled_settings`, and reductions that have run as Python code. The tests are
test_operations_of_main_travel_by_value, test_debug_mode_checks_there_what_it_was_told_to, test_profiles_travel and
test_a_reduction_that_has_been_computed_travels. In addition, `graph.slim_pickles` omits functions' input values.
"""

from __future__ import annotations

from typing import Any, Optional

from pytensor.compile.debug.debugmode import DebugMode
from pytensor.compile.debug.profiling import ProfileStats
from pytensor.compile.ops import FromFunctionOp
from pytensor.tensor.elemwise import CAReduce

from ..graph.pickled_settings import reduce_debug_mode, reduce_from_function, reduce_profile

#: The attribute of a reduction that caches its NumPy ufunc, which the reduction creates again if necessary.
_UFUNC = "_ufunc"


def reduce(thing: Any) -> Any:
    """Return the ``__reduce__`` value of an object that needs repair; NotImplemented for all other objects."""
    if type(thing) is FromFunctionOp:
        return reduce_from_function(thing, FromFunctionOp)
    if type(thing) is ProfileStats:
        return reduce_profile(thing, _new_profile)
    if type(thing) is DebugMode:
        return reduce_debug_mode(thing)
    if isinstance(thing, CAReduce) and _UFUNC in vars(thing):
        new, args, state = thing.__reduce_ex__(2)[:3]
        return new, args, {name: value for name, value in state.items() if name != _UFUNC}
    return NotImplemented


def _new_profile(message: Optional[str], flag_time_thunks: bool) -> Any:
    return ProfileStats(False, flag_time_thunks, message=message)
