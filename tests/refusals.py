"""Checks of errors by fields and by facts in messages, so that the wording can change."""

import re
from contextlib import contextmanager

import pytest

from synkhronos.errors import ArgumentError, ArgumentTypeError, ArgumentValueError


@contextmanager
def refuses(error, argument=None, expected=None, got=None, hint=None):
    """Check that the block raises ``error`` as an `ArgumentError` whose fields contain the given texts.

    Parameters
    ----------
    error : TypeError or ValueError
    argument, expected, got, hint : str, optional
        Text that the field of the same name must contain.
    """
    with pytest.raises(error) as caught:
        yield caught
    raised = caught.value
    assert isinstance(raised, ArgumentError), f"{raised!r} has no fields"
    for name, wanted in (("argument", argument), ("expected", expected), ("got", got), ("hint", hint)):
        if wanted is not None:
            assert wanted in (getattr(raised, name) or ""), f"{name}: {getattr(raised, name)!r} lacks {wanted!r}"


@contextmanager
def reports(error, *facts, **fields):
    """Check that the block raises ``error``, with these facts in its message and these values of its attributes.

    Parameters
    ----------
    error : type of exception, or tuple of them
    facts : str or int
        Facts that the message must contain in any wording: a name, a number, a call to make, another program's output.
        A letter or digit at either end of a fact must not be part of a longer word.
    fields
        Values of attributes, such as ``rank`` of a `RankFailure`.

    Examples
    --------
    >>> with reports(ValueError, "batch", 7):
    ...     raise ValueError("batch: expected a row, got 7")
    """
    with pytest.raises(error) as caught:
        yield caught
    raised = caught.value
    assert not lacks(str(raised), *facts)
    for name, wanted in fields.items():
        assert getattr(raised, name) == wanted, f"{name} is {getattr(raised, name)!r}, not {wanted!r}"


def lacks(message, *facts):
    """Return the facts that a message lacks, and the message; None if it contains all.

    Examples
    --------
    >>> lacks("pool 3 is closed", "pool", 3)
    >>> lacks("pool 31 is closed", "pool", 3)
    (['3'], 'pool 31 is closed')
    """
    lacking = [str(fact) for fact in facts if not re.search(_pattern(str(fact)), message)]
    return (lacking, message) if lacking else None


def _pattern(fact):
    before, after = (r"(?<!\w)" if fact[0].isalnum() else ""), (r"(?!\w)" if fact[-1].isalnum() else "")
    return before + re.escape(fact) + after


def is_local(raised, error):
    """Return whether an exception is this error or its `ArgumentError`, and not another rank's error."""
    return type(raised) in (error, {TypeError: ArgumentTypeError, ValueError: ArgumentValueError}.get(error))
