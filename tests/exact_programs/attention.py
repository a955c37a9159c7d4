"""Translation with attention, written like public models: time first, and positions in flat probabilities."""

from collections import OrderedDict

import numpy as np
from corpus import ROWS, Program, weights, zeros
from library import L, T

#: Vocabulary sizes and dimensions of the source and target languages, and of states.
WORDS, OTHER_WORDS, WORD, STATE = 9, 7, 4, 3
SOURCE, TARGET = 5, 4


class Parameters(OrderedDict):
    """Shared variables by name, created when they are first used."""

    def __init__(self, seed):
        super().__init__()
        self.random = np.random.RandomState(seed)

    def __call__(self, name, *shape):
        if name not in self:
            make = zeros if len(shape) == 1 else lambda *shape, name: weights(self.random, *shape, name=name)
            self[name] = make(*shape, name=name)
        return self[name]


def gates(x, dim):
    """Return the two gates of a gated recurrent unit from one product with both side by side."""
    return T.nnet.sigmoid(x[:, :dim]), T.nnet.sigmoid(x[:, dim:])


def encoder(p, name, words, mask):
    """Return the states of a gated recurrent unit over words; after a sentence's end, the last state is kept."""
    of_gates = T.dot(words, p(f"{name}_W", WORD, 2 * STATE)) + p(f"{name}_b", 2 * STATE)
    of_new = T.dot(words, p(f"{name}_Wx", WORD, STATE)) + p(f"{name}_bx", STATE)

    def step(m, to_gates, to_new, before, u, ux):
        reset, update = gates(T.dot(before, u) + to_gates, STATE)
        new = T.tanh(T.dot(before, ux) * reset + to_new)
        new = update * before + (1.0 - update) * new
        return m[:, None] * new + (1.0 - m)[:, None] * before

    start = T.alloc(np.float64(0.0), words.shape[1], STATE)
    fixed = [p(f"{name}_U", STATE, 2 * STATE), p(f"{name}_Ux", STATE, STATE)]
    states, _ = L.scan(step, [mask, of_gates, of_new], [start], fixed)
    return states


def decoder(p, words, mask, context, context_mask, start):
    """Return states, contexts and weights of a unit of two steps; the second one uses the first one's context."""
    of_gates = T.dot(words, p("W", WORD, 2 * STATE)) + p("b", 2 * STATE)
    of_new = T.dot(words, p("Wx", WORD, STATE)) + p("bx", STATE)
    projected = T.dot(context, p("Wc_att", 2 * STATE, STATE)) + p("b_att", STATE)

    def step(m, to_gates, to_new, before, c, a, projected, context, there, u, ux, of_state, to_score, w, v, wx, vx):
        reset, update = gates(T.dot(before, u) + to_gates, STATE)
        first = T.tanh(T.dot(before, ux) * reset + to_new)
        first = update * before + (1.0 - update) * first
        first = m[:, None] * first + (1.0 - m)[:, None] * before
        scores = T.dot(
            T.tanh(projected + T.dot(first, of_state)[None, :, :]), to_score
        )  # (a bias would have no gradient)
        scores = T.exp(scores.reshape([scores.shape[0], scores.shape[1]])) * there
        scores = scores / scores.sum(0, keepdims=True)
        found = (context * scores[:, :, None]).sum(0)
        reset, update = gates(T.dot(first, w) + T.dot(found, v), STATE)
        second = T.tanh(T.dot(first, wx) * reset + T.dot(found, vx))
        second = update * first + (1.0 - update) * second
        return m[:, None] * second + (1.0 - m)[:, None] * first, found, scores.T

    n = words.shape[1]
    outputs = [start, T.alloc(np.float64(0.0), n, context.shape[2]), T.alloc(np.float64(0.0), n, context.shape[0])]
    fixed = [
        p("U", STATE, 2 * STATE),
        p("Ux", STATE, STATE),
        p("W_comb_att", STATE, STATE),
        p("U_att", STATE, 1),
        p("U_nl", STATE, 2 * STATE),
        p("Wc", 2 * STATE, 2 * STATE),
        p("Ux_nl", STATE, STATE),
        p("Wcx", 2 * STATE, STATE),
    ]
    found, _ = L.scan(step, [mask, of_gates, of_new], outputs, [projected, context, context_mask, *fixed])
    return found


