"""Functions with collectives (`synkhronos.ops`) yield the serial program's values on every rank or change nothing.

Expected values come from the engine's own function, where collectives are identities, called with all rows.
"""

import pickle
from collections import OrderedDict

import numpy as np
import pytest
from library import NAME, L, T
from refusals import refuses, reports
from trainers import updates as rules
from twins import Twins

import synkhronos as synk
from synkhronos import in_graph
from synkhronos.errors import SynkhronosError, WorkerDied, WorkerError
from synkhronos.program.program import PROGRAM

pytestmark = [getattr(pytest.mark, NAME), pytest.mark.thorough("threads-1")]

#: Numbers of rows: even, uneven, fewer than ranks, one.
ROWS = [6, 7, 2, 1, 5, 4]
FAST = dict(mode=L.quick)


def rows(n, seed=0):
    random = np.random.RandomState(seed)
    return random.randn(n, 3), random.randn(n, 2)


def regression(make_updates, loss_of=T.sqr):
    """Return a builder of a regression; `make_updates` makes its updates from the loss and the parameters."""

    def build():
        x, y = T.dmatrix("x"), T.dmatrix("y")
        random = np.random.RandomState(5)
        params = [L.shared(random.randn(3, 2), "w"), L.shared(np.zeros(2), "b")]
        loss = loss_of(T.dot(x, params[0]) + params[1] - y).mean()
        updates = make_updates(loss, params)
        return [*params, *(s for s in updates if s not in params)], dict(
            inputs=[x, y], outputs=loss, updates=list(updates.items())
        )

    return build


def averaged(loss, params):
    return synk.ops.all_reduce(T.grad(loss, params))


RULES = ["sgd", "momentum", "nesterov_momentum", "adagrad", "rmsprop", "adadelta", "adam"]


@pytest.mark.thorough("fork", but="-(sgd|adam)$")
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_lasagne(small_world, rule):
    def updates(loss, params):
        return getattr(rules, rule)(averaged(loss, params), params, learning_rate=0.1)

    twins = Twins(regression(updates), **FAST)
    for i, n in enumerate(ROWS):
        twins.call(*rows(n, i))


def test_constraints_and_weight_decay(threads):
    def updates(loss, params):
        loss = loss + 0.1 * sum(T.sqr(param).sum() for param in params)
        grads = rules.total_norm_constraint(averaged(loss, params), 0.5)
        found = rules.apply_nesterov_momentum(rules.sgd(grads, params, 0.1), momentum=0.9)
        found[params[0]] = rules.norm_constraint(found[params[0]], 0.7)
        return found

    twins = Twins(regression(updates), **FAST)
    for i, n in enumerate(ROWS):
        twins.call(*rows(n, i))


@pytest.mark.thorough("-C$")
@pytest.mark.parametrize(
    "options", [{}, {"mode": "FAST_COMPILE"}, {"mode": L.slow}], ids=["C", "FAST_COMPILE", "Python"]
)
def test_a_loss_that_cannot_do_without_rows(small_world, options):
    def updates(loss, params):
        return OrderedDict((param, param - 0.1 * grad) for param, grad in zip(params, averaged(loss, params)))

    twins = Twins(regression(updates, lambda error: error[0] * T.sqr(error).max()), **options)
    one = rows(1)
    got = twins.f(*[np.tile(array, (small_world.n, 1)) for array in one])  # one row for every rank
    np.testing.assert_allclose(got, twins.g(*one))
    twins.compare()
    twins.call(*one)


@pytest.mark.thorough
def test_slices_of_updates_that_are_linear_in_the_gradients(threads):
    def updates(loss, params):
        found = OrderedDict()
        steps = L.shared(np.int64(0), "steps")
        found[steps] = steps + 1
        for param, grad in zip(params, averaged(loss, params)):
            speed = L.shared(np.zeros_like(param.get_value()), "speed")
            found[speed] = 0.9 * speed - 0.1 * grad
            found[param] = param + 0.9 * speed - 0.1 * grad
        return found

    twins = Twins(regression(updates))
    for i, (n, slices) in enumerate([(9, 2), (7, 3), (4, 3), (3, 3), (2, 2), (5, 5), (3, 1)]):
        twins.call(*rows(n, i), num_slices=slices)


