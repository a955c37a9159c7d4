"""The operations of `synkhronos.ops`, as far as they do not depend on the library that a program is written in.

==================  ===========================================================================================
`AllReduceOp`       variables reduced over all ranks, in one collective
`TakeShareOp`       the rank's rows of a value that all ranks have; `PutShareOp` puts them back among zeros
`WholeLengthOp`     a length with the rows of all ranks; needs no collective, for the call knows how many there are
`InverseShareOp`    how many times as many rows all ranks have
==================  ===========================================================================================

Outside a call on the ranks, a rank has all rows, and all ranks are this one.
"""

from __future__ import annotations

from typing import Any, Callable, ClassVar, List, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np

from ... import in_graph
from ...reductions import ReduceOp

#: The number of a collective that has not been put in order.
UNNUMBERED = -1


class Names(NamedTuple):
    """The names of a library that its operations use."""

    Apply: Type[Any]
    tensor: Any
    discrete_dtypes: Sequence[str]
    DisconnectedType: Type[Any]
    grad_not_implemented: Callable[..., Any]
    float_dtype: Callable[[], str]  # of what has no dtype of its own


class Operation:
    """What they have in common. A subclass of a library derives from one of these, and from its ``Op``."""

    names: ClassVar[Names]

    def do_constant_folding(self, *_: Any) -> bool:
        """Constants differ between ranks no less than other values."""
        return False

    def is_connected(self, variable: Any) -> bool:
        return variable is not None and not isinstance(variable.type, self.names.DisconnectedType)


# -- collectives -------------------------------------------------------------------------------------------------------


