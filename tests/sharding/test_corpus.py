"""Common kinds of programs: every operation in them has a rule, and every update can be computed exactly."""

import warnings

import numpy as np
import pytest
from library import IS_THEANO, L, T
from simulated import Program, check, with_convolutions
from trainers import HAS_LASAGNE, init, lasagne, layers, nonlinearities, objectives, updates

from synkhronos.sharding import Unknown

pytestmark = pytest.mark.thorough

if HAS_LASAGNE:
    from synkhronos.extensions.batch_norm import BatchNormLayer
elif IS_THEANO:
    pytest.skip("needs Lasagne", allow_module_level=True)

#: Operations of these programs that need no rule, and why: all their inputs are replicated.
WITHOUT_A_RULE = {}

SPLIT = (3, 1, 2)


def param(p, *shape):
    return L.shared(p.rng.normal(size=shape))


def layer(build, *shape, make=None):
    """Return a program that trains a Lasagne network on rows of this shape, with a squared error."""

    def program(p):
        x = p.rows(*shape, **({} if make is None else {"make": make, "dtype": "int32"}))
        network = build(layers.InputLayer((None, *shape), x))
        y = layers.get_output(network)
        return trained(p, T.sqr(y - 0.3).mean(), layers.get_all_params(network, trainable=True), updates.sgd)

    return program


def trained(p, loss, params, rule, *args, **kwargs):
    """Return a loss and the new values of the trained variables."""
    new = rule(loss, params, *args, **kwargs) if args or kwargs or rule is not updates.sgd else rule(loss, params, 0.1)
    return _with_state(p, [loss, *new.values()])


def _with_state(p, outputs):
    for variable in L.inputs(outputs):
        if L.engine.is_shared(variable):
            value = variable.get_value(borrow=True)
            if not np.any(np.asarray(value)) and getattr(value, "dtype", None) is not None and value.dtype.kind == "f":
                value = np.abs(p.rng.normal(size=value.shape)).astype(value.dtype)  # zeros would hide errors
            p.given(variable, value)
    return outputs


def rule(name, *args, constrained=None):
    """Return a program that trains two layers by one of Lasagne's update rules."""

    def program(p):
        x, y = p.rows(3), p.rows(dtype="int32", high=4)
        params = [param(p, 3, 5), param(p, 5), param(p, 5, 4), param(p, 4)]
        w, b, v, c = params
        probabilities = T.nnet.softmax(T.dot(T.tanh(T.dot(x, w) + b), v) + c)
        loss = objectives.categorical_crossentropy(probabilities, y).mean()
        grads = T.grad(loss, params)
        if constrained is not None:
            grads = constrained(grads)
        new = getattr(updates, name)(grads, params, *args)
        return _with_state(p, [loss, *new.values()])

    return program


def logistic_regression(p):
    x, y, w, b = p.rows(3), p.rows(dtype="int32", high=4), param(p, 3, 4), param(p, 4)
    probabilities = T.nnet.softmax(T.dot(x, w) + b)
    loss = -T.mean(T.log(probabilities)[T.arange(y.shape[0]), y])
    errors = T.mean(T.neq(T.argmax(probabilities, axis=1), y))
    return [errors, *trained(p, loss, [w, b], updates.sgd)]


def mlp_with_penalties(p):
    x, y, w, v = p.rows(3), p.rows(dtype="int32", high=4), param(p, 3, 5), param(p, 5, 4)
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(T.tanh(T.dot(x, w)), v)), y).mean()
    loss += 0.1 * abs(w).sum() + 0.1 * T.sqr(v).sum()
    return trained(p, loss, [w, v], updates.adam)


def autoencoder(p):
    x, w, b, c = p.rows(4, make=lambda rng, shape: rng.uniform(size=shape)), param(p, 4, 3), param(p, 3), param(p, 4)
    corrupted = L.streams(1)[0].binomial(size=x.shape, n=1, p=0.7, dtype="float64") * x
    z = T.nnet.sigmoid(T.dot(T.nnet.sigmoid(T.dot(corrupted, w) + b), w.T) + c)
    loss = T.mean(-T.sum(x * T.log(z) + (1 - x) * T.log(1 - z), axis=1))
    return trained(p, loss, [w, b, c], updates.sgd)


