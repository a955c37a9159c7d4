"""Sequences and words: recurrent networks with Lasagne and with scan, embeddings, attention."""

from collections import OrderedDict

import numpy as np
from corpus import ROWS, Program, bernoulli, classes, log_likelihood, weights, zeros
from library import L, T
from trainers import lasagne, layers, nonlinearities, objectives, updates

TIME = 5


def mask_of(random):
    """Return a mask of sequences of different lengths, none of them empty."""
    return (np.arange(TIME) < random.randint(2, TIME + 1, (ROWS, 1))).astype("float64")


def lstm_text():
    """Predict the next character by two LSTM layers, from the last step; bounded gradient norm; adagrad."""
    random = np.random.RandomState(31)
    x, y = T.dtensor3("x"), T.ivector("y")
    net = layers.InputLayer((None, TIME, 6), x)
    net = layers.LSTMLayer(net, 5, grad_clipping=100, nonlinearity=nonlinearities.tanh)
    net = layers.LSTMLayer(net, 5, grad_clipping=100, nonlinearity=nonlinearities.tanh)
    net = layers.SliceLayer(net, -1, 1)
    net = layers.DenseLayer(net, 6, W=lasagne.init.Normal(), nonlinearity=nonlinearities.softmax)
    prediction = layers.get_output(net)
    cost = T.nnet.categorical_crossentropy(prediction, y).mean()
    params = layers.get_all_params(net, trainable=True)
    steps = updates.adagrad(updates.total_norm_constraint(T.grad(cost, params), 5), params, 0.05)
    text = random.randint(0, 6, (ROWS, TIME))
    return Program([x, y], [cost, prediction], params, steps, [np.eye(6)[text], classes(random, 6)])


def lstm_sentiment():
    """Predict the class of word sequences by an embedding and the mean over time of an LSTM; adadelta."""
    random = np.random.RandomState(32)
    x, mask, y = T.imatrix("x"), T.dmatrix("mask"), T.ivector("y")
    net = layers.EmbeddingLayer(layers.InputLayer((None, TIME), x), 11, 4)
    net = layers.LSTMLayer(net, 5, mask_input=layers.InputLayer((None, TIME), mask))
    hidden = layers.get_output(net)
    mean = (hidden * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1)[:, None]
    u, b = weights(random, 5, 2, name="U"), zeros(2, name="b")
    p = T.nnet.softmax(T.dot(mean, u) + b)
    cost = -T.log(p[T.arange(x.shape[0]), y] + 1e-8).mean()
    params = [*layers.get_all_params(net, trainable=True), u, b]
    cost = cost + 1e-4 * (u**2).sum()
    data = [classes(random, 11, TIME), mask_of(random), classes(random, 2)]
    return Program([x, mask, y], [cost, p.argmax(axis=1)], params, updates.adadelta(cost, params), data)


def gru():
    """Predict the sum of a sequence's marked numbers, by a GRU layer that learns its first state; adam."""
    random = np.random.RandomState(33)
    x, y = T.dtensor3("x"), T.dvector("y")
    net = layers.InputLayer((None, TIME, 2), x)
    net = layers.SliceLayer(layers.GRULayer(net, 5, learn_init=True), -1, 1)
    net = layers.DenseLayer(net, 1, nonlinearity=None)
    loss = T.mean((layers.get_output(net).flatten() - y) ** 2)
    params = layers.get_all_params(net, trainable=True)
    steps = updates.adam(updates.total_norm_constraint(T.grad(loss, params), 1.0), params, 0.01)
    numbers = np.stack([random.rand(ROWS, TIME), bernoulli(random, 0.4, TIME)], axis=2)
    return Program([x, y], [loss], params, steps, [numbers, numbers.prod(axis=2).sum(axis=1)])


