"""Compute the shapes of variables from the shapes of a graph's inputs, mostly without computing the variables."""

from __future__ import annotations

from typing import Any, List, Sequence

from .library import Library


def by_shapes_of_inputs(library: Library, variable: Any) -> Any:
    """Return an equivalent expression, with shapes replaced by shapes of inputs where the library can infer them."""
    inputs = [one for one in library.graph_inputs([variable]) if not isinstance(one, library.Constant)]
    with library.without_test_values():
        fgraph = library.FunctionGraph(inputs, [variable])
        library.infer_shapes(fgraph)
        return library.clone_replace(fgraph.outputs[0], replace=dict(zip(fgraph.inputs, inputs)))


def shapes_of(library: Library, variables: Sequence[Any]) -> List[Any]:
    """Return shapes as int64 vectors, empty for non-arrays; works for deep graphs, unlike Theano's `infer_shape`."""
    feature, tensor = library.ShapeFeature(), library.tensor
    feature.on_attach(library.FunctionGraph([], []))
    is_lazy = not hasattr(feature, "init_r")  # since PyTensor 3.1
    for node in library.io_toposort([], variables):
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
        lengths = [tensor.cast(length, "int64") for length in lengths]
        found.append(tensor.stack(lengths) if lengths else tensor.zeros((0,), "int64"))
    return found
