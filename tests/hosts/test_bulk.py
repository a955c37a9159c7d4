"""Large arrays between hosts, by each MPI that is here: two processes on this machine."""

import os
from pathlib import Path

import pytest

TIMEOUT_S = 120


@pytest.mark.parametrize("ranks", [1, 2])
def test_bulk(mpi, variables, ranks):
    variables["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), variables["PYTHONPATH"]])
    status, printed = mpi.run(["-c", f"import bulk; bulk.main({ranks})"], variables=variables, timeout=TIMEOUT_S)
    assert status == 0 and "fine" in printed.splitlines(), printed
