"""Operations that only PyTensor has: batched operations, random variables, and ops with inner graphs.

Modules: `classes`, `lengths`.
"""

import pytest

pytest.importorskip("pytensor", reason="PyTensor is not installed")

import numpy as np
from library import IS_THEANO, L, T
from simulated import ALL_ROWS, SPLITS, Case, parametrize

if IS_THEANO:
    pytest.skip("the words are Theano's", allow_module_level=True)

import pytensor.tensor as pt
from pytensor.tensor.signal import convolve1d, convolve2d

S, R, P, A, U = "Shard(0)", "Replicate", "Partial(sum)", "Partial(avg)", "Unknown"


def positive_definite(rng, shape):
    """Return a batch of invertible matrices."""
    return rng.normal(size=shape) + 5 * np.eye(shape[-1])


def generator(p):
    """Return a random state, replicated on all ranks."""
    return p.given(L.shared(np.random.default_rng(3)), np.random.default_rng(3))


def drawn(make):
    """Return a builder of a case's output; `make` maps a random state and a program to a draw."""
    return lambda p: make(generator(p), p)


BATCHES = [
    Case("products of matrices", "Shard(0) Shard(1) Shard(0)", lambda p: [p.rows(2, 3) @ p.rows(3, 2), p.rows(2, 2, 3, axis=1) @ p.all(3, 4), p.rows(4) @ p.all(4, 2)], empty=False),
    Case("products over rows", "Partial(sum) Unknown", lambda p: [p.rows(2, axis=1).T.T @ p.rows(3), p.rows(3) @ p.rows(3).T]),
    Case("a product with a batch of one", S, lambda p: p.rows(2, 3) @ p.all(3, 2)[None], empty=False),
    Case("products of parts", "Partial(sum) Unknown", lambda p: [p.rows(3, 2).sum(0) @ p.all(2, 2), p.rows(2, 2).sum(0) @ p.rows(2, 2).sum(0)], "Partial(sum) Replicate"),
    Case("gradients of products", "Partial(avg) Shard(0)", lambda p: [T.grad(T.sqr(x @ w).mean(), [w, x]) for x in [p.rows(2, 3)] for w in [p.all(3, 2)]][0], "Partial(sum) Shard(0)", empty=False),
    Case("inverses of a batch", "Shard(0) Replicate", lambda p: [pt.linalg.inv(one) for one in (p.rows(3, 3, make=positive_definite), p.all(3, 3, make=positive_definite))]),
    Case("an inverse of a part", U, lambda p: [pt.linalg.inv(x.T @ x) for x in [p.rows(2)]], R, empty=False),
    Case("solutions of a batch", "Shard(0) Shard(0)", lambda p: [pt.linalg.solve(p.rows(3, 3, make=positive_definite), p.rows(3, 2)), pt.linalg.solve(p.all(3, 3, make=positive_definite), p.rows(3, 2))], empty=False),
    Case("singular values of a batch", S, lambda p: pt.linalg.svd(p.rows(3, 2), compute_uv=False), empty=False),
    Case("diagonals", "Shard(0) Shard(0) Unknown", lambda p: [pt.diagonal(p.rows(3, 3), axis1=1, axis2=2), pt.diagonal(p.rows(3, 3), axis1=2, axis2=1).sum(1), pt.diagonal(p.rows(3), axis1=0, axis2=1)]),
    Case("an einsum", "Shard(0) Partial(sum)", lambda p: [pt.einsum("nij,njk->nik", p.rows(2, 3), p.rows(3, 2)), pt.einsum("ni,nj->ij", p.rows(2), p.rows(3))], empty=False),
    Case("positions in a sorted vector", "Shard(0) Unknown", lambda p: [pt.searchsorted(p.all(4, make=lambda rng, shape: np.sort(rng.normal(size=shape))), p.rows(2)), pt.searchsorted(p.rows(make=lambda rng, shape: np.sort(rng.normal(size=shape))), p.all(2))]),
]  # fmt: skip

