"""The functions in the text of random graphs, besides those of ``T`` and ``L``."""

from types import SimpleNamespace  # noqa: F401

import numpy as np  # noqa: F401
from library import IS_THEANO, L, T
from worlds import LINKER


def unique(x):
    """Return the sorted distinct elements."""
    return T.extra_ops.Unique()(x) if IS_THEANO else T.unique(x)


def rows_of_max(x, axis):
    """Return the largest elements along an axis, computed together with their positions."""
    return T.max_and_argmax(x, axis=axis)[0]


def solved(x):
    """Return the solution of a linear system for each row; the matrix is a sum over rows."""
    y = T.tanh(x)
    solve = T.slinalg.solve if IS_THEANO else T.linalg.solve
    return solve(T.dot(y.T, y) + 3 * T.eye(x.shape[1], dtype=x.dtype), x.T)


def padded(x, widths, mode):
    """Return x with more elements before and after some of its axes, which only PyTensor supports."""
    return L.module.tensor.pad(x, widths, mode=mode)


def until_small(x):
    """Return x times a power of two, computed by a loop that ends on a condition."""
    return L.scan(lambda h: (h * 0.5, L.until(abs(h).max() < 0.5)), outputs_info=[x], n_steps=4)[0][-1]


def mode_of(optimizer, linker=LINKER):
    """Return a mode with this optimizer and linker; the linker "py" runs graphs as Python code."""
    if not IS_THEANO:
        mode = L.Mode(linker, optimizer)
        # In PyTensor's Python code, a fused operation on a float32 and a float64 has only float32's precision.
        return mode.excluding("fusion") if linker == "py" and optimizer else mode
    if linker == "py":
        linker = L.VMLinker(use_cloop=False, c_thunks=False)
    return L.Mode(linker, optimizer)