def boltzmann_machine(p):
    v, w, b = p.rows(4, high=2), param(p, 4, 3), param(p, 3)
    streams = L.streams(1)[0]

    def step(v):
        h = streams.binomial(size=(v.shape[0], 3), n=1, p=T.nnet.sigmoid(T.dot(v, w) + b), dtype="float64")
        return streams.binomial(size=v.shape, n=1, p=T.nnet.sigmoid(T.dot(h, w.T)), dtype="float64")

    chain, _ = L.scan(step, outputs_info=[v], n_steps=2)
    model = chain[-1]

    def energy(v):
        return -T.sum(T.nnet.softplus(T.dot(v, w) + b), axis=1)

    cost = T.mean(energy(v)) - T.mean(energy(model))
    new = [one - 0.1 * grad for one, grad in zip([w, b], T.grad(cost, [w, b], consider_constant=[model]))]
    xi = T.round(v)
    flipped = T.set_subtensor(xi[:, 0], 1 - xi[:, 0])
    pseudo_likelihood = T.mean(4 * T.log(T.nnet.sigmoid(energy(flipped) - energy(xi))))
    return _with_state(p, [pseudo_likelihood, *new])


def variational_autoencoder(p):
    x, w, v, u = p.rows(4), param(p, 4, 3), param(p, 4, 3), param(p, 3, 4)
    mean, log_var = T.dot(x, w), T.dot(x, v)
    z = mean + T.exp(0.5 * log_var) * L.streams(1)[0].normal(mean.shape)
    reconstruction = T.nnet.binary_crossentropy(T.clip(T.nnet.sigmoid(T.dot(z, u)), 1e-6, 1 - 1e-6), T.nnet.sigmoid(x))
    loss = T.sum(reconstruction) - 0.5 * T.sum(1 + log_var - mean**2 - T.exp(log_var))
    return trained(p, loss, [w, v, u], updates.adam)


def language_model(p):
    """A recurrent network on embedded time-major words, with a softmax over merged time and rows."""
    words, e, w, v, u = (
        p.rows(4, axis=1, dtype="int32", high=5),
        param(p, 5, 3),
        param(p, 3, 2),
        param(p, 2, 2),
        param(p, 2, 5),
    )
    x = e[words[:-1].flatten()].reshape((words.shape[0] - 1, words.shape[1], 3))
    initial = T.zeros((words.shape[1], 2))
    h, _ = L.scan(lambda x_t, h, w, v: T.tanh(T.dot(x_t, w) + T.dot(h, v)), [x], [initial], [w, v])
    logits = T.dot(h, u)
    probabilities = T.nnet.softmax(logits.reshape((logits.shape[0] * logits.shape[1], logits.shape[2])))
    loss = T.nnet.categorical_crossentropy(probabilities, words[1:].flatten()).mean()
    return trained(p, loss, [e, w, v, u], updates.adagrad)


def masked_sentiment(p):
    """An LSTM on batch-major words with a mask, and its mean over time."""
    words, mask = p.rows(4, dtype="int32", high=5), p.rows(4, high=2)
    network = layers.EmbeddingLayer(layers.InputLayer((None, 4), words), 5, 3)
    network = layers.LSTMLayer(network, 3, mask_input=layers.InputLayer((None, 4), mask))
    h = layers.get_output(network)
    pooled = (h * mask.dimshuffle(0, 1, "x")).sum(axis=1) / (mask.sum(axis=1) + 1).dimshuffle(0, "x")
    params = layers.get_all_params(network, trainable=True)
    return trained(p, T.sqr(pooled - 0.5).mean(), params, updates.adadelta)


def siamese(p):
    x, y, w = p.rows(3), p.rows(3), param(p, 3, 2)
    same = p.rows(high=2)
    distance = T.sqrt(T.sum(T.sqr(T.dot(x, w) - T.dot(y, w)), axis=1) + 1e-6)
    loss = T.mean(same * distance**2 + (1 - same) * T.sqr(T.maximum(1 - distance, 0)))
    return trained(p, loss, [w], updates.rmsprop)


def attention(p):
    x, w, v = p.rows(4, 3), param(p, 3, 3), param(p, 3)
    scores = T.nnet.softmax(T.dot(T.tanh(T.dot(x, w)), v))
    pooled = T.sum(x * scores.dimshuffle(0, 1, "x"), axis=1)
    return trained(p, T.sqr(pooled).mean(), [w, v], updates.nesterov_momentum, 0.1)


