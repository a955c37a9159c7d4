"""Features of the Theano engine beyond the conformance tests; expected values come from Theano in one process.

Modules: `pickling_repairs`, `synkhronos.engines.graph.pickled_settings`, `synkhronos.engines.graph.states`.
"""

from __future__ import annotations

import inspect
import threading
import warnings

import numpy as np
import pytest
from peer import prepare_theano
from refusals import refuses, reports

prepare_theano()
theano = pytest.importorskip("theano")
import theano.tensor as T  # noqa: E402
from theano.sandbox.rng_mrg import MRG_RandomStreams  # noqa: E402
from theano.tensor.shared_randomstreams import RandomStreams  # noqa: E402

from synkhronos.engines.theano.engine import ENGINE  # noqa: E402

pytestmark = pytest.mark.theano
PYTHON = theano.Mode(linker=theano.gof.vm.VM_Linker(use_cloop=True, c_thunks=False), optimizer="fast_run")
SLOW_BUT_PLAIN = theano.Mode(linker="py", optimizer=None)


@pytest.fixture
def master(theano_master):
    return theano_master


def compile(inputs, outputs, updates=(), givens=None, mode=PYTHON, **kwargs):
    return ENGINE.compile(inputs, outputs, list(updates), givens, mode=mode, **kwargs)


# -- compile -------------------------------------------------------------------------------------------------------


def test_the_name_is_the_place_of_the_call_as_in_theano():
    x = T.vector("x")
    here = theano.function([x], x * 2, mode=SLOW_BUT_PLAIN).name
    line = inspect.currentframe().f_lineno + 1
    assert ENGINE.compile([x], x * 2, [], None, mode=SLOW_BUT_PLAIN).name == f"{(here.rsplit(':', 1)[0])}:{line}"
    assert ENGINE.compile([x], x * 2, [], None, mode=SLOW_BUT_PLAIN, name="mine").name == "mine"


@pytest.mark.parametrize(
    "given",
    [
        lambda x: theano.In(x, value=np.ones(2), update=x + 1),
        lambda x: (((x, x + 1), np.ones(2))),
        lambda x: ("name", (x, x + 1), np.ones(2)),
    ],
)
def test_inputs_with_updates_have_states(given):
    x, other = T.vector("x"), T.vector("other")
    asked = given(x)
    first, second = ENGINE.with_states([other, asked])
    assert first is other and ENGINE.with_states([other])[0] is other
    f, g = (compile([first, second], x * 2, on_unused_input="ignore") for _ in range(2))  # e.g. a draft and a function
    snapshot = ENGINE.snapshot([first, second], x * 2, [], [], on_unused_input="ignore")
    (state,) = ENGINE.updated_in(snapshot)
    assert ENGINE.shareds(f) == [state] == ENGINE.shareds(g) and [one.state for one in ENGINE.inputs(f)] == [
        None,
        state,
    ]
    assert ENGINE.storage(state) is f.container[x].storage is g.container[x].storage
    variant = ENGINE.variant(snapshot, False, [])
    for each in (f, g):
        before = f.value[x].copy()  # (the update may be in place)
        np.testing.assert_array_equal(each(np.zeros(2)), 2 * before)
        np.testing.assert_array_equal(ENGINE.get(state), before + 1)
    np.testing.assert_array_equal(variant(np.zeros(2), np.full(2, 5.0)), [[10, 10]])
    np.testing.assert_array_equal(f.value[x], [6, 6])
    if isinstance(asked, theano.In):  # the program's own input, which may be passed to other functions
        assert asked.variable is x and asked.value.tolist() == [1, 1] and not hasattr(asked, "state")


def test_inputs_bound_to_a_shared_variable():
    x, w = T.vector("x"), theano.shared(np.ones(2), "w")
    for given in (
        theano.In(x, value=w),
        theano.In(x, value=w.container),
        theano.In(x, value=np.ones(2), implicit=True),
    ):
        (bound,) = ENGINE.with_states([given])
        assert ENGINE.is_implicit(bound)
        f = compile([bound], x * 2)
        (state,) = ENGINE.shareds(f)
        assert ENGINE.inputs(f) == [] and (state is w) == (given.value is w)
        assert (ENGINE.storage(state) is ENGINE.storage(w)) != (type(given.value) is np.ndarray)
        np.testing.assert_array_equal(f(), [2, 2])
        np.testing.assert_array_equal(ENGINE.variant(ENGINE.snapshot([bound], x * 2, [], []), True, [])(), [[2, 2]])