GRAPHS = [
    Case("softmax over all elements", U, lambda p: pt.special.softmax(p.rows(3)), S, empty=False),
    Case("softmax of an axis", "Shard(0) Shard(1)", lambda p: [pt.special.softmax(p.rows(3, 2), axis=2), pt.special.log_softmax(p.rows(3, axis=1), axis=0)]),
    Case("log of a sum over rows", U, lambda p: pt.logsumexp(p.rows(3), axis=0), R, empty=False),
    Case("adds once at rows' positions", U, lambda p: pt.inc_subtensor(pt.zeros((5,))[p.rows(dtype="int64", high=5)], 1.0, ignore_duplicates=True)),
    Case("a slice and positions", "Shard(0) Unknown", lambda p: [p.rows(4, 3)[:, 1:, [0, 2]], p.rows(3)[1:, [0, 2]]], empty=False),
    Case("up to the number of rows, and positions", "Shard(0)", lambda p: [x[:, : y.shape[0]][:, :1] for x in [p.rows(5)] for y in [p.all(5)]]),
    Case("joined and split", "Shard(0) Shard(0) Shard(0)", lambda p: [pt.concatenate([x, x], axis=1) for x in [p.rows(2)]] + list(pt.split(p.rows(3), [1, 2], axis=1))),
    Case("given a static shape", "Shard(0) Shard(0)", lambda p: [pt.specify_shape(p.rows(3), (None, 3)), pt.specify_shape(p.rows(3), (None, 3)).reshape((-1,))]),
    Case("padded beside the rows", "Shard(0) Shard(0) Shard(0) Shard(1)", lambda p: [pt.pad(p.rows(3), ((0, 0), (1, 2)), constant_values=2.0), pt.pad(p.rows(3), ((0, 0), (1, 1)), mode="reflect"), pt.pad(p.rows(3), 0), pt.pad(p.rows(3, 2, axis=1), ((0, 2), (0, 0), (0, 1)), mode="mean")], empty=False),
    Case("padded, and combined with rows", "Shard(0) Shard(0)", lambda p: [pt.pad(x, ((0, 0), (1, 0))) + y for x in [p.rows(3)] for y in (p.rows(4), p.all(4) * pt.ones((x.shape[0], 1)))], empty=False),
    Case("gradients of padded values", "Partial(avg) Shard(0) Partial(avg)", lambda p: [each for x in [p.rows(3)] for w in [p.all(3, 2)] for each in (*T.grad(T.sqr(pt.pad(x @ w, ((0, 0), (1, 2)))).mean(), [w, x]), T.grad(T.sqr(pt.pad(x @ w, ((0, 0), (1, 1)), mode="reflect")).mean(), w))], "Partial(sum) Shard(0) Partial(sum)", empty=False),
    Case("gradients of what is padded with", "Partial(sum) Partial(sum)", lambda p: [T.grad((pt.pad(p.rows(3), ((0, 0), (1, 2)), constant_values=c) ** 3).sum(), c) for c in (p.all(), p.all(2, 2))], empty=False),
    Case("padded rows", "Unknown Unknown", lambda p: [pt.pad(p.rows(3), ((1, 0), (0, 0)), mode=mode) for mode in ("constant", "edge")], empty=False),
    Case("padded parts", "Unknown Replicate", lambda p: [pt.pad(p.rows(3).sum(0), 1, constant_values=1.0), pt.pad(p.all(3), 1)], "Replicate Replicate", empty=False),
    Case("broadcast to rows", S, lambda p: [pt.broadcast_to(p.all(3), (x.shape[0], 3)) for x in [p.rows(2)]]),
]  # fmt: skip

AXES = [
    Case("axes of rows made one", "Shard(0) Shard(0) Shard(1)", lambda p: [pt.join_dims(p.rows(2, 3), 1), pt.join_dims(p.rows(2, 3, 2), 1, 2), pt.join_dims(p.rows(2, 3, 2, axis=1), 2)], empty=False),
    Case("rows made one with what is after or before them", "Shard(0) Shard(0)", lambda p: [pt.join_dims(p.rows(2, 3), 0, 2), pt.join_dims(p.rows(2, 3, axis=1), 0, 2)], empty=False),
    Case("a new axis", "Shard(1) Shard(0)", lambda p: [pt.join_dims(p.rows(2), 0, 0), pt.join_dims(p.rows(2), 1, 0)], empty=False),
    Case("an axis of rows made several", "Shard(0) Shard(2)", lambda p: [pt.split_dims(p.rows(6), (2, 3), axis=1), pt.split_dims(p.rows(6, axis=1), (2, 3), axis=0)]),
    Case("rows made several", "Shard(0)", lambda p: [pt.split_dims(x, (x.shape[0], 1), axis=0) for x in [p.rows(2)]]),
    Case("made one and several again", "Shard(0) Shard(1)", lambda p: [pt.split_dims(pt.join_dims(x, 0, 2), (x.shape[0], x.shape[1]), axis=0) for x in [p.rows(2, 3), p.rows(2, 3, axis=1)]], empty=False),
    Case("rows in given lengths", "Unknown Unknown", lambda p: [pt.split_dims(p.rows(2), (p.all(ALL_ROWS).shape[0], 1), axis=0), pt.split_dims(p.all(ALL_ROWS), (p.rows(2).shape[0], 1), axis=0)]),
    Case("parts", "Partial(sum) Replicate", lambda p: [pt.join_dims(p.rows(2, 3).sum(0)), pt.split_dims(p.all(6, 2), (2, 3), axis=0)]),
    Case("gradients", "Partial(avg) Partial(sum)", lambda p: [T.grad(T.sqr(pt.join_dims(x, 1) @ w).mean(), w) for x in [p.rows(2, 3)] for w in [p.all(6, 2)]] + [T.grad(T.sqr(pt.split_dims(x @ w, (2, 3), axis=1)).sum(), w) for x in [p.rows(2)] for w in [p.all(2, 6)]], "Partial(sum) Partial(sum)", empty=False),
    Case("packed", "Shard(0) Shard(0)", lambda p: [one for x, y in [(p.rows(2, 3), p.rows(4))] for packed, shapes in [pt.pack(x, y, keep_axes=0)] for one in (packed, pt.unpack(packed, packed_shapes=shapes, keep_axes=0)[0])], empty=False),
]  # fmt: skip

