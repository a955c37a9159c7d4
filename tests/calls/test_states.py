"""Inputs that keep a value between calls: every rank keeps its own value, and calls behave like those of Theano."""

import copy
import pickle

import numpy as np
import pytest
from library import NAME, L, T, needs_theano
from refusals import refuses

import synkhronos as synk

pytestmark = [getattr(pytest.mark, NAME), needs_theano, pytest.mark.thorough("threads-[12]|uneven hosts")]

X = np.arange(1.0, 8.0)

#: Most cases with threads, the same cases with processes, and on two hosts.
RANKS = [("threads", 1), ("threads", 2), ("threads", 3), ("fork", 2), ("2 uneven hosts", 3)]


@pytest.fixture(params=RANKS, ids=lambda param: "{}-{}".format(*param))
def ranks(request, make_world):
    return make_world(*request.param, engine=NAME)


@pytest.fixture
def two(make_world):
    return make_world("threads", 2, engine=NAME)


@pytest.fixture
def words(words_of):
    return words_of(NAME)


def parts_of(n):
    return np.array_split(X, n)


def state_in(f):
    """Return the shared variable of the function's only input with a state."""
    (state,) = [shared for shared in f.get_shared() if shared.name == "s"]
    return state


def counter(make, **kwargs):
    """Return a function, built by `make`, that adds ``a * x`` to ``s`` in each call; also return ``a`` and ``s``."""
    x, a, s = T.dscalar("x"), T.dscalar(), T.dscalar("s")
    new = s + a * x
    inputs = [x, L.In(a, value=1.0, name="a"), L.In(s, value=10.0, update=new, **kwargs)]
    return make(inputs, new), a, s


# -- a call ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutable", [None, False, True])
def test_every_form_of_a_call(ranks, words, mutable):
    ours, a, s = counter(
        lambda inputs, output: words.function([], (output, "max"), bcast_inputs=inputs), mutable=mutable
    )
    theirs, their_a, their_s = counter(lambda inputs, output: L.function(inputs, output), mutable=mutable)
    calls = [((2,), {}), ((2, 3), {}), ((4,), {"a": 0.5}), ((1, 2, 100), {}), ((1,), {"s": -7}), ((2,), {})]
    for args, kwargs in calls:
        value = theirs(*args, **kwargs)
        assert ours(*args, **kwargs) == value
        held = ranks.values(state_in(ours))
        assert [float(one) for one in held] == [float(theirs[their_s])] * ranks.n == [float(value)] * ranks.n
        assert ours[s] == ours["s"] == ours.value[s] == ours.container[s].value == theirs[their_s]
        assert ours[a] == theirs[their_a] == 1 and s in ours and "s" in ours


@pytest.mark.thorough("fork")
def test_data_and_arrays_that_are_given_stay_what_they_are(ranks, words):
    s = T.dvector("s")
    f = words.function([], (s * 1, "max"), bcast_inputs=[L.In(s, value=np.zeros(3), update=s + 1, mutable=True)])
    array, data = np.full(3, 5.0), synk.data(np.full(3, 6.0))
    assert f(array).tolist() == [5] * 3 and f().tolist() == [6] * 3
    assert f(data).tolist() == [6] * 3 and f().tolist() == [7] * 3
    assert array.tolist() == [5] * 3 and data[:].tolist() == [6] * 3
    data[:] = 1  # the argument and the state do not share memory
    assert f().tolist() == [8] * 3
    assert [one.tolist() for one in ranks.values(state_in(f))] == [[9] * 3] * ranks.n


def test_every_rank_keeps_its_own(ranks, words):
    x, s = T.dvector("x"), T.dscalar("s")
    f = words.function([x], (s, "gather"), bcast_inputs=[L.In(s, value=1.0, update=s + x.sum())])
    expected = np.ones(ranks.n)
    for _ in range(3):
        np.testing.assert_array_equal(f(X), expected)
        expected = expected + [part.sum() for part in parts_of(ranks.n)]
    assert ranks.values(state_in(f)) == expected.tolist()
    assert f[s] == expected[ranks.root]
    synk.all_reduce(state_in(f), op="sum")  # the state is an ordinary variable
    assert f(X).tolist() == [expected.sum()] * ranks.n


