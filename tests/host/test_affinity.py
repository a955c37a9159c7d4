"""The cores that ranks run on, and their numbers of threads.

Modules: `threads`.
"""

import fcntl
import os
import subprocess
import sys

import pytest
import threadpoolctl

import synkhronos as synk
from synkhronos.host import affinity as placement
from synkhronos.host.affinity import CoreClaims, MasterAffinity, _siblings_last, confine
from synkhronos.host.machine import core_budget, usable_cores
from synkhronos.program.program import PROGRAM
from synkhronos.runtime import session as session_module
from synkhronos.runtime.command import Command

pytestmark = pytest.mark.slow

CORES = usable_cores()


def threads_now():
    return [library.num_threads for library in threadpoolctl.ThreadpoolController().lib_controllers]


class Look(Command):
    """Return the cores that this rank may use, and its number of threads."""

    title = "look"

    def run(self, context):
        return os.sched_getaffinity(0), threads_now()


class Fails(Look):
    def run(self, context):
        raise KeyError


@pytest.fixture(autouse=True)
def closed():
    yield
    synk.close()


@pytest.fixture
def cores(monkeypatch, tmp_path):
    """Pretend that this process may use six cores, with entries in a temporary folder."""
    for core in range(6):
        (tmp_path / (f"cpu{core}")).mkdir()
    monkeypatch.setattr(placement, "_CORE", str(tmp_path / "cpu%d"))
    monkeypatch.setattr(placement, "usable_cores", lambda: list(range(6)))
    return tmp_path


@pytest.fixture
def other_program(cores):
    """Start another process that claims all of these cores; yield the process and its claims."""
    code = (
        "from synkhronos.host import affinity; import sys\n"
        f"affinity._CORE, affinity.usable_cores = {placement._CORE!r}, lambda: list(range(6))\n"
        "claims = affinity.CoreClaims()\n"
        "print(claims.claim(6), flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=os.path.dirname(os.path.dirname(synk.__file__)),
    ) as process:
        yield process, eval(process.stdout.readline())
        process.kill()


@pytest.mark.parametrize(
    "groups, expected",
    [
        (1, [[0, 1, 2, 3, 4, 5]]),
        (2, [[0, 1, 2], [3, 4, 5]]),
        (3, [[0, 1], [2, 3], [4, 5]]),
        (4, [[0], [1], [2], [3]]),
        (6, [[0], [1], [2], [3], [4], [5]]),
        (7, [[]] * 7),
    ],
)
def test_groups(cores, groups, expected):
    claims = CoreClaims()
    assert claims.claim(groups) == expected
    claims.release()


def test_claims_do_not_overlap(cores):
    first, second, third = CoreClaims(), CoreClaims(), CoreClaims()
    assert first.claim(4) == [[0], [1], [2], [3]]
    assert second.claim(2) == [[], []]  # it would need three each
    held = os.listdir("/proc/self/fd")
    assert third.claim(5) == [[]] * 5
    assert os.listdir("/proc/self/fd") == held  # a failed claim keeps no descriptor
    first.release()
    first.release()
    assert second.claim(2) == [[0, 1, 2], [3, 4, 5]]
    assert second.claim(3) == [[0, 1], [2, 3], [4, 5]]  # claims again without a release
    second.release()


def test_cores_that_cannot_be_claimed(cores):
    (cores / "cpu2").rmdir()  # hidden in a container, for example
    claims = CoreClaims()
    assert claims.claim(6) == [[]] * 6
    assert claims.claim(5) == [[0], [1], [3], [4], [5]]
    claims.release()


def test_second_threads_of_a_core_come_last(cores):
    for core, first in enumerate([0, 1, 2, 0, 1, 2]):
        (cores / (f"cpu{core}") / "topology").mkdir()
        (cores / (f"cpu{core}") / "topology" / "thread_siblings_list").write_text(f"{first},{first + 3}\n")
    assert _siblings_last([0, 1, 2, 3, 4, 5]) == [0, 1, 2, 3, 4, 5]
    assert _siblings_last([0, 3, 1, 4]) == [0, 1, 3, 4]
    (cores / "cpu1" / "topology" / "thread_siblings_list").write_text("0-1\n")
    assert _siblings_last([0, 1, 2]) == [0, 2, 1]


def test_two_programs(other_program):
    process, taken = other_program
    assert taken == [[core] for core in range(6)]
    mine = CoreClaims()
    assert mine.claim(6) == [[]] * 6
    assert mine.claim(1) == [[]]
    process.kill()  # the kernel releases its claim
    process.wait()
    assert mine.claim(6) == taken
    mine.release()


