"""What a rank that takes another's place needs to have of it: the values of its variables, as of the last command.

A rank's memory outlives it, and the master knows where in there the rank has *deposited* its values. What is deposited
is never written to: functions work on copies, and what they leave is put beside it before the commit. ::

    rank 1          cell          memory of rank 1                     the master knows
    ------------    ----------    ---------------------------------    ----------------
    all_reduce      current       [current]  [spare]                   current
    call, begins    copy          [current]  [spare]                   current
          ends      copy          [current]  [spare := copy]           current
          commit    copy          [spare  ]  [current]                 the other one

What lives on a device is copied to that memory before each commit. So whenever a rank dies, all ranks can go back to
where they were when the command began, and it is repeated. The master, whose death ends everything, puts copies aside
for that instead, when a command begins.
"""

from __future__ import annotations

import pickle
from typing import Any, Container, Dict, Iterable, List, Sequence, Tuple, Union

import numpy as np

from ..kernels.copy import copy_into
from ..memory.handles import Handle
from ..memory.pool import Pool
from ..transports.base import Key
from ..transports.shared_memory import SharedMemoryTransport
from .registry import Origin, SharedEntry

#: Where a value lies in the memory of its rank; or the value itself, pickled, if it is no array in C order.
Deposit = Union[Handle, bytes]


