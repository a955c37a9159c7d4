"""Functions with ``exact=True`` yield the serial program's outputs and updates on every rank, or are refused.

Expected values come from the same function, built by the engine alone and called with all rows.

Modules: `placement_table`, `synkhronos.engines.graph.table`.
"""

import functools
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from library import NAME, L, T, needs_theano
from refusals import refuses, reports
from regression import by_signs, descent, regression, rows
from trainers import updates as rules
from twins import Twins

import synkhronos as synk
from synkhronos.engines.graph import lengths

ROOT = Path(__file__).parents[2]

pytestmark = [getattr(pytest.mark, NAME), pytest.mark.thorough("threads-1")]

#: Numbers of rows: even, uneven, fewer than ranks, one.
ROWS = [6, 7, 2, 1, 5, 4]
FAST = dict(mode=L.quick)


def check(build, n_collectives=None):
    """Compare calls with all numbers of rows to serial calls; return the `Twins`."""
    twins = Twins(build, exact=True, **FAST)
    for i, n in enumerate(ROWS):
        twins.call(*rows(n, i))
    if n_collectives is not None:
        assert len(twins.f._variants.collectives.ops) == n_collectives
    return twins


@pytest.mark.thorough(but="-(sgd|adam)$|3-(.*momentum|rmsprop)")
@pytest.mark.parametrize("rule", ["sgd", "momentum", "nesterov_momentum", "adagrad", "rmsprop", "adadelta", "adam"])
def test_every_rule_of_lasagne(small_world, rule):
    def updates(loss, params):
        return getattr(rules, rule)(loss, params, learning_rate=0.1)

    check(regression(updates), 1)


def test_constraints_and_weight_decay(small_world):
    def updates(loss, params):
        loss = loss + 0.1 * sum(T.sqr(param).sum() for param in params)
        grads = rules.total_norm_constraint(T.grad(loss, params), 0.5)
        found = rules.apply_nesterov_momentum(rules.sgd(grads, params, 0.1), momentum=0.9)
        found[params[0]] = rules.norm_constraint(found[params[0]], 0.7)
        return found

    check(regression(updates), 1)


@pytest.mark.parametrize(
    "loss_of, n_collectives",
    [
        (lambda error: T.sqr(error).sum(), 1),
        (lambda error: abs(error).mean(), 1),
        (lambda error: T.log(1 + T.sqr(error).sum()), 2),  # the gradient needs the whole sum, then its own sum
        (lambda error: T.sqrt(T.sqr(error).mean()), 2),
        (lambda error: T.sqr(error - error.mean(axis=0)).mean(), None),
        (lambda error: error.var(axis=0).sum() + T.sqr(error.mean()), None),
        (lambda error: abs(error).max(), None),
    ],
    ids=["sum", "mean", "log of a sum", "root of a mean", "without the mean", "variance", "maximum"],
)
def test_losses(threads, loss_of, n_collectives):
    check(regression(descent, loss_of), n_collectives)


def test_normalisation_by_the_rows_of_all(small_world):
    def predict(x, w):
        z = T.dot(x, w)
        centred = z - z.mean(axis=0, keepdims=True)
        return centred / T.sqrt(T.sqr(centred).mean(axis=0, keepdims=True) + 0.1)

    check(regression(descent, predict=predict))


@pytest.mark.parametrize(
    "output",
    [
        lambda i: T.cast(T.cast(i.sum(), "uint8"), "int64"),
        lambda i: T.cast(T.cast(i.sum(), "uint8"), "float64") / 2,
        lambda i: T.cast(T.cast(i * 40, "int8").sum(dtype="int8"), "int64"),
        lambda i: T.cast(T.cast(i.max(), "uint8"), "int64") + T.cast(i.max(), "int32"),
        lambda i: T.cast(i.max() * 100, "int8"),
        lambda i: T.cast(i.sum(), "uint8"),
    ],
    ids=["unsigned", "to float", "small sum", "unsigned maximum", "small maximum", "not widened"],
)
@pytest.mark.skipif(not L.casts_wrap_around, reason="PyTensor 3.0 refuses such casts in Python code")
def test_small_integers_wrap_around_as_in_the_serial_program(threads, output):
    i = T.lvector("i")
    f, g = synk.function([i], output(i), exact=True, **FAST), L.function([i], output(i), **FAST)
    for value in ([-1, -1, -1, 3, 3, 3], [2, 2, 2, -1, -1, -1, 3, 3, 1], [-5, 1]):
        np.testing.assert_array_equal(f(value), g(value))


