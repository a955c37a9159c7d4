"""Snapshots of functions before compilation, and the compilation of further graphs from them."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ...sharding import Placement
from ..exact import SplitGraph
from . import collectives, states
from .dividing import divided
from .library import Library
from .shapes import shapes_of


class Snapshot(NamedTuple):
    """A function before compilation, with givens substituted and default updates added."""

    inputs: List[Any]
    outputs: List[Any]
    updates: List[Tuple[Any, Any]]
    settings: Dict[str, Any]  # the remaining keyword arguments of the library's ``function``
    halves: Optional[SplitGraph] = None  # of an exact function: the graph before and after the split
    has_late_outputs: bool = False  # whether outputs differ from those of the function that the program calls
    streams: Sequence[Any] = ()  # of an exact function: the random states that all ranks share
    placements: Optional[List[Placement]] = None  # of an exact function: the placements of its expressions

    def expressions(self) -> List[Any]:
        """Return the outputs, then the new values of updates; collectives are numbered in this order."""
        return [output.variable for output in self.outputs] + [new for _, new in self.updates]

    def with_expressions(self, library: Library, new: Sequence[Any]) -> Snapshot:
        """Return the snapshot with the equivalent expressions ``new`` in place of its own."""
        outputs = [library.Out(one, output.borrow) for one, output in zip(new, self.outputs)]
        updates = [(target, one) for (target, _), one in zip(self.updates, new[len(outputs) :])]
        return self._replace(outputs=outputs, updates=updates)

    def is_joint(self, library: Library) -> bool:
        """Return whether all ranks execute every call and update, even ranks without rows, which have weight 0.

        This is necessary if the graph has collectives, and for exact functions, because replicated updates must stay
        equal on all ranks and the graph may contain checks.
        """
        return self.halves is not None or bool(collectives.of_calls(library, self.expressions()))


class Source(NamedTuple):
    """The expressions of a function before compilation; ``givens`` replace variables in them."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    updates: Sequence[Tuple[Any, Any]] = ()
    givens: Sequence[Tuple[Any, Any]] = ()

    def compiled(self, library: Library, **settings: Any) -> Tuple[Any, Source]:
        """Return the compiled function, and its source; all default updates are listed."""
        settings.update(updates=list(self.updates), givens=list(self.givens), no_default_updates=True)
        settings.update(on_unused_input="ignore")
        return library.function.original(list(self.inputs), list(self.outputs), **settings), self


def take(
    library: Library,
    inputs: Sequence[Any],
    outputs: Any,
    updates: Sequence[Tuple[Any, Any]],
    givens: Any,
    name: str,
    mode: Any = None,
    allow_input_downcast: Optional[bool] = None,
    no_default_updates: Any = False,
    rebuild_strict: bool = True,
    accept_inplace: bool = False,
    profile: Any = None,
    on_unused_input: Any = None,
) -> Snapshot:
    """Return the snapshot of a function from the arguments of the library's ``function``."""
    wrapped: List[Any] = []
    updates, givens = list(updates or ()), list(givens.items() if isinstance(givens, dict) else givens or ())
    for given in inputs:
        if isinstance(given, library.Variable):
            given = library.In(given, allow_downcast=allow_input_downcast)
        given = copy.copy(library.convert_function_input(given))
        state = states.state_of(given)
        if state is not None:
            if given.implicit:
                givens.append((given.variable, state))
            if given.update is not None or not given.implicit:  # a value passed by the caller is also stored
                updates.append((state, given.variable if given.update is None else given.update))
            given = None if given.implicit else states.without_state(given)
        if given is not None:
            wrapped.append(given)
    if isinstance(outputs, dict):
        outputs = [outputs[key] for key in sorted(outputs)]
    elif not isinstance(outputs, (list, tuple)):
        outputs = [] if outputs is None else [outputs]
    # Like the library's ``function``, reuse inputs, constants and shared variables, and copy everything else.
    _, cloned, (_, new_values, collected, _) = library.rebuild_collect_shared(
        list(outputs),
        [given.variable for given in wrapped],
        givens,
        updates,
        rebuild_strict,
        copy_inputs_over=True,
        no_default_updates=no_default_updates,
    )
    return Snapshot(
        wrapped,
        [output if isinstance(output, library.SymbolicOutput) else library.Out(output) for output in cloned],
        [(target, new_values[target]) for target, _ in collected],
        dict(mode=library.get_mode(mode), name=name, accept_inplace=accept_inplace, profile=profile),
    )


