"""Collectives on device arrays that bypass the host, with NCCL through pygpu.

NCCL computes sum, prod, min and max of arrays of equal size. Kernels before and after its calls add the remaining
guarantees of `reductions`. For an average, values are weighted before NCCL adds them, and the sum is
divided (`Clique._average`). float16 is summed in float32, and NaN takes precedence over numbers. A rank without a value
contributes a neutral element. Gathered arrays are padded to equal length and trimmed.

NCCL's calls return before the work is done, and the work waits for all ranks. If a rank died, the other devices would
wait forever. `Clique.finish` therefore checks for failed ranks until the device is done, and aborts if one has failed.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..errors import error_text
from ..host import machine
from ..reductions import ReduceOp, compute_dtype, counting, narrowed
from ..reductions.device import clamp, combine, concatenate, empty, filled, nan_mark, scale
from .shared_memory import SharedMemoryTransport

KNOWN = ("int8", "int32", "int64", "uint64", "float16", "float32", "float64")

MULTI_RANK = "NCCL_MULTI_RANK_GPU_ENABLE"  #: Variable that allows several ranks per device (since NCCL 2.32).
VISIBLE = "CUDA_VISIBLE_DEVICES"
EAGER, PAUSE = 0.001, 0.0002  #: Seconds of busy-waiting for a device, then seconds between two checks.
END_S = 1.0  #: Seconds to wait for a communicator to be aborted.
CUDA_ERROR_NOT_READY = 600  #: Status from cuEventQuery while the device is busy.

_NEUTRAL = {"sum": -0.0, "prod": 1}  # adding 0 would turn a sum of -0 into 0


class Meta(NamedTuple):
    """Location, shape and dtype of one rank's array."""

    on_device: bool
    shape: Tuple[int, ...]
    dtype: np.dtype[Any]


def is_known(dtype: np.dtype[Any]) -> bool:
    return dtype.name in KNOWN


def open_clique(host: SharedMemoryTransport, context: Any, device: str) -> Tuple[Optional[Clique], str]:
    """Open a communicator of the ranks' devices, on every rank; if any rank fails, return None and the reason."""
    # Environments may differ between hosts, so ranks exchange them to reach the same decision.
    said = host.exchange((device, (machine.boot_id(), os.environ.get(VISIBLE)), os.environ.get(MULTI_RANK)))
    devices = [name for name, _, _ in said]
    of_cuda = [(name, shown_by) for name, shown_by, _ in said if name.startswith("cuda")]
    if len(set(of_cuda)) < len(of_cuda) and any(may_share != "1" for _, _, may_share in said):
        return None, f"several ranks share a device, which requires NCCL 2.32 or later and {MULTI_RANK}=1"
    collectives: Any = None
    ident, trouble = b"", ""
    try:
        collectives = import_module("pygpu.collectives")
        clique_id = collectives.GpuCommCliqueId(context)
        ident = bytes(clique_id.comm_id)
    except Exception as error:
        trouble = error_text(error)
    said = host.exchange((trouble, ident))  # no rank continues unless all can
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
            if progress is not None:
                progress.abort()
            return None, f"rank {rank}, {devices[rank]}: {theirs}"
    return Clique(comm, context, host.rank, host.size, host.root, progress, host.barrier.look_alone), ""


class NcclProgress(ABC):
    """Interface for polling and aborting a device's work."""

    @abstractmethod
    def mark(self) -> None:
        """Record all work submitted to the device so far."""

    @abstractmethod
    def is_done(self) -> bool:
        """Return whether the work recorded by `mark` is done."""

    @abstractmethod
    def abort(self) -> None:
        """Abort the work, so that the device stops waiting for peers, and free the communicator."""


