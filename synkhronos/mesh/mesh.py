"""The devices of a session without processes, and the arrays on them.

An array of all ranks is one `jax.Array` whose sharding says that it is replicated over the mesh, although each device
has its own value: functions run inside ``shard_map``, where a device reads and writes its own value alone.
"""

from __future__ import annotations

from typing import Any, List, Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "ranks"  #: The name of the mesh's only axis.


class JaxMesh:
    """A mesh with one device per rank, and the place where the ranks' threads leave their parts of a common call."""

    def __init__(self, devices: Sequence[Any]) -> None:
        self.devices, self.size = list(devices), len(devices)
        self.mesh = Mesh(np.array(self.devices), (AXIS,))
        self._own = NamedSharding(self.mesh, PartitionSpec())
        self.parts: List[Any] = [None] * self.size
        self.results: List[List[Any]] = []

    def put(self, values: Sequence[Any], rank: int) -> List[Any]:
        """Return copies of arrays on a rank's device; arrays that are on this device are returned unchanged."""
        device = self.devices[rank]
        found = list(values)
        away = [i for i, one in enumerate(found) if not (isinstance(one, jax.Array) and one.devices() == {device})]
        if away:
            # JAX may use the memory of an array that it receives at any later time, so it receives a private copy.
            given = [found[i] if isinstance(found[i], jax.Array) else np.array(found[i]) for i in away]
            for i, put in zip(away, jax.device_put(given, device)):
                found[i] = put
        return found

    def joined(self, of_ranks: Sequence[Any]) -> Any:
        """Return one array made of every rank's array, of equal shapes, without copying."""
        return jax.make_array_from_single_device_arrays(of_ranks[0].shape, self._own, list(of_ranks))

    def parted(self, array: Any) -> List[Any]:
        """Return every rank's array of an array from `joined`, or of a result of a common call."""
        # (`addressable_data` would return the first device's array for every rank, because all count as equal.)
        by_device = {shard.device: shard.data for shard in array.addressable_shards}
        return [by_device[device] for device in self.devices]

    def common(self, function: Any) -> Any:
        """Return ``function``, which computes one rank's results, compiled once for all ranks."""
        specs = dict(in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
        return jax.jit(jax.shard_map(function, mesh=self.mesh, **specs))