def test_inputs_as_tuples_and_other_keywords():
    x, y = T.vector("x"), T.vector("y")
    f = ENGINE.compile([(x, np.ones(2)), "unused" and ("why", y)], [x + y], [], None, mode=PYTHON)
    assert [(given.name, given.has_default) for given in ENGINE.inputs(f)] == [("x", True), ("why", False)]
    z = T.fvector("z")
    f = compile([z, x], z * 2, allow_input_downcast=True, on_unused_input="ignore")
    np.testing.assert_array_equal(f(np.array([1.5]), [1.0]), [3])
    with pytest.raises(theano.compile.UnusedInputError):
        compile([x, y], x)
    with reports(TypeError, "no_such_keyword"):
        compile([x], x, no_such_keyword=1)


def test_numpy_values_in_givens_become_shared_variables(master):
    x, y = T.vector("x"), T.vector("y")
    f = compile([x], x + y, givens={y: np.array([1.0, 2.0])})
    assert len(ENGINE.shareds(f)) == 1
    np.testing.assert_array_equal(master.peer.call(master.send(f), [np.ones(2)])[0], [2, 3])


def test_no_default_updates_and_lists_of_them():
    a, b = theano.shared(1.0, "a"), theano.shared(2.0, "b")
    a.default_update, b.default_update = a + 1, b + 1
    for updates, without, expected in (([], False, [2, 3]), ([], [b], [2, 2]), ([(b, b * 2)], True, [1, 4])):
        a.set_value(1.0)
        b.set_value(2.0)
        compile([], a + b, updates, no_default_updates=without)()
        assert [a.get_value(), b.get_value()] == expected


# -- values --------------------------------------------------------------------------------------------------------

WAYS = [dict(), dict(strict=True), dict(allow_downcast=True), dict(allow_downcast=False)]
VALUES = [
    1,
    1.5,
    True,
    300,
    -1,
    1e300,
    1 + 2j,
    "1",
    "text",
    np.float32(0.1),
    np.float64(0.1),
    np.int8(3),
    [1, 2],
    [0.1],
    [[1, 2]],
    [],
    [[]],
    np.ones(2),
    np.ones(2, "f"),
    np.ones(2, ">f8"),
    np.ones((1, 2)),
    np.ones((2, 1)),
    np.ones(2, "int32"),
    np.ones(2, object),
    np.ma.masked_array([1.0, 2.0]),
    np.array(["a", "b"]),
    np.frombuffer(b"\0" * 17, "u1")[1:].view("f8"),
    None,
    {"a": 1},
    10**30,
    T.vector("symbolic"),
]


@pytest.mark.parametrize("way", WAYS, ids=repr)
@pytest.mark.parametrize(
    "type_", [T.fscalar, T.dscalar, T.bscalar, T.fvector, T.dvector, T.lvector, T.drow], ids=lambda type_: str(type_)
)
def test_convert_and_check_decide_as_a_call(way, type_):
    x = type_("x")
    f = compile([theano.In(x, **way)], x)
    (given,) = ENGINE.inputs(f)
    for value in VALUES:
        if value is None:
            continue  # Theano stores this value and fails later
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                truth = f(value)
        except Exception as error:
            kind = ValueError if isinstance(error, ValueError) else TypeError
            with refuses(kind, "input 'x' (argument 0)", "TensorType"):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    ENGINE.convert(given, value, "input 'x' (argument 0)")
            fits = False
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                converted = ENGINE.convert(given, value, "input 'x' (argument 0)")
            assert isinstance(converted, np.ndarray) and converted.dtype == truth.dtype
            np.testing.assert_array_equal(converted, truth)
            fits = True
        if type(value) is np.ndarray and value.dtype.kind in "biufc" and value.flags.aligned:
            try:
                ENGINE.check(given, value.dtype, value.shape, "x")
            except (TypeError, ValueError):
                assert not fits
            else:
                assert fits