@pytest.mark.parametrize(
    "output",
    [
        lambda a, b: (a.sum() - b.sum()) / 2.0,
        lambda a, b: (a.sum() - b.sum()) * 0.5,
        lambda a, b: T.cast(a.sum() - b.sum(), "float64"),
        lambda a, b: T.cast((T.cast(a, "int64") - b).sum(), "uint64") * 0.5,
        lambda a, b: -(a + b).max(),
        lambda a, b: T.sum(a * 20 + b, dtype="uint8") * 0.5,
        lambda a, b: T.sum(a * 20 + b, dtype="uint8").dimshuffle("x").sum(),
        lambda a, b: T.dot(a, b) * 0.5,
        lambda a, b: T.cast(T.cast(a * 16_000_000 + b, "uint32").max(), "int32"),
        lambda a, b: a.sum() - b.sum(),
    ],
    ids="halves factor cast unsigned negative narrow-factor narrow-sum dot maximum raw".split(),
)
@pytest.mark.skipif(not L.casts_wrap_around, reason="PyTensor 3.0 refuses such casts in Python code")
def test_unsigned_and_narrow_integers(threads, output):
    """Results are correct even if ranks' parts are negative or too large for the type and the total is not."""
    inputs = [T.bvector("a"), T.bvector("b")]
    made = output(*[T.cast(one, "uint8") for one in inputs])
    f, g = synk.function(inputs, made, exact=True, **FAST), L.function(inputs, made, **FAST)
    some, none = [1, 1, 9, 9, 1, 1], [0] * 6
    for values in ([9, 1, 9, 1, 9, 1], some), ([90, 70, 1, 2, 3, 120], some), ([0, 0, 5, 0, 3, -56], none), ([7], [2]):
        given = np.array(values, "int8")
        np.testing.assert_array_equal(f(*given), g(*given))


def test_what_is_asserted_of_all_rows(threads):
    x = T.dvector("x")
    f = synk.function([x], T.opt.Assert("six")(x, T.eq(x.shape[0], 6)).sum(), exact=True, **FAST)
    assert f(np.ones(6)) == 6
    with reports(AssertionError, "six"):
        f(np.ones(4))


def test_rows_are_counted_without_a_collective(threads):
    def updates(loss, params):
        x = rows_of
        return {total: total + x.shape[0], params[0]: params[0] / x.shape[0]}

    rows_of = T.dmatrix("x")
    total = L.shared(np.int64(0), "total")
    w = L.shared(np.ones(2), "w")
    f = synk.function([rows_of], updates=updates(None, [w]), exact=True, on_unused_input="ignore", **FAST)
    assert f._variants.collectives.ops == []
    f(np.zeros((7, 3)))
    f(np.zeros((1, 3)))
    assert synk.gather(total, nd_up=1).tolist() == [8, 8, 8]
    np.testing.assert_allclose(synk.gather(w, nd_up=1), np.full((3, 2), 1 / 7))


@pytest.mark.parametrize("num_slices", [1, 2])
def test_updates_without_collectives_are_made_on_ranks_without_rows_too(threads, num_slices):
    def build():
        x, w, count = T.dmatrix("x"), L.shared(np.ones(2), "w"), L.shared(np.int64(0), "count")
        updates = [(w, 0.9 * w + x.shape[1]), (count, count + (2 * x).shape[1])]
        return [w, count], dict(inputs=[x], outputs=[w.sum(), T.sqr(x).mean(axis=1)], updates=updates)

    twins = Twins(build, exact=True, **FAST)
    for n in (7, 2, 3, 1)[: 5 - num_slices]:
        got, want = twins.f(rows(n)[0], num_slices=num_slices), twins.g(rows(n)[0])
        for one, other in zip(got, want):
            np.testing.assert_allclose(one, other, rtol=1e-12)
        twins.compare()
    assert twins.f._variants.collectives.ops == []
    twins.f.steps(rows(7)[0], batches=[[0], [4, 1, 2, 3]])
    for batch in ([0], [4, 1, 2, 3]):
        twins.g(rows(7)[0][batch])
    twins.compare()


def test_outputs_beside_updates(small_world):
    """An output may be a partial value, or may be computed from its total."""

    def outputs(loss):
        return [loss, T.exp(loss)]

    twins = Twins(regression(descent, outputs=outputs), exact=True, **FAST)
    assert twins.f.output_modes == ["avg", "avg"]
    for i, n in enumerate(ROWS):
        twins.call(*rows(n, i))


