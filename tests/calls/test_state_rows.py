"""Shared variables with the batch's rows: the values that the program sees, and the updates that ranks make.

Expected values come from the serial program: the same graph, built by the engine alone, with separate variables.
"""

import copy
import os
import pickle
import signal

import numpy as np
import pytest
from library import NAME, L, T
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.errors import StateError
from synkhronos.extensions import checkpoint
from synkhronos.program.program import PROGRAM

pytestmark = getattr(pytest.mark, NAME)
FAST = dict(mode=L.quick)

WORLDS = [
    ("threads", 1, 0),
    ("threads", 2, 1),
    ("threads", 3, 0),
    ("fork", 2, 0),
    ("fork", 3, 2),
    ("2 uneven hosts", 3, 0),
]


@pytest.fixture(params=WORLDS, ids="{0[0]}-{0[1]}".format)
def world(request, make_world):
    return make_world(*request.param, engine=NAME)


@pytest.fixture
def two(make_world):
    return make_world("threads", 2, engine=NAME)


class Cell:
    """Recurrent cell, trained one step at a time, whose hidden state continues from call to call, as in GRU4Rec.

    Every row is a sequence of clicks. When it ends at some step, another sequence takes its row.
    """

    def __init__(self, function, n_rows=7, axis=0, **options):
        random = np.random.RandomState(3)

        def shared(name, *shape):
            return L.shared(random.uniform(-0.4, 0.4, shape), name)

        self.axis = axis
        self.items, self.W, self.U, self.V = (
            shared("items", 9, 4),
            shared("W", 4, 5),
            shared("U", 5, 5),
            shared("V", 9, 5),
        )
        self.H = L.shared(np.zeros((n_rows, 5) if axis == 0 else (5, n_rows)), "H")
        params = [self.items, self.W, self.U, self.V]
        caches, velocities = ([L.shared(np.zeros(p.get_value().shape)) for p in params] for _ in range(2))
        self.variables = [*params, *caches, *velocities]
        X, Y = T.ivector("X"), T.ivector("Y")
        before = self.H if axis == 0 else self.H.T
        gate = T.nnet.sigmoid(T.dot(self.items[X], self.W) + T.dot(before, self.U))
        state = (1 - gate) * before + gate * T.tanh(T.dot(self.items[X], self.W))
        scores = T.dot(state, self.V.T)
        right = scores[T.arange(X.shape[0]), Y].dimshuffle(0, "x")
        loss = T.mean(-T.log(T.nnet.sigmoid(right - scores) + 1e-6))  # the right item is ranked before all others
        updates = [(self.H, state if axis == 0 else state.T)]
        for p, cache, velocity, g in zip(params, caches, velocities, T.grad(loss, params)):
            new = cache + T.sqr(g)
            step = 0.2 * velocity - 0.1 * g / T.sqrt(new + 1e-6)
            updates += [(cache, new), (velocity, step), (p, p + step)]
        named = [synk.sharded(self.H, axis)] if function is synk.function else []
        self.train = function([X, Y, *named], [loss, scores.argmax(axis=1)], updates=updates, **options, **FAST)
        self.predict = function(
            [X, *named], scores, updates=[(self.H, state if axis == 0 else state.T)], **options, **FAST
        )
        self.look = function(named, (self.H**2).sum(), **options, **FAST)

    def state(self):
        value = self.H.get_value()
        return value if self.axis == 0 else value.T

    def reset(self, rows):
        """Reset the hidden state of rows whose sequences have ended."""
        value = self.H.get_value(borrow=True)
        value[(slice(None),) * self.axis + (rows,)] = 0
        self.H.set_value(value, borrow=True)

    def shrink(self, n_rows):
        value = self.H.get_value(borrow=True)
        self.H.set_value(value[:n_rows] if self.axis == 0 else value[:, :n_rows], borrow=True)


def same(one, other):
    for value, expected in zip(one, other):
        np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-12)


def clicks(random, n_rows):
    return random.randint(0, 9, n_rows).astype("int32"), random.randint(0, 9, n_rows).astype("int32")


