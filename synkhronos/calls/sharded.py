"""`synkhronos.sharded`: mark an input or shared variable as divided by rows along an axis.

Arrays are transferred, divided, selected and sliced as views with their rows first. The rows passed to a rank's
function, and the outputs returned on the master, are in the axis order of the graph.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence

import numpy as np

from ..errors import ArgumentTypeError


class Sharded(NamedTuple):
    """A variable and its axis of rows, as returned by `sharded`."""

    variable: Any
    axis: Optional[int]  # None for an input that is sent whole (`functions`)


def sharded(x: Any, axis: int = 0) -> Sharded:
    """Mark the axis of rows of a variable, in the ``inputs`` or ``sliceable_shareds`` of `function`.

    Lengths, ``batch``, ``batch_shared``, slices and weights refer to that axis. `scatter` and `gather` accept ``axis``.

    A shared variable in ``inputs`` has the *batch's* rows, for example the hidden state of each sequence in a
    recurrent network. Calls have no argument for it. Every rank uses and updates its own rows. Between calls,
    ``get_value`` returns the rows of all ranks, and ``set_value`` replaces them, even with a different number of rows.
    A call must have as many rows as the variable and cannot be made in slices. Collectives reject the variable, and so
    do functions that use it without listing it.

    Parameters
    ----------
    x : variable (or ``theano.In``), or shared variable
        The number of dimensions must exceed ``axis``; `function` checks this.
    axis : int
        A negative axis counts from the last axis.

    Returns
    -------
    Sharded

    Raises
    ------
    TypeError
        If ``axis`` is not an int.

    Examples
    --------
    Sequences for a recurrent network, with time as the first axis; each rank receives all time steps of its sequences:

    >>> import synkhronos as synk
    >>> import theano.tensor as T
    >>> synk.fork(2)
    2
    >>> x = T.dmatrix("x")                      # of shape (n_times, n_sequences)
    >>> f = synk.function([synk.sharded(x, axis=1)], [x.sum(axis=0), x.cumsum(axis=0)])
    >>> f([[1., 2., 3.], [4., 5., 6.]])
    [array([5., 7., 9.]), array([[1., 2., 3.],
           [5., 7., 9.]])]
    """
    if isinstance(axis, (bool, np.bool_)) or not isinstance(axis, (int, np.integer)):
        raise ArgumentTypeError("axis", "an int", f"{axis!r} of type {type(axis).__name__}")
    return Sharded(x, int(axis))


def unwrapped(variables: Sequence[Any]) -> List[Sharded]:
    """Return all variables as `Sharded`; plain variables get axis 0."""
    return [each if isinstance(each, Sharded) else Sharded(each, 0) for each in variables]
