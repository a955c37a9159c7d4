"""Functions whose graphs contain the number of rows as a constant: ``rows=`` of `function` and of `fork`.

Expected values come from the same function, built by the engine alone and called with all rows.

Modules: `synkhronos.engines.graph.reading`, `synkhronos.engines.graph.unread_rows`,
`synkhronos.engines.graph.written_lengths`, `synkhronos.engines.graph.written_means`,
`synkhronos.engines.graph.written_rows`, `synkhronos.engines.theano.written_rows`,
`synkhronos.engines.pytensor.written_rows`.
"""

import pickle

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T, needs_theano
from refusals import refuses
from twins import Twins

import synkhronos as synk

pytestmark = getattr(pytest.mark, NAME)

#: Not divisible by 3, and initially also the width of a layer, so both readings of the number are possible.
N = 8
FAST = dict(mode=L.quick)


def data(seed=0):
    random = np.random.RandomState(seed)
    return random.randn(N, 4), random.randint(0, N, N).astype("int32")


def probabilities(x):
    """Return a softmax whose number of classes is the number of rows."""
    return T.nnet.softmax(T.dot(x, L.shared(np.random.RandomState(1).randn(4, N), "w")))


def test_positions_that_are_kept(small_world):
    """Updates of sharded variables by integer positions, which might also be indices, equal the serial ones."""

    def build():
        y, k = T.ivector("y"), L.shared(np.arange(N) * 100, "k")
        return y, k, [(k, k * 2 + y * T.arange(N) + T.arange(N))]

    (y, ours, updates), (z, theirs, serial) = build(), build()
    g = L.function([z], [], updates=serial, **FAST)
    for exact in (True, False):
        f = synk.function([y, synk.sharded(ours)], updates=updates, exact=exact, rows=N, **FAST)
        f(data()[1]), g(data()[1])
        np.testing.assert_array_equal(ours.get_value(), theirs.get_value())


def one_hot(y):
    return T.eq(y.dimshuffle(0, "x"), T.arange(N))


def both_readings(x, y):
    """Return an expression that uses the same positions as rows, as classes and as numbers."""
    positions, p = T.arange(N), probabilities(x)
    return p[positions, y] + (T.eq(y.dimshuffle(0, "x"), positions) * p).sum(axis=1) + positions * x[:, 0]


EXPRESSIONS = {
    "arange": lambda x, y: probabilities(x)[T.arange(N), y],
    "arange of a product": lambda x, y: T.log(probabilities(x)).flatten()[T.arange(N) * N + y],
    "positions as numbers": lambda x, y: T.arange(N) * x[:, 0] + T.lt(T.arange(N), 3),
    "positions as integers": lambda x, y: y + T.arange(N),
    "positions in sums of products": lambda x, y: T.arange(N) * 3 - (y * T.arange(N) + 1),
    "reshape": lambda x, y: x.reshape((N, 2, 2)).sum(axis=2),
    "reshape with -1": lambda x, y: x.reshape((N, 2, 2)).reshape((N, -1)),
    "reshape of merged rows": lambda x, y: T.tanh(x.reshape((N * 2, 2))).reshape((N, 4)),
    "reshape of two equal lengths": lambda x, y: probabilities(x).reshape((N, N)),
    "all in one axis": lambda x, y: x.reshape((N * 4,)),
    "ones": lambda x, y: T.concatenate([x, T.ones((N, 1), x.dtype)], axis=1),
    "as many ones": lambda x, y: T.concatenate([x, T.ones((N, N), x.dtype)], axis=1),
    "an array alone, along another axis": lambda x, y: x.T * np.arange(N) + y,
    "its rows first": lambda x, y: (x.T * np.arange(N)).T,
    "zeros": lambda x, y: T.inc_subtensor(T.zeros((N, N), x.dtype)[:, 1:5], x),
    "alloc": lambda x, y: T.alloc(np.float64(2), N, 4) * x,
    "alloc of a row": lambda x, y: T.alloc(x.mean(axis=0), N, 4) - x,
    "zeros like a reshape": lambda x, y: T.zeros_like(x.reshape((N, 4))) + x,
    "its shape": lambda x, y: T.zeros(x.reshape((N, 4)).shape, x.dtype) + x,
    "slice": lambda x, y: x[:N] * x,
    "array": lambda x, y: x * np.arange(4.0 * N).reshape(N, 4),
    "eye": lambda x, y: T.eye(N, dtype=x.dtype)[y] * probabilities(x),
    "classes": lambda x, y: one_hot(y) * probabilities(x),
    "both": both_readings,
    "sum by hand": lambda x, y: T.sqr(x).sum() / N,
    "variance by hand": lambda x, y: T.sqr(x - x.sum(axis=0) / N).sum(axis=0) / N,
    "repeat": lambda x, y: T.repeat(T.ones((1, 4), x.dtype), N, axis=0) * x,
    "assertion": lambda x, y: T.specify_shape(x, (N, 4)) * 2,
}

