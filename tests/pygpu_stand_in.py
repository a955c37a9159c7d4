"""Stand-ins for pygpu and NCCL, to test the code around them without a device.

An array "on the device" is a NumPy array of a separate class. Elementwise kernels are the same C expressions as on a
device, compiled by this machine's C compiler. `Communicator` has NCCL's requirements (equal sizes, known types, the
same calls in the same order on all ranks). Like NCCL, it may prefer numbers to NaN.
"""

import ctypes
import functools
import importlib
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections import namedtuple
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import numpy as np

COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]

C_TYPES = {
    "float64": "double",
    "float32": "float",
    "int64": "long long",
    "int32": "int",
    "int8": "signed char",
    "uint8": "unsigned char",
    "uint64": "unsigned long long",
    "bool": "unsigned char",
}

Argument = namedtuple("Argument", "name type read write scalar")


class Context:
    """Result of `pygpu.init`."""

    ptr = 1


class Array(np.ndarray):
    """Result of `pygpu.empty`."""

    context = Context()

    def write(self, source):
        np.copyto(self, source)

    def read(self, into):
        np.copyto(into, self)

    def take1(self, indices):
        return np.take(self, indices, axis=0).view(Array)


def arg(name, type_, read=False, write=False, scalar=False):
    return Argument(name, np.dtype(type_), read, write, scalar)


class Elemwise:
    """Elementwise kernel; half precision is computed in single precision, as ``convert_f16`` requests."""

    def __init__(self, context, expression, arguments, convert_f16):
        assert convert_f16
        self.arguments = list(arguments)
        with _compiling:  # ranks are threads here
            self._function = compiled(
                expression, tuple((each.name, C_TYPES[computed(each.type).name], each.scalar) for each in arguments)
            )

    def __call__(self, *values):
        given, size = [], None
        for each, value in zip(self.arguments, values):
            assert each.scalar or value.dtype == each.type and value.flags["C_CONTIGUOUS"]
            array = (
                np.array(value, computed(each.type)) if each.scalar else value.astype(computed(each.type), copy=False)
            )
            assert each.scalar or size in (None, array.size)
            size = size if each.scalar else array.size
            given.append(np.ascontiguousarray(array))
        self._function(
            ctypes.c_longlong(size), *[ctypes.c_void_p(array.__array_interface__["data"][0]) for array in given]
        )
        for each, value, array in zip(self.arguments, values, given):
            if each.write and not np.may_share_memory(value, array):
                with np.errstate(all="ignore"):
                    value[...] = array.reshape(value.shape)


def computed(dtype):
    """Return the type used to compute elements of a type."""
    return np.dtype(np.float32) if dtype == np.float16 else dtype


_compiling = threading.Lock()


@functools.lru_cache(maxsize=None)
def compiled(expression, arguments):
    """Return a C function that takes a length and the arguments' addresses."""
    body = expression
    for name, _, scalar in arguments:
        body = re.sub(rf"\b{name}\b", f"{name}[{0 if scalar else 'i'}]", body)
    parameters = ", ".join(f"{c_type} *{name}" for name, c_type, _ in arguments)
    source = f"void f(long long n, {parameters}) {{ for (long long i = 0; i < n; i++) {{ {body}; }} }}\n"
    with tempfile.TemporaryDirectory(prefix="elementwise") as folder:  # other ranks compile the same code
        path = Path(folder, "function.c")
        path.write_text(source)
        library = str(path.with_suffix(".so"))
        subprocess.run([COMPILER, "-O1", "-ffp-contract=off", "-shared", "-fPIC", str(path), "-o", library], check=True)
        return ctypes.CDLL(library).f


def modules():
    """Return the stand-in modules for pygpu, by import name."""
    pygpu, elemwise, gpuarray = (ModuleType(name) for name in ("pygpu", "pygpu._elemwise", "pygpu.gpuarray"))
    pygpu.empty = lambda shape, dtype, context: np.full(shape, 77, dtype).view(Array)
    pygpu.array = lambda value, context: np.array(value, order="C").view(Array)
    pygpu.concatenate = lambda parts, axis, context: np.concatenate(parts, axis).view(Array)
    pygpu.init = lambda name: Context()
    elemwise.GpuElemwise, elemwise.arg = Elemwise, arg
    gpuarray.GpuArray, gpuarray.GpuContext = Array, Context
    pygpu._elemwise, pygpu.gpuarray = elemwise, gpuarray
    return {module.__name__: module for module in (pygpu, elemwise, gpuarray)}


@contextmanager
def installed():
    """Return (pygpu, `reductions.device`, `transports.nccl`) for the block, the last two loaded with the stand-in.

    Afterwards no module refers to the stand-in: later imports find the real pygpu, or fail.
    """
    ours = ["synkhronos.reductions.device", "synkhronos.transports.nccl", "synkhronos.transports.gpu"]
    before = {name: sys.modules.pop(name, None) for name in [*modules(), *ours]}
    sys.modules.update(modules())
    try:
        yield tuple(map(importlib.import_module, ["pygpu", *ours[:2]]))
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            parent, _, attribute = name.rpartition(".")
            if module is not None:
                sys.modules[name] = module
            if parent in sys.modules and hasattr(sys.modules[parent], attribute):
                delattr(sys.modules[parent], attribute)
                if module is not None:
                    setattr(sys.modules[parent], attribute, module)


class Communicator:
    """Stand-in for pygpu.collectives.GpuComm, over ranks that can exchange objects.

    Parameters
    ----------
    host
        Has ``rank``, ``size`` and ``exchange``, like a transport.
    known : sequence of str
        Names of the dtypes that NCCL supports.
    """

    UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.fmin, "max": np.fmax}

    def __init__(self, host, known):
        self.host, self.count, self.known = host, host.size, known
        self.calls = []

    def _exchange(self, call, array):
        assert array.flags["C_CONTIGUOUS"] and array.dtype.name in self.known and array.size
        self.calls.append(call)
        said = self.host.exchange((call, np.asarray(array)))
        assert len({(theirs, value.shape, value.dtype) for theirs, value in said}) == 1, said
        return [value for _, value in said]

    def _reduced(self, call, src, op):
        parts = self._exchange(call + " " + op, src)
        with np.errstate(all="ignore"):
            return functools.reduce(self.UFUNCS[op], parts)

    def all_reduce(self, src, op, dest):
        dest.write(np.ascontiguousarray(self._reduced("all_reduce", src, op)))

    def reduce(self, src, op, dest=None, root=-1):
        result = self._reduced(f"reduce to {root}", src, op)
        assert (dest is not None) == (self.host.rank == root)
        if dest is not None:
            dest.write(np.ascontiguousarray(result))

    def broadcast(self, array, root=-1):
        array.write(self._exchange(f"broadcast from {root}", array)[root])

    def all_gather(self, src, dest, nd_up=1):
        parts = self._exchange(f"all_gather {nd_up}", src)
        dest.write(np.concatenate(parts) if nd_up == 0 else np.stack(parts))
