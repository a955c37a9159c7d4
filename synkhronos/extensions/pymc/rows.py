"""The data of a likelihood, and checks that its log-probability can be divided by rows."""

from __future__ import annotations

import os
from typing import Any, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

import numpy as np
import pymc as pm
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scalar.basic import Add, Cast, Mul, Second, Sub, TrueDiv
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.type import TensorType

import synkhronos as synk
from synkhronos.errors import ArgumentError, ArgumentTypeError, ArgumentValueError
from synkhronos.extending import Shard

from .named_axes import ARRAY_TYPES, in_place_of, input_for, lowered


def as_data(values: Sequence[Any], labels: Sequence[str]) -> List[synk.Data]:
    """Convert arrays to `Data`; refuse arrays without numbers or rows, and arrays of different lengths."""
    data: List[synk.Data] = []
    for value, label in zip(values, labels):
        if not isinstance(value, (synk.Data, np.memmap, str, os.PathLike)):
            if isinstance(value, Variable):
                got = f"a variable ({value})"
                raise ArgumentTypeError(label, "an array of numbers", got, "pass its value (for pm.Data, get_value())")
            if hasattr(value, "toarray"):
                hint = "pass a dense array, such as matrix.toarray(), or a whole model"
                raise ArgumentTypeError(label, "an array of numbers", "a sparse matrix", hint)
            value = np.asarray(value)
            if value.dtype.kind not in "biufc":
                raise ArgumentTypeError(label, "an array of numbers", f"dtype {value.dtype}", "convert it to numbers")
        if isinstance(value, synk.Data):
            data.append(value)
        else:
            data.append(synk.data(value, name=label))
            data[-1].use_huge_pages()  # samplers read all rows thousands of times
        if not data[-1].shape:
            raise ArgumentValueError(label, "an array with rows", "a number", "write the number into the function")
        if len(data[-1]) != len(data[0]):
            raise ArgumentValueError(label, f"as many rows as {labels[0]} ({len(data[0])})", str(len(data[-1])))
    if not len(data[0]):
        raise ArgumentValueError(labels[0], "an array with rows", f"an array of shape {data[0].shape}")
    return data


def variable_for(data: synk.Data, name: str) -> Variable:
    return TensorType(str(data.dtype), shape=(None, *data.shape[1:]))(name)


def of_values(
    rows: Variable, model: pm.Model, lengths: Optional[Mapping[str, int]] = None, n_rows: Optional[int] = None
) -> Tuple[Variable, List[Variable], List[Variable]]:
    """Replace value variables and numeric shared variables; return the expression, inputs and replaced variables.

    ``lengths`` maps the named axes of the rows to their lengths.
    """
    reached = list(ancestors([rows]))
    found = [each for each in model.value_vars if each in set(reached)] + shared_values(reached)
    new = [input_for(each, lengths or {}, _with_rows(model, each, n_rows)) for each in found]
    replaced = {old: in_place_of(each, old) for each, old in zip(new, found)}
    return lowered(clone_replace(rows, replaced)), new, found


def _with_rows(model: pm.Model, value: Variable, n_rows: Optional[int]) -> Optional[int]:
    """Return ``n_rows`` if a value variable has this length but its type does not (with ``dims=``); None otherwise."""
    rv = model.values_to_rvs.get(value)
    if rv is None or n_rows is None or not isinstance(value.type, TensorType) or value.type.shape[:1] != (None,):
        return None
    is_equal = int(rv.shape[0].eval()) == n_rows and model.eval_rv_shapes()[value.name][0] == n_rows
    return n_rows if is_equal else None


def is_array(variable: Variable) -> bool:
    """Return whether a variable is an array in the model: a constant, or a shared variable such as ``pm.Data``."""
    is_value = isinstance(variable, (Constant, SharedVariable)) and isinstance(variable.type, ARRAY_TYPES)
    return is_value and variable.type.ndim > 0


def value_of(variable: Variable) -> Any:
    return variable.data if isinstance(variable, Constant) else variable.get_value(borrow=True)


def shared_values(reached: Iterable[Variable]) -> List[Variable]:
    """Return the numeric shared variables, such as ``pm.Data``, among ``reached``.

    Left in the graph, they would be copied to the ranks and would not reflect the program's changes.
    """
    return [each for each in reached if isinstance(each, SharedVariable) and isinstance(each.type, ARRAY_TYPES)]


