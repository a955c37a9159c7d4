"""Products of matrices, convolutions and pooling, and their gradients.

Modules: `synkhronos.engines.theano.placing`.
"""

from library import T
from simulated import ALL_ROWS, Case, parametrize

S, R, P, A, U = "Shard(0)", "Replicate", "Partial(sum)", "Partial(avg)", "Unknown"


def mean_grad(build):
    """Return a builder of the gradients of a mean of squares with respect to the parameters."""

    def make(p):
        y, *params = build(p)
        return T.grad(T.sqr(y).mean(), params)

    return make


CASES = [
    Case("rows by a matrix", S, lambda p: T.dot(p.rows(p.f), p.all(p.f, p.h))),
    Case("rows by a vector", S, lambda p: T.dot(p.rows(p.f), p.all(p.f))),
    Case("a matrix by rows", "Shard(1)", lambda p: T.dot(p.all(p.h, p.f), p.rows(p.f, axis=1))),
    Case("a vector by rows", S, lambda p: T.dot(p.all(p.f), p.rows(p.f, axis=1))),
    Case("over rows", "Partial(sum) Partial(sum) Partial(sum) Partial(sum)", lambda p: [T.dot(x.T, y) for x in [p.rows(p.f)] for y in [p.rows(p.h)]] + [T.dot(p.rows(), p.rows()), T.dot(p.rows(), p.rows(p.f)), T.dot(p.rows(p.f, axis=1), p.rows())]),
    Case("over rows of bools", "Partial(max) Partial(max)", lambda p: [T.dot(x.T, x) for x in [p.rows(p.f) > 0.5]] + [T.dot(p.rows() > 0.5, p.rows(p.f) > 0.5)]),
    Case("over rows of bools, tensors", "Partial(max)", lambda p: T.tensordot(p.rows(p.f, p.h) > 0.5, p.rows(p.k) > 0.5, axes=[[0], [0]])),
    Case("batches of bools", S, lambda p: [T.batched_dot(p.rows(p.f, p.h) > 0.5, p.rows(p.h, p.k) > 0.5)]),
    Case("rows by other rows", U, lambda p: T.dot(p.rows(p.f), p.rows(p.f).T)),
    Case("a Gram matrix", U, lambda p: [T.dot(x, x.T) for x in [p.rows(p.f)]]),
    Case("an outer product of rows", U, lambda p: T.outer(p.rows(), p.rows())),
    Case("an outer product", S, lambda p: T.outer(p.rows(), p.all(p.f))),
    Case("over rows, by all rows", U, lambda p: T.dot(p.rows(p.f, axis=1), p.all(ALL_ROWS, p.h))),
    Case("parts by a matrix", "Partial(sum) Partial(avg)", lambda p: [T.dot(p.rows(p.f).sum(0), p.all(p.f, p.h)), T.dot(p.all(p.h, p.f), p.rows(p.f).mean(0))], "Partial(sum) Partial(sum)"),
    Case("parts by parts", U, lambda p: T.dot(p.rows(p.f).sum(0), p.rows(p.f).sum(0)), R),
    Case("parts by rows", U, lambda p: T.dot(p.rows(p.f), p.rows(p.f).sum(0)), S),
    Case("extremes by a matrix", U, lambda p: T.dot(p.rows(p.f).max(0), p.all(p.f, p.h)), R, empty=False),
    Case("batched", "Shard(0) Shard(0) Shard(0)", lambda p: [T.batched_dot(p.rows(p.f, p.h), p.rows(p.h, p.k)), T.batched_dot(p.rows(p.f), p.rows(p.f, p.k)), T.batched_dot(p.rows(p.f, p.h), p.rows(p.h))]),
    Case("batched along another axis", "Shard(1) Shard(2) Partial(sum)", lambda p: [T.batched_dot(p.rows(p.k, p.h, axis=1), p.all(p.k, p.h, p.f)), T.batched_dot(p.all(p.k, p.h, p.f), p.rows(p.k, p.f, axis=2)), T.batched_dot(p.rows(p.k, p.h, axis=2), p.rows(p.k, p.h, axis=1))], empty=False),
    Case("batched by all rows", U, lambda p: T.batched_dot(p.rows(p.f, p.h), p.all(ALL_ROWS, p.h, p.k))),
    Case("batched_tensordot", S, lambda p: T.batched_tensordot(p.rows(p.f, p.h), p.rows(p.h, p.k), axes=[[2], [1]])),
    Case("tensordot", "Shard(0) Shard(0) Shard(0) Shard(1)", lambda p: [T.tensordot(p.rows(p.f, p.h), p.all(p.h, p.k), axes=1), T.tensordot(p.rows(p.f, p.h), p.all(p.f, p.h, p.k), axes=2), T.tensordot(p.rows(p.f, p.h), p.all(p.k, p.f), axes=[[1], [1]]), T.tensordot(p.all(p.k, p.f), p.rows(p.f, p.h), axes=[[1], [1]])], empty=False),
    Case("tensordot over rows", "Partial(sum)", lambda p: T.tensordot(p.rows(p.f, p.h), p.rows(p.k), axes=[[0], [0]]), empty=False),
    Case("three dimensions by two", S, lambda p: T.dot(p.rows(p.f, p.h), p.all(p.h, p.k)), empty=False),
    Case("three dimensions by one", S, lambda p: T.dot(p.rows(p.f, p.h), p.all(p.h)), empty=False),
    Case("gradient of a layer", "Partial(avg) Partial(avg)", mean_grad(lambda p: [T.tanh(T.dot(p.rows(p.f), w) + b) for w in [p.all(p.f, p.h)] for b in [p.all(p.h)]] + [one.variable for one in p.inputs[:2]]), "Partial(sum) Partial(sum)"),
    Case("gradient to rows", S, mean_grad(lambda p: [[T.dot(x, p.all(p.f, p.h)), x] for x in [p.rows(p.f)]][0])),
    Case("gradient of batched_dot", "Shard(0) Shard(0)", mean_grad(lambda p: [[T.batched_dot(x, y), x, y] for x in [p.rows(p.f, p.h)] for y in [p.rows(p.h, p.k)]][0])),
    Case("gradient of tensordot", A, mean_grad(lambda p: [[T.tensordot(x, w, axes=1), w] for x in [p.rows(p.f, p.h)] for w in [p.all(p.h, p.k)]][0]), P, empty=False),
    Case("gradient of two layers", "Partial(avg) Partial(avg)", mean_grad(lambda p: [[T.dot(T.tanh(T.dot(p.rows(p.f), w)), v), w, v] for w in [p.all(p.f, p.h)] for v in [p.all(p.h, p.k)]][0]), "Partial(sum) Partial(sum)"),
    # -- convolutions --------------------------------------------------------------------------------------------------
    Case("conv2d", " ".join([S] * 4), lambda p: [T.nnet.conv2d(images(p), p.all(2, 3, 2, 2), border_mode=mode, subsample=step) for mode in ("valid", "full") for step in ((1, 1), (2, 1))], empty=False),
    Case("conv2d with half and dilation", "Shard(0) Shard(0)", lambda p: [T.nnet.conv2d(images(p), p.all(2, 3, 3, 3), border_mode="half"), T.nnet.conv2d(images(p), p.all(2, 3, 2, 2), filter_dilation=(2, 2))], empty=False),
    Case("conv2d of groups", S, lambda p: T.nnet.conv2d(p.rows(4, 4, 4), p.all(2, 2, 2, 2), num_groups=2), empty=False),
    Case("conv2d along height", U, lambda p: T.nnet.conv2d(p.rows(1, 3, 4, axis=2), p.all(2, 3, 1, 1)), empty=False),
    Case("conv2d of channels", "Partial(sum) Unknown", lambda p: [T.nnet.conv2d(p.rows(2, 4, 4, axis=1), p.rows(2, 2, 2, axis=1)), T.nnet.conv2d(p.rows(2, 4, 4, axis=1), p.all(2, ALL_ROWS, 2, 2))], empty=False),
    Case("conv2d of filters", "Shard(1)", lambda p: T.nnet.conv2d(p.all(2, 3, 4, 4), p.rows(3, 2, 2)), empty=False),
    Case("conv2d of a part", U, lambda p: T.nnet.conv2d(T.sqr(images(p).sum(0, keepdims=True)), p.all(2, 3, 2, 2)), R, empty=False),
    Case("gradient of conv2d", "Partial(avg) Shard(0)", mean_grad(lambda p: [[T.nnet.conv2d(x, w), w, x] for x in [images(p)] for w in [p.all(2, 3, 2, 2)]][0]), "Partial(sum) Shard(0)", empty=False),
    Case("gradient of strided conv2d", A, mean_grad(lambda p: [[T.nnet.conv2d(images(p), w, subsample=(2, 2), border_mode="full"), w] for w in [p.all(2, 3, 2, 2)]][0]), P, empty=False),
    Case("gradient of conv2d of groups", "Partial(avg) Shard(0)", mean_grad(lambda p: [[T.nnet.conv2d(x, w, num_groups=2), w, x] for x in [p.rows(4, 4, 4)] for w in [p.all(2, 2, 2, 2)]][0]), "Partial(sum) Shard(0)", empty=False),
    Case("gradient of two convolutions", "Partial(avg) Partial(avg)", mean_grad(lambda p: [[T.nnet.conv2d(T.nnet.relu(T.nnet.conv2d(images(p), w)), v), w, v] for w in [p.all(2, 3, 2, 2)] for v in [p.all(2, 2, 2, 2)]][0]), "Partial(sum) Partial(sum)", empty=False),
    Case("transposed conv2d", "Shard(0) Partial(avg)", lambda p: [[y, T.grad(T.sqr(y).mean(), w)] for x in [p.rows(2, 3, 3)] for w in [p.all(2, 3, 2, 2)] for y in [T.nnet.abstract_conv.conv2d_grad_wrt_inputs(x, w, (None, 3, 4, 4))]][0], "Shard(0) Partial(sum)", empty=False),
    Case("conv3d", "Shard(0) Partial(avg)", lambda p: [[y, T.grad(T.sqr(y).mean(), w)] for w in [p.all(2, 2, 2, 2, 2)] for y in [T.nnet.conv3d(p.rows(2, 3, 3, 3), w)]][0], "Shard(0) Partial(sum)", empty=False),
    Case("pooling", " ".join([S] * 4), lambda p: [T.signal.pool.pool_2d(images(p), (2, 2), ignore_border=True, mode=mode) for mode in ("max", "sum", "average_inc_pad", "average_exc_pad")]),
    Case("pooling with padding and stride", "Shard(0) Shard(1)", lambda p: [T.signal.pool.pool_2d(images(p), (2, 2), stride=(1, 1), pad=(1, 1), ignore_border=True), T.signal.pool.pool_2d(p.rows(3, 4, 4, axis=1), (2, 2), ignore_border=True)]),
    Case("pooling along rows", U, lambda p: T.signal.pool.pool_2d(p.rows(2, 4, axis=1), (2, 2), ignore_border=True)),
    Case("pooling in three dimensions", S, lambda p: T.signal.pool.pool_3d(p.rows(2, 4, 4, 4), (2, 2, 2), ignore_border=True)),
    Case("gradient of max pooling", "Shard(0) Partial(avg)", mean_grad(lambda p: [[T.signal.pool.pool_2d(x * b, (2, 2), ignore_border=True), x, b] for x in [images(p)] for b in [p.all(3, 4, 4)]][0]), "Shard(0) Partial(sum)"),
    Case("gradient of max pooling of parts", "Unknown", lambda p: [T.grad(T.signal.pool.pool_2d(s, (2, 2), ignore_border=True).sum(), s) for s in [images(p).sum(0, keepdims=True)]], R),
    Case("gradient of average pooling", "Shard(0) Partial(avg)", mean_grad(lambda p: [[T.signal.pool.pool_2d(x * b, (2, 2), ignore_border=True, mode="average_inc_pad"), x, b] for x in [images(p)] for b in [p.all(3, 4, 4)]][0]), "Shard(0) Partial(sum)"),
    Case("second gradient of max pooling", "Shard(0)", lambda p: [T.grad(T.sqr(T.grad(T.sqr(T.signal.pool.pool_2d(x, (2, 2), ignore_border=True)).sum(), x)).sum(), x) for x in [images(p)]]),
]  # fmt: skip


def images(p):
    return p.rows(3, 4, 4)


@parametrize(CASES)
def test_placements_are_those_of_the_serial_program(case, exact):
    case.verify(exact)
