"""`function` accepts all forms of inputs, outputs and updates that the engine accepts; other features of its functions.

Modules: `build`, `command`, `synkhronos.engines.graph.profiles`.
"""

import copy
import pickle
from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
from library import IS_THEANO, NAME, L, T, executed, needs_theano
from refusals import is_local, refuses, reports

import synkhronos as synk

pytestmark = getattr(pytest.mark, NAME)

ROWS = np.arange(6.0) + 1


@pytest.fixture(params=[("threads", 3), ("fork", 2)], ids=lambda param: "{}-{}".format(*param))
def two(request, make_world):
    """Return a world of threads, and then one of processes."""
    return make_world(*request.param, engine=NAME)


@pytest.fixture
def words(words_of):
    return words_of(NAME)


@pytest.fixture
def one(make_world):
    """Return a world of threads."""
    return make_world("threads", 2, engine=NAME)


def describe(result):
    """Return the properties of a result that two calls must share: types, keys, dtypes and numbers of dimensions."""
    if isinstance(result, dict):
        return type(result), [(key, describe(value)) for key, value in result.items()]
    if isinstance(result, (list, tuple)):
        return type(result), [describe(value) for value in result]
    return type(result), result.dtype, result.ndim


def default(variable, value):
    """Return an input with a default value if the engine supports default values."""
    return L.In(variable, value=value) if IS_THEANO else variable


# -- inputs --------------------------------------------------------------------------------------------------------


@needs_theano
def test_every_form_of_inputs(two, words):
    x, y, z = T.dvector("x"), T.dscalar("y"), T.dscalar()
    In = L.In
    total = ((x * y).sum() + z * x.size, "sum")
    plain = words.function([x], total, bcast_inputs=[y, z])
    with refuses(TypeError, expected="a value for input 2"):  # this input has no name
        plain(y=2, x=ROWS)
    assert plain(ROWS, 2, 1) == 48
    named = words.function([In(x, name="rows")], total, bcast_inputs=[In(y, value=2.0), In(z, value=1.0, name="z")])
    assert named(ROWS) == 48 and named(rows=ROWS, z=2) == 54 and named(ROWS, y=3) == 69 and named(ROWS, 1, 0) == 21
    tuples = words.function([x, (y, 2.0), ("last", z, 1.0)], total)  # Theano's older form
    assert tuples(ROWS) == 48 and tuples(ROWS, last=2) == 54
    assert named(synk.data(ROWS), batch=[0, 1]) == (1 + 2) * 2 + 2
    rows = words.function([In(x, value=ROWS)], total, bcast_inputs=[y, In(z, name="z")])
    assert rows(y=2, z=1) == 48
    with refuses(TypeError, expected="a value for input 'z' (argument 2)"):
        rows(y=2)


@pytest.mark.parametrize(
    "kwargs,value,right",
    [
        (dict(strict=True), np.ones(4, "float32"), np.ones(4)),
        (dict(strict=True), [1.0, 1.0, 1.0, 1.0], np.ones(4)),
        (dict(), np.ones(4, "complex128"), np.ones(4, "float32")),
        (dict(), np.ones((4, 1)), [1, 1, 1, 1]),
        (dict(), ["a"], np.ones(4, "int8")),
        (dict(allow_downcast=False, variable="fvector"), [0.1, 0.2], np.ones(4, "float32")),
        (dict(variable="fvector"), np.ones(4), np.ones(4, "float32")),
        (dict(variable="ivector"), [1.5], [1, 1, 1, 1]),
    ],
)
def test_inputs_refuse_what_the_library_refuses(one, words, kwargs, value, right):
    x = getattr(T, kwargs.pop("variable", "dvector"))("x")
    f = words.function([L.In(x, **kwargs)], (x.sum(), "sum"))
    with pytest.raises((TypeError, ValueError)) as serial:
        f.as_theano(value)
    with refuses(serial.type, "input 'x' (argument 0)") as parallel:
        f(value)
    assert is_local(parallel.value, serial.type)
    if isinstance(value, np.ndarray):
        with refuses(TypeError, "input 'x' (argument 0)", got=str(value.dtype), hint="cast"):
            f(synk.data(value))
    assert f(right) == 4 == f(synk.data(right, var=x))


