"""An `all_reduce` that sends values in 16 bits, optionally with error feedback.

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
from ..kernels.encoding import FORMATS, rounded
from ..reductions import ReduceOp
from ..runtime.context import Kept, RankContext
from ..runtime.registry import Origin
from ..transports.base import Key, Pending, Reduction
from ..transports.value_buffers import participants
from .arguments import Variables


class FeedbackErrors(Kept):
    """By the numbers of variables: errors of the last exchange that are not stored in variables."""

    loss = "the rank's error feedback of all_reduce(feedback=True) is lost: store it in variables"

    def __init__(self) -> None:
        self.errors: Dict[int, Any] = {}


class ExchangeCommand(NamedTuple):
    """Format of a 16-bit exchange, and the variables for its errors.

    Without a variable, the rank stores the error (`FeedbackErrors`). If ``feedback`` is None, errors are dropped.
    """

    form: str
    feedback: Optional[Sequence[Optional[int]]]

    def all_reduce(
        self,
        context: RankContext,
        numbers: Sequence[int],
        into: Sequence[int],
        keys: Sequence[Key],
        arrays: Sequence[Any],
        op: ReduceOp,
        mixes: Sequence[Reduction],
        same: bool,
    ) -> None:
        """Reduce this rank's values, and commit results and errors; must be the last call in a command."""
        transport = context.transport
        if transport.supports_wire(arrays, op, mixes, self.feedback is not None):
            begun = self.begin(context, numbers, keys, arrays, op, mixes, into)
            self.finish(context, numbers, into, begun, same)
            return
        values = self._values(context, numbers, arrays)
        sent = [rounded(value, self.form) for value in values]
        errors = self._places_of_errors(context, numbers, [(value.shape, value.dtype) for value in values])
        if any(counting is None or counting[context.rank] for counting in [participants(mix.weights) for mix in mixes]):
            for value, arriving, error in zip(values, sent, errors):  # a rank with weight 0 sends nothing
                with np.errstate(all="ignore"):
                    np.subtract(value, arriving, out=error)
        keys = self._keys(context, numbers)
        targets = [context.registry.shareds[number].key for number in into]
        coded, name_of = transport.copies(keys, sent), context.name_of(numbers)
        results = transport.all_reduce(keys, coded, op, mixes, name_of, targets)
        context.barrier.wait()  # all ranks have reduced their shares
        for result in results.release():
            if result is not None:
                result[...] = rounded(result, self.form)
        self._commit(context, numbers, into, results, errors, same)

    def begin(
        self,
        context: RankContext,
        numbers: Sequence[int],
        keys: Sequence[Key],
        arrays: Sequence[Any],
        op: ReduceOp,
        mixes: Sequence[Reduction],
        into: Optional[Sequence[int]] = None,
    ) -> Any:
        """Start the exchange if the transport can encode values; return its state for `finish`, otherwise None.

        Without ``into``, variables may change before `finish` is called. See `all_reduce` for the other arguments.
        """
        keeps_errors = self.feedback is not None
        if keeps_errors:
            values, keys = self._values(context, numbers, arrays), self._keys(context, numbers)
            arrays = context.transport.copies(keys, values)
        name_of = context.name_of(numbers)
        targets = None if into is None else [context.registry.shareds[number].key for number in into]
        return context.transport.begin(keys, arrays, op, mixes, name_of, self.form, keeps_errors, targets)

    def finish(self, context: RankContext, numbers: Sequence[int], into: Sequence[int], begun: Any, same: bool) -> None:
        """Complete a started exchange, and commit results and errors; must be the last call in a command."""
        errors = self._places_of_errors(context, numbers, begun.kinds)
        results = context.transport.finish(begun, [context.registry.shareds[number].key for number in into], errors)
        self._commit(context, numbers, into, results, errors, same)

    @staticmethod
    def _keys(context: RankContext, numbers: Sequence[int]) -> List[Key]:
        return [(*context.registry.shareds[number].key, "exchanged") for number in numbers]

    def _values(self, context: RankContext, numbers: Sequence[int], arrays: Sequence[Any]) -> List[Any]:
        """Return this rank's values plus the errors of the last exchange."""
        values = []
        for i, array in enumerate(arrays):
            value = np.asarray(array)
            before = self._error_before(context, numbers, i, value.shape)
            values.append(value if before is None else value + before)
        return values

    def _error_before(self, context: RankContext, numbers: Sequence[int], i: int, shape: Tuple[int, ...]) -> Any:
        kept = None if self.feedback is None else self.feedback[i]
        if kept is not None:
            entry = context.registry.shareds[kept]
            before = np.asarray(entry.cell[0])
            if before.shape != shape:
                expected = f"the shape of {context.name_of(numbers)(i)}, {shape}"
                raise ArgumentValueError("feedback", expected, f"{entry.label()} of shape {before.shape}")
            return before
        error = None if self.feedback is None else context.kept(FeedbackErrors).errors.get(numbers[i])
        return None if error is None or error.shape != shape else error

    def _places_of_errors(self, context: RankContext, numbers: Sequence[int], kinds: Sequence[Any]) -> List[Any]:
        """Return arrays for the new errors, initialized with the last errors; an empty list without feedback."""
        places = []
        for i, kept in enumerate(self.feedback or ()):
            shape, dtype = kinds[i]
            if kept is None:
                places.append(np.empty(shape, dtype))
            else:
                places.append(context.transport.allocate(context.registry.shareds[kept].key, shape, dtype))
            before = self._error_before(context, numbers, i, shape)
            places[-1][...] = 0 if before is None else before
        return places

    def _commit(
        self,
        context: RankContext,
        numbers: Sequence[int],
        into: Sequence[int],
        results: Pending,
        errors: List[Any],
        same: bool,
    ) -> None:
        for error in errors:
            error[~np.isfinite(error)] = 0  # infinities and NaN must not persist
        pairs = list(zip(self.feedback or [], numbers, errors))
        kept = {variable: error for variable, _, error in pairs if variable is not None}

        def keep_errors() -> None:
            for variable in kept:  # errors differ between ranks
                context.registry.shareds[variable].origin = Origin.OWN
            context.kept(FeedbackErrors).errors.update(
                {number: error for variable, number, error in pairs if variable is None}
            )

        arrived = Pending([*results.release(), *kept.values()])
        context.transaction.commit_values(context.entries([*into, *kept]), arrived, keep_errors, same=same)


def parse_exchange(
    exchange: Any, feedback: Any, variables: Variables, op: ReduceOp, targets: Sequence[int]
) -> Optional[ExchangeCommand]:
    """Validate ``exchange`` and ``feedback``; return None for full precision."""
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
        return ExchangeCommand(exchange, None)
    if feedback is True:
        return ExchangeCommand(exchange, [None] * len(variables.numbers))
    errors = variables.check_targets(feedback, "feedback")
    for number in {*errors} & {*targets, *variables.numbers}:
        name = variables.session.context.registry.shareds[number].label()
        raise ArgumentValueError("feedback", "variables for errors only", f"{name}, which stores values or results")
    return ExchangeCommand(exchange, errors)
