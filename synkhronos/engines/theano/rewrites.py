"""The rewrites of a mode that may change values, made before collectives are put into a graph."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import theano
from theano.compile.mode import Mode, optdb
from theano.gof import Constant, FunctionGraph, Query, graph
from theano.gof.opt import MergeOptimizer
from theano.gof.toolbox import PreserveVariableAttributes

from ..graph.rewrites import END, MADE


def rewritten(outputs: Sequence[Any], mode: Any, left_out: Optional[Sequence[str]]) -> Tuple[List[Any], Any]:
    """Return equal expressions, and the mode for what is left to do; see `graph.rewrites`.

    Parameters
    ----------
    outputs : sequence of variables
    mode : Mode
    left_out : sequence of str, optional
        Names and tags of rewrites that are not made; None of all but that equal operations become one.
    """
    inputs = [one for one in graph.inputs(outputs) if not isinstance(one, Constant)]
    found = mode.provided_optimizer
    # Where variables were made is where the program made those that they replace: it is not looked up again.
    with theano.change_flags(**{"traceback.limit": 0}):
        fgraph = FunctionGraph(inputs, list(outputs), features=[PreserveVariableAttributes()])
        if not isinstance(found, Query) or not found.include or left_out is None:
            MergeOptimizer().optimize(fgraph)
        else:
            query = Query(
                *(found.include, found.require, found.exclude.union(left_out), found.subquery, END),
                found.extra_optimizations,
            )
            optdb.query(query).optimize(fgraph)
            if type(mode) is Mode and "fast_run" in found.include:
                mode = Mode(mode.provided_linker, found.excluding(*MADE))
        new = dict(zip(fgraph.inputs, inputs))
        graph.clone_get_equiv(fgraph.inputs, fgraph.outputs, copy_inputs=False, copy_orphans=False, memo=new)
    return [new[one] for one in fgraph.outputs], mode