def test_steps(small_world):
    twins = Twins(regression(by_signs), exact=True, **FAST)
    args = rows(9)
    batches = [[0, 1, 2, 3, 4], [5, 6, 7], [8], [8, 0, 4, 2]]
    got = twins.f.steps(*args, batches=batches)
    want = [twins.g(*(arg[batch] for arg in args)) for batch in batches]
    np.testing.assert_allclose(got, want, rtol=1e-10)
    twins.compare()


def test_rows_of_sliceable_shared_variables(threads):
    def build(shared):
        w = L.shared(np.ones(2), "w")
        loss = T.log(T.sqr(T.dot(shared, w) - 1).sum())
        return w, loss, {w: w - 0.1 * T.grad(loss, w)}

    s, all_rows = L.shared(np.zeros((0, 2)), "s"), L.shared(np.arange(14.0).reshape(7, 2))
    ours, loss, updates = build(s)
    f = synk.function([], loss, updates=updates, sliceable_shareds=[s], exact=True, **FAST)
    other, loss, updates = build(all_rows)
    g = L.function([], loss, updates=updates, **FAST)
    synk.scatter(s, np.arange(14.0).reshape(7, 2))
    for _ in range(3):
        np.testing.assert_allclose(f(), g(), rtol=1e-12)
        np.testing.assert_allclose(synk.gather(ours, nd_up=1), [other.get_value()] * 3, rtol=1e-12)
    np.testing.assert_allclose(
        f(batch_s=[[0], [0], []]), np.log((np.array([[0, 1], [6, 7]]) @ other.get_value() - 1) ** 2 @ np.ones(2))
    )


@pytest.mark.parametrize("axis", [0, 1])
def test_a_rank_that_has_no_row_of_the_data(threads, axis):
    """A rank without rows computes with one row that does not count, since a maximum of no rows is an error."""
    y, c = T.dvector("y"), L.shared(np.zeros((1, 1)), "c")
    column, data = (c[:, 0], [c]) if axis == 0 else (c[0], [synk.sharded(c, 1)])
    outputs = [T.dot(y, column), T.log(column).sum(), column.max() + y.max()]
    f = synk.function([y], outputs, sliceable_shareds=data, exact=True, **FAST)
    alone = synk.function([], column.max(), sliceable_shareds=data, exact=True, **FAST)
    synk.scatter(c, np.array([[2.0], [3.0]]) if axis == 0 else np.array([[2.0, 3.0]]), axis=axis)
    for options in ({}, {"num_slices": 2}):
        np.testing.assert_allclose(f([5.0, 1.0], **options), [13, np.log(6), 8])
        assert alone(**options) == 3
    rows = [[0] if rank == threads.root else [] for rank in range(threads.n)]
    np.testing.assert_allclose(f([5.0], batch_s=rows)[0], 5 * synk.get_value(threads.root, c)[0, 0])


def test_a_rank_that_has_no_row_of_some_of_the_data(threads):
    """A rank that has rows of some shared variables, but none of another one, does not affect the results."""
    data, labels = L.shared(np.ones((4, 3)), "data"), L.shared(np.arange(4.0), "labels")
    outputs = [(T.dot(data, np.arange(3.0)) - labels).mean(), (data.T * labels).max(axis=1)]
    f = synk.function([], outputs, sliceable_shareds=[data, labels], exact=True, **FAST)
    synk.scatter(data, np.full((1, 3), 5.0))
    rows = [[0, 0] if rank == threads.root else [] for rank in range(threads.n)]
    for found in (f(batch_s=rows), [each[0] for each in f.steps(batches_s=[rows])]):
        np.testing.assert_allclose(found[0], 15)
        np.testing.assert_allclose(found[1], 0)


def test_rows_of_other_lengths_are_refused(threads):
    """Shared variables with different numbers of rows are refused: means divide by the call's number of rows."""
    y, c, d = T.dvector("y"), L.shared(np.zeros(2), "c"), L.shared(np.zeros(2), "d")
    f = synk.function([], (c - c.mean()).max() + d.sum(), sliceable_shareds=[c, d], exact=True, **FAST)
    g = synk.function([y], [(c - c.mean()).max(), y.max()], sliceable_shareds=[c], exact=True, **FAST)
    plain = synk.function([], [c.mean(), d.mean()], sliceable_shareds=[c, d], **FAST)
    synk.scatter(c, np.arange(4.0)), synk.scatter(d, np.arange(8.0))
    for each in (f, plain, lambda: f.steps(n_steps=2)):
        with refuses(ValueError, "sliceable_shareds", "length", "[2, 3] on rank 0", "batch_s"):
            each()
    with refuses(ValueError, "batch_s", "rows", hint="select"):
        g(np.arange(5.0))
    firsts = np.mean([[synk.get_value(rank, each)[0] for each in (c, d)] for rank in range(threads.n)], axis=0)
    np.testing.assert_allclose(plain(batch_s=[[0]] * threads.n), firsts)
    np.testing.assert_allclose(g(np.arange(4.0)), [1.5, 3])


