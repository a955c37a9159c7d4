"""Pretend hosts, and MPI, for tests."""

import os

import mpi as mpi_module
import pytest
from pretend import ROOT, Cluster, lacking


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


@pytest.fixture(params=sorted(mpi_module.VARIABLES))
def mpi(request):
    """Each MPI in turn, as a `mpi.Mpi`; the test is skipped if it is not here."""
    why_not = mpi_module.lacking(request.param)
    if why_not:
        pytest.skip(why_not)
    return mpi_module.find(request.param)


@pytest.fixture
def variables():
    """The environment variables that programs with this library need on every host."""
    above = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(above), "THEANO_FLAGS": os.environ.get("THEANO_FLAGS", "")}
