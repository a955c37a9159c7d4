"""The words, which are the functions in the formulas of `recipes`, for NumPy and for every engine.

A formula is a function of the words and of values, arrays or variables: ``lambda v, x, w: v.sum(x * w, 0)``. Besides
words, it uses ``+ - *``, comparisons by name, and indexing by constants; all constants are exact in binary.
"""

import operator
import os

import numpy as np

import synkhronos as synk
from synkhronos.testing import numpy_engine as numpy_engine
from synkhronos.testing.numpy_engine import operations

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
    "divide": np.true_divide,
    "sqrt": np.sqrt,
    "log": np.log,
    "tanh": np.tanh,
    "length": operations.length,
    "cast": operations.cast,
}


def log_sum_exp(x, axis=None):
    """Return ``log(sum(exp(x)))`` without overflow."""
    largest = np.max(x, axis)
    return largest + np.log(np.sum(np.exp(x - largest), axis))


#: Words of functions that only graphs have.
OF_GRAPHS = {
    "equal": np.equal,
    "chosen": lambda x, mask: x[mask],
    "concatenate": np.concatenate,
    "ones": np.ones,
    "eye": lambda n: np.eye(int(n)),
    "arange": lambda n: np.arange(int(n)),
    "ones_like": np.ones_like,
    "unique": np.unique,
    "reshape": np.reshape,
    "sum_as": lambda x, dtype: np.sum(x).astype(dtype),
    "prod_as": lambda x, dtype: np.prod(x).astype(dtype),
    "sum_in": lambda x, dtype: np.sum(x, dtype=dtype).astype(x.dtype),
    "log_sum_exp": log_sum_exp,
}


def precision(x):
    """Return the machine epsilon of the type of ``x``; 0 if it is not a float type."""
    dtype = np.asarray(x).dtype
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0


def state_of(generator):
    """Return the state of a RandomState, or of a Generator with the same algorithm, as an array."""
    if isinstance(generator, np.random.Generator):
        state = generator.bit_generator.state["state"]
        return np.append(state["key"], np.uint32(state["pos"]))
    _, key, position, _, _ = generator.get_state()
    return np.append(key, np.uint32(position))


def generator_of(state):
    """Return a RandomState with the state in an array of `state_of`."""
    generator = np.random.RandomState()
    generator.set_state(("MT19937", state[:-1].astype("uint32"), int(state[-1])))
    return generator


def advanced(state, n=1):
    """Return the state after n draws."""
    generator = generator_of(state)
    generator.random_sample((n, 3))
    return state_of(generator)


#: Words whose results are rounded.
ROUNDED = {"sum", "mean", "prod", "dot", "divide", "sqrt", "log", "tanh", "sum_as", "prod_as", "sum_in", "log_sum_exp"}


class Meeting(Exception):
    """A rank has reached a collective that has no result yet.

    Attributes
    ----------
    op : str
    arrays : list of array
        The rank's arrays.
    """

    def __init__(self, op, arrays):
        self.op, self.arrays = op, arrays


class Arrays:
    """The words as plain NumPy, for expected values.

    Parameters
    ----------
    results : sequence of list of array
        The results of the first collectives, in the order of computation.
    rows : int, optional
        The number of rows, if the function has a literal number of all rows.
    rounding : float
        The precision of all values, even if these words are exact.

    Attributes
    ----------
    rounding : float
        The precision of values computed with these words, whatever the order of additions; 0 if they are exact.
    """

    draw = staticmethod(lambda state: generator_of(state).random_sample(3))
    advanced = staticmethod(advanced)

    def __init__(self, results=(), rows=None, rounding=0.0):
        self.rounding, self.rows, self._results = rounding, rows, iter(results)

    def __getattr__(self, word):
        if word.startswith("all_"):
            return lambda x: self._all(word[len("all_") :], x)
        function = FUNCTIONS[word] if word in FUNCTIONS else OF_GRAPHS[word]
        if word not in ROUNDED:
            return function

        def rounding(x, *args):
            self.rounding = max(self.rounding, precision(x))
            if word == "mean" and not np.size(x):
                raise ValueError("the mean of nothing")
            if word == "divide" and not np.all(args[0]):
                raise ValueError("a division by 0")
            return function(x, *args)

        return rounding

    def _all(self, op, x):
        arrays = [np.asarray(each) for each in x] if isinstance(x, list) else [np.asarray(x)]
        results = next(self._results, None)
        if results is None:
            raise Meeting(op, arrays)
        if op in ("avg", "sum"):
            self.rounding = max(self.rounding, *map(precision, arrays))
        return results if isinstance(x, list) else results[0]


class Collectives:
    """The words for collectives inside a graph."""

    all_avg = staticmethod(synk.ops.all_reduce)
    all_sum = staticmethod(lambda x: synk.ops.all_reduce(x, "sum"))
    all_min = staticmethod(lambda x: synk.ops.all_reduce(x, "min"))
    all_max = staticmethod(lambda x: synk.ops.all_reduce(x, "c_max"))


