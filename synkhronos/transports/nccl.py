"""Collectives of arrays on devices, which do not pass the host: NCCL through pygpu.

NCCL sums, multiplies, and takes least and greatest elements, of arrays of one
size. What `reductions` promises beyond that is done here, by kernels around its
calls: averages are weighted before the sum and divided after it, with more
digits or a clamp (`Clique._average`); float16 is summed in float32; NaN wins
against numbers; a rank that has nothing takes part
with what changes nothing; arrays of different lengths are padded and cut.

Its calls return before the work is done, and the work waits for all ranks: one
that dies in the middle leaves the others' devices waiting. So `Clique.finish`
checks that the ranks live until the device is done, and aborts if that has
become pointless.
"""

from __future__ import annotations

import ctypes
import os
import time
from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import error_text
from ..host import machine
from ..reductions import ReduceOp, compute_dtype, counting, narrowed
from ..reductions.device import clamp, combine, concatenate, empty, filled, nan_mark, scale
from .shared_memory import SharedMemoryTransport

#: Types that both NCCL and pygpu know.
KNOWN = ("int8", "int32", "int64", "uint64", "float16", "float32", "float64")

#: Lets NCCL, from 2.32 on, have several ranks on one device.
MULTI_RANK = "NCCL_MULTI_RANK_GPU_ENABLE"

#: Which GPUs of its machine a process is shown, and in which order.
VISIBLE = "CUDA_VISIBLE_DEVICES"

#: Seconds that a device's work is waited for without giving away the core, and between two looks after that.
EAGER, PAUSE = 0.001, 0.0002

#: What cuEventQuery answers while the device works.
CUDA_ERROR_NOT_READY = 600

#: What changes nothing when it is combined; 0 would make 0 of a sum that is -0.
_NEUTRAL = {"sum": -0.0, "prod": 1}


_aborted: List[Any] = []  # communicators that must not be collected as garbage


class Meta(NamedTuple):
    """What a rank says of an array to the others."""

    on_device: bool
    shape: Tuple[int, ...]
    dtype: np.dtype[Any]


def is_known(dtype: np.dtype[Any]) -> bool:
    """Return whether NCCL knows elements of that type."""
    return dtype.name in KNOWN


def open_clique(host: SharedMemoryTransport, context: Any, device: str) -> Tuple[Optional[Clique], str]:
    """Open the clique of the ranks' devices; every rank calls this.

    Returns
    -------
    Clique or None
        None on all ranks if any of them cannot take part.
    str
        Why there is none.
    """
    # Hosts have environments of their own: what a rank reads in its own is told to all, so that all decide the same.
    said = host.exchange((device, (machine.boot_id(), os.environ.get(VISIBLE)), os.environ.get(MULTI_RANK)))
    devices = [name for name, _, _ in said]
    of_cuda = [(name, shown_by) for name, shown_by, _ in said if name.startswith("cuda")]
    if len(set(of_cuda)) < len(of_cuda) and any(may_share != "1" for _, _, may_share in said):
        return None, f"several ranks share a device, which NCCL allows from 2.32 on with {MULTI_RANK}=1"
    collectives: Any = None
    ident, trouble = b"", ""
    try:
        collectives = import_module("pygpu.collectives")
        clique_id = collectives.GpuCommCliqueId(context)
        ident = bytes(clique_id.comm_id)
    except Exception as error:
        trouble = error_text(error)
    said = host.exchange((trouble, ident))  # no rank goes on if one cannot
    for rank, (theirs, _) in enumerate(said):
        if theirs:
            return None, f"rank {rank}, {devices[rank]}: {theirs}"
    comm: Any = None
    progress: Any = None
    try:
        if host.rank != host.root:
            clique_id = collectives.GpuCommCliqueId(context, bytearray(said[host.root][1]))
        comm = collectives.GpuComm(clique_id, host.size, host.rank)
        progress = Cuda(context, comm)
    except Exception as error:
        trouble = error_text(error)
    for rank, theirs in enumerate(host.exchange(trouble)):
        if theirs:
            return None, f"rank {rank}, {devices[rank]}: {theirs}"
    return Clique(comm, context, host.rank, host.size, host.root, progress, host.barrier.look), ""


class Progress(ABC):
    """Says when a device is done."""

    @abstractmethod
    def mark(self) -> None:
        """Note all work that the device has been given."""

    @abstractmethod
    def is_done(self) -> bool:
        """Return whether the device has done what it had been given when `mark` was called."""

    @abstractmethod
    def abort(self) -> None:
        """Give the work up: free the device from waiting for peers."""


