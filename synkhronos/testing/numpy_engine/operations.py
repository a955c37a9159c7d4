"""Operations of the NumPy engine: means, sums, lengths, random numbers and collectives."""

from __future__ import annotations

import copy
import operator
from typing import Any, List, Optional, Sequence, Tuple

import numpy as np

from ... import in_graph
from ...reductions import ReduceOp
from .graph import Apply, NumpyVariable, Shared, apply, shared


def mean(x: NumpyVariable, axis: Optional[int] = None) -> Apply:
    """Return the mean over one axis, or over all axes."""
    return apply(np.mean, x, axis)


def sum(x: NumpyVariable, axis: Optional[int] = None) -> Apply:
    """Return the sum over one axis, or over all axes."""
    return apply(np.sum, x, axis)


def max(x: NumpyVariable, axis: Optional[int] = None) -> Apply:
    """Return the maximum over one axis, or over all axes."""
    return apply(np.max, x, axis)


def dot(x: Any, y: Any) -> Apply:
    """Return the matrix product."""
    return apply(np.dot, x, y)


def length(x: Any) -> Any:
    """Return the number of rows of an array; to be used in `apply`."""
    return np.int64(len(x))


def cast(x: Any, dtype: Any) -> Any:
    """Return an array cast to another dtype; to be used in `apply`."""
    return np.asarray(x).astype(dtype)


def whole_length(lengths: Any, position: int) -> Any:
    """Return the lengths with one replaced by its sum over all ranks; to be used in `Apply`."""
    found = np.array(lengths)
    flat = found.reshape(-1)
    flat[position] = in_graph.whole_length(int(flat[position]))
    return found


def scaled(part: Any) -> Any:
    """Return a partial sum divided by the rank's share of rows; to be used in `Apply`."""
    return np.asarray(part * np.asarray(in_graph.inverse_share(), part.dtype))


def random_stream(seed: int, name: Optional[str] = None) -> Shared:
    """Return a shared variable with the state of a random number generator; see `uniform`."""
    return shared(np.random.RandomState(seed), name)


def uniform(stream: Shared, shape: Any, ndim: Optional[int] = None) -> Apply:
    """Return random numbers from [0, 1), new in every call because the stream's default update is its advanced state.

    A second draw from a stream continues after the first. `shape` is a tuple or, with `ndim`, an expression for an
    array of integers.
    """
    before = stream if stream.default_update is None else stream.default_update
    stream.default_update, numbers = drawn(before, shape, ndim)
    return numbers


def drawn(state: NumpyVariable, shape: Any, ndim: Optional[int] = None) -> Tuple[Apply, Apply]:
    """Return expressions for the state after a draw and for the numbers, without setting a default update."""
    ndim = len(shape) if ndim is None else ndim
    both = Apply(draw, (state, shape, ndim), None)
    numbers = apply(operator.itemgetter(1), both, dtype="float64", ndim=ndim)
    return Apply(operator.itemgetter(0), (both,), None), numbers


def draw(state: np.random.RandomState, shape: Any, ndim: int) -> Tuple[np.random.RandomState, np.ndarray[Any, Any]]:
    """Draw numbers; return the new state and the numbers."""
    after = copy.deepcopy(state)
    return after, np.asarray(after.random_sample(tuple(shape)))


class AllReduce:
    """Collective in a graph: a function that reduces this rank's arrays over all ranks."""

    def __init__(self, op: ReduceOp, number: int = -1) -> None:
        self.op, self.number = op, number

    def __call__(self, *arrays: Any) -> Tuple[Any, ...]:
        return tuple(in_graph.all_reduce(self.number, self.op, arrays))


def all_reduce(variables: Sequence[NumpyVariable], op: ReduceOp) -> List[Apply]:
    """Return the variables reduced over the ranks, as expressions with one collective."""
    reduced = Apply(AllReduce(op), tuple(variables), None)
    return [Apply(operator.itemgetter(i), (reduced,), variable.type) for i, variable in enumerate(variables)]
