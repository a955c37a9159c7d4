"""Arrays with a number for each draw and row; every rank writes its own rows (`WrittenDraws`)."""

from __future__ import annotations

import math
import mmap
import os
import warnings
import weakref
from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.link.jax.linker import JAXLinker
from pytensor.link.numba.dispatch.basic import generate_fallback_impl, numba_funcify

import synkhronos as synk
from synkhronos.extending import check_free, current_session, nameless_file

Path = Union[str, "os.PathLike[str]"]


class WriteRows(Op):  # type: ignore[misc]  # untyped if PyTensor is not installed
    """Write this rank's rows of a draw to a file; return how many were written: 0 if their number is wrong.

    The inputs are the rows, their positions among all rows, and the number of the draw. The array begins at ``offset``.
    Mapping the file instead would cost page faults, and kill the rank if the disk is full.
    """

    __props__ = ("path", "offset", "n_rows")

    def __init__(self, path: str, offset: int, n_rows: int) -> None:
        self.path, self.offset, self.n_rows = path, offset, n_rows

    def make_node(self, rows: Variable, positions: Variable, draw: Variable) -> Apply:
        return Apply(self, [rows, positions, draw], [pt.lscalar()])

    def perform(self, node: Apply, inputs: Sequence[Any], outputs: List[List[Any]]) -> None:
        rows, positions, draw = inputs
        n_written = len(rows) if len(rows) == len(positions) else 0  # two ranks' mistakes must not cancel in the sum
        outputs[0][0] = np.asarray(n_written, np.int64)
        if n_written:
            content = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
            row_bytes = content.nbytes // len(rows)
            with open(self.path, "r+b", buffering=0) as file:
                file.seek(self.offset + (int(draw) * self.n_rows + int(positions[0])) * row_bytes)
                while content:
                    content = content[file.write(content) :]

    def do_constant_folding(self, fgraph: Any, node: Apply) -> bool:
        return False


@numba_funcify.register(WriteRows)  # type: ignore[untyped-decorator]
def in_object_mode(op: Op, node: Apply, **kwargs: Any) -> Any:
    """Return Numba's implementation of an operation that runs in Python."""
    with warnings.catch_warnings():  # running in Python is intended
        warnings.filterwarnings("ignore", "Numba will use object mode", UserWarning)
        return generate_fallback_impl(op, node=node, **kwargs)


class GatheredDraws:
    """Array of shape (n_chains, n_draws, n_rows, ...), in a ``.npy`` file or in memory; the master fills it with `put`.

    The function that computes a draw (its number, counted over all chains, is ``draw``) returns ``output``. Its
    additional inputs are ``variables``, with the values ``data``. A draw has at least ``nbytes`` bytes.
    """

    def __init__(self, rows: Variable, shape: Tuple[int, int, int], file: Optional[Path], draw: Variable) -> None:
        self.values: Any = None
        self.output: Tuple[Variable, str] = (rows, "gather")
        self.variables: List[Variable] = []
        self.data: List[synk.Data] = []
        self._shape, self._file, self._dtype = shape, file, np.dtype(rows.type.dtype)
        self.nbytes = shape[2] * self._dtype.itemsize

    def put(self, draw: int, result: Any) -> int:
        """Store the function's result for a draw if it contains all rows; return the number of its rows."""
        if len(result) == self._shape[2]:
            if self.values is None:
                self.values = self._create((*self._shape[:2], *result.shape))
            self.values[divmod(draw, self._shape[1])] = result
        return len(result)

    def _create(self, shape: Tuple[int, ...]) -> Any:
        if self._file is None:
            return np.empty(shape, self._dtype)
        return np.lib.format.open_memmap(self._file, "w+", self._dtype, shape)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close the file descriptor, if any."""


def can_be_written(rows: Variable, mode: Mode) -> bool:
    """Return whether ranks can write: all are on this host, JAX is not used, and the type contains a row's shape."""
    shape, uses_jax = rows.type.shape[1:], isinstance(mode.linker, JAXLinker)
    is_here = len(synk.hosts()) == 1 and current_session().launcher.runs_python
    return is_here and not uses_jax and None not in shape and 0 not in shape


class WrittenDraws(GatheredDraws):
    """Array that the ranks fill, each with its own rows, so that the master need not copy them."""

    def __init__(self, rows: Variable, shape: Tuple[int, int, int], file: Optional[Path], draw: Variable) -> None:
        super().__init__(rows, shape, file, draw)
        self._path = "" if file is None else os.path.abspath(file)
        self.values = self._create((*shape, *rows.type.shape[1:]))
        self.variables = [pt.lvector("positions")]
        self.data = [synk.data(np.arange(shape[2]), name="positions")]
        write = WriteRows(self._path, getattr(self.values, "offset", 0), shape[2])
        self.output = (write(rows, *self.variables, draw), "sum")

    def put(self, draw: int, result: Any) -> int:
        return int(result)

    def _create(self, shape: Tuple[int, ...]) -> Any:
        if self._file is not None:
            return super()._create(shape)
        fd, nbytes = nameless_file("draws"), math.prod(shape) * self._dtype.itemsize
        self._end = weakref.finalize(self, os.close, fd)
        self._path = f"/proc/{os.getpid()}/fd/{fd}"  # which the ranks can open
        check_free(fd, nbytes)
        os.ftruncate(fd, nbytes)
        private = mmap.mmap(fd, nbytes, access=mmap.ACCESS_COPY)  # a forked process has its own array
        return np.frombuffer(private, self._dtype).reshape(shape)

    def close(self) -> None:
        if self._file is None:
            self._end()