def test_downcasting_inputs(two, words):
    x = T.fvector("x")
    for f in (
        words.function([L.In(x, allow_downcast=True)], (x, "gather")),
        words.function([x], (x, "gather"), allow_input_downcast=True),
    ):
        for value in (ROWS, synk.data(ROWS), ROWS.tolist(), ROWS.astype(int)):
            result = f(value)
            assert result.dtype == "float32" and result.tolist() == ROWS.tolist()


#: The keywords of a call, each with a valid value.
KEYWORDS = dict(batch=4, batch_shared=[0], batch_s=[0], num_slices=2, output_subset=[0], timeout=60)


@pytest.mark.parametrize("name", KEYWORDS)
def test_inputs_with_names_of_keywords(one, words, name):
    x, n = T.dvector("x"), T.dscalar(name)
    s = words.shared(np.zeros(0), "s")
    f = words.function([x, n], [x.sum() * n, (s, "gather")], sliceable_shareds=[s], name="f")
    synk.scatter(s, [1.0, 1.0])
    pickled = pickle.loads(pickle.dumps(f))
    for g in (f, copy.copy(f), pickled):
        if g is pickled:
            synk.scatter(g.get_shared()[0], [1.0, 1.0])
        assert g(ROWS, 3)[0] == 63 == g.as_theano(ROWS, 3)[0] == g(ROWS, 3, num_slices=2)[0]
        assert g(ROWS, 3, batch=[0, 1])[0] == 9 and g(ROWS, 3, batch_s=[0])[1].tolist() == [1, 1]
        assert len(g(ROWS, 3, output_subset=[0], timeout=60)) == 1
        assert g.steps(ROWS, 3, batches=[[0], [0, 1]])[0].tolist() == [3, 9]
        assert bool(g.compare(ROWS, 3, batch_s=[0]))
        assert [float(np.sum(each)) for each in g.build_inputs(ROWS, 3)] == [21, 3]
        if name in ("batch", "batch_shared", "batch_s"):  # these are not keywords of `steps`
            assert g.steps(ROWS, n_steps=1, **{name: 3})[0].tolist() == [63]
        for made in [g, g.compare] + [partial(g.steps, n_steps=1)] * (name not in ("batch", "batch_shared", "batch_s")):
            with refuses(TypeError, "function", f"input '{name}' (argument 1) by position", f"{name} by name"):
                made(ROWS, **{name: KEYWORDS[name]})
            with refuses(TypeError, "function", f"a value for input '{name}' (argument 1)", "none"):
                made(ROWS)
    with refuses(TypeError, "function f", f"input '{name}' (argument 1) by position"):
        f(x=ROWS, **{name: KEYWORDS[name]})


@pytest.mark.parametrize("name,own", [("force_cast", True), ("oversize", 1.5), ("minibatch", False)])
def test_inputs_with_names_of_keywords_of_build_inputs(one, words, name, own):
    x, n = T.dvector("x"), T.dscalar(name)
    f = words.function([x, n], x.sum() * n)
    assert f(ROWS, **{name: 3}) == 63 == f(*f.build_inputs(ROWS, 3, **{name: own}))
    with refuses(TypeError, "function", f"input '{name}' (argument 1) by position", f"{name} by name"):
        f.build_inputs(ROWS, **{name: 3})


@needs_theano
@pytest.mark.parametrize("name", KEYWORDS)
def test_inputs_with_names_of_keywords_and_values_of_their_own(one, words, name):
    x, n = T.dvector("x"), T.dscalar(name)
    for given in (L.In(n, value=3.0), L.In(n, name=name, value=3.0), (name, n, 3.0)):
        f = words.function([x], x.sum() * n, bcast_inputs=[given])
        assert f(ROWS) == 63 == f(ROWS, 3) and f(ROWS, 2) == 42 == f(ROWS, 2.0, num_slices=2)
        with refuses(TypeError, "function", f"input '{name}' (argument 1) by position"):
            f(ROWS, **{name: KEYWORDS[name]})
        assert f.as_theano(ROWS, **({name: 2} if name != "output_subset" else {})) in (42, 63)
    f = words.function([x], x.sum() * n, bcast_inputs=[L.In(n, value=3.0)])
    if name == "num_slices":  # the default, as in plain Theano, not the stored value
        with refuses(TypeError, "function", f"input '{name}' (argument 1) by position"):
            f(ROWS, num_slices=1)
    state = words.function([x], x.sum() * n, bcast_inputs=[L.In(n, value=3.0, update=n + 1)])
    assert [float(state(ROWS)), float(state(ROWS)), float(state(ROWS, 2))] == [63, 84, 42]
    with refuses(TypeError, "function", f"input '{name}' (argument 1) by position"):
        state(ROWS, **{name: KEYWORDS[name]})


