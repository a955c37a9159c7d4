"""Recorded sessions: spans nest and add up, and the recording is written however the session ends.

Modules: `files`, `folder`, `synkhronos.program.profiled`.
"""

import errno
import importlib
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from gates import Gate
from refusals import refuses, reports
from sleeping import Sleeping, waits_for
from timelines import check_nested, covered, lanes, read

import synkhronos as synk
from synkhronos import trace
from synkhronos.errors import StateError, WorkerDied, WorkerError
from synkhronos.profile import recording
from synkhronos.profile.folder import Claim
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.context import RankContext
from synkhronos.testing import numpy_engine as engine

pytestmark = pytest.mark.slow

KINDS = [("threads", 2, 0), ("fork", 2, 0), ("fork", 3, 1), ("2 hosts", 4, 1)]
FILES = ["profile.json", "report.html", "report.txt", "timeline.json"]


def sleeping(x):
    time.sleep(float(np.sum(x)))
    return np.asarray(x).sum()


def dying_at_one(x):
    if np.sum(x) == 1:
        os.kill(os.getpid(), 9)
    time.sleep(0.01)
    return np.asarray(x).sum()


def failing_at_one(x):
    if np.sum(x) == 1:
        raise KeyError("one")
    return np.asarray(x).sum()


def function_of(body, name):
    x = engine.variable("x", "float64", 1)
    f = synk.function([x], (engine.apply(body, x, dtype="float64", ndim=0), "sum"), name=name)
    synk.distribute()
    return f


@pytest.mark.parametrize("kind", KINDS, ids="{0[0]}-{0[1]}".format)
def test_spans_nest(make_world, tmp_path, kind):
    missing(make_world(*kind, profile_to=str(tmp_path / "p")), tmp_path / "p")


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("kind", KINDS, ids="{0[0]}-{0[1]}".format)
def test_spans_add_up_to_the_time(make_world, tmp_path, kind):
    # A busy machine may stop a rank between two spans, or the program between two clock readings: three attempts.
    found = []
    while len(found) < 3 and min(found, default=1) > 0.02:
        name = str(len(found))
        found.append(missing(make_world(*kind, profile_to=str(tmp_path / name)), tmp_path / name))
    assert min(found) <= 0.02, found


def missing(world, folder):
    """Make calls in a session, check the recording, and return the largest fraction of time that is unaccounted for."""
    w = world.shared(np.zeros(1000), "w")
    f = function_of(sleeping, "f")
    synk.all_reduce(w)
    begun = time.monotonic()
    for _ in range(4):
        f(np.full(world.n, 0.1))
    made = time.monotonic() - begun
    time.sleep(0.5)
    synk.close()
    assert sorted(os.listdir(folder)) == FILES
    profile, timeline = read(folder)
    calls = next(command for command in profile["commands"] if command["name"] == "f")
    assert calls["count"] == 4 and calls["totals"]["rows"] == [4] * world.n
    assert all(seconds >= 0.4 for seconds in calls["totals"]["engine_s"])
    reduced = next(command for command in profile["commands"] if command["name"] == "all_reduce")
    assert (reduced["bytes"], reduced["arrays"], reduced["kind"]) == (8000, 1, "collective")
    assert all(of_rank["idle"] >= 0.5 and of_rank["computing"] >= 0.4 for of_rank in profile["shares"])
    # Four calls, and nothing else between two clock readings.
    parts = [abs(1 - calls["totals"]["master_s"] / made)]
    parts += [abs(1 - sum(of_rank.values()) / profile["wall_s"]) for of_rank in profile["shares"]]
    for rank, lane in enumerate(lanes(timeline, profile)):
        check_nested(lane)
        if rank != world.root:  # the master's lane is empty while the program does other work
            total, there = covered(lane)
            parts.append(1 - total / there)
    return max(parts)


