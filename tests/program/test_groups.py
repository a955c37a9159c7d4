"""Groups of ranks that work at once.

Modules: `groups`, `group`.
"""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import gates
import numpy as np
import pytest
from refusals import refuses, reports

import synkhronos as synk
from synkhronos import engines
from synkhronos.errors import StateError, SynkhronosError, WorkerDied, WorkerError, WorkerTimeout
from synkhronos.host import affinity
from synkhronos.program import group
from synkhronos.program.program import PROGRAM
from synkhronos.testing import numpy_engine as engine

pytestmark = pytest.mark.slow

ROWS = np.arange(1001.0)

#: Objects of a test, which its groups inherit.
HERE = {}


def call(function, *args):
    """Call a function of this file; all tests' groups call this."""
    return function(*args)


def total(factor):
    """Return the sum of all rows times a factor, computed by the group's ranks, and their number."""
    return float(HERE["sum"](HERE["data"], factor)), synk.size()


def of_rank(function, rank=1):
    """Return the id of the process of a group's rank, after calling a function with it."""
    pid = PROGRAM.session.launcher.pid(rank)
    function(pid)
    return pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def stop(pid):
    os.kill(pid, signal.SIGSTOP)


def die():
    kill(os.getpid())


def kill_rank_in_call(factor):
    of_rank(kill)
    return total(factor)


def stop_rank_in_call(factor):
    of_rank(stop)
    return total(factor)


def wait_at(name):
    """Wait at a gate inside a group."""
    HERE[name].wait()
    return os.getpid()


def fails():
    raise ZeroDivisionError("of a group")


class RankFails(Exception):
    pass


def fail_on_rank(x):
    if synk.rank() == 1 and x.sum() > 0:
        raise RankFails("of a rank")
    return x


@pytest.fixture(autouse=True)
def nothing_runs():
    synk.close()
    yield
    synk.close()
    HERE.clear()


@pytest.fixture
def make(tmp_path):
    """Return a function that starts groups of `call`."""
    x, factor = engine.variable("x", "float64", 1), engine.variable("factor", "float64", 0)
    HERE["sum"] = synk.function([x], (engine.apply(lambda x, k: x.sum() * k, x, factor, ndim=0), "sum"), [factor])
    HERE["data"] = synk.data(ROWS)
    for name in ("first", "second"):
        HERE[name] = gates.Gate(tmp_path / name)
    return lambda *numbers, **settings: synk.Groups(call, *numbers, **settings)


def in_threads(groups, *calls):
    """Start calls in threads of their own; return their futures."""
    threads = ThreadPoolExecutor(len(calls))
    try:
        return [threads.submit(groups, *each) for each in calls]
    finally:
        threads.shutdown(wait=False)


# -- calls -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_groups, n_ranks", [(1, 1), (2, 1), (2, 2), (1, 3)])
def test_values(make, n_groups, n_ranks):
    with make(n_groups, n_ranks) as groups:
        factors = np.linspace(-2, 3, 20)
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda factor: groups(total, factor), factors))
    assert {n for _, n in found} == {n_ranks}
    np.testing.assert_allclose([value for value, _ in found], ROWS.sum() * factors, rtol=1e-12)


def test_groups_work_at_once(make):
    """Both calls are in progress before either ends, in different processes."""
    with make(2) as groups:
        first, second = in_threads(groups, (wait_at, "first"), (wait_at, "second"))
        for name in ("first", "second"):
            HERE[name].until_reached()
        HERE["first"].open()
        assert first.result() != os.getpid()
        HERE["second"].open()
        assert second.result() not in (first.result(), os.getpid())


def test_more_calls_than_groups(make):
    with make(1) as groups:
        first, second = in_threads(groups, (wait_at, "first"), (total, 2.0))
        HERE["first"].until_reached()
        assert not second.done()
        HERE["first"].open()
        assert second.result() == (2 * ROWS.sum(), 1)
        assert first.result()


@pytest.mark.parametrize("size", [0, 8000, 1 << 20])
def test_arguments_and_results_of_any_size(make, size):
    array = np.arange(float(size))
    with make(1) as groups:
        for _ in range(2):
            np.testing.assert_array_equal(groups(np.negative, array), -array)


