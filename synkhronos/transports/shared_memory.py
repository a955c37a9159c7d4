"""Collectives through shared memory: every rank reads the others' arrays where they lie.

Each key has a *slot* in the memory of each rank: its *current* array, which
the owner's storage cell normally points at, and a *spare* one that results are
written to. Every rank works out its share of the elements, for all ranks: it
reads n current arrays and writes into n spare ones. So all ranks hold the same
bits, no element is computed twice, and the current arrays stand untouched
until every rank has finished.
"""

from __future__ import annotations

import math
import pickle
import sys
from collections import OrderedDict
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..kernels.copy import copy_into, join_into
from ..kernels.reduce import Share
from ..memory import messages
from ..memory.attach import PoolMap
from ..memory.handles import Handle
from ..memory.pool import Pool
from ..reductions import ReduceOp, reduce_outputs
from ..sync.barrier import Barrier
from .base import Describe, Key, Transport

#: Up to so many bytes the root reduces alone: sharing the work would cost another barrier.
ROOT_REDUCES_BELOW_BYTES = 1 << 16

#: What ranks have told each other is kept for so many collectives: two for each of different variables, whose current
#: and spare arrays change places.
MAX_LAYOUTS = 64


class Placed(NamedTuple):
    """An array in the rank's pool, and its handle: one thing, for Ctrl-C may come between any two assignments."""

    array: np.ndarray
    handle: Handle


class Slot:
    """The current and the spare array of one key on one rank."""

    __slots__ = ("current", "spare")

    def __init__(self) -> None:
        self.current: Optional[Placed] = None
        self.spare: Optional[Placed] = None

    def fits(self, which: str, shape: Tuple[int, ...], dtype: np.dtype) -> bool:
        """Tell whether one of the arrays can be overwritten with a value of that shape and dtype.

        Not where somebody else still refers to it, or to a view of it: another variable's cell after an update that
        swaps the two, or a user who borrowed the value. Then it is left to them, and its memory goes back with the
        last reference.
        """
        placed = getattr(self, which)
        if placed is None or placed.array.shape != shape or placed.array.dtype != dtype:
            return False
        # The slot's reference and the argument's; and, as all views have the array's own base, the array's and again
        # the argument's.
        return sys.getrefcount(placed.array) == 2 and sys.getrefcount(placed.array.base) == 2


class Layout:
    """Where arrays of all ranks lie, as all of them have told.

    Attributes
    ----------
    handles : list of list of (Handle or None)
        By rank, and by position in what was told.
    known : dict
        What collectives have worked out from it, for the next time.
    """

    def __init__(self, handles: List[Sequence[Optional[Handle]]], pools: PoolMap) -> None:
        self.handles, self._pools = handles, pools
        self._arrays: Dict[int, List[Optional[np.ndarray]]] = {}
        self.known: Dict[Any, Any] = {}

    def of_ranks(self, i: int) -> List[Optional[Handle]]:
        """Return every rank's handle at a position."""
        return [handles[i] for handles in self.handles]

    def arrays(self, i: int) -> List[Any]:
        """Return every rank's array at a position, attached."""
        found = self._arrays.get(i)
        if found is None:
            found = self._arrays[i] = [
                None if handle is None else self._pools.attach(handle) for handle in self.of_ranks(i)
            ]
        return found