#: Cases whose values would differ if a rank used only its own rows.
NEED_ALL_ROWS = {"arange of a product", "variance by hand", "alloc of a row"}


def both(name):
    """Return the exact function of an expression and its serial function."""

    def build():
        x, y = T.dmatrix("x"), T.ivector("y")
        return dict(inputs=[x, y], outputs=EXPRESSIONS[name](x, y), on_unused_input="ignore")

    return synk.function(**build(), exact=True, rows=N, **FAST), L.function(**build(), **FAST)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions(small_world, name):
    f, g = both(name)
    for seed in range(2):
        np.testing.assert_allclose(f(*data(seed)), g(*data(seed)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_in_steps(threads, name):
    """Steps, whose output shapes are determined in advance, return the serial values."""
    f, g = both(name)
    expected = g(*data())
    for k in (1, 3):
        try:
            found = f.steps(*data(), n_steps=2, num_slices=k)
        except synk.errors.ArgumentError as error:
            assert error.argument == "num_slices" and name in NEED_ALL_ROWS
        else:
            np.testing.assert_allclose(found, [expected] * 2, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", sorted(set(EXPRESSIONS) - NEED_ALL_ROWS))
def test_plain_functions_follow_the_same_numbers(threads, name):
    x, y = T.dmatrix("x"), T.ivector("y")
    f = synk.function([x, y], EXPRESSIONS[name](x, y), rows=N, on_unused_input="ignore", **FAST)
    assert f.compare(*data())


def test_a_network_as_wide_as_the_batch(small_world):
    def build():
        x, y = T.dmatrix("x"), T.ivector("y")
        random = np.random.RandomState(3)
        params = [L.shared(random.randn(5, N), "w"), L.shared(random.randn(N + 1, N), "v")]
        ones = T.ones((N, 1), x.dtype)
        hidden = T.tanh(T.dot(T.concatenate([x.reshape((N, 4)), ones], axis=1), params[0]))
        p = T.nnet.softmax(T.dot(T.concatenate([hidden.reshape((N, N)), ones], axis=1), params[1]))
        loss = -T.sum(T.log(p)[T.arange(N), y]) / N + T.sqr(one_hot(y) - p).sum() / (N * N)
        updates = [(param, param - 0.1 * gradient) for param, gradient in zip(params, T.grad(loss, params))]
        return params, dict(inputs=[x, y], outputs=loss, updates=updates)

    twins = Twins(build, exact=True, rows=N, **FAST)
    for seed in range(3):
        twins.call(*data(seed))


def loop():
    x, y = T.dtensor3("x"), T.dmatrix("y")
    random = np.random.RandomState(4)
    params = [L.shared(random.randn(3, N), "w"), L.shared(random.randn(N, N), "u")]

    def step(now, hidden, total):
        now = T.concatenate([now, T.ones((N, 1), now.dtype)], axis=1)[:, :3]
        hidden = T.tanh(T.dot(now, params[0]) + T.dot(hidden, params[1]) + T.zeros((N, N), now.dtype))
        return hidden, total + hidden.reshape((N, N))

    first = [T.zeros((N, N), x.dtype), T.alloc(np.float64(0), N, N)]
    (_, totals), _ = L.scan(step, sequences=x.dimshuffle(1, 0, 2), outputs_info=first)
    loss = T.sqr(totals[-1][:, :2] - y).sum() / N
    updates = [(param, param - 0.01 * gradient) for param, gradient in zip(params, T.grad(loss, params))]
    return params, dict(inputs=[x, y], outputs=loss, updates=updates)


def test_loops_with_numbers_in_their_steps(small_world):
    twins = Twins(loop, exact=True, rows=N, **FAST)
    random = np.random.RandomState(5)
    for _ in range(2):
        twins.call(random.randn(N, 4, 3), random.randn(N, 2))


def test_rows_along_another_axis(threads):
    x, w = T.dtensor3("x"), L.shared(np.random.RandomState(6).randn(3, 2), "w")
    out = T.dot(x.reshape((5 * N, 3)), w).reshape((5, N, 2)) * T.ones((1, N, 1), x.dtype)
    f = synk.function([synk.sharded(x, axis=1)], out, rows=N, exact=True, **FAST)
    value = np.random.RandomState(7).randn(5, N, 3)
    np.testing.assert_allclose(f(value), np.dot(value, w.get_value()))


@pytest.mark.parametrize("kind", [0, 1])
def test_every_rank_draws_for_its_own_rows(threads, kind):
    stream, x = L.streams(11)[kind], T.dmatrix("x")
    draws = [stream.normal((N, 4)), stream.binomial((N, 4), p=0.5), stream.uniform((N, 4))]
    f = synk.function([x], [T.cast(draw, "float64") * x for draw in draws], rows=N, exact=True, **FAST)
    normal, binomial, uniform = f(np.ones((N, 4)))
    assert normal.shape == binomial.shape == uniform.shape == (N, 4)
    assert len(set(normal.ravel())) == len(set(uniform.ravel())) == 4 * N  # no two ranks draw the same numbers
    assert set(binomial.ravel()) == {0.0, 1.0}


# -- the number of rows of a call --------------------------------------------------------------------------------------


def averaged(**options):
    x, w = T.dmatrix("x"), L.shared(np.zeros(4), "w")
    total = (x * T.ones((N, 1), x.dtype)).sum(axis=0)
    options = {"exact": True, "rows": N, **FAST, **options}
    return synk.function([x], [total, x.reshape((N * 2, 2))], updates=[(w, w + total)], name="f", **options), w


def test_a_call_with_other_rows_is_refused_and_changes_nothing(small_world):
    f, w = averaged()
    x = np.random.RandomState(8).randn(3 * N, 4)
    for n in (N - 1, N + 1, 2 * N, 1, 0):
        with refuses(ValueError, "rows", expected=str(N), got=str(n)):
            f(x[:n])
        with refuses(ValueError, "rows", expected=str(N), got=str(n)):
            f.compare(x[:n])
    with refuses(ValueError, "rows", got=str(N + 1)):
        f(x, batch=N + 1)
    assert not w.get_value().any()
    np.testing.assert_allclose(f(x, batch=slice(0, 2 * N, 2))[0], x[: 2 * N : 2].sum(axis=0))
    np.testing.assert_allclose(synk.gather(w, nd_up=1), [x[: 2 * N : 2].sum(axis=0)] * small_world.n)


def test_every_step_has_as_many_rows(threads):
    f, w = averaged()
    x = np.random.RandomState(9).randn(3 * N, 4)
    with refuses(ValueError, "rows, with batches[2]", got=str(N - 1)):  # a shorter last batch
        f.steps(x, batches=[slice(0, N), slice(N, 2 * N), slice(2 * N, 3 * N - 1)])
    with refuses(ValueError, "rows", got=str(3 * N)):
        f.steps(x, n_steps=2)
    assert not w.get_value().any()
    totals, _ = f.steps(x, batches=[slice(0, N), slice(N, 2 * N), slice(2 * N, 3 * N)])
    np.testing.assert_allclose(totals, x.reshape(3, N, 4).sum(axis=1))
    np.testing.assert_allclose(w.get_value(), x.sum(axis=0))


def test_slices_have_their_share_of_the_numbers(threads):
    f, w = averaged()
    x, _ = data()
    for k in range(1, 4):
        total, parts = f(x, num_slices=k)
        np.testing.assert_allclose(total, x.sum(axis=0))
        np.testing.assert_allclose(parts, x.reshape(2 * N, 2))
        np.testing.assert_allclose(synk.gather(w, nd_up=1), [k * x.sum(axis=0)] * 3)


def test_fewer_rows_than_ranks(threads):
    x = T.dmatrix("x")
    f = synk.function([x], x.reshape((2, 2, 2)).sum(axis=0), rows=2, exact=True, **FAST)
    value = np.random.RandomState(10).randn(2, 4)
    np.testing.assert_allclose(f(value), value.reshape(2, 2, 2).sum(axis=0))


def test_one_row(threads):
    x = T.dmatrix("x")
    f = synk.function([x], T.sqr(x).sum(), rows=1, exact=True, **FAST)
    np.testing.assert_allclose(f([[1.0, 2.0]]), 5)
    with refuses(ValueError, "rows", got="2"):
        f([[1.0, 2.0], [3.0, 4.0]])


def test_copies_and_pickles_keep_the_number(threads):
    f, _ = averaged()
    x = np.random.RandomState(12).randn(2 * N, 4)
    for other in (f.copy(), pickle.loads(pickle.dumps(f))):
        np.testing.assert_allclose(other(x[:N])[0], x[:N].sum(axis=0))
        assert other.sharding().written == f.sharding().written
        with refuses(ValueError, "rows", got=str(2 * N)):
            other(x)


def test_the_master_has_the_serial_function(threads):
    f, _ = averaged(exact=None)
    x, _ = data()
    np.testing.assert_allclose(f.as_theano(x)[0], x.sum(axis=0))
    with pytest.raises(Exception):  # noqa: B017, of a library with its own: the number is written there
        f.as_theano(np.zeros((N + 1, 4)))


def test_sharding_shows_where_it_is_written(threads):
    f, _ = averaged()
    assert str(f.sharding()).splitlines()[1] == f"rows {N}: read as each rank's share in mul of x; reshape of x"
    x = T.dmatrix("x")
    g = synk.function([x], x.sum(), rows=N, **FAST)
    assert str(g.sharding()).splitlines()[1] == f"rows {N}"


def test_rows_of_shared_variables(threads):
    rows = L.shared(np.random.RandomState(13).randn(N, 4), "rows")
    value = rows.get_value()
    f = synk.function([], rows.reshape((N, 2, 2)).sum(axis=2), sliceable_shareds=[rows], rows=N, exact=True, **FAST)
    synk.scatter(rows, value)
    np.testing.assert_allclose(f(), value.reshape(N, 2, 2).sum(axis=2))
    with refuses(ValueError, "rows", got="3"):
        f(batch_s=slice(0, 1))


def test_rows_that_the_function_divides_itself(threads):
    every, i, x = L.shared(np.random.RandomState(14).randn(20, 4), "every"), T.lscalar("i"), T.dmatrix("x")
    own = synk.ops.shard(every[i * N : (i + 1) * N])
    f = synk.function([i], x.reshape((N, 2, 2)).sum(axis=2), givens={x: own}, rows=N, exact=True, **FAST)
    np.testing.assert_allclose(f(1), every.get_value()[N : 2 * N].reshape(N, 2, 2).sum(axis=2))
    with refuses(ValueError, "rows", got="4"):
        f(2)


# -- functions that are not exact --------------------------------------------------------------------------------------


def descent(divided, **options):
    x, y = T.dmatrix("x"), T.dvector("y")
    w = L.shared(np.random.RandomState(15).randn(4), "w")
    loss = divided(T.sqr(T.dot(x, w) - y).sum()) + 0.01 * T.sqr(w).sum()
    f = synk.function([x, y], loss, updates=[(w, w - 0.1 * T.grad(loss, w))], **options, **FAST)
    return f, w


@pytest.mark.parametrize(
    "divided", [lambda total: total / N, lambda total: total * (1.0 / N), lambda total: 3 * total / (2 * N)]
)
def test_each_rank_divides_by_its_own_rows(threads, divided):
    random = np.random.RandomState(16)
    x, y = random.randn(N, 4), random.randn(N)
    f, w = descent(divided, rows=N)
    g, v = descent(divided, exact=True)
    assert f.output_modes == ["avg"]
    np.testing.assert_allclose(f(x, y), g(x, y))
    values = synk.gather(w, nd_up=1)
    assert abs(values[0] - values[1]).max() > 1e-3  # each rank has applied its own update
    weights = np.array(f.last_rows) / N
    np.testing.assert_allclose(weights @ values, v.get_value(), rtol=1e-12)


def test_sums_of_complex_numbers_are_divided(threads):
    x = L.variable("complex128", 2, "x")
    f = synk.function([x], [x.sum(axis=0) / np.complex128(N), ((x * 1j).sum(), "sum")], rows=N, **FAST)
    value = data()[0] * (1 + 2j)
    means, total = f(value)
    np.testing.assert_allclose(means, value.mean(axis=0))
    np.testing.assert_allclose(total, value.sum() * 1j)


def test_an_axis_of_length_1_that_a_type_does_not_say(threads):
    x, p = T.bmatrix("x"), T.bvector("p")
    column = p.dimshuffle(0, "x")
    f = synk.function([x], [T.tensordot(T.triu(column), column, axes=2), x], [p], exact=True, rows=N, **FAST)
    value = np.arange(64, dtype="int8") % 5
    np.testing.assert_array_equal(f(np.ones((N, 2), "int8"), value)[0], value[0] ** 2)


def test_an_op_that_is_given_stays(threads):
    x = T.dmatrix("x")
    f = synk.function([x], [(x.sum() / N, "sum"), (x.sum() / N, "avg"), x.sum() / N], rows=N, **FAST)
    value, _ = data()
    np.testing.assert_allclose(f(value), [value.sum() / N] * 3)


def test_a_number_that_may_be_either_is_refused(threads):
    x = T.dmatrix("x")
    for total in (T.dot(x, x.T).sum() / N, (T.dot(x, x.T) + T.ones((N, N), x.dtype)).sum()):
        with refuses(ValueError, "rows", got=f"{N} in ", hint="x.shape[0]"):
            synk.function([x], (total, "avg"), rows=N, **FAST)


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["arange", "reshape", "ones", "zeros", "array"])
@pytest.mark.parametrize("exact", [False, True])
def test_without_a_number_the_error_says_which(threads, name, exact):
    x, y = T.dmatrix("x"), T.ivector("y")
    # Nothing indicates that an array's length is the number of rows.
    got = "all rows" if name == "array" else f"rows={N}"
    with refuses(TypeError, got=got):
        synk.function([x, y], EXPRESSIONS[name](x, y), exact=exact, on_unused_input="ignore", **FAST)
    w = L.shared(np.zeros(N), "w")
    with refuses(ValueError, "the update of w", got=got):
        synk.function(
            [x, y],
            updates=[(w, w + EXPRESSIONS[name](x, y).sum())],
            exact=True,
            on_unused_input="ignore",
            **FAST,
        )


@pytest.mark.parametrize("rows, error", [(0, ValueError), (-3, ValueError), (2.5, TypeError), (True, TypeError)])
def test_arguments(rows, error):
    x = T.dmatrix("x")
    with refuses(error, "rows"):
        synk.function([x], x.sum(), rows=rows, **FAST)
    with refuses(error, "rows"):
        synk.fork(2, rows=rows)


def test_fork_says_it_for_all_functions(make_world):
    make_world("threads", 3, 1, engine=NAME, rows=N)
    x = T.dmatrix("x")
    written, free = (synk.function([x], out, **FAST) for out in (x.reshape((N, -1)).sum(axis=1), x.sum(axis=1)))
    value = np.random.RandomState(17).randn(2 * N, 4)
    np.testing.assert_allclose(written(value[:N]), value[:N].sum(axis=1))
    np.testing.assert_allclose(free(value), value.sum(axis=1))  # no literal number of rows: any number is valid
    with refuses(ValueError, "rows", got=str(2 * N)):
        written(value)
    own = synk.function([x], x.reshape((N + 1, -1)).sum(axis=1), rows=N + 1, **FAST)
    np.testing.assert_allclose(own(value[: N + 1]), value[: N + 1].sum(axis=1))


# -- properties of operations, and of types ----------------------------------------------------------------------------


@pytest.mark.skipif(IS_THEANO, reason="Theano's types have no lengths")
def test_lengths_of_types(threads):
    x = T.TensorType("float64", shape=(N, 4))("x")
    w = L.shared(np.random.RandomState(18).randn(4, 3), "w")
    out = T.dot(T.concatenate([x, T.ones((x.shape[0], 1))], axis=1)[:, :4], w)
    f = synk.function([x], [out, (out.sum(axis=0) / x.shape[0])], rows=N, exact=True, **FAST)
    value, _ = data()
    want = value @ w.get_value()
    got = f(value)
    np.testing.assert_allclose(got[0], want)
    np.testing.assert_allclose(got[1], want.mean(axis=0))


@needs_theano
@pytest.mark.parametrize("rows", [None, N])
@pytest.mark.parametrize("exact", [False, True])
def test_shapes_of_convolutions(threads, rows, exact):
    """Results are correct, although Theano takes the number of all rows from a convolution's ``input_shape``."""
    x, w = T.dtensor4("x"), L.shared(np.random.RandomState(19).randn(2, 1, 3, 3), "w")
    images = T.nnet.conv2d(x, w, input_shape=(N, 1, 5, 5), filter_shape=(2, 1, 3, 3))
    outputs = [images.mean(), images.flatten(2).sum(axis=1), T.zeros_like(images) + 1, T.grad(T.sqr(images).mean(), w)]
    options = dict(mode=L.module.Mode("cvm", "fast_run"))
    f = synk.function([x], outputs, rows=rows, exact=exact, **options)
    value = np.random.RandomState(20).randn(N, 1, 5, 5)
    g = L.function([x], outputs, **options)
    for got, want in zip(f(value), g(value)):
        np.testing.assert_allclose(got, want)