@pytest.fixture
def free_cores(monkeypatch):
    """Let the session claim cores, whatever else runs on this machine."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)


@pytest.mark.skipif(core_budget() < 2, reason="needs two cores")
def test_ranks_are_pinned_and_the_master_while_it_executes(free_cores):
    outside = os.sched_getaffinity(0), threads_now()
    synk.fork(2)
    assert (os.sched_getaffinity(0), threads_now()) == outside
    (first, few), (second, few_too) = PROGRAM.session.run(Look())
    assert first and second and not first & second and first | second <= set(CORES)
    assert set(few) | set(few_too) == {max(1, core_budget() // 2)}
    assert (os.sched_getaffinity(0), threads_now()) == outside
    synk.close()
    assert (os.sched_getaffinity(0), threads_now()) == outside


@pytest.mark.skipif(core_budget() < 2, reason="needs two cores")
@pytest.mark.parametrize("seconds, is_at_home", [(0, True), (float("inf"), False), (float("inf"), True)])
def test_a_master_at_home_is_not_pinned_for_a_short_command(free_cores, monkeypatch, seconds, is_at_home):
    synk.fork(2)
    outside, home = os.sched_getaffinity(0), PROGRAM.session.affinity.cores
    core = next(iter(home if is_at_home else set(CORES) - home))
    monkeypatch.setattr(placement, "_core_of_thread", lambda: core)
    monkeypatch.setattr(session_module, "SHORT_S", seconds)
    look = Look()
    assert PROGRAM.session.run(look)[0][0] == home  # the command's duration is not known yet
    assert PROGRAM.session.run(look)[0][0] == (outside if seconds and is_at_home else home)
    assert set(PROGRAM.session.run(look)[0][1]) == {max(1, core_budget() // 2)}
    assert os.sched_getaffinity(0) == outside


def test_master_is_restored_after_an_error_and_after_a_death(free_cores):
    outside = os.sched_getaffinity(0), threads_now()
    synk.fork(2)
    with pytest.raises(KeyError):
        PROGRAM.session.run(Fails())
    assert (os.sched_getaffinity(0), threads_now()) == outside
    os.kill(PROGRAM.session.launcher.pid(1), 9)
    with pytest.raises(synk.WorkerDied):
        while True:
            PROGRAM.session.run(Look())
    assert (os.sched_getaffinity(0), threads_now()) == outside


def test_more_ranks_than_cores_are_not_pinned():
    n = core_budget() + 1
    synk.fork(n)
    looks = PROGRAM.session.run(Look())
    assert [affinity for affinity, _ in looks] == [set(CORES)] * n
    assert set(sum((threads for _, threads in looks), [])) <= {1}


def test_not_pinned_when_told_so():
    PROGRAM.open(2, 0, pin=False, threads=1)
    assert [affinity for affinity, _ in PROGRAM.session.run(Look())] == [set(CORES)] * 2


def test_threads_as_told(free_cores):
    synk.fork(2, threads=1)
    assert set(sum((threads for _, threads in PROGRAM.session.run(Look())), [])) <= {1}


def test_one_rank_is_not_limited():
    outside = os.sched_getaffinity(0), threads_now()
    synk.fork(1)
    assert PROGRAM.session.run(Look()) == [outside]
    assert PROGRAM.session.affinity.cores == set()


def test_users_own_affinity_is_kept(free_cores):
    """An affinity that the user sets between commands is not undone."""
    if len(CORES) < 2:
        pytest.skip("needs two cores")
    synk.fork(2)
    try:
        os.sched_setaffinity(0, CORES[1:])
        PROGRAM.session.run(Look())
        assert os.sched_getaffinity(0) == set(CORES[1:])
    finally:
        os.sched_setaffinity(0, CORES)


class Library:
    """A stand-in for a BLAS library whose k-th call is interrupted."""

    def __init__(self, calls, threads):
        self.calls, self.threads = calls, threads

    def _count(self):
        self.calls.append(1)
        if len(self.calls) == self.calls.at:
            raise KeyboardInterrupt

    def get_num_threads(self):
        self._count()
        return self.threads

    def set_num_threads(self, threads):
        self.threads = threads
        self._count()


class Calls(list):
    at = 0


@pytest.mark.parametrize("at", range(1, 10))
def test_interrupted_at_every_step(at):
    calls = Calls()
    confined = MasterAffinity([], 1)
    confined._libraries = [Library(calls, 4), Library(calls, 6)]
    calls.at = at
    try:
        confined.begin()
        try:
            assert [library.threads for library in confined._libraries] == [1, 1]
        finally:
            confined.end()
    except KeyboardInterrupt:
        assert at <= 6
    assert [library.threads for library in confined._libraries] == [4, 6]
    calls.at = 0
    confined.begin()
    assert [library.threads for library in confined._libraries] == [1, 1]
    confined.end()
    assert [library.threads for library in confined._libraries] == [4, 6]


def test_confine_where_the_cores_are_gone():
    before = os.sched_getaffinity(0)
    confine([])
    confine({100000})
    assert os.sched_getaffinity(0) == before
