"""Interface of placement rules, which map the placements of an operation's inputs to the placements of its outputs.

An engine describes its graph as `Node` objects, and creates their rules from facts about operations (axes, constants).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, FrozenSet, Iterable, List, NamedTuple, Sequence, Tuple, Union

from ..reductions import WHOLES
from .layout import Product
from .placements import REPLICATE, Partial, Placement, Power, Replicate, Size, Unknown


class WithinRows(NamedTuple):
    """Condition checked in every call: elements of ``input`` are valid positions along ``axis`` of the first input."""

    input: int
    axis: int


class NoRemainder(NamedTuple):
    """Condition checked in every call: a reshape with -1 leaves no remainder on any rank."""


class RuleResult(NamedTuple):
    """The result of a placement rule: placements of the outputs, and requirements on the inputs."""

    outputs: List[Placement]
    whole: FrozenSet[int] = frozenset()  # inputs that are needed whole, through a collective if they are partial
    equal: Sequence[Union[Tuple[Product, Product], WithinRows, NoRemainder]] = ()  # conditions checked per call


class PlacementRule(ABC):
    """Base class of placement rules, one for each kind of operation."""

    #: Inputs whose shapes matter but whose values do not.
    shapes_only: Sequence[int] = ()
    #: Whether the result is rounded to a narrower type than the computation's type.
    is_rounded = False
    #: Whether the operation fails without elements to reduce, because there is no smallest or largest element.
    needs_elements = False
    #: Whether the inputs' shapes determine the outputs' shapes, and the operation accepts all values.
    keeps_shapes = False

    @abstractmethod
    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        """Return the outputs' placements, and requirements on the inputs; no input may be `Unknown`.

        If ``exact``, the graph may be rewritten, so rules can request whole values. Otherwise, numbers of rows are the
        rank's own, and an operation that needs the whole of a partial value has an unknown result.
        """


class Node(NamedTuple):
    """An operation in a graph; variables are any hashable objects of the engine."""

    rule: PlacementRule
    inputs: Tuple[Any, ...]
    outputs: Tuple[Any, ...]
    describe: Callable[[], str]  # returns the operation and its inputs as text, the subject of a sentence


class Opaque(PlacementRule):
    """Placement rule for an operation with a single known property: equal inputs yield equal results."""

    def __init__(self, n_outputs: int, why: str = "has no rule for rows that are divided over ranks") -> None:
        self.n_outputs, self.why = n_outputs, why

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        whole, inputs = taken_whole(inputs, range(len(inputs)), exact)
        if all(isinstance(one, Replicate) and one.power == 0 for one in inputs):
            return RuleResult([REPLICATE] * self.n_outputs, whole)
        unknown = next((one for one in inputs if isinstance(one, Unknown)), Unknown(self.why))
        return RuleResult([unknown] * self.n_outputs, whole)


class Common(PlacementRule):
    """Placement rule for a value provided by the call, equal on all ranks up to a power of the rank's share of rows."""

    def __init__(self, power: Power = 0) -> None:
        self.power = power

    def place(self, inputs: Sequence[Placement], exact: bool) -> RuleResult:
        return RuleResult([Replicate(self.power)])


def taken_whole(
    inputs: Sequence[Placement], positions: Iterable[int], exact: bool
) -> Tuple[FrozenSet[int], List[Placement]]:
    """Request whole values of some inputs; return the positions to make whole, and all placements afterwards.

    If not ``exact``, a rank's own number of rows becomes a replicated value with its power, or unknown.
    """
    after, wanted = list(inputs), set()
    for i in positions:
        one = inputs[i]
        powers = {length.power for length in one.lengths} if isinstance(one, Size) else set()
        if powers == {0}:
            after[i] = REPLICATE
        elif powers and not exact:
            power = powers.pop()
            unknown = Unknown("depends on how many rows the rank has")
            after[i] = unknown if powers or power is None else Replicate(power)
        elif isinstance(one, Partial) and (not exact or one.reduction not in WHOLES):
            after[i] = Unknown("needs the whole value, and every rank has only a part of it")
        elif isinstance(one, (Size, Partial)):
            wanted.add(i)
            after[i] = REPLICATE
    return frozenset(wanted), after
