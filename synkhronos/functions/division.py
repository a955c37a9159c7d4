"""The division of a call: which rows every rank takes, in how many slices, and what its results weigh. Pure."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..partition import split_rows, split_slices
from ..selection import Rows, Selection, parse_per_rank


class Division(NamedTuple):
    """What the master has decided for all ranks.

    Attributes
    ----------
    bounds : sequence of (begin, end), optional
        Every rank's part of the (selected) rows of the scattered inputs; None if there are none.
    shared_rows : list of Selection, optional
        The rows that every rank takes of its sliceable shared variables; None if they are used as they are. While
        it travels, a handle may stand for a long list of indices.
    shared_counts : list of int, optional
        How many these are.
    num_slices : int
        The most calls that a rank makes.
    weights : list of int, optional
        What the results of every rank weigh in an average; None: all the same.
    rows_differ : bool
        Whether scattered inputs and sliceable shared variables disagree on the rows, so that there is no average.
    joint : bool
        Whether all ranks make ``num_slices`` calls, because the function has collectives: those for which there are
        not enough rows are made with one row that does not count.
    """

    bounds: Optional[Sequence[Tuple[int, int]]]
    shared_rows: Optional[List[Selection]]
    shared_counts: Optional[List[int]]
    num_slices: int
    weights: Optional[List[int]]
    rows_differ: bool = False
    joint: bool = False

    @property
    def key(self) -> Any:
        """Return what calls with the same division have in common, to find their plan by."""
        shared = None if self.shared_rows is None else tuple(self.shared_rows)
        counts = None if self.shared_counts is None else tuple(self.shared_counts)
        weights = None if self.weights is None else tuple(self.weights)
        return self.bounds, shared, counts, self.num_slices, weights, self.rows_differ

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows at all: then every rank makes the call, and the master's result counts."""
        return self.weights is not None and not any(self.weights)

    @property
    def skips(self) -> bool:
        """Whether ranks without rows make no call, while others do."""
        return not self.joint and self.weights is not None and 0 in self.weights and not self.is_empty

    def takes_part(self, rank: int) -> bool:
        """Return whether a rank's results count: those of one without rows do not, while others have some."""
        return self.weights is None or self.is_empty or self.weights[rank] > 0

    def whole(self, size: int) -> Division:
        """Return the division by which each of so many ranks takes all rows of the scattered inputs."""
        if self.bounds is None or self.weights is None:
            return self
        n_rows = self.bounds[-1][1]
        return self._replace(bounds=((0, n_rows),) * size, weights=[n_rows] * size)

    def pieces(self, rank: int) -> List[Tuple[int, Tuple[int, int], Tuple[int, int]]]:
        """Return a rank's slices: what each weighs, its part of all rows, and of the rank's shared rows.

        There are none if the rank makes no call.
        """
        if not (self.joint or self.takes_part(rank)):
            return []
        if self.joint and not self.takes_part(rank):
            return [self._uncounted] * self.num_slices
        rows = 0 if self.bounds is None else self.bounds[rank][1] - self.bounds[rank][0]
        shared = 0 if self.shared_counts is None else self.shared_counts[rank]
        present = [n for n, there in ((rows, self.bounds), (shared, self.shared_counts)) if there is not None]
        n_pieces = max(1, min([self.num_slices] + present))
        of_rows, of_shared = split_slices(rows, n_pieces), split_slices(shared, n_pieces)
        begin = 0 if self.bounds is None else self.bounds[rank][0]
        pieces = []
        for i in range(n_pieces):
            low, high = of_rows[i] if rows else (0, 0)
            shared_part = of_shared[i] if shared else (0, 0)
            weight = high - low if self.bounds is not None else shared_part[1] - shared_part[0]
            pieces.append((weight, (begin + low, begin + high), shared_part))
        return pieces + [self._uncounted] * (self.num_slices - n_pieces if self.joint else 0)

    @property
    def _uncounted(self) -> Tuple[int, Tuple[int, int], Tuple[int, int]]:
        """A slice for which there are no rows: one row, that of another slice, with weight 0."""
        n_rows = 0 if self.bounds is None else self.bounds[-1][1]
        return 0, (0, min(1, n_rows)), (0, 1)

    def rows_of_slice(
        self, rank: int, piece: Tuple[int, Tuple[int, int], Tuple[int, int]]
    ) -> Optional[Tuple[int, int, int]]:
        """Return the rows of a rank's slice, begin and end, and how many all ranks have; None if there are none."""
        if self.weights is None:
            return None
        _, (begin, end), shared_part = piece
        if self.bounds is None:
            begin, end = (0, self.weights[rank]) if self.shared_rows is None else shared_part
            before = 0 if piece == self._uncounted else sum(self.weights[:rank])
            begin, end = before + begin, before + end
        return begin, end, sum(self.weights)

    def slice_weights(self, i: int, root: int) -> Optional[List[int]]:
        """Return what every rank's i-th slice weighs in the collectives of a joint call; None: all the same."""
        if self.weights is None:
            return None
        if self.is_empty:
            return [int(rank == root) for rank in range(len(self.weights))]
        if self.num_slices == 1:
            return self.weights
        weights = [self.pieces(rank)[i][0] for rank in range(len(self.weights))]
        return weights if any(weights) else None