class NumpyEngine(Collectives):
    """The words as expressions of the NumPy engine."""

    options, returns_dicts, computes_all = {}, True, False
    shared, In = staticmethod(numpy_engine.shared), numpy_engine.In
    generator_of = staticmethod(generator_of)

    @staticmethod
    def variable(name, dtype, ndim, broadcastable=None):
        return numpy_engine.variable(name, dtype, ndim, broadcastable)

    @staticmethod
    def draw(stream):
        return operations.drawn(stream, (3,))[1]

    @staticmethod
    def advanced(stream):
        return operations.drawn(stream, (3,))[0]

    def __getattr__(self, word):
        function = FUNCTIONS[word]
        return lambda *args: numpy_engine.apply(function, *args)


class Tensors(Collectives):
    """The words as expressions of a tensor library.

    Parameters
    ----------
    tensor : module
        The module of its operations.

    Attributes
    ----------
    rows : int, optional
        The literal number of rows in the function that is being built.
    """

    generator_of, returns_dicts, computes_all = staticmethod(generator_of), True, False
    rows = None

    def __init__(self, tensor):
        self._tensor = tensor
        self._words = {
            "abs": abs,
            "where": tensor.switch,
            "greater": tensor.gt,
            "larger": tensor.maximum,
            "transposed": lambda x: x.T,
            "at": operator.getitem,
            "divide": tensor.true_div,
            "length": lambda x: x.shape[0],
            "equal": tensor.eq,
            "chosen": lambda x, mask: x[mask.nonzero()],
            "unique": getattr(tensor, "unique", None) or tensor.extra_ops.Unique(),
            "sum_as": lambda x, dtype: tensor.sum(x, dtype=dtype),
            "prod_as": lambda x, dtype: tensor.prod(x, dtype=dtype),
            "sum_in": lambda x, dtype: tensor.sum(x, acc_dtype=dtype),
            "log_sum_exp": lambda x, axis=None: tensor.log(tensor.sum(tensor.exp(x), axis=axis)),
        }

    def __getattr__(self, word):
        return self._words[word] if word in self._words else getattr(self._tensor, word)

    def draw(self, stream):
        return self._uniform(stream)[1]

    def advanced(self, stream):
        return self._uniform(stream)[0]


class Theano(Tensors):
    """The words of Theano, run as Python code without a compiler."""

    def __init__(self):
        import theano
        import theano.tensor as T

        super().__init__(T)
        self.shared, self.In = theano.shared, theano.In
        linker = theano.gof.vm.VM_Linker(use_cloop=True, c_thunks=False)
        mode = theano.Mode(linker, "fast_compile").excluding("constant_folding")  # constant folding would compile
        self.options = {"mode": mode, "on_unused_input": "ignore"}
        self.stable = dict(self.options, mode=theano.Mode(linker, "fast_run").excluding("constant_folding"))
        self.function = lambda new, updates: theano.function([new], [], updates=updates, mode=mode)

    def variable(self, name, dtype, ndim, broadcastable=None):
        return self._tensor.TensorType(dtype, broadcastable or (False,) * ndim)(name)

    def _uniform(self, stream):
        from theano.tensor import raw_random

        return raw_random.uniform(stream, (3,), ndim=1, dtype="float64")


class PyTensor(Tensors):
    """The words of PyTensor, run as Python code, or by the linker that ``SYNK_TEST_LINKER`` names."""

    returns_dicts, computes_all = False, True

    def __init__(self):
        import pytensor
        import pytensor.tensor as pt
        from pytensor.compile.mode import Mode

        super().__init__(pt)
        self.shared, self.In = pytensor.shared, pytensor.In
        linker = os.environ.get("SYNK_TEST_LINKER", "py")
        self.options = {"mode": Mode(linker, "fast_compile"), "on_unused_input": "ignore"}
        self.stable = dict(self.options, mode=Mode(linker, "fast_run"))
        self.function = lambda new, updates: pytensor.function([new], [], updates=updates, mode=self.options["mode"])

    def variable(self, name, dtype, ndim, broadcastable=None):
        shape = tuple(1 if one else None for one in broadcastable or (False,) * ndim)
        return self._tensor.TensorType(dtype, shape=shape)(name)

    @staticmethod
    def generator_of(state):
        """Return a Generator that draws the same numbers as a RandomState with this state."""
        bits = np.random.MT19937()
        bits.state = {"bit_generator": "MT19937", "state": {"key": state[:-1].astype("uint32"), "pos": int(state[-1])}}
        return np.random.Generator(bits)

    def _uniform(self, stream):
        return self._tensor.random.uniform(size=(3,), rng=stream, return_next_rng=True)


#: Vocabularies by engine.
WORDS = {"numpy": NumpyEngine, "theano": Theano, "pytensor": PyTensor}
