"""Binding the arguments of a call to inputs: one value per input."""

from collections import namedtuple

import pytest
from refusals import refuses

from synkhronos.calls.signature import KEPT, bind

Given = namedtuple("Given", "name has_default default state", defaults=(False, None, None))

XYZ = [Given("x"), Given("y"), Given("z", True, 30)]
TWINS = [Given("x"), Given("x"), Given(None)]


def labels(inputs):
    return ["input %r" % (given.name or i) for i, given in enumerate(inputs)]


@pytest.mark.parametrize(
    "args,kwargs,values",
    [
        ((1, 2), {}, [1, 2, 30]),
        ((1, 2, 3), {}, [1, 2, 3]),
        ((1,), {"y": 2}, [1, 2, 30]),
        ((), {"y": 2, "x": 1}, [1, 2, 30]),
        ((), {"z": 3, "y": 2, "x": 1}, [1, 2, 3]),
        ((None, None), {}, [None, None, 30]),
    ],
)
def test_values_by_position_and_by_name(args, kwargs, values):
    assert bind(XYZ, labels(XYZ), "f", args, kwargs) == values


@pytest.mark.parametrize(
    "args,kwargs,expected,got",
    [
        ((1, 2, 3, 4), {}, "at most one value per input (3 in total)", "4"),
        ((1,), {}, "a value for input 'y'", "none"),
        ((), {"y": 2}, "a value for input 'x'", "none"),
        ((1, 2), {"w": 3}, "inputs called 'x', 'y', 'z'", "'w'"),
        ((1, 2), {"x": 3}, "once", "input 'x' by position and by name"),
    ],
)
def test_arguments_that_do_not_fit(args, kwargs, expected, got):
    with refuses(TypeError, "function f", expected, got):
        bind(XYZ, labels(XYZ), "f", args, kwargs)


def test_inputs_with_one_name_or_none():
    assert bind(TWINS, labels(TWINS), None, (1, 2, 3), {}) == [1, 2, 3]
    with refuses(TypeError, "the function", got="'x', which is the name of 2 inputs", hint="by position"):
        bind(TWINS, labels(TWINS), None, (), {"x": 1})
    with refuses(TypeError, "the function", "none", "'y'"):
        bind([Given(None)], ["input 0"], None, (1,), {"y": 1})


def test_inputs_that_keep_their_value():
    inputs = [Given("x"), Given("s", True, 1.0, state=object()), Given("z", True, 30)]
    assert bind(inputs, labels(inputs), "f", (1,), {}) == [1, KEPT, 30]
    assert bind(inputs, labels(inputs), "f", (1,), {"s": 2}, lambda given: -given.default) == [1, 2, -30]
