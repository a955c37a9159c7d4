"""Shapes of a graph's variables from those of its inputs, mostly without computing the variables themselves."""

from __future__ import annotations

from typing import Any, List, Sequence

import theano
import theano.tensor as T
from theano.compile.mode import optdb
from theano.gof import FunctionGraph, Query, Variable, graph
from theano.gof.graph import io_toposort
from theano.tensor.opt import ShapeFeature


def by_shapes_of_inputs(variable: Variable) -> Variable:
    """Return an equal expression in which all shapes are those of the graph's inputs, as far as Theano knows them."""
    inputs = [one for one in graph.inputs([variable]) if not isinstance(one, theano.Constant)]
    with theano.change_flags(compute_test_value="off"):
        fgraph = FunctionGraph(inputs, [variable])
        optdb.query(Query(include=["ShapeOpt", "canonicalize"])).optimize(fgraph)
        return theano.clone(fgraph.outputs[0], replace=dict(zip(fgraph.inputs, inputs)))


def shapes_of(variables: Sequence[Any]) -> List[Any]:
    """Return, for every variable, its shape as an int64 vector: of no entries if it is not an array.

    What Theano's own ``theano.compile.builders.infer_shape`` does, for graphs of any depth: that one is recursive.
    """
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
