"""Theano's GPU back-end: devices, device arrays, and functions that leave results on the device.

Each process has at most one device, Theano's default context (named None). Programs without devices need no pygpu.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
from typing import Any, Callable, List, Optional, Tuple

import numpy as np
import theano
from theano.compile.function_module import FunctionMaker
from theano.compile.io import SymbolicOutput
from theano.gof import Apply, Constant, FunctionGraph, local_optimizer
from theano.gof.destroyhandler import DestroyHandler
from theano.gof.graph import clone_get_equiv
from theano.tensor import TensorType

from ...errors import ArgumentTypeError, StateError, SynkhronosError, error_text
from ...reductions import Accumulator, ReduceOp
from ...selection import Indices
from .. import pickling
from . import pocl
from .operations import AllReduce

#: Attribute of an Apply node that stores a reduction's compiled kernel, which cannot be pickled.
KERNEL_OF_REDUCTION = "@cache_reduction_k"

#: Rewrites that are disabled on OpenCL devices, because the resulting operations do not compile for OpenCL.
NOT_FOR_OPENCL = ("local_gpua_crossentropysoftmaxargmax1hotwithbias",)

_NO_MEMORY = re.compile(r"out.?of.?memory|alloc(ate|ating|ation)|Invalid buffer size|out of resources", re.IGNORECASE)

_opened: Optional[str] = None  # name of the device opened by `open_device`


def missing() -> str:
    """Return a sentence that explains why devices cannot be used, with the remedy; "" if pygpu can be imported."""
    try:
        importlib.import_module("pygpu")
    except Exception as error:  # not only ImportError, because libgpuarray may fail to load
        return (
            f"pygpu cannot be imported ({type(error).__name__}: {error}): install pygpu as docs/gpus.rst explains, "
            "or with tools/install_opencl.sh on a computer without a GPU"
        )
    return ""


def opened() -> Optional[str]:
    """Return the name of the device opened by `open_device` in this process, or None."""
    return _opened


def foreign() -> str:
    """Describe the code that opened a device in this process without `open_device`; "" if there is none."""
    types = sys.modules.get("theano.gpuarray.type")
    if types is None or _opened is not None or not types.list_contexts():
        return ""
    for flag in ("device", "init_gpu_device"):
        value = str(getattr(theano.config, flag))
        if value.startswith(("cuda", "opencl")):
            return f"the import of Theano (or of Lasagne, which imports it), because Theano's flag {flag} is {value}"
    return "theano.gpuarray.use(...), called by the program or by one of its imports"


def open_device(name: str) -> Any:
    """Open a device for all later variables and functions of this process; return its pygpu context.

    Raises StateError if another device is already open, and SynkhronosError with Theano's message if opening fails.
    """
    global _opened
    if _opened is not None and _opened != name:
        raise StateError(
            f"this process opened {_opened} in an earlier synkhronos.fork(), and Theano cannot change the "
            "device: assign the same device to the master again, or start a new program"
        )
    gpuarray = importlib.import_module("theano.gpuarray")
    if _opened is None:
        # The environment inherited from the master may wrongly indicate an active device in this process.
        os.environ.pop("THEANO_GPU_IS_ALREADY_ACTIVE", None)
        if name.startswith("opencl"):
            pocl.claim()
        try:
            gpuarray.use(name)
        except Exception as error:
            raise SynkhronosError(f"{name} could not be opened: {error_text(error)}") from error
        _opened = name
        if name.startswith("cuda"):
            pickling.prepare_thread = _make_current(gpuarray.get_context(None))
        _lift_all_reduce(gpuarray.opt)
        if name.startswith("opencl"):
            for database in (gpuarray.opt.gpu_optimizer, gpuarray.opt.gpu_optimizer2):
                for optimization in NOT_FOR_OPENCL:
                    database.remove_tags(optimization, "fast_run", "fast_compile", "gpuarray")
    return gpuarray.get_context(None)


def _make_current(context: Any) -> Callable[[], object]:
    """Make a CUDA context current in this thread; return a function that does so in the thread that calls it.

    libgpuarray does so for each of its calls, unless a per-process count says that it is inside another call. In
    version 0.7.6, finding a kernel in its cache leaves the count too high, and calls from other threads then fail.
    """
    driver, handle = ctypes.CDLL("libcuda.so"), ctypes.c_void_p()
    with context:
        driver.cuCtxGetCurrent(ctypes.byref(handle))

    def make_current() -> None:
        status = driver.cuCtxSetCurrent(handle)
        if status:
            raise SynkhronosError(f"the device's context could not be made current in a thread (CUDA error {status})")

    make_current()
    return make_current


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error suggests that the device opened by this process is out of memory."""
    return _opened is not None and (isinstance(error, MemoryError) or bool(_NO_MEMORY.search(error_text(error))))


def is_type(type_: Any) -> bool:
    types = sys.modules.get("theano.gpuarray.type")
    return types is not None and isinstance(type_, types.GpuArrayType)


def host_type(type_: Any) -> Any:
    """Return the host type for the arrays of a device type; return any other type unchanged."""
    return TensorType(type_.dtype, type_.broadcastable) if is_type(type_) else type_


def is_array(value: Any) -> bool:
    module = sys.modules.get("pygpu.gpuarray")
    return module is not None and isinstance(value, module.GpuArray)


def on_device(type_: Any, value: Any) -> Any:
    """Return a device array for a variable of this type; only host arrays are copied."""
    if is_array(value):
        return value
    return _arrays().upload(np.asarray(value), type_.context)


def take(array: Any, rows: Any) -> Any:
    """Return selected rows of a device array: a view of a contiguous slice, else a copy."""
    if isinstance(rows, Indices):
        return _arrays().take(array, rows.array)
    return _arrays().contiguous(rows.take(array))  # OpenCL operations crash on negative strides


