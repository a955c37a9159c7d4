"""The commands of a function: its calls, from the arguments to the results, and the release of its memory.

::

    f(x, batch=idx)                                                                              where
    ------------------------------------------------------------------------------------------  --------------------
    bind     one value per input: by position, by name, or the default                           signature.bind
    select   the rows of the data set that the call uses                                         Arguments.prepare
    stage    copy plain arrays and indices to memory that all ranks read                         Arguments.prepare
    plan     the rows of every rank, and the number of slices; cached for equal calls            Plans, Division
    run      every rank:  select rows, call the engine, reduce the outputs                       CallFunction.run
    finish   the master:  combine the answers, with the serial outputs' dtypes and axes          CallFunction.finish

The first four stages check the arguments, before any value has changed. `plan` lists the caches.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from ..reductions import ReduceOp, reduce_outputs
from ..runtime.command import Command, CommandStats
from ..runtime.context import RankContext
from ..selection import moved
from .division import Division
from .plan import CallMemory, CallPlan, RankPlan, may_be_refused
from .rank_call import RankCall
from .together import apply, call_together, combined, is_possible, on_host

#: A number below the maximum of every float type; comparing values with it is faster than `numpy.errstate`.
FITS = 6e4


class CallFunction(Command):
    """Call a function on every rank with the rank's rows, and reduce the outputs for the master.

    Ranks cache the plan under ``place``, unless it is None. ``plan`` is None if the ranks have it already. ``rows``
    is the range that ``batch`` selects, before it is divided; None if ``batch`` selects indices or all rows.
    """

    #: Set by `run` on each rank: the plan, and the division of rows.
    ran: CallPlan
    division: Optional[Division] = None

    def __init__(self, name: str, place: Optional[Tuple[int, int]], plan: Optional[CallPlan]) -> None:
        self.name, self.plan = name, plan
        self.place: Any = place

    def __getstate__(self) -> Any:
        return {name: getattr(self, name) for name in ("name", "plan", "rows", "place")}

    @property
    def title(self) -> str:
        return f"call of function {self.name}"

    def reads(self, context: RankContext) -> Iterable[Any]:
        plan = self._plan_on(context)
        return [*[argument.value for argument in plan.arguments], plan.indices]

    def details(self, context: RankContext) -> str:
        division = self._plan_on(context).division
        return "" if division.weights is None else f"rows {list(division.weights)}"

    def amounts(self, context: RankContext) -> CommandStats:
        weights = None if self.division is None else self.division.weights
        return CommandStats("function", self.name, -1 if weights is None else int(weights[context.rank]))

    def run(self, context: RankContext) -> Any:
        plans = context.kept(CallMemory).plans
        prepared = plans[self.place] if self.plan is None else self._prepared(self.plan, context)
        plan = self.ran = prepared.plan
        values = prepared.values(context)
        if self.plan is not None and may_be_refused(plan, context):
            context.pools.check_room(prepared.far(self.rows))
            context.barrier.wait()  # no rank begins before every host has memory and files for the arguments
        if plan.writes:
            context.transaction.protect(context.entries(plan.writes))
        outputs, change, division = RankCall(prepared, values, self.rows, None, context).run()
        self.division = division
        if plan.dtypes is None:
            results = reduced(plan, context, outputs, division)
        else:
            results = outputs if context.rank == context.root else _in_bytes(plan, outputs)
        if plan.replicated_updates is not None:
            if plan.alike:
                change.lay(context.transport)
            context.transaction.commit(change, label=f"the end of function {plan.name}")
            if plan.writes:
                context.transaction.commit(result=results)
        elif plan.updates or plan.writes:  # the slices of a single rank may disagree
            context.transaction.commit(change, result=results)
        return results

    def run_together(self, contexts: Sequence[RankContext], root: int) -> Optional[List[Any]]:
        plan = self._plan_on(contexts[root])
        if not is_possible(plan, contexts):
            return None
        if self.plan is None:
            prepared = [context.kept(CallMemory).plans[self.place] for context in contexts]
        else:
            prepared = [self._prepared(plan, context) for context in contexts]
        self.ran = plan
        values = [each.values(context) for each, context in zip(prepared, contexts)]
        (found,) = call_together(prepared, values, [(self.rows, [None] * len(contexts))], contexts, root)
        self.division = found[root].division
        results = on_host(plan, [each.outputs for each in found], contexts, root)
        if plan.dtypes is None:
            results[root] = combined(plan, results, self.division.weights, root)
        apply([each.change for each in found])
        return results

    def finish(self, results: List[Any], context: RankContext) -> List[Any]:
        plan = self.ran
        outputs: List[Any] = results[context.root]
        if plan.dtypes is not None:
            for i, op in enumerate(plan.ops):
                if op.name is not None:
                    parts = [
                        None
                        if result[i] is None
                        else np.asarray(result[i])
                        if rank == context.root
                        else np.ndarray((), plan.dtypes[i], result[i])
                        for rank, result in enumerate(results)
                    ]
                    outputs[i] = reduce_outputs(op, parts, plan.division.weights, context.root)
        return presented(plan, context, outputs)

    def _plan_on(self, context: RankContext) -> CallPlan:
        return self.plan or context.kept(CallMemory).plans[self.place].plan

    def _prepared(self, plan: CallPlan, context: RankContext) -> RankPlan:
        prepared = RankPlan(plan, context)
        if self.place is not None:
            context.kept(CallMemory).plans[self.place] = prepared
        return prepared


def reduced(plan: CallPlan, context: RankContext, outputs: List[Any], division: Division) -> Optional[List[Any]]:
    """Reduce the outputs over the ranks, with the division's weights; return all outputs on the master, else None."""
    moving = [i for i, op in enumerate(plan.ops) if op.name is not None]
    if moving:
        reduced = context.transport.reduce(
            [("function", plan.number, i if plan.subset is None else plan.subset[i]) for i in moving],
            [outputs[i] for i in moving],
            [plan.ops[i] for i in moving],
            division.weights,
            lambda i: f"{plan.labels[moving[i]]} of function {plan.name}",
            keep_dtype=False,
        )
        for i, result in zip(moving, reduced or ()):
            outputs[i] = result
    return outputs if context.rank == context.root else None