def test_a_collective_of_the_programs_own_says_where_the_whole_is_wanted(threads):
    def updates(loss, params, op):
        grads = synk.ops.all_reduce(T.grad(loss, params), op)
        return {param: param - 0.1 * grad for param, grad in zip(params, grads)}

    for op in ("avg", "sum"):
        check(regression(functools.partial(updates, op=op)), 1)


def test_alone_on_the_master_it_makes_the_default_updates_of_when_it_was_built():
    x, seen, total = T.dvector("x"), L.shared(np.int64(1), "seen"), L.shared(0.0, "total")
    seen.default_update = seen + 1
    f = synk.function([x], updates=[(total, T.sqr(x.sum() * seen))], exact=True, **FAST)
    seen.default_update = None
    f.as_theano([1.0, 2.0])
    assert total.get_value() == 9 and seen.get_value() == 2


def test_before_fork_and_on_the_master_alone():
    twins = Twins(regression(by_signs), exact=True, **FAST)
    np.testing.assert_allclose(twins.f.as_theano(*rows(7)), twins.g(*rows(7)))
    synk.fork(2, use_gpu=False)
    try:
        twins.call(*rows(5))
    finally:
        synk.close()


def test_a_copy_is_exact(threads):
    twins = Twins(regression(by_signs), exact=True, **FAST)
    twins.call(*rows(5))
    original, twins.f = twins.f, twins.f.copy()
    twins.call(*rows(4))
    twins.f = original
    twins.call(*rows(2))


def test_a_function_from_a_pickle_is_exact(threads):
    twins = Twins(regression(by_signs), exact=True, **FAST)
    twins.call(*rows(5))
    f = pickle.loads(pickle.dumps(twins.f))  # with its own variables
    (w, b), (v, c) = twins.params, sorted(f.get_shared(), key=lambda shared: -shared.ndim)
    for n in (4, 1, 7):
        np.testing.assert_allclose(f(*rows(n)), twins.f(*rows(n)), rtol=1e-12)
        np.testing.assert_array_equal(synk.gather(v, nd_up=1), synk.gather(w, nd_up=1))
        np.testing.assert_array_equal(synk.gather(c, nd_up=1), synk.gather(b, nd_up=1))


def test_a_part_that_is_used_several_times_in_slices(threads):
    x = T.dmatrix("x")
    total = x.sum()
    a, b, c = [L.shared(0.0, name) for name in "abc"]
    f = synk.function([x], total, updates=[(a, total), (b, total), (c, c + T.mul(total, total))], exact=True, **FAST)
    np.testing.assert_allclose(f(np.ones((7, 3)), num_slices=2), 21)
    assert synk.gather(a).tolist() == synk.gather(b).tolist() == [21] * 3
    assert synk.gather(c).tolist() == [21**2] * 3


def test_a_call_in_slices_that_fails_leaves_random_states_as_they_are(threads):
    too_large = np.where(np.arange(11) % 4 == 3, 8, 0)
    for stream in L.streams(1):
        i = T.lvector("i")
        w = L.shared(np.ones(8), "w")
        drawn = w[i] * stream.uniform(i.shape)
        f = synk.function([i], drawn.sum(), updates=[(w, w + drawn.sum())], exact=True, **FAST)
        f(np.zeros(11, int), num_slices=2)
        before = [pickle.dumps(state.get_value()) for state in L.states(stream)]
        values = synk.gather(w, nd_up=1)
        with pytest.raises(IndexError):
            f(too_large, num_slices=2)
        assert before == [pickle.dumps(state.get_value()) for state in L.states(stream)] != []
        np.testing.assert_array_equal(synk.gather(w, nd_up=1), values)


def test_sizes_of_rows_are_checked_without_collectives_too(threads):
    x = T.dmatrix("x")
    f = synk.function([x], x.flatten()[T.arange(x.shape[0]) * 2], exact=True, **FAST)
    np.testing.assert_array_equal(f(np.arange(14).reshape(7, 2)), range(0, 14, 2))
    with reports(AssertionError, lengths._NOT_EQUAL):
        f(np.arange(21).reshape(7, 3))


