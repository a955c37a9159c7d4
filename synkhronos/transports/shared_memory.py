"""Collectives through shared memory: every rank reads the others' arrays where they lie.

Each key has a *slot* in the memory of each rank: its *current* array, which
the owner's storage cell normally points at, and a *spare* one that results are
written to. Every rank works out its share of the elements, for all ranks: it
reads n current arrays and writes into n spare ones. So all ranks hold the same
bits, no element is computed twice, and the current arrays stand untouched
until every rank has finished.

The work goes in blocks that fit the cache, as reading and writing main memory
is all that it costs.
"""

from __future__ import annotations

import pickle
import sys
from functools import lru_cache
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from .. import messages
from ..reduce_op import ReduceOp, combine, combine_into, gather_outputs
from ..rendezvous import Rendezvous
from ..shared_array import Handle, Pool, PoolMap
from .base import Describe, Key, Transport

#: Bytes of every rank's array that are reduced at a time.
BLOCK = 1 << 18

#: Up to so many bytes the root reduces alone: sharing the work would cost another rendezvous.
ALONE = 1 << 16


class Slot:
    """The current and the spare array of one key on one rank."""

    __slots__ = ("current", "spare")

    def __init__(self) -> None:
        self.current: Optional[np.ndarray] = None
        self.spare: Optional[np.ndarray] = None

    def fits(self, which: str, shape: Tuple[int, ...], dtype: np.dtype) -> bool:
        """Tell whether one of the arrays can be overwritten with a value of that shape and dtype.

        Not where somebody else still refers to it, or to a view of it: another variable's cell after an update that
        swaps the two, or a user who borrowed the value. Then it is left to them, and its memory goes back with the
        last reference.
        """
        array = getattr(self, which)
        if array is None or array.shape != shape or array.dtype != dtype:
            return False
        del array
        # The slot's reference and the argument's; and, as all views have the array's own base, the array's and again
        # the argument's.
        return sys.getrefcount(getattr(self, which)) == 2 and sys.getrefcount(getattr(self, which).base) == 2


