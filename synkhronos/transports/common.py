"""Common memory: one copy per host of a variable that all ranks have alike, in one rank's pool; all its ranks map it.

::

                  root's pool             storage of rank 0    1    2
    alike         [current]  [spare]              current (the same memory on all ranks)
    commit        [spare  ]  [current]            the spare becomes current on all ranks, or on none
    own           [current]  [spare]              rank 1's own memory, e.g. after ``set_value(rank=1)``
    kept apart    --                              each rank's own memory, because a function updates it in place

The memory is in the root's pool and, on every other host, in its first rank's. No rank writes to the current array, and
the program never receives it: it gets a copy (`SharedEntry.unshare`). All ranks change their slots in the same commits,
so that they agree on whether a spare array fits.
"""

from __future__ import annotations

from typing import Any, Callable, Collection, Container, Dict, Iterable, List, Optional, Sequence, Set, Tuple

import numpy as np

from ..kernels.copy import copy_into
from ..memory.attach import PoolMap
from ..memory.handles import Handle
from ..memory.pool import Pool
from .base import Key
from .layouts import PooledArray

#: Minimum size of common values. Each rank has its own copy of smaller values, which saves barriers.
COMMON_FROM_BYTES = 1 << 16

#: After a failed command, the master makes all ranks forget this, because they may disagree on the spare arrays.
SPARES = ("spare arrays", 0)

Saved = Tuple[Dict[Key, List[Handle]], Set[Key]]  # the current arrays on all hosts, and the keys that are kept apart

ALIGNMENT = 64  #: In elements: ranks write parts that begin at multiples of it, so never to the same cache line.


class CommonSlot:
    """The current and the spare array of a variable; ``coming`` is a new array that the next commit makes current.

    If dead ranks are replaced, a command with several commits also uses a ``third`` array, because it may be repeated
    from the array that was current when it began.
    """

    __slots__ = ("current", "spare", "coming", "third")

    def __init__(self) -> None:
        self.current: Optional[PooledArray] = None
        self.spare: Optional[PooledArray] = None
        self.coming: Optional[PooledArray] = None
        self.third: Optional[PooledArray] = None


