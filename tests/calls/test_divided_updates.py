"""Each rank computes its part of large elementwise updates, and the results are the serial program's.

Expected values come from the library's own function.

Modules: `synkhronos.engines.graph.dividing`.
"""

import numpy as np
import pytest
from library import NAME, L, T

import synkhronos as synk
from synkhronos import engines
from synkhronos.calls.rank_call import CollectivesOfCall
from synkhronos.engines.graph import dividing

pytestmark = getattr(pytest.mark, NAME)

N_IN, N_HIDDEN, N_OUT = 100, 120, 90  # weights of 86 to 96 kB; biases are smaller than the least divided update


def program(function, rule):
    """Return a function that trains a network, and the network's shared variables."""
    rng = np.random.RandomState(0)
    x, y = T.dmatrix("x"), T.dmatrix("y")
    shapes = {"W": (N_IN, N_HIDDEN), "b": (N_HIDDEN,), "V": (N_HIDDEN, N_OUT)}
    w, b, v = params = [L.shared(rng.randn(*shape) / 10, name) for name, shape in shapes.items()]
    error = T.dot(T.tanh(T.dot(x, w) + b), v) - y
    loss = T.sqr(error).mean() + 0.01 * T.sqr(w).sum()
    states, updates = rule(params, T.grad(loss, params))
    return function([x, y], [loss, v.sum()], updates=updates, mode=L.Mode("py", "fast_compile")), params + states


def zeros_like(params, what="state"):
    return [L.shared(np.zeros(param.get_value().shape), f"{what} of {param.name}") for param in params]


def sgd(params, gradients):
    return [], [(param, param - 0.1 * g) for param, g in zip(params, gradients)]


def momentum(params, gradients):
    states, updates = zeros_like(params), []
    for param, g, velocity in zip(params, gradients, states):
        new = 0.9 * velocity - 0.1 * g
        updates += [(velocity, new), (param, param + 0.9 * new - 0.1 * g)]
    return states, updates


def adam(params, gradients):
    means, squares, t = zeros_like(params), zeros_like(params, "square"), L.shared(np.zeros(()), "t")
    updates = [(t, t + 1)]
    step = 0.01 * T.sqrt(1 - 0.999 ** (t + 1)) / (1 - 0.9 ** (t + 1))
    for param, g, m, s in zip(params, gradients, means, squares):
        new_m, new_s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g**2
        updates += [(m, new_m), (s, new_s), (param, param - step * new_m / (T.sqrt(new_s) + 1e-8))]
    return [t, *means, *squares], updates


def norm_of(*values):
    return T.sqrt(sum(T.sqr(value).sum() for value in values))


def clipped(params, gradients):
    """Each rank adds up the squares of its parts of the gradients."""
    return sgd(params, [g * T.minimum(1.0, 0.1 / norm_of(*gradients)) for g in gradients])


def lars(params, gradients):
    """LARS: each layer's rate follows from the norms of its weights and gradients."""
    states, updates = zeros_like(params), []
    for param, g, velocity in zip(params, gradients, states):
        rate = 0.1 * norm_of(param) / (norm_of(g) + 0.01 * norm_of(param) + 1e-9)
        new = 0.9 * velocity - rate * (g + 0.01 * param)
        updates += [(velocity, new), (param, param + new)]
    return states, updates


def lamb(params, gradients):
    """LAMB with clipped gradients: the norm of all gradients first, then those of each layer's weights and step."""
    scale = 1 / T.maximum(1.0, norm_of(*gradients) / 0.1)
    means, squares, updates = zeros_like(params), zeros_like(params, "square"), []
    for param, g, m, s in zip(params, gradients, means, squares):
        new_m, new_s = 0.9 * m + 0.1 * scale * g, 0.999 * s + 0.001 * (scale * g) ** 2
        step = new_m / (T.sqrt(new_s) + 1e-3) + 0.01 * param
        ratio = T.switch(T.gt(norm_of(step), 0), norm_of(param) / norm_of(step), 1.0)
        updates += [(m, new_m), (s, new_s), (param, param - 0.01 * ratio * step)]
    return [*means, *squares], updates


