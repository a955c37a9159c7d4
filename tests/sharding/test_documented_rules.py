"""The table of operations in docs/exact.rst against the rules that there are."""

import importlib
import pathlib
import re

import pytest

from synkhronos.engines.theano.formulas import FORMULAS
from synkhronos.engines.theano.placing import RULES

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "exact.rst"


def section():
    text = PAGE.read_text().split("Which operations have rules\n")[1]
    table, without = text.split("These have none, nor have those of your own, at first:")
    return table, without.split("\n\nWith ")[0]


def names_in_table():
    rows = re.split(r"\n   \* - ", section()[0])[2:]  # without what is before the table, and its header
    return [name for row in rows for name in re.findall(r"``(\w+)``", re.split(r"\n     -", row)[1])]


def test_the_table_has_all_operations_with_rules_and_no_others():
    names = names_in_table()
    # (A page of the documentation gives an operation of its own a rule, for good.)
    ours = [cls for cls in (*RULES, *FORMULAS) if cls.__module__.startswith(("theano.", "synkhronos."))]
    known = {cls.__name__ for cls in ours}
    assert len(names) == len(set(names)), "an operation is listed twice"
    assert set(names) == known


@pytest.mark.parametrize("path", re.findall(r"``([\w.]+)``", section()[1]))
def test_operations_that_are_said_to_have_no_rule_have_none(path):
    module, name = path.rsplit(".", 1)
    cls = getattr(importlib.import_module(module), name)
    assert not any(one in RULES or one in FORMULAS for one in cls.__mro__)