@pytest.mark.parametrize("name", KEYWORDS)
def test_rows_with_names_of_keywords(two, words, name):
    x = T.dmatrix(name)
    f = words.function([x], (x.sum(axis=0), x), exact=True)
    assert f(np.ones((4, 2)), batch=3)[0].tolist() == [3, 3]


def test_wrong_arguments_of_a_call(one, words):
    x, y = T.dvector("x"), T.dvector("y")
    f = words.function([x, y], (x + y, "gather"), name="f")
    for args, kwargs, argument, expected, got in [
        ((ROWS,), {}, "function f", "a value for input 'y' (argument 1)", "none"),
        ((ROWS, ROWS, ROWS), {}, "function f", "at most one value per input (2 in total)", "3"),
        ((ROWS,), {"z": ROWS}, "function f", "inputs called 'x', 'y'", "'z'"),
        ((ROWS, ROWS), {"x": ROWS}, "function f", "once", "input 'x' (argument 0)"),
    ]:
        with refuses(TypeError, argument, expected, got):
            f(*args, **kwargs)
        np.testing.assert_array_equal(f(ROWS, y=ROWS), 2 * ROWS)
    with refuses(TypeError, "input 'y' (argument 1)", got="(3, 2)"):
        f(ROWS, synk.data(ROWS.reshape(3, 2)))
    np.testing.assert_array_equal(f(ROWS, y=ROWS), 2 * ROWS)
    freed = synk.data(ROWS)
    freed.free_memory()
    with reports(synk.StateError, "free_memory()"):
        f(freed, [])
    with refuses(ValueError, "num_slices", "at least 1", "0"):
        f(ROWS, ROWS, num_slices=0)
    np.testing.assert_array_equal(f(ROWS, ROWS, batch_s=None, num_slices=1), 2 * ROWS)


# -- outputs -------------------------------------------------------------------------------------------------------


def test_results_have_the_form_that_the_library_returns(two, words):
    x = T.dmatrix("x")
    mean, rows, top = x.mean(), x * 2, T.cast(x.max(), "float32")
    forms = [
        None,
        [],
        mean,
        [mean],
        (mean, rows),
        [mean, rows, top],
        *([{"b": mean, "a": rows}, OrderedDict(z=top, y=mean)] if IS_THEANO else []),
        L.Out(mean, borrow=True),
        [L.Out(rows, borrow=True), mean],
    ]
    value = np.arange(12.0).reshape(6, 2)
    for form in forms:

        def with_op(output):
            variable = output.variable if isinstance(output, L.Out) else output
            return (output, "gather") if variable is rows else (output, "max") if variable is top else output

        ours = (
            {key: with_op(output) for key, output in form.items()}
            if isinstance(form, dict)
            else list(map(with_op, form))
            if isinstance(form, (list, tuple))
            else form
        )
        f = words.function([x], ours)
        plain = L.function([x], form, mode=words.mode, on_unused_input="ignore")
        subsets = [None]
        if form not in (None, []):
            subsets += [sorted(form)[:1]] if isinstance(form, dict) else [[0], []]
        for subset in subsets:
            result = f(value, output_subset=subset)
            truth = plain(value, output_subset=subset) if IS_THEANO else plain(value)
            if subset is not None and not IS_THEANO:  # PyTensor's functions have no such argument
                truth = [(truth if isinstance(truth, list) else [truth])[i] for i in subset]
            assert describe(result) == describe(truth)
            np.testing.assert_equal(result, truth)


