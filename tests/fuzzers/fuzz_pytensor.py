"""Vocabulary of random programs for PyTensor (`fuzz_program` describes phrases)."""

import numpy as np
import pytensor
import pytensor.tensor as T
import pytensor.xtensor as px
from fuzz_phrases import COMMON
from fuzz_program import parsed
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.random.utils import RandomStream

try:
    from pytensor.conditional.op import ifelse
except ImportError:  # before PyTensor 3.3
    from pytensor.ifelse import ifelse

HEADER = """\
import synkhronos as synk
import numpy as np
import pytensor, pytensor.tensor as T, pytensor.xtensor as px
from fuzz_pytensor import *"""

function, shared, cast = pytensor.function, pytensor.shared, T.cast
grad, hessian, jacobian = pytensor.grad, pytensor.gradient.hessian, T.jacobian
nan, inf = np.nan, np.inf

#: Mode that computes a graph as it was written.
UNOPTIMIZED = pytensor.compile.mode.Mode(linker="py", optimizer=None)

#: Errors of expressions that PyTensor rejects, for the author of this file.
FAILED = {}


def variable(name, dtype, lengths):
    return f"T.tensor({name!r}, dtype={dtype!r}, shape={lengths})"


def scan(step, sequences, start, others=(), **options):
    """Return what `pytensor.scan` computes."""
    return pytensor.scan(step, sequences, start, list(others), return_updates=False, **options)


def along(x, *dims):
    """Return a labelled array."""
    return px.as_xtensor(x, dims=dims)


def hvp(loss, x):
    """Return a product of a Hessian and a vector."""
    return grad((grad(loss, x) * pytensor.gradient.disconnected_grad(T.cos(x))).sum(), x)


def op(f, *xs):
    """Return f(*xs) as one operation with an inner graph."""
    inner = [x.type() for x in xs]
    return OpFromGraph(inner, [f(*inner)])(*xs)


def each(f, *xs):
    """Return f of each row."""
    inner = [x.type.clone(shape=x.type.shape[1:])() for x in xs]
    return vectorize_graph(f(*inner), dict(zip(inner, xs)))


ELEMENTWISE = """tanh sigmoid softplus sin cos arctan erf sqr abs sign floor ceil exp expm1 log1p gammaln digamma neg
round isnan isinf reciprocal sqrt log trunc deg2rad arcsinh cosh exp2 erfcx log1mexp isfinite"""
SAFE = "tanh sigmoid softplus sin cos arctan erf abs sqr sign arcsinh floor"


def phrases(section, own):
    return parsed(COMMON.get(section, "") + own, SAFE=SAFE, ELEMENTWISE=ELEMENTWISE)


LOSSES = phrases(
    "LOSSES",
    """
n; n;  -> n: 0.5 * T.sqr(({0} - {1}) / T.exp({2})) + {2}
i:n; n -> n: T.exp(T.tanh({1})) - {0} * T.tanh({1}) + T.gammaln(T.abs({0}) + 1)
b:n; n -> n: T.softplus({1}) - {0} * {1}
b:n; n -> n: -T.switch({0}, T.log(T.sigmoid({1})), T.log(1 - T.sigmoid({1})))
n c; c; c -> n: T.logsumexp(T.special.log_softmax({1}, axis=-1) + {0} * {2}, axis=1)
n d; c d; c; c -> n:
    z = ({0}[:, None, :] - {1}[None]) ** 2
    m = {2} - T.logsumexp({2}) - 0.5 * {z}.sum(axis=-1) * T.exp(-T.tanh({3}))
    T.logsumexp({m}, axis=<<1|-1>>)
c d; n d; l:n -> n: -T.special.log_softmax(T.dot({1}, {0}.T), axis=-1)[T.arange({2}.shape[0]), {2}]
c; n c; l:n -> n: -(T.eq({2}[:, None], T.arange({0}.shape[0])) * T.special.log_softmax({1}, axis=1)).sum(1)
n;  -> n: T.switch(T.abs({0}) < {1}, 0.5 * {0}**2, {1} * (T.abs({0}) - 0.5 * {1}))
b:n; n ->: {1}[{0}].<<sum|mean|std>>()
b:n; n d -> d: {1}[{0}].<<sum|mean>>(axis=0)
b:n; n d ->: {1}[{0}.nonzero()].<<mean|sum>>()
n ->: T.logsumexp({0}) - T.log({0}.shape[0])
n d -> d: T.logsumexp({0}, axis=0)
n ->: T.log(T.mean(T.exp({0})))
""",
)

