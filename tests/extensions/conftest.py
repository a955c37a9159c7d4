"""Fixtures for the tests of extensions."""

import pytest


@pytest.fixture
def nothing_compiled():
    """PyTensor runs graphs by Python code (`pymc_models.python_mode`)."""
    from pymc_models import without_compiling

    with without_compiling():
        yield
