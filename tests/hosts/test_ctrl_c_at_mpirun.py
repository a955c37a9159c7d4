"""Ctrl-C at ``mpirun``: MPICH sends it to the processes of all hosts, and only the program is interrupted."""

import signal
import subprocess
import time

import mpi as mpi_module
import pytest

pytestmark = pytest.mark.thorough

PROGRAM = """
import time
import numpy as np
import synkhronos as synk
from synkhronos.testing import numpy_engine as engine

synk.fork(1)
w = engine.shared(np.zeros(3), "w")
f = synk.function([], [], updates=[(w, w + 1)])
until, n = time.monotonic() + 60, 0
f()
try:
    print("ready", flush=True)
    while time.monotonic() < until:
        f()
except KeyboardInterrupt:
    print("interrupted", flush=True)
synk.broadcast(w, np.arange(3.0))
f()
print(synk.gather(w).tolist(), [host.name for host in synk.hosts()], flush=True)
"""


@pytest.mark.parametrize("wait", [0.0, 0.05, 0.3])
def test_ctrl_c_is_for_the_program_alone(make_hosts, tmp_path, variables, wait):
    why_not = mpi_module.lacking("mpich")
    if why_not:
        pytest.skip(why_not)
    mpi = mpi_module.find("mpich")
    hosts = make_hosts(2, shared=[tmp_path, mpi.prefix])
    (tmp_path / "program.py").write_text(PROGRAM)
    process = mpi.start(
        ["-m", "synkhronos", tmp_path / "program.py"],
        hosts=hosts,
        variables=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout.readline() == b"ready\n"
    time.sleep(wait)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=60)
    said = [line for line in printed.decode().splitlines() if not line.startswith("[mpiexec")]
    assert said == ["interrupted", f"{[[1.0, 2.0, 3.0]] * 2} ['h0', 'h1']"]
    assert process.returncode == 0
    assert hosts.left(0) == hosts.left(1) == []
