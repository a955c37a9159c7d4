"""Names for graphs in tests: Theano's if it is installed, else PyTensor's.

``T`` is the library's tensor module with Theano's names; ``L`` has the rest. Tests of missing features are skipped.
"""

import contextlib
import importlib.util
import warnings
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from worlds import LINKER

IS_THEANO = importlib.util.find_spec("theano") is not None
IS_PYTENSOR = not IS_THEANO and importlib.util.find_spec("pytensor") is not None
NAME = "theano" if IS_THEANO else "pytensor"

#: Mark of a test module whose vocabulary has no counterpart in PyTensor.
needs_theano = pytest.mark.skipif(not IS_THEANO, reason="Theano is not installed")


def lacks(what):
    """Skip a test of a feature that the library lacks."""
    pytest.skip(f"{NAME} has no {what}")


def executed(function):
    """Return the executor of a compiled function's operations."""
    return function.fn if IS_THEANO else function.vm


class Missing:
    """Placeholder for a name that the library lacks."""

    def __init__(self, name):
        self._name = name

    def __call__(self, *args, **kwargs):
        lacks(self._name)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._name}.{name}")

    def __mro_entries__(self, bases):
        return (object,)  # so that a derived class can be defined


class TheanoLibrary:
    """Theano's names for tests."""

    def __init__(self):
        import theano
        import theano.tensor.nnet.neighbours
        import theano.tensor.signal.pool
        from theano.compile.ops import as_op
        from theano.gof.graph import inputs, io_toposort
        from theano.ifelse import ifelse
        from theano.printing import Print
        from theano.scalar import or_
        from theano.scan_module import until
        from theano.tensor.elemwise import CAReduce, Elemwise

        from synkhronos.engines.theano import engine, formulas, placing

        self.module, self.tensor = theano, theano.tensor
        self.In, self.Out, self.as_op = theano.In, theano.Out, as_op
        self.Mode, self.VMLinker, self.DebugMode = theano.Mode, theano.gof.vm.VM_Linker, theano.compile.DebugMode
        self.UnusedInputError, self.generic = theano.compile.UnusedInputError, theano.gof.generic
        self.shared, self.function, self.scan, self.map, self.reduce = (
            *(theano.shared, theano.function, theano.scan, theano.map),
            theano.reduce,
        )
        self.until, self.ifelse, self.Print, self.io_toposort, self.inputs = until, ifelse, Print, io_toposort, inputs
        self.CAReduce, self.Elemwise, self.or_ = CAReduce, Elemwise, or_
        self.OpFromGraph, self.Op, self.Apply = theano.OpFromGraph, theano.Op, theano.Apply
        self.engine, self.placing, self.formulas = engine.ENGINE, placing.PLACING, formulas.with_formulas
        self.sorts_have_an_axis, self.casts_wrap_around, self.merges_operations = False, True, False
        self.slow, self.quick = theano.Mode(linker="py", optimizer=None), "FAST_COMPILE"
        self.full, self.with_compiler = "FAST_RUN", theano.Mode("cvm", "fast_compile")
        self.lazy = self.quick  # computes only the selected branch of a condition

    def variable(self, dtype, ndim, name=None):
        return self.tensor.TensorType(dtype, (False,) * ndim)(name)

    @property
    def NanGuardMode(self):
        from theano.compile.nanguardmode import NanGuardMode

        return NanGuardMode

    @property
    def sparse(self):
        import theano.sparse

        return theano.sparse

    def zeros_like(self, param):
        """Return a shared variable of zeros with the type of another variable."""
        return self.shared(np.zeros_like(param.get_value()), broadcastable=param.broadcastable)

    @contextlib.contextmanager
    def compiled_quickly(self):
        """Compile inner graphs in mode FAST_COMPILE, despite Theano's cached default mode."""
        with self.module.change_flags(mode="FAST_COMPILE", compute_test_value="off"):
            with mock.patch.object(self.module.compile.mode, "instantiated_default_mode", None):
                yield

    def gradient(self, name):
        return getattr(self.module.gradient, name)

    def streams(self, seed):
        """Return both kinds of random streams."""
        from theano.sandbox.rng_mrg import MRG_RandomStreams
        from theano.tensor.shared_randomstreams import RandomStreams

        return [MRG_RandomStreams(seed), RandomStreams(seed)]

    def states(self, stream):
        """Return the shared variables of a stream."""
        return [state for state, *_ in stream.state_updates]