def accumulator(op: ReduceOp, keep_dtype: bool) -> Any:
    """Return an accumulator for the values of slices, on the host or on the device."""
    return Accumulator(op, keep_dtype) if _opened is None else _arrays().DeviceAccumulator(op, keep_dtype)


def _arrays() -> Any:
    return importlib.import_module("synkhronos.reductions.device")


def check_context(label: str, type_: Any) -> None:
    """Raise ArgumentTypeError for a variable in a named context, because ranks have only the default context."""
    if is_type(type_) and type_.context_name is not None:
        raise ArgumentTypeError(
            label,
            "an array in the default context",
            f"an array in the context {type_.context_name!r}, which only this process has",
            "leave out target=",
        )


def _lift_all_reduce(opt: Any) -> None:
    """Register rewrites that pass device values to `AllReduce` directly instead of copying them to the host."""

    def on_device(op: Any, context: Any, inputs: Any, outputs: Any) -> Any:
        if op.op.on_host or all(is_type(variable.type) for variable in inputs[: op.n]):
            return None
        variables = [opt.as_gpuarray_variable(variable, context) for variable in inputs[: op.n]]
        return op(*variables, *inputs[op.n :], return_list=True)

    # Theano's `op_lifter` copies all results to the host, even results that the program keeps on the device.
    @local_optimizer([AllReduce])  # type: ignore  # Theano has no types
    def lift(node: Apply) -> Any:
        is_there = [
            is_type(one.type) or one.owner is not None and isinstance(one.owner.op, opt.HostFromGpu)
            for one in node.inputs
        ]
        new = on_device(node.op, None, node.inputs, node.outputs) if any(is_there) else None
        if new is None:
            return False
        return [one if is_type(old.type) else opt.safe_to_cpu(one) for old, one in zip(node.outputs, new)]

    opt.register_opt("fast_compile", name="local_gpua_all_reduce")(lift)
    opt.register_opt2([AllReduce], "fast_compile", name="local_gpua_all_reduce")(on_device)


def outputs_on_device(compiled: Any) -> Any:
    """Return a maker of the function that leaves outputs on the device if possible; ``compiled`` if no output can stay.

    Theano's graphs copy outputs to the host. Ranks reduce outputs on the device first, and copy only the results.
    """
    maker = compiled.maker
    if type(maker) is not FunctionMaker:  # DebugMode has its own class
        return compiled
    outputs = maker.fgraph.outputs
    stays = _can_stay(maker)
    if not any(stays):
        return compiled
    copies = clone_get_equiv(maker.fgraph.inputs, outputs)
    new = [
        copies[output].owner.inputs[0] if stay else copies[output]
        for output, stay in zip(outputs, stays + [False] * len(outputs))
    ]
    fgraph = FunctionGraph([copies[variable] for variable in maker.fgraph.inputs], new, clone=False)
    fgraph.attach_feature(DestroyHandler())  # orders in-place operations
    fgraph.update_mapping = getattr(maker.fgraph, "update_mapping", None)
    fgraph.profile = getattr(maker.fgraph, "profile", None)
    borrowing = [
        SymbolicOutput(spec.variable, borrow=spec.borrow and not stay) for spec, stay in zip(maker.outputs, stays)
    ]
    return FunctionMaker(
        inputs=maker.inputs,
        outputs=borrowing,
        fgraph=fgraph,
        mode=maker.mode,
        profile=maker.profile,
        accept_inplace=maker.accept_inplace,
        function_builder=maker.function_builder,
        on_unused_input="ignore",
        output_keys=maker.output_keys,
        name=maker.name,
    )


def _can_stay(maker: Any) -> List[bool]:
    """Return, for every output, whether it is the host copy of a device value that can be returned instead.

    This excludes constants, and values whose memory belongs to an input or update, or is overwritten by another node.
    """
    basic_ops = sys.modules.get("theano.gpuarray.basic_ops")
    if basic_ops is None:
        return []
    outputs, n_outputs = maker.fgraph.outputs, len(maker.outputs)
    stored = {_memory_of(output)[0] for output in outputs[n_outputs:]}
    overwriting = [
        (node, _memory_of(node.inputs[position])[0])
        for node in maker.fgraph.apply_nodes
        for positions in getattr(node.op, "destroy_map", {}).values()
        for position in positions
    ]
    stays = []
    for output in outputs[:n_outputs]:
        stay = output.owner is not None and isinstance(output.owner.op, basic_ops.HostFromGpu)
        if stay:
            memory, writers = _memory_of(output.owner.inputs[0])
            stay = (
                memory.owner is not None
                and not isinstance(memory, Constant)
                and memory not in stored
                and all(node in writers for node, overwritten in overwriting if overwritten is memory)
            )
        stays.append(stay)
    return stays


def _memory_of(variable: Any) -> Tuple[Any, List[Apply]]:
    """Return the variable whose memory a variable uses, and the operations in between (views, in-place operations)."""
    between = []
    while variable.owner is not None:
        node = variable.owner
        uses = {**getattr(node.op, "view_map", {}), **getattr(node.op, "destroy_map", {})}
        position = node.outputs.index(variable)
        if not uses.get(position):
            break
        between.append(node)
        variable = node.inputs[uses[position][0]]
    return variable, between


def without_kernel(node: Apply) -> Any:
    """Return the ``__reduce__`` value of a node without its reduction's kernel, which the rank creates again."""
    function, args, state = node.__reduce_ex__(2)[:3]
    return function, args, {name: value for name, value in state.items() if name != KERNEL_OF_REDUCTION}
