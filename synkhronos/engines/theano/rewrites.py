"""Early application of a mode's rewrites that may change values; see `graph.rewrites`."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import theano
from theano.compile.mode import Mode, optdb
from theano.gof import Constant, FunctionGraph, Query, graph
from theano.gof.opt import MergeOptimizer
from theano.gof.toolbox import PreserveVariableAttributes
from theano.tensor import nnet

from ..graph.rewrites import END, MADE
from .formulas import IS_STABLE


def rewritten(outputs: Sequence[Any], mode: Any, left_out: Optional[Sequence[str]]) -> Tuple[List[Any], Any]:
    """Return equivalent expressions, and the mode for the remaining rewrites; see `engines.pytensor.rewrites`."""
    inputs = [one for one in graph.inputs(outputs) if not isinstance(one, Constant)]
    found = mode.provided_optimizer
    # New variables keep the creation traces of the variables that they replace, so no new traces are needed.
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
            if {"fast_run", "fast_compile"} & set(found.include):
                _tag_softmax(fgraph)
            if type(mode) is Mode and "fast_run" in found.include:
                # Exclude only whole passes: other passes keep rewrites that are tagged with an excluded pass's name.
                left = found.excluding(*MADE)
                left.subquery = {**dict.fromkeys(optdb._names, found), **found.subquery}
                mode = Mode(mode.provided_linker, left)
        new = dict(zip(fgraph.inputs, inputs))
        graph.clone_get_equiv(fgraph.inputs, fgraph.outputs, copy_inputs=False, copy_orphans=False, memo=new)
    return [new[one] for one in fgraph.outputs], mode


def infer_shapes(fgraph: Any) -> None:
    optdb.query(Query(include=["ShapeOpt", "canonicalize"])).optimize(fgraph)


def _tag_softmax(fgraph: Any) -> None:
    """Tag each softmax that Theano has not merged into a cross-entropy; `formulas` makes its logarithm stable."""
    for node in fgraph.apply_nodes:
        if isinstance(node.op, nnet.Softmax):
            setattr(node.outputs[0].tag, IS_STABLE, True)
