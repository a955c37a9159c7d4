"""The simulated world: few schedules of the campaign, replays, shrinking, and faults of the protocol that it finds.

Modules: `turns_of_ranks`, `operating_system`, `simulated_steps`, `schedules`, `shrinking`, `many_schedules`.
"""

import gc
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import protocol_faults
import pytest
from many_schedules import Failure, Saved, Totals, find, merged, missing, run
from operating_system import RANK_WORDS, SESSION_WORDS
from protocol_faults import FOUND_BY, PLANTS, planted
from refusals import reports
from schedules import FAULTS, OF_ALL, OF_INTERRUPTS, OF_PROGRAM, OF_RANKS, Fault, Simulation, Wrong, drawn, greenlets
from shrinking import failure, shrunk
from simulated_steps import KINDS, START, divided

import synkhronos as synk
from synkhronos.sync import control_block

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def closed():
    synk.close()
    gc.collect()
    yield
    synk.close()


def test_schedules_are_right():
    """A share of `make simulate`."""
    totals = Totals()
    with Simulation() as simulation:
        for seed in range(90, 150):
            _, points, switches = simulation.run(drawn(seed))
            assert points >= 500 and switches >= 50
            totals.schedules, totals.points = totals.schedules + 1, totals.points + points
        simulation.check_leftovers()
        totals.counts, totals.orders = simulation.scheduler.counts, simulation.scheduler.orders
        totals.faults, totals.steps = simulation.faults, simulation.steps
    assert set(totals.steps) == set(KINDS) and set(totals.faults) == set(FAULTS)
    assert len(totals.counts) > 100 and len(totals.both_orders) > 1000
    assert str(totals).startswith("60 schedules, 0 wrong")
    assert not greenlets()


def test_a_seed_replays_to_the_same_end():
    with Simulation() as simulation:
        first = [simulation.run(drawn(seed)) for seed in (3, 4, 5)]
        again = [simulation.run(drawn(seed)) for seed in (5, 4, 3)]
    assert first == again[::-1]
    assert len({digest for digest, _, _ in first}) == 3


def test_a_schedule_has_what_it_promises():
    schedules = [drawn(seed) for seed in range(300)]
    assert {schedule.n for schedule in schedules} == {2, 3, 4}
    assert all(10 <= len(schedule.steps) <= 12 for schedule in schedules)
    assert {fault.kind for schedule in schedules for fault in schedule.faults} == set(FAULTS)
    assert all(
        fault.rank != schedule.root for schedule in schedules for fault in schedule.faults if fault.kind == "death"
    )


def test_every_word_that_ranks_use_is_a_point():
    assert len(SESSION_WORDS) == control_block.N_SESSION_WORDS
    assert set(control_block.RANK_WORDS) - set(RANK_WORDS) == {"memory"}


def test_moments_of_faults_are_points():
    with Simulation() as simulation:
        for seed in range(12):
            simulation.run(drawn(seed)._replace(faults=()))
        assert {*OF_PROGRAM, *OF_RANKS, *OF_ALL, *OF_INTERRUPTS} <= set(simulation.scheduler.counts)


def test_deaths_at_every_point_of_a_command():
    """A rank dies at one point after another of a reduction; each time the values are old or new on all ranks."""
    schedule = drawn(0)._replace(n=2, root=0, heal=0, timeout=None, late_reports=0.0, looks=1)
    schedule = schedule._replace(steps=(("call", 1, 5), ("all_reduce", "w", "sum"), ("call", 2, 5), ("gather",)))
    with Simulation() as simulation:
        for point in range(1, 60):
            simulation.run(schedule._replace(faults=(Fault("death", 1, 1, point),)))
        assert simulation.faults["death"] >= 55
    with Simulation() as simulation:
        for point in range(1, 60, 3):
            simulation.run(schedule._replace(heal=1, faults=(Fault("death", 1, 1, point),)))


