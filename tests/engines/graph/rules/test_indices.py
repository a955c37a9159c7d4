"""Basic and advanced indices, operations that set elements or add to them, and gradients.

Modules: `synkhronos.sharding.chosen`, `synkhronos.sharding.subscripts`, `synkhronos.engines.graph.indices`,
`synkhronos.engines.graph.formulas`.
"""

from functools import partial

from library import T
from refusals import reports
from simulated import ALL_ROWS, Case, parametrize

S, R, P, A, U = "Shard(0)", "Replicate", "Partial(sum)", "Partial(avg)", "Unknown"


def labels(p, high):
    return p.rows(dtype="int64", high=high)


def _classes(order, count, how, p):
    """Return each label's probability, the same probabilities in the labels' shape, and a gradient."""
    axis = 1 if order == "time and rows" else 0
    x, y, w = p.rows(3, 2, axis=axis), p.rows(3, axis=axis, dtype="int64", high=4), p.all(2, 4)
    h = T.dot(x, w)
    q = T.nnet.softmax(h.reshape((h.shape[0] * h.shape[1], h.shape[2])))
    counts = {
        "labels": y.flatten().shape[0],
        "probabilities": q.shape[0],
        "product": y.shape[0] * y.shape[1],
        "prod": T.prod(y.shape),
        "size": y.size,
        "quotient": y.size * w.shape[0] // w.shape[0],
    }
    positions = T.arange(counts[count])
    if how == "pairs":
        found = q[positions, y.flatten()]
    else:
        found = q.flatten()[positions * (4 if how == "flat, by a number" else q.shape[1]) + y.flatten()]
    return found, found.reshape(y.shape), T.grad(T.log(found).mean(), w)


