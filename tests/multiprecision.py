"""Evaluate a PyTensor graph and its gradient in exact arithmetic, with as many digits as necessary.

The graph is evaluated without rewrites. Numbers are `mpmath.mpf`, in NumPy's arrays of objects. Gradients are central
differences with errors far below the compared digits.
"""

import mpmath as mp
import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import io_toposort
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import IncSubtensor

mpf, nan, inf = mp.mpf, mp.nan, mp.inf

#: Numbers of digits to try; two successive numbers must give equal results.
DIGITS = (60, 120, 240, 480)


def _log_gamma(x):
    return mp.re(mp.loggamma(x)) if x > 0 else mp.log(abs(mp.gamma(x)))


def _divide(x, y):
    return x / y if y else (nan if not x or mp.isnan(x) else x * inf)


#: Reference implementations of scalar operations, by the name of PyTensor's class.
SCALAR = {
    "Add": lambda *x: sum(x[1:], x[0]),
    "Mul": lambda *x: mp.fprod(x),
    "Sub": lambda x, y: x - y,
    "TrueDiv": _divide,
    "Reciprocal": lambda x: _divide(mpf(1), x),
    "Mod": lambda x, y: x % y,
    "Pow": lambda x, y: x**y,
    "Sqr": lambda x: x * x,
    "Sqrt": mp.sqrt,
    "Neg": lambda x: -x,
    "Abs": abs,
    "Sign": mp.sign,
    "Exp": mp.exp,
    "Expm1": lambda x: mp.exp(x) - 1,
    "Log": mp.log,
    "Log1p": lambda x: mp.log(1 + x),
    "Log1mexp": lambda x: mp.log(1 - mp.exp(x)),
    "Sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "Softplus": lambda x: mp.log(1 + mp.exp(x)),
    "Sin": mp.sin,
    "Cos": mp.cos,
    "Tanh": mp.tanh,
    "ArcTan": mp.atan,
    "Cosh": mp.cosh,
    "GammaLn": _log_gamma,
    "Psi": lambda x: mp.digamma(x),
    "Erf": mp.erf,
    "Erfc": mp.erfc,
    "Erfcx": lambda x: mp.exp(x * x) * mp.erfc(x),
    "I0": lambda x: mp.besseli(0, x),
    "I0e": lambda x: mp.besseli(0, x) * mp.exp(-abs(x)),
    "Iv": mp.besseli,
    "Ive": lambda v, x: mp.besseli(v, x) * mp.exp(-abs(x)),
    "Kv": mp.besselk,
    "GammaInc": lambda a, x: mp.gammainc(a, 0, x, regularized=True),
    "GammaIncC": lambda a, x: mp.gammainc(a, x, mp.inf, regularized=True),
    "BetaInc": lambda a, b, x: mp.betainc(a, b, 0, x, regularized=True),
    "ScalarMaximum": lambda *x: max(x),
    "ScalarMinimum": lambda *x: min(x),
    "Clip": lambda x, low, high: min(max(x, low), high),
    "Switch": lambda condition, x, y: x if condition else y,
    "Second": lambda x, y: y,
    "Identity": lambda x: x,
    "Cast": lambda x: x,
    "Floor": mp.floor,
    "Ceil": mp.ceil,
    "IsNan": mp.isnan,
    "IsInf": mp.isinf,
    "EQ": lambda x, y: x == y,
    "NEQ": lambda x, y: x != y,
    "LT": lambda x, y: x < y,
    "GT": lambda x, y: x > y,
    "LE": lambda x, y: x <= y,
    "GE": lambda x, y: x >= y,
    "OR": lambda *x: any(x),
    "AND": lambda *x: all(x),
    "Invert": lambda x: not x,
}


def _number(x):
    return x if isinstance(x, (mp.mpf, mp.mpc)) else mpf(float(x) if isinstance(x, np.generic) else x)


_as_numbers = np.frompyfunc(_number, 1, 1)


def _numbers(array):
    return np.asarray(_as_numbers(np.asarray(array)), dtype=object)


