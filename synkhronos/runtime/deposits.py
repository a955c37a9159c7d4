"""Deposits: the values of a rank's variables as of the last command, stored so that a replacement rank can load them.

A rank's shared memory outlives the rank, and the master records the locations of the *deposited* values. A current
deposit is never overwritten: functions work on copies, and new values are staged next to it before the commit. ::

    rank 1          cell          memory of rank 1                     recorded by the master
    all_reduce      current       [current]  [spare]                   current
    call, begins    copy          [current]  [spare]                   current
          ends      copy          [current]  [spare := copy]           current
          commit    copy          [spare  ]  [current]                 the new current

The current array in common memory (`transports.common`) is a deposit of all ranks, which no command overwrites.
Values on a device are copied to the rank's memory before each commit. After a death, all ranks can therefore return
to the state before the command and repeat it. The master, whose death ends the session, keeps old values instead.
"""

from __future__ import annotations

import pickle
from typing import Any, Collection, Container, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import numpy as np

from ..kernels.copy import copy_into
from ..memory.handles import Handle
from ..memory.pool import Pool
from ..transports.base import Key
from ..transports.shared_memory import SharedMemoryTransport
from .registry import Origin, SharedEntry

#: The location of a value in its rank's memory; or the pickled value, e.g. of an array that is not in C order.
Deposit = Union[Handle, bytes]


