"""The outputs of many steps: each rank stores them in its own memory, and the master combines them where they lie.

The steps of a *division* have the same number of rows, so their outputs have the same shapes and weights. Each output
of each division has a *block*, and all blocks of a rank are one piece of memory, taken before its first step::

    rank 0   [ outputs[0] of division 0: 3 steps | outputs[1]: 3 steps | outputs[0] of division 1: 1 step | ... ]
    rank 1   [ ...                                                                                              ]
    master   block by block:  combine(op, [block of rank 0, block of rank 1, ...], weights of the division)

An output that does not have the shape that was expected of it lies by itself. See `Function.steps`.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..errors import prefixed
from ..memory.pool import Pool
from ..reductions import ReduceOp, combine_each, reduce_outputs
from .plan import Plan

#: The shape of one step's output, for each division and each output; None if the rank stores none.
Shapes = Sequence[Sequence[Optional[Tuple[int, ...]]]]

_ALIGNMENT_BYTES = 64


class Stored(NamedTuple):
    """Where a rank's outputs lie, as it travels.

    Attributes
    ----------
    shapes : Shapes
    memory : handle
        Of the bytes of all blocks.
    odd : dict of (int, int) to handle
        By output and step: those of another shape or dtype.
    objects : dict of int to list
        By output: the values of every step, if they are not arrays. Of the master alone, which does not travel.
    """

    shapes: Shapes
    memory: Any
    odd: Dict[Tuple[int, int], Any]
    objects: Dict[int, List[Any]]


def blocks(shapes: Shapes, dtypes: Sequence[Any], counts: Sequence[int]) -> Tuple[List[List[Any]], int]:
    """Return where each block begins and its shape, for each division and output, and the bytes of all. Pure.

    Parameters
    ----------
    shapes : Shapes
    dtypes : sequence of dtype
        One per output.
    counts : sequence of int
        The steps of each division.

    Examples
    --------
    >>> blocks([[(), (2,)], [(), None]], [np.dtype("f4"), np.dtype("f8")], [3, 1])
    ([[(0, (3,)), (64, (3, 2))], [(128, (1,)), None]], 192)
    """
    found, begin = [], 0
    for of_division, n_steps in zip(shapes, counts):
        places: List[Any] = []
        for shape, dtype in zip(of_division, dtypes):
            if shape is None:
                places.append(None)
                continue
            places.append((begin, (n_steps, *shape)))
            nbytes = dtype.itemsize * n_steps * math.prod(shape)
            begin += -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        found.append(places)
    return found, begin


def arrays(shapes: Shapes, dtypes: Sequence[Any], counts: Sequence[int], memory: NDArray[Any]) -> List[List[Any]]:
    """Return the blocks as arrays, for each division and output; None where there is none."""
    return [
        [
            None if place is None else np.ndarray(place[1], dtype, memory, place[0])
            for place, dtype in zip(of_division, dtypes)
        ]
        for of_division in blocks(shapes, dtypes, counts)[0]
    ]


class Store:
    """Stores the outputs of one rank's steps.

    Parameters
    ----------
    pool : Pool
        This rank's memory.
    shapes, dtypes, counts
        As for `blocks`; a dtype is None for an output that is not an array.
    keeps_objects : bool
        Whether to keep those that are not arrays.

    Raises
    ------
    SharedMemoryError
        If there is no memory for all of them.
    """

    def __init__(
        self, pool: Pool, shapes: Shapes, dtypes: Sequence[Any], counts: Sequence[int], keeps_objects: bool
    ) -> None:
        self._pool, self._shapes = pool, shapes
        self._memory = pool.allocate((blocks(shapes, dtypes, counts)[1],), np.uint8)
        self._odd: Dict[Tuple[int, int], NDArray[Any]] = {}
        self._objects: Dict[int, List[Any]] = {
            i: [] for i, dtype in enumerate(dtypes) if keeps_objects and dtype is None
        }
        self._next = [0] * len(counts)
        self._targets = [
            [
                (i, block, shape, block.dtype)
                for i, (block, shape) in enumerate(zip(of_division, of_shapes))
                if shape is not None
            ]
            for of_division, of_shapes in zip(arrays(shapes, dtypes, counts, self._memory), shapes)
        ]

    def put(self, step: int, division: int, outputs: Sequence[Any]) -> None:
        """Store the outputs of a step, which this rank has made; arrays are on the host."""
        position = self._next[division]
        self._next[division] = position + 1
        for i, block, shape, dtype in self._targets[division]:
            value = outputs[i]
            if value.shape == shape and value.dtype == dtype:
                block[position] = value
            else:
                self._odd[i, step] = odd = self._pool.allocate(value.shape, value.dtype)
                odd[...] = value
        for i, values in self._objects.items():
            values.append(outputs[i])

    def stored(self) -> Stored:
        """Return where all outputs lie; they live as long as this object."""
        odd = {place: self._pool.handle(array) for place, array in self._odd.items()}
        return Stored(self._shapes, self._pool.handle(self._memory), odd, self._objects)


class Combiner:
    """Combines the outputs of all ranks, on the master.

    Parameters
    ----------
    plans : sequence of Plan
        One per division.
    ops : sequence of ReduceOp
        The function's, of the wanted outputs.
    dtypes : sequence of dtype or None
        One per output.
    divisions : ndarray of int
        That of each step which was made.
    counts : sequence of int
        The steps that there is memory for, by division.
    stored : sequence of Stored
        By rank.
    root : int
    pools : PoolMap

    Attributes
    ----------
    failed_step : int, optional
        The step whose outputs do not fit together, if that was raised.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        ops: Sequence[ReduceOp],
        dtypes: Sequence[Any],
        divisions: NDArray[Any],
        counts: Sequence[int],
        stored: Sequence[Stored],
        root: int,
        pools: Any,
    ) -> None:
        self.plans, self.ops, self.divisions = plans, ops, divisions
        self.root, self.pools, self.stored = root, pools, stored
        self._blocks = [arrays(each.shapes, dtypes, counts, pools.attach(each.memory)) for each in stored]
        self._steps = [np.flatnonzero(divisions == division) for division in range(len(plans))]
        self.failed_step: Optional[int] = None

    def combined(self, i: int) -> Any:
        """Return what the master gets of the i-th output: an array, or a list with an entry for each step."""
        if i in self.stored[self.root].objects:
            return self.stored[self.root].objects[i]
        made = [(steps, self._of_division(i, division)) for division, steps in enumerate(self._steps) if len(steps)]
        one_each = [values[:1] if type(values) is np.ndarray else values for _, values in made]
        shapes = {value.shape for values in one_each for value in values}
        if self.ops[i].name != "gather" and len(shapes) == 1:
            if len(made) == 1:
                return np.asarray(made[0][1])
            stacked = [np.asarray(values) for _, values in made]
            result = np.empty((len(self.divisions), *shapes.pop()), np.result_type(*stacked))
            for (steps, _), values in zip(made, stacked):
                result[steps] = values
            return result
        in_order: List[Any] = [None] * len(self.divisions)
        for steps, values in made:
            for step, value in zip(steps.tolist(), values):
                in_order[step] = np.asarray(value)
        return in_order

    def _of_division(self, i: int, division: int) -> Any:
        """Return the values of a division's steps: an array of all, or a list of arrays."""
        plan, steps = self.plans[division], self._steps[division]
        op, weights = plan.ops[i], plan.division.weights
        parts = [
            of_rank[division][i][: len(steps)]
            if of_rank[division][i] is not None and plan.division.takes_part(rank)
            else None
            for rank, of_rank in enumerate(self._blocks)
        ]
        shapes = [
            (part.shape[2:] if op.name == "gather" else part.shape, part.ndim) for part in parts if part is not None
        ]
        is_odd = any(
            [place == i and self.divisions[step] == division for each in self.stored for place, step in each.odd]
        )
        if is_odd or len(set(shapes)) > 1:
            return [self._of_step(i, plan, parts, *place) for place in enumerate(steps.tolist())]
        if op.name == "gather":
            rows = [part[:, None] if part.ndim == 1 else part for part in parts if part is not None]
            return np.concatenate(rows, axis=1)
        if op.name is not None and shapes[0][1] == 1:
            return combine_each(op, parts, weights)
        return reduce_outputs(op, parts, weights, self.root)

    def _of_step(self, i: int, plan: Plan, parts: Sequence[Any], position: int, step: int) -> NDArray[Any]:
        """Combine the outputs of one step, as a call does."""
        values = [
            self.pools.attach(each.odd[i, step])
            if (i, step) in each.odd
            else None
            if part is None
            else part[position : position + 1].reshape(part.shape[1:])
            for each, part in zip(self.stored, parts)
        ]
        try:
            with prefixed(f"{plan.labels[i]} of function {plan.name} in step {step}"):
                return reduce_outputs(plan.ops[i], values, plan.division.weights, self.root)
        except ValueError:
            self.failed_step = step
            raise
