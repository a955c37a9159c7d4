"""Jumps in sequences of random numbers; expected values come from single steps, and Theano's tables and streams."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refuses

from synkhronos.engines import random_states
from synkhronos.engines.random_states import M1, M2, jumped_mrg, jumped_random_state, seeded_mrg, seeded_random_state

STATE = np.array([[1, 2, 3, 4, 5, 6], [M1 - 1, 0, M1 - 2, M2 - 1, M2 - 2, 0]], "int32")


def step(row):
    """Return the row of an MRG31k3p state after one step, computed by its definition in Python integers."""
    x1, x2, x3, y1, y2, y3 = map(int, row)
    return [(2**22 * x2 + (2**7 + 1) * x3) % M1, x1, x2, (2**15 * y1 + (2**15 + 1) * y3) % M2, y1, y2]


@pytest.mark.parametrize("log2", [0, 1, 5, 10])
@pytest.mark.parametrize("times", [0, 1, 3])
def test_powers_are_steps(monkeypatch, log2, times):
    monkeypatch.setattr(random_states, "LOG2_JUMP_STEPS", log2)
    truth = STATE.tolist()
    for _ in range(times * 2**log2):
        truth = [step(row) for row in truth]
    before = STATE.copy()
    result = jumped_mrg(STATE, times)
    np.testing.assert_array_equal(result, truth)
    assert result.dtype == STATE.dtype and not np.shares_memory(result, STATE)
    np.testing.assert_array_equal(STATE, before)


def power(matrix, exponent, modulus):
    """Return a power of a matrix of Python integers, modulo `modulus`."""

    def product(one, other):
        return [[sum(one[i][k] * other[k][j] for k in range(3)) % modulus for j in range(3)] for i in range(3)]

    result = [[int(i == j) for j in range(3)] for i in range(3)]
    for bit in bin(exponent)[2:]:
        result = product(result, result)
        if bit == "1":
            result = product(result, matrix)
    return result


@pytest.mark.parametrize("jumps", [0, 1, 2, 7, 1000])
def test_a_jump_is_two_to_the_166_steps(jumps):
    one = power([[0, 2**22, 129], [1, 0, 0], [0, 1, 0]], jumps * 2**166, M1)
    other = power([[2**15, 0, 2**15 + 1], [1, 0, 0], [0, 1, 0]], jumps * 2**166, M2)
    truth = [
        [sum(a * int(x) for a, x in zip(line, row[:3])) % M1 for line in one]
        + [sum(a * int(y) for a, y in zip(line, row[3:])) % M2 for line in other]
        for row in STATE
    ]
    np.testing.assert_array_equal(jumped_mrg(STATE, jumps), truth)


def test_seeds_that_theano_refuses():
    like = np.zeros((3, 6), "int32")
    states = [seeded_mrg(like, seed, 0) for seed in (0, M2, 2**40, 1)]
    for state in states:
        assert (state > 0).all() and (state < M2).all() and state.dtype == "int32" and state.shape == (3, 6)
    assert len({state.tobytes() for state in states}) == 4


@pytest.mark.parametrize("before", [0, 1, 5, 311, 312, 313, 1000])
@pytest.mark.parametrize("between", [1, 311, 312, 2000])
def test_jumps_of_a_random_state_commute_with_draws(before, between):
    state = np.random.RandomState(3)
    state.random_sample(before)
    jumped = jumped_random_state(state, 2)
    jumped.random_sample(between)
    state.random_sample(between)
    np.testing.assert_array_equal(jumped_random_state(state, 2).random_sample(1000), jumped.random_sample(1000))


def test_jumps_of_a_random_state_add_up():
    state = np.random.RandomState(3)
    state.random_sample(100)
    twice = jumped_random_state(jumped_random_state(state, 2), 3)
    np.testing.assert_array_equal(twice.random_sample(1000), jumped_random_state(state, 5).random_sample(1000))


def test_the_kept_normal_number_is_not_jumped():
    state, same = np.random.RandomState(3), np.random.RandomState(3)
    state.normal(), same.normal()
    copy, jumped = jumped_random_state(state, 0), jumped_random_state(state, 1)
    kept = same.normal()
    assert copy.normal() == kept and jumped.normal() != kept
    assert state.normal() == kept  # the original is unchanged


def test_random_states_over_other_generators_are_refused():
    with refuses(TypeError, "random state", "MT19937", "PCG64", "RandomState(seed)"):
        jumped_random_state(np.random.RandomState(np.random.PCG64(1)), 1)


def test_seeded_random_states_differ_and_repeat():
    first = {
        (seed, index): seeded_random_state(seed, index).randint(2**31) for seed in (0, 1, 2**40) for index in (0, 1, 2)
    }
    assert len(set(first.values())) == 9
    assert first[1, 2] == seeded_random_state(1, 2).randint(2**31)


# -- against Theano ------------------------------------------------------------------------------------------------


@pytest.fixture
def rng_mrg(_languages):
    """Return Theano's module `rng_mrg`."""
    _languages("theano")
    from theano.sandbox import rng_mrg

    return rng_mrg


@pytest.mark.theano
def test_our_step_is_theanos(rng_mrg):
    for row in np.random.RandomState(0).randint(1, M2, (200, 6)).astype("int32"):
        after = np.zeros(6, "int32")
        with np.errstate(over="ignore"):
            rng_mrg.mrg_next_value(row, after, NORM=1.0, mask=0xFFFFFFFF, offset=0)
        assert after.tolist() == step(row)


@pytest.mark.theano
def test_our_powers_are_theanos_tables(rng_mrg):
    for log2, one, other in ((72, rng_mrg.A1p72, rng_mrg.A2p72), (134, rng_mrg.A1p134, rng_mrg.A2p134)):
        np.testing.assert_array_equal(random_states._power(random_states.STEP_MATRIX_1, 2**log2, M1), one)
        np.testing.assert_array_equal(random_states._power(random_states.STEP_MATRIX_2, 2**log2, M2), other)


@pytest.mark.theano
@pytest.mark.parametrize("seed", [1, 12345, M2 - 1])
def test_streams_start_where_theanos_do(rng_mrg, seed):
    streams = rng_mrg.MRG_RandomStreams(seed)
    for index, rows in enumerate([1, 2, 7, 64]):
        streams.uniform((100,), nstreams=rows)
        truth = streams.state_updates[-1][0].get_value()
        state = seeded_mrg(truth, seed, index)
        np.testing.assert_array_equal(state, truth)
        assert state.dtype == truth.dtype
