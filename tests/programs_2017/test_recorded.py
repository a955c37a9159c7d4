"""The results of programs of 2017, computed by NumPy, which every later version of the library must reproduce.

Each test is a program in the style of the paper (Stooke & Abbeel 2017) and of its guide, on two real processes with
Theano, written against the published interface alone. NumPy computes the expected results by the rules of the guide.
Rows are divided as evenly as possible; the first ranks get one more if necessary (`numpy.array_split`). ``batch``
selects before rows are divided, ``batch_s`` on every rank afterwards. A function's updates stay on their rank until a
collective moves them. Slices compute from the original values. (One rule differs from 2017: averages are weighted by
rows.)

These tests must not be changed: a version that fails one of them changes the results of users' programs.
"""

import numpy as np
import pytest

import synkhronos as synk

theano = pytest.importorskip("theano")
import theano.tensor as T  # noqa: E402

from synkhronos.extensions import train, updates  # noqa: E402

pytestmark = pytest.mark.theano

#: Python code only, without the C compiler.
MODE = theano.Mode(linker="py", optimizer="fast_compile")

RANDOM = np.random.RandomState(2017)
X, Y = RANDOM.randn(11, 3), RANDOM.randn(11)
COUNTS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], "int32")
PARTS = [slice(0, 6), slice(6, 11)]  # numpy.array_split(numpy.arange(11), 2)


@pytest.fixture(autouse=True)
def two_ranks():
    """A session of two processes."""
    assert synk.fork(2, use_gpu=False) == 2
    yield
    synk.close()


def function(*args, **kwargs):
    """Return the result of `synk.function`, compiled without the C compiler."""
    return synk.function(*args, mode=MODE, **kwargs)


def same(actual, expected):
    """Compare values up to rounding, and shapes."""
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)
    assert np.shape(actual) == np.shape(expected)