def refuse_open_bounds(rows: Variable, name: str) -> None:
    """Refuse a log-probability that computes with a constant infinity, because its gradient would be NaN.

    PyMC treats an open (infinite) bound as a number if the truncated distribution or a parameter has a shape.
    """
    infinite: Set[Variable] = set()
    for node in io_toposort([], [rows]):
        infinite.update(
            each
            for each in node.inputs
            if isinstance(each, Constant)
            and isinstance(each.data, (np.ndarray, np.generic))
            and each.data.dtype.kind == "f"
            and np.isinf(each.data).all()
        )
        if not any(each in infinite for each in node.inputs):
            continue
        if isinstance(node.op, DimShuffle):
            infinite.update(node.outputs)
        elif isinstance(node.op, Elemwise):
            scalar_op = node.op.scalar_op
            if isinstance(scalar_op, (Second, Cast)) and node.inputs[-1] in infinite:
                infinite.update(node.outputs)
            elif isinstance(scalar_op, (Add, Sub, Mul, TrueDiv)):
                expected = "a log-probability with a gradient"
                got = f"computations ({node.op}) with infinite values, such as open bounds of truncated distributions"
                hint = (
                    'pass a whole model to data_parallel, with pm.Truncated("y", ..., observed=y), or use a finite '
                    "bound that is far outside the data"
                )
                raise ArgumentValueError(name, expected, got, hint)


def of_any_rows(
    rows: Variable, data: Sequence[Variable], params: Sequence[Variable], name: str, n_rows: int
) -> Tuple[Variable, bool]:
    """Return a log-probability for any number of rows, and whether the given one contains ``n_rows`` as a length.

    Refuses a log-probability with elements that depend on several rows; the error names the operation. The elements
    must be placed on the ranks like the data, along the first axis.
    """
    if not rows.type.ndim:
        raise _mixed(name, "a single number for all rows (omit the sum over rows; data_parallel adds it)")
    refusal = None
    for number in (None, n_rows):
        if number is None and _fixes_rows(rows, n_rows):
            continue
        try:
            found = _placed(rows, data, params, name, number)
            if number is None:
                return rows, False
            engine = found.engine
            snapshot = engine.snapshot([*data, *params], [rows], [], None, on_unused_input="ignore", name=name)
            snapshot, _ = engine.with_rows(snapshot, {each: Shard(0) for each in data}, n_rows, [0])
            of_any: Variable = snapshot.outputs[0].variable
            _placed(of_any, data, params, name, None)  # raises if a fixed number of rows remains
            return of_any, True
        except ArgumentError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def _placed(
    rows: Variable, data: Sequence[Variable], params: Sequence[Variable], name: str, n_rows: Optional[int]
) -> synk.Function:
    """Return the function of the log-probabilities; refuse any that a rank cannot compute from its own rows."""
    try:
        found = synk.function(
            list(data),
            without_checks(rows),
            bcast_inputs=list(params),
            mode=Mode(linker="py", optimizer=None),
            name=name,
            on_unused_input="ignore",
            rows=n_rows,
        )
    except ArgumentTypeError as error:
        raise _mixed(name, "a log-probability that combines rows: " + error.got.split("none: ", 1)[-1]) from None
    if found.output_modes != ["gather"]:
        raise _mixed(name, "a log-probability that is the same for all rows, or sums over rows")
    placement: Any = found.sharding().outputs[0].placement  # a `Shard`: the output is gathered
    if placement.axis:
        raise _mixed(name, f"a log-probability with the rows along axis {placement.axis}")
    return found


def _fixes_rows(rows: Variable, n_rows: int) -> bool:
    """Return whether the graph checks that an array has ``n_rows`` rows."""
    nodes = io_toposort([], [rows])
    return any(isinstance(node.op, SpecifyShape) and node.outputs[0].type.shape[:1] == (n_rows,) for node in nodes)


def without_checks(rows: Variable) -> Variable:
    """Return a log-probability without its parameter checks, which combine rows; `ParameterChecks` handles them."""
    while True:  # checks can be nested: the inputs of a replaced check can contain further checks, as in a mixture
        checks = [node for node in io_toposort([], [rows]) if isinstance(node.op, CheckParameterValue)]
        if not checks:
            return rows
        rows = clone_replace(rows, {node.outputs[0]: node.inputs[0] for node in checks})


def _mixed(name: str, got: str) -> ArgumentTypeError:
    expected = "a log-probability with an element for each row of the data, which depends on that row alone"
    hint = "a model that combines rows (a Gaussian process, a mean over rows) cannot be divided: use plain PyMC for it"
    return ArgumentTypeError(name, expected, got, hint)
