"""Locations of the arrays of all ranks, exchanged as notices and cached.

An array's location usually equals its location in one of the last two calls, because the current and the spare array
of a slot swap. A repeated collective therefore neither pickles notices nor attaches memory. Caches on every rank:

=================  ===============================  =================================  ================================
level              key                              reused                             invalidated by
=================  ===============================  =================================  ================================
`Layouts.notice`   label, stamps of own arrays      this rank's pickled notice         a new array, with a new stamp
`Layouts.of`       all ranks' notices               `Layout`: peers' attached arrays   a changed notice of any rank
`Layout.plans`     destinations or ops; inside      this rank's share of the work,     nothing: a layout is immutable
                   functions, ranks with rows       with its views of arrays
`Portion`          use of the kernel; op, weights   address table, blocks, weights     layout dropped; ``MAX_RECIPES``
`ValueBuffers`     a collective inside a function   memory for values and results      new shape or dtype; function end
=================  ===============================  =================================  ================================

Beyond `MAX_LAYOUTS` notices or layouts, the oldest is dropped.

With several hosts, small values are appended to the notice, which saves a fetch (MPI's *eager* protocol)::

    | length of the notice | notice | values of its first arrays |

The notice states the number of these arrays. When all notices have arrived, the values are copied into the layout.
"""

from __future__ import annotations

import itertools
import pickle
import struct
from collections import OrderedDict
from sys import getrefcount
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentValueError, SynkhronosError
from ..memory.attach import PoolMap
from ..memory.handles import Handle
from .base import NameOf
from .strategy import EAGER_BYTES

MAX_LAYOUTS = 64  #: Maximum number of cached layouts; each set of variables needs two, because arrays swap.

_stamps = itertools.count(1)
_PREFIX = struct.Struct("i")


class PooledArray(NamedTuple):
    """An array in this rank's pool, its handle, and a unique stamp; one object, so that Ctrl-C cannot separate them."""

    array: np.ndarray[Any, Any]
    handle: Handle
    stamp: int
    copies: Sequence[Handle] = ()  # on the root, for common memory: the other hosts' arrays

    @classmethod
    def at(cls, array: np.ndarray[Any, Any], handle: Handle) -> PooledArray:
        return cls(array, handle, next(_stamps))

    def counts(self) -> Tuple[int, int]:
        """Return the reference counts of the array, and of the base that it shares with all its views."""
        return getrefcount(self.array), getrefcount(self.array.base)

    @property
    def is_alone(self) -> bool:
        """Whether nothing, and so no variable's storage, refers to the array or its base; False is always safe."""
        return self.counts() == _ALONE


_ALONE = PooledArray.at(np.zeros(2)[1:], Handle(0, 0, (1,), None, np.dtype(float))).counts()


class Layout:
    """Locations of the arrays of all ranks in one collective.

    ``handles[rank][i]`` is array i's handle or None. ``eager`` maps a rank to the number of arrays whose values are
    sent with its notice. If `is_all_eager`, no rank reads a peer's memory. Collectives cache derived data in `plans`.
    """

    def __init__(
        self, handles: List[Sequence[Optional[Handle]]], pools: PoolMap, eager: Optional[Dict[int, int]] = None
    ) -> None:
        self.handles, self._pools = handles, pools
        self.is_all_eager = len(eager or {}) == len(handles)
        self._eager = {
            rank: [None if each is None else np.empty(each.shape, each.dtype) for each in handles[rank][:n]]
            for rank, n in (eager or {}).items()
        }
        self._eager_bytes: Dict[int, List[Any]] = {
            rank: [each.reshape(-1).view(np.uint8).data for each in arrays if each is not None]
            for rank, arrays in self._eager.items()
        }
        self._arrays: Dict[int, List[Optional[np.ndarray[Any, Any]]]] = {}
        self.plans: Dict[Tuple[Any, ...], Any] = {}

    def of_ranks(self, i: int) -> List[Optional[Handle]]:
        return [handles[i] for handles in self.handles]

    def kind(self, i: int) -> Tuple[Tuple[int, ...], np.dtype[Any]]:
        handle = next(handle for handle in self.of_ranks(i) if handle is not None)
        return handle.shape, handle.dtype

    def check(self, positions: Iterable[int], name_of: NameOf, but_lengths: bool = False) -> None:
        for i in positions:
            check_same(self.of_ranks(i), name_of, i, but_lengths)

    def array(self, rank: int, i: int) -> np.ndarray[Any, Any]:
        handle = self.handles[rank][i]
        if handle is None:
            raise LookupError(f"rank {rank} has no array at position {i}")
        found = self._eager[rank][i] if self.is_eager(rank, i) else None
        return self._pools.here(handle) if found is None else found

    def arrays(self, i: int) -> List[Any]:
        found = self._arrays.get(i)
        if found is None:
            found = self._arrays[i] = [
                None if handle is None else self.array(rank, i) for rank, handle in enumerate(self.of_ranks(i))
            ]
        return found

    def is_eager(self, rank: int, i: int) -> bool:
        return rank in self._eager and i < len(self._eager[rank])

    def take(self, values: Sequence[memoryview]) -> None:
        """Copy the values that were sent with the notices into the layout's arrays."""
        for rank, arrays in self._eager_bytes.items():
            begin = 0
            for array in arrays:
                end = begin + len(array)
                array[:] = values[rank][begin:end]
                begin = end


