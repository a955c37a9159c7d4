"""Comparison of a call with the serial function: differences and their likely reasons.

::

    values on the ranks         copies of the master's        the call itself
    ----------------------      -----------------------       ---------------------------
    equal on all ranks?    -->  the serial function,   -->    outputs and updated values
    rows of all ranks           all rows of its inputs        on every rank: equal to
                                                              the serial function's?

`rank_values` defines the tolerance.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import cloudpickle
import numpy as np

from ..reductions import ReduceOp
from ..replication.replicator import replicator_of
from ..runtime.failures import add_note
from ..runtime.registry import Origin
from ..runtime.session import Session
from ..selection import Selection, moved, parse_per_rank
from ..sharding import Placement, Replicate, Unknown
from .default_ops import contradiction
from .plan import Argument
from .rank_values import Deviation, coarsest, deviation, pair, values_by_rank

DRAWS = "it draws random numbers, and every rank draws its own numbers"


class Difference(NamedTuple):
    """An output or variable that differs from the serial function's value."""

    name: str  # name of the output or shared variable, as in messages: outputs[0] (loss), w
    where: str  # the rank and time, for a variable: "on rank 1 after the call"
    value: Any  # the element that differs most, or the shape
    expected: Any  # the same element, or the shape, of the serial function's value
    reason: str  # the likely cause
    text: str  # the difference and its reason as a sentence

    def __str__(self) -> str:
        return self.text


class Comparison:
    """Result of `Function.compare`: true if the function was compared and nothing differs.

    Attributes
    ----------
    results : array, list or dict
        The result of the call.
    differences : list of Difference
    not_compared : str
        The reason why the serial function was not called; "" if it was called.
    """

    def __init__(self, results: Any, differences: List[Difference], not_compared: str = "") -> None:
        self.results, self.differences, self.not_compared = results, differences, not_compared

    def __bool__(self) -> bool:
        return not self.differences and not self.not_compared

    def __repr__(self) -> str:
        lines = [f"not compared: {self.not_compared}"] if self.not_compared else []
        lines += [each.text for each in self.differences]
        return "\n".join(lines) or "agrees with the serial function"


class SerialError(Exception):
    """Wraps an error of the serial function (``__cause__``); the caller may make the call without a comparison."""


class ComparedVariable(NamedTuple):
    """A shared variable to compare with the serial function: a dense array, but not a random state."""

    label: str
    short: str  # an expression for the variable in the program
    shared: Any
    number: int
    axis: Optional[int]  # axis of the rows of a sliceable variable
    is_state: bool  # whether it has the batch's rows, which are all on the master before and after a call


def compare(
    function: Any, session: Session, given: Given, call: Callable[[], Any], flat: Callable[[Any], List[Any]]
) -> Comparison:
    """Make a call and compare it with the serial function; see `Function.compare`.

    The session must be locked, and its ranks must have the function. ``flat`` returns the results of ``call`` as a
    list. If the serial function raises an exception, `SerialError` is raised, and the call is not made.
    """
    engine = function.engine
    variables = _variables(function, session)
    before = dict(
        zip((each.number for each in variables), values_by_rank(session, [each.number for each in variables]))
    )
    known = [*function._arguments.inputs, *engine.outputs(function._compiled)]
    types = [*(each.type for each in known), *(engine.shared_type(each.shared) for each in variables)]
    eps = coarsest(type_.dtype for type_ in types if type_ is not None)
    differences = _between_ranks(session, variables, before, eps)
    apart = [each.name for each in differences]
    if any(map(engine.is_random, function.get_shared())):
        return Comparison(call(), differences, DRAWS)
    joined = {
        id(each.shared): rows_of_all(before[each.number], each.axis, given.batch_s)
        for each in variables
        if each.axis is not None
    }
    try:
        compiled = function.compiled
        outputs, after = call_serially(engine, compiled, function.get_shared(), session, given, joined)
    except Exception as error:
        raise SerialError from error
    results = call()
    updated = [engine.identity(shared) for shared in engine.updated_in(function._variants.snapshot)]
    changed = [each for each in variables if engine.identity(each.shared) in updated]
    found = values_by_rank(session, [each.number for each in changed])
    differences += _of_outputs(function, compiled, given.subset, flat(results), outputs, eps, apart)
    placements: Any = None
    for each, parts in zip(changed, found):
        serial, old = after[engine.identity(each.shared)], before[each.number]
        differing = _of_update(each, parts, session.root, old[session.root], serial, eps, given.batch_s)
        if differing is None:
            continue
        rank, deviates = differing
        if placements is None:
            sharding = engine.sharding(function._variants.snapshot, function._variants.placements)
            placements = [None] * len(updated) if sharding is None else sharding.updates
        placement = placements[updated.index(engine.identity(each.shared))]
        mean_agrees = each.axis is None and not each.is_state and _mean_agrees(parts, old[session.root], serial, eps)
        reason = reason_of_update(each.short, placement, bool(function.exact), mean_agrees, apart)
        where = "on all ranks together" if rank is None else f"on rank {rank}"
        differences.append(
            _difference(each.label, f"{where} after the call", deviates, "in the serial program", reason)
        )
    return Comparison(results, differences)