def test_a_copy_in_slices_is_exact(threads):
    twins = Twins(regression(by_signs), exact=True, **FAST)
    original, twins.f = twins.f, twins.f.copy()
    twins.call(*rows(7), num_slices=2)
    (w, b), v = twins.params, L.shared(np.random.RandomState(5).randn(3, 2), "v")
    swapped = original.copy(swap={w: v})
    b.set_value(np.zeros(2))
    synk.broadcast(b)
    swapped(*rows(7), num_slices=2)
    np.testing.assert_allclose(synk.gather(v, nd_up=1), [twins.others[0].get_value()] * 3, rtol=1e-12)
    still = original.copy(delete_updates=True)
    np.testing.assert_allclose(still(*rows(5), num_slices=2), original(*rows(5)), rtol=1e-12)


@pytest.mark.parametrize(
    "update, why",
    [
        (lambda x, w: w + T.dot(x, x.T).sum() * T.sort(x, axis=0).sum(axis=0), "each row"),
        (lambda x, w: w + (x * T.sort(x, axis=0)).sum(axis=0), "axis"),
        (lambda x, w: T.set_subtensor(w[T.cast(x[:, 0], "int64")], x[:, 1]), "assigns"),
        (lambda x, w: x, "differ"),
        (
            lambda x, w: w + T.shared_randomstreams.RandomStreams(1).normal((3,), avg=x.sum()),
            "draws",
        ),
        (lambda x, w: w * T.nlinalg.det(T.dot(x, x.T)), "each row"),
    ],
    ids=["gram", "sort", "set", "rows", "noise", "det"],
)
def test_updates_that_cannot_be_exact_are_refused(threads, update, why):
    x, w = T.dmatrix("x"), L.shared(np.zeros(3) if why != "differ" else np.zeros((1, 3)), "w")
    with refuses(ValueError, "the update of w", got=why):
        synk.function([x], updates=[(w, update(x, w))], exact=True, on_unused_input="ignore", **FAST)
    f = synk.function([x], updates=[(w, w + x.sum())], exact=True, **FAST)
    f(np.ones((5, 3)))
    assert synk.gather(w, nd_up=1).sum() == 15 * 9


def test_an_output_that_cannot_be_exact_is_refused(threads):
    x = T.dmatrix("x")
    with refuses(TypeError, "output", got="axis"):
        synk.function([x], T.sort(x, axis=0)[0, 0], exact=True, **FAST)


@pytest.mark.parametrize("rule", ["sgd", "momentum", "rmsprop", "adam"])
def test_slices_of_every_rank_are_added_up_before_the_rule(small_world, rule):
    def updates(loss, params):
        grads = rules.total_norm_constraint(T.grad(loss, params), 0.5)
        return getattr(rules, rule)(grads, params, learning_rate=0.1)

    twins = Twins(regression(updates), exact=True, **FAST)
    for i, (n, num_slices) in enumerate([(7, 2), (6, 3), (7, 7), (2, 2), (9, 4), (5, 1), (7, 99), (2, 3), (1, 2)]):
        twins.call(*rows(n, i), num_slices=num_slices)


def test_outputs_in_slices(small_world):
    """All kinds of outputs, also subsets of them in any order, equal the serial ones in slices."""

    def outputs(loss):
        (x,) = [one for one in L.inputs([loss]) if one.name == "x"]
        return [T.exp(loss), x * 2, loss, x.max(), T.log(1 + loss) * 2, (x.sum(), "avg")]

    ours, plain = regression(by_signs, outputs=outputs)()[1], regression(by_signs, outputs=outputs)()[1]
    f = synk.function(**ours, exact=True, **FAST)
    g = L.function(plain["inputs"], [one[0] if isinstance(one, tuple) else one for one in plain["outputs"]], **FAST)
    assert f.output_modes == ["avg", "gather", "avg", "max", "avg", "avg"]
    g0 = L.function(plain["inputs"], [], updates=plain["updates"], on_unused_input="ignore", **FAST)
    for n, num_slices, subset in [
        (7, 2, None),
        (6, 3, [4, 1, 0]),
        (7, 3, [1, 2]),
        (7, 2, []),
        (3, 2, [0]),
        (7, 1, [4, 2]),
    ]:
        want, positions = g(*rows(n)), range(5) if subset is None else subset
        got = f(*rows(n), num_slices=num_slices, output_subset=subset)
        for ours_, i in zip(got, positions):
            np.testing.assert_allclose(ours_, want[i], rtol=1e-10)
        g0(*rows(n))
        for one, other in zip(ours["updates"], plain["updates"]):
            np.testing.assert_allclose(
                np.atleast_1d(synk.gather(one[0], nd_up=1))[-1], other[0].get_value(), rtol=1e-10
            )


