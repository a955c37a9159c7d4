"""Vocabulary of random programs for Theano (`fuzz_program` describes phrases)."""

import numpy as np
import theano
import theano.sparse
import theano.tensor as T
from fuzz_phrases import COMMON
from fuzz_program import parsed
from theano.ifelse import ifelse
from theano.sandbox.rng_mrg import MRG_RandomStreams
from theano.tensor import nnet
from theano.tensor.nnet import bn
from theano.tensor.nnet.neighbours import images2neibs
from theano.tensor.shared_randomstreams import RandomStreams
from theano.tensor.signal.pool import pool_2d

HEADER = """\
import synkhronos as synk
import numpy as np
import theano, theano.tensor as T
from fuzz_theano import *"""

function, shared, cast, grad = theano.function, theano.shared, T.cast, theano.grad
nan, inf = np.nan, np.inf

#: Mode that computes a graph as it was written.
UNOPTIMIZED = theano.Mode(linker="py", optimizer=None)

#: Errors of expressions that Theano rejects, for the author of this file.
FAILED = {}


def variable(name, dtype, lengths):
    return f"T.TensorType({dtype!r}, {tuple(d == 1 for d in lengths)})({name!r})"


def scan(step, sequences, start, others=(), **options):
    """Return what `theano.scan` computes."""
    return theano.scan(step, sequences, start, list(others), **options)[0]


def hvp(loss, x):
    """Return a product of a Hessian and a vector."""
    return grad((grad(loss, x) * theano.gradient.disconnected_grad(T.cos(x))).sum(), x)


def gauss_newton(y, x):
    """Return the product of a Gauss-Newton matrix and a vector."""
    return T.Lop(y, x, T.Rop(y, x, T.cos(x)))


def op(f, *xs):
    """Return f(*xs) as one operation with an inner graph."""
    inner = [x.type() for x in xs]
    return theano.OpFromGraph(inner, [f(*inner)])(*xs)


ELEMENTWISE = """tanh nnet.sigmoid nnet.softplus sin cos arctan erf sqr abs_ sgn floor ceil exp expm1 log1p gammaln psi
neg isnan isinf inv sqrt log trunc nnet.relu nnet.elu nnet.selu nnet.hard_sigmoid cosh exp2 round nnet.ultra_fast_sigmoid
arcsinh erfc nnet.softsign deg2rad"""
SAFE = "tanh nnet.sigmoid nnet.softplus sin cos arctan erf abs_ sqr sgn nnet.relu nnet.elu floor nnet.hard_sigmoid"


def phrases(section, own):
    return parsed(COMMON.get(section, "") + own, SAFE=SAFE, ELEMENTWISE=ELEMENTWISE)


LOSSES = phrases(
    "LOSSES",
    """
n; n;  -> n: T.sqr(({0} - {1}) / T.exp({2})) / 2 + {2}
i:n; n -> n: T.exp(T.tanh({1})) - {0} * T.tanh({1}) + T.gammaln(abs({0}) + 1)
b:n; n -> n: nnet.binary_crossentropy(nnet.sigmoid({1}), {0})
b:n d; n d -> n: nnet.sigmoid_binary_crossentropy({1}, {0} * 1.0).<<sum|mean|max>>(axis=1)
c d; n d; l:n -> n: nnet.categorical_crossentropy(nnet.softmax(T.dot({1}, {0}.T)), {2})
c d; n d; l:n -> n:
    nnet.categorical_crossentropy(nnet.softmax(T.dot({1}, {0}.T)), T.extra_ops.to_one_hot({2}, {0}.shape[0]))
c d; n d; l:n -> n: -T.log(nnet.softmax(T.dot({1}, {0}.T)))[T.arange({2}.shape[0]), {2}]
c d; c; n d; l:n -> n: nnet.crossentropy_softmax_1hot(T.dot({2}, {0}.T) + {1}, {3})[0]
c d; n d; l:n -> n: T.neq(T.argmax(T.dot({1}, {0}.T), axis=1), {2}) * 1.0
n;  -> n: T.switch(abs({0}) < {1}, 0.5 * {0}**2, {1} * (abs({0}) - 0.5 * {1}))
n c; c; c -> n:
    z = nnet.logsoftmax({1}.dimshuffle('x', 0)) + {0} * {2}
    m = T.max({z}, axis=1, keepdims=True)
    (T.log(T.sum(T.exp({z} - {m}), axis=1, keepdims=True)) + {m})[:, 0]
n d; c d; c -> n:
    z = ({0}[:, None, :] - {1}.dimshuffle('x', 0, 1)) ** 2
    T.log(T.sum(T.exp({2} - {z}.sum(axis=2)), axis=1))
b:n; n ->: {1}[{0}.nonzero()].<<sum|mean|std>>()
b:n; n d -> d: {1}[{0}.nonzero()].<<sum|mean>>(axis=0)
n d -> d: T.log(T.sum(T.exp({0}), axis=0))
n ->: T.log(T.<<sum|mean>>(T.exp({0})))
""",
)

