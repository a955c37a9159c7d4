"""Descriptions of the states and ends of processes."""

import os
import signal
import subprocess

import pytest
from gates import until

from synkhronos.runtime.exit_status import LOST, ORPHANED, describe_end, describe_state


@pytest.mark.parametrize(
    "status, text",
    [
        (0, "ended with exit code 0"),
        (70, "ended with exit code 70"),
        (-11, "was killed by SIGSEGV"),
        (-15, "was killed by SIGTERM"),
        (-9, "was killed by SIGKILL (out of memory, unless a user sent the signal)"),
        (-99, "was killed by signal 99"),
        (LOST, "was lost with its host"),
        (ORPHANED, "was killed because the keeper of its host has ended"),
    ],
)
def test_end(status, text):
    assert describe_end(status) == text


def test_end_for_lack_of_memory():
    assert describe_end(-9, (3 << 30) + 1) == (
        "was killed by SIGKILL (out of memory, unless a user sent the signal; peak memory of the rank: 3073 MB)"
    )
    assert describe_end(-15, 1 << 30) == "was killed by SIGTERM"


def test_state():
    process = subprocess.Popen(["sleep", "60"])
    try:
        until(lambda: describe_state(process.pid).startswith("S (sleeping), "))
        assert describe_state(process.pid).endswith("kB resident")
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: describe_state(process.pid).startswith("T (stopped)"))
    finally:
        process.kill()
        process.wait()
    assert describe_state(process.pid) == "gone"