class PyTensorLibrary:
    """PyTensor's features, with Theano's names."""

    def __init__(self):
        import pytensor
        from pytensor.compile.builders import OpFromGraph
        from pytensor.compile.debug.debugmode import DebugMode
        from pytensor.compile.maker import UnusedInputError
        from pytensor.compile.mode import Mode
        from pytensor.compile.ops import wrap_py
        from pytensor.graph.basic import Apply
        from pytensor.graph.op import Op
        from pytensor.graph.traversal import graph_inputs
        from pytensor.link.c.type import generic
        from pytensor.link.vm import VMLinker
        from pytensor.printing import Print
        from pytensor.scalar import or_
        from pytensor.scan.utils import until
        from pytensor.tensor.elemwise import CAReduce, Elemwise
        from pytensor.tensor.sort import SortOp

        from synkhronos.engines.pytensor import engine, formulas, placing

        try:
            from pytensor.conditional.op import ifelse
        except ImportError:  # before PyTensor 3.3
            from pytensor.ifelse import ifelse

        self.module, self.tensor = pytensor, PyTensorTensors()
        self.In, self.shared, self.function, self.as_op = pytensor.In, pytensor.shared, pytensor.function, wrap_py
        self.Out, self.Mode, self.VMLinker, self.DebugMode = pytensor.Out, Mode, VMLinker, DebugMode
        self.UnusedInputError, self.generic = UnusedInputError, generic
        self.until, self.ifelse, self.Print, self.io_toposort = until, ifelse, Print, engine.ENGINE.library.io_toposort
        self.CAReduce, self.Elemwise, self.or_ = CAReduce, Elemwise, or_
        self.OpFromGraph, self.Op, self.Apply = OpFromGraph, Op, Apply
        self.engine, self.placing, self.formulas = engine.ENGINE, placing.PLACING, formulas.with_formulas
        self.slow, self.quick = (Mode(linker=LINKER, optimizer=one) for one in (None, "fast_compile"))
        self.full, self.with_compiler = Mode(linker=LINKER, optimizer="fast_run"), self.quick
        self.lazy = Mode(linker="vm", optimizer="fast_compile")
        self.sorts_have_an_axis = "axis" in SortOp.__props__
        # With NumPy 2, the Python code of PyTensor 3.0 raises an OverflowError. It uses one of equal operations for all.
        self.merges_operations = pytensor.__version__.startswith("3.0.")
        self.casts_wrap_around = LINKER != "py" or not self.merges_operations
        self.inputs = lambda outputs: list(graph_inputs(outputs))

    def variable(self, dtype, ndim, name=None):
        return self.tensor.TensorType(dtype, shape=(None,) * ndim)(name)

    @property
    def NanGuardMode(self):
        from pytensor.compile.debug.nanguardmode import NanGuardMode

        return NanGuardMode

    @property
    def sparse(self):
        import pytensor.sparse

        return pytensor.sparse

    def zeros_like(self, param):
        return self.shared(np.zeros_like(param.get_value()), shape=param.type.shape)

    def scan(self, *args, **kwargs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self.module.scan(*args, **kwargs)
        return found if isinstance(found, tuple) and isinstance(found[1], dict) else (found, {})

    def map(self, *args, **kwargs):
        return self.scan(*args, **kwargs)

    def reduce(self, fn, sequences, outputs_info, **kwargs):
        (found, updates) = self.scan(fn, sequences, outputs_info, **kwargs)
        return found[-1], updates

    @contextlib.contextmanager
    def compiled_quickly(self):
        with self.module.config.change_flags(mode="FAST_COMPILE", linker="py", cxx=""):
            yield

    def gradient(self, name):
        return getattr(self.module.gradient, name, Missing(f"gradient.{name}"))

    def streams(self, seed):
        return [PyTensorStreams(seed), PyTensorStreams(seed + 1)]

    def states(self, stream):
        return [state for state, _ in stream.stream.state_updates]


class PyTensorTensors:
    """``pytensor.tensor`` with Theano's names."""

    def __init__(self):
        import pytensor.tensor as pt

        self.pt, self.nnet, self.opt = pt, PyTensorNetworks(), PyTensorOpt()
        self.inv, self.sgn, self.signal = pt.reciprocal, pt.sign, Missing("signal")
        self.shared_randomstreams = SimpleNamespace(RandomStreams=PyTensorStreams)
        self.nlinalg = SimpleNamespace(
            det=pt.linalg.det, diag=pt.diagonal, matrix_inverse=pt.linalg.matrix_inverse, trace=pt.linalg.trace
        )

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.pt, name, Missing(f"tensor.{name}"))

    def __reduce__(self):
        return PyTensorTensors, ()  # sent to ranks with the operations of tests

    def batched_dot(self, one, other):
        one, other = self.pt.as_tensor_variable(one), self.pt.as_tensor_variable(other)
        left, right = one if one.ndim == 3 else one[:, None, :], other if other.ndim == 3 else other[:, :, None]
        found = self.pt.matmul(left, right)
        found = found if other.ndim == 3 else found[:, :, 0]
        return found if one.ndim == 3 else found[:, 0]

    def tile(self, x, reps, ndim=None):
        return self.pt.tile(x, reps)

    def addbroadcast(self, x, *axes):
        return self.pt.specify_broadcastable(x, *axes)

    def max(self, x, axis=None, **kwargs):
        return self.pt.max(x, axis=axis, **kwargs)

    def split(self, x, splits, n_splits, axis=0):
        return self.pt.split(x, splits, axis=axis)