def highway(p):
    x, w, v = p.rows(3), param(p, 3, 3), param(p, 3, 3)
    gate = T.nnet.sigmoid(T.dot(x, v) - 1)
    return trained(p, T.sqr(gate * T.nnet.relu(T.dot(x, w)) + (1 - gate) * x).mean(), [w, v], updates.momentum, 0.1)


def batch_norm_by_hand(p):
    x, w, g = p.rows(3), param(p, 3, 4), param(p, 4)
    y = T.dot(x, w)
    y = g * (y - y.mean(axis=0)) / T.sqrt(y.var(axis=0) + 1e-3)
    return trained(p, T.sqr(T.tanh(y) - 0.2).mean(), [w, g], updates.adam)


def weighted_loss(p):
    x, w, weights = p.rows(3), param(p, 3, 2), p.rows(positive=True)
    loss = objectives.aggregate(T.sqr(T.dot(x, w)).sum(axis=1), weights, mode="normalized_sum")
    return trained(p, loss, [w], updates.adam)


def penalised(p):
    x = p.rows(3)
    network = layers.DenseLayer(layers.InputLayer((None, 3), x), 2)
    loss = T.sqr(layers.get_output(network)).mean()
    loss += 0.1 * lasagne.regularization.regularize_network_params(network, lasagne.regularization.l2)
    return trained(p, loss, layers.get_all_params(network, trainable=True), updates.sgd)


def recurrent_of_own_cells(p):
    x = p.rows(4, 3)
    step = layers.DenseLayer(layers.InputLayer((None, 3)), 2, nonlinearity=None)
    again = layers.DenseLayer(layers.InputLayer((None, 2)), 2, nonlinearity=None)
    network = layers.CustomRecurrentLayer(layers.InputLayer((None, 4, 3), x), step, again)
    params = layers.get_all_params(network, trainable=True)
    return trained(p, T.sqr(layers.get_output(network)).mean(), params, updates.sgd)


TANH = {"nonlinearity": nonlinearities.tanh}

