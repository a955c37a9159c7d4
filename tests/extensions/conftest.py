"""Fixtures for the tests of extensions."""

import pytest


@pytest.fixture
def nothing_compiled():
    """Make PyTensor run graphs as Python code (`pymc_models.python_mode`)."""
    from pymc_models import without_compiling

    with without_compiling():
        yield
