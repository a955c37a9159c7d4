"""Collectives of ranks that have a device each: NCCL where it can be, the host's shared memory for all else.

An array on the host goes as it would without devices. One on a device goes
through NCCL where there is a clique of the ranks' devices and NCCL knows its
type; else it is staged: read into this rank's slot in shared memory, reduced
there, and brought back. A call's arrays may be of both kinds.
"""

from __future__ import annotations

import logging
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..reductions import ReduceOp
from ..reductions.device import contiguous, download, is_on_device, upload
from .base import Describe, Key, Transport
from .nccl import Clique, Meta, is_known, open_clique
from .shared_memory import SharedMemoryTransport, check_same

logger = logging.getLogger("synkhronos")


class GpuTransport(Transport):
    """Collectives over arrays on devices and on the host; see the module.

    Parameters
    ----------
    host : SharedMemoryTransport
        The rank's transport for arrays on the host.
    context
        The rank's device, opened by pygpu.
    device : str
        Its name.
    """

    def __init__(self, host: SharedMemoryTransport, context: Any, device: str) -> None:
        self.host, self.context, self.device = host, context, device
        #: The clique of all ranks' devices, or None, for which `why` says why.
        self.nccl: Optional[Clique] = None
        self.why = ""

    def connect(self) -> None:
        """Open the clique of the ranks' devices, where they can have one. Every rank calls this."""
        self.nccl, self.why = open_clique(self.host, self.context, self.device)
        if self.nccl is None and self.host.rank == self.host.root:
            level = logging.WARNING if self.device.startswith("cuda") else logging.INFO
            logger.log(level, "NCCL is not used (%s): arrays on devices go through the host's shared memory", self.why)

    # -- this rank's arrays --------------------------------------------------------------------------------------

    def exchange(self, notice: Any) -> List[Any]:
        return self.host.exchange(notice)

    def bind(self, key: Key, value: Any) -> Any:
        return contiguous(value) if is_on_device(value) else self.host.bind(key, value)

    def to_host(self, key: Key, array: Any) -> np.ndarray:
        if not is_on_device(array):
            return array
        staged = download(array, self.host.allocate(key, array.shape, array.dtype))
        self.host.swap_in(key, staged)
        return staged

    def allocate(self, key: Key, shape: Tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return self.host.allocate(key, shape, dtype)

    def swap_in(self, key: Key, result: Any) -> None:
        if not is_on_device(result):
            self.host.swap_in(key, result)

    def forget(self, prefix: Tuple[Any, ...]) -> None:
        self.host.forget(prefix)

    def _exposed(self, keys: Sequence[Key], arrays: Sequence[Any]) -> List[Any]:
        return [None if array is None else self.to_host(key, array) for key, array in zip(keys, arrays)]

    # -- which way -----------------------------------------------------------------------------------------------

    def _metas(self, arrays: Sequence[Any], on_host: Sequence[bool]) -> List[List[Optional[Meta]]]:
        """Return, for every array, what the ranks say of theirs, if it goes through NCCL; else an empty list.

        Every rank decides the same, from what all have said. All have arrived when this returns, so that no rank
        enters NCCL while another can still fail before.
        """
        if self.nccl is None or all(on_host):
            return [[] for _ in arrays]
        said = self.exchange(
            [
                None if array is None else Meta(is_on_device(array), tuple(array.shape), np.dtype(array.dtype))
                for array in arrays
            ]
        )
        found = []
        for i, host_asked in enumerate(on_host):
            of_ranks = [ranks[i] for ranks in said]
            there = [meta for meta in of_ranks if meta is not None]
            fits = not host_asked and bool(there) and all(meta.on_device and is_known(meta.dtype) for meta in there)
            found.append(of_ranks if fits else [])
        return found

    # -- collectives ---------------------------------------------------------------------------------------------

    def all_reduce(
        self,
        keys: Sequence[Key],
        arrays: Sequence[Any],
        op: ReduceOp,
        weights: Optional[Sequence[float]],
        describe: Describe,
    ) -> List[Any]:
        metas = self._metas(arrays, [op.on_host] * len(arrays))
        for i, of_ranks in enumerate(metas):
            check_same(of_ranks, describe, i)
        results: Dict[int, Any] = {}
        staged = [i for i, of_ranks in enumerate(metas) if not of_ranks]
        if staged:
            mine = [keys[i] for i in staged]
            reduced = self.host.all_reduce(
                mine, self._exposed(mine, [arrays[i] for i in staged]), op, weights, lambda j: describe(staged[j])
            )
            if any(is_on_device(arrays[i]) for i in staged):
                self.host.barrier.wait()  # the others' shares of the results are complete
            for i, result in zip(staged, reduced):
                results[i] = upload(result, self.context) if is_on_device(arrays[i]) else result
        for i, of_ranks in enumerate(metas):
            if of_ranks:
                results[i] = self.nccl.all_reduce(arrays[i], op, weights)
        return self._finished(results, len(arrays))

    def reduce(
        self,
        keys: Sequence[Key],
        arrays: Sequence[Any],
        ops: Sequence[ReduceOp],
        weights: Optional[Sequence[float]],
        describe: Describe,
        keep_dtype: bool = True,
        in_place: bool = False,
    ) -> Optional[List[Any]]:
        metas = self._metas(arrays, [op.on_host or op.name in (None, "gather") for op in ops])
        for i, of_ranks in enumerate(metas):
            check_same(of_ranks, describe, i)
        results: Dict[int, Any] = {}
        staged = [i for i, of_ranks in enumerate(metas) if not of_ranks]
        if staged:
            mine = [keys[i] for i in staged]
            reduced = self.host.reduce(
                mine,
                self._exposed(mine, [arrays[i] for i in staged]),
                [ops[i] for i in staged],
                weights,
                lambda j: describe(staged[j]),
                keep_dtype,
                in_place,
            )
            if in_place and any(is_on_device(arrays[i]) for i in staged):
                self.host.barrier.wait()  # the others' shares of the results are complete
            results.update(zip(staged, reduced or [None] * len(staged)))
        for i, of_ranks in enumerate(metas):
            if of_ranks:
                results[i] = self.nccl.reduce(arrays[i], of_ranks, ops[i], weights)
        finished = self._finished(results, len(arrays))
        return finished if self.host.rank == self.host.root else None

    def gather(self, keys: Sequence[Key], arrays: Sequence[Any]) -> Optional[List[List[np.ndarray]]]:
        return self.host.gather(keys, self._exposed(keys, arrays))

    def all_gather(
        self, keys: Sequence[Key], arrays: Sequence[Any], describe: Describe, on_host: bool = False
    ) -> List[Any]:
        metas = self._metas(arrays, [on_host] * len(arrays))
        for i, of_ranks in enumerate(metas):
            check_same(of_ranks, describe, i, but_lengths=True)
        results: Dict[int, Any] = {}
        staged = [i for i, of_ranks in enumerate(metas) if not of_ranks]
        if staged:
            mine = [keys[i] for i in staged]
            gathered = self.host.all_gather(
                mine, self._exposed(mine, [arrays[i] for i in staged]), lambda j: describe(staged[j])
            )
            results.update(zip(staged, gathered))
        for i, of_ranks in enumerate(metas):
            if of_ranks:
                results[i] = self.nccl.all_gather(arrays[i], [meta.shape[0] for meta in of_ranks])
        return self._finished(results, len(arrays))

    def broadcast(self, keys: Sequence[Key], arrays: Sequence[Any], root: int, on_host: bool = False) -> List[Any]:
        metas = self._metas(arrays, [on_host] * len(arrays))
        results: Dict[int, Any] = {}
        staged = [i for i, of_ranks in enumerate(metas) if not of_ranks]
        if staged:
            mine = [keys[i] for i in staged]
            # Only the root's values are read.
            exposed = self._exposed(mine, [arrays[i] for i in staged]) if self.host.rank == root else []
            sent = self.host.broadcast(mine, exposed, root)
            for i, result in zip(staged, sent):
                results[i] = arrays[i] if self.host.rank == root else result
        for i, of_ranks in enumerate(metas):
            if of_ranks:
                results[i] = self.nccl.broadcast(arrays[i], of_ranks[root], root)
        return self._finished(results, len(arrays))

    def _finished(self, results: Dict[int, Any], count: int) -> List[Any]:
        """Return the results in order, once NCCL has computed those that it computes."""
        if self.nccl is not None:
            self.nccl.finish()
        return [results[i] for i in range(count)]
