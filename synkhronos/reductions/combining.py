"""Combine the values of all ranks."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentValueError
from .mean import BLOCK_BYTES, checked_weights, mean_into
from .op import COMBINING, ReduceOp, check_dtype, compute_dtype, listed
from .single_numbers import combine_many, combine_numbers

_UFUNCS: Dict[Optional[str], np.ufunc] = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def combine(
    op: ReduceOp,
    parts: Sequence[Optional[NDArray[Any]]],
    weights: Optional[Sequence[Any]] = None,
    out: Optional[NDArray[Any]] = None,
    keep_dtype: bool = False,
) -> NDArray[Any]:
    r"""Reduce the ranks' values: ``op(x_0, ..., x_{n-1})``, element by element, strictly in rank order.

    ``avg`` is :math:`\sum_r w_r x_r / \sum_r w_r` over the ranks whose weight
    is not 0 (if all are 0, all count the same). It lies between the least and
    the greatest value, so the average of equal values is that value, and it
    does not overflow. Complex numbers are averaged by their parts. Everything
    else is as NumPy's ``add``, ``multiply``, ``minimum`` and ``maximum``, but
    without warnings.

    Parameters
    ----------
    op : ReduceOp
        ``avg``, ``sum``, ``prod``, ``min`` or ``max``.
    parts : sequence of (ndarray or None)
        For each rank its value, all of one shape and type, or None for a rank
        that has nothing.
    weights : sequence of number, optional
        For each rank its weight in ``avg``, finite and 0 or more; all count
        the same without.
    out : ndarray, optional
        Takes the result. It may be one of the parts.
    keep_dtype : bool
        Whether ``sum`` and ``prod`` of bools are bools (logical or, logical
        and), instead of integers as `numpy.sum` has it.

    Returns
    -------
    ndarray
        ``out``, or a new array (0-d for 0-d parts), never one of the parts.

    Raises
    ------
    TypeError
        If the op is not defined for the type, or a weight is not a number.
    ValueError
        If no rank has a value, or shapes, types or numbers of things differ, or
        a weight is negative or not finite.

    Examples
    --------
    >>> combine(ReduceOp("avg"), [np.array([1.0, 2.0]), None, np.array([4.0, 8.0])], weights=[2, 0, 1])
    array([2., 4.])
    """
    if out is None:
        number = combine_numbers(op, parts, weights)
        if number is not None:
            return number
    present = [np.asarray(part) for part in parts if part is not None]
    if not present:
        raise ArgumentValueError(f"values of '{op}'", "one of one rank at least", "none")
    shape, dtype = present[0].shape, present[0].dtype
    for part in present:
        if part.shape != shape or part.dtype != dtype:
            got = " and ".join(_unique(f"{part.dtype}{part.shape}" for part in present))
            raise ArgumentValueError(f"values of '{op}'", "one shape and type", got)
    if dtype.kind != "f":  # which has every op
        check_dtype(op, dtype, "a value")
    if dtype.kind == "b" and op.name in ("sum", "prod") and not keep_dtype:
        dtype = np.dtype(np.int_)
    if out is None:
        result = np.empty(shape, dtype)
    elif out.shape != shape or out.dtype != dtype:
        expected = f"{dtype}{shape}, as the result of '{op}' is"
        raise ArgumentValueError("out", expected, f"{out.dtype}{out.shape}")
    elif out.flags.c_contiguous and all(_same_or_apart(out, part) for part in present):
        result = out
    else:
        result = np.empty(shape, dtype)
    flat = [None if part is None else np.asarray(part).reshape(-1) for part in parts]
    combine_pieces(op, [(flat, [result.reshape(-1)])], weights)
    if out is None or result is out:
        return result
    np.copyto(out, result)
    return out


def combine_each(
    op: ReduceOp, parts: Sequence[Optional[NDArray[Any]]], weights: Optional[Sequence[Any]] = None
) -> NDArray[Any]:
    """Combine the values of 0 dimensions that many calls have given: all at once, with the bits of one by one.

    Parameters
    ----------
    op, weights
        As in `combine`.
    parts : sequence of (ndarray or None)
        For each rank its values, shape ``(n,)``, or None for a rank that has nothing.

    Returns
    -------
    ndarray, shape ``(n,)``
        ``combine(op, [part[i] for part in parts], weights)`` for every i.

    Raises
    ------
    TypeError, ValueError
        As `combine`.

    Examples
    --------
    >>> combine_each(ReduceOp("avg"), [np.array([1.0, 2.0]), None, np.array([4.0, 8.0])], weights=[2, 0, 1])
    array([2., 4.])
    """
    many = combine_many(op, parts, weights)
    if many is None:
        return combine(op, parts, weights)
    results, simple = many
    for i in np.flatnonzero(~simple).tolist():
        results[i] = combine(op, [None if part is None else part[i : i + 1].reshape(()) for part in parts], weights)
    return results


def combine_into(
    op: ReduceOp,
    parts: Sequence[Optional[NDArray[Any]]],
    weights: Optional[Sequence[Any]],
    out: NDArray[Any],
) -> None:
    """Do the work of `combine` on 1-D contiguous blocks, for transports that cut values into blocks.

    Every element is a function of the parts' elements at its place alone: a
    value combined in blocks has the same bits as one combined whole. (If
    several parts are NaN, the result is NaN, but NumPy does not say with which
    sign and payload.)

    Parameters
    ----------
    op, parts, weights
        As in `combine`, but not checked, except for the weights. ``weights``
        are those of the whole value, not normalised.
    out : ndarray
        Takes the result: apart from all parts, or exactly one of them. Its
        type is the type that `combine` returns: it says whether a sum of
        bools is an integer.

    Raises
    ------
    TypeError, ValueError
        If the weights are not as they must be, or the op combines nothing.
    """
    combine_pieces(op, [(parts, [out])], weights)


def combine_pieces(
    op: ReduceOp,
    pieces: Iterable[Tuple[Sequence[Optional[NDArray[Any]]], Sequence[NDArray[Any]]]],
    weights: Optional[Sequence[Any]],
) -> None:
    """Do the work of `combine_into` on many blocks, each for several targets; small ones cost little more than joined.

    Parameters
    ----------
    op, weights
        As in `combine_into`.
    pieces : iterable of (parts, targets)
        The parts of `combine_into`, and the arrays that take the result. The first of these may be one of the parts.

    Raises
    ------
    TypeError, ValueError
        As `combine_into`.
    """
    if op.name == "avg":
        checked: Any = None if weights is None else checked_weights(weights)
    elif op.name not in COMBINING:
        raise ArgumentValueError("op", f"one that combines values, {listed(COMBINING)}", f"'{op}'")
    # inf and nan are results here, whatever the user has set: if one rank alone raised, the others would have gone on.
    with np.errstate(all="ignore"):
        for parts, targets in pieces:
            out = targets[0]
            if op.name == "avg":
                mean_into(parts, checked, out)
            else:
                _fold_into(op, parts, out)
            for target in targets[1:]:
                np.copyto(target, out)


def _fold_into(op: ReduceOp, parts: Sequence[Optional[NDArray[Any]]], out: NDArray[Any]) -> None:
    """Apply the op's ufunc from the first rank to the last; only the last step writes to ``out``, as in `mean_into`."""
    ufunc = _UFUNCS[op.name]
    present = [part for part in parts if part is not None]
    if len(present) == 1:
        np.copyto(out, present[0])
        return
    compute = compute_dtype(op, out.dtype)
    step = BLOCK_BYTES // compute.itemsize
    for begin in range(0, out.size, step):
        block = slice(begin, begin + step)
        result, spare = present[0][block], None
        for part in present[1:-1]:
            result = spare = ufunc(result, part[block], out=spare, dtype=compute)
        ufunc(result, present[-1][block], out=out[block], dtype=compute)