def test_steps_in_slices(small_world):
    twins = Twins(regression(by_signs), exact=True, **FAST)
    args, batches = rows(9), [[8], [0, 1, 2, 3, 4], [5, 6, 7], [8, 0, 4, 2], [7]]
    for num_slices in (2, 4):
        got = twins.f.steps(*args, batches=batches, num_slices=num_slices)
        np.testing.assert_allclose(got, [twins.g(*(arg[batch] for arg in args)) for batch in batches], rtol=1e-10)
        twins.compare()


def test_slices_of_sliceable_shared_variables(threads):
    s, w = L.shared(np.zeros((0, 2)), "s"), L.shared(np.ones(2), "w")
    loss = T.sqr(T.dot(s, w) - 1).sum()
    f = synk.function(
        [],
        T.sqrt(loss),
        updates=[(w, w - 0.1 * T.sgn(T.grad(loss, w)))],
        sliceable_shareds=[s],
        exact=True,
        **FAST,
    )
    synk.scatter(s, np.arange(14.0).reshape(7, 2))
    error = np.arange(14.0).reshape(7, 2) @ np.ones(2) - 1
    np.testing.assert_allclose(f(num_slices=2), np.sqrt((error**2).sum()), rtol=1e-12)
    np.testing.assert_allclose(synk.gather(w, nd_up=1), [[0.9, 0.9]] * 3, rtol=1e-12)


def test_slices_draw_random_numbers_of_their_own(threads):
    x, w = T.dmatrix("x"), L.shared(np.zeros(3), "w")
    noise = T.shared_randomstreams.RandomStreams(1).uniform(x.shape)
    f = synk.function([x], noise, updates=[(w, T.sqrt(T.sqr(w) + (noise + x).sum(axis=0)))], exact=True, **FAST)
    drawn = [f(np.zeros((9, 3)), num_slices=3) for _ in range(2)]
    assert len(np.unique(drawn)) == 54
    np.testing.assert_allclose(synk.gather(w, nd_up=1), [np.sqrt(np.sum(drawn, axis=(0, 1)))] * 3)


@pytest.mark.parametrize("of_total", ["quotient", "product", "root", "in each row"])
def test_the_refusal_of_a_gradient_in_slices_says_what_to_write(threads, of_total):
    """For the gradient of a masked mean, the message advises applying the factor after the gradient."""
    x, m, w = T.dmatrix("x"), T.dvector("m"), L.shared(np.ones(3), "w")
    errors = T.sqr(T.dot(x, w) - 1) * m
    total, count = errors.sum(), m.sum()
    loss, factor = {
        "quotient": (total / count, 1 / count),
        "product": (total * T.exp(-count), T.exp(-count)),
        "root": (T.sqrt(total), 0.5 / T.sqrt(total)),
        "in each row": ((errors / count).sum(), 1 / count),
    }[of_total]
    f = synk.function([x, m], updates=[(w, w - 0.1 * T.grad(loss, w))], exact=True, **FAST)
    X, M = rows(7)[0], np.array([1.0, 0, 1, 1, 0, 1, 1])
    with refuses(ValueError, "num_slices", "exact", "2", "T.grad(total, w) / count, not"):
        f(X, M, num_slices=2)
    right = synk.function([x, m], T.grad(total, w) * factor, exact=True, **FAST)
    np.testing.assert_allclose(right(X, M, num_slices=2), L.function([x, m], T.grad(loss, w), **FAST)(X, M), rtol=1e-10)


def test_slices_of_rows_that_depend_on_all_rows_are_refused(threads):
    twins = Twins(
        regression(descent, predict=lambda x, w: T.dot(x - x.mean(axis=0), w) / x.std(axis=0).sum()), exact=True, **FAST
    )
    twins.call(*rows(7))
    with refuses(ValueError, "num_slices", "exact"):
        twins.f(*rows(6), num_slices=2)
    twins.call(*rows(6))
    x = T.dmatrix("x")
    f = synk.function([x], x - x.mean(axis=0), exact=True, **FAST)
    with refuses(ValueError, "num_slices", "all rows"):
        f(rows(6)[0], num_slices=2)


