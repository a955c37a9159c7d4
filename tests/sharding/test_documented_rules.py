"""The tables of operations in docs/exact.rst list all existing rules."""

import importlib
import pathlib
import re

import pytest
from library import IS_THEANO, L, needs_theano

RULES, FORMULAS = L.placing.rules, L.formulas.formulas
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "exact.rst"


def section():
    """Return the table of operations with rules, and the text about the others."""
    without = ".. operations without rules"
    return between("Operations with rules\n", without), between(without, ".. operations of PyTensor")


def of_pytensor():
    return between(".. operations of PyTensor", ".. end of the operations")


def between(begin, end):
    """Return the part of the page between two texts."""
    return PAGE.read_text().split(begin)[1].split(end)[0]


def names_in_table(text):
    rows = re.split(r"\n   \* - ", text)[2:]  # skips the text before the table, and the header
    return [name for row in rows for name in re.findall(r"``([A-Z]\w+|mrg\w+)``", re.split(r"\n     -", row)[1])]


def known():
    """Return the names of the operations with rules or formulas, except for those in tests."""
    found = [*RULES, *FORMULAS]
    return {one.__name__ for one in found if one.__module__.split(".")[0] in ("theano", "pytensor", "synkhronos")}


def test_the_tables_have_no_operation_twice():
    tables = (
        section()[0],
        of_pytensor(),
    )
    names = [name for table in tables for name in names_in_table(table)]
    assert len(names) > 60 and len(names) == len(set(names))


@needs_theano
def test_the_table_has_all_operations_with_rules_and_no_others():
    assert set(names_in_table(section()[0])) == known()


@pytest.mark.skipif(IS_THEANO, reason="PyTensor is not installed")
def test_the_table_of_pytensor_has_all_operations_that_the_other_has_not():
    assert set(names_in_table(of_pytensor())) == known() - set(names_in_table(section()[0]))


@needs_theano
@pytest.mark.parametrize("path", re.findall(r"``([\w.]+)``", section()[1]))
def test_operations_that_are_said_to_have_no_rule_have_none(path):
    module, name = path.rsplit(".", 1)
    cls = getattr(importlib.import_module(module), name)
    assert not any(one in RULES or one in FORMULAS for one in cls.__mro__)
