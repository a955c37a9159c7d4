"""Vocabulary of random programs for PyTensor (`fuzz_program` describes phrases)."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytensor.xtensor as px
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
import pytensor, pytensor.tensor as pt, pytensor.xtensor as px
from fuzz_pytensor import *"""

function, shared, cast = pytensor.function, pytensor.shared, pt.cast
grad, hessian, jacobian = pytensor.grad, pytensor.gradient.hessian, pt.jacobian
nan, inf = np.nan, np.inf

#: Mode that computes a graph as it was written.
UNOPTIMIZED = pytensor.compile.mode.Mode(linker="py", optimizer=None)

#: Errors of expressions that PyTensor rejects, for the author of this file.
FAILED = {}


def variable(name, dtype, lengths):
    return f"pt.tensor({name!r}, dtype={dtype!r}, shape={lengths})"


def scan(step, sequences, start, others=(), **options):
    """Return what `pytensor.scan` computes."""
    return pytensor.scan(step, sequences, start, list(others), return_updates=False, **options)


def along(x, *dims):
    """Return a labelled array."""
    return px.as_xtensor(x, dims=dims)


def hvp(loss, x):
    """Return a product of a Hessian and a vector."""
    return grad((grad(loss, x) * pytensor.gradient.disconnected_grad(pt.cos(x))).sum(), x)


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


def phrases(table):
    return parsed(table, SAFE=SAFE, ELEMENTWISE=ELEMENTWISE)


LOSSES = phrases("""
n; n;  -> n: 0.5 * pt.sqr(({0} - {1}) / pt.exp({2})) + {2}
i:n; n -> n: pt.exp(pt.tanh({1})) - {0} * pt.tanh({1}) + pt.gammaln(pt.abs({0}) + 1)
b:n; n -> n: pt.softplus({1}) - {0} * {1}
b:n; n -> n: -pt.switch({0}, pt.log(pt.sigmoid({1})), pt.log(1 - pt.sigmoid({1})))
n c; c; c -> n: pt.logsumexp(pt.special.log_softmax({1}, axis=-1) + {0} * {2}, axis=1)
n d; c d; c; c -> n:
    z = ({0}[:, None, :] - {1}[None]) ** 2
    m = {2} - pt.logsumexp({2}) - 0.5 * {z}.sum(axis=-1) * pt.exp(-pt.tanh({3}))
    pt.logsumexp({m}, axis=<<1|-1>>)
c d; n d; l:n -> n: -pt.special.log_softmax(pt.dot({1}, {0}.T), axis=-1)[pt.arange({2}.shape[0]), {2}]
c; n c; l:n -> n: -(pt.eq({2}[:, None], pt.arange({0}.shape[0])) * pt.special.log_softmax({1}, axis=1)).sum(1)
n; n -> n: pt.log1p(({0} - {1}) ** 2 / 4) * 2.5
n;  -> n: pt.switch(pt.abs({0}) < {1}, 0.5 * {0}**2, {1} * (pt.abs({0}) - 0.5 * {1}))
n; n ->: ({0} * {1}).sum() / {1}.sum()
b:n; n ->: pt.switch({0}, {1}, 0).sum() / {0}.sum()
b:n; n ->: {1}[{0}].<<sum|mean|std>>()
b:n; n d -> d: {1}[{0}].<<sum|mean>>(axis=0)
b:n; n d ->: {1}[{0}.nonzero()].<<mean|sum>>()
n ->: pt.logsumexp({0}) - pt.log({0}.shape[0])
n d -> d: pt.logsumexp({0}, axis=0)
n ->: pt.log(pt.mean(pt.exp({0})))
""")

