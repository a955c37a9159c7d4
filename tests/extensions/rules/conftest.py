"""Fixtures for the tests of rules."""

import pytest


@pytest.fixture(
    params=[("threads", 3, 1), ("threads", 4, 0), ("fork", 2, 1), ("threads", 1, 0)], ids="{0[0]}-{0[1]}".format
)
def world(request, make_world):
    """Return a world whose ranks are threads or processes."""
    return make_world(*request.param)