def guarded(params, gradients):
    """Weights with a large element in their gradient do not change; some batches have such elements, and some do not."""
    w, b, v = [param - 0.1 * g for param, g in zip(params, gradients)]
    w = T.switch(T.all(T.le(abs(gradients[0]), 0.02)), w, params[0])
    v = T.switch(T.any(T.gt(abs(gradients[2]), 0.02)), params[2], v)
    return [], list(zip(params, (w, b, v)))


def bounded(params, gradients):
    """The norm of new weights is bounded; a norm also scales a value that is not computed element by element."""
    news = [param - 0.1 * g for param, g in zip(params, gradients)]
    w, b, v = [new * T.minimum(1.0, 3.0 / norm_of(new)) for new in news]
    w += 1e-3 * T.dot(params[0] / norm_of(params[0]), T.ones((N_HIDDEN, N_HIDDEN)))
    return [], list(zip(params, (w, b, v)))


def averaged(params, gradients):
    averages = zeros_like(params)
    return averages, sgd(params, gradients)[1] + [(a, 0.9 * a + 0.1 * param) for a, param in zip(averages, params)]


def by_columns(params, gradients):
    """A mean over an axis is subtracted from the gradient; each rank computes that whole, and takes its part."""
    return [], [(p, p - 0.1 * (g - g.mean(0, keepdims=True))) for p, g in zip(params, gradients)]


def turned(params, gradients):
    """A transposed value is added; its part is not the transposed part."""
    w, _, _ = params
    square = L.shared(np.arange(1e4).reshape(100, 100) / 1e4, "square")
    total = gradients[0].sum()
    return [square], [(square, square + 0.1 * square.T + total), (w, w - 0.1 * gradients[0])]


WORLDS = [("threads", 3, 1), ("fork", 2, 0), ("threads", 1, 0), ("2 uneven hosts", 3, 1)]


@pytest.fixture(params=WORLDS, ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param, engine=NAME)


def notes_of(function):
    """Return the notes to updates in a function's table, by variable."""
    return {row.label: str(row).partition("Replicate")[2].strip() for row in function.sharding().updates}


@pytest.fixture
def small_norms(monkeypatch):
    """Let functions compute norms in parts although the weights are small; the biases are still smaller."""
    monkeypatch.setattr(dividing, "DIVIDED_FROM_BYTES", 1 << 14)


RULES = [sgd, momentum, adam, clipped, lars, lamb, guarded, bounded, averaged, by_columns, turned]
ROWS = [np.random.RandomState(1).permutation(40)[:n] for n in (40, 17, 5, 2, 1)]  # also fewer rows than ranks


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_training_equals_the_serial_program(world, small_norms, rule):
    rng = np.random.RandomState(2)
    x, y = rng.randn(40, N_IN), rng.randn(40, N_OUT)
    serial, expected = program(L.function, rule)
    outputs = [serial(x[rows], y[rows]) for rows in ROWS + ROWS]
    parallel, shareds = program(lambda *args, **kwargs: synk.function(*args, exact=True, **kwargs), rule)
    flags = dict(zip([shared.name for shared in shareds], [False] * len(shareds)))
    updated = engines.get(NAME).updated_in(parallel._variants.snapshot)
    reasons = engines.get(NAME).why_whole(parallel.on_ranks)
    flags.update(zip([shared.name for shared in updated], [not reason for reason in reasons]))
    assert flags["W"] and not flags["b"]
    assert sum(flags.values()) == {momentum: 4, averaged: 4, adam: 6, lars: 4, lamb: 6}.get(rule, 2)
    got = [parallel(x[rows], y[rows]) for rows in ROWS]
    got += list(zip(*parallel.steps(x, y, batches=ROWS)))
    np.testing.assert_allclose(np.array(got, float), np.array(outputs, float), rtol=1e-9)
    for shared, one in zip(shareds, expected):
        np.testing.assert_allclose(shared.get_value(), one.get_value(), rtol=1e-8, atol=1e-12)
        assert synk.in_sync(shared)