MODELS = phrases("""
n d; d e; e -> n e: pt.SAFE(pt.dot({0}, {1}) + {2})
n d; d -> n: pt.dot({0}, {1}) * <<1|{c}|{0}.mean()|{0}[:, 0]>>
n d; d; d -> n d: ({0} - {0}.mean(axis=0)) / pt.sqrt({0}.var(axis=0) + 1e-3) * {1} + {2}
n d -> n d: ({0} - {0}.mean(axis=1, keepdims=True)) / pt.sqrt({0}.var(axis=-1, keepdims=True) + 0.1)
n d -> n d: ({0} - {0}.mean(axis=0, keepdims=True)) / ({0}.std(axis=0, ddof=<<0|1>>, keepdims=True) + 0.1)
n d; d e; d e -> n e: pt.special.softmax(pt.dot({0}, {1}), axis=<<1|-1|0>>) * pt.dot({0}, {2})
n t d; d e; d e -> n t e:
    q = pt.dot({0}, {1})
    k = pt.dot({0}, {2})
    s = pt.special.softmax(pt.matmul({q}, {k}.swapaxes(1, 2)) / pt.sqrt({q}.shape[2]), axis=-1)
    pt.matmul({s}, {k})
n t d; b:n t; d -> n d:
    s = pt.where({1}, pt.dot({0}, {2}), -np.inf)
    a = pt.exp({s} - {s}.max(1, keepdims=True))
    (pt.switch(pt.isnan({a}), 0, {a})[:, :, None] * {0}).sum(axis=1)
n t d; b:n t -> n d: ({0} * {1}[:, :, None]).sum(axis=1) / pt.maximum({1}.sum(axis=1), 1)[:, None]
c d; l:n -> n d: {0}[{1}]
c d; l:n; n d -> n: ({0}[{1}] * {2}).sum(axis=-1)
c; l:n; n -> c: pt.inc_subtensor(pt.zeros_like({0})[{1}], {2})
c; l:n; n -> c: pt.inc_subtensor({0}[{1}], {2}) / (1 + pt.bincount({1}, minlength={0}.shape[0]))
c; l:n -> c: pt.bincount({1}, minlength=9)[:{0}.shape[0]] * {0}
c d; l:n; n d -> c d: pt.inc_subtensor({0}[{1}], pt.tanh({2}))
c d; l:n; n d -> c d: pt.set_subtensor({0}[{1}], {2})
n d; d e -> n e: op(lambda a, b: pt.tanh(a @ b) + a.sum(<<1|0|None>>, keepdims=True)[:, :1], {0}, {1})
n d; e d -> n e: each(lambda a, b: pt.<<tanh|exp|sqr>>(a).sum() * b.mean() + b[:, 0], {0}, {0}[:, None] * {1})
n d -> n: each(lambda a: pt.linalg.norm(a), {0})
n d; d -> n d: each(lambda a, b: grad(pt.tanh(a * b).prod(), a), {0}, pt.broadcast_to({1}, {0}.shape))
""")

SEQUENCES = phrases("""
n t d; d e; e e -> n e:
    scan(lambda x, h, u, v: pt.tanh(x @ u + h @ v), [{0}.swapaxes(0, 1)], [pt.zeros(({0}.shape[0], {1}.shape[1]))], \
    [{1}, {2}])[-1]
n t; b:n t -> n:
    scan(lambda x, m, h: pt.where(m, <<0.5 * h + x|pt.tanh(h * x)|pt.maximum(h, x)>>, h), [{0}.T, {1}.T], \
    [pt.zeros_like({0}[:, 0])], go_backwards=<<True|False>>)[-1]
t n d; d -> n d: scan(lambda x, h, b: h * 0.9 + x * b, [{0}], [pt.zeros_like({0}[0])], [{1}])[<<-1|0>>]
t n -> t n: scan(lambda x, h: pt.sin(x) + 0.5 * h, [{0}], [pt.zeros_like({0}[0])])
n d; d -> n d: scan(lambda h, b: pt.tanh(h * b), [], [{0}], [{1}], n_steps=3)[-1]
n d; d -> d: scan(lambda h, x: h + 0.1 * (x * h).<<mean|sum>>(axis=0), [], [{1}], [{0}], n_steps=2)[-1]
n d; d -> d: scan(lambda b, x: b * x.sum(0), [{1}[None] * 2], [None], [{0}])[0]
n d; d ->: scan(lambda b, s, x: s + cast(b * x.sum(), 'float64'), [{1}], [pt.zeros(())], [{0}])[-1]
n d; d -> d: scan(lambda b, x: pt.sqr(x * b).sum(), [{1}], [None], [{0}])
n d -> n d: scan(lambda x, h: h + x, [{0}], [pt.zeros_like({0}[0])])
n d -> d: scan(lambda x, h: h + x, [{0}], [pt.zeros_like({0}[0])])[-1]
n d; d -> n: scan(lambda x, b: (x * b).sum(), [{0}], [None], [{1}])
t n d -> d: scan(lambda x, s: s + x.sum(axis=0), [{0}], [pt.zeros_like({0}[0, 0])])[-1]
n d -> n: scan(lambda x, h: h * 0.5 + x, [{0}.T], [pt.ones_like({0}[:, 0])])[-1]
n t; 2 -> n:
    scan(lambda x, a, b, w: w[0] * a + w[1] * b + x, [{0}.T], [dict(initial=pt.zeros((2, {0}.shape[0])), taps=[-2, \
    -1])], [{1}])[-1]
""")

