"""The link between collectives inside a compiled function and the current call to that function.

::

    functions     with call:                          the call on this rank, while the engine computes
    engine            engine.call(compiled, ...)
    operation             in_graph.all_reduce(number, op, arrays)  -->  call.all_reduce(number, op, arrays)

Outside a call on the ranks (in ``theano.function``, before `fork`, in `Function.as_theano`), a collective is the
identity, because the serial program has the same graph.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any, List, Optional, Sequence, Tuple

from .errors import ArgumentError
from .reductions import ReduceOp


class CurrentCall(ABC):
    """Context manager for a call to a function on this rank, used by the collectives inside the function.

    The ``with`` block raises ``error``, the exception of a collective, even if the engine has replaced that exception.
    (Theano raises a new exception, which lacks the original's attributes.)
    """

    error: Optional[BaseException] = None
    #: Whether the call's collectives communicate; a call that only computes shapes returns their inputs unchanged.
    reduces = True
    #: This rank's rows as ``(start, end, number of all rows)``; None if the call divides no rows.
    rows: Optional[Tuple[int, int, int]] = None
    _outer: Optional[CurrentCall] = None

    @abstractmethod
    def all_reduce(self, number: int, op: ReduceOp, arrays: Sequence[Any]) -> List[Any]:
        """Reduce the arrays over the ranks; return arrays of the same shapes and dtypes, identical on all ranks.

        No later call changes the results while they are referenced. With one rank, the results may be the arguments
        themselves. Every rank must call this for the same collective of the function, identified by ``number``. ``avg``
        is weighted by each rank's rows in this call. Arrays are on the host or on the rank's device.
        """

    def part(self, size: int) -> Tuple[int, int]:
        """Return the start and end of this rank's part of an array's elements; by default, all elements."""
        return 0, size

    def reduce_parts(self, number: int, op: ReduceOp, arrays: Sequence[Any]) -> List[Any]:
        """Reduce the arrays over the ranks; return vectors with this rank's `part` of each, until the next run."""
        return [array.reshape(-1) for array in self.all_reduce(number, op, arrays)]

    def combine_parts(self, number: int, op: ReduceOp, arrays: Sequence[Any]) -> List[Any]:
        """Reduce values that each rank has reduced from its `part` of arrays; they count even if a rank has no rows."""
        return list(arrays)

    def share(self, length: int) -> Tuple[int, int]:
        """Return the start and end of this rank's rows in a replicated array; subclasses check its ``length``."""
        return 0, length

    def note_reduced(self, number: int, nbytes: int) -> None:  # noqa: B027, only sessions count
        """Record a collective that the engine itself has computed; ``nbytes`` is the size of its arrays."""

    def __enter__(self) -> CurrentCall:
        self._outer, _thread.call = _thread.call, self
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        _thread.call = self._outer
        found, self.error = self.error, None
        try:
            if error is not None and found is not None and error is not found:
                error.__cause__ = error.__context__ = None
                raise found from found.__cause__
        finally:
            # Without this line, a reference cycle through this frame would keep the objects of all frames alive.
            del self, found, error, traceback


class _Thread(threading.local):
    call: Optional[CurrentCall] = None  #: The current call, one for each thread, because ranks may be threads.


_thread = _Thread()


def current() -> Optional[CurrentCall]:
    """Return the current call of this thread; None outside a call."""
    return _thread.call


def all_reduce(number: int, op: ReduceOp, arrays: Sequence[Any], method: str = "all_reduce") -> List[Any]:
    """Reduce arrays over the ranks of the current call; outside a call, return all of their elements unchanged.

    ``method`` is the name of a method of the call: ``all_reduce``, ``reduce_parts`` or ``combine_parts``.
    """
    call = _thread.call
    if call is None:
        return [array.reshape(-1) for array in arrays] if method == "reduce_parts" else list(arrays)
    try:
        return list(getattr(call, method)(number, op, arrays))
    except BaseException as error:
        call.error = error
        raise


def part(size: int) -> Tuple[int, int]:
    """Return the start and end of this rank's part of an array's elements; outside a call, all elements."""
    return (0, size) if _thread.call is None else _thread.call.part(size)


def whole_length(length: int) -> int:
    """Convert a length that is proportional to this rank's number of rows into the length for all rows of the call."""
    call = _thread.call
    rows = None if call is None else call.rows
    if rows is None or rows[0] == rows[1]:
        return length
    begin, end, n_all = rows
    return length * n_all // (end - begin)


def inverse_share() -> float:
    """Return the number of all rows divided by this rank's number of rows; 1 if the call or this rank has none."""
    call = _thread.call
    rows = None if call is None else call.rows
    if rows is None or rows[0] == rows[1]:
        return 1.0
    begin, end, n_all = rows
    return n_all / (end - begin)


def share(length: int) -> Tuple[int, int]:
    """Return the start and end of this rank's share of ``length`` rows; outside a call, the share is all rows."""
    call = _thread.call
    if call is None:
        return 0, length
    try:
        return call.share(length)
    except ArgumentError as error:
        call.error = error
        # Theano prints a line if it cannot rebuild the exception from its text alone.
        raise ValueError(str(error)) from None
    except BaseException as error:
        call.error = error
        raise