@pytest.mark.thorough("fork")
def test_an_exact_function_keeps_what_the_serial_one_does(ranks, words):
    x, s = T.dvector("x"), T.dscalar("s")

    def inputs():
        return [L.In(s, value=1.0, update=0.5 * s + T.sqr(x.mean()))]

    ours = words.function([x], x.sum() * s, bcast_inputs=inputs(), exact=True)
    theirs = L.function([x, *inputs()], x.sum() * s)
    for rows in (X, X[:5], X[2:]):
        np.testing.assert_allclose(ours(rows), theirs(rows), rtol=1e-12)
        np.testing.assert_allclose(ranks.values(state_in(ours)), [theirs[s]] * ranks.n, rtol=1e-12)
    np.testing.assert_allclose(ours(X, 3.0), theirs(X, 3.0), rtol=1e-12)
    np.testing.assert_allclose([ours[s], *ranks.values(state_in(ours))], [theirs[s]] * (ranks.n + 1), rtol=1e-12)
    assert bool(ours.compare(X)) and bool(ours.compare(X, 2.0))


@pytest.mark.thorough("fork")
def test_slices_compute_from_the_value_before_the_call(ranks, words):
    x, s, rate = T.dvector("x"), T.dscalar("s"), T.dscalar("rate")
    f = words.function([x], (x.sum() * s, "sum"), bcast_inputs=[rate, L.In(s, value=2.0, update=s - rate * x.mean())])
    expected = np.full(ranks.n, 2.0)
    for num_slices in (1, 2):
        sums = [part.sum() for part in parts_of(ranks.n)]
        np.testing.assert_allclose(f(X, 0.1, num_slices=num_slices), (sums * expected).sum())
        expected = expected - 0.1 * np.array([part.mean() for part in parts_of(ranks.n)])
        np.testing.assert_allclose(ranks.values(state_in(f)), expected)
    np.testing.assert_allclose(f(X, 0.0, 5.0, num_slices=2), 5 * X.sum())
    assert ranks.values(state_in(f)) == [5.0] * ranks.n


def test_rows_of_shared_variables(ranks, words):
    s, data = T.dscalar("s"), L.shared(X, "data")
    f = words.function(
        [], (s + data.sum(), "gather"), bcast_inputs=[L.In(s, value=1.0, update=s * 2)], sliceable_shareds=[data]
    )
    for n in (1, 2, 4):
        assert f(batch_s=slice(0, 2)).tolist() == [n + 3.0] * ranks.n
    assert ranks.values(state_in(f)) == [8.0] * ranks.n


@pytest.mark.parametrize("exact", [False, True])
def test_steps_go_on_from_each_other(ranks, words, exact):
    x, s = T.dvector("x"), T.dscalar("s")
    batches = [slice(0, 4), slice(4, 7), [1, 1, 0]]

    def inputs():
        return [L.In(s, value=1.0, update=s + x.mean())]

    def make():
        return words.function([x], (s, "avg"), bcast_inputs=inputs(), exact=exact)

    steps, calls = make(), make()
    found = steps.steps(X, batches=batches)
    np.testing.assert_allclose(found, [calls(X, batch=batch) for batch in batches])
    np.testing.assert_allclose(ranks.values(state_in(steps)), ranks.values(state_in(calls)))
    if exact:
        theirs = L.function([x, *inputs()], s)
        np.testing.assert_allclose(found, [theirs(X[batch]) for batch in batches])
    assert steps.steps(X, 4.0, batches=batches).tolist() == [4.0] * 3  # as in calls that pass it


def test_comparisons_leave_states_alone(two, words):
    x, s = T.dvector("x"), T.dscalar("s")
    given = [L.In(s, value=1.0, update=s + 1)]
    f = words.function([x], (x.sum() * s, "sum"), bcast_inputs=given)
    assert bool(f.compare(X)) and bool(f.compare(X)) and bool(f.compare(X, s=5.0))
    assert f(X) == 6 * X.sum() and two.values(state_in(f)) == [7.0] * 2
    wrong = words.function([x], (s * 0, "sum"), bcast_inputs=[L.In(s, value=1.0, update=s + x.sum())])
    (difference,) = wrong.compare(X).differences
    assert difference.name == "s" and difference.expected == 1 + X.sum()


# -- on the master -----------------------------------------------------------------------------------------------------