def test_all_functions_after_fork(caplog):
    build, x = regression(by_signs), T.dmatrix("x")
    early = synk.function([x], x.prod(axis=1).mean(), name="early", **FAST)
    with refuses(TypeError, "exact", got="1"):
        synk.fork(2, use_gpu=False, exact=1)
    said = synk.function([x], x.sum(), exact=False, **FAST)
    synk.fork(2, use_gpu=False, exact=True)
    try:
        twins = Twins(build, **FAST)
        twins.call(*rows(7))
        w = L.shared(np.zeros(3))
        loose = synk.function([x], updates=[(w, w + x.sum(axis=0))], exact=False, **FAST)
        loose(np.ones((5, 3)))
        assert "early" not in caplog.text
        for _ in range(2):  # it computes as it was built, and the first call logs this
            assert early(np.ones((5, 3))) == 1
            assert caplog.text.count("function early was built before fork(exact=True)") == 1
        assert synk.gather(w, nd_up=1).tolist() == [[3] * 3, [2] * 3] and said(np.ones((5, 3))) == 15
        with refuses(TypeError, "exact", got="'yes'"):
            synk.function([x], x.sum(), exact="yes")
    finally:
        synk.close()
    synk.fork(2, use_gpu=False)
    try:
        w = L.shared(np.zeros(3))
        synk.function([x], updates=[(w, w + x.sum(axis=0))], **FAST)(np.ones((5, 3)))
        assert synk.gather(w, nd_up=1).tolist() == [[3] * 3, [2] * 3]
    finally:
        synk.close()


@pytest.mark.thorough
def test_averages_of_steps_and_slices_are_over_rows(small_world):
    """In an exact function, means are averaged over the rows of all steps and slices, and sums are added."""

    def build():
        x, w = T.dmatrix("x"), L.shared(np.array([0.4, -1.0, 0.3]), "w")
        z = T.dot(x, w)
        normal = (z - z.mean()) / T.sqrt(z.var() + 0.1)  # over all rows
        losses = [T.sqr(z).mean(), T.sqr(normal - 1).mean(), T.sqr(z).sum(), T.cast(x.shape[0], "float64")]
        g = T.grad(losses[1] + losses[0], w)
        return w, x, losses, [(w, w - 0.1 * g / T.sqrt(T.sqr(g).sum()))]

    (w, x, outputs, updates), (other, z, plain, plain_updates) = build(), build()
    f = synk.function([x], outputs, updates=updates, exact=True, **FAST)
    g = L.function([z], plain, updates=plain_updates, **FAST)
    assert f.output_modes == ["avg", "avg", "sum", "sum"]
    value = np.random.RandomState(7).randn(11, 3)
    batches = [slice(0, 5), slice(5, 9), slice(9, 11)]
    found = f.steps(value, batches=batches, total=True)
    expected = list(zip(*[g(value[batch]) for batch in batches]))
    sizes = np.array([5.0, 4.0, 2.0]) / 11
    for i, of_steps in enumerate(expected):
        of_steps = np.array(of_steps)
        total = of_steps.sum(axis=0) if f.output_modes[i] == "sum" else np.tensordot(sizes, of_steps, 1)
        np.testing.assert_allclose(found[i], total, rtol=1e-8)
    np.testing.assert_allclose(synk.gather(w), [other.get_value()] * small_world.n, rtol=1e-8)


def test_building_says_that_slices_cannot_be_exact(threads, caplog):
    x, w = T.dmatrix("x"), L.shared(np.ones(3), "w")
    z = T.dot(x, w)
    normal = (z - z.mean()) / T.sqrt(z.var() + 0.1)
    with caplog.at_level("INFO", "synkhronos"):
        synk.function([x], updates=[(w, w - T.grad(T.sqr(normal - 1).mean(), w))], exact=True, name="f", **FAST)
        synk.function([x], updates=[(w, w - T.sgn(T.grad(T.sqr(z).mean(), w)))], exact=True, name="g", **FAST)
    (said,) = [each.getMessage() for each in caplog.records if "num_slices" in each.getMessage()]
    assert said.startswith("function f cannot be called in slices") and "computed from all rows" in said


def test_lengths_are_those_of_all_rows(small_world):
    x = T.dmatrix("x")
    n = x.shape[0]
    outputs = [x.shape, 1.0 / n, T.minimum(n, 3), n, T.stack([n, n * 2]), n * x.sum(), x[:, 0].shape, T.sqr(n) + 1]
    f, g = synk.function([x], outputs, exact=True, **FAST), L.function([x], outputs, **FAST)
    for n_rows in (7, 3, 2):
        if n_rows >= small_world.n:  # if all ranks have an integer, the master's is returned
            for found, expected in zip(f(np.ones((n_rows, 2))), g(np.ones((n_rows, 2)))):
                np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("mode", [L.slow, L.quick])
