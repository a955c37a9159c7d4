"""How collectives and shares of rows are computed in a function that JAX traces: alone, on the mesh, or in lockstep."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

import jax
import jax.numpy as jnp

from ..engines.pytensor.jax_graph import Trace
from ..errors import ArgumentValueError
from ..reductions import ReduceOp
from .mesh import AXIS


class Rows:
    """The rows of the ranks in a call, by the rules of `in_graph`.

    ``calls`` are the traced ranks' calls, or None for a function that reads no rows. ``lengths`` are the lengths of the
    arrays that the traced program divides, which later calls check without another trace. ``reduced`` are the bytes of
    each collective.
    """

    def __init__(self) -> None:
        self.calls: List[Any] = []
        self.lengths: List[int] = []
        self.reduced: Dict[int, int] = {}

    def noted(self, number: int, values: Sequence[Any]) -> List[Any]:
        """Return the arrays of a collective, and record their size."""
        arrays = [jnp.asarray(value) for value in values]
        self.reduced[number] = sum(array.size * array.dtype.itemsize for array in arrays)
        return arrays

    def of_ranks(self, length: int) -> List[Tuple[int, int]]:
        """Return every rank's start and end among ``length`` rows; the calls may set their weights."""
        if length not in self.lengths:
            self.lengths.append(length)
        return [(0, length) if call is None else call.share(length) for call in self.calls]


class OneRank(Trace):
    """A function without collectives, or a call that only computes shapes: collectives return their arguments."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def all_reduce(self, number: int, op: ReduceOp, of_ranks: Sequence[Sequence[Any]]) -> List[List[Any]]:
        return [list(values) for values in of_ranks]

    def share(self, length: int) -> Tuple[Any, int]:
        begin, end = self.rows.of_ranks(length)[self.rank]
        return begin, end - begin

    def whole_length(self, length: Any) -> Any:
        begin, end, n_all = self._rows()
        return length if begin == end else length * n_all // (end - begin)

    def inverse_share(self) -> float:
        begin, end, n_all = self._rows()
        return 1.0 if begin == end else n_all / (end - begin)

    def _rows(self) -> Tuple[int, int, int]:
        call = self.rows.calls[self.rank]
        return (0, 0, 0) if call is None or call.rows is None else call.rows


class Together(OneRank):
    """All ranks on the mesh, with equal numbers of rows: the traced program is the same for every rank."""

    def __init__(self, rows: Rows, starts: Any) -> None:
        super().__init__(rows)
        self._starts = starts  # this rank's first row, traced; None if the call itself divides rows

    def all_reduce(self, number: int, op: ReduceOp, of_ranks: Sequence[Sequence[Any]]) -> List[List[Any]]:
        values = self.rows.noted(number, of_ranks[0])
        return [[_on_mesh(op.name or "", value, len(self.rows.calls)) for value in values]]

    def share(self, length: int) -> Tuple[Any, int]:
        bounds = self.rows.of_ranks(length)
        n = bounds[0][1] - bounds[0][0]
        if self._starts is not None and all(end - begin == n for begin, end in bounds):
            return self._starts, n
        if bounds != [(rank * n, (rank + 1) * n) for rank in range(len(bounds))]:
            raise Uneven  # for example, a rank without rows takes the first row, which does not count
        return jax.lax.axis_index(AXIS) * n, n


class Lockstep(OneRank):
    """All ranks, one after another, node by node on one device: for ranks with different numbers of rows."""

    def all_reduce(self, number: int, op: ReduceOp, of_ranks: Sequence[Sequence[Any]]) -> List[List[Any]]:
        if len(of_ranks) != len(self.rows.calls):
            size = len(self.rows.calls)
            expected = f"rows that {size} ranks can share evenly, because a collective is inside a loop or a condition"
            raise ArgumentValueError("the arguments", expected, "rows that cannot be divided evenly, on devices of JAX")
        arrays = [self.rows.noted(number, values) for values in of_ranks]
        weights = self.rows.calls[0].weights
        weights = [1] * len(of_ranks) if weights is None or not any(weights) else list(weights)
        counted = [rank for rank, weight in enumerate(weights) if weight]
        results = []
        for i in range(len(of_ranks[0])):
            values = [arrays[rank][i] for rank in counted]
            results.append(_reduced(op.name or "", values, [weights[rank] for rank in counted]))
        return [results] * len(of_ranks)


class Uneven(Exception):
    """Raised during a trace if the ranks' rows turn out to be uneven."""


_ON_MESH: Dict[str, Callable[..., Any]] = {"sum": jax.lax.psum, "min": jax.lax.pmin, "max": jax.lax.pmax}


def _on_mesh(name: str, value: Any, size: int) -> Any:
    dtype, wide = value.dtype, _wide(value, name)
    if name == "avg":
        return (jax.lax.psum(wide, AXIS) / size).astype(dtype)
    if name == "prod":  # (JAX has no pprod)
        return jax.lax.all_gather(wide, AXIS).prod(0).astype(dtype)
    return _ON_MESH["max" if name == "sum" and dtype.kind == "b" else name](wide, AXIS).astype(dtype)


def _reduced(name: str, values: Sequence[Any], weights: Sequence[float]) -> Any:
    dtype, wide = values[0].dtype, jnp.stack([_wide(value, name) for value in values])
    if name == "avg":
        scaled = jnp.asarray(weights, "float64").astype(wide.real.dtype).reshape((-1,) + (1,) * (wide.ndim - 1))
        return ((wide * scaled).sum(0) / scaled.sum()).astype(dtype)
    if name == "sum" and dtype.kind != "b":
        return wide.sum(0).astype(dtype)
    return getattr(wide, "max" if name == "sum" else name)(0).astype(dtype)


def _wide(value: Any, name: str) -> Any:
    """Return a value in a type that JAX can reduce without losing more than a rounding error."""
    if value.dtype.kind == "b":
        return value.astype("int8")
    return value.astype("float32") if value.dtype == "float16" and name in ("avg", "sum", "prod") else value
