"""Counts of Theano's profiler, summed over the ranks."""

from __future__ import annotations

import copy
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

from theano.compile.profiling import ProfileStats


class Counts(NamedTuple):
    """Counts of functions' profiles, without their graphs."""

    calls: int
    call_time: float
    vm_time: float
    nodes: List[List[Tuple[float, int, bool]]]  # by function and node: time, executions, whether in C


def count(functions: Sequence[Any]) -> Optional[Counts]:
    """Return the functions' counts; None if the first function is not profiled."""
    profiles = {id(one.profile): one.profile for one in functions if one.profile}  # functions may share a profile
    if not functions[0].profile:
        return None
    nodes = [
        [
            (one.profile.apply_time[node], one.profile.apply_callcount[node], one.profile.apply_cimpl[node])
            if one.profile and node in one.profile.apply_time
            else (0.0, 0, False)
            for node in one.maker.fgraph.toposort()
        ]
        for one in functions
    ]
    stats = profiles.values()
    return Counts(
        sum(each.fct_callcount for each in stats),
        sum(each.fct_call_time for each in stats),
        sum(each.vm_call_time for each in stats),
        nodes,
    )


def merge(functions: Sequence[Any], counts: Sequence[Counts]) -> ProfileStats:
    """Return one profile of the functions with the counts of all ranks."""
    merged = copy.copy(functions[0].profile)
    merged.fct_callcount = sum(each.calls for each in counts)
    merged.fct_call_time = sum(each.call_time for each in counts)
    merged.vm_call_time = sum(each.vm_time for each in counts)
    merged.apply_time, merged.apply_callcount, merged.apply_cimpl = {}, {}, {}
    for each in counts:
        for one, of_nodes in zip(functions, each.nodes):
            for node, (time, executions, in_c) in zip(one.maker.fgraph.toposort(), of_nodes):
                merged.apply_time[node] = merged.apply_time.get(node, 0.0) + time
                merged.apply_callcount[node] = merged.apply_callcount.get(node, 0) + executions
                merged.apply_cimpl[node] = merged.apply_cimpl.get(node, False) or in_c
    return merged
