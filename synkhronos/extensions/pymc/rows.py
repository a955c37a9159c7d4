"""The data of a likelihood, and whether its log-probability can be divided by their rows."""

from __future__ import annotations

import os
from typing import Any, List, Sequence

import numpy as np
from pymc.logprob.utils import CheckParameterValue
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import io_toposort
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
    axis = found.sharding().outputs[0].placement.axis
    if axis:
        raise _mixed(name, f"one with the rows along axis {axis}")


def without_checks(rows: Variable) -> Variable:
    """Return a log-probability without checks of parameters: one for each rank's own rows gives -inf as one for all."""
    checks = [node for node in io_toposort([], [rows]) if isinstance(node.op, CheckParameterValue)]
    return clone_replace(rows, {node.outputs[0]: node.inputs[0] for node in checks})


def _mixed(name: str, got: str) -> ArgumentTypeError:
    expected = "a log-probability with an element for each row of the data, which depends on that row alone"
    hint = "what combines rows (a Gaussian process over them, a mean of them) cannot be divided: leave it in plain PyMC"
    return ArgumentTypeError(name, expected, got, hint)