@pytest.mark.thorough
def test_slices_of_updates_that_are_not(threads):
    def updates(loss, params):
        return OrderedDict((param, param - 0.1 * T.sgn(grad)) for param, grad in zip(params, averaged(loss, params)))

    twins = Twins(regression(updates))
    with refuses(ValueError, argument="num_slices", expected="the update of w is not linear", got="2"):
        twins.f(*rows(9), num_slices=2)
    twins.compare()
    twins.call(*rows(9))


@pytest.mark.thorough
def test_slices_of_updates_that_also_depend_on_the_ranks_own_rows(threads):
    """Slices are refused: a rank's own part is weighted by its rows, the collective's part by the rows of all ranks."""
    x, w = T.dmatrix("x"), L.shared(np.zeros(3), "w")
    f = synk.function([x], updates=[(w, synk.ops.all_reduce(x.mean(axis=0)) + x.mean(axis=0))])
    with refuses(ValueError, argument="num_slices", expected="the update of w is not linear", got="2"):
        f(rows(7)[0], num_slices=2)
    assert not synk.gather(w).any()


def test_the_ops(small_world):
    x, b = T.dmatrix("x"), T.dvector("b")
    x_mean = x.mean(axis=0)
    f = synk.function(
        [x],
        [
            synk.ops.all_reduce(x_mean),
            (x - synk.ops.all_reduce(x.mean(axis=0)), "gather"),
            (synk.ops.all_reduce(x.sum(axis=0), "sum"), None),
            (synk.ops.all_reduce(x.max(axis=0), "max") - synk.ops.all_reduce(x.min(axis=0), "min"), "max"),
            (synk.ops.all_reduce(b, "sum"), None),
        ],
        bcast_inputs=[b],
    )
    for n in ROWS:
        X, _ = rows(n)
        got = f(X, [1.0, 2.0])
        want = [X.mean(0), X - X.mean(0), X.sum(0), X.max(0) - X.min(0), np.array([1, 2]) * min(n, small_world.n)]
        for a, b_ in zip(got, want):
            np.testing.assert_allclose(a, b_, rtol=1e-12, atol=1e-14)
        (subset,) = f(X, [1.0, 2.0], output_subset=[2])
        np.testing.assert_allclose(subset, X.sum(0))


def test_without_rows_every_rank_calls_and_the_master_counts(small_world):
    x = T.dmatrix("x")
    w = L.shared(np.ones(3), "w")
    f = synk.function(
        [x], [x.sum(), (synk.ops.all_reduce(x.sum(axis=0) + w, "sum"), None)], updates=[(w, 2 * w)], **FAST
    )
    total, each = f(np.zeros((0, 3)))
    assert total == 0
    np.testing.assert_array_equal(each, [1, 1, 1])
    np.testing.assert_array_equal(synk.gather(w, nd_up=1), np.full((small_world.n, 3), 2))


def test_weights_are_equal_if_nothing_is_divided(small_world):
    w = L.shared(np.zeros(2), "w")
    f = synk.function([], synk.ops.all_reduce(w), updates=[(w, synk.ops.all_reduce(w) + 1)])
    values = np.arange(2.0 * small_world.n).reshape(small_world.n, 2)
    for rank, value in enumerate(values):
        synk.set_value(rank, w, value)
    np.testing.assert_allclose(f(), values.mean(axis=0))
    np.testing.assert_allclose(synk.gather(w, nd_up=1), [values.mean(axis=0) + 1] * small_world.n)


def test_ranks_without_rows_make_common_updates_and_no_others(make_world):
    make_world("threads", 3, 0, engine=NAME)
    x = T.dvector("x")
    steps, mine, ours, mixed = (L.shared(0.0, name) for name in ("steps", "mine", "ours", "mixed"))
    total = synk.ops.all_reduce(x.sum(), "sum")
    f = synk.function(
        [x],
        updates=[(steps, steps + 1), (mine, mine + x.sum()), (ours, ours + total), (mixed, mixed + total + 0 * x[0])],
    )
    f([1.0, 2.0])  # rank 2 has no row
    f([4.0])
    assert synk.gather(steps).tolist() == [2, 2, 2]
    assert synk.gather(mine).tolist() == [5, 2, 0]
    assert synk.gather(ours).tolist() == synk.gather(mixed).tolist() == [7, 7, 7]