LINEAR = phrases("""
n d; n e -> d e: <<{0}.T @ {1}|pt.tensordot({0}, {1}, axes=[[0], [0]])|pt.einsum('ni,nj->ij', {0}, {1})>>
n d; d e -> n e: <<pt.einsum('ni,ij->nj', {0}, {1})|pt.tensordot({0}, {1}, axes=1)|{0} @ {1}>>
n d; n d -> n: <<pt.einsum('ni,ni->n', {0}, {1})|pt.vecdot({0}, {1})|({0} * {1}).sum(-1)>>
n d; n e -> n d e: <<pt.einsum('ni,nj->nij', {0}, {1})|{0}[:, :, None] * {1}[:, None]>>
n d; n -> d: <<{0}.T @ {1}|{1} @ {0}|pt.einsum('ni,n->i', {0}, {1})|pt.vecmat({1}, {0})>>
n d; n d -> n n: {0} @ {1}.T
n d; n -> d: pt.linalg.solve({0}.T @ {0} + pt.eye({0}.shape[1]), {0}.T @ {1}, assume_a=<<'pos'|'gen'>>)
n d -> d d: pt.linalg.<<cholesky|inv>>({0}.T @ {0} / {0}.shape[0] + pt.eye({0}.shape[1]))
n d -> d d: pt.cov({0}, rowvar=False)
n d ->: pt.linalg.<<det|trace>>({0}.T @ {0} + pt.eye({0}.shape[1]))
n d ->: pt.linalg.slogdet({0}.T @ {0} + pt.eye({0}.shape[1]))[1]
n d -> d: pt.linalg.eigh({0}.T @ {0})[0]
n d -> d: pt.linalg.svd({0}.T @ {0}, compute_uv=False)
n d d -> n d d: <<pt.linalg.inv|pt.linalg.pinv|pt.linalg.expm>>(pt.tanh({0}) / 3 + 2 * pt.eye({0}.shape[1]))
n d d -> n d d: pt.linalg.cholesky({0} @ {0}.mT + pt.eye({0}.shape[-1]))
n d d; n d -> n d: pt.linalg.solve(pt.tanh({0}) + 5 * pt.eye({0}.shape[1]), {1}, b_ndim=1)
n d d; d e -> n d e: pt.linalg.solve(pt.tanh({0}) + 5 * pt.eye({0}.shape[1]), {1})
d d; n d -> n d: pt.linalg.solve_triangular(pt.tril({0}) + 9 * pt.eye({0}.shape[0]), {1}.T, lower=True).T
n d d -> n: <<pt.linalg.det({0})|pt.diagonal({0}, axis1=1, axis2=2).sum(axis=1)>>
n d d; n d e -> n d e: <<{0} @ {1}|pt.matmul({0}, {1})|pt.einsum('nij,njk->nik', {0}, {1})>>
n d d -> n d: pt.diagonal({0}, axis1=1, axis2=2)
n d d -> n d d: pt.<<tril|triu>>({0})
n d ->: pt.linalg.norm({0}, ord=<<'fro'|None>>)
n d -> n: pt.linalg.norm({0}, axis=1)
n d; n d ->: pt.<<sum|mean>>(({0}[:, None] - {1}[None]) ** 2)
d d; n d -> n: (({1} @ {0}) * {1}).sum(1)
d; e -> d e: pt.outer({0}, {1})
n; d -> n d: pt.outer({0}, {1})
n; n -> n n: pt.outer({0}, {1})
n d -> d d: pt.linalg.matrix_power({0}.T @ {0} / 9, 2)
""")