def test_shared_variables_are_copies_from_the_start(make):
    HERE["w"] = w = engine.shared(np.arange(3.0), "w")
    w.set_value(np.ones(3))
    with make(1) as groups:
        w.set_value(np.zeros(3))
        np.testing.assert_array_equal(groups(value_of, "w"), np.ones(3))
    np.testing.assert_array_equal(w.get_value(), np.zeros(3))


def value_of(name):
    return HERE[name].get_value()


def test_output_names_the_group(make, capfd):
    with make(2, 1) as groups:
        groups(print, "words")
    assert capfd.readouterr().out == "[group 0] words\n"


def test_settings_reach_the_sessions(make, monkeypatch, tmp_path):
    monkeypatch.setenv("SYNK_PROFILE", str(tmp_path / "profile"))
    with make(2, 1, timeout=7.5) as groups:
        assert groups(session_timeout) == 7.5
    assert not (tmp_path / "profile").exists()
    monkeypatch.delenv("SYNK_PROFILE")
    PROGRAM._profile_to = None


def session_timeout():
    return PROGRAM.session.timeout


def test_cores_are_divided():
    for n in (1, 2, 3):
        parts = affinity.divided_cores(n)
        cores = sorted(os.sched_getaffinity(0))
        if n <= len(cores):
            assert sorted(core for part in parts for core in part) == cores and all(parts)
        else:
            assert parts == [[]] * n


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_exception_in_a_group(make):
    with make(2, 2) as groups:
        with reports(WorkerError, "group 0", "ZeroDivisionError", "of a group", rank=0) as caught:
            groups(fails)
        assert "fails" in caught.value.remote_tracebacks[0] and "fails" in str(caught.value.__cause__)
        assert groups(total, 1.0) == (ROWS.sum(), 2)


def test_an_exception_on_a_rank_of_a_group(make):
    x = engine.variable("x", "float64", 1)
    HERE["fails"] = synk.function([x], (engine.apply(fail_on_rank, x, dtype="float64", ndim=1), "gather"))
    with make(1, 2) as groups:
        with reports(WorkerError, "group 0", "rank 1", "RankFails", rank=1) as caught:
            groups(call_of, "fails", np.ones(4))
        assert "RankFails" in caught.value.remote_tracebacks[1]
        np.testing.assert_array_equal(groups(call_of, "fails", -np.ones(4)), -np.ones(4))


def call_of(name, *args):
    return HERE[name](*args)


def test_objects_that_cannot_be_pickled(make):
    with make(1) as groups:
        with reports(TypeError, "pickle"):
            groups(total, threading.Lock())
        with reports(WorkerError, "pickle"):
            groups(threading.Lock)
        with reports(WorkerError, "group 0", "Unloadable"):
            groups(total, Unloadable())
        assert groups(total, 1.0) == (ROWS.sum(), 1)


class Unloadable:
    def __reduce__(self):
        return fails_to_load, ()


def fails_to_load():
    raise ValueError("Unloadable")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_death_ends_only_its_group(make, rank):
    """The other group is in a call at that time, and returns its result."""
    with make(2, 2) as groups:
        other = in_threads(groups, (wait_at, "first"))[0]
        HERE["first"].until_reached()
        work = (kill_rank_in_call, 1.0) if rank else (die,)
        with reports(WorkerDied, "group 1", f"rank {rank}", "SIGKILL", rank=rank) as caught:
            groups(*work)
        assert "fork" not in str(caught.value)
        HERE["first"].open()
        assert other.result()
        assert groups(total, 3.0) == (3 * ROWS.sum(), 2)
        with pytest.raises(WorkerDied):
            groups(*work)
        with reports(StateError, "ended", "synkhronos.close()"):
            groups(total, 1.0)


def test_a_group_that_dies_between_calls(make):
    with make(2) as groups:
        kill(groups(os.getpid))
        with reports(WorkerDied, "group 0", "SIGKILL"):
            groups(total, 1.0)
        assert groups(total, 2.0) == (2 * ROWS.sum(), 1)