def test_convert_repeats_what_theano_says():
    x = T.fvector("x")
    (given,) = ENGINE.inputs(compile([x], x))
    with pytest.raises(TypeError) as caught:
        ENGINE.convert(given, np.ones(2), "input 'x' (argument 0)")
    text = str(caught.value)
    assert text.startswith("input 'x' (argument 0): expected TensorType(float32, vector), got an array of float64")
    assert "allow_input_downcast=True" in text


def test_check_names_the_real_shape_and_needs_no_memory():
    x = T.matrix("x")
    (given,) = ENGINE.inputs(compile([x], x))
    ENGINE.check(given, np.dtype("float32"), (10**9, 10**9), "x")
    with refuses(TypeError, "x", got="an array of float64 with shape (5, 6, 7)"):
        ENGINE.check(given, np.dtype("float64"), (5, 6, 7), "x")


def test_python_floats_follow_floatX():
    x = T.fscalar("x")
    (given,) = ENGINE.inputs(compile([x], x))
    with pytest.raises(TypeError):
        ENGINE.convert(given, 0.1, "x")
    with theano.change_flags(floatX="float32"):
        assert ENGINE.convert(given, 0.1, "x") == np.float32(0.1)


def test_memory_maps_stay_what_they_are(tmp_path):
    np.save(str(tmp_path / "a.npy"), np.ones((3, 2)))
    mapped = np.load(str(tmp_path / "a.npy"), mmap_mode="r")
    x = T.matrix("x")
    (given,) = ENGINE.inputs(compile([x], x * 2))
    assert ENGINE.convert(given, mapped, "x") is mapped


def test_conform_follows_the_flags_of_the_variable():
    for flags in (dict(), dict(strict=True), dict(allow_downcast=True), dict(allow_downcast=False)):
        for value in (np.ones(2), np.ones(2, "f"), [1, 2], [0.1], 1.0, np.ones((1, 2)), "text"):
            w = theano.shared(np.zeros(2, "f"), "w", **flags)
            try:
                w.set_value(value)
            except Exception:
                with refuses((TypeError, ValueError), "value"):
                    ENGINE.coerce(w, value, "value")
            else:
                conformed = ENGINE.coerce(w, value, "value")
                assert conformed.dtype == "float32"
                np.testing.assert_array_equal(conformed, w.get_value())


# -- calls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linker", ["py", "vm", "vm_nogc", "cvm", "cvm_nogc", "stack", "debug"])
@pytest.mark.parametrize("form", [list, dict])
def test_output_subset_with_every_linker(linker, form):
    x, w = T.vector("x"), theano.shared(np.zeros(2), "w")
    if linker == "debug":
        mode = theano.compile.DebugMode(check_c_code=False, stability_patience=1)
    elif linker == "stack":
        mode = theano.Mode(theano.gof.vm.VM_Linker(use_cloop=False, c_thunks=False, lazy=True), None)
    elif linker == "py":
        mode = SLOW_BUT_PLAIN
    else:
        mode = theano.Mode(
            theano.gof.vm.VM_Linker(
                use_cloop=linker.startswith("c"), c_thunks=False, allow_gc=not linker.endswith("nogc")
            ),
            "fast_run",
        )
    lazy = x * 3
    if linker != "debug":  # DebugMode does not support it
        lazy = theano.ifelse.ifelse(T.gt(x.sum(), 0), x * 3, x * 5)
    expressions = [x * 2, lazy, x.sum()]
    outputs = expressions if form is list else dict(zip("abc", expressions))
    f = compile([x], outputs, [(w, w + x)], mode=mode)
    value = np.array([1.0, 2.0])
    truth = [value * 2, value * 3, np.array(3.0)]
    for step, subset in enumerate([None, [1], [2, 0], [], None, [0, 0], None]):
        results = ENGINE.call(f, [value], subset)
        chosen = range(3) if subset is None else subset
        assert len(results) == len(chosen)
        for index, result in zip(chosen, results):
            assert type(result) is np.ndarray
            np.testing.assert_array_equal(result, truth[index])
        np.testing.assert_array_equal(w.get_value(), value * (step + 1))


def test_what_is_left_out_of_the_subset_is_not_computed():
    seen = []
    x = T.vector("x")
    printed = theano.printing.Print("p", global_fn=lambda op, value: seen.append(1))(x)
    f = compile([x], [x * 2, printed * 3])
    ENGINE.call(f, [np.ones(2)], [0])
    assert seen == []
    ENGINE.call(f, [np.ones(2)])
    assert seen == [1]