MODELS = phrases(
    "MODELS",
    """
n d; d; d -> n d:
    bn.batch_normalization({0}, {1}, {2}, {0}.mean(axis=0, keepdims=True), T.sqrt({0}.var(axis=0, \
    keepdims=True) + 0.01), mode=<<'low_mem'|'high_mem'>>)
n d; d; d -> n d:
    bn.batch_normalization_train({0}, {1}.dimshuffle('x', 0), {2}.dimshuffle('x', 0), axes='<<per-activation| \
    spatial>>')[0]
n d; d -> d:
    bn.batch_normalization_train({0}, T.ones_like({1}).dimshuffle('x', 0), {1}.dimshuffle('x', 0))[<<1| \
    2>>].flatten()
n d; d; d -> n d:
    bn.batch_normalization_test({0}, {1}.dimshuffle('x', 0), {2}.dimshuffle('x', 0), {0}.mean(axis=0, \
    keepdims=True), {0}.var(axis=0, keepdims=True) + 0.1)
n d -> n d: ({0} - {0}.mean(axis=1, keepdims=True)) / T.sqrt({0}.var(axis=1, keepdims=True) + 0.1)
n d; d e; d e -> n e: nnet.softmax(T.dot({0}, {1})) * T.dot({0}, {2})
n d; d e; d e -> n e: nnet.softmax(T.dot({0}, {1}).T).T * T.dot({0}, {2})
n t d; d e; d e -> n t e:
    q = T.dot({0}, {1})
    k = T.dot({0}, {2})
    s = T.exp(T.batched_dot({q}, {k}.dimshuffle(0, 2, 1)) / 9)
    T.batched_dot({s} / {s}.sum(axis=2, keepdims=True), {k})
c; l:n; n -> c: T.inc_subtensor({0}[{1}], {2}) / (1 + T.extra_ops.bincount({1}, minlength=9)[:{0}.shape[0]])
c d; l:n; n d -> c d: T.<<inc|set>>_subtensor({0}[{1}], T.tanh({2}))
n d; d e -> n e: op(lambda a, b: T.tanh(T.dot(a, b)) + a.sum(axis=<<1|0>>, keepdims=True)[:, :1], {0}, {1})
n d; d e -> n: nnet.<<softmax|logsoftmax>>(T.dot({0}, {1})).max(axis=1)
""",
)

SEQUENCES = phrases(
    "SEQUENCES",
    """
n t d; d e; e e -> n e:
    scan(lambda x, h, u, v: T.tanh(T.dot(x, u) + T.dot(h, v)), [{0}.dimshuffle(1, 0, 2)], [T.zeros(({0}.shape[0], \
    {1}.shape[1]))], [{1}, {2}])[-1]
n t; b:n t -> n:
    scan(lambda x, m, h: T.switch(m, <<0.5 * h + x|T.tanh(h * x)|T.maximum(h, x)>>, h), [{0}.T, {1}.T], \
    [T.zeros_like({0}[:, 0])], go_backwards=<<True|False>>)[-1]
n d; d ->: scan(lambda b, s, x: s + b * x.sum(), [{1}], [T.constant(0.0, dtype='float64')], [{0}])[-1]
n d; d -> d: scan(lambda b, x: <<b * x.sum()|T.sqr(x * b).sum()|(x * b).max()>>, [{1}], [None], [{0}])
n d; d -> n: theano.map(lambda x, b: (x * b).sum(), [{0}], [{1}])[0]
n d -> n: theano.reduce(lambda x, s: s * 0.5 + x, {0}.T, T.zeros_like({0}[:, 0]))[0]
n d -> n: theano.foldl(lambda x, h: h * 0.5 + x, {0}.T, T.ones_like({0}[:, 0]))[0]
t n d -> d: theano.reduce(lambda x, s: s + x.sum(axis=0), {0}, T.zeros_like({0}[0, 0]))[0]
n d; d -> n d: scan(lambda h, b: (h * b, theano.scan_module.until(b.sum() > 9)), [], [{0}], [{1}], n_steps=2)[-1]
""",
)

