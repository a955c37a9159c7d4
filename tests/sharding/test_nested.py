"""Loops, conditions, nested graphs, and collectives that programs contain.

Modules: `synkhronos.engines.graph.rules.nested`.
"""

from functools import partial

import pytest
from library import L, T
from simulated import ALL_ROWS, Case, Program, parametrize, placements

import synkhronos as synk

pytestmark = pytest.mark.thorough

S, R, P, A, U = "Shard(0)", "Replicate", "Partial(sum)", "Partial(avg)", "Unknown"


def steps(p, *shape):
    """Return an input with time, rows, and more axes."""
    return p.rows(3, *shape, axis=1)


def recurrent(p, x, initial, **kwargs):
    """Return the states of a recurrent network, and its parameters."""
    w, v = p.all(p.f, p.h), p.all(p.h, p.h)
    states, _ = L.scan(lambda x_t, h, w, v: T.tanh(T.dot(x_t, w) + T.dot(h, v)), [x], [initial(x)], [w, v], **kwargs)
    return states, w, v


def zeros(p):
    return lambda x: T.zeros((x.shape[1], p.h))


def grads(states, *params):
    return T.grad(T.sqr(states).mean(), list(params))


def lstm(p, x):
    w, v, b = p.all(p.f, 4 * p.h), p.all(p.h, 4 * p.h), p.all(4 * p.h)

    def step(x_t, h, c, w, v, b):
        gates = T.dot(x_t, w) + T.dot(h, v) + b
        i, f, o, g = (gates[:, k * p.h : (k + 1) * p.h] for k in range(4))
        c = T.nnet.sigmoid(f) * c + T.nnet.sigmoid(i) * T.tanh(g)
        return T.nnet.sigmoid(o) * T.tanh(c), c

    initial = T.zeros((x.shape[1], p.h))
    (h, _), _ = L.scan(step, [x], [initial, initial], [w, v, b])
    return h, w, v, b


def _attending(how, p):
    """Return a loop's states with attention to a context, the last state, and the gradients of three parameters."""
    context, mask, y = p.rows(3, 4, axis=1), p.rows(3, axis=1, low=1, high=3), p.rows(2, 4, axis=1)
    to_context, to_state, to_score = p.all(4, 3), p.all(4, 3), p.all(3, 1)

    def step(now, h, context, projected, mask, to_state, to_score):
        scores = T.dot(T.tanh(projected + T.dot(h, to_state)[None, :, :]), to_score)
        if how == "indexed":
            scores = scores[:, :, 0]
        else:
            times = scores.shape[2] if how == "reshaped by a product" else 1
            scores = scores.reshape([scores.shape[0], scores.shape[1] * times])
        scores = T.exp(scores) * mask
        weights = scores / scores.sum(0, keepdims=True)
        return T.tanh(now + h + (context * weights[:, :, None]).sum(0))

    fixed = [context, T.dot(context, to_context), mask, to_state, to_score]
    h, _ = L.scan(step, [y], [T.zeros_like(y[0])], fixed)
    return h, h[-1], *grads(h, to_context, to_state, to_score)


