"""Tests of the NumPy engine beyond the conformance tests: its graphs, and updates in place.

Modules: `function`, `graph`.
"""

from __future__ import annotations

import numpy as np
import pytest
from peer import Master, Peer
from refusals import refuses, reports

from synkhronos.testing import numpy_engine as engine
from synkhronos.testing.numpy_engine import ENGINE, In, apply, shared, variable


def test_operators():
    x, y = variable("x", "float64", 2), np.array([[1.0, 2.0]])
    f = ENGINE.compile(
        [x],
        [
            x + y,
            y + x,
            x - 1,
            1 - x,
            x * 2,
            2 * x,
            x[:, 0],
            engine.sum(x),
            engine.max(x, 0),
            engine.mean(x, 1),
            engine.dot(y, x),
        ],
        [],
        None,
    )
    value = np.array([[3.0, 5.0], [7.0, -1.0]])
    expected = [
        value + y,
        y + value,
        value - 1,
        1 - value,
        value * 2,
        2 * value,
        value[:, 0],
        value.sum(),
        value.max(0),
        value.mean(1),
        y @ value,
    ]
    for output, result, truth in zip(ENGINE.outputs(f), f(value), expected):
        np.testing.assert_array_equal(result, truth)
        assert (output.type.dtype, output.type.ndim) == (truth.dtype, truth.ndim)


def test_apply_types_are_tried_or_given():
    x = variable("x", "float32", 1)
    assert apply(np.tanh, x).type[:2] == (np.dtype("float32"), 1)
    assert apply(np.outer, x, x).type[:2] == (np.dtype("float32"), 2)
    given = apply(lambda value: value > 0, x, dtype="int8", ndim=1)
    assert ENGINE.compile([x], given, [], None)(np.array([1, -1], "float32")).dtype == "int8"


def test_an_expression_is_evaluated_once():
    calls = []
    x = variable("x", "float64", 1)
    y = apply(lambda value: calls.append(1) or value, x, dtype="float64", ndim=1)
    ENGINE.compile([x], [y + y, y * y], [], None)(np.ones(1))
    assert len(calls) == 1


def test_what_is_not_asked_for_is_not_computed():
    x = variable("x", "float64", 1)
    fails = apply(lambda value: 1 / 0, x, dtype="float64", ndim=1)
    f = ENGINE.compile([x], [x + 1, fails], [], None)
    np.testing.assert_array_equal(ENGINE.call(f, [np.ones(1)], [0])[0], [2])
    with pytest.raises(ZeroDivisionError):
        ENGINE.call(f, [np.ones(1)])


@pytest.mark.parametrize("inplace", [False, True])
def test_updates_replace_or_overwrite_the_array(inplace):
    a, b = shared(np.array([1.0]), "a"), shared(np.array([2.0]), "b")
    arrays = ENGINE.get(a), ENGINE.get(b)
    ENGINE.compile([], None, [(a, a + 1)], None, inplace=inplace)()
    assert (ENGINE.get(a) is arrays[0]) == inplace
    assert arrays[0][0] == (2 if inplace else 1) and ENGINE.get(a)[0] == 2


@pytest.mark.parametrize("inplace", [False, True])
def test_swap_moves_arrays_or_values(inplace):
    a, b = shared(np.array([1.0]), "a"), shared(np.array([2.0]), "b")
    arrays = ENGINE.get(a), ENGINE.get(b)
    ENGINE.compile([], None, [(a, b), (b, a)], None, inplace=inplace)()
    assert (a.get_value()[0], b.get_value()[0]) == (2, 1)
    assert ENGINE.get(a) is arrays[0 if inplace else 1]


def test_in_place_where_the_shape_changes():
    a, x = shared(np.ones(2), "a"), variable("x", "float64", 1)
    ENGINE.compile([x], None, [(a, x * 2)], None, inplace=True)(np.ones(3))
    np.testing.assert_array_equal(a.get_value(), [2, 2, 2])


def test_updated_storage_is_never_shared():
    a, b, c = (shared(np.ones(2), name) for name in "abc")
    x = variable("x", "float64", 1)
    value = np.ones(2)
    ENGINE.compile([x], None, [(a, c), (b, x)], None)(value)
    assert not np.shares_memory(ENGINE.get(a), ENGINE.get(c)) and not np.shares_memory(ENGINE.get(b), value)
    ENGINE.compile([], None, [(a, b), (b, a), (c, a)], None)()
    assert len({ENGINE.get(s).__array_interface__["data"][0] for s in (a, b, c)}) == 3


