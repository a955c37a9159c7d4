"""A container's memory limit: errors before it is reached, and the kernel's OOM killer if a rank exceeds it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

LIMIT = 400 << 20


def own_memory_group():
    """Return the folder of this process's memory cgroup and the name of its limit, or None if there is none."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
        unified = Path("/sys/fs/cgroup" + path)
        if not controllers and "memory" in _read(unified / "cgroup.subtree_control").split():
            return unified, "memory.max"
    return None


def _read(path):
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.fixture
def group():
    """Make a memory cgroup with a limit, as a child of this process's; only programs that enter it are its members."""
    found = own_memory_group()
    if found is None:
        pytest.skip("needs a memory cgroup whose children may have limits")
    own, limit = found
    folder = own / (f"synk-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / limit).write_text(str(LIMIT))
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"needs the right to make a memory cgroup: {error}")
    try:
        yield folder
    finally:
        folder.rmdir()  # fails if a process remains in it


def run_in(group, program):
    enter = "open({!r}, 'w').write('0')\n".format(str(group / "cgroup.procs"))
    return subprocess.run(
        [sys.executable, "-c", enter + textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=100,
    )


def test_data_beyond_the_limit_is_a_sentence(group):
    done = run_in(
        group,
        """
        import numpy as np
        import synkhronos as synk
        synk.fork(2, use_gpu=False)
        small = synk.data(np.ones(10 << 20, "uint8"))
        try:
            synk.data(shape=(1 << 30,), dtype="uint8")
        except synk.SharedMemoryError as error:
            print(error)
        print(int(small[-1]), synk.size())
    """,
    )
    assert done.returncode == 0, done.stderr
    message, after = done.stdout.splitlines()
    assert "1,073,741,824" in message or "1.0 GiB" in message or "1024" in message, message
    assert after == "1 2"


def test_a_rank_that_the_kernel_kills_for_memory(group):
    """A rank keeps 50 MB in every call until the kernel kills it; the error reports it, and the next session works."""
    done = run_in(
        group,
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import numpy as np
        import synkhronos as synk
        from synkhronos.testing import numpy_engine as engine
        import hunger
        synk.fork(2, use_gpu=False)
        hungry = engine.shared(np.zeros(()), "hungry")
        f = synk.function([], engine.apply(hunger.eat, hungry, dtype="float64", ndim=0))
        f()
        synk.set_value(1, hungry, 1.0)
        try:
            for _ in range(100):
                f()
        except synk.WorkerDied as error:
            print(error.rank, error.exitcode, error)
        synk.fork(2, use_gpu=False)
        print(synk.size(), float(f()))
    """,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("1 -9 ") and "out of memory" in lines[0]
    assert lines[-1] == "2 0.0"