SHAPES = phrases("""
n d -> n: {0}[:, <<0|-1>>]
n d -> n d: <<{0}[:, ::-1]|pt.roll({0}, 1, axis=1)|pt.flip({0}, axis=1)|pt.sort({0}, axis=-1)>>
n d -> n d: <<{0}[::-1]|pt.roll({0}, 1, axis=0)|pt.sort({0}, axis=0)|pt.cumsum({0}, axis=0)>>
n d -> n d: pt.<<cumsum|cumprod>>({0}, axis=1)
n d -> d: <<{0}[0]|{0}[-1]|{0}[{0}.shape[0] // 2]>>
n d ->: <<{0}[:2]|{0}[1:]|{0}[:-1]|{0}[:{0}.shape[1]]|{0}[::2]>>.sum()
n d; n d -> n d: <<pt.concatenate([{0}, {1}], axis=0)[:{0}.shape[0]]|pt.stack([{0}, {1}])[1]>>
n d; n d ->: pt.concatenate([{0}, {1}], axis=0).<<mean|max|std|sum>>()
n d; n e -> n: pt.concatenate([{0}, {1}], axis=1).<<max|mean|prod>>(axis=1)
n d; n -> n d: {0} * {1}[:, None]
n d; n -> n d: ({0}.T + {1}).T
n d -> n d: {0} / <<{0}.shape[0]|{0}.size|{0}.shape[1]|pt.sqrt({0}.shape[0])>>
n d; d -> n d: pt.broadcast_to({1}, {0}.shape) + {0}.shape[0]
n d; d -> n d: pt.tile({1}, ({0}.shape[0], 1)) * {0}
n d; d -> n d: pt.alloc({1}, {0}.shape[0], {1}.shape[0])
n d -> n d: pt.<<ones|zeros>>(({0}.shape[0], {0}.shape[1])) + {0}
n d -> n d: pt.<<ones_like|zeros_like>>({0}) - {0}
n d -> n: pt.arange({0}.shape[0]) * {0}.sum(axis=1)
n -> n: {0} * pt.arange({0}.shape[0]) / {0}.shape[0]
n ->: (pt.arange({0}.shape[0]) * {0}).sum()
n d -> n d: {0} * (pt.arange({0}.shape[1]) < {0}.shape[0])
n d; d d -> n d: {0} + pt.eye({0}.shape[0], {0}.shape[1])
n d e -> n e d: <<{0}.swapaxes(1, 2)|{0}.dimshuffle(0, 2, 1)|pt.moveaxis({0}, 1, 2)>>
n d e -> n: {0}.<<flatten(2)|reshape(({0}.shape[0], -1))>>.<<sum|max|mean>>(axis=1)
n d e ->: {0}.reshape((-1, {0}.shape[2])).<<std|mean|max>>(axis=0).<<sum|mean>>()
n d e -> n d e: {0}.reshape((-1, {0}.shape[2])).reshape({0}.shape) * 2
n d e -> n d e: pt.tanh({0}.reshape((-1, {0}.shape[2]))).reshape(({0}.shape[0], -1, {0}.shape[2]))
n d e -> d n e: {0}.swapaxes(0, 1)
d n e -> n d e: {0}.dimshuffle(1, 0, 2)
t n -> n t: {0}.T
n t -> t n: {0}.T
n d ->: {0}.ravel().<<sum|max|mean|std>>()
n d -> n d: pt.repeat({0}, 2, axis=<<0|1>>).reshape(({0}.shape[0], 2, {0}.shape[1])).mean(axis=1)
n d -> n d: pt.split({0}, [1, {0}.shape[1] - 1], n_splits=2, axis=1)[1].sum(axis=1, keepdims=True) + {0}
n d; l:n -> n: {0}[pt.arange({0}.shape[0]), {1} % {0}.shape[1]]
n d -> n d: pt.take_along_axis({0}, pt.argsort({0}, axis=1), axis=1)
n d -> n d: pt.set_subtensor({0}[:, 0], <<0|{c}|{0}.mean()|{0}.sum(axis=1)>>)
n d -> n d: pt.set_subtensor({0}[0], 0)
n d -> n d: pt.inc_subtensor({0}[<<:|1:|:, :1>>], {c})
n d; b:n -> n d: pt.set_subtensor({0}[{1}], {c})
n d -> n d: pt.set_subtensor({0}[{0} > 0], 0)
n d -> n d: pt.pad({0}, ((0, 0), (1, 1)), mode='<<constant|edge|reflect|wrap>>')[:, 1:-1]
n d -> n: pt.<<median|ptp>>({0}, axis=1)
n d -> d: pt.<<median|ptp>>({0}, axis=0)
n ->: pt.<<median|ptp>>({0})
n d -> n d: pt.concatenate([{0}[:, :1], pt.diff({0}, axis=1)], axis=1)
n -> n: pt.concatenate([{0}[:1], pt.diff({0})])
n d ->: pt.diff({0}, axis=0).<<sum|max>>()
n d -> n d: {0}.reshape(({N}, -1)) * {N}
n d ->: {0}.sum() / {N}
n -> n: {0} + pt.arange({N})
n -> n: pt.concatenate([{0}[:, None], pt.ones(({N}, 1))], axis=1).sum(axis=1)
n d -> n d: pt.pack({0}[:, 0], {0}, keep_axes=0)[0][:, 1:]
n d e -> n: pt.join_dims({0}, start_axis=1, n_axes=2).max(axis=1)
n d -> n d: {0}[:, None].squeeze(1) + pt.expand_dims({0}, 2).squeeze(-1)
n; d -> n: pt.searchsorted(pt.sort({1}), {0}) * 1.0
n; d -> n: pt.interp({0}, pt.arange({1}.shape[0]), {1})
""")

