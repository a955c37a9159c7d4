"""Backings: the memory behind a `Data`, one class per kind.

::

                     array             memory                    handle
    PoolBacking      part of memory    a range of the pool       fixed
    NamedBacking     part of memory    with a POSIX name         valid while named
    FileBacking      an np.memmap      none to overwrite         checked against the file each time
    NoBacking        none              none                      none

Backings are immutable. A Data that changes replaces its backing in one assignment, so an interrupt leaves either the
old or the new state. If memory is overwritten for another shape, signals are deferred until the backing is replaced.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, ContextManager, Optional, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentValueError
from ..host.signals import DeferredSignals
from . import mapped_file
from .handles import FileHandle, Handle, NameHandle
from .pool import Pool
from .posix_names import NamedMemory


class Backing:
    """The memory that contains the value of a `Data`.

    ``array`` is the value. It begins at the start of ``memory``, where the next value may replace it. ``fixed_handle``
    is the array's handle if it stays valid for the life of this backing.
    """

    array: Optional[NDArray[Any]] = None
    memory: Optional[NDArray[Any]] = None
    fixed_handle: Optional[Handle] = None

    def __init__(self, shape: Tuple[int, ...]) -> None:
        self.shape = shape

    @property
    def note(self) -> str:
        return ""

    @property
    def keeps_memory(self) -> bool:
        """Whether every value must be written into `memory`, because other programs may have mapped it."""
        return False

    def memory_for(self, shape: Tuple[int, ...], nbytes: int) -> Optional[NDArray[Any]]:
        """Return `memory` if it has at least ``nbytes`` bytes; None if new memory is needed."""
        return self.memory if self.memory is not None and nbytes <= self.memory.nbytes else None

    def showing(self, array: NDArray[Any]) -> Backing:
        """Return a backing for another array at the start of the same memory."""
        raise NotImplementedError

    def first_rows(self, array: NDArray[Any]) -> Optional[Backing]:
        """Return a backing for ``array``, the value's first rows, if this needs no writable memory, else None."""
        return None

    def attachable(self, pool: Pool) -> Backing:
        """Return a backing of the same value that other ranks can attach: this backing if possible."""
        return self

    def handle(self) -> Union[Handle, FileHandle, NameHandle]:
        """Return the handle that other ranks pass to `PoolMap.attach`."""
        raise NotImplementedError

    def unlink(self) -> None:
        """Remove the name of the memory, if it has one."""

    def constant(self) -> Backing:
        """Return a read-only backing for the same value, which is never written again."""
        raise NotImplementedError


class NoBacking(Backing):
    """Backing without memory: only the shape of a Data without a value, as after ``free_memory``."""

    @property
    def note(self) -> str:
        return ", freed"


class PoolBacking(Backing):
    array: NDArray[Any]
    memory: NDArray[Any]
    fixed_handle: Handle

    def __init__(self, pool: Pool, memory: NDArray[Any], array: NDArray[Any], constant: bool = False) -> None:
        super().__init__(array.shape)
        self._pool, self.memory, self.array = pool, memory, array
        self.fixed_handle = pool.constant_handle(array) if constant else pool.handle(array)

    def showing(self, array: NDArray[Any]) -> Backing:
        return PoolBacking(self._pool, self.memory, array)

    def handle(self) -> Handle:
        return self.fixed_handle

    def constant(self) -> Backing:
        return PoolBacking(self._pool, self.memory, _read_only(self.array), constant=True)


class NamedBacking(Backing):
    """Backing in memory with a POSIX name, which other programs may have mapped."""

    array: NDArray[Any]
    memory: NDArray[Any]

    def __init__(self, named: NamedMemory, array: NDArray[Any]) -> None:
        super().__init__(array.shape)
        self._named, self.memory, self.array = named, named.memory, array

    @property
    def note(self) -> str:
        return f", shared as {self._named.name}" if self._named.linked else ""

    @property
    def keeps_memory(self) -> bool:
        return self._named.linked

    def memory_for(self, shape: Tuple[int, ...], nbytes: int) -> Optional[NDArray[Any]]:
        memory = super().memory_for(shape, nbytes)
        if memory is None and self._named.linked:
            raise ArgumentValueError(
                "shape",
                f"a shape that fits the {self._named.memory.nbytes} bytes of the shared memory {self._named.name}, "
                "which cannot grow because other programs may have mapped it",
                f"{shape}, which needs {nbytes} bytes",
                "create it with oversize, or call unshare() first",
            )
        return memory

    def showing(self, array: NDArray[Any]) -> Backing:
        return NamedBacking(self._named, array)

    def attachable(self, pool: Pool) -> Backing:
        if self._named.linked:
            return self
        memory = pool.allocate((self.array.nbytes,), np.uint8)  # other ranks can no longer open the named memory
        moved: NDArray[Any] = np.ndarray(self.array.shape, self.array.dtype, memory)
        moved[...] = self.array
        return PoolBacking(pool, memory, moved)

    def handle(self) -> NameHandle:
        return self._named.handle(self.array)

    def unlink(self) -> None:
        self._named.unlink()


