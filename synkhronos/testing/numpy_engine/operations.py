"""Operations on variables of the NumPy engine: a few means and sums, and random numbers."""

from __future__ import annotations

import copy
import operator
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from ... import in_graph
from ...reductions import ReduceOp
from .graph import Apply, Shared, Variable, apply, shared


def mean(x: Variable, axis: Optional[int] = None) -> Apply:
    """Return the mean over one axis, or over all."""
    return apply(np.mean, x, axis)


def sum(x: Variable, axis: Optional[int] = None) -> Apply:
    """Return the sum over one axis, or over all."""
    return apply(np.sum, x, axis)


def max(x: Variable, axis: Optional[int] = None) -> Apply:
    """Return the maximum over one axis, or over all."""
    return apply(np.max, x, axis)


def dot(x: Any, y: Any) -> Apply:
    """Return the matrix product."""
    return apply(np.dot, x, y)


def random_stream(seed: int, name: Optional[str] = None) -> Shared:
    """Return a shared variable that holds the state of a random number generator; see `uniform`."""
    return shared(np.random.RandomState(seed), name)


def uniform(stream: Shared, shape: Any, ndim: Optional[int] = None) -> Apply:
    """Return numbers from [0, 1), others in every call: the stream's default update is its state after them.

    Parameters
    ----------
    stream
        From `random_stream`. What is drawn from it a second time continues after the first.
    shape
        A tuple, or an expression for an array of integers; then with ``ndim``.
    """
    before = stream if stream.default_update is None else stream.default_update
    drawn = Apply(_draw, (before, shape), None)
    stream.default_update = Apply(operator.itemgetter(1), (drawn,), None)
    return apply(operator.itemgetter(0), drawn, dtype="float64", ndim=len(shape) if ndim is None else ndim)


def _draw(state: np.random.RandomState, shape: Any) -> Tuple[np.ndarray[Any, Any], np.random.RandomState]:
    after = copy.deepcopy(state)
    return np.asarray(after.random_sample(tuple(shape))), after


class AllReduce:
    """The function of a collective in a graph: from the arrays of this rank to those that all ranks have in common."""

    def __init__(self, op: ReduceOp, number: int = -1) -> None:
        self.op, self.number = op, number

    def __call__(self, *arrays: Any) -> Tuple[Any, ...]:
        return tuple(in_graph.all_reduce(self.number, self.op, arrays))


def all_reduce(variables: Sequence[Variable], op: ReduceOp) -> List[Apply]:
    """Return expressions of the variables' values reduced over the ranks, in one collective."""
    reduced = Apply(AllReduce(op), tuple(variables), None)
    return [Apply(operator.itemgetter(i), (reduced,), variable.type) for i, variable in enumerate(variables)]
