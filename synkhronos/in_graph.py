"""How an operation inside a compiled function finds the other ranks: through the call that it is part of.

::

    functions     with call:                          the call on this rank, as long as the engine computes
    engine            engine.call(compiled, ...)
    operation             in_graph.all_reduce(number, op, arrays)  -->  call.all_reduce(number, op, arrays)

Outside a call on the ranks (in plain ``theano.function``, before `fork`, in `Function.as_theano`) a collective is the
identity: the serial program has the same graph.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any, List, Optional, Sequence, Tuple

from .errors import ArgumentError
from .reductions import ReduceOp


class Call(ABC):
    """A call of a function on this rank, as the collectives inside the function see it; a context manager.

    Attributes
    ----------
    error : BaseException, optional
        What a collective has raised. It leaves the ``with`` block as the same object, whatever the library around the
        operation has made of it (Theano builds another exception, without its fields).
    """

    error: Optional[BaseException] = None
    _outer: Optional[Call] = None

    @abstractmethod
    def all_reduce(self, number: int, op: ReduceOp, arrays: Sequence[Any]) -> List[Any]:
        """Return the arrays reduced over the ranks: as many, of the same shapes and dtypes, the same on all ranks.

        No later call changes what is returned while anything refers to it. Of one rank it may be the arrays themselves.

        Parameters
        ----------
        number : int
            The collective's, in its function: all ranks must have come to the same one.
        op : ReduceOp
            ``avg``, weighted by the rows that each rank has in this call, ``sum``, ``min`` or ``max``.
        arrays : sequence of arrays
            This rank's, on the host or on its device.
        """

    def rows(self) -> Optional[Tuple[int, int, int]]:
        """Return the rows that this rank computes with, begin and end, and how many all ranks have in the whole call.

        None if none are divided.
        """
        return None

    def share(self, length: int) -> Tuple[int, int]:
        """Return the rows, begin and end, that this rank takes of an array that all ranks have.

        Parameters
        ----------
        length : int
            How many it has.

        Raises
        ------
        ValueError
            If the call is about another number of rows.
        """
        return 0, length

    def __enter__(self) -> Call:
        self._outer, _thread.call = current(), self
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        _thread.call = self._outer
        found, self.error = self.error, None
        try:
            if error is not None and found is not None and error is not found:
                error.__cause__ = error.__context__ = None
                raise found from found.__cause__
        finally:
            # This frame is part of what it raises: a reference cycle would keep the memory of all frames.
            del self, found, error, traceback


_thread = threading.local()  # ranks may be threads


def current() -> Optional[Call]:
    """Return the call that this thread is in, or None outside of any."""
    call: Optional[Call] = getattr(_thread, "call", None)
    return call


def all_reduce(number: int, op: ReduceOp, arrays: Sequence[Any]) -> List[Any]:
    """Reduce arrays over the ranks of the call in progress; return them as they are outside of one."""
    call = current()
    if call is None:
        return list(arrays)
    try:
        return call.all_reduce(number, op, arrays)
    except BaseException as error:
        call.error = error
        raise


def whole_length(length: int) -> int:
    """Return, of a length that is proportional to the rows of this rank, what it is with the rows of all ranks."""
    call = current()
    rows = None if call is None else call.rows()
    if rows is None or rows[0] == rows[1]:
        return length
    begin, end, n_all = rows
    return length * n_all // (end - begin)


def inverse_share() -> float:
    """Return how many times as many rows all ranks have in the call as this one; 1 if none are divided."""
    call = current()
    rows = None if call is None else call.rows()
    if rows is None or rows[0] == rows[1]:
        return 1.0
    begin, end, n_all = rows
    return n_all / (end - begin)


def share(length: int) -> Tuple[int, int]:
    """Return this rank's rows, begin and end, of as many as all ranks have; outside of a call all of them."""
    call = current()
    if call is None:
        return 0, length
    try:
        return call.share(length)
    except ArgumentError as error:
        call.error = error
        # Theano prints a line if it cannot build the exception again from a text alone.
        raise ValueError(str(error)) from None
    except BaseException as error:
        call.error = error
        raise
