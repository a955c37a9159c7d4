"""What `Function.sharding` returns: how a function lies over the ranks, as a table to print."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ..engines.base import Inside
from ..errors import ArgumentTypeError
from ..reductions import ReduceOp
from ..sharding import Placement, Unknown
from .variants import Variants, Written


class Row(NamedTuple):
    """An input, output or update."""

    label: str
    placement: Placement
    op: Optional[str] = None  # of an output

    def __str__(self) -> str:
        why = f": {self.placement.why}" if isinstance(self.placement, Unknown) else ""
        return f"  {self.label:<30} {str(self.placement) + why:<14}{'' if self.op is None else ' ' + self.op}".rstrip()


class Table(NamedTuple):
    """How a function lies over the ranks; printing it shows it.

    Attributes
    ----------
    name : str
    inputs, outputs, updates : list of Row
        Of updates the placement is that of the new value.
    collectives : list of Inside
        Inside the function, in the order in which they are computed.
    nbytes : list of (int or None)
        What each of these reduced in the last call, on every rank; None if there was none.
    written : Written, optional
        The number of rows that the program has written.
    """

    name: str
    inputs: List[Row]
    outputs: List[Row]
    updates: List[Row]
    collectives: List[Inside]
    nbytes: Sequence[Optional[int]]
    written: Optional[Written] = None

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
        for i, (each, nbytes) in enumerate(zip(self.collectives, self.nbytes)):
            size = "bytes are known after a call" if nbytes is None else f"{nbytes:,} bytes"
            waits = f", then the updates of {', '.join(each.updates)}" if each.updates else ""
            yield f"  {i}: {each.op} of {len(each.variables)}, {size}{waits}"
            yield from [f"       {variable}" for variable in each.variables]


def table_of(
    function: Any,
    variants: Variants,
    names: Sequence[str],
    outputs: Iterable[Tuple[Any, ReduceOp]],
    nbytes: Callable[[int], Optional[int]],
) -> Table:
    """Return the table of a function.

    Parameters
    ----------
    function : Function
    variants : Variants
        Which has the graph.
    names : sequence of str
        Of the inputs.
    outputs : iterable of (Output, ReduceOp)
    nbytes : callable
        From the number of a collective to what it reduced in the last call; None if there was none.

    Raises
    ------
    TypeError
        If the engine does not know how values lie over the ranks.
    """
    engine = function.engine
    found = engine.sharding(variants.snapshot, variants.placements)
    if found is None:
        raise ArgumentTypeError("sharding", "an engine that traces rows", repr(engine.name))
    updated = engine.updated_in(variants.snapshot)
    labels = [engine.label(shared, f"updates[{i}]") for i, shared in enumerate(updated)]
    return Table(
        function.name or "without a name",
        [Row(name, placement) for name, placement in zip(names, found.inputs)],
        [Row(output.label, placement, str(op)) for (output, op), placement in zip(outputs, found.outputs)],
        [Row(label, placement) for label, placement in zip(labels, found.updates)],
        found.collectives,
        [nbytes(i) for i in range(len(found.collectives))],
        variants.written,
    )
