"""`synkhronos.distribute`."""

from __future__ import annotations

from ..program.program import PROGRAM
from .replicator import replicator_of


def distribute() -> None:
    """Send every function built so far, and the shared variables that they use, to all ranks.

    Optional: it happens by itself at a function's first call. May be called again after more functions have been built;
    what the ranks hold already is not sent again, and keeps its values.

    Raises
    ------
    StateError
        Before `fork`, or after `close`.
    TypeError
        If something cannot be pickled; names the function and the object. All other functions have been sent.
    SharedMemoryError
        If there is no memory for the values; the ranks hold none of what was to be sent then.
    WorkerError
        If a rank cannot load what it was sent; no rank holds it then.
    WorkerDied, WorkerTimeout
        If a rank ended, or did not answer in time; the session is closed then.

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
