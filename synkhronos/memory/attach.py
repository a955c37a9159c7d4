"""Attaching: conversion of handles to arrays in this process's address space."""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections import OrderedDict
from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Set, Tuple, Union

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

_PEER_WINDOW_BYTES = 1 << 30  # minimum part of a peer's pool to map; 200 whole pools would exceed the address space
#: Minimum size in bytes of an argument that makes hosts check their free memory before a new plan's first call.
CHECK_FROM_BYTES = 1 << 20

_MAX_FILES = 16  # maximum number of files mapped at the same time; each needs a descriptor


class PoolMap:
    """One process's mappings of the pools of all ranks, of files and of named memory."""

    def __init__(self) -> None:
        self._peers: Dict[int, _Peer] = {}
        self._pools: Dict[int, Pool] = {}
        self._mappings: Dict[int, mmap.mmap] = {}
        self._others: OrderedDict[Tuple[Any, ...], mmap.mmap] = OrderedDict()
        self._far: FrozenSet[int] = frozenset()
        self._here: Set[Tuple[int, int]] = set()  # constants fetched from other hosts, by pool and number
        self._fetcher: Any = None  # if there are several hosts
        self._elsewhere = False
        self.taken: Set[Handle] = set()  #: Arrays of `receive` and `hold`, which are not fetched again.

    def __repr__(self) -> str:
        return f"<PoolMap: pools {self._known()}, files mapped: {len(self._others)}>"

    def add(self, ident: int, pool: Union[int, Pool]) -> None:
        """Add or replace a pool: this process's `Pool`, or a peer's descriptor, which the caller may then close."""
        self.remove(ident)
        if isinstance(pool, Pool):
            self._mappings[ident], self._pools[ident] = pool._mapping, pool
        else:
            self._peers[ident] = _Peer(pool)

    def filenos(self) -> Dict[int, int]:
        own = {ident: pool.fileno() for ident, pool in self._pools.items()}
        return {**{ident: peer.fileno() for ident, peer in self._peers.items()}, **own}

    def remove(self, ident: int) -> None:
        """Remove a pool, if it is present; attached arrays stay valid."""
        tables: Tuple[Dict[int, Any], ...] = (self._mappings, self._peers, self._pools)
        for table in tables:
            table.pop(ident, None)

    def reach(self, far: Iterable[int], fetcher: Any, elsewhere: bool) -> None:
        """Use a `sync.fetching.Fetcher` for pools on other hosts, whose local shadows have the pool ids ``far``.

        ``elsewhere``: whether the program, with the files that it maps, is on another host.
        """
        self._far, self._fetcher, self._elsewhere = frozenset(far), fetcher, elsewhere

    def is_far(self, handle: Any) -> bool:
        """Return whether an array is on another host and has no permanent copy here."""
        return (
            isinstance(handle, Handle) and handle.pool in self._far and (handle.pool, handle.constant) not in self._here
        )

    def fetch(self, handles: Iterable[Any], rows: Optional[NDArray[np.int64]] = None) -> None:
        """Fetch arrays, or some of their rows, from other hosts into the shadows; fetch constants once, as a whole."""
        far = [handle for handle in handles if self.is_far(handle) and handle not in self.taken]
        ranges = by_pool(ranges_of(handle, rows) for handle in far)
        if ranges:
            self._fetcher.fetch(ranges)
            self._here.update((each.pool, each.constant) for each in ranges if each.constant)

    def may_lack(self, values: Iterable[Any]) -> bool:
        """Return whether another host may lack memory or files for some of these values; equal on all ranks."""
        return self._fetcher is not None and any(map(_is_large, values))

    def check_room(self, ranges: Iterable[Ranges]) -> None:
        """On hosts other than the program's, check that memory suffices for the ranges; all ranks must call this."""
        if self._elsewhere:
            self._fetcher.check_room(by_pool(ranges))

    def receive(self, enclosed: Iterable[Tuple[Handle, bytes]]) -> int:
        """Write other hosts' arrays into the shadows, for use until `taken` is cleared; return the number of bytes."""
        nbytes = 0
        for handle, content in enclosed:
            if self.is_far(handle):
                nbytes += len(content)
                try:
                    if os.pwrite(self._peers[handle.pool].fileno(), content, handle.offset) == len(content):
                        self.taken.add(handle)
                except OSError:  # out of memory: a later fetch reports this
                    pass
        return nbytes

    def hold(self, handles: Iterable[Any]) -> None:
        """Fetch arrays that the command does not change, in one request; they stay fetched until `taken` is cleared."""
        far = [handle for handle in handles if self.is_far(handle)]
        self.fetch(far)
        self.taken.update(far)

    def rows(self, handle: Union[Handle, FileHandle, NameHandle], selection: Selection) -> NDArray[Any]:
        """Return the array of a handle for reading selected rows; only these rows are fetched from another host."""
        if not self.is_far(handle):
            return self.attach(handle)
        self.fetch([handle], selection.numbers)
        return self.here(handle)  # type: ignore[arg-type]

    def lasting(self, handle: Union[Handle, FileHandle, NameHandle]) -> NDArray[Any]:
        """Return a handle's array (never written again) for permanent use; if it is on another host, return a copy."""
        return np.array(self.attach(handle)) if self.is_far(handle) else self.attach(handle)

    def reopen(self, ident: int) -> int:
        """Return a new descriptor of a pool's file, with its own file position and locks."""
        pool = self._pools.get(ident)
        fd = self._peers[ident].fileno() if pool is None else pool.fileno()
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)

    def forget(self, path: Optional[str] = None) -> None:
        """Unmap one file or named memory, or all of them by default; attached arrays stay valid."""
        for key in list(self._others):
            if path is None or key[0] == path:
                del self._others[key]

    @point("memory")
    def attach(self, handle: Union[Handle, FileHandle, NameHandle]) -> NDArray[Any]:
        """Return the array of a handle without a copy, after fetching it if it is on another host.

        The array keeps the memory mapped, but only the pool's owner decides when the range is reused. Raise
        `ValueError` if the pool is unknown, or if the file or named memory is missing or has changed. Raise
        `SharedMemoryError` if there is too little address space.
        """
        if not isinstance(handle, Handle):
            return self._attach_other(handle)
        if handle.pool in self._far:
            self.fetch([handle])
        return self.here(handle)

    def here(self, handle: Handle) -> NDArray[Any]:
        """Return the array of a handle as `attach` does, but without a fetch, so its content may be outdated."""
        mapping, peer = self._mappings.get(handle.pool), self._peers.get(handle.pool)
        if mapping is not None:
            try:
                return np.ndarray(handle.shape, handle.dtype, mapping, handle.offset, handle.strides)
            except (TypeError, ValueError):
                if peer is None:
                    raise
        elif peer is None:
            raise ValueError(f"unknown pool {handle.pool} (known: {self._known()})")
        # The array ends beyond the part of the pool mapped so far.
        stop = handle.offset + extent(handle.shape, handle.strides, handle.dtype.itemsize)[1]
        mapping = self._mappings[handle.pool] = peer.map(stop)
        return np.ndarray(handle.shape, handle.dtype, mapping, handle.offset, handle.strides)

    def _known(self) -> List[int]:
        return sorted({*self._peers, *self._mappings})

    def _attach_other(self, handle: Union[FileHandle, NameHandle]) -> NDArray[Any]:
        if self._elsewhere and isinstance(handle, NameHandle):
            raise ValueError(
                f"the shared memory {handle.name} exists only on the program's host: create the Data without share_as"
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
        raise ValueError(f"{key[0]} was shortened after it was mapped: create the Data again")


def _is_large(value: Any) -> bool:
    if isinstance(value, Handle):
        return value.constant > 0 or math.prod(value.shape) * value.dtype.itemsize >= CHECK_FROM_BYTES
    return isinstance(value, (FileHandle, NameHandle))


class _Peer:
    """Another process's pool, mapped as far as needed."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        weakref.finalize(self, os.close, self._fd).atexit = False

    def fileno(self) -> int:
        return self._fd

    def map(self, stop: int) -> mmap.mmap:
        """Map at least the first ``stop`` bytes, and usually many more, so that calls are rare."""
        whole = os.fstat(self._fd).st_size  # final, because the owner sets it before its first allocation
        size = min(whole, max(_PEER_WINDOW_BYTES, 1 << stop.bit_length()))
        if stop > whole:
            raise ValueError(f"handle ends at byte {stop} of a pool of {whole} bytes")
        while True:
            try:
                return mmap.mmap(self._fd, size)
            except OSError as error:
                if size == stop:
                    raise SharedMemoryError(
                        f"shared memory: cannot map {readable_bytes(stop)} of another rank's pool ({error.strerror}): "
                        "raise the limit on address space (ulimit -v)"
                    ) from None
                size = max(stop, size // 2)
