"""Reduction of the values of all ranks."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentValueError
from .mean import BLOCK_BYTES, checked_weights, mean_into
from .op import COMBINING, Parts, ReduceOp, Weights, check_dtype, compute_dtype, listed
from .scalars import combine_many, combine_numbers

_UFUNCS: Dict[Optional[str], np.ufunc] = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}


def combine(
    op: ReduceOp, parts: Parts, weights: Weights = None, out: Optional[NDArray[Any]] = None, keep_dtype: bool = False
) -> NDArray[Any]:
    """Reduce the ranks' values element by element, strictly in rank order: ``op(x_0, ..., x_{n-1})``.

    ``avg`` is the weighted mean that `mean` defines, with finite ``weights`` >= 0. Other ops are NumPy's ``add``,
    ``multiply``, ``minimum`` and ``maximum``, without warnings. ``parts`` have the same shape and type, or are None for
    ranks without a value. With ``keep_dtype``, ``sum`` and ``prod`` of bools are bools instead of integers.

    The result is in ``out``, which may be one of the parts, or in new memory. Raises TypeError if the type of values or
    weights is unsupported, and ValueError if values or weights are invalid, or if no rank has a value.

    >>> combine(ReduceOp("avg"), [np.array([1.0, 2.0]), None, np.array([4.0, 8.0])], weights=[2, 0, 1])
    array([2., 4.])
    """
    if out is None:
        number = combine_numbers(op, parts, weights)
        if number is not None:
            return number
    present = [np.asarray(part) for part in parts if part is not None]
    if not present:
        raise ArgumentValueError(f"values of '{op}'", "a value from at least one rank", "none")
    shape, dtype = present[0].shape, present[0].dtype
    for part in present:
        if part.shape != shape or part.dtype != dtype:
            got = " and ".join(_unique(f"{part.dtype}{part.shape}" for part in present))
            raise ArgumentValueError(f"values of '{op}'", "the same shape and type on all ranks", got)
    if dtype.kind != "f":  # floats support every op
        check_dtype(op, dtype, "a value")
    if dtype.kind == "b" and op.name in ("sum", "prod") and not keep_dtype:
        dtype = np.dtype(np.int_)
    if out is not None and (out.shape != shape or out.dtype != dtype):
        expected = f"{dtype}{shape}, the type and shape of the result of '{op}'"
        raise ArgumentValueError("out", expected, f"{out.dtype}{out.shape}")
    in_place = out is not None and out.flags.c_contiguous and all(_same_or_apart(out, part) for part in present)
    result = out if out is not None and in_place else np.empty(shape, dtype)
    flat = [None if part is None else np.asarray(part).reshape(-1) for part in parts]
    combine_pieces(op, [(flat, [result.reshape(-1)])], weights)
    if out is None or in_place:
        return result
    np.copyto(out, result)
    return out


def combine_each(op: ReduceOp, parts: Parts, weights: Weights = None) -> NDArray[Any]:
    """Combine ``n`` scalars per rank in one pass, bit-identical to separate calls to `combine`.

    ``parts`` have shape ``(n,)``, or are None for ranks without a value. The result has shape ``(n,)``.

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


def combine_pieces(op: ReduceOp, pieces: Iterable[Tuple[Parts, Sequence[NDArray[Any]]]], weights: Weights) -> None:
    """Reduce 1-D contiguous blocks like `combine`, for transports that divide values into blocks.

    ``pieces`` are pairs of a block's parts and the targets of its result. The first target must be one of the parts or
    overlap none of them; its dtype determines whether a sum of bools is an integer. Each element depends only on the
    parts' elements at the same position, so results are bit-identical to those of whole values. (If several parts are
    NaN, NumPy does not specify the result's sign and payload.) Only weights are checked; do not normalize them, because
    that would change the rounding.
    """
    if op.name == "avg":
        checked: Any = None if weights is None else checked_weights(weights)
    elif op.name not in COMBINING:
        raise ArgumentValueError("op", f"an op that combines values, {listed(COMBINING)}", f"'{op}'")
    # inf and nan are valid results, regardless of np.seterr: if only one rank raised, the other ranks would continue.
    with np.errstate(all="ignore"):
        for parts, targets in pieces:
            out = targets[0]
            if op.name == "avg":
                mean_into(parts, checked, out)
            else:
                _fold_into(op, parts, out)
            for target in targets[1:]:
                np.copyto(target, out)


def _fold_into(op: ReduceOp, parts: Parts, out: NDArray[Any]) -> None:
    """Apply the op's ufunc in rank order; only the last step writes to ``out``, as in `mean.mean_into`."""
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


def gather_outputs(parts: Parts) -> NDArray[Any]:
    """Concatenate the ranks' values along the first axis, in rank order; a 0-d value becomes one entry.

    >>> gather_outputs([np.array(1.0), None, np.array(2.0)])
    array([1., 2.])
    """
    present = [np.asarray(part) for part in parts if part is not None]
    if not present:
        raise ArgumentValueError("values of 'gather'", "a value from at least one rank", "none")
    if len({(part.ndim, part.shape[1:]) for part in present}) > 1:
        got = " and ".join(_unique(str(part.shape) for part in present))
        raise ArgumentValueError("values of 'gather'", "shapes that differ only in the first axis", got)
    return np.concatenate([np.atleast_1d(part) for part in present])


def reduce_outputs(op: ReduceOp, parts: Parts, weights: Weights, root: int, keep_dtype: bool = False) -> NDArray[Any]:
    """Combine the ranks' values of an output, gather them, or select the master's; return a new array.

    With op None the result is the value of ``root``, or the first available value if ``root`` has none. The other
    arguments are those of `combine`.
    """
    if op.name is None:
        own = parts[root]
        return np.array(next(part for part in parts if part is not None) if own is None else own)
    if op.name == "gather":
        return gather_outputs(parts)
    return combine(op, parts, weights, keep_dtype=keep_dtype)


def _same_or_apart(out: NDArray[Any], part: NDArray[Any]) -> bool:
    """Return whether two arrays of the same shape are views of the same elements, or do not overlap."""
    if not np.may_share_memory(out, part):
        return True
    return out.ctypes.data == part.ctypes.data and out.dtype == part.dtype and part.flags.c_contiguous


def _unique(texts: Iterable[str]) -> List[str]:
    return list(dict.fromkeys(texts))