LINEAR = phrases(
    "LINEAR",
    """
n d; n e -> d e: <<T.dot({0}.T, {1})|T.tensordot({0}, {1}, axes=[[0], [0]])>>
n d; d e -> n e: <<T.dot({0}, {1})|T.tensordot({0}, {1}, axes=1)>>
n d; n d -> n: <<T.batched_dot({0}, {1})|({0} * {1}).sum(axis=-1)>>
n d; n e -> n d e: {0}[:, :, None] * {1}[:, None]
n d; n -> d: <<T.dot({0}.T, {1})|T.dot({1}, {0})>>
n d; n d -> n n: T.dot({0}, {1}.T)
n d; n -> d: T.slinalg.solve(T.dot({0}.T, {0}) + T.eye({0}.shape[1]), T.dot({0}.T, {1}))
n d -> d d:
    T.<<slinalg.cholesky|nlinalg.matrix_inverse|nlinalg.pinv|slinalg.expm>>(T.dot({0}.T, \
    {0}) / {0}.shape[0] + T.eye({0}.shape[1]))
n d ->: T.nlinalg.<<det|trace>>(T.dot({0}.T, {0}) + T.eye({0}.shape[1]))
n d -> d: T.nlinalg.eigh(T.dot({0}.T, {0}))[0]
n d -> d: T.nlinalg.svd(T.dot({0}.T, {0}))[1]
n d d; n d -> n d: T.batched_dot({0}, {1})
n d d; n d e -> n d e: T.batched_dot({0}, {1})
d d; n d -> n d: T.slinalg.solve_lower_triangular(T.tril({0}) + 9 * T.eye({0}.shape[0]), {1}.T).T
d d; n d -> n d: T.slinalg.solve({0} + 9 * T.eye({0}.shape[0]), {1}.T).T
d d; n d -> n: (T.dot({1}, {0}) * {1}).sum(axis=1)
n d ->: {0}.norm(<<2|1>>)
n d -> n: {0}.norm(2, axis=1)
n d; n d -> d d: T.dot(({0} - {0}.mean(axis=0)).T, {1} - {1}.mean(axis=0)) / ({0}.shape[0] - 1)
n d; d e -> n e: theano.sparse.dot(theano.sparse.csr_from_dense({0}), {1})
d e; n d -> n e: theano.sparse.dot({1}, theano.sparse.csc_from_dense({0}))
""",
)

SHAPES = phrases(
    "SHAPES",
    """
n d -> n d: <<{0}[:, ::-1]|T.roll({0}, 1, axis=1)|T.sort({0}, axis=1)|T.extra_ops.cumsum({0}, axis=1)>>
n d -> n d: <<{0}[::-1]|T.roll({0}, 1, axis=0)|T.sort({0}, axis=0)|T.extra_ops.cumsum({0}, axis=0)>>
n d; n -> n d: <<{0} * {1}[:, None]|({0}.T + {1}).T|{0} - {1}.dimshuffle(0, 'x')>>
n d -> n d: T.fill({0}, <<{c}|{0}.mean()|{0}.shape[0]>>) * {0}
n d e -> n e d: <<{0}.swapaxes(1, 2)|{0}.dimshuffle(0, 2, 1)|{0}.transpose(0, 2, 1)>>
n d e -> n: {0}.<<flatten(2)|reshape(({0}.shape[0], -1), ndim=2)>>.<<sum|max|mean>>(axis=1)
n d e ->: {0}.reshape((-1, {0}.shape[2]), ndim=2).<<std|mean|max>>(axis=0).<<sum|mean>>()
n d e -> n d e: T.tanh({0}.reshape((-1, {0}.shape[2]))).reshape(<<{0}.shape|({0}.shape[0], -1, {0}.shape[2])>>)
d n e; d n -> n:
    T.nnet.softmax({0}.reshape(({0}.shape[0] * {0}.shape[1], {0}.shape[2]))).reshape({0}.shape)[0, :, 0] + {1}[0]
n d ->: {0}.<<flatten|ravel>>().<<sum|max|mean|std>>()
n d; l:n -> n: {0}.flatten()[T.arange({0}.shape[0]) * {0}.shape[1] + {1} % {0}.shape[1]]
n d; l:n -> n: T.choose({1} % 2, [{0}[:, 0], {0}[:, -1]])
n d -> n d: T.argsort({0}, axis=1) * 1.0
n d -> n d: T.<<set_subtensor({0}[0], 0)|inc_subtensor({0}[1:], 1)|inc_subtensor({0}[:, :1], {c})>>
n d; b:n -> n d: T.set_subtensor({0}[{1}.nonzero()], {c})
n d -> n d: T.set_subtensor({0}[(<<{0} > 0|{0} > {0}.mean()>>).nonzero()], 0)
n -> n: T.concatenate([{0}[:1], T.extra_ops.diff({0})])
n d -> n: T.extra_ops.diff({0}, axis=1).sum(axis=1)
n d -> n: T.ptp({0}, axis=1)
n d -> d: T.ptp({0}, axis=0)
n d -> n d: {0}.reshape(({N}, -1), ndim=2) * {N}
n d; l:n -> n: {0}[T.arange({N}), {1} % {0}.shape[1]]
n; d -> n: T.extra_ops.searchsorted(T.sort({1}), {0}) * 1.0
n d -> n d: T.addbroadcast({0}[:, :1], 1) + {0}
n d -> n: T.sort(T.topk({0}, 1, axis=1), axis=1)[:, 0]
""",
)