@pytest.mark.parametrize("subset", [None, [0, 2, 1]])
def test_no_output_is_memory_that_is_used_again(subset):
    """No output shares reused memory, although Theano returns updated variables' old arrays and views of inputs."""
    w, x, given = theano.shared(np.ones((3, 3)), "w"), T.matrix("x"), np.ones((3, 3))
    before = ENGINE.get(w)
    outputs = [w, theano.Out(x[::2], borrow=True), theano.Out(x.T, borrow=True)]
    plain = theano.function([theano.In(x, borrow=True)], outputs, updates=[(w, T.dot(w, w))], mode=PYTHON)
    assert np.shares_memory(plain(given)[0], before) and np.shares_memory(plain(given)[1], given)
    f = compile([theano.In(x, borrow=True)], outputs, [(w, T.dot(w, w))])
    w.set_value(np.ones((3, 3)))
    before = ENGINE.get(w)
    for result in ENGINE.call(f, [given], subset):
        assert not np.shares_memory(result, before) and not np.shares_memory(result, given)
        assert not np.shares_memory(result, ENGINE.get(w))
        np.testing.assert_array_equal(result, 1)


class NumpyScalars(theano.Op):
    """Op that outputs a NumPy scalar, as the Python code of several Ops does."""

    __props__ = ()

    def make_node(self, x):
        return theano.Apply(self, [x], [T.dscalar()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.float64(inputs[0].sum())


def test_scalars_come_as_arrays():
    x = T.vector("x")
    for outputs in (NumpyScalars()(x), [NumpyScalars()(x)], {"a": NumpyScalars()(x)}):
        for subset in (None, [0]):
            (result,) = ENGINE.call(compile([x], outputs), [np.ones(3)], subset)
            assert type(result) is np.ndarray and result.shape == () and result == 3


# -- transfer to other processes -----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_training_step_in_c_code(master):
    rng = np.random.RandomState(0)
    x, y = T.matrix("x"), T.ivector("y")
    w, b = theano.shared(rng.randn(4, 3), "w"), theano.shared(np.zeros(3), "b")
    velocity = theano.shared(np.zeros((4, 3)), "velocity")
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(x, w) + b), y).mean()
    grads = T.grad(loss, [w, b])
    f = compile(
        [x, y],
        loss,
        [(velocity, 0.9 * velocity - grads[0]), (w, w + 0.1 * velocity), (b, b - 0.1 * grads[1])],
        mode=theano.compile.get_mode("FAST_RUN"),
    )
    master.both(f, [rng.randn(5, 4), np.array([0, 1, 2, 0, 1], "int32")])


def test_random_streams(master):
    old, new = RandomStreams(3), MRG_RandomStreams(5)
    f = compile([], [old.normal((3,)), new.uniform((3,)), new.normal((2,))])
    number = master.both(f, [])
    g = compile([], old.uniform((2,)) + new.uniform((2,)))
    master.both(g, [])
    # A second function over the same stream continues it, as in Theano.
    h = compile([], ENGINE.shareds(f)[0].default_update.owner.outputs[1] * 2)
    master.both(h, [])
    master.compare(f, number, [])
    for shared in ENGINE.shareds(f):
        assert master.peer.has_rng_tag(master.add(shared))
    assert not master.peer.has_rng_tag(master.add(theano.shared(1.0)))


@pytest.mark.thorough
def test_scan_with_shared_variables_and_random_numbers(master):
    w, x, rng = theano.shared(np.array([1.0, 2.0]), "w"), T.vector("x"), MRG_RandomStreams(7)
    result, updates = theano.scan(lambda h: T.tanh(h * w + rng.uniform((2,))), outputs_info=x, n_steps=4)
    f = compile([x], result, list(updates.items()) + [(w, w * 0.9)])
    number = master.both(f, [np.ones(2)])
    master.peer.put(master.add(w), np.array([0.0, 0.0]))
    w.set_value([0.0, 0.0])
    master.compare(f, number, [np.ones(2)])
    master.both(f, [np.ones(2)])  # after a call, because scan then stores a compiled function


