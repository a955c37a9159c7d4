"""The devices of a session without processes, and the arrays on them.

::

    whole        rank 0   rank 1   rank 2        one array of all ranks, concatenated along axis 0; scalars are a vector
    RankArray             block                  a rank's array, on its device, as its entries and results contain it
    TakenRows             block[rows]            rows of a constant array, which the compiled function selects

A function on the mesh receives and returns whole arrays, so that no call has to assemble or split them. A block has the
shape of the rank's array, because XLA would copy a donated array that has an additional axis.
"""

from __future__ import annotations

import math
from typing import Any, List, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "ranks"  #: The name of the mesh's only axis.
RANKS = PartitionSpec(AXIS)
ALIGNMENT = 64  #: In bytes: JAX uses the memory of arrays on the host at such addresses for arrays of CPU devices.


class RankArray:
    """One rank's array in an array of all ranks, on the rank's device; other attributes are those of `jax.Array`.

    ``size`` is the number of ranks, or 0 for a scalar.
    """

    __slots__ = ("whole", "rank", "size")

    def __init__(self, whole: Any, rank: int, size: int) -> None:
        self.whole, self.rank, self.size = whole, rank, size

    @property
    def block(self) -> Any:
        """The device's array; for a scalar, it has one axis of length 1."""
        return self.whole.addressable_data(self.rank)

    @property
    def own(self) -> Any:
        return self.block if self.size else self.block[0]

    @property
    def shape(self) -> Any:
        shape = self.whole.shape
        return (shape[0] // self.size, *shape[1:]) if self.size else ()

    @property
    def dtype(self) -> Any:
        return self.whole.dtype

    @property
    def ndim(self) -> int:
        return int(self.whole.ndim) if self.size else 0

    def on_host(self) -> Any:
        """Wait for the array, and return a copy on the host."""
        block = np.asarray(self.block)
        return np.array(block if self.size else block[0])

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.on_host(), dtype, copy=copy)

    def __getitem__(self, key: Any) -> Any:
        return self.own[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # NumPy looks for several protocols before it calls `__array__`
            raise AttributeError(name)
        return getattr(self.own, name)


class StepArray(RankArray):
    """A rank's array of one step, in an array of all ranks and several steps."""

    __slots__ = ("step",)

    def __init__(self, whole: Any, rank: int, size: int, step: int) -> None:
        super().__init__(whole, rank, size)
        self.step = step

    @property
    def shape(self) -> Any:
        return self.whole.shape[1:]

    @property
    def ndim(self) -> int:
        return int(self.whole.ndim) - 1

    def on_host(self) -> Any:
        return np.array(np.asarray(self.block)[self.step])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.on_host(), name)


class ConstantArray(RankArray):
    """A rank's copy of an array that never changes, for `TakenRows`."""

    __slots__ = ()


class TakenRows:
    """Rows of a rank's constant array, selected when they are used; other attributes are those of `jax.Array`.

    ``rows`` are the numbers of the rows, or the first of ``n_rows`` consecutive rows.
    """

    __slots__ = ("source", "rows", "n_rows", "shape")

    def __init__(self, source: Any, rows: Any, n_rows: int) -> None:
        self.source, self.rows, self.n_rows, self.shape = source, rows, n_rows, (n_rows, *source.shape[1:])

    @property
    def array(self) -> Any:
        source = self.source.own if isinstance(self.source, RankArray) else self.source
        # (indices are sent as an argument: a constant would be compiled into a new program in every call)
        return taken(source, jax.device_put(np.array(self.rows), *source.devices()), self.n_rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.array, name)


def taken(array: Any, rows: Any, n_rows: int) -> Any:
    """Return the rows of `TakenRows`."""
    if rows.ndim:
        return jnp.take(array, rows, axis=0, mode="clip")
    return jax.lax.dynamic_slice_in_dim(array, rows, n_rows)


class JaxMesh:
    """A mesh with one device per rank, and the place where the ranks' threads leave their parts of a common call."""

    def __init__(self, devices: Sequence[Any]) -> None:
        self.devices, self.size = list(devices), len(devices)
        self.mesh = Mesh(np.array(self.devices), (AXIS,))
        self._by_rank = NamedSharding(self.mesh, RANKS)
        self.parts: List[Any] = [None] * self.size
        self.results: List[List[Any]] = []

    def put(self, values: Sequence[Any], rank: int) -> List[Any]:
        """Return copies of arrays on a rank's device; arrays that are on this device are returned unchanged."""
        device, found = self.devices[rank], list(values)
        away = [i for i, one in enumerate(found) if not (isinstance(one, RankArray) or _is_on(one, device))]
        if away:
            # JAX may use the memory of an array that it receives at any later time, so it receives a private copy.
            given = [found[i] if isinstance(found[i], jax.Array) else np.array(found[i]) for i in away]
            for i, put in zip(away, jax.device_put(given, device)):
                found[i] = put
        return found

    def whole(self, of_ranks: Sequence[Any]) -> Any:
        """Return one array made of every rank's array, of equal shapes; arrays on the ranks' devices are not copied."""
        whole = common_whole(of_ranks)
        if whole is not None:
            return whole
        if not any(map(is_on_device, of_ranks)):
            return self.spread(of_ranks)
        blocks = [
            one.block if isinstance(one, RankArray) else jnp.atleast_1d(*self.put([one], rank))
            for rank, one in enumerate(of_ranks)
        ]
        shape = (self.size * blocks[0].shape[0], *blocks[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, self._by_rank, blocks)

    def spread(self, of_ranks: Sequence[Any]) -> Any:
        """Return one array made of every rank's NumPy array, on the devices; it is copied, see `put`."""
        copy = _joined(of_ranks)
        return jax.make_array_from_callback(copy.shape, self._by_rank, copy.__getitem__)

    def common(self, function: Any, donates: bool = True) -> Any:
        """Return ``function``, which computes one rank's results, compiled for all ranks; it may donate argument 1."""
        specs = dict(in_specs=RANKS, out_specs=RANKS, check_vma=False)
        return jax.jit(jax.shard_map(function, mesh=self.mesh, **specs), donate_argnums=1 if donates else ())


def common_whole(of_ranks: Sequence[Any]) -> Any:
    """Return the array of all ranks that every rank's array is a part of; None if there is none."""
    first = of_ranks[0]
    if isinstance(first, RankArray):
        whole = first.whole
        for one in of_ranks:
            if not isinstance(one, RankArray) or one.whole is not whole:
                return None
        return whole
    return None


def _joined(of_ranks: Sequence[Any]) -> Any:
    """Return one array made of every rank's array; JAX uses its memory, except for parts that are not aligned."""
    length, *others = of_ranks[0].shape or (1,)
    shape, dtype = (len(of_ranks) * length, *others), of_ranks[0].dtype
    memory: Any = np.empty(math.prod(shape) * dtype.itemsize + ALIGNMENT, np.uint8)
    begin = -memory.__array_interface__["data"][0] % ALIGNMENT
    found: Any = np.ndarray(shape, dtype, memory, begin)
    return np.concatenate([one if one.shape else one.reshape(1) for one in of_ranks], out=found)


def is_on_device(value: Any) -> bool:
    return isinstance(value, (RankArray, jax.Array))


def _is_on(value: Any, device: Any) -> bool:
    return isinstance(value, jax.Array) and value.devices() == {device}
