"""Reduce operations: what becomes of the values that all ranks have.

One set of rules serves every transport and the slices of a call: ``avg`` is
weighted, weight 0 and a rank without a value do not take part, float16
accumulates in float32, and the order of evaluation is the order of the ranks,
so that the same values give the same bits in every run.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import (
    Any,
    Collection,
    ContextManager,
    Dict,
    Iterable,
    Iterator,
    List,
    Literal,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
from numpy.typing import DTypeLike, NDArray

NAMES: Tuple[Optional[str], ...] = ("avg", "sum", "prod", "min", "max", "gather", None)

_UFUNCS: Dict[Optional[str], np.ufunc] = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}

_BLOCK_BYTES = 1 << 18
"""Values are combined in blocks of this size, so that intermediate results stay in the core's cache."""


class _Missing(Enum):
    MISSING = "MISSING"


MISSING = _Missing.MISSING
"""Stands for an op that the user did not give; None is an op."""


@dataclass(frozen=True)
class ReduceOp:
    """One of the reduce operations.

    Parameters
    ----------
    name : str or None
        ``"avg"``, ``"sum"``, ``"prod"``, ``"min"``, ``"max"``, ``"gather"``,
        or None: the master's own value.
    on_host : bool
        Whether the CPU transport is asked for (the prefix ``c_``).
    """

    name: Optional[str]
    on_host: bool = False

    def __reduce__(self) -> Any:
        return _made, (self.name, self.on_host)  # ops travel with every command, and a dataclass by itself is slow

    def __str__(self) -> str:
        """Return the op as users write it."""
        return ("c_" if self.on_host else "") + str(self.name)

    @classmethod
    def parse(cls, op: object, argument: str = "op", allowed: Collection[Optional[str]] = NAMES) -> ReduceOp:
        """Return the op that the user means.

        Parameters
        ----------
        op : str, None or ReduceOp
            ``"sum"``, ``"c_sum"``, ...
        argument : str
            What error messages call it.
        allowed : collection of (str or None)
            The names that make sense where it stands.

        Returns
        -------
        ReduceOp
            The op.

        Raises
        ------
        TypeError
            If ``op`` is no string, None or ReduceOp.
        ValueError
            If there is no such op, or not here.

        Examples
        --------
        >>> ReduceOp.parse("c_sum")
        ReduceOp(name='sum', on_host=True)
        """
        if op is None:
            parsed = cls(None)
        elif isinstance(op, str):
            on_host = op.startswith("c_")
            parsed = cls(op[2:] if on_host else op, on_host)
        elif isinstance(op, cls):
            parsed = op
        else:
            raise TypeError(f"{argument} must be {_listed(allowed)}, got {op!r} of type {type(op).__name__}")
        if parsed.name not in allowed:
            raise ValueError(
                f"{argument} must be {_listed(allowed)} (a prefix 'c_' asks for the CPU transport), got {str(op)!r}"
            )
        return parsed

    @classmethod
    def for_output(cls, op: object, dtype: DTypeLike, label: str) -> ReduceOp:
        """Return the op of a function's output: the given one, or ``avg`` if it is `MISSING`.

        Parameters
        ----------
        op : str, None, ReduceOp or MISSING
            What the user gave.
        dtype : dtype
            The type of the output.
        label : str
            What error messages call the output.

        Returns
        -------
        ReduceOp
            The op.

        Raises
        ------
        TypeError
            If ``op`` is of a wrong type, or the output's type cannot be
            reduced by it; integers and bools have no default op.
        ValueError
            If there is no such op.
        """
        parsed = _AVG if op is MISSING else cls.parse(op, argument=f"the op of {label}")
        check_dtype(parsed, dtype, label)
        return parsed


@lru_cache(maxsize=32)
def _made(name: Optional[str], on_host: bool) -> ReduceOp:
    return ReduceOp(name, on_host)


_AVG = ReduceOp("avg")