ELEMENTS = phrases("""
n d -> n d: pt.SAFE({0})
n -> n: pt.SAFE({0})
d -> d: pt.SAFE({0})
 ->: pt.ELEMENTWISE({0}) * 1.0
n d -> n d: pt.ELEMENTWISE({0}) * 1.0
n d; d -> n d: pt.<<add|sub|mul|maximum|minimum|logaddexp|arctan2|true_div|mod|floor_div>>({0}, {1})
n d; n d -> n d: {0} <<+|-|*|/>> {1}
n d;  -> n d: {0} <<+|-|*|/>> {1}
n; n -> n: {0} <<+|-|*|/>> {1}
d; d -> d: {0} <<+|-|*>> {1}
d;  -> d: {0} <<+|-|*|/>> {1}
;  ->: {0} <<+|-|*|/>> {1}
n d; n d -> n d: pt.switch({0} > {1}, {0}, <<{1}|{0}.max()|{1}.mean(axis=0)|{c}>>)
n d -> n d: pt.clip({0}, -1, <<1|{0}.mean()|{0}.max()>>)
n d -> n d: {0} <<**2|** 3|* {c}|/ {c}|+ {c}|// {c}|% 2>>
n d -> n d: pt.cast({0}, '<<float32|float16|int32|int8|bool>>') * {0}
n d; b:n -> n d: pt.where({1}[:, None], {0}, <<0|{0}.mean(axis=0)|nan>>)
n d -> n d: pt.nan_to_num({0})
b:n; b:n -> n: (({0} <<&|^>> {1}) <<&|^>> ~{0}) * 1.0
i:n; i:n -> n: ({0} <<+|*|-|//|%|&>> {1}) * 0.5
i:n -> n: ({0} <<//|%|&|^>> 3) / 2
i:n d; i:d -> n d: ({0} * {1}) / {c}
z:n d; d -> n d: pt.<<real|imag|abs|angle>>({0} * {1} + pt.conj({0}))
z:n d; z:n d -> d: pt.<<real|imag|abs>>(({0} * {1}).sum(axis=0))
z:n ->: pt.<<abs|real>>(pt.<<sum|mean|prod>>({0})) ** 2
n; n ->: pt.abs(pt.sum(pt.complex({0}, {1}))) + pt.angle(pt.mean(pt.complex({1}, {0})))
""")

REDUCTIONS = phrases("""
n d ->: {0}.<<sum|mean|std|var|max|min|prod>>()
n d -> d: {0}.<<sum|mean|std|var|max|min|prod>>(axis=0)
n d -> n: {0}.<<sum|mean|std|var|max|min|prod|argmax|argmin>>(axis=1) * 1.0
n ->: {0}.<<sum|mean|std|var|max|min|prod>>()
d ->: {0}.<<sum|mean|max|prod|argmax>>() * 1.0
n d e -> n d: {0}.<<sum|mean|max|min>>(axis=2)
n d e -> d e: {0}.<<sum|mean|max|min>>(axis=0)
n d e -> e: {0}.<<sum|mean|max|var>>(axis=(0, 1))
t n d -> d: {0}.<<sum|mean|max|var>>(axis=(0, 1))
t n d -> n d: {0}.<<sum|mean|max>>(axis=0)
n d ->: pt.<<any|all>>({0} > {c}) * 1.0
n d -> d: pt.<<any|all>>({0} > {c}, axis=0) * 1.0
n d ->: ({0} > {c}).<<sum|mean>>() * 1.0
n d -> d: {0}.sum(axis=0, dtype='<<float64|float32|int64>>') / 2
i:n ->: {0}.<<sum|prod|max|mean>>(<<|dtype='int32'|dtype='int8'|dtype='float32'>>) / {0}.shape[0]
i:n d -> d: {0}.<<sum|prod|max|min|mean>>(axis=0) / {c}
i:n d; i:n e -> d e: ({0}.T @ {1}) / 2
b:n d; b:n e -> d e: ({0}.T @ {1}) * 1.0
b:n d -> d: {0}.<<sum|any|all|mean|prod|max>>(axis=0) * 1.0
n ->: {0}.<<argmax|argmin>>() * 1.0
i:n ->: pt.max(pt.bincount(pt.abs({0}), minlength=300)) * 1.0
n d -> d: ({0} * {0}.shape[0]).mean(axis=0) - {0}.sum(axis=0) ** 2 / {0}.shape[0]
n d -> d: pt.<<sqrt|log|tanh|exp>>(pt.sqr({0}).<<sum|mean>>(axis=0))
n ->: {0}.sum() / pt.sqrt(pt.sqr({0}).sum())
n; n ->: pt.<<sum|mean>>(({0} - {0}.mean()) * ({1} - {1}.mean())) / ({0}.std() * {1}.std())
n ->: pt.sum({0}[{0} > 0])
n;  ->: pt.sum({0} > {1}) / {0}.size
n; l:n ->: pt.unique({0}).size * 1.0
n ->: pt.sum(pt.sort({0}) * pt.arange({0}.shape[0]))
""")

