"""Shapes, and operations that take shapes.

Modules: `axes`, `layout`, `pieces`, `placements`, `propagate`, `rule`, `synkhronos.engines.graph.rules.shapes`.
"""

from functools import partial

import numpy as np
from library import L, T
from simulated import ALL_ROWS, Case, parametrize

S, R, P, A, U = "Shard(0)", "Replicate", "Partial(sum)", "Partial(avg)", "Unknown"


def time_major(p, *shape):
    """Return an input with time, rows, and more axes."""
    return p.rows(p.f, *shape, axis=1)


def _counted(count, p):
    """Return outputs that use a number of rows computed from an array."""
    x = p.rows(3, 2)
    n = count(x)
    return [
        T.zeros((n, 3)) + x.sum(2),
        x.reshape((n, -1)),
        x[T.arange(n)],
        T.alloc(p.all(2), n, 2),
        x.sum(0) / n,
    ]


def _of_shape(shape, p):
    """Return an array that is filled, and one that is reshaped, with the shape of rows of 3."""
    x = p.rows(3)
    of_x = shape(x)
    return [T.alloc(1.0, of_x[0], of_x[1]) * x, (x * 2).flatten().reshape(of_x, ndim=2)]


CASES = [
    # -- shapes and numbers --------------------------------------------------------------------------------------------
    Case("the shape", "Size Size Size", lambda p: [x.shape for x in [p.rows(p.f)]] + [p.rows(p.f).shape[0], p.rows(p.f).shape[1]]),
    Case("the shape of what all have", "Replicate", lambda p: p.all(p.f, p.h).shape),
    Case("the shape of a part", "Replicate", lambda p: p.rows(p.f, p.h).sum(0).shape),
    Case("arithmetic of shapes", "Size Size Size Size Size", lambda p: [[n * 2, n + n, n // 2, n * x.shape[1], T.prod(x.shape)] for x in [p.rows(p.f)] for n in [x.shape[0]]][0]),
    Case("numbers of rows in a vector", "Size Size Size", lambda p: [T.stack([x.shape[0], 3]) for x in [p.rows(p.f)]] + [(p.rows(p.f).shape * 2)[0:1], T.concatenate([p.rows(p.f).shape[:1], [3]])]),
    Case("a length and a vector", "Replicate Unknown", lambda p: [(x.shape[0] * v).astype("float64") for x in [p.rows(p.f)] for v in [p.all(3, dtype="int64", high=4)]] + [_two_lengths(p.inputs[0].variable.shape[0] * T.as_tensor([1, 2]))], R + " " + R),
    Case("the size", "Size", lambda p: p.rows(p.f).size),
    Case("a count of rows in a sum", A, lambda p: [x.sum(0) / T.cast(x.shape[0], "float64") for x in [p.rows(p.f)]], P),
    Case("half of a sum of rows", "Unknown", lambda p: [x.sum(0) / (x.shape[0] // 2 + 1) for x in [p.rows(p.f)]], P),
    Case("a shape plus one", "Unknown", lambda p: [T.zeros((x.shape[0] + 1,)) for x in [p.rows(p.f)]]),
    Case("rows twice", "Unknown", lambda p: [T.zeros((x.shape[0], x.shape[0])) for x in [p.rows(p.f)]]),
    Case("half of the rows", "Unknown", lambda p: [T.zeros((n // 2,)) for n in [p.rows(p.f).shape[0]]]),
    # -- alloc ---------------------------------------------------------------------------------------------------------
    Case("ones, zeros and numbers", " ".join([S] * 5), lambda p: [[T.ones((n,)), T.zeros((n, p.h)), T.alloc(7.0, n, p.h), T.zeros_like(x), T.ones_like(x)] for x in [p.rows(p.f)] for n in [x.shape[0]]][0]),
    Case("another axis", "Shard(1) Shard(1)", lambda p: [[T.ones((p.h, n)), T.alloc(p.all(p.h), p.f, n, p.h)] for n in [p.rows(p.f).shape[0]]][0]),
    Case("a row for each row", S, lambda p: [T.alloc(p.all(p.f), x.shape[0], p.f) for x in [p.rows(p.f)]]),
    Case("rows for each row", S, lambda p: [T.alloc(x, x.shape[0], p.f) for x in [p.rows(p.f)]]),
    Case("rows in a stack", "Shard(1)", lambda p: [T.alloc(x, p.h, x.shape[0], p.f) for x in [p.rows(p.f)]]),
    Case("rows in a given shape", U, lambda p: [T.alloc(x, _all_rows(p), p.f) for x in [p.rows(p.f)]]),
    Case("all rows in a shape of rows", U, lambda p: [T.alloc(p.all(ALL_ROWS, p.f), x.shape[0], p.f) for x in [p.rows(p.f)]]),
    Case("a part for each row", U, lambda p: [T.alloc(x.sum(0), x.shape[0], p.f) for x in [p.rows(p.f)]], S),
    Case("twice as many", S, lambda p: [T.alloc(p.all(p.f), 2 * x.shape[0], p.f) for x in [p.rows(p.f)]]),
    Case("arange, in what is elementwise", U, lambda p: [x * T.arange(x.shape[0]).dimshuffle(0, "x") for x in [p.rows(p.f)]]),
    Case("arange as a float", U, lambda p: [T.arange(x.shape[0]) + 0.5 for x in [p.rows(p.f)]]),
    Case("arange, compared", U, lambda p: [T.lt(T.arange(x.shape[0]), 2) for x in [p.rows(p.f)]]),
    Case("arange from 1", U, lambda p: [T.arange(1, x.shape[0] + 1) for x in [p.rows(p.f)]]),
    Case("arange of a fixed number", R, lambda p: [T.arange(x.shape[1]) for x in [p.rows(p.f)]]),
    Case("positions along time", "Shard(0)", lambda p: [x * T.arange(x.shape[1]) for x in [p.rows(p.f)]]),
    Case("eye", "Unknown", lambda p: [T.eye(x.shape[0]) for x in [p.rows(p.f)]], R),
    # -- computed numbers of rows --------------------------------------------------------------------------------------
    *[
        Case(f"rows counted: {name}", "Shard(0) Shard(0) Shard(0) Shard(0) Partial(avg)", partial(_counted, count), "Shard(0) Shard(0) Shard(0) Shard(0) Partial(sum)", empty=False)
        for name, count in {
            "a product of the shape": lambda x: T.prod(x.shape) // T.prod(x.shape[1:]),
            "a size": lambda x: x.size // (x.shape[1] * x.shape[2]),
            "a method": lambda x: x.shape.prod() // x.shape[1:].prod(),
            "one length after another": lambda x: x.shape[0] * x.shape[1] // x.shape[1],
            "two divisions": lambda x: x.size // x.shape[1] // x.shape[2],
            "the other factor": lambda x: x.shape[1] * x.shape[0] * 4 // (2 * x.shape[1]) // 2,
            "a real number": lambda x: T.cast(x.size / (x.shape[1] * x.shape[2]), "int64"),
            "a real number of numbers": lambda x: T.cast((x.shape[0] * 6) / 6, "int32"),
            "a real number, rounded": lambda x: T.cast(T.floor(T.true_div(x.size, x.shape[1] * x.shape[2])), "int64"),
            "twice and halved": lambda x: (x.shape[0] + x.shape[0]) // 2,
            "less itself": lambda x: 3 * x.shape[0] - 2 * x.shape[0],
            "the larger of two": lambda x: T.maximum(x.shape[0], x.size // (x.shape[1] * x.shape[2])),
        }.items()
    ],
    Case("rows counted by numbers", " ".join([U] * 3), lambda p: [[x.sum(1) + T.zeros((x.size // 3,)), x.reshape((x.size // 3, 3)), x[T.arange(x.size // 3)]] for x in [p.rows(3)]][0], " ".join([S] * 3)),
    Case("half of them, or not in whole numbers", " ".join([U] * 5), lambda p: [[T.zeros((n // 2,)), T.zeros((2 * n // 3,)), T.zeros(((n + 1) // 1,)), T.zeros((T.cast(n / 2, "int64"),)), T.zeros((T.cast(n * 0.5, "int64"),))] for n in [p.rows(3).shape[0]]][0]),
    Case("lengths without rows", "Replicate Shard(0) Shard(1)", lambda p: [[T.zeros((x.size // x.shape[0],)), T.zeros((x.shape[0], x.size // x.shape[0])) + x, T.zeros((x.size // x.shape[0], x.shape[0]))] for x in [p.rows(3)]][0], empty=False),
    Case("rows twice, in either order", " ".join([S] * 4), lambda p: [one for x in [p.rows()] for y in (T.concatenate([x, x]), T.repeat(x, 2)) for one in (T.zeros((2 * x.shape[0],)) + y, y[T.arange(2 * x.shape[0])])]),
    Case("rows twice, in both orders", U, lambda p: [T.concatenate([x, x])[i] * T.repeat(x, 2)[i] for x in [p.rows()] for i in [T.arange(2 * x.shape[0])]]),
    Case("a row for each of time and rows", "Shard(0) Shard(0) Shard(0)", lambda p: [[one + x.reshape((-1, x.shape[2])) for one in (T.alloc(b, n, b.shape[0]), T.zeros((n, x.shape[2])))] + [T.alloc(b, n, b.shape[0])] for x, b in [(time_major(p, 3), p.all(3))] for n in [x.shape[0] * x.shape[1]]][0], empty=False),
    # -- vectors that are shapes ---------------------------------------------------------------------------------------
    *[
        Case(f"a shape: {name}", "Shard(0) Shard(0)", partial(_of_shape, shape))
        for name, shape in {
            "joined": lambda x: T.concatenate([x.shape[:1], [3]]),
            "joined of three": lambda x: T.concatenate([x.shape[:1], x.shape[1:], T.ones((0,), "int64")]),
            "stacked": lambda x: T.stack([x.shape[0], 3]),
            "of elements": lambda x: T.as_tensor_variable([x.shape[0], x.shape[1]]),
            "set": lambda x: T.set_subtensor(x.shape[1], 3),
            "set by a list": lambda x: T.set_subtensor(x.shape[[1]], 3),
            "a slice set": lambda x: T.set_subtensor(x.shape[1:], [3]),
            "set in numbers": lambda x: T.set_subtensor(T.as_tensor_variable(np.array([5, 3]))[0], x.shape[0]),
            "increased": lambda x: T.inc_subtensor(x.shape[1], 0),
            "increased from zero": lambda x: T.inc_subtensor(T.zeros((2,), "int64")[:], x.shape),
            "chosen by position": lambda x: T.switch(T.eq(T.arange(2), 0), x.shape, 3),
            "chosen": lambda x: T.switch(x.shape[1] > 2, x.shape, x.shape),
            "turned around twice": lambda x: x.shape[::-1][[1, 0]],
            "multiplied": lambda x: x.shape * [1, 1],
            "by a vector": lambda x: x.shape[0] * np.array([1, 0]) + np.array([0, 3]),
            "of the larger": lambda x: T.maximum(x.shape, x.shape),
            "cast": lambda x: T.cast(T.cast(x.shape, "float64"), "int32"),
        }.items()
    ],
    Case("as often as a joined shape says", "Shard(0) Shard(0) Shard(0)", lambda p: [[T.tile(w.dimshuffle("x", 0), T.concatenate([x.shape[:1], [1]]), ndim=2) + x, T.tile(x, T.concatenate([[1], x.shape[1:]]), ndim=2), T.tile(w.dimshuffle("x", "x", 0), T.concatenate([z.shape[:-1], [1]]), ndim=3) * z] for x, z, w in [(p.rows(3), p.rows(2, 3), p.all(3))]][0]),
    Case("gradient of rows that are repeated", A, lambda p: [T.grad(T.sqr(T.tile(w.dimshuffle("x", 0), T.concatenate([x.shape[:1], [1]]), ndim=2) - x).mean(), w) for x, w in [(p.rows(3), p.all(3))]], P),
    Case("a shape of which some elements depend on values", U, lambda p: [T.alloc(0.0, x.shape[0], T.switch(p.all() > 0, x.shape[0], 3)) for x in [p.rows(3)]]),
    # -- join, split, stack --------------------------------------------------------------------------------------------
    Case("joins along other axes", "Shard(0) Shard(1) Shard(0)", lambda p: [T.concatenate([p.rows(p.f), p.rows(p.h)], axis=1), T.stack([p.rows(p.f), p.rows(p.f)]), T.stack([p.rows(p.f), p.rows(p.f)], axis=1)]),
    Case("rows and what all have, joined", U, lambda p: T.concatenate([p.rows(p.f), p.all(ALL_ROWS, p.h)], axis=1)),
    Case("parts, joined", P, lambda p: T.concatenate([p.rows(p.f).sum(0), p.rows(p.h).sum(0)])),
    Case("numbers, joined", "Partial(sum) Partial(sum)", lambda p: [T.stack([x.sum(), (x**2).sum()]) for x in [p.rows(p.f)]] + [T.stack([p.rows(p.f).sum(), 0.0])]),
    Case("parts of different powers, joined", U, lambda p: T.concatenate([p.rows(p.f).sum(0), p.rows(p.h).mean(0)]), P),
    Case("a part and what all have, joined", U, lambda p: T.concatenate([p.rows(p.f).sum(0), p.all(p.h)]), R),
    Case("an average and what all have, joined", A, lambda p: T.concatenate([p.rows(p.f).mean(0), p.all(p.h)]), R),
    Case("rows after rows", S, lambda p: T.concatenate([p.rows(p.f), p.rows(p.f)], axis=0)),
    Case("rows after rows, summed", P, lambda p: T.concatenate([p.rows(p.f), p.rows(p.f)], axis=0).sum(0)),
    Case("rows after rows, separated", "Shard(1)", lambda p: [T.concatenate([x, p.rows(p.f)], axis=0).reshape((2, x.shape[0], p.f)) for x in [p.rows(p.f)]]),
    Case("rows after rows, separated otherwise", "Unknown", lambda p: [T.concatenate([x, p.rows(p.f)], axis=0).reshape((x.shape[0], 2, p.f)) for x in [p.rows(p.f)]]),
    Case("rows after rows, and merged ones", U, lambda p: [T.concatenate([x, x], axis=0) * T.repeat(x, 2, axis=0) for x in [p.rows(p.f)]]),
    Case("joined in different ways", U, lambda p: [T.concatenate([x, y]) + T.concatenate([y, x]) for x in [p.rows(p.f)] for y in [T.repeat(x, 2, axis=0)]]),
    Case("rows after others", U, lambda p: T.concatenate([p.rows(p.f), p.all(p.h, p.f)], axis=0)),
    Case("ones and zeros, joined", U, lambda p: [T.concatenate([T.ones((n, 2)), T.zeros((n, 2))]).reshape((n, 4)) for n in [p.rows(p.f).shape[0]]]),
    Case("splits", "Shard(0) Shard(0)", lambda p: T.split(p.rows(p.f + 2), [2, p.f], 2, axis=1)),
    Case("a gradient through a join", A, lambda p: [T.grad(T.concatenate([T.dot(x, w), x], axis=1).mean(), w) for x in [p.rows(p.f)] for w in [p.all(p.f, p.h)]], P),
    Case("a gradient through a join of parameters", A, lambda p: [T.grad(T.tanh(T.dot(x, T.concatenate([w, w * 2], axis=1))).mean(), w) for x in [p.rows(p.f)] for w in [p.all(p.f, p.h)]], P),
    Case("a gradient through a split", A, lambda p: [T.grad((T.split(T.dot(x, w), [2, 2], 2, axis=1)[0] ** 2).mean(), w) for x in [p.rows(p.f)] for w in [p.all(p.f, 4)]], P),
    # -- reshape -------------------------------------------------------------------------------------------------------
    Case("flat rows", " ".join([S] * 4), lambda p: [[x.flatten(2), x.reshape((x.shape[0], -1)), x.reshape((-1, p.f * p.h)), x.reshape((x.shape[0], p.f * p.h))] for x in [p.rows(p.f, p.h)]][0], empty=False),
    Case("more axes", " ".join([S] * 3), lambda p: [[x.reshape((x.shape[0], p.f, p.h)), x.reshape((-1, p.f, p.h)), x.reshape((x.shape[0], 1, p.f, p.h))] for x in [p.rows(p.f * p.h)]][0]),
    Case("one in front", "Shard(1)", lambda p: [x.reshape((1, x.shape[0], p.f)) for x in [p.rows(p.f)]]),
    Case("all flat", S, lambda p: p.rows(p.f, p.h).flatten()),
    Case("all flat, and back", "Shard(0) Shard(0)", lambda p: [[x.flatten().reshape(x.shape), x.flatten().reshape((-1, p.f, p.h))] for x in [p.rows(p.f, p.h)]][0]),
    Case("rows cut in pieces", S, lambda p: [x.reshape((x.shape[0] * 2, p.f)) for x in [p.rows(2 * p.f)]]),
    Case("merged rows and rows", S, lambda p: [x.flatten() * y.flatten() for x in [p.rows(p.f)] for y in [p.rows(p.f)]]),
    Case("a scalar for each row", S, lambda p: [x.reshape((x.shape[0], 1)) for x in [p.rows()]]),
    Case("a fixed shape", U, lambda p: p.rows(p.f).reshape((_all_rows(p), p.f))),
    Case("the other way around", U, lambda p: [x.reshape((p.f, x.shape[0])) for x in [p.rows(p.f)]]),
    Case("through a transposition", "Shard(1)", lambda p: [x.T.reshape((x.shape[1], x.shape[0])) for x in [p.rows(p.f)]]),
    Case("ones, the other way around", "Shard(1)", lambda p: [T.ones((x.shape[0], p.f)).reshape((p.f, x.shape[0])) for x in [p.rows(p.f)]]),
    Case("ones by a row, the other way around", U, lambda p: [(T.ones((x.shape[0], p.f)) * p.all(p.f)).reshape((p.f, x.shape[0])) for x in [p.rows(p.f)]]),
    Case("a row for each row, the other way around", U, lambda p: [T.alloc(p.all(p.f), x.shape[0], p.f).reshape((p.f, x.shape[0])) for x in [p.rows(p.f)]]),
    Case("products of ones, the other way around", U, lambda p: [T.dot(T.ones((x.shape[0], 2)), p.all(2, p.f)).reshape((p.f, x.shape[0])) for x in [p.rows(p.f)]]),
    Case("time and rows merged", " ".join([S] * 4), lambda p: [[x.reshape((x.shape[0] * x.shape[1], x.shape[2])), x.reshape((x.shape[0] * x.shape[1], -1)), x.reshape((-1, x.shape[2])), x.reshape((-1, x.shape[-1]))] for x in [time_major(p, p.h)]][0], empty=False),
    Case("time and rows merged and separated", "Shard(1) Shard(1) Shard(1)", lambda p: _separated(time_major(p, p.h)), empty=False),
    Case("time and rows and more merged", S, lambda p: time_major(p, p.h).flatten()),
    Case("time and rows merged, in another layout", U, lambda p: [(x.flatten() * y.flatten()) for x in [time_major(p, 2)] for y in [p.rows(p.f * 2)]]),
    Case("time and rows merged, of two inputs", S, lambda p: [(x.flatten() * y.flatten()) for x in [time_major(p)] for y in [time_major(p)]]),
    Case("time and rows of two inputs, and more", S, lambda p: [x.reshape((x.shape[0] * x.shape[1], p.h)).sum(1) * y.flatten() for x in [time_major(p, p.h)] for y in [time_major(p)]]),
    Case("time and rows, a width that is not known", U, lambda p: [x.reshape((-1, p.h)) for x in [time_major(p, p.h)]]),
    Case("time kept, the rest of another shape", U, lambda p: [x.reshape((2, x.shape[1], 6)) for x in [p.rows(4, 3, axis=1)]]),
    Case("time and rows in rows", U, lambda p: [x.reshape((2 * x.shape[1], 6)) for x in [p.rows(4, 3, axis=1)]]),
    Case("merged by 4, separated by 2", U, lambda p: [x.reshape((x.shape[0] * x.shape[1], x.shape[2])).reshape((2, x.shape[1], 6)) for x in [p.rows(4, 3, axis=1)]]),
    Case("the mean of time and rows", A, lambda p: [x.reshape((x.shape[0] * x.shape[1], x.shape[2])).mean(0) for x in [time_major(p, p.h)]], P),
    Case("a gradient through a reshape", A, lambda p: [T.grad(T.sqr(T.dot(x.reshape((x.shape[0] * x.shape[1], x.shape[2])), w)).mean(), w) for x in [time_major(p, p.h)] for w in [p.all(p.h, p.k)]], P),
    Case("products of three dimensions", "Shard(1)", lambda p: T.dot(time_major(p, p.h), p.all(p.h, p.k))),
    Case("a gradient through products of three dimensions", A, lambda p: [T.grad(T.tanh(T.dot(x, w)).mean(), w) for x in [time_major(p, p.h)] for w in [p.all(p.h, p.k)]], P),
    Case("a part, reshaped", P, lambda p: p.rows(p.f * 2).sum(0).reshape((2, p.f))),
    Case("what all have in a shape of rows", U, lambda p: [p.all(ALL_ROWS).reshape((x.shape[0], 1)) for x in [p.rows(p.f)]]),
    Case("pieces over rows", "Unknown", lambda p: [x.reshape((p.f, -1)) for x in [p.rows(p.f)]]),
    # -- axes ----------------------------------------------------------------------------------------------------------
    Case("dimshuffle", "Shard(1) Shard(0) Shard(2) Shard(1)", lambda p: [x.T for x in [p.rows(p.f)]] + [p.rows(p.f).dimshuffle(0, "x", 1), p.rows(p.f, p.h).dimshuffle(1, 2, 0), p.rows(p.f).dimshuffle("x", 0, 1)]),
    Case("dimshuffle of parts", "Partial(sum) Partial(max) Replicate", lambda p: [p.rows(p.f, p.h).sum(0).T, p.rows(p.f).max(0).dimshuffle("x", 0), p.all(p.f, p.h).T], empty=False),
    Case("swapaxes, rollaxis, shape_pad", "Shard(1) Shard(1) Shard(1)", lambda p: [p.rows(p.f).swapaxes(0, 1), T.roll(p.rows(p.f), 1, axis=1).T, T.shape_padleft(p.rows())]),
    Case("another axis said to be one", S, lambda p: T.addbroadcast(p.rows(1), 1) * p.all(p.f)),
    Case("flat vectors", S, lambda p: p.rows().flatten()),
    Case("repeat and tile along other axes", " ".join([S] * 3), lambda p: [T.repeat(p.rows(p.f), 2, axis=1), T.tile(p.rows(p.f), (1, 3)), T.repeat(p.rows(2), T.as_tensor([1, 2]), axis=1)]),
    Case("repeat of rows", "Shard(0) Shard(0)", lambda p: [T.repeat(x, 2, axis=0) for x in [p.rows(p.f)]] + [T.repeat(p.rows(), 3)]),
    Case("assert and specify_shape", "Shard(0) Shard(0)", lambda p: [_checked(p.rows(p.f)), T.specify_shape(p.rows(p.f), (p.inputs[0].variable.shape[0], p.f))]),
    Case("print", S, lambda p: _printed(p.rows(p.f))),
]  # fmt: skip


def _all_rows(p):
    return p.all(ALL_ROWS, dtype="int64", high=2).shape[0]


def _separated(x):
    merged = x.reshape((x.shape[0] * x.shape[1], x.shape[2]))
    other = T.tanh(merged) * 2
    return [
        merged.reshape((x.shape[0], x.shape[1], x.shape[2])),
        other.reshape((x.shape[0], x.shape[1], -1)),
        other.reshape((-1, x.shape[1], x.shape[2])),
    ]


def _two_lengths(vector):
    return T.zeros((vector[0], vector[1]))


def _checked(x):
    return T.opt.Assert("rows")(x, x.shape[0] > -1)


def _printed(x):
    return L.Print("x", attrs=())(x)


@parametrize(CASES)
def test_placements_are_those_of_the_serial_program(case, exact):
    case.verify(exact)
