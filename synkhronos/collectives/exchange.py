"""An `all_reduce` whose values travel in 16 bits, with the errors of that kept and added the next time.

.. math:: y_r := x_r + e_r, \\quad e_r := y_r - C(y_r), \\quad x := C(\\textstyle\\sum_r w_r C(y_r))

C is what arrives of a value that was encoded (`reductions.sixteen_bits`). The sum is accumulated in the values' own
type, and encoded once, so that all ranks hold the same bits. With the errors e_r fed back, what has arrived after any
number of exchanges is what was sent, up to the last error (Karimireddy et al., 2019, arXiv 1901.09847).
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..reductions import ReduceOp
from ..reductions.sixteen_bits import FORMATS, rounded
from ..runtime.context import RankContext
from ..transports.base import Key, Pending
from .arguments import Variables


class Exchange(NamedTuple):
    """How values travel.

    Attributes
    ----------
    form : str
        One of `FORMATS`.
    feedback : list of (int or None), optional
        The variables that keep the errors, one for each; None: the rank keeps them (`RankContext.errors`). Without,
        errors are lost.
    """

    form: str
    feedback: Optional[Sequence[Optional[int]]]

    def encoded(
        self, context: RankContext, numbers: Sequence[int], arrays: Sequence[Any]
    ) -> Tuple[List[Key], List[Any], List[Any]]:
        """Return what this rank's values arrive as, with their keys for transports, and the errors."""
        sent, errors = [], []
        for i, array in enumerate(arrays):
            value = np.asarray(array)
            if self.feedback is None:
                sent.append(rounded(value, self.form))
                continue
            kept = self.feedback[i]
            if kept is None:
                before = context.errors.get(numbers[i])
                error = np.empty_like(value)
            else:
                entry = context.shareds[kept]
                before = np.asarray(entry.cell[0])
                if before.shape != value.shape:
                    expected = f"the shape of {context.name_of(numbers)(i)}, {value.shape}"
                    raise ArgumentValueError("feedback", expected, f"{entry.label()} of shape {before.shape}")
                error = context.transport.allocate(entry.key, value.shape, value.dtype)
            if before is not None and before.shape == value.shape:
                value = value + before
            sent.append(rounded(value, self.form))
            with np.errstate(all="ignore"):
                np.subtract(value, sent[-1], out=error)
            error[~np.isfinite(error)] = 0  # an infinity, or what is no number, is sent once
            errors.append(error)
        keys = [(*context.shareds[number].key, "exchanged") for number in numbers]
        return keys, context.transport.copies(keys, sent), errors

    def commit(
        self,
        context: RankContext,
        numbers: Sequence[int],
        into: Sequence[int],
        results: Pending,
        errors: List[Any],
        same: bool,
    ) -> None:
        """Make the results, as they arrive, and the errors the values of variables: a command's last call."""
        context.barrier.wait()  # all ranks have made their shares
        for result in results.release():
            if result is not None:
                result[...] = rounded(result, self.form)
        pairs = list(zip(self.feedback or [], numbers, errors))
        kept = {variable: error for variable, _, error in pairs if variable is not None}

        def keep_errors() -> None:
            for variable in kept:  # each rank has its own
                context.shareds[variable].parted = True
            context.errors.update({number: error for variable, number, error in pairs if variable is None})

        arrived = Pending([*results.release(), *kept.values()])
        context.commit_values([*into, *kept], arrived, keep_errors, same=same)


def parse_exchange(
    exchange: Any, feedback: Any, variables: Variables, op: ReduceOp, targets: Sequence[int]
) -> Optional[Exchange]:
    """Return how values travel, into variables of those numbers; None if they do as they are.

    Raises
    ------
    TypeError, ValueError
        If there is no such format, it does not suit the op or a variable, or the variables for errors are of other
        types, or take the results.
    """
    if exchange is None:
        if feedback is not None and feedback is not False:
            raise ArgumentValueError("feedback", "None without exchange, by which nothing is lost", repr(feedback))
        return None
    if not isinstance(exchange, str) or exchange not in FORMATS:
        error = ArgumentValueError if isinstance(exchange, str) else ArgumentTypeError
        raise error("exchange", " or ".join(map(repr, FORMATS)), repr(exchange))
    if op.name not in ("avg", "sum"):
        raise ArgumentValueError("exchange", "op 'avg' or 'sum', which bear rounding", f"op {str(op)!r}")
    for name, type_ in zip(variables.names, variables.types):
        if type_.dtype.kind != "f":
            raise ArgumentTypeError("exchange", "variables of real floating-point numbers", f"{name}, {type_.words}")
    if feedback is None or feedback is False:
        return Exchange(exchange, None)
    if feedback is True:
        return Exchange(exchange, [None] * len(variables.numbers))
    errors = variables.check_targets(feedback, "feedback")
    for number in {*errors} & {*targets, *variables.numbers}:
        name = variables.session.context.shareds[number].label()
        raise ArgumentValueError("feedback", "variables that keep nothing else", f"{name}, which has values or results")
    return Exchange(exchange, errors)