class PyTensorStreams:
    """``pytensor.tensor.random.RandomStream`` with the interface of Theano's."""

    def __init__(self, seed):
        import pytensor.tensor as pt

        self.pt = pt
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # programs use such streams nevertheless
            self.stream = pt.random.RandomStream(seed)

    def _drawn(self, name, *args, **kwargs):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return getattr(self.stream, name)(*args, **kwargs)

    def uniform(self, size=None, low=0.0, high=1.0):
        return self._drawn("uniform", low, high, size=size)

    def normal(self, size=None, avg=0.0, std=1.0):
        return self._drawn("normal", avg, std, size=size)

    def binomial(self, size=None, n=1, p=0.5, dtype="int64"):
        return self.pt.cast(self._drawn("binomial", n, p, size=size), dtype)

    def multinomial(self, pvals):
        return self._drawn("multinomial", 1, pvals)

    def random_integers(self, size, low, high):
        return self._drawn("integers", low, high + 1, size=size)

    def choice(self, size, a):
        return self._drawn("integers", 0, a, size=size)

    def permutation(self, size, n):
        return lacks("random.permutation of a size") if size else self._drawn("permutation", n)


class PyTensorOpt:
    """PyTensor's substitute for ``theano.tensor.opt``."""

    def __init__(self):
        from pytensor.raise_op import Assert

        self.Assert = Assert


class PyTensorNetworks:
    """Substitute for ``theano.tensor.nnet``: PyTensor's functions, and formulas for missing ones."""

    def __init__(self):
        import pytensor.tensor as pt

        self.pt, self.sigmoid, self.softplus = pt, pt.sigmoid, pt.softplus

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"nnet.{name}")

    def softmax(self, x):
        return self.pt.special.softmax(x, axis=-1)

    def logsoftmax(self, x):
        return self.pt.special.log_softmax(x, axis=-1)

    def relu(self, x, alpha=0):
        return self.pt.maximum(x, alpha * x) if alpha else 0.5 * (x + abs(x))

    def elu(self, x, alpha=1):
        return self.pt.switch(x > 0, x, alpha * self.pt.expm1(x))

    def binary_crossentropy(self, output, target):
        return -(target * self.pt.log(output) + (1.0 - target) * self.pt.log(1.0 - output))

    def categorical_crossentropy(self, predicted, true):
        if true.ndim == predicted.ndim:
            return -self.pt.sum(true * self.pt.log(predicted), axis=predicted.ndim - 1)
        return -self.pt.log(predicted)[self.pt.arange(true.shape[0]), true]


if IS_THEANO:
    L = TheanoLibrary()
elif IS_PYTENSOR:
    L = PyTensorLibrary()
else:
    pytest.skip("neither Theano nor PyTensor is installed", allow_module_level=True)
T = L.tensor
