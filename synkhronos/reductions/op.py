"""Reduce operations for users, and the types that support them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Collection, Optional, Sequence, Tuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import ArgumentTypeError, ArgumentValueError

Parts = Sequence[Optional[NDArray[Any]]]
"""The ranks' values of one array; None for a rank without a value."""

Weights = Optional[Sequence[Any]]
"""The ranks' weights in an average; None if they are equal."""

NAMES: Tuple[Optional[str], ...] = ("avg", "sum", "prod", "min", "max", "gather", None)
"""All ops that users may name."""

COMBINING = NAMES[:5]
"""Ops that combine several values into one, element by element; they require numbers."""

IN_GRAPH = ("avg", "sum", "min", "max")
"""Ops of collectives that programs write into a function's graph."""

WHOLES = (*IN_GRAPH, "prod")
"""Ops of collectives that are inserted into graphs after gradients have been computed."""


class _Missing(Enum):
    MISSING = "MISSING"


MISSING = _Missing.MISSING
"""Marks an output or update without an op from the user, because None is an op."""


@dataclass(frozen=True)
class ReduceOp:
    """A reduce operation; the name None stands for the master's own value.

    ``on_host`` requests the CPU transport (prefix ``c_``). For an output of a function, ``axis`` is the axis of
    gathered rows (0 in ops from users), and ``dtypes`` are the types of the reduction and of the result.
    """

    name: Optional[str]
    on_host: bool = False
    axis: int = 0
    dtypes: Optional[Tuple[str, str]] = None

    def __reduce__(self) -> Any:
        # Ops are sent with many commands, and default pickling of dataclasses is slow.
        return _made, (self.name, self.on_host, self.axis, self.dtypes)

    def __str__(self) -> str:
        return ("c_" if self.on_host else "") + str(self.name)

    @classmethod
    def parse(cls, op: object, argument: str = "op", allowed: Collection[Optional[str]] = NAMES) -> ReduceOp:
        """Return the op that the user has specified; raise TypeError or ValueError if it is invalid.

        ``argument`` is the argument's name in error messages; ``allowed`` are the valid names.

        >>> ReduceOp.parse("c_sum")
        ReduceOp(name='sum', on_host=True, axis=0, dtypes=None)
        """
        if op is None:
            parsed = cls(None)
        elif isinstance(op, str):
            on_host = op.startswith("c_")
            parsed = cls(op[2:] if on_host else op, on_host)
        elif isinstance(op, cls):
            parsed = op
        else:
            raise ArgumentTypeError(argument, listed(allowed), f"{op!r} of type {type(op).__name__}")
        if parsed.name not in allowed:
            expected = f"{listed(allowed)} (with prefix 'c_' for the CPU transport)"
            raise ArgumentValueError(argument, expected, repr(str(op)))
        return parsed

    @classmethod
    def for_output(cls, op: object, dtype: DTypeLike, label: str) -> ReduceOp:
        """Return the op of a function's output, ``avg`` if it is `MISSING`.

        Raises TypeError or ValueError, with the output's ``label``, if there is no such op or ``dtype`` does not
        support it. Integers and bools have no default op.
        """
        parsed = AVG if op is MISSING else cls.parse(op, argument=f"the op of {label}")
        check_dtype(parsed, dtype, label)
        return parsed


@lru_cache(maxsize=32)
def _made(name: Optional[str], on_host: bool, axis: int, dtypes: Optional[Tuple[str, str]]) -> ReduceOp:
    return ReduceOp(name, on_host, axis, dtypes)


AVG = ReduceOp("avg")
"""The default op for floats."""


def check_dtype(op: ReduceOp, dtype: DTypeLike, label: str, allowed: Collection[Optional[str]] = NAMES) -> None:
    """Raise TypeError for ``avg`` of integers and bools, and for arithmetic on types other than numbers.

    ``label`` names the values in the message; ``allowed`` are the ops that it may suggest.
    """
    dtype = np.dtype(dtype)
    if op.name == "avg" and dtype.kind in "biu":
        others = [repr(name) for name in allowed if name not in ("avg", None)]
        if None in allowed:
            others.append("None (the master's own value)")
        expected = "a floating-point type for 'avg', the default op (integers and bools have no average)"
        hint = f"use the op {', '.join(others[:-1])} or {others[-1]}, or cast {label} to a float"
        raise ArgumentTypeError(label, expected, str(dtype), hint)
    if op.name in COMBINING and dtype.kind not in "biufc":
        hint = "use the op 'gather' or None (the master's own value)"
        raise ArgumentTypeError(label, f"numbers, as required by '{op}'", str(dtype), hint)


def compute_dtype(op: ReduceOp, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type for accumulating ``dtype``, in native byte order: float32 for arithmetic with float16."""
    wide = dtype == np.float16 and op.name in ("avg", "sum", "prod")
    return np.dtype(np.float32) if wide else dtype.newbyteorder("=")


def listed(names: Collection[Optional[str]]) -> str:
    """Format names for error messages."""
    return ", ".join(repr(name) for name in names)