def scanned():
    """The tutorials' recurrent network: a scan over time, an output at each step, clipped gradients, nesterov."""
    random = np.random.RandomState(34)
    x, y = T.dtensor3("x"), T.dtensor3("y")
    w, u, v = weights(random, 3, 6, name="W_in"), weights(random, 6, 6, name="W"), weights(random, 6, 2, name="W_out")
    first, b, c = zeros(6, name="h0"), zeros(6, name="b_h"), zeros(2, name="b_y")

    def step(now, before):
        hidden = T.tanh(T.dot(now, w) + T.dot(before, u) + b)
        return hidden, T.dot(hidden, v) + c

    start = T.alloc(first, x.shape[0], 6)
    (_, predicted), _ = L.scan(step, sequences=x.dimshuffle(1, 0, 2), outputs_info=[start, None])
    predicted = predicted.dimshuffle(1, 0, 2)
    loss = T.mean(T.sqr(predicted - y))
    params = [w, u, v, first, b, c]
    gradients = [T.clip(gradient, -0.2, 0.2) for gradient in T.grad(loss, params)]
    steps = updates.nesterov_momentum(gradients, params, 0.05)
    data = [random.randn(ROWS, TIME, 3), random.randn(ROWS, TIME, 2)]
    return Program([x, y], [loss, predicted], params, steps, data)


def tagging():
    """Predict a class for each word by recurrent layers in both directions; a mean over existing words; rmsprop."""
    random = np.random.RandomState(35)
    x, mask, y = T.imatrix("x"), T.dmatrix("mask"), T.imatrix("y")
    of_words = layers.EmbeddingLayer(layers.InputLayer((None, None), x), 11, 4)
    of_mask = layers.InputLayer((None, None), mask)
    forward = layers.RecurrentLayer(of_words, 4, mask_input=of_mask)
    backward = layers.RecurrentLayer(of_words, 4, mask_input=of_mask, backwards=True)
    net = layers.ReshapeLayer(layers.ConcatLayer([forward, backward], axis=2), (-1, 8))
    net = layers.DenseLayer(net, 3, nonlinearity=nonlinearities.softmax)
    p = layers.get_output(net)
    of_each = objectives.categorical_crossentropy(p, y.flatten())
    loss = T.sum(of_each * mask.flatten()) / mask.sum()
    tags = T.argmax(p, axis=1).reshape(y.shape)
    params = layers.get_all_params(net, trainable=True)
    data = [classes(random, 11, TIME), mask_of(random), classes(random, 3, TIME)]
    right = (T.eq(tags, y) * mask).sum()
    outputs = [loss, tags, right]
    return Program([x, mask, y], outputs, params, updates.rmsprop(loss, params, 0.01), data)


def cbow():
    """Predict a word from the mean of its neighbors: input and output embeddings, a full softmax; adagrad."""
    random = np.random.RandomState(36)
    around, word = T.imatrix("around"), T.ivector("word")
    embedding, out = weights(random, 12, 4, name="in"), weights(random, 12, 4, name="out")
    mean = embedding[around].mean(axis=1)
    p = T.nnet.softmax(T.dot(mean, out.T))
    loss = T.nnet.categorical_crossentropy(p, word).mean()
    params = [embedding, out]
    data = [classes(random, 12, 4), classes(random, 12)]
    return Program([around, word], [loss], params, updates.adagrad(loss, params, 0.5), data)


def skip_gram():
    """Distinguish a word's neighbors from random words by their log-odds; only a batch's rows are updated."""
    random = np.random.RandomState(37)
    word, near, drawn = T.ivector("word"), T.ivector("near"), T.imatrix("drawn")
    embedding, out = weights(random, 12, 4, name="in"), weights(random, 12, 4, name="out")
    of_word, of_near, of_drawn = embedding[word], out[near], out[drawn]
    loss = -T.log(T.nnet.sigmoid(T.sum(of_word * of_near, axis=1))).sum()
    loss -= T.log(T.nnet.sigmoid(-T.batched_dot(of_drawn, of_word))).sum()
    by_word, by_near, by_drawn = T.grad(loss, [of_word, of_near, of_drawn])
    steps = OrderedDict()
    steps[embedding] = T.inc_subtensor(of_word, -0.1 * by_word)
    steps[out] = T.inc_subtensor(out[near], -0.1 * by_near)
    steps[out] = T.inc_subtensor(steps[out][drawn], -0.1 * by_drawn)
    data = [classes(random, 12), classes(random, 12), classes(random, 12, 3)]
    return Program([word, near, drawn], [loss], [embedding, out], steps, data)