ELEMENTS = phrases(
    "ELEMENTS",
    """
n d; d -> n d: T.<<add|sub|mul|maximum|minimum|arctan2|true_div|mod|int_div>>({0}, {1})
i:n; i:n -> n: ({0} <<+|*|-|//|%>> {1}) * 0.5
z:n d; d -> n d: T.<<real|imag|abs_|angle>>({0} * {1} + T.conj({0}))
z:n d; z:n d -> d: T.<<real|imag|abs_>>(({0} * {1}).sum(axis=0))
z:n ->: T.<<abs_|real>>(T.<<sum|mean>>({0})) ** 2
n; n ->: abs(T.sum(T.complex({0}, {1}))) + T.angle(T.mean(T.complex({1}, {0})))
""",
)

REDUCTIONS = phrases(
    "REDUCTIONS",
    """
n d -> d: {0}.sum(axis=0, <<dtype|acc_dtype>>='float64') / 2
n d -> d: {0}.sum(axis=0, dtype='<<float32|int64>>') / 2
i:n ->: {0}.<<sum|prod|mean>>(<<|dtype='int32'|dtype='int8'|dtype='float32'>>) / {0}.shape[0]
i:n d; i:n e -> d e: T.dot({0}.T, {1}) / 2
b:n d; b:n e -> d e: T.dot({0}.T, {1}) * 1.0
n d -> n: T.max_and_argmax({0}, axis=1)[<<0|1>>] * 1.0
n d -> d: T.max_and_argmax({0}, axis=0)[<<0|1>>] * 1.0
""",
)

#: Statistics and algorithms: k-means, IRLS, principal components, histograms, one-hot codes, ranks, moving averages.
ALGORITHMS = phrases(
    "ALGORITHMS",
    """
n d; c d -> c d:
    k = T.argmin((({0}[:, None] - {1}.dimshuffle('x', 0, 1)) ** 2).sum(axis=2), axis=1)
    z = T.eq({k}[:, None], T.arange({1}.shape[0]).dimshuffle('x', 0)) * 1.0
    T.dot({z}.T, {0}) / T.maximum({z}.sum(axis=0), 1)[:, None]
n d; d; b:n -> d:
    p = nnet.sigmoid(T.dot({0}, {1}))
    h = T.dot({0}.T * {p} * (1 - {p}), {0}) + T.eye({1}.shape[0])
    {1} + T.slinalg.solve({h}, T.dot({0}.T, {2} - {p}))
n d; c d; c -> c:
    e = {2} - 0.5 * (({0}[:, None] - {1}.dimshuffle('x', 0, 1)) ** 2).sum(axis=2)
    z = nnet.softmax({e})
    {z}.<<sum|mean>>(axis=0) / {z}.shape[0]
n d -> n: abs(T.dot({0} - {0}.mean(axis=0), T.nlinalg.eigh(T.dot({0}.T, {0}))[1][:, -1]))
c; l:n; n -> c: T.extra_ops.bincount({1}, weights={2}, minlength=9)[:{0}.shape[0]] + {0}
n d -> n d: {0}[:, ::-1].cumsum(axis=1)[:, ::-1] * 2
n t; b:n t ->: {0}[{1}.nonzero()].<<sum|mean|var>>()
n t; b:n t -> n t: T.set_subtensor({0}[{1}.nonzero()], <<0|{0}[{1}.nonzero()] * 2|{c}>>)
""",
)

