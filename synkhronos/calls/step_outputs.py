"""The outputs of many steps: each rank stores its outputs in its own memory, where the master reads them.

Steps with the same *division* have the same number of rows, so their outputs have equal shapes and weights. Each output
of each division has a *block*. A rank allocates all its blocks as one piece of memory before its first step::

    rank 0   [ outputs[0] of division 0: 3 steps | outputs[1]: 3 steps | outputs[0] of division 1: 1 step | ... ]
    rank 1   [ ...                                                                                              ]
    master   block by block:  combine(op, [block of rank 0, block of rank 1, ...], weights of the division)

An output of unexpected shape or dtype is stored separately.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import NDArray

from ..errors import prefixed
from ..memory.pool import Pool
from ..reductions import ReduceOp, combine_each, reduce_outputs
from .plan import CallPlan

#: The shape of an output in one step, by division and output; None if the rank does not store the output.
Shapes = Sequence[Sequence[Optional[Tuple[int, ...]]]]

_ALIGNMENT_BYTES = 64


class Stored(NamedTuple):
    """Location of the outputs stored by a rank, as sent to the master."""

    shapes: Shapes
    memory: Any  # handle of the bytes of all blocks
    irregular: Dict[Tuple[int, int], Any]  # outputs of unexpected shape or dtype, by output and step
    objects: Dict[int, List[Any]]  # outputs that are not arrays, for every step; only on the master, not sent


def blocks(shapes: Shapes, dtypes: Sequence[Any], counts: Sequence[int]) -> Tuple[List[List[Any]], int]:
    """Return the offset and shape of each block, by division and output, and the total size in bytes."""
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
    """Return the blocks as arrays, by division and output; None for an output without a block."""
    return [
        [
            None if place is None else np.ndarray(place[1], dtype, memory, place[0])
            for place, dtype in zip(of_division, dtypes)
        ]
        for of_division in blocks(shapes, dtypes, counts)[0]
    ]


class Store:
    """Storage for the outputs of one rank's steps; with ``keeps_objects``, also for outputs that are not arrays."""

    def __init__(
        self, pool: Pool, shapes: Shapes, dtypes: Sequence[Any], counts: Sequence[int], keeps_objects: bool
    ) -> None:
        self._pool, self._shapes = pool, shapes
        self._memory = pool.allocate((blocks(shapes, dtypes, counts)[1],), np.uint8)
        self._irregular: Dict[Tuple[int, int], NDArray[Any]] = {}
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

    @property
    def nbytes(self) -> int:
        return int(self._memory.nbytes)

    def put(self, step: int, division: int, outputs: Sequence[Any]) -> None:
        """Store the outputs of one of this rank's steps; arrays must be on the host."""
        position = self._next[division]
        self._next[division] = position + 1
        for i, block, shape, dtype in self._targets[division]:
            value = outputs[i]
            if value.shape == shape and value.dtype == dtype:
                block[position] = value
            else:
                self._irregular[i, step] = copy = self._pool.allocate(value.shape, value.dtype)
                copy[...] = value
        for i, values in self._objects.items():
            values.append(outputs[i])

    def stored(self) -> Stored:
        irregular = {place: self._pool.handle(array) for place, array in self._irregular.items()}
        return Stored(self._shapes, self._pool.handle(self._memory), irregular, self._objects)


class Combiner:
    """Combines the outputs of all ranks, on the master.

    ``divisions[step]``: the division of each completed step. ``counts[d]``: the number of steps in each block of
    division d. After an error, ``failed_step`` is the step whose outputs could not be combined, if it is known.
    """

    def __init__(
        self,
        plans: Sequence[CallPlan],
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
        """Return the i-th output for the user: an array, or a list with one entry per step."""
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
        """Return the combined values of a division's steps: one array for all steps, or a list of arrays."""
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
        is_irregular = any(
            [place == i and self.divisions[step] == division for each in self.stored for place, step in each.irregular]
        )
        if is_irregular or len(set(shapes)) > 1:
            return [self._of_step(i, plan, parts, *place) for place in enumerate(steps.tolist())]
        if op.name == "gather":
            rows = [part[:, None] if part.ndim == 1 else part for part in parts if part is not None]
            return np.concatenate(rows, axis=1)
        if op.name is not None and shapes[0][1] == 1:
            return combine_each(op, parts, weights)
        return reduce_outputs(op, parts, weights, self.root)

    def _of_step(self, i: int, plan: CallPlan, parts: Sequence[Any], position: int, step: int) -> NDArray[Any]:
        """Combine the ranks' values of the i-th output in one step, as in a single call."""
        values = [
            self.pools.attach(each.irregular[i, step])
            if (i, step) in each.irregular
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
