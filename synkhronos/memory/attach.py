"""Attaching: the arrays of handles, as one process sees them."""

from __future__ import annotations

import mmap
import os
import weakref
from collections import OrderedDict
from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from ..errors import SharedMemoryError
from ..host.units import readable_bytes
from ..selection import Selection
from ..trace import point
from . import mapped_file, posix_names
from .handles import FileHandle, Handle, NameHandle, extent
from .pool import Pool
from .ranges import Ranges, by_pool, ranges_of

_PEER_WINDOW_BYTES = 1 << 30  # a peer's pool is mapped as far as its arrays reach: 200 pools fit into one process
_MAX_FILES = 16  # mapped at a time; each costs a descriptor


class PoolMap:
    """The pools of all ranks, the files and the named memory, as one process sees them."""

    def __init__(self) -> None:
        self._peers: Dict[int, _Peer] = {}
        self._pools: Dict[int, Pool] = {}
        self._mappings: Dict[int, mmap.mmap] = {}
        self._others: OrderedDict[Tuple[Any, ...], mmap.mmap] = OrderedDict()
        self._far: FrozenSet[int] = frozenset()
        self._here: Set[Tuple[int, int]] = set()  # pool and number of constants of other hosts that were fetched
        self._fetch: Any = None
        self._check_room: Any = None
        self._elsewhere = False
        self._taken: Set[Handle] = set()
        #: Whether there are several hosts.
        self.spans_hosts = False

    def __repr__(self) -> str:
        return f"<PoolMap: pools {self._known()}, {len(self._others)} files>"

    def add(self, ident: int, pool: Union[int, Pool]) -> None:
        """Make a pool known, in place of an earlier one of that number.

        Parameters
        ----------
        ident : int
        pool : int or Pool
            Its descriptor (the caller may close it afterwards), or this process's own pool.
        """
        self.remove(ident)
        if isinstance(pool, Pool):
            self._mappings[ident], self._pools[ident] = pool._mapping, pool
        else:
            self._peers[ident] = _Peer(pool)

    def filenos(self) -> Dict[int, int]:
        """Return the descriptors of all pools, by their idents."""
        own = {ident: pool.fileno() for ident, pool in self._pools.items()}
        return {**{ident: peer.fileno() for ident, peer in self._peers.items()}, **own}

    def remove(self, ident: int) -> None:
        """Forget a pool, if it is known; arrays that are attached live on."""
        tables: Tuple[Dict[int, Any], ...] = (self._mappings, self._peers, self._pools)
        for table in tables:
            table.pop(ident, None)

    def reach(
        self,
        far: Iterable[int],
        fetch: Callable[[Sequence[Ranges]], None],
        check_room: Callable[[Sequence[Ranges]], None],
        elsewhere: bool,
    ) -> None:
        """Have pools of other hosts fetched, whose shadows are known here, before arrays in them are attached.

        Parameters
        ----------
        far : iterable of int
            Their idents.
        fetch, check_room : callable
            See `sync.fetching`.
        elsewhere : bool
            Whether the program, which maps files, runs on another host.
        """
        self._far, self._fetch, self._check_room = frozenset(far), fetch, check_room
        self._elsewhere, self.spans_hosts = elsewhere, True

    def is_far(self, handle: Any) -> bool:
        """Return whether the array of a handle lies on another host, and not here for good as well."""
        return (
            isinstance(handle, Handle) and handle.pool in self._far and (handle.pool, handle.constant) not in self._here
        )

    def fetch(self, handles: Iterable[Any], rows: Optional[NDArray[np.int64]] = None) -> None:
        """Bring those arrays here that lie on other hosts, or some of their rows: into the shadows.

        What is never written comes whole, and once.
        """
        far = [handle for handle in handles if self.is_far(handle) and handle not in self._taken]
        ranges = by_pool(ranges_of(handle, rows) for handle in far)
        if ranges:
            self._fetch(ranges)
            self._here.update((each.pool, each.constant) for each in ranges if each.constant)

    def check_room(self, ranges: Iterable[Ranges]) -> None:
        """Raise unless this host has memory for what its ranks will fetch; all of them call it, each for itself.

        It does nothing on the host of the program, where that lies already.

        Raises
        ------
        SynkhronosError
            On all ranks of the host.
        """
        if self._elsewhere:
            self._check_room(by_pool(ranges))

    def take(self, enclosed: Iterable[Tuple[Handle, bytes]]) -> int:
        """Write C-contiguous arrays of other hosts into the shadows: until `drop_taken`, they need not be fetched.

        Returns
        -------
        int
            The bytes of those of other hosts.
        """
        nbytes = 0
        for handle, content in enclosed:
            if self.is_far(handle):
                nbytes += len(content)
                try:
                    if os.pwrite(self._peers[handle.pool].fileno(), content, handle.offset) == len(content):
                        self._taken.add(handle)
                except OSError:  # no memory: whoever fetches it is told
                    pass
        return nbytes

    def hold(self, handles: Iterable[Any]) -> None:
        """Bring arrays of other hosts here, all together, that nobody writes before the end of the command.

        Until `drop_taken`, they need not be fetched again.
        """
        far = [handle for handle in handles if self.is_far(handle)]
        self.fetch(far)
        self._taken.update(far)

    def drop_taken(self) -> None:
        """Have everything fetched again that lies on other hosts."""
        self._taken.clear()

    def rows(self, handle: Union[Handle, FileHandle, NameHandle], selection: Selection) -> NDArray[Any]:
        """Return the array of a handle of which only some rows are read: only these are fetched from another host.

        Parameters
        ----------
        handle
            As in `attach`.
        selection : Selection
            The rows.
        """
        if not self.is_far(handle):
            return self.attach(handle)
        self.fetch([handle], selection.numbers)
        return self.here(handle)  # type: ignore[arg-type]

    def lasting(self, handle: Union[Handle, FileHandle, NameHandle]) -> NDArray[Any]:
        """Return the array of a handle that never changes as one that can be kept; a copy if it is on another host."""
        return np.array(self.attach(handle)) if self.is_far(handle) else self.attach(handle)

    def reopen(self, ident: int) -> int:
        """Return a descriptor of a pool's file that shares no position and no locks with any other.

        Parameters
        ----------
        ident : int
            The pool's, as in its handles.
        """
        pool = self._pools.get(ident)
        fd = self._peers[ident].fileno() if pool is None else pool.fileno()
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)

    def forget(self, path: Optional[str] = None) -> None:
        """Drop the mapping of a file or of named memory; of all by default. Arrays that are attached live on."""
        for key in list(self._others):
            if path is None or key[0] == path:
                del self._others[key]

    @point("memory")
    def attach(self, handle: Union[Handle, FileHandle, NameHandle]) -> NDArray[Any]:
        """Return the array of a handle, without a copy; if it lies on another host, it is fetched first.

        The array keeps the memory mapped, but does not keep its range from being used again: the owner of the pool
        decides about that.

        Raises
        ------
        ValueError
            Unknown pool, or the file or the named memory is no longer what it was.
        SharedMemoryError
            No address space is left to map it.
        """
        if not isinstance(handle, Handle):
            return self._attach_other(handle)
        if handle.pool in self._far:
            self.fetch([handle])
        return self.here(handle)

    def here(self, handle: Handle) -> NDArray[Any]:
        """Return the array of a handle as `attach` does; of another host, what was last fetched from there."""
        mapping, peer = self._mappings.get(handle.pool), self._peers.get(handle.pool)
        if mapping is not None:
            try:
                return np.ndarray(handle.shape, handle.dtype, mapping, handle.offset, handle.strides)
            except (TypeError, ValueError):
                if peer is None:
                    raise
        elif peer is None:
            raise ValueError(f"unknown pool {handle.pool} (known: {self._known()})")
        # It reaches beyond what is mapped of the pool so far.
        stop = handle.offset + extent(handle.shape, handle.strides, handle.dtype.itemsize)[1]
        mapping = self._mappings[handle.pool] = peer.map(stop)
        return np.ndarray(handle.shape, handle.dtype, mapping, handle.offset, handle.strides)

    def _known(self) -> List[int]:
        return sorted({*self._peers, *self._mappings})

    def _attach_other(self, handle: Union[FileHandle, NameHandle]) -> NDArray[Any]:
        if self._elsewhere and isinstance(handle, NameHandle):
            raise ValueError(
                f"the shared memory {handle.name} is on the host of the program alone: make the Data without a name"
            )
        if isinstance(handle, FileHandle):
            key: Tuple[Any, ...] = (handle.path, handle.mode, handle.identity)
            offset, strides = handle.offset, handle.strides
        else:
            key = (handle.name, handle.identity)
            offset, strides = 0, None
        for fresh in (False, True):  # a file may have grown since it was mapped
            mapping = self._others.get(key)
            if mapping is None or fresh:
                mapping = (
                    mapped_file.open_mapping(handle, self._elsewhere)
                    if isinstance(handle, FileHandle)
                    else posix_names.open_mapping(handle)
                )
                self._others[key] = mapping
                if len(self._others) > _MAX_FILES:
                    self._others.popitem(last=False)
            self._others.move_to_end(key)
            try:
                return np.ndarray(handle.shape, handle.dtype, mapping, offset, strides)
            except (TypeError, ValueError):
                pass
        raise ValueError(f"{key[0]} is shorter than when it was mapped: make the Data again")


class _Peer:
    """Another process's pool, mapped as far as was asked for."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        weakref.finalize(self, os.close, self._fd).atexit = False

    def fileno(self) -> int:
        return self._fd

    def map(self, stop: int) -> mmap.mmap:
        """Map at least the first `stop` bytes, and more, so that this is rarely needed."""
        whole = os.fstat(self._fd).st_size  # the owner sets it before its first array
        size = min(whole, max(_PEER_WINDOW_BYTES, 1 << stop.bit_length()))
        if stop > whole:
            raise ValueError(f"handle ends at byte {stop} of a pool of {whole} bytes")
        while True:
            try:
                return mmap.mmap(self._fd, size)
            except OSError as error:
                if size == stop:
                    raise SharedMemoryError(
                        f"shared memory: cannot map {readable_bytes(stop)} of another rank ({error.strerror}): "
                        "raise the limit of the address space (ulimit -v)"
                    ) from None
                size = max(stop, size // 2)