class Deposits:
    """What one rank has deposited.

    Parameters
    ----------
    pool : Pool
        The rank's memory.
    transport : SharedMemoryTransport
        In whose slots the values lie.
    is_root : bool
        Whether this is the master.

    Attributes
    ----------
    told : dict of int to Deposit
        By the variable's number: what the master learns with the answer to the command in progress.
    """

    def __init__(self, pool: Pool, transport: SharedMemoryTransport, is_root: bool) -> None:
        self._pool, self._transport, self._is_root = pool, transport, is_root
        self.told: Dict[int, Deposit] = {}
        self._entries: Sequence[SharedEntry] = ()  # which the command in progress may change
        self._keeps = False
        self._staged: List[Any] = []
        self._pickled: Dict[int, bytes] = {}  # what is deposited, or put aside, of what does not lie in a slot
        self._aside: Dict[int, Tuple[Any, Any]] = {}  # of the master's arrays: each, and a copy

    @classmethod
    def of(cls, context: Any) -> Deposits:
        """Return those of a rank, by its context."""
        return cls(context.pool, context.transport, context.rank == context.root)

    @property
    def has_begun(self) -> bool:
        """Whether values may have changed that are not deposited."""
        return bool(self._entries)

    def begin(self, entries: Sequence[SharedEntry], keeps: bool = False) -> None:
        """Have what is deposited stay as it is, whatever a function does to the variables.

        Parameters
        ----------
        entries : sequence of SharedEntry
            Those that the function updates.
        keeps : bool
            Whether an error leaves values as they are then, and only a death undoes the command.
        """
        if self._is_root:
            for entry in entries:
                self._put_aside(entry)
        else:
            for entry in entries:
                value = entry.cell[0]
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
        if not value.flags.writeable:  # to which compiled code may write all the same
            self._aside[entry.number] = None, value.copy("K")
            return
        if before is None or copy.shape != value.shape or copy.dtype != value.dtype:
            copy = np.empty(value.shape, value.dtype)
        copy_into(copy, value)
        self._aside[entry.number] = value, copy

    def leave(self, changed: Container[SharedEntry]) -> None:
        """Have `restore` leave arrays of before as they are, which may be the program's: it can write to them now.

        Those of variables that it has changed, and of variables that have others by now.
        """
        for entry in self._entries:
            value, copy = self._aside.get(entry.number, (None, None))
            if value is not None and (entry in changed or entry.cell[0] is not value):
                self._aside[entry.number] = None, copy

    def stage(self, entries: Sequence[SharedEntry]) -> None:
        """Put what the variables hold beside what is deposited of them: to be called before the commit."""
        if self._is_root:
            return
        staged = []
        for entry in entries:
            value = entry.cell[0]
            if entry.on_device or _is_dense(value) and value.flags.c_contiguous:
                staged.append((entry, value, self._staged_copy(entry, value)))
            else:
                self.told[entry.number] = dump(value)
        self._staged = staged

    def _staged_copy(self, entry: SharedEntry, value: Any) -> np.ndarray[Any, Any]:
        value = entry.engine.to_host(value)
        spare = self._transport.allocate(_key(entry.number, entry.on_device), value.shape, value.dtype)
        copy_into(spare, value)
        self.told[entry.number] = self._pool.handle(spare)
        return spare

    def accept(self) -> None:
        """Deposit what was staged: the command is decided."""
        staged, self._staged = self._staged, []
        for entry, value, spare in staged:
            self._transport.swap_in(_key(entry.number, entry.on_device), spare)
            if not entry.on_device:
                self._transport.pair(entry.key, value)
        for number, told in self.told.items():
            if isinstance(told, bytes):
                self._pickled[number] = told
            else:
                self._pickled.pop(number, None)
        self._entries = ()

    def note(self, entries: Iterable[SharedEntry], results: Iterable[Any]) -> None:
        """Note that results will be the values of variables once the command is decided; they lie in the slots.

        Those on a device are staged: see `accept`.
        """
        if self._is_root:
            return
        staged = []
        for entry, result in zip(entries, results):
            if result is not None and entry.on_device:
                staged.append((entry, result, self._staged_copy(entry, result)))
            elif result is not None:
                self.told[entry.number] = self._pool.handle(result)
        self._staged = staged

    def tell(self, values: Iterable[Tuple[SharedEntry, Any]]) -> None:
        """Note that variables, new ones, will have these values, which do not come from the transport."""
        if not self._is_root:
            for entry, value in values:
                self.told[entry.number] = dump(value)

    def restore(self, even_kept: bool = False) -> None:
        """Give the variables the values of before, if the command in progress was not decided."""
        if self._keeps and not even_kept:
            return
        self._staged = []
        for entry in self._entries:
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
            current = self._transport.current(_key(entry.number, entry.on_device))
            if current is not None and entry.on_device:
                entry.set(entry.engine.to_device(entry.reference(), current), Origin.UNDONE)
            elif current is not None:
                entry.set(current.copy(), Origin.UNDONE)
                self._transport.pair(entry.key, entry.cell[0])
        self._entries = ()  # at the end: after an interrupt all of this is made again

    def take(self, number: int, deposit: Deposit, on_device: bool) -> Any:
        """Return the value that the rank before this one has deposited; this one has deposited it from now on.

        On the host, also of a variable on a device.
        """
        if not isinstance(deposit, Handle):
            self._pickled[number] = deposit
            return load(deposit)
        array = self._pool.adopt(deposit)
        self._transport.take_over(_key(number, on_device), array)
        return array

    def forget(self, number: int) -> None:
        """Let go of what is kept of a variable."""
        self._aside.pop(number, None)
        self._pickled.pop(number, None)
        self._transport.forget(("deposit", number))


def _key(number: int, on_device: bool) -> Key:
    """Return what the transport knows the deposit by: of a value on a device it has another copy, for collectives."""
    return ("deposit" if on_device else "shared", number)


def dump(value: Any) -> bytes:
    """Pickle a value; an array with its axes in the order in which they lie in memory: bits of results depend on it."""
    axes = None
    if isinstance(value, np.ndarray) and value.ndim > 1 and not value.flags.c_contiguous:
        axes = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
        value = value.transpose(axes)
    return pickle.dumps((axes, value), pickle.HIGHEST_PROTOCOL)


def load(pickled: bytes) -> Any:
    """Return what `dump` has pickled."""
    axes, value = pickle.loads(pickled)
    return value if axes is None else value.transpose(np.argsort(axes))


def _is_dense(value: Any) -> bool:
    return isinstance(value, np.ndarray) and not value.dtype.hasobject