def test_ops_of_integers_and_bools(one, words):
    i, b = T.lvector("i"), L.variable("bool", 1, "flags")
    with refuses(TypeError, "outputs[1] (count)", "floating-point", "int64", "use the op 'sum', "):
        count = i.sum()
        count.name = "count"
        words.function([i], [T.cast(i.sum(), "float64"), (count, "avg")])
    with refuses(TypeError, "output", "floating-point", "bool"):
        words.function([b], (b.any(), "avg"))
    f = words.function(
        [i, b],
        [(i.sum(), "sum"), (i.max(), "max"), (i, "gather"), (b.sum(), "sum"), (T.any(b), "max"), (T.any(b), "sum")],
    )
    results = f([1, 2, 3, 4, 5, 6], np.array([1, 0, 0, 0, 0, 1], bool))
    assert [result.tolist() for result in results] == [21, 6, [1, 2, 3, 4, 5, 6], 2, True, 2]
    assert [result.dtype for result in results] == ["int64"] * 4 + ["bool", "int64"]


@pytest.mark.parametrize(
    "output,error,got", [("mean", ValueError, "'mean'"), ("c_", ValueError, "'c_'"), (3, TypeError, "3 of type int")]
)
def test_unknown_ops(words, output, error, got):
    x = T.dvector("x")
    for form in ([(x, output)], *[{"a": (x, output)}] * IS_THEANO):
        with refuses(error, "output", "'avg', 'sum', 'prod', 'min', 'max', 'gather', None", got):
            words.function([x], form)


# -- updates -------------------------------------------------------------------------------------------------------


def test_every_form_of_updates(two, words):
    x = T.dvector("x")
    w, c = L.shared(np.zeros(()), "w"), L.shared(0, "c")
    forms = [
        [(w, w + 1), (c, c + 1)],
        ((w, w + 1), (c, c + 1)),
        OrderedDict([(w, w + 1), (c, c + 1)]),
        {w: w + 1, c: c + 1},
        [(w, w + 1, "avg"), (c, c + 1, "sum")],
        {w: (w + 1, "max"), c: c + 1},
        [[w, w + 1], (c, c + 1, "min")],
    ]
    modes = [["avg", None]] * 4 + [["avg", "sum"], ["max", None], ["avg", "min"]]
    for i, (form, mode) in enumerate(zip(forms, modes)):
        f = words.function([x], updates=form)
        assert f.update_modes == mode and f.get_shared() and set(f.get_shared()) == {w, c}
        assert f(ROWS) == []
        assert [float(value) for value in two.values(w) + two.values(c)] == [i + 1.0] * 2 * two.n


def _of_unnamed(w, c, s):
    unnamed = L.shared(np.ones(2))
    return [(w, w + 1), (unnamed, unnamed + 1, "gather")]


@pytest.mark.parametrize(
    "update,error,argument,got",
    [
        (lambda w, c, s: [(w, w + 1, "gather")], ValueError, "the op of the update of w", "'gather'"),
        (lambda w, c, s: [(w, w + 1, None)], ValueError, "the op of the update of w", "None"),
        (lambda w, c, s: [(c, c + 1, "avg")], TypeError, "the update of c", "int64"),
        (_of_unnamed, ValueError, "the op of the update of updates[1] (float64 vector)", "'gather'"),
        (lambda w, c, s: [(w * 2, w)], TypeError, "updates", "Elemwise" if IS_THEANO else "Mul"),
        (lambda w, c, s: [(w, w + 1), (w, w + 2)], ValueError, "updates[1]", "w, which is listed twice"),
        (lambda w, c, s: [(s, s * 2, "sum")], TypeError, "the update of s", "op 'sum'"),
        (lambda w, c, s: 5, TypeError, "updates", "int"),
    ],
)
def test_wrong_updates(words, update, error, argument, got):
    import scipy.sparse

    w, c = L.shared(1.0, "w"), L.shared(1, "c")
    s = L.sparse.shared(scipy.sparse.csr_matrix((2, 2)), "s")
    with refuses(error, argument, got=got):
        words.function([], updates=update(w, c, s))


