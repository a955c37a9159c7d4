"""With little memory, few processes or no rights, programs work or raise an error, and leave no processes."""

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

NOBODY = 65534


def can_mount():
    """Return whether a private /dev/shm can be mounted, in a namespace that ends with the program."""
    return (
        shutil.which("unshare")
        and subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm"], stderr=subprocess.DEVNULL
        ).returncode
        == 0
    )


#: Program that uses shared memory until none is left, and then continues as before.
FILL = """
import os, sys
if %r:
    del os.memfd_create  # without memfd_create, memory is in /dev/shm
%s
from synkhronos.memory.memfd import nameless_file
synk.fork(3)
works()
kept, error = [], None
try:
    for i in range(1, 200):
        kept.append(synk.data(np.full(i << 16, 7.0)))
        works()
        if sum(map(len, kept)) * 8 > 150 << 20:
            break
except synk.SharedMemoryError as refused:
    error = str(refused)
assert all((data.data == 7).all() for data in kept)
say(len(kept), error)
del kept[:]
works()
synk.close()
big = np.ones(1 << 21)  # 16 MB, passed as a plain argument
x = engine.variable("x", "float64", 1)
f = synk.function([x], (x, "gather"))
synk.fork(2)
try:
    say(float(f(big).sum()) == 1 << 21)
except (synk.SharedMemoryError, synk.WorkerError) as refused:
    say(type(refused).__name__, "SharedMemoryError" in repr(refused) or "shared memory" in str(refused))
works()
synk.close()
PROGRAM.shut_down()
say(os.listdir("/dev/shm"))
"""


@pytest.mark.thorough("True")
@pytest.mark.skipif(not can_mount(), reason="a mount namespace of its own needs rights that this process does not have")
@pytest.mark.parametrize("megabytes, fallback", [(1, True), (16, True), (64, True), (1, False)])
def test_small_dev_shm(megabytes, fallback, script, prelude):
    code = FILL % (fallback, prelude)
    program = script(
        launch=[
            "unshare",
            "-m",
            "sh",
            "-c",
            f'mount -t tmpfs -o size={megabytes}m tmpfs /dev/shm && exec "$@"',
            "sh",
            sys.executable,
            "-c",
            code,
        ]
    )
    status, out, err = program.finish(60)
    assert (status, err) == (0, ""), (status, out, err)
    filled, argument, names = out.splitlines()
    count, _, error = filled.partition(" ")
    if fallback:
        assert "free" in error and "needed" in error, filled
        assert int(count) < 200
    else:
        assert error == "None"
        assert argument == "True"
    assert argument in ("True", "SharedMemoryError True", "WorkerError True")
    assert (argument == "True") == (not fallback or megabytes > 48)  # the argument, and each rank's output
    assert names == "[]"
    assert not program.wait_others()


def as_nobody():
    """Return the command line that runs this Python as a user without rights, or None if this is impossible."""
    if os.getuid() != 0 or not shutil.which("setpriv"):
        return None
    command = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", sys.executable]
    return command if subprocess.run([*command, "-c", ""], stderr=subprocess.DEVNULL).returncode == 0 else None


@pytest.mark.skipif(
    as_nobody() is None,
    reason="the limit does not hold for root, and only root becomes somebody else, who may not run every Python",
)
def test_few_processes_for_a_user(script, prelude):
    code = (
        prelude
        + """
import resource
mine = sum(1 for name in os.listdir("/proc") if name.isdigit() and os.stat("/proc/" + name).st_uid == os.getuid()
           for _ in os.listdir("/proc/%s/task" % name))
for more in (0, 1, 2, 3, 30):
    resource.setrlimit(resource.RLIMIT_NPROC, (mine + more, resource.getrlimit(resource.RLIMIT_NPROC)[1]))
    PROGRAM.shut_down()
    try:
        synk.fork(3)
        works()
        say("works")
    except synk.SynkhronosError as error:
        say(type(error).__name__, error)
    synk.close()
say(more)
"""
    )
    program = script(
        launch=[*as_nobody(), "-c", code],
        env=dict(os.environ, OPENBLAS_NUM_THREADS="1"),
    )
    status, out, err = program.finish()
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("SynkhronosError no process can be started for the keeper: ") and "ulimit -u" in lines[0]
    assert lines[1].startswith("SynkhronosError rank 1 of 3 could not be started: ") and "ulimit -u" in lines[1]
    assert lines[2].startswith("SynkhronosError rank 2 of 3 could not be started: ") and "ulimit -u" in lines[2]
    assert lines[3].startswith("SynkhronosError functions cannot be sent or loaded: ") and "ulimit -u" in lines[3]
    assert lines[4:] == ["works", "30"]
    assert not program.wait_others()


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes somebody else")
def test_a_program_that_gives_its_rights_away(script):
    """Sessions work even if the kernel hides /proc/self/fd from the processes."""
    program = script(
        """
        os.setgid(%d)
        os.setuid(%d)
        synk.fork(3)
        works()
        os.kill(PROGRAM.session.launcher.pid(1), 9)
        try:
            while True:
                synk.all_reduce(w)
        except synk.WorkerDied as error:
            say(error.rank)
        synk.fork(2)
        works()"""
        % (NOBODY, NOBODY)
    )
    assert program.finish() == (0, "1\n", "")
    assert not program.wait_others()
