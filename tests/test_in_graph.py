"""Operations inside a function use the call that they are part of; outside, they act as on a single rank."""

import numpy as np
import pytest

from synkhronos import in_graph
from synkhronos.errors import ArgumentValueError
from synkhronos.reductions import ReduceOp

X, SUM = np.arange(3.0), ReduceOp("sum")


class CallOfARank(in_graph.CurrentCall):
    """Call with 12 rows on all ranks together; this rank has rows 3 to 6."""

    def all_reduce(self, number, op, arrays):
        if number:
            raise ArgumentValueError("number", "0", str(number))
        return [2 * array for array in arrays]

    rows = 3, 7, 12

    def share(self, length):
        if length != 12:
            raise ArgumentValueError("length", "12", str(length))
        return 3, 7


class CallWithoutRows(CallOfARank):
    rows = 3, 3, 12


def test_outside_of_a_call():
    assert in_graph.current() is None
    assert in_graph.all_reduce(0, SUM, [X])[0] is X
    assert (in_graph.whole_length(5), in_graph.inverse_share(), in_graph.share(5)) == (5, 1.0, (0, 5))


def test_in_a_call():
    with CallOfARank() as call:
        assert in_graph.current() is call
        np.testing.assert_array_equal(in_graph.all_reduce(0, SUM, [X])[0], 2 * X)
        assert (in_graph.whole_length(8), in_graph.inverse_share(), in_graph.share(12)) == (24, 3.0, (3, 7))
        with CallWithoutRows() as inner:
            assert in_graph.current() is inner
            assert (in_graph.whole_length(8), in_graph.inverse_share()) == (8, 1.0)
        assert in_graph.current() is call
    assert in_graph.current() is None


@pytest.mark.parametrize("act", [lambda: in_graph.all_reduce(1, SUM, [X]), lambda: in_graph.share(5)])
def test_an_error_leaves_the_call_as_it_was_raised(act):
    """The call raises an operation's error, even if the library around it raises another one."""
    with pytest.raises(ArgumentValueError) as caught, CallOfARank() as call:
        try:
            act()
        except ValueError as error:
            found = call.error
            raise RuntimeError("of the library") from error
    assert caught.value is found and caught.value.__cause__ is None and in_graph.current() is None
