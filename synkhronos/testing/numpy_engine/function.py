"""Compiled functions of the NumPy engine."""

from __future__ import annotations

import inspect
from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...engines.exact import SplitGraph
from ...engines.observer import observer_of
from ...errors import ArgumentTypeError, ArgumentValueError
from .graph import Apply, In, NumpyVariable, Shared, apply, convert, describe, ordered, shared, substituted


class NumpyGraph(NamedTuple):
    """A function before compilation, with givens substituted and default updates included."""

    inputs: List[In]
    outputs: List[Any]
    updates: List[Tuple[Shared, Any]]
    keys: Optional[List[str]]
    single: bool
    name: Optional[str]
    inplace: bool
    halves: Optional[SplitGraph] = None  # only for exact functions

    def expressions(self) -> List[Any]:
        """Return the outputs and then the new values; collectives are numbered in this order."""
        return self.outputs + [new for _, new in self.updates]


def given_pairs(givens: Any) -> List[Tuple[Any, Any]]:
    """Return the givens as pairs of variables; values become shared variables."""
    pairs = givens.items() if isinstance(givens, dict) else givens or ()
    return [(old, new if isinstance(new, NumpyVariable) else shared(new)) for old, new in pairs]


def graph_of(
    inputs: Sequence[Any],
    outputs: Any,
    updates: Sequence[Tuple[Any, Any]],
    givens: Any,
    name: Optional[str] = None,
    inplace: bool = False,
    no_default_updates: bool = False,
) -> NumpyGraph:
    """Build the graph of a function as Theano does; with `inplace`, updates overwrite arrays of equal shapes."""
    wrapped = [given if isinstance(given, In) else In(given) for given in inputs]
    _check_variables("inputs", [given.variable for given in wrapped])
    wrapped = [given._replace(name=given.name or given.variable.name) for given in wrapped]
    keys = sorted(outputs) if isinstance(outputs, dict) else None
    single = isinstance(outputs, NumpyVariable)
    if outputs is None or isinstance(outputs, (list, tuple)):
        flat = list(outputs or ())
    else:
        flat = [outputs] if keys is None else [outputs[key] for key in keys]
    replaced = given_pairs(givens)
    _check_variables("outputs", flat)
    targets, new_values = [], []
    for target, expression in updates or ():
        if not isinstance(target, Shared):
            raise ArgumentTypeError("updates", "a shared variable to update", repr(target))
        if not isinstance(expression, NumpyVariable):
            expression = apply(np.array, convert(target.type, expression, f"update of {target!r}"))
        if expression.type is not None and expression.type[:2] != (target.type or ())[:2]:
            expected = f"{describe(target.type)} for the new value of {target!r}"
            raise ArgumentTypeError("updates", expected, describe(expression.type))
        targets.append(target)
        new_values.append(expression)
    flat, new_values = substituted(flat, replaced), substituted(new_values, replaced)
    order = ordered(flat + new_values)
    while not no_default_updates:
        # A default update may contain other shared variables with default updates.
        shareds = [node for node in order if isinstance(node, Shared) and node not in targets]
        more = [node for node in shareds if node.default_update is not None]
        if not more:
            break
        targets += more
        new_values += substituted([node.default_update for node in more], replaced)
        order = ordered(flat + new_values)
    return NumpyGraph(wrapped, flat, list(zip(targets, new_values)), keys, single, name, inplace)


def _check_variables(argument: str, values: Sequence[Any]) -> None:
    for index, value in enumerate(values):
        if not isinstance(value, NumpyVariable):
            raise ArgumentTypeError(f"{argument}[{index}]", "a variable", repr(value))


