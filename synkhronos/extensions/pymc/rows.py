"""The data of a likelihood, and whether its log-probability can be divided by their rows."""

from __future__ import annotations

import os
from typing import Any, List, Sequence

import numpy as np
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
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
        hint = "return it for each row, and leave the sum to data_parallel"
        raise ArgumentTypeError(name, "a log-probability for each row of the data", "a single number", hint)
    try:
        found = synk.function(
            list(data),
            rows,
            bcast_inputs=list(params),
            mode=Mode(linker="py", optimizer=None),
            name=name,
            on_unused_input="ignore",
        )
    except ArgumentTypeError as error:
        raise _mixed(name, error.got[len("none: ") :] if error.got.startswith("none: ") else str(error)) from None
    if found.output_modes != ["gather"]:
        raise _mixed(name, "it is the same for all rows, or adds them up")
    axis = found.sharding().outputs[0].placement.axis
    if axis:
        raise _mixed(name, f"it has them along axis {axis}")


def _mixed(name: str, why: str) -> ArgumentTypeError:
    expected = "a log-probability with an element for each row of the data, which depends on that row alone"
    hint = "what combines rows (a Gaussian process over them, a mean of them) cannot be divided: leave it in plain PyMC"
    return ArgumentTypeError(name, expected, f"another: {why}", hint)