MODELS = phrases(
    "MODELS",
    """
n d; d; d -> n d: ({0} - {0}.mean(axis=0)) / T.sqrt({0}.var(axis=0) + 1e-3) * {1} + {2}
n d -> n d: ({0} - {0}.mean(axis=1, keepdims=True)) / T.sqrt({0}.var(axis=-1, keepdims=True) + 0.1)
n d -> n d: ({0} - {0}.mean(axis=0, keepdims=True)) / ({0}.std(axis=0, ddof=<<0|1>>, keepdims=True) + 0.1)
n d; d e; d e -> n e: T.special.softmax(T.dot({0}, {1}), axis=<<1|-1|0>>) * T.dot({0}, {2})
n t d; d e; d e -> n t e:
    q = T.dot({0}, {1})
    k = T.dot({0}, {2})
    s = T.special.softmax(T.matmul({q}, {k}.swapaxes(1, 2)) / T.sqrt({q}.shape[2]), axis=-1)
    T.matmul({s}, {k})
n t d; b:n t; d -> n d:
    s = T.where({1}, T.dot({0}, {2}), -np.inf)
    a = T.exp({s} - {s}.max(1, keepdims=True))
    (T.switch(T.isnan({a}), 0, {a})[:, :, None] * {0}).sum(axis=1)
c; l:n; n -> c: T.inc_subtensor({0}[{1}], {2}) / (1 + T.bincount({1}, minlength={0}.shape[0]))
c; l:n -> c: T.bincount({1}, minlength=9)[:{0}.shape[0]] * {0}
c d; l:n; n d -> c d: T.inc_subtensor({0}[{1}], T.tanh({2}))
c d; l:n; n d -> c d: T.set_subtensor({0}[{1}], {2})
n d; d e -> n e: op(lambda a, b: T.tanh(a @ b) + a.sum(<<1|0|None>>, keepdims=True)[:, :1], {0}, {1})
n d; e d -> n e: each(lambda a, b: T.<<tanh|exp|sqr>>(a).sum() * b.mean() + b[:, 0], {0}, {0}[:, None] * {1})
n d -> n: each(lambda a: T.linalg.norm(a), {0})
n d; d -> n d: each(lambda a, b: grad(T.tanh(a * b).prod(), a), {0}, T.broadcast_to({1}, {0}.shape))
""",
)

SEQUENCES = phrases(
    "SEQUENCES",
    """
n t d; d e; e e -> n e:
    scan(lambda x, h, u, v: T.tanh(x @ u + h @ v), [{0}.swapaxes(0, 1)], [T.zeros(({0}.shape[0], {1}.shape[1]))], \
    [{1}, {2}])[-1]
n t; b:n t -> n:
    scan(lambda x, m, h: T.where(m, <<0.5 * h + x|T.tanh(h * x)|T.maximum(h, x)>>, h), [{0}.T, {1}.T], \
    [T.zeros_like({0}[:, 0])], go_backwards=<<True|False>>)[-1]
n d; d -> d: scan(lambda b, x: b * x.sum(0), [{1}[None] * 2], [None], [{0}])[0]
n d; d ->: scan(lambda b, s, x: s + cast(b * x.sum(), 'float64'), [{1}], [T.zeros(())], [{0}])[-1]
n d; d -> d: scan(lambda b, x: T.sqr(x * b).sum(), [{1}], [None], [{0}])
n d; d -> n: scan(lambda x, b: (x * b).sum(), [{0}], [None], [{1}])
t n d -> d: scan(lambda x, s: s + x.sum(axis=0), [{0}], [T.zeros_like({0}[0, 0])])[-1]
n d -> n: scan(lambda x, h: h * 0.5 + x, [{0}.T], [T.ones_like({0}[:, 0])])[-1]
""",
)

