"""Random draws: if the shape has rows, each rank draws its own rows; other draws differ between ranks."""

import pytest
from library import L, T
from simulated import ALL_ROWS, SPLITS, Case, Program, parametrize, placements

pytestmark = pytest.mark.thorough

S, R, P, A, U = "Shard(0)", "Replicate", "Partial(sum)", "Partial(avg)", "Unknown"


class Streams:
    """Both kinds of streams, whose states are inputs of the program."""

    def __init__(self, p):
        self.p, self.streams = p, L.streams(7)

    def draw(self, make):
        """Return the draws of ``make`` from each of the streams."""
        return [make(one) for one in self.streams]

    def done(self, outputs):
        """Add the states to the inputs; return the outputs."""
        for stream in self.streams:
            for state in L.states(stream):
                self.p.given(state, state.get_value(borrow=True))
        return outputs


def drawn(*makes):
    """Return a builder of a case's outputs; ``makes`` draw from a stream, given rows ``x``."""

    def build(p):
        x, streams = p.rows(p.f), Streams(p)
        return streams.done(
            [one for make in makes for one in streams.draw(lambda stream, make=make: make(stream, x, p))]
        )

    return build


CASES = [
    Case("of rows", " ".join([S] * 6), drawn(lambda s, x, p: s.uniform(x.shape), lambda s, x, p: s.uniform((x.shape[0], 3), -1, 2), lambda s, x, p: s.binomial(x.shape, p=0.5))),
    Case("of rows along another axis", "Shard(1) Shard(1)", drawn(lambda s, x, p: s.uniform((3, x.shape[0])))),
    Case("normal, of rows", " ".join([S] * 4), drawn(lambda s, x, p: s.normal(x.shape), lambda s, x, p: s.normal((x.shape[0], 2), avg=1, std=2))),
    Case("normal, along another axis", "Shard(1) Shard(1)", drawn(lambda s, x, p: s.normal((3, x.shape[0])))),
    Case("multinomial", "Shard(0) Shard(0)", drawn(lambda s, x, p: s.multinomial(pvals=T.nnet.softmax(x)) if type(s).__name__ != "RandomStreams" else s.uniform(x.shape))),
    Case("integers and choices", "Shard(0) Shard(0)", lambda p: [[streams.done([streams.streams[1].random_integers((x.shape[0],), 0, 5), streams.streams[1].choice((x.shape[0],), 5)])] for x in [p.rows(p.f)] for streams in [Streams(p)]][0][0]),
    Case("permutations for each row", S, lambda p: [streams.done([streams.streams[1].permutation((x.shape[0],), 4)]) for x in [p.rows(p.f)] for streams in [Streams(p)]][0]),
    Case("permutations, reshaped", U, lambda p: [streams.done([streams.streams[1].permutation((x.shape[0],), 4).reshape((4, x.shape[0]))]) for x in [p.rows(p.f)] for streams in [Streams(p)]][0]),
    Case("of another shape", " ".join([U] * 6), drawn(lambda s, x, p: s.uniform((3, 4)), lambda s, x, p: s.normal((4,)), lambda s, x, p: s.binomial((p.f,), p=0.5))),
    Case("a permutation of the rows", U, lambda p: [streams.done([x[streams.streams[1].permutation((), x.shape[0])]]) for x in [p.rows(p.f)] for streams in [Streams(p)]][0]),
    Case("of what rows say", "Shard(0) Shard(0)", drawn(lambda s, x, p: s.binomial(x.shape, p=T.nnet.sigmoid(x)))),
    Case("of what rows say, reshaped", "Unknown Unknown", drawn(lambda s, x, p: s.binomial(x.shape, p=T.nnet.sigmoid(x)).reshape((p.f, x.shape[0])) * 1.0)),
    Case("of what a row says, reshaped", "Unknown Unknown", drawn(lambda s, x, p: s.uniform(x.shape, low=0.1 * p.all(p.f)).reshape((p.f, x.shape[0])))),
    Case("of one distribution, reshaped", "Shard(1) Shard(1)", drawn(lambda s, x, p: s.uniform(x.shape).reshape((p.f, x.shape[0])))),
    Case("softmax of draws, reshaped", "Unknown Unknown", drawn(lambda s, x, p: T.nnet.softmax(s.uniform(x.shape)).reshape((p.f, x.shape[0])))),
    Case("of what a part says", "Unknown Unknown", drawn(lambda s, x, p: s.binomial(x.shape, p=T.nnet.sigmoid(T.alloc(x.sum(0), *x.shape)))), "Shard(0) Shard(0)"),
    Case("dropout", "Shard(0) Shard(0)", drawn(lambda s, x, p: x * s.binomial(x.shape, p=0.5) / 0.5)),
    Case("dropout by one mask", "Unknown Unknown", drawn(lambda s, x, p: x * s.binomial((p.f,), p=0.5))),
    Case("noise", "Partial(avg) Partial(avg)", drawn(lambda s, x, p: T.sqr(x + s.normal(x.shape, std=0.1)).mean()), "Partial(sum) Partial(sum)"),
    Case("half as many as rows, summed", "Unknown Unknown", drawn(lambda s, x, p: s.uniform((x.shape[0] // 2,)).sum())),
    Case("one more than rows", "Unknown Unknown", drawn(lambda s, x, p: s.uniform((x.shape[0] + 1,)).sum())),
    Case("half of ones", U, lambda p: [T.ones((x.shape[0],))[: x.shape[0] // 2].sum() for x in [p.rows()]]),
    Case("a shape that is fixed", "Unknown Unknown", drawn(lambda s, x, p: s.binomial((p.all(ALL_ROWS).shape[0], p.f), p=T.nnet.sigmoid(x)))),
    Case("a restricted Boltzmann machine", "Partial(avg) Partial(avg)", lambda p: _contrastive(p), "Partial(sum) Partial(sum)"),
    Case("a sampler in a loop", "Shard(1)", lambda p: _gibbs(p)),
    Case("a variational bound", "Partial(sum) Partial(sum)", lambda p: _bound(p)),
]  # fmt: skip


def _contrastive(p):
    v, w, b = p.rows(p.f, high=2), p.all(p.f, p.h), p.all(p.h)
    streams = Streams(p)
    s = streams.streams[0]
    h = s.binomial(n=1, p=T.nnet.sigmoid(T.dot(v, w) + b), size=(v.shape[0], p.h), dtype="float64")
    model = s.binomial(n=1, p=T.nnet.sigmoid(T.dot(h, w.T)), size=v.shape, dtype="float64")

    def energy(v):
        return -T.nnet.softplus(T.dot(v, w) + b).sum(axis=1)

    cost = T.mean(energy(v)) - T.mean(energy(model))
    return streams.done(T.grad(cost, [w, b], consider_constant=[model]))


def _gibbs(p):
    v, w = p.rows(p.f, high=2), p.all(p.f, p.h)
    streams = Streams(p)
    s = streams.streams[0]

    def step(v, w):
        h = s.binomial(n=1, p=T.nnet.sigmoid(T.dot(v, w)), size=(v.shape[0], p.h), dtype="float64")
        return s.binomial(n=1, p=T.nnet.sigmoid(T.dot(h, w.T)), size=v.shape, dtype="float64")

    chain, updates = L.scan(step, outputs_info=[v], non_sequences=[w], n_steps=3)
    for state in updates:
        if state not in [one.variable for one in p.inputs]:
            p.given(state, state.get_value(borrow=True))
    return chain


def _bound(p):
    x, w, u = p.rows(p.f), p.all(p.f, p.h), p.all(p.h, p.f)
    streams = Streams(p)
    mean, log_std = T.dot(x, w), T.tanh(T.dot(x, w))
    z = mean + T.exp(log_std) * streams.streams[0].normal(mean.shape)
    divergence = -0.5 * T.sum(1 + 2 * log_std - mean**2 - T.exp(2 * log_std))
    loss = divergence + T.sqr(T.dot(z, u) - x).sum()
    return streams.done(T.grad(loss, [w, u]))


@parametrize(CASES)
def test_placements_are_those_of_the_serial_program(case, exact):
    case.verify(exact, SPLITS[2::3])


def test_a_draw_without_rows_says_so():
    program = Program()
    x = program.rows(3)
    (found,) = placements(program, [x * L.streams(1)[0].uniform((3,))])
    assert "differ from rank to rank" in found.why