def _real(function):
    """Return a function with the same real results, and nan in place of complex results and errors."""

    def of_numbers(*x):
        try:
            result = function(*x)
        except (ZeroDivisionError, ValueError, mp.NoConvergence):
            return nan
        return nan if isinstance(result, mp.mpc) and result.imag else getattr(result, "real", result)

    return of_numbers


def _elemwise(node, inputs):
    function = SCALAR[type(node.op.scalar_op).__name__]
    as_numbers = [_numbers(each) if each.dtype != bool else each for each in inputs]
    return _typed(np.frompyfunc(_real(function), len(inputs), 1)(*as_numbers), node.outputs[0].type.dtype)


def _typed(values, dtype):
    values = np.asarray(values, dtype=object)
    if dtype.startswith("float"):
        return _numbers(values)
    return np.vectorize(lambda x: bool(x) if dtype == "bool" else int(x), otypes=[dtype])(values)


def _softmax(x, axis, logarithm):
    largest = np.max(x, axis=axis, keepdims=True)
    shifted = x - largest
    total = np.frompyfunc(mp.exp, 1, 1)(shifted).sum(axis=axis, keepdims=True)
    if logarithm:
        return shifted - np.frompyfunc(mp.log, 1, 1)(total)
    return np.frompyfunc(mp.exp, 1, 1)(shifted) / total


def _array_of(matrix):
    return np.array(matrix.tolist(), dtype=object)


def _cholesky(op, a):
    try:
        lower = _array_of(mp.cholesky(mp.matrix((a if op.lower else a.T).tolist())))
    except ValueError:
        return np.full(a.shape, nan, dtype=object)
    return lower if op.lower else lower.T


def _solve(op, a, b):
    a = np.tril(a) if getattr(op, "lower", False) else (np.triu(a) if hasattr(op, "unit_diagonal") else a)
    columns = b.reshape(len(b), -1)
    solved = [[*mp.lu_solve(mp.matrix(a.tolist()), mp.matrix(column.tolist()))] for column in columns.T]
    return np.array(solved, dtype=object).T.reshape(b.shape)


#: Reference implementations of array operations, called with the Op and its inputs.
ARRAYS = {
    "Dot": lambda op, x, y: np.dot(x, y),
    "StructuredDot": lambda op, x, y: np.dot(x, y),
    "Cholesky": _cholesky,
    "SolveTriangular": _solve,
    "Solve": _solve,
    "MatrixInverse": lambda op, a: _array_of(mp.inverse(mp.matrix(a.tolist()))),
    "Det": lambda op, a: np.array(mp.det(mp.matrix(a.tolist())), dtype=object),
}


def _blockwise(node, inputs):
    op = node.op
    core, n_batch = op.core_op, node.outputs[0].type.ndim - len(op.outputs_sig[0])
    if type(core).__name__ not in ARRAYS:
        return _performed(node, inputs)
    shape = np.broadcast_shapes(*[each.shape[:n_batch] for each in inputs])
    spread = [np.broadcast_to(each, (*shape, *each.shape[n_batch:])) for each in inputs]
    found = [ARRAYS[type(core).__name__](core, *[each[i] for each in spread]) for i in np.ndindex(shape)]
    first = np.asarray(found[0], dtype=object)
    result = np.empty((len(found), *first.shape), dtype=object)
    for i, each in enumerate(found):
        result[i] = each
    return [result.reshape((*shape, *first.shape))]


def _performed(node, inputs):
    """Return the result of an operation that only moves elements, for arrays of objects."""
    outputs = [[None] for _ in node.outputs]
    node.op.perform(node, inputs, outputs)
    results = [np.asarray(each[0]) for each in outputs]
    is_exact = any(each.dtype == object for each in inputs)
    for variable, result in zip(node.outputs, results):
        if is_exact and variable.type.dtype.startswith("float"):
            assert result.dtype == object, f"{node.op} has rounded its inputs"
    return results


