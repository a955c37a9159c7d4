"""Pretend hosts, and MPI, for tests."""

import os

import mpi as mpi_module
import pytest
from pretend import ROOT, Cluster, lacking


@pytest.fixture
def make_hosts():
    """Return a function that makes clusters, which are closed after the test; skip the test if none can be made."""
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


@pytest.fixture(params=sorted(mpi_module.VARIABLES))
def mpi(request):
    """Return each MPI in turn, as an `mpi.Mpi`; skip the test if it is not installed."""
    why_not = mpi_module.lacking(request.param)
    if why_not:
        pytest.skip(why_not)
    return mpi_module.find(request.param)


@pytest.fixture
def variables():
    """Return the environment variables that programs with this library need on every host."""
    above = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(above), "THEANO_FLAGS": os.environ.get("THEANO_FLAGS", "")}
