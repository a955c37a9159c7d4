"""The heap keeps freed memory, on the master and on the other ranks."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])

pytestmark = [
    pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc's heap"),
    pytest.mark.slow,
]

#: Minimum number of page faults if the kernel maps new blocks: 20 blocks of 3 MB, in pages of at most 64 KB.
MANY = 900

#: Program that repeatedly frees and allocates blocks, as functions do; by default, glibc returns them to the kernel.
FAULTS = """
def faults():
    import resource
    import numpy as np
    taken = []
    for _ in range(12):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for array in [np.empty(3 << 20, np.uint8) for _ in range(20)]:
            array[::4096] = 1
        del array
        taken.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return sorted(taken)[6]
"""


def run(text):
    program = f"import sys; sys.path.insert(0, {ROOT!r})\n" + FAULTS + text
    return subprocess.run(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=60,
        universal_newlines=True,
        check=True,
    ).stdout


def test_freed_memory_stays_with_the_process():
    without, with_it = map(
        int,
        run("""
from synkhronos.host import heap
print(faults())
assert heap.keep_freed_memory() is True
print(faults())
""").split(),
    )
    assert without > MANY  # otherwise, this test would show nothing
    assert with_it < 100


def test_freed_memory_can_be_returned_once():
    kept, returned = map(
        int,
        run("""
from synkhronos.host import heap
import numpy as np
heap.keep_freed_memory()
def resident():
    return int(open("/proc/self/statm").read().split()[1])
before = resident()
blocks = [np.ones(1 << 17) for _ in range(100)]  # 100 MB
last = np.ones(1 << 10)  # above them in the heap
del blocks
print(resident() - before)
heap.return_freed_memory()
print(resident() - before)
""").split(),
    )
    assert kept > 20000 and returned < 2000  # pages of 4 KiB


def faults_of_ranks(*forks):
    """Return the page faults of the master and of the other rank in the last of several sessions."""
    return eval(
        run(f"""
import numpy as np
import synkhronos as synk
from synkhronos.testing import numpy_engine as engine
for keywords in {forks!r}:
    synk.close()
    synk.fork(2, use_gpu=False, **keywords)
x = engine.variable("x", "float64", 1)
count = lambda x: np.full(len(x), faults(), "float64")
print(synk.function([x], (engine.apply(count, x), "gather"))(np.zeros(2)).tolist())
""")
    )


def test_on_every_rank():
    master, other = faults_of_ranks({})
    assert master < 100 and other < 100


@pytest.mark.thorough
def test_can_be_left_alone_on_every_rank():
    master, other = faults_of_ranks({"keep_heap": False})
    assert master > MANY and other > MANY


@pytest.mark.thorough
def test_the_ranks_of_a_later_session_decide_for_themselves():
    """In a later session, the master's heap remains as an earlier session configured it."""
    master, other = faults_of_ranks({"keep_heap": True}, {"keep_heap": False})
    assert master < 100 and other > MANY
    master, other = faults_of_ranks({"keep_heap": False}, {"keep_heap": True})
    assert master < 100 and other < 100
