"""MPI that does not start on one of the hosts: the job ends, with an error, instead of waiting forever.

Modules: `synkhronos.cluster.world`.
"""

import os

import mpi as mpi_module
import pytest

pytestmark = pytest.mark.thorough

#: Executed at the start of every Python process. The second process waits in C, and holds the interpreter's lock.
HANGS = """
import ctypes, os
if "1" in (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("PMI_RANK")):
    import mpi4py
    mpi4py.rc.initialize = False
    from mpi4py import MPI
    MPI.Init_thread = lambda level: ctypes.PyDLL(None).sleep(1000)
"""

LIMITED = """
import synkhronos.cluster.world
synkhronos.cluster.world.START_TIMEOUT_S = {}
"""

PROGRAM = """
import sys, time
import synkhronos as synk
synk.size
time.sleep(float(sys.argv[1]))
print("ranks:", synk.fork(1))
"""


@pytest.fixture
def run(mpi, tmp_path, variables):
    """Yield a function that runs the program on two hosts, after code in every process; ``seconds`` limit the start."""

    def run(code, seconds, waited):
        (tmp_path / "program.py").write_text(PROGRAM)
        (tmp_path / "sitecustomize.py").write_text(code + LIMITED.format(seconds))
        above = os.pathsep.join([str(tmp_path), variables["PYTHONPATH"]])
        program = ["-m", "synkhronos", tmp_path / "program.py", waited]
        return mpi.run(program, n=2, variables={**variables, "PYTHONPATH": above})

    yield run
    mpi_module.remove_what_stays()  # MPICH's processes were killed


@pytest.mark.parametrize("waited", [0, 8], ids=["in fork", "before fork"])
def test_a_host_whose_mpi_does_not_start(run, waited):
    status, printed = run(HANGS, 6, waited)
    assert status != 0 and "MPI did not start within 6 s on all hosts" in printed, printed


def test_a_program_that_forks_later(run):
    """MPI starts with the program, so the other hosts do not wait for the first `fork`."""
    status, printed = run("", 15, 17)
    assert status == 0 and "ranks: 2" in printed, printed
