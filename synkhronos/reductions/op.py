"""The reduce operations that users name, and the types that have them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Collection, Optional, Tuple

import numpy as np
from numpy.typing import DTypeLike

from ..errors import ArgumentTypeError, ArgumentValueError

NAMES: Tuple[Optional[str], ...] = ("avg", "sum", "prod", "min", "max", "gather", None)
"""What users may write."""

COMBINING = NAMES[:5]
"""Those that make one value of several, element by element; they need numbers."""

IN_GRAPH = ("avg", "sum", "min", "max")
"""Those of collectives that programs write into a function's graph."""

WHOLES = (*IN_GRAPH, "prod")
"""Those of collectives that are put into graphs, after their gradients were taken."""


class _Missing(Enum):
    MISSING = "MISSING"


MISSING = _Missing.MISSING
"""The op of an output or update for which the user gave none; None is an op."""


@dataclass(frozen=True)
class ReduceOp:
    """One of the reduce operations.

    Parameters
    ----------
    name : str or None
        ``"avg"``, ``"sum"``, ``"prod"``, ``"min"``, ``"max"``, ``"gather"``,
        or None: the master's own value.
    on_host : bool
        Whether the CPU transport is asked for (the prefix ``c_``).
    axis : int
        That of the rows, if an output of a function is gathered along it; users write no other than the first.
    dtypes : (str, str), optional
        Of an output of a function: in which ranks compute it and put it together, and to which it is rounded then.
    """

    name: Optional[str]
    on_host: bool = False
    axis: int = 0
    dtypes: Optional[Tuple[str, str]] = None

    def __reduce__(self) -> Any:
        # Ops travel with every command, and a dataclass by itself is slow.
        return _made, (self.name, self.on_host, self.axis, self.dtypes)

    def __str__(self) -> str:
        """Return the op as users write it."""
        return ("c_" if self.on_host else "") + str(self.name)

    @classmethod
    def parse(cls, op: object, argument: str = "op", allowed: Collection[Optional[str]] = NAMES) -> ReduceOp:
        """Return the op that the user means.

        Parameters
        ----------
        op : str, None or ReduceOp
            ``"sum"``, ``"c_sum"``, ...
        argument : str
            What error messages call it.
        allowed : collection of (str or None)
            The names that make sense here.

        Returns
        -------
        ReduceOp
            The op.

        Raises
        ------
        TypeError
            If ``op`` is not a string, None or ReduceOp.
        ValueError
            If there is no such op, or not here.

        Examples
        --------
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
            raise ArgumentValueError(
                argument, f"{listed(allowed)} ('c_' before it: by the CPU transport)", repr(str(op))
            )
        return parsed

    @classmethod
    def for_output(cls, op: object, dtype: DTypeLike, label: str) -> ReduceOp:
        """Return the op of a function's output: the given one, or ``avg`` if it is `MISSING`.

        Parameters
        ----------
        op : str, None, ReduceOp or MISSING
            What the user gave.
        dtype : dtype
            The type of the output.
        label : str
            What error messages call the output.

        Returns
        -------
        ReduceOp
            The op.

        Raises
        ------
        TypeError
            If ``op`` is of a wrong type, or the output's type cannot be
            reduced by it; integers and bools have no default op.
        ValueError
            If there is no such op.
        """
        parsed = AVG if op is MISSING else cls.parse(op, argument=f"the op of {label}")
        check_dtype(parsed, dtype, label)
        return parsed


@lru_cache(maxsize=32)
def _made(name: Optional[str], on_host: bool, axis: int, dtypes: Optional[Tuple[str, str]]) -> ReduceOp:
    return ReduceOp(name, on_host, axis, dtypes)


AVG = ReduceOp("avg")
"""What is done with floats if the user gives no op."""


def check_dtype(op: ReduceOp, dtype: DTypeLike, label: str, allowed: Collection[Optional[str]] = NAMES) -> None:
    """Refuse an op that a type does not have: ``avg`` of integers and bools, arithmetic of what is not a number.

    Parameters
    ----------
    op : ReduceOp
        The op.
    dtype : dtype
        The type of the values.
    label : str
        What the error message calls them.
    allowed : collection of (str or None)
        The names of ops that it may advise.

    Raises
    ------
    TypeError
        If the op is not defined for the type.

    Examples
    --------
    >>> check_dtype(ReduceOp("sum"), "int64", "output 0")
    """
    dtype = np.dtype(dtype)
    if op.name == "avg" and dtype.kind in "biu":
        others = [repr(name) for name in allowed if name not in ("avg", None)]
        if None in allowed:
            others.append("None (the master's own value)")
        raise ArgumentTypeError(
            label,
            "a floating-point type for 'avg', the default op (integers and bools have no average)",
            str(dtype),
            f"give the op {', '.join(others[:-1])} or {others[-1]}, or cast {label} to a float",
        )
    if op.name in COMBINING and dtype.kind not in "biufc":
        raise ArgumentTypeError(
            label,
            f"numbers, which alone can be reduced by '{op}'",
            str(dtype),
            "give the op 'gather' or None (the master's own value)",
        )


def compute_dtype(op: ReduceOp, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type, in the machine's byte order, that values of type ``dtype`` are accumulated in.

    Examples
    --------
    >>> compute_dtype(ReduceOp("sum"), np.dtype("float16"))
    dtype('float32')
    """
    wide = dtype == np.float16 and op.name in ("avg", "sum", "prod")
    return np.dtype(np.float32) if wide else dtype.newbyteorder("=")


def listed(names: Collection[Optional[str]]) -> str:
    """Return names as error messages list them."""
    return ", ".join(repr(name) for name in names)