#: Programs in which rows meet rows or their positions; the lengths may agree by chance. Most must be refused.
TRAPS = phrases(
    "TRAPS",
    """
n d -> n d: <<T.dot({0}, {0})|{0} + {0}.T|T.tril({0})|{0} * T.identity_like({0})|T.extra_ops.fill_diagonal({0}, 9)>>
n d ->: <<T.diagonal({0}).sum()|T.nlinalg.det({0})|T.nlinalg.trace({0})|{0}.norm(2)>>
n; d ->: T.extra_ops.searchsorted(T.sort({0}), {1}).sum() * 1.0
n d; n d ->: <<T.allclose({0}, {1})|T.all(T.isclose({0}, {0}))|T.all(T.eq({0}, {1}))>> * 1.0
n d -> n d: T.specify_shape({0}, ({N}, {0}.shape[1])) * 2
n d -> n d: <<T.nlinalg.qr({0})[0]|T.nlinalg.svd({0}, full_matrices=False)[0]|T.nlinalg.pinv({0}).T>>
n; n -> n: <<T.set_subtensor({0}[0], {1}.sum())|T.set_subtensor({0}[T.argmax({1})], 0)>>
n d -> d: T.mean({0}[({0}[:, 0] > {0}[:, 0].mean()).nonzero()], axis=0)
n d -> n d: {0} - {0}[({0}[:, 0] > 0).nonzero()].sum(axis=0)
n d -> n: T.batched_tensordot({0}[:, :, None], {0}[:, None], axes=[[2], [1]])[:, 0, 0]
n d; n d -> n d: T.where(T.and_({0} > 0, {1} > 0), T.stacklists([{0}, {1}])[0], T.shape_padright({1})[:, :, 0])
n d -> n: abs(T.fft.rfft({0})).sum(axis=(1, 2))
n d; d ->: T.slinalg.kron({0}, {1}.dimshuffle('x', 0)).sum()
n d -> n: theano.foldr(lambda x, h: T.tanh(h + x), {0}.T, T.zeros_like({0}[:, 0]))[0]
n d; d d -> n d: theano.map(lambda a, x: T.dot(x, a), [{1}.dimshuffle('x', 0, 1)], [{0}])[0][0]
d e; n d -> n: scan(lambda w, x: T.dot(x, w), [{0}.T], [None], [{1}]).<<sum|max>>(axis=0)
n d -> n d: MRG_RandomStreams(2).uniform(size=(3,)).sum() * 0 + {0}
""",
)

IMAGES = phrases(
    "IMAGES",
    """
n 2 3 4; 3 2 2 2 -> n 3:
    nnet.conv2d({0}, {1}, border_mode=<<'valid'|'half'|'full'|(1, 0)>>, subsample=<<(1, 1)|(2, 1)>>, \
    filter_flip=<<True|False>>).<<sum|max>>(axis=(2, 3))
n 2 3 4; 3 2 2 2 -> n 3: nnet.conv2d({0}, {1}, input_shape=(<<None|{N}>>, 2, 3, 4)).max(axis=(2, 3))
n 2 3 4; 4 1 2 2 -> n 4: nnet.conv2d({0}, {1}, num_groups=2).mean(axis=(2, 3))
n 2 3 4; 2 2 2 2 -> n 2: nnet.conv2d({0}, {1}, filter_dilation=(1, 2)).mean(axis=(2, 3))
n 2 2 3; 2 3 2 2 -> n 3: nnet.abstract_conv.conv2d_transpose({0}, {1}, ({0}.shape[0], 3, 3, 4)).max(axis=(2, 3))
n 2 3 4; 2 2 3 4 -> n 2: nnet.conv2d({0}, {1})[:, :, 0, 0]
n 2 3 4 -> n 2:
    pool_2d({0}, (2, 2), ignore_border=<<True|False>>, mode='<<max|sum|average_exc_pad>>').max(axis=(2, 3))
n 2 4 4 -> n 2: pool_2d({0}, (2, 2), ignore_border=True, stride=(1, 2), pad=(1, 0)).sum(axis=(2, 3))
n 3 4 -> n 3: pool_2d({0}, (1, 2), ignore_border=True)[:, :, 0]
n 4 -> n: pool_2d({0}, (1, 2), ignore_border=True)[:, 0]
n 4 ->: pool_2d({0}, (2, 2), ignore_border=<<False|True>>).sum()
n 1 4 4 ->: images2neibs({0}, (2, 2)).max()
n 2 3 4 -> n 2 3 4: ({0} - {0}.mean(axis=(0, 2, 3), keepdims=True)) / {0}.std(axis=(0, 2, 3), keepdims=True)
n 2 3 4; 2; 2 -> n 2 3 4:
    bn.batch_normalization_train({0}, {1}.dimshuffle('x', 0, 'x', 'x'), {2}.dimshuffle('x', 0, 'x', 'x'), \
    axes='spatial')[0]
n 2 3 4; 2 -> 2:
    bn.batch_normalization_train({0}, {1}.dimshuffle('x', 0, 'x', 'x'), {1}.dimshuffle('x', 0, 'x', 'x'), \
    axes='spatial', running_mean=T.zeros((1, 2, 1, 1)), running_var=T.ones((1, 2, 1, 1)))[<<3|4>>].flatten()
n 2 3 4 -> n 2: {0}.reshape(({0}.shape[0], 2, 3, 2, 2)).max(axis=(2, 3, 4))
n 2 3 4 -> n 24: {0}.flatten(2)
n 2 3 4 -> n 2 3 4: {0}.dimshuffle(1, 0, 2, 3).dimshuffle(1, 0, 2, 3) * 2
n 2 3 4; 24 e -> n e: T.dot({0}.flatten(2), {1})
2 n 3 4 -> n 3: {0}.<<sum|max|mean>>(axis=(0, 3))
""",
)

