"""Axis lengths that must be equal because a graph combines arrays along these axes.

::

    context    (time of context, rows, d)          context * weights[:, :, None] needs equal times, so
    weights    (time of mask, rows)                weights.reshape(shape of context[:, :, :1]) preserves the rows

The search covers the whole graph, so it runs only for placements that would otherwise be unknown.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence

from ...sharding import Product

if TYPE_CHECKING:
    from .lengths import Lengths


class Equalities:
    """Search for lengths that must be equal in a graph."""

    def __init__(self, lengths: Lengths, nodes: Sequence[Any]) -> None:
        self.lengths, self.nodes = lengths, nodes
        #: Maps symbols to equal products; None before the search.
        self._equal: Optional[Dict[Any, Product]] = None

    def __call__(self, length: Product) -> Product:
        """Return a length with each symbol replaced by an equal product, if one is known."""
        if self._equal is None:
            self._equal = {}
            for lengths in self._of_nodes():
                for other in lengths[1:]:
                    self._unite(lengths[0], other)
        return self._replaced(length)

    def _replaced(self, length: Product) -> Product:
        equal = self._equal or {}
        while any(symbol in equal for symbol, _ in length.factors):
            symbols = [symbol for symbol, exponent in length.factors for _ in range(exponent)]
            found = [equal.get(symbol) or Product.of(symbol) for symbol in symbols]
            length = reduce(Product.times, found, Product(length.number))
        return length

    def _unite(self, one: Product, other: Product) -> None:
        one, other = self._replaced(one), self._replaced(other)
        for old, new in ((one, other), (other, one)):
            ((symbol, exponent),) = old.factors if len(old.factors) == 1 else ((None, 0),)
            if old.number == exponent == 1 and symbol not in [each for each, _ in new.factors]:
                assert self._equal is not None
                self._equal[symbol] = new
                return

    def _of_nodes(self) -> Iterator[List[Product]]:
        from .lengths import broadcastable, ndim

        classes, length = self.lengths.classes, self.lengths.axis_length
        if any(isinstance(node.op, classes.IfElse) for node in self.nodes):
            return  # some nodes might never be computed
        for node in self.nodes:
            if isinstance(node.op, classes.Elemwise):
                for axis in range(ndim(node.outputs[0])):
                    yield [length(one, axis) for one in node.inputs if not broadcastable(one)[axis]]
            elif isinstance(node.op, classes.Dot):
                one, other = node.inputs
                yield [length(one, ndim(one) - 1), length(other, 0)]
            elif isinstance(node.op, classes.Join):
                along, arrays = classes.joined(node)
                for axis in range(ndim(node.outputs[0])):
                    if along is not None and axis != along % ndim(node.outputs[0]):
                        yield [length(one, axis) for one in arrays]
