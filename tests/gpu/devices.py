"""Where the tests of this folder find devices: any GPU, else OpenCL on the CPU."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: The device that several ranks share; on a machine with GPUs, SYNK_TEST_DEVICE=cuda0 takes one of these.
DEVICE = os.environ.get("SYNK_TEST_DEVICE", "opencl0:0")


@functools.lru_cache(maxsize=None)
def why_not():
    """Return why there is no device, as one line; "" where there is one."""
    done = subprocess.run(
        [sys.executable, "-c", f"import pygpu; pygpu.init({DEVICE!r})"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    if not done.returncode:
        return ""
    return f"no device {DEVICE} ({done.stdout.strip().splitlines()[-1]}): run tools/install_opencl.sh"


def skip_without_device():
    """Skip all tests of a module, in one line."""
    if why_not():
        pytest.skip(why_not(), allow_module_level=True)


def run(*command, **environment):
    """Run a program in a process of its own: one that has opened a device cannot do without it any more."""
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