PROGRAMS = {
    "dense": layer(lambda x: layers.DenseLayer(x, 3, **TANH), 4),
    "dense of images": layer(lambda x: layers.DenseLayer(x, 3, **TANH), 2, 3),
    "network in network": layer(lambda x: layers.NINLayer(x, 3, **TANH), 2, 3, 3),
    "conv1d": layer(lambda x: layers.Conv1DLayer(x, 2, 3, **TANH), 2, 5),
    "conv2d": layer(lambda x: layers.Conv2DLayer(x, 2, 2, pad="full", stride=2, **TANH), 2, 4, 4),
    "cnn": layer(lambda x: layers.DenseLayer(layers.MaxPool2DLayer(layers.Conv2DLayer(x, 2, 2), 2), 3, **TANH), 2, 5, 5),
    "max-pool 1d": layer(lambda x: layers.MaxPool1DLayer(layers.DimshuffleLayer(layers.NINLayer(x, 2), (0, 1, 2)), 2), 2, 4),
    "average pool": layer(lambda x: layers.Pool2DLayer(layers.NINLayer(x, 2), 2, mode="average_inc_pad"), 2, 4, 4),
    "global pool": layer(lambda x: layers.GlobalPoolLayer(layers.NINLayer(x, 2)), 2, 4, 4),
    "feature pool": layer(lambda x: layers.FeaturePoolLayer(layers.DenseLayer(x, 4), 2), 3),
    "winner takes all": layer(lambda x: layers.FeatureWTALayer(layers.DenseLayer(x, 4), 2), 3),
    "local response": layer(lambda x: layers.LocalResponseNormalization2DLayer(layers.NINLayer(x, 5)), 2, 3, 3),
    "reshape": layer(lambda x: layers.DenseLayer(layers.ReshapeLayer(x, ([0], 2, -1)), 3), 4, 3),
    "reshape to merged": layer(lambda x: layers.DenseLayer(layers.ReshapeLayer(x, (-1, [2])), 3), 4, 3),
    "flatten, pad, slice": layer(lambda x: layers.DenseLayer(layers.FlattenLayer(layers.SliceLayer(layers.PadLayer(x, 1), 1, axis=1)), 3), 2, 3, 3),
    "sums and products": layer(lambda x: layers.ElemwiseMergeLayer([layers.ElemwiseSumLayer([layers.DenseLayer(x, 3), layers.DenseLayer(x, 3)]), layers.DenseLayer(x, 3)], T.mul), 4),
    "concatenation": layer(lambda x: layers.ConcatLayer([layers.DenseLayer(x, 3), layers.DenseLayer(x, 2)]), 4),
    "dropout": layer(lambda x: layers.DropoutLayer(layers.DenseLayer(x, 3)), 4),
    "noise": layer(lambda x: layers.GaussianNoiseLayer(layers.DenseLayer(x, 3)), 4),
    "embedding": layer(lambda x: layers.DenseLayer(layers.EmbeddingLayer(x, 5, 3), 2), 4, make=lambda rng, shape: rng.randint(0, 5, shape)),
    "rectifiers": layer(lambda x: layers.NonlinearityLayer(layers.DenseLayer(x, 3, nonlinearity=nonlinearities.leaky_rectify), nonlinearities.rectify), 4),
    "recurrent": layer(lambda x: layers.RecurrentLayer(x, 3), 4, 2),
    "lstm": layer(lambda x: layers.LSTMLayer(x, 3, peepholes=True), 4, 2),
    "lstm, learned": layer(lambda x: layers.LSTMLayer(x, 2, hid_init=init.Normal(), learn_init=True, backwards=True), 3, 2),
    "lstm, the last state": layer(lambda x: layers.SliceLayer(layers.LSTMLayer(x, 2, grad_clipping=5.0, gradient_steps=2), -1, 1), 3, 2),
    "lstm, unrolled": layer(lambda x: layers.LSTMLayer(x, 2, unroll_scan=True), 2, 2),
    "gru": layer(lambda x: layers.GRULayer(x, 3), 4, 2),
    "own cells": recurrent_of_own_cells,
    "batch norm": layer(lambda x: layers.DenseLayer(BatchNormLayer(layers.DenseLayer(x, 3, **TANH)), 2), 4),
    "sgd": rule("sgd", 0.1),
    "momentum": rule("momentum", 0.1),
    "nesterov_momentum": rule("nesterov_momentum", 0.1),
    "adagrad": rule("adagrad"),
    "rmsprop": rule("rmsprop"),
    "adadelta": rule("adadelta"),
    "adam": rule("adam"),
    "adam, norm of all": rule("adam", constrained=lambda grads: updates.total_norm_constraint(grads, 0.1)),
    "sgd, norm of each": rule("sgd", 0.1, constrained=lambda grads: [updates.norm_constraint(g, 0.1) if g.ndim > 1 else g for g in grads]),
    "sgd, clipped": rule("sgd", 0.1, constrained=lambda grads: [T.clip(g, -0.01, 0.01) for g in grads]),
    "logistic regression": logistic_regression,
    "mlp with penalties": mlp_with_penalties,
    "autoencoder": autoencoder,
    "boltzmann machine": boltzmann_machine,
    "variational autoencoder": variational_autoencoder,
    "language model": language_model,
    "masked sentiment": masked_sentiment,
    "siamese": siamese,
    "attention": attention,
    "highway": highway,
    "batch norm by hand": batch_norm_by_hand,
    "weighted loss": weighted_loss,
    "penalised": penalised,
}  # fmt: skip


def built(name, seed=0):
    program = Program(seed)
    np.random.seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program, PROGRAMS[name](program)


def operations(outputs):
    """Yield the nodes of a graph and its inner graphs."""
    for node in L.io_toposort(L.inputs(outputs), outputs):
        yield node
        yield from operations(list(L.engine.library.scans.inner_outputs(node.op)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_operation_has_a_rule_and_every_variable_is_the_serial_programs(name):
    with L.compiled_quickly(), with_convolutions():
        program, outputs = built(name)
        for node in operations(outputs):
            known = [cls for cls in type(node.op).__mro__ if cls in L.placing.rules or cls in L.formulas.formulas]
            assert known or type(node.op).__name__ in WITHOUT_A_RULE, f"{node.op} ({type(node.op)}) has no rule"
        found = check(program, outputs, True, [SPLIT])
    assert not [one.why for one in found if isinstance(one, Unknown)]


@pytest.mark.parametrize(
    "name", ["cnn", "lstm", "adam", "logistic regression", "batch norm", "variational autoencoder"]
)
def test_without_collectives_what_is_known_is_the_serial_programs(name):
    with L.compiled_quickly(), with_convolutions():
        program, outputs = built(name)
        check(program, outputs, False, [SPLIT])
