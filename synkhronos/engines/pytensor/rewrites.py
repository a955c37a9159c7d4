"""Early application of a mode's rewrites that may change values; see `graph.rewrites`."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

from pytensor import config
from pytensor.compile.mode import Mode, optdb
from pytensor.graph.basic import Constant, clone_get_equiv
from pytensor.graph.features import PreserveVariableAttributes
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import MergeOptimizer
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import graph_inputs

from ..graph.rewrites import END, MADE


def rewritten(outputs: Sequence[Any], mode: Any, left_out: Optional[Sequence[str]]) -> Tuple[List[Any], Any]:
    """Return equivalent expressions, and the mode that applies the remaining rewrites; see `graph.rewrites`.

    ``left_out`` lists names and tags of rewrites to skip; None skips all rewrites but the merging of equal operations.
    """
    inputs = [one for one in graph_inputs(outputs) if not isinstance(one, Constant)]
    found = mode.provided_optimizer
    # New variables keep the creation traces of the variables that they replace, so no new traces are needed.
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
                # Exclude only whole passes: other passes keep rewrites that are tagged with an excluded pass's name.
                left = found.excluding(*MADE)
                # The mode's own query excludes rewrites that its linker does not support.
                left.subquery = {**dict.fromkeys(mode.optdb._names, mode._optimizer), **found.subquery}
                mode = Mode(mode.linker, left, mode.optdb)
        new = dict(zip(fgraph.inputs, inputs))
        clone_get_equiv(fgraph.inputs, fgraph.outputs, copy_inputs=False, copy_orphans=False, memo=new)
    return [new[one] for one in fgraph.outputs], mode


def infer_shapes(fgraph: Any) -> None:
    optdb.query(RewriteDatabaseQuery(include=["ShapeOpt", "canonicalize"])).rewrite(fgraph)
