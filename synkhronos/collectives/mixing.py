"""Weights of an `all_reduce`: one average for all ranks, one per group, or a full matrix.

.. math:: x_r := \\frac{\\sum_s W_{rs} x_s}{\\sum_s W_{rs}}

A vector of weights is a matrix of equal rows, and groups form a block matrix. Ranks with equal rows share one
`Weighting`, computed once, so their results are bit-identical. A rank whose only nonzero weight is its own keeps its
value, bit for bit. If results overwrite the values, no reduction is computed for this rank.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..reductions import ReduceOp
from ..runtime.session import Session
from ..transports.strategy import EQUAL, Weighting


def parse_weights(
    weights: Any, groups: Any, op: ReduceOp, session: Session, in_place: bool = True
) -> Tuple[Weighting, ...]:
    """Validate weights and groups; return the `Weighting` objects of an `all_reduce`."""
    if weights is None and groups is None:
        return EQUAL
    argument = "groups" if weights is None else "weights"
    if op.name != "avg":
        raise ArgumentValueError(argument, f"op 'avg', the only op with {argument}", f"op {str(op)!r}")
    rows = _rows(weights, session)
    if groups is not None:
        if isinstance(rows[0], list):
            hint = "express groups as zeros in the matrix"
            raise ArgumentTypeError("weights", "one number per rank if groups are given", "a matrix", hint)
        rows = _of_groups(rows, parse_groups(groups, session.size))
    return _of_matrix(rows, in_place) if isinstance(rows[0], list) else (Weighting(_weights(rows)),)


def parse_groups(groups: Any, size: int) -> List[List[int]]:
    """Return the groups as lists of ranks; raise `TypeError` or `ValueError` unless every rank is listed once."""
    expected = f"lists of ranks, with each rank from 0 to {size - 1} in exactly one list"
    is_nested = isinstance(groups, (list, tuple)) and all(isinstance(one, (list, tuple, range)) for one in groups)
    if not is_nested or not all(_is_int(rank) for group in groups for rank in group):
        raise ArgumentTypeError("groups", expected, repr(groups))
    if sorted(int(rank) for group in groups for rank in group) != list(range(size)) or not all(map(len, groups)):
        raise ArgumentValueError("groups", expected, repr(groups))
    return [[int(rank) for rank in group] for group in groups]


def _of_groups(weights: Sequence[float], groups: List[List[int]]) -> List[List[float]]:
    """Return the matrix of group averages; ranks of a group whose weights are all 0 are weighted equally."""
    matrix: List[List[float]] = [[]] * len(weights)
    for group in groups:
        row = [weight if rank in group else 0.0 for rank, weight in enumerate(weights)]
        for rank in group:
            matrix[rank] = row if any(row) else [float(rank in group) for rank in range(len(weights))]
    return matrix


def _of_matrix(matrix: Sequence[Sequence[float]], in_place: bool) -> Tuple[Weighting, ...]:
    """Return one `Weighting` for each set of ranks whose rows are equal up to a factor."""
    alike: Dict[Tuple[float, ...], List[int]] = {}
    for rank, row in enumerate(matrix):
        if not (in_place and row[rank] and _is_of_one(row)):
            largest = max(row)
            whole = sum(weight / largest for weight in row)  # prevents overflow of a sum of huge weights
            alike.setdefault(tuple([weight / largest / whole for weight in row]), []).append(rank)
    # The receivers of a result compute it, so that it is sent to no other rank.
    return tuple([Weighting(_weights(matrix[ranks[0]]), tuple(ranks), tuple(ranks)) for ranks in alike.values()])


def _weights(row: Sequence[float]) -> Tuple[float, ...]:
    """Return a row of weights; a single nonzero weight becomes 1, so that the result equals that value bit for bit."""
    return tuple([float(weight > 0) for weight in row]) if _is_of_one(row) else tuple(row)


def _is_of_one(row: Sequence[float]) -> bool:
    return sum(weight > 0 for weight in row) == 1


def _rows(weights: Any, session: Session) -> List[Any]:
    """Return one weight per rank, or a row of weights per rank."""
    if weights is None:
        return [1.0] * session.size
    if hasattr(weights, "_rows_taken"):  # a synkhronos Function
        rows_taken = weights._rows_taken(session)
        if rows_taken is None:
            raise ArgumentValueError(
                "weights",
                "a function that has been called in this session, so that its rows are counted",
                "a function that has not been called",
                "call it first, or pass numbers",
            )
        return [float(rows) for rows in rows_taken]
    if not isinstance(weights, (list, tuple, np.ndarray)) or isinstance(weights, np.ndarray) and weights.ndim > 2:
        raise _no_weights(weights)
    if isinstance(weights, np.ndarray) and weights.ndim == 0:
        raise _no_weights(weights)
    nested = [isinstance(row, (list, tuple, np.ndarray)) for row in weights]
    if all(nested) and nested:
        _check_length("weights", len(weights), session.size, "one row per rank")
        return [_checked(f"weights[{rank}]", row, session.size) for rank, row in enumerate(weights)]
    return _checked("weights", weights, session.size)


def _checked(argument: str, weights: Any, size: int) -> List[float]:
    if isinstance(weights, np.ndarray) and weights.ndim != 1:
        raise _no_weights(weights)
    _check_length(argument, len(weights), size, "one per rank")
    for rank, weight in enumerate(weights):
        if isinstance(weight, (bool, np.bool_)) or not isinstance(weight, (int, float, np.integer, np.floating)):
            raise ArgumentTypeError(f"{argument}[{rank}]", "a number", f"{weight!r} of type {type(weight).__name__}")
        number = weight.item() if isinstance(weight, np.generic) else weight  # NumPy 2 compares in the weight's dtype
        if not 0 <= number <= sys.float_info.max:
            raise ArgumentValueError(f"{argument}[{rank}]", "a finite nonnegative number", repr(weight))
    if not any(weights):
        raise ArgumentValueError(argument, "at least one positive number", repr(weights))
    return [float(weight) for weight in weights]


def _check_length(argument: str, length: int, size: int, what: str) -> None:
    if length != size:
        raise ArgumentValueError(argument, f"length {size}, {what}", str(length))


def _no_weights(weights: Any) -> ArgumentTypeError:
    expected = "one number per rank, a row of numbers per rank, or a synkhronos Function"
    return ArgumentTypeError("weights", expected, repr(weights))


def _is_int(rank: Any) -> bool:
    return isinstance(rank, (int, np.integer)) and not isinstance(rank, bool)