@pytest.mark.parametrize("kind", KINDS[:2], ids="{0[0]}-{0[1]}".format)
def test_an_unbalanced_program(make_world, tmp_path, kind):
    """The report names the late rank and the reason."""
    make_world(*kind, profile_to=str(tmp_path / "p"))
    x, w = engine.variable("x", "float64", 1), engine.shared(np.zeros(40), "w")
    late = Sleeping(tmp_path)
    f = synk.function([x], (engine.apply(late, x, dtype="float64", ndim=0), "sum"), name="f")
    keep = synk.function([], [(w, None)])
    synk.distribute()
    assert keep
    for _ in range(3):
        with waits_for(late):
            f(np.array([0.01, 1.3]))
        late.begin_again()
    text = str(synk.report())
    assert "in function f, rank 0 spends" in text
    assert "for rank 1, which takes longer to compute for the same number of rows" in text
    synk.close()
    assert "for rank 1, which takes longer to compute" in (tmp_path / "p" / "report.txt").read_text()
    assert "for rank 1, which takes longer to compute" in str(synk.report())


@pytest.mark.parametrize("kind", KINDS[:2], ids="{0[0]}-{0[1]}".format)
def test_steps_that_were_made_are_counted(make_world, tmp_path, kind):
    """Steps that `on_step` prevented are not counted; the number of rows is then unknown."""
    make_world(*kind, profile_to=str(tmp_path / "p"))
    x = engine.variable("x", "float64", 1)
    total = synk.ops.all_reduce(engine.apply(sleeping, x, dtype="float64", ndim=0), "sum")
    f = synk.function([x], (total, "sum"), name="f")
    synk.distribute()
    made = []
    f.steps(np.zeros(100), batches=[slice(4)] * 25, on_step=lambda i, outputs: made.append(i) or i < 3)
    synk.close()
    profile, _ = read(tmp_path / "p")
    (steps,) = [command for command in profile["commands"] if command["name"] == "f"]
    assert 4 <= len(made) <= steps["calls"][0]["steps"] < 25
    assert steps["totals"]["rows"] is None


def test_steps_that_fail_on_several_hosts_leave_the_session_open(make_world, tmp_path):
    world = make_world("2 hosts", 4, 1, profile_to=str(tmp_path / "p"))
    f = function_of(failing_at_one, "f")
    with reports((KeyError, WorkerError), "one"):
        f.steps(np.array([0.0] * 8 + [1.0, 0.0, 0.0]), batches=[[i, 8, 9, 10] for i in range(8)])
    assert f(np.zeros(4)) == 0 and world.session is PROGRAM.session
    synk.close()
    profile, _ = read(tmp_path / "p")
    assert [command["kind"] for command in profile["commands"] if command["name"] == "f"] == ["steps", "function"]


def test_collectives_inside_functions(make_world, tmp_path):
    make_world("threads", 2, profile_to=str(tmp_path / "p"))
    sleeping = Sleeping(tmp_path)
    x = engine.variable("x", "float64", 1)
    total = synk.ops.all_reduce(engine.apply(sleeping, x, dtype="float64", ndim=0), "sum")
    f = synk.function([x], (total, None), exact=False, name="f")
    with waits_for(sleeping):
        f(np.array([0.05, 1.3]))
    command = next(each for each in synk.report().profile["commands"] if each["name"] == "f")
    assert (command["bytes"], command["arrays"]) == (8, 1)
    engine_s, wait_s = command["totals"]["engine_s"], command["totals"]["wait_s"]
    # Rank 0's waiting inside its function does not count as computing.
    assert engine_s[0] >= 0.05 and engine_s[1] >= 0.3 and wait_s[0] >= 0.3
    assert engine_s[0] + wait_s[0] <= command["totals"]["master_s"]


def test_a_killed_rank_leaves_its_spans(make_world, tmp_path):
    make_world("fork", 2, profile_to=str(tmp_path / "p"))
    f = function_of(dying_at_one, "f")
    f(np.zeros(2))
    with pytest.raises(WorkerDied):
        f(np.array([0.0, 1.0]))
    profile, timeline = read(tmp_path / "p")  # the program died without close()
    unfinished = [span for _, _, span in lanes(timeline, profile)[1] if span["args"].get("unfinished")]
    assert [span["cat"].split(",")[0] for span in unfinished] == ["command", "engine"]
    assert len([span for _, _, span in lanes(timeline, profile)[1] if span["cat"] == "engine"]) == 2
    assert next(each for each in profile["commands"] if each["name"] == "f")["recorded"] == 1
    assert "rank" in str(synk.report())