def presented(plan: CallPlan, context: RankContext, outputs: List[Any]) -> List[Any]:
    """Return the outputs with the dtype, axis order and place (host or device) of the engine's own function."""
    outputs = list(outputs)
    for i, op in enumerate(plan.ops):
        if op.dtypes or op.axis:
            output = rounded(outputs[i], op)
            outputs[i] = moved(output, 0, op.axis) if op.axis and output is not None else output
    if not plan.on_device:
        return outputs
    entry = context.registry.functions[plan.number]
    return [
        entry.engine.present(entry.reference(), i if plan.subset is None else plan.subset[i], output)
        for i, output in enumerate(outputs)
    ]


def rounded(output: Any, op: ReduceOp) -> Any:
    """Cast an output that was reduced in a wider dtype back to the output's dtype."""
    if op.dtypes is None or output is None:
        return output
    if type(output) is np.ndarray and output.ndim == 0 and abs(output.item()) < FITS:
        return output.astype(dtype_of(op.dtypes[1]))
    with np.errstate(all="ignore"):  # like the engine's own cast
        return output.astype(op.dtypes[1])


dtype_of = lru_cache(maxsize=None)(np.dtype)  #: The dtype of a name, without parsing the name in every call.


def _in_bytes(plan: CallPlan, outputs: Sequence[Any]) -> List[Optional[bytes]]:
    """Return scalars as bytes, because pickling arrays would take ten times as long."""
    return [
        None if output is None or op.name is None else np.asarray(output).tobytes()
        for op, output in zip(plan.ops, outputs)
    ]


class SharedLengths(Command):
    """Return the lengths of shared variables, by rank."""

    title = "lengths of sliceable shared variables"

    def __init__(self, variables: Sequence[Tuple[int, int]]) -> None:
        self.variables = variables  # registry numbers and axes of rows

    def run(self, context: RankContext) -> List[int]:
        return [context.registry.shareds[number].cell[0].shape[axis] for number, axis in self.variables]


class FreeFunction(Command):
    """Free the memory that all graphs of a function keep between calls: intermediate results and row buffers."""

    title = "free"

    def __init__(self, numbers: List[int]) -> None:
        self.numbers = numbers

    def run(self, context: RankContext) -> None:
        memory = context.kept(CallMemory)
        for number in self.numbers:
            entry = context.registry.functions[number]
            entry.engine.free(entry.reference())
        memory.drop(memory.row_buffers, self.numbers)


class ProfileFunctions(Command):
    """Return the engine's profile of a function, over all its graphs, by rank.

    ``numbers`` identify the graphs that the ranks have. ``compiled`` lists all graphs of the function on the master.
    """

    title = "profile"

    def __init__(self, numbers: List[int], compiled: Sequence[Any]) -> None:
        self.numbers, self._compiled = numbers, compiled

    def __getstate__(self) -> Any:
        return {"numbers": self.numbers}

    def run(self, context: RankContext) -> Any:
        entries = [context.registry.functions[number] for number in self.numbers]
        return entries[0].engine.profile([entry.reference() for entry in entries])

    def finish(self, results: List[Any], context: RankContext) -> List[Any]:
        engine = context.registry.functions[self.numbers[0]].engine
        results[context.root] = engine.profile(self._compiled)
        return results