CASES = [
    Case("numbers set into narrower floats", "Unknown Unknown", lambda p: [op(T.zeros_like(p.all(3, dtype="float16"))[at], p.rows(dtype="float64").sum()) for op, at in ((T.set_subtensor, 0), (T.inc_subtensor, [0, 2]))], f"{R} {R}"),
    Case("a number set into bools", U, lambda p: T.set_subtensor(T.zeros_like(p.all(3, dtype="bool"))[0], p.rows(dtype="int64").sum()), R),
    Case("basic, along other axes", " ".join([S] * 7), lambda p: [[x[:, 0], x[:, -1], x[:, 1:], x[:, ::-1], x[:, :, ::2], x[:, None, :, :], x[0:, 1, p.all(dtype="int64", high=2)]] for x in [p.rows(p.f, p.h)]][0]),
    Case("basic, rows along another axis", "Shard(0) Shard(1) Shard(1) Shard(0)", lambda p: [[x[0], x[1:], x[::-1], x[-1, :]] for x in [p.rows(p.f, axis=1)]][0]),
    Case("basic, along rows", " ".join([U] * 6), lambda p: [[x[0], x[-1], x[:2], x[1:], x[::-1], x[::2]] for x in [p.rows(p.f)]][0], empty=False),
    Case("basic, of parts", "Partial(sum) Partial(avg)", lambda p: [p.rows(p.f).sum(0)[1:], p.rows(p.f).mean(0)[0]], "Partial(sum) Partial(sum)"),
    Case("up to the number of rows", U, lambda p: [p.all(9, p.f)[: x.shape[0]] for x in [p.rows(p.f)]]),
    Case("up to the number of rows, of rows", "Shard(0) Shard(0) Shard(0) Shard(0)", lambda p: [[x[: x.shape[0]], x[0 : x.shape[0], 1], x[: y.shape[0], :2], (x.T[:, : x.shape[0]]).T] for x in [p.rows(3)] for y in [p.rows()]][0]),
    Case("up to another number of rows", " ".join([*[U] * 5, S]), lambda p: [[x[: x.shape[0] - 1], x[1 : x.shape[0]], x[x.shape[0] :], x[: x.shape[0] // 2], x[: x.shape[0] : 2], x[: 2 * x.shape[0]]] for x in [p.rows(3)]][0], empty=False),
    Case("joined and divided", " ".join([S] * 8), lambda p: _joined_and_divided(p)),
    Case("divided elsewhere", " ".join([U] * 4), lambda p: [[z[n // 2 :], z[: T.maximum(n, 2)], z[1 : n], z[: z.shape[0] // 4]] for x in [p.rows(3)] for n in [x.shape[0]] for z in [T.concatenate([x, x])]][0], empty=False),
    Case("added to a piece", "Shard(0) Shard(0) Shard(0) Unknown", lambda p: [[T.inc_subtensor(z[:n], p.rows(3)), T.set_subtensor(z[n:], 0.0), T.set_subtensor(T.zeros_like(z)[n:, 1], p.rows()), T.inc_subtensor(z[:n], p.all(ALL_ROWS, 3))] for x in [p.rows(3)] for n in [x.shape[0]] for z in [T.concatenate([x, x * 2])]][0]),
    Case("gradient of pieces", "Shard(0) Shard(0) Partial(sum)", lambda p: [T.grad(T.sqr(T.dot(z[:n], w)).sum() + T.exp(T.dot(z[n:], w)).sum(), [x, y, w]) for x in [p.rows(3)] for y in [p.rows(3)] for w in [p.all(3, p.f)] for n in [x.shape[0]] for z in [T.concatenate([x, y])]][0]),
    Case("gradient of time and rows", "Partial(avg)", lambda p: [T.grad(T.log(q)[T.arange(y.shape[0]), y].mean(), w) for w in [p.all(3, 4)] for y in [p.rows(5, dtype="int64", high=4).T.flatten()] for x in [p.rows(5, 3).dimshuffle(1, 0, 2)] for q in [T.nnet.softmax(T.dot(x.reshape((-1, x.shape[2])), w))]], P),
    Case("sets the first of two pieces by positions", S, lambda p: [T.set_subtensor(z[T.arange(n), 0], 0.0) for x in [p.rows(3)] for n in [x.shape[0]] for z in [T.concatenate([x, x * 2])]]),
    Case("the last row", U, lambda p: [x[x.shape[0] - 1] for x in [p.rows(p.f)]], empty=False),
    Case("roll of rows", U, lambda p: T.roll(p.rows(p.f), 1, axis=0), empty=False),
    Case("roll along another axis", S, lambda p: T.roll(p.rows(p.f), 1, axis=1)),
    Case("at an index that is a part", U, lambda p: p.all(9)[T.gt(p.rows(), 0).sum()], R),
    Case("embedding", "Shard(0) Shard(0) Shard(1)", lambda p: [p.all(5, p.f)[labels(p, 5)], p.all(5)[labels(p, 5)], p.all(5, p.f)[p.rows(3, axis=1, dtype="int64", high=5)]]),
    Case("embedding of words in rows", S, lambda p: p.all(5, p.f)[p.rows(3, dtype="int64", high=5)]),
    Case("gradient of an embedding", "Partial(avg) Partial(sum)", lambda p: [T.grad(T.sqr(w[i]).mean(), w) for w in [p.all(5, p.f)] for i in [p.rows(3, dtype="int64", high=5)]] + [T.grad(T.sqr(w[i]).sum(), w) for w in [p.all(5, p.f)] for i in [labels(p, 5)]], "Partial(sum) Partial(sum)"),
    Case("at positions of other axes", "Shard(0) Shard(0) Shard(0)", lambda p: [p.rows(3)[:, [0, 2]], p.rows(3)[:, p.all(4, dtype="int64", high=3)], p.rows(3, 4)[:, [0, 2], [1, 3]]]),
    Case("at positions of rows", " ".join([U] * 3), lambda p: [p.rows(p.f)[[0, 1]], p.rows(p.f)[p.all(4, dtype="int64", high=2)], p.rows(p.f)[p.rows(dtype="int64", high=2)]], empty=False),
    Case("taken along an axis", "Shard(0) Unknown", lambda p: [T.take(p.rows(3), [0, 2], axis=1), T.take(p.rows(3), [0, 1], axis=0)]),
    Case("a label's probability", "Shard(0) Shard(0)", lambda p: [x[T.arange(x.shape[0]), labels(p, 3)] for x in [p.rows(3)]] + [x[T.arange(y.shape[0]), y] for x in [p.rows(3)] for y in [labels(p, 3)]]),
    Case("a label's probability, the same for all rows", "Shard(0) Partial(sum)", lambda p: [q[T.arange(q.shape[0]).reshape((-1, 1)), labels(p, 3).dimshuffle(0, "x")] for q in [p.all(3).dimshuffle("x", 0)]] + [T.grad(T.sqr(q[T.arange(q.shape[0]).reshape((-1, 1)), labels(p, 3).dimshuffle(0, "x")]).sum(), w) for w in [p.all(3)] for q in [w.dimshuffle("x", 0)]]),
    Case("log likelihood", "Partial(avg) Partial(avg)", lambda p: [[loss, T.grad(loss, w)] for x in [p.rows(p.f)] for y in [labels(p, 3)] for w in [p.all(p.f, 3)] for loss in [-T.mean(T.log(T.nnet.softmax(T.dot(x, w)))[T.arange(y.shape[0]), y])]][0], "Partial(sum) Partial(sum)"),
    Case("log likelihood of time and rows", "Shard(0) Shard(0)", lambda p: _of_time_and_rows(p)),
    # Classes of time and rows that were merged, in either order: by pairs of positions, and in flattened probabilities.
    *[
        Case(f"classes of {order}, counted by {count}, {how}", plain, partial(_classes, order, count, how), exact)
        for order, axis in (("time and rows", 1), ("rows and time", 0))
        for how in ("pairs", "flat", "flat, by a number")
        for count in ("labels", "probabilities", "product", "prod", "size", "quotient")
        for is_sure in [(axis == 1 or count == "probabilities") and how != "flat, by a number"]
        for plain, exact in [(f"Shard(0) Shard({axis}) Partial(avg)" if is_sure else " ".join([U] * 3), f"Shard(0) Shard({axis}) Partial(sum)")]
    ],
    Case("classes of time and rows, of three merged axes", "Unknown Shard(0)", lambda p: _classes_of_three(p), "Shard(0) Shard(0)"),
    Case("classes in another order", "Unknown Unknown Unknown Unknown", lambda p: _classes_in_another_order(p)),
    Case("classes of rows of which the width is a number", "Shard(0) Unknown Unknown Unknown", lambda p: [[q[T.arange(q.shape[0]), y], q[T.arange(y.shape[0]), y], q[T.arange(z.shape[0] * z.shape[1]), y], q.flatten()[T.arange(y.shape[0]) * 4 + y]] for h, w, z in [(p.rows(3, 2), p.all(2, 4), p.rows(3, dtype="int64", high=4))] for q in [T.nnet.softmax(T.dot(h, w).reshape((-1, 4)))] for y in [z.flatten()]][0], " ".join([S] * 4), empty=False),
    Case("positions by steps", "Shard(0) Shard(0)", lambda p: [[q.flatten()[T.arange(0, q.size, q.shape[1]) + y], q.flatten()[T.arange(0, q.shape[0] * q.shape[1], q.shape[1]) + y]] for q in [p.rows(4)] for y in [labels(p, 4)]][0]),
    Case("one hot of time and rows", "Shard(0) Shard(0)", lambda p: [T.set_subtensor(T.zeros((n, 4))[T.arange(n), y.flatten()], 1.0) for y in [p.rows(3, axis=1, dtype="int64", high=4), p.rows(3, dtype="int64", high=4)] for n in [y.shape[0] * y.shape[1]]]),
    Case("one hot of time and rows, flat", "Shard(0) Shard(0)", lambda p: [T.set_subtensor(T.zeros((n * 4,))[T.arange(n) * 4 + y.flatten()], 1.0) for y in [p.rows(3, axis=1, dtype="int64", high=4), p.rows(3, dtype="int64", high=4)] for n in [y.shape[0] * y.shape[1]]]),
    Case("positions of all, in axes of their own", "Shard(1) Shard(0)", lambda p: [x.flatten()[T.arange(x.size).reshape(x.shape)] for x in [p.rows(3, axis=1), p.rows(3)]]),
    Case("own rows at positions of rows", S, lambda p: [x[T.arange(x.shape[0])] for x in [p.rows(p.f)]]),
    Case("shifted positions", " ".join([U] * 5), lambda p: [[x[i + 1 - 1], x[i * 0], x[n - 1 - i], x[i // 2], x[-i]] for x in [p.rows(p.f)] for n in [x.shape[0]] for i in [T.arange(n)]][0]),
    Case("positions of half the rows", U, lambda p: [x[T.arange(x.shape[0] // 2)] for x in [p.rows(p.f)]]),
    Case("positions in what all have", U, lambda p: [p.all(ALL_ROWS)[T.arange(x.shape[0])] for x in [p.rows(p.f)]]),
    Case("positions along another axis", U, lambda p: [x[:, T.arange(y.shape[0])] for x in [p.rows(9)] for y in [p.rows()]]),
    Case("positions in flat rows", "Shard(0) Shard(0)", lambda p: [[flat[i * x.shape[1] + y], flat[T.arange(flat.shape[0])]] for x in [p.rows(3)] for y in [labels(p, 3)] for flat in [x.flatten()] for i in [T.arange(x.shape[0])]][0]),
    Case("positions in flat rows, of another size", " ".join([U] * 4), lambda p: [[flat[i + y], flat[i], flat[i * 0], flat[i * x.shape[1] * 0]] for x in [p.rows(6)] for y in [labels(p, 2)] for flat in [x.flatten()] for i in [T.arange(x.shape[0])]][0]),
    Case("positions in flat rows, of a given size", "Unknown Unknown", lambda p: [T.sqr(flat)[i * 6 + y] for flat in [p.rows(6).flatten(), p.rows(3, 2).flatten()] for y in [labels(p, 2)] for i in [T.arange(y.shape[0])]], "Shard(0) Shard(0)"),
    Case("positions in merged rows", U, lambda p: [T.repeat(x, 2, axis=0)[T.arange(x.shape[0])] for x in [p.rows(p.f)]]),
    Case("positions in rows, twice", S, lambda p: [T.concatenate([x, x], axis=0)[T.arange(x.shape[0])] for x in [p.rows(p.f)]]),
    Case("more positions than rows", U, lambda p: [x[T.arange(2 * x.shape[0]) - x.shape[0]] for x in [p.rows(p.f)]]),
    Case("positions, repeated", S, lambda p: [x[T.repeat(T.arange(x.shape[0]), 2)] for x in [p.rows(p.f)]]),
    Case("positions as a column", S, lambda p: [x[T.arange(x.shape[0]).dimshuffle(0, "x"), p.all(2, dtype="int64", high=3).dimshuffle("x", 0)] for x in [p.rows(3)]]),
    Case("positions that are summed", U, lambda p: [v[T.arange(x.shape[0]).sum()] for v in [p.all(99)] for x in [p.rows()]], empty=False),
    Case("spatial transformer's positions", S, lambda p: _interpolated(p)),
    # -- setting and adding --------------------------------------------------------------------------------------------
    Case("sets along other axes", " ".join([S] * 4), lambda p: [[T.set_subtensor(x[:, 0], 0.0), T.set_subtensor(x[:, 0], p.rows()), T.inc_subtensor(x[:, 1:], 1.0), T.inc_subtensor(x[:, 0], p.rows())] for x in [p.rows(3)]][0]),
    Case("sets to what all have", U, lambda p: T.set_subtensor(p.rows(3)[:, 0], p.all(ALL_ROWS))),
    Case("sets one row", "Unknown Unknown", lambda p: [T.set_subtensor(p.rows(3)[0], 0.0), T.inc_subtensor(p.rows(3)[:2], 1.0)], empty=False),
    Case("sets rows in what all have", U, lambda p: T.set_subtensor(p.all(ALL_ROWS, 3)[:, 0], p.rows())),
    Case("sets parts", "Partial(sum) Unknown Unknown Partial(sum)", lambda p: [T.set_subtensor(T.zeros((4,))[1:3], p.rows(2).sum(0)), T.set_subtensor(p.all(4)[1:3], p.rows(2).sum(0)), T.inc_subtensor(p.rows(4).sum(0)[1:3], p.all(2)), T.inc_subtensor(p.rows(4).sum(0)[1:3], p.rows(2).sum(0))], "Partial(sum) Replicate Replicate Partial(sum)"),
    Case("sets at rows' positions", U, lambda p: T.set_subtensor(p.all(5)[labels(p, 5)], p.rows())),
    Case("sets zeros at rows' positions", U, lambda p: T.set_subtensor(T.zeros((5,))[labels(p, 5)], 1.0)),
    Case("adds at rows' positions", "Partial(sum) Unknown", lambda p: [T.inc_subtensor(T.zeros((5, 2))[labels(p, 5)], p.rows(2)), T.inc_subtensor(p.all(5)[labels(p, 5)], p.rows())], "Partial(sum) Replicate"),
    Case("adds one at rows' positions", P, lambda p: T.inc_subtensor(T.zeros((5,))[labels(p, 5)], 1.0)),
    Case("adds one at rows' positions of what all have", "Unknown Unknown", lambda p: [T.inc_subtensor(p.all(5)[labels(p, 5)], 1.0), T.inc_subtensor(p.all(5, 3)[labels(p, 5)], p.all(3))], "Replicate Replicate"),
    Case("adds real numbers to whole ones", "Unknown Unknown Unknown Shard(0)", lambda p: [T.inc_subtensor(T.zeros((3,), "int64")[labels(p, 3)], p.rows()), T.inc_subtensor(p.all(3, dtype="int64", high=9)[labels(p, 3)], p.rows()), T.inc_subtensor(p.all(3, 4, dtype="int64", high=9)[labels(p, 3), labels(p, 4)], p.rows()), T.inc_subtensor(p.rows(3, dtype="int64", high=9)[:, [0, 2]], 1.5 * p.rows(2))]),
    Case("counts in whole numbers", U, lambda p: T.inc_subtensor(p.all(5, dtype="int64", high=9)[labels(p, 5)], 1), R),
    Case("adds at rows' positions, one after another", U, lambda p: [T.inc_subtensor(T.inc_subtensor(w[labels(p, 5)], p.rows(2))[p.rows(3, dtype="int64", high=5)], p.rows(3, 2)) for w in [p.all(5, 2)]], R),
    Case("adds to an element, and at rows' positions", U, lambda p: T.sqrt(T.inc_subtensor(T.inc_subtensor(p.all(5, positive=True)[1:3], p.rows(positive=True).sum())[labels(p, 5)], p.rows(positive=True))), R),
    Case("adds parts at rows' positions", U, lambda p: T.inc_subtensor(p.rows(5).sum(0)[labels(p, 5)], p.rows()), P),
    Case("adds at positions of other axes", "Shard(0) Shard(0)", lambda p: [T.inc_subtensor(p.rows(3)[:, [0, 2]], 1.0), T.set_subtensor(p.rows(3)[:, [0, 2]], p.rows(2))]),
    Case("one hot", S, lambda p: T.extra_ops.to_one_hot(labels(p, 4), 4)),
    Case("one hot by hand", "Shard(0) Shard(0)", lambda p: [T.eq(labels(p, 4).dimshuffle(0, "x"), T.arange(4))] + [T.set_subtensor(T.zeros((y.shape[0], 4))[T.arange(y.shape[0]), y], 1) for y in [labels(p, 4)]]),
    Case("one hot of eye", S, lambda p: T.eye(4)[labels(p, 4)]),
    Case("a confusion matrix", P, lambda p: [T.dot(T.extra_ops.to_one_hot(y, 4).T, T.extra_ops.to_one_hot(z, 4)) for y in [labels(p, 4)] for z in [labels(p, 4)]]),
    Case("gradient of a slice", "Shard(0) Partial(avg)", lambda p: [T.grad(T.sqr((x * w)[:, 1:]).mean(), [x, w]) for x in [p.rows(3)] for w in [p.all(3)]][0], "Shard(0) Partial(sum)"),
    Case("gradient of an element in rows", "Shard(0) Partial(avg)", lambda p: [T.grad(T.sqr((x * w)[:, [0, 2, 2]]).mean(), [x, w]) for x in [p.rows(3)] for w in [p.all(3)]][0], "Shard(0) Partial(sum)"),
    Case("gradient of a label's probability", "Shard(0)", lambda p: [T.grad(x[T.arange(x.shape[0]), labels(p, 3)].mean(), x) for x in [p.rows(3)]]),
    Case("gradient of gates", A, lambda p: [T.grad((T.nnet.sigmoid(g[:, : p.h]) * T.tanh(g[:, p.h :])).mean(), w) for w in [p.all(p.f, 2 * p.h)] for g in [T.dot(p.rows(p.f), w)]], P),
    # -- selection by a mask -------------------------------------------------------------------------------------------
    Case("rows where they are positive", "Shard(0) Shard(0) Shard(0)", lambda p: [[x[i], y[i], T.exp(x[i]) * y[i]] for x, y in [(p.rows(), p.rows())] for i in [(x > 0).nonzero()]][0]),
    Case("words where a mask is not 0", "Shard(0) Shard(0)", lambda p: [[x[there], T.dot(y[there], p.all(2, 3))] for x, y, mask in [(p.rows(4), p.rows(4, 2), p.rows(4, high=2))] for there in [mask.nonzero()]][0]),
    Case("how many there are", "Size Size", lambda p: [[x.shape[0], T.sqrt(x.shape[0]) + 1.0 * x.shape[0]] for x in [_positive(p)]][0]),
    Case("sums and means of what a mask chooses", "Partial(sum) Unknown", lambda p: [[x.sum(), x.mean()] for x in [_positive(p)]][0], "Partial(sum) Partial(sum)"),
    Case("extremes of what a mask chooses", "Unknown Unknown Shard(0) Partial(min)", lambda p: [[x.max(), x.min(axis=0), x.max(axis=1), T.all(x > 0)] for x in [p.rows(3, 4)[(p.rows(3) > 0).nonzero()]]][0]),
    Case("gradient of what a mask chooses", "Shard(0) Unknown Partial(sum)", lambda p: [[T.grad(T.sqr(y).sum(), x), T.grad(y.mean(), w), T.grad(T.sqr(y).sum(), w)] for x, w in [(p.rows(3, 4), p.all(4, 2))] for y in [T.dot(x[p.rows(3, high=2).nonzero()], w)]][0], "Shard(0) Partial(sum) Partial(sum)"),
    Case("a boolean mask", "Shard(0) Shard(0) Unknown", lambda p: [[x[m], x[T.gt(p.rows(), 0)], x[m] * x[T.gt(x, 0)]] for x in [p.rows(3)] for m in [T.gt(x, 0)]][0]),
    Case("gradient of a boolean mask", "Shard(0) Shard(0)", lambda p: [T.grad(T.sqr(x[m]).sum(), x) for x in [p.rows(3)] for m in [T.gt(x, 0), T.gt(p.rows(), 0)]]),
    Case("sets where a boolean mask is", "Shard(0) Unknown", lambda p: [[T.set_subtensor(x[m], 0.0), T.set_subtensor(p.all(ALL_ROWS, 3)[m], 0.0)] for x in [p.rows(3)] for m in [T.gt(x, 0)]][0]),
    Case("masks of other rows", "Unknown Unknown Unknown", lambda p: [x[(x > 0).nonzero()] * x[(x > 0).nonzero()] for x in [p.rows()]] + [p.all(ALL_ROWS)[p.rows(high=2).nonzero()], p.rows(3)[p.all(ALL_ROWS, 3, high=2).nonzero()]], empty=False),
    Case("as many, by another mask", "Unknown Unknown", lambda p: [x[(x > 0).nonzero()] * one for x in [p.rows()] for one in [x[(x > 0).nonzero()], p.rows(2).flatten()[(x > 0).nonzero()]]]),
    Case("masks along another axis", "Unknown Unknown", lambda p: [p.rows(3, axis=1)[p.rows(3, axis=1, high=2).nonzero()], p.rows(3, axis=1)[T.gt(p.rows(3, axis=1), 0)]]),
    Case("a mask of columns", "Replicate Shard(0)", lambda p: [p.all(3)[T.gt(p.all(3), 0)], p.rows(3)[:, T.gt(p.all(3), 0).nonzero()[0]]]),
    Case("a label of each that is there", "Shard(0) Shard(0)", lambda p: [[q[T.arange(y.shape[0]), y], T.nnet.categorical_crossentropy(q, y)] for q, y, i in [(p.rows(3), p.rows(dtype="int64", high=3), p.rows(high=2).nonzero())] for q, y in [(T.nnet.softmax(q[i]), y[i])]][0]),
    Case("filled as many", "Shard(0) Unknown", lambda p: [[x * T.zeros((x.shape[0],)), T.zeros((x.shape[0] + 1,))] for x in [_positive(p)]][0]),
    Case("joined and divided by numbers of those there", S, lambda p: [T.concatenate([x, T.exp(x)])[x.shape[0] :] for x in [_positive(p)]]),
    Case("all that is not zero", U, lambda p: p.rows().nonzero()[0].sum()),
]  # fmt: skip


def _positive(p):
    x = p.rows()
    return x[T.gt(x, 0).nonzero()]


def _joined_and_divided(p):
    x, y = p.rows(3), p.rows(3)
    n, both, three = x.shape[0], T.concatenate([x, y]), T.concatenate([x, y, x * y])
    again = T.concatenate([both, x])
    return [
        both[:n],
        both[n:],
        three[n:],
        both[: y.shape[0], 1],
        three[n:][n:],
        again[both.shape[0] :],
        three[n : both.shape[0]],
        T.split(three, [n, both.shape[0]], 2)[1],
    ]


def _of_time_and_rows(p):
    x, y = p.rows(p.f, 3, axis=1), p.rows(p.f, axis=1, dtype="int64", high=3)
    flat = x.reshape((x.shape[0] * x.shape[1], x.shape[2]))
    return flat[T.arange(flat.shape[0]), y.flatten()], flat[T.arange(x.shape[1]), 0]


def _classes_of_three(p):
    """Return probabilities of labels of shape (time, rows, 2), indexed by pairs of positions and in flat arrays."""
    q, y = p.rows(3, 2, 4, axis=1), p.rows(3, 2, axis=1, dtype="int64", high=4)
    merged = q.reshape((-1, q.shape[3]))
    whole = q.reshape((q.shape[0] * q.shape[1] * q.shape[2], q.shape[3]))
    both = merged[T.arange(merged.shape[0]), y.flatten()], whole.flatten()[T.arange(whole.shape[0]) * q.shape[3]]
    return both[0] * whole[T.arange(whole.shape[0]), y.flatten()], both[1]


def _classes_in_another_order(p):
    """Return expressions that index probabilities in one order by labels in another order."""
    x, y = p.rows(3, 4, axis=1), p.rows(3, dtype="int64", high=4)
    q, z = x.reshape((x.shape[0] * x.shape[1], x.shape[2])), p.rows(3, 4).reshape((-1, 4))
    n = y.shape[0] * y.shape[1]
    return [
        q[T.arange(n), y.flatten()],
        q.flatten()[T.arange(n) * 4 + y.flatten()],
        q.dimshuffle(1, 0).flatten()[T.arange(n) * 4],
        z[T.arange(n), y.T.flatten()],
    ]


def _interpolated(p):
    """Return pixels of flat images, indexed as in Lasagne's spatial transformer."""
    images = p.rows(3, 4, 2)
    where = p.rows(5, make=lambda rng, shape: rng.uniform(0, 2, size=shape))
    n, height, width, channels = (images.shape[axis] for axis in range(4))
    base = T.arange(n, dtype="int64") * (width * height)
    ones = T.ones((5,), dtype="int64").dimshuffle("x", 0)
    base = T.dot(base.reshape((-1, 1)), ones).flatten()
    y = T.cast(T.floor(where.flatten()), "int64")
    return images.reshape((-1, channels))[base + y * width + y]


@parametrize(CASES)
def test_placements_are_those_of_the_serial_program(case, exact):
    case.verify(exact)


def test_positions_in_rows_are_checked_to_be_of_rows_of_that_size():
    case = Case("", U, lambda p: [x.flatten()[T.arange(x.shape[0]) * 2] for x in [p.rows(3)]], S)
    with reports(AssertionError, "lengths are not equal"):
        case.verify(exact=True)
