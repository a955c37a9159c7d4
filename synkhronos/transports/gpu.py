"""Collectives between ranks with one device each: through NCCL if possible, otherwise through shared memory.

A device array goes through NCCL if the devices have a communicator and NCCL supports the dtype. Otherwise it is staged:
copied into this rank's slot in shared memory, reduced there, and copied back. One call may also contain host arrays.
"""

from __future__ import annotations

import logging
from typing import Any, Callable, Collection, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..reductions import ReduceOp, Weights
from ..reductions.device import contiguous, download, is_on_device, upload
from ..trace import point
from .base import Arrays, Key, Keys, Label, NameOf, Pending, Transport
from .layouts import check_same
from .nccl import Clique, Meta, is_known, open_clique
from .shared_memory import SharedMemoryTransport
from .strategy import Reduction, participants

logger = logging.getLogger("synkhronos")


class GpuTransport(Transport):
    """Collectives over arrays on the rank's device (opened by pygpu) and, through ``host``, on the host."""

    def __init__(
        self, host: SharedMemoryTransport, context: Any, device: str, prepare_thread: Callable[[], object]
    ) -> None:
        self.host, self.context, self.device, self.prepare_thread = host, context, device, prepare_thread
        self.nccl: Optional[Clique] = None  # communicator of all devices; if it is None, `why` states the reason
        self.why = ""
        self.traffic, self.common = host.traffic, host.common
        self.common.is_open = False

    def connect(self) -> None:
        """Open the communicator of the ranks' devices, if possible. Every rank calls this."""
        self.nccl, self.why = open_clique(self.host, self.context, self.device)
        if self.nccl is None and self.host.rank == self.host.root:
            level = logging.WARNING if self.device.startswith("cuda") else logging.INFO
            logger.log(level, "NCCL is not used (%s): arrays on devices go through the host's shared memory", self.why)

    def disconnect(self) -> SharedMemoryTransport:
        """Abort the communicator, because a rank may have died; return the transport for host arrays."""
        self.close()
        self.nccl, self.why = None, "another communicator is being opened"
        return self.host

    def close(self) -> None:
        if self.nccl is not None:
            self.nccl.give_up()

    # -- this rank's arrays --------------------------------------------------------------------------------------

    def exchange(self, notice: Any) -> List[Any]:
        return self.host.exchange(notice)

    def bind(self, keys: Keys, values: Arrays) -> List[Any]:
        on_host = [i for i, value in enumerate(values) if not is_on_device(value)]
        bound = [None if i in on_host else contiguous(value) for i, value in enumerate(values)]
        for i, array in zip(on_host, self.host.bind([keys[i] for i in on_host], [values[i] for i in on_host])):
            bound[i] = array
        return bound

    def to_host(self, key: Key, array: Any) -> np.ndarray[Any, Any]:
        """Return an array in host memory; a device array is copied into this rank's shared memory. Local."""
        if not is_on_device(array):
            return np.asarray(array)
        staged = download(array, self.host.allocate(key, array.shape, array.dtype))
        self.host.swap_in(key, staged)
        return staged

    def copies(self, keys: Keys, values: Arrays) -> List[Any]:
        on_host = [i for i, value in enumerate(values) if not is_on_device(value)]
        copies = [None if i in on_host else value.copy() for i, value in enumerate(values)]
        for i, copy in zip(on_host, self.host.copies([keys[i] for i in on_host], [values[i] for i in on_host])):
            copies[i] = copy
        return copies

    def allocate(self, key: Key, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        return self.host.allocate(key, shape, dtype)

    def swap_in(self, key: Key, result: Any) -> bool:
        return not is_on_device(result) and self.host.swap_in(key, result)

    def keeps(self, key: Key, array: Any) -> bool:
        return self.host.keeps(key, array)

    def forget(self, things: Collection[Key]) -> None:
        self.host.forget(things)

    def _on_host(self, keys: Keys, arrays: Arrays) -> List[Any]:
        return [None if array is None else self.to_host(key, array) for key, array in zip(keys, arrays)]

    def _metas(self, arrays: Arrays, on_host: Sequence[bool]) -> List[List[Optional[Meta]]]:
        """Return, per array, all ranks' metadata if the array goes through NCCL, otherwise an empty list.

        All ranks make the same choice, after an exchange, so no rank enters NCCL while another rank can still fail.
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
        keys: Keys,
        arrays: Arrays,
        reduction: Reduction,
        name_of: NameOf,
        into: Optional[Keys] = None,
        errors: Arrays = (),
        promise: Callable[[], object] = bool,
    ) -> Pending:
        op = reduction.op
        on_host = op.on_host or reduction.wire is not None
        metas, staged = self._ways(arrays, [on_host] * len(arrays), name_of)
        results: Dict[int, Any] = {}
        if staged:
            mine = [keys[i] for i in staged]
            pending = self.host.all_reduce(
                mine,
                self._on_host(mine, [arrays[i] for i in staged]),
                reduction,
                lambda j: name_of(staged[j]),
                None if into is None else [into[i] for i in staged],
                errors,
            )
            if any(is_on_device(arrays[i]) for i in staged):
                self.host.barrier.wait()  # the other ranks' shares of the results are complete
            for i, result in zip(staged, pending):
                goes_up = result is not None and is_on_device(arrays[i])
                results[i] = upload(result, self.context) if goes_up else result
        for i, of_ranks in enumerate(metas):
            for weights, destinations, _ in reduction.results if of_ranks else ():
                if destinations == (self.host.root,):
                    result = self._nccl.reduce(arrays[i], of_ranks, op, weights)
                    self._count_sent(arrays[i])
                else:
                    result = self._nccl.all_reduce(arrays[i], op, weights)
                    self._count_ring(arrays[i])
                if destinations is None or self.host.rank in destinations:
                    results[i] = result
        return self._finished(results, len(arrays))

    @point("transport")
    def reduce(
        self,
        keys: Keys,
        arrays: Arrays,
        ops: Sequence[ReduceOp],
        weights: Weights,
        name_of: NameOf,
        keep_dtype: bool = True,
    ) -> Optional[List[Any]]:
        on_host = [op.on_host or op.name in (None, "gather") for op in ops]
        metas, staged = self._ways(arrays, on_host, name_of)
        results: Dict[int, Any] = {}
        if staged:
            mine = [keys[i] for i in staged]
            reduced = self.host.reduce(
                mine,
                self._on_host(mine, [arrays[i] for i in staged]),
                [ops[i] for i in staged],
                weights,
                lambda j: name_of(staged[j]),
                keep_dtype,
            )
            if reduced is not None:
                results.update(zip(staged, reduced))
        for i, of_ranks in enumerate(metas):
            if of_ranks:
                results[i] = self._nccl.reduce(arrays[i], of_ranks, ops[i], weights)
                self._count_sent(arrays[i])
        finished = self._finished(results, len(arrays))
        return finished if self.host.rank == self.host.root else None

    def all_reduce_values(self, key: Key, arrays: Arrays, op: ReduceOp, weights: Weights, label: Label) -> List[Any]:
        if self.nccl is None or op.on_host or not any(map(is_on_device, arrays)):
            metas: List[List[Optional[Meta]]] = [[] for _ in arrays]
        else:
            self.agree(label())
            metas, _ = self._ways(arrays, [False] * len(arrays), lambda i: f"array {i} of {label()}")
        staged = [i for i, of_ranks in enumerate(metas) if not of_ranks]
        results: Dict[int, Any] = {}
        if staged:
            there = [_downloaded(arrays[i]) for i in staged]
            reduced = self.host.all_reduce_values(key, there, op, weights, label)
            for i, result in zip(staged, reduced):
                results[i] = upload(result, self.context) if is_on_device(arrays[i]) else result
        for i, of_ranks in enumerate(metas):
            if of_ranks:
                results[i] = self._nccl.all_reduce(arrays[i], op, weights, participants(weights))
                self._count_ring(arrays[i])
        return self._finished(results, len(arrays))

    def agree(self, label: str) -> None:
        self.host.agree(label)

    def gather(self, keys: Keys, arrays: Arrays) -> Optional[List[List[np.ndarray[Any, Any]]]]:
        return self.host.gather(keys, self._on_host(keys, arrays))

    def all_gather(self, keys: Keys, arrays: Arrays, name_of: NameOf, on_host: bool = False) -> Pending:
        metas, staged = self._ways(arrays, [on_host] * len(arrays), name_of, but_lengths=True)
        results: Dict[int, Any] = {}
        if staged:
            mine = [keys[i] for i in staged]
            gathered = self.host.all_gather(
                mine, self._on_host(mine, [arrays[i] for i in staged]), lambda j: name_of(staged[j])
            )
            results.update(zip(staged, gathered))  # complete, because each rank builds its own result
        for i, of_ranks in enumerate(metas):
            if of_ranks:
                results[i] = self._nccl.all_gather(arrays[i], [meta.shape[0] for meta in of_ranks if meta is not None])
                self._count_ring(results[i], 1)
        return self._finished(results, len(arrays))

    def broadcast(self, keys: Keys, arrays: Arrays, root: int, on_host: bool = False) -> Pending:
        metas, staged = self._ways(arrays, [on_host] * len(arrays), None)
        results: Dict[int, Any] = {}
        if staged:
            mine, is_root = [keys[i] for i in staged], self.host.rank == root
            # Values of ranks other than the root are not read.
            sent = self.host.broadcast(
                mine, self._on_host(mine, [arrays[i] if is_root else None for i in staged]), root
            )
            for i, result in zip(staged, sent):  # complete, because each result is this rank's own copy
                results[i] = arrays[i] if is_root else result
        for i, of_ranks in enumerate(metas):
            meta = of_ranks[root] if of_ranks else None
            if meta is not None:
                results[i] = self._nccl.broadcast(arrays[i], meta, root)
                self.traffic.add(nbytes_of(results[i]) * (self.host.rank != root), 0)
        return self._finished(results, len(arrays))

    def _ways(
        self, arrays: Arrays, on_host: Sequence[bool], name_of: Optional[NameOf], but_lengths: bool = False
    ) -> Tuple[List[List[Optional[Meta]]], List[int]]:
        """Return the ranks' metadata of arrays that NCCL exchanges, and the positions of all other arrays.

        Unless ``name_of`` is None, raise `ValueError` if shapes or dtypes differ between ranks.
        """
        metas = self._metas(arrays, on_host)
        if name_of is not None:
            for i, of_ranks in enumerate(metas):
                check_same(of_ranks, name_of, i, but_lengths)
        return metas, [i for i, of_ranks in enumerate(metas) if not of_ranks]

    def _count_ring(self, array: Any, rounds: int = 2) -> None:
        """Count a ring's traffic: in each round, the array except this rank's part, half as read and half as sent."""
        nbytes = nbytes_of(array) * (self.host.size - 1) / self.host.size * rounds / 2
        self.traffic.add(nbytes, nbytes)

    def _count_sent(self, array: Any) -> None:
        self.traffic.add(0, 0 if array is None or self.host.rank == self.host.root else nbytes_of(array))

    @property
    def _nccl(self) -> Clique:
        assert self.nccl is not None  # an array has metadata only if there is a communicator
        return self.nccl

    def _finished(self, results: Dict[int, Any], count: int) -> List[Any]:
        if self.nccl is not None:
            self.nccl.finish()
        return [results.get(i) for i in range(count)]  # None on all ranks but the root, after a reduction to the root


def nbytes_of(array: Any) -> int:
    """Return the size of an array in bytes; device arrays have no ``nbytes``."""
    return int(array.size) * int(np.dtype(array.dtype).itemsize)


def _downloaded(array: Any) -> np.ndarray[Any, Any]:
    return download(array, np.empty(array.shape, array.dtype)) if is_on_device(array) else array