def exactly(actual, expected):
    """Compare values exactly, and shapes and dtypes."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)
    assert actual.shape == expected.shape


def on_ranks(shared):
    """Return the values of a shared variable on both ranks."""
    return [shared.get_value(), synk.get_value(1, shared)]


# -- functions ---------------------------------------------------------------------------------------------------------


def test_every_op_of_an_output():
    x, k = T.dmatrix("x"), T.ivector("k")
    f = function(
        [x, k],
        [
            x.mean(axis=0),  # the default op, "avg"
            (x.mean(), "avg"),
            (x.sum(axis=0), "sum"),
            (x.prod(), "prod"),
            (x.min(), "min"),
            (x.max(axis=0), "max"),
            (x * 2, "gather"),
            (x.sum(), "gather"),  # one entry per rank
            (x.sum(), None),  # the master's own result
            (k.sum(), "c_sum"),
            (k, "c_gather"),
        ],
    )
    synk.distribute()
    assert f.output_modes == ["avg", "avg", "sum", "prod", "min", "max", "gather", "gather", None, "c_sum", "c_gather"]
    expected = [
        X.mean(axis=0),
        X.mean(),
        X.sum(axis=0),
        X.prod(),
        X.min(),
        X.max(axis=0),
        X * 2,
        [X[part].sum() for part in PARTS],
        X[PARTS[0]].sum(),
        COUNTS.sum(),
        COUNTS,
    ]
    for arguments in ((X, COUNTS), (synk.data(X), synk.data(COUNTS)), (synk.data(X), COUNTS), (X.tolist(), COUNTS)):
        results = f(*arguments)
        assert len(results) == len(expected)
        for result, value in zip(results, expected):
            same(result, value)
    same(f(X, COUNTS, output_subset=[6, 0])[0], X * 2)
    for result, value in zip(f(X[:1], COUNTS[:1])[:2], (X[0], X[0].mean())):  # with fewer rows than ranks: the master's
        same(result, value)


def test_forms_of_functions():
    """Functions may have no output, one or a dict, and broadcast inputs, scalars, names and givens."""
    x, w, c, given = T.dmatrix("x"), T.dvector("w"), T.dscalar("c"), T.dvector("given")
    assert function([x], updates=[(theano.shared(0.0), x.sum())])(X) in (None, [])
    f = function([x], (x.dot(w) * c + given.sum()).mean(), bcast_inputs=[w, c], givens={given: w * 3}, name="affine")
    v = np.array([0.5, -1.0, 2.0])
    expected = (X.dot(v) * 4 + 3 * v.sum()).mean()
    same(f(X, v, 4.0), expected)
    same(f(c=4.0, w=v, x=X), expected)
    same(f(synk.data(X), synk.data(v), 4.0), expected)
    same(f.as_theano(X, v, 4.0), expected)
    g = function([x], {"rows": (x.sum(axis=1), "gather"), "mean": x.mean()})
    results = g(X)
    assert sorted(results) == ["mean", "rows"]
    same(results["rows"], X.sum(axis=1))
    same(results["mean"], X.mean())
    x_data, w_data, c_data = f.build_inputs(X, v, 4.0)
    same(f(x_data, w_data, c_data), expected)
    assert (x_data.shape, x_data.dtype, w_data.shape) == (X.shape, X.dtype, v.shape)
    same(f.as_theano(x_data, w_data, c_data), expected)


def test_data_is_written_and_grows():
    x = T.dmatrix("x")
    f = function([x], [(x.sum(axis=0), "avg"), (x, "gather")])
    data = synk.data(X[:4], oversize=2)
    for rows in (X[:4], X[:7], X, X[:2]):
        data.set_value(data.condition_data(rows))
        mean_of_sums, everything = f(data)
        exactly(everything, rows)
        n = len(rows) - len(rows) // 2
        same(
            mean_of_sums, (n * rows[:n].sum(axis=0) + (len(rows) - n) * rows[n:].sum(axis=0)) / len(rows)
        )  # the mean of the ranks' results, weighted by rows
    data.set_length(4)
    data[2:] = -1
    exactly(f(data)[1], np.concatenate([X[:2], np.full((2, 3), -1.0)]))
    data[:] = np.asarray(data) * 2  # writing in place sends nothing, and all ranks see the new values
    exactly(f(data)[1], np.concatenate([2 * X[:2], np.full((2, 3), -2.0)]))


# -- batch and slices --------------------------------------------------------------------------------------------------


def test_batch_selects_before_rows_are_divided():
    x, y = T.dmatrix("x"), T.dvector("y")
    f = function([x, y], [(x, "gather"), (y.sum(), "gather"), T.mean(x.sum(axis=1) * y)])
    x_data, y_data = synk.data(X), synk.data(Y)
    order = np.random.RandomState(1).permutation(11)
    forms = [
        (6, np.arange(6)),
        (slice(2, 9), np.arange(2, 9)),
        (slice(None, None, -2), np.arange(10, -1, -2)),
        ([7, 7, 0], np.array([7, 7, 0])),
        (order[:5].tolist(), order[:5]),
        (order[5:10].tolist(), order[5:10]),  # another list with the same number of rows
        (tuple(order[1:6]), order[1:6]),
        (order, order),
        ([-1], np.array([10])),
        (None, np.arange(11)),
    ]
    for xs, ys in ((x_data, y_data), (X, Y)):
        for batch, rows in forms + forms[::-1]:
            everything, sums, mean = f(xs, ys, batch=batch)
            exactly(everything, X[rows])
            same(sums, [Y[part].sum() for part in np.array_split(rows, 2) if len(part)])
            same(mean, np.mean(X[rows].sum(axis=1) * Y[rows]))


def test_a_list_of_rows_that_is_changed_in_place():
    x = T.dmatrix("x")
    f = function([x], (x, "gather"))
    data, rows, array = synk.data(X), [1, 2, 3], np.array([1, 2, 3])
    exactly(f(data, batch=rows), X[[1, 2, 3]])
    rows[0] = 9
    exactly(f(data, batch=rows), X[[9, 2, 3]])
    exactly(f(data, batch=array), X[[1, 2, 3]])
    array[:] = 4
    exactly(f(data, batch=array), X[[4, 4, 4]])


def test_minibatch_data_holds_the_batch():
    x, y = T.dmatrix("x"), T.dvector("y")
    f = function([x, y], [(x, "gather"), (y, "gather")])
    x_data, y_batch = synk.data(X), synk.data(np.zeros(5), minibatch=True)
    for rows in np.random.RandomState(3).randint(0, 11, (3, 5)):
        y_batch[:] = Y[rows]
        for result, expected in zip(f(x_data, y_batch, batch=rows.tolist()), (X[rows], Y[rows])):
            exactly(result, expected)


@pytest.mark.parametrize("num_slices", [1, 2, 3, 11])
def test_slices_give_what_one_call_gives(num_slices):
    """In the validation of a whole set, outputs are accumulated slice by slice, weighted by rows."""
    x, y = T.dmatrix("x"), T.dvector("y")
    total = theano.shared(np.zeros(3), "total")
    f = function(
        [x, y],
        [T.mean(x.dot(total) + y), (x.max(axis=0), "max"), (y.sum(), "sum"), (y, "gather"), (x.min(), "min")],
        updates=[(total, total + x.sum(axis=0), "sum")],
    )
    order = np.random.RandomState(1).permutation(11)
    for batch, rows in ((None, np.arange(11)), (order, order)):
        total.set_value(np.zeros(3))
        synk.broadcast(total)
        mean, top, sum_, everything, low = f(synk.data(X), synk.data(Y), batch=batch, num_slices=num_slices)
        same(mean, Y.mean())  # all slices use the original total, which is 0
        exactly(top, X.max(axis=0))
        same(sum_, Y.sum())
        exactly(everything, Y[rows])
        exactly(low, X.min())
        for value, part in zip(on_ranks(total), np.array_split(rows, 2)):  # applied once on each rank, at the end
            same(value, X[part].sum(axis=0))


def test_two_updates_and_a_default_one_in_slices():
    """Updates without an op are averaged over the slices by rows, like outputs; each goes to its own variable."""
    x = T.dmatrix("x")
    a, b, running = (theano.shared(np.arange(3.0) + i, name) for i, name in enumerate(["a", "b", "running"]))
    running.default_update = 0.5 * running + x.mean(axis=0)
    f = function([x], (x - running).sum(axis=1).mean(), updates=[(a, b + x.mean(axis=0)), (b, a - x.mean(axis=0))])
    values = np.array([[a.get_value(), b.get_value(), running.get_value()]] * 2)
    for num_slices in (1, 4, 2):
        of_ranks = [np.mean((X[part] - rank[2]).sum(axis=1)) for part, rank in zip(PARTS, values)]
        same(f(synk.data(X), num_slices=num_slices), np.average(of_ranks, weights=[6, 5]))
        for part, rank in zip(PARTS, values):
            mean = X[part].mean(axis=0)
            rank[:] = rank[1] + mean, rank[0] - mean, 0.5 * rank[2] + mean
        for i, shared in enumerate((a, b, running)):
            same(on_ranks(shared), values[:, i])


# -- shared variables --------------------------------------------------------------------------------------------------


def test_updates_are_local_until_a_collective_moves_them():
    x, s = T.dmatrix("x"), theano.shared(np.ones(3), "s")
    step = function([x], x.mean(), updates=[(s, s * 0.5 + x.sum(axis=0))])
    synk.distribute()
    sums = [X[part].sum(axis=0) for part in PARTS]
    expected = [np.ones(3), np.ones(3)]
    for _ in range(3):
        same(step(X), X.mean())
        expected = [value * 0.5 + of_rank for value, of_rank in zip(expected, sums)]
        same(on_ranks(s), expected)
    synk.all_reduce(s)  # the default op: avg
    same(on_ranks(s), [np.mean(expected, axis=0)] * 2)
    assert synk.in_sync(s)


def test_every_collective():
    s, t = theano.shared(np.zeros(2), "s"), theano.shared(np.zeros((2, 2)), "t")
    f = function([], [(s, None), (t, None)])
    synk.distribute()
    a, b = np.array([1.0, 6.0]), np.array([4.0, 0.5])

    def set_both():
        s.set_value(a)
        synk.set_value(1, s, b)

    results = dict(avg=(a + b) / 2, sum=a + b, prod=a * b, min=np.minimum(a, b), max=np.maximum(a, b))
    for op, expected in results.items():
        for prefix in ("", "c_"):
            set_both()
            exactly(synk.reduce(s, op=prefix + op, in_place=False), expected)
            exactly(on_ranks(s), [a, b])
            synk.reduce([s], op=prefix + op)
            exactly(on_ranks(s), [expected, b])
            set_both()
            synk.all_reduce([s], op=prefix + op)
            exactly(on_ranks(s), [expected] * 2)
    set_both()
    synk.all_reduce(s, weights=[3, 1])
    exactly(on_ranks(s), [(3 * a + b) / 4] * 2)
    set_both()
    exactly(np.asarray(synk.gather(s)), [a, b])
    exactly(np.asarray(synk.gather(s, nd_up=0)), np.concatenate([a, b]))
    synk.broadcast(s)
    exactly(on_ranks(s), [a, a])
    synk.broadcast([s, t], [b, np.eye(2)])
    exactly(on_ranks(s), [b, b])
    exactly(on_ranks(t), [np.eye(2)] * 2)
    exactly(f()[0], b)
    synk.scatter(s, Y)
    assert synk.get_lengths(s) == [6, 5] and synk.get_shapes(s) == [(6,), (5,)]
    assert [value.tolist() for value in on_ranks(s)] == [Y[part].tolist() for part in PARTS]
    synk.all_gather(s)
    exactly(on_ranks(s), [Y, Y])
    synk.scatter([s], [synk.data(Y)], batch=[9, 0, 2, 4, 4])
    assert [value.tolist() for value in on_ranks(s)] == [Y[[9, 0, 2]].tolist(), Y[[4, 4]].tolist()]
    synk.set_value(1, t, synk.data(X[:, :2]), batch=slice(1, 3))
    exactly(on_ranks(t), [np.eye(2), X[1:3, :2]])
    assert not synk.in_sync(t)


def test_collectives_over_and_over():
    """Every collective writes its result to new memory, and the next collective must read that result."""
    s = theano.shared(np.zeros(3), "s")
    add = function([], updates=[(s, s + 1)])
    synk.distribute()
    values = np.zeros((2, 3))
    for i in range(6):
        synk.set_value(1, s, values[1] + i)
        values[1] += i
        synk.all_reduce(s)
        values[:] = values.mean(axis=0)
        exactly(on_ranks(s), values)
        add()
        values += 1
        exactly(on_ranks(s), values)


def test_batch_s_selects_on_every_rank():
    """Data is scattered once; ``batch_s`` is one selection for all ranks or one for each, also in slices."""
    xs, ys = theano.shared(X[:0], "xs"), theano.shared(Y[:0], "ys")
    x, y = T.dmatrix("x"), T.dvector("y")
    f = function(
        [],
        [(x, "gather"), T.mean(x.sum(axis=1) * y), (y.max(), "max")],
        givens={x: xs, y: ys},
        sliceable_shareds=[xs, ys],
    )
    synk.distribute()
    synk.scatter([xs, ys], [X, Y])
    lists = [[5, 0, 0], [4, 3]]
    selections = [
        (None, [slice(None)] * 2),
        (slice(1, 4), [slice(1, 4)] * 2),
        ([4, 0], [[4, 0]] * 2),
        ([1, 3], [[1, 3]] * 2),  # another list with the same number of rows
        (lists, lists),
        ([slice(0, 2), slice(None, None, 2)], [slice(0, 2), slice(None, None, 2)]),
        ([np.array([2, 2]), np.array([1, 0])], [[2, 2], [1, 0]]),
    ]
    for batch_s, of_ranks in selections + selections[::-1]:
        rows = np.concatenate([np.arange(11)[part][chosen] for part, chosen in zip(PARTS, of_ranks)])
        for num_slices in (1, 2):
            everything, mean, top = f(batch_s=batch_s, num_slices=num_slices)
            exactly(everything, X[rows])
            same(mean, np.mean(X[rows].sum(axis=1) * Y[rows]))
            exactly(top, Y[rows].max())


# -- training ----------------------------------------------------------------------------------------------------------


def gradient(w, rows):
    """Return the gradient of the mean of ``(x.w - y)**2 / 2`` over rows."""
    return X[rows].T.dot(X[rows].dot(w) - Y[rows]) / len(rows)


def loss_of(w, rows):
    """Return the mean of ``(x.w - y)**2 / 2`` over rows."""
    return np.mean((X[rows].dot(w) - Y[rows]) ** 2) / 2


class Line:
    """The expressions of a linear model."""

    def __init__(self):
        self.x, self.y, self.w = T.dmatrix("x"), T.dvector("y"), theano.shared(np.zeros(3), "w")
        self.loss = T.mean((self.x.dot(self.w) - self.y) ** 2) / 2
        self.grad = T.grad(self.loss, self.w)


BATCHES = [np.random.RandomState(epoch).permutation(11)[i : i + 4] for epoch in range(3) for i in (0, 4, 7)]


def test_the_loop_of_the_paper():
    """If batches divide evenly, a step on every rank and the mean of the parameters equal the serial step."""
    m = Line()
    step = function([m.x, m.y], m.loss, updates=[(m.w, m.w - 0.3 * m.grad)])
    synk.distribute()
    x_data, y_data, w = synk.data(X), synk.data(Y), np.zeros(3)
    for rows in BATCHES:
        same(step(x_data, y_data, batch=rows), loss_of(w, rows))
        synk.all_reduce([m.w], op="avg")
        w = w - 0.3 * gradient(w, rows)
        same(on_ranks(m.w), [w, w])


def test_the_three_steps_of_the_guide():
    """The ranks' gradients, their mean weighted by rows, and an update rule equal the serial step, for any batch."""
    m = Line()
    g, v = theano.shared(np.zeros(3), "g"), theano.shared(np.zeros(3), "v")
    compute = function([m.x, m.y], m.loss, updates=[(g, m.grad)])
    new_v = 0.9 * v - 0.1 * g
    apply = function([], updates=[(v, new_v), (m.w, m.w + new_v)])
    synk.distribute()
    x_data, y_data, w, velocity = synk.data(X), synk.data(Y), np.zeros(3), np.zeros(3)
    for rows in BATCHES + [np.array([2, 3, 8]), np.array([5]), np.arange(11)]:
        same(compute(x_data, y_data, batch=rows), loss_of(w, rows))
        synk.all_reduce(g, weights=compute)
        apply()
        velocity = 0.9 * velocity - 0.1 * gradient(w, rows)
        w = w + velocity
        same(on_ranks(m.w), [w, w])


