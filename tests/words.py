"""Vocabulary for programs in tests of functions, for each engine."""

import numpy as np
import pytest
from worlds import DEVICE, LINKER

import synkhronos as synk


class NumpyWords:
    """Vocabulary of the NumPy engine."""

    def __init__(self):
        from synkhronos.testing import numpy_engine as engine

        self.shared, self.apply, self.In = engine.shared, engine.apply, engine.In
        self.mean, self.sum, self.max = engine.mean, engine.sum, engine.max

    def variable(self, name, ndim=1, dtype="float64", broadcastable=None):
        from synkhronos.testing import numpy_engine as engine

        return engine.variable(name, dtype, ndim, broadcastable)

    def min(self, x):
        return self.apply(np.min, x)

    def prod(self, x):
        return self.apply(np.prod, x)

    def function(self, *args, **kwargs):
        return synk.function(*args, **kwargs)


class TheanoWords:
    """Vocabulary of Theano, run as Python code without a compiler."""

    def __init__(self):
        theano = pytest.importorskip("theano")
        import theano.tensor as T

        self.theano, self.T = theano, T
        self.shared, self.In = theano.shared, theano.In
        self.mean, self.sum, self.max, self.min, self.prod = T.mean, T.sum, T.max, T.min, T.prod
        linker = theano.gof.vm.VM_Linker(use_cloop=True, c_thunks=DEVICE is not None)  # (required on devices)
        self.mode = theano.Mode(linker=linker, optimizer="fast_compile")

    def variable(self, name, ndim=1, dtype="float64", broadcastable=None):
        return self.T.TensorType(dtype, broadcastable or (False,) * ndim)(name)

    def function(self, *args, **kwargs):
        kwargs.setdefault("mode", self.mode)
        kwargs.setdefault("on_unused_input", "ignore")
        return synk.function(*args, **kwargs)


class PyTensorWords:
    """Vocabulary of PyTensor, run as Python code without a compiler; see `worlds.LINKER`."""

    def __init__(self):
        self.pytensor = pytest.importorskip("pytensor")
        import pytensor.tensor as pt

        self.T, self.In = pt, self.pytensor.In
        self.mean, self.sum, self.max, self.min, self.prod = pt.mean, pt.sum, pt.max, pt.min, pt.prod
        self.mode = self.pytensor.compile.mode.Mode(linker=LINKER, optimizer="fast_compile")

    def shared(self, value, name=None, broadcastable=None):
        known = {} if broadcastable is None else {"shape": tuple(1 if one else None for one in broadcastable)}
        return self.pytensor.shared(value, name, **known)

    def variable(self, name, ndim=1, dtype="float64", broadcastable=None):
        shape = tuple(1 if one else None for one in broadcastable or (False,) * ndim)
        return self.T.TensorType(dtype, shape=shape)(name)

    def function(self, *args, **kwargs):
        kwargs.setdefault("mode", self.mode)
        kwargs.setdefault("on_unused_input", "ignore")
        return synk.function(*args, **kwargs)


#: Vocabularies by engine.
WORDS = {"numpy": NumpyWords, "theano": TheanoWords, "pytensor": PyTensorWords}


def shards(array, n, root):
    """Return every rank's rows as documented: NumPy's array_split, with the root first if there are too few rows."""
    if len(array) >= n:
        return np.array_split(array, n)
    served = sorted(([root] + [rank for rank in range(n) if rank != root])[: len(array)])
    return [array[served.index(rank) :][:1] if rank in served else array[:0] for rank in range(n)]