def _computed(node, inputs):
    op = node.op
    dtype = node.outputs[0].type.dtype
    is_float = dtype.startswith("float") or any(each.dtype == object for each in inputs)
    if isinstance(op, CheckAndRaise):
        value, *conditions = inputs
        return [value if all(np.all(each) for each in conditions) else np.full(value.shape, -inf, dtype=object)]
    if not is_float:
        return _performed(node, inputs)
    if isinstance(op, Elemwise):
        return [_elemwise(node, inputs)]
    if isinstance(op, CAReduce):
        axis = op.axis if op.axis is None else tuple(op.axis)
        name = type(op).__name__
        function = {"Sum": np.sum, "Prod": np.prod, "Max": np.max, "Min": np.min, "All": np.all, "Any": np.any}[name]
        return [_typed(function(inputs[0], axis=axis), dtype)]
    if isinstance(op, (Softmax, LogSoftmax)):
        return [_softmax(inputs[0], op.axis, isinstance(op, LogSoftmax))]
    if isinstance(op, MakeVector):
        return [np.array([each[()] for each in inputs], dtype=object)]
    if isinstance(op, Join):
        return [np.concatenate(inputs, axis=op.axis)]
    if isinstance(op, IncSubtensor) and not inputs[1].ndim:
        inputs = [inputs[0], inputs[1][()], *inputs[2:]]  # (otherwise, the 0-d array itself would become an element)
    if isinstance(op, OpFromGraph):
        return evaluate(op.fgraph.outputs, dict(zip(op.fgraph.inputs, inputs)))
    if isinstance(op, Blockwise):
        return _blockwise(node, inputs)
    if isinstance(op, Dot) or type(op).__name__ in ARRAYS:
        return [np.asarray(ARRAYS[type(op).__name__](op, *inputs), dtype=object)]
    return _performed(node, inputs)


def evaluate(outputs, values):
    """Return the values of variables with mpmath's current number of digits.

    Parameters
    ----------
    outputs : list of variables
    values : dict
        Arrays of the inputs; shared variables and constants have their own values.
    """
    known = {}

    def value_of(variable):
        if variable not in known:
            value = values.get(variable)
            if value is None:
                value = variable.data if isinstance(variable, Constant) else variable.get_value()
            if hasattr(value, "toarray"):  # a sparse matrix
                value = value.toarray()
            is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
            known[variable] = _numbers(value) if is_float or isinstance(value, float) else value
            if not isinstance(known[variable], (np.ndarray, slice, type(None))):
                known[variable] = np.asarray(known[variable])
        return known[variable]

    for node in io_toposort(list(values), outputs):
        results = _computed(node, [value_of(each) for each in node.inputs])
        for variable, result in zip(node.outputs, results):
            result = np.asarray(result)
            known[variable] = _numbers(result) if variable.type.dtype.startswith("float") else result
    return [value_of(each) for each in outputs]


def value_and_gradient(logp, point, inputs, variables):
    """Return a graph's scalar result and its gradient in exact arithmetic, rounded to float64.

    Parameters
    ----------
    logp : variable
    point : dict
        Arrays by the names of all inputs.
    inputs : list of variables
    variables : list of variables
        The variables of the gradient, in its order.

    Returns
    -------
    float, array
        nan if no number of digits is enough.
    """
    values, before = {each: np.asarray(point[each.name]) for each in inputs}, None
    for digits in DIGITS:
        with mp.workdps(digits):
            found = _value_and_gradient(logp, values, variables, mpf(10) ** (-digits // 3))
        if before is not None and _agree(found, before):
            return float(found[0]), np.array([float(each) for each in found[1:]])
        before = found
    return np.nan, np.full(len(found) - 1, np.nan)


def _agree(found, before):
    scale = max(abs(each) for each in found[1:])
    return all(abs(one - other) <= mpf(10) ** -18 * max(abs(one), scale) for one, other in zip(found, before))


def _value_and_gradient(logp, values, variables, step):
    inputs = {each: _numbers(value) if value.dtype.kind == "f" else value for each, value in values.items()}

    def at(values):
        return evaluate([logp], values)[0][()]

    found = [at(inputs)]
    for variable in variables:
        for i in np.ndindex(inputs[variable].shape):
            pair = []
            for sign in (1, -1):
                moved = inputs[variable].copy()
                moved[i] += sign * step
                pair.append(at({**inputs, variable: moved}))
            found.append((pair[0] - pair[1]) / (2 * step))
    return found
