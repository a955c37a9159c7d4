"""What a transport must promise.

A transport moves arrays between the ranks. Every method that is not called *local* is called by every rank, in the
same order, with lists of the same length; it treats all arrays of a call together, so that many small ones cost little
more than one large one.

**All or nothing.** No method changes an array that it is given. What becomes the value of something is returned as
`Pending`: it lies beside the current array and is complete once the ranks have met again, so only
`RankContext.commit_values` gets the arrays out.

**Keys.** A key names what an array is the value of (a shared variable, an output), so that a transport can keep memory
for it from call to call.

**Devices.** Arrays are NumPy arrays here. If ranks have devices, their transport takes the arrays that live there as
well, in the same lists, and returns results for those on the device or on the host, as it comes. An op's ``on_host``,
and the argument of that name, ask for the way through the host.

**Words.** Moving an array is called, everywhere in the library:

=============  =================================================================================
``bind``       make it lie in the memory that the transport keeps for its key
``to_host``    make an array of a device lie there
``allocate``   make room for a result, beside the current array of the key
``swap_in``    make a result the current array of its key
``to_device``  make an array of the host lie on the rank's device (of engines)
``put``        make a variable's storage refer to it (of engines)
``coerce``     convert a user's value as the variable's own ``set_value`` would (of engines)
=============  =================================================================================
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..reductions import ReduceOp

Key = Tuple[Any, ...]  # e.g. ("shared", 3)
NameOf = Callable[[int], str]  # from the position in a call's lists to how messages name the array


class Pending:
    """Results that may be incomplete until the ranks have met again.

    Parameters
    ----------
    results : list of (array or None)
        None if this rank keeps its value.
    """

    __slots__ = ("_results",)

    def __init__(self, results: List[Any]) -> None:
        self._results = results

    def bring(self, i: int, to_device: Callable[[Any, Any], Any], variable: Any) -> None:
        """Bring the i-th result to where the variable lives; for results that are complete on this rank."""
        if self._results[i] is not None:
            self._results[i] = to_device(variable, self._results[i])

    def release(self) -> List[Any]:
        """Return the results: to be called after waiting at the barrier that completes them."""
        return self._results


class Mix(NamedTuple):
    """One reduction of the ranks' values.

    Attributes
    ----------
    weights : tuple of float, optional
        Of the ranks, for ``avg``; all equal by default.
    takers : tuple of int, optional
        The ranks that take the result; all of them by default.
    sharers : tuple of int, optional
        The ranks that share the work; all of them by default.
    """

    weights: Optional[Tuple[float, ...]] = None
    takers: Optional[Tuple[int, ...]] = None
    sharers: Optional[Tuple[int, ...]] = None


#: One reduction for all ranks, whatever their weights.
ALL_ALIKE = (Mix(),)


class Traffic:
    """What one rank has read of the others' memory, and written to it.

    On devices with NCCL it is what a ring sends: of n ranks each sends and is sent 2 (n - 1) / n of what is reduced.

    Parameters
    ----------
    received : callable, optional
        Returns the bytes that this rank has fetched from other hosts; none by default.
    is_first : bool
        Whether it is the first rank of its host, which counts values that come to the host with messages.

    Attributes
    ----------
    read, sent : float
        Bytes, of everything.
    of : dict of str to list
        By collective: calls, bytes read, bytes sent, bytes received from other hosts, seconds.
    """

    __slots__ = ("of", "read", "sent", "_fetched", "_arrived", "_is_first")

    def __init__(self, received: Callable[[], float] = float, is_first: bool = False) -> None:
        self.read, self.sent, self._fetched, self._arrived, self._is_first = 0.0, 0.0, received, 0, is_first
        self.of: Dict[str, List[float]] = {}

    def begin(self) -> Tuple[float, float, float, float]:
        """Return where the counters stand; to be given to `end`."""
        return time.perf_counter(), self.read, self.sent, self._fetched() + self._arrived

    def end(self, collective: str, begun: Tuple[float, float, float, float]) -> None:
        """Count a collective that has begun there."""
        row = self.of.get(collective)
        if row is None:
            row = self.of[collective] = [0, 0.0, 0.0, 0.0, 0.0]
        began, read, sent, received = begun
        row[0] += 1
        row[1] += self.read - read
        row[2] += self.sent - sent
        row[3] += self._fetched() + self._arrived - received
        row[4] += time.perf_counter() - began

    def add(self, read: float, sent: float) -> None:
        """Count bytes."""
        self.read += read
        self.sent += sent

    def arrive(self, nbytes: int) -> None:
        """Count bytes of values that have come to this host with a message."""
        if self._is_first:
            self._arrived += nbytes


class Transport(ABC):
    """Collectives over lists of arrays; one object per rank.

    Attributes
    ----------
    traffic : Traffic
        What this rank has read of the others' memory, and written to it.
    """

    traffic: Traffic

    @abstractmethod
    def exchange(self, notice: Any) -> List[Any]:
        """Return every rank's notice (small, picklable), in rank order."""

    @abstractmethod
    def all_reduce(
        self,
        keys: Sequence[Key],
        arrays: Sequence[Any],
        op: ReduceOp,
        mixes: Sequence[Mix],
        name_of: NameOf,
        into: Optional[Sequence[Key]] = None,
    ) -> Pending:
        """Reduce over the ranks: ``result := op(x_0, ..., x_{n-1})``, the same bits on all that take it.

        Parameters
        ----------
        into : list of keys, optional
            Whose values the results become; those of the arrays by default.
        mixes : sequence of Mix
            Every rank takes the results of one of them, or of none: then they are None.

        Raises
        ------
        ValueError
            On every rank, if shapes or dtypes differ between ranks.
        """

    def meets_once(self, arrays: Sequence[Any]) -> bool:
        """Return whether ranks with such arrays need not meet again, after `all_reduce`, for complete results. Local.

        If it says so on all ranks. Then nothing can fail any more, either.
        """
        return False

    def carries(self, arrays: Sequence[Any], op: ReduceOp, mixes: Sequence[Mix], keeps_errors: bool) -> bool:
        """Return whether `begin` has values travel in 16 bits, and can keep what that leaves out. Local."""
        return False

    def begin(
        self,
        keys: Sequence[Key],
        arrays: Sequence[Any],
        op: ReduceOp,
        mixes: Sequence[Mix],
        name_of: NameOf,
        wire: Optional[str] = None,
        keeps_errors: bool = False,
        into: Optional[Sequence[Key]] = None,
    ) -> Any:
        """Begin a reduction in a way of this transport's own; return what `finish` takes, None if it has none.

        What is returned has ``kinds``: of every array, its shape and dtype.

        Parameters
        ----------
        keys, arrays, op, mixes, name_of
            As of `all_reduce`.
        wire : str, optional
            One of `reductions.sixteen_bits.FORMATS`, if values travel in it: `carries` must have said so.
        keeps_errors : bool
            Whether what encoding leaves out is kept.
        into : list of keys, optional
            Those that `finish` will be given, if it follows at once. By default other collectives may come before it,
            and the arrays change.

        Raises
        ------
        ValueError
            On every rank, if shapes or dtypes differ between ranks.
        """
        return None

    def finish(self, begun: Any, into: Sequence[Key], errors: Optional[Sequence[Any]] = None) -> Pending:
        """Return the results of what `begin` has begun, as values of some keys.

        Parameters
        ----------
        begun : object
        into : list of keys
        errors : list of ndarray, optional
            What is overwritten with this rank's part of the errors, unless nothing of it was sent.
        """
        raise NotImplementedError("this transport begins nothing")

    @abstractmethod
    def reduce(
        self,
        keys: Sequence[Key],
        arrays: Sequence[Any],
        ops: Sequence[ReduceOp],
        weights: Optional[Sequence[float]],
        name_of: NameOf,
        keep_dtype: bool = True,
    ) -> Optional[List[Any]]:
        """Reduce over the ranks, for the root; None on the others.

        The results are complete, and nothing else refers to them.

        Parameters
        ----------
        arrays
            None if this rank has nothing to contribute.
        ops
            One per array; ``gather`` concatenates, None takes the root's own (or the first there is).
        weights
            Of the ranks, for ``avg``.
        keep_dtype
            Whether sums of bool stay bool (they become counts otherwise).
        """

    @abstractmethod
    def gather(self, keys: Sequence[Key], arrays: Sequence[Any]) -> Optional[List[List[np.ndarray[Any, Any]]]]:
        """Return, on the root, every rank's arrays: for each array a list in rank order; None on the others.

        They are readable until the end of the command, no longer.
        """

    @abstractmethod
    def all_reduce_values(
        self,
        key: Key,
        arrays: Sequence[Any],
        op: ReduceOp,
        weights: Optional[Sequence[float]],
        label: Callable[[], str],
    ) -> List[Any]:
        """Reduce values that belong to no variable, in the middle of a function's call, as `all_reduce` does.

        The results are complete, and nothing changes them as long as anything refers to them or to views of them.
        They may be the arrays themselves if there is one rank.

        Parameters
        ----------
        key
            Of the collective: memory is kept for it.
        weights
            Of the ranks, not all 0: those of weight 0 do not count, whatever the op.
        label
            Returns what the collective is, in words: always the same for a key.

        Raises
        ------
        SynkhronosError
            On every rank, if ranks have come here for different labels, or for `agree`.
        ValueError
            On every rank, if shapes or dtypes differ between ranks.
        """

    @abstractmethod
    def agree(self, label: str) -> None:
        """Wait until all ranks have come here for the same thing.

        Raises
        ------
        SynkhronosError
            On every rank, if they have not.
        """

    @abstractmethod
    def all_gather(self, keys: Sequence[Key], arrays: Sequence[Any], name_of: NameOf, on_host: bool = False) -> Pending:
        """Concatenate the ranks' arrays along axis 0, in rank order, for every rank. Lengths may differ."""

    @abstractmethod
    def broadcast(self, keys: Sequence[Key], arrays: Sequence[Any], root: int, on_host: bool = False) -> Pending:
        """Return, on every rank, the arrays of the root. Those of the others may have any shape, or be None."""

    @abstractmethod
    def bind(self, keys: Sequence[Key], values: Sequence[Any]) -> List[Any]:
        """Return the current arrays of the keys, holding the values; not copies if they are there already. Local."""

    @abstractmethod
    def copies(self, keys: Sequence[Key], values: Sequence[Any]) -> List[Any]:
        """Return copies of the values, under keys of their own: arrays that `all_reduce` takes later. Local."""

    @abstractmethod
    def allocate(self, key: Key, shape: Tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return an array to be filled and given to a `Pending`; its contents are undefined. Local."""

    @abstractmethod
    def swap_in(self, key: Key, result: Any) -> None:
        """Make a result the current array of its key; for `RankContext.commit_values`. Local."""

    def keeps(self, key: Key, array: Any) -> bool:
        """Return whether an array is the current one of its key, to which the transport then refers. Local."""
        return False

    @abstractmethod
    def forget(self, prefix: Tuple[Any, ...]) -> None:
        """Give back the memory that is kept for the keys that begin so. Local."""
