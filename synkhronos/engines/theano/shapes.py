"""Shapes of a graph's variables from those of its inputs, mostly without computing the variables themselves."""

from __future__ import annotations

from typing import Any, List, Sequence

import theano.tensor as T
from theano.gof import FunctionGraph
from theano.gof.graph import io_toposort
from theano.tensor.opt import ShapeFeature


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