def check_dtype(op: ReduceOp, dtype: DTypeLike, label: str, allowed: Collection[Optional[str]] = NAMES) -> None:
    """Refuse an op that a type does not have: ``avg`` of integers and bools, arithmetic of what is no number.

    Parameters
    ----------
    op : ReduceOp
        The op.
    dtype : dtype
        The type of the values.
    label : str
        What the error message calls them.
    allowed : collection of (str or None)
        The names of ops that it may advise.

    Raises
    ------
    TypeError
        If the op is not defined for the type.

    Examples
    --------
    >>> check_dtype(ReduceOp("sum"), "int64", "output 0")
    """
    dtype = np.dtype(dtype)
    if op.name == "avg" and dtype.kind in "biu":
        others = [repr(name) for name in allowed if name not in ("avg", None)]
        if None in allowed:
            others.append("None (the master's own value)")
        raise TypeError(
            f"{label} has the type {dtype}, which has no average ('avg' is the default op): give the op"
            f" {', '.join(others[:-1])} or {others[-1]}, or cast {label} to a float"
        )
    if op.name in ("avg", *_UFUNCS) and dtype.kind not in "biufc":
        raise TypeError(
            f"{label} has the type {dtype}, which cannot be reduced by '{op}': give the op 'gather' or None (the"
            " master's own value)"
        )


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
        If the op is not defined for the type, or a weight is no number.
    ValueError
        If nobody has a value, or shapes, types or numbers of things differ, or
        a weight is negative or not finite.

    Examples
    --------
    >>> combine(ReduceOp("avg"), [np.array([1.0, 2.0]), None, np.array([4.0, 8.0])], weights=[2, 0, 1])
    array([2., 4.])
    """
    if out is None and (weights is None or len(weights) == len(parts)):
        quick = _numbers(op, parts, weights)
        if quick is not None:
            return quick
    present = [np.asarray(part) for part in parts if part is not None]
    if not present:
        raise ValueError(f"'{op}' needs the value of one rank at least, got none")
    shape, dtype = present[0].shape, present[0].dtype
    for part in present:
        if part.shape != shape or part.dtype != dtype:
            raise ValueError(
                f"'{op}' needs values of one shape and type, got "
                + " and ".join(_unique(f"{part.dtype}{part.shape}" for part in present))
            )
    if dtype.kind != "f":  # which has every op
        check_dtype(op, dtype, "a value")
    if dtype.kind == "b" and op.name in ("sum", "prod") and not keep_dtype:
        dtype = np.dtype(np.int_)
    if out is None:
        result = np.empty(shape, dtype)
    elif out.shape != shape or out.dtype != dtype:
        raise ValueError(f"out must be {dtype}{shape}, as the result of '{op}' is; got {out.dtype}{out.shape}")
    elif out.flags.c_contiguous and all(_same_or_apart(out, part) for part in present):
        result = out
    else:
        result = np.empty(shape, dtype)
    flat = [None if part is None else np.asarray(part).reshape(-1) for part in parts]
    combine_into(op, flat, weights, result.reshape(-1))
    if out is None or result is out:
        return result
    np.copyto(out, result)
    return out


def combine_into(
    op: ReduceOp,
    parts: Sequence[Optional[NDArray[Any]]],
    weights: Optional[Sequence[Any]],
    out: NDArray[Any],
) -> None:
    """Do the work of `combine` on 1-D contiguous blocks, for transports that cut values into blocks.

    Every element is a function of the parts' elements at its place alone: a
    value combined in blocks has the same bits as one combined whole. (Where
    several parts are NaN, the result is NaN, but NumPy does not say with which
    sign and payload.)

    Parameters
    ----------
    op, parts, weights
        As in `combine`, but not checked, except for the weights. ``weights``
        are those of the whole value, not normalised.
    out : ndarray
        Takes the result: apart from all parts, or exactly one of them. Its
        type is the type that `combine` returns; it tells whether a sum of
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
        checked: Any = None if weights is None else _checked(weights)
    elif op.name not in _UFUNCS:
        raise ValueError(f"values are combined by {_listed(('avg', *_UFUNCS))}; not by '{op}'")
    # The state of errors is switched once for all blocks, and for few numbers not at all.
    with _Silence() as silence:
        for parts, targets in pieces:
            out = targets[0]
            if op.name == "avg":
                _average_into(parts, checked, out, silence)
            else:
                _fold_into(op, parts, out, silence)
            for target in targets[1:]:
                np.copyto(target, out)


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
        If nobody has a value, or shapes differ in more than the first axis.

    Examples
    --------
    >>> gather_outputs([np.array(1.0), None, np.array(2.0)])
    array([1., 2.])
    """
    present = [np.asarray(part) for part in parts if part is not None]
    if not present:
        raise ValueError("'gather' needs the value of one rank at least, got none")
    if len({(part.ndim, part.shape[1:]) for part in present}) > 1:
        raise ValueError(
            "'gather' needs values whose shapes differ in the first axis only, got "
            + " and ".join(_unique(str(part.shape) for part in present))
        )
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
        The rank whose value the op None takes; the first value that there is where it has none.

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


class Accumulator:
    """Accumulate the values of one rank's slices, one after the other, in the memory of one value.

    Combining the ranks' accumulated values, with their total weights, gives
    what combining the values of all slices of all ranks at once would give,
    but for rounding.

    Parameters
    ----------
    op : ReduceOp
        ``None`` takes one slice only.
    keep_dtype : bool
        As in `combine`.

    Examples
    --------
    >>> mean = Accumulator(ReduceOp("avg"))
    >>> mean.add(np.array(1.0), weight=3)
    >>> mean.add(np.array(5.0), weight=1)
    >>> mean.finish()
    (array(2.), 4)
    """

    def __init__(self, op: ReduceOp, keep_dtype: bool = False) -> None:
        self._op = op
        self._keep_dtype = keep_dtype
        self._collected: List[NDArray[Any]] = []
        self._value: Optional[NDArray[Any]] = None
        self._given: Optional[np.dtype[Any]] = None
        self._dtype: Optional[np.dtype[Any]] = None
        self._weight: Any = 0
        self._count = 0

    def add(self, value: NDArray[Any], weight: Any = 1) -> None:
        """Add the value of the next slice; it is copied.

        Parameters
        ----------
        value : ndarray
            As the parts of `combine` or `gather_outputs`.
        weight : number
            The weight of the slice.

        Raises
        ------
        TypeError, ValueError
            As `combine`; and if a second value comes under the op None.
        """
        value = np.asarray(value)
        if self._op.name == "gather":
            self._collected.append(value.copy())
        elif self._value is None:
            one = self._op.name is None
            first = value.copy() if one else combine(self._op, [value], [weight], keep_dtype=self._keep_dtype)
            self._given, self._dtype = value.dtype, first.dtype
            self._value = first.astype(_compute_dtype(self._op, first.dtype), copy=False)
        else:
            if value.dtype == self._given:
                value = value.astype(self._value.dtype, copy=False)
            # Slices of weight 0 count the same among themselves, and nothing beside the others.
            weights = (self._weight, weight) if self._weight or weight else (self._count, 1)
            combine(self._op, [self._value, value], weights, out=self._value, keep_dtype=self._keep_dtype)
        self._weight = self._weight + weight
        self._count += 1

    def finish(self) -> Tuple[Optional[NDArray[Any]], Any]:
        """Return the accumulated value, or None if there were no slices, and the sum of the weights."""
        if self._collected:
            return gather_outputs(self._collected), self._weight
        if self._value is None:
            return None, self._weight
        with _silent():
            return self._value.astype(self._dtype, copy=False), self._weight


def _compute_dtype(op: ReduceOp, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type, in the machine's byte order, that values of type ``dtype`` are accumulated in."""
    wide = dtype == np.float16 and op.name in ("avg", "sum", "prod")
    return np.dtype(np.float32) if wide else dtype.newbyteorder("=")