def adam(w, m, v, g, t):
    """Return the parameters and state after a step of Adam (Kingma & Ba 2014) with its defaults."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return w - 0.001 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-8), m, v


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_the_training_function(rule):
    """A callable by `make_train_function` takes the serial steps, also in slices; one call validates all rows."""
    model = Line()
    options = dict(learning_rate=0.2) if rule == "sgd" else {}
    step = train.make_train_function(
        model.loss,
        [model.w],
        model.x,
        model.y,
        getattr(updates, rule),
        outputs=[(model.x.max(), "max")],
        function_options={"mode": MODE},
        **options,
    )
    validate = function([model.x, model.y], model.loss)
    synk.distribute()
    x_data, y_data = synk.data(X), synk.data(Y)
    w, m, v = np.zeros((3, 3))
    for t, rows in enumerate(BATCHES + [np.array([2, 3, 8]), np.array([6])], 1):
        loss, top = step(x_data, y_data, batch=rows, num_slices=2 if t % 3 == 0 and len(rows) > 1 else 1)
        same(loss, loss_of(w, rows))
        exactly(top, X[rows].max())
        g = gradient(w, rows)
        if rule == "sgd":
            w = w - 0.2 * g
        else:
            w, m, v = adam(w, m, v, g, t)
        same(model.w.get_value(), w)
    assert synk.in_sync(step.params + step.state)
    for num_slices in (1, 4):
        same(validate(x_data, y_data, num_slices=num_slices), loss_of(w, np.arange(11)))


def test_training_on_data_that_was_scattered():
    """Training works on a data set in shared variables, with batches by ``batch_s``, as in the guide's second way."""
    m = Line()
    xs, ys = theano.shared(X[:0], "xs"), theano.shared(Y[:0], "ys")
    step = train.make_train_function(
        m.loss,
        [m.w],
        [],
        [],
        updates.sgd,
        0.2,
        givens={m.x: xs, m.y: ys},
        sliceable_shareds=[xs, ys],
        function_options={"mode": MODE},
    )
    synk.distribute()
    synk.scatter([xs, ys], [X, Y])
    w = np.zeros(3)
    for batch_s in ([[0, 1], [0, 1]], [[5, 2, 3], [4]], [3, 2], slice(0, 5), [slice(0, 6), slice(0, 5)]):
        of_ranks = batch_s if isinstance(batch_s, list) and not isinstance(batch_s[0], int) else [batch_s] * 2
        rows = np.concatenate([np.arange(11)[part][chosen] for part, chosen in zip(PARTS, of_ranks)])
        same(step(batch_s=batch_s), loss_of(w, rows))
        w = w - 0.2 * gradient(w, rows)
        same(on_ranks(m.w), [w, w])