def gather_outputs(parts: Sequence[Optional[NDArray[Any]]]) -> NDArray[Any]:
    """Concatenate the ranks' values along the first axis, in rank order; 0-d values become one entry each.

    Parameters
    ----------
    parts : sequence of (ndarray or None)
        For each rank its value, or None for a rank that has nothing.

    Returns
    -------
    ndarray
        A new array.

    Raises
    ------
    ValueError
        If no rank has a value, or shapes differ in more than the first axis.

    Examples
    --------
    >>> gather_outputs([np.array(1.0), None, np.array(2.0)])
    array([1., 2.])
    """
    present = [np.asarray(part) for part in parts if part is not None]
    if not present:
        raise ArgumentValueError("values of 'gather'", "one of one rank at least", "none")
    if len({(part.ndim, part.shape[1:]) for part in present}) > 1:
        got = " and ".join(_unique(str(part.shape) for part in present))
        raise ArgumentValueError("values of 'gather'", "shapes that differ in the first axis only", got)
    return np.concatenate([np.atleast_1d(part) for part in present])


def reduce_outputs(
    op: ReduceOp,
    parts: Sequence[Optional[NDArray[Any]]],
    weights: Optional[Sequence[Any]],
    root: int,
    keep_dtype: bool = False,
) -> NDArray[Any]:
    """Return what the master gets of the ranks' values: combined, gathered, or its own.

    Parameters
    ----------
    op : ReduceOp
        Any.
    parts, weights, keep_dtype
        As in `combine`.
    root : int
        The rank whose value the op None takes; the first value that there is if it has none.

    Returns
    -------
    ndarray
        A new array.

    Raises
    ------
    TypeError, ValueError
        As `combine` and `gather_outputs`.
    """
    if op.name is None:
        own = parts[root]
        return np.array(next(part for part in parts if part is not None) if own is None else own)
    if op.name == "gather":
        return gather_outputs(parts)
    return combine(op, parts, weights, keep_dtype=keep_dtype)


def _same_or_apart(out: NDArray[Any], part: NDArray[Any]) -> bool:
    """Return whether arrays of one shape are the same memory, element by element, or share none."""
    if not np.may_share_memory(out, part):
        return True
    return out.ctypes.data == part.ctypes.data and out.dtype == part.dtype and part.flags.c_contiguous


def _unique(texts: Iterable[str]) -> List[str]:
    return list(dict.fromkeys(texts))