class Cuda(Progress):
    """Looks at a CUDA device without waiting for it, which pygpu cannot do, and aborts NCCL, which it cannot either.

    By ctypes. An event of the default stream comes after the work of all streams that were not made to be independent
    of it, and pygpu's was not.
    """

    def __init__(self, context: Any, comm: Any) -> None:
        self._context, self._owner = context, comm  # (entering the context makes it CUDA's current one)
        self._cuda, self._nccl = ctypes.CDLL("libcuda.so"), ctypes.CDLL("libnccl.so")
        # pygpu's object is a Python header and a pointer to {context, communicator, ...}.
        structure = ctypes.c_void_p.from_address(id(comm) + object.__basicsize__).value or 0
        self._comm = ctypes.c_void_p(ctypes.c_void_p.from_address(structure + ctypes.sizeof(ctypes.c_void_p)).value)
        count = ctypes.c_int()
        if self._nccl.ncclCommCount(self._comm, ctypes.byref(count)) or count.value != comm.count:
            raise RuntimeError("this version of pygpu keeps its NCCL communicator elsewhere")
        self._event = ctypes.c_void_p()
        with context:
            _check(self._cuda.cuEventCreate(ctypes.byref(self._event), 2))  # without timing

    def mark(self) -> None:
        with self._context:
            _check(self._cuda.cuEventRecord(self._event, None))

    def is_done(self) -> bool:
        with self._context:
            status = self._cuda.cuEventQuery(self._event)
        if status != CUDA_ERROR_NOT_READY:
            _check(status)
            return True
        error = ctypes.c_int()
        self._nccl.ncclCommGetAsyncError(self._comm, ctypes.byref(error))
        if error.value not in (0, 7):  # success, in progress
            raise RuntimeError(f"NCCL error {error.value} in the middle of a collective")
        return False

    def abort(self) -> None:
        _aborted.append(self._owner)  # else pygpu would destroy what is gone
        self._nccl.ncclCommAbort(self._comm)


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA error {status}")