CASES = [
    # -- loops ---------------------------------------------------------------------------------------------------------
    Case("steps in time", "Shard(1) Shard(0)", lambda p: [[h, h[-1]] for h, *_ in [recurrent(p, steps(p, p.f), zeros(p))]][0]),
    Case("steps in time, batch-major", "Shard(0)", lambda p: [h.dimshuffle(1, 0, 2) for h, *_ in [recurrent(p, p.rows(3, p.f).dimshuffle(1, 0, 2), zeros(p))]]),
    Case("backwards", "Shard(1)", lambda p: recurrent(p, steps(p, p.f), zeros(p), go_backwards=True)[0]),
    Case("gradients", "Partial(avg) Partial(avg)", lambda p: grads(*recurrent(p, steps(p, p.f), zeros(p))), "Partial(sum) Partial(sum)"),
    Case("gradients, backwards", "Partial(avg) Partial(avg)", lambda p: grads(*recurrent(p, steps(p, p.f), zeros(p), go_backwards=True)), "Partial(sum) Partial(sum)"),
    Case("gradients, truncated", "Partial(avg) Partial(avg)", lambda p: grads(*recurrent(p, steps(p, p.f), zeros(p), truncate_gradient=2)), "Partial(sum) Partial(sum)"),
    Case("gradients of the last state", "Partial(avg) Partial(avg)", lambda p: [grads(h[-1], w, v) for h, w, v in [recurrent(p, steps(p, p.f), zeros(p))]][0], "Partial(sum) Partial(sum)"),
    Case("gradients to the sequence", "Shard(1)", lambda p: [T.grad(T.sqr(recurrent(p, x, zeros(p))[0]).mean(), x) for x in [steps(p, p.f)]]),
    Case("initial states that are learned", "Shard(1) Partial(avg)", lambda p: [[h, T.grad(T.sqr(h).mean(), h0)] for h0 in [p.all(p.h)] for h, *_ in [recurrent(p, steps(p, p.f), lambda x, h0=h0: T.alloc(h0, x.shape[1], p.h))]][0], "Shard(1) Partial(sum)"),
    Case("initial states by a product of ones", "Shard(1) Partial(avg)", lambda p: [[h, T.grad(T.sqr(h).mean(), h0)] for h0 in [p.all(1, p.h)] for h, *_ in [recurrent(p, steps(p, p.f), lambda x, h0=h0: T.dot(T.ones((x.shape[1], 1)), h0))]][0], "Shard(1) Partial(sum)"),
    Case("initial states that are rows", "Shard(1)", lambda p: [recurrent(p, steps(p, p.f), lambda x, h0=h0: h0)[0] for h0 in [p.rows(p.h)]]),
    Case("an initial state without rows", U, lambda p: L.scan(lambda x, h: h + x.sum(1), [steps(p, p.f)], [p.all(ALL_ROWS)])[0]),
    Case("several states", "Shard(1)", lambda p: lstm(p, steps(p, p.f))[0]),
    Case("gradients of several states", "Partial(avg) Partial(avg) Partial(avg)", lambda p: grads(*lstm(p, steps(p, p.f))), "Partial(sum) Partial(sum) Partial(sum)"),
    Case("several outputs before", "Shard(1)", lambda p: L.scan(lambda x, one, two: x + one * two, [steps(p, p.f)], [{"initial": T.ones((2, p.inputs[-1].variable.shape[1], p.f)), "taps": [-1, -2]}])[0]),
    Case("sequences before and after", "Shard(1)", lambda p: L.scan(lambda one, two, h: h + one * two, [{"input": steps(p, p.f), "taps": [-1, 0]}], [T.zeros_like(p.inputs[-1].variable[0])])[0]),
    Case("without states", "Shard(1) Partial(sum)", lambda p: L.scan(lambda x: [x * 2, x.sum(0)], [steps(p, p.f)])[0]),
    Case("sums of parts over time", "Partial(sum) Partial(avg)", lambda p: L.scan(lambda x, s, m: [s + x.sum(0), m + x.mean(0)], [steps(p, p.f)], [T.zeros((p.f,)), T.zeros((p.f,))])[0], "Partial(sum) Partial(avg)"),
    Case("sums of parts that do not start at zero", U, lambda p: L.scan(lambda x, s: s + x.sum(0), [steps(p, p.f)], [p.all(p.f)])[0]),
    Case("parts that are squared inside", U, lambda p: L.scan(lambda x: T.sqr(x.sum(0)), [steps(p, p.f)])[0]),
    Case("a chain of states", " ".join([P] * 6), lambda p: L.scan(lambda x, *s: [s[0] + x.sum(0), *s[:-1]], [steps(p, p.f)], [T.zeros((p.f,)) for _ in range(6)])[0]),
    Case("a chain of states that ends in a square", " ".join([U] * 6), lambda p: L.scan(lambda x, *s: [s[0] + x.sum(0), *s[:-2], T.sqr(s[-2])], [steps(p, p.f)], [T.zeros((p.f,)) for _ in range(6)])[0]),
    Case("over rows", U, lambda p: L.scan(lambda x: x * 2, [p.rows(p.f)])[0]),
    Case("as often as there are rows", U, lambda p: [L.scan(lambda w: w * 2, outputs_info=[p.all(p.f)], n_steps=x.shape[0])[0] for x in [p.rows(p.f)]], empty=False),
    Case("a power", "Shard(1)", lambda p: [L.scan(lambda y, x: y * x, outputs_info=[T.ones_like(x)], non_sequences=[x], n_steps=3)[0] for x in [p.rows(p.f)]]),
    Case("without rows", R, lambda p: L.scan(lambda w, h: T.tanh(w * h), [p.all(3, p.f)], [p.all(p.f)])[0]),
    Case("until a number of steps", "Shard(1)", lambda p: L.scan(lambda x, t, h: ([t + 1, h + x], L.until(t > 0.5)), [steps(p, p.f)], [T.zeros(()), T.zeros_like(p.inputs[-1].variable[0])])[0][1]),
    Case("until a part is large", U, lambda p: L.scan(lambda x, h: (h + x, L.until(x.sum() > 1)), [steps(p, p.f)], [T.zeros_like(p.inputs[-1].variable[0])])[0]),
    Case("until a largest element is", U, lambda p: L.scan(lambda x: (x.sum(), L.until(x.max() > 0.5)), [steps(p, p.f)])[0], empty=False),
    Case("until there are rows", U, lambda p: L.scan(lambda x, h: (h + 1, L.until(h > x.shape[0])), [steps(p, p.f)], [T.zeros(())])[0]),
    Case("numbers of rows inside", "Partial(avg) Shard(1)", lambda p: L.scan(lambda x: [x.sum(0) / x.shape[0], x + T.zeros((x.shape[0], 1))], [steps(p, p.f)])[0]),
    Case("a count inside", "Unknown", lambda p: L.scan(lambda x: x.shape[0].astype("float64"), [steps(p, p.f)])[0]),
    Case("a mask", "Shard(1) Partial(avg)", lambda p: _masked(p), "Shard(1) Partial(sum)"),
    *[
        Case(f"attention in each step, scores {how}", "Shard(1) Shard(0) Partial(avg) Partial(avg) Partial(avg)", partial(_attending, how), "Shard(1) Shard(0) Partial(sum) Partial(sum) Partial(sum)")
        for how in ("reshaped", "reshaped by a product", "indexed")
    ],
    Case("a loop in a loop", "Shard(1)", lambda p: [L.scan(lambda x, w=w: L.scan(lambda w, s, x: s + w * x, [w], [T.zeros_like(x)], [x])[0][-1], [steps(p, p.f)])[0] for w in [p.all(2, p.f)]]),
    Case("map and reduce", "Shard(1) Shard(0)", lambda p: [L.map(lambda x: T.tanh(x), [steps(p, p.f)])[0], L.reduce(lambda x, s: s + x, [steps(p, p.f)], [T.zeros_like(p.inputs[0].variable[0])])[0]]),
    Case("a loop that needs the whole of a part", "Unknown", lambda p: [L.scan(lambda x, h, m: T.tanh(x + h / (1 + T.sqr(m))), [steps(p, p.f)], [T.zeros_like(p.inputs[0].variable[0])], [p.rows(p.f).mean(0)])[0]], "Shard(1)"),
    Case("a loop through the whole of a part", "Unknown", lambda p: [L.scan(lambda m, h: T.tanh(m + h), [p.rows(4, p.f).sum(0)], [p.all(p.f)])[0]], R),
    Case("a loop over rows", U, lambda p: L.map(lambda x: T.tanh(x), [p.rows(p.f)])[0]),
    # -- conditions ----------------------------------------------------------------------------------------------------
    Case("a condition", "Shard(0) Partial(sum) Replicate", lambda p: [L.ifelse(c, x, 2 * x) for c in [p.all() > 0] for x in [p.rows(p.f)]] + [L.ifelse(p.all() > 0, p.rows(p.f).sum(0), T.zeros((p.f,))), L.ifelse(p.all() > 0, p.all(p.f), p.all(p.f))]),
    Case("a condition on a part", U, lambda p: [L.ifelse(x.sum() > 0, x, 2 * x) for x in [p.rows(p.f)]], S),
    Case("a condition on the number of rows", U, lambda p: [L.ifelse(T.gt(x.shape[0], 3), x, 2 * x) for x in [p.rows(p.f)]], S),
    Case("a condition on a row", U, lambda p: [L.ifelse(x[0] > 0, x, 2 * x) for x in [p.rows()]], empty=False),
    Case("a part or what all have", U, lambda p: L.ifelse(p.all() > 0, p.rows(p.f).sum(0), p.all(p.f)), R),
    Case("rows or what all have", U, lambda p: L.ifelse(p.all() > 0, p.rows(p.f), p.all(ALL_ROWS, p.f))),
    Case("rows or rows twice", U, lambda p: [L.ifelse(p.all() > 0, x, T.concatenate([x, x])) for x in [p.rows(p.f)]]),
    Case("rows or rows of two", U, lambda p: [L.ifelse(p.all() > 0, x, T.repeat(x, 2, axis=0)) for x in [p.rows(p.f)]]),
    Case("zeros or ones", "Shard(0)", lambda p: [L.ifelse(p.all() > 0, T.zeros_like(x), T.ones_like(x)) for x in [p.rows(p.f)]]),
    Case("ones or zeros", "Shard(0) Shard(0)", lambda p: [L.ifelse(c, *both) for c in [p.all() > 0] for x in [p.rows(p.f)] for both in [(x, T.zeros_like(x)), (T.zeros_like(x), x)]]),
    Case("labels or positions", U, lambda p: [L.ifelse(p.all() > 0, y, T.arange(y.shape[0])) for y in [p.rows(dtype="int64", high=3)]]),
    Case("gradient of a condition", A, lambda p: [T.grad(L.ifelse(p.all() > 0, T.sqr(x * w), x * w).mean(), w) for x in [p.rows(p.f)] for w in [p.all(p.f)]], P),
    # -- graphs --------------------------------------------------------------------------------------------------------
    Case("a graph", "Shard(0) Partial(sum)", lambda p: [op(p.rows(p.f), p.all(p.f)) for op in [_graph(lambda a, b: [T.tanh(a + b)])]] + [op(p.rows(p.f), p.all(p.f)) for op in [_graph(lambda a, b: [(a * b).sum(0)])]]),
    Case("a graph that needs all rows", U, lambda p: [op(p.rows(p.f), p.all(p.f)) for op in [_graph(lambda a, b: [a - a.mean(0) * b])]], pytensor=(U, S)),
    Case("a graph with a number of rows", "Partial(avg)", lambda p: [op(p.rows(p.f), p.all(p.f)) for op in [_graph(lambda a, b: [(a * b).mean(0)])]]),
    Case("a graph that counts rows", "Size", lambda p: _graph(lambda a, b: [a.shape[0], b])(p.rows(p.f), p.all(p.f))[0], U, pytensor=("Size", "Size")),
    Case("a graph that chooses elements", U, lambda p: _graph(lambda a, b: [a[T.gt(a, 0)], b])(p.rows(p.f), p.all(p.f))[0], pytensor=(U, S)),
    Case("a graph of a part", U, lambda p: [_graph(lambda a, b: [a * T.exp(b)])(p.rows(p.f), p.rows(p.f).mean(0))], S),
    Case("gradient of a graph", A, lambda p: [T.grad(T.sqr(op(p.rows(p.f), w)).mean(), w) for op in [_graph(lambda a, b: [T.tanh(a * b)])] for w in [p.all(p.f)]], P),
    # -- collectives ---------------------------------------------------------------------------------------------------
    Case("all_reduce", "Replicate Replicate", lambda p: [synk.ops.all_reduce(p.rows(p.f).sum(0), "sum"), T.exp(synk.ops.all_reduce(p.rows(p.f).mean(0), "avg"))]),
]  # fmt: skip


