"""Large arrays between hosts, which are processes of this machine, over each installed MPI.

Modules: `synkhronos.cluster.bulk_transfers`.
"""

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

TIMEOUT_S = 120


@pytest.mark.long(but="mpich-2-2|openmpi-2-1")
@pytest.mark.parametrize("hosts, ranks", [(2, 1), (2, 2), (3, 1)])
def test_bulk(mpi, variables, hosts, ranks):
    variables["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), variables["PYTHONPATH"]])
    status, printed = mpi.run(
        ["-c", f"import bulk; bulk.main({hosts}, {ranks})"], n=hosts, variables=variables, timeout=TIMEOUT_S
    )
    assert status == 0 and "fine" in printed.splitlines(), printed


#: Hosts end one after another after MPI's shutdown.
ONE_BY_ONE = """
import time
import mpi4py

mpi4py.rc.initialize = False
from mpi4py import MPI

finalize = MPI.Finalize


def slowly():
    process = MPI.COMM_WORLD.Get_rank()
    finalize()
    time.sleep(0.4 * process)


MPI.Finalize = slowly
import numpy as np

import synkhronos as synk
from synkhronos.testing import numpy_engine as engine

assert synk.fork(1) == 3
variable = engine.shared(np.ones(100_000))
synk.function([], [], updates=[(variable, variable + variable)])()
synk.all_reduce(variable, op="sum")
assert synk.get_value(2, variable)[0] == 6.0
print("fine", flush=True)
"""


def test_hosts_may_end_one_after_the_other(mpi, variables):
    """Hosts that end one after another do not count as dead."""
    status, printed = mpi.run(["-c", ONE_BY_ONE], n=3, variables=variables, timeout=TIMEOUT_S)
    assert status == 0 and printed.split() == ["fine"], printed


#: A callback in the MPI thread of one host raises an exception while values are reduced.
FAILING = """
import os
import sys

import numpy as np

import synkhronos as synk
from synkhronos.cluster.environment import place
from synkhronos.cluster.requests import Requests
from synkhronos.testing import numpy_engine as engine


def fail(self, *what):
    raise ZeroDivisionError("planted")


if place(os.environ).process == int(sys.argv[1]):
    Requests._on_reduced = fail
assert synk.fork(1) == 2
variable = engine.shared(np.ones(100_000))
synk.function([], [], updates=[(variable, variable + variable)])()
try:
    synk.all_reduce(variable, op="sum")
except synk.WorkerDied as error:
    print("fine" if "ZeroDivisionError: planted" in str(error.__cause__) else repr(error.__cause__), error, flush=True)
"""


@pytest.mark.parametrize("host", [0, 1])
def test_an_exception_in_the_mpi_thread_reaches_the_program(mpi, variables, host):
    """Earlier, it was only logged, and ranks waited forever."""
    _, printed = mpi.run(["-c", FAILING, str(host)], n=2, variables=variables, timeout=TIMEOUT_S)
    assert "fine" in printed and "rank 1" in printed, printed
