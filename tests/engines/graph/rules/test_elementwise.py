"""Operations on single elements, and reductions."""

import numpy as np
import pytest
from library import IS_THEANO, L, T
from simulated import ALL_ROWS, Case, Program, parametrize, serial_values

UNARY = [
    T.neg, T.exp, T.sqr, T.sgn, abs, T.floor, T.ceil, T.round_half_to_even, T.sin, T.cos, T.tanh, T.sinh, T.cosh,
    T.arctan, T.erf, T.expm1, T.nnet.sigmoid, T.nnet.softplus, T.nnet.relu, T.nnet.elu, T.isnan, T.isinf, T.inv,
]  # fmt: skip
POSITIVE = [T.sqrt, T.log, T.log2, T.log10, T.log1p, T.gammaln]
BINARY = [
    T.add, T.sub, T.mul, T.true_div, T.int_div, T.mod, T.maximum, T.minimum, T.lt, T.gt, T.le, T.ge, T.eq, T.neq, T.arctan2,
    lambda a, b: T.pow(abs(a), b), lambda a, b: T.switch(a > b, a, b), lambda a, b: T.clip(a, b, b + 1), T.second,
]  # fmt: skip

TYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]

S, R, P, A, U = "Shard(0)", "Replicate", "Partial(sum)", "Partial(avg)", "Unknown"