def test_mutable_input_is_destroyed():
    x, y = variable("x", "float64", 1), variable("y", "float64", 1)
    f = ENGINE.compile([In(x, mutable=True), y], x + y, [], None)
    mine, other = np.ones(2), np.ones(2)
    np.testing.assert_array_equal(f(mine, other), [2, 2])
    np.testing.assert_array_equal(mine, [0, 0])
    np.testing.assert_array_equal(other, [1, 1])


def test_called_like_one_of_theanos():
    x, y = variable("x", "float64"), variable("y", "float64")
    f = ENGINE.compile([x, In(y, value=2.0, name="why")], {"a": x + y, "b": x * y}, [], None)
    assert f(3.0) == {"a": 5, "b": 6}
    assert f(3.0, why=1) == {"a": 4, "b": 3}
    assert f(3.0, 1, output_subset=["b"]) == {"b": 3}
    assert ENGINE.compile([x], x + 1, [], None)(1.0).shape == ()
    with reports(TypeError, "x"):
        f()
    with refuses(TypeError, "input 'x'", "float64 with ndim=0", "an array"):
        f(np.ones(2))
    with pytest.raises(TypeError):
        f(1.0, other=2)


def test_givens_replace_before_updates_are_computed():
    x, w = variable("x", "float64"), shared(1.0, "w")
    f = ENGINE.compile([], None, [(w, w + x)], [(x, w * 10)])
    f()
    assert w.get_value() == 11


def test_default_updates_lead_to_others():
    a, b = shared(1.0, "a"), shared(10.0, "b")
    a.default_update = a + b
    b.default_update = b * 2
    f = ENGINE.compile([], a * 1, [], None)
    assert [f(), f(), f()] == [1, 11, 31]
    assert b.get_value() == 80


def test_constants_as_updates():
    a = shared(np.ones(2), "a")
    f = ENGINE.compile([], None, [(a, np.zeros(2))], None, inplace=True)
    f()
    ENGINE.compile([], None, [(a, a + 1)], None, inplace=True)()
    np.testing.assert_array_equal(a.get_value(), [1, 1])
    f()
    np.testing.assert_array_equal(a.get_value(), [0, 0])


def test_random_numbers_follow_numpys():
    state, x = engine.random_stream(3, "state"), variable("x", "float64", 2)
    first = engine.uniform(state, (2,))
    second = engine.uniform(state, apply(np.shape, x), ndim=2)
    assert (second.type.dtype, second.type.ndim) == ("float64", 2)
    truth = np.random.RandomState(3)
    f = ENGINE.compile([x], [first, second], [], None)
    for shape in ((2, 3), (0, 1), (1, 4)):
        one, other = f(np.ones(shape))
        np.testing.assert_array_equal(one, truth.random_sample(2))
        np.testing.assert_array_equal(other, truth.random_sample(shape))
    g = ENGINE.compile([], first, [], None, no_default_updates=True)
    np.testing.assert_array_equal(g(), g())
    np.testing.assert_array_equal(g(), truth.random_sample(2))


def test_bad_arguments_of_compile():
    x, w = variable("x", "float64", 1), shared(1.0, "w")
    with refuses(ValueError, "inputs", "graph", "inputs without x"):
        ENGINE.compile([], x + 1, [], None)
    with refuses(TypeError, "outputs[1]", "a variable", "3"):
        ENGINE.compile([x], [x, 3], [], None)
    with refuses(TypeError, "updates", "shared", "x"):
        ENGINE.compile([x], x, [(x, x)], None)
    with refuses(TypeError, "updates", "float64 with ndim=0 for the new value of w"):
        ENGINE.compile([x], x, [(w, x)], None)


@pytest.fixture
def master():
    """Return a master that sends functions to a second process."""
    peer = Peer("numpy")
    yield Master(ENGINE, peer)
    peer.close()


def test_three_thousand_operations(master):
    x, w = variable("x", "float64", 1), shared(0.5, "w")
    y = x
    for _ in range(3000):
        y = y * w + 1
    number = master.send(ENGINE.compile([x], y, [], None))
    np.testing.assert_array_equal(master.peer.call(number, [np.ones(2)])[0], [2, 2])


def test_lambdas_travel(master):
    x, factor = variable("x", "float64", 1), 3
    number = master.send(ENGINE.compile([x], apply(lambda value: value * factor, x), [], None))
    np.testing.assert_array_equal(master.peer.call(number, [np.ones(2)])[0], [3, 3])


def test_arguments_are_always_checked():
    x = variable("x", "float64")
    f = ENGINE.compile([x], x + 1, [], None)
    assert not ENGINE.trust_input(f)
    ENGINE.set_trust_input(f, False)
    with refuses(ValueError, "trust_input", expected="False"):
        ENGINE.set_trust_input(f, True)
