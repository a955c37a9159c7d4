"""Operations along one axis: softmax and cross-entropies, sorting, cumulative sums; and operations without a rule.

Modules: `synkhronos.engines.theano.formulas`.
"""

import numpy as np
from library import IS_THEANO, L, T
from simulated import ALL_ROWS, Case, parametrize

consider_constant, disconnected_grad, grad_clip, grad_scale, zero_grad = map(
    L.gradient, ["consider_constant", "disconnected_grad", "grad_clip", "grad_scale", "zero_grad"]
)

S, R, P, A, U = "Shard(0)", "Replicate", "Partial(sum)", "Partial(avg)", "Unknown"


def labels(p, high):
    return p.rows(dtype="int64", high=high)


def _of_columns(p, count):
    """Return row vectors, each with one number for each of three columns."""
    return [T.addbroadcast(p.all(1, 3), 0) for _ in range(count)]


def layer_grads(loss):
    """Return a builder of the gradients of a layer's mean loss with respect to its parameters."""

    def make(p):
        w, b = p.all(p.f, 3), p.all(3)
        return T.grad(loss(p, T.dot(p.rows(p.f), w) + b).mean(), [w, b])

    return make


def matrix(p):
    """Return an invertible matrix, replicated on all ranks."""
    return p.all(3, 3, make=lambda rng, shape: rng.normal(size=shape) + 5 * np.eye(3))


def solve(matrix, values):
    return T.slinalg.solve(matrix, values) if IS_THEANO else T.linalg.solve(matrix, values)


def solve_lower(matrix, values):
    if IS_THEANO:
        return T.slinalg.solve_lower_triangular(matrix, values)
    return T.linalg.solve_triangular(matrix, values, lower=True)


AA, PP = "Partial(avg) Partial(avg)", "Partial(sum) Partial(sum)"

