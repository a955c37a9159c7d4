"""`SharedEntry` alone writes into a variable's storage, and records the value's origin.

Modules: `registry`.
"""

import ast
from pathlib import Path

import numpy as np
import pytest

from synkhronos.memory.pool import Pool
from synkhronos.runtime.registry import RUNNING, Origin, SharedEntry, set_all

PACKAGE = Path(__file__).parents[2] / "synkhronos"

#: Modules that write into storages. Entries access an engine's storages as cells; `Engine.put` converts the values that
#: libraries leave there to arrays that ranks can use.
ALLOWED = {"runtime/registry.py", "engines/base.py", "engines/pytensor/jit.py", "engines/pytensor/jax_functions.py"}
ALLOWED |= {"mesh/engine.py"}  # the updates of a graph, as a compiled function stores them


def writers(text):
    """Return the lines that assign to the first element of a list named cell or storage."""
    found = []
    for node in ast.walk(ast.parse(text)):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in [each for one in targets for each in (one.elts if isinstance(one, ast.Tuple) else [one])]:
            if isinstance(target, ast.Subscript) and isinstance(getattr(target, "ctx", None), ast.Store):
                owner = target.value.func if isinstance(target.value, ast.Call) else target.value
                name = getattr(owner, "id", getattr(owner, "attr", ""))
                first = getattr(target.slice, "value", None)  # (on Python 3.8, a node around the constant)
                if name in ("cell", "storage", "_storage") and getattr(first, "value", first) == 0:
                    found.append(node.lineno)
    return found


def test_nothing_else_writes_a_variables_storage():
    found = {str(path.relative_to(PACKAGE)): writers(path.read_text()) for path in PACKAGE.rglob("*.py")}
    found = {file: lines for file, lines in found.items() if lines and not file.startswith("testing/numpy_engine/")}
    assert found.pop("engines/theano/engine.py") and set(found) == ALLOWED  # (it restores what Theano's `free` takes)


@pytest.mark.parametrize("text", ["entry.cell[0] = 1", "cell[0] = a = 2", "a, cell[0] = 1, 2", "e.storage(x)[0] = 3"])
def test_the_rule_itself(text):
    assert writers(text) == [1] and writers("x = cell[0]; cell[1] = x; cells[0] = x") == []


@pytest.fixture
def entry():
    return SharedEntry(1, None, lambda: None, [np.zeros(3)], False)


@pytest.fixture
def pool():
    return Pool(-1)


def is_known(entry):
    return entry.cell[0] is entry.known


@pytest.mark.parametrize("origin", Origin)
def test_what_the_library_sets_is_known(entry, origin):
    for before in (Origin.COMMON, Origin.OWN, Origin.PROGRAM):
        entry.set(np.ones(3), before)
        entry.known = entry.cell[0]
        value = np.full(3, 2.0)
        entry.set(value, origin)
        assert entry.cell[0] is value
        assert entry.origin is (origin if origin in (Origin.COMMON, Origin.OWN, Origin.PROGRAM) else before)
        assert is_known(entry) == (origin is not Origin.PROGRAM)


def test_what_the_program_does_is_not(entry, pool):
    for act in (entry.written, entry.updated, lambda: entry.cell.__setitem__(0, np.ones(3))):
        act()
        assert not is_known(entry) and entry.has_changed(pool) and entry.origin is Origin.PROGRAM and is_known(entry)
        entry.origin = Origin.COMMON
    entry.lent()
    assert not is_known(entry) and not entry.has_changed(pool) and entry.origin is Origin.COMMON and is_known(entry)
    entry.lent()
    held = entry.cell[0]
    assert not entry.has_changed(pool) and not is_known(entry)  # while something refers to the array
    held[...] = 5
    assert entry.may_have_changed() and entry.has_changed(pool) and entry.origin is Origin.PROGRAM
    assert not entry.has_changed(pool)


def test_an_update_of_what_each_rank_has_of_its_own_leaves_it_so(entry, pool):
    entry.set(np.ones(3), Origin.OWN)
    entry.updated()
    assert entry.has_changed(pool) and entry.origin is Origin.OWN
    entry.lent()
    entry.cell[0][...] = 3
    assert entry.has_changed(pool) and entry.origin is Origin.OWN
    entry.written()
    assert entry.has_changed(pool) and entry.origin is Origin.PROGRAM