@pytest.mark.parametrize("again", [lambda f: f.copy().copy(), lambda f: pickle.loads(pickle.dumps(f.copy()))])
def test_copies_of_copies_know_their_rows(make_world, again):
    make_world("threads", 3, 0, engine=NAME)
    x, mine, ours = T.dvector("x"), L.shared(0.0, "mine"), L.shared(0.0, "ours")
    total = synk.ops.all_reduce(x.sum(), "sum")
    f = again(synk.function([x], total, updates=[(mine, mine + x.sum()), (ours, ours + total)], **FAST))
    of_f = {shared.name: shared for shared in f.get_shared()}
    assert f([1.0, 2.0]) == 3.0  # rank 2 has no row
    assert synk.gather(of_f["mine"]).tolist() == [1, 2, 0]
    assert synk.gather(of_f["ours"]).tolist() == [3, 3, 3]


def test_a_copy_of_a_copy_swaps(threads):
    x, w, v = T.dvector("x"), L.shared(2.0, "w"), L.shared(5.0, "v")
    f = synk.function([x], synk.ops.all_reduce((x * w).mean()), updates=[(w, w + 1)], **FAST).copy()
    (of_f,) = f.get_shared()
    assert of_f is w
    g = f.copy(swap={w: v})
    assert g([1.0, 2.0, 6.0]) == 15.0 == g.copy(swap={v: w}).as_theano([1.0, 2.0, 6.0]) * 2.5
    assert synk.gather(v).tolist() == [6, 6, 6] and w.get_value() == 3


def state_of(value):
    """Return a random state in a form that can be compared."""
    return str(value.bit_generator.state) if isinstance(value, np.random.Generator) else value.tolist()


def test_random_states_of_ranks_without_rows_stay(make_world):
    make_world("threads", 3, 0, engine=NAME)
    x, streams = T.dvector("x"), L.streams(3)[0]
    draw = streams.uniform((1,))
    (state,) = L.states(streams)
    f = synk.function([x], [(draw, "gather"), synk.ops.all_reduce(x.mean())])
    drawn = [f([1.0, 2.0, 3.0])[0]]
    before = [synk.get_value(rank, state) for rank in range(3)]
    drawn.append(f([1.0])[0])
    after = [synk.get_value(rank, state) for rank in range(3)]
    assert [state_of(a) == state_of(b) for a, b in zip(before, after)] == [False, True, True]
    drawn.append(f([1.0, 2.0, 3.0])[0])
    assert list(map(len, drawn)) == [3, 1, 3] and len(set(np.concatenate(drawn).tolist())) == 7


class Fail(L.Op):
    """Op that returns its value; on one rank, if armed, it first calls `how`."""

    __props__ = ("rank", "how")

    def __init__(self, rank, how):
        self.rank, self.how = rank, how

    def make_node(self, armed, *values):
        return L.Apply(self, [armed, *values], [values[0].type()])

    def perform(self, node, inputs, outputs):
        armed, value = inputs[:2]
        call = in_graph.current()
        if armed and call is not None and call.context.rank == self.rank:
            self.how()
        outputs[0][0] = value.copy()


class Odd(Exception):
    """Exception that Theano cannot create again from a message."""

    def __init__(self, code, text):
        super().__init__(code, text)
        self.code = code


def fail_oddly():
    raise Odd(5, "it failed")


def two_collectives(rank, how):
    """Return a function whose second collective follows an op that fails on one rank, and the updated variables."""
    x, armed = T.dvector("x"), T.lscalar("armed")
    first, second = L.shared(np.zeros(2), "first"), L.shared(np.zeros(2), "second")
    one = synk.ops.all_reduce(x.mean() + first)
    two = synk.ops.all_reduce(Fail(rank, how)(armed, one * 2))
    f = synk.function([x], two.sum(), bcast_inputs=[armed], updates=[(first, one), (second, two)], **FAST)
    return f, [first, second]