CASES = [
    Case("a mean by the number of rows", U, lambda p: [x.mean(0) * x.shape[0] for x in [p.rows(p.f)]], P),
    Case("the number of rows by itself", U, lambda p: [v * x.shape[0] / x.shape[0] for x in [p.rows(p.f)] for v in [p.all(p.f)]], R),
    Case("whether there are rows", U, lambda p: [T.gt(v * x.shape[0], 0) for x in [p.rows(p.f)] for v in [p.all(p.f)]], R),
    Case("the sign of a number of rows", U, lambda p: [T.sgn(v * x.shape[0]) for x in [p.rows(p.f)] for v in [p.all(p.f)]], R),
    Case("the sign of rows by their number", S, lambda p: [T.sgn(x / x.shape[0]) for x in [p.rows(p.f)]]),
    Case("unary", " ".join([S] * len(UNARY)), lambda p: [op(x) for x in [p.rows(p.f)] for op in UNARY]),
    Case("sigmoids in a hurry", " ".join([S] * 2), lambda p: [op(x) for x in [p.rows(p.f)] for op in (T.nnet.hard_sigmoid, T.nnet.ultra_fast_sigmoid)]),
    Case("unary of positive", " ".join([S] * 6), lambda p: [op(x) for x in [p.rows(p.f, positive=True)] for op in POSITIVE]),
    Case("rows and rows", " ".join([S] * len(BINARY)), lambda p: _binary(p.rows(p.f), p.rows(p.f))),
    Case("rows and a number", " ".join([S] * len(BINARY)), lambda p: _binary(p.rows(p.f), p.all())),
    Case("a number and rows", " ".join([S] * len(BINARY)), lambda p: _binary(p.all(), p.rows(p.f))),
    Case("rows and a row", " ".join([S] * len(BINARY)), lambda p: _binary(p.rows(p.f), p.all(p.f))),
    Case("rows along another axis", " ".join(["Shard(1)"] * len(BINARY)), lambda p: _binary(p.rows(p.f, p.k, axis=1), p.all(p.k))),
    Case("a column of rows", " ".join([S] * len(BINARY)), lambda p: _binary(p.rows(p.f), p.rows().dimshuffle(0, "x"))),
    Case("no rows", " ".join([R] * len(BINARY)), lambda p: _binary(p.all(p.f), p.all(p.k, p.f))),
    Case("sums of parts", "Partial(sum) Partial(sum) Partial(sum)", lambda p: _sums(p.rows(p.f).sum(0), p.rows(p.f).sum(0))),
    Case("sums of averages", "Partial(avg) Partial(avg) Partial(avg)", lambda p: _sums(p.rows(p.f).mean(0), p.rows(p.f).mean(0)), P + " " + P + " " + P),
    Case("parts and a factor", "Partial(sum) Partial(sum) Partial(sum)", lambda p: _scaled(p.rows(p.f).sum(0), p.all(p.f, positive=True))),
    Case("a part and what all have", "Unknown", lambda p: p.rows(p.f).sum(0) + p.all(p.f), R),
    Case("an average and what all have", A, lambda p: p.rows(p.f).mean(0) + p.all(p.f), R),
    Case("an average and rows", "Unknown", lambda p: p.rows(p.f) - p.rows(p.f).mean(0), S),
    Case("a part and zero", P, lambda p: p.rows(p.f).sum(0) + T.zeros((p.f,))),
    Case("a part or zero", P, lambda p: T.switch(p.all(p.f) > 0, p.rows(p.f).sum(0), 0.0)),
    Case("a forward derivative of a mean, and its backward one", A + " " + A, lambda p: _gauss_newton(p.rows(p.f), p.all(p.f), p.all(p.f)), P + " " + P),
    Case("a part or what all have", U, lambda p: T.switch(p.all(p.f) > 0, p.rows(p.f).sum(0), 1.0), R),
    Case("a condition that is a part", U, lambda p: T.switch(p.rows(p.f).sum(0) > 0, 1.0, 2.0), R),
    Case("a product of parts", U, lambda p: p.rows(p.f).sum(0) * p.rows(p.f).sum(0), R),
    Case("a quotient by a part", U, lambda p: p.all(p.f) / p.rows(p.f).sum(0), R),
    Case("what is not linear in a part", " ".join([U] * 8), lambda p: _curved(p.rows(p.f).sum(0)), " ".join([R] * 8)),
    Case("what is not linear in an average", " ".join([U] * 8), lambda p: _curved(p.rows(p.f).mean(0)), " ".join([R] * 8)),
    Case("a part as an integer", U, lambda p: T.cast(p.rows(p.f).sum(0), "int64"), R),
    Case("a count as a float", P, lambda p: T.cast(T.gt(p.rows(p.f), 0).sum(0), "float32")),
    Case("a count as a bool", U, lambda p: T.cast(T.gt(p.rows(p.f), 0).sum(0), "bool"), R),
    Case("an integer quotient of a count", U, lambda p: T.gt(p.rows(p.f), 0).sum(0) // 2, R),
    Case("a part, rounded", "Partial(sum)", lambda p: T.cast(p.rows(p.f).sum(0), "float32")),
    Case("sums", "Partial(sum) Shard(0) Partial(sum) Shard(0) Shard(1) Partial(sum)", lambda p: _reduced(T.sum, p)),
    Case("prods", "Partial(prod) Shard(0) Partial(prod) Shard(0) Shard(1) Partial(prod)", lambda p: _reduced(T.prod, p)),
    Case("maxima", "Partial(max) Shard(0) Partial(max) Shard(0) Shard(1) Partial(max)", lambda p: _reduced(T.max, p), empty=False),
    Case("minima", "Partial(min) Shard(0) Partial(min) Shard(0) Shard(1) Partial(min)", lambda p: _reduced(T.min, p), empty=False),
    Case("minima of all types", " ".join(["Partial(min) Shard(0) Partial(min) Partial(min)"] * len(TYPES)), lambda p: [one for dtype in TYPES for one in _minima(p, dtype)], empty=False),
    Case("maxima of all types", " ".join(["Partial(max) Shard(0)"] * len(TYPES)), lambda p: [x.max(axis=axis) for dtype in TYPES for x in [p.rows(p.f, dtype=dtype, high=_high(dtype))] for axis in (0, 1)], empty=False),
    Case("complements of extremes", "Partial(min) Partial(max) Partial(min) Unknown Unknown Unknown", lambda p: _complements(p), "Partial(min) Partial(max) Partial(min) Replicate Replicate Replicate", empty=False),
    Case("positions of the smallest, of all types", " ".join(["Shard(0)"] * len(TYPES)), lambda p: [T.argmin(p.rows(p.f, dtype=dtype, high=_high(dtype)), axis=1) for dtype in TYPES]),
    Case("any", "Partial(max) Shard(0)", lambda p: [T.any(x > 0.5, axis=axis) for x in [p.rows(p.f)] for axis in (0, 1)]),
    Case("all", "Partial(min) Shard(0)", lambda p: [T.all(x > 0.5, axis=axis) for x in [p.rows(p.f)] for axis in (0, 1)]),
    Case("bits that are set", "Unknown Shard(0)", lambda p: [_bits(x, axis) for x in [p.rows(p.f, dtype="int64", high=9)] for axis in (0, 1)]),
    Case("sums and products that are bool", "Partial(max) Partial(min) Shard(0)", lambda p: [T.sum(x, axis=0, dtype="bool") for x in [p.rows(p.f) > 0]] + [T.prod(p.rows(p.f) > 0, axis=0, dtype="bool"), T.sum(p.rows(p.f) > 0, axis=1, dtype="bool")]),
    Case("a wrapping sum as a float", "Unknown Partial(sum)", lambda p: [T.cast(x.sum(axis=0, dtype="int32"), dtype) for x in [p.rows(p.f, dtype="int32", low=2**29, high=2**30)] for dtype in ("float64", "int16")], R + " Partial(sum)"),
    Case("a count of each column as a float", "Partial(sum) Partial(avg)", lambda p: [n for x in [p.rows(p.f) > 0] for n in (T.cast(x.sum(axis=0), "float32"), x.sum(axis=0) / x.shape[0])], "Partial(sum) Partial(sum)"),
    Case("a sum truncated to integers", "Unknown Unknown", lambda p: [T.sum(x, axis=0, dtype="int64") for x in [p.rows(p.f)]] + [T.cast(p.rows(p.f).sum(0), "int8")], "Replicate Replicate"),
    Case("a truncated product", U, lambda p: T.prod(p.rows(p.f), axis=0, dtype="int64"), R),
    Case("a max as another type", "Partial(max) Partial(max) Unknown", lambda p: [T.cast(x.max(0), dtype) for x in [p.rows(p.f, dtype="int64", high=9)] for dtype in ("float32", "int64", "int8")], "Partial(max) Partial(max) Replicate", empty=False),
    Case("less of an unsigned sum", "Partial(sum)", lambda p: _difference(p, "uint8")),
    Case("any of any", "Partial(max)", lambda p: T.any(T.any(p.rows(p.f) > 0.5, axis=0))),
    Case("max of a max", "Unknown", lambda p: T.max(p.rows(p.f).max(0)), R, empty=False, pytensor=("Partial(max)", "Partial(max)")),
    Case("a negative max", "Partial(min)", lambda p: -p.rows(p.f).max(0), empty=False),
    Case("a difference to a max", U, lambda p: p.rows(p.f) - p.rows(p.f).max(0), S, empty=False),
    Case("means", "Partial(avg) Shard(0) Partial(avg) Partial(avg)", lambda p: _means(p), "Partial(sum) Shard(0) Partial(sum) Partial(sum)"),
    Case("a part's sum and mean", "Partial(sum) Partial(sum)", lambda p: [s.sum() for s in [p.rows(p.f).sum(0)]] + [p.rows(p.f).sum(0).mean()]),
    Case("variance over rows", "Unknown Unknown", lambda p: [op(p.rows(p.f), axis=0) for op in (T.var, T.std)], "Partial(sum) Replicate"),
    Case("variance in rows", "Shard(0) Shard(0)", lambda p: [op(p.rows(p.f), axis=1) for op in (T.var, T.std)]),
    Case("argmax", "Shard(0) Shard(0) Unknown", lambda p: [T.argmax(p.rows(p.f), axis=1), T.argmin(p.rows(p.f), axis=1), T.argmax(p.rows(p.f), axis=0)], empty=False),
    Case("norms", "Unknown", lambda p: T.sqrt(T.sum(p.rows(p.f) ** 2)), R),
    Case("powers of a share", "Replicate Replicate Replicate Replicate Unknown", lambda p: _of_share(p), "Replicate Replicate Replicate Replicate Replicate"),
    Case("prod of rows by their number", "Unknown", lambda p: T.prod(p.rows(p.f) / _n(p), axis=0), "Partial(prod)"),
    Case("max of rows by their number", "Unknown", lambda p: T.max(p.rows(p.f) / _n(p), axis=0), "Partial(max)", empty=False),
    Case("exp of rows by their number", "Unknown", lambda p: T.exp(p.rows(p.f) / _n(p)), S),
    Case("a sum by a mean", "Unknown", lambda p: p.rows(p.f).sum(0) + p.rows(p.f).mean(0), P),
    Case("rows by their number and rows", "Unknown", lambda p: [x / x.shape[0] + x for x in [p.rows(p.f)]], S),
    Case("rows by their number", "Shard(0)", lambda p: [x / x.shape[0] for x in [p.rows(p.f)]]),
    Case("a row of ones by rows", S, lambda p: p.rows(p.f) * T.ones((p.f,))),
    Case("rows and all rows", U, lambda p: p.rows() + p.all(ALL_ROWS)),
    Case("rows along two axes", U, lambda p: [x.dimshuffle(0, "x") - x.dimshuffle("x", 0) for x in [p.rows()]]),
    Case("gradient of a sum", S, lambda p: [T.grad((T.tanh(x) * x).sum(), x) for x in [p.rows(p.f)]]),
    Case("gradient of a mean", S, lambda p: [T.grad((T.tanh(x) * x).mean(), x) for x in [p.rows(p.f)]]),
    Case("gradient of a sum to a row", P, lambda p: _grads(lambda x, b: T.tanh(x + b).sum(), p)),
    Case("gradient of a mean to a row", A, lambda p: _grads(lambda x, b: T.tanh(x * b).mean(), p), P),
    Case("gradient of a mean of switch", A, lambda p: _grads(lambda x, b: T.switch(x > b, x * b, b).mean(), p), P),
    Case("gradient of a max in rows", A, lambda p: _grads(lambda x, b: T.max(x * b, axis=1).mean(), p), P),
    Case("gradient of a mean and a penalty", A, lambda p: _grads(lambda x, b: (x * b).mean() + (b**2).sum(), p), R),
    Case("gradient of a sum and a penalty", U, lambda p: _grads(lambda x, b: (x * b).sum() + (b**2).sum(), p), R),
    Case("gradient of a variance", U, lambda p: _grads(lambda x, b: T.var(x * b, axis=0).sum(), p), P),
    Case("gradient of abs, clip and maximum", A, lambda p: _grads(lambda x, b: (abs(x * b) + T.clip(x + b, -1, 1) + T.maximum(x, b)).mean(), p), P),
    Case("gradient of sqrt, log and power", A, lambda p: _grads(lambda x, b: (T.sqrt(x**2 * b**2 + 1) + T.log(x**2 + b**2 + 1)).mean(), p), P),
    Case("gradient of a prod in rows", A, lambda p: _grads(lambda x, b: T.prod(x * b, axis=1).mean(), p), P),
    Case("a Hessian's diagonal", A, lambda p: [T.grad(T.grad(((x * b) ** 3).mean(), b).sum(), b) for x in [p.rows(p.f)] for b in [p.all(p.f)]], P),
]  # fmt: skip


def _high(dtype):
    return 2 if dtype == "bool" else 100


def _minima(p, dtype):
    """Return minima, which engines express by maxima of negatives, complements or inverted bits."""
    x = p.rows(p.f, dtype=dtype, high=_high(dtype))
    return [x.min(axis=0), x.min(axis=1), x.min(), T.min(x, axis=0, keepdims=True)]


def _complements(p):
    x, n, m = p.rows(p.f), p.rows(p.f, dtype="uint8", high=256), p.rows(p.f, dtype="int8", high=100, low=-100)
    extremes = [1 - T.max(1 - x, axis=0), 1 - T.min(x, axis=0), -1 - m.max(axis=0)]
    return extremes + [p.all(p.f) - x.max(axis=0), T.constant(200, dtype="uint8") - n.max(axis=0), 1 - m.max(axis=0)]


def _n(p):
    return p.inputs[0].variable.shape[0].astype("float64")


def _binary(a, b):
    return [op(a, b) for op in BINARY]


def _sums(a, b):
    return [a + b, a - b, -(a * 2.0) + b / 3.0]


def _scaled(a, b):
    return [a * b, b * a * 2.0, a / b]


def _curved(a):
    return [T.exp(a), T.sqr(a), abs(a), T.sqrt(abs(a)), a * a, a > 0, T.maximum(a, 0), T.nnet.sigmoid(a)]


def _reduced(op, p):
    x, y = p.rows(p.f), p.rows(p.f, p.k, axis=1)
    return [
        op(x, axis=0),
        op(x, axis=1),
        op(x),
        op(x, axis=1, keepdims=True),
        op(y, axis=0, keepdims=True),
        op(y, axis=(0, 1)),
    ]


def _bits(x, axis):
    return L.CAReduce(L.or_, axis=axis if IS_THEANO else (axis,))(x)


def _means(p):
    x = p.rows(p.f)
    return [T.mean(x, axis=0), T.mean(x, axis=1), T.mean(x), x.sum(0) / x.shape[0]]


def _of_share(p):
    x = p.rows(p.f)
    n = x.shape[0].astype("float64")
    return [
        T.ones((p.f,)) * n,
        T.sqrt(T.ones((p.f,)) * n),
        (T.ones((p.f,)) * n) ** 3,
        1 / (T.ones((p.f,)) * n),
        T.log(T.ones((p.f,)) * n),
    ]


def _difference(p, dtype):
    x, y = (p.rows(p.f, dtype=dtype, high=9) for _ in range(2))
    return x.sum(axis=0, dtype=dtype) - y.sum(axis=0, dtype=dtype)


def _grads(cost, p):
    x, b = p.rows(p.f), p.all(p.f)
    return T.grad(cost(x, b), b)


@parametrize(CASES)
def test_placements_are_those_of_the_serial_program(case, exact):
    case.verify(exact)


@pytest.mark.parametrize("seed", range(3))
def test_the_interpreter_computes_what_the_library_does(seed):
    program = Program(seed)
    x, w = program.rows(program.f), program.all(program.f, program.h)
    loss = T.nnet.softmax(T.dot(x, w)).max(axis=1).mean()
    with L.compiled_quickly():
        ours, theirs = serial_values(program, [loss, T.grad(loss, w)], 5)
    for one, other in zip(ours, theirs):
        np.testing.assert_array_equal(one, other)


def _gauss_newton(x, w, v):
    z = T.tanh(T.dot(x, w))
    loss = T.sqr(z).mean()
    forward = T.Rop(T.grad(loss, z), z, T.Rop(z, w, v))
    return [T.Rop(loss, w, v), T.Lop(z, w, forward)]
