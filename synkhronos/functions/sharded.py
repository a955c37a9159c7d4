"""`synkhronos.sharded`: an input, or a shared variable, whose rows are divided, along which axis.

What travels, and what is divided, selected and sliced, has its rows first: a view of the user's array with the axes in
another order. Every rank gives its rows to the function, and its outputs to the master, in the order of the graph.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Sequence

import numpy as np

from ..errors import ArgumentTypeError


class Sharded(NamedTuple):
    """A variable, and the axis along which it has rows; made by `sharded`."""

    variable: Any
    axis: int


def sharded(x: Any, axis: int = 0) -> Sharded:
    """Say, in the ``inputs`` or ``sliceable_shareds`` of `function`, along which axis a variable has its rows.

    Lengths, ``batch``, ``batch_s``, slices and weights count along that axis. `scatter` and `gather` take ``axis``,
    too.

    A shared variable in ``inputs`` has the *batch's* rows, such as the hidden state of each sequence in a recurrent
    network, which goes on from call to call. It is no argument of calls. Every rank uses and updates its own rows;
    between calls the program has those of all ranks: ``get_value`` returns them, ``set_value`` takes them, also another
    number of them. A call must have as many rows, and is not made in slices; collectives refuse the variable, and so do
    functions that use it without naming it.

    Parameters
    ----------
    x : variable (or ``theano.In``), or shared variable
        Of more than ``axis`` dimensions; `function` checks it.
    axis : int
        From 0; or below 0, from the last.

    Returns
    -------
    Sharded

    Raises
    ------
    TypeError
        If ``axis`` is not an int.

    Examples
    --------
    Sequences for a recurrent network, time first: each rank is given all times of its own sequences.

    >>> import synkhronos as synk
    >>> import theano.tensor as T
    >>> synk.fork(2)
    2
    >>> x = T.dmatrix("x")                      # of shape (n_times, n_sequences)
    >>> f = synk.function([synk.sharded(x, axis=1)], [x.sum(axis=0), x.cumsum(axis=0)])
    >>> f([[1., 2., 3.], [4., 5., 6.]])
    [array([5., 7., 9.]), array([[1., 2., 3.],
           [5., 7., 9.]])]

    The sum of each row so far:

    >>> import numpy as np, theano
    >>> y, so_far = T.dvector("y"), theano.shared(np.zeros(3), "so_far")
    >>> g = synk.function([y, synk.sharded(so_far)], updates=[(so_far, so_far + y)], exact=True)
    >>> g([1., 2., 3.]), g([1., 1., 1.])
    ([], [])
    >>> so_far.get_value()                      # of which rank 0 has updated two rows, and rank 1 one
    array([2., 3., 4.])
    >>> so_far.set_value([10., 20.])
    >>> g([1., 1.])
    []
    >>> so_far.get_value()
    array([11., 21.])
    """
    if isinstance(axis, (bool, np.bool_)) or not isinstance(axis, (int, np.integer)):
        raise ArgumentTypeError("axis", "an int", f"{axis!r} of type {type(axis).__name__}")
    return Sharded(x, int(axis))


def unwrapped(variables: Sequence[Any]) -> List[Sharded]:
    """Return variables of which some may be wrapped, with their axes."""
    return [each if isinstance(each, Sharded) else Sharded(each, 0) for each in variables]
