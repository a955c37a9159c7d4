"""A call of a function beside the same call of the serial one: what differs, by how much, and why it may.

::

    values that ranks hold      copies of the master's        the call itself
    ----------------------      -----------------------       ---------------------------
    the same on all ranks? -->  the serial function,   -->    outputs, and updated values
    rows of all of them         all rows of its inputs        on every rank: the serial
                                                              function's?

How the serial function is called is in `serial`, what counts as rounding in `rounding`, and the words in `reasons`.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..reductions import ReduceOp
from ..replication.replicator import replicator_of
from ..runtime.failures import add_note
from ..runtime.registry import Origin
from ..runtime.session import Session
from ..sharding import Placement
from . import reasons
from .held import held
from .rounding import Deviation, coarsest, deviation, pair
from .serial import Given, call_serially, rows_of_all
from .variants import Variants

#: Why a function with random draws is not compared.
DRAWS = "it draws random numbers, and every rank draws its own"


class Difference(NamedTuple):
    """One value that differs from the serial function's.

    Attributes
    ----------
    name : str
        How messages call the output or the shared variable: ``outputs[0] (loss)``, ``w``.
    where : str
        On which rank, of a variable: ``on rank 1``; "" of an output.
    value, expected : number, or tuple of int
        The two numbers at the index at which they differ most, or the two shapes.
    reason : str
        What it may come from.
    text : str
        All of this as a sentence.
    """

    name: str
    where: str
    value: Any
    expected: Any
    reason: str
    text: str

    def __str__(self) -> str:
        return self.text


class Comparison:
    """What `Function.compare` has found: true if everything was compared, and nothing differs.

    Attributes
    ----------
    results : array, list or dict
        What the call has returned.
    differences : list of Difference
    not_compared : str
        Why the function was not called serially; "" if it was.
    """

    def __init__(self, results: Any, differences: List[Difference], not_compared: str = "") -> None:
        self.results, self.differences, self.not_compared = results, differences, not_compared

    def __bool__(self) -> bool:
        return not self.differences and not self.not_compared

    def __repr__(self) -> str:
        lines = [f"not compared: {self.not_compared}"] if self.not_compared else []
        lines += [each.text for each in self.differences]
        return "\n".join(lines) or "as the serial function"


class SerialError(Exception):
    """Carries what the serial function has raised, to where it is known whether the call goes on without it."""


class Subject(NamedTuple):
    """A function, as a comparison sees it.

    Attributes
    ----------
    engine : Engine
    compiled : callable
        Returns the serial function, which may be compiled for it.
    types : list of (ArrayType or None)
        Of its inputs and outputs.
    shareds : list of shared variables
    output_ops : list of ReduceOp
    variants : Variants
        Which has the graph.
    is_exact : bool
    """

    engine: Any
    compiled: Callable[[], Any]
    types: Sequence[Any]
    shareds: Sequence[Any]
    output_ops: Sequence[ReduceOp]
    variants: Variants
    is_exact: bool


class Variable(NamedTuple):
    """A dense shared variable of the function, no random state."""

    label: str
    short: str  # as the user's program may call it
    shared: Any
    number: int
    axis: Optional[int]  # of its rows, if it is sliceable
    is_state: bool  # with the batch's rows, all of which the master has before and after a call


def compare(
    subject: Subject, session: Session, given: Given, call: Callable[[], Any], flat: Callable[[Any], List[Any]]
) -> Comparison:
    """Make a call, and compare it with the serial function; see `Function.compare`.

    Parameters
    ----------
    subject : Subject
    session : Session
        Locked, and its ranks have the function.
    given : Given
    call : callable
        Makes the call, and returns its results.
    flat : callable
        Returns the results as a list.

    Raises
    ------
    SerialError
        If the serial function raises; the call was not made then.
    """
    engine = subject.engine
    variables = _variables(subject, session)
    before = dict(zip((each.number for each in variables), held(session, [each.number for each in variables])))
    types = [*subject.types, *(engine.shared_type(each.shared) for each in variables)]
    eps = coarsest(type_.dtype for type_ in types if type_ is not None)
    differences = _between_ranks(session, variables, before, eps)
    apart = [each.name for each in differences]
    if any(map(engine.is_random, subject.shareds)):
        return Comparison(call(), differences, DRAWS)
    joined = {
        id(each.shared): rows_of_all(before[each.number], each.axis, given.batch_s)
        for each in variables
        if each.axis is not None
    }
    try:
        compiled = subject.compiled()
        outputs, after = call_serially(engine, compiled, subject.shareds, session, given, joined)
    except Exception as error:
        raise SerialError from error
    results = call()
    updated = [engine.identity(shared) for shared in engine.updated_in(subject.variants.snapshot)]
    changed = [each for each in variables if engine.identity(each.shared) in updated]
    found = held(session, [each.number for each in changed])
    differences += _of_outputs(subject, compiled, given.subset, flat(results), outputs, eps, apart)
    placements: Any = None
    for each, parts in zip(changed, found):
        serial, old = after[engine.identity(each.shared)], before[each.number]
        differing = _of_update(each, parts, session.root, old[session.root], serial, eps, given.batch_s)
        if differing is None:
            continue
        rank, deviates = differing
        if placements is None:
            sharding = engine.sharding(subject.variants.snapshot, subject.variants.placements)
            placements = [None] * len(updated) if sharding is None else sharding.updates
        placement = placements[updated.index(engine.identity(each.shared))]
        mean_agrees = each.axis is None and not each.is_state and _mean_agrees(parts, old[session.root], serial, eps)
        reason = reasons.of_update(each.short, placement, subject.is_exact, mean_agrees, apart)
        where = "on the ranks together" if rank is None else f"on rank {rank}"
        differences.append(
            _difference(each.label, f"{where} after the call", deviates, "in the serial program", reason)
        )
    return Comparison(results, differences)


def _variables(subject: Subject, session: Session) -> List[Variable]:
    """Return the dense variables of the function, each storage once."""
    found: Dict[int, Variable] = {}
    axes = {subject.engine.identity(shared): axis for shared, axis in subject.variants.sliceable.items()}
    states = {subject.engine.identity(shared) for shared in subject.variants.states}
    for i, shared in enumerate(subject.shareds):
        number = replicator_of(session).find(subject.engine, shared)
        if number is None or subject.engine.shared_type(shared) is None or subject.engine.is_random(shared):
            continue
        place = f"f.get_shared()[{i}]"
        label, identity = subject.engine.label(shared, place), subject.engine.identity(shared)
        one = Variable(label, shared.name or place, shared, number, axes.get(identity), identity in states)
        found.setdefault(number, one)
    return list(found.values())


def _between_ranks(session: Session, variables: Sequence[Variable], before: Any, eps: float) -> List[Difference]:
    """Return the variables of which a rank holds another value than the master, before the call."""
    differences = []
    for each in variables:
        if each.axis is not None or each.is_state:
            continue
        parts = before[each.number]
        for rank, part in enumerate(parts):
            deviates = deviation(part, parts[session.root], eps)
            if deviates is not None:
                entry = session.context.shareds[each.number]
                reason = reasons.of_ranks(each.short, entry.origin is Origin.PROGRAM, part.ndim > 0)
                where = f"on rank {rank} before the call"
                differences.append(_difference(each.label, where, deviates, "on the master", reason))
                break
    return differences


def _of_outputs(
    subject: Subject,
    compiled: Any,
    subset: Optional[Sequence[int]],
    results: Sequence[Any],
    expected: Sequence[Any],
    eps: float,
    apart: Sequence[str],
) -> List[Difference]:
    """Return the outputs that differ; those of op None are the master's own, which nobody takes for the serial ones."""
    engine, differences = subject.engine, []
    placements: Optional[List[Placement]] = None
    described = engine.outputs(compiled)
    for i, result, serial in zip(range(len(described)) if subset is None else subset, results, expected):
        op = subject.output_ops[i]
        if op.name is None or described[i].type is None:
            continue
        deviates = deviation(engine.to_host(result), serial, eps)
        if deviates is None:
            continue
        if placements is None:
            placements = engine.placed(subject.variants.snapshot, subject.variants.placements) or [None] * len(
                described
            )
        reason = reasons.of_output(op, placements[i], apart)
        differences.append(_difference(described[i].label, "", deviates, "in the serial program", reason))
    return differences


def _of_update(
    variable: Variable, parts: Sequence[Any], root: int, before: Any, serial: Any, eps: float, batch_s: Any
) -> Optional[Tuple[Optional[int], Deviation]]:
    """Return the first rank whose new value differs, and where it does; no rank for rows that all have together."""
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
    """Return whether the ranks' values have the serial one as their mean, so that an all_reduce is what is missing."""
    if serial.dtype.kind not in "fc" or any(part.shape != serial.shape for part in parts):
        return False
    return deviation(np.mean(np.stack(parts), axis=0), serial, eps, before) is None


def _difference(name: str, where: str, found: Deviation, whose: str, reason: str) -> Difference:
    value, expected = pair(found)
    place = f" {where}" if where else ""
    text = f"{name}{found.place} is {value}{place}, {expected} {whose}: {reason}"
    if isinstance(found.value, tuple):
        text = f"{name} has {value}{place}, {expected} {whose}: {reason}"
    return Difference(name, where, found.value, found.other, reason, text)


def explained(error: BaseException) -> BaseException:
    """Return what the serial function has raised, with a note that says so."""
    add_note(error, "raised by the serial function, in a comparison with it: the call was not made")
    return error