@pytest.mark.parametrize("axis", [0, 1])
def test_sessions_in_parallel(world, axis):
    ours, plain, random = (
        Cell(synk.function, axis=axis, exact=True),
        Cell(L.function, axis=axis),
        np.random.RandomState(0),
    )
    n_rows = 7
    for step in range(14):
        if step in (5, 9, 11):  # fewer sessions remain, in the end fewer than ranks
            n_rows = {5: 4, 9: 2, 11: 1}[step]
            ours.shrink(n_rows), plain.shrink(n_rows)
        if step in (7, 12):  # more sessions again
            n_rows = 6
            value = random.randn(6, 5)
            for one in (ours, plain):
                one.H.set_value(value if axis == 0 else value.T)
        args = clicks(random, n_rows)
        same(ours.train(*args), plain.train(*args))
        same([ours.state()], [plain.state()])
        if step % 3:
            for one in (ours, plain):
                one.reset([0, n_rows - 1])
        if step % 4 == 0:
            same([ours.predict(args[1])], [plain.predict(args[1])])
            same([ours.look()], [plain.look()])
    same([v.get_value() for v in ours.variables], [v.get_value() for v in plain.variables])
    assert bool(synk.in_sync(ours.variables[:4]))


class Canvas:
    """Model that draws one glimpse per call onto each row's canvas, as in DRAW; canvases are kept between calls."""

    def __init__(self, function, **options):
        random = np.random.RandomState(4)
        self.A, self.B = L.shared(random.randn(6, 3) * 0.3, "A"), L.shared(random.randn(3, 6) * 0.3, "B")
        self.canvas, self.steps = L.shared(np.zeros((5, 6)), "canvas"), L.shared(np.zeros(5), "steps")
        x = T.dmatrix("x")
        seen = x - T.nnet.sigmoid(self.canvas)
        drawn = self.canvas + T.dot(T.tanh(T.dot(seen, self.A)), self.B)
        loss = T.nnet.binary_crossentropy(T.nnet.sigmoid(drawn), x).sum(axis=1).mean()
        updates = [(p, p - 0.3 * g) for p, g in zip((self.A, self.B), T.grad(loss, [self.A, self.B]))]
        updates += [(self.canvas, drawn), (self.steps, self.steps + 1)]
        named = [synk.sharded(self.canvas), synk.sharded(self.steps)] if function is synk.function else []
        self.draw = function(
            [x, *named], [loss, drawn.sum(axis=1), self.steps.sum()], updates=updates, **options, **FAST
        )
        self.clear = function(
            named, [], updates=[(self.canvas, self.canvas * 0), (self.steps, self.steps * 0)], **options, **FAST
        )

    def values(self):
        return [each.get_value() for each in (self.A, self.B, self.canvas, self.steps)]


def test_a_canvas(world):
    ours, plain, x = Canvas(synk.function, exact=True), Canvas(L.function), np.random.RandomState(1).rand(5, 6)
    for _ in range(2):
        for _ in range(3):
            same(ours.draw(x), plain.draw(x))
            same(ours.values(), plain.values())
        ours.clear(), plain.clear()
        same(ours.values(), plain.values())


def test_steps(world):
    ours, plain, X = Canvas(synk.function, exact=True), Canvas(L.function), np.random.RandomState(1).rand(12, 6)
    batches = np.random.RandomState(2).randint(0, 12, (6, 5))
    losses, drawn, steps = ours.draw.steps(X, batches=batches)
    for batch, *of_step in zip(batches, losses, drawn, steps):
        same(of_step, plain.draw(X[batch]))
    same(ours.values(), plain.values())
    same(ours.draw.steps(X[:5], n_steps=2), [np.stack(each) for each in zip(plain.draw(X[:5]), plain.draw(X[:5]))])
    same(ours.values(), plain.values())
    with refuses(
        ValueError, "shared variable canvas, with batches[1]", "the call's number of rows, 4", "5", "set_value"
    ):
        ours.draw.steps(X, batches=[[0, 1, 2, 3, 4], [0, 1, 2, 3]])
    same(ours.values(), plain.values())


def test_what_the_program_does_to_them_between_calls(world):
    """Changes by set_value, in place, or by functions of the engine have the serial program's effect."""
    ours, plain, x = Canvas(synk.function, exact=True), Canvas(L.function), np.random.RandomState(1).rand(5, 6)

    def twice(one):
        return L.function([], one.canvas.sum(), updates=[(one.canvas, one.canvas * 2)])

    doubles = {id(one): twice(one) for one in (ours, plain)}
    for change in (
        lambda one: one.canvas.set_value(np.ones((5, 6))),
        lambda one: None,
        lambda one: one.canvas.get_value(borrow=True).__setitem__(2, 5.0),
        lambda one: float(doubles[id(one)]()),
        lambda one: one.canvas.get_value().fill(9),  # writes to a copy
        lambda one: one.clear.as_theano() and None if one is ours else one.clear() and None,
        lambda one: one.canvas.set_value(one.canvas.get_value(borrow=True), borrow=True),
    ):
        got, want = change(ours), change(plain)
        assert (got is None) == (want is None)
        np.testing.assert_allclose(got or 0, want or 0, rtol=1e-12)  # the values may differ in their last bits
        same(ours.draw(x), plain.draw(x))
        same(ours.values(), plain.values())