def _variables(function: Any, session: Session) -> List[ComparedVariable]:
    """Return the function's dense variables, except random states, one per storage."""
    found: Dict[int, ComparedVariable] = {}
    axes = {function.engine.identity(shared): axis for shared, axis in function._variants.sliceable.items()}
    states = {function.engine.identity(shared) for shared in function._variants.states}
    for i, shared in enumerate(function.get_shared()):
        number = replicator_of(session).find(function.engine, shared)
        if number is None or function.engine.shared_type(shared) is None or function.engine.is_random(shared):
            continue
        place = f"f.get_shared()[{i}]"
        label, identity = function.engine.label(shared, place), function.engine.identity(shared)
        one = ComparedVariable(label, shared.name or place, shared, number, axes.get(identity), identity in states)
        found.setdefault(number, one)
    return list(found.values())


def _between_ranks(
    session: Session, variables: Sequence[ComparedVariable], before: Any, eps: float
) -> List[Difference]:
    """Return a difference for each variable without rows that differs between ranks before the call."""
    differences = []
    for each in variables:
        if each.axis is not None or each.is_state:
            continue
        parts = before[each.number]
        for rank, part in enumerate(parts):
            deviates = deviation(part, parts[session.root], eps)
            if deviates is not None:
                entry = session.context.registry.shareds[each.number]
                reason = reason_of_ranks(each.short, entry.origin is Origin.PROGRAM, part.ndim > 0)
                where = f"on rank {rank} before the call"
                differences.append(_difference(each.label, where, deviates, "on the master", reason))
                break
    return differences


def _of_outputs(
    function: Any,
    compiled: Any,
    subset: Optional[Sequence[int]],
    results: Sequence[Any],
    expected: Sequence[Any],
    eps: float,
    apart: Sequence[str],
) -> List[Difference]:
    """Return the outputs that differ; outputs with op None are the master's own, so they are skipped."""
    engine, differences = function.engine, []
    placements: Optional[List[Placement]] = None
    described = engine.outputs(compiled)
    for i, result, serial in zip(range(len(described)) if subset is None else subset, results, expected):
        op = function._output_ops[i]
        if op.name is None or described[i].type is None:
            continue
        deviates = deviation(engine.to_host(result), serial, eps)
        if deviates is None:
            continue
        if placements is None:
            placements = engine.placed(function._variants.snapshot, function._variants.placements) or [None] * len(
                described
            )
        reason = reason_of_output(op, placements[i], apart)
        differences.append(_difference(described[i].label, "", deviates, "in the serial program", reason))
    return differences


def _of_update(
    variable: ComparedVariable, parts: Sequence[Any], root: int, before: Any, serial: Any, eps: float, batch_s: Any
) -> Optional[Tuple[Optional[int], Deviation]]:
    """Return the first rank whose new value differs (None for all ranks together) and the difference, or else None."""
    if variable.axis is not None or variable.is_state:
        whole = parts[root] if variable.axis is None else np.concatenate(list(parts), variable.axis)
        found = None if batch_s is not None and not variable.is_state else deviation(whole, serial, eps)
        return None if found is None else (None, found)
    for rank, part in enumerate(parts):
        found = deviation(part, serial, eps, before)
        if found is not None:
            return rank, found
    return None


def _mean_agrees(parts: Sequence[Any], before: Any, serial: Any, eps: float) -> bool:
    """Return whether the mean over the ranks equals the serial value, so that only an all_reduce is missing."""
    if serial.dtype.kind not in "fc" or any(part.shape != serial.shape for part in parts):
        return False
    return deviation(np.mean(np.stack(parts), axis=0), serial, eps, before) is None


def _difference(name: str, where: str, found: Deviation, whose: str, reason: str) -> Difference:
    value, expected = pair(found)
    place = f" {where}" if where else ""
    text = f"{name}{found.place} is {value}{place}, but {expected} {whose}: {reason}"
    if isinstance(found.value, tuple):
        text = f"{name} has {value}{place}, but {expected} {whose}: {reason}"
    return Difference(name, where, found.value, found.other, reason, text)


def explained(error: BaseException) -> BaseException:
    """Return the serial function's error with a note on its origin."""
    add_note(error, "raised by the serial function during a comparison; the ranks were not called")
    return error


NOTHING_FOUND = (
    "the function's graph shows no reason; rounding errors can grow if they decide a comparison or are divided by a "
    "number near 0, or an operation may compute a different result on fewer rows"
)