@pytest.mark.parametrize("how", [("threads", 3, 1), ("fork", 2, 0)], ids=str)
@pytest.mark.parametrize("on_master", [False, True])
def test_an_error_between_two_collectives_leaves_all_values(make_world, how, on_master):
    small_world = make_world(*how, engine=NAME)
    rank = small_world.root if on_master else (small_world.root + 1) % small_world.n
    f, variables = two_collectives(rank, fail_oddly)
    f([1.0, 2.0, 3.0], 0)
    before = [synk.gather(variable, nd_up=1) for variable in variables]
    np.testing.assert_allclose(before[0], 2)
    with pytest.raises(Odd if on_master else WorkerError) as caught:
        f([1.0, 2.0, 3.0], 1)
    if not on_master:
        assert caught.value.rank == rank and caught.value.updated == []
        assert "Odd" in str(caught.value)
    for variable, value in zip(variables, before):
        np.testing.assert_array_equal(synk.gather(variable, nd_up=1), value)
    assert f([1.0, 2.0, 3.0], 0) == 16  # 2 * 2 * (2 + 2)
    np.testing.assert_allclose(synk.gather(variables[0], nd_up=1), 4)


def die():
    import os

    os._exit(7)


def test_a_rank_that_dies_between_two_collectives(make_world):
    make_world("fork", 2, 0, engine=NAME)
    f, variables = two_collectives(1, die)
    f([1.0, 2.0], 0)
    with pytest.raises(WorkerDied) as caught:
        f([1.0, 2.0], 1)
    assert caught.value.rank == 1 and caught.value.exitcode == 7 and caught.value.updated == []
    np.testing.assert_allclose(variables[0].get_value(), 1.5)


def interrupt():
    raise KeyboardInterrupt


def test_ctrl_c_between_two_collectives(make_world):
    make_world("fork", 2, 0, engine=NAME)
    f, variables = two_collectives(0, interrupt)
    f([1.0, 2.0], 0)
    with pytest.raises(KeyboardInterrupt):
        f([1.0, 2.0], 1)
    np.testing.assert_allclose(synk.gather(variables[0], nd_up=1), 1.5)
    assert f([1.0, 2.0], 0) == 12


