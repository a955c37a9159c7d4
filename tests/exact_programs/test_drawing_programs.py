"""Programs that draw random numbers, for dropout, noise and Gibbs sampling, with no other option than ``exact=True``.

The ranks draw other numbers than the serial program, from the same distribution. So both are trained `RUNS` times from
the same values, each time with new numbers, and their results are compared as samples of two populations: the means by
Welch's t, the variances by their ratio. The bounds were chosen in advance. With other seeds, the probability that any
compared number exceeds its bound by chance is less than 1 %.
"""

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T
from worlds import needs_lasagne

import synkhronos as synk

pytestmark = [
    getattr(pytest.mark, NAME),
    *([needs_lasagne] if IS_THEANO else []),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:.*corr_gemm.c:pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.thorough,
]

if IS_THEANO:
    pytest.importorskip("lasagne")

from corpus import ROWS, Program, batches, classes, weights, zeros  # noqa: E402
from trainers import lasagne, layers, nonlinearities  # noqa: E402

#: Number of runs of each program, serial and parallel, with different random numbers.
RUNS = 24
#: Steps of a training run: two epochs.
STEPS = 10
#: Maximum difference of two means, relative to its standard deviation; maximum ratio of two variances.
MOST_T, MOST_RATIO = 4.5, 6.0

random = np.random.RandomState(60)
X, Y, BINARY = random.randn(ROWS, 6), classes(random, 3), random.binomial(1, 0.4, (ROWS, 8)).astype("float64")


def dropout():
    """Lasagne's dropout before both layers; adam."""
    x, y = T.dmatrix("x"), T.ivector("y")
    net = layers.dropout(layers.InputLayer((None, 6), x), 0.2)
    net = layers.dropout(layers.DenseLayer(net, 8, nonlinearity=nonlinearities.tanh), 0.5)
    net = layers.DenseLayer(net, 3, nonlinearity=nonlinearities.softmax)
    loss = lasagne.objectives.categorical_crossentropy(layers.get_output(net), y).mean()
    params = layers.get_all_params(net, trainable=True)
    return Program([x, y], [loss], params, lasagne.updates.adam(loss, params, 0.02), [X, Y])


def variational_autoencoder():
    """A normal sample for each row; for some batches, an odd number of values is drawn; rmsprop."""
    x = T.dmatrix("x")
    start, streams = np.random.RandomState(61), L.streams(61)[0]
    w, v, u, d = (weights(start, *shape, name=name) for name, shape in zip("wvud", [(8, 5), (5, 3), (5, 3), (3, 8)]))
    hidden = T.tanh(T.dot(x, w))
    mean, log_deviation = T.dot(hidden, v), T.dot(hidden, u)
    code = mean + T.exp(log_deviation) * streams.normal(mean.shape)
    of_image = T.nnet.binary_crossentropy(T.nnet.sigmoid(T.dot(code, d)), x).sum(axis=1)
    of_code = 0.5 * (T.sqr(mean) + T.exp(2 * log_deviation) - 1 - 2 * log_deviation).sum(axis=1)
    loss, params = (of_image + of_code).mean(), [w, v, u, d]
    return Program([x], [loss], params, lasagne.updates.rmsprop(loss, params, 0.02), [BINARY])


def boltzmann_machine():
    """Contrastive divergence with a chain that is drawn inside a scan; momentum."""
    x = T.dmatrix("x")
    start, streams = np.random.RandomState(62), L.streams(62)[0]
    w, b, c = weights(start, 8, 5, name="w"), zeros(5, name="b"), zeros(8, name="c")

    def drawn(p):
        return streams.binomial(size=p.shape, n=1, p=p, dtype="float64")

    def step(v):
        return drawn(T.nnet.sigmoid(T.dot(drawn(T.nnet.sigmoid(T.dot(v, w) + b)), w.T) + c))

    def energy(v):
        return -T.dot(v, c) - T.nnet.softplus(T.dot(v, w) + b).sum(axis=1)

    chain, drawing = L.scan(step, outputs_info=x, n_steps=2)
    end = chain[-1]
    cost, params = energy(x).mean() - energy(end).mean(), [w, b, c]
    image = T.nnet.sigmoid(T.dot(T.nnet.sigmoid(T.dot(x, w) + b), w.T) + c)
    steps = lasagne.updates.momentum(T.grad(cost, params, consider_constant=[end]), params, 0.2, 0.5)
    steps.update(drawing)
    return Program([x], [T.sqr(x - image).mean()], params, steps, [BINARY])


def samples(function, program, share):
    """Train `RUNS` times from the same values; return each run's mean loss and measures of its updates."""
    state = [
        variable
        for variable in {**dict.fromkeys(program.params), **dict(program.updates)}
        if getattr(variable, "dtype", None) == "float64"
    ]
    starts = [variable.get_value() for variable in state]
    found = []
    for _ in range(RUNS):
        for variable, start in zip(state, starts):
            variable.set_value(start)
        share(state)
        losses = [np.asarray(function(*batch)[0]) for batch in batches(program.data, STEPS)]
        ways = [variable.get_value() - start for variable, start in zip(program.params, starts)]
        found.append([np.mean(losses), *[measure(way) for way in ways for measure in (np.sum, np.std)]])
    return np.array(found)


def compared(build, exact):
    """Return the largest Welch's t, and the largest ratio of variances, of all measures."""
    lasagne.random.set_rng(np.random.RandomState(0))
    program = build()
    serial = L.function(program.inputs, program.outputs, updates=program.updates, mode=L.quick)
    plain = samples(serial, program, lambda state: None)
    lasagne.random.set_rng(np.random.RandomState(0))
    ours = build()
    f = synk.function(ours.inputs, ours.outputs, updates=ours.updates, exact=exact, mode=L.quick)
    parallel = samples(f, ours, synk.broadcast)
    variances = [np.var(one, axis=0, ddof=1) for one in (plain, parallel)]
    t = np.abs(plain.mean(axis=0) - parallel.mean(axis=0)) / np.sqrt(sum(variances) / RUNS)
    assert np.all(variances[0] > 0)  # the results are indeed random
    return t.max(), np.maximum(variances[0] / variances[1], variances[1] / variances[0]).max()


PROGRAMS = [*[dropout] * IS_THEANO, variational_autoencoder, boltzmann_machine]


@pytest.mark.parametrize("build", PROGRAMS)
def test_what_is_drawn_on_ranks_has_the_serial_programs_distribution(build, make_world):
    make_world("threads", 3, 1, engine=NAME)
    t, ratio = compared(build, exact=True)
    assert t <= MOST_T and ratio <= MOST_RATIO


@pytest.mark.parametrize("build", PROGRAMS)
def test_the_statistics_tell_the_plain_replacement_from_the_serial_program(build, make_world):
    make_world("threads", 3, 1, engine=NAME)
    assert compared(build, exact=False)[0] > MOST_T
