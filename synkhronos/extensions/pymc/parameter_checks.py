"""Parameter checks that apply to all rows, although each rank checks only its own rows (`ParameterChecks`)."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import numpy as np
import pytensor.tensor as pt
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, io_toposort

import synkhronos as synk


class ParameterChecks:
    """The row-dependent parameter checks of a log-probability.

    If a check fails for any row, PyMC replaces the checked expression, such as a component of a mixture, with -inf for
    all rows. The ranks' function therefore also returns the conditions. If a check fails on any rank, `call` calls the
    function again, with ``inputs`` that make the check fail on all ranks.

    Parameters
    ----------
    rows : variable
        The log-probability of each row.
    variables : list of variables
        The variables for the data.
    is_checked : bool
        Whether checks are compiled at all.
    """

    def __init__(self, rows: Variable, variables: Sequence[Variable], is_checked: bool) -> None:
        passed = pt.vector("passed", dtype="bool")
        conditions: List[Variable] = []
        new: Dict[Variable, Variable] = {}
        for node in io_toposort([], [rows]) if is_checked else ():
            inputs, differs = [new.get(each, each) for each in node.inputs], _differs(node, variables)
            if differs:
                conditions.append(pt.all([pt.as_tensor(each) for each in inputs[1:]]))
                inputs.append(passed[len(conditions) - 1])
            if differs or any(each in new for each in node.inputs):
                new.update(zip(node.outputs, node.op.make_node(*inputs).outputs))
        #: The log-probability with the changed checks, and the inputs and outputs to append to the ranks' function.
        self.rows: Variable = new.get(rows, rows)
        self.inputs: List[Variable] = [passed] if conditions else []
        self.outputs: List[Any] = [(pt.stack(conditions).astype("int8"), "min")] if conditions else []
        self.all_passed = np.ones(len(conditions), bool)

    def call(self, function: synk.Function, *args: Any, batch: Any = None) -> List[Any]:
        """Return the results of the ranks' function, without the conditions."""
        if not self.inputs:
            return list(function(*args, batch=batch))
        *results, passed = function(*args, self.all_passed, batch=batch)
        if not passed.all():
            *results, _ = function(*args, passed.astype(bool), batch=batch)
        return list(results)


def _differs(node: Any, variables: Sequence[Variable]) -> bool:
    """Return whether a check depends on data or on a rank's share of a parameter, so that ranks may disagree."""
    if not isinstance(node.op, CheckParameterValue) or not node.op.can_be_replaced_by_ninf:
        return False
    reached = set(ancestors(node.inputs[1:]))
    return not reached.isdisjoint(variables) or any(
        each.owner is not None and type(each.owner.op).__module__.startswith("synkhronos.") for each in reached
    )
