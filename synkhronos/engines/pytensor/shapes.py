"""Compute the shapes of variables from the shapes of a graph's inputs, mostly without computing the variables."""

from __future__ import annotations

from typing import Any, List, Sequence

import pytensor.tensor as pt
from pytensor.compile.mode import optdb
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.rewriting.shape import ShapeFeature

from .traversal import io_toposort


def by_shapes_of_inputs(variable: Variable) -> Variable:
    """Return an equivalent expression, with shapes replaced by shapes of inputs where PyTensor can infer them."""
    inputs = [one for one in graph_inputs([variable]) if not isinstance(one, Constant)]
    fgraph = FunctionGraph(inputs, [variable], clone=True)
    optdb.query(RewriteDatabaseQuery(include=["ShapeOpt", "canonicalize"])).rewrite(fgraph)
    return clone_replace(fgraph.outputs[0], replace=dict(zip(fgraph.inputs, inputs)))


def shapes_of(variables: Sequence[Any]) -> List[Any]:
    """Return every variable's shape as an int64 vector, which is empty for variables that are not arrays."""
    feature = ShapeFeature()
    feature.on_attach(FunctionGraph([], []))
    is_lazy = not hasattr(feature, "init_r")  # since PyTensor 3.1
    for node in io_toposort([], variables):
        feature.on_import(None, node, reason="shapes")
        for output in node.outputs if is_lazy else ():
            feature.shape_tuple(output)  # early, because a long chain would otherwise recurse too deeply
    found = []
    for variable in variables:
        if is_lazy:
            lengths = feature.shape_tuple(variable) or ()
        else:
            feature.init_r(variable)
            lengths = feature.shape_of[variable] or ()
        found.append(pt.stack([pt.cast(one, "int64") for one in lengths]) if lengths else pt.zeros((0,), "int64"))
    return found