@pytest.mark.parametrize("dies", [False, True], ids=["closed", "killed"])
def test_ranks_of_other_hosts(make_world, tmp_path, dies):
    """Their spans reach the master, with times of its clock, however the session ends."""
    make_world("2 hosts", 4, 1, profile_to=str(tmp_path / "p"))
    f = function_of(dying_at_one, "f")
    f(np.zeros(4))
    assert min(synk.report().profile["shares"][3].values()) >= 0 and "on 2 hosts" in str(synk.report())
    if dies:
        with pytest.raises(WorkerDied):
            f(np.array([0.0, 0.0, 0.0, 1.0]))
    else:
        synk.close()
    profile, timeline = read(tmp_path / "p")
    assert profile["hosts"] == [[0, 1], [2, 3]] and profile["host_names"] == ["host0", "host1"]
    near, far = profile["clock_error_s"][:2], profile["clock_error_s"][2:]
    assert near == [0, 0] and all(0 < error < 1 for error in far)
    assert [event["args"]["name"] for event in timeline["traceEvents"] if event["name"] == "process_name"][3] == (
        "rank 3 on host1 (cpu)"
    )
    # Each rank computed between the start and the end of the master's call.
    (called,) = [span for span in lanes(timeline, profile)[1] if span[2]["name"] == "Function.__call__"][:1]
    for rank, lane in enumerate(lanes(timeline, profile)):
        begin, end, _ = next(span for span in lane if span[2]["cat"] == "engine")
        error = 1e6 * profile["clock_error_s"][rank]
        assert called[0] - error <= begin and end <= called[1] + error
        assert len([span for span in lane if span[2]["cat"] == "engine"]) == 1 + dies or rank != 3


def test_errors_of_ranks_and_of_the_program(make_world, tmp_path):
    make_world("threads", 2, profile_to=str(tmp_path / "p"))
    f = function_of(failing_at_one, "f")
    with pytest.raises(WorkerError):
        f(np.array([0.0, 1.0]))
    f(np.zeros(2))
    synk.close()
    profile, _ = read(tmp_path / "p")
    assert next(each for each in profile["commands"] if each["name"] == "f")["count"] == 2


def test_sessions_that_are_not_profiled_are_not_observed(make_world, tmp_path):
    before = list(trace._observers)
    make_world("threads", 2)
    assert trace._observers == before
    make_world("threads", 2, profile_to=str(tmp_path / "p"))
    assert len(trace._observers) == len(before) + 1
    synk.close()
    assert trace._observers == before


def test_one_folder_takes_one_profile_and_further_sessions_folders_inside(make_world, tmp_path):
    for _ in range(3):
        make_world("threads", 1, profile_to=str(tmp_path / "p"))
        synk.close()
    assert sorted(os.listdir(tmp_path / "p")) == sorted([*FILES, "session-2", "session-3"])
    make_world("threads", 1, profile_to=str(tmp_path / "q"))
    synk.close()
    with refuses(ValueError, "profile", got=str(tmp_path / "p"), hint="delete"):
        make_world("threads", 1, profile_to=str(tmp_path / "p"))
    assert not synk.is_forked()


def test_folders_that_cannot_be_taken_are_refused_before_anything_starts(tmp_path):
    (tmp_path / "file").write_text("")
    for value, error, got in (
        (str(tmp_path / "file"), ValueError, str(tmp_path / "file")),
        (str(tmp_path / "file" / "inside"), ValueError, os.strerror(errno.ENOTDIR)),
        ("/proc/nothing", ValueError, "/proc/nothing"),
        ("", ValueError, "empty"),
        (3, TypeError, "3 of type int"),
    ):
        with refuses(error, "profile", got=got):
            synk.fork(2, profile=value)
        assert not synk.is_forked()


