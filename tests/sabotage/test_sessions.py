"""Many consecutive sessions, several programs at a time, and limited resources."""

import gc
import os
import threading

import numpy as np
import psutil
import pytest
from gates import until
from refusals import reports

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import CheckStart
from synkhronos.testing import numpy_engine as engine

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_300_sessions():
    x = engine.variable("x", "float64", 1)
    w = engine.shared(np.zeros(100), "w")
    f = synk.function([x], (engine.mean(x), "avg"), updates=[(w, w + 1)])
    data = synk.data(np.arange(100.0))

    def session(i):
        PROGRAM.open(2, i % 2, pin=False)
        assert f(data) == 49.5
        synk.all_reduce(w, op="max")
        synk.close()

    def measure():
        gc.collect()
        process = psutil.Process()
        return (
            process.num_fds(),
            threading.active_count(),
            len(process.children(recursive=True)),
            process.memory_info().rss,
            len(process.memory_maps(grouped=False)),
            psutil.Process(PROGRAM.keeper_pid).num_fds(),
            PROGRAM.pool.used,
        )

    for i in range(20):
        session(i)
    before, keeper = measure(), PROGRAM.keeper_pid
    most = 0
    for i in range(280):
        session(i)
        most = max(most, len(os.listdir("/proc/self/fd")))
    until(lambda: psutil.Process(keeper).num_fds() <= before[5])  # its last answer's file may be open for a moment
    after = measure()
    assert PROGRAM.keeper_pid == keeper
    assert after[:3] == before[:3] and after[5] <= before[5] and after[6] == before[6]
    assert after[3] < before[3] + (8 << 20) and after[4] <= before[4] + 4
    assert most < before[0] + 20  # even without garbage collection
    assert np.array_equal(w.get_value(), np.full(100, 300.0))


@pytest.mark.thorough
def test_sessions_that_end_badly():
    """The number of open files does not grow if ranks die."""
    x = engine.variable("x", "float64", 1)
    f = synk.function([x], (engine.mean(x), "avg"))
    counts = []
    for _ in range(30):
        PROGRAM.open(3, 0, pin=False)
        os.kill(PROGRAM.session.launcher.pid(1), 9)
        with pytest.raises(synk.WorkerDied):
            while True:
                f(np.arange(5.0))
        counts.append(len(os.listdir("/proc/self/fd")))
    assert max(counts[10:]) <= max(counts[:10])


