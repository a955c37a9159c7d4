"""The slowest of many ranks, compared to manual calculations and known distributions."""

import math

import numpy as np
import pytest

from synkhronos.contrib.prediction.slowest import MOVED_AFTER_S, slowest


@pytest.mark.parametrize(
    "ranks, machines, cores, expected",
    [(1, 1, 4.0, 1), (4, 1, 4.0, 1), (6, 1, 4.0, 1.5), (8, 2, 2.0, 2), (3, 1, 2.0, 1.5), (64, 1, math.inf, 1)],
)
def test_no_spread(ranks, machines, cores, expected):
    """Long work shares the cores evenly; during short work, ranks keep their cores, and the fullest core counts."""
    assert slowest((1.0,), ranks, machines, cores, 1e9) == pytest.approx(expected)
    assert slowest((1.0,), ranks, machines, cores, 1e-9) == math.ceil(expected)


def test_moved():
    """Three ranks with 30 ms of work on two cores take 45 ms on both, plus the time until one rank is moved."""
    assert slowest((1.0,), 3, 1, 2.0, 0.03) == pytest.approx((0.045 + MOVED_AFTER_S) / 0.03)


def test_two_values():
    """If half of the calls take three times as long, one of many ranks is always that slow."""
    assert slowest((1.0, 3.0), 20, 1, math.inf) == 3
    # 20 ranks on 4 cores: 20 * 2 / 4 on average, more than the longest.
    assert slowest((1.0, 3.0), 20, 1, 4.0, 1e9) == pytest.approx(10, rel=0.05)


@pytest.mark.parametrize("ranks", [1, 2, 8, 100])
def test_uniform(ranks):
    """The median of the largest of n numbers between 1 and 2 is 1 + 0.5 ** (1 / n)."""
    values = tuple(1 + (np.arange(1000) + 0.5) / 1000)
    assert slowest(values, ranks, 1, math.inf) == pytest.approx(1 + 0.5 ** (1 / ranks), abs=0.005)
    assert slowest(values, ranks, ranks, 1.0) == pytest.approx(1 + 0.5 ** (1 / ranks), abs=0.005)


def test_steps_between_meetings():
    """Differences average out: the standard deviation of a mean of 16 steps is a quarter of one step's."""
    values = tuple(1 + 0.1 * np.random.RandomState(0).standard_normal(1000))
    once, seldom = (slowest(values, 50, 1, math.inf, 1e9, steps) - 1 for steps in (1, 16))
    assert seldom == pytest.approx(once / 4, rel=0.2)
