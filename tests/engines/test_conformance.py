"""Conformance tests, which every engine must pass.

Modules: `base`.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from refusals import refuses, reports

from synkhronos.errors import ArgumentTypeError

# -- recognition ---------------------------------------------------------------------------------------------------


def test_owns_its_own_things_only(language):
    x, w = language.variable("x", "float64", 1), language.shared(np.ones(3), "w")
    for thing in (x, w, x + w, language.In(x)):
        assert language.engine.owns(thing)
    for thing in (None, 1.0, "x", np.ones(3), [x]):
        assert not language.engine.owns(thing)


def test_is_shared(language):
    x, w = language.variable("x", "float64", 1), language.shared(np.ones(3), "w")
    assert language.engine.is_shared(w) and language.engine.is_shared(language.clone(w))
    assert not language.engine.is_shared(x) and not language.engine.is_shared(x + w)


def test_label_is_the_name_or_says_something(language):
    engine, x = language.engine, language.variable("x", "float64", 1)
    assert engine.label(x) == "x"
    assert engine.label(language.In(x)) == "x"
    assert engine.label(language.In(x, name="other")) == "other"
    assert engine.label(x + x)
    assert engine.label(language.shared(np.ones(3), "w"), "updates[1]") == "w"


@pytest.mark.parametrize("ndim, words", list(enumerate(["scalar", "vector", "matrix", "tensor3", "tensor4"])))
def test_label_of_a_shared_variable_without_a_name_is_its_place_and_type(language, ndim, words):
    shared = language.shared(np.ones((2,) * ndim, "float32"), None)
    assert language.engine.label(shared) == f"unnamed (float32 {words})"
    assert language.engine.label(shared, "updates[1]") == f"updates[1] (float32 {words})"


# -- shared variables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "int8", "bool", "complex128"])
@pytest.mark.parametrize("ndim", [0, 1, 3])
def test_type_of_a_shared_array(language, dtype, ndim):
    type_ = language.engine.shared_type(language.shared(np.ones((2,) * ndim, dtype)))
    assert (type_.dtype, type_.ndim, type_.broadcastable) == (np.dtype(dtype), ndim, (False,) * ndim)


def test_type_shows_broadcastable_dimensions(language):
    shared = language.shared(np.ones((1, 2)), None, broadcastable=(True, False))
    assert language.engine.shared_type(shared).broadcastable == (True, False)


def test_other_objects_have_no_array_type(language):
    assert language.engine.shared_type(language.shared({"a": 1})) is None


def test_identity_belongs_to_the_storage(language):
    identity, w = language.engine.identity, language.shared(np.ones(3), "w")
    before = identity(w)
    w.set_value(np.zeros(5))
    language.engine.put(w, np.zeros(2))
    assert identity(w) == before == identity(language.clone(w))
    assert identity(language.shared(np.ones(3), "w")) != before


def test_get_and_put_do_not_copy(language):
    w, value = language.shared(np.ones(3), "w"), np.arange(4.0)
    language.engine.put(w, value)
    assert language.engine.get(w) is value
    assert w.get_value(borrow=True) is value


@pytest.mark.parametrize(
    "value",
    [
        np.ones(3),
        np.ones(3, "float32"),
        np.arange(3),
        [1, 2, 3],
        [0.5],
        np.ones(0),
        np.ones(6)[::2],
    ],
    ids=repr,
)
def test_conform_is_what_set_value_stores(language, value):
    w = language.shared(np.zeros(2), "w")
    conformed = language.engine.coerce(w, value, "values")
    np.testing.assert_array_equal(w.get_value(), [0, 0])
    w.set_value(value)
    assert type(conformed) is np.ndarray and conformed.dtype == np.float64
    np.testing.assert_array_equal(conformed, w.get_value())


@pytest.mark.parametrize("value", [np.ones((2, 2)), np.ones(3, "complex128"), 1.0, [[1.0]], None], ids=repr)
def test_conform_refuses_what_set_value_refuses(language, value):
    w = language.shared(np.zeros(2), "w")
    with refuses(TypeError, "values"):
        language.engine.coerce(w, value, "values")
    np.testing.assert_array_equal(w.get_value(), [0, 0])


def test_build_takes_the_value_itself(language):
    engine, w, value = language.engine, language.shared(np.ones(3), "w"), np.arange(3.0)
    replica = engine.build(engine.blueprint(w), value)
    assert type(replica) is type(w) and replica.name == "w"
    assert engine.get(replica) is value and engine.shared_type(replica) == engine.shared_type(w)
    twin = engine.build(engine.blueprint(language.clone(w)), None, replica)
    assert engine.identity(twin) == engine.identity(replica) != engine.identity(w)
    assert engine.get(twin) is value


# -- functions -----------------------------------------------------------------------------------------------------


def compile(language, inputs, outputs, updates=(), givens=None, **kwargs):
    return language.engine.compile(inputs, outputs, list(updates), givens, **dict(language.kwargs, **kwargs))


def test_inputs_are_what_a_caller_may_give(language):
    x, y = language.variable("x", "float32", 2), language.variable("y", "int64")
    z, w = language.variable("z", "float64", 1), language.shared(np.ones(3), "w")
    default = {"value": 3} if language.has_defaults else {}
    f = compile(
        language,
        [x, language.In(y, name="why", **default), language.In(z, mutable=True)],
        language.mean(x) * y + z + w,
        [(w, w + 1)],
    )
    inputs = language.engine.inputs(f)
    assert [given.name for given in inputs] == ["x", "why", "z"]
    assert [given.type.dtype for given in inputs] == ["float32", "int64", "float64"]
    assert [given.type.ndim for given in inputs] == [2, 0, 1]
    assert [given.mutable for given in inputs] == [False, False, True]
    assert [given.has_default for given in inputs] == [False, language.has_defaults, False]
    assert inputs[1].default == default.get("value")


def test_inputs_that_are_no_arrays_have_no_type(language):
    x, thing = language.variable("x", "float64"), language.generic("thing")
    kwargs = {"on_unused_input": "ignore"} if language.name != "numpy" else {}
    f = compile(language, [x, thing], x + 1, **kwargs)
    given = language.engine.inputs(f)[1]
    assert given.type is None
    assert language.engine.convert(given, None, "thing") is None
    value = {"any": "thing"}
    assert language.engine.convert(given, value, "thing") is value


def test_outputs_of_every_form(language):
    x = language.variable("x", "float64", 1)
    loss = x * 2
    loss.name = "loss"

    def outputs(form):
        return [(output.label, output.key) for output in language.engine.outputs(compile(language, [x], form))]

    assert outputs([loss, x + 1]) == [("outputs[0] (loss)", None), ("outputs[1]", None)]
    assert outputs(loss) == [("output (loss)", None)]
    if language.has_dicts:
        assert outputs({"b": loss, "a": x + 1}) == [("outputs['a']", "a"), ("outputs['b'] (loss)", "b")]
    assert language.engine.outputs(compile(language, [x], loss))[0].type.ndim == 1


def test_shareds_are_all_and_each_once(language):
    x = language.variable("x", "float64", 1)
    a, b, c, d = (language.shared(np.ones(3), name) for name in "abcd")
    f = compile(language, [x], [x + a * a, a + b], [(a, a + c), (d, d + 1)])
    assert sorted(s.name for s in language.engine.shareds(f)) == ["a", "b", "c", "d"]
    assert [s.name for s in language.engine.shareds(f)] == [s.name for s in language.engine.shareds(f)]
    assert {id(s) for s in language.engine.shareds(f)} == {id(a), id(b), id(c), id(d)}


def test_default_updates(language):
    x, w = language.variable("x", "float64", 1), language.shared(np.ones(3), "w")
    w.default_update = w * 2
    f = compile(language, [x], x + w)
    np.testing.assert_array_equal(language.engine.call(f, [np.zeros(3)])[0], [1, 1, 1])
    np.testing.assert_array_equal(w.get_value(), [2, 2, 2])
    language.engine.call(compile(language, [x], x + w, no_default_updates=True), [np.zeros(3)])
    np.testing.assert_array_equal(w.get_value(), [2, 2, 2])


@pytest.mark.parametrize("form", [list, dict])
def test_givens(language, form):
    x, y = language.variable("x", "float64", 1), language.variable("y", "float64", 1)
    w = language.shared(np.array([3.0, 4.0]), "w")
    f = compile(language, [y], x + y, givens=form([(x, w)]))
    np.testing.assert_array_equal(language.engine.call(f, [np.ones(2)])[0], [4, 5])
    assert language.engine.shareds(f) == [w]


VALUES = [
    np.ones((2, 3)),
    np.ones((2, 3), "float32"),
    np.ones((2, 3), "int8"),
    np.ones((2, 3), "int64"),
    np.ones((2, 3), "complex64"),
    np.ones((2, 3), bool),
    np.ones((0, 3)),
    np.ones((2, 1)),
    np.ones((1, 3)),
    np.ones(3),
    np.ones(()),
    np.ones((1, 2, 3)),
    np.ones((3, 2)).T,
    np.ones((2, 3), ">f8"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{value.dtype}{value.shape}")
@pytest.mark.parametrize(
    "dtype,broadcastable",
    [
        ("float64", (False, False)),
        ("float32", (False, False)),
        ("int64", (False, False)),
        ("float64", (False, True)),
        ("float64", ()),
        ("bool", (False, False)),
    ],
)
def test_check_decides_as_convert(language, dtype, broadcastable, value):
    x = language.variable("x", dtype, len(broadcastable), broadcastable)
    given = language.engine.inputs(compile(language, [x], x * x))[0]
    before = value.copy()
    try:
        converted = language.engine.convert(given, value, "input 'x' (argument 0)")
    except ArgumentTypeError as error:
        assert (error.argument, error.got) == (
            "input 'x' (argument 0)",
            f"an array of {value.dtype} with shape {value.shape}",
        )
        with refuses(TypeError, "input 'x' (argument 0)", got="array"):
            language.engine.check(given, value.dtype, value.shape, "input 'x' (argument 0)")
    else:
        language.engine.check(given, value.dtype, value.shape, "input 'x' (argument 0)")
        assert type(converted) is np.ndarray and converted.dtype == dtype
        np.testing.assert_array_equal(converted, value)
    np.testing.assert_array_equal(value, before)


@pytest.mark.parametrize(
    "dtype,value,fits",
    [
        ("float64", [[1, 2]], True),
        ("float64", 1.0, False),
        ("float32", [[0.5]], True),
        ("int64", [[1.5]], False),
        ("int64", [[1]], True),
        ("int8", [[300]], False),
        ("float64", [[1, 2], [3, 4]], True),
        ("float64", None, False),
    ],
)
def test_convert_plain_python_values(language, dtype, value, fits):
    x = language.variable("x", dtype, 2)
    given = language.engine.inputs(compile(language, [x], x * x))[0]
    if fits:
        converted = language.engine.convert(given, value, "x")
        assert converted.dtype == dtype
        np.testing.assert_array_equal(converted, value)
    else:
        with refuses(TypeError, "x"):
            language.engine.convert(given, value, "x")


def test_convert_says_that_text_is_no_number(language):
    x = language.variable("x", "float64")
    given = language.engine.inputs(compile(language, [x], x * x))[0]
    with refuses((TypeError, ValueError), "x"):
        language.engine.convert(given, "text", "x")


def test_call_returns_a_flat_list_for_every_form(language):
    engine, x = language.engine, language.variable("x", "float64", 1)
    w = language.shared(np.zeros(2), "w")
    value = np.array([1.0, 2.0])
    double, total = x * 2, language.mean(x)
    np.testing.assert_array_equal(engine.call(compile(language, [x], [double, total]), [value])[0], [2, 4])
    assert len(engine.call(compile(language, [x], [double]), [value])) == 1
    single = engine.call(compile(language, [x], total), [value])
    assert type(single) is list and type(single[0]) is np.ndarray and single[0].shape == () and single[0] == 1.5
    if language.has_dicts:
        by_key = engine.call(compile(language, [x], {"b": double, "a": total}), [value])
        assert by_key[0] == 1.5
        np.testing.assert_array_equal(by_key[1], [2, 4])
    assert engine.call(compile(language, [x], None, [(w, w + x)]), [value]) == []
    np.testing.assert_array_equal(w.get_value(), value)
    assert engine.call(compile(language, [x], [], [(w, w + x)]), [value]) == []
    np.testing.assert_array_equal(w.get_value(), 2 * value)


@pytest.mark.parametrize("form", ["list", "dict", "single", "none"])
@pytest.mark.parametrize("kind", ["replaced", "in place"])
def test_output_subset_and_back(language, form, kind):
    if form == "dict" and not language.has_dicts:
        pytest.skip("functions of this engine return no dicts")
    engine, x = language.engine, language.variable("x", "float64", 1)
    w = language.shared(np.zeros(2), "w")
    expressions = [x * 2, x * 3, x * x, language.mean(x)]
    outputs = {"list": expressions, "dict": dict(zip("abcd", expressions)), "single": expressions[0], "none": None}
    update = w + x if kind == "in place" else language.dot(w, np.eye(2)) + x
    f = compile(language, [x], outputs[form], [(w, update)])
    truth = [lambda v: v * 2, lambda v: v * 3, lambda v: v * v, np.mean]
    count = len(engine.outputs(f))
    total = np.zeros(2)
    subsets = [None, [2, 0], [], [1], None, [3, 3], [0, 1, 2, 3], None]
    for step, subset in enumerate(subsets):
        if subset is not None:
            subset = [index for index in subset if index < count]
        value = np.array([1.0, 2.0]) + step
        results = engine.call(f, [value], subset)
        total = total + value
        chosen = range(count) if subset is None else subset
        assert len(results) == len(chosen)
        for index, result in zip(chosen, results):
            np.testing.assert_array_equal(result, truth[index](value))
        np.testing.assert_array_equal(w.get_value(), total)


@pytest.mark.parametrize("subset", [[2], [-1], [0, 5]])
def test_output_subset_out_of_range(language, subset):
    x = language.variable("x", "float64", 1)
    f = compile(language, [x], [x * 2, x * 3])
    with refuses(ValueError, "output_subset", "indices of outputs (n_outputs=2)"):
        language.engine.call(f, [np.ones(2)], subset)
    np.testing.assert_array_equal(language.engine.call(f, [np.ones(2)], [1])[0], [3, 3])


def test_updates_are_computed_from_the_original_values(language):
    a, b = language.shared(np.array([1.0]), "a"), language.shared(np.array([2.0]), "b")
    language.engine.call(compile(language, [], [], [(a, b), (b, a)]), [])
    assert (a.get_value(), b.get_value()) == (2, 1)
    language.engine.call(compile(language, [], [], [(a, a + b), (b, a * b)]), [])
    assert (a.get_value(), b.get_value()) == (3, 2)


def test_outputs_do_not_alias_inputs_and_storage(language):
    x, w = language.variable("x", "float64", 1), language.shared(np.ones(2), "w")
    f = compile(language, [x], [x + 0, w + 0, x[::2]])
    value = np.array([1.0, 2.0])
    for result in language.engine.call(f, [value]):
        assert not np.shares_memory(result, value)
        assert not np.shares_memory(result, language.engine.get(w))
    doubled = x * 2
    (result,) = language.engine.call(compile(language, [x], [doubled], [(w, doubled)]), [value])
    assert not np.shares_memory(result, language.engine.get(w))


def test_names_of_functions(language):
    x = language.variable("x", "float64", 1)
    assert language.engine.function_name(compile(language, [x], x + 1, name="mine")) == "mine"


def test_freed_functions_can_be_called_again(language):
    x, w = language.variable("x", "float64", 1), language.shared(np.ones(2), "w")
    f = compile(language, [x], x * w + x, [(w, w + 1)])
    for i in range(3):
        np.testing.assert_array_equal(language.engine.call(f, [np.array([1.0, 2.0])])[0], [2 + i, 4 + 2 * i])
        language.engine.free(f)


def test_warming_up_computes_and_updates_nothing(language):
    w = language.shared(np.ones(2), "w")
    f = compile(language, [], w * 2, [(w, w + 1)])
    language.engine.warm_up(f)
    np.testing.assert_array_equal(w.get_value(), [1, 1])
    np.testing.assert_array_equal(language.engine.call(f, [])[0], [2, 2])


def test_values_on_the_host_stay_what_they_are(language):
    for value in (np.ones(2), None, {"a": 1}, np.float32(3)):
        assert language.engine.to_host(value) is value and not language.engine.is_on_device(value)


# -- transfer to other processes -----------------------------------------------------------------------------------


@pytest.mark.thorough("theano")
def test_a_function_computes_the_same_there(language, master, matrix):
    x, w = language.variable("x", "float64", 2), language.shared(matrix, "w")
    outputs = {"m": language.mean(x), "y": language.dot(x, w)}
    f = compile(language, [x], outputs if language.has_dicts else list(outputs.values()), [(w, w + 1)], name="step")
    number = master.send(f)
    for step in range(3):
        there = master.peer.call(number, [matrix + step])
        here = language.engine.call(f, [matrix + step])
        for one, other in zip(there, here):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(master.peer.get(master.add(w)), w.get_value())
    assert master.peer.name_of(number) == f.name == "step"


def test_separate_pickles_share_a_variable(language, master, matrix):
    w = language.shared(matrix, "w")
    f = master.send(compile(language, [], [], [(w, language.dot(w, w))]))  # not in place
    g = master.send(compile(language, [], w * 2))
    h = master.send(compile(language, [], [], [(w, w * 10)]))
    square = matrix @ matrix
    master.peer.call(f, [])
    np.testing.assert_array_equal(master.peer.call(g, [])[0], 2 * square)
    np.testing.assert_array_equal(master.peer.get(master.add(w)), square)
    master.peer.call(h, [])
    master.peer.call(f, [])
    np.testing.assert_allclose(master.peer.call(g, [])[0], 200 * square @ square)
    np.testing.assert_array_equal(w.get_value(), matrix)  # nothing was called in this process
    for function in (f, g, h):
        assert master.peer.shareds(function) == [master.add(w)]


def test_a_function_sent_later_finds_the_value_of_the_rank(language, master, matrix):
    x, w = language.variable("x", "float64", 2), language.shared(matrix, "w")
    f = master.send(compile(language, [x], x * w))
    for value in (np.full((2, 2), np.nan), np.ones((3, 1)), np.zeros((0, 2)), np.ones((2, 2)) * 7):
        master.peer.put(master.add(w), value)  # as after scatter: a value that differs from the master's
        g = master.send(compile(language, [x], x + w, [(w, w + 1)]))
        np.testing.assert_array_equal(master.peer.call(f, [np.full(value.shape, 2.0)])[0], value * 2)
        np.testing.assert_array_equal(master.peer.call(g, [np.ones(value.shape)])[0], value + 1)
        np.testing.assert_array_equal(master.peer.get(master.add(w)), value + 1)
    np.testing.assert_array_equal(w.get_value(), matrix)


@pytest.mark.parametrize("value", [np.full((2, 2), np.nan), np.ones((3, 1)), np.zeros((0, 2))], ids=repr)
def test_the_value_on_the_master_does_not_matter(language, master, matrix, value):
    w = language.shared(matrix, "w")
    master.send(compile(language, [], w * 2))
    w.set_value(value)
    g = master.send(compile(language, [], w * 3))
    np.testing.assert_array_equal(master.peer.call(g, [])[0], matrix * 3)


def test_swap(language, master):
    a, b = language.shared(np.array([1.0]), "a"), language.shared(np.array([2.0]), "b")
    swap = master.send(compile(language, [], [], [(a, b), (b, a)]))
    add = master.send(compile(language, [], [], [(a, a + 10)]))
    read = master.send(compile(language, [], [a * 1, b * 1]))
    expected = [1.0, 2.0]
    for function in (swap, add, swap, swap, add, swap):
        master.peer.call(function, [])
        expected = expected[::-1] if function == swap else [expected[0] + 10, expected[1]]
        assert [float(result[0]) for result in master.peer.call(read, [])] == expected
        assert [float(master.peer.get(master.add(s))[0]) for s in (a, b)] == expected


@pytest.mark.parametrize("where", ["master", "rank"])
def test_two_variables_that_hold_one_array(language, master, where):
    a, b = language.shared(np.zeros(2), "a"), language.shared(np.zeros(2), "b")
    value = np.array([1.0, 2.0])
    if where == "master":
        a.set_value(value, borrow=True)
        b.set_value(value, borrow=True)
        assert language.engine.get(a) is language.engine.get(b)
    read = master.send(compile(language, [], [a * 1, b * 1]))
    if where == "rank":
        master.peer.set_same_value([master.add(a), master.add(b)], value)
    factor = np.array([[5.0, 1.0], [2.0, 5.0]])
    one = master.send(compile(language, [], [], [(a, language.dot(a, factor))]))
    master.peer.call(one, [])
    results = master.peer.call(read, [])
    np.testing.assert_array_equal(results[0], value @ factor)
    np.testing.assert_array_equal(results[1], value)


def test_borrowed_value_on_the_rank(language, master, matrix):
    w = language.shared(matrix, "w")
    f = master.send(compile(language, [], w * 2))
    master.peer.set_value(master.add(w), matrix * 3, True)
    np.testing.assert_array_equal(master.peer.call(f, [])[0], matrix * 6)


def test_clones_share_their_storage_there(language, master):
    running, x = language.shared(np.array([10.0]), "running"), language.variable("x", "float64", 1)
    clone = language.clone(running)
    clone.default_update = clone * 0.5 + x
    train = compile(language, [x], x + 0 * clone)
    test = compile(language, [], running * 1)
    there = [master.send(test), master.send(train)]
    for step in (1.0, 2.0):
        language.engine.call(train, [np.array([step])])
        master.peer.call(there[1], [np.array([step])])
        np.testing.assert_array_equal(master.peer.call(there[0], [])[0], running.get_value())
    assert float(running.get_value()[0]) == 5.0  # (10/2 + 1)/2 + 2


@pytest.mark.parametrize("value", [None, 3, "text", {"a": [1, 2]}, (), True], ids=repr)
def test_variables_that_hold_other_objects(language, master, value):
    if language.name == "numpy" and isinstance(value, (int, tuple)):
        pytest.skip("an array in this engine")
    w, x = language.shared(value, "w"), language.variable("x", "float64", 1)
    if language.name == "theano" and isinstance(value, int):
        w = language.theano.compile.sharedvalue.generic_constructor(value, "w")
    f = compile(language, [x], x + 1)
    number = master.add(w)
    assert master.peer.get(number) == value
    np.testing.assert_array_equal(master.peer.call(master.send(f), [np.ones(2)])[0], [2, 2])


def test_defaults_travel(language, master):
    if not language.has_defaults:
        pytest.skip("inputs of this engine have no defaults")
    x, y = language.variable("x", "float64", 1), language.variable("y", "float64", 1)
    f = compile(language, [x, language.In(y, value=np.array([1.0, np.nan]))], x + y)
    given = language.engine.inputs(f)[1]
    number = master.send(f)
    np.testing.assert_array_equal(master.peer.call(number, [np.ones(2), given.default])[0], [2, np.nan])
    np.testing.assert_array_equal(master.peer.call(number, [np.ones(2), np.ones(2)])[0], [2, 2])


def test_output_subset_there(language, master):
    x, w = language.variable("x", "float64", 1), language.shared(np.zeros(1), "w")
    f = master.send(compile(language, [x], [x * 2, x * 3], [(w, w + 1)]))
    for step, subset in enumerate([[1], None, [0], None]):
        results = master.peer.call(f, [np.ones(1)], subset)
        assert [float(result[0]) for result in results] == [[2.0, 3.0][i] for i in (subset or [0, 1])]
        assert master.peer.get(master.add(w))[0] == step + 1


def test_dumping_leaves_the_function_as_it_was(language, master, matrix):
    x, w = language.variable("x", "float64", 2), language.shared(matrix, "w")
    f = compile(language, [x], x * w + x * x - w * 3, [(w, w + 1)])
    before = language.engine.call(f, [matrix])[0]
    master.send(f)
    w.set_value(matrix)
    np.testing.assert_array_equal(language.engine.call(f, [matrix])[0], before)


def test_several_functions_in_one_pickle(language, master, matrix):
    w = language.shared(matrix, "w")
    f, g = compile(language, [], [], [(w, w * 2)]), compile(language, [], w * 1)
    master.add(w)
    numbers = master.peer.load(language.engine.dumps([f, g], master.numbers, master.variables, {}))
    master.peer.call(numbers[0], [])
    np.testing.assert_array_equal(master.peer.call(numbers[1], [])[0], matrix * 2)


def test_what_cannot_travel_is_named(language, master):
    x = language.variable("x", "float64", 1)
    good = compile(language, [x], x + 1, name="good")
    bad = compile(language, [x], language.unpicklable(x, threading.Lock()), name="bad")
    with reports(TypeError, "function 'bad'", "operation", "_thread.lock"):
        language.engine.dumps([good, bad], {}, {}, {})
    np.testing.assert_array_equal(master.peer.call(master.send(good), [np.ones(1)])[0], [2])