CONVOLUTIONS = [
    Case("of rows with a kernel", "Shard(0) Shard(0)", lambda p: [convolve1d(p.rows(7), p.all(3)[None]), convolve2d(p.rows(5, 4), p.all(3, 2)[None], mode="valid")], empty=False),
    Case("of rows with kernels of their own", "Shard(0)", lambda p: convolve1d(p.rows(7), p.rows(3), mode="valid"), empty=False),
    Case("along the rows", "Unknown Unknown", lambda p: [convolve1d(p.rows(), p.all(3)), convolve2d(p.rows(4), p.all(3, 2))], empty=False),
    Case("of a part", "Partial(sum) Unknown", lambda p: [convolve1d(p.rows(7).sum(0), p.all(3)), convolve2d(*(p.rows(4, 3).sum(0) for _ in range(2)))], "Partial(sum) Replicate"),
    Case("gradients", "Partial(avg) Shard(0)", lambda p: [T.grad(T.sqr(convolve1d(x, k[None], mode="valid")).mean(), [k, x]) for x in [p.rows(7)] for k in [p.all(3)]][0], "Partial(sum) Shard(0)", empty=False),
]  # fmt: skip

DRAWS = [
    Case("of parameters that are rows", "Shard(0)", drawn(lambda rng, p: pt.random.normal(p.rows(3), 1.0, rng=rng))),
    Case("of rows and what all have", "Shard(0)", drawn(lambda rng, p: pt.random.normal(p.all(3), p.rows(3, positive=True), rng=rng))),
    Case("of a shape with rows", "Shard(0)", drawn(lambda rng, p: pt.random.normal(p.all(3), 1.0, size=p.rows(3).shape, rng=rng))),
    Case("of parameters that all have", U, drawn(lambda rng, p: pt.random.normal(p.all(3), 1.0, rng=rng))),
    Case("of classes", "Shard(0)", drawn(lambda rng, p: pt.random.categorical(T.nnet.softmax(p.rows(3)), rng=rng))),
    Case("of several numbers together", "Shard(0) Shard(0)", lambda p: [pt.random.multivariate_normal(p.rows(2), pt.eye(2), rng=generator(p)), pt.random.dirichlet(p.rows(3, positive=True), rng=generator(p))]),
    Case("of a part", U, drawn(lambda rng, p: [pt.random.normal(pt.zeros(x.shape) + x.sum(0), 1.0, rng=rng) for x in [p.rows(3)]]), S),
    Case("of all rows of parameters", U, drawn(lambda rng, p: pt.random.normal(p.all(ALL_ROWS), 1.0, size=p.rows(3).shape[:1], rng=rng))),
]  # fmt: skip


@parametrize(BATCHES)
def test_batches(case, exact):
    case.verify(exact)


@parametrize(GRAPHS)
def test_graphs(case, exact):
    case.verify(exact)


@parametrize(AXES)
def test_axes(case, exact):
    case.verify(exact)


@parametrize(CONVOLUTIONS)
def test_convolutions(case, exact):
    case.verify(exact)


@parametrize(DRAWS)
def test_draws(case, exact):
    case.verify(exact, SPLITS[2::3])
