"""Shrinking of a wrong graph to the smallest that is wrong in the same way."""

import dataclasses
import itertools
import time
import warnings

import numpy as np
import pytest
from graph_check import WrongGraph, check, namespace_of
from graph_values import Recipe
from graphs import Input
from worlds import LINKER


def smaller(graph, values):
    """Yield graphs that are slightly smaller."""
    change = dataclasses.replace
    for part in ("outputs", "updates"):
        of_part = getattr(graph, part)
        for i in range(len(of_part)):
            yield change(graph, **{part: of_part[:i] + of_part[i + 1 :]})
    for i in reversed(range(len(graph.steps))):
        yield change(graph, steps=graph.steps[:i] + graph.steps[i + 1 :])
    for i, step in enumerate(graph.steps):
        for plain in ({}, {"n_steps": 1}):
            if step.options not in ({}, {"n_steps": 1}) and (step.how == "call") == (plain == {}):
                data = (
                    graph.selections(step)[0] if step.options.get("batches") or step.options.get("batch") else step.data
                )
                yield _with_step(graph, i, change(step, data=data, options=plain))
    for line in reversed(graph.lines):
        yield from _without_line(graph, line, values)
    if graph.n > 2:
        yield change(graph, n=2, root=min(graph.root, 1))
    if graph.root:
        yield change(graph, root=0)
    if graph.optimizer == "fast_run":
        yield change(graph, optimizer="fast_compile")
    if graph.rows is not None:
        yield change(graph, rows=None)
    for i, step in enumerate(graph.steps):
        yield from (_with_step(graph, i, one) for one in _smaller_data(graph, step))


def _with_step(graph, i, step):
    return dataclasses.replace(graph, steps=graph.steps[:i] + (step,) + graph.steps[i + 1 :])


def _without_line(graph, line, values):
    """Yield graphs that replace a line by a variable in its expression, or by an input with its value."""
    kind = {}
    for name, variable in values.items():
        kind[name] = (variable[0].dtype, variable[0].ndim)

    def replaced(name):
        rest = tuple(one.renamed({line.name: name}) for one in graph.lines if one is not line)
        return dataclasses.replace(
            graph,
            lines=rest,
            outputs=tuple(name if one == line.name else one for one in graph.outputs),
            updates=tuple((target, name if new == line.name else new) for target, new in graph.updates),
        )

    for name in line.names:
        if kind.get(name) == kind.get(line.name):
            yield replaced(name)
    if line.name not in values:
        return
    variable, value = values[line.name]
    n_rows = min(
        (np.shape(graph.steps[0].data[one.name])[one.axis] for one in graph.arguments if one.axis is not None),
        default=0,
    )
    calls = [step for step in graph.steps if step.how != "set_value"]
    if len(calls) != 1 or value.dtype.kind not in "fiubc":
        return
    number = itertools.count(len(graph.inputs) + 50)
    axes = [axis for axis, length in enumerate(value.shape) if length == n_rows] + [None]
    for axis in axes:
        name = next(f"{'p' if axis is None else 'x'}{i}" for i in number)
        found = replaced(name)
        steps = tuple(
            step if step.how == "set_value" else dataclasses.replace(step, data={**step.data, name: value})
            for step in found.steps
        )
        one = Input(name, str(value.dtype), value.ndim, axis)
        yield dataclasses.replace(found, inputs=(*found.inputs, one), steps=steps)


def _smaller_data(graph, step):
    if step.how == "set_value" or step.options:
        return
    axes = {one.name: one.axis for one in graph.arguments}
    n_rows = min((np.shape(step.data[name])[axis] for name, axis in axes.items() if axis is not None), default=0)
    for fewer in range(2, n_rows):
        data = {
            name: value if axes[name] is None else value[(slice(None),) * axes[name] + (slice(fewer),)]
            for name, value in step.data.items()
        }
        yield dataclasses.replace(step, data=data)
    for name, value in step.data.items():
        for simpler in (np.zeros_like, np.ones_like, np.round):
            if value.dtype.kind in "fiu" and not np.array_equal(simpler(value), value):
                if simpler is np.round or len(np.unique(value)) > 1:
                    yield dataclasses.replace(step, data={**step.data, name: simpler(value).astype(value.dtype)})


def size_of(graph):
    """Return the size of a graph, a tuple for comparisons."""
    return (
        len(graph.lines) + len(graph.outputs) + len(graph.updates),
        len(graph.steps),
        sum(np.size(value) for step in graph.steps for value in step.data.values()),
        len(graph.inputs),
        graph.n,
        graph.root,
        graph.optimizer == "fast_run",
        sum(bool(step.options) for step in graph.steps),
        sum(len(np.unique(value)) for step in graph.steps for value in step.data.values()),
        sum(len(repr(value.tolist())) for step in graph.steps for value in step.data.values()),
    )


def values_of(graph):
    """Return the variables and values of a graph's first call, by name; {} if they cannot be computed."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            names = namespace_of(graph)
            step = next(step for step in graph.steps if step.how != "set_value")
            selected = graph.selections(step)[0]
            inputs = [names[one.name] for one in graph.inputs]
            lines = [line.name for line in graph.lines]
            computed = Recipe(inputs, [names[name] for name in lines])(
                [graph.initial[one.name] if one.is_shared else selected[one.name] for one in graph.inputs]
            )
            found = {name: (names[name], np.asarray(value)) for name, value in zip(lines, computed)}
            return {**{one.name: (names[one.name], None) for one in graph.inputs}, **found}
    except Exception:
        return {}


def shortest(wrong, launcher="threads", linker=LINKER, seconds=60.0):
    """Return the smallest graph found to be wrong in the same way, as a `WrongGraph`."""
    until, graph = time.monotonic() + seconds, wrong.graph.pruned()
    found = True
    while found and time.monotonic() < until:
        found = False
        for candidate in smaller(graph, values_of(graph)):
            if time.monotonic() > until:
                break
            candidate = candidate.pruned()
            if (
                not (candidate.outputs or candidate.updates)
                or not candidate.steps
                or not size_of(candidate) < size_of(graph)
            ):
                continue
            try:
                check(candidate, launcher, linker)
            except WrongGraph as other:
                if other.kind == wrong.kind:
                    graph, wrong, found = other.graph.pruned(), other, True
                    break
            except (Exception, pytest.skip.Exception):
                continue
    return wrong if wrong.graph is graph else WrongGraph(wrong.kind, str(wrong).split(": ", 1)[1], graph)
