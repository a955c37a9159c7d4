"""Ranks as threads."""

import threading

import pytest
from clocks import Clock
from gates import Gate
from refusals import reports

import synkhronos as synk
from synkhronos.processes.local import SimulatedDeath
from synkhronos.program.program import PROGRAM
from synkhronos.runtime.command import CheckStart, Command
from synkhronos.runtime.context import RankContext

pytestmark = pytest.mark.slow


class Act(Command):
    title = "act"

    def __init__(self, rank, what):
        self.rank, self.what = rank, what

    def run(self, context):
        if context.rank == self.rank:
            if self.what == "vanish":
                raise SimulatedDeath
            self.what.wait()
        context.barrier.wait()
        return threading.current_thread().name


@pytest.fixture
def session():
    yield PROGRAM.open(3, 1, launcher="threads")
    synk.close()


def test_every_rank_has_a_thread(session):
    names = session.run(Act(-1, None))
    assert names == ["synkhronos-rank-0", threading.current_thread().name, "synkhronos-rank-2"]
    assert sorted(session.launcher.contexts) == [0, 2]
    synk.close()
    assert not any(thread.name.startswith("synkhronos") for thread in threading.enumerate())
    assert session.launcher.contexts == {}


def test_a_simulated_death_is_a_death(session, monkeypatch):
    execute = RankContext.execute

    def mortal(context, envelope):
        answer = execute(context, envelope)
        if isinstance(answer.error, SimulatedDeath):
            raise answer.error
        return answer

    monkeypatch.setattr(RankContext, "execute", mortal)
    with reports(synk.WorkerDied, "SIGKILL", rank=2, command="act"):
        session.run(Act(2, "vanish"))
    assert not synk.is_forked()


def test_broken_rank_tells_why(session, monkeypatch):
    monkeypatch.setattr("synkhronos.runtime.serve.encode", lambda answer: 1 / 0)
    with reports(synk.WorkerDied, "70", command="start") as caught:
        session.run(CheckStart())
    assert "ZeroDivisionError" in str(caught.value.__cause__)


def test_late(session, monkeypatch, tmp_path):
    clock, gate, kill = Clock(), Gate(tmp_path / "gate"), session.launcher.kill
    monkeypatch.setattr("synkhronos.runtime.session.time", clock)
    monkeypatch.setattr(session.launcher, "kill", lambda: (gate.open(), kill()))
    clock.when(gate.is_reached, lambda: clock.advance(0.2))
    with reports(synk.WorkerTimeout, "rank 0", rank=0) as caught:
        session.run(Act(0, gate), timeout=0.1)
    assert "self.what.wait()" in str(caught.value)  # the line where the rank was waiting
    assert not synk.is_forked()