class Clique:
    """Collectives of the ranks' devices, over one array each.

    Every rank makes the same calls in the same order. Results are in new memory, and there after `finish`.

    Parameters
    ----------
    comm : pygpu.collectives.GpuComm
    context
        This rank's device.
    rank, size, root : int
    progress : Progress
    look : callable
        Raises `Aborted` if a peer has failed or died.
    """

    def __init__(
        self, comm: Any, context: Any, rank: int, size: int, root: int, progress: Progress, look: Callable[[], object]
    ) -> None:
        self.comm, self.context, self.rank, self.size, self.root = comm, context, rank, size, root
        self.progress, self._look = progress, look
        self._busy = self.broken = False

    def all_reduce(
        self,
        array: Any,
        op: ReduceOp,
        weights: Optional[Sequence[float]] = None,
        present: Optional[Sequence[bool]] = None,
    ) -> Any:
        """Return ``op(x_0, ..., x_{n-1})`` on every rank, of those ranks that are present (all by default)."""
        there = [True] * self.size if present is None else present
        mine = array if there[self.rank] else None
        return self._reduced(mine, _meta(array), op, weights, there, self._all_reduce)

    def reduce(
        self, array: Any, metas: Sequence[Optional[Meta]], op: ReduceOp, weights: Optional[Sequence[float]] = None
    ) -> Any:
        """Return the same on the root, None elsewhere. Ranks whose meta is None have no array."""
        meta = next(meta for meta in metas if meta is not None)
        return self._reduced(array, meta, op, weights, [each is not None for each in metas], self._to_root)

    def all_gather(self, array: Any, lengths: Sequence[int]) -> Any:
        """Return the concatenation of all ranks' arrays, which have those lengths."""
        longest = max(lengths)
        if not longest or not array.size and not all(array.shape[1:]):
            return empty((sum(lengths),) + array.shape[1:], array.dtype, self.context)
        if array.shape[0] < longest:
            padded = filled(0, (longest,) + array.shape[1:], np.dtype(array.dtype), self.context)
            padded[: array.shape[0]] = array
            array = padded
        out = empty((longest * self.size,) + array.shape[1:], array.dtype, self.context)
        self._enter()
        self.comm.all_gather(array, out, nd_up=0)
        if len(set(lengths)) == 1:
            return out
        return concatenate([out[rank * longest : rank * longest + length] for rank, length in enumerate(lengths)])

    def broadcast(self, array: Any, meta: Meta, root: int) -> Any:
        """Return the root's array, which the meta describes; the root its own."""
        if self.rank != root:
            array = empty(meta.shape, meta.dtype, self.context)
        if array.size:
            self._enter()
            self.comm.broadcast(array, root)
        return array

    def finish(self) -> None:
        """Wait until the device has done what it was given.

        Raises
        ------
        Aborted
            If a peer has failed or died before.
        """
        if not self._busy:
            return
        self._busy = False
        self.progress.mark()
        eager = time.monotonic() + EAGER
        try:
            while not self.progress.is_done():
                if time.monotonic() > eager:
                    self._look()
                    time.sleep(PAUSE)
        except BaseException:
            self.give_up()
            raise

    def give_up(self) -> None:
        """Free the device from waiting for peers; what NCCL has given up cannot be used again."""
        if not self.broken:
            self.broken = True
            self.progress.abort()

    # -- around NCCL's calls -------------------------------------------------------------------------------------

    def _enter(self) -> None:
        if self.broken:
            raise RuntimeError("NCCL was aborted in an earlier command: call synkhronos.close() and fork() again")
        self._busy = True

    def _reduced(
        self,
        array: Any,
        meta: Meta,
        op: ReduceOp,
        weights: Optional[Sequence[float]],
        present: Sequence[bool],
        call: Callable[[Any, str], Any],
    ) -> Any:
        """Prepare this rank's part, have NCCL combine the parts, and finish what comes out."""
        name, shape, dtype = str(op.name), meta.shape, meta.dtype
        if name == "avg":
            return self._average(array, meta, weights, present, call)
        wide = compute_dtype(op, dtype)
        if array is None:
            part = filled(_neutral(name, wide), shape, wide, self.context)
        else:
            part = array.astype(wide, copy=False)
        if not part.size:
            return self._cut(part, call)
        mark = None
        if name in ("min", "max") and wide.kind == "f":  # NCCL lets numbers win against NaN, NumPy does not
            mark = nan_mark(part)
            mark = call(mark, "sum")
        out = call(part, name)
        if out is None:
            return None
        if mark is not None:
            out = combine(ReduceOp("sum"), out, mark, out)
        return out.astype(dtype, copy=False)

    def _average(
        self,
        array: Any,
        meta: Meta,
        weights: Optional[Sequence[float]],
        present: Sequence[bool],
        call: Callable[[Any, str], Any],
    ) -> Any:
        """Return the mean of the ranks that count, under the contract of `reductions.mean`.

        NCCL adds in an order of its own and rounds at each step, which takes the sum of equal values off that value,
        and every rank knows only its own. Half and single precision are therefore added in the next wider type: the
        error is far below half a digit of the narrow one, so that what is rounded to it lies between the least and the
        greatest value, without any clamp. That is one call with twice the bytes. The least and the greatest elements
        to clamp to would be two more calls, and three times the bytes: they are for double precision, which has no
        wider type.
        """
        ranks, counted = counting(present, weights)
        wide = np.dtype(np.float32 if meta.dtype == np.float16 else np.float64)
        shares = narrowed(counted, wide)
        counts = self.rank in ranks
        if counts:
            part = scale(array, float(shares[ranks.index(self.rank)]), dtype=wide)
        else:  # not 0 * x, which is NaN if x is infinite
            part = filled(_neutral("sum", wide), meta.shape, wide, self.context)
        if not part.size:
            return self._cut(part.astype(meta.dtype, copy=False), call)
        out, bounds = call(part, "sum"), []
        if wide == meta.dtype:
            for name in ("min", "max"):
                own = array if counts else filled(_neutral(name, wide), meta.shape, wide, self.context)
                bounds.append(call(own, name))
        if out is None:
            return None
        out = scale(out, 1.0, float(shares.sum()))
        if bounds:
            out = clamp(out, *bounds)
        return out.astype(meta.dtype, copy=False)

    def _cut(self, part: Any, call: Callable[[Any, str], Any]) -> Any:
        """Return the result of an array without elements."""
        if call == self._to_root and self.rank != self.root:
            return None
        return part

    def _all_reduce(self, part: Any, op: str) -> Any:
        self._enter()
        out = empty(part.shape, part.dtype, self.context)
        self.comm.all_reduce(part, op, out)
        return out

    def _to_root(self, part: Any, op: str) -> Any:
        self._enter()
        if self.rank != self.root:
            self.comm.reduce(part, op, root=self.root)
            return None
        out = empty(part.shape, part.dtype, self.context)
        self.comm.reduce(part, op, out, root=self.root)
        return out


def _meta(array: Any) -> Meta:
    return Meta(True, tuple(array.shape), np.dtype(array.dtype))


def _neutral(name: str, dtype: np.dtype[Any]) -> Any:
    """Return the element that changes nothing."""
    if name in _NEUTRAL:
        return _NEUTRAL[name]
    if dtype.kind == "f":
        return np.inf if name == "min" else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if name == "min" else limits.min
