"""Copying and reducing what is larger than the caches, by kernels in C if they could be built.

They store past the caches, which leaves out a third of what moves between memory and cores, and reduce many arrays in
one call. Without them (no compiler when the library was installed; a processor other than x86-64 has only the second
advantage) NumPy does the same, with the same results.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any, List, Sequence

import numpy as np
from numpy.typing import NDArray

from ..host.machine import cache_size

logger = logging.getLogger("synkhronos")

#: The module written in C, or None.
kernels: Any = None
#: Why it is None, until that has been logged.
_reasons: List[ImportError] = []
try:
    kernels = import_module("synkhronos.kernels._kernels")
except ImportError as error:
    _reasons.append(error)

#: Bytes of the largest cache. What does not fit into it goes past it.
CACHE_BYTES = cache_size()


def log_missing_kernels() -> None:
    """Log a warning if there are no kernels in C, once; called by `fork`."""
    if _reasons:
        logger.warning(
            "no kernels in C (%s): large collectives take longer; python -m synkhronos doctor says what to install",
            _reasons.pop(),
        )


def copy_into(target: NDArray[Any], source: NDArray[Any]) -> None:
    """Copy an array into another of the same shape and dtype.

    Examples
    --------
    >>> target = np.zeros(3)
    >>> copy_into(target, np.arange(3.))
    >>> target
    array([0., 1., 2.])
    """
    # Source and target take half of the cache then, and other ranks copy at the same time.
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


def join_into(target: NDArray[Any], parts: Sequence[NDArray[Any]]) -> None:
    """Copy arrays one after the other into the rows of another, which has as many as they together.

    Examples
    --------
    >>> target = np.zeros(3)
    >>> join_into(target, [np.ones(1), np.full(2, 2.)])
    >>> target
    array([1., 2., 2.])
    """
    begin = 0
    for part in parts:
        copy_into(target[begin : begin + len(part)], part)
        begin += len(part)


def _in_bytes(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(-1).view(np.uint8)