# -- other keywords ------------------------------------------------------------------------------------------------


def test_givens_and_other_keywords_of_theano(two, words):
    x, y, unused = T.dvector("x"), T.dvector("y"), T.dvector("unused")
    w = L.shared(np.full((), 3.0), "w")
    for givens in ([(y, x * w)], {y: x * w}, OrderedDict([(y, x * w)])):
        f = words.function([x], (y, "gather"), givens=givens, name="tripled")
        np.testing.assert_array_equal(f(ROWS), 3 * ROWS)
        assert f.name == "tripled" and f.get_shared() == [w]
    f = words.function([x, unused], (x, "gather"), on_unused_input="ignore")
    np.testing.assert_array_equal(f(ROWS, ROWS), ROWS)
    with pytest.raises(L.UnusedInputError):
        synk.function([x, unused], x, on_unused_input="raise")
    f = words.function([x], (x * 2, "gather"), profile=True)
    np.testing.assert_array_equal(f(ROWS), 2 * ROWS)
    assert f.profile.fct_callcount == two.n and f.compiled.profile.fct_callcount == 1
    # (It sets a flag of the class TensorType during a call. Ranks that are threads share this flag.)
    debug = L.DebugMode(check_c_code=False, optimizer="None" if IS_THEANO else None, check_isfinite=False)
    for mode in ("FAST_COMPILE", L.slow, debug):
        f = words.function([x], (x * 2, "gather"), mode=mode, rebuild_strict=False, accept_inplace=True)
        np.testing.assert_array_equal(f(ROWS), 2 * ROWS)
    with reports(TypeError, "'mod'"):
        words.function([x], x, mod="FAST_RUN")
    with refuses(TypeError, "inputs", "list", "TensorVariable"):
        words.function(x, x)
    with refuses(ValueError, "sliceable_shareds", got="w with 0 dimensions"):
        words.function([x], x, sliceable_shareds=[w])
    words.function([x], x, sliceable_shareds=None)


def test_a_function_without_a_name_is_called_after_its_place(one, words):
    x = T.dvector("x")
    f = synk.function([x], x.sum(), mode=words.mode)
    assert f.name == f.compiled.name and "test_function.py:" in f.name and f.name in repr(f)


# -- on the master -------------------------------------------------------------------------------------------------


def test_as_theano(two, words):
    x, y = T.dmatrix("x"), T.dvector("y")
    w = L.shared(np.zeros(()), "w")
    f = words.function([x, y], [x.sum() + w, (y, None)], updates=[(w, w + 1)])
    matrix, vector = np.arange(6.0).reshape(3, 2), np.arange(4.0)  # the lengths may differ
    for xs, ys in ((matrix, vector), (synk.data(matrix), synk.data(vector)), (matrix.tolist(), vector.tolist())):
        before = float(w.get_value())
        results = f.as_theano(xs, y=ys)
        assert describe(results) == describe(f.compiled(matrix, vector))
        assert results[0] == 15 + before and results[1].tolist() == vector.tolist()
    if IS_THEANO:
        assert f.as_theano(matrix, vector, output_subset=[1])[0].tolist() == vector.tolist()
    else:  # Theano's functions have no such argument
        f.as_theano(matrix, vector)
    f(matrix, vector[:3])
    assert [float(value) for value in two.values(w)] == [8.0] * two.n  # sent after 7 calls on the master
    f.as_theano(matrix, vector)
    assert [float(value) for value in two.values(w)] == [8.0 + (rank == two.root) for rank in range(two.n)]


def test_what_as_theano_has_returned_stays_as_it_is(two, words):
    """Results of `as_theano` keep the values from before an update, although the variables' memory is reused."""
    w, m = L.shared(np.ones(3), "w"), L.shared(np.arange(6.0).reshape(2, 3), "m")
    f = words.function([], [(w, None), (m.T, None)], updates=[(w, w + 1), (m, m * 2)])
    f()
    for _ in range(3):
        before = [w.get_value(), m.get_value().T]
        results = f.as_theano()
        synk.broadcast([w, m])
        for result, value in zip(results, before):
            np.testing.assert_array_equal(result, value)