#: Programs in which the last command but one changes a variable in common memory, or moves it there; deaths are healed.
IN_COMMON_MEMORY = {
    "calls": [("exact_call", 1, 4), ("exact_call", 2, 4)],
    "steps": [("exact_call", 1, 4), ("exact_steps", 2, 3, 4)],
    "from the ranks' own memory": [*[("set_value", "u", rank, 5.0) for rank in range(3)], ("exact_steps", 2, 2, 4)],
    "apart": [("apart", 1), ("exact_steps", 2, 3, 4)],
    "to the ranks' own memory": [("exact_call", 1, 4), ("apart", 2)],
    "broadcast": [("exact_call", 1, 4), ("broadcast", "u", 5.0)],
    "all_gather": [("scatter", 2), ("all_gather",)],
    "all_reduce": [("exact_call", 1, 4), ("all_reduce", "u", "sum")],
    "all_reduce of the ranks' own values": [("set_value", "u", 1, 5.0), ("all_reduce", "u", "sum")],
}


def with_deaths_in_common_memory(simulation, name, stride=1):
    """Let a rank die at one point after another of the program's last command but one, ``stride`` points apart."""
    schedule = drawn(0)._replace(n=3, root=0, heal=1, timeout=None, late_reports=0.0, looks=1)
    schedule = schedule._replace(steps=(*IN_COMMON_MEMORY[name], ("exact_call", 3, 4), ("get_value", "u", 2)))
    deaths, step = 0, len(IN_COMMON_MEMORY[name]) - 1
    for point in range(1, 1000, stride):
        simulation.run(schedule._replace(faults=(Fault("death", 1, step, point),)))
        if simulation.faults["death"] == deaths:
            return
        deaths += 1


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", IN_COMMON_MEMORY)
def test_deaths_at_the_points_of_a_change_in_common_memory(name, stride):
    with Simulation() as simulation:
        with_deaths_in_common_memory(simulation, name, stride)
        assert simulation.replaced > 50 / stride


def test_the_error_names_the_rank_that_is_stuck():
    """A rank hangs at one point after another: no other rank is reported as missing, even between two writes.

    Earlier, the root waited for a wake-up although all ranks had arrived, and the error named all of them (schedule
    1522).
    """
    schedule = drawn(0)._replace(n=3, root=0, heal=0, timeout=2.0, late_reports=0.0, looks=1)
    schedule = schedule._replace(steps=(("call", 1, 5), ("all_reduce", "w", "sum"), ("gather",)))
    with Simulation() as simulation:
        for point in range(1, 45):
            simulation.run(schedule._replace(faults=(Fault("stuck", 2, 1, point),)))
        assert simulation.faults["stuck"] >= 40


def test_a_rank_that_stops_before_it_wakes_the_master_has_answered():
    """Earlier, the master waited for ever, although no answer was missing (schedule 110 over hosts)."""
    schedule = drawn(0)._replace(n=2, root=0, heal=0, timeout=2.0, late_reports=0.0, looks=1)
    schedule = schedule._replace(steps=(("call", 1, 5), ("call", 2, 5), ("gather",)))
    with Simulation() as simulation:
        for point in range(1, 60, 3):
            simulation.run(schedule._replace(faults=(Fault("stuck", 1, 1, point, at="semaphore posted"),)))
        assert simulation.faults["stuck"] >= 15


def test_a_failing_schedule_is_shrunk():
    with planted("one slot for all notices"), Simulation() as simulation:
        seed = next(seed for seed in range(20) if failure(simulation, drawn(seed)) is not None)
        wrong = failure(simulation, drawn(seed))
        schedule, found = shrunk(simulation, drawn(seed), wrong.kind)
        assert found.kind == wrong.kind
        assert len(schedule.steps) <= 3 and schedule.faults == () and schedule.switches < 1000
        again = failure(simulation, schedule)
        assert str(again) == str(found)
        assert str(schedule).count("\n") == len(schedule.steps)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(PLANTS))
def test_planted_faults_are_found(name):
    by = FOUND_BY.get(name, 0)
    if by in IN_COMMON_MEMORY:  # random schedules rarely begin steps from equal values in the ranks' own memory
        with planted(name), Simulation() as simulation, pytest.raises(Wrong):
            with_deaths_in_common_memory(simulation, by)
    else:
        found = find(name, 5000, by)
        assert found is not None, name


