"""The path of a call, on one page.

::

    f(x, batch=idx)                                                                              where
    ------------------------------------------------------------------------------------------  --------------------
    bind     one value per input: by position, by name, or its default                           signature.bind
    select   the rows of the whole data set that the call is about                               Arguments.prepare
    stage    plain arrays and indices are copied to where all ranks read them                    Arguments.prepare
    plan     which rows every rank takes, in how many slices; the same for an equal call         Plans, Division
    run      every rank:  take its rows, call the engine, reduce the outputs                     CallFunction.run
    finish   the master:  combine what came with the answers, in the form that the user gave     CallFunction.finish

Everything that can be wrong about the arguments raises in the first four, before any value has changed. (The first
call distributes the function before that; with ``sliceable_shareds`` the ranks are asked for lengths first.) What is
kept from call to call is listed in `plan`.
"""

from __future__ import annotations

from typing import Any, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from ..reductions import ReduceOp, reduce_outputs
from ..runtime.command import Amounts, Command
from ..runtime.context import RankContext
from ..selection import Rows, moved
from .calling import call
from .division import Division
from .plan import Plan, Prepared, may_be_refused


class CallFunction(Command):
    """Call a function on every rank with its rows, and reduce the outputs for the master.

    Parameters
    ----------
    name : str
        The function's, for messages.
    place : (int, int), optional
        The place at which the ranks keep the plan; None if they do not.
    plan : Plan, optional
        For ranks that do not have it at that place; it replaces the one there.
    rows : Rows, optional
        The rows of the whole data set that the call is about, before they are divided.
    """

    #: After the call, on this rank: how rows were divided.
    division: Optional[Division] = None

    def __init__(self, name: str, place: Optional[Tuple[int, int]], plan: Optional[Plan], rows: Optional[Rows]) -> None:
        self.name, self.plan, self.rows = name, plan, rows
        self.place: Any = place

    @property
    def title(self) -> str:
        return f"call of function {self.name}"

    def reads(self, context: RankContext) -> Iterable[Any]:
        plan: Plan = self.plan or context.plans[self.place].plan
        return [*[argument.value for argument in plan.arguments], plan.indices]

    def details(self, context: RankContext) -> str:
        division = (self.plan or context.plans[self.place].plan).division
        return "" if division.weights is None else f"rows {list(division.weights)}"

    def amounts(self, context: RankContext) -> Amounts:
        weights = None if self.division is None else self.division.weights
        return Amounts("function", self.name, -1 if weights is None else int(weights[context.rank]))

    def run(self, context: RankContext) -> Any:
        prepared = self._prepared(context) if self.plan is not None else context.plans[self.place]
        plan: Plan = prepared.plan
        values = prepared.values(context)
        if self.plan is not None and may_be_refused(plan, context):
            context.pools.check_room(prepared.far(self.rows))
            context.barrier.wait()  # no rank begins unless the hosts of all have room, and the files
        if plan.writes:
            context.begin_changes(plan.writes)
        outputs, change, division = call(prepared, values, self.rows, None, context)
        self.division = division
        if plan.dtypes is None:
            results = reduced(plan, context, outputs, division)
        else:
            results = outputs if context.rank == context.root else _in_bytes(plan, outputs)
        if plan.writes:
            change()
            if plan.common is not None:
                context.transport.agree(f"the end of function {plan.name}")
            context.commit_changes(plan.writes, results)
        elif plan.common is not None:
            context.commit(change, label=f"the end of function {plan.name}")
        elif plan.updates:  # on all ranks or on none: slices may disagree on one rank alone
            context.promise(results)
            context.commit(change)
        return results

    def finish(self, results: List[Any], context: RankContext) -> List[Any]:
        plan: Plan = context.plans[self.place].plan if self.plan is None else self.plan
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

    def _prepared(self, context: RankContext) -> Prepared:
        """Return the plan as this rank has it, or has it from now on."""
        if self.plan is None:
            prepared: Prepared = context.plans[self.place]
            return prepared
        prepared = Prepared(self.plan, context)
        if self.place is not None:
            context.plans[self.place] = prepared
        return prepared


def reduced(plan: Plan, context: RankContext, outputs: List[Any], division: Division) -> Optional[List[Any]]:
    """Reduce the outputs over the ranks, by the weights of the division; on the master, return all of them."""
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


def presented(plan: Plan, context: RankContext, outputs: List[Any]) -> List[Any]:
    """Return the outputs as the engine's own function returns them: dtypes, axes, and on the host or on the device."""
    outputs = list(outputs)
    for i, op in enumerate(plan.ops):
        if op.dtypes or op.axis:
            output = rounded(outputs[i], op)
            outputs[i] = moved(output, 0, op.axis) if op.axis and output is not None else output
    if not plan.on_device:
        return outputs
    entry = context.functions[plan.number]
    return [
        entry.engine.present(entry.reference(), i if plan.subset is None else plan.subset[i], output)
        for i, output in enumerate(outputs)
    ]


def rounded(output: Any, op: ReduceOp) -> Any:
    """Return an output that was put together in a wider type in the type that it has."""
    if op.dtypes is None or output is None:
        return output
    with np.errstate(all="ignore"):  # as the engine's own cast
        return output.astype(op.dtypes[1])


def _in_bytes(plan: Plan, outputs: Sequence[Any]) -> List[Optional[bytes]]:
    """Return values of 0 dimensions as they travel: a tenth of the time that pickling arrays takes."""
    return [
        None if output is None or op.name is None else np.asarray(output).tobytes()
        for op, output in zip(plan.ops, outputs)
    ]