#: Statistics and algorithms: k-means, IRLS, principal components, histograms, one-hot codes, ranks, moving averages.
ALGORITHMS = phrases("""
n d; c d -> c d:
    k = pt.argmin((({0}[:, None] - {1}[None]) ** 2).sum(axis=2), axis=1)
    z = pt.eq({k}[:, None], pt.arange({1}.shape[0])) * 1.0
    pt.dot({z}.T, {0}) / pt.maximum({z}.sum(axis=0), 1)[:, None]
n d; d; b:n -> d:
    p = pt.sigmoid(pt.dot({0}, {1}))
    h = pt.dot({0}.T * {p} * (1 - {p}), {0}) + pt.eye({1}.shape[0])
    {1} + pt.linalg.solve({h}, pt.dot({0}.T, {2} - {p}))
n d; c d; c -> c:
    e = {2} - 0.5 * (({0}[:, None] - {1}[None]) ** 2).sum(axis=2)
    z = pt.exp({e} - pt.logsumexp({e}, axis=1, keepdims=True))
    {z}.<<sum|mean>>(axis=0) / {z}.shape[0]
n d -> n: abs(pt.dot({0} - {0}.mean(axis=0), pt.linalg.eigh(pt.cov({0}, rowvar=False))[1][:, -1]))
c; l:n; n -> c: pt.bincount({1}, weights={2}, minlength=9)[:{0}.shape[0]] + {0}
n; c -> n: {1}[pt.clip(pt.floor({0}), 0, {1}.shape[0] - 1).astype('int64')]
c; l:n -> n c: pt.set_subtensor(pt.zeros(({1}.shape[0], {0}.shape[0]))[pt.arange({1}.shape[0]), {1}], 1)
n d -> n d: pt.argsort(pt.argsort({0}, axis=1), axis=1) * 1.0
n d -> n d: {0}[:, ::-1].cumsum(axis=1)[:, ::-1]
n d -> n: pt.sort({0}, axis=1)[:, -1] - pt.sort({0}, axis=1)[:, 0]
n d -> d d: pt.dot({0}.T, {0}) / pt.outer({0}.std(axis=0) + 1, {0}.std(axis=0) + 1)
n d -> n d d: {0}[:, None, :] - {0}[:, :, None]
n d -> d: {0}[None].mean(axis=(0, 1))
n d; n d -> n d: pt.stack([{0}, {1}], axis=<<0).max(axis=0|1).mean(axis=1|-1).sum(axis=-1>>)
n d; n -> d: ({0} * {1}[:, None]).sum(axis=0) / pt.abs({1}).sum()
n d -> 2: {0}.shape * 1.0
n d ->: <<{0}.size|{0}.shape[0] - 1|{0}.shape[0] ** 2|{0}.shape.prod()|{0}.shape[0] % 3>> * 0.5
n d -> n d: {0} * <<pt.minimum({0}.shape[0], 3)|1.0 / {0}.shape[0] ** 2|({0}.shape[0] > 3)|{0}.shape[0] // 2>>
n d -> n d: pt.switch(pt.eq({0}.shape[0], {0}.shape[1]), {0}, {0} * 2)
n d -> d: {0}.sum(axis=0) / pt.maximum({0}.shape[0] - 1, 1)
n d;  -> n d: {0} - {1} ** {0}.shape[0]
n d -> n d: pt.switch({0} > {0}.mean(axis=0) + {0}.std(axis=0), {0}.mean(axis=0), {0})
n d; d ->: ({0} - {1}).<<max|min>>(axis=0).<<sum|max>>() * {1}.sum()
n d -> d: 255 - (-{0}).max(axis=0)
n d -> n d: {0} / pt.maximum(1, pt.sqrt(pt.sqr({0}).sum()) / {c})
n d ->: pt.sqr({0} / {0}.sum()).sum()
n d e -> d: pt.sqr({0}.mean(axis=0)).<<sum|max>>(axis=1)
n t; b:n t ->: ({0} * {1}).sum() / {1}.sum()
n t; b:n t -> n: pt.take_along_axis({0}, ({1}.sum(axis=1) - 1)[:, None] % {0}.shape[1], axis=1)[:, 0]
n t; b:n t ->: {0}[{1}].<<sum|mean|var>>()
n t; b:n t -> n t: pt.set_subtensor({0}[{1}], <<0|{0}[{1}] * 2|{c}>>)
""")

