"""Examples in docstrings: each begins without a session, and leaves none."""

import pytest
from _pytest.doctest import DoctestItem

import synkhronos as synk


@pytest.fixture(autouse=True)
def closed_after_example(request):
    """Close what an example forked: most leave `close` out, so that they are about one thing."""
    yield
    if isinstance(request.node, DoctestItem):
        synk.close()