def matrix_factorization():
    """Predict ratings from a mean and each user's and film's vector and bias; L2 on those in use; adam."""
    random = np.random.RandomState(38)
    user, film, rating = T.ivector("user"), T.ivector("film"), T.dvector("rating")
    p, q = weights(random, 9, 3, name="p"), weights(random, 7, 3, name="q")
    b, c, mean = zeros(9, name="b"), zeros(7, name="c"), L.shared(3.0, "mean")
    guess = mean + b[user] + c[film] + T.sum(p[user] * q[film], axis=1)
    error = T.sqr(rating - guess)
    penalty = T.sqr(p[user]).sum(axis=1) + T.sqr(q[film]).sum(axis=1) + b[user] ** 2 + c[film] ** 2
    loss = T.mean(error + 0.02 * penalty)
    params = [p, q, b, c, mean]
    data = [classes(random, 9), classes(random, 7), random.randint(1, 6, ROWS).astype("float64")]
    outputs = [loss, T.sqrt(error.mean()), guess]
    return Program([user, film, rating], outputs, params, updates.adam(loss, params, 0.02), data)


def attention():
    """Masked self-attention over the words of a sequence, then a classifier; adam."""
    random = np.random.RandomState(39)
    x, mask, y = T.imatrix("x"), T.dmatrix("mask"), T.ivector("y")
    embedding = weights(random, 11, 6, name="embedding")
    wq, wk, wv = (weights(random, 6, 4, name=name) for name in ("query", "key", "value"))
    out, b = weights(random, 4, 3, name="out"), zeros(3, name="b")
    words = embedding[x] + L.shared(0.1 * random.randn(TIME, 6), "place")
    q, k, v = (T.dot(words, w) for w in (wq, wk, wv))
    score = T.batched_dot(q, k.dimshuffle(0, 2, 1)) / 2.0
    score = score - 1e6 * (1 - mask.dimshuffle(0, "x", 1))
    weight = T.nnet.softmax(score.reshape((-1, TIME))).reshape(score.shape)
    found = T.batched_dot(weight, v) * mask.dimshuffle(0, 1, "x")
    p = T.nnet.softmax(T.dot(found.sum(axis=1) / mask.sum(axis=1, keepdims=True), out) + b)
    loss = T.nnet.categorical_crossentropy(p, y).mean()
    params = [embedding, wq, wk, wv, out, b]
    data = [classes(random, 11, TIME), mask_of(random), classes(random, 3)]
    outputs = [loss, weight]
    return Program([x, mask, y], outputs, params, updates.adam(loss, params, 0.01), data)


