"""Changing learning rates, compared with formulas, and with SGD in NumPy whose velocity does not contain the rate."""

import contextlib
import itertools

import numpy as np
import pytest
from refusals import refuses
from worlds import INSTALLED

import synkhronos as synk
from synkhronos.extensions import rates
from synkhronos.testing import numpy_engine as engine

MOMENTUM = 0.9
CENTRES = np.array([1.0, -2.0, 0.5])


def test_growth():
    """Rates grow linearly to k times the base (Goyal et al.), or as ``lr * n ** (e / 5)`` (Theano-MPI)."""
    for epoch in (0, 0.3, 2, 4.9, 5, 6, 100):
        part = min(epoch, 5) / 5
        assert rates.rate_at(epoch, 0.1, 8) == pytest.approx(0.1 + 0.7 * part)
        assert rates.rate_at(epoch, 0.1, 8, growth="exponential") == pytest.approx(0.1 * 8**part)
    assert rates.rate_at(0, 0.1, 8, warm_up=0) == pytest.approx(0.8)
    assert rates.rate_at(7, 0.1, 0.5) == pytest.approx(0.05)


def test_the_factor_is_the_number_of_ranks(make_world):
    make_world("threads", 3)
    assert rates.rate_at(5, 0.1) == pytest.approx(0.3)


def test_the_number_of_ranks_is_known_in_a_session():
    with pytest.raises(synk.StateError):
        rates.rate_at(5, 0.1)


@pytest.mark.parametrize(
    "options, error, argument, got",
    [
        (dict(epoch=-1), ValueError, "epoch", "-1"),
        (dict(base_rate=0), ValueError, "base_rate", "0"),
        (dict(factor="2"), TypeError, "factor", "2"),
        (dict(warm_up=float("nan")), ValueError, "warm_up", "nan"),
        (dict(growth="slow"), ValueError, "growth", "'slow'"),
    ],
)
def test_bad_schedule(options, error, argument, got):
    with refuses(error, argument, got=got):
        rates.rate_at(**dict(dict(epoch=1, base_rate=0.1, factor=2), **options))


def steps_with(w, v, rate):
    """Return a step of momentum SGD on ``(w - centre) ** 2 / 2``, as in Lasagne, for any engine."""
    new = v * MOMENTUM - (w - CENTRES) * rate
    return synk.function([], updates=[(v, new), (w, w + new)], exact=False)


SCHEDULE = [0.01, 0.02, 0.02, 0.08, 0.04, 0.04, 0.001, 0.05]


@pytest.mark.slow
@pytest.mark.parametrize("engine_name", INSTALLED)
@pytest.mark.parametrize("corrected", [True, False])
def test_velocities_follow_the_rate(make_world, engine_name, corrected):
    """Velocities on all ranks are corrected for a new rate; without this correction, steps differ."""
    world = make_world("threads" if engine_name == "numpy" else "fork", 2, engine=engine_name)
    w, v, rate = world.shareds([np.zeros(3), np.zeros(3), np.asarray(SCHEDULE[0])], ["w", "v", "rate"])
    begin = [np.zeros(3), np.array([3.0, 1.0, -1.0])]
    for rank in range(2):
        synk.set_value(rank, w, begin[rank])
    step = steps_with(w, v, rate)
    learning_rate = rates.LearningRate(rate, [v] if corrected else [])
    expected, u = [values.copy() for values in begin], [np.zeros(3), np.zeros(3)]
    for value in SCHEDULE:
        learning_rate.set(value)
        assert learning_rate.value == value and synk.in_sync(rate)
        for _ in range(3):
            step()
            for rank in range(2):
                u[rank] = MOMENTUM * u[rank] + (expected[rank] - CENTRES)
                expected[rank] = expected[rank] - value * u[rank]
    far = np.abs(np.array(world.values(w)) - expected).max()
    assert far < 1e-12 if corrected else far > 1e-2


def test_a_rate_of_zero(make_world):
    world = make_world("threads", 2)
    v, rate = world.shareds([np.ones(2), np.asarray(0.5)])
    learning_rate = rates.LearningRate(rate, [v])
    learning_rate.set(0)
    np.testing.assert_array_equal(world.values(v), np.zeros((2, 2)))
    world.set_values(v, np.ones((2, 2)))
    learning_rate.set(0.1)
    np.testing.assert_array_equal(world.values(v), np.ones((2, 2)))
    assert learning_rate.value == 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "rate, velocities, argument, expected",
    [
        (np.zeros(1), [], "rate", "0-dimensional"),
        (np.asarray(1), [], "rate[0]", "floating-point"),
        (np.asarray(1.0), [np.zeros(2, "float32")], "velocities[0]", "float64"),
    ],
)
def test_bad_variables(make_world, rate, velocities, argument, expected):
    make_world("threads", 2)
    with refuses(TypeError, argument, expected):
        rates.LearningRate(engine.shared(rate, "rate"), [engine.shared(value, "v") for value in velocities])


@pytest.mark.parametrize(
    "value, error", [(-0.1, ValueError), (np.nan, ValueError), (np.inf, ValueError), ("1", TypeError)]
)
def test_a_bad_rate_changes_nothing(make_world, value, error):
    world = make_world("threads", 2)
    v, rate = world.shareds([np.ones(2), np.asarray(0.5)])
    learning_rate = rates.LearningRate(rate, [v])
    with refuses(error, "value", got=repr(value)):
        learning_rate.set(value)
    assert learning_rate.value == 0.5
    np.testing.assert_array_equal(world.values(v), np.ones((2, 2)))


@pytest.mark.parametrize("next_value", [0.4, 0.2])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_ctrl_c_in_the_middle_of_a_change(make_world, monkeypatch, at, after, next_value):
    """Repeating the change, or making another one, corrects the velocities exactly once."""
    world = make_world("threads", 2)
    v, rate = world.shareds([np.zeros(2), np.asarray(0.1)])
    world.set_values(v, [[1.0, 2.0], [3.0, 4.0]])
    learning_rate = rates.LearningRate(rate, [v])
    run, count = world.session.run, itertools.count(1)

    def interrupted(*given):
        number = next(count)
        if number == at and not after:
            raise KeyboardInterrupt
        found = run(*given)
        if number == at:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(world.session, "run", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        learning_rate.set(0.4)
    monkeypatch.undo()
    learning_rate.set(next_value)
    expected = np.array([[1.0, 2.0], [3.0, 4.0]]) * next_value / 0.1
    np.testing.assert_allclose(world.values(v), expected, rtol=1e-12)
    assert learning_rate.value == next_value and synk.in_sync(rate)