class Layouts:
    """One rank's cache of notices and layouts."""

    def __init__(self, pools: PoolMap) -> None:
        self._pools = pools
        self._notices: OrderedDict[Tuple[Any, ...], bytes] = OrderedDict()
        self._layouts: OrderedDict[Tuple[bytes, ...], Layout] = OrderedDict()

    def notice(self, placed: Sequence[Optional[PooledArray]], label: Optional[str] = None, n_eager: int = 0) -> bytes:
        """Return this rank's notice: array locations, a label, and the number of arrays whose values are sent, too."""
        key = (label, n_eager, *[0 if each is None else each.stamp for each in placed])
        known = self._notices.get(key)
        if known is None:
            handles = [None if each is None else each.handle for each in placed]
            known = self._notices[key] = pickle.dumps((label, handles, n_eager), pickle.HIGHEST_PROTOCOL)
            if len(self._notices) > MAX_LAYOUTS:
                self._notices.popitem(last=False)
        return known

    def of(self, notices: Tuple[bytes, ...]) -> Layout:
        """Return the layout that all ranks' notices describe; raise `SynkhronosError` if labels differ."""
        layout = self._layouts.get(notices)
        if layout is None:
            labels, handles, eager = zip(*[pickle.loads(each) for each in notices])
            if len(set(labels)) > 1:
                came = "; ".join(f"rank {rank}: {label or 'unnamed'}" for rank, label in enumerate(labels))
                raise SynkhronosError(f"all ranks must reach the same collective, got {came}")
            of_some = {rank: n for rank, n in enumerate(eager) if n}
            layout = self._layouts[notices] = Layout(list(handles), self._pools, of_some)
            if len(self._layouts) > MAX_LAYOUTS:
                self._layouts.popitem(last=False)
        return layout


class EagerLayouts(Layouts):
    """`Layouts` over several hosts: small values follow the notices; ``arrive`` counts the bytes of ``far`` ranks."""

    def __init__(self, pools: PoolMap, far: Sequence[int], arrive: Callable[[int], object] = bool) -> None:
        super().__init__(pools)
        self._far, self._arrive = far, arrive

    def notice(
        self,
        placed: Sequence[Optional[PooledArray]],
        label: Optional[str] = None,
        n_given: int = 0,
        eager_bytes: int = EAGER_BYTES,
    ) -> bytes:
        """Return this rank's notice; the values of the first ``n_given`` arrays follow if they are small."""
        given = [each.array for each in placed[:n_given] if each is not None]
        are_sent = are_few(given, eager_bytes)
        notice = super().notice(placed, label, n_given if are_sent else 0)
        return b"".join([_PREFIX.pack(len(notice)), notice, *[array.tobytes() for array in given if are_sent]])

    def of(self, notices: Tuple[bytes, ...]) -> Layout:
        ends = [_PREFIX.size + _PREFIX.unpack_from(each)[0] for each in notices]
        layout = super().of(tuple([each[_PREFIX.size : end] for each, end in zip(notices, ends)]))
        values = [memoryview(each)[end:] for each, end in zip(notices, ends)]
        layout.take(values)
        self._arrive(sum([len(values[rank]) for rank in self._far]))
        return layout


def check_same(handles: Sequence[Any], name_of: NameOf, i: int, but_lengths: bool = False) -> None:
    """Raise if shapes or dtypes differ. Every rank compares the same handles, so either all ranks raise or none do."""
    there = [(rank, handle) for rank, handle in enumerate(handles) if handle is not None]
    if len({(handle.shape[but_lengths:], len(handle.shape), handle.dtype) for _, handle in there}) > 1:
        raise ArgumentValueError(
            name_of(i),
            f"the same shape{' (except axis 0)' if but_lengths else ''} and dtype on all ranks",
            "; ".join(f"{handle.dtype} {handle.shape} on rank {rank}" for rank, handle in there),
        )


def are_few(arrays: Sequence[np.ndarray[Any, Any]], eager_bytes: int) -> bool:
    """Return whether the values of these arrays are sent with the notice if there are several hosts."""
    return sum([array.nbytes for array in arrays]) <= eager_bytes and all([a.flags.c_contiguous for a in arrays])
