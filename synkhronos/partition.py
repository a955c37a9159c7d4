"""The partition rule, which determines the rows that each rank owns.

Calls, slices, `scatter` and `ops.shard` all use this rule, so row i of arrays of equal length is on the same rank::

    rows of a call     0 1 2 3 4 | 5 6 7 8 9        split_rows(10, 2)
                       rank 0    | rank 1
    slices of a rank   0 1 2 |3 4                   split_slices(5, 2)
"""

from __future__ import annotations

from typing import List, Tuple

from .errors import ArgumentValueError

Bounds = Tuple[int, int]


def split_rows(n_rows: int, n_ranks: int, root: int = 0) -> Tuple[Bounds, ...]:
    """Divide ``n_rows`` rows over ``n_ranks`` ranks: contiguous, in rank order, as evenly as possible.

    The first ``n_rows % n_ranks`` ranks own one extra row. With fewer rows than ranks, the root and the ranks with the
    lowest numbers own one row each, in rank order. Return each rank's ``(start, end)``, equal if the rank has no rows.

    Examples
    --------
    >>> split_rows(10, 4)
    ((0, 3), (3, 6), (6, 8), (8, 10))
    >>> split_rows(2, 4, root=3)
    ((0, 1), (1, 1), (1, 1), (1, 2))
    """
    if n_rows < 0:
        raise ArgumentValueError("n_rows", "0 or more", str(n_rows))
    if n_ranks < 1:
        raise ArgumentValueError("n_ranks", "1 or more", str(n_ranks))
    if not 0 <= root < n_ranks:
        raise ArgumentValueError("root", f"a rank, 0 to {n_ranks - 1}", str(root))
    if n_rows < n_ranks:
        queue = [root, *(rank for rank in range(n_ranks) if rank != root)]
        served = frozenset(queue[:n_rows])
        return _bounds([int(rank in served) for rank in range(n_ranks)])
    rows, extra = divmod(n_rows, n_ranks)
    return _bounds([rows + (rank < extra) for rank in range(n_ranks)])


def split_slices(n_rows: int, num_slices: int) -> Tuple[Bounds, ...]:
    """Divide one rank's ``n_rows`` rows into ``min(num_slices, n_rows)`` non-empty slices.

    Without rows, there is one empty slice, because the rank still makes a call. Bounds count from the rank's first row.
    """
    if num_slices < 1:
        raise ArgumentValueError("num_slices", "1 or more", str(num_slices))
    return split_rows(n_rows, max(1, min(num_slices, n_rows)))


def _bounds(counts: List[int]) -> Tuple[Bounds, ...]:
    bounds = []
    start = 0
    for count in counts:
        bounds.append((start, start + count))
        start += count
    return tuple(bounds)