def test_what_the_program_puts_there_reaches_all_ranks(ranks, words, caplog):
    x, s = T.dvector("x"), T.dscalar("s")
    f = words.function([x], (s, "gather"), bcast_inputs=[L.In(s, value=1.0, update=s + 1)])
    assert f(X).tolist() == [1.0] * ranks.n
    f[s] = 10
    assert f(X).tolist() == [10.0] * ranks.n
    f.value["s"] = 20
    assert f(X).tolist() == [20.0] * ranks.n
    f.container[s].value = 30
    assert f(X).tolist() == [30.0] * ranks.n
    f.as_theano(X), f.as_theano(X)
    assert f(X).tolist() == [33.0] * ranks.n
    f[s] = 40
    assert [one.tolist() for one in f.steps(X, n_steps=2)] == [[40.0] * ranks.n, [41.0] * ranks.n]
    assert "changed on the master alone" not in caplog.text


@pytest.mark.thorough("fork")
def test_several_that_are_put_there_at_once(ranks, words):
    x, total, n = T.dvector("x"), T.dscalar("total"), T.lvector("n")
    given = [L.In(total, value=0.0, update=total + x.mean()), L.In(n, value=np.zeros(2, int), update=n + 1)]
    f = words.function([x], [(total, "gather"), (n, "gather")], bcast_inputs=given)
    f(X)
    for i in range(3):
        f[total], f[n] = 5.0 + i, np.array([i, -i])
        totals, ns = f(X)
        assert totals.tolist() == [5.0 + i] * ranks.n and ns.tolist() == [i, -i] * ranks.n
        f.as_theano(X)
        assert f(X)[1].tolist() == [i + 2, -i + 2] * ranks.n


@pytest.mark.thorough("fork")
def test_in_place_operators(ranks, words):
    """`f[s] += 1` changes the state on all ranks; the ranks' values of another state do not change."""
    x, s, own = T.dvector("x"), T.dvector("s"), T.dscalar("own")
    given = [L.In(s, value=np.zeros(2), update=s + 1), L.In(own, value=0.0, update=own + x.sum())]
    f = words.function([x], [(s, "gather"), (own, "gather")], bcast_inputs=given)
    sums = np.array([part.sum() for part in parts_of(ranks.n)])
    for i in range(3):
        found, kept = f(X)
        assert found.tolist() == [11.0 * i] * (2 * ranks.n)
        np.testing.assert_array_equal(kept, i * sums)
        f[s] += 10


@pytest.mark.thorough("fork")
def test_comparisons_begin_with_what_was_put_there(ranks, words):
    x, s = T.dvector("x"), T.dscalar("s")
    f = words.function([x], (s * x, "gather"), bcast_inputs=[L.In(s, value=1.0, update=s + 1)])
    for value in (5.0, 7.0):
        f[s] = value
        found = f.compare(X)
        assert bool(found), found
        np.testing.assert_array_equal(found.results, value * X)


@pytest.mark.thorough("fork")
def test_a_default_that_is_replaced_is_for_one_call(ranks, words):
    ours, a, s = counter(lambda inputs, output: words.function([], (output, "max"), bcast_inputs=inputs))
    theirs, their_a, their_s = counter(lambda inputs, output: L.function(inputs, output))
    for f, one, other in ((ours, a, s), (theirs, their_a, their_s)):
        f[one] = 5.0
        assert f[one] == 5 and f(3) == 25 and f[one] == 1 and f(3) == 28 and f[other] == 28
        with pytest.raises(TypeError):
            f["no such input"] = 1


@pytest.mark.thorough("fork")
def test_comparisons_use_a_default_that_is_replaced(ranks, words):
    f, a, _ = counter(lambda inputs, output: words.function([], (output, "max"), bcast_inputs=inputs))
    f[a] = 5.0
    for expected in (25, 28):  # 10 + 5 * 3, and the default is 1 again
        found = f.compare(3)
        assert bool(found) and found.results == expected


def test_after_close_it_goes_on(make_world, words):
    x, s = T.dvector("x"), T.dscalar("s")
    for launcher, n in (("threads", 2), ("fork", 2), ("threads", 3)):
        world = make_world(launcher, n, engine=NAME)
        if n == 2 and launcher == "threads":
            f = words.function([x], (s, "gather"), bcast_inputs=[L.In(s, value=1.0, update=s + 1)])
        value = float(f[s])
        assert f(X).tolist() == [value] * n and f(X).tolist() == [value + 1] * n
        assert world.values(state_in(f)) == [value + 2] * n


