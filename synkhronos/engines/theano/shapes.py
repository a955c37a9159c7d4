"""Compute the shapes of variables from the shapes of a graph's inputs, mostly without computing the variables."""

from __future__ import annotations

from typing import Any, List, Sequence

import theano
import theano.tensor as T
from theano.compile.mode import optdb
from theano.gof import FunctionGraph, Query, Variable, graph
from theano.gof.graph import io_toposort
from theano.tensor.opt import ShapeFeature


def by_shapes_of_inputs(variable: Variable) -> Variable:
    """Return an equivalent expression, with shapes replaced by shapes of inputs where Theano can infer them."""
    inputs = [one for one in graph.inputs([variable]) if not isinstance(one, theano.Constant)]
    with theano.change_flags(compute_test_value="off"):
        fgraph = FunctionGraph(inputs, [variable])
        optdb.query(Query(include=["ShapeOpt", "canonicalize"])).optimize(fgraph)
        return theano.clone(fgraph.outputs[0], replace=dict(zip(fgraph.inputs, inputs)))


def shapes_of(variables: Sequence[Any]) -> List[Any]:
    """Return shapes as int64 vectors, empty for non-arrays; works for deep graphs, unlike Theano's `infer_shape`."""
    feature = ShapeFeature()
    feature.on_attach(FunctionGraph([], []))
    for node in io_toposort([], variables):
        feature.on_import(None, node, reason="shapes")
    found = []
    for variable in variables:
        feature.init_r(variable)
        lengths = feature.shape_of[variable] or ()
        found.append(T.stack([T.cast(length, "int64") for length in lengths]) if lengths else T.zeros((0,), "int64"))
    return found