@pytest.mark.slow
def test_a_variable_that_a_function_updates_in_place_is_divided_too(world):
    """Its new values pass through common memory, and each rank gets a copy."""
    serial, expected = program(L.function, momentum)
    parallel, shareds = program(lambda *args, **kwargs: synk.function(*args, exact=True, **kwargs), momentum)
    w, of_serial = shareds[0], expected[0]
    mode = L.Mode("py", "fast_compile")
    twice = synk.function([], updates=[(w, w * 2.0)], mode=mode, exact=False)
    twice_serially = L.function([], updates=[(of_serial, of_serial * 2.0)], mode=mode)
    rng = np.random.RandomState(3)
    x, y = rng.randn(6, N_IN), rng.randn(6, N_OUT)
    for _ in range(3):
        twice(), twice_serially()
        for _ in range(3):
            serial(x, y), parallel(x, y)
    np.testing.assert_allclose(w.get_value(), of_serial.get_value(), rtol=1e-8, atol=1e-12)
    assert synk.in_sync(w)


@pytest.mark.parametrize("is_reduced", [False, True], ids=["whole", "reduced"])
def test_values_of_another_shape_are_refused_as_in_the_serial_program(world, is_reduced):
    """The elements of a matrix and of its transpose could be combined one by one as vectors."""
    outcomes = []
    for function in (L.function, lambda *args, **kwargs: synk.function(*args, exact=True, **kwargs)):
        w, v = L.shared(np.ones((100, 120)), "w"), L.shared(np.full((120, 100), 2.0), "v")
        x = T.dmatrix("x")
        other = x.mean() * v if not is_reduced else T.dot(x[:, :120].T, x[:, 120:])
        f = function([x], x.sum(), updates=[(w, w - other)], mode=L.Mode("py", "fast_compile"))
        with pytest.raises(Exception) as raised:
            f(np.ones((6, 220)))
        outcomes.append(isinstance(raised.value, (ValueError, synk.WorkerError)))
        np.testing.assert_array_equal(w.get_value(), np.ones((100, 120)))
    assert outcomes == [True, True]


@pytest.mark.parametrize("shard_updates", [None, True, False])
def test_the_switch(make_world, monkeypatch, shard_updates):
    """A function from an earlier session computes all elements, or parts of them, as this session requires."""
    right, computed = CollectivesOfCall.part, []

    def part(call, size):
        begin, end = right(call, size)
        computed.append((end - begin) / size)
        return begin, end

    monkeypatch.setattr(CollectivesOfCall, "part", part)
    rng = np.random.RandomState(4)
    x, y = rng.randn(6, N_IN), rng.randn(6, N_OUT)
    serial, expected = program(L.function, momentum)
    parallel, shareds = program(lambda *args, **kwargs: synk.function(*args, exact=True, **kwargs), momentum)
    for how in (not shard_updates, shard_updates):
        make_world("threads", 2, 0, engine=NAME, shard_updates=how)
        computed.clear()
        parallel(x, y)
        parallel.steps(x, y, n_steps=2)
        for _ in range(3):
            serial(x, y)
        of_large = "whole: shard_updates is False" if how is False else "divided by elements"
        assert notes_of(parallel)["W"] == notes_of(parallel)["state of V"] == of_large
        assert notes_of(parallel)["b"] == "whole: smaller than 65,536 bytes"
        assert min(computed) == (1 if how is False else pytest.approx(0.5, abs=0.01))
        synk.close()
    for shared, one in zip(shareds, expected):
        np.testing.assert_allclose(shared.get_value(), one.get_value(), rtol=1e-8, atol=1e-12)


#: The collectives of gradients, as numbers of arrays and bytes on each rank; one of them also reduces the loss.
OF_WEIGHTS, OF_BIASES = (2, 8 * (N_IN + N_OUT) * N_HIDDEN), (2, 8 * N_HIDDEN + 8)
#: By rule: all collectives. Two sums are in the outputs: that of the squares of W, and that of V.
COLLECTIVES = {
    sgd: {OF_WEIGHTS, OF_BIASES, (2, 2 * 8)},
    clipped: {OF_WEIGHTS, OF_BIASES, (4, 4 * 8)},
    lars: {OF_WEIGHTS, OF_BIASES, (5, 5 * 8)},
    lamb: {OF_WEIGHTS, OF_BIASES, (5, 5 * 8), (2, 2 * 8)},
    guarded: {OF_WEIGHTS, OF_BIASES, (2, 2 * 8), (1, 1)},
    by_columns: {(3, 8 * N_IN * N_HIDDEN + OF_BIASES[1]), (1, 8 * N_OUT * N_HIDDEN), (2, 2 * 8)},  # W's gradient whole
}


