"""Named points: plain methods without an observer, reported at both ends with one."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses

import synkhronos as synk
from synkhronos import trace


class Log(trace.TraceObserver):
    """Records all reported points."""

    def __init__(self):
        self.seen = []

    def begin(self, point, owner, arguments):
        self.seen.append(("begin", point.label, arguments))

    def end(self, point, owner, arguments):
        self.seen.append(("end", point.label, arguments))


class Thing:
    @trace.point("test")
    def double(self, x):
        if x < 0:
            raise ValueError(x)
        return 2 * x


@pytest.fixture
def log():
    log = Log()
    trace.observe(log)
    yield log
    if log in trace._observers:
        trace.ignore(log)


def test_what_is_not_observed_is_the_method_itself():
    assert Thing.double.__code__.co_name == "double"
    log = Log()
    plain = {point: vars(point.owner)[point.method] for point in trace.POINTS}
    trace.observe(log)
    assert all(vars(point.owner)[point.method] is not plain[point] for point in trace.POINTS)
    trace.ignore(log)
    assert all(vars(point.owner)[point.method] is plain[point] for point in trace.POINTS)
    assert Thing().double(2) == 4 and log.seen == []


def test_both_sides_are_seen_whatever_happens(log):
    assert Thing().double(3) == 6
    with pytest.raises(ValueError):
        Thing().double(-1)
    assert log.seen == [(side, "Thing.double", (x,)) for x in (3, -1) for side in ("begin", "end")]


def test_several_observers_are_nested(log):
    order = []
    inner = trace.TraceObserver()
    inner.begin = lambda *_: order.append(("inner", len(log.seen)))
    inner.end = lambda *_: order.append(("inner", len(log.seen)))
    trace.observe(inner)
    Thing().double(1)
    trace.ignore(inner)
    Thing().double(1)
    assert order == [("inner", 1), ("inner", 1)] and len(log.seen) == 4


def test_a_point_that_is_declared_later_is_seen(log):
    class Later:
        @trace.point("test")
        def go(self):
            return 1

    assert Later().go() == 1 and [entry[1] for entry in log.seen] == ["Later.go"] * 2
    trace.ignore(log)
    assert Later().go() == 1 and len(log.seen) == 2


def test_the_points_of_a_collective(make_world, log):
    world = make_world("threads", 2)
    W = world.shared(np.zeros(3), "W")
    log.seen.clear()
    synk.all_reduce(W)
    labels = {label for _, label, _ in log.seen}
    assert {
        "RankContext.execute",
        "Transaction.commit",
        "Barrier.wait",
        "SharedMemoryTransport.bind",
        "MasterEnd.send",
        "RankEnd.read",
    } <= labels
    names = {point.name for point in trace.POINTS}
    assert {"command", "commit", "barrier", "engine", "transport", "channel", "replication", "memory"} <= names


def test_a_line_per_command_and_rank(make_world, caplog, monkeypatch):
    monkeypatch.setenv("SYNK_LOG", "debug")
    monkeypatch.setattr(trace, "_log", None)
    monkeypatch.setattr(logging.getLogger("synkhronos"), "level", logging.WARNING)
    trace.log_as_the_environment_says()
    try:
        world = make_world("threads", 2)
        W = world.shared(np.zeros((8, 4), "float32"), "W")
        with caplog.at_level(logging.DEBUG, "synkhronos"):
            synk.all_reduce(W)
        lines = sorted(record.getMessage() for record in caplog.records if "all_reduce" in record.getMessage())
    finally:
        trace.ignore(trace._log)
    assert [line.rsplit("|", 1)[0] for line in lines] == [
        "r0 | all_reduce W (8, 4) float32 avg ",
        "r1 | all_reduce W (8, 4) float32 avg ",
    ]
    assert all(line.endswith(" ms") and float(line.split("|")[-1].split()[0]) > 0 for line in lines)


#: Logs warnings in the program and on a rank, and logs commands.
LOGGING = """
import logging, sys
import synkhronos as synk
from synkhronos.runtime.command import Command
{setup}
class Warn(Command):
    def run(self, context):
        if context.rank:
            logging.getLogger("synkhronos").warning("on a rank")
if __name__ == "__main__":
    synk.fork(2)
    from synkhronos.program.program import PROGRAM
    logging.getLogger("synkhronos").warning("in the program")
    logging.getLogger("synkhronos").info("no news")
    PROGRAM.session.run(Warn())
    synk.close()
"""


@pytest.mark.parametrize(
    "setup, environment, expected",
    [
        ("", {}, ["synkhronos: in the program", "[rank 1] synkhronos: on a rank"]),
        (
            "logging.basicConfig(format='mine: %(message)s')",
            {},
            ["mine: in the program", "[rank 1] mine: on a rank"],
        ),
        ("logging.getLogger('synkhronos').addHandler(logging.NullHandler())", {}, []),
        ("logging.getLogger('synkhronos').setLevel('ERROR')", {}, []),
        ("", {"SYNK_LOG": "debug"}, ["synkhronos: r0 | Warn | ", "[rank 1] synkhronos: r1 | Warn | "]),
    ],
    ids=["nothing", "root", "null", "level", "debug"],
)
def test_lines_on_stderr_have_a_prefix(tmp_path, setup, environment, expected):
    (tmp_path / "prog.py").write_text(LOGGING.format(setup=setup))
    done = subprocess.run(
        [sys.executable, "prog.py"],
        cwd=str(tmp_path),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **environment},
        stderr=subprocess.PIPE,
        universal_newlines=True,
        timeout=60,
    )
    assert done.returncode == 0
    if environment:
        assert all(any(line.startswith(each) for line in done.stderr.splitlines()) for each in expected)
        assert all("synkhronos: " in line for line in done.stderr.splitlines())
    else:
        assert sorted(done.stderr.splitlines()) == sorted(expected)


@pytest.mark.parametrize("value", ["", None])
def test_without_a_value_nothing_is_logged(monkeypatch, value):
    monkeypatch.setattr(trace, "_log", None)
    monkeypatch.setenv("SYNK_LOG", value) if value is not None else monkeypatch.delenv("SYNK_LOG", raising=False)
    trace.log_as_the_environment_says()
    assert trace._log is None and not trace._observers


@pytest.mark.parametrize("name, value", [("SYNK_LOG", "loud"), ("SYNK_CHECK", "yes"), ("SYNK_HEAL", "some")])
def test_a_variable_with_another_value_is_refused_by_fork(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with refuses((TypeError, ValueError), name, got=value):
        synk.fork(2)
    assert not synk.is_forked()
    monkeypatch.delenv(name)
    with synk.fork(2):
        assert synk.size() == 2
