"""Ranks of pretend hosts die during reductions by MPI; they are replaced, and all values stay correct."""

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

PROGRAM = Path(__file__).with_name("healed.py")


def test_ranks_that_die_during_reductions_by_mpi(mpi, make_hosts, variables, tmp_path):
    variables["PYTHONPATH"] += os.pathsep + str(PROGRAM.parent)
    hosts = make_hosts(2, shared=[tmp_path, mpi.prefix])
    status, printed = mpi.run(["-m", "synkhronos", PROGRAM, tmp_path], hosts=hosts, variables=variables, timeout=110)
    assert status == 0 and printed.rstrip().endswith("done"), printed
    assert all(hosts.left(i) == [] for i in range(2))
