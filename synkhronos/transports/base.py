"""Interface of transports, which move arrays between ranks.

Every rank calls each method that is not marked *local*, in the same order and with lists of the same length. Each
call handles all its arrays together, so a call with many small arrays costs little more than a call with one.

**All or nothing.** No method changes its input arrays. New values of variables are returned as `Pending`: arrays
next to the current arrays, complete after the next barrier. `Transaction.commit_values` then makes them current.

**Keys.** A key names the owner of an array (a shared variable, an output), so that later calls can reuse its memory.

**Devices.** If ranks have devices, the lists may contain device arrays, and results are on the device or the host.
``on_host`` (an argument, or an attribute of the op) forces the route through host memory.

**Terms.** Throughout the library, ``bind`` copies a host array into the memory kept for its key, and ``to_host`` copies
a device array there. ``allocate`` reserves memory for a result next to the current array, and ``swap_in`` makes the
result the current one. In engines, ``to_device`` moves an array to the memory where a variable stores its value, and
``put`` makes the storage refer to it. ``coerce`` converts a user's value as the variable's own ``set_value`` does.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Callable, Collection, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..reductions import ReduceOp, Weights
from .strategy import Reduction

if TYPE_CHECKING:
    from .common import CommonMemory

Key = Tuple[Any, ...]  # e.g. ("shared", 3)
Keys = Sequence[Key]
Arrays = Sequence[Any]
NameOf = Callable[[int], str]  # returns the name of the array at a position, for messages
Label = Callable[[], str]  # returns a description of a collective, for messages
Pending = List[Any]  # results that may be incomplete until the next barrier; None where this rank keeps its value


class TrafficRow:
    """Totals of all collectives of one kind: calls; bytes read, sent, and received from other hosts; seconds."""

    calls = 0
    read = sent = received = seconds = 0.0


class TrafficCounter:
    """Counts the bytes that one rank reads from, and writes to, the memory of other ranks.

    With NCCL, an all_reduce over n ranks counts (n - 1) / n of its bytes on each rank, both as read and as sent. `of`
    has a row for each kind of collective. ``received`` returns the bytes fetched from other hosts: 0.0 on one host.
    Only a host's first rank counts the values that arrive in notices and commands.
    """

    __slots__ = ("of", "read", "sent", "_fetched", "_arrived", "_is_first")

    def __init__(self, received: Callable[[], float] = float, is_first: bool = False) -> None:
        self.read, self.sent, self._fetched, self._arrived, self._is_first = 0.0, 0.0, received, 0, is_first
        self.of: Dict[str, TrafficRow] = {}

    def begin(self) -> Tuple[float, float, float, float]:
        """Return the current counters, to pass to `end`."""
        return time.perf_counter(), self.read, self.sent, self._fetched() + self._arrived

    def end(self, collective: str, begun: Tuple[float, float, float, float]) -> None:
        """Add one collective to the totals, from the counters that `begin` returned."""
        row = self.of.get(collective)
        if row is None:
            row = self.of[collective] = TrafficRow()
        began, read, sent, received = begun
        row.calls += 1
        row.read += self.read - read
        row.sent += self.sent - sent
        row.seconds += time.perf_counter() - began
        row.received += self._fetched() + self._arrived - received

    def add(self, read: float, sent: float) -> None:
        self.read += read
        self.sent += sent

    def arrive(self, nbytes: int) -> None:
        """Count the bytes of values that arrived at this host with notices or commands."""
        if self._is_first:
            self._arrived += nbytes


class Transport(ABC):
    """Collectives over lists of arrays; one object per rank. `traffic` counts the bytes moved."""

    traffic: TrafficCounter
    common: CommonMemory
    #: Weights of the ranks whose parts make up each array once; None if all ranks' parts do.
    weights_of_parts: Weights = None
    #: Whether all values must be bound before an `all_reduce` or `all_gather`, which otherwise binds what others read.
    reads_whole = True
    #: Called at the start of each command, in the thread that executes the command.
    prepare_thread: Optional[Callable[[], object]] = None

    def close(self) -> None:  # noqa: B027, most transports have nothing to release
        """Release resources; every rank calls this when the session ends normally."""

    @abstractmethod
    def exchange(self, notice: Any) -> List[Any]:
        """Return the notices of all ranks, in rank order. A notice is small and picklable."""

    @abstractmethod
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
        """Reduce over the ranks: ``result := op(x_0, ..., x_{n-1})``, with identical bits on all ranks that receive it.

        The results become values of the keys ``into`` (by default ``keys``). If this rank contributes values,
        ``errors`` are overwritten with their rounding errors. If shapes or dtypes differ, all ranks raise ValueError.
        Over several hosts, ``promise`` is called if there is only one barrier. If so on all ranks, nothing can fail
        after it.
        """

    def start(self, keys: Keys, arrays: Arrays, reduction: Reduction, name_of: NameOf) -> Any:
        """Start an `all_reduce`; return its state for `finish`. Before that, the arrays may change."""
        keys = [(*key, "started") for key in keys]
        return keys, self.copies(keys, arrays), reduction, name_of

    def finish(self, started: Any, into: Keys, errors: Arrays = ()) -> Pending:
        """Complete a reduction of `start`; return its results as values of the keys ``into``: see `all_reduce`."""
        keys, arrays, reduction, name_of = started
        return self.all_reduce(keys, arrays, reduction, name_of, into, errors)

    @abstractmethod
    def reduce(
        self,
        keys: Keys,
        arrays: Arrays,
        ops: Sequence[ReduceOp],
        weights: Weights,
        name_of: NameOf,
        keep_dtype: bool = True,
    ) -> Optional[List[Any]]:
        """Reduce over the ranks; on the root, return complete results that nothing else references; elsewhere, None.

        An array is None if this rank contributes no value. The op ``gather`` concatenates arrays; the op None
        returns the root's array, or the first available array. For ``avg``, ``weights[r]`` is the weight of rank r.
        With ``keep_dtype``, sums of bools are bools; otherwise, they are counts.
        """

    @abstractmethod
    def gather(self, keys: Keys, arrays: Arrays) -> Optional[List[List[np.ndarray[Any, Any]]]]:
        """On the root, return all ranks' arrays by position, readable until the command ends; elsewhere return None."""

    @abstractmethod
    def all_reduce_values(self, key: Key, arrays: Arrays, op: ReduceOp, weights: Weights, label: Label) -> List[Any]:
        """Reduce values that belong to no shared variable, inside a function call; memory is kept for the ``key``.

        The results are complete, and stay unchanged while they or their views are referenced. With one rank they may be
        the arrays themselves. ``weights[r]`` is the weight of rank r; not all are 0. Every op ignores ranks with
        weight 0. ``label`` returns a description of the collective, constant for a key.

        Every rank raises SynkhronosError if ranks call different collectives, or one calls `agree`. Every rank raises
        ValueError if shapes or dtypes differ between ranks.
        """

    def reduce_parts(self, key: Key, arrays: Arrays, op: ReduceOp, weights: Weights, label: Label) -> List[Any]:
        """Reduce values like `all_reduce_values`; return this rank's `part` of each, as a vector.

        Used if the common memory is open. Ranks must meet at a barrier before the next run of this collective, which
        overwrites values and results.
        """
        raise NotImplementedError

    def part(self, size: int) -> Tuple[int, int]:
        """Return the start and end of the elements that this rank computes for the ranks of its host. Local."""
        raise NotImplementedError

    def share(self, keys: Keys, arrays: Arrays) -> List[np.ndarray[Any, Any]]:
        """Return arrays, equal on all ranks, in common memory next to the current arrays; the memory must be open."""
        raise NotImplementedError

    @abstractmethod
    def agree(self, label: str) -> None:
        """Wait until all ranks have called this; raise `SynkhronosError` on all ranks if labels differ."""

    @abstractmethod
    def all_gather(self, keys: Keys, arrays: Arrays, name_of: NameOf, on_host: bool = False) -> Pending:
        """Concatenate the ranks' arrays along axis 0, in rank order, on every rank. Lengths may differ."""

    @abstractmethod
    def broadcast(self, keys: Keys, arrays: Arrays, root: int, on_host: bool = False) -> Pending:
        """Return the root's arrays on every rank. Other ranks' arrays are ignored and may be anything."""

    @abstractmethod
    def bind(self, keys: Keys, values: Arrays) -> List[Any]:
        """Return the keys' current arrays, which contain the given values; copy only where necessary. Local."""

    @abstractmethod
    def copies(self, keys: Keys, values: Arrays) -> List[Any]:
        """Copy the values into memory of the given keys. Local."""

    @abstractmethod
    def allocate(self, key: Key, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return an uninitialized array, to be filled and passed to `Pending`. Local."""

    @abstractmethod
    def swap_in(self, key: Key, result: Any) -> bool:
        """Replace the current array of a key with a result; return whether it is common memory. Local.

        Called by commits.
        """

    def keeps(self, key: Key, array: Any) -> bool:
        """Return whether an array is the key's current array and the transport references it. Local."""
        return False

    @abstractmethod
    def forget(self, things: Collection[Key]) -> None:
        """Release the memory of all keys that begin with any of these, ``(kind, number)`` or ``(kind,)``. Local."""