def test_without_exact_each_rank_updates_its_rows(world):
    x, so_far = T.dvector("x"), L.shared(np.zeros(5), "so_far")
    f = synk.function(
        [x, synk.sharded(so_far)], [(so_far.sum(), "sum"), so_far + x], updates=[(so_far, so_far + x)], **FAST
    )
    for i in range(1, 4):
        total, after = f(np.arange(5.0))
        assert total == 10 * (i - 1) and after.tolist() == so_far.get_value().tolist() == [0, i, 2 * i, 3 * i, 4 * i]
    so_far.set_value([1.0])
    assert f([1.0])[1].tolist() == [2] == so_far.get_value().tolist()
    so_far.set_value(np.zeros(0))
    assert f([])[1].tolist() == [] == so_far.get_value().tolist()


def test_batches_that_select_rows(world):
    x, so_far = T.dvector("x"), L.shared(np.zeros(4), "so_far")
    f = synk.function([x, synk.sharded(so_far)], updates=[(so_far, so_far + x)], exact=True, **FAST)
    X = synk.data(np.arange(10.0))
    f(X, batch=[9, 0, 5, 5])
    f(X, batch=slice(2, 6))
    assert so_far.get_value().tolist() == [11, 3, 9, 10] and sum(f.last_rows) == 4


def test_copies_and_pickles(world):
    ours, plain, x = Canvas(synk.function, exact=True), Canvas(L.function), np.random.RandomState(1).rand(5, 6)
    other = L.shared(np.ones((5, 6)), "other")
    swapped, again = ours.draw.copy(swap={ours.canvas: other}), copy.copy(ours.draw)
    restored = pickle.loads(pickle.dumps(ours.draw))
    first = plain.draw(x)
    same(restored(x), first)
    same(ours.draw(x), first)
    same(again(x), plain.draw(x))
    same(ours.values(), plain.values())
    plain.canvas.set_value(np.ones((5, 6)))
    same(swapped(x), plain.draw(x))
    same([other.get_value()], [plain.canvas.get_value()])


def test_comparisons(world):
    ours, plain, x = Canvas(synk.function, exact=True), Canvas(L.function), np.random.RandomState(1).rand(5, 6)
    for _ in range(3):
        found = ours.draw.compare(x)
        assert bool(found), found
        same(found.results, plain.draw(x))
    same(ours.values(), plain.values())
    y, wrong = T.dvector("y"), L.shared(np.zeros(5), "wrong")
    f = synk.function([y, synk.sharded(wrong)], updates=[(wrong, wrong + y.mean())], **FAST)
    found = f.compare(np.arange(5.0))
    assert world.n == 1 or [(each.name, each.where) for each in found.differences] == [
        ("wrong", "on all ranks together after the call")
    ]


def test_checked_programs(make_world, caplog):
    world = make_world("threads", 2, engine=NAME, check=True)
    ours, plain, x = Canvas(synk.function, exact=True), Canvas(L.function), np.random.RandomState(1).rand(12, 6)
    batches = np.random.RandomState(2).randint(0, 12, (6, 5))
    for batch in batches:
        same(ours.draw(x[batch]), plain.draw(x[batch]))
    same([*ours.draw.steps(x, batches=batches)][:1], [[plain.draw(x[batch])[0] for batch in batches]])
    same(ours.values(), plain.values())
    assert world.n == 2 and "differs from the serial function" not in caplog.text


def test_sessions_one_after_the_other(make_world):
    ours, plain = Canvas(synk.function, exact=True), Canvas(L.function)
    x = np.random.RandomState(1).rand(5, 6)
    for n, root in ((2, 0), (3, 2), (1, 0)):
        make_world("threads", n, root, engine=NAME)
        same(ours.draw(x), plain.draw(x))
        same(ours.draw(x), plain.draw(x))
        synk.close()
        same(ours.values(), plain.values())  # the master has the whole value
        same(ours.draw.as_theano(x), plain.draw(x))


