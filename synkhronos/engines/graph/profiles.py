"""Counts from the libraries' profilers, summed over the ranks."""

from __future__ import annotations

import copy
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

#: Returns the key of a graph's node in the dictionaries of a profile.
Key = Callable[[Any, Any], Any]


class Counts(NamedTuple):
    """Counts from functions' profiles, without the graphs."""

    calls: int
    call_time: float
    vm_time: float
    nodes: List[List[Tuple[float, int, bool]]]  # by function and node: time, executions, whether in C


def count(functions: Sequence[Any], key: Key) -> Optional[Counts]:
    """Return the profiler's counts for the functions; None if the first function is not profiled."""
    stats = {id(one.profile): one.profile for one in functions if one.profile}.values()  # functions may share a profile
    if not functions[0].profile:
        return None
    nodes = [
        [
            (one.profile.apply_time[at], one.profile.apply_callcount[at], one.profile.apply_cimpl[node])
            if one.profile and at in one.profile.apply_time
            else (0.0, 0, False)
            for node, at in _nodes(one, key)
        ]
        for one in functions
    ]
    return Counts(
        sum(each.fct_callcount for each in stats),
        sum(each.fct_call_time for each in stats),
        sum(each.vm_call_time for each in stats),
        nodes,
    )


def merge(functions: Sequence[Any], counts: Sequence[Counts], key: Key) -> Any:
    """Return one profile of the functions with the counts of all ranks."""
    merged = copy.copy(functions[0].profile)
    merged.fct_callcount = sum(each.calls for each in counts)
    merged.fct_call_time = sum(each.call_time for each in counts)
    merged.vm_call_time = sum(each.vm_time for each in counts)
    merged.apply_time, merged.apply_callcount, merged.apply_cimpl = {}, {}, {}
    for each in counts:
        for one, of_nodes in zip(functions, each.nodes):
            for (node, at), (time, executions, in_c) in zip(_nodes(one, key), of_nodes):
                merged.apply_time[at] = merged.apply_time.get(at, 0.0) + time
                merged.apply_callcount[at] = merged.apply_callcount.get(at, 0) + executions
                merged.apply_cimpl[node] = merged.apply_cimpl.get(node, False) or in_c
    return merged


def _nodes(function: Any, key: Key) -> List[Tuple[Any, Any]]:
    return [(node, key(function.maker.fgraph, node)) for node in function.maker.fgraph.toposort()]
