"""Collectives between calls, computed on the devices for all ranks at once.

::

    gathered   every device receives all ranks' values, and combines them: small values, or results that differ
    shared     every device receives all ranks' values of its share of the elements, combines them, and receives the
               other shares (`all_to_all`, then `all_gather`: as many bytes as in a ring)

Small values of one type are joined first, because every exchange between devices takes time. All values are
combined in rank order, and averages as `reductions.mean` defines them. A result is one array of all ranks, and no
argument is donated, so that a failed collective changes nothing.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from ..reductions import ReduceOp, compute_dtype
from ..reductions.mean import scaled_weights
from ..transports.strategy import OWN_BELOW_BYTES, Reduction
from .mesh import AXIS, JaxMesh, common_whole

KINDS = "biuf"  #: Kinds of types that devices combine. Complex numbers are averaged on the host.
MAX_JOINED_BYTES = 1 << 16  #: Maximum size of a value that is reduced in one vector with others.
MAX_WEIGHTS = 64  #: Maximum number of matrices of weights that are kept on the devices.

_OPS = {"sum": jnp.add, "prod": jnp.multiply, "min": jnp.minimum, "max": jnp.maximum}


class MeshCollectives:
    """Computes collectives of arrays of all ranks; ``root`` is the rank of the program."""

    def __init__(self, mesh: JaxMesh, root: int) -> None:
        self.mesh, self.root = mesh, root
        self._compiled: Dict[Any, Any] = {}
        self._weights: Dict[Any, Any] = {}

    def wholes(self, columns: Sequence[Sequence[Any]]) -> Optional[List[Any]]:
        """Return the variables' arrays of all ranks; None if shapes differ, or devices cannot combine the types."""
        found = []
        for column in columns:
            whole = common_whole(column)
            if whole is None:
                if len({(one.shape, one.dtype) for one in column}) > 1 or not np.dtype(column[0].dtype).isnative:
                    return None
                whole = self.mesh.whole(column)
            if not whole.size or whole.dtype.kind not in KINDS:
                return None
            found.append(whole)
        return found

    def all_reduce(self, wholes: Sequence[Any], reduction: Reduction) -> Tuple[List[Any], List[Tuple[float, float]]]:
        """Return the results, and the bytes that every rank has read from others and sent to others.

        Ranks that receive no result keep their value.
        """
        size, op = self.mesh.size, reduction.op
        rows = self._rows(reduction) if op.name == "avg" else None
        receivers = None if rows is not None else reduction.results[0].destinations
        nbytes = [one.nbytes for one in wholes]
        can_share = reduction.is_for_all and size > 2
        shares = [can_share and each > size * OWN_BELOW_BYTES for each in nbytes]
        ways = tuple([(is_shared, reduction.wire) for is_shared in shares])
        key = "all_reduce", op.name, receivers, ways

        def one_rank(row: Any, values: Sequence[Any]) -> List[Any]:
            found = list(values)
            for members in _joined(values, ways):
                parts = [values[i] for i in members]
                joined = parts[0] if len(parts) == 1 else jnp.concatenate([one.reshape(-1) for one in parts])
                result = _all_reduce(joined, op, row, size, *ways[members[0]])
                ends = np.cumsum([one.size for one in parts])[:-1]
                for i, one in zip(members, jnp.split(result, ends) if len(parts) > 1 else [result]):
                    found[i] = one.reshape(values[i].shape)
            if receivers is not None:
                receives = jnp.isin(jax.lax.axis_index(AXIS), np.array(receivers))
                found = [jnp.where(receives, new, value) for new, value in zip(found, values)]
            return found

        moved = [0.0, 0.0]
        for whole, each, is_shared in zip(wholes, nbytes, shares):
            sent = each / size * (2 / whole.dtype.itemsize if reduction.wire else 1)
            moved[0] += sent * (size - 1) / (size if is_shared else 1)
            moved[1] += sent * (size - 1) / size * is_shared
        return self._run(key, one_rank, rows, wholes), [(moved[0], moved[1])] * size

    def broadcast(self, wholes: Sequence[Any], _: Any) -> Tuple[List[Any], List[Tuple[float, float]]]:
        """Return the root's values on all ranks, bit for bit."""
        root = self.root

        def one_rank(_: Any, values: Sequence[Any]) -> List[Any]:
            is_root, found = jax.lax.axis_index(AXIS) == root, []
            for value in values:
                bits = _bits(value)  # a sum of floats would lose the sign of 0
                found.append(_of_bits(jax.lax.psum(jnp.where(is_root, bits, jnp.zeros_like(bits)), AXIS), value.dtype))
            return found

        nbytes = sum([whole.nbytes for whole in wholes]) / self.mesh.size
        return self._run("broadcast", one_rank, None, wholes), [
            (nbytes * (rank != root), 0.0) for rank in range(self.mesh.size)
        ]

    def all_gather(self, wholes: Sequence[Any], _: Any) -> Tuple[List[Any], List[Tuple[float, float]]]:
        """Return the concatenation of all ranks' values along axis 0 on every rank."""

        def one_rank(_: Any, values: Sequence[Any]) -> List[Any]:
            return [jax.lax.all_gather(value, AXIS, tiled=True) for value in values]

        nbytes = sum([whole.nbytes for whole in wholes]) / self.mesh.size * (self.mesh.size - 1)
        return self._run("all_gather", one_rank, None, wholes), [(nbytes, 0.0)] * self.mesh.size

    def _run(self, key: Any, one_rank: Any, kept: Any, wholes: Sequence[Any]) -> List[Any]:
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self.mesh.common(one_rank, donates=False)
        found: List[Any] = jax.block_until_ready(compiled(kept, list(wholes)))  # so that later errors change nothing
        return found

    def _rows(self, reduction: Reduction) -> Any:
        """Return the weights of each rank's result, on the rank's device; a rank that receives none has weight 1."""
        size = self.mesh.size
        key = tuple([(each.weights, each.destinations) for each in reduction.results])
        found = self._weights.get(key)
        if found is None:
            rows = np.eye(size)
            for weights, destinations, _ in reduction.results:
                row = scaled_weights(np.ones(size) if weights is None else np.array(weights, np.float64))
                rows[list(range(size) if destinations is None else destinations)] = row
            if len(self._weights) >= MAX_WEIGHTS:
                del self._weights[next(iter(self._weights))]
            found = self._weights[key] = self.mesh.spread(list(rows))
        return found