@pytest.mark.parametrize("n", [1, 3])
def test_checkpoints(make_world, tmp_path, n):
    path = str(tmp_path / "model.npz")
    make_world("threads", 2, engine=NAME)
    ours, plain, x = Canvas(synk.function, exact=True), Canvas(L.function), np.random.RandomState(1).rand(5, 6)
    for _ in range(3):
        ours.draw(x), plain.draw(x)
    checkpoint.save(path, [ours.A, ours.B, ours.canvas, ours.steps])
    ours.draw(x)
    checkpoint.load(path, [ours.A, ours.B, ours.canvas, ours.steps])
    same(ours.values(), plain.values())
    same(ours.draw(x), plain.draw(x))
    make_world("threads", n, engine=NAME)
    later = Canvas(synk.function, exact=True)
    later.draw(x)
    checkpoint.load(path, [later.A, later.B, later.canvas, later.steps])
    fresh = Canvas(L.function)
    for _ in range(3):
        fresh.draw(x)
    same(later.draw(x), fresh.draw(x))
    same(later.values(), fresh.values())


def test_a_rank_that_dies_is_replaced(make_world):
    make_world("fork", 3, engine=NAME, heal=2)
    ours, plain, x = Canvas(synk.function, exact=True), Canvas(L.function), np.random.RandomState(1).rand(5, 6)
    for i in range(6):
        if i in (2, 4):
            os.kill(PROGRAM.session.launcher.pid(1 if i == 2 else 2), signal.SIGKILL)
        same(ours.draw(x), plain.draw(x))
        if i == 3:
            ours.canvas.set_value(x), plain.canvas.set_value(x)
    same(ours.values(), plain.values())


def test_after_a_call_that_fails_all_is_as_before(world):
    ours, plain, x = Canvas(synk.function, exact=True), Canvas(L.function), np.random.RandomState(1).rand(5, 6)
    ours.draw(x), plain.draw(x)
    before = ours.values()
    for wrong, error in ((x[:4], ValueError), ("text", ValueError), (x[:, :5], (ValueError, synk.WorkerError))):
        with pytest.raises(error):
            ours.draw(wrong)
        same(ours.values(), before)
    same(ours.draw(x), plain.draw(x))


def test_a_rank_that_dies_leaves_the_rows_of_before(make_world):
    make_world("fork", 2, engine=NAME)
    ours, x = Canvas(synk.function, exact=True), np.random.RandomState(1).rand(5, 6)
    ours.draw(x)
    before = ours.canvas.get_value()
    os.kill(PROGRAM.session.launcher.pid(1), signal.SIGKILL)
    with pytest.raises(synk.WorkerDied):
        ours.draw(x)
    np.testing.assert_array_equal(ours.canvas.get_value(), before)


# -- refusals --------------------------------------------------------------------------------------------------------


def test_other_numbers_of_rows_are_refused(world):
    ours, x = Canvas(synk.function, exact=True), np.random.RandomState(1).rand(5, 6)
    ours.draw(x)
    for call in (ours.draw, ours.draw.compare):
        with refuses(ValueError, "shared variable canvas", "the call's number of rows, 3", "5", "canvas.set_value"):
            call(x[:3])
    ours.canvas.set_value(np.zeros((4, 6)))
    with refuses(ValueError, "shared variable steps", "the call's number of rows, 4", "5"):
        ours.clear()


def test_slices_are_refused(world):
    ours, x = Canvas(synk.function, exact=True), np.random.RandomState(1).rand(5, 6)
    for call in (ours.draw, ours.draw.compare, lambda x, **k: ours.draw.steps(x, n_steps=2, **k)):
        with refuses(ValueError, "num_slices", "1, because canvas has the batch's rows", "2"):
            call(x, num_slices=2)


def test_collectives_are_refused(two):
    ours, x = Canvas(synk.function, exact=True), np.random.RandomState(1).rand(5, 6)
    synk.broadcast(ours.canvas)  # the variable has not been divided yet
    ours.draw(x)
    for call in (
        synk.broadcast,
        synk.all_reduce,
        synk.gather,
        synk.all_gather,
        synk.reduce,
        synk.in_sync,
        synk.get_lengths,
        lambda shared: synk.get_value(1, shared),
        lambda shared: synk.set_value(1, shared, x),
        lambda shared: synk.scatter(shared, x),
        lambda shared: synk.all_reduce([ours.A, shared]),
    ):
        with refuses(ValueError, "shared_vars", "rows", "canvas", "canvas.get_value()"):
            call(ours.canvas)
    synk.all_reduce([ours.A, ours.B])