# -- values shared by functions ----------------------------------------------------------------------------------------


@pytest.mark.thorough("fork")
def test_functions_with_one_container(ranks, words):
    x, s = T.dscalar("x"), T.dscalar("s")
    up = words.function([], [], bcast_inputs=[x, L.In(s, value=10.0, update=s + x)])
    down = words.function([], [], bcast_inputs=[x, L.In(s, value=up.container[s], update=s - x, implicit=False)])
    look = words.function([], (s * x, "gather"), bcast_inputs=[L.In(s, value=up.container[s]), x])
    up(3)
    assert look(2).tolist() == [26.0] * ranks.n
    down(4)
    assert look(2).tolist() == [18.0] * ranks.n and up[s] == down[s] == look[s] == 9
    down(1, 0)  # passes the common value of both functions
    assert up[s] == -1 and look(1).tolist() == [-1.0] * ranks.n
    up[s] = 6
    down(1)
    assert look(1).tolist() == [5.0] * ranks.n
    up[s] = 8  # a function without an argument for the value has it, too
    assert look(1).tolist() == [8.0] * ranks.n
    look[s] = 9
    assert look(1).tolist() == [9.0] * ranks.n and up[s] == 9
    with refuses(TypeError, expected="at most one value per input (1 in total)", got="2"):
        look(1, 2)


@pytest.mark.thorough("fork")
def test_an_input_bound_to_a_shared_variable(ranks, words):
    x, s, w = T.dvector("x"), T.dscalar("s"), L.shared(np.full((), 3.0), "w")
    f = words.function([x], (s * x.sum(), "sum"), bcast_inputs=[L.In(s, value=w, update=s + 1)])
    assert f(X) == 3 * X.sum() and f(X) == 4 * X.sum()
    assert f.get_shared() == [w] and ranks.values(w) == [5.0] * ranks.n
    synk.broadcast(w, 1.0)
    assert f(X) == X.sum()


@pytest.mark.thorough("fork")
def test_states_of_several_kinds(ranks, words):
    """From a random state, one rank draws Theano's numbers and the others different ones, also after it is set."""
    from theano.tensor import raw_random

    state = raw_random.random_state_type("s")
    new, drawn = raw_random.uniform(state, (3,))
    theirs = L.function([L.In(state, value=np.random.RandomState(5), update=new, mutable=True)], drawn)
    ours = words.function(
        [], (drawn, "gather"), bcast_inputs=[L.In(state, value=np.random.RandomState(5), update=new, mutable=True)]
    )
    for _ in range(3):
        numbers = ours().reshape(ranks.n, 3)
        np.testing.assert_array_equal(numbers[0], theirs())
        assert len(np.unique(numbers)) == 3 * ranks.n
    for f in (ours, theirs):
        f[state] = np.random.RandomState(7)
    seeded = [ours().reshape(ranks.n, 3) for _ in range(2)]
    np.testing.assert_array_equal(np.stack(seeded)[:, ranks.root], [theirs(), theirs()])
    assert len(np.unique(seeded)) == 6 * ranks.n
    ours["s"] = np.random.RandomState(7)  # all ranks restart their streams
    np.testing.assert_array_equal([ours().reshape(ranks.n, 3) for _ in range(2)], seeded)


@pytest.mark.thorough("fork")
def test_a_sparse_matrix(ranks, words):
    from scipy.sparse import csr_matrix as matrix
    from theano import sparse

    x, s = T.dscalar("x"), sparse.csr_matrix("s")
    inputs = [x, L.In(s, value=matrix(np.eye(2)), update=sparse.mul(s, x))]
    f = words.function([], (sparse.sp_sum(s), "gather"), bcast_inputs=inputs)
    assert [f(2.0).tolist(), f(3.0).tolist(), f(1.0).tolist()] == [[2.0] * ranks.n, [4.0] * ranks.n, [12.0] * ranks.n]
    f[s] = matrix(5 * np.eye(2))
    assert [f(2.0).tolist(), f(1.0).tolist()] == [[10.0] * ranks.n, [20.0] * ranks.n]


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_rows_are_not_kept(two, words):
    x, s = T.dvector("x"), T.dvector("s")
    for given in (L.In(s, value=X, update=s + 1), L.In(s, update=s + 1), ((s, s + 1), X)):
        with refuses(ValueError, "input 's' (argument 1)", "broadcast", "scattered", "bcast_inputs"):
            words.function([x, given], (x + s, "gather"))
    f = words.function([x], (x.sum() * s.sum(), "sum"), bcast_inputs=[L.In(s, value=X, update=s + 1)])
    with refuses(TypeError, "function", "a value for input 'x'"):
        f()
    with refuses(TypeError, "input 's' (argument 1)"):
        f(X, np.ones((2, 2)))
    assert f[s].tolist() == X.tolist()


