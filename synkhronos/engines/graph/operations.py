"""Library-independent operations across ranks; outside a call on ranks, the process acts as the only rank."""

from __future__ import annotations

from typing import Any, Callable, ClassVar, List, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np

from ... import in_graph
from ...reductions import ReduceOp

UNNUMBERED = -1


class Names(NamedTuple):
    """Objects of a tensor library that the operations across ranks use."""

    Apply: Type[Any]
    tensor: Any
    discrete_dtypes: Sequence[str]
    disconnected_type: Any
    grad_not_implemented: Callable[..., Any]
    float_dtype: Callable[[], str]  # of gradients with respect to integers


class GraphOperation:
    """Base class of the operations across ranks; a library's subclass also derives from the library's ``Op``."""

    names: ClassVar[Names]

    def do_constant_folding(self, *_: Any) -> bool:
        """Prevent constant folding, because results may differ between ranks and calls even for constants."""
        return False

    def is_connected(self, variable: Any) -> bool:
        return variable is not None and not isinstance(variable.type, type(self.names.disconnected_type))


class AllReduceOp(GraphOperation):
    """Reduction of variables over all ranks in one collective: ``y_r := op(x_0, ..., x_{n-1})`` for each variable.

    Programs build the first of three forms; `graph.collectives` replaces it in the ranks' graph::

        in a program                identity outside a call; may return its arguments; has a gradient (avg, sum)
        numbered                    in a branch of a condition; ranks compare its number at run time
        numbered, with a token      the last input is the previous collective's token, the last output is its own token;
                                    tokens preserve the order through all optimizations and linkers
    """

    __props__ = ("op", "n", "number", "has_token")
    method: ClassVar[str] = "all_reduce"  # of `in_graph.CurrentCall`

    def __init__(self, op: ReduceOp, n: int, number: int = UNNUMBERED, has_token: bool = False) -> None:
        self.op, self.n, self.number, self.has_token = op, n, number, has_token
        if number == UNNUMBERED:
            self.view_map = {i: [i] for i in range(n)}

    def __str__(self) -> str:
        return f"AllReduce{{{self.op}}}" if self.number == UNNUMBERED else f"AllReduce{{{self.op}, {self.number}}}"

    @classmethod
    def first_token(cls) -> Any:
        return cls.names.tensor.constant(np.zeros((), np.int8))

    def in_order(self, number: int, inputs: Sequence[Any], token: Optional[Any]) -> Tuple[List[Any], Optional[Any]]:
        """Return the results of the numbered form, and its token (None without ``token``)."""
        cls = type(self)
        if token is None:
            return cls(self.op, self.n, number).make_node(*inputs).outputs, None
        *outputs, after = cls(self.op, self.n, number, True).make_node(*inputs, token).outputs
        return outputs, after

    def make_node(self, *inputs: Any) -> Any:
        outputs = [self.output(i, variable) for i, variable in enumerate(inputs)]
        if self.number != UNNUMBERED:
            for output in outputs:
                output.tag.indestructible = True  # no in-place operations, because ranks may share the memory
        return self.names.Apply(self, list(inputs), outputs)

    def output(self, i: int, variable: Any) -> Any:
        """Return a new variable for the i-th result, of an input or of the token."""
        return variable.type()

    def infer_shape(self, *arguments: Any) -> List[Any]:
        shapes: List[Any] = arguments[-1]
        return shapes

    def connection_pattern(self, node: Any) -> List[List[bool]]:
        positions = range(len(node.inputs))
        return [[i == j and i < self.n for j in positions] for i in positions]

    def gradients(self, inputs: Sequence[Any], output_grads: Sequence[Any]) -> List[Any]:
        """Reduce the gradients with the same op: ``avg`` suits losses that are means over rows, ``sum`` suits sums.

        For ``y = sum_s w_s x_s`` and a loss ``sum_r w_r l_r(y)``, the derivative with respect to ``x_s`` is ``w_s``
        times ``sum_r w_r dl_r/dy``. For a mean over rows, rank s therefore contributes the ``avg`` of the gradients.
        Without weights, rank s contributes the ``sum`` of the gradients.
        """
        names = self.names
        if self.op.name in ("min", "max"):
            why = f"all_reduce with {self.op.name!r} has no gradient: use 'avg' or 'sum', or disconnected_grad"
            return [names.grad_not_implemented(self, i, variable, why) for i, variable in enumerate(inputs)]
        results = list(output_grads)
        for i, variable in enumerate(inputs):
            if variable.dtype in names.discrete_dtypes and self.is_connected(results[i]):
                results[i] = names.tensor.zeros_like(variable, dtype=names.float_dtype())
        return self._reduced(results, lambda i: inputs[i].dtype not in names.discrete_dtypes)

    def tangents(self, inputs: Sequence[Any], points: Sequence[Any]) -> List[Any]:
        """Reduce the directions of the R-operator; leave None and disconnected directions unchanged."""
        if self.op.name in ("min", "max"):
            raise NotImplementedError(f"all_reduce with {self.op.name!r} has no R-operator: use 'avg' or 'sum'")
        return self._reduced(list(points), lambda i: True)

    def _reduced(self, variables: List[Any], is_wanted: Callable[[int], bool]) -> List[Any]:
        """Reduce the wanted, connected variables in one collective; leave all other variables unchanged."""
        chosen = [i for i, variable in enumerate(variables) if is_wanted(i) and self.is_connected(variable)]
        if chosen:
            reduce: Any = type(self)(self.op, len(chosen))
            reduced = reduce(*[variables[i] for i in chosen], return_list=True)
            for i, result in zip(chosen, reduced):
                variables[i] = result
        return variables

    def perform(self, node: Any, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        # The Python code of some operations returns a NumPy scalar for an array type.
        arrays = [np.asarray(value) if isinstance(value, np.generic) else value for value in inputs[: self.n]]
        try:
            results = in_graph.all_reduce(self.number, self.op, arrays, self.method)
        except BaseException as error:
            # Libraries propagate only KeyboardInterrupt unchanged. They rebuild other exceptions without
            # their attributes, and print failures. The call has stored the error and raises it.
            raise KeyboardInterrupt from error
        for array, result, output in zip(arrays, results, outputs):
            if result is array and self.number != UNNUMBERED:
                result = result.copy()  # reuse of the argument's memory must not change the result
            output[0] = result
        if self.has_token:
            outputs[self.n][0] = np.zeros((), np.int8)


class ReducePartsOp(AllReduceOp):
    """Reduction over all ranks; each rank receives its part of the elements, as a vector (see `dividing`)."""

    method = "reduce_parts"
    shape_error: ClassVar[Type[Exception]]

    def output(self, i: int, variable: Any) -> Any:
        return self.names.tensor.vector(dtype=variable.dtype) if i < self.n else variable.type()

    def infer_shape(self, *arguments: Any) -> List[Any]:
        raise self.shape_error("the length of a rank's part")


class CombinePartsOp(AllReduceOp):
    """Reduction over all ranks of values that each rank has reduced from its part of the elements (see `dividing`)."""

    method = "combine_parts"


class TakePartOp(GraphOperation):
    """Operation that selects the rank's part of the elements of a value that all ranks have."""

    __props__ = ()
    view_map = {0: [0]}

    def make_node(self, array: Any) -> Any:
        return self.names.Apply(self, [array], [self.names.tensor.vector(dtype=array.dtype)])

    def perform(self, node: Any, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        begin, end = in_graph.part(inputs[0].size)
        outputs[0][0] = inputs[0].reshape(-1)[begin:end]


class CheckShapesOp(GraphOperation):
    """Operation that returns ``part`` unchanged if all arrays have one shape.

    Otherwise, it raises a ValueError, as an elementwise operation on the arrays does.
    """

    __props__ = ()
    view_map = {0: [0]}

    def make_node(self, part: Any, *arrays: Any) -> Any:
        return self.names.Apply(self, [part, *arrays], [part.type()])

    def perform(self, node: Any, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        shapes = [each.shape for each in inputs[1:]]
        if shapes.count(shapes[0]) < len(shapes):
            raise ValueError(f"elementwise update: expected arrays of one shape, got shapes {shapes}")
        outputs[0][0] = inputs[0]


class ShareOp(GraphOperation):
    """Base class of operations on the rank's rows along an axis."""

    __props__ = ("axis",)

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def rows_of(self, array: Any) -> Tuple[Any, ...]:
        """Return the index that selects the rank's rows of ``array`` in the current call."""
        begin, end = in_graph.share(array.shape[self.axis])
        return (slice(None),) * self.axis + (slice(begin, end),)


class TakeShareOp(ShareOp):
    """Operation that selects the rank's rows of a replicated value."""

    view_map = {0: [0]}
    #: The operation of the same library that computes the gradient.
    put: ClassVar[Any]

    def perform(self, node: Any, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        outputs[0][0] = inputs[0][self.rows_of(inputs[0])]

    def gradients(self, inputs: Sequence[Any], output_grads: Sequence[Any]) -> List[Any]:
        (gradient,) = output_grads
        return [type(self).put(self.axis)(inputs[0], gradient) if self.is_connected(gradient) else gradient]

    def tangents(self, inputs: Sequence[Any], points: Sequence[Any]) -> List[Any]:
        (point,) = points
        take: Any = self
        return [take(point) if self.is_connected(point) else point]


class PutShareOp(ShareOp):
    """Operation that puts the rank's rows into an array of zeros shaped like the first input: a partial of a sum."""

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
        return [self.names.disconnected_type(), rows]

    def tangents(self, inputs: Sequence[Any], points: Sequence[Any]) -> List[Any]:
        put: Any = self
        return [put(inputs[0], points[1]) if self.is_connected(points[1]) else points[1]]


class DraftOp(GraphOperation):
    """Operation that represents a whole graph in a function that is compiled only for its inputs and output types."""

    def results(self, expressions: Sequence[Any], inputs: Sequence[Any]) -> List[Any]:
        """Return variables with the types and names of the expressions, computed from the inputs of their graph."""
        results: List[Any] = self.names.Apply(self, inputs, [one.type(one.name) for one in expressions]).outputs
        return results

    def perform(self, node: Any, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        raise AssertionError("a draft is never called")


class WholeLengthOp(GraphOperation):
    """Operation that scales a length, or an element of a vector of lengths, from the rank's rows to all rows."""

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


class InverseShareOp(GraphOperation):
    """Inverse of the rank's share of rows, a 0-d float64; the operation's input makes it run after rows are divided."""

    __props__ = ()

    def make_node(self, part: Any) -> Any:
        return self.names.Apply(self, [part], [self.names.tensor.dscalar()])

    def infer_shape(self, *arguments: Any) -> List[Any]:
        return [()]

    def perform(self, node: Any, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        outputs[0][0] = np.array(in_graph.inverse_share())