def test_an_axis_of_rows_that_is_said_to_be_of_length_1(threads, mode):
    """A call with one row is accepted; calls with more rows are refused, even if no rank has more than one row."""
    x, w = T.dmatrix("x"), L.shared(np.zeros(3), "w")
    late = T.addbroadcast(x - x.mean(axis=0), 0)
    outputs = [T.addbroadcast(x, 0).sum(), T.addbroadcast(x, 0) * np.ones((4, 3)), late.sum(), T.addbroadcast(x > 0, 0)]
    for output in outputs:
        f = synk.function([x], output, updates=[(w, w + T.addbroadcast(2 * x, 0)[0])], exact=True, mode=mode)
        g = L.function([x], output, mode=mode)
        before = w.get_value()
        one = rows(1)[0]
        np.testing.assert_allclose(f(one), g(one))
        np.testing.assert_allclose(synk.gather(w, nd_up=1), [before + 2 * one[0]] * 3)
        for n in (2, 3, 5):
            with pytest.raises((ValueError, AssertionError)):
                g(rows(n)[0])
            with pytest.raises((ValueError, AssertionError)):
                f(rows(n)[0])
        np.testing.assert_allclose(synk.gather(w, nd_up=1), [before + 2 * one[0]] * 3)


def test_the_table_shows_the_completed_graph(threads):
    """The table shows the completed graph, even if collectives are inserted into an op's inner graph."""
    x, w = T.dmatrix("x"), L.shared(np.ones(3), "w")
    mean, count = L.shared(np.zeros(3), "mean"), L.shared(np.int64(0), "count")
    if NAME == "theano":
        normal = T.nnet.bn.batch_normalization_train(x, w, T.zeros_like(w))[0]
    else:
        inner, weight = T.dmatrix(), T.dvector()
        centred = inner - inner.mean(axis=0)
        normal = L.OpFromGraph([inner, weight], [weight * centred / T.sqrt(T.sqr(centred).mean(axis=0) + 1e-4)])(x, w)
    loss = T.sqr(normal - 1).mean()
    updates = [(w, w - 0.1 * T.grad(loss, w)), (mean, 0.9 * mean + 0.1 * x.mean(axis=0)), (count, count + x.shape[0])]
    f = synk.function([x], [loss, normal, x.max(), x.shape[0]], updates=updates, exact=True, **FAST)
    for table in (f.sharding(), f.copy().sharding()):
        assert [str(one.placement) for one in table.inputs] == ["Shard(0)"]
        assert [str(one.placement) for one in table.outputs] == ["Partial(avg)", "Shard(0)", "Partial(max)", "Size"]
        assert [str(one.placement) for one in table.updates] == ["Replicate"] * 3
        assert table.collectives
    assert "Unknown" not in str(f.sharding())
    g = L.function([x], [loss, normal, x.max(), x.shape[0]], **FAST)
    want = g(rows(7)[0])
    for got, one in zip(f(rows(7)[0]), want):
        np.testing.assert_allclose(got, one)


FLAGS = """
import synkhronos as synk
if {first}:
    import theano
synk.fork(2, use_gpu=False)
import numpy as np
import theano, theano.tensor as T
theano.config.cxx = ""
x = T.dmatrix("x")
w, m = theano.shared(np.random.RandomState(0).randn(4, 3), "w"), theano.shared(np.zeros((4, 3)), "m")
gradient = T.grad(T.log(1 + T.exp(-T.tanh(T.dot(x, w)))).mean(), w)
new = 0.9 * m + 0.1 * T.sqr(gradient)
updates = [(m, new), (w, w - 0.01 * gradient / (T.sqrt(new) + 1e-8))]
f = synk.function([x], updates=updates, exact=True)
for i in range(50):
    f(np.random.RandomState(i).randn(9, 4))
print(synk.in_sync([w, m]))
"""


@needs_theano
@pytest.mark.slow
@pytest.mark.parametrize("first", [True, False], ids=["imported before fork", "imported after fork"])
def test_ranks_compile_with_the_flags_that_the_program_sets_after_fork(first):
    """Without these flags, ranks would run C code where the master runs Python code, and their bits would differ."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FLAGS.format(first=first)],
        cwd=str(ROOT),
        stdout=subprocess.PIPE,
        universal_newlines=True,
        timeout=100,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "in sync")
