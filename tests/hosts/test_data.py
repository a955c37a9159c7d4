"""Data on pretend hosts over each MPI, compared with NumPy; and bad input that only MPI or the network reveals."""

import pytest

pytestmark = pytest.mark.thorough

PROGRAM = """
import sys
import numpy as np
import synkhronos as synk
from synkhronos.testing import numpy_engine as engine

times, constant = int(sys.argv[1]), sys.argv[2] == "constant"
rows = np.random.RandomState(0).randint(0, 100, (20_000, 50)).astype("float64")  # 8 MB
synk.fork(2)
x = engine.variable("x", "float64", 2)
f = synk.function([x], (engine.sum(x, axis=0), "sum"))
data = synk.data(rows, constant=constant)
random = np.random.RandomState(1)
for _ in range(times):
    for batch in (None, slice(10, 15_000, 3), random.randint(0, 20_000, 1000)):
        np.testing.assert_array_equal(f(data, batch=batch), rows[slice(None) if batch is None else batch].sum(axis=0))
synk.close()
print("right")
"""
NBYTES = 8_000_000


@pytest.mark.parametrize("way", ["constant", "written"])
def test_what_travels_of_data(mpi, make_hosts, variables, tmp_path, way):
    (tmp_path / "program.py").write_text(PROGRAM)
    hosts = make_hosts(2, shared=[tmp_path, mpi.prefix])
    sent = []
    for times in (1, 4):
        before = hosts.bytes(0).sent
        program = ["-m", "synkhronos", tmp_path / "program.py", times, way]
        status, printed = mpi.run(program, hosts=hosts, variables=variables)
        assert status == 0 and "right" in printed.splitlines(), printed
        sent.append(hosts.bytes(0).sent - before)
    once, more = sent[0], sent[1] - sent[0]
    assert once > NBYTES if way == "constant" else once > NBYTES / 2
    # (The amount of headers and of resent packets varies between runs.)
    assert more < NBYTES / 8 if way == "constant" else more > 3 * NBYTES / 2


def test_several_processes_on_a_host(mpi, variables, tmp_path):
    (tmp_path / "program.py").write_text("import synkhronos as synk\nsynk.fork(1)\nprint('has begun')\n")
    variables["SYNK_HOSTS_ON_ONE_MACHINE"] = "0"
    status, printed = mpi.run(["-m", "synkhronos", tmp_path / "program.py"], n=2, variables=variables)
    option = {"openmpi": "--map-by ppr:1:node", "mpich": "-ppn 1"}[mpi.kind]
    assert status != 0 and "has begun" not in printed, printed
    assert f"one, which forks the ranks there: start one process per host with {option}" in printed, printed
    assert "more than once" not in printed, printed  # MPI is initialized only once