class FileBacking(Backing):
    """Backing in a file that every rank maps."""

    array: NDArray[Any]

    def __init__(self, array: NDArray[Any], handle: FileHandle) -> None:
        super().__init__(array.shape)
        self.array, self._handle = array, handle

    @property
    def note(self) -> str:
        return f", mapped from {self._handle.path}"

    def first_rows(self, array: NDArray[Any]) -> Backing:
        return FileBacking(array, self._handle._replace(shape=array.shape))

    def handle(self) -> FileHandle:
        """Return the handle; raise `ValueError` if the file was deleted, replaced or shortened."""
        mapped_file.check(self._handle)
        return self._handle

    def constant(self) -> Backing:
        array = _read_only(self.array)
        return FileBacking(array, mapped_file.describe(array))


class Storage:
    """Storage for the value of a Data, kept through all changes of its shape; without a value at first.

    ``backing`` is the current memory. If ``is_constant``, the value is final and read-only.
    """

    def __init__(self, pool: Pool, dtype: np.dtype[Any], ndim: int) -> None:
        self.pool, self.dtype = pool, dtype
        self.backing: Backing = NoBacking((0,) * ndim)
        self.is_constant = False

    def name(self, name: str, shape: Tuple[int, ...], oversize: float) -> None:
        """Allocate memory with a POSIX name, large enough for ``shape``."""
        named = self.pool.share(name, self._nbytes(shape, oversize))
        self.backing = NamedBacking(named, np.ndarray((0,) * len(shape), self.dtype, named.memory))

    def maps(self, value: NDArray[Any]) -> bool:
        """Return whether `store` would map the value's file instead of copying."""
        return not self.backing.keeps_memory and value.dtype == self.dtype and mapped_file.is_mapped(value)

    def store(self, value: NDArray[Any], oversize: float) -> None:
        """Store a value: map its file if `maps` returns True, otherwise copy the value."""
        if self.maps(value):
            self.backing = FileBacking(value, mapped_file.describe(value))
            return
        memory = self._memory_for(value.shape, oversize)
        if memory is self.backing.memory and value.dtype != self.dtype:
            value = np.array(value, self.dtype)  # may fail, so convert before anything is written
        array: NDArray[Any] = np.ndarray(value.shape, self.dtype, memory)
        backing = self._showing(array, memory)
        with self._guarded(array, memory):
            np.copyto(array, value, casting="unsafe")  # correct even if the value overlaps the memory
            self.backing = backing

    def reshape(self, shape: Tuple[int, ...], oversize: float) -> None:
        """Change the shape; keep the elements common to both shapes and set all other elements to 0."""
        backing = self.backing
        old, same_rows = backing.array, shape[1:] == backing.shape[1:]
        corner = tuple(slice(min(pair)) for pair in zip(shape, backing.shape))
        if old is not None and same_rows and shape <= backing.shape:
            fewer = backing.first_rows(old[: shape[0]] if shape else old)
            if fewer is not None:
                self.backing = fewer
                return
        memory = self._memory_for(shape, oversize)
        new: NDArray[Any] = np.ndarray(shape, self.dtype, memory)
        if old is None:
            memory[: new.nbytes] = 0
        elif same_rows:  # kept rows are at the start, in the same order
            if memory is not backing.memory:
                new[corner] = old[corner]
            memory[min(old.nbytes, new.nbytes) : new.nbytes] = 0
        else:
            kept = old[corner].copy() if memory is backing.memory else old[corner]
            changed = self._showing(new, memory)
            with self._guarded(new, memory):
                memory[: new.nbytes] = 0
                new[corner] = kept
                self.backing = changed
            return
        self.backing = self._showing(new, memory)

    def seal(self) -> None:
        """Make the value final and read-only."""
        self.backing, self.is_constant = self.backing.constant(), True

    def put_on_devices(self) -> None:
        """Mark a final value in a pool, so that ranks on devices copy it there."""
        if isinstance(self.backing, PoolBacking):
            self.backing.fixed_handle = self.backing.fixed_handle._replace(on_device=True)

    def free(self) -> None:
        """Remove the memory's name, and release the memory when its last view dies; the shape then has no rows."""
        self.backing.unlink()
        shape = self.backing.shape
        self.backing = NoBacking((0,) * min(1, len(shape)) + shape[1:])

    def handle(self) -> Union[Handle, FileHandle, NameHandle]:
        """Return the handle of the value, which must exist."""
        self.backing = self.backing.attachable(self.pool)
        return self.backing.handle()

    def _memory_for(self, shape: Tuple[int, ...], oversize: float) -> NDArray[Any]:
        memory = self.backing.memory_for(shape, self._nbytes(shape))
        return self.pool.allocate((self._nbytes(shape, oversize),), np.uint8) if memory is None else memory

    def _showing(self, array: NDArray[Any], memory: NDArray[Any]) -> Backing:
        same = memory is self.backing.memory
        return self.backing.showing(array) if same else PoolBacking(self.pool, memory, array)

    def _guarded(self, array: NDArray[Any], memory: NDArray[Any]) -> ContextManager[None]:
        """Return a context manager that defers signal handlers while value and backing are replaced, if necessary."""
        reshaped = memory is self.backing.memory and array.shape != self.backing.shape
        return DeferredSignals() if reshaped else nullcontext()  # with the same shape, one NumPy call does everything

    def _nbytes(self, shape: Tuple[int, ...], oversize: float = 1) -> int:
        size = math.prod(shape)
        return max(size, math.ceil(size * oversize)) * self.dtype.itemsize


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view