@pytest.mark.parametrize("exact", [False, True])
def test_functions_that_do_not_name_them_are_refused(two, exact):
    ours, x = Canvas(synk.function, exact=True), np.random.RandomState(1).rand(5, 6)
    early = synk.function([], ours.canvas.sum(), exact=exact, name="early", **FAST)
    assert early() == 0
    ours.draw(x)
    late = synk.function([], ours.canvas.sum(), exact=exact, name="late", **FAST)
    for f in (early, late, early):
        with refuses(ValueError, "shared variable canvas", f"function {f.name}", hint="sharded(canvas, axis=0)"):
            f()
        np.testing.assert_allclose(f.as_theano(), ours.canvas.get_value().sum())


def test_on_step_cannot_see_rows_that_are_on_the_ranks(two):
    ours, x, seen = Canvas(synk.function, exact=True), np.random.RandomState(1).rand(5, 6), []

    def look(i, outputs):
        with reports(StateError, "canvas", "rows", "ranks"):
            ours.canvas.get_value()
        with reports(StateError, "canvas", "rows", "ranks"):
            ours.canvas.set_value(x)
        seen.append(ours.A.get_value())

    ours.draw.steps(x, n_steps=3, on_step=look)
    assert len(seen) == 3 and ours.canvas.get_value().shape == (5, 6)


#: New values of a state of 6 rows that every rank would compute as a whole, or with rows along another axis.
NO_ROWS = {
    "a constant": lambda H, w: T.zeros((6, 6)),
    "what all ranks have": lambda H, w: T.dot(w, w.T),
    "a part": lambda H, w: T.dot(H.T, H),
    "a number": lambda H, w: T.alloc(H.shape[0] * 1.0, 6, 6),
    "rows along another axis": lambda H, w: H.T * 2,
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", NO_ROWS)
def test_updates_by_what_has_no_rows_are_refused(name, exact):
    """Updates by values without rows are refused, because joining all ranks' values would yield too many rows."""
    H, w = L.shared(np.arange(36.0).reshape(6, 6), "H"), L.shared(np.ones((6, 2)), "w")
    with refuses(ValueError, "the update of H", "rows along axis 0", hint="synkhronos.ops.shard"):
        synk.function([synk.sharded(H)], updates=[(H, NO_ROWS[name](H, w))], exact=exact, **FAST)


@pytest.mark.parametrize(
    "new", [lambda k: k + T.arange(k.shape[0]), lambda k: T.arange(k.shape[0])], ids=["sum", "alone"]
)
def test_updates_by_positions_are_refused(new):
    """Updates by row positions are refused, because every rank counts its rows from 0."""
    k = L.shared(np.arange(6), "k")
    with refuses(ValueError, "the update of k", "rows along axis 0", "positions"):
        synk.function([synk.sharded(k)], updates=[(k, new(k))], exact=True, **FAST)


@pytest.mark.parametrize("exact", [False, True])
def test_each_rank_is_given_its_share_of_what_all_have(world, exact):
    ours, theirs = (L.shared(np.arange(36.0).reshape(6, 6), "H") for _ in range(2))
    w = L.shared(np.arange(12.0).reshape(6, 2), "w")
    whole = T.dot(w, w.T)
    f = synk.function([synk.sharded(ours)], updates=[(ours, synk.ops.shard(whole) + ours)], exact=exact, **FAST)
    g = L.function([], [], updates=[(theirs, whole + theirs)], **FAST)
    for _ in range(2):
        f(), g()
        same([ours.get_value()], [theirs.get_value()])


def test_what_cannot_have_rows_is_refused():
    x, H = T.dmatrix("x"), L.shared(np.zeros((3, 2)), "H")
    for given, error, got in [
        ([x, synk.sharded(L.shared(0.0, "c"))], ValueError, "c with 0 dimensions"),
        ([x, synk.sharded(L.shared(np.zeros(3), "other"))], ValueError, "other, which is unused"),
        ([x, synk.sharded(H), synk.sharded(H)], ValueError, "H, which is listed twice"),
    ]:
        with refuses(error, "inputs", got=got):
            synk.function(given, (x * H).sum(), **FAST)
    with refuses(ValueError, got="H, which is listed twice"):
        synk.function([x, synk.sharded(H)], (x * H).sum(), sliceable_shareds=[H], **FAST)