def squared(values):
    """Return the sum of all squares. (PyTensor's Python code adds at most 32 values; separate sums would be fused.)"""
    return T.concatenate([(one**2).flatten() for one in values]).sum()


def adadelta(params, grads):
    """Return the updates of adadelta, including those of each variable's means of squares."""
    steps = OrderedDict()
    for param, grad in zip(params, grads):
        of_grads, of_steps = (L.zeros_like(param) for _ in range(2))
        squares = 0.95 * of_grads + 0.05 * grad**2
        step = -T.sqrt(of_steps + 1e-6) / T.sqrt(squares + 1e-6) * grad
        steps[of_grads], steps[of_steps] = squares, 0.95 * of_steps + 0.05 * step**2
        steps[param] = param + step
    return steps


def of_time(random, n_words, length):
    """Return words and masks of sentences of different lengths, time first."""
    mask = (np.arange(length)[:, None] < random.randint(2, length + 1, ROWS)).astype("float64")
    return random.randint(0, n_words, (length, ROWS)).astype("int32"), mask


def translation_with_attention():
    """Return a program with two encoders, a decoder, costs per sentence, penalties, gradient clipping and adadelta."""
    p, random = Parameters(51), np.random.RandomState(52)
    x, x_mask, y, y_mask = T.imatrix("x"), T.dmatrix("x_mask"), T.imatrix("y"), T.dmatrix("y_mask")
    n = x.shape[1]

    embedding = p("Wemb", WORDS, WORD)
    words = embedding[x.flatten()].reshape([x.shape[0], n, WORD])
    backwards = embedding[x[::-1].flatten()].reshape([x.shape[0], n, WORD])
    states = [encoder(p, "forward", words, x_mask), encoder(p, "backward", backwards, x_mask[::-1])[::-1]]
    context = T.concatenate(states, axis=2)
    mean = (context * x_mask[:, :, None]).sum(0) / x_mask.sum(0)[:, None]
    start = T.tanh(T.dot(mean, p("state_W", 2 * STATE, STATE)) + p("state_b", STATE))

    words = p("Wemb_dec", OTHER_WORDS, WORD)[y.flatten()].reshape([y.shape[0], y.shape[1], WORD])
    before = T.set_subtensor(T.zeros_like(words)[1:], words[:-1])
    hidden, found, weight = decoder(p, before, y_mask, context, x_mask, start)

    of_words = T.dot(hidden, p("logit_h", STATE, WORD)) + T.dot(found, p("logit_c", 2 * STATE, WORD)) + before
    logits = T.dot(T.tanh(of_words), p("logit_W", WORD, OTHER_WORDS)) + p("logit_b", OTHER_WORDS)
    shape = logits.shape
    probabilities = T.nnet.softmax(logits.reshape([shape[0] * shape[1], shape[2]]))
    labels = y.flatten()
    chosen = probabilities.flatten()[T.arange(labels.shape[0]) * OTHER_WORDS + labels]
    cost = -T.log(chosen).reshape([y.shape[0], y.shape[1]])
    cost = (cost * y_mask).sum(0)
    right = T.eq(T.argmax(probabilities, axis=1), labels) * probabilities[T.arange(y.shape[0] * y.shape[1]), labels]

    params = list(p.values())
    # Looks up as many elements of each source word as there are target words.
    uncovered = ((y_mask.sum(0) / x_mask.sum(0))[:, None] - weight.sum(0)) ** 2
    loss = cost.mean() + 0.01 * uncovered.sum(1).mean() + 1e-3 * squared(params)
    grads = T.grad(loss, params)
    norm = squared(grads)
    grads = [T.switch(norm > 0.25, grad / T.sqrt(norm) * 0.5, grad) for grad in grads]
    data = [*of_time(random, WORDS, SOURCE), *of_time(random, OTHER_WORDS, TARGET)]
    outputs = [cost, loss, right.reshape(y.shape)]
    return Program([x, x_mask, y, y_mask], outputs, params, adadelta(params, grads), data, axis=1)


PROGRAMS = [translation_with_attention]
