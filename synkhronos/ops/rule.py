"""What an operation of the user's own does to rows, for functions that follow them through the graph."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from .. import engines
from ..errors import ArgumentTypeError, ArgumentValueError
from ..reductions import COMBINING
from ..sharding import Axes, Rule

#: A group of inputs in which an operation is linear together, or one of them alone.
Group = Union[int, Tuple[int, ...]]


def rule(
    op: type,
    axes: Union[str, Callable[[Any], str]],
    linear: Sequence[Group] = (),
    powers: Optional[Dict[int, Any]] = None,
    reduce: Optional[str] = "sum",
) -> None:
    """Say what an operation (a class) of your own does to rows; without a rule it is refused of rows.

    Parameters
    ----------
    op : class
        A subclass of ``Op``, Theano's or PyTensor's; its subclasses have the same rule.
    axes : str, or callable
        As in ``numpy.einsum``, a letter for each axis of each input and output: ``"nk,km->nm"`` is that of a product of
        matrices. An axis with the same letter is the same one; if no output has it, it is reduced. ``-`` is an axis
        along which elements depend on each other (those of a softmax), ``.`` one of length 1 that is repeated. A
        callable is given the node, and returns such a string: for operations with parameters.
    linear : sequence of (int or tuple of int)
        The inputs, by position, in which the operation is linear if the others are fixed: ``[0, 1]`` for a product. A
        tuple has those in which it is linear together: ``[(0, 1)]`` for a sum. What is linear in a part is a part; else
        the whole of it is needed.
    powers : dict of int to number, optional
        Further inputs in which it is homogeneous, and of which degree: ``{1: -1}`` for the divisor of a quotient.
    reduce : {"sum", "max", "min", "prod", None}
        By what axes are reduced; None if results on parts of the rows make no result on all of them.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong; if the operation has a rule already. When a function is built: if ``axes`` has another
        number of inputs, outputs or letters than the node.

    Notes
    -----
    A rule is taken at its word. `Function.compare` makes a call and compares it with the serial function.

    Examples
    --------
    >>> import synkhronos as synk
    >>> import numpy as np, theano, theano.tensor as T
    >>> class Normalised(theano.Op):
    ...     __props__ = ()
    ...     def make_node(self, x):
    ...         return theano.Apply(self, [x], [x.type()])
    ...     def perform(self, node, inputs, outputs):
    ...         outputs[0][0] = inputs[0] / np.sqrt((inputs[0] ** 2).sum(axis=1, keepdims=True))
    >>> synk.ops.rule(Normalised, "n-->n-")     # each row by itself; in a row all elements depend on each other
    >>> synk.fork(2)
    2
    >>> x = T.dmatrix("x")
    >>> f = synk.function([x], Normalised()(x), exact=True)
    >>> f([[3., 4.], [0., 2.], [1., 0.]])
    array([[0.6, 0.8],
           [0. , 1. ],
           [1. , 0. ]])
    """
    engine = next((one for one in engines.loaded() if one.is_operation(op)), None)
    if engine is None:
        raise ArgumentTypeError("op", "a class of operations, a subclass of Op", repr(op))
    if not callable(axes):
        _parsed(axes)
    groups = [list(group) if isinstance(group, (tuple, list)) else [group] for group in linear]
    if not all(isinstance(i, int) and i >= 0 for i in sum(groups, [])):
        raise ArgumentTypeError("linear", "positions of inputs, or tuples of them", repr(linear))
    if reduce is not None and (reduce not in COMBINING or reduce == "avg"):
        raise ArgumentValueError("reduce", "'sum', 'max', 'min', 'prod' or None", repr(reduce))

    def make(node: Any, inputs: Sequence[int], outputs: Sequence[int]) -> Rule:
        text = axes(node) if callable(axes) else axes
        of_inputs, of_outputs = _parsed(text)
        if [*map(len, of_inputs)] != [*inputs] or [*map(len, of_outputs)] != [*outputs]:
            expected = f"letters for inputs of {_listed(inputs)} and outputs of {_listed(outputs)} dimensions"
            raise ArgumentValueError(f"axes of the rule of {node.op}", expected, repr(text))
        return Axes(of_inputs, of_outputs, groups, dict(powers or {}), [reduce] * len(of_outputs))

    engine.add_rule(op, make)


def _parsed(text: Any) -> Tuple[List[str], List[str]]:
    """Return the letters of every input, and of every output."""
    # The arrow is the last one: an axis may be a "-" before it.
    before, arrow, after = text.rpartition("->") if isinstance(text, str) else ("", "", "")
    if not arrow:
        raise ArgumentValueError("axes", "letters as in numpy.einsum, 'nk,km->nm' for example", repr(text))
    found = [[part.strip() for part in side.split(",")] for side in (before, after)]
    for part in found[0] + found[1]:
        if not all(letter.isalpha() or letter in "-." for letter in part):
            raise ArgumentValueError("axes", "letters, '-' and '.'", repr(part))
    return found[0], found[1]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