class Deposits:
    """The deposits of one rank; arrays are in slots of its transport.

    ``pending`` maps variables' numbers to new deposits; the master receives it with the answer to the command.
    """

    def __init__(self, pool: Pool, transport: SharedMemoryTransport, is_root: bool) -> None:
        self._pool, self._transport, self._is_root = pool, transport, is_root
        self.pending: Dict[int, Deposit] = {}
        self._entries: Sequence[SharedEntry] = ()  # variables that the command in progress may change
        self._keeps = False
        self._staged: List[Any] = []
        self._pickled: Dict[int, bytes] = {}  # deposits, or copies on the master, of values without a slot
        self._aside: Dict[int, Tuple[Any, Any]] = {}  # on the master: each array and its copy
        self._common: Dict[int, Any] = {}  # values in common memory when the command began
        self._own: Dict[int, Any] = {}  # deposits in this rank's memory when the command began

    @classmethod
    def of(cls, context: Any) -> Deposits:
        return cls(context.pool, context.transport, context.rank == context.root)

    @property
    def has_begun(self) -> bool:
        """Whether values may have changed without being deposited."""
        return bool(self._entries)

    def begin(self, entries: Sequence[SharedEntry], keeps: bool = False) -> None:
        """Protect the deposits of variables that a function is about to update.

        With ``keeps``, an error leaves the new values in place, and only a death undoes the command.
        """
        common = self._transport.common
        common.keep([entry.key for entry in entries])
        for entry in entries:
            value = entry.cell[0]
            if common.placed(entry.key, value) is not None:
                self._common[entry.number] = value
            elif self._is_root:
                self._put_aside(entry)
            else:
                self._own[entry.number] = self._transport.current(_key(entry.number, entry.on_device))
                if isinstance(value, np.ndarray) and self._pool.owns(value):
                    entry.set(value.copy(), Origin.MOVED)
        self._entries, self._keeps = entries, keeps

    def _put_aside(self, entry: SharedEntry) -> None:
        value = entry.cell[0]
        before, copy = self._aside.pop(entry.number, (None, None))
        self._pickled.pop(entry.number, None)
        if entry.on_device:
            self._aside[entry.number] = None, value.copy()
            return
        if not _is_dense(value):
            self._pickled[entry.number] = dump(value)
            return
        if not value.flags.writeable:  # compiled code may write to the array anyway
            self._aside[entry.number] = None, value.copy("K")
            return
        if before is None or copy.shape != value.shape or copy.dtype != value.dtype:
            copy = np.empty(value.shape, value.dtype)
        copy_into(copy, value)
        self._aside[entry.number] = value, copy

    def leave(self, changed: Container[SharedEntry]) -> None:
        """Make `restore` set copies, instead of overwriting old arrays that the program may now use.

        These are the old arrays of variables that are in ``changed`` or now have another array.
        """
        for entry in self._entries:
            value, copy = self._aside.get(entry.number, (None, None))
            if value is not None and (entry in changed or entry.cell[0] is not value):
                self._aside[entry.number] = None, copy

    def stage(self, entries: Optional[Sequence[SharedEntry]] = None) -> None:
        """Copy values, by default the changed ones, into memory next to their deposits; must precede the commit."""
        if self._is_root:
            return
        self._staged = []
        for entry in self._entries if entries is None else entries:
            placed = self._transport.common.placed(entry.key, entry.cell[0])
            if placed is None:
                self._stage_copy(entry, entry.cell[0])
            else:
                self.pending[entry.number] = placed.handle

    def _stage_copy(self, entry: SharedEntry, value: Any) -> None:
        if not (entry.on_device or _is_dense(value) and value.flags.c_contiguous):
            self.pending[entry.number] = dump(value)
            return
        on_host = entry.engine.to_host(value)
        spare = self._transport.allocate(_key(entry.number, entry.on_device), on_host.shape, on_host.dtype)
        copy_into(spare, on_host)
        self.pending[entry.number] = self._pool.handle(spare)
        self._staged.append((entry, value, spare))

    def apply(self) -> None:
        """Replace the deposits with the staged values, once the command's last barrier is decided."""
        staged, self._staged = self._staged, []
        for entry, value, spare in staged:
            self._transport.swap_in(_key(entry.number, entry.on_device), spare)
            if not entry.on_device:
                self._transport.set_mirror(entry.key, value)
        for number, deposit in self.pending.items():
            if isinstance(deposit, bytes):
                self._pickled[number] = deposit
            else:
                self._pickled.pop(number, None)
        self._transport.common.release(undo=False)
        self._entries, self._common, self._own = (), {}, {}

    def stage_results(
        self, entries: Iterable[SharedEntry], results: Iterable[Any], others: Iterable[Tuple[SharedEntry, Any, Origin]]
    ) -> None:
        """Make results of a collective, and ``others``, the deposits once the command's last barrier is decided.

        Results are already in slots, except results on a device, which are copied there.
        """
        if self._is_root:
            return
        self._staged = []
        for entry, result in zip(entries, results):
            placed = self._transport.common.found(entry.key, result)
            if result is not None and entry.on_device:
                self._stage_copy(entry, result)
            elif result is not None:
                self.pending[entry.number] = self._pool.handle(result) if placed is None else placed.handle
        for entry, value, _ in others:
            self._stage_copy(entry, value)

    def restore(self, even_kept: bool = False) -> None:
        """Restore the values from before an uncommitted command; after ``begin(keeps=True)``, only if ``even_kept``."""
        if self._keeps and not even_kept:
            return
        self._staged = []
        self._transport.common.release(undo=True)
        for entry in self._entries:
            entry.common = self._common.get(entry.number)
            if entry.common is not None:
                entry.set(entry.common, Origin.UNDONE)
                continue
            if entry.number in self._pickled:
                entry.set(load(self._pickled[entry.number]), Origin.UNDONE)
                continue
            if entry.number in self._aside:
                value, copy = self._aside[entry.number]
                if value is None:
                    entry.set(copy, Origin.UNDONE)
                else:
                    copy_into(value, copy)
                    entry.set(value, Origin.UNDONE)
                continue
            current = self._own.get(entry.number)
            if current is not None:
                self._transport.take_over(_key(entry.number, entry.on_device), current)
            if current is not None and entry.on_device:
                entry.set(entry.engine.to_device(entry.reference(), current), Origin.UNDONE)
            elif current is not None:
                entry.set(current.copy(), Origin.UNDONE)
                self._transport.set_mirror(entry.key, entry.cell[0])
        # last, so that after an interrupt everything is restored again
        self._entries, self._common, self._own = (), {}, {}

    def restored(self, number: int, deposit: Deposit, on_device: bool) -> Any:
        """Adopt a deposit of this rank's previous process; return its value, which is always on the host."""
        if not isinstance(deposit, Handle):
            self._pickled[number] = deposit
            return load(deposit)
        key = _key(number, on_device)
        slot = self._transport.common.slots.get(key)
        if slot is not None and slot.current is not None and slot.current.handle == deposit:
            return slot.current.array
        array = self._pool.adopt(deposit)
        self._transport.take_over(key, array)
        return array

    def forget(self, numbers: Collection[int]) -> None:
        for number in numbers:
            self._aside.pop(number, None)
            self._pickled.pop(number, None)
        self._transport.forget({("deposit", number) for number in numbers})


def _key(number: int, on_device: bool) -> Key:
    """Return the transport's key for a deposit, which on a device differs from the key that collectives use."""
    return ("deposit" if on_device else "shared", number)


def dump(value: Any) -> bytes:
    """Pickle a value; an array keeps the memory order of its axes, because the bits of results can depend on it."""
    axes = None
    if isinstance(value, np.ndarray) and value.ndim > 1 and not value.flags.c_contiguous:
        axes = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
        value = value.transpose(axes)
    return pickle.dumps((axes, value), pickle.HIGHEST_PROTOCOL)


def load(pickled: bytes) -> Any:
    axes, value = pickle.loads(pickled)
    return value if axes is None else value.transpose(np.argsort(axes))


def _is_dense(value: Any) -> bool:
    return isinstance(value, np.ndarray) and not value.dtype.hasobject