def as_one_operation(library: Library, snapshot: Snapshot, outputs: Any) -> Tuple[Any, List[Tuple[Any, Any]]]:
    """Return outputs, in the form of ``outputs``, and updates with the same types, computed by a single operation."""
    expressions = snapshot.expressions()
    if any(getattr(node.op, "destroy_map", None) for node in library.io_toposort([], expressions)):
        raise ValueError("the graph contains operations in place, which the library may refuse")
    inputs = [one for one in library.graph_inputs(expressions) if not isinstance(one, library.Constant)]
    after = snapshot.with_expressions(library, library.Draft().results(expressions, inputs))
    found: Any = after.outputs
    if isinstance(outputs, dict):
        found = dict(zip(sorted(outputs), found))
    elif not isinstance(outputs, (list, tuple)):
        found = found[0] if found else None
    return found, after.updates


def compile_variant(
    library: Library,
    snapshot: Snapshot,
    sliced: bool,
    as_inputs: Sequence[Any],
    is_random: Callable[[Any], bool],
    label: Callable[[Any], str],
    divides: bool = False,
) -> Tuple[Any, Source, Sequence[str]]:
    """Compile another graph of the function (see `Engine.variant`); return why it computes new values whole.

    A value that it divides has the reason ""; see `dividing`. The source, for JAX, divides none.
    """
    reasons: Sequence[str] = ()
    undivided: Sequence[Any] = ()
    if sliced and snapshot.halves is not None:
        snapshot = _first_half(library, snapshot, snapshot.halves, is_random)
    replaced = [(shared, shared.type(shared.name)) for shared in as_inputs]
    # New inputs have no names, because the input names of a function must be unique.
    inputs = snapshot.inputs + [library.In(variable, autoname=False) for _, variable in replaced]
    outputs, updates = snapshot.outputs, snapshot.updates
    if snapshot.is_joint(library):
        # Updates must wait until the last collective has succeeded on all ranks, which only the caller can determine.
        after = snapshot
        with library.without_test_values():
            if divides and not sliced:
                after, reasons = in_parts(library, snapshot, is_random)
            ordered, _ = collectives.in_order(library, after.expressions())
            if "" in reasons:
                undivided, _ = collectives.in_order(library, snapshot.expressions())
        outputs, updates = [library.Out(output) for output in ordered], []
    elif sliced:
        # The next call may overwrite a borrowed output while the outputs of earlier slices are still needed.
        outputs = [library.Out(output.variable) for output in outputs]
        outputs += [library.Out(new) for target, new in updates if not is_random(target)]
        updates = [(target, new) for target, new in updates if is_random(target)]
    suffix = ", ".join(["sliced"] * sliced + [f"{label(shared)} as input" for shared in as_inputs])
    name = snapshot.settings["name"]
    settings = dict(snapshot.settings, name=f"{name} ({suffix})" if suffix else name)
    compiled, source = Source(inputs, outputs, updates, replaced).compiled(library, **settings)
    if "" in reasons:
        source = source._replace(outputs=[library.Out(output) for output in undivided])
    return compiled, source, reasons


def in_parts(library: Library, snapshot: Snapshot, is_random: Callable[[Any], bool]) -> Tuple[Snapshot, Sequence[str]]:
    """Return the snapshot with new values divided by elements if possible, and why each is whole; see `dividing`."""
    if snapshot.halves is None:
        return snapshot, ()
    n_outputs, of_all = len(snapshot.outputs), zip(snapshot.updates, snapshot.halves.replicated_updates)
    targets = [target if same and not is_random(target) else None for (target, _), same in of_all]
    expressions, reasons = divided(library, snapshot.expressions(), [*[None] * n_outputs, *targets])
    return snapshot.with_expressions(library, expressions), reasons[n_outputs:]