RANDOM = phrases(
    "RANDOM",
    """
d -> d: {0} + 1e-30 * <<MRG_RandomStreams|RandomStreams>>(3).normal(size={0}.shape)
n d -> n d: {0} * (<<MRG_RandomStreams|RandomStreams>>(5).uniform(size={0}.shape) < 2)
n d -> n d: {0} * <<MRG_RandomStreams|RandomStreams>>(5).binomial(size={0}.shape, p=1.0)
n d ->: T.ge(<<MRG_RandomStreams|RandomStreams>>(5).<<normal|uniform>>(size={0}.shape), -99).sum() * 1.0
n d; d -> n: T.dot({0}, {1} * <<MRG_RandomStreams|RandomStreams>>(7).uniform(size={1}.shape))
n d -> n: MRG_RandomStreams(5).multinomial(pvals=nnet.softmax({0})).sum(axis=1) * 1.0
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
n; d -> d: T.diagonal(theano.gradient.hessian({0}.sum(), {1}))
n; d -> d: T.stack([grad(grad({0}.<<sum|mean>>(), {1})[0], {1})[0]])
d; e -> d e: theano.gradient.jacobian({0}, {1})
n; d -> n d: theano.gradient.jacobian({0}, {1})
n; @ -> n: T.Rop({0}, {1}, T.cos({1}))
n d; @ -> n d: T.Rop({0}, {1}, T.cos({1}))
n; @ -> @: gauss_newton({0}, {1})
n d; @ -> @: gauss_newton({0}, {1})
n d; @ -> @: T.Lop({0}, {1}, T.ones_like({0}))
n; @ -> @: grad(theano.gradient.grad_clip({0}, -1, 1).sum(), {1})
n; @ -> @: grad(({0} * theano.gradient.disconnected_grad({0})).mean(), {1})
n; @ -> @: 0.9 * {1} - 0.1 * T.sgn(grad({0}.mean(), {1}))
""",
)

PHRASES = [
    *LOSSES * 2, *MODELS * 2, *ALGORITHMS * 2, *TRAPS, *SEQUENCES, *LINEAR, *SHAPES, *ELEMENTS * 2, *REDUCTIONS * 2,
    *IMAGES, *RANDOM, *CONDITIONS, *ENDINGS,
]  # fmt: skip

NAMES = {
    "np": np, "theano": theano, "T": T, "nnet": nnet, "bn": bn, "nan": nan, "inf": inf, "shared": shared, "cast": cast,
    "grad": grad, "hvp": hvp, "gauss_newton": gauss_newton, "scan": scan, "op": op, "ifelse": ifelse,
    "pool_2d": pool_2d, "images2neibs": images2neibs, "RandomStreams": RandomStreams,
    "MRG_RandomStreams": MRG_RandomStreams,
}  # fmt: skip
