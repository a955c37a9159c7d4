"""The clocks of training benchmarks: when each rank began and ended, and how the time between is divided."""

import numpy as np
import pytest

import synkhronos  # noqa: F401, before Theano

theano = pytest.importorskip("theano")
T = pytest.importorskip("theano.tensor")

from benchmarks.clock import Clock, divide_time  # noqa: E402

pytestmark = pytest.mark.theano


def test_time_of_a_call_is_divided():
    """Two ranks compute two slices each: rank 7 computes 1 + 2 s and ends at 14, rank 8 2 + 2 s and ends at 16."""
    started = np.array([[7, 10.5], [7, 12.0], [8, 11.0], [8, 14.0]])
    ended = np.array([[7, 11.5], [7, 14.0], [8, 13.0], [8, 16.0]])
    seconds = divide_time(10.0, started, ended)
    assert seconds == {"function": 3.5, "shuffling": 1.5, "waiting": 1.0}


def test_clocks_enclose_what_is_computed():
    """The first clock is read before the work and the second after it, and values are unchanged."""
    x = T.dmatrix()
    shown, started = Clock()(x)
    result, ended = Clock()(T.dot(T.dot(shown, shown), shown).sum())
    f = theano.function([x], [result, started, ended])
    order = [node.op for node in f.maker.fgraph.toposort()]
    assert isinstance(order[0], Clock)
    values = np.full((400, 400), 0.01)
    result, started, ended = f(values)
    np.testing.assert_allclose(result, 400**4 * 1e-6)
    assert started.shape == ended.shape == (1, 2) and started[0, 0] == ended[0, 0]
    assert ended[0, 1] - started[0, 1] > 1e-4  # two products of 128 million operations