def test_without_a_first_value_it_is_given_in_every_call(two, words):
    s = T.dscalar("s")
    f = words.function([], (s * 2, "max"), bcast_inputs=[L.In(s, update=s + 1)])
    assert f(3) == 6 and f(4) == 8
    with refuses(TypeError, "function", "a value for input 's'"):
        f()


def test_inputs_are_built_of_what_is_given(two, words):
    x, s, a = T.dvector("x"), T.dvector("s"), T.dscalar("a")
    kept = L.In(s, value=np.zeros(2), update=s + 1)
    f = words.function([x], [(x * a, "gather"), (s, "gather")], bcast_inputs=[a, kept])
    for _ in range(2):
        data = f.build_inputs(X, 2.0)
        assert [one.name for one in data] == ["x", "a"]
        np.testing.assert_array_equal(f(*data)[0], 2 * X)
    assert f[s].tolist() == [2, 2]
    assert f(*f.build_inputs(X, 1.0, [5, 6]))[1].tolist() == [5, 6] * 2
    middle = words.function([x], (x * a + s.sum(), "gather"), bcast_inputs=[kept, L.In(a, value=2.0)])
    with refuses(TypeError, "input 's' (argument 1)", "value", "none", "last"):
        middle.build_inputs(X)


# -- copies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f)), lambda f: f.copy()]
)
@pytest.mark.parametrize("exact", [False, True])
def test_copies_keep_values_of_their_own(two, words, make, exact):
    x, s = T.dvector("x"), T.dscalar("s")
    f = words.function([x], s + 0 * x.sum(), bcast_inputs=[L.In(s, value=1.0, update=s + x.sum())], exact=exact)
    f(X)
    g = make(f)
    first = f[s]
    assert g["s"] == first and g(X, 2.0) == 2 and f[s] == first  # the copies are no longer equal
    state = [shared for shared in g.get_shared() if shared.name == "s"][0]
    sums = [X.sum()] * 2 if exact else [part.sum() for part in parts_of(2)]
    np.testing.assert_allclose(two.values(state), [2 + one for one in sums])
    np.testing.assert_allclose(two.values(state_in(f)), [1 + one for one in sums])
    if exact:
        np.testing.assert_allclose(g(X, num_slices=2), 2 + X.sum())
        np.testing.assert_allclose(two.values(state), [2 + 2 * X.sum()] * 2)
        np.testing.assert_allclose(f(X), 1 + X.sum())


@pytest.mark.thorough("fork")
def test_a_copy_without_updates(ranks, words):
    s, w = T.dscalar("s"), L.shared(np.zeros(()), "w")
    f = words.function([], (s + w, "max"), bcast_inputs=[L.In(s, value=3.0, update=s + 1)], updates=[(w, w + 10)])
    assert f() == 3
    g = f.copy(delete_updates=True)
    assert g.update_modes == [] and g() == 14 and g(7) == 17 and g() == 14  # the value becomes a default
    assert f() == 14 and f() == 25 and ranks.values(w) == [30.0] * ranks.n


def test_functions_with_one_container_travel_together(two, words):
    x, s = T.dscalar("x"), T.dscalar("s")
    up = words.function([], (s, "max"), bcast_inputs=[x, L.In(s, value=10.0, update=s + x)])
    down = words.function([], (s, "max"), bcast_inputs=[x, L.In(s, value=up.container[s], update=s - x)])
    for again in (copy.deepcopy([up, down]), pickle.loads(pickle.dumps([up, down]))):
        assert again[0](5) == 10 and again[1](2) == 15 and again[0](0) == 13 and up["s"] == 10


# -- other features of the library's functions -------------------------------------------------------------------------