LINEAR = phrases(
    "LINEAR",
    """
n d; n e -> d e: <<{0}.T @ {1}|T.tensordot({0}, {1}, axes=[[0], [0]])|T.einsum('ni,nj->ij', {0}, {1})>>
n d; d e -> n e: <<T.einsum('ni,ij->nj', {0}, {1})|T.tensordot({0}, {1}, axes=1)|{0} @ {1}>>
n d; n d -> n: <<T.einsum('ni,ni->n', {0}, {1})|T.vecdot({0}, {1})|({0} * {1}).sum(-1)>>
n d; n e -> n d e: <<T.einsum('ni,nj->nij', {0}, {1})|{0}[:, :, None] * {1}[:, None]>>
n d; n -> d: <<{0}.T @ {1}|{1} @ {0}|T.einsum('ni,n->i', {0}, {1})|T.vecmat({1}, {0})>>
n d; n d -> n n: {0} @ {1}.T
n d; n -> d: T.linalg.solve({0}.T @ {0} + T.eye({0}.shape[1]), {0}.T @ {1}, assume_a=<<'pos'|'gen'>>)
n d -> d d: T.linalg.<<cholesky|inv>>({0}.T @ {0} / {0}.shape[0] + T.eye({0}.shape[1]))
n d -> d d: T.cov({0}, rowvar=False)
n d ->: T.linalg.<<det|trace>>({0}.T @ {0} + T.eye({0}.shape[1]))
n d ->: T.linalg.slogdet({0}.T @ {0} + T.eye({0}.shape[1]))[1]
n d -> d: T.linalg.eigh({0}.T @ {0})[0]
n d -> d: T.linalg.svd({0}.T @ {0}, compute_uv=False)
n d d -> n d d: <<T.linalg.inv|T.linalg.pinv|T.linalg.expm>>(T.tanh({0}) / 3 + 2 * T.eye({0}.shape[1]))
n d d -> n d d: T.linalg.cholesky({0} @ {0}.mT + T.eye({0}.shape[-1]))
n d d; n d -> n d: T.linalg.solve(T.tanh({0}) + 5 * T.eye({0}.shape[1]), {1}, b_ndim=1)
n d d; d e -> n d e: T.linalg.solve(T.tanh({0}) + 5 * T.eye({0}.shape[1]), {1})
d d; n d -> n d: T.linalg.solve_triangular(T.tril({0}) + 9 * T.eye({0}.shape[0]), {1}.T, lower=True).T
n d d -> n: <<T.linalg.det({0})|T.diagonal({0}, axis1=1, axis2=2).sum(axis=1)>>
n d d; n d e -> n d e: <<{0} @ {1}|T.matmul({0}, {1})|T.einsum('nij,njk->nik', {0}, {1})>>
n d d -> n d d: T.<<tril|triu>>({0})
n d ->: T.linalg.norm({0}, ord=<<'fro'|None>>)
n d -> n: T.linalg.norm({0}, axis=1)
d d; n d -> n: (({1} @ {0}) * {1}).sum(1)
n; n -> n n: T.outer({0}, {1})
n d -> d d: T.linalg.matrix_power({0}.T @ {0} / 9, 2)
""",
)

