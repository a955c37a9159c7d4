"""The end of an MPI launcher that waits for lost hosts.

Modules: `synkhronos.cluster.world`.
"""

import shutil
import signal
import subprocess
import sys

#: Ends a launcher, in a process that Open MPI's thread would end as soon as it waits; a child has no such thread.
PROGRAM = """
import os, sys, time
from synkhronos.cluster.environment import ProcessPlace
from synkhronos.cluster.world import World

bridge, sleep = os.getpid(), time.sleep
time.sleep = lambda seconds: os._exit(195) if os.getpid() == bridge else sleep(seconds)
World(ProcessPlace(0, 2, 1, "Open MPI")).end_launcher(int(sys.argv[1]))
"""


def test_the_launcher_is_ended_even_if_open_mpi_ends_the_bridge(tmp_path):
    launcher = subprocess.Popen([shutil.copy(shutil.which("sleep"), tmp_path / "prterun"), "60"])
    try:
        subprocess.run([sys.executable, "-c", PROGRAM, str(launcher.pid)], check=True)
        assert launcher.wait(20) == -signal.SIGKILL
    finally:
        launcher.kill()
        launcher.wait()
