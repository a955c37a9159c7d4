"""What a rule is: from the placements of an operation's inputs to those of its outputs.

An engine describes its graph as `Node` objects, each with a rule from this package that it has chosen for the
operation; what the rule must know of the operation (axes, constants) the engine has put into it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, FrozenSet, Iterable, List, NamedTuple, Sequence, Tuple, Union

from ..reductions import WHOLES
from .layout import Product
from .placements import REPLICATE, Partial, Placement, Power, Replicate, Size, Unknown


class NotNegative(NamedTuple):
    """What has to hold in every call: no element of an input, given by its position, is negative."""

    input: int


class Placed(NamedTuple):
    """What a rule says.

    Attributes
    ----------
    outputs : list of Placement
    whole : set of int
        The inputs, by position, of which the operation needs the whole value: a collective, if they are partial.
    equal : sequence of (Product, Product) or NotNegative
        Lengths that the rule takes for equal, and other conditions, which are checked in every call.
    """

    outputs: List[Placement]
    whole: FrozenSet[int] = frozenset()
    equal: Sequence[Union[Tuple[Product, Product], NotNegative]] = ()


class Rule(ABC):
    """How an operation moves shards."""

    #: Inputs of which only the shape matters, not the values.
    shapes_only: Sequence[int] = ()
    #: Whether its result is rounded to a narrower type than it is computed in.
    is_rounded = False
    #: Whether it fails if there is nothing to reduce, because there is no smallest or largest.
    needs_elements = False
    #: Whether the shapes of the outputs follow from those of the inputs, and no values of these are refused.
    keeps_shapes = False

    @abstractmethod
    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        """Return the placements of the outputs.

        Parameters
        ----------
        inputs : sequence of Placement
            None of them is `Unknown`.
        exact : bool
            Whether the graph may be changed, so that whole values can be asked for. If not, a number of rows is that of
            the rank, and what needs the whole of a part is unknown.
        """


class Node(NamedTuple):
    """An operation in a graph; variables are whatever hashable objects the engine has.

    Attributes
    ----------
    rule : Rule
    inputs, outputs : tuple of variables
    describe : callable
        Returns what is done, to what, in a few words: the subject of a sentence.
    """

    rule: Rule
    inputs: Tuple[Any, ...]
    outputs: Tuple[Any, ...]
    describe: Callable[[], str]


class Opaque(Rule):
    """An operation of which nothing is known, but that it gives equal results for equal values."""

    def __init__(self, n_outputs: int, why: str = "has no rule for rows that are divided over ranks") -> None:
        self.n_outputs, self.why = n_outputs, why

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        whole, inputs = taken_whole(inputs, range(len(inputs)), exact)
        if all(isinstance(one, Replicate) and one.power == 0 for one in inputs):
            return Placed([REPLICATE] * self.n_outputs, whole)
        unknown = next((one for one in inputs if isinstance(one, Unknown)), Unknown(self.why))
        return Placed([unknown] * self.n_outputs, whole)


class Common(Rule):
    """What the call knows, whatever the inputs are: the same on all ranks, but for a power of the rank's share."""

    def __init__(self, power: Power = 0) -> None:
        self.power = power

    def place(self, inputs: Sequence[Placement], exact: bool) -> Placed:
        return Placed([Replicate(self.power)])


def taken_whole(
    inputs: Sequence[Placement], positions: Iterable[int], exact: bool
) -> Tuple[FrozenSet[int], List[Placement]]:
    """Take some inputs whole: return which of them have to be made so, and the placements of all of them then.

    The number of rows of a rank, if it may not be made that of all ranks, is a replicated value but for its power.
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
            after[i] = Unknown("needs the whole of a value of which every rank has a part")
        elif isinstance(one, (Size, Partial)):
            wanted.add(i)
            after[i] = REPLICATE
    return frozenset(wanted), after
