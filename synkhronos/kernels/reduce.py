"""One rank's share of a reduction: which elements it reduces for all ranks, and how.

If available, the C kernel computes sums and averages of many arrays in one call, in single and double precision. NumPy
performs all other reductions, in blocks that fit the cache.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..reductions import Parts, ReduceOp, Weights, combine_pieces, counting, narrowed
from ..trace import point
from . import copy as streaming

BLOCK_BYTES = 1 << 19  # bytes of each rank's array that NumPy reduces at a time
MAX_PARTS = 64  # maximum number of ranks whose values the kernel reduces in one pass
MAX_RECIPES = 16  # maximum number of cached recipes per group; weights may differ from batch to batch

Piece = Tuple[List[Optional[NDArray[Any]]], List[NDArray[Any]]]  # parts of a block, and targets of their reduction
KernelPiece = Tuple[List[NDArray[Any]], List[NDArray[Any]]]  # without the parts of ranks that have none
Own = Optional[Tuple[int, Mapping[int, NDArray[Any]]]]  # arrays of a rank that are not copied, flat: `Portion.combine`
_SUM, _MIDPOINT, _MEAN = range(3)  # the kernel's operations


class Recipe(NamedTuple):
    """Arguments of the kernel's ``reduce``: how to combine the parts of the ranks that have any."""

    step: int
    chosen: Sequence[int]
    weights: Sequence[float]
    total: float


