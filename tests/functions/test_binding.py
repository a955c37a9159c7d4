"""From the arguments of a call to one value per input."""

from collections import namedtuple

import pytest

from synkhronos.functions.signature import bind

Given = namedtuple("Given", "name has_default default", defaults=(False, None))

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
    "args,kwargs,message",
    [
        ((1, 2, 3, 4), {}, "function f takes at most 3 inputs, got 4"),
        ((1,), {}, "function f: input 'y' is missing"),
        ((), {"y": 2}, "function f: input 'x' is missing"),
        ((1, 2), {"w": 3}, r"function f has no input called 'w' \(inputs: 'x', 'y', 'z'\)"),
        ((1, 2), {"x": 3}, "function f: input 'x' is given twice, by position and by name"),
    ],
)
def test_arguments_that_do_not_fit(args, kwargs, message):
    with pytest.raises(TypeError, match=message):
        bind(XYZ, labels(XYZ), "f", args, kwargs)


def test_inputs_with_one_name_or_none():
    assert bind(TWINS, labels(TWINS), None, (1, 2, 3), {}) == [1, 2, 3]
    with pytest.raises(TypeError, match="the function has several inputs called 'x': give them by position"):
        bind(TWINS, labels(TWINS), None, (), {"x": 1})
    with pytest.raises(TypeError, match=r"the function has no input called 'y' \(inputs: none has a name\)"):
        bind([Given(None)], ["input 0"], None, (1,), {"y": 1})