def test_build_inputs(two, words):
    x, y, a = T.fmatrix("x"), T.ivector("y"), T.dscalar("a")
    f = words.function([x, y], (x.sum() + y.sum() + a * y.size, "sum"), bcast_inputs=[default(a, 1.0)])
    given = {} if IS_THEANO else {"a": 1.0}
    made = f.build_inputs(np.ones((4, 2), "float32"), y=[1, 2, 3, 4], **given)
    assert type(made) is tuple and [(d.name, str(d.dtype), d.shape) for d in made] == [
        ("x", "float32", (4, 2)),
        ("y", "int32", (4,)),
        ("a", "float64", ()),
    ]
    assert f(*made) == 8 + 10 + 4 and f(*made, batch=[0, 0, 3]) == 6 + 6 + 3
    with refuses(TypeError, "x", "float32", "float64", "force_cast=True"):
        f.build_inputs(np.ones((4, 2)), [1], **given)
    options = dict(given, oversize=1.5, minibatch=True)
    xs, ys, _ = f.build_inputs(np.ones((4, 2)), [1.7, 2.2, 3.1, 4.9], force_cast=True, **options)
    assert xs.alloc_size == 12 and ys[:].tolist() == [1, 2, 3, 4] and xs.minibatch and ys.minibatch
    with refuses(ValueError, "oversize", got="2.5"):
        f.build_inputs(np.ones((4, 2), "float32"), [1], **given, oversize=2.5)
    with refuses(ValueError, "x", "2", "1"):
        f.build_inputs(np.ones(4, "float32"), [1], **given)
    with refuses(TypeError, expected="a value for input 'y' (argument 1)"):
        f.build_inputs(np.ones((4, 2), "float32"))
    alone = words.function([y], (y.sum(), "sum")).build_inputs([1, 2])
    assert type(alone) is synk.Data and alone[:].tolist() == [1, 2]
    assert words.function([], (a, None), givens={a: T.constant(1.0)}).build_inputs() == ()
    copies = f.build_inputs(*made)
    copies[0][:] = 5
    assert made[0][:].tolist() == [[1, 1]] * 4


def test_a_data_of_a_wrong_dtype(two, words):
    x = T.fvector("x")
    f = words.function([x], (x.sum(), "sum"))
    with refuses(TypeError, "input 'x' (argument 0)", "float32", "float64", "cast"):
        f(synk.data(ROWS))
    assert f(synk.data(ROWS, dtype="float32", force_cast=True)) == 21 == f(synk.data([1, 2, 3, 4, 5, 6], dtype="int8"))


# -- other features of Theano's functions ----------------------------------------------------------------------------


def test_attributes_are_those_of_the_masters_function(one, words):
    x, w = T.dvector("x"), L.shared(np.full((), 2.0), "w")
    f = words.function([x, default(T.dscalar("a"), 5.0)], (x * w, "gather"))
    assert f.maker is f.compiled.maker and executed(f) is executed(f.compiled)
    assert f.input_storage is f.compiled.input_storage
    if IS_THEANO:
        assert f["a"] == 5 and f[w] == 2 and f["w"] == 2 and "a" in f and w in f and "b" not in f
        assert f.value["a"] == 5 and f.container["a"].value == 5 and f._check_for_aliased_inputs is False
    given = () if IS_THEANO else (5.0,)
    with reports(AttributeError, "no_such_thing"):
        f.no_such_thing()
    with pytest.raises(TypeError):
        iter(f)
    f.trust_input = True
    assert f.trust_input and f.compiled.trust_input
    with refuses(TypeError, "input 'x'"):
        f(np.ones((2, 2)), *given)
    np.testing.assert_array_equal(f(ROWS, *given), 2 * ROWS)