class Portion:
    """One rank's share of the elements of some arrays, which the rank reduces into all targets.

    ``parts[i][r]`` is the i-th array of rank r, or None if that rank has none. ``targets[i]`` lists the destinations of
    the i-th result, which have the shape and dtype of the parts and do not overlap them. All arrays are C-contiguous.

    >>> parts, targets = [[np.zeros(4), np.ones(4)]], [[np.empty(4)]]
    >>> for rank in range(2):
    ...     Portion(parts, targets, rank, 2).combine(ReduceOp("sum"), None)
    >>> targets
    [[array([1., 1., 1., 1.])]]
    """

    def __init__(
        self, parts: Sequence[Parts], targets: Sequence[Sequence[NDArray[Any]]], rank: int, ranks: int
    ) -> None:
        self._ranges = share_of([target[0] for target in targets], rank, ranks)
        #: Size of this rank's share of the result, in bytes.
        self.nbytes = sum([(end - begin) * targets[i][0].itemsize for i, begin, end in self._ranges])
        self._parts = [[None if part is None else part.reshape(-1) for part in of_array] for of_array in parts]
        self._targets = [[target.reshape(-1) for target in of_array] for of_array in targets]
        arrays = [array for of_array in self._parts + self._targets for array in of_array if array is not None]
        self._stream = sum(array.nbytes for array in arrays) >= streaming.CACHE_BYTES
        self._groups: Optional[List[DtypeGroup]] = None
        self._calls: Dict[Any, List[Tuple[Callable[..., object], Tuple[Any, ...]]]] = {}
        self._pieces: Dict[bool, List[Piece]] = {}

    @point("transport")
    def combine(self, op: ReduceOp, weights: Weights, own: Own = None) -> None:
        """Reduce the elements into all targets; ``weights`` (for ``avg``, one per rank) are finite and nonnegative.

        ``own = (r, {i: array})`` replaces ``parts[i][r]`` by flat arrays that `can_be_own`, in this call only.
        """
        by_kernel = streaming.kernels is not None and op.name in ("avg", "sum")
        if by_kernel:
            known = op.name, None if weights is None else tuple(weights)
            calls = self._calls.get(known)
            if calls is None:
                if len(self._calls) >= MAX_RECIPES:
                    self._calls.clear()
                calls = self._calls[known] = self._calls_of(op, weights)
            for i, (reduce, recipe) in enumerate(calls):
                if own is not None:
                    reduce = self._groups[i].pieces_with(*own).reduce  # type: ignore[index]
                reduce(*recipe)
        pieces = self._pieces.get(by_kernel)
        if pieces is None:
            pieces = self._pieces[by_kernel] = self._cut(by_kernel)
        if pieces:
            combine_pieces(op, pieces, weights)

    def _calls_of(self, op: ReduceOp, weights: Weights) -> List[Tuple[Callable[..., object], Tuple[Any, ...]]]:
        """Return the calls to the kernel that reduce its pieces, as functions and their arguments."""
        if self._groups is None:
            self._groups = self._grouped()
        return [
            (group.pieces.reduce, (*recipe_of(op, group.present, weights, group.dtype), self._stream))
            for group in self._groups
        ]

    def _grouped(self) -> List[DtypeGroup]:
        """Return the kernel's pieces, grouped by dtype, by ranks with values, and by number of targets."""
        pieces: Dict[Any, Dict[Tuple[int, int, int], KernelPiece]] = {}
        for place in self._ranges:
            i, low, high = place
            parts, targets = self._parts[i], self._targets[i]
            if for_kernel(parts, targets):
                alike = tuple([part is not None for part in parts]), targets[0].dtype, len(targets)
                present = [part[low:high] for part in parts if part is not None]
                pieces.setdefault(alike, {})[place] = present, [target[low:high] for target in targets]
        return [
            DtypeGroup(present, dtype, some, streaming.kernels.Pieces(some.values(), dtype.char))
            for (present, dtype, _), some in pieces.items()
        ]

    def _cut(self, by_kernel: bool) -> List[Piece]:
        """Return NumPy's pieces, in blocks: all, or with ``by_kernel`` only those that the kernel cannot reduce."""
        pieces: List[Piece] = []
        for i, begin, end in self._ranges:
            parts, targets = self._parts[i], self._targets[i]
            if by_kernel and for_kernel(parts, targets):
                continue
            step = max(1, BLOCK_BYTES // targets[0].itemsize)
            for low in range(begin, end, step):
                block = slice(low, min(low + step, end))
                of_ranks = [None if part is None else part[block] for part in parts]
                pieces.append((of_ranks, [target[block] for target in targets]))
        return pieces


class DtypeGroup(NamedTuple):
    """Pieces of one dtype with values from the same ranks (``present``), which the kernel reduces in one call.

    The keys of ``by_place`` are (array, begin, end); ``pieces`` is the kernel's object for them.
    """

    present: Tuple[bool, ...]
    dtype: np.dtype[Any]
    by_place: Mapping[Tuple[int, int, int], KernelPiece]
    pieces: Any

    def pieces_with(self, rank: int, own: Mapping[int, NDArray[Any]]) -> Any:
        """Return the kernel's object with other parts of one rank: see `Portion.combine`."""
        if not self.present[rank] or not any([i in own for i, _, _ in self.by_place]):
            return self.pieces
        position, replaced = sum(self.present[:rank]), []
        for (i, low, high), (parts, targets) in self.by_place.items():
            if i in own:
                parts = [*parts[:position], own[i][low:high], *parts[position + 1 :]]
            replaced.append((parts, targets))
        return streaming.kernels.Pieces(replaced, self.dtype.char)


def for_kernel(parts: Parts, targets: Sequence[NDArray[Any]]) -> bool:
    """Return whether the kernel can reduce these parts, which share one shape and dtype."""
    present = [part for part in parts if part is not None]
    return (
        0 < len(present) <= MAX_PARTS
        and present[0].dtype in (np.float32, np.float64)
        and present[0].dtype.isnative
        and all([array.flags.aligned for array in [*present, *targets]])
    )


def can_be_own(array: NDArray[Any], op: ReduceOp, ranks: int) -> bool:
    """Return whether an array of a rank can be reduced from where it is: by the kernel, see `Portion.combine`."""
    return (
        ranks <= MAX_PARTS
        and op.name in ("avg", "sum")
        and streaming.kernels is not None
        and array.flags.c_contiguous
        and for_kernel([array], [])
    )


def share_of(arrays: Sequence[NDArray[Any]], rank: int, ranks: int) -> List[Tuple[int, int, int]]:
    """Return a rank's pieces of a division of all elements over ranks (array, begin, end): see `portions_of`."""
    pieces = portions_of(tuple([array.nbytes for array in arrays]), ranks)[rank]
    return [(i, -(-begin // arrays[i].itemsize), -(-end // arrays[i].itemsize)) for i, begin, end in pieces]


def recipe_of(op: ReduceOp, present: Sequence[bool], weights: Weights, dtype: np.dtype[Any]) -> Recipe:
    """Return the kernel's recipe for combining the ranks' values as `reductions.combine_pieces` does."""
    ranks = [rank for rank, is_there in enumerate(present) if is_there]
    if op.name == "sum":
        return Recipe(_SUM, tuple(range(len(ranks))), (), 1.0)
    counted, shares = counting(present, weights)
    chosen = [ranks.index(rank) for rank in counted]
    if len(chosen) == 1:
        return Recipe(_SUM, chosen, (), 1.0)
    if len(chosen) == 2 and shares[0] == shares[1]:
        return Recipe(_MIDPOINT, chosen, (), 1.0)
    scaled = narrowed(shares, dtype)
    return Recipe(_MEAN, chosen, scaled.tolist(), float(scaled.sum()))


@lru_cache(maxsize=256)
def portions_of(sizes: Tuple[int, ...], ranks: int) -> Tuple[Tuple[Tuple[int, int, int], ...], ...]:
    """Divide the concatenation of arrays evenly over ranks; return each rank's pieces (array, begin, end), in bytes.

    Borders within an array are multiples of 64, so that no two ranks write to one cache line. An item that
    crosses a border belongs to the piece where it begins.
    """
    total = sum(sizes)
    borders = [-(-(total * r) // ranks) for r in range(ranks + 1)]
    shares: List[List[Tuple[int, int, int]]] = [[] for _ in range(ranks)]
    offset = 0
    for i, size in enumerate(sizes):
        previous = 0
        for r in range(ranks):
            end = size if borders[r + 1] >= offset + size else max(0, borders[r + 1] - offset) // 64 * 64
            if end > previous:
                shares[r].append((i, previous, end))
                previous = end
        offset += size
    return tuple(tuple(share) for share in shares)
