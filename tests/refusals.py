"""How tests ask for the refusal of a bad argument: by the fields of the error, not by its sentence."""

from contextlib import contextmanager

import pytest

from synkhronos.errors import ArgumentError, ArgumentTypeError, ArgumentValueError


@contextmanager
def refuses(error, argument=None, expected=None, got=None, hint=None):
    """Check that the block raises ``error`` as an `ArgumentError`; each field given must be in the error's field.

    Parameters
    ----------
    error : TypeError or ValueError
    argument, expected, got, hint : str, optional
        Text that the field of that name must contain.
    """
    with pytest.raises(error) as caught:
        yield caught
    raised = caught.value
    assert isinstance(raised, ArgumentError), f"{raised!r} has no fields"
    for name, wanted in (("argument", argument), ("expected", expected), ("got", got), ("hint", hint)):
        if wanted is not None:
            assert wanted in (getattr(raised, name) or ""), f"{name}: {getattr(raised, name)!r} lacks {wanted!r}"


def is_local(raised, error):
    """Return whether an exception is just that error, or its `ArgumentError`: not one that another rank has raised."""
    return type(raised) in (error, {TypeError: ArgumentTypeError, ValueError: ArgumentValueError}.get(error))
