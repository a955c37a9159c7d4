"""Large arrays between hosts, by each MPI that is here: processes of this machine."""

import os
from pathlib import Path

import pytest

TIMEOUT_S = 120


@pytest.mark.parametrize("hosts, ranks", [(2, 1), (2, 2), (3, 1)])
def test_bulk(mpi, variables, hosts, ranks):
    variables["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), variables["PYTHONPATH"]])
    status, printed = mpi.run(
        ["-c", f"import bulk; bulk.main({hosts}, {ranks})"], n=hosts, variables=variables, timeout=TIMEOUT_S
    )
    assert status == 0 and "fine" in printed.splitlines(), printed