def _first_half(library: Library, snapshot: Snapshot, halves: SplitGraph, is_random: Callable[[Any], bool]) -> Snapshot:
    """Return the snapshot for slices; its outputs also include values that cross the split, and random states."""
    nothing = library.shared(0).zeros_like()
    outputs = [nothing if i in halves.after_split else output.variable for i, output in enumerate(snapshot.outputs)]
    states = [new for target, new in snapshot.updates if is_random(target)]
    found = [library.Out(one) for one in (*outputs, *halves.parts, *states)]
    return snapshot._replace(outputs=found, updates=[], halves=None)


def compile_second_half(
    library: Library, snapshot: Snapshot, as_inputs: Sequence[Any], is_random: Callable[[Any], bool]
) -> Tuple[Any, Source]:
    """Compile the part of an exact function that runs after all slices; see `Engine.after_collective`."""
    halves = snapshot.halves
    assert halves is not None
    parts = [(part, part.type()) for part in halves.parts]
    outputs = [snapshot.outputs[i] for i in halves.after_split]
    news = [library.Out(new) for target, new in snapshot.updates if not is_random(target)]
    replaced = [(shared, shared.type(shared.name)) for shared in as_inputs]
    with library.without_test_values():
        ordered, _ = collectives.in_order(library, [output.variable for output in (*outputs, *news)])
    inputs = snapshot.inputs + [library.In(variable, autoname=False) for _, variable in (*replaced, *parts)]
    settings = dict(snapshot.settings, name=f"{snapshot.settings['name']} (after slices)")
    source = Source(inputs, [library.Out(output) for output in ordered], (), replaced + parts)
    return source.compiled(library, **settings)


def compile_shapes(library: Library, snapshot: Snapshot, as_inputs: Sequence[Any]) -> Tuple[Any, Source]:
    """Compile the function that returns the outputs' shapes; see `Engine.shapes`."""
    replaced = [(shared, shared.type(shared.name)) for shared in as_inputs]
    inputs = snapshot.inputs + [library.In(variable, autoname=False) for _, variable in replaced]
    shapes = shapes_of(library, [output.variable for output in snapshot.outputs])
    source = Source(inputs, [library.Out(shape) for shape in shapes], (), replaced)
    return source.compiled(library, mode=library.small, name=f"{snapshot.settings['name']} (shapes)")


def of_copy(
    library: Library, snapshot: Snapshot, copied: Any, swap: Dict[Any, Any], delete_updates: Optional[bool]
) -> Snapshot:
    """Return the snapshot of a copied function; ``swap`` replaces shared variables."""
    updates = [] if delete_updates else snapshot.updates
    halves = snapshot.halves
    expressions = snapshot._replace(updates=updates).expressions() + ([] if halves is None else halves.parts)
    _, cloned, _ = library.rebuild_collect_shared(
        expressions,
        [given.variable for given in snapshot.inputs],
        swap,
        copy_inputs_over=True,
        no_default_updates=True,
    )
    n_outputs, n_parts = len(snapshot.outputs), len(expressions) - len(snapshot.outputs) - len(updates)
    if halves is not None:
        common = halves.replicated_updates[: len(updates)]
        halves = halves._replace(parts=cloned[len(cloned) - n_parts :], replicated_updates=common)
    return Snapshot(
        snapshot.inputs,
        [library.Out(new, output.borrow) for new, output in zip(cloned, snapshot.outputs)],
        [(swap.get(target, target), new) for (target, _), new in zip(updates, cloned[n_outputs:])],
        dict(snapshot.settings, name=copied.name, profile=copied.profile),
        halves,
        snapshot.has_late_outputs,
        [swap.get(state, state) for state in snapshot.streams],
        snapshot.placements and snapshot.placements[: n_outputs + len(updates)],
    )