class Cuda(NcclProgress):
    """Polls a CUDA device, and aborts NCCL's communicator, through ctypes.

    ``ncclCommDestroy`` waits for all peers, forever if one has ended. So only ``ncclCommAbort`` is called, and pygpu's
    object, which would destroy the communicator, is never freed.
    An event on the default stream follows the work of all blocking streams, including pygpu's.
    """

    def __init__(self, context: Any, comm: Any) -> None:
        self._context = context  # entering the context makes it CUDA's current context
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(comm))
        self._cuda, self._nccl = ctypes.CDLL("libcuda.so"), ctypes.CDLL("libnccl.so")
        # pygpu's object is a Python header and a pointer to {context, communicator, ...}.
        structure = ctypes.c_void_p.from_address(id(comm) + object.__basicsize__).value or 0
        self._comm = ctypes.c_void_p(ctypes.c_void_p.from_address(structure + ctypes.sizeof(ctypes.c_void_p)).value)
        count = ctypes.c_int()
        if self._nccl.ncclCommCount(self._comm, ctypes.byref(count)) or count.value != comm.count:
            raise RuntimeError("cannot locate the NCCL communicator in this version of pygpu")
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
            raise RuntimeError(f"NCCL error {error.value} during a collective")
        return False

    def abort(self) -> None:
        abort = self._nccl.ncclCommAbort
        thread = threading.Thread(target=abort, args=(self._comm,), name="synkhronos nccl", daemon=True)
        thread.start()
        thread.join(END_S)


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA error {status}")


class Clique:
    """Collectives between devices, one array per call; every rank makes the same calls in the same order.

    Results are in new memory and complete after `finish`. ``look`` raises `Aborted` if a peer has failed or died, but
    not if it has finished the command: ranks that only send finish earlier.
    """

    def __init__(
        self,
        comm: Any,
        context: Any,
        rank: int,
        size: int,
        root: int,
        progress: NcclProgress,
        look: Callable[[], object],
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
        """Return ``op(x_0, ..., x_{n-1})`` over the ranks that are present (all by default), on every rank."""
        there = [True] * self.size if present is None else present
        mine = array if there[self.rank] else None
        return self._reduced(mine, _meta(array), op, weights, there, self._all_reduce)

    def reduce(
        self, array: Any, metas: Sequence[Optional[Meta]], op: ReduceOp, weights: Optional[Sequence[float]] = None
    ) -> Any:
        """Return the reduction on the root, None elsewhere. Ranks whose metadata is None have no array."""
        meta = next(meta for meta in metas if meta is not None)
        return self._reduced(array, meta, op, weights, [each is not None for each in metas], self._to_root)

    def all_gather(self, array: Any, lengths: Sequence[int]) -> Any:
        """Return the concatenation of all ranks' arrays, which have the given lengths."""
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
        """Return the root's array, of the shape and dtype in ``meta``."""
        if self.rank != root:
            array = empty(meta.shape, meta.dtype, self.context)
        if array.size:
            self._enter()
            self.comm.broadcast(array, root)
        return array

    def finish(self) -> None:
        """Wait until the device has completed its work; raise `Aborted` if a peer fails or dies first."""
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
        """Abort NCCL, so that the device stops waiting for peers; the communicator becomes unusable."""
        if not self.broken:
            self.broken = True
            self.progress.abort()

    # -- around NCCL's calls -------------------------------------------------------------------------------------

    def _enter(self) -> None:
        if self.broken:
            raise RuntimeError("NCCL was aborted in an earlier command: call synkhronos.close() and then fork()")
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
        """Prepare this rank's part, combine the parts with NCCL, and finish the result."""
        name, shape, dtype = str(op.name), meta.shape, meta.dtype
        if name == "avg":
            return self._average(array, meta, weights, present, call)
        wide = compute_dtype(op, dtype)
        if array is None:
            part = filled(_neutral(name, wide), shape, wide, self.context)
        else:
            part = array.astype(wide, copy=False)
        if not part.size:
            return self._cut(part.astype(dtype, copy=False), call)
        mark = None
        if name in ("min", "max") and wide.kind == "f":  # NCCL prefers numbers to NaN; NumPy propagates NaN
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
        """Return the mean over the participating ranks, with the guarantees of `reductions.mean`.

        NCCL adds in its own order and rounds at each step, so the sum of equal values can miss the exact multiple. A
        rank cannot check this, because it has only its own value. Half- and single-precision values are therefore added
        in the next wider type. The error is then far below half a unit in the last place of the narrow type, so the
        rounded mean is between the least and greatest values. For double precision, two more calls compute its bounds.
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
    if name in _NEUTRAL:
        return _NEUTRAL[name]
    if dtype.kind == "f":
        return np.inf if name == "min" else -np.inf
    limits = np.iinfo(dtype)
    return limits.max if name == "min" else limits.min
