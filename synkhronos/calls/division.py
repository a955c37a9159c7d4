"""Divide a call's rows over ranks and slices, and compute the weights of the results, without side effects."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..partition import split_rows, split_slices
from ..selection import RowRange, Selection, parse_per_rank


class Division(NamedTuple):
    """How the rows of a call are divided over ranks and slices.

    ``shared_rows[r]``: rank r's rows of the sliceable shared variables, as a selection or its handle.
    ``shared_counts[r]``: the number of these rows. Both lists are None if the variables are used whole.
    """

    bounds: Optional[Sequence[Tuple[int, int]]]  # every rank's part of the selected rows; None without scattered inputs
    shared_rows: Optional[List[Selection]]
    shared_counts: Optional[List[int]]
    num_slices: int  # largest number of calls that a rank makes
    weights: Optional[List[int]]  # each rank's weight in averages; None for equal weights
    rows_differ: bool = False  # whether inputs and variables have different row counts; if so, averages are undefined
    all_ranks_call: bool = False  # whether ranks without rows make calls too, with a row of weight 0, for collectives

    @property
    def key(self) -> Any:
        """The division's part of the key under which a plan is cached."""
        shared = None if self.shared_rows is None else tuple(self.shared_rows)
        counts = None if self.shared_counts is None else tuple(self.shared_counts)
        weights = None if self.weights is None else tuple(self.weights)
        return self.bounds, shared, counts, self.num_slices, weights, self.rows_differ

    @property
    def is_empty(self) -> bool:
        """Whether no rank has rows; then every rank makes the call, but only the master's result counts."""
        return self.weights is not None and not any(self.weights)

    @property
    def skips(self) -> bool:
        """Whether ranks without rows make no call, while ranks with rows do."""
        return not self.all_ranks_call and self.weights is not None and 0 in self.weights and not self.is_empty

    def takes_part(self, rank: int) -> bool:
        """Return whether a rank contributes results: False only if it has no rows while another rank has some."""
        return self.weights is None or self.is_empty or self.weights[rank] > 0

    def whole(self, size: int) -> Division:
        """Return this division with all rows of the scattered inputs on each of ``size`` ranks."""
        if self.bounds is None or self.weights is None:
            return self
        n_rows = self.bounds[-1][1]
        return self._replace(bounds=((0, n_rows),) * size, weights=[n_rows] * size)

    def pieces(self, rank: int) -> List[Tuple[int, Tuple[int, int], Tuple[int, int]]]:
        """Return, for each slice of a rank, its weight and its parts of all rows and of the rank's shared rows."""
        if not (self.all_ranks_call or self.takes_part(rank)):
            return []
        if self.all_ranks_call and not self.takes_part(rank):
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
        return pieces + [self._uncounted] * (self.num_slices - n_pieces if self.all_ranks_call else 0)

    @property
    def _uncounted(self) -> Tuple[int, Tuple[int, int], Tuple[int, int]]:
        """The slice of a rank that has no rows left: the first row of the call, with weight 0."""
        n_rows = 0 if self.bounds is None else self.bounds[-1][1]
        return 0, (0, min(1, n_rows)), (0, 1)

    def rows_of_slice(
        self, rank: int, piece: Tuple[int, Tuple[int, int], Tuple[int, int]]
    ) -> Optional[Tuple[int, int, int]]:
        """Return the start and end of a slice's rows, and the number of all rows; None if the call has no rows."""
        if self.weights is None:
            return None
        _, (begin, end), shared_part = piece
        if self.bounds is None:
            begin, end = (0, self.weights[rank]) if self.shared_rows is None else shared_part
            before = 0 if piece == self._uncounted else sum(self.weights[:rank])
            begin, end = before + begin, before + end
        return begin, end, sum(self.weights)

    def slice_weights(self, i: int, root: int) -> Optional[List[int]]:
        """Return the ranks' weights in the collectives of slice i, if all ranks make calls; None for equal weights."""
        if self.weights is None:
            return None
        if self.is_empty:
            return [int(rank == root) for rank in range(len(self.weights))]
        if self.num_slices == 1:
            return self.weights
        weights = [self.pieces(rank)[i][0] for rank in range(len(self.weights))]
        return weights if any(weights) else None


def check_written(written: Optional[int], n_rows: int) -> None:
    """Raise if the program contains a literal number of rows and the call has a different number."""
    if written is not None and n_rows != written:
        expected = f"{written} in every call, the number passed as rows="
        hint = f"pass a batch of {written} rows, or build another function with rows={n_rows}"
        raise ArgumentValueError("rows", expected, str(n_rows), hint)


def divide(
    size: int,
    root: int,
    n_rows: Optional[int] = None,
    lengths: Optional[Sequence[Sequence[int]]] = None,
    batch_s: Any = None,
    num_slices: Any = 1,
    all_ranks_call: bool = False,
    written: Optional[int] = None,
) -> Division:
    """Divide the rows of a call over ranks and slices, and determine the weights of the results.

    ``n_rows`` is None if no input is scattered. ``lengths[r]``: the lengths of the sliceable variables on rank r. With
    ``all_ranks_call``, ranks without rows also make calls. ``written`` is the required number of rows.
    """
    if isinstance(num_slices, (bool, np.bool_)) or not isinstance(num_slices, (int, np.integer)):
        raise ArgumentTypeError("num_slices", "an int", f"{num_slices!r} of type {type(num_slices).__name__}")
    if num_slices < 1:
        raise ArgumentValueError("num_slices", "at least 1", str(num_slices))
    if batch_s is not None and lengths is None:
        expected = "None, because the function has no sliceable_shareds to select from"
        raise ArgumentValueError("batch_shared", expected, repr(batch_s))
    bounds = None if n_rows is None else split_rows(n_rows, size, root)
    rows = None if bounds is None else [end - begin for begin, end in bounds]
    selections, counts = None, None
    if lengths is not None:
        selections = parse_per_rank(batch_s, [min(of_rank) for of_rank in lengths])
        counts = [len(selection) for selection in selections]
        if all_ranks_call:  # (an empty selection becomes one row with weight 0)
            selections = [
                selection or RowRange(0, min([1, *of_rank])) for selection, of_rank in zip(selections, lengths)
            ]
        if batch_s is None:
            for rank, of_rank in enumerate(lengths):
                if len(set(of_rank)) > 1:
                    raise ArgumentValueError(
                        "sliceable_shareds",
                        "variables of equal length, because their rows belong together",
                        f"{list(of_rank)} on rank {rank}",
                        "select rows with batch_shared",
                    )
    weights = counts if rows is None else rows
    if weights is not None:
        check_written(written, sum(weights))
    # (if a rank's variables are empty, the graph must have inputs for their rows: the rank passes a placeholder row)
    lacks = (
        all_ranks_call and lengths is not None and any(weights or []) and not all(min(of_rank) for of_rank in lengths)
    )
    selected = lacks or batch_s is not None or num_slices > 1
    if num_slices > 1:
        if weights is None:
            expected = (
                "1, because there is nothing to slice: the function has no scattered input and no sliceable_shareds"
            )
            raise ArgumentValueError("num_slices", expected, str(num_slices))
        num_slices = max(1, min(num_slices, max(weights)))
    return Division(
        bounds,
        selections if selected else None,
        counts if selected else None,
        int(num_slices),
        weights,
        rows is not None and counts is not None and rows != counts,
        all_ranks_call,
    )