def lstm_tutorial():
    """The tutorials' LSTM, in time-major order: gates as slices of one product, a mask in each step; adadelta."""
    random = np.random.RandomState(40)
    rows, mask_rows, y = T.imatrix("x"), T.dmatrix("mask"), T.ivector("y")
    x, mask, n = rows.T, mask_rows.T, 4
    embedding = weights(random, 11, n, name="Wemb", scale=0.1)
    w, u, b = weights(random, n, 4 * n, name="W"), weights(random, n, 4 * n, name="U"), zeros(4 * n, name="b")
    v, c = weights(random, n, 2, name="V"), zeros(2, name="c")
    words = embedding[x.flatten()].reshape((x.shape[0], x.shape[1], n))

    def step(m, now, h, cell):
        gates = T.dot(h, u) + now
        i, f, o = (T.nnet.sigmoid(gates[:, k * n : (k + 1) * n]) for k in range(3))
        new = f * cell + i * T.tanh(gates[:, 3 * n :])
        new = m[:, None] * new + (1.0 - m)[:, None] * cell
        return m[:, None] * (o * T.tanh(new)) + (1.0 - m)[:, None] * h, new

    start = T.alloc(np.float64(0.0), x.shape[1], n)
    (hidden, _), _ = L.scan(step, sequences=[mask, T.dot(words, w) + b], outputs_info=[start, start])
    mean = (hidden * mask[:, :, None]).sum(axis=0) / mask.sum(axis=0)[:, None]
    p = T.nnet.softmax(T.dot(mean, v) + c)
    cost = -T.log(p[T.arange(x.shape[1]), y] + 1e-8).mean() + 1e-4 * (v**2).sum()
    params = [embedding, w, u, b, v, c]
    data = [classes(random, 11, TIME), mask_of(random), classes(random, 2)]
    return Program([rows, mask_rows, y], [cost], params, updates.adadelta(cost, params, 1.0), data)


def translation():
    """Encoder and decoder by scan; in each of its steps, the decoder weights the encoder's states of all times."""
    random = np.random.RandomState(41)
    x, y = T.imatrix("x"), T.imatrix("y")
    of_x, of_y = weights(random, 11, 4, name="of_x"), weights(random, 7, 4, name="of_y")
    w, u, a, out = (weights(random, 4, m, name=name) for m, name in ((4, "W"), (4, "U"), (4, "A"), (7, "out")))

    def encode(now, h):
        return T.tanh(now + T.dot(h, w))

    start = T.zeros((x.shape[0], 4))
    memory, _ = L.scan(encode, sequences=of_x[x].dimshuffle(1, 0, 2), outputs_info=start)
    memory = memory.dimshuffle(1, 0, 2)

    def decode(now, h, memory):
        weight = T.nnet.softmax(T.sum(memory * T.dot(h, a).dimshuffle(0, "x", 1), axis=2))
        context = T.sum(weight.dimshuffle(0, 1, "x") * memory, axis=1)
        return T.tanh(now + T.dot(h, u) + context)

    before = of_y[y[:, :-1]].dimshuffle(1, 0, 2)
    hidden, _ = L.scan(decode, sequences=before, outputs_info=memory[:, -1], non_sequences=memory)
    p = T.nnet.softmax(T.dot(hidden.dimshuffle(1, 0, 2).reshape((-1, 4)), out))
    loss = T.nnet.categorical_crossentropy(p, y[:, 1:].flatten()).mean()
    params = [of_x, of_y, w, u, a, out]
    data = [classes(random, 11, TIME), classes(random, 7, 4)]
    return Program([x, y], [loss], params, updates.adam(loss, params, 0.01), data)


def conditional_random_field():
    """Tags that depend on each other: a scan sums over all paths, in logarithms; rmsprop."""
    random = np.random.RandomState(42)
    x, y = T.dtensor3("x"), T.imatrix("y")
    w, change = weights(random, 4, 3, name="w"), weights(random, 3, 3, name="change")
    value = T.dot(x, w)

    def step(now, before):
        paths = before.dimshuffle(0, 1, "x") + change.dimshuffle("x", 0, 1)
        highest = paths.max(axis=1)
        return now + highest + T.log(T.exp(paths - highest.dimshuffle(0, "x", 1)).sum(axis=1))

    in_time = value.dimshuffle(1, 0, 2)
    paths, _ = L.scan(step, sequences=in_time[1:], outputs_info=in_time[0])
    everything = T.log(T.exp(paths[-1]).sum(axis=1))
    steps = T.arange(TIME)
    row = T.arange(x.shape[0])
    right = value[row.dimshuffle(0, "x"), steps.dimshuffle("x", 0), y].sum(axis=1)
    right += change[y[:, :-1], y[:, 1:]].sum(axis=1)
    loss = T.mean(everything - right)
    params = [w, change]
    data = [random.randn(ROWS, TIME, 4), classes(random, 3, TIME)]
    outputs = [loss, everything]
    return Program([x, y], outputs, params, updates.rmsprop(loss, params, 0.01), data)