class AllReduceOp(Operation):
    """Reduce variables over all ranks: ``y_r := op(x_0, ..., x_{n-1})`` for each of them, in one collective.

    It has three forms. Programs build the first; `graph.collectives` puts the others in its place when it makes the
    graph that ranks call::

        in a program                identity outside a call; has a gradient; results may be the arguments themselves
        numbered                    under a condition: at run time its number is compared with that of the other ranks
        numbered, with a token      takes the token of the collective before it, and gives one to the next: whatever
                                    the library's optimizations and linkers do, collectives are computed in this order

    Parameters
    ----------
    op : ReduceOp
        ``avg`` (weighted by rows), ``sum``, ``min`` or ``max``.
    n : int
        How many variables.
    number : int
    has_token : bool
        Whether the last input and the last output are tokens.
    """

    __props__ = ("op", "n", "number", "has_token")

    def __init__(self, op: ReduceOp, n: int, number: int = UNNUMBERED, has_token: bool = False) -> None:
        self.op, self.n, self.number, self.has_token = op, n, number, has_token
        if number == UNNUMBERED:
            self.view_map = {i: [i] for i in range(n)}

    def __str__(self) -> str:
        return f"AllReduce{{{self.op}}}" if self.number == UNNUMBERED else f"AllReduce{{{self.op}, {self.number}}}"

    # order

    @classmethod
    def first_token(cls) -> Any:
        """Return the token of which no collective comes before."""
        return cls.names.tensor.constant(np.zeros((), np.int8))

    def in_order(self, number: int, inputs: Sequence[Any], token: Optional[Any]) -> Tuple[List[Any], Optional[Any]]:
        """Return the results of the numbered form, and its token if it was given one."""
        cls = type(self)
        if token is None:
            return cls(self.op, self.n, number).make_node(*inputs).outputs, None
        *outputs, after = cls(self.op, self.n, number, True).make_node(*inputs, token).outputs
        return outputs, after

    # the graph

    def make_node(self, *inputs: Any) -> Any:
        outputs = [variable.type() for variable in inputs]
        if self.number != UNNUMBERED:
            for output in outputs:
                output.tag.indestructible = True  # ranks may share the memory: nothing is computed in place there
        return self.names.Apply(self, list(inputs), outputs)

    def infer_shape(self, *arguments: Any) -> List[Any]:
        shapes: List[Any] = arguments[-1]
        return shapes

    def connection_pattern(self, node: Any) -> List[List[bool]]:
        positions = range(len(node.inputs))
        return [[i == j and i < self.n for j in positions] for i in positions]

    def gradients(self, inputs: Sequence[Any], output_grads: Sequence[Any]) -> List[Any]:
        """Reduce the gradients by the same op: ``avg`` in a loss that is a mean over rows, ``sum`` in a sum.

        With ``y = sum_s w_s x_s`` and a loss ``sum_r w_r l_r(y)`` the derivative to ``x_s`` is ``w_s`` times
        ``sum_r w_r dl_r/dy``: what rank s contributes to a mean over rows is the ``avg`` of the gradients. Without the
        weights it is their ``sum``.
        """
        names = self.names
        if self.op.name in ("min", "max"):
            why = f"all_reduce by {self.op.name!r} has no gradient: use 'avg' or 'sum', or disconnected_grad"
            return [names.grad_not_implemented(self, i, variable, why) for i, variable in enumerate(inputs)]
        results = list(output_grads)
        for i, variable in enumerate(inputs):
            if variable.dtype in names.discrete_dtypes and self.is_connected(results[i]):
                results[i] = names.tensor.zeros_like(variable, dtype=names.float_dtype())
        return self._reduced(results, lambda i: inputs[i].dtype not in names.discrete_dtypes)

    def tangents(self, points: Sequence[Any]) -> List[Any]:
        """Reduce the directions, of which None, or one that is disconnected, is left as it is."""
        if self.op.name in ("min", "max"):
            raise NotImplementedError(f"all_reduce by {self.op.name!r} has no R-operator: use 'avg' or 'sum'")
        return self._reduced(list(points), lambda i: True)

    def _reduced(self, variables: List[Any], is_wanted: Callable[[int], bool]) -> List[Any]:
        """Return the variables with those that are wanted, and connected, reduced in one collective."""
        chosen = [i for i, variable in enumerate(variables) if is_wanted(i) and self.is_connected(variable)]
        if chosen:
            reduce: Any = type(self)(self.op, len(chosen))
            reduced = reduce(*[variables[i] for i in chosen], return_list=True)
            for i, result in zip(chosen, reduced):
                variables[i] = result
        return variables

    # the computation

    def perform(self, node: Any, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        # The Python code of some operations leaves a NumPy scalar, though the type says array.
        arrays = [np.asarray(value) if isinstance(value, np.generic) else value for value in inputs[: self.n]]
        try:
            results = in_graph.all_reduce(self.number, self.op, arrays)
        except BaseException as error:
            # The one exception that the libraries pass on as it is: of others they make new ones, without their fields,
            # and print that they cannot. The call, which has kept the error, raises it.
            raise KeyboardInterrupt from error
        for array, result, output in zip(arrays, results, outputs):
            if result is array and self.number != UNNUMBERED:
                result = result.copy()  # what the argument's memory is used for later must not change it
            output[0] = result
        if self.has_token:
            outputs[self.n][0] = np.zeros((), np.int8)


# -- rows of values that all ranks have --------------------------------------------------------------------------------


class ShareOp(Operation):
    """What operations on the rank's rows have in common.

    Parameters
    ----------
    axis : int
        Along which the rows lie.
    """

    __props__ = ("axis",)

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def rows_of(self, array: Any) -> Tuple[Any, ...]:
        """Return the index of the rank's rows, which the call knows at run time."""
        begin, end = in_graph.share(array.shape[self.axis])
        return (slice(None),) * self.axis + (slice(begin, end),)


class TakeShareOp(ShareOp):
    """The rank's rows."""

    view_map = {0: [0]}
    #: The operation of the same library that puts them back.
    put: ClassVar[Any]

    def perform(self, node: Any, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        outputs[0][0] = inputs[0][self.rows_of(inputs[0])]

    def gradients(self, inputs: Sequence[Any], output_grads: Sequence[Any]) -> List[Any]:
        (gradient,) = output_grads
        return [type(self).put(self.axis)(inputs[0], gradient) if self.is_connected(gradient) else gradient]

    def tangents(self, points: Sequence[Any]) -> List[Any]:
        (point,) = points
        take: Any = self
        return [take(point) if self.is_connected(point) else point]


class PutShareOp(ShareOp):
    """An array of zeros, in the shape of the first input, with the second as the rank's rows: its part of a sum."""

    #: The operation of the same library that takes them.
    take: ClassVar[Any]

    def infer_shape(self, *arguments: Any) -> List[Any]:
        shapes: List[Any] = arguments[-1]
        return shapes[:1]

    def connection_pattern(self, node: Any) -> List[List[bool]]:
        return [[False], [True]]

    def perform(self, node: Any, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        like, rows = inputs
        result = np.zeros(like.shape, rows.dtype)
        result[self.rows_of(like)] = rows
        outputs[0][0] = result

    def gradients(self, inputs: Sequence[Any], output_grads: Sequence[Any]) -> List[Any]:
        (gradient,) = output_grads
        rows = type(self).take(self.axis)(gradient) if self.is_connected(gradient) else gradient
        return [self.names.DisconnectedType()(), rows]

    def tangents(self, inputs: Sequence[Any], points: Sequence[Any]) -> List[Any]:
        put: Any = self
        return [put(inputs[0], points[1]) if self.is_connected(points[1]) else points[1]]


# -- lengths -----------------------------------------------------------------------------------------------------------


class WholeLengthOp(Operation):
    """Divide a length, or one element of a vector of lengths, by the share of the rows that is the rank's.

    Parameters
    ----------
    position : int
        Of the element.
    """

    __props__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position

    def make_node(self, lengths: Any) -> Any:
        return self.names.Apply(self, [lengths], [lengths.type()])

    def infer_shape(self, *arguments: Any) -> List[Any]:
        shapes: List[Any] = arguments[-1]
        return shapes

    def perform(self, node: Any, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        lengths = np.array(inputs[0])
        flat = lengths.reshape(-1)
        flat[self.position] = in_graph.whole_length(int(flat[self.position]))
        outputs[0][0] = lengths


class InverseShareOp(Operation):
    """How many times as many rows all ranks have as this one: a float64 of 0 dimensions.

    The input is what is computed from these rows: if they are divided inside the function, that comes first.
    """

    __props__ = ()

    def make_node(self, part: Any) -> Any:
        return self.names.Apply(self, [part], [self.names.tensor.dscalar()])

    def infer_shape(self, *arguments: Any) -> List[Any]:
        return [()]

    def perform(self, node: Any, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        outputs[0][0] = np.array(in_graph.inverse_share())