class SharedMemoryTransport(Transport):
    """Collectives over the pools of the ranks; see the module."""

    def __init__(self, barrier: Barrier, pool: Pool, pools: PoolMap) -> None:
        self.barrier, self.pool, self.pools = barrier, pool, pools
        self.rank, self.root, self.size = barrier.rank, barrier.root, barrier.block.size
        self._slots: Dict[Key, Slot] = {}
        self._keep: List[Any] = [None, None]
        # What was told last, by the identities of the handles, which are kept for that: pickled.
        self._told: "OrderedDict[Tuple[int, ...], Tuple[bytes, Any]]" = OrderedDict()
        self._layouts: "OrderedDict[Tuple[bytes, ...], Layout]" = OrderedDict()  # by what all ranks told

    # -- the slots of this rank ----------------------------------------------------------------------------------

    def _slot(self, key: Key) -> Slot:
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = Slot()
        return slot

    def bind(self, key: Key, value: np.ndarray) -> np.ndarray:
        slot = self._slot(key)
        if slot.current is not None and _same_memory(value, slot.current.array):
            return slot.current.array
        if not slot.fits("current", value.shape, value.dtype):
            slot.current = self._placed_array(value.shape, value.dtype)
        copy_into(slot.current.array, value)  # type: ignore[union-attr]
        return slot.current.array  # type: ignore[union-attr]

    def allocate(self, key: Key, shape: Tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        slot = self._slot(key)
        if not slot.fits("spare", shape, dtype):
            slot.spare = self._placed_array(shape, dtype)
        return slot.spare.array  # type: ignore[union-attr]

    def _placed_array(self, shape: Tuple[int, ...], dtype: np.dtype) -> Placed:
        array = self.pool.allocate(shape, dtype)
        return Placed(array, self.pool.handle(array))

    def swap_in(self, key: Key, result: np.ndarray) -> None:
        slot = self._slot(key)
        if slot.spare is not None and result is slot.spare.array:
            before, after = slot.current, slot.spare
            slot.spare = None  # first: an array must never be both, wherever this is interrupted
            slot.current = after
            slot.spare = before

    def forget(self, prefix: Tuple[Any, ...]) -> None:
        for key in [key for key in self._slots if key[: len(prefix)] == prefix]:
            del self._slots[key]

    # -- meeting -------------------------------------------------------------------------------------------------

    def exchange(self, notice: Any) -> List[Any]:
        told = self._exchange(pickle.dumps(notice, pickle.HIGHEST_PROTOCOL))
        return [notice if rank == self.rank else pickle.loads(each) for rank, each in enumerate(told)]

    def _exchange(self, notice: bytes) -> Tuple[bytes, ...]:
        block = self.barrier.block
        # Two slots in turn, by the number of the barrier: that is the same on all ranks, even after a command that
        # some of them gave up earlier than others.
        turn = (self.barrier.current + 1) % 2
        slots, length = block.notice_slots[turn], block.notice_length[turn]
        # The slot was read for the last time before the barrier in between.
        length[self.rank], self._keep[turn] = messages.put(notice, slots[self.rank], self.pool)
        self.barrier.wait()
        return tuple(
            notice if rank == self.rank else bytes(messages.get(length[rank], slots[rank], self.pools))
            for rank in range(self.size)
        )

    def _share(self, handles: Sequence[Optional[Handle]]) -> Layout:
        """Tell all ranks where this rank's arrays lie; return where all lie.

        Mostly they lie where they lay the last time, or the time before (current and spare arrays change places). So
        both what is told and what is made of it are kept.
        """
        identities = tuple(map(id, handles))
        notice, _ = self._told.get(identities, (None, None))
        if notice is None:
            notice = pickle.dumps(handles, pickle.HIGHEST_PROTOCOL)
            _remember(self._told, identities, (notice, handles))
        told = self._exchange(notice)
        layout = self._layouts.get(told)
        if layout is None:
            layout = Layout([pickle.loads(each) for each in told], self.pools)
            _remember(self._layouts, told, layout)
        return layout

    def _placed(self, keys: Sequence[Key], arrays: Sequence[Optional[np.ndarray]]) -> List[Optional[Handle]]:
        """Bring arrays into their slots; return the handles."""
        handles: List[Optional[Handle]] = []
        for key, array in zip(keys, arrays):
            if array is None:
                handles.append(None)
            else:
                self.bind(key, array)
                handles.append(self._slots[key].current.handle)  # type: ignore[union-attr]
        return handles

    def _spare_handle(self, key: Key) -> Handle:
        return self._slots[key].spare.handle  # type: ignore[union-attr]

    # -- collectives ---------------------------------------------------------------------------------------------

    def all_reduce(
        self,
        keys: Sequence[Key],
        arrays: Sequence[np.ndarray],
        op: ReduceOp,
        weights: Optional[Sequence[float]],
        describe: Describe,
    ) -> List[np.ndarray]:
        return self._reduce_beside(keys, arrays, op, weights, describe, range(self.size))

    def _reduce_beside(
        self,
        keys: Sequence[Key],
        arrays: Sequence[np.ndarray],
        op: ReduceOp,
        weights: Optional[Sequence[float]],
        describe: Describe,
        takers: Sequence[int],
    ) -> List[np.ndarray]:
        """Reduce arrays that every rank has, into spare ones of the ranks that take the results; return this rank's."""
        n = len(keys)
        told, results = self._placed(keys, arrays), []
        if self.rank in takers:
            results = [self.allocate(key, array.shape, array.dtype) for key, array in zip(keys, arrays)]
            told = told + [self._spare_handle(key) for key in keys]
        layout = self._share(told)
        share = layout.known.get(takers)
        if share is None:
            for i in range(n):
                check_same([handles[i] for handles in layout.handles], describe, i)
            targets = [[self.pools.attach(layout.handles[taker][n + i]) for taker in takers] for i in range(n)]
            share = layout.known[takers] = Share([layout.arrays(i) for i in range(n)], targets, self.rank, self.size)
        share.combine(op, weights)
        # The others' shares are complete at the next barrier.
        return results

    def reduce(
        self,
        keys: Sequence[Key],
        arrays: Sequence[Optional[np.ndarray]],
        ops: Sequence[ReduceOp],
        weights: Optional[Sequence[float]],
        describe: Describe,
        keep_dtype: bool = True,
        in_place: bool = False,
    ) -> Optional[List[np.ndarray]]:
        if in_place:
            (op,) = set(ops)
            results_here = self._reduce_beside(keys, arrays, op, weights, describe, (self.root,))
            return results_here if self.rank == self.root else None
        layout = self._share(self._placed(keys, arrays))
        names = tuple(op.name for op in ops)
        shared_out = layout.known.get(names)
        if shared_out is None:
            for i, name in enumerate(names):
                if name not in (None, "gather"):
                    check_same(layout.of_ranks(i), describe, i)
            shared_out = layout.known[names] = [
                i for i, name in enumerate(names) if self._worth_sharing(layout.of_ranks(i), name)
            ]
        results: Dict[int, np.ndarray] = {}
        if shared_out:
            # The root tells where the results shall lie, which takes an exchange of its own.
            spares: List[Optional[Handle]] = [None] * len(shared_out)
            if self.rank == self.root:
                for j, i in enumerate(shared_out):
                    self.allocate(keys[i], *_shape_of(layout.of_ranks(i)))
                    spares[j] = self._spare_handle(keys[i])
            targets = self._share(spares)
            for j, i in enumerate(shared_out):
                results[i] = targets.arrays(j)[self.root]
                Share([layout.arrays(i)], [[results[i]]], self.rank, self.size).combine(ops[i], weights)
            self.barrier.wait()
        if self.rank != self.root:
            return None
        out = []
        for i, op in enumerate(ops):
            if i in results:
                out.append(results[i].copy())
                continue
            with _named(describe, i):
                out.append(reduce_outputs(op, layout.arrays(i), weights, self.root, keep_dtype))
        return out

    def _worth_sharing(self, handles: Sequence[Optional[Handle]], name: Optional[str]) -> bool:
        if name in (None, "gather") or self.size == 1:
            return False
        shape, dtype = _shape_of(handles)
        return dtype.itemsize * math.prod(shape) > ROOT_REDUCES_BELOW_BYTES and dtype != np.bool_

    def gather(self, keys: Sequence[Key], arrays: Sequence[np.ndarray]) -> Optional[List[List[np.ndarray]]]:
        layout = self._share(self._placed(keys, arrays))
        return [layout.arrays(i) for i in range(len(keys))] if self.rank == self.root else None

    def all_gather(
        self, keys: Sequence[Key], arrays: Sequence[np.ndarray], describe: Describe, on_host: bool = False
    ) -> List[np.ndarray]:
        layout = self._share(self._placed(keys, arrays))
        results = []
        for i, key in enumerate(keys):
            of_ranks = layout.of_ranks(i)
            check_same(of_ranks, describe, i, but_lengths=True)
            length = sum(handle.shape[0] for handle in of_ranks)
            spare = self.allocate(key, (length,) + of_ranks[0].shape[1:], of_ranks[0].dtype)
            join_into(spare, layout.arrays(i))
            results.append(spare)
        return results

    def broadcast(
        self, keys: Sequence[Key], arrays: Sequence[np.ndarray], root: int, on_host: bool = False
    ) -> List[np.ndarray]:
        if self.rank == root:
            self._share(self._placed(keys, arrays))
            return [self._slots[key].current.array for key in keys]  # type: ignore[union-attr]
        handles = self._share([]).handles[root]
        return [self.store(key, self.pools.attach(handle)) for key, handle in zip(keys, handles)]


def _same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """Tell whether two arrays are views of the same elements in the same order; ``b`` is C-contiguous."""
    return a is b or (
        a.shape == b.shape
        and a.dtype == b.dtype
        and a.flags.c_contiguous
        and a.__array_interface__["data"] == b.__array_interface__["data"]
    )


def _shape_of(handles: Sequence[Optional[Handle]]) -> Tuple[Tuple[int, ...], np.dtype]:
    handle = next(handle for handle in handles if handle is not None)
    return handle.shape, handle.dtype


def _remember(known: OrderedDict, key: Any, value: Any) -> None:
    """Add to what is known, and forget the oldest where that is too much."""
    known[key] = value
    if len(known) > MAX_LAYOUTS:
        known.popitem(last=False)


def check_same(handles: Sequence[Optional[Handle]], describe: Describe, i: int, but_lengths: bool = False) -> None:
    """Raise where shapes or dtypes differ; every rank sees the same handles, so all raise or none."""
    there = [(rank, handle) for rank, handle in enumerate(handles) if handle is not None]
    if len({(handle.shape[but_lengths:], len(handle.shape), handle.dtype) for _, handle in there}) > 1:
        raise ValueError(
            "{} differs between ranks: expected the same shape{} and dtype on all of them, got {}".format(
                describe(i),
                " (but for the length)" if but_lengths else "",
                "; ".join(f"{handle.dtype} {handle.shape} on rank {rank}" for rank, handle in there),
            )
        )


@contextmanager
def _named(describe: Describe, i: int) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{describe(i)}: {error}") from None