def test_a_change_in_the_middle_of_a_command_is_not_forgotten(entry, pool):
    """A change by the program is detected even while a function updates the variable."""
    entry.known = RUNNING
    entry.written()
    entry.set(np.ones(3), Origin.FUNCTION)
    assert not is_known(entry) and entry.has_changed(pool)
    entry.known = RUNNING
    entry.lent()  # nothing is lent
    entry.set(np.ones(3), Origin.FUNCTION)
    assert is_known(entry) and entry.borrowed is None


def test_what_is_borrowed_is_not_moved(entry, pool):
    value = entry.cell[0]
    entry.lent()
    copy = value.copy()
    entry.set(copy, Origin.MOVED)
    assert entry.cell[0] is value
    entry.set(copy, Origin.COMMON)  # the value sent to the other ranks
    assert entry.cell[0] is value and entry.borrowed is not None
    value[...] = 8
    assert entry.has_changed(pool)
    entry.set(np.ones(3), Origin.COMMON)  # a different value
    assert entry.cell[0] is not value and entry.borrowed is None and is_known(entry)


def test_what_is_bound_again_has_not_been_given(entry, pool):
    """Collectives that read a variable do not hide the program's earlier change."""
    entry.lent()
    entry.cell[0][...] = 7
    copy = entry.cell[0].copy()
    for _ in range(3):
        entry.set(copy, Origin.MOVED)
    assert entry.may_have_changed() and entry.has_changed(pool) and entry.origin is Origin.PROGRAM


def test_after_a_function(entry, pool):
    value = entry.cell[0]
    entry.lent()
    entry.cell[0] = value.copy()  # an engine's copy of the same value
    entry.ran(updates=False)
    assert entry.cell[0] is value and not entry.has_changed(pool)
    entry.lent()
    value += 1  # in place
    entry.ran(updates=True)
    assert not entry.has_changed(pool) and entry.borrowed is not None
    entry.cell[0] = value + 1
    entry.ran(updates=True)
    assert entry.borrowed is None and is_known(entry)


def test_what_was_borrowed_and_replaced_by_an_engine_is_over(entry):
    """An engine may replace a borrowed value without notice, as by updates in a session of one rank."""
    value = entry.cell[0]
    entry.lent()
    elsewhere = value.copy()
    entry.set(elsewhere, Origin.MOVED)
    entry.cell[0] = value + 1
    elsewhere[...] = entry.cell[0]  # the new value is now where the old one was
    entry.set(elsewhere, Origin.MOVED)
    assert entry.cell[0] is elsewhere and entry.borrowed is None
    entry.lent()
    entry.cell[0] = value
    entry.set(elsewhere, Origin.UNDONE)  # the restored value is still borrowed
    assert entry.cell[0] is elsewhere and entry.borrowed.value is elsewhere


@pytest.mark.parametrize("origin", [Origin.COMMON, Origin.OWN])
def test_a_borrowed_value_that_ranks_were_given_is_no_news(entry, pool, origin):
    entry.written()
    held = entry.cell[0]
    entry.set(held.copy(), Origin.MOVED)  # the value that a broadcast sends
    entry.set(entry.borrowed.elsewhere, origin)
    assert entry.cell[0] is held and not entry.has_changed(pool) and entry.origin is origin
    entry.lent()
    held[...] = 5
    assert entry.has_changed(pool)


def state_after(set_value, known, borrow, origin):
    """Return an entry's state after a value was set."""
    entry, value = SharedEntry(1, None, lambda: None, [np.zeros(3)], False), np.ones(3)
    entry.set(np.zeros(3), origin)
    if borrow:
        entry.lent()
    entry.known = {"the value": entry.cell[0], "nothing": None, "running": RUNNING}[known]
    set_value(entry, value)
    return entry.cell[0] is value, entry.known is value, entry.known is None, entry.borrowed is None, entry.origin


@pytest.mark.parametrize("origin", [Origin.COMMON, Origin.OWN, Origin.PROGRAM])
@pytest.mark.parametrize("borrow", [True, False])
@pytest.mark.parametrize("known", ["the value", "nothing", "running"])
def test_the_quick_way_leaves_the_state_that_set_leaves(known, borrow, origin):
    expected = state_after(lambda entry, value: entry.set(value, Origin.FUNCTION), known, borrow, origin)
    assert state_after(lambda entry, value: set_all([entry], [value]), known, borrow, origin) == expected