def test_what_a_collective_raises_comes_out_as_it_is(threads):
    """If shapes differ between ranks, the collective's error reaches the caller unchanged."""
    x = T.dvector("x")
    f = synk.function([x], synk.ops.all_reduce(x * 2, "sum"), **FAST)
    with refuses(ValueError, argument="array 0 of all_reduce 0", expected="the same shape and dtype on all ranks"):
        f([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(f([1.0, 2.0, 3.0]), [12.0])


def test_ranks_that_come_to_different_collectives(make_world):
    """If ranks reach different collectives because a condition differs, the call fails and changes nothing."""
    make_world("fork", 2, 0, engine=NAME)
    x, which = T.dvector("x"), L.shared(np.int8(0), "which")
    w = L.shared(0.0, "w")
    total = L.ifelse(which, synk.ops.all_reduce(x.sum(), "sum"), synk.ops.all_reduce(2 * x.sum(), "sum"))
    f = synk.function([x], total, updates=[(w, w + total)], mode=L.lazy)
    assert f([1.0, 2.0]) == 6
    synk.set_value(1, which, 1)
    with reports(SynkhronosError, "rank 0: all_reduce", "rank 1: all_reduce"):
        f([1.0, 2.0])
    assert synk.gather(w).tolist() == [6, 6]
    synk.broadcast(which)
    assert f([1.0, 2.0]) == 6


def test_a_condition_that_leaves_a_collective_out(make_world):
    make_world("fork", 2, 0, engine=NAME)
    x, step, w = T.dvector("x"), L.shared(np.int64(0), "step"), L.shared(0.0, "w")
    mean = x.mean()
    every_third = L.ifelse(T.eq(step % 3, 2), synk.ops.all_reduce(mean), mean)
    f = synk.function([x], updates=[(step, step + 1), (w, every_third)], mode=L.lazy)
    for i in range(6):
        f([1.0, 2.0, 3.0 + i])  # rank 0 has two rows
        want = [(6 + i) / 3] * 2 if i % 3 == 2 else [1.5, 3 + i]
        np.testing.assert_allclose(synk.gather(w), want)


def test_results_that_are_kept_do_not_change(make_world):
    make_world("fork", 2, 0, engine=NAME)
    x = T.dvector("x")
    w = L.shared(np.zeros(50000), "w")
    y = synk.ops.all_reduce(x.mean() + w, "sum")
    f = synk.function([x], [(y, None), (y + 0, None)], updates=[(w, y)])
    kept, want = [], []
    for i in range(6):
        kept += f([float(i), float(i)])
        want += [np.full(50000, sum(2 ** (1 + i - j) * j for j in range(i + 1)))] * 2
    for got, wanted in zip(kept, want):
        np.testing.assert_array_equal(got, wanted)


def test_as_theano_and_before_fork_it_is_the_identity():
    assert PROGRAM.session is None or PROGRAM.session.closed
    x, w = T.dvector("x"), L.shared(0.0, "w")
    f = synk.function([x], x.sum(), updates=[(w, w + synk.ops.all_reduce(x.sum(), "sum"))], **FAST)
    assert f.as_theano([1.0, 2.0]) == 3 and w.get_value() == 3


def test_rows_of_shared_variables(threads):
    s, w = L.shared(np.zeros(0), "s"), L.shared(0.0, "w")
    f = synk.function(
        [],
        (s, "gather"),
        updates=[(w, synk.ops.all_reduce(s.max() + s.mean()))],
        sliceable_shareds=[s],
        **FAST,
    )
    synk.scatter(s, np.arange(7.0))  # 0 1 2, 3 4, 5 6
    assert f(batch_s=[[0, 2], [1], []]).tolist() == [0, 2, 4]
    np.testing.assert_allclose(synk.gather(w), [(2 * (2 + 1) + 1 * (4 + 4)) / 3] * 3)


def test_collectives_of_equal_shapes_that_one_rank_swaps(make_world, monkeypatch):
    from synkhronos.calls.rank_call import CollectivesOfCall

    make_world("threads", 3, 0, engine=NAME)
    x, w = T.dvector("x"), L.shared(0.0, "w")
    low, high = synk.ops.all_reduce(x.min(), "min"), synk.ops.all_reduce(x.max(), "max")
    f = synk.function([x], [(low, None), (high, None)], updates=[(w, low + high)], **FAST, name="ends")
    right = CollectivesOfCall.all_reduce

    def swapped(self, number, op, arrays):
        return right(self, 1 - number if self.context.rank == 1 else number, op, arrays)

    with monkeypatch.context() as patch:
        patch.setattr(CollectivesOfCall, "all_reduce", swapped)
        with reports(SynkhronosError, "rank 0: all_reduce 0", "rank 1: all_reduce 1", "ends"):
            f([1.0, 2.0, 3.0])
    assert synk.gather(w).tolist() == [0, 0, 0]
    assert [float(value) for value in f([1.0, 2.0, 3.0])] == [1, 3]


def test_the_table_counts_the_collectives_in_loops(make_world):
    make_world("threads", 2, 0, engine=NAME)
    x, w = T.dmatrix("x"), L.shared(np.ones((3, 4)), "w")
    of_rows = L.scan(lambda row: synk.ops.all_reduce(row, "sum"), [w])[0]
    f = synk.function([x], (synk.ops.all_reduce(T.dot(x.T, T.dot(x, w)) + of_rows.sum(), "sum"), "avg"), **FAST)
    np.testing.assert_array_equal(f(np.ones((4, 3))), np.full((3, 4), 2 * 3 * 4 * 2 + 4 * 3))
    table = f.sharding()
    assert ([each.number for each in table.collectives], table.nbytes) == ([1], [3 * 4 * 8])