class SharedMemoryTransport(Transport):
    """Collectives over the pools of the ranks; see the module."""

    def __init__(self, rendezvous: Rendezvous, pool: Pool, pools: PoolMap) -> None:
        self.rendezvous, self.pool, self.pools = rendezvous, pool, pools
        self.rank, self.root, self.size = rendezvous.rank, rendezvous.root, rendezvous.block.size
        self._slots: Dict[Key, Slot] = {}
        self._keep: List[Any] = [None, None]

    # -- the slots of this rank ----------------------------------------------------------------------------------

    def _slot(self, key: Key) -> Slot:
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = Slot()
        return slot

    def place(self, key: Key, value: np.ndarray) -> np.ndarray:
        slot = self._slot(key)
        if slot.current is not None and _same_memory(value, slot.current):
            return slot.current
        if not slot.fits("current", value.shape, value.dtype):
            slot.current = self.pool.allocate(value.shape, value.dtype)
        np.copyto(slot.current, value)
        return slot.current

    def prepare(self, key: Key, shape: Tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        slot = self._slot(key)
        if not slot.fits("spare", shape, dtype):
            slot.spare = self.pool.allocate(shape, dtype)
        return slot.spare

    def adopt(self, key: Key, result: np.ndarray) -> None:
        slot = self._slot(key)
        if result is slot.spare:
            slot.current, slot.spare = slot.spare, slot.current

    def forget(self, prefix: Tuple[Any, ...]) -> None:
        for key in [key for key in self._slots if key[:len(prefix)] == prefix]:
            del self._slots[key]

    # -- meeting -------------------------------------------------------------------------------------------------

    def exchange(self, notice: Any) -> List[Any]:
        block = self.rendezvous.block
        # Two slots in turn, by the number of the rendezvous: that is the same on all ranks, even after a command that
        # some of them gave up earlier than others.
        turn = (self.rendezvous.current + 1) % 2
        slots, length = block.notice_slots[turn], block.notice_length[turn]
        # The slot was read for the last time before the rendezvous in between.
        length[self.rank], self._keep[turn] = messages.put(
            pickle.dumps(notice, pickle.HIGHEST_PROTOCOL), slots[self.rank], self.pool)
        self.rendezvous.meet()
        return [notice if rank == self.rank else pickle.loads(messages.get(length[rank], slots[rank], self.pools))
                for rank in range(self.size)]

    def _share(self, arrays: Sequence[Optional[np.ndarray]]) -> List[List[Optional[Handle]]]:
        """Tell all ranks where this rank's arrays lie; return where theirs lie, by rank."""
        return self.exchange([None if array is None else self.pool.handle(array) for array in arrays])

    def _attach(self, handles: Sequence[Optional[Handle]]) -> List[Optional[np.ndarray]]:
        return [None if handle is None else self.pools.attach(handle) for handle in handles]

    # -- collectives ---------------------------------------------------------------------------------------------

    def all_reduce(self, keys: Sequence[Key], arrays: Sequence[np.ndarray], op: ReduceOp,
                   weights: Optional[Sequence[float]], describe: Describe) -> List[np.ndarray]:
        n = len(keys)
        mine = [self.place(key, array) for key, array in zip(keys, arrays)]
        results = [self.prepare(key, array.shape, array.dtype) for key, array in zip(keys, arrays)]
        handles = self._share(mine + results)
        for i in range(n):
            check_same([ranks[i] for ranks in handles], describe, i)
        parts = [[self.pools.attach(ranks[i]) for ranks in handles] for i in range(n)]
        targets = [[self.pools.attach(ranks[n + i]) for ranks in handles] for i in range(n)]
        self._reduce_share([op] * n, parts, targets, weights)
        return results

    def _reduce_share(self, ops: Sequence[ReduceOp], parts: Sequence[Sequence[Optional[np.ndarray]]],
                      targets: Sequence[Sequence[np.ndarray]], weights: Optional[Sequence[float]]) -> None:
        """Compute this rank's share of the elements and write it to all targets."""
        sizes = tuple(target[0].nbytes for target in targets)
        for i, begin, end in _share_of(sizes, self.size)[self.rank]:
            itemsize = targets[i][0].itemsize
            flat_parts = [None if part is None else part.reshape(-1) for part in parts[i]]
            flat_targets = [target.reshape(-1) for target in targets[i]]
            step = max(1, BLOCK // itemsize)
            for low in range(-(-begin // itemsize), -(-end // itemsize), step):
                high = min(low + step, -(-end // itemsize))
                first = flat_targets[0][low:high]
                combine_into(ops[i], [None if part is None else part[low:high] for part in flat_parts], weights, first)
                for target in flat_targets[1:]:
                    target[low:high] = first
        # The others' shares are complete at the next rendezvous.

    def reduce(self, keys: Sequence[Key], arrays: Sequence[Optional[np.ndarray]], ops: Sequence[ReduceOp],
               weights: Optional[Sequence[float]], describe: Describe,
               keep_dtype: bool = True, in_place: bool = False) -> Optional[List[np.ndarray]]:
        handles = self._share([None if array is None else self.place(key, array) for key, array in zip(keys, arrays)])
        for i, op in enumerate(ops):
            if op.name not in (None, "gather"):
                check_same([ranks[i] for ranks in handles], describe, i)
        shared_out = [i for i, op in enumerate(ops) if self._worth_sharing([ranks[i] for ranks in handles], op)]
        results: Dict[int, np.ndarray] = {}
        if shared_out:
            # The root tells where the results shall lie, which takes an exchange of its own.
            spares = self._share([self.prepare(keys[i], *_shape_of(handles, i)) if self.rank == self.root else None
                                  for i in shared_out])[self.root]
            targets = [[self.pools.attach(handle)] for handle in spares]
            self._reduce_share([ops[i] for i in shared_out],
                               [self._attach([ranks[i] for ranks in handles]) for i in shared_out], targets, weights)
            self.rendezvous.meet()
            results = {i: target[0] for i, target in zip(shared_out, targets)}
        if self.rank != self.root:
            return None
        out = []
        for i, op in enumerate(ops):
            if i in results:
                out.append(results[i] if in_place else results[i].copy())
                continue
            parts = self._attach([ranks[i] for ranks in handles])
            if op.name is None:
                own = parts[self.root]
                out.append(next(part for part in parts if part is not None).copy() if own is None else own.copy())
            elif op.name == "gather":
                out.append(_named(gather_outputs, parts, describe, i))
            else:
                spare = self.prepare(keys[i], parts[self.rank].shape, parts[self.rank].dtype) if in_place else None
                out.append(combine(op, parts, weights, out=spare, keep_dtype=keep_dtype))
        return out

    def _worth_sharing(self, handles: Sequence[Optional[Handle]], op: ReduceOp) -> bool:
        if op.name in (None, "gather") or self.size == 1:
            return False
        handle = next(handle for handle in handles if handle is not None)
        nbytes = handle.dtype.itemsize * int(np.prod(handle.shape, dtype=np.int64))
        return nbytes > ALONE and handle.dtype != np.bool_

    def gather(self, keys: Sequence[Key], arrays: Sequence[np.ndarray]) -> Optional[List[List[np.ndarray]]]:
        handles = self._share([self.place(key, array) for key, array in zip(keys, arrays)])
        if self.rank != self.root:
            return None
        return [[self.pools.attach(ranks[i]) for ranks in handles] for i in range(len(keys))]

    def all_gather(self, keys: Sequence[Key], arrays: Sequence[np.ndarray],
                   describe: Describe, on_host: bool = False) -> List[np.ndarray]:
        handles = self._share([self.place(key, array) for key, array in zip(keys, arrays)])
        results = []
        for i, key in enumerate(keys):
            of_ranks = [ranks[i] for ranks in handles]
            check_same(of_ranks, describe, i, but_lengths=True)
            length = sum(handle.shape[0] for handle in of_ranks)
            spare = self.prepare(key, (length,) + of_ranks[0].shape[1:], of_ranks[0].dtype)
            np.concatenate([self.pools.attach(handle) for handle in of_ranks], out=spare)
            results.append(spare)
        return results

    def broadcast(self, keys: Sequence[Key], arrays: Sequence[np.ndarray], root: int,
                  on_host: bool = False) -> List[np.ndarray]:
        if self.rank == root:
            handles = self._share([self.place(key, array) for key, array in zip(keys, arrays)])
            return [self._slot(key).current for key in keys]  # type: ignore[misc]
        handles = self._share([])
        return [self.store(key, self.pools.attach(handle)) for key, handle in zip(keys, handles[root])]


def _same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether two arrays are views of the same elements in the same order; ``b`` is C-contiguous."""
    return a is b or (a.shape == b.shape and a.dtype == b.dtype and a.flags.c_contiguous
                      and a.__array_interface__["data"] == b.__array_interface__["data"])


def _shape_of(handles: Sequence[Sequence[Optional[Handle]]], i: int) -> Tuple[Tuple[int, ...], np.dtype]:
    handle = next(ranks[i] for ranks in handles if ranks[i] is not None)
    return handle.shape, handle.dtype


def check_same(handles: Sequence[Optional[Handle]], describe: Describe, i: int, but_lengths: bool = False) -> None:
    """Raise where shapes or dtypes differ; every rank sees the same handles, so all raise or none."""
    there = [(rank, handle) for rank, handle in enumerate(handles) if handle is not None]
    if len({(handle.shape[but_lengths:], len(handle.shape), handle.dtype) for _, handle in there}) > 1:
        raise ValueError("%s differs between ranks: expected the same shape%s and dtype on all of them, got %s" % (
            describe(i), " (but for the length)" if but_lengths else "",
            "; ".join("%s %s on rank %d" % (handle.dtype, handle.shape, rank) for rank, handle in there)))


def _named(function: Any, parts: Any, describe: Describe, i: int) -> np.ndarray:
    try:
        return function(parts)
    except ValueError as error:
        raise ValueError("%s: %s" % (describe(i), error)) from None


@lru_cache(maxsize=256)
def _share_of(sizes: Tuple[int, ...], ranks: int) -> Tuple[Tuple[Tuple[int, int, int], ...], ...]:
    """Divide arrays of so many bytes, as if they were one after another, evenly over the ranks.

    Returns
    -------
    tuple of tuple of (array, begin, end)
        For every rank its pieces, in bytes. Borders within an array lie at multiples of 64 bytes: two ranks must not
        write to one cache line. (Items that are cut by a border belong to the piece in which they begin.)
    """
    total = sum(sizes)
    borders = [-(-(total * r) // ranks) for r in range(ranks + 1)]
    shares: List[List[Tuple[int, int, int]]] = [[] for _ in range(ranks)]
    offset = 0
    for i, size in enumerate(sizes):
        previous = 0
        for r in range(ranks):
            end = size if borders[r + 1] >= offset + size else max(0, borders[r + 1] - offset) // 64 * 64
            if end > previous:
                shares[r].append((i, previous, end))
                previous = end
        offset += size
    return tuple(tuple(share) for share in shares)
