"""The table returned by `Function.sharding`: a function's inner collectives, and the placements of its values."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..engines.base import Inside
from ..errors import ArgumentTypeError
from ..reductions import ReduceOp
from ..sharding import Placement, Unknown
from .variants import Variants, Written


class Row(NamedTuple):
    """Row of a `PlacementTable`: an input, output or update, with its placement."""

    label: str
    placement: Placement
    op: Optional[str] = None  # the op of an output
    whole: Optional[str] = None  # why each rank computes a new value whole; "" if it computes its part; None if unknown

    def __str__(self) -> str:
        why = f": {self.placement.why}" if isinstance(self.placement, Unknown) else ""
        note = self.op
        if self.whole is not None:
            note = f"whole: {self.whole}" if self.whole else "divided by elements"
        return f"  {self.label:<30} {str(self.placement) + why:<14} {note or ''}".rstrip()


class PlacementTable(NamedTuple):
    """A function's inner collectives and the placements of its values; ``str`` formats them as a table."""

    name: str
    inputs: List[Row]
    outputs: List[Row]
    updates: List[Row]  # with the placements of the new values
    collectives: List[Inside]  # in order of computation
    nbytes: Sequence[Optional[int]]  # bytes that each collective reduced in the last call, per rank; None before a call
    written: Optional[Written] = None  # the literal number of rows in the program's graph

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def __repr__(self) -> str:
        return str(self)

    def _lines(self) -> Iterator[str]:
        yield f"function {self.name}"
        if self.written is not None:
            where = "" if not self.written.where else f": read as each rank's share in {'; '.join(self.written.where)}"
            yield f"rows{'' if self.written.rows is None else f' {self.written.rows}'}{where}"
        parts: List[Tuple[str, Sequence[Any]]] = [("inputs", self.inputs), ("outputs", self.outputs)]
        for title, rows in [*parts, ("updates", self.updates)]:
            if rows:
                yield title
                yield from map(str, rows)
        yield "collectives" if self.collectives else "no collectives inside"
        for each, nbytes in zip(self.collectives, self.nbytes):
            size = "size unknown before a call" if nbytes is None else f"{nbytes:,} bytes"
            waits = f", then the updates of {', '.join(each.updates)}" if each.updates else ""
            yield f"  {each.number}: {each.op} of {len(each.variables)}, {size}{waits}"
            yield from [f"       {variable}" for variable in each.variables]


def table_of(
    function: Any,
    variants: Variants,
    names: Sequence[str],
    outputs: Iterable[Tuple[Any, ReduceOp]],
    nbytes: Callable[[int], Optional[int]],
    why_undivided: str,
    in_parts: bool,
) -> PlacementTable:
    """Return a function's table; ``nbytes(i)`` returns the bytes that collective i reduced in the last call.

    ``why_undivided`` is the reason if no new value is divided in this session, and ``in_parts`` whether ranks call the
    graph that can divide them.
    """
    engine = function.engine
    whole = engine.why_whole(function.on_ranks)
    found = engine.sharding(variants.snapshot, variants.placements, in_parts and "" in whole)
    if found is None:
        raise ArgumentTypeError("sharding", "an engine that propagates placements", repr(engine.name))
    updated = engine.updated_in(variants.snapshot)
    labels = [engine.label(shared, f"updates[{i}]") for i, shared in enumerate(updated)]
    whole = [reason or why_undivided for reason in whole]
    return PlacementTable(
        function.name or "without a name",
        [Row(name, placement) for name, placement in zip(names, found.inputs)],
        [Row(output.label, placement, str(op)) for (output, op), placement in zip(outputs, found.outputs)],
        [Row(label, placement, None, why) for label, placement, why in zip_longest(labels, found.updates, whole)],
        found.collectives,
        [nbytes(each.number) for each in found.collectives],
        variants.written,
    )
