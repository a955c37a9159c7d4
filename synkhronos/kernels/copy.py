"""Copying of arrays: with C kernels if available, otherwise with NumPy.

On x86-64, stores of large arrays bypass the caches, which saves a third of the traffic.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any, List, Sequence

import numpy as np
from numpy.typing import NDArray

from ..host.machine import cache_size

logger = logging.getLogger("synkhronos")

kernels: Any = None  # the C extension module, or None
_reasons: List[ImportError] = []  # the reason why `kernels` is None, until it has been logged
try:
    kernels = import_module("synkhronos.kernels._kernels")
except ImportError as error:
    _reasons.append(error)

CACHE_BYTES = cache_size()  # size of the largest cache


def log_missing_kernels() -> None:
    """Log, once, if the C kernels are missing; called by `fork`."""
    if _reasons:
        words = "the C kernels are missing (%s), so collectives are slower; see python -m synkhronos doctor"
        logger.warning(words, _reasons.pop())


def copy_into(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy an array into another array of the same shape and dtype."""
    # From this size on, source and target fill half of the cache, and other ranks copy at the same time.
    if (
        kernels is not None
        and 4 * target.nbytes >= CACHE_BYTES
        and target.dtype == source.dtype
        and target.shape == source.shape
        and target.flags.c_contiguous
        and source.flags.c_contiguous
    ):
        kernels.copy(_in_bytes(target), _in_bytes(source))
    else:
        np.copyto(target, source)


def copy_outside(begin: int, end: int, target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy all elements of an array but a range of its flat elements; both arrays are C-contiguous."""
    flat, given = target.reshape(-1), source.reshape(-1)
    copy_into(flat[:begin], given[:begin])
    copy_into(flat[end:], given[end:])


def join_into(target: NDArray[Any], parts: Sequence[NDArray[Any]]) -> None:
    """Concatenate arrays along the first axis into ``target``."""
    begin = 0
    for part in parts:
        copy_into(target[begin : begin + len(part)], part)
        begin += len(part)


def _in_bytes(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(-1).view(np.uint8)
