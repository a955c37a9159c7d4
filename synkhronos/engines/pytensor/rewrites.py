"""The rewrites of a mode that may change values, made before collectives are put into a graph."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from pytensor import config
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant, clone_get_equiv
from pytensor.graph.features import PreserveVariableAttributes
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import graph_inputs

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
    inputs = [one for one in graph_inputs(outputs) if not isinstance(one, Constant)]
    found = mode.provided_optimizer
    # Where variables were made is where the program made those that they replace: it is not looked up again.
    with config.change_flags(traceback__limit=0):
        fgraph = FunctionGraph(inputs, list(outputs), features=[PreserveVariableAttributes()])
        if not isinstance(found, RewriteDatabaseQuery) or not found.include or left_out is None:
            MergeOptimizer().rewrite(fgraph)
        else:
            query = RewriteDatabaseQuery(
                *(found.include, found.require, found.exclude.union(left_out), found.subquery, END),
                found.extra_rewrites,
            )
            Mode(mode.linker, query, mode.optdb).optimizer.rewrite(fgraph)
            if type(mode) is Mode and "fast_run" in found.include:
                mode = Mode(mode.linker, found.excluding(*MADE), mode.optdb)
        new = dict(zip(fgraph.inputs, inputs))
        clone_get_equiv(fgraph.inputs, fgraph.outputs, copy_inputs=False, copy_orphans=False, memo=new)
    return [new[one] for one in fgraph.outputs], mode
