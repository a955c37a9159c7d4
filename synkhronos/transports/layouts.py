"""Where the arrays of all ranks lie, as they have told each other.

What a collective keeps on every rank. Arrays mostly lie where they lay the last time, or the time before that (the
current and the spare array of a slot change places), so a hot collective neither pickles notices nor attaches anything:

=================  ===============================  ==========================================  =====================
level              key                              what is reused                              what makes it invalid
=================  ===============================  ==========================================  =====================
`Layouts.notice`   the label, and the stamps of     the notice that it sends, pickled           a new array has a new
                   this rank's own arrays                                                       stamp
`Layouts.of`       the notices of all ranks         the `Layout`: arrays of other ranks,        another notice of any
                                                    attached                                    rank
`Layout.plans`     what the collective does with    its share of the work, with the views       nothing: a layout
                   them: takers, or ops; inside a   that it reads and writes                    never changes
                   function, who has rows
`Portion` (of      whether the kernel is used; the  the kernel's table of addresses, the        the layout is dropped;
`kernels.reduce`)  op and the weights               blocks for NumPy, weights prepared          ``MAX_RECIPES`` weights
`ValueBuffers`     inside a function, the           memory for what this rank gives, and for    another shape or
                   collective                       results that nothing refers to any more     dtype; the function
                                                                                                is dropped
=================  ===============================  ==========================================  =====================

Beyond `MAX_LAYOUTS` notices or layouts the oldest is dropped.

If the ranks are on several hosts, values of few bytes travel behind the notice that says where they lie, so that nobody
has to fetch them afterwards: MPI's libraries call that the *eager* protocol. ::

    | bytes of the notice | notice | values of its first arrays |

The notice says whether values follow. They are copied into arrays that the layout has for them, once all have met.
"""

from __future__ import annotations

import itertools
import pickle
import struct
from collections import OrderedDict
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import SynkhronosError
from ..memory.attach import PoolMap
from ..memory.handles import Handle

#: Layouts that are kept: two for each set of variables that a program reduces, as arrays change places.
MAX_LAYOUTS = 64

#: Bytes of all values behind a notice, at most: both fit into a slot of the control block.
EAGER_BYTES = 1 << 13

_stamps = itertools.count(1)
_PREFIX = struct.Struct("i")


class Placed(NamedTuple):
    """An array in this rank's pool.

    One object, because Ctrl-C may come between any two assignments. No two of a process have the same stamp.
    """

    array: np.ndarray[Any, Any]
    handle: Handle
    stamp: int

    @classmethod
    def at(cls, array: np.ndarray[Any, Any], handle: Handle) -> Placed:
        """Return the array with a new stamp."""
        return cls(array, handle, next(_stamps))


