"""Rules for custom operations, which describe how the operations treat rows."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from .. import engines
from ..errors import ArgumentTypeError, ArgumentValueError
from ..reductions import COMBINING
from ..sharding import Axes, PlacementRule

#: Position of an input, or of several inputs; the operation is linear in the input, or jointly linear in all of them.
Group = Union[int, Tuple[int, ...]]


def rule(
    op: type,
    axes: Union[str, Callable[[Any], str]],
    linear: Sequence[Group] = (),
    powers: Optional[Dict[int, Any]] = None,
    reduce: Optional[str] = "sum",
) -> None:
    """Declare how a custom operation (a class) treats rows; operations without a rule do not support rows.

    Parameters
    ----------
    op : class
        A subclass of Theano's or PyTensor's ``Op``; its subclasses inherit the rule.
    axes : str, or callable
        One letter per axis of each input and output, as in ``numpy.einsum``: ``"nk,km->nm"`` for a matrix product.
        Equal letters denote the same axis; an axis is reduced if its letter is in no output. Along an axis ``-``,
        elements depend on each other (as in a softmax); ``.`` is an axis of length 1 that is repeated. For an operation
        with parameters, pass a callable that returns this string for a node.
    linear : sequence of (int or tuple of int)
        Positions of inputs. The operation is linear in each of them if the other inputs are fixed: ``[0, 1]`` for a
        product. It is jointly linear in the inputs of a tuple: ``[(0, 1)]`` for a sum. A linear function of a partial
        value is itself partial; any other function needs the whole value.
    powers : dict of int to number, optional
        The degree of homogeneity in inputs outside ``linear``: ``{1: -1}`` for the divisor of a quotient.
    reduce : {"sum", "max", "min", "prod", None}
        How axes are reduced; None if results for parts of the rows cannot be combined into the result for all rows.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or the operation or a base class has a built-in rule. Building a function raises
        ValueError if ``axes`` does not match a node's numbers of inputs, outputs or dimensions.

    Notes
    -----
    Rules are not verified. To test a rule, compare a call with the serial function: see `Function.compare`.

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
    >>> synk.ops.rule(Normalised, "n-->n-")     # rows are independent; elements within a row are not
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
        raise ArgumentTypeError("op", "an operation class (a subclass of Op)", repr(op))
    if not callable(axes):
        _parsed(axes)
    groups = [list(group) if isinstance(group, (tuple, list)) else [group] for group in linear]
    if not all(isinstance(i, int) and i >= 0 for i in sum(groups, [])):
        raise ArgumentTypeError("linear", "positions of inputs, or tuples of positions", repr(linear))
    if reduce is not None and (reduce not in COMBINING or reduce == "avg"):
        raise ArgumentValueError("reduce", "'sum', 'max', 'min', 'prod' or None", repr(reduce))

    def make(node: Any, inputs: Sequence[int], outputs: Sequence[int]) -> PlacementRule:
        text = axes(node) if callable(axes) else axes
        of_inputs, of_outputs = _parsed(text)
        if [*map(len, of_inputs)] != [*inputs] or [*map(len, of_outputs)] != [*outputs]:
            expected = f"letters for inputs with ndim=[{_listed(inputs)}] and outputs with ndim=[{_listed(outputs)}]"
            raise ArgumentValueError(f"axes of the rule of {node.op}", expected, repr(text))
        return Axes(of_inputs, of_outputs, groups, dict(powers or {}), [reduce] * len(of_outputs))

    engine.add_rule(op, make)


def _parsed(text: Any) -> Tuple[List[str], List[str]]:
    """Return the letters of every input and of every output."""
    # Split at the last arrow, because "-" is also an axis: "n-->n-" is "n-" and "n-".
    before, arrow, after = text.rpartition("->") if isinstance(text, str) else ("", "", "")
    if not arrow:
        raise ArgumentValueError("axes", "letters as in numpy.einsum, for example 'nk,km->nm'", repr(text))
    found = [[part.strip() for part in side.split(",")] for side in (before, after)]
    for part in found[0] + found[1]:
        if not all(letter.isalpha() or letter in "-." for letter in part):
            raise ArgumentValueError("axes", "letters, '-' and '.'", repr(part))
    return found[0], found[1]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
