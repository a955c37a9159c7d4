"""Tables of a library's names: each entry is the only object that modules define by its name. Module: `classes`."""

import dataclasses
from types import SimpleNamespace

import pytest

from synkhronos.engines.graph.classes import table

ONE = SimpleNamespace(a=1, b=[], c=0)


@dataclasses.dataclass
class Pair:
    a: int
    b: list


def test_entries_are_those_of_the_modules_unless_they_are_given():
    assert table(Pair, ONE, SimpleNamespace(b=ONE.b)) == Pair(1, ONE.b)
    assert table(Pair, ONE, SimpleNamespace(b=2), b=3) == Pair(1, 3)


@pytest.mark.parametrize("other", [SimpleNamespace(b=[]), SimpleNamespace(a=2)], ids=["equal", "different"])
def test_a_name_of_two_objects_is_an_error(other):
    with pytest.raises(AssertionError):
        table(Pair, ONE, other)


def test_a_missing_name_is_an_error():
    with pytest.raises(AssertionError):
        table(Pair, SimpleNamespace(a=1))
