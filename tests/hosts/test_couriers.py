"""Couriers over each installed MPI."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough


@pytest.mark.long("3")
@pytest.mark.parametrize("hosts", [2, 3])
def test_couriers(mpi, variables, hosts):
    program = Path(__file__).parent / "couriers.py"
    status, printed = mpi.run([program], n=hosts, variables=variables, timeout=100)
    assert status == 0 and "fine, " in printed, printed
