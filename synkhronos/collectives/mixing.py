"""Which ranks' values make which rank's result: one average for all, one for each group, or a matrix of weights.

.. math:: x_r := \\frac{\\sum_s W_{rs} x_s}{\\sum_s W_{rs}}

A vector of weights is a matrix of equal rows, and groups are one of blocks. Ranks with equal rows are one `Mix`, which
is computed once, so that they hold the same bits. A rank whose row has its own weight alone is in none, where results
take the places of the values: it keeps its own. Elsewhere its mix is that value, to the bit.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..reductions import ReduceOp
from ..runtime.session import Session
from ..transports.base import ALL_ALIKE, Mix


def parse_mixes(weights: Any, groups: Any, op: ReduceOp, session: Session, in_place: bool = True) -> Sequence[Mix]:
    """Return the mixes of an `all_reduce`, whose results take the places of the values or not.

    Raises
    ------
    TypeError, ValueError
        If the weights are not a finite number per rank, or per pair of ranks, or those of a function that has been
        called; if the groups are no partition of the ranks; if the op is not ``avg``.
    """
    if weights is None and groups is None:
        return ALL_ALIKE
    argument = "groups" if weights is None else "weights"
    if op.name != "avg":
        raise ArgumentValueError(argument, f"op 'avg', the only one that has {argument}", f"op {str(op)!r}")
    rows = _rows(weights, session)
    if groups is not None:
        if isinstance(rows[0], list):
            hint = "write the groups into the matrix: weight 0 excludes"
            raise ArgumentTypeError("weights", "one number per rank beside groups", "a matrix", hint)
        rows = _of_groups(rows, parse_groups(groups, session.size))
    return _of_matrix(rows, in_place) if isinstance(rows[0], list) else (Mix(_weights(rows), None),)


def parse_groups(groups: Any, size: int) -> List[List[int]]:
    """Return the groups, lists of ranks.

    Raises
    ------
    TypeError, ValueError
        If they are not lists in which every rank is listed once.
    """
    expected = f"lists of ranks in which each of 0 to {size - 1} is once"
    is_nested = isinstance(groups, (list, tuple)) and all(isinstance(one, (list, tuple, range)) for one in groups)
    if not is_nested or not all(_is_int(rank) for group in groups for rank in group):
        raise ArgumentTypeError("groups", expected, repr(groups))
    if sorted(int(rank) for group in groups for rank in group) != list(range(size)) or not all(map(len, groups)):
        raise ArgumentValueError("groups", expected, repr(groups))
    return [[int(rank) for rank in group] for group in groups]


def _of_groups(weights: Sequence[float], groups: List[List[int]]) -> List[List[float]]:
    """Return the matrix by which each group has its average; ranks of a group without weights count the same."""
    matrix: List[List[float]] = [[]] * len(weights)
    for group in groups:
        row = [weight if rank in group else 0.0 for rank, weight in enumerate(weights)]
        for rank in group:
            matrix[rank] = row if any(row) else [float(rank in group) for rank in range(len(weights))]
    return matrix


def _of_matrix(matrix: Sequence[Sequence[float]], in_place: bool) -> Sequence[Mix]:
    """Return one mix for all ranks with equal rows, which may differ by a factor."""
    alike: Dict[Tuple[float, ...], List[int]] = {}
    for rank, row in enumerate(matrix):
        if not (in_place and row[rank] and _is_of_one(row)):
            largest = max(row)
            whole = sum(weight / largest for weight in row)  # (the sum of huge weights would overflow)
            alike.setdefault(tuple([weight / largest / whole for weight in row]), []).append(rank)
    # Those who take a result work it out, so that nothing of it travels elsewhere.
    return [Mix(_weights(matrix[ranks[0]]), tuple(ranks), tuple(ranks)) for ranks in alike.values()]


def _weights(row: Sequence[float]) -> Tuple[float, ...]:
    """Return the weights of a mix: those given, or 1 for a rank that alone has one, whose value it is to the bit."""
    return tuple([float(weight > 0) for weight in row]) if _is_of_one(row) else tuple(row)


def _is_of_one(row: Sequence[float]) -> bool:
    """Return whether one rank alone has a weight."""
    return sum(weight > 0 for weight in row) == 1


def _rows(weights: Any, session: Session) -> List[Any]:
    """Return one weight for each rank, or a row of them for each."""
    if weights is None:
        return [1.0] * session.size
    if hasattr(weights, "rows_taken"):  # a synkhronos Function
        rows_taken = weights.rows_taken(session)
        if rows_taken is None:
            raise ArgumentValueError(
                "weights",
                "a function that has been called in this session, so that its ranks have taken rows",
                "one that has not been called",
                "call it first, or give numbers",
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
    """Return weights, one per rank, as floats."""
    if isinstance(weights, np.ndarray) and weights.ndim != 1:
        raise _no_weights(weights)
    _check_length(argument, len(weights), size, "one per rank")
    for rank, weight in enumerate(weights):
        if isinstance(weight, (bool, np.bool_)) or not isinstance(weight, (int, float, np.integer, np.floating)):
            raise ArgumentTypeError(f"{argument}[{rank}]", "a number", f"{weight!r} of type {type(weight).__name__}")
        number = weight.item() if isinstance(weight, np.generic) else weight  # (NumPy 2 compares in weight's own type)
        if not 0 <= number <= sys.float_info.max:
            raise ArgumentValueError(f"{argument}[{rank}]", "a finite number, not negative", repr(weight))
    if not any(weights):
        raise ArgumentValueError(argument, "at least one positive number", repr(weights))
    return [float(weight) for weight in weights]


def _check_length(argument: str, length: int, size: int, what: str) -> None:
    if length != size:
        raise ArgumentValueError(argument, f"{size}, {what}", str(length))


def _no_weights(weights: Any) -> ArgumentTypeError:
    expected = "one number per rank, a row of them per rank, or a synkhronos Function"
    return ArgumentTypeError("weights", expected, repr(weights))


def _is_int(rank: Any) -> bool:
    return isinstance(rank, (int, np.integer)) and not isinstance(rank, bool)