#: Programs in which rows meet rows or their positions; the lengths may agree by chance. Most must be refused.
TRAPS = phrases("""
n d -> n d: <<{0} @ {0}|{0} + {0}.T|pt.tril({0})|pt.fill_diagonal({0}, 9)|{0} * pt.identity_like({0})>>
n d ->: <<pt.diagonal({0}).sum()|pt.linalg.det({0})|pt.linalg.norm({0}, ord=2)|pt.trace({0})>>
n d; l:n -> n d: <<{0}[{1}]|{0}[pt.argsort({1})]|{0}[pt.argsort({0}[:, 0])]|{0}[pt.arange({0}.shape[0])[::-1]]>>
n d; l:n -> n n: {0}[:, {1}]
d c; l:n -> d n: <<{0}[:, {1} % {0}.shape[1]]|pt.take({0}, {1} % {0}.shape[1], axis=1)>>
c; l:n -> n: pt.take({0}, {1} * 3 - 5, mode='<<wrap|clip>>')
c d; l:n; n -> c d: pt.<<inc|set>>_subtensor({0}[{1} % {0}.shape[0], {1} % {0}.shape[1]], {2})
c d; l:n; n c -> c d: pt.inc_subtensor({0}[:, {1} % {0}.shape[1]], {2}.T)
c; l:n -> c: pt.<<set|inc>>_subtensor(pt.zeros_like({0})[{1}], 1.0)
n d -> n d: RandomStream(4).permutation({0})
n d ->: RandomStream(4).<<permutation({0})|normal({0}.mean(axis=0), 1e-30)>>.sum()
n d -> n: RandomStream(4).categorical(pt.special.softmax({0}, axis=1)) * 0.0
n d; d -> n d: RandomStream(4).multivariate_normal({0}, pt.eye({1}.shape[0]) * 1e-40)
n; d ->: pt.searchsorted(pt.sort({0}), {1}).sum() * 1.0
n d -> n: pt.cumsum({0}, axis=0)[-1].sum() + {0}[:, 0]
n ->: <<pt.flatnonzero({0} > 0)|pt.nonzero_values({0})>>.<<sum|max>>() * 1.0
n d; n d ->: pt.<<allclose({0}, {1})|all(pt.isclose({0}, {0}))|all(pt.eq({0}, {1}))>> * 1.0
n d ->: pt.specify_shape({0}, (None, {0}.type.shape[1])).sum()
n d -> n d: pt.specify_shape({0}, ({N}, None)) * 2
n d; n d -> n: pt.einsum('...i,...i->...', {0}, {1})
n d; c n -> c d: pt.dot({1}, {0})
n d; n n -> n d: pt.dot({1}, {0})
n d -> n d: pt.linalg.<<qr({0})[0]|svd({0}, full_matrices=False)[0]|pinv({0}).T>>
n d ->: pt.linspace(0, 1, {0}.shape[0]).sum() * {0}.sum()
n d -> d d: pt.eye({0}.shape[0], {0}.shape[1])[:1].T * {0}.sum()
n d -> d: {0}.max(axis=0) - {0}.min(axis=0) + {0}[<<0|-1>>] * 0
n; n -> n: pt.switch(pt.eq(pt.arange({0}.shape[0]), 0), {1}, {0})
n d -> n d: pt.join_dims({0}[:, None], 0, 2) + pt.split_dims({0}, axis=0, shape=({0}.shape[0], 1))[:, 0]
n d d -> n d: pt.join_dims({0}, 0, 2)[:{0}.shape[0]]
n d -> n d: pt.concatenate([{0}[:, -1:], {0}[:, :-1]], axis=1)
n d -> d: pt.mean({0}[{0}[:, 0] > {0}[:, 0].mean()], axis=0)
n d -> n d: {0} - {0}[{0}[:, 0] > 0].sum(axis=0)
n d ->: pt.max({0}, axis=0).argmax() * 1.0
n d -> n: {0}[pt.arange({0}.shape[0]), pt.argmax({0}, axis=1)]
n d -> n: {0}[pt.arange({0}.shape[0]), {0}.mean(axis=0).argmax()]
""")

IMAGES = phrases("""
n d; e -> n: pt.signal.convolve1d({0}, {1}, mode='<<full|same>>').<<sum|max>>(axis=-1)
n d; n e -> n: pt.signal.convolve1d({0}, {1}, mode='full').<<sum|max>>(axis=-1)
n; e ->: pt.signal.convolve1d({0}, {1}, mode='full').sum()
n h w; 2 2 -> n: pt.signal.convolve2d({0}, {1}, mode='<<full|same>>', method='direct').<<sum|max>>(axis=(1, 2))
n h w; n 2 2 -> n: pt.signal.convolve2d({0}, {1}, mode='full', method='direct').max(axis=(1, 2))
n h 4 -> n h: {0}.reshape(({0}.shape[0], {0}.shape[1], 2, 2)).max(axis=3)[:, :, <<0|1>>]
n 4 4 -> n 2 2: {0}.reshape(({0}.shape[0], 2, 2, 2, 2)).<<max|mean|sum>>(axis=(2, 4))
n h w -> n h w: ({0} - {0}.mean(axis=(0, 2), keepdims=True)) / {0}.std(axis=(0, 2), keepdims=True)
n h 4 -> n h: pt.stack([{0}[:, :, ::2], {0}[:, :, 1::2]]).max(axis=0)[:, :, 0]
""")

