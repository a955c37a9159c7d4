"""The data of a likelihood, and whether its log-probability can be divided by their rows."""

from __future__ import annotations

import os
from typing import Any, Iterable, List, Sequence, Set, Tuple

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
from pytensor.tensor.type import TensorType

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError


def as_data(values: Sequence[Any], labels: Sequence[str]) -> List[synk.Data]:
    """Return arrays as `Data`, all with the same number of rows; those that are `Data` already as they are.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        If one is not an array of numbers, has no rows, or has another number of rows than the first.
    """
    data: List[synk.Data] = []
    for value, label in zip(values, labels):
        if not isinstance(value, (synk.Data, np.memmap, str, os.PathLike)):
            if isinstance(value, Variable):
                got = f"a variable ({value})"
                raise ArgumentTypeError(label, "an array of numbers", got, "give its value: pm.Data has get_value()")
            value = np.asarray(value)
            if value.dtype.kind not in "biufc":
                raise ArgumentTypeError(label, "an array of numbers", f"dtype {value.dtype}", "convert it")
        data.append(value if isinstance(value, synk.Data) else synk.data(value, name=label))
        if not data[-1].shape:
            raise ArgumentValueError(label, "an array with rows", "a number", "write it into the function")
        if len(data[-1]) != len(data[0]):
            raise ArgumentValueError(label, f"{len(data[0])} rows, as {labels[0]} has", str(len(data[-1])))
    if not len(data[0]):
        raise ArgumentValueError(labels[0], "an array with rows", f"one of shape {data[0].shape}")
    return data


def variable_for(data: synk.Data, name: str) -> Variable:
    """Return a variable for any number of rows of the data."""
    return TensorType(str(data.dtype), shape=(None, *data.shape[1:]))(name)


def of_values(rows: Variable, model: pm.Model) -> Tuple[Variable, List[Variable], List[Variable]]:
    """Return a log-probability of value variables of a model as one of new variables, these, and what they are.

    There is a variable for each value variable, and for each shared variable with arrays or numbers.
    """
    reached = list(ancestors([rows]))
    found = [each for each in model.value_vars if each in set(reached)] + shared_values(reached)
    new = [each.type(each.name) for each in found]
    return clone_replace(rows, dict(zip(found, new))), new, found


def is_array(variable: Variable) -> bool:
    """Return whether a variable is an array of the model: a constant, or a shared variable as ``pm.Data``."""
    is_value = isinstance(variable, (Constant, SharedVariable)) and isinstance(variable.type, TensorType)
    return is_value and variable.type.ndim > 0


def value_of(variable: Variable) -> Any:
    """Return the value of such a variable."""
    return variable.data if isinstance(variable, Constant) else variable.get_value(borrow=True)


def shared_values(reached: Iterable[Variable]) -> List[Variable]:
    """Return the shared variables with arrays or numbers (``pm.Data`` are such) among those an expression depends on.

    Ranks would have values of their own for them, which do not change with those of the program.
    """
    return [each for each in reached if isinstance(each, SharedVariable) and isinstance(each.type, TensorType)]


def refuse_open_bounds(rows: Variable, name: str) -> None:
    """Refuse a log-probability that computes with a constant infinity: its gradient is not a number.

    PyMC's own is that of a truncated distribution with a shape, or with a parameter that has one: it takes its open
    bound for a number like any other.
    """
    infinite: Set[Variable] = set()
    for node in io_toposort([], [rows]):
        infinite.update(
            each
            for each in node.inputs
            if isinstance(each, Constant) and each.type.dtype.startswith("float") and np.isinf(each.data).all()
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
                got = f"one that computes with infinity ({node.op}), as an open bound of a truncated distribution"
                hint = (
                    'give data_parallel a whole model, pm.Truncated("y", ..., observed=y), or a bound that is finite '
                    "and so far out that it does not count"
                )
                raise ArgumentValueError(name, expected, got, hint)


def refuse_mixed_rows(rows: Variable, data: Sequence[Variable], params: Sequence[Variable], name: str) -> None:
    """Refuse a log-probability of which an element depends on more than one row of the data.

    It must lie over the ranks as the data do: each has its own rows, along the first axis.

    Raises
    ------
    ArgumentTypeError
        Names the operation that mixes rows.
    """
    if not rows.type.ndim:
        raise _mixed(name, "a single number for all of them (a sum over rows is data_parallel's own: leave it out)")
    try:
        found = synk.function(
            list(data),
            without_checks(rows),
            bcast_inputs=list(params),
            mode=Mode(linker="py", optimizer=None),
            name=name,
            on_unused_input="ignore",
        )
    except ArgumentTypeError as error:
        raise _mixed(name, "another: " + error.got.split("none: ", 1)[-1]) from None
    if found.output_modes != ["gather"]:
        raise _mixed(name, "one that is the same for all rows, or adds them up")
    placement: Any = found.sharding().outputs[0].placement  # a `Shard`: the output is gathered
    if placement.axis:
        raise _mixed(name, f"one with the rows along axis {placement.axis}")


def without_checks(rows: Variable) -> Variable:
    """Return a log-probability without checks of parameters: one for each rank's own rows gives -inf as one for all."""
    checks = [node for node in io_toposort([], [rows]) if isinstance(node.op, CheckParameterValue)]
    return clone_replace(rows, {node.outputs[0]: node.inputs[0] for node in checks})


def _mixed(name: str, got: str) -> ArgumentTypeError:
    expected = "a log-probability with an element for each row of the data, which depends on that row alone"
    hint = "what combines rows (a Gaussian process over them, a mean of them) cannot be divided: leave it in plain PyMC"
    return ArgumentTypeError(name, expected, got, hint)