class Layout:
    """Where the arrays of all ranks lie.

    Parameters
    ----------
    handles : list of list of (Handle or None)
    pools : PoolMap
    eager : dict of int to int, optional
        Of which ranks the values of how many arrays come with their notices.
    far : sequence of int
        The ranks of other hosts.

    Attributes
    ----------
    handles : list of list of (Handle or None)
        By rank, and by position in the notices.
    plans : dict
        What collectives have worked out from it.
    is_all_eager : bool
        Whether the values of all ranks have come: no rank reads anything of another one's memory.
    far_bytes : int
        Of values that come with the notices of other hosts.
    """

    def __init__(
        self,
        handles: List[Sequence[Optional[Handle]]],
        pools: PoolMap,
        eager: Optional[Dict[int, int]] = None,
        far: Sequence[int] = (),
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
        self.far_bytes = sum(
            [len(each) for rank in far if rank in self._eager_bytes for each in self._eager_bytes[rank]]
        )
        self._arrays: Dict[int, List[Optional[np.ndarray[Any, Any]]]] = {}
        self.plans: Dict[Tuple[Any, ...], Any] = {}

    def of_ranks(self, i: int) -> List[Optional[Handle]]:
        """Return every rank's handle at a position."""
        return [handles[i] for handles in self.handles]

    def array(self, rank: int, i: int) -> np.ndarray[Any, Any]:
        """Return the array that a rank has at a position, attached again."""
        handle = self.handles[rank][i]
        if handle is None:
            raise LookupError(f"rank {rank} has no array at position {i}")
        found = self._eager[rank][i] if self.is_eager(rank, i) else None
        return self._pools.here(handle) if found is None else found

    def arrays(self, i: int) -> List[Any]:
        """Return every rank's array at a position, attached."""
        found = self._arrays.get(i)
        if found is None:
            found = self._arrays[i] = [
                None if handle is None else self.array(rank, i) for rank, handle in enumerate(self.of_ranks(i))
            ]
        return found

    def is_eager(self, rank: int, i: int) -> bool:
        """Return whether what a rank has at a position comes with its notice."""
        return rank in self._eager and i < len(self._eager[rank])

    def take(self, values: Sequence[memoryview]) -> None:
        """Take the values that have come behind the notices of all ranks."""
        for rank, arrays in self._eager_bytes.items():
            begin = 0
            for array in arrays:
                end = begin + len(array)
                array[:] = values[rank][begin:end]
                begin = end


class Layouts:
    """The layouts that one rank knows; see the module for what is kept and for how long.

    Parameters
    ----------
    pools : PoolMap
        All ranks' memory.
    far : sequence of int
        The ranks of other hosts.
    arrive : callable, optional
        Called with the bytes of values that have come with notices from other hosts.
    """

    def __init__(
        self, pools: PoolMap, far: Sequence[int] = (), arrive: Callable[[int], None] = lambda nbytes: None
    ) -> None:
        self._pools, self._far, self._arrive = pools, far, arrive
        self._notices: OrderedDict[Tuple[Any, ...], Tuple[bytes, int]] = OrderedDict()
        self._layouts: OrderedDict[Tuple[bytes, ...], Layout] = OrderedDict()

    def notice(self, placed: Sequence[Optional[Placed]], label: Optional[str] = None, n_given: int = 0) -> bytes:
        """Return what this rank tells the others: where its arrays lie, and what they are for.

        Parameters
        ----------
        placed : sequence of (Placed or None)
        label : str, optional
        n_given : int
            How many of them, the first ones, others will read.
        """
        key = (label, n_given, *[0 if each is None else each.stamp for each in placed])
        known = self._notices.get(key)
        if known is None:
            handles = [None if each is None else each.handle for each in placed]
            given = [each.array for each in placed[:n_given] if each is not None]
            n_eager = n_given if self._far and are_few(given) else 0
            known = self._notices[key] = pickle.dumps((label, handles, n_eager), pickle.HIGHEST_PROTOCOL), n_eager
            if len(self._notices) > MAX_LAYOUTS:
                self._notices.popitem(last=False)
        notice, n_eager = known
        if not self._far:
            return notice
        values = [each.array.tobytes() for each in placed[:n_eager] if each is not None]
        return b"".join([_PREFIX.pack(len(notice)), notice, *values])

    def of(self, notices: Tuple[bytes, ...]) -> Layout:
        """Return the layout that the notices of all ranks describe.

        Raises
        ------
        SynkhronosError
            On every rank, if they are for different things.
        """
        values: Sequence[memoryview] = ()
        if self._far:
            ends = [_PREFIX.size + _PREFIX.unpack_from(each)[0] for each in notices]
            values = [memoryview(each)[end:] for each, end in zip(notices, ends)]
            notices = tuple([each[_PREFIX.size : end] for each, end in zip(notices, ends)])
        layout = self._layouts.get(notices)
        if layout is None:
            labels, handles, eager = zip(*[pickle.loads(each) for each in notices])
            if len(set(labels)) > 1:
                came = "; ".join(f"rank {rank} to {label or 'another'}" for rank, label in enumerate(labels))
                raise SynkhronosError(f"the ranks have come to different collectives: {came}")
            of_some = {rank: n for rank, n in enumerate(eager) if n}
            layout = self._layouts[notices] = Layout(list(handles), self._pools, of_some, self._far)
            if len(self._layouts) > MAX_LAYOUTS:
                self._layouts.popitem(last=False)
        if self._far:
            layout.take(values)
            self._arrive(layout.far_bytes)
        return layout


def are_few(arrays: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Return whether values of arrays travel with the notice, if there are several hosts."""
    return sum([array.nbytes for array in arrays]) <= EAGER_BYTES and all([a.flags.c_contiguous for a in arrays])
