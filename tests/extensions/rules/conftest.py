"""What the tests of rules have in common."""

import pytest


@pytest.fixture(
    params=[("threads", 3, 1), ("threads", 4, 0), ("fork", 2, 1), ("threads", 1, 0)], ids="{0[0]}-{0[1]}".format
)
def world(request, make_world):
    """Ranks as threads and as processes."""
    return make_world(*request.param)