LABELLED = phrases("""
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
n d; c d; l:n -> n: pt.sum({0}, axis=1) + along({1}, 'c', 'd').mean('d').values[{2} * 0]
n d; n -> d: along({0}, 'i', 'j').dot(along({1}, 'i'), dim='i').values
""")

RANDOM = phrases("""
d -> d: {0} + RandomStream(3).normal(size={0}.shape)
n d -> n d: {0} * (RandomStream(5).uniform(size={0}.shape) < 2)
n d -> n d: {0} * RandomStream(5).<<bernoulli(1.0|binomial(1, 1.0>>, size={0}.shape)
n d ->: pt.ge(RandomStream(5).<<normal|uniform>>(size={0}.shape), -99).sum() * 1.0
n d; d -> n: pt.dot({0}, {1} * RandomStream(7).uniform(0.5, 1, size={1}.shape))
n d -> n d: RandomStream(9).normal({0}, 1e-30)
""")

CONDITIONS = phrases("""
n d;  -> n d: ifelse({1} > 0, {0} * 2, {0} - 1)
n d; d -> d: ifelse({0}.sum() > 0, {1}, {0}.mean(axis=0))
n;  ->: pt.switch({0}.mean() > {1}, {0}.max(), {1})
n d; d -> n d: pt.switch({0}.mean(axis=0) > {1}, {0}, 0)
""")

#: Gradients, which the author adds after other phrases.
ENDINGS = phrases("""
; @ -> @: grad({0}, {1})
n; @ -> @: grad({0}.<<sum|mean>>(), {1})
n d; @ -> @: grad(pt.<<sum|mean|max>>(<<{0}|pt.tanh({0})|{0} ** 2>>), {1})
d; @ -> @: grad(pt.<<sum|mean>>(<<{0}|pt.tanh({0})>>), {1})
d e; @ -> @: grad(pt.<<sum|mean>>(<<{0}|pt.tanh({0})>>), {1})
n; @ -> @: hvp({0}.<<sum|mean>>(), {1})
n d; @ -> @: hvp(pt.tanh({0}).<<sum|mean>>(), {1})
; @ -> @: hvp({0}, {1})
n; d -> d: pt.diagonal(hessian({0}.sum(), {1}))
n; d -> d d: jacobian(grad({0}.<<sum|mean>>(), {1}), {1}, vectorize=True)
d; e -> d e: jacobian({0}, {1}, vectorize=<<True|False>>)
n; d -> n d: jacobian({0}, {1}, vectorize=True)
n; d -> n: pytensor.gradient.Rop({0}, {1}, pt.cos({1}))
n; d -> d: pytensor.gradient.Lop({0}, {1}, pytensor.gradient.Rop({0}, {1}, pt.cos({1})))
n; @ -> @: grad(pt.clip(pytensor.gradient.grad_clip({0}, -1, 1), -9, 9).sum(), {1})
n; @ -> @: grad(({0} * pytensor.gradient.disconnected_grad({0})).mean(), {1})
; @ -> @: {1} - 0.1 * grad({0}, {1}) / pt.sqrt(pt.sqr(grad({0}, {1})).sum() + 1)
n; @ -> @: 0.9 * {1} - 0.1 * pt.sign(grad({0}.mean(), {1}))
""")

PHRASES = [
    *LOSSES * 2, *MODELS * 2, *ALGORITHMS * 2, *TRAPS, *SEQUENCES, *LINEAR, *SHAPES, *ELEMENTS * 2, *REDUCTIONS * 2,
    *IMAGES, *LABELLED, *RANDOM, *CONDITIONS, *ENDINGS,
]  # fmt: skip

NAMES = {
    "np": np, "pytensor": pytensor, "pt": pt, "px": px, "nan": nan, "inf": inf, "shared": shared, "cast": cast,
    "grad": grad, "hessian": hessian, "jacobian": jacobian, "hvp": hvp, "scan": scan, "op": op, "each": each,
    "along": along, "ifelse": ifelse, "RandomStream": RandomStream,
}  # fmt: skip