def test_healing_inside_a_group(make, monkeypatch):
    monkeypatch.setenv("SYNK_HEAL", "1")
    with make(2, 2) as groups:
        assert groups(kill_rank_in_call, 3.0) == (3 * ROWS.sum(), 2)
        assert groups(total, 1.0) == (ROWS.sum(), 2)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stall_becomes_an_error(make, rank, monkeypatch):
    monkeypatch.setattr(group, "ANSWER_S", 0.1 if rank == 0 else 60.0)
    with make(2, 2, timeout=0.5) as groups:
        with reports(WorkerTimeout, "group 0", f"rank {rank}", rank=rank):
            groups(*((stop_rank_in_call, 1.0) if rank else (stop_itself,)))
        assert groups(total, 1.0) == (ROWS.sum(), 2)


def stop_itself():
    stop(os.getpid())


def test_an_interrupt_in_a_call(make):
    """The next call uses another group, or waits for the end of the interrupted call."""
    with make(2) as groups:
        for n_left in (1, 0):
            name = ("first", "second")[n_left]
            interrupter = threading.Thread(target=interrupt_at, args=(name,))
            interrupter.start()
            with pytest.raises(KeyboardInterrupt):
                groups(wait_at, name)
            interrupter.join()
            if n_left:
                assert groups(total, 2.0) == (2 * ROWS.sum(), 1)
        waiting = in_threads(groups, (total, 4.0))[0]
        HERE["first"].open()
        HERE["second"].open()
        assert waiting.result() == (4 * ROWS.sum(), 1)
        assert groups(total, 3.0) == (3 * ROWS.sum(), 1)


def interrupt_at(name):
    HERE[name].until_reached()
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


# -- ending ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("close", ["groups", "program"])
def test_closed_during_a_call(make, close):
    groups = make(2, 2)
    running = in_threads(groups, (wait_at, "first"), (wait_at, "second"))
    for name in ("first", "second"):
        HERE[name].until_reached()
    waiting = in_threads(groups, (total, 1.0))[0]
    (groups if close == "groups" else synk).close()
    for each in [*running, waiting]:
        with reports(StateError, "closed"):
            each.result()
    with reports(StateError, "closed"):
        groups(total, 1.0)
    groups.close()
    assert PROGRAM.groups is None


def test_in_a_handler_during_a_call(make):
    def handler(*_):
        with reports(StateError, "same thread"):
            groups(total, 1.0)
        groups.close()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        groups = make(1)
        threading.Thread(target=signal_at, args=("first",)).start()
        with reports(StateError, "closed"):
            groups(wait_at, "first")
    finally:
        signal.signal(signal.SIGUSR1, before)


def signal_at(name):
    HERE[name].until_reached()
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)


def test_in_a_thread_that_ends(make):
    """Groups survive the end of the thread that started them."""
    started = []
    thread = threading.Thread(target=lambda: started.append(make(2, 2)))
    thread.start()
    thread.join()
    gates.until(lambda: not os.path.exists(f"/proc/self/task/{thread.native_id}"))
    with started[0] as groups:
        assert groups(total, 1.0) == (ROWS.sum(), 2)


def test_in_a_child_of_the_program(make):
    groups = make(1)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with reports(StateError, "process"):
                groups(total, 1.0)
            groups.close()
            with synk.fork(2):
                assert total(2.0) == (2 * ROWS.sum(), 2)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert groups(total, 1.0) == (ROWS.sum(), 1)


def test_again_and_a_session_after(make):
    for n_ranks in (1, 2):
        with make(2, n_ranks) as groups:
            assert groups(total, 1.0) == (ROWS.sum(), n_ranks)
    with synk.fork(2):
        assert total(1.0) == (ROWS.sum(), 2)