def _masked(p):
    x, mask, w = steps(p, p.f), p.rows(3, axis=1, high=2), p.all(p.f)

    def step(x_t, m_t, h, w):
        return T.switch(T.neq(m_t, 0).dimshuffle(0, "x"), T.tanh(x_t * w + h), h)

    h, _ = L.scan(step, [x, mask], [T.zeros_like(x[0])], [w])
    return h, T.grad(T.sqr(h).mean(), w)


def _graph(build):
    a, b = T.dmatrix(), T.dvector()
    return L.OpFromGraph([a, b], build(a, b))


@parametrize(CASES)
def test_placements_are_those_of_the_serial_program(case, exact):
    case.verify(exact)


def test_a_collective_of_rows_is_refused_in_an_exact_graph():
    program = Program()
    total = synk.ops.all_reduce(program.rows(3), "sum")
    assert [str(one) for one in placements(program, [total])] == [R]
    (found,) = placements(program, [total], exact=True)
    assert "own rows" in found.why


def test_a_placement_that_does_not_settle_is_not_guessed():
    """In each round, one more state changes from zero to partial, as often as there are states."""
    program = Program()
    x = program.rows(3, 2, axis=1)
    states, _ = L.scan(lambda x, *s: [s[0] + x.sum(0), *s[:-1]], [x], [T.zeros((2,)) for _ in range(9)])
    assert {str(one) for one in placements(program, states)} == {P}
