"""Values for a `Data`: its declared dtype and dimensions, and the conversion of values to arrays."""

from __future__ import annotations

import os
import warnings
from operator import index
from typing import Any, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentTypeError, ArgumentValueError
from .pool import MAX_NDIM, as_shape


def declared(
    var: Any, dtype: Any, ndim: Optional[int], shape: Union[int, Sequence[int], None]
) -> Tuple[Optional[np.dtype[Any]], Optional[int], Optional[Tuple[int, ...]]]:
    """Return the dtype, number of dimensions and shape that the arguments of `data` declare; None if undeclared."""
    if dtype is not None:
        dtype = np.empty((0,), dtype).dtype  # gives a string dtype its length
        refuse_objects(dtype)
    if ndim is not None:
        try:
            ndim = index(ndim)
        except TypeError:
            raise ArgumentTypeError("ndim", "an integer", repr(ndim)) from None
        if not 0 <= ndim <= MAX_NDIM:
            raise ArgumentValueError("ndim", f"an integer from 0 to {MAX_NDIM}", str(ndim))
    if var is not None:
        if not isinstance(getattr(var, "ndim", None), int) or getattr(var, "dtype", None) is None:
            raise ArgumentTypeError("var", "a Theano variable, or another object with dtype and ndim", repr(var))
        if dtype is not None and dtype != np.dtype(var.dtype):
            raise ArgumentValueError("dtype", f"the dtype of var, {var.dtype}", str(dtype), "leave it out")
        if ndim is not None and ndim != var.ndim:
            raise ArgumentValueError("ndim", f"the ndim of var, {var.ndim}", str(ndim), "leave it out")
        dtype, ndim = np.dtype(var.dtype), var.ndim
        refuse_objects(dtype)
    sizes = None if shape is None else as_shape(shape)
    if sizes is not None:
        if ndim is not None and len(sizes) != ndim:
            raise ArgumentValueError("shape", f"a shape with ndim={ndim}", str(sizes))
        ndim = len(sizes)
    return dtype, ndim, sizes


def known(dtype: Optional[np.dtype[Any]], ndim: Optional[int]) -> Tuple[np.dtype[Any], int]:
    """Return both arguments; raise `ArgumentTypeError` if one is None, because no value was passed to infer it from."""
    if dtype is None:
        raise ArgumentTypeError("dtype", "a value, a var or a dtype", "none of them")
    if ndim is None:
        raise ArgumentTypeError("ndim", "a value, a var, a shape or ndim", "none of them")
    return dtype, ndim


def as_oversize(oversize: float) -> float:
    """Return the validated over-allocation factor."""
    try:
        fits = 1 <= oversize <= 2  # False for NaN
    except (TypeError, ValueError, ArithmeticError):  # ArithmeticError: from Decimal("nan")
        raise ArgumentTypeError("oversize", "a number from 1 to 2", repr(oversize)) from None
    if not fits:
        raise ArgumentValueError("oversize", "a number from 1 to 2", str(oversize))
    return float(oversize)


def refuse_objects(dtype: np.dtype[Any], argument: str = "dtype") -> None:
    """Raise `ArgumentTypeError` if a dtype contains Python objects."""
    if dtype.hasobject:
        raise ArgumentTypeError(
            argument,
            "a dtype without Python objects",
            str(dtype),
            "objects and rows of unequal length cannot be shared",
        )


def as_array(value: Any) -> Tuple[NDArray[Any], bool]:
    """Return the value as an array, and whether it already had a dtype."""
    if isinstance(value, (str, os.PathLike)):
        if isinstance(value, str) and not value.endswith(".npy"):
            raise ArgumentValueError(
                "value",
                "an array or the path of a .npy file",
                repr(value),
                "save it with np.save, or pass np.array(value) to store a string",
            )
        return _open(value), True
    if isinstance(value, np.memmap):
        return value, True
    if hasattr(value, "dtype"):
        return np.asarray(value), True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows of unequal length become an array of objects, which is rejected later
        return np.asarray(value), False


def _open(path: Union[str, os.PathLike[str]]) -> NDArray[Any]:
    try:
        opened: np.memmap[Any, Any] = np.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call]
        return opened
    except ValueError as error:
        raise ArgumentValueError("value", "a .npy file that can be mapped", f"{os.fspath(path)!r}: {error}") from None


def check(argument: str, value: NDArray[Any], typed: bool, ndim: int, dtype: np.dtype[Any], force_cast: bool) -> None:
    """Raise `ArgumentError` unless a value has the right number of dimensions and an equal or convertible dtype."""
    refuse_objects(value.dtype, argument)
    if value.ndim != ndim:
        raise ArgumentValueError(argument, f"ndim={ndim}", f"ndim={value.ndim} (shape {value.shape})")
    if not (force_cast or converts(value, typed, dtype)):
        raise ArgumentTypeError(
            argument,
            f"dtype {dtype} or one that converts to it without loss",
            str(value.dtype),
            "convert it, or pass force_cast=True",
        )


def converts(array: NDArray[Any], typed: bool, dtype: np.dtype[Any]) -> bool:
    """Return whether a value converts to ``dtype`` without ``force_cast``, by the rule documented in `data`."""
    if np.can_cast(array.dtype, dtype, "safe"):
        return True
    if typed:
        return False
    if array.size == 0:
        return True
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return bool(limits.min <= array.min() and array.max() <= limits.max)
    if not (array.dtype.kind in "iufc" and dtype.kind in "fc" and np.can_cast(array.dtype, dtype, "same_kind")):
        return False
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    if not np.isfinite(converted)[np.isfinite(array)].all():  # 1e300 is not a float32
        return False
    if array.dtype.kind in "fc":
        return True
    whole, limits = np.asarray(converted.real, np.float64), np.iinfo(array.dtype)
    inside = (whole >= float(limits.min)) & (whole < float(limits.max + 1))  # otherwise converting back would overflow
    return bool(inside.all() and (whole.astype(array.dtype) == array).all())  # 2**24 + 1 is not a float32