def test_a_plant_that_no_longer_fits_is_noticed(monkeypatch):
    owners, function, _ = PLANTS["one slot for all notices"]
    monkeypatch.setitem(protocol_faults.PLANTS, "stale", (owners, function, {"turn = 3": "turn = 0"}))
    with pytest.raises(AssertionError), planted("stale"):
        pass


def test_wrong_values_are_noticed(monkeypatch):
    """A value that only the model has is wrong."""
    kind = type(KINDS["get_value"])
    monkeypatch.setattr(kind, "run", lambda self, variables, name, rank: [np.array(7.5)])
    with Simulation() as simulation:
        with pytest.raises(Wrong):
            simulation.run(drawn(0)._replace(steps=(("get_value", "w", 0),), faults=()))


@pytest.fixture
def simulate():
    """The module tools/simulate.py."""
    spec = importlib.util.spec_from_file_location("simulate", ROOT / "tools" / "simulate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_command(simulate, capsys):
    assert simulate.main(["--seed", "3"]) == 0
    assert "3. " in capsys.readouterr().out
    done = subprocess.run(
        [sys.executable, simulate.__file__, "--schedules", "4", "--first", "7"], stdout=subprocess.PIPE, timeout=100
    )
    assert done.returncode == 0 and b"4 schedules, 0 wrong" in done.stdout


def test_the_command_shows_the_shortest_form(simulate, capsys):
    seed, _ = find("a missed wakeup of the master", 50)
    with planted("a missed wakeup of the master"):
        assert simulate.main(["--seed", str(seed)]) == 1
    assert "its shortest form" in capsys.readouterr().out


#: A campaign of six schedules whose file is written after every second schedule; or it is killed after the first time.
CAMPAIGN = """
import os, sys
sys.path[:0] = {folders}
import many_schedules, simulate
many_schedules.CHUNK, store = 2, many_schedules.Saved.store
if {dies}:
    many_schedules.Saved.store = lambda *args: (store(*args), os.kill(os.getpid(), 9))
sys.exit(simulate.main(["--schedules", "6", "--first", "5", "--save", {path}]))
"""


@pytest.mark.timeout(400)
def test_a_campaign_continues_after_a_kill(simulate, tmp_path):
    path = tmp_path / "totals.json"
    folders = [str(Path(simulate.__file__).parent), str(Path(__file__).parent)]

    def campaign(dies):
        script = CAMPAIGN.format(folders=folders, path=repr(str(path)), dies=dies)
        return subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=300)

    assert campaign(dies=True).returncode == -9
    from prove import code

    saved = Saved(path, code("tests/simulation"), "on one host")
    assert saved.totals().schedules == 2
    done = campaign(dies=False)
    assert done.returncode == 0 and b"6 schedules, 0 wrong" in done.stdout
    found, expected = (json.loads(path.read_text())["on one host"], run(range(5, 11)).to_json())
    found.pop("seconds"), expected.pop("seconds")
    assert found == json.loads(json.dumps(expected))
    assert found["seeds"] == [[5, 11]]


def test_only_schedules_of_one_version_are_added(tmp_path):
    path, totals = tmp_path / "totals.json", Totals()
    totals.failures.append(Failure(3, "values", "after call"))
    totals.seeds, totals.schedules = [(3, 5)], 2
    Saved(path, "this", "on one host").store(totals)
    Saved(path, "this", "over hosts").store(Totals())
    assert vars(Saved(path, "this", "on one host").totals()) == vars(totals)
    with reports(ValueError, "another version"):
        Saved(path, "other", "on one host")


def test_schedules_are_counted_once():
    assert missing([(0, 4), (6, 7)], 3, 9) == [4, 5, 7, 8]
    assert missing([], 3, 5) == [3, 4] and missing([(0, 9)], 3, 5) == []
    assert merged([(5, 6), (1, 3), (3, 4), (2, 3)]) == [(1, 4), (5, 6)]


def test_rows_of_ranks():
    x = np.arange(10.0).reshape(5, 2)
    assert [len(part) for part in divided(x, 3, 0)] == [2, 2, 1]
    assert [len(part) for part in divided(x[:2], 4, 3)] == [1, 0, 0, 1]
    assert set(START) == {"w", "v", "u"}
