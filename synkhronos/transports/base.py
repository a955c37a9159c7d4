"""What a transport must promise.

A transport moves arrays between the ranks. Every method is called by every
rank, in the same order, with lists of the same length; it treats all arrays of
a call together, so that many small ones cost little more than one large one.

**All or nothing.** No method changes an array that it is given. A result
stands beside what it shall replace and is complete once the ranks have met
again (`RankContext.commit`, which every command that keeps results ends with);
only then does `adopt` make it current.

**Keys.** A key names what an array is the value of (a shared variable, an
output), so that a transport can keep memory for it from call to call.

**Devices.** Arrays are NumPy arrays here. Where ranks have devices, their
transport takes the arrays that live there as well, in the same lists, and
returns results for those on the device or on the host, as it comes. An op's
``on_host``, and the argument of that name, ask for the way through the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, List, Optional, Sequence, Tuple

import numpy as np

from ..kernels.copy import copy_into
from ..reductions import ReduceOp

Key = Tuple[Any, ...]  # e.g. ("shared", 3)
Describe = Callable[[int], str]  # from the position in a call's lists to how messages name the array


class Transport(ABC):
    """Collectives over lists of arrays; one object per rank."""

    @abstractmethod
    def exchange(self, notice: Any) -> List[Any]:
        """Return every rank's notice (small, picklable), in rank order."""

    @abstractmethod
    def all_reduce(
        self,
        keys: Sequence[Key],
        arrays: Sequence[np.ndarray],
        op: ReduceOp,
        weights: Optional[Sequence[float]],
        describe: Describe,
    ) -> List[np.ndarray]:
        """Reduce over the ranks, for every rank: ``result := op(x_0, ..., x_{n-1})``, the same bits everywhere.

        Raises
        ------
        ValueError
            On every rank, where shapes or dtypes differ between ranks.
        """

    @abstractmethod
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
        """Reduce over the ranks, for the root; None on the others.

        Parameters
        ----------
        arrays
            None where this rank has nothing to contribute.
        ops
            One per array; ``gather`` concatenates, None takes the root's own (or the first there is).
        weights
            Of the ranks, for ``avg``.
        keep_dtype
            Whether sums of bool stay bool (they become counts otherwise).
        in_place
            Whether the results will be adopted (every rank has a value then, and all ops are the same one that
            combines values); else they are arrays that nobody else refers to, and complete.
        """

    @abstractmethod
    def gather(self, keys: Sequence[Key], arrays: Sequence[np.ndarray]) -> Optional[List[List[np.ndarray]]]:
        """Return, on the root, every rank's arrays: for each array a list in rank order; None on the others.

        They are readable until the end of the command, no longer.
        """

    @abstractmethod
    def all_gather(
        self, keys: Sequence[Key], arrays: Sequence[np.ndarray], describe: Describe, on_host: bool = False
    ) -> List[np.ndarray]:
        """Concatenate the ranks' arrays along axis 0, in rank order, for every rank. Lengths may differ."""

    @abstractmethod
    def broadcast(
        self, keys: Sequence[Key], arrays: Sequence[np.ndarray], root: int, on_host: bool = False
    ) -> List[np.ndarray]:
        """Return, on every rank, the arrays of the root. Those of the others may have any shape."""

    @abstractmethod
    def bind(self, key: Key, value: np.ndarray) -> np.ndarray:
        """Return the key's current array, holding ``value``; not a copy where it is there already. Local."""

    def to_host(self, key: Key, array: Any) -> np.ndarray:
        """Return the key's current array as one in shared memory: itself, or a copy of what lies elsewhere. Local."""
        return array

    @abstractmethod
    def allocate(self, key: Key, shape: Tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return an array to be filled and then adopted as a result; its contents are undefined. Local."""

    def store(self, key: Key, value: np.ndarray) -> np.ndarray:
        """Return a copy of ``value`` that can be adopted as a result. Local."""
        copy = self.allocate(key, value.shape, value.dtype)
        copy_into(copy, value)
        return copy

    @abstractmethod
    def swap_in(self, key: Key, result: np.ndarray) -> None:
        """Make a result of this transport the current array of its key. Local."""

    @abstractmethod
    def forget(self, prefix: Tuple[Any, ...]) -> None:
        """Give back the memory that is kept for the keys that begin so. Local."""