def test_calls_from_several_threads():
    """The calls take turns."""
    x = engine.variable("x", "float64", 1)
    f = synk.function([x], (engine.mean(x), "avg"))
    synk.fork(2)
    f(np.arange(3.0))
    wrong = []

    def work(k):
        for _ in range(40):
            if f(np.arange(k)) != (k - 1) / 2:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in (3.0, 10.0, 101.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Inside(CheckStart):
    """A command that runs another."""

    def run(self, context):
        if context.rank == context.root:
            PROGRAM.session.run(CheckStart())


def test_a_call_inside_a_call_is_refused():
    session = PROGRAM.open(2, 0, launcher="threads")
    with reports(synk.StateError, "thread"):
        session.run(Inside())
    assert session.run(CheckStart()) == [None, None]


def test_fork_inside_a_rank_is_refused(script):
    program = script("""
        def nested(x):
            import synkhronos, os
            if os.getpid() != MASTER:
                synkhronos.fork(2)
            return x
        f = build(nested)
        synk.fork(2)
        try:
            f(np.arange(4.0))
        except synk.WorkerError as error:
            say(error)
        works()""")
    status, out, err = program.finish()
    assert (status, err) == (0, "")
    assert out.startswith("rank 1 raised StateError: synkhronos.fork() was called inside a rank")


def test_two_programs_at_a_time(script):
    """Both programs work, and use different cores."""
    code = """
        for i in range(5):
            synk.fork(2)
            say(sorted(PROGRAM.session.affinity.cores))
            assert sys.stdin.readline()
            works()
            synk.close()
        say("works")"""
    programs = [script(code), script(code)]
    for _ in range(5):
        cores = [program.read() for program in programs]
        assert cores.count("[]") >= 1 or cores[0] != cores[1]
        for program in programs:
            program.process.stdin.write("go\n")
            program.process.stdin.flush()
    for program in programs:
        assert program.finish() == (0, "works\n", "")


LIMITED = """
import resource
def limited(what, value):
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (value, hard))
"""


def test_few_open_files(script):
    program = script(
        LIMITED
        + """
limited(resource.RLIMIT_NOFILE, 64)
synk.fork(8)
works()
synk.close()
try:
    synk.fork(60)
except synk.SynkhronosError as error:
    say(type(error).__name__, error)
synk.fork(3)
works()
say("works")"""
    )
    status, out, err = program.finish()
    assert (status, err) == (0, "")
    first, last = out.splitlines()
    assert "ulimit -n" in first and first.startswith("SynkhronosError") and last == "works"


def test_few_processes(script):
    """A wrapper of os.fork refuses, because root has no limit on processes."""
    program = script("""
        fork, left = os.fork, mmap.mmap(-1, 1)
        def limited():
            if not left[0]:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            left[0] -= 1
            return fork()
        os.fork = limited
        for allowed in range(5):
            left[0] = allowed
            PROGRAM.shut_down()
            try:
                synk.fork(4)
                works()
                say("works")
            except synk.SynkhronosError as error:
                say(type(error).__name__, error)
            synk.close()
        os.fork = fork
        PROGRAM.shut_down()
        synk.fork(2)
        works()""")
    status, out, err = program.finish()
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("SynkhronosError no process can be started for the keeper: ") and "ulimit -u" in lines[0]
    for i in range(1, 4):
        assert lines[i].startswith(f"SynkhronosError rank {i} of 4 could not be started: "), lines
        assert "ulimit -u" in lines[i]
    assert lines[4:] == ["works"]


@pytest.mark.thorough(but="^(0|400)$")
@pytest.mark.parametrize("free", [0, 20, 100, 400, 2000])
def test_little_address_space(free, script):
    """Sessions work, or raise an error and end cleanly."""
    program = script(
        LIMITED
        + """
size = int(open("/proc/self/statm").read().split()[0]) * 4096
limited(resource.RLIMIT_AS, size + (%d << 20))
try:
    synk.fork(3)
    works()
    synk.close()
    say("works")
except (synk.SynkhronosError, MemoryError, OSError) as error:
    say(type(error).__name__, str(error).replace("\\n", " "))
limited(resource.RLIMIT_AS, resource.RLIM_INFINITY)
synk.close()
PROGRAM.shut_down()
synk.fork(3)
works()
say("works")"""
        % free
    )
    status, out, err = program.finish()
    assert (status, err) == (0, ""), (status, out, err)
    first, last = out.splitlines()
    assert last == "works"
    assert (
        first == "works"
        if free >= 2000
        else first == "works"
        or first.startswith(
            ("SynkhronosError", "SharedMemoryError", "WorkerDied", "WorkerError", "MemoryError", "OSError")
        )
    ), first


def test_start_that_fails_is_told_by_fork(tmp_path, monkeypatch):
    """fork() raises the error of a rank that cannot start, with its traceback."""
    directory = tmp_path / "gone"
    directory.mkdir()
    monkeypatch.chdir(directory)
    getcwd = os.getcwd()
    directory.rmdir()
    monkeypatch.setattr(os, "getcwd", lambda: getcwd)
    with reports(synk.WorkerDied, exitcode=70, command="start") as caught:
        synk.fork(3)
    assert "FileNotFoundError" in str(caught.value.__cause__) and "chdir" in str(caught.value.__cause__)
    assert not synk.is_forked()
    monkeypatch.undo()
    os.chdir(str(tmp_path))
    assert synk.fork(3) == 3