SHAPES = phrases(
    "SHAPES",
    """
n d -> n d: <<{0}[:, ::-1]|T.roll({0}, 1, axis=1)|T.flip({0}, axis=1)|T.sort({0}, axis=-1)>>
n d -> n d: <<{0}[::-1]|T.roll({0}, 1, axis=0)|T.sort({0}, axis=0)|T.cumsum({0}, axis=0)>>
n d -> n d: T.<<cumsum|cumprod>>({0}, axis=1)
n d; n -> n d: {0} * {1}[:, None]
n d; n -> n d: ({0}.T + {1}).T
n d; d -> n d: T.broadcast_to({1}, {0}.shape) + {0}.shape[0]
n d e -> n e d: <<{0}.swapaxes(1, 2)|{0}.dimshuffle(0, 2, 1)|T.moveaxis({0}, 1, 2)>>
n d e -> n: {0}.<<flatten(2)|reshape(({0}.shape[0], -1))>>.<<sum|max|mean>>(axis=1)
n d e ->: {0}.reshape((-1, {0}.shape[2])).<<std|mean|max>>(axis=0).<<sum|mean>>()
n d e -> n d e: {0}.reshape((-1, {0}.shape[2])).reshape({0}.shape) * 2
n d e -> n d e: T.tanh({0}.reshape((-1, {0}.shape[2]))).reshape(({0}.shape[0], -1, {0}.shape[2]))
n d ->: {0}.ravel().<<sum|max|mean|std>>()
n d -> n d: T.take_along_axis({0}, T.argsort({0}, axis=1), axis=1)
n d -> n d: T.set_subtensor({0}[0], 0)
n d -> n d: T.inc_subtensor({0}[<<:|1:|:, :1>>], {c})
n d; b:n -> n d: T.set_subtensor({0}[{1}], {c})
n d -> n d: T.set_subtensor({0}[{0} > 0], 0)
n d -> n d: T.pad({0}, ((0, 0), (1, 1)), mode='<<constant|edge|reflect|wrap>>')[:, 1:-1]
n d -> n: T.<<median|ptp>>({0}, axis=1)
n d -> d: T.<<median|ptp>>({0}, axis=0)
n ->: T.<<median|ptp>>({0})
n d -> n d: T.concatenate([{0}[:, :1], T.diff({0}, axis=1)], axis=1)
n -> n: T.concatenate([{0}[:1], T.diff({0})])
n d ->: T.diff({0}, axis=0).<<sum|max>>()
n d -> n d: {0}.reshape(({N}, -1)) * {N}
n d -> n d: T.pack({0}[:, 0], {0}, keep_axes=0)[0][:, 1:]
n d e -> n: T.join_dims({0}, start_axis=1, n_axes=2).max(axis=1)
n d -> n d: {0}[:, None].squeeze(1) + T.expand_dims({0}, 2).squeeze(-1)
n; d -> n: T.searchsorted(T.sort({1}), {0}) * 1.0
n; d -> n: T.interp({0}, T.arange({1}.shape[0]), {1})
""",
)

ELEMENTS = phrases(
    "ELEMENTS",
    """
n d; d -> n d: T.<<add|sub|mul|maximum|minimum|logaddexp|arctan2|true_div|mod|floor_div>>({0}, {1})
n d -> n d: T.nan_to_num({0})
i:n; i:n -> n: ({0} <<+|*|-|//|%|&>> {1}) * 0.5
z:n d; d -> n d: T.<<real|imag|abs|angle>>({0} * {1} + T.conj({0}))
z:n d; z:n d -> d: T.<<real|imag|abs>>(({0} * {1}).sum(axis=0))
z:n ->: T.<<abs|real>>(T.<<sum|mean|prod>>({0})) ** 2
n; n ->: T.abs(T.sum(T.complex({0}, {1}))) + T.angle(T.mean(T.complex({1}, {0})))
""",
)

REDUCTIONS = phrases(
    "REDUCTIONS",
    """
n d -> d: {0}.sum(axis=0, dtype='<<float64|float32|int64>>') / 2
i:n ->: {0}.<<sum|prod|max|mean>>(<<|dtype='int32'|dtype='int8'|dtype='float32'>>) / {0}.shape[0]
i:n d; i:n e -> d e: ({0}.T @ {1}) / 2
b:n d; b:n e -> d e: ({0}.T @ {1}) * 1.0
i:n ->: T.max(T.bincount(T.abs({0}), minlength=300)) * 1.0
n ->: T.sum({0}[{0} > 0])
n; l:n ->: T.unique({0}).size * 1.0
n ->: T.sum(T.sort({0}) * T.arange({0}.shape[0]))
""",
)

#: Statistics and algorithms: k-means, IRLS, principal components, histograms, one-hot codes, ranks, moving averages.
ALGORITHMS = phrases(
    "ALGORITHMS",
    """
n d; c d -> c d:
    k = T.argmin((({0}[:, None] - {1}[None]) ** 2).sum(axis=2), axis=1)
    z = T.eq({k}[:, None], T.arange({1}.shape[0])) * 1.0
    T.dot({z}.T, {0}) / T.maximum({z}.sum(axis=0), 1)[:, None]
n d; d; b:n -> d:
    p = T.sigmoid(T.dot({0}, {1}))
    h = T.dot({0}.T * {p} * (1 - {p}), {0}) + T.eye({1}.shape[0])
    {1} + T.linalg.solve({h}, T.dot({0}.T, {2} - {p}))
n d; c d; c -> c:
    e = {2} - 0.5 * (({0}[:, None] - {1}[None]) ** 2).sum(axis=2)
    z = T.exp({e} - T.logsumexp({e}, axis=1, keepdims=True))
    {z}.<<sum|mean>>(axis=0) / {z}.shape[0]
n d -> n: abs(T.dot({0} - {0}.mean(axis=0), T.linalg.eigh(T.cov({0}, rowvar=False))[1][:, -1]))
c; l:n; n -> c: T.bincount({1}, weights={2}, minlength=9)[:{0}.shape[0]] + {0}
n d -> n d: {0}[:, ::-1].cumsum(axis=1)[:, ::-1]
n t; b:n t -> n: T.take_along_axis({0}, ({1}.sum(axis=1) - 1)[:, None] % {0}.shape[1], axis=1)[:, 0]
n t; b:n t ->: {0}[{1}].<<sum|mean|var>>()
n t; b:n t -> n t: T.set_subtensor({0}[{1}], <<0|{0}[{1}] * 2|{c}>>)
""",
)