@pytest.mark.thorough("fork")
def test_constants_as_outputs(ranks, words):
    x, w = T.dvector("x"), L.shared(np.zeros(()), "w")
    five, ones = T.constant(5.0), T.constant(np.ones(3))
    f = words.function([x], [five, (ones, None), x.sum(), (five, "sum")], updates=[(w, 4.0)])
    for num_slices in (1, 2):
        results = f(X, num_slices=num_slices, output_subset=[0, 2, 3] if num_slices > 1 else [0, 1, 2, 3])
        assert results[0] == 5 and results[-2] == X.sum()
        assert results[-1] == 5 * num_slices * ranks.n
    assert f(X)[1].tolist() == [1, 1, 1] and ranks.values(w) == [4.0] * ranks.n


@pytest.mark.thorough("fork")
def test_rebuild_strict(ranks, words):
    x, y, matrix = T.ivector("x"), T.ivector("y"), T.imatrix("matrix")
    f = words.function([matrix], (x * y, "gather"), bcast_inputs=[y], givens=[(x, matrix)], rebuild_strict=False)
    rows = np.arange(15, dtype="int32").reshape(5, 3)
    np.testing.assert_array_equal(f(rows, np.array([1, 2, 3], "int32")), rows * [1, 2, 3])
    with pytest.raises(TypeError):
        words.function([matrix], (x * y, "gather"), bcast_inputs=[y], givens=[(x, matrix)])


@pytest.mark.thorough("fork")
def test_variables_and_inputs_are_not_aliased(ranks, words):
    a, b, c = L.shared(np.full((2, 2), 0.5), "a"), L.shared(np.full((2, 2), -0.5), "b"), T.dmatrix("c")
    swap = words.function([], [], updates=[(a, b), (b, a)])
    views = words.function([], [], updates=[(a, b[:, ::-1]), (b, a.T)])
    take = words.function([], (c * 1, "max"), bcast_inputs=[L.In(c, borrow=True)], updates=[(a, b), (b, c)])
    synk.distribute()
    for f in (swap, views, swap):
        before = [ranks.values(a), ranks.values(b)]
        f()
        for value, other in zip(ranks.values(a) + ranks.values(b), before[1] + before[0]):
            np.testing.assert_array_equal(value, other)
        assert not np.may_share_memory(a.get_value(borrow=True), b.get_value(borrow=True))
    array = np.arange(4.0).reshape(2, 2)
    expected = ranks.values(b)
    take(array)
    array[:] = 9
    for value, old in zip(ranks.values(a), expected):
        np.testing.assert_array_equal(value, old)
    for value in [*ranks.values(b), b.get_value()]:
        np.testing.assert_array_equal(value, [[0, 1], [2, 3]])


def test_one_rank_leaves_variables_where_they_are(make_world, words):
    """With one rank, no copy is made, and the function works in place like Theano's."""
    make_world("fork", 1, engine=NAME)
    w = L.shared(np.zeros(5), "w")
    held = w.get_value(borrow=True)
    f = words.function([], updates=[(w, w + 1)], mode="FAST_RUN")
    f()
    assert held.tolist() == [1.0] * 5 and w.get_value().tolist() == [1.0] * 5
    synk.all_reduce(w, op="sum")
    f()
    assert w.get_value().tolist() == [2.0] * 5


@pytest.mark.thorough("fork")
@pytest.mark.parametrize("before", ["as_theano", "replaced", "compare", "nothing"])
def test_defaults_of_an_exact_function(ranks, words, before):
    x, a, b = T.dvector("x"), T.dscalar("a"), T.dscalar()
    f = words.function([x], a * x.sum() + b, bcast_inputs=[L.In(a, value=2.0), L.In(b, value=1.0)], exact=True)
    first = 2 * X.sum() + 1
    if before == "as_theano":
        assert f.as_theano(X) == first
    elif before == "replaced":
        f[a] = 3.0
        first = 3 * X.sum() + 1
    elif before == "compare":
        found = f.compare(X)
        assert bool(found) and found.results == first
    assert f(X) == first  # the replacement applies to a single call
    for again in (f, f.copy(), pickle.loads(pickle.dumps(f))):
        assert again(X) == 2 * X.sum() + 1 and again(X, a=0.0) == 1 and again(X, 0.0, 5.0) == 5
