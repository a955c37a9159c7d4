"""Processes that the user forks while a session is open do not disturb it."""

import os
import subprocess
import sys

import numpy as np
import pytest
from refusals import reports

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.testing import numpy_engine as engine

pytestmark = pytest.mark.slow


@pytest.fixture
def works():
    """Open a session; return a function that checks it."""
    x = engine.variable("x", "float64", 1)
    function = synk.function([x], (x, "gather"))
    synk.fork(3)

    def check():
        assert np.array_equal(function(np.arange(7.0)), np.arange(7.0))
        return PROGRAM.session

    check()
    yield check
    synk.close()


def in_child(work):
    """Fork; in the child, do the work, clean up and exit; return the child's status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            PROGRAM.shut_down()  # as atexit would do
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1]


def test_child_that_does_its_own(works):
    assert in_child(lambda: np.dot(np.ones((300, 300)), np.ones((300, 300)))) == 0
    works()


def test_child_has_no_session(works):
    def work():
        assert not synk.is_forked()
        synk.close()
        with reports(synk.StateError, "synkhronos.fork()"):
            synk.size()

    assert in_child(work) == 0
    works()


def test_child_with_a_session_of_its_own(works):
    def work():
        x = engine.variable("x", "float64", 1)
        function = synk.function([x], (engine.mean(x), "avg"))
        assert synk.fork(2) == 2
        assert function(np.arange(5.0)) == 2.0
        synk.close()

    assert in_child(work) == 0
    works()


def test_child_with_a_session_over_the_parents_data(works):
    """Handles of the child's pool and of the parent's are not confused."""
    x = engine.variable("x", "float64", 1)
    function = synk.function([x], (x, "gather"))
    data = synk.data(np.arange(8.0))
    assert np.array_equal(function(data), np.arange(8.0))

    def grandchild():
        own = synk.data(np.arange(5.0))
        synk.fork(2)
        assert np.array_equal(function(data), np.arange(8.0))
        assert np.array_equal(function(own), np.arange(5.0))
        assert np.array_equal(function(np.arange(3.0)), np.arange(3.0))
        with reports(synk.StateError, "pool", "process"):
            data.set_length(100)
        synk.close()

    def child():
        grandchild()
        assert in_child(grandchild) == 0

    assert in_child(child) == 0
    works()
    assert np.array_equal(function(data), np.arange(8.0))


def test_child_that_forgets_to_close(works):
    def work():
        synk.fork(2)
        os._exit(0)

    assert in_child(work) == 0
    works()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method, script):
    program = script(f"""
        import multiprocessing
        synk.fork(3)
        works()
        with multiprocessing.get_context("{method}").Pool(2) as pool:
            assert pool.map(abs, range(-5, 0)) == [5, 4, 3, 2, 1]
            works()
        works()
        say("works")""")
    assert program.finish() == (0, "works\n", "")
    assert not program.wait_others()


def test_subprocess(works):
    assert subprocess.run([sys.executable, "-c", "print(5)"], capture_output=True).stdout == b"5\n"
    session = works()
    process = subprocess.Popen(["sleep", "30"], close_fds=False)
    synk.close()  # works while the process runs, because it has no descriptors of the session
    assert session.closed
    process.kill()
    process.wait()


def test_user_waits_for_all_children(works):
    """A program may wait for any child process, and never reaps ranks."""
    process = subprocess.Popen(["true"])
    assert os.waitpid(-1, 0)[0] == process.pid
    process.returncode = 0
    works()
    assert os.waitpid(-1, os.WNOHANG) == (0, 0)


def test_keeper_that_somebody_else_reaps(works, fresh_keeper):
    synk.fork(2)
    keeper = PROGRAM.keeper_pid
    os.kill(keeper, 9)
    os.waitpid(-1, 0)
    with reports(synk.SynkhronosError, "keeper", keeper):
        works()
    assert not synk.is_forked()
    synk.fork(2)
    works()


def test_session_of_a_thread_that_ends(script):
    """Ranks survive the end of the thread that called fork(), even if it was the first to do so."""
    program = script("""
        for _ in range(2):
            thread = threading.Thread(target=synk.fork, args=(3,))
            thread.start()
            thread.join()
            while os.path.exists(f"/proc/self/task/{thread.native_id}"):
                time.sleep(0.001)
            works()
            closing = threading.Thread(target=synk.close)
            closing.start()
            closing.join()
        say("works")""")
    assert program.finish() == (0, "works\n", "")
    assert not program.wait_others()
