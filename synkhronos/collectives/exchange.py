"""Error feedback of an `all_reduce` that sends values in 16 bits.

.. math:: y_r := x_r + e_r, \\quad e_r := y_r - C(y_r), \\quad x := C(\\textstyle\\sum_r w_r C(y_r))

C(y) is a value after encoding and decoding (`kernels.encoding`). The sum is accumulated in the values' dtype
and encoded once, so that all ranks get the same bits. With error feedback, the total of a rank's messages equals the
total of its values, up to the last error (Karimireddy et al., 2019, arXiv 1901.09847).

If the transport sends 16-bit values between hosts, each host h combines its ranks' values in their own dtype and
encodes the result. The error belongs to all ranks of the host:

.. math:: y_h := \\sum_{r \\in h} w_r (x_r + e_r) / w_h, \\quad w_h := \\sum_{r \\in h} w_r,
          \\quad e_r := y_h - C(y_h), \\quad x := C(\\textstyle\\sum_h w_h C(y_h))

The next y_h therefore includes the whole error. For a sum, each of a host's m ranks keeps 1 / m of the error.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..kernels.encoding import FORMATS
from ..reductions import ReduceOp
from ..runtime.context import Kept, RankContext
from ..runtime.registry import Origin, SharedEntry
from ..transports.base import Key, Pending
from .arguments import Variables


class FeedbackErrors(Kept):
    """By the numbers of variables: errors of the last exchange that are not stored in variables."""

    loss = "the rank's error feedback of all_reduce(feedback=True) is lost: store it in variables"

    def __init__(self) -> None:
        self.errors: Dict[int, Any] = {}


class ErrorFeedback(NamedTuple):
    """The variables for the errors of a 16-bit exchange; None where the rank stores the error (`FeedbackErrors`)."""

    variables: Sequence[Optional[int]]

    def add(
        self, context: RankContext, numbers: Sequence[int], keys: Sequence[Key], arrays: Sequence[Any]
    ) -> Tuple[List[Key], List[Any]]:
        """Return this rank's values plus the errors of the last exchange, with keys of their own."""
        values = []
        for i, array in enumerate(map(np.asarray, arrays)):  # values on a device are copied to the host
            before = self._error_before(context, numbers, i, array.shape)
            values.append(array if before is None else array + before)
        return [(*key, "exchanged") for key in keys], values

    def places(self, context: RankContext, numbers: Sequence[int], kinds: Sequence[Any]) -> List[Any]:
        """Return arrays for the new errors, initialized with the last errors."""
        places = []
        for i, (kept, (shape, dtype)) in enumerate(zip(self.variables, kinds)):
            if kept is None:
                places.append(np.empty(shape, dtype))
            else:
                places.append(context.transport.allocate(context.registry.shareds[kept].key, shape, dtype))
            before = self._error_before(context, numbers, i, shape)
            places[-1][...] = 0 if before is None else before
        return places

    def _error_before(self, context: RankContext, numbers: Sequence[int], i: int, shape: Tuple[int, ...]) -> Any:
        kept = self.variables[i]
        if kept is not None:
            entry = context.registry.shareds[kept]
            before = np.asarray(entry.cell[0])
            if before.shape != shape:
                expected = f"the shape of {context.name_of(numbers, i)}, {shape}"
                raise ArgumentValueError("feedback", expected, f"{entry.label()} of shape {before.shape}")
            return before
        error = context.kept(FeedbackErrors).errors.get(numbers[i])
        return None if error is None or error.shape != shape else error

    def commit(
        self,
        context: RankContext,
        numbers: Sequence[int],
        into: Sequence[SharedEntry],
        results: Pending,
        errors: Sequence[Any],
        same: bool,
    ) -> None:
        """Commit the results of the exchange and its errors; must be the last call in a command."""
        for error in errors:
            error[~np.isfinite(error)] = 0  # infinities and NaN must not persist
        pairs = list(zip(self.variables, numbers, errors))
        kept = {variable: error for variable, _, error in pairs if variable is not None}

        def keep_errors() -> None:
            for variable in kept:  # errors differ between ranks
                context.registry.shareds[variable].origin = Origin.OWN
            context.kept(FeedbackErrors).errors.update(
                {number: error for variable, number, error in pairs if variable is None}
            )

        arrived = [*results, *kept.values()]
        context.transaction.commit_values([*into, *context.entries(kept)], arrived, keep_errors, same=same)


def parse_exchange(
    exchange: Any, feedback: Any, variables: Variables, op: ReduceOp, targets: Sequence[int]
) -> Optional[ErrorFeedback]:
    """Validate ``exchange`` and ``feedback``; return None without error feedback."""
    if exchange is None:
        if feedback is not None and feedback is not False:
            raise ArgumentValueError("feedback", "None if exchange is None, because nothing is rounded", repr(feedback))
        return None
    if not isinstance(exchange, str) or exchange not in FORMATS:
        error = ArgumentValueError if isinstance(exchange, str) else ArgumentTypeError
        raise error("exchange", " or ".join(map(repr, FORMATS)), repr(exchange))
    if op.name not in ("avg", "sum"):
        raise ArgumentValueError("exchange", "op 'avg' or 'sum', which tolerate rounding", f"op {str(op)!r}")
    for name, type_ in zip(variables.names, variables.types):
        if type_.dtype.kind != "f":
            raise ArgumentTypeError("exchange", "variables of real floating-point numbers", f"{name}, {type_.words}")
    if feedback is None or feedback is False:
        return None
    if feedback is True:
        return ErrorFeedback([None] * len(variables.numbers))
    errors = variables.check_targets(feedback, "feedback")
    for number in {*errors} & {*targets, *variables.numbers}:
        name = variables.session.context.registry.shareds[number].label()
        raise ArgumentValueError("feedback", "variables for errors only", f"{name}, which stores values or results")
    return ErrorFeedback(errors)
