"""Devices for the tests of this folder: any GPU, else OpenCL on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Device shared by several ranks. On a machine with GPUs, SYNK_TEST_DEVICE=cuda0 selects a GPU.
DEVICE = os.environ.get("SYNK_TEST_DEVICE", "opencl0:0")


def why_not():
    """Return why there is no device, as one line, or "" if there is one."""
    for _ in range(3):  # once, it failed while another process opened its first device
        done = run("-c", f"import pygpu; pygpu.init({DEVICE!r})")
        if not done.returncode:
            return ""
    return f"no device {DEVICE} ({done.stdout.strip().splitlines()[-1]}): run tools/install_opencl.sh"


def run(*command, **environment):
    """Run a program in a separate process, since a process cannot release a device that it has opened."""
    environment = {**os.environ, "SYNK_TEST_DEVICE": DEVICE, **environment}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environment.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, *command],
        cwd=str(ROOT),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
        env=environment,
    )
