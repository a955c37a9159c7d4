"""The pool: one process's shared memory, handed out as NumPy arrays."""

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
from .free_list import FreeList
from .handles import Handle, address, extent
from .memfd import nameless_file, reserve
from .posix_names import NamedMemory

#: Dimensions that NumPy's arrays can have.
MAX_NDIM = 32

#: Address space of a pool, if it is available; pages count only once they are reserved.
WINDOW_BYTES = 1 << 40
_MIN_WINDOW_BYTES = 64 << 20
_ALIGNMENT_BYTES = 64
_CHECK_EVERY_BYTES = 1 << 20  # look at the machine's memory once in so many bytes
_RELEASE_FROM_BYTES = 64 << 10  # a freed range of this size goes back at once, smaller ones together


class Pool:
    """The shared memory of one process: arrays in one sparse file without a name, mapped once into a huge window.

    Pages are reserved when an array is made and given back when the last view of it dies. Only the process that made
    the pool can allocate; a forked child keeps its view of the arrays and frees nothing.

    Parameters
    ----------
    ident : int
        The pool's number in handles.
    window : int
        Address space to take, in bytes; less is taken if less is available (``ulimit -v``).
    fd : int, optional
        Descriptor of a `nameless_file` that peers know already; by default a new one is made.
    taken : sequence of (int, int)
        If a process that has died has allocated in it: the ranges, first byte and bytes, that are to be kept. Each is
        to be adopted; all else that it has left is given back.

    Raises
    ------
    SharedMemoryError
        Not even a small window can be mapped.

    Examples
    --------
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
        self._close.atexit = False  # handlers that run later may still pass the descriptor on
        # Never closed: NumPy holds a reference to the mapping but does not keep it from being closed.
        self._mapping = _map_window(self._fd, window)
        self._window = len(self._mapping)
        self._address = address(np.ndarray((1,), np.uint8, self._mapping))
        self._named: weakref.WeakSet[NamedMemory] = weakref.WeakSet()
        self._constants = itertools.count(1)
        # The lock guards what follows. A dying array may meet it locked by its own thread (garbage is collected
        # anywhere), so its range waits in `_freed` for the holder of the lock.
        self._lock = threading.Lock()
        self._freed: Deque[Tuple[int, int]] = deque()
        self._free = FreeList(self._window)
        self._used = 0
        self._top = 0  # no page above was ever reserved
        self._kept = 0  # bytes of small freed ranges whose pages are still reserved
        self._unchecked = 0  # bytes reserved since the machine's memory was looked at
        for start, size in taken:
            self._free.take_at(start, size)
            self._used += size
            self._top = max(self._top, start + size)
        if taken:
            for low, high in self._free:
                self._release(low, high, low, high)

    def __repr__(self) -> str:
        state = "" if self._close.alive else " closed"
        used, window = readable_bytes(self._used), readable_bytes(self._window)
        return f"<Pool {self.ident}: {used} used of a window of {window}{state}>"

    @property
    def used(self) -> int:
        """Bytes of the arrays that are alive, each rounded up to 64."""
        return self._used

    def fileno(self) -> int:
        """Return the descriptor through which peers map the pool."""
        self._check_open()
        return self._fd

    def close(self) -> None:
        """Close the descriptor. The arrays live on. May be called again."""
        self._close()

    @point("memory")
    def allocate(self, shape: Union[int, Sequence[int]], dtype: Any, order: Any = "C") -> NDArray[Any]:
        """Make an array in the pool, aligned to 64 bytes. Its contents are undefined, as with ``np.empty``.

        Parameters
        ----------
        shape : int or sequence of int
        dtype : dtype
            Any that holds no Python objects.
        order : {"C", "F"}

        Returns
        -------
        np.ndarray
            It owns its range of the pool: the range is used again when the last view of it is dead.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
            There cannot be such an array.
        SharedMemoryError
            The memory cannot be allocated; nothing was changed.
        StateError
            The pool is closed, or belongs to another process.
        """
        self._check_open()
        if os.getpid() != self._owner:
            raise StateError(f"pool {self.ident} belongs to process {self._owner}: a forked child cannot allocate")
        # As NumPy reads both: flexible dtypes get a length, and a dtype with a shape of its own adds it.
        model = np.empty((0,), dtype)
        if model.dtype.hasobject:
            raise ArgumentTypeError("dtype", "one without Python objects", str(model.dtype))
        sizes = as_shape(shape) + model.shape[1:]
        nbytes = model.dtype.itemsize
        for size in sizes:
            nbytes *= size
        taken = max(_ALIGNMENT_BYTES, -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
        return np.ndarray(sizes, model.dtype, self._block(self._take(taken), taken), order=order)

    def _block(self, start: int, size: int) -> NDArray[Any]:
        """Return a range as bytes; it is free again once the last view of them is dead."""
        try:
            # Every view has this array as its base, because NumPy keeps the last array before the mapping.
            block: NDArray[Any] = np.ndarray((size,), np.uint8, self._mapping, start)
        except BaseException:
            self._let_go(start, size)
            raise
        # Not inside: an interrupt may come once it is registered, and the range would be freed twice.
        weakref.finalize(block, self._let_go, start, size).atexit = False
        return block

    def adopt(self, handle: Handle) -> NDArray[Any]:
        """Return the array of a handle from `handle`, C-contiguous, that was taken when the pool was made."""
        if not math.prod(handle.shape):
            return np.empty(handle.shape, handle.dtype)
        block = self._block(*range_of(handle))
        return np.ndarray(handle.shape, handle.dtype, block)

    def owns(self, array: NDArray[Any]) -> bool:
        """Return whether an array lies in this pool (one without elements lies in every pool)."""
        return array.size == 0 or 0 <= address(array) - self._address < self._window

    def handle(self, array: NDArray[Any]) -> Handle:
        """Return the handle of an array, or of any view of one, that lies in this pool.

        Raises
        ------
        ValueError
            It does not lie in this pool.
        """
        if array.size == 0:
            return Handle(self.ident, 0, array.shape, None, array.dtype)
        offset = address(array) - self._address
        strides = None if array.flags.c_contiguous else array.strides
        low, high = extent(array.shape, strides, array.dtype.itemsize)
        if offset + low < 0 or offset + high > self._window:
            raise ValueError(f"array of shape {array.shape} does not lie in pool {self.ident}: copy it there first")
        return Handle(self.ident, offset, array.shape, strides, array.dtype)

    def constant_handle(self, array: NDArray[Any]) -> Handle:
        """Return the handle of an array that lies in this pool and is never written again."""
        return self.handle(array)._replace(constant=next(self._constants))

    def share(self, name: str, nbytes: int) -> NamedMemory:
        """Make shared memory with a name, beside the pool; see `NamedMemory`."""
        memory = NamedMemory(name, nbytes)
        self._named.add(memory)
        return memory

    def unshare(self) -> None:
        """Take the names of all shared memory that `share` made."""
        for memory in list(self._named):
            memory.unlink()

    def _check_open(self) -> None:
        if not self._close.alive:
            raise StateError(f"pool {self.ident} is closed")

    def _take(self, size: int) -> int:
        """Return the start of a fresh range whose pages are reserved."""
        try:
            with self._lock:
                start = self._free.take(size)
                if start is not None:
                    self._used += size
                    self._top = max(self._top, start + size)
        finally:
            self._settle()
        if start is None:
            raise SharedMemoryError(
                f"shared memory: needed {readable_bytes(size)} in one piece of the pool's address space, of which "
                f"{readable_bytes(self._window - self._used)} are free: use smaller arrays, or raise the limit "
                "(ulimit -v)"
            )
        try:
            self._unchecked += size
            reserve(self._fd, start, size, check=self._unchecked >= _CHECK_EVERY_BYTES)
        except BaseException:
            self._let_go(start, size)
            raise
        if self._unchecked >= _CHECK_EVERY_BYTES:
            self._unchecked = 0
        return start

    def _let_go(self, start: int, size: int) -> None:
        """Free a range; the finalizer of its array, called at any time in any thread, and in forked children too."""
        if os.getpid() == self._owner:
            self._freed.append((start, size))
            self._settle()

    def _settle(self) -> None:
        """Take the freed ranges back, unless the lock is held: then its holder calls this after its release."""
        while self._freed and not self._lock.locked():
            # If another thread takes it in between, this one waits; its own cannot. And no interrupt comes between
            # taking the lock and the block, as it may after `acquire`.
            with self._lock:
                while self._freed:
                    start, size = self._freed.popleft()
                    self._used -= size
                    low, high = self._free.give(start, size)
                    if size >= _RELEASE_FROM_BYTES:
                        self._release(start, start + size, low, high)
                    else:
                        self._kept += size
                if self._kept >= _CHECK_EVERY_BYTES:
                    self._kept = 0
                    for low, high in self._free:
                        self._release(low, min(high, self._top), low, high)

    def _release(self, start: int, stop: int, low: int, high: int) -> None:
        """Give the pages of ``[start, stop)`` back to the machine, as far as they lie in the free ``[low, high)``."""
        page = mmap.PAGESIZE
        first = max(start // page, -(-low // page)) * page
        last = min(-(-stop // page), high // page) * page
        if first < last:
            try:
                self._mapping.madvise(mmap.MADV_REMOVE, first, last - first)
            except (OSError, AttributeError):
                pass  # not on this system: the pages wait for the next array


def range_of(handle: Handle) -> Tuple[int, int]:
    """Return the range of a pool that a C-contiguous array takes: its first byte, and how many."""
    nbytes = math.prod(handle.shape) * handle.dtype.itemsize
    return handle.offset, max(_ALIGNMENT_BYTES, -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)


def _map_window(fd: int, window: int) -> mmap.mmap:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:  # the program and the pools of the peers need some of it too
        window = max(_MIN_WINDOW_BYTES, min(window, limit // 4 // mmap.PAGESIZE * mmap.PAGESIZE))
    collected = False
    while True:
        try:
            os.ftruncate(fd, window)
            return mmap.mmap(fd, window)
        except (OSError, OverflowError) as error:
            if not collected:  # an error that refers to itself keeps the pools of its session, though that has ended
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
    """Return a shape as a tuple of ints.

    Examples
    --------
    >>> as_shape(3), as_shape([2, 0])
    ((3,), (2, 0))
    """
    try:
        # (not all of them, if they are very many, or have no end)
        sizes = tuple(index(size) for size in itertools.islice(shape, MAX_NDIM + 1))  # type: ignore[arg-type]
    except TypeError:
        try:
            sizes = (index(shape),)  # type: ignore[arg-type]
        except TypeError:
            raise ArgumentTypeError("shape", "an integer or a sequence of integers", repr(shape)) from None
    if any(size < 0 for size in sizes):
        raise ArgumentValueError("shape", "no negative sizes", str(sizes))
    if len(sizes) > MAX_NDIM:
        raise ArgumentValueError("shape", f"at most {MAX_NDIM} sizes", repr(shape))
    if max(sizes, default=0) > sys.maxsize or math.prod(sizes) > 1 << 500:
        # (Less than that is refused as too much memory; these are numbers that no float can hold.)
        raise ArgumentValueError("shape", "no more elements than an array can have", str(sizes))
    return sizes