class CommonMemory:
    """One rank's record of the common memory; the ``slots`` of a host's ranks describe the same arrays.

    Only variables are common, and only while it ``is_open``: not with a single rank, or devices. On several hosts, all
    hosts use their spare arrays in the same commands, because `offered` ``always_copies``.
    """

    def __init__(self, is_open: bool) -> None:
        self.is_open, self.always_copies = is_open, False
        self.slots: Dict[Key, CommonSlot] = {}
        self._apart: Set[Key] = set()
        self._kept: Dict[Key, Optional[PooledArray]] = {}  # current arrays when a command began that may be repeated

    def takes(self, key: Key, value: Any) -> bool:
        """Return whether a variable's value becomes common if all ranks receive it; equal on all ranks."""
        return isinstance(value, np.ndarray) and self.takes_size(key, value.nbytes)

    def takes_size(self, key: Key, nbytes: int) -> bool:
        return nbytes >= COMMON_FROM_BYTES and self.is_open and key[0] == "shared" and key not in self._apart

    def taken(self, keys: Sequence[Key], arrays: Sequence[np.ndarray[Any, Any]]) -> List[int]:
        """Return the positions of the arrays that `takes` accepts."""
        large = [i for i, array in enumerate(arrays) if array.nbytes >= COMMON_FROM_BYTES]
        return [i for i in large if self.takes_size(keys[i], arrays[i].nbytes)]

    def placed(self, key: Key, array: Any) -> Optional[PooledArray]:
        """Return the common array of a key if this rank's value is that array."""
        slot = self.slots.get(key)
        return slot.current if slot is not None and slot.current is not None and slot.current.array is array else None

    def offered(self, key: Key, array: Any, fitting: Callable[..., PooledArray]) -> PooledArray:
        """On the rank with the memory, return an array that contains the given values, which are copied if necessary.

        ``fitting`` is `SharedMemoryTransport._fitting`.
        """
        found = self.placed(key, array)
        if found is None or self.always_copies:
            slot = self.slots.setdefault(key, CommonSlot())
            found = slot.spare = fitting(slot.spare, array.shape, array.dtype)
            copy_into(found.array, array)
        return found

    def spare(self, key: Key, shape: Tuple[int, ...], dtype: Any) -> Optional[PooledArray]:
        """Return the spare array of a key if it fits; equal on all ranks."""
        slot = self.slots.setdefault(key, CommonSlot())
        if slot.spare is self._kept.get(key):
            slot.spare, slot.third = slot.third, None
        fits = slot.spare is not None and slot.spare.array.shape == shape and slot.spare.array.dtype == dtype
        return slot.spare if fits else None

    def mapped(self, key: Key, handle: Handle, attach: Callable[[Handle], np.ndarray[Any, Any]]) -> PooledArray:
        """Return an array of the rank with the memory; a known array is the same object."""
        slot = self.slots.setdefault(key, CommonSlot())
        for known in (slot.current, slot.spare):
            if known is not None and known.handle == handle:
                return known
        slot.coming = PooledArray.at(attach(handle), handle)
        return slot.coming

    def found(self, key: Key, result: Any) -> Optional[PooledArray]:
        """Return the array in common memory that is a result, which may be current, or only after the next commit."""
        slot = self.slots.get(key)
        arrays = () if slot is None else (slot.current, slot.spare, slot.coming)
        return next((placed for placed in arrays if placed is not None and placed.array is result), None)

    def swap_in(self, key: Key, result: Any) -> bool:
        """Make a result current if it is common memory; return whether it is. An interrupt may repeat this call."""
        after = self.found(key, result)
        if after is None:
            return False
        slot = self.slots[key]
        if after is not slot.current:
            slot.spare, slot.current = slot.current, after
        slot.coming = None
        return True

    def keep(self, keys: Iterable[Key]) -> None:
        """Keep the current arrays until `release`, because a command may be repeated from them; equal on all ranks."""
        slots = {key: self.slots.get(key) for key in keys if key not in self._apart}
        self._kept = {key: None if slot is None else slot.current for key, slot in slots.items()}

    def release(self, undo: bool) -> None:
        """End `keep`; with ``undo``, make the kept arrays current again. An interrupt may repeat this call."""
        for key, kept in self._kept.items():
            slot = self.slots.get(key)
            if slot is None or kept is slot.current:
                continue
            if undo:
                slot.spare, slot.current = slot.current, kept
            elif kept is not slot.spare:
                slot.third = kept
        self._kept = {}

    def copies(self, pool: int) -> List[Handle]:
        """On the root, return the arrays in another host's pool, including those that its ranks may be writing to."""
        found = [*self._kept.values()]
        for slot in self.slots.values():
            found += [slot.current, slot.spare, slot.third]
        return [copy for placed in found if placed is not None for copy in placed.copies if copy.pool == pool]

    def saved(self, numbers: Container[int]) -> Saved:
        """On the root, return what a replacement must know about these variables, as of the last complete command."""
        arrays = {**{key: slot.current for key, slot in self.slots.items()}, **self._kept}
        there = {key: placed for key, placed in arrays.items() if placed is not None and key[1] in numbers}
        return {key: [placed.handle, *placed.copies] for key, placed in there.items()}, set(self._apart)

    def restore(self, saved: Saved, pool: Pool, pools: PoolMap) -> None:
        """Restore the record on a replacement, from what `saved` returned; adopt the arrays in its own ``pool``."""
        handles, self._apart = saved
        for key, of_hosts in handles.items():
            handle = next(each for each in of_hosts if not pools.is_far(each))
            array = pool.adopt(handle) if handle.pool == pool.ident else pools.here(handle)
            slot = self.slots[key] = CommonSlot()
            slot.current = PooledArray.at(array, handle)

    def keep_apart(self, key: Key) -> None:
        """Give each rank its own memory for a variable from now on; this rank's value is elsewhere, or not yet set."""
        self._apart.add(key)
        self.slots.pop(key, None)

    def forget(self, things: Collection[Key]) -> None:
        """Forget the keys that begin with any of these; `SPARES` stands for the spare arrays of all keys."""
        for slot in self.slots.values() if SPARES in things else ():
            slot.spare = slot.coming = slot.third = None
        for key in beginning_with(things, [*self.slots, *self._apart]):
            self.slots.pop(key, None)
            self._apart.discard(key)


def beginning_with(things: Collection[Key], keys: Iterable[Key]) -> List[Key]:
    """Return the keys that begin with any of these, ``(kind, number)`` or ``(kind,)``, in one pass over the keys."""
    return [key for key in keys if key[:2] in things or key[:1] in things]


def part_of(size: int, rank: int, n_ranks: int) -> Tuple[int, int]:
    """Return the start and end of a rank's part of an array's elements.

    >>> [part_of(200, rank, 3) for rank in range(3)]
    [(0, 64), (64, 128), (128, 200)]
    """
    blocks = size // ALIGNMENT
    begin, end = blocks * rank // n_ranks * ALIGNMENT, blocks * (rank + 1) // n_ranks * ALIGNMENT
    return begin, size if rank == n_ranks - 1 else end