def test_a_function_that_closes_its_session(make):
    with make(2) as groups:
        assert groups(synk.close) is None
        assert groups(total, 1.0) == (ROWS.sum(), 1)


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_arguments(make):
    with refuses(TypeError, "function", "function"):
        synk.Groups(3, 2)
    for error, argument, numbers in ((TypeError, "n_groups", (2.0,)), (ValueError, "n_ranks", (2, 0))):
        with refuses(error, argument):
            make(*numbers)
    with refuses(ValueError, "timeout"):
        make(2, timeout=-1)
    assert PROGRAM.groups is None


def test_no_session_beside_groups(make):
    w = engine.shared(np.zeros(3), "w")
    with make(1):
        with reports(StateError, "groups", "synkhronos.close()"):
            synk.fork(2)
        with reports(StateError, "groups", "synkhronos.close()"):
            make(1)
        for collective in (synk.all_reduce, synk.broadcast):
            with reports(StateError, "groups", "synkhronos.close()"):
                collective(w)
        with reports(StateError, "groups", "synkhronos.close()"):
            total(1.0)
        assert not synk.is_forked()
    with synk.fork(2), reports(StateError, "session", "synkhronos.close()"):
        make(1)


def test_other_programs(make, monkeypatch):
    monkeypatch.setattr(type(PROGRAM), "world", "several hosts")
    with reports(StateError, "host"):
        make(1)
    monkeypatch.undo()
    monkeypatch.setattr(type(engines.get("numpy")), "opened_device", lambda self: "cuda0")
    with reports(StateError, "cuda0"):
        make(1)


def test_a_group_that_cannot_start(make, monkeypatch):
    monkeypatch.setenv("SYNK_HEAL", "many")
    with reports(WorkerError, "group 0", "SYNK_HEAL"):
        make(2)
    assert PROGRAM.groups is None


def test_more_groups_than_files_allow(make, capfd):
    """The groups that have started end silently."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    n = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (n + 40, before[1]))
    try:
        with reports(SynkhronosError, "group ", "files", "ulimit -n"):
            make(40)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert PROGRAM.groups is None and capfd.readouterr().err == ""
    assert len(os.listdir("/proc/self/fd")) == n


# -- the end of the program --------------------------------------------------------------------------------------------

ENDS = {
    "exit": "",
    "error": "1 / 0",
    "kill": "os.kill(os.getpid(), 9)",
    "kill in a call": "threading.Thread(target=groups, args=(1000,)).start(); time.sleep(0.3); os.kill(os.getpid(), 9)",
    "exit in a call": "threading.Thread(target=groups, args=(1000,), daemon=True).start(); time.sleep(0.3)",
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_outlives_the_program(end, program):
    started = program(ENDS[end])
    started.communicate()
    gates.until(lambda: not members(started.pid))


def test_ctrl_c_in_a_terminal(program):
    """All processes receive the signal; the program handles it, and the groups continue."""
    started = program("""
try:
    print("now", flush=True)
    groups(1000)
except KeyboardInterrupt:
    print("interrupted", groups(0), flush=True)
    sys.stdin.readline()
groups.close()
""")
    assert started.stdout.readline() == b"now\n"
    time.sleep(0.2)  # usually, the call is in progress by then; the result must not depend on it
    os.killpg(started.pid, signal.SIGINT)
    assert started.stdout.readline() == b"interrupted None\n"
    out, err = started.communicate(b"\n")
    assert (started.returncode, out, err) == (0, b"", b"")
    gates.until(lambda: not members(started.pid))


@pytest.fixture
def program():
    """Return a function that starts a program with groups of `time.sleep`, in a session of processes of its own."""
    started = []

    def start(code):
        begin = "import os, sys, threading, time\nimport synkhronos as synk\ngroups = synk.Groups(time.sleep, 2, 2)\n"
        command = [sys.executable, "-c", begin + "groups(0)\nprint('started', flush=True)\n" + code]
        pipes = {each: subprocess.PIPE for each in ("stdin", "stdout", "stderr")}
        started.append(subprocess.Popen(command, start_new_session=True, **pipes))
        assert started[-1].stdout.readline() == b"started\n"
        return started[-1]

    yield start
    for each in started:
        for pid in members(each.pid):
            kill(pid)
        each.communicate()


def members(session):
    """Return the processes of a session of the system that have not ended."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(name))
    return found
