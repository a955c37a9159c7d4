"""Pretend hosts for tests."""

import pytest
from pretend import Cluster, lacking


@pytest.fixture
def make_hosts():
    """The class `Cluster`; what is made is taken down at the end of the test, which is skipped if none can be made."""
    why_not = lacking()
    if why_not:
        pytest.skip(why_not)
    made = []

    def make(*arguments, **options):
        made.append(Cluster(*arguments, **options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()
