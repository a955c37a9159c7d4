"""The words in which the formulas of `recipes` are written, spoken by NumPy, by the NumPy engine and by Theano.

A formula is a function of the words and of values, arrays or variables: ``lambda v, x, w: v.sum(x * w, 0)``. Beside
these words it uses ``+ - *``, comparisons by name, and indexing by constants; all constants are exact in binary.
"""

import operator

import numpy as np

from synkhronos.testing import numpy_engine as numpy_engine

FUNCTIONS = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "dot": np.dot,
    "abs": np.absolute,
    "where": np.where,
    "greater": np.greater,
    "any": np.any,
    "all": np.all,
    "argmax": np.argmax,
    "larger": np.maximum,
    "and_": np.logical_and,
    "transposed": np.transpose,
    "at": operator.getitem,
}


def length(x):
    """The number of rows, int64."""
    return np.int64(len(x))


def cast(x, dtype):
    """The values in another type."""
    return np.asarray(x).astype(dtype)


def precision(x):
    """The relative distance between two numbers of the type of ``x``; 0 where it is no float."""
    dtype = np.asarray(x).dtype
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0


class Arrays:
    """The words as plain NumPy: the truth.

    Attributes
    ----------
    rounding : float
        The precision to which what was computed with these words is known, whatever the order of additions; 0: exactly.
    """

    def __init__(self):
        self.rounding = 0.0

    def __getattr__(self, word):
        function = {"length": length, "cast": cast, **FUNCTIONS}[word]
        if word not in ("sum", "mean", "prod", "dot"):
            return function

        def rounding(x, *args):
            self.rounding = max(self.rounding, precision(x))
            if word == "mean" and not np.size(x):
                raise ValueError("the mean of nothing")
            return function(x, *args)

        return rounding


class NumpyEngine:
    """The words as expressions of the NumPy engine."""

    options = {}
    shared, In = staticmethod(numpy_engine.shared), numpy_engine.In

    @staticmethod
    def variable(name, dtype, ndim, broadcastable=None):
        return numpy_engine.variable(name, dtype, ndim, broadcastable)

    def __getattr__(self, word):
        function = {"length": length, "cast": cast, **FUNCTIONS}[word]
        return lambda *args: numpy_engine.apply(function, *args)


class Theano:
    """The words as expressions of Theano, run as Python code: no compiler is called."""

    def __init__(self):
        import theano
        import theano.tensor as T

        self.shared, self.In = theano.shared, theano.In
        linker = theano.gof.vm.VM_Linker(use_cloop=True, c_thunks=False)
        mode = theano.Mode(linker, "fast_compile").excluding("constant_folding")  # which compiles what it folds
        self.options = {"mode": mode, "on_unused_input": "ignore"}
        self._tensor = T
        self._words = {
            "abs": abs,
            "where": T.switch,
            "greater": T.gt,
            "larger": T.maximum,
            "transposed": lambda x: x.T,
            "at": operator.getitem,
            "length": lambda x: x.shape[0],
        }

    def variable(self, name, dtype, ndim, broadcastable=None):
        return self._tensor.TensorType(dtype, broadcastable or (False,) * ndim)(name)

    def __getattr__(self, word):
        return self._words[word] if word in self._words else getattr(self._tensor, word)


WORDS = {"numpy": NumpyEngine, "theano": Theano}