def check_written(written: Optional[int], n_rows: int) -> None:
    """Refuse a call with another number of rows than the program has written, if it has written one."""
    if written is not None and n_rows != written:
        expected = f"{written} rows in every call, the number that the program has written"
        hint = "give it a batch of that size, or build another function for batches of this one"
        raise ArgumentValueError("rows", expected, str(n_rows), hint)


def divide(
    size: int,
    root: int,
    n_rows: Optional[int] = None,
    lengths: Optional[Sequence[Sequence[int]]] = None,
    batch_s: Any = None,
    num_slices: Any = 1,
    joint: bool = False,
    written: Optional[int] = None,
) -> Division:
    """Decide which rows every rank takes, in how many slices, and what its results weigh.

    Parameters
    ----------
    size, root : int
        Number of ranks, and the master's.
    n_rows : int, optional
        Rows of the scattered inputs, after ``batch`` has selected; None if no input is scattered.
    lengths : sequence of sequence of int, optional
        For every rank, the length of each of its sliceable shared variables; None if the function has none.
    batch_s, num_slices
        As the user gave them. No more slices are made than the rank with most rows has of them.
    joint : bool
        Whether all ranks make all calls.
    written : int, optional
        The number of rows that the program has written, which every call must have.

    Raises
    ------
    TypeError, ValueError
        If ``batch_s`` or ``num_slices`` is wrong, or there is another number of rows.

    Examples
    --------
    >>> divide(2, 0, n_rows=3).bounds
    ((0, 2), (2, 3))
    >>> divide(2, 0, n_rows=3).weights
    [2, 1]
    """
    if isinstance(num_slices, (bool, np.bool_)) or not isinstance(num_slices, (int, np.integer)):
        raise ArgumentTypeError("num_slices", "an int", f"{num_slices!r} of type {type(num_slices).__name__}")
    if num_slices < 1:
        raise ArgumentValueError("num_slices", "at least 1", str(num_slices))
    if batch_s is not None and lengths is None:
        expected = "None, because the function has no sliceable_shareds to select from"
        raise ArgumentValueError("batch_s", expected, repr(batch_s))
    bounds = None if n_rows is None else split_rows(n_rows, size, root)
    rows = None if bounds is None else [end - begin for begin, end in bounds]
    selections, counts = None, None
    if lengths is not None:
        selections = parse_per_rank(batch_s, [min(of_rank) for of_rank in lengths])
        counts = [len(selection) for selection in selections]
        if joint:  # (no selected row is not the same as no row)
            selections = [selection or Rows(0, min([1, *of_rank])) for selection, of_rank in zip(selections, lengths)]
        if batch_s is None:
            for rank, of_rank in enumerate(lengths):
                if len(set(of_rank)) > 1:
                    raise ArgumentValueError(
                        "sliceable_shareds",
                        "the same length of all, whose rows belong together",
                        f"{list(of_rank)} on rank {rank}",
                        "select rows with batch_s",
                    )
    weights = counts if rows is None else rows
    if weights is not None:
        check_written(written, sum(weights))
    # (a graph that reads the variables themselves would read no row where a rank has none)
    lacks = joint and lengths is not None and any(weights or []) and not all(min(of_rank) for of_rank in lengths)
    selected = lacks or batch_s is not None or num_slices > 1
    if num_slices > 1:
        if weights is None:
            expected = "1, because there is nothing to slice: no input is scattered, and there are no sliceable_shareds"
            raise ArgumentValueError("num_slices", expected, str(num_slices))
        num_slices = max(1, min(num_slices, max(weights)))
    return Division(
        bounds,
        selections if selected else None,
        counts if selected else None,
        int(num_slices),
        weights,
        rows is not None and counts is not None and rows != counts,
        joint,
    )