def test_copies(two, words):
    for form in (lambda output: output, lambda output: [output], *[lambda output: {"a": output}] * IS_THEANO):
        x, w, v = T.dvector("x"), L.shared(np.zeros(()), "w"), L.shared(np.full((), 50.0), "v")
        output = form((x + w, "gather"))
        f = words.function([x], output, updates=[(w, w + 1)], name="f")
        first = f(ROWS)
        same, other = f.copy(), f.copy(swap={w: v}, name="other")
        still = f.copy(delete_updates=True)
        assert (same.name, other.name, same.update_modes, still.update_modes) == ("f copy", "other", ["avg"], [])
        assert describe(same(ROWS)) == describe(first) == describe(other(ROWS)) == describe(still.as_theano(ROWS))

        def value(result):
            return np.asarray(result["a"] if isinstance(result, dict) else result).ravel().tolist()

        assert value(first) == ROWS.tolist()
        assert value(still(ROWS)) == value(still(ROWS)) == value(f(ROWS)) == (ROWS + 2).tolist()  # then f and same
        assert value(other(ROWS)) == (ROWS + 51).tolist() and value(same(ROWS)) == (ROWS + 3).tolist()
    shared = f.copy(share_memory=True)
    assert value(f(ROWS)) == (ROWS + 4).tolist() and value(shared(ROWS)) == (ROWS + 5).tolist()
    with refuses(TypeError, "swap", "same type"):
        f.copy(swap={w: L.shared(np.zeros(3))})
    with refuses(TypeError, "name", "a str"):
        f.copy(name=3)


def test_functions_can_be_pickled(two, words):
    x, w = T.dvector("x"), L.shared(np.full((), 2.0), "w")
    outputs = {"a": (x * w, "gather"), "m": x.mean()}
    rows, mean = ("a", "m") if IS_THEANO else (0, 1)
    f = words.function([x], outputs if IS_THEANO else list(outputs.values()), updates=[(w, w + 1)], name="f")
    f(ROWS)
    for again in (pickle.loads(pickle.dumps(f)), copy.deepcopy(f)):
        before = float(w.get_value())
        assert again.output_modes == ["gather", "avg"] and again.name == "f"
        result = again(ROWS)
        assert result[rows].tolist() == (3 * ROWS).tolist() and result[mean] == 3.5
        assert again(ROWS, output_subset=[rows])[rows].tolist() == (4 * ROWS).tolist()
        assert w.get_value() == before  # the copy has its own variable
    assert f(ROWS)[rows].tolist() == (3 * ROWS).tolist()


def test_free_reaches_all_ranks(one, words):
    x = T.dvector("x")
    mode = L.Mode(L.VMLinker(use_cloop=False, allow_gc=False), None)
    f = words.function([x], ((x * 2).sum() + (x * 3).sum(), "sum"), mode=mode)
    f.free()  # before it is distributed
    assert f(ROWS) == 105
    contexts = [one.session.context] + list(one.session.launcher.contexts.values())
    compiled = [context.registry.functions[max(context.registry.functions)].reference() for context in contexts]

    def kept():
        return [
            sum(
                isinstance(cell[0], np.ndarray) and variable.owner is not None
                for variable, cell in executed(each).storage_map.items()
            )
            for each in compiled
        ]

    assert min(kept()) > 0
    f.free()
    assert max(kept()) == 0 and f(ROWS) == 105
    synk.close()
    f.free()
    assert f.as_theano(ROWS) == 105


def test_free_keeps_the_values_of_the_program(one, words):
    x, w, total = T.dvector("x"), L.shared(np.arange(3.0), "w"), L.shared(0.0, "total")
    a, s = T.dscalar("a"), T.dscalar("s")
    kept = [L.In(a, value=10.0), L.In(s, value=1.0, update=s + 1)] if IS_THEANO else []
    mode = L.Mode(L.VMLinker(use_cloop=False, allow_gc=False), None)
    output = (x * w.sum() + (a + s if IS_THEANO else 11.0), "gather")
    f = words.function([x], output, bcast_inputs=kept, updates=[(total, total + w.max())], mode=mode)
    for i in range(3):
        np.testing.assert_allclose(f(ROWS), ROWS * 3 + 11 + i * IS_THEANO)
        f.free()
        np.testing.assert_array_equal(w.get_value(), [0, 1, 2])
        assert one.values(total) == [2.0 * (i + 1)] * 2
    synk.close()
    f.free()
    np.testing.assert_allclose(f.as_theano(ROWS), ROWS * 3 + 11 + 3 * IS_THEANO)