@pytest.mark.parametrize("rule", COLLECTIVES, ids=lambda rule: rule.__name__)
def test_the_table_has_the_collectives_of_the_graph(make_world, small_norms, rule):
    """An all_reduce of arrays that are needed whole or in parts becomes two, with the bytes of all their arguments."""
    parallel, _ = program(lambda *args, **kwargs: synk.function(*args, exact=True, **kwargs), rule)
    assert set(parallel.sharding().nbytes) == {None}
    make_world("threads", 3, 0, engine=NAME)
    parallel(np.ones((7, N_IN)), np.ones((7, N_OUT)))
    table = parallel.sharding()
    found = {(len(each.variables), nbytes) for each, nbytes in zip(table.collectives, table.nbytes)}
    assert found == COLLECTIVES[rule], table
    if rule is sgd:
        assert {tuple(each.updates) for each in table.collectives} == {("W", "V"), ("b",), ()}
    synk.close()
    make_world("threads", 3, 0, engine=NAME, shard_updates=False)
    parallel(np.ones((7, N_IN)), np.ones((7, N_OUT)))
    of_sums = {(n, nbytes) for n, nbytes in COLLECTIVES[rule] if nbytes < 100}
    whole = COLLECTIVES[rule] - of_sums | {(n, 0) for n, _ in of_sums}  # each rank computes norms from all elements
    table = parallel.sharding()
    assert {(len(each.variables), nbytes) for each, nbytes in zip(table.collectives, table.nbytes)} == whole


def test_a_gradient_is_reduced_once_in_a_function_without_whole_values(make_world, small_norms):
    make_world("threads", 2, 0, engine=NAME)
    x, w = T.dmatrix("x"), L.shared(np.ones((N_IN, N_HIDDEN)), "w")
    g = T.dot(x[:, :N_IN].T, x[:, N_IN:])
    f = synk.function([x], [], updates=[(w, w - g / norm_of(g, w))], exact=True, mode=L.Mode("py", "fast_compile"))
    values = np.random.RandomState(5).randn(5, N_IN + N_HIDDEN)
    f(values)
    gradient = np.dot(values[:, :N_IN].T, values[:, N_IN:])
    norm = np.sqrt(np.square(gradient).sum() + N_IN * N_HIDDEN)
    np.testing.assert_allclose(w.get_value(), 1 - gradient / norm)
    assert f.sharding().nbytes == [8 * N_IN * N_HIDDEN, 2 * 8]


def test_norms_of_small_arrays_need_no_collective(make_world):
    make_world("threads", 3, 0, engine=NAME)
    parallel, _ = program(lambda *args, **kwargs: synk.function(*args, exact=True, **kwargs), sgd)
    parallel(np.ones((7, N_IN)), np.ones((7, N_OUT)))
    assert sorted(parallel.sharding().nbytes) == [OF_BIASES[1], OF_WEIGHTS[1]]


def test_the_table_gives_reasons(make_world):
    x = T.dmatrix("x")
    w, v, u, k = [
        L.shared(np.ones((100, 100), dtype), name) for name, dtype in zip("wvuk", ["float64"] * 3 + ["int64"])
    ]
    updates = [(w, w - x.mean()), (v, T.dot(v, u)), (u, v * 2), (k, k + 1)]
    f = synk.function([x], x.sum(), updates=updates, exact=True, mode=L.Mode("py", "fast_compile"))
    elsewhere = "whole: not computed from its old value element by element"
    assert notes_of(f) == {"w": "divided by elements", "v": elsewhere, "u": elsewhere, "k": "whole: dtype int64"}
    make_world("threads", 1, 0, engine=NAME)
    assert notes_of(f)["w"] == "whole: each rank has its own memory" and notes_of(f)["v"] == elsewhere
