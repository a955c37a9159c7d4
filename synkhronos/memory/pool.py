"""The pool: one process's shared memory, allocated as NumPy arrays."""

from __future__ import annotations

import errno
import gc
import itertools
import math
import mmap
import os
import resource
import sys
import threading
import weakref
from collections import deque
from operator import index
from typing import Any, Deque, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentTypeError, ArgumentValueError, SharedMemoryError, StateError
from ..host.units import readable_bytes
from ..trace import point
from .dtypes import own
from .free_list import FreeList
from .handles import Handle, address, extent
from .huge_pages import use_huge_pages
from .memfd import nameless_file, reserve
from .posix_names import NamedMemory

MAX_NDIM = 32  # maximum number of dimensions, as in NumPy 1

#: Address space of a pool, if available; only reserved pages consume memory.
WINDOW_BYTES = 1 << 40
_MIN_WINDOW_BYTES = 64 << 20
_ALIGNMENT_BYTES = 64
_CHECK_EVERY_BYTES = 1 << 20  # reserved bytes between two checks of the machine's free memory
_RELEASE_FROM_BYTES = 64 << 10  # freed ranges of at least this size are released immediately, smaller ranges in batches


class Pool:
    """The shared memory of one process: arrays in one sparse unnamed file, mapped once into a huge window.

    Pages are reserved when an array is allocated, and released after its last view dies. Only the process that created
    this object can allocate; a forked child keeps its view of the arrays and frees nothing. ``ident`` is the pool's id
    in handles. The window is smaller if less address space is available (``ulimit -v``). For the pool of a process that
    has died, ``taken`` lists the ranges (first byte, size) to keep until they are adopted. Others are released, but
    reused only after `free_unadopted`, because surviving ranks may still write to them.

    >>> pool = Pool(0)
    >>> x = pool.allocate((2, 3), "float32")
    >>> x[:] = 1
    >>> from synkhronos.memory.attach import PoolMap
    >>> peer = PoolMap()
    >>> peer.add(0, pool.fileno())
    >>> float(peer.attach(pool.handle(x[:, ::-1])).sum())
    6.0
    """

    def __init__(
        self, ident: int, window: int = WINDOW_BYTES, fd: Optional[int] = None, taken: Sequence[Tuple[int, int]] = ()
    ) -> None:
        self.ident = ident
        self._owner = os.getpid()
        self._fd = nameless_file("pool", 0) if fd is None else fd
        self._close = weakref.finalize(self, os.close, self._fd)
        self._close.atexit = False  # exit handlers that run later may still need the descriptor
        # Never closed, because NumPy's arrays refer to the mapping but would not prevent its closing.
        self._mapping = _map_window(self._fd, window)
        self._window = len(self._mapping)
        self._address = address(np.ndarray((1,), np.uint8, self._mapping))
        self._named: weakref.WeakSet[NamedMemory] = weakref.WeakSet()
        self._constants = itertools.count(1)
        # The lock protects the attributes below. Garbage collection may free an array while this thread owns the lock.
        # So the array's range waits in `_freed` until the owner of the lock reclaims it.
        self._lock = threading.Lock()
        self._freed: Deque[Tuple[int, int]] = deque()
        self._free = FreeList(self._window)
        self._used = 0
        self._top = 0  # no page above this offset was ever reserved
        self._kept = 0  # bytes of small freed ranges with reserved pages
        self._unchecked = 0  # bytes reserved since the last check of the machine's memory
        self._taken = dict(taken)
        self._take_all(taken)
        if fd is not None:
            end = end_of_data(self._fd)
            between = [(low, min(high, end) - low) for low, high in self._free if low < end]
            for low, size in between:
                self._release(low, low + size, low, low + size)
            self._take_all(between)
            self._taken.update(between)

    def __repr__(self) -> str:
        state = "" if self._close.alive else " closed"
        used, window = readable_bytes(self._used), readable_bytes(self._window)
        return f"<Pool {self.ident}: {used} used of a window of {window}{state}>"

    def _take_all(self, ranges: Sequence[Tuple[int, int]]) -> None:
        for start, size in ranges:
            self._free.take_at(start, size)
            self._used += size
            self._top = max(self._top, start + size)

    @property
    def used(self) -> int:
        """The total size of live arrays, each rounded up to a multiple of 64 bytes."""
        return self._used

    def fileno(self) -> int:
        """Return the descriptor of the file that peers map."""
        self._check_open()
        return self._fd

    def close(self) -> None:
        """Close the descriptor; arrays stay valid. Idempotent."""
        self._close()

    @point("memory")
    def allocate(self, shape: Union[int, Sequence[int]], dtype: Any, order: Any = "C") -> NDArray[Any]:
        """Allocate an uninitialized array, aligned to 64 bytes, of a dtype without Python objects.

        The array owns its range of the pool, which is reused after its last view has died. Raise `SharedMemoryError`,
        without side effects, if memory is short.
        """
        self._check_open()
        if os.getpid() != self._owner:
            raise StateError(f"pool {self.ident} belongs to process {self._owner}: a forked child cannot allocate")
        # NumPy interprets flexible dtypes (which need a length) and dtypes with a shape (which add dimensions).
        model = np.empty((0,), dtype)
        if model.dtype.hasobject:
            raise ArgumentTypeError("dtype", "a dtype without Python objects", str(model.dtype))
        sizes = as_shape(shape) + model.shape[1:]
        nbytes = model.dtype.itemsize
        for size in sizes:
            nbytes *= size
        taken = max(_ALIGNMENT_BYTES, -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
        return np.ndarray(sizes, own(model.dtype), self._block(self._take(taken), taken), order=order)

    def _block(self, start: int, size: int) -> NDArray[Any]:
        """Return a range as an array of bytes; the range is freed after its last view has died."""
        try:
            # All views have this array as their base, because NumPy stops at the last array before the mapping.
            block: NDArray[Any] = np.ndarray((size,), np.uint8, self._mapping, start)
        except BaseException:
            self._free_range(start, size)
            raise
        # Outside the `try`: inside it, an interrupt after registration would free the range twice.
        weakref.finalize(block, self._free_range, start, size).atexit = False
        return block

    def adopt(self, handle: Handle) -> NDArray[Any]:
        """Return the C-contiguous array of a handle whose range was in ``taken`` at creation; adopt each range once."""
        if not math.prod(handle.shape):
            return np.empty(handle.shape, handle.dtype)
        block = self._block(handle.offset, self._taken.pop(handle.offset))
        return np.ndarray(handle.shape, handle.dtype, block)

    def free_unadopted(self) -> None:
        """Free the ranges of the dead process that were not adopted."""
        while self._taken:
            self._free_range(*self._taken.popitem())

    def owns(self, array: NDArray[Any]) -> bool:
        """Return whether an array is in this pool (an empty array is in every pool)."""
        return array.size == 0 or 0 <= address(array) - self._address < self._window

    def handle(self, array: NDArray[Any]) -> Handle:
        """Return the handle of an array, or of a view; raise `ValueError` if it is not in this pool."""
        if array.size == 0:
            return Handle(self.ident, 0, array.shape, None, array.dtype)
        offset = address(array) - self._address
        strides = None if array.flags.c_contiguous else array.strides
        low, high = extent(array.shape, strides, array.dtype.itemsize)
        if offset + low < 0 or offset + high > self._window:
            raise ValueError(f"array of shape {array.shape} is not in pool {self.ident}: copy it there first")
        return Handle(self.ident, offset, array.shape, strides, array.dtype)

    def constant_handle(self, array: NDArray[Any]) -> Handle:
        """Return the handle of an array that is in this pool and is never written again."""
        return self.handle(array)._replace(constant=next(self._constants))

    def use_huge_pages(self, array: NDArray[Any]) -> int:
        """Move an array in this pool into huge pages, as far as possible; return the number of bytes moved."""
        return use_huge_pages(self._fd, address(array) - self._address, array.nbytes)

    def share(self, name: str, nbytes: int) -> NamedMemory:
        """Create named shared memory outside the pool."""
        memory = NamedMemory(name, nbytes)
        self._named.add(memory)
        return memory

    def unshare(self) -> None:
        for memory in list(self._named):
            memory.unlink()

    def _check_open(self) -> None:
        if not self._close.alive:
            raise StateError(f"pool {self.ident} is closed")

    def _take(self, size: int) -> int:
        """Return the start of a new range with reserved pages."""
        try:
            with self._lock:
                start = self._free.allocate(size)
                if start is not None:
                    self._used += size
                    self._top = max(self._top, start + size)
        finally:
            self._settle()
        if start is None:
            raise SharedMemoryError(
                f"shared memory: needed {readable_bytes(size)} of contiguous address space in the pool, which has "
                f"{readable_bytes(self._window - self._used)} free in total: use smaller arrays, or raise the limit "
                "(ulimit -v)"
            )
        try:
            self._unchecked += size
            reserve(self._fd, start, size, check=self._unchecked >= _CHECK_EVERY_BYTES)
        except BaseException:
            self._free_range(start, size)
            raise
        if self._unchecked >= _CHECK_EVERY_BYTES:
            self._unchecked = 0
        return start

    def _free_range(self, start: int, size: int) -> None:
        """Free a range. As a finalizer of arrays, this may run at any time, in any thread, and in forked children."""
        if os.getpid() == self._owner:
            self._freed.append((start, size))
            self._settle()

    def _settle(self) -> None:
        """Reclaim freed ranges, unless the lock is held: its owner calls this after releasing it."""
        while self._freed and not self._lock.locked():
            # Another thread may lock first. `with` locks without a gap for an interrupt, unlike `acquire`.
            with self._lock:
                while self._freed:
                    start, size = self._freed.popleft()
                    self._used -= size
                    low, high = self._free.free(start, size)
                    if size >= _RELEASE_FROM_BYTES:
                        self._release(start, start + size, low, high)
                    else:
                        self._kept += size
                if self._kept >= _CHECK_EVERY_BYTES:
                    self._kept = 0
                    for low, high in self._free:
                        self._release(low, min(high, self._top), low, high)

    def _release(self, start: int, stop: int, low: int, high: int) -> None:
        """Return the pages of ``[start, stop)`` in the free range ``[low, high)`` to the operating system."""
        page = mmap.PAGESIZE
        first = max(start // page, -(-low // page)) * page
        last = min(-(-stop // page), high // page) * page
        if first < last:
            try:
                self._mapping.madvise(mmap.MADV_REMOVE, first, last - first)
            except (OSError, AttributeError):
                pass  # not supported by this system, so the pages stay reserved for later arrays


def range_of(handle: Handle) -> Tuple[int, int]:
    """Return the pool range of a C-contiguous array: its first byte and its size."""
    nbytes = math.prod(handle.shape) * handle.dtype.itemsize
    return handle.offset, max(_ALIGNMENT_BYTES, -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)


def end_of_data(fd: int) -> int:
    """Return the end of a sparse file's last data, rounded up to whole pages; 0 if there is none."""
    end = 0
    while True:
        try:
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: no data after this offset
                raise
            return end


def _map_window(fd: int, window: int) -> mmap.mmap:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:  # leave address space for the program and for peers' pools
        window = max(_MIN_WINDOW_BYTES, min(window, limit // 4 // mmap.PAGESIZE * mmap.PAGESIZE))
    collected = False
    while True:
        try:
            os.ftruncate(fd, window)
            return mmap.mmap(fd, window)
        except (OSError, OverflowError) as error:
            if not collected:  # an error in a reference cycle may keep the pools of a closed session alive
                gc.collect()
                collected = True
                continue
            if window // 2 < _MIN_WINDOW_BYTES:
                no_files = isinstance(error, OSError) and error.errno == errno.EMFILE
                limits = "ulimit -n" if no_files else "ulimit -v, ulimit -f"
                raise SharedMemoryError(
                    f"shared memory: needed a window of at least {readable_bytes(window)}, which cannot be mapped "
                    f"({error}): raise the limits of this process ({limits})"
                ) from None
            window = window // 2 // mmap.PAGESIZE * mmap.PAGESIZE


def as_shape(shape: Union[int, Sequence[int]]) -> Tuple[int, ...]:
    """Return a shape as a tuple of ints."""
    try:
        # bounded, because the iterable may be huge or infinite
        sizes = tuple(index(size) for size in itertools.islice(shape, MAX_NDIM + 1))  # type: ignore[arg-type]
    except TypeError:
        try:
            sizes = (index(shape),)  # type: ignore[arg-type]
        except TypeError:
            raise ArgumentTypeError("shape", "an integer or a sequence of integers", repr(shape)) from None
    if any(size < 0 for size in sizes):
        raise ArgumentValueError("shape", "sizes that are not negative", str(sizes))
    if len(sizes) > MAX_NDIM:
        raise ArgumentValueError("shape", f"at most {MAX_NDIM} sizes", repr(shape))
    if max(sizes, default=0) > sys.maxsize or math.prod(sizes) > 1 << 500:
        # smaller arrays fail later for lack of memory; larger sizes could overflow a float in that later message
        raise ArgumentValueError("shape", "at most as many elements as an array can have", str(sizes))
    return sizes
