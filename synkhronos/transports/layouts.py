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
"""

from __future__ import annotations

import itertools
import pickle
from collections import OrderedDict
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import SynkhronosError
from ..memory.attach import PoolMap
from ..memory.handles import Handle

#: Layouts that are kept: two for each set of variables that a program reduces, as arrays change places.
MAX_LAYOUTS = 64

_stamps = itertools.count(1)


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

    Attributes
    ----------
    handles : list of list of (Handle or None)
        By rank, and by position in the notices.
    plans : dict
        What collectives have worked out from it.
    """

    def __init__(self, handles: List[Sequence[Optional[Handle]]], pools: PoolMap) -> None:
        self.handles, self._pools = handles, pools
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
        return self._pools.here(handle)

    def arrays(self, i: int) -> List[Any]:
        """Return every rank's array at a position, attached."""
        found = self._arrays.get(i)
        if found is None:
            found = self._arrays[i] = [
                None if handle is None else self._pools.here(handle) for handle in self.of_ranks(i)
            ]
        return found


class Layouts:
    """The layouts that one rank knows; see the module for what is kept and for how long."""

    def __init__(self, pools: PoolMap) -> None:
        self._pools = pools
        self._notices: OrderedDict[Tuple[Any, ...], bytes] = OrderedDict()
        self._layouts: OrderedDict[Tuple[bytes, ...], Layout] = OrderedDict()

    def notice(self, placed: Sequence[Optional[Placed]], label: Optional[str] = None) -> bytes:
        """Return what this rank tells the others: where its arrays lie, and what they are for."""
        key = (label, *[0 if each is None else each.stamp for each in placed])
        notice = self._notices.get(key)
        if notice is None:
            handles = [None if each is None else each.handle for each in placed]
            notice = self._notices[key] = pickle.dumps((label, handles), pickle.HIGHEST_PROTOCOL)
            if len(self._notices) > MAX_LAYOUTS:
                self._notices.popitem(last=False)
        return notice

    def of(self, notices: Tuple[bytes, ...]) -> Layout:
        """Return the layout that the notices of all ranks describe.

        Raises
        ------
        SynkhronosError
            On every rank, if they are for different things.
        """
        layout = self._layouts.get(notices)
        if layout is None:
            labels, handles = zip(*[pickle.loads(each) for each in notices])
            if len(set(labels)) > 1:
                came = "; ".join(f"rank {rank} to {label or 'another'}" for rank, label in enumerate(labels))
                raise SynkhronosError(f"the ranks have come to different collectives: {came}")
            layout = self._layouts[notices] = Layout(list(handles), self._pools)
            if len(self._layouts) > MAX_LAYOUTS:
                self._layouts.popitem(last=False)
        return layout