def test_a_folder_is_given_back_if_the_session_does_not_begin(make_world, tmp_path):
    with pytest.raises(TypeError):
        make_world("threads", 1, profile_to=str(tmp_path / "p"), no_such_option=1)
    assert os.listdir(tmp_path / "p") == []


def test_nothing_was_recorded(make_world, monkeypatch):
    monkeypatch.setattr(PROGRAM, "profiled", None)
    make_world("threads", 1)
    with reports(StateError, "synkhronos.fork(profile="):
        synk.report()


TEXT = """
import os, resource, signal, sys
import numpy as np
import synkhronos as synk
from synkhronos.testing import numpy_engine as engine
synk.fork(2)
x = engine.variable("x", "float64", 1)
f = synk.function([x], (engine.apply(np.sum, x, dtype="float64", ndim=0), "sum"), name="f")
assert f(np.arange(4.0)) == 6
{}
print("the result")
"""


@pytest.mark.parametrize(
    "end, status",
    [("", 0), ("sys.exit(5)", 5), ("1 / 0", 1), ("os.kill(os.getpid(), signal.SIGINT); input()", -2)],
    ids=["returns", "exits", "raises", "ctrl-c"],
)
def test_any_program_is_profiled_unchanged(tmp_path, end, status):
    path = tmp_path / "program.py"
    path.write_text(TEXT.format(end))
    done = run_file(path, tmp_path / "p")
    assert done.returncode == status, done.stderr
    assert sorted(os.listdir(tmp_path / "p")) == FILES
    assert "f " in (tmp_path / "p" / "report.txt").read_text()


def run_file(path, folder, **options):
    command = [sys.executable, "-m", "synkhronos", "--profile", str(folder), str(path)]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, **options)


def test_a_full_disk_costs_the_profile_alone(tmp_path):
    """A limit of 100 bytes per file simulates the full disk."""
    path = tmp_path / "program.py"
    path.write_text(TEXT.format("resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"))
    done = run_file(path, tmp_path / "p")
    assert done.returncode == 0 and done.stdout == "the result\n"
    (line,) = done.stderr.splitlines()
    assert line == f"synkhronos: the profile of the session could not be written to {tmp_path / 'p'}: File too large"
    assert os.listdir(tmp_path / "p") == ["profile.json"] and (tmp_path / "p" / "profile.json").stat().st_size == 0


@pytest.mark.parametrize("state", ["recording", "recorded"])
def test_a_second_program_is_refused_before_it_begins(tmp_path, state):
    path = tmp_path / "program.py"
    path.write_text("print('begun')")
    claim = Claim(str(tmp_path / "p"))
    try:
        if state == "recorded":
            claim.fill({"profile.json": "{}"})
            claim.release()
        done = run_file(path, tmp_path / "p")
    finally:
        claim.release()
    assert done.returncode == 2 and done.stdout == "" and "--profile: expected a writable folder" in done.stderr
    assert {"recording": "another program is recording", "recorded": "which has a profile.json"}[state] in done.stderr


@pytest.mark.parametrize(
    "end, status",
    [("os.kill(os.getpid(), 9)", -9), ("os.killpg(0, signal.SIGTERM); input()", -15)],
    ids=["killed", "group-ended"],
)
def test_what_a_killed_program_has_recorded_is_kept(tmp_path, end, status):
    path = tmp_path / "program.py"
    path.write_text(TEXT.format(end))
    assert run_file(path, tmp_path / "p", start_new_session=True).returncode == status
    until = time.monotonic() + 60
    while not (tmp_path / "p" / "profile.json").stat().st_size and time.monotonic() < until:
        time.sleep(0.01)  # the keeper writes the profile after the program has ended
    assert sorted(os.listdir(tmp_path / "p")) == FILES
    profile, timeline = read(tmp_path / "p")
    call = next(command for command in profile["commands"] if command["name"] == "f")
    assert call["count"] == 1 and call["totals"]["rows"] == [2, 2]
    assert [len(lane) > 5 for lane in lanes(timeline, profile)] == [True, True]
    assert "which has a profile.json" in run_file(path, tmp_path / "p").stderr


