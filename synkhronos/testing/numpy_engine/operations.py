"""Operations on variables of the NumPy engine: a few means and sums, lengths, random numbers, and collectives."""

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


def length(x: Any) -> Any:
    """Return the number of rows of an array: a function for `apply`."""
    return np.int64(len(x))


def cast(x: Any, dtype: Any) -> Any:
    """Return the values of an array in another type: a function for `apply`."""
    return np.asarray(x).astype(dtype)


def whole_length(lengths: Any, position: int) -> Any:
    """Return lengths with that of all ranks at a position; a number is a vector of one. A function for `apply`."""
    found = np.array(lengths)
    flat = found.reshape(-1)
    flat[position] = in_graph.whole_length(int(flat[position]))
    return found


def scaled(part: Any) -> Any:
    """Return a part of a sum times the inverse of the rank's share of rows. A function for `apply`."""
    return np.asarray(part * np.asarray(in_graph.inverse_share(), part.dtype))


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
    stream.default_update, numbers = drawn(before, shape, ndim)
    return numbers


def drawn(state: Variable, shape: Any, ndim: Optional[int] = None) -> Tuple[Apply, Apply]:
    """Return the state after the draw, and the numbers; `uniform` without the default update."""
    ndim = len(shape) if ndim is None else ndim
    both = Apply(draw, (state, shape, ndim), None)
    numbers = apply(operator.itemgetter(1), both, dtype="float64", ndim=ndim)
    return Apply(operator.itemgetter(0), (both,), None), numbers


def draw(state: np.random.RandomState, shape: Any, ndim: int) -> Tuple[np.random.RandomState, np.ndarray[Any, Any]]:
    """Return the state after a draw of numbers of that shape, and them."""
    after = copy.deepcopy(state)
    return after, np.asarray(after.random_sample(tuple(shape)))


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