def test_communicating_every_third_step():
    """As the paper allows, every rank takes steps with its rows, and parameters are averaged every third step."""
    m = Line()
    step = function([m.x, m.y], m.loss, updates=[(m.w, m.w - 0.2 * m.grad)])
    synk.distribute()
    x_data, y_data, ws = synk.data(X), synk.data(Y), np.zeros((2, 3))
    for i, rows in enumerate(BATCHES):
        parts = np.array_split(rows, 2)
        step(x_data, y_data, batch=rows)
        ws = np.array([w - 0.2 * gradient(w, part) for w, part in zip(ws, parts)])
        if i % 3 == 2:
            synk.all_reduce(m.w)
            ws[:] = ws.mean(axis=0)
        same(on_ranks(m.w), ws)


def test_a_second_order_method():
    """Conjugate gradients with Hessian-vector products over big batches work: the library was first made for them."""
    m, direction = Line(), T.dvector("direction")
    product = function(
        [m.x, m.y],
        T.grad((m.grad * direction).sum(), m.w),
        bcast_inputs=[direction],
        on_unused_input="ignore",
    )
    compute = function([m.x, m.y], m.grad)
    synk.distribute()
    x_data, y_data = synk.data(X), synk.data(Y)
    residual = -compute(x_data, y_data)
    w, search = np.zeros(3), residual
    for _ in range(3):  # as many steps as parameters reach the minimum, up to rounding
        curved = product(x_data, y_data, search)
        same(curved, X.T.dot(X.dot(search)) / 11)
        alpha = residual.dot(residual) / search.dot(curved)
        w, before, residual = w + alpha * search, residual, residual - alpha * curved
        search = residual + residual.dot(residual) / before.dot(before) * search
    np.testing.assert_allclose(w, np.linalg.lstsq(X, Y, rcond=None)[0], rtol=1e-9)
    synk.broadcast(m.w, w)
    same(on_ranks(m.w), [w, w])
