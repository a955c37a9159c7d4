"""The frequency of tests of MPI requests."""

import pytest

from synkhronos.cluster.pauses import MIN_PAUSE_S, PAUSE_PART, QUICK_TESTS, Pauses

MOST_S = 5e-3


def waited(pauses, seconds, now=0.0):
    """Return the number of unsuccessful tests before an event after these seconds, and the event's delay."""
    begin, n = now, 0
    while now < begin + seconds:
        now += pauses.after_test(False, now, MOST_S) + 1e-6  # a test itself takes time
        n += 1
    assert pauses.after_test(True, now, MOST_S) == 0
    return n, now - begin - seconds


@pytest.mark.parametrize("seconds", [1e-3, 4e-3, 10e-3, 30e-3])
def test_a_rhythm_is_learnt(seconds):
    pauses = Pauses()
    first, _ = waited(pauses, seconds)
    for _ in range(20):
        n, late = waited(pauses, seconds)
    assert n <= QUICK_TESTS + 2 + max(1 / PAUSE_PART, seconds / MOST_S) < first
    assert late <= min(MOST_S, max(MIN_PAUSE_S, 1.1 * seconds * PAUSE_PART))


def test_one_that_is_late_does_not_make_the_next_ones_late():
    pauses = Pauses()
    for _ in range(20):
        waited(pauses, 400e-6)
    waited(pauses, 10.0)
    assert waited(pauses, 400e-6)[1] <= 2 * 400e-6 * PAUSE_PART


def test_slow_links_become_quick_again():
    pauses = Pauses()
    for _ in range(20):
        waited(pauses, 30e-3)
    for _ in range(20):
        _, late = waited(pauses, 200e-6)
    assert late <= MIN_PAUSE_S + 1e-6


def test_what_is_new_is_tested_at_once():
    pauses = Pauses()
    for now in range(10):
        pauses.after_test(False, now, MOST_S)
    pauses.begin_again()
    assert [pauses.after_test(False, 20.0, MOST_S) for _ in range(QUICK_TESTS)] == [0.0] * QUICK_TESTS
    assert pauses.after_test(False, 20.0, MOST_S) == MIN_PAUSE_S