CASES = [
    Case("softmax", "Shard(0) Shard(0) Shard(0)", lambda p: [T.nnet.softmax(p.rows(p.f)), T.nnet.logsoftmax(p.rows(p.f)), T.nnet.softmax(p.rows(p.f) + p.all(p.f))]),
    Case("softmax over rows", U, lambda p: T.nnet.softmax(p.rows(p.f, axis=1)), "Shard(1)", empty=False, pytensor=(U, "Shard(1)")),
    Case("softmax of all rows as one", U, lambda p: T.nnet.softmax(p.rows()), "Shard(1)", empty=False, pytensor=(U, S)),
    Case("softmax with bias", S, lambda p: T.nnet.softmax_with_bias(p.rows(p.f), p.all(p.f))),
    Case("softmax of parts", U, lambda p: T.nnet.softmax(T.dot(p.rows(p.f).T, p.rows(p.h))), R),
    Case("cross-entropy of classes", S, lambda p: T.nnet.categorical_crossentropy(T.nnet.softmax(p.rows(3)), labels(p, 3))),
    Case("cross-entropy of distributions", S, lambda p: T.nnet.categorical_crossentropy(T.nnet.softmax(p.rows(3)), T.nnet.softmax(p.rows(3)))),
    Case("cross-entropy of bits", S, lambda p: T.nnet.binary_crossentropy(T.nnet.sigmoid(p.rows(3)), p.rows(3, high=2))),
    Case("cross-entropy with bias", "Shard(0) Shard(0) Shard(0)", lambda p: T.nnet.crossentropy_softmax_argmax_1hot_with_bias(p.rows(3), p.all(3), labels(p, 3))),
    Case("cross-entropy of all classes", U, lambda p: T.nnet.categorical_crossentropy(T.nnet.softmax(p.rows(3)), p.all(ALL_ROWS, dtype="int64", high=3))),
    Case("cross-entropy of positions", U, lambda p: [T.nnet.categorical_crossentropy(T.nnet.softmax(x), T.arange(x.shape[0])) for x in [p.rows(9)]]),
    Case("gradient of softmax and classes", AA, layer_grads(lambda p, x: T.nnet.categorical_crossentropy(T.nnet.softmax(x), labels(p, 3))), PP),
    Case("gradient of softmax and distributions", AA, layer_grads(lambda p, x: T.nnet.categorical_crossentropy(T.nnet.softmax(x), T.nnet.softmax(p.rows(3)))), PP),
    Case("gradient of softmax with bias", AA, layer_grads(lambda p, x: T.sqr(T.nnet.softmax_with_bias(x, p.all(3)))), PP),
    Case("gradient of cross-entropy with bias", AA, layer_grads(lambda p, x: T.nnet.crossentropy_softmax_1hot_with_bias(x, p.all(3), labels(p, 3))[0]), PP),
    Case("gradient of logsoftmax", AA, layer_grads(lambda p, x: T.nnet.logsoftmax(x)[T.arange(x.shape[0]), labels(p, 3)]), PP),
    Case("gradient of bits", AA, layer_grads(lambda p, x: T.nnet.binary_crossentropy(T.nnet.sigmoid(x), p.rows(3, high=2))), PP),
    Case("gradient of hinge", AA, layer_grads(lambda p, x: T.maximum(0, 1 - x * p.rows(3, high=2))), PP),
    Case("gradient of a weighted loss", "Unknown Unknown", lambda p: [T.grad((T.sqr(T.dot(x, w) + b).sum(1) * m).sum() / m.sum(), [w, b]) for x in [p.rows(p.f)] for w in [p.all(p.f, 3)] for b in [p.all(3)] for m in [p.rows(high=2, low=1)]][0], PP),
    Case("gradient of a penalty", "Partial(avg) Replicate", lambda p: [T.grad(T.sqr(T.dot(x, w) + b).mean() + (v**2).sum() + (w**2).sum(), [w, v]) for x in [p.rows(p.f)] for w in [p.all(p.f, 3)] for b in [p.all(3)] for v in [p.all(3)]][0], "Replicate Replicate"),
    Case("sort and argsort", "Shard(0) Shard(0) Shard(1)", lambda p: [T.sort(p.rows(p.f), axis=1), T.argsort(p.rows(p.f), axis=-1), T.sort(p.rows(p.f, axis=1), axis=0)]),
    Case("sort along rows", "Unknown Unknown Unknown", lambda p: [T.sort(p.rows(p.f), axis=0), T.argsort(p.rows(p.f), axis=0), T.sort(p.rows(p.f), axis=None)]),
    Case("sort of parts", U, lambda p: T.sort(p.rows(p.f).sum(0)), R),
    Case("cumulative", "Shard(0) Shard(0)", lambda p: [T.cumsum(p.rows(p.f), axis=1), T.cumprod(p.rows(p.f), axis=1)]),
    Case("cumulative along rows", "Unknown Unknown", lambda p: [T.cumsum(p.rows(p.f), axis=0), T.cumsum(p.rows())]),
    Case("solutions", f"Shard(1) Shard(1) {P} {U}", lambda p: [solve(matrix(p), y) for y in (p.rows(3).T, T.sqr(p.rows(3, 2).T).sum(0), p.rows(3).sum(0))] + [solve(p.rows(3).T.dot(p.rows(3)), p.all(3))], f"Shard(1) Shard(1) {P} {R}"),
    Case("solutions of unknowns along rows", U, lambda p: solve(p.rows(ALL_ROWS), p.all(ALL_ROWS)), empty=False),
    Case("solutions of triangles", "Shard(1) Shard(0)", lambda p: [solve_lower(matrix(p), p.rows(3).T), T.sqr(solve_lower(matrix(p), p.rows(3).T)).sum(0)]),
    Case("gradients of solutions", f"{A} Shard(0)", lambda p: [T.grad(T.sqr(solve(a, x.T)).mean(), [a, x]) for a in [matrix(p)] for x in [p.rows(3)]][0], f"{P} Shard(0)", empty=False),
    Case("gradients of solutions of triangles", A, lambda p: [T.grad(T.sqr(solve_lower(a, p.rows(3).T)).mean(), a) for a in [matrix(p)]], P),
    Case("differences", "Shard(0) Shard(1)", lambda p: [T.extra_ops.diff(p.rows(p.f), axis=1), T.extra_ops.diff(p.rows(p.f, axis=1), axis=0)]),
    Case("differences along rows", U, lambda p: T.extra_ops.diff(p.rows(p.f), axis=0), empty=False),
    Case("differences of parts", P, lambda p: T.extra_ops.diff(p.rows(4).sum(0))),
    Case("gradient of a cumulative sum", A, lambda p: [T.grad(T.sqr(T.cumsum(x * w, axis=1)).mean(), w) for x in [p.rows(p.f)] for w in [p.all(p.f)]], P),
    Case("gradient of a sort", U, lambda p: [T.grad(T.sqr(T.sort(x * w, axis=1)).mean(), w) for x in [p.rows(p.f)] for w in [p.all(p.f)]], pytensor=(A, P) if L.sorts_have_an_axis else (U, U)),
    Case("gradients' ends", " ".join([S] * 2 + [P] * 2), lambda p: [op(y) for y in [p.rows(p.f), p.rows(p.f).sum(0)] for op in (disconnected_grad, zero_grad)]),
    Case("a constant for gradients", f"{S} {P}", lambda p: [consider_constant(y) for y in [p.rows(p.f), p.rows(p.f).sum(0)]]),
    Case("a gradient that is scaled", A, lambda p: [T.grad(T.sqr(grad_scale(w, 2.0) * x).mean(), w) for x in [p.rows(p.f)] for w in [p.all(p.f)]], P),
    Case("a gradient that is clipped", U, lambda p: [T.grad(T.sqr(grad_clip(w, -0.1, 0.1) * x).mean(), w) for x in [p.rows(p.f)] for w in [p.all(p.f)]], R),
    Case("gradients in rows that are clipped", "Unknown Partial(sum)", lambda p: [T.grad(op(T.sqr(grad_clip(w * x, -0.1, 0.1))), w) for x in [p.rows(p.f)] for w in [p.all(p.f)] for op in (T.mean, T.sum)], "Partial(sum) Partial(sum)"),
    Case("batch norm by hand", "Unknown", lambda p: [(x - x.mean(0)) / x.std(0) for x in [p.rows(p.f)]], S),
    Case("batch norm's gradient by hand", "Unknown", lambda p: [T.grad(T.tanh(g * (x - x.mean(0)) / T.sqrt(x.var(0) + 1e-3)).mean(), g) for x in [p.rows(p.f)] for g in [p.all(p.f)]], P),
    Case("batch norm's gradient to what is before it", "Unknown", lambda p: [T.grad(T.tanh((x - x.mean(0)) / T.sqrt(x.var(0) + 1e-3)).mean(), w) for w in [p.all(p.f, 3)] for x in [T.dot(p.rows(p.f), w)]], P),
    Case("batch norm of given statistics", S, lambda p: T.nnet.bn.batch_normalization_test(p.rows(3), *[p.all(1, 3)] * 3, p.all(1, 3, positive=True))),
    Case("batch norm of Theano", " ".join([U] * 5), lambda p: T.nnet.bn.batch_normalization_train(p.rows(3), **dict(zip(("gamma", "beta", "running_mean", "running_var"), _of_columns(p, 4)))), "Shard(0) Partial(sum) Replicate Replicate Replicate"),
    Case("batch norm of Theano, of images", U, lambda p: T.nnet.bn.batch_normalization_train(p.rows(3, 4, 2), *[T.addbroadcast(p.all(1, 3, 1, 1), 0, 2, 3) for _ in range(2)], axes="spatial")[0], S),
    Case("gradient of batch norm of Theano", "Unknown Unknown Unknown", lambda p: [T.grad((y * p.rows(3)).mean(), [x, scale, bias]) for x in [p.rows(3)] for scale, bias in [_of_columns(p, 2)] for y in [T.nnet.bn.batch_normalization_train(x, scale, bias)[0]]][0], "Shard(0) Partial(sum) Partial(sum)"),
    Case("batch norm of Theano, of what all have", R, lambda p: T.nnet.bn.batch_normalization_train(p.all(4, 3), *_of_columns(p, 2))[0]),
    Case("layer norm", "Shard(0) Partial(avg)", lambda p: [[y, T.grad(T.sqr(y).mean(), g)] for x in [p.rows(p.f)] for g in [p.all(p.f)] for y in [g * (x - x.mean(1, keepdims=True)) / T.sqrt(x.var(1, keepdims=True) + 1e-3)]][0], "Shard(0) Partial(sum)"),
    Case("a global norm", U, lambda p: [g / T.maximum(1, T.sqrt((g**2).sum())) for x in [p.rows(p.f)] for w in [p.all(p.f, 2)] for g in [T.grad(T.tanh(T.dot(x, w)).sum(), w)]], P),
    Case("linear algebra", " ".join([U] * 3), lambda p: [T.nlinalg.matrix_inverse(T.dot(x.T, x)) for x in [p.rows(p.f)]] + [T.nlinalg.trace(p.rows(p.f)), T.diag(p.rows(p.f))], "Replicate Unknown Unknown", empty=False),
    Case("what has no rule, of what all have", "Replicate Replicate", lambda p: [T.nlinalg.trace(p.all(3, 3)), T.diag(p.all(3))]),
    Case("distances of all pairs", U, lambda p: [T.sqr(x.dimshuffle(0, "x", 1) - x.dimshuffle("x", 0, 1)).sum(2) for x in [p.rows(p.f)]]),
    Case("attention in rows", S, lambda p: [T.batched_dot(T.nnet.softmax(T.batched_dot(k, q)), k) for k in [p.rows(4, p.f)] for q in [p.rows(p.f)]]),
    Case("a contrast of rows", U, lambda p: [T.nnet.softmax(T.dot(x, y.T)) for x in [p.rows(p.f)] for y in [p.rows(p.f)]]),
    Case("images to neighbours", U, lambda p: T.nnet.neighbours.images2neibs(p.rows(2, 4, 4), (2, 2))),
]  # fmt: skip


@parametrize(CASES)
def test_placements_are_those_of_the_serial_program(case, exact):
    case.verify(exact)
