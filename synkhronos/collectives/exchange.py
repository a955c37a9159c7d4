"""An `all_reduce` whose values travel in 16 bits, with the errors of that kept and added the next time.

.. math:: y_r := x_r + e_r, \\quad e_r := y_r - C(y_r), \\quad x := C(\\textstyle\\sum_r w_r C(y_r))

C is what arrives of a value that was encoded (`reductions.sixteen_bits`). The sum is accumulated in the values' own
type, and encoded once, so that all ranks hold the same bits. With the errors e_r fed back, what has arrived after any
number of exchanges is what was sent, up to the last error (Karimireddy et al., 2019, arXiv 1901.09847).

Between hosts, where a transport carries values in 16 bits, it is the value of a host h that is encoded, which has been
made of its ranks' values in their own type, and its error belongs to all its ranks:

.. math:: y_h := \\sum_{r \\in h} w_r (x_r + e_r) / w_h, \\quad w_h := \\sum_{r \\in h} w_r,
          \\quad e_r := y_h - C(y_h), \\quad x := C(\\textstyle\\sum_h w_h C(y_h))

So the next y_h has all of the error. (Each of the m ranks of a host keeps 1 / m of the error of a sum.)
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import ArgumentTypeError, ArgumentValueError
from ..reductions import ReduceOp
from ..reductions.sixteen_bits import FORMATS, rounded
from ..runtime.context import RankContext
from ..runtime.registry import Origin
from ..transports.base import Key, Mix, Pending
from ..transports.value_buffers import participants
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

    def all_reduce(
        self,
        context: RankContext,
        numbers: Sequence[int],
        into: Sequence[int],
        keys: Sequence[Key],
        arrays: Sequence[Any],
        op: ReduceOp,
        mixes: Sequence[Mix],
        same: bool,
    ) -> None:
        """Reduce this rank's values, and make the results and the errors values of variables: a command's last call.

        Parameters
        ----------
        context : RankContext
        numbers, into : sequence of int
            Of the variables that have the values, and of those that take the results.
        keys, arrays : list
            Of the values, for transports.
        op, mixes, same
            As of `Transport.all_reduce` and `RankContext.commit_values`.
        """
        transport = context.transport
        if transport.carries(arrays, op, mixes, self.feedback is not None):
            begun = self.begin(context, numbers, keys, arrays, op, mixes, into)
            self.finish(context, numbers, into, begun, same)
            return
        values = self._values(context, numbers, arrays)
        sent = [rounded(value, self.form) for value in values]
        errors = self._places_of_errors(context, numbers, [(value.shape, value.dtype) for value in values])
        if any(counting is None or counting[context.rank] for counting in [participants(mix.weights) for mix in mixes]):
            for value, arriving, error in zip(values, sent, errors):  # else nothing of this rank is sent
                with np.errstate(all="ignore"):
                    np.subtract(value, arriving, out=error)
        keys = self._keys(context, numbers)
        targets = [context.shareds[number].key for number in into]
        coded, name_of = transport.copies(keys, sent), context.name_of(numbers)
        results = transport.all_reduce(keys, coded, op, mixes, name_of, targets)
        context.barrier.wait()  # all ranks have made their shares
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
        mixes: Sequence[Mix],
        into: Optional[Sequence[int]] = None,
    ) -> Any:
        """Have a transport that encodes values itself begin; return what `finish` takes, None if there is no such way.

        Parameters are as of `all_reduce`; without ``into``, `finish` comes later, and the variables change before it.
        """
        keeps_errors = self.feedback is not None
        if keeps_errors:
            values, keys = self._values(context, numbers, arrays), self._keys(context, numbers)
            arrays = context.transport.copies(keys, values)
        name_of = context.name_of(numbers)
        targets = None if into is None else [context.shareds[number].key for number in into]
        return context.transport.begin(keys, arrays, op, mixes, name_of, self.form, keeps_errors, targets)

    def finish(self, context: RankContext, numbers: Sequence[int], into: Sequence[int], begun: Any, same: bool) -> None:
        """Make what has been begun, and the errors, values of variables: a command's last call."""
        errors = self._places_of_errors(context, numbers, begun.kinds)
        results = context.transport.finish(begun, [context.shareds[number].key for number in into], errors)
        self._commit(context, numbers, into, results, errors, same)

    @staticmethod
    def _keys(context: RankContext, numbers: Sequence[int]) -> List[Key]:
        return [(*context.shareds[number].key, "exchanged") for number in numbers]

    def _values(self, context: RankContext, numbers: Sequence[int], arrays: Sequence[Any]) -> List[Any]:
        """Return this rank's values, with what was left out of them the last time."""
        values = []
        for i, array in enumerate(arrays):
            value = np.asarray(array)
            before = self._error_before(context, numbers, i, value.shape)
            values.append(value if before is None else value + before)
        return values

    def _error_before(self, context: RankContext, numbers: Sequence[int], i: int, shape: Tuple[int, ...]) -> Any:
        """Return what was left out of a value the last time, None if there is nothing."""
        kept = None if self.feedback is None else self.feedback[i]
        if kept is not None:
            entry = context.shareds[kept]
            before = np.asarray(entry.cell[0])
            if before.shape != shape:
                expected = f"the shape of {context.name_of(numbers)(i)}, {shape}"
                raise ArgumentValueError("feedback", expected, f"{entry.label()} of shape {before.shape}")
            return before
        error = None if self.feedback is None else context.errors.get(numbers[i])
        return None if error is None or error.shape != shape else error

    def _places_of_errors(self, context: RankContext, numbers: Sequence[int], kinds: Sequence[Any]) -> List[Any]:
        """Return arrays that take the errors, with those of the last time; none without feedback."""
        places = []
        for i, kept in enumerate(self.feedback or ()):
            shape, dtype = kinds[i]
            if kept is None:
                places.append(np.empty(shape, dtype))
            else:
                places.append(context.transport.allocate(context.shareds[kept].key, shape, dtype))
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
            error[~np.isfinite(error)] = 0  # an infinity, or what is no number, is sent once
        pairs = list(zip(self.feedback or [], numbers, errors))
        kept = {variable: error for variable, _, error in pairs if variable is not None}

        def keep_errors() -> None:
            for variable in kept:  # each rank has its own
                context.shareds[variable].origin = Origin.OWN
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
