"""Checked arguments that collectives keep: one test for each row of the table in `collectives.arguments`."""

import gc

import numpy as np
import pytest
import table
from refusals import refuses

import synkhronos as synk
from synkhronos.collectives.arguments import MAX_LISTS, Variables, checked
from synkhronos.replication.replicator import replicator_of
from synkhronos.testing import numpy_engine as engine


@pytest.fixture
def pair(three):
    """Return two variables, whose values are 1 and 2 on each of three ranks."""
    return three.shareds([np.full(2, 1.0), np.full(2, 2.0)], ["A", "B"])


def commands(variables):
    """Return the commands that are kept for these variables."""
    return checked(variables).commands


def test_the_same_variables_in_the_same_form_are_checked_once(pair, monkeypatch):
    a, b = pair
    first = checked([a, b])
    made, init = [], Variables.__init__

    def watched(self, *args):
        made.append(args)
        init(self, *args)

    monkeypatch.setattr(Variables, "__init__", watched)
    assert checked([a, b]) is first and checked((a, b)) is first and not made
    for others in ([b, a], [a], a):
        assert checked(others) is not first and checked(others) is checked(others)
    assert checked([a, b], states=True) is not first
    assert len(made) == 4


def test_the_form_decides_what_is_returned(pair):
    a, _ = pair
    for _ in range(2):
        table.assert_same_bits([synk.get_value(1, a)], np.full(2, 1.0))
        results = synk.get_value(1, [a])
        assert isinstance(results, list) and len(results) == 1
        table.assert_same_bits(results, np.full(2, 1.0))


def test_the_same_collective_with_the_same_options_is_one_command(three, pair):
    a, b = pair
    for _ in range(3):
        synk.all_reduce([a, b], "sum")
    (command,) = commands([a, b]).values()
    assert command.frozen is not None
    table.assert_same_bits(three.values(a), np.full(2, 27.0))
    synk.all_reduce([a, b], "max")
    synk.all_reduce([a, b], "max", nccl=False)
    assert len(commands([a, b])) == 3
    table.assert_same_bits(three.values(b), np.full(2, 54.0))


def test_weights_are_never_kept(three, pair):
    a, _ = pair
    for rank, weights in enumerate(([1, 0, 0], [0, 1, 0], [0, 0, 1])):
        three.set_values(a, [np.full(2, float(r)) for r in range(3)])
        synk.all_reduce(a, weights=weights)
        table.assert_same_bits(three.values(a), np.full(2, float(rank)))
    assert not commands(a)


def test_a_variable_that_died_is_not_taken_for_another_with_its_id(three):
    """A new variable with the id of a deleted one is not mistaken for it; the test repeats until an id recurs."""
    function, met = None, False
    for turn in range(200):
        variable = engine.shared(np.full(2, float(turn)), f"v{turn}")
        function = synk.function([], [(variable, None)])
        kept = three.session.caches.get("collectives", {})
        met = met or (False, True, "shared_vars", id(variable)) in kept
        synk.all_reduce(variable, "sum")
        table.assert_same_bits(three.values(variable), np.full(2, 3.0 * turn))
        del variable, function
        gc.collect()
        if met and turn > 2:
            break
    assert met


def test_a_variable_that_died_is_not_found_through_another_of_its_storage(three):
    """Ranks identify a clone by the number of the variable that a function uses, which ends with this variable."""
    first = engine.shared(np.full(2, 1.0), "first")
    function = synk.function([], [(first, None)])
    clone = first.clone()
    for _ in range(2):
        synk.all_reduce(clone, "sum")
    table.assert_same_bits(three.values(first), np.full(2, 9.0))
    found = checked(clone)
    del first, function
    gc.collect()
    assert not found.holds([clone])
    with refuses(ValueError, got="first, which no such function uses"):
        synk.all_reduce(clone, "sum")
    function = synk.function([], [(clone, None)])
    synk.all_reduce(clone, "sum")
    assert checked(clone) is not found and function in replicator_of(three.session)
    table.assert_same_bits(three.values(clone), np.full(2, 27.0))


def test_another_session_checks_again(make_world):
    variable = engine.shared(np.full(2, 1.0), "W")
    function = synk.function([], [(variable, None)])
    expected, found = 1.0, []
    for n in (2, 3):
        session = make_world("threads", n).session
        synk.all_reduce(variable, "sum")
        synk.all_reduce(variable, "sum")
        expected *= n * n
        table.assert_same_bits([variable.get_value()], np.full(2, expected))
        found.append(checked(variable))
        assert found[-1].session is session
    assert found[0] is not found[1]
    assert function in replicator_of(session)


def test_no_more_lists_are_kept_than_that(three, pair):
    a, b = pair
    first = checked([a, b])
    variables = three.shareds([np.zeros(1)] * (MAX_LISTS + 1))
    for variable in variables:
        synk.all_reduce(variable, "sum")
    assert len(three.session.caches["collectives"]) <= MAX_LISTS
    assert checked([a, b]) is not first
    synk.all_reduce([a, b], "sum")
    table.assert_same_bits(three.values(a), np.full(2, 3.0))


def test_nothing_keeps_the_variables_alive(three):
    variable = engine.shared(np.zeros(2), "W")
    function = synk.function([], [(variable, None)])
    synk.all_reduce(variable, "sum")
    found = checked(variable)
    del variable, function
    gc.collect()
    assert found.variables == [None]