class NumpyFunction:
    """Compiled function, called like a Theano function."""

    def __init__(self, graph: NumpyGraph) -> None:
        order = ordered(graph.expressions())
        order += [target for target, _ in graph.updates if target not in order]
        inputs = [given.variable for given in graph.inputs]
        for node in order:
            if type(node) is NumpyVariable and node not in inputs:
                raise ArgumentValueError("inputs", "every variable of the graph", f"inputs without {node!r}")
        self.order = order  # pickled first, which avoids deep recursion
        self.inputs, self.outputs, self.updates, self.keys, self.single, self.name, self.inplace = graph[:7]

    def __call__(self, *args: Any, output_subset: Optional[Sequence[Any]] = None, **kwargs: Any) -> Any:
        parameters = [
            inspect.Parameter(f"_{i}" if given.name is None else given.name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for i, given in enumerate(self.inputs)
        ]
        bound = inspect.Signature(parameters).bind_partial(*args, **kwargs).arguments
        values = []
        for parameter, given in zip(parameters, self.inputs):
            value = bound.get(parameter.name, given.value)
            if value is None and given.variable.type is not None:
                raise TypeError(f"missing required input: {parameter.name}")
            values.append(convert(given.variable.type, value, f"input {parameter.name!r}"))
        if output_subset is not None and self.keys is not None:
            output_subset = [self.keys.index(key) for key in output_subset]
        chosen = range(len(self.outputs)) if output_subset is None else output_subset
        observers = list(filter(None, [observer_of(target.storage) for target, _ in self.updates]))
        for observer in observers:
            observer.unshare()
        try:
            results = self.evaluate(values, chosen)
        finally:
            for observer in observers:
                observer.updated()
        if self.keys is not None:
            return {self.keys[index]: result for index, result in zip(chosen, results)}
        return results[0] if self.single and output_subset is None else results

    def evaluate(self, values: Sequence[Any], chosen: Sequence[int]) -> List[Any]:
        """Return the chosen outputs for input values that are already converted, and apply the updates."""
        known = {id(given.variable): value for given, value in zip(self.inputs, values)}
        wanted = [self.outputs[index] for index in chosen]
        new_values = [expression for _, expression in self.updates]
        # Skip nodes that no chosen output or update needs, but keep the order of the numbered collectives.
        needed = {id(node) for node in ordered(wanted + new_values)} if len(chosen) < len(self.outputs) else None
        for node in self.order:
            if needed is not None and id(node) not in needed:
                continue
            if isinstance(node, Shared):
                known[id(node)] = node.storage[0]
            elif isinstance(node, Apply):
                value = node.function(*[known.get(id(arg), arg) for arg in node.args])
                known[id(node)] = value if node.type is None else np.asarray(value, node.type.dtype)
        leaves = [known[id(node)] for node in self.order if not isinstance(node, Apply) and id(node) in known]
        results: List[Any] = []
        for node in wanted:
            results.append(_own(known.get(id(node), node), leaves + results))
        self._update([known.get(id(node), node) for node in new_values], leaves + results)
        for given, value in zip(self.inputs, values):
            if given.mutable and isinstance(value, np.ndarray):
                value[...] = 0  # so that tests notice later uses of an overwritten array
        return results

    def _update(self, values: List[Any], leaves: List[Any]) -> None:
        """Store the new values in the variables' arrays (``inplace``) or as new arrays."""
        # As in Theano, updating a variable to another updated variable reuses the array: [(a, b), (b, a)] swaps arrays.
        free = {id(target.storage[0]) for target, _ in self.updates}
        own = []
        for (_, new), value in zip(self.updates, values):
            passes_on = not self.inplace and isinstance(new, Shared) and id(value) in free
            free.discard(id(value))
            own.append(value if passes_on else _own(value, leaves))
        for (target, _), value in zip(self.updates, own):
            old = target.storage[0]
            if self.inplace and isinstance(old, np.ndarray) and old.shape == value.shape:
                old[...] = value
            else:
                target.storage[0] = value


def _own(value: Any, leaves: Sequence[Any]) -> Any:
    """Return the value, or a copy if it is an array that shares memory with a leaf."""
    arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
    is_shared = isinstance(value, np.ndarray) and any(np.may_share_memory(value, leaf) for leaf in arrays)
    return value.copy() if is_shared else value
