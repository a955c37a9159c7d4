"""Programs that initialize MPI themselves get an error: only the library can use MPI on several hosts."""

import pytest

BEFORE = """
import synkhronos as synk
from mpi4py import MPI
MPI.Init()
synk.fork(1)
"""

AFTER = """
import synkhronos as synk
synk.fork(1)
import mpi4py.MPI
for init in (mpi4py.MPI.Init, mpi4py.MPI.Init_thread):
    try:
        init()
    except synk.StateError as error:
        print("refused:", error)
print("ranks:", [host.ranks for host in synk.hosts()])
synk.close()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_program_cannot_initialize_mpi(mpi, tmp_path, variables, when):
    path = tmp_path / "program.py"
    path.write_text(BEFORE if when == "before" else AFTER)
    status, printed = mpi.run([path], n=2, variables={**variables, "SYNK_HOSTS_ON_ONE_MACHINE": "1"})
    if when == "before":
        assert status != 0 and "StateError" in printed and "remove MPI.Init()" in printed, printed
    else:
        assert status == 0, printed
        assert printed.count("refused: this program runs on several hosts") == 2, printed
        assert "ranks: [(0,), (1,)]" in printed, printed