#: Programs in which rows meet rows or their positions; the lengths may agree by chance. Most must be refused.
TRAPS = phrases(
    "TRAPS",
    """
n d -> n d: <<{0} @ {0}|{0} + {0}.T|T.tril({0})|T.fill_diagonal({0}, 9)|{0} * T.identity_like({0})>>
n d ->: <<T.diagonal({0}).sum()|T.linalg.det({0})|T.linalg.norm({0}, ord=2)|T.trace({0})>>
n d -> n d: RandomStream(4).permutation({0})
n d ->: RandomStream(4).<<permutation({0})|normal({0}.mean(axis=0), 1e-30)>>.sum()
n d -> n: RandomStream(4).categorical(T.special.softmax({0}, axis=1)) * 0.0
n d; d -> n d: RandomStream(4).multivariate_normal({0}, T.eye({1}.shape[0]) * 1e-40)
n; d ->: T.searchsorted(T.sort({0}), {1}).sum() * 1.0
n d -> n: T.cumsum({0}, axis=0)[-1].sum() + {0}[:, 0]
n d; n d ->: T.<<allclose({0}, {1})|all(T.isclose({0}, {0}))|all(T.eq({0}, {1}))>> * 1.0
n d ->: T.specify_shape({0}, (None, {0}.type.shape[1])).sum()
n d -> n d: T.specify_shape({0}, ({N}, None)) * 2
n d; n d -> n: T.einsum('...i,...i->...', {0}, {1})
n d -> n d: T.linalg.<<qr({0})[0]|svd({0}, full_matrices=False)[0]|pinv({0}).T>>
n d ->: T.linspace(0, 1, {0}.shape[0]).sum() * {0}.sum()
n d -> d d: T.eye({0}.shape[0], {0}.shape[1])[:1].T * {0}.sum()
n d -> d: {0}.max(axis=0) - {0}.min(axis=0) + {0}[<<0|-1>>] * 0
n d -> n d: T.join_dims({0}[:, None], 0, 2) + T.split_dims({0}, axis=0, shape=({0}.shape[0], 1))[:, 0]
n d d -> n d: T.join_dims({0}, 0, 2)[:{0}.shape[0]]
n d -> d: T.mean({0}[{0}[:, 0] > {0}[:, 0].mean()], axis=0)
n d -> n d: {0} - {0}[{0}[:, 0] > 0].sum(axis=0)
""",
)

IMAGES = phrases(
    "IMAGES",
    """
n d; e -> n: T.signal.convolve1d({0}, {1}, mode='<<full|same>>').<<sum|max>>(axis=-1)
n d; n e -> n: T.signal.convolve1d({0}, {1}, mode='full').<<sum|max>>(axis=-1)
n; e ->: T.signal.convolve1d({0}, {1}, mode='full').sum()
n h w; 2 2 -> n: T.signal.convolve2d({0}, {1}, mode='<<full|same>>', method='direct').<<sum|max>>(axis=(1, 2))
n h w; n 2 2 -> n: T.signal.convolve2d({0}, {1}, mode='full', method='direct').max(axis=(1, 2))
n h 4 -> n h: {0}.reshape(({0}.shape[0], {0}.shape[1], 2, 2)).max(axis=3)[:, :, <<0|1>>]
n 4 4 -> n 2 2: {0}.reshape(({0}.shape[0], 2, 2, 2, 2)).<<max|mean|sum>>(axis=(2, 4))
n h w -> n h w: ({0} - {0}.mean(axis=(0, 2), keepdims=True)) / {0}.std(axis=(0, 2), keepdims=True)
n h 4 -> n h: T.stack([{0}[:, :, ::2], {0}[:, :, 1::2]]).max(axis=0)[:, :, 0]
""",
)