def test_sparse_shared_variables_and_inputs(master):
    sparse = pytest.importorskip("scipy.sparse")
    import theano.sparse

    value = sparse.csr_matrix(np.array([[0.0, 2.0], [3.0, 0.0]]))
    w, x, s = theano.shared(value, "w"), T.matrix("x"), theano.sparse.csr_matrix("s")
    assert ENGINE.shared_type(w) is None
    f = compile([x, s], [theano.sparse.structured_dot(w, x), theano.sparse.structured_dot(s, x)])
    assert ENGINE.inputs(f)[1].type is None
    assert ENGINE.convert(ENGINE.inputs(f)[1], value, "s") is value
    with refuses(TypeError, "s", "Sparse"):
        ENGINE.convert(ENGINE.inputs(f)[1], value.astype("complex128"), "s")
    number = master.both(f, [np.ones((2, 2)), value])
    master.peer.put(master.add(w), value * 2)
    np.testing.assert_array_equal(master.peer.call(number, [np.ones((2, 2)), value])[0], [[4, 4], [6, 6]])


def test_generic_and_scalar_shared_variables(master):
    thing = theano.shared({"a": 1}, "thing")
    x = T.vector("x")
    seen = theano.compile.ops.FromFunctionOp(
        lambda x, thing: x + thing["a"], [T.dvector, theano.gof.generic], [T.dvector], None
    )
    master.both(compile([x], seen(x, thing)), [np.ones(2)])
    number = theano.scalar.sharedvar.shared(2.5, "number")
    assert ENGINE.shared_type(number) is None
    master.both(compile([x], x * T.tensor_from_scalar(number)), [np.ones(2)])


@pytest.mark.parametrize("value", [None, 1, (), True], ids=repr)
def test_interned_values_are_not_mistaken(master, value):
    """Values that exist only once in Python may occur anywhere in a pickle without being replaced."""
    a = theano.compile.sharedvalue.generic_constructor(value, "a")
    x = T.vector("x")
    join = theano.compile.ops.FromFunctionOp(
        lambda x, a: x + len(repr(a)), [T.dvector, theano.gof.generic], [T.dvector], None
    )
    f = compile([x], join(x, a))
    number = master.both(f, [np.ones(1)])
    master.peer.put(master.add(a), "something else")
    g = master.send(compile([x], join(x, a) * 2))
    assert master.peer.call(number, [np.zeros(1)])[0][0] == len(repr("something else"))
    assert master.peer.call(g, [np.zeros(1)])[0][0] == 2 * len(repr("something else"))


def test_batch_normalisation_as_in_lasagne(master):
    x = T.matrix("x")
    running = theano.shared(np.zeros(2), "running")
    clone = theano.clone(running, share_inputs=False)
    clone.default_update = 0.9 * clone + 0.1 * x.mean(0)
    train = compile([x], x - (x.mean(0) + 0 * clone))
    test = compile([x], x - running)
    value = np.array([[1.0, 2.0], [3.0, 4.0]])
    numbers = [master.send(test), master.send(train)]
    for _ in range(3):
        master.compare(train, numbers[1], [value])
        master.compare(test, numbers[0], [value])
    assert np.all(running.get_value() > 0)


def test_defaults_and_trust_input(master):
    x, y = T.vector("x"), T.vector("y")
    f = compile([x, theano.In(y, value=[1.0, 2.0])], x + y)
    ENGINE.set_trust_input(f, True)
    assert f.trust_input and ENGINE.trust_input(f)
    number = master.both(f, [np.ones(2), np.ones(2)])
    assert master.peer.evaluate("trusts_input", number)
    np.testing.assert_array_equal(master.peer.evaluate("call_plainly", number, np.zeros(2)), [1, 2])


def test_what_cannot_travel_is_named(master):
    x = T.vector("x")
    bad = compile([x], theano.printing.Print("p", global_fn=threading.Lock())(x) * 2, mode=PYTHON, name="bad")
    with reports(TypeError, "function 'bad'", "Print", "_thread.lock"):
        ENGINE.dumps([bad], {}, {}, {})
    y = theano.gof.generic("y")
    bad = compile([x, theano.In(y, value=threading.Lock())], x, on_unused_input="ignore", name="bad")
    with reports(TypeError, "function 'bad'", "input y"):
        ENGINE.dumps([bad], {}, {}, {})