def _checked(weights: Sequence[Any]) -> NDArray[np.float64]:
    if all([type(weight) is int or type(weight) is float for weight in weights]):
        try:
            checked = np.array(weights, np.float64)
        except OverflowError:
            pass
        else:
            if 0 <= checked.min(initial=0.0) and checked.max(initial=0.0) < math.inf:  # neither where one is nan
                return checked
    checked = np.empty(len(weights))
    for position, weight in enumerate(weights):
        if isinstance(weight, np.ndarray) and weight.ndim == 0:
            weight = weight[()]
        if not isinstance(weight, numbers.Real):
            raise TypeError(
                f"weights must be real numbers, got {weight!r} of type {type(weight).__name__} at position {position}"
            )
        try:
            number = float(weight)
        except OverflowError:
            number = math.inf
        if not (math.isfinite(number) and number >= 0):
            raise ValueError(f"weights must be finite and 0 or more, got {weight!r} at position {position}")
        checked[position] = number
    return checked


def scaled_weights(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Multiply weights by the power of 2 that brings their sum into [0.5, 1); ones if all are 0.

    This is exact (whole numbers of rows give the average that dividing by
    their sum gives), and no sum weighted so overflows.
    """
    if not weights.any():
        weights = np.ones_like(weights)
    for size in (np.max, np.sum):  # the largest first: the sum of huge weights would overflow
        weights = np.ldexp(weights, -np.frexp(size(weights))[1])
    return weights


def _fold_into(op: ReduceOp, parts: Sequence[Optional[NDArray[Any]]], out: NDArray[Any], silence: _Silence) -> None:
    present = [part for part in parts if part is not None]
    if len(present) == 1:
        np.copyto(out, present[0])
        return
    compute = _compute_dtype(op, out.dtype)
    if compute.kind in "fc":
        silence.begin()
    for block in _blocks(out.size, compute):
        _fold(_UFUNCS[op.name], [part[block] for part in present], compute, out[block])


def counting(
    present: Sequence[bool], weights: Optional[Sequence[float]]
) -> Tuple[List[int], Tuple[float, ...]]:
    """Return the ranks that count in an average, and their weights.

    Parameters
    ----------
    present : sequence of bool
        Which ranks have a value.
    weights : sequence of float, optional
        Of all ranks, as `combine_into` takes them.

    Raises
    ------
    ValueError
        If there is not one weight for each rank.

    Examples
    --------
    >>> counting([True, True, False, True], [2.0, 0.0, 1.0, 1.0])
    ([0, 3], (2.0, 1.0))
    """
    if weights is None:
        weights = (1.0,) * len(present)
    elif len(weights) != len(present):
        raise ValueError(f"weights must be one number for each of the {len(present)} ranks, got {len(weights)}")
    there = [rank for rank, is_there in enumerate(present) if is_there]
    ranks = [rank for rank in there if weights[rank]] or there
    return ranks, tuple([float(weights[rank]) for rank in ranks])


@lru_cache(maxsize=256)
def narrowed(weights: Tuple[float, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return scaled weights in that type. None is 0, and none must become 0 in a narrower type: 0 * inf is nan."""
    with _silent():
        return np.maximum(scaled_weights(np.array(weights)).astype(dtype), np.nextafter(dtype.type(0), dtype.type(1)))


def _average_into(
    parts: Sequence[Optional[NDArray[Any]]], weights: Optional[Sequence[float]], out: NDArray[Any], silence: _Silence
) -> None:
    ranks, shares = counting([part is not None for part in parts], weights)
    present: List[Any] = [parts[rank] for rank in ranks]
    if len(present) == 1:
        np.copyto(out, present[0])
        return
    if out.dtype.kind == "c":
        # NumPy orders complex numbers by their real part, and inf times a real weight has a nan in it.
        real = out.real.dtype
        present = [part.view(real) for part in present]
        out = out.view(real)
    compute = _compute_dtype(_AVG, out.dtype)
    if len(shares) == 2 and shares[0] == shares[1]:
        _average_two(present[0], present[1], compute, out, silence)
        return
    silence.begin()
    scaled = narrowed(shares, compute)
    for block in _blocks(out.size, compute):
        _weighted_mean(scaled, [part[block].astype(compute, copy=False) for part in present], out[block])


def _average_two(
    first: NDArray[Any], second: NDArray[Any], compute: np.dtype[Any], out: NDArray[Any], silence: _Silence
) -> None:
    """Average two values of equal weights, by far the most frequent case: rounding does not leave their range."""
    in_place = compute == out.dtype and not any(np.may_share_memory(out, part) for part in (first, second))
    silence.begin(over="raise")  # costs nothing, and looking for infinities would cost another pass
    for block in _blocks(out.size, compute):
        target = out[block]
        _midpoint(first[block].astype(compute, copy=False), second[block].astype(compute, copy=False), target,
                  target if in_place else None)


_PLAIN = {np.dtype(np.float32): (1e-37, 3e38), np.dtype(np.float64): (1e-290, 1e290)}
"""Types that Python's floats hold, and between which sizes nothing can overflow or underflow on the way."""


def _numbers(
    op: ReduceOp, parts: Sequence[Optional[NDArray[Any]]], weights: Optional[Sequence[Any]]
) -> Optional[NDArray[Any]]:
    """Combine single numbers (losses, say) in a tenth of the time that arrays take; None where that is not so plain.

    The same steps as with arrays. (Those of float32 are done in double, and rounded once.)
    """
    values, shares, dtype = [], [], None
    for rank, part in enumerate(parts):
        if part is None:
            continue
        if not isinstance(part, np.ndarray) or part.ndim or dtype not in (None, part.dtype):
            return None
        dtype = part.dtype
        values.append(part.item())
        shares.append(1 if weights is None else weights[rank])
    limits = _PLAIN.get(dtype)
    if limits is None or op.name not in ("avg", "sum"):
        return None
    total = share = 0.0
    for value, weight in zip(values, shares):
        if type(weight) not in (int, float) or not 0 < weight < 1e15 or value and not (
                limits[0] < abs(value) < limits[1]):
            return None
        total += value if op.name == "sum" else value * weight
        share += weight
    if op.name == "avg":
        # Rounding must not take the mean of equal values off that value.
        total = min(max(total / share, min(values)), max(values))
    return np.array(total, dtype) if limits[0] < abs(total) < limits[1] else None  # (0 may be -0.0)


def _silent() -> ContextManager[object]:
    """Switch off NumPy's warnings and errors, whatever the user has set: inf and nan are results here.

    And if one rank alone raised, the others would have gone on.
    """
    return np.errstate(all="ignore")


class _Silence:
    """`_silent`, from the first `begin` to the end of the with block; switching takes longer than averaging 4 KB."""

    def __init__(self) -> None:
        self._over = ""
        self._before: Any = None

    def __enter__(self) -> _Silence:
        return self

    def begin(self, over: Literal["ignore", "raise"] = "ignore") -> None:
        """Be silent; about overflow, raise FloatingPointError where that is asked for."""
        if self._over == over:
            return
        self.__exit__()
        # First what to go back to: a signal handler may raise in between.
        self._before = np.errstate(all="ignore", over=over) if _ERRORS is None else _ERRORS[0]()
        self._over = over
        if _ERRORS is None:
            self._before.__enter__()
        else:
            _ERRORS[1]([self._before[0], _OVERFLOW_RAISES if over == "raise" else 0, None])

    def __exit__(self, *exception: object) -> None:
        if self._over:
            self._over = ""
            if _ERRORS is None:
                self._before.__exit__(*exception)
            else:
                _ERRORS[1](self._before)


_ERRORS: Any = (np.geterrobj, np.seterrobj) if hasattr(np, "seterrobj") else None
"""What `numpy.errstate` of NumPy 1 is made of, at a tenth of its time; NumPy 2 has neither, and a faster one."""

_OVERFLOW_RAISES = 2 << 3


def _blocks(size: int, dtype: np.dtype[Any]) -> Iterator[slice]:
    step = _BLOCK_BYTES // dtype.itemsize
    return (slice(start, start + step) for start in range(0, size, step))


def _fold(ufunc: np.ufunc, blocks: Sequence[NDArray[Any]], compute: np.dtype[Any], out: NDArray[Any]) -> None:
    """Apply the ufunc from left to right; only the last step writes to ``out``, which may be one of the blocks."""
    result = blocks[0]
    spare = None
    for block in blocks[1:-1]:
        result = spare = ufunc(result, block, out=spare, dtype=compute)
    ufunc(result, blocks[-1], out=out, dtype=compute)


def _weighted_mean(weights: NDArray[Any], blocks: List[NDArray[Any]], out: NDArray[Any]) -> None:
    """Average real blocks; only the last step writes to ``out``, which may be one of the blocks."""
    low, high = blocks[0].copy(), blocks[0].copy()
    mean = blocks[0] * weights[0]
    term = np.empty_like(mean)
    for block, weight in zip(blocks[1:], weights[1:]):
        mean += np.multiply(block, weight, out=term)
        np.minimum(low, block, out=low)
        np.maximum(high, block, out=high)
    mean /= weights.sum()
    # Rounding must not take the mean of equal values off that value, nor the mean of huge ones to infinity.
    np.maximum(mean, low, out=mean)
    np.minimum(mean, high, out=out)


def _midpoint(first: NDArray[Any], second: NDArray[Any], out: NDArray[Any], total: Optional[NDArray[Any]]) -> None:
    """Average two blocks; ``total`` takes their sum. NumPy must be set to raise on overflow."""
    try:
        total = np.add(first, second, out=total)
    except FloatingPointError:
        with _silent():
            total = np.add(first, second)
            mean = np.where(np.isinf(total), first * 0.5 + second * 0.5, total * 0.5)
        np.copyto(out, mean, casting="same_kind")
    else:
        np.multiply(total, 0.5, out=out)


def _same_or_apart(out: NDArray[Any], part: NDArray[Any]) -> bool:
    """Return whether arrays of one shape are the same memory, element by element, or share none."""
    if not np.may_share_memory(out, part):
        return True
    return out.ctypes.data == part.ctypes.data and out.dtype == part.dtype and part.flags.c_contiguous


def _unique(texts: Iterable[str]) -> List[str]:
    return list(dict.fromkeys(texts))


def _listed(names: Collection[Optional[str]]) -> str:
    return ", ".join(repr(name) for name in names)