def reason_of_ranks(name: str, by_master: bool, has_rows: bool) -> str:
    """Return why a variable's values may differ between ranks; ``by_master``: only the master has changed it."""
    if by_master:
        return (
            f"it was changed on the master alone, by set_value or as_theano: synk.broadcast({name}) sends the value to "
            "all ranks"
        )
    rows = f"; if every rank has its own rows of it, list it: sliceable_shareds=[{name}]" if has_rows else ""
    return (
        "scatter, set_value on one rank, or updates from each rank's own rows have changed it: "
        f"synk.broadcast({name}) sends the master's value to all ranks{rows}"
    )


def reason_of_output(op: ReduceOp, placement: Optional[Placement], apart: Sequence[str]) -> str:
    """Return why an output may differ; ``apart`` names the variables that differ between ranks."""
    if apart:
        return _follows(apart)
    if isinstance(placement, Unknown):
        return f"it has op '{op}', but {placement.why}"
    against = None if placement is None else contradiction(str(op.name), placement)
    if against is not None:
        return f"it has op '{op}', but {against}"
    if placement is None:
        return f"combining the ranks' results with op '{op}' may be wrong: try 'sum', 'avg', 'gather' or another op"
    return NOTHING_FOUND


def reason_of_update(
    name: str, placement: Optional[Placement], is_exact: bool, mean_agrees: bool, apart: Sequence[str]
) -> str:
    """Return why a variable's new value may differ; ``mean_agrees``: the ranks' mean equals the serial value."""
    if apart:
        return _follows(apart)
    if is_exact or isinstance(placement, Replicate):
        return NOTHING_FOUND
    own = "every rank has updated it from its own rows alone"
    if mean_agrees:
        return f"{own}; the mean over the ranks agrees: call synk.all_reduce({name}) after each call, or use exact=True"
    why = f" ({placement.why})" if isinstance(placement, Unknown) else ""
    return f"{own}{why}: build the function with exact=True"


def _follows(apart: Sequence[str]) -> str:
    return f"the difference may come from {', '.join(apart)}, whose values differed between the ranks"


class Given(NamedTuple):
    """The staged arguments of a call (see `Arguments.prepare`), and its selected rows and outputs."""

    arguments: Sequence[Argument]
    chosen: Optional[Selection]
    n_rows: Optional[int]
    batch_s: Any  # the user's argument
    subset: Optional[Sequence[int]]  # the requested outputs


def rows_of_all(parts: Sequence[Any], axis: int, batch_s: Any) -> Any:
    """Return the rows of a sliceable variable that a call uses on all ranks, in rank order."""
    if batch_s is not None:
        selections = parse_per_rank(batch_s, [part.shape[axis] for part in parts])
        parts = [moved(rows.take(moved(part, axis, 0)), 0, axis) for rows, part in zip(selections, parts)]
    return np.concatenate(list(parts), axis)


def call_serially(
    engine: Any, compiled: Any, shareds: Sequence[Any], session: Session, given: Given, values: Mapping[int, Any]
) -> Tuple[List[Any], Dict[Any, Any]]:
    """Call the serial function; return its outputs on the host, and the variables' new values by `Engine.identity`.

    ``values`` are the variables' values during the call, by ``id``; by default, copies of the current values.
    """
    pools = session.context.pools
    chosen: Dict[Any, Any] = {}  # one variable per storage
    for shared in shareds:
        if engine.identity(shared) not in chosen or id(shared) in values:
            chosen[engine.identity(shared)] = shared
    before = {identity: engine.get(shared) for identity, shared in chosen.items()}
    copies = {
        identity: engine.to_device(shared, values[id(shared)] if id(shared) in values else engine.export(shared))
        for identity, shared in chosen.items()
    }
    try:
        for identity, shared in chosen.items():
            engine.put(shared, copies[identity])
        states = [one.state for one in engine.inputs(compiled)]
        arguments = [
            engine.get(states[one.value]) if one.kind == "state" else _whole(one, given.chosen, given.n_rows, pools)
            for one in given.arguments
        ]
        outputs = engine.call(compiled, arguments, given.subset)
        after = {identity: engine.to_host(engine.get(shared)) for identity, shared in chosen.items()}
    finally:
        for identity, shared in chosen.items():
            engine.put(shared, before[identity])
    return [engine.to_host(output) for output in outputs], after


def _whole(argument: Argument, chosen: Optional[Selection], n_rows: Optional[int], pools: Any) -> Any:
    """Return the rows of an argument that the call uses on all ranks, as a separate array."""
    if argument.kind == "value":
        return cloudpickle.loads(argument.value)
    array = pools.attach(argument.value)
    if argument.kind == "selected" and chosen is not None:
        array = chosen.take(array)
    elif argument.kind == "batch":
        array = array[:n_rows]
    return np.array(moved(array, 0, argument.axis) if argument.axis else array)
