"""The function `synkhronos.distribute`."""

from __future__ import annotations

from ..program.program import PROGRAM
from .replicator import replicator_of


def distribute() -> None:
    """Send all functions built so far, and the shared variables that they use, to all ranks.

    This call is optional, because the first call to a function sends the function. Repeat it after building more
    functions; ranks keep the functions and values that they already have.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError, ValueError
        If a function or variable cannot be pickled; the message names it, and all other functions have been sent. Also
        if functions draw common and separate random numbers from the same stream; then no function has been sent.
    SharedMemoryError
        If there is not enough memory for the values; earlier groups of 16 functions may have been sent.
    WorkerError
        If a rank cannot load the functions or values of a group; then no rank keeps this group.
    WorkerDied, WorkerTimeout
        If a rank died or did not answer in time; the session is then closed.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import theano.tensor as T
    >>> synk.fork(2)
    2
    >>> x = T.dvector("x")
    >>> f = synk.function([x], x.mean())
    >>> synk.distribute()
    >>> f([1., 2., 6.])
    array(3.)
    """
    session = PROGRAM.current()
    with session.lock:
        replicator_of(session).ensure(PROGRAM.functions)