LABELLED = phrases(
    "LABELLED",
    """
n d; d -> n: along({0}, 'row', 'col').dot(along({1}, 'col'), dim='col').values
n d -> d: along({0}, 'row', 'col').<<mean|sum|max|std>>('row').values
n d -> n: along({0}, 'row', 'col').<<mean|sum|max|std>>('col').values
n d; n -> n d: (along({0}, 'row', 'col') * along({1}, 'row')).transpose('row', 'col').values
n d; d -> n d: (along({1}, 'col') + along({0}, 'row', 'col')).transpose('row', 'col').values
n d -> n: along({0}, 'row', 'col').isel(col=<<0|-1>>).values
n d -> d: along({0}, 'row', 'col').isel(row=0).values
n d; n d ->: (along({0}, 'row', 'col') - along({1}, 'row', 'col').mean()).var().values
n d e -> n: along({0}, 'row', 'a', 'b').stack({'c': ['a', 'b']}).mean('c').values
n d e ->: along({0}, 'row', 'a', 'b').stack({'c': ['row', 'b']}).max('c').sum().values
n d; c d; l:n -> n: T.sum({0}, axis=1) + along({1}, 'c', 'd').mean('d').values[{2} * 0]
n d; n -> d: along({0}, 'i', 'j').dot(along({1}, 'i'), dim='i').values
""",
)

RANDOM = phrases(
    "RANDOM",
    """
d -> d: {0} + RandomStream(3).normal(size={0}.shape)
n d -> n d: {0} * (RandomStream(5).uniform(size={0}.shape) < 2)
n d -> n d: {0} * RandomStream(5).<<bernoulli(1.0|binomial(1, 1.0>>, size={0}.shape)
n d ->: T.ge(RandomStream(5).<<normal|uniform>>(size={0}.shape), -99).sum() * 1.0
n d; d -> n: T.dot({0}, {1} * RandomStream(7).uniform(0.5, 1, size={1}.shape))
n d -> n d: RandomStream(9).normal({0}, 1e-30)
""",
)

CONDITIONS = phrases(
    "CONDITIONS",
    """
""",
)

#: Gradients, which the author adds after other phrases.
ENDINGS = phrases(
    "ENDINGS",
    """
n; d -> d: T.diagonal(hessian({0}.sum(), {1}))
n; d -> d d: jacobian(grad({0}.<<sum|mean>>(), {1}), {1}, vectorize=True)
d; e -> d e: jacobian({0}, {1}, vectorize=<<True|False>>)
n; d -> n d: jacobian({0}, {1}, vectorize=True)
n; d -> n: pytensor.gradient.Rop({0}, {1}, T.cos({1}))
n; d -> d: pytensor.gradient.Lop({0}, {1}, pytensor.gradient.Rop({0}, {1}, T.cos({1})))
n; @ -> @: grad(T.clip(pytensor.gradient.grad_clip({0}, -1, 1), -9, 9).sum(), {1})
n; @ -> @: grad(({0} * pytensor.gradient.disconnected_grad({0})).mean(), {1})
n; @ -> @: 0.9 * {1} - 0.1 * T.sign(grad({0}.mean(), {1}))
""",
)

PHRASES = [
    *LOSSES * 2, *MODELS * 2, *ALGORITHMS * 2, *TRAPS, *SEQUENCES, *LINEAR, *SHAPES, *ELEMENTS * 2, *REDUCTIONS * 2,
    *IMAGES, *LABELLED, *RANDOM, *CONDITIONS, *ENDINGS,
]  # fmt: skip

NAMES = {
    "np": np, "pytensor": pytensor, "T": T, "px": px, "nan": nan, "inf": inf, "shared": shared, "cast": cast,
    "grad": grad, "hessian": hessian, "jacobian": jacobian, "hvp": hvp, "scan": scan, "op": op, "each": each,
    "along": along, "ifelse": ifelse, "RandomStream": RandomStream,
}  # fmt: skip