def _joined(values: Sequence[Any], ways: Sequence[Tuple[bool, Optional[str]]]) -> Iterable[List[int]]:
    """Return the positions of values that are reduced in one vector: small values of one type."""
    groups: Dict[Any, List[int]] = {}
    for i, (value, (is_shared, wire)) in enumerate(zip(values, ways)):
        is_small = not is_shared and wire is None and value.size * value.dtype.itemsize <= MAX_JOINED_BYTES
        groups.setdefault(value.dtype if is_small else i, []).append(i)
    return groups.values()


def _all_reduce(value: Any, op: ReduceOp, row: Any, size: int, is_shared: bool, wire: Optional[str]) -> Any:
    wide = compute_dtype(op, value.dtype)
    message, exponent = _encoded(value, wire)
    exponents = [None] * size if exponent is None else list(jax.lax.all_gather(exponent, AXIS))
    if is_shared:
        n_each = -(-value.size // size)
        message = jnp.pad(message.reshape(-1), (0, n_each * size - value.size)).reshape(size, n_each)
        parts = jax.lax.all_to_all(message, AXIS, 0, 0)
    elif size == 2:  # without a copy of the own value
        other, is_first = jax.lax.ppermute(message, AXIS, [(0, 1), (1, 0)]), jax.lax.axis_index(AXIS) == 0
        parts = [jnp.where(is_first, message, other), jnp.where(is_first, other, message)]
    else:
        parts = jax.lax.all_gather(message, AXIS)
    decoded = [_decoded(part, exponent, wide) for part, exponent in zip(parts, exponents)]
    found = (_mean(decoded, row) if op.name == "avg" else functools.reduce(_OPS[op.name or ""], decoded)).astype(
        value.dtype
    )
    message, exponent = _encoded(found, wire, is_shared)
    if is_shared:
        message = jax.lax.all_gather(message, AXIS, tiled=True)[: value.size].reshape(value.shape)
    return _decoded(message, exponent, value.dtype)


def _mean(parts: Sequence[Any], row: Any) -> Any:
    """Return the weighted mean of `reductions.mean`; ``row`` has the weights of all ranks."""
    dtype = parts[0].dtype
    weights = jnp.where(row > 0, jnp.maximum(row.astype(dtype), jnp.finfo(dtype).tiny), 0)
    mean, low, high = jnp.full_like(parts[0], -0.0), jnp.full_like(parts[0], jnp.inf), jnp.full_like(parts[0], -jnp.inf)
    for part, weight in zip(parts, weights):  # a weight of 0 excludes infinities and NaN
        mean = jnp.where(weight > 0, mean + part * weight, mean)
        low, high = (
            jnp.where(weight > 0, jnp.minimum(low, part), low),
            jnp.where(weight > 0, jnp.maximum(high, part), high),
        )
    return jnp.minimum(jnp.maximum(mean / weights.sum(), low), high)


def _encoded(value: Any, wire: Optional[str], over_ranks: bool = False) -> Tuple[Any, Any]:
    """Return a value in 16 bits and the exponent of its scale, as `kernels.encoding` does; None: without a scale.

    With ``over_ranks``, the values of all ranks have one scale.
    """
    if wire is None:
        return value, None
    value, exponent = value.astype("float32" if value.dtype == "float16" else value.dtype), None
    if wire == "float16":
        largest = jnp.where(jnp.isfinite(value), jnp.abs(value), 0).max()
        exponent = jnp.frexp(jax.lax.pmax(largest, AXIS) if over_ranks else largest)[1] - 15
        value = jnp.ldexp(value, -exponent)
    # (Without a barrier, XLA may omit a conversion to 16 bits and back.)
    message = value.astype(wire) if wire == "float16" else value.astype("float32").astype(wire)
    return jax.lax.optimization_barrier(message), exponent


def _decoded(message: Any, exponent: Any, dtype: Any) -> Any:
    if exponent is None:
        return message.astype(dtype)
    wide = "float32" if dtype == "float16" else dtype
    return jnp.ldexp(message.astype(wide), exponent).astype(dtype)


def _bits(value: Any) -> Any:
    if value.dtype.kind != "f":
        return value.astype("uint8") if value.dtype == "bool" else value
    return jax.lax.bitcast_convert_type(value, f"uint{8 * value.dtype.itemsize}")


def _of_bits(bits: Any, dtype: Any) -> Any:
    return jax.lax.bitcast_convert_type(bits, dtype) if dtype.kind == "f" else bits.astype(dtype)
