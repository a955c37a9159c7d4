"""Sparse matrices with a row for each observation, as two dense arrays that can be divided by rows.

::

    matrix       values    columns
    3  .  5      3  5      0  2
    .  1  .      1  0      1  3       shorter rows are padded with an index past the last column

    matrix @ b = (values * concatenate([b, 0])[columns]).sum(axis=1)
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Sequence

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.sparse import Dot, StructuredDot
from pytensor.sparse.type import SparseTensorType

from synkhronos.errors import ArgumentTypeError, ArgumentValueError

#: The maximum number of elements in a row, as a multiple of the average over the rows.
MAX_LENGTH = 10

PRODUCTS = "dense arrays, or products sparse.dot(matrix, array) of a sparse matrix with one row for each observation"


class SparseRows(NamedTuple):
    """Variables for the rows of a sparse matrix."""

    values: Variable
    columns: Variable

    def dot(self, other: Variable, dtype: str) -> Variable:
        values = self.values if other.type.ndim == 1 else self.values[:, :, None]
        other = pt.concatenate([other, pt.zeros_like(other[:1])])  # zeros for the padding, because 0 * inf is NaN
        return (values * other[self.columns]).sum(axis=1, dtype=dtype)


def is_sparse(variable: Variable) -> bool:
    return isinstance(variable.type, SparseTensorType)


def refuse_sparse(
    variable: Variable, name: str, expected: str = PRODUCTS, others: Optional[Sequence[Variable]] = None
) -> None:
    """Refuse a variable called ``name`` that depends on sparse matrices, except through the variables in ``others``."""
    found = next((each for each in ancestors([variable], others) if is_sparse(each)), None)
    if found is not None:
        got = f"a sparse matrix ({found.name or found.type})"
        raise ArgumentTypeError(name, expected, got, "pass a dense array, such as matrix.toarray()")


def as_dense(matrix: Any, label: str) -> List[np.ndarray[Any, Any]]:
    """Return the arrays of `SparseRows` for a sparse matrix."""
    matrix = matrix.tocsr()
    n_elements = np.diff(matrix.indptr)
    width = max(int(n_elements.max(initial=0)), 1)
    if width > MAX_LENGTH * max(n_elements.mean(), 1):
        expected = f"a sparse matrix whose rows have at most {MAX_LENGTH} times the average number of elements"
        got = f"a row with {width} elements, where the average is {n_elements.mean():.3g}"
        raise ArgumentValueError(label, expected, got, "pass the columns with many elements as a separate, dense array")
    is_element = np.arange(width) < n_elements[:, None]
    values, columns = (np.zeros(is_element.shape, each.dtype) for each in (matrix.data, matrix.indices))
    values[is_element], columns[is_element] = matrix.data, matrix.indices
    return [values, np.where(is_element, columns, matrix.shape[1])]


def multiplied(node: Any, inputs: Sequence[Any]) -> List[Variable]:
    """Return a node's outputs, computed from `SparseRows`, or unchanged if it is not a product with a dense array."""
    first, other = inputs[0], inputs[-1]
    if not isinstance(node.op, (Dot, StructuredDot)) or not isinstance(other, Variable) or is_sparse(other):
        return list(node.outputs)
    return [first.dot(other, node.outputs[0].type.dtype)]