def test_a_folder_with_an_unfinished_profile_is_taken(tmp_path):
    """A single rank is the program itself; if it is killed, no process is left to write the recording."""
    path = tmp_path / "program.py"
    path.write_text(TEXT.replace("fork(2)", "fork(1)").format("os.kill(os.getpid(), 9)"))
    assert run_file(path, tmp_path / "p").returncode == -9
    assert os.listdir(tmp_path / "p") == ["profile.json"]
    path.write_text(TEXT.format(""))
    done = run_file(path, tmp_path / "p")
    assert done.returncode == 0 and done.stdout == "the result\n"
    assert done.stderr == (
        f"synkhronos: replacing the unfinished profile in {tmp_path / 'p'}, whose program was killed "
        "or could not write the files\n"
    )
    assert sorted(os.listdir(tmp_path / "p")) == FILES and read(tmp_path / "p")[0]["ranks"] == 2


#: The trace event format, as far as it is used: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
REQUIRED = {
    "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": float, "dur": float, "args": dict},
    "M": {"name": str, "pid": int, "tid": int, "args": dict},
    "s": {"name": str, "cat": str, "pid": int, "tid": int, "ts": float, "id": str},
    "f": {"name": str, "cat": str, "pid": int, "tid": int, "ts": float, "id": str, "bp": str},
}


def test_the_timeline_is_valid_and_its_flows_are_whole(make_world, tmp_path):
    world = make_world("threads", 3, profile_to=str(tmp_path / "p"))
    synk.all_reduce(world.shared(np.zeros(10), "w"))
    synk.close()
    _, timeline = read(tmp_path / "p")
    assert set(timeline) == {"traceEvents", "displayTimeUnit", "otherData"} and timeline["displayTimeUnit"] == "ms"
    for event in timeline["traceEvents"]:
        required = REQUIRED[event["ph"]]
        assert set(event) == {"ph", *required}
        assert all(isinstance(event[key], (int, float) if kind is float else kind) for key, kind in required.items())
        assert event.get("dur", 0) >= 0
    check_flows(timeline)


def check_flows(timeline):
    """Check that every command's flow begins at the master, and ends at each of two other ranks."""
    ends = {event["id"] for event in timeline["traceEvents"] if event["ph"] == "f"}
    begins = {event["id"] for event in timeline["traceEvents"] if event["ph"] == "s"}
    assert ends == begins and {each.split(".")[1] for each in ends} == {"1", "2"}


class Lock:
    """A lock that opens a gate when the program's main thread tries to acquire it."""

    def __init__(self, gate):
        self.gate, self.lock = gate, threading.Lock()

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self.gate.open()
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


def test_no_command_is_executed_before_points_are_observed(monkeypatch, make_world, tmp_path):
    """Rank 1 waits in `observe` until the master waits for the lock, or ranks 0 and 2 have begun a command."""
    gate, begun = Gate(tmp_path / "gate"), set()
    add, observe, execute = recording.Recording.add, recording.observe, RankContext.execute

    def adding(self, rank, *args, **kwargs):
        if rank != 1:
            gate.until_reached()
        add(self, rank, *args, **kwargs)

    def observing(observer):
        gate.wait()
        observe(observer)

    def executing(context, envelope):
        begun.add(context.rank)
        if begun >= {0, 2}:
            gate.open()
        return execute(context, envelope)

    monkeypatch.setattr(recording.RECORDING, "_lock", Lock(gate), raising=False)
    monkeypatch.setattr(recording.Recording, "add", adding)
    monkeypatch.setattr(recording, "observe", observing)
    monkeypatch.setattr(RankContext, "execute", executing)
    world = make_world("threads", 3, profile_to=str(tmp_path / "p"))
    synk.all_reduce(world.shared(np.zeros(10), "w"))
    synk.close()
    check_flows(read(tmp_path / "p")[1])


def test_methods_that_are_left_out_are_trace_points():
    importlib.import_module("synkhronos.processes.rank_main")  # imports the modules of a rank
    assert set(recording._LEFT_OUT_METHODS) <= {point.label for point in trace.POINTS}