def text_convolution():
    """An embedding of words, convolutions of two widths, and their largest values over time; adagrad."""
    random = np.random.RandomState(43)
    x, y = T.imatrix("x"), T.ivector("y")
    words = layers.EmbeddingLayer(layers.InputLayer((None, TIME), x), 11, 4)
    words = layers.DimshuffleLayer(words, (0, 2, 1))
    found = [layers.GlobalPoolLayer(layers.Conv1DLayer(words, 3, width), T.max) for width in (2, 3)]
    net = layers.DenseLayer(layers.ConcatLayer(found), 2, nonlinearity=nonlinearities.softmax)
    loss = objectives.categorical_crossentropy(layers.get_output(net), y).mean()
    params = layers.get_all_params(net, trainable=True)
    steps = updates.adagrad(loss, params, 0.1)
    return Program([x, y], [loss], params, steps, [classes(random, 11, TIME), classes(random, 2)])


text_convolution.mode = L.with_compiler


def time_major_text():
    """Predict a class at each step, in time-major order; one index selects from all steps of all rows."""
    random = np.random.RandomState(44)
    x, y = T.dtensor3("x"), T.imatrix("y")
    w, u = weights(random, 3, 4, name="w"), weights(random, 4, 4, name="u")
    start = T.zeros((x.shape[0], 4))
    hidden, _ = L.scan(
        lambda now, h: T.tanh(T.dot(now, w) + T.dot(h, u)), sequences=x.dimshuffle(1, 0, 2), outputs_info=start
    )
    p = T.nnet.softmax(hidden.reshape((-1, 4)))
    loss = -log_likelihood(p, y.T.flatten())
    data = [random.randn(ROWS, TIME, 3), classes(random, 4, TIME)]
    return Program([x, y], [loss], [w, u], updates.sgd(loss, [w, u], 0.1), data)


def words_that_are_there():
    """Predict a class for each word that a mask marks as existing."""
    random = np.random.RandomState(45)
    x, mask, y = T.imatrix("x"), T.dmatrix("mask"), T.imatrix("y")
    embedding, out = weights(random, 11, 4, name="embedding"), weights(random, 4, 3, name="out")
    there = mask.nonzero()
    p = T.nnet.softmax(T.dot(T.tanh(embedding[x][there]), out))
    loss = T.nnet.categorical_crossentropy(p, y[there]).mean()
    params = [embedding, out]
    data = [classes(random, 11, TIME), mask_of(random), classes(random, 3, TIME)]
    return Program([x, mask, y], [loss, p], params, updates.adagrad(loss, params, 0.1), data)


def every_step():
    """Predict each step's class by one softmax over all steps of all rows; the number of steps is symbolic."""
    random = np.random.RandomState(46)
    x, y = T.dtensor3("x"), T.imatrix("y")
    net = layers.RecurrentLayer(layers.InputLayer((None, None, 3), x), 4)
    hidden = layers.get_output(net)
    v, c = weights(random, 4, 3, name="v"), zeros(3, name="c")
    p = T.nnet.softmax(T.dot(hidden.reshape((-1, hidden.shape[2])), v) + c)
    loss = T.nnet.categorical_crossentropy(p, y.flatten()).mean()
    params = [*layers.get_all_params(net, trainable=True), v, c]
    data = [random.randn(ROWS, TIME, 3), classes(random, 3, TIME)]
    return Program([x, y], [loss], params, updates.adam(loss, params, 0.01), data)


PROGRAMS = [
    lstm_text,
    lstm_sentiment,
    gru,
    scanned,
    tagging,
    cbow,
    skip_gram,
    matrix_factorization,
    attention,
    lstm_tutorial,
    translation,
    conditional_random_field,
    text_convolution,
    time_major_text,
    words_that_are_there,
    every_step,
]
