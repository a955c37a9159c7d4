"""Errors: fields, sentences, and pickling."""

import pickle

import pytest

from synkhronos.errors import ArgumentError, ArgumentTypeError, ArgumentValueError


@pytest.mark.parametrize("kind, base", [(ArgumentTypeError, TypeError), (ArgumentValueError, ValueError)])
def test_fields_and_sentence(kind, base):
    error = kind("batch", "indices below 100", "index 100", "drop it")
    assert isinstance(error, base) and isinstance(error, ArgumentError)
    assert str(error) == "batch: expected indices below 100, got index 100; drop it"
    again = pickle.loads(pickle.dumps(error))
    fields = (again.argument, again.expected, again.got, again.hint)
    assert (type(again), str(again)) == (kind, str(error))
    assert fields == ("batch", "indices below 100", "index 100", "drop it")


def test_without_a_hint():
    assert str(ArgumentValueError("rank", "from 0 to 1", "2")) == "rank: expected from 0 to 1, got 2"
