"""Least squares with nonnegative coefficients, so that noise cannot make times and rates negative."""

from __future__ import annotations

from itertools import combinations
from typing import Optional

import numpy as np

from .profiles import Array


def nonnegative(matrix: Array, values: Array, weights: Optional[Array] = None) -> Array:
    """Return the ``x >= 0`` that minimizes the squared relative errors, ``sum(w_i (1 - (A x)_i / b_i) ** 2)``.

    All subsets of columns of ``A`` are tried, so ``A`` must have few columns. Of equally good subsets, the smallest is
    chosen. The `values` ``b`` must be positive.

    >>> nonnegative(np.array([[1.0, 1], [1, 2], [1, 4]]), np.array([3.0, 5, 9])).round(6)
    array([1., 2.])
    >>> nonnegative(np.array([[1.0, 1], [1, 2], [1, 4]]), np.array([1.0, 3, 7])).round(3)  # unconstrained: -1 + 2 x
    array([0.   , 1.264])
    """
    n_columns = matrix.shape[1]
    root = np.sqrt(np.ones(len(values)) if weights is None else weights)
    scaled, target = matrix / values[:, None] * root[:, None], root
    scale = np.abs(scaled).max(axis=0)
    scaled = scaled / np.where(scale > 0, scale, 1)
    best, least = np.zeros(n_columns), float(np.sum(target**2))
    for size in range(1, n_columns + 1):
        for some in combinations([i for i in range(n_columns) if scale[i] > 0], size):
            chosen = scaled[:, some]
            solution = np.linalg.lstsq(chosen, target, rcond=None)[0]
            rest = float(np.sum((chosen @ solution - target) ** 2))
            if (solution >= 0).all() and rest < least * (1 - 1e-9) - 1e-15:
                best, least = np.zeros(n_columns), rest
                best[list(some)] = solution / scale[list(some)]
    return best
