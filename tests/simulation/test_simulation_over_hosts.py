"""The simulated world with several hosts: few schedules of the campaign, and faults of their protocol that it finds.

Modules: `simulated_network`, `operating_system`, `schedules`.
"""

import gc
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from many_schedules import Totals, find
from protocol_faults import ALONE, FOUND_BY, PLANTS_OVER_HOSTS, planted
from schedules import (
    ENGINE_POINT,
    LONG_PAUSE_S,
    OF_HOSTS,
    OF_INTERRUPTS_OVER_HOSTS,
    OF_SERVERS,
    Fault,
    Schedule,
    Simulation,
    Wrong,
    drawn_over_hosts,
)
from shrinking import failure, shrunk
from simulated_network import Behavior
from simulated_steps import LARGE, SMALL
from turns_of_ranks import FOREVER

import synkhronos as synk
from synkhronos.cluster.bulk_transfers import CARRIED_BYTES
from synkhronos.cluster.requests import Requests

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def closed():
    synk.close()
    gc.collect()
    yield
    synk.close()


def of_leader(heal, *steps):
    """Return a schedule of a rank on the first host, and two on the second, without faults."""
    one = drawn_over_hosts(0)._replace(n=3, root=0, hosts=(1, 2), heal=heal, standby=False, timeout=None, looks=1)
    return one._replace(late_reports=0.0, faults=(), network=Behavior(), steps=steps)


def with_interrupts(simulation):
    """Interrupt the program at one point after another of steps that change a variable in the hosts' common memory."""
    steps = ("exact_call", 1, 4), ("exact_steps", 2, 2, 4), ("exact_call", 3, 4), ("get_value", "u", 2)
    interrupts = 0
    for point in range(1, 1000, 5):
        simulation.run(of_leader(0, *steps)._replace(faults=(Fault("interrupt", 0, 1, point),)))
        if simulation.faults["interrupt"] == interrupts:
            break
        interrupts += 1
    assert interrupts > 10


def test_all_hosts_have_the_values_of_one_moment():
    with Simulation() as simulation:
        with_interrupts(simulation)


def test_a_host_that_commits_alone_is_found():
    with planted(ALONE), Simulation() as simulation, pytest.raises(Wrong):
        with_interrupts(simulation)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("again", [0, 30])
def test_deaths_while_hosts_write_to_common_memory(rank, again):
    """Rank 1 has the common memory of the second host. With ``again``, the process that replaces it dies, too."""
    steps = ("exact_call", 1, 8), ("exact_steps", 2, 3, 4), ("exact_call", 3, 4), ("get_value", "u", 2)
    schedule = of_leader(9, *steps)
    with Simulation() as simulation:
        for point in range(1, 1900 if rank == 1 else 600, 41 if rank == 1 else 13):
            simulation.run(schedule._replace(order=point, faults=(Fault("death", rank, 1, point, again=again),)))
        assert simulation.replaced >= (60 if again else 30)


def test_schedules_over_hosts_are_right():
    """A share of `make simulate`."""
    totals = Totals()
    with Simulation() as simulation:
        for seed in range(24):
            _, points, switches = simulation.run(drawn_over_hosts(seed))
            assert points >= 500 and switches >= 50
            totals.schedules, totals.points = totals.schedules + 1, totals.points + points
        simulation.check_leftovers()
        totals.counts, totals.faults, totals.steps = simulation.scheduler.counts, simulation.faults, simulation.steps
    assert str(totals).startswith("24 schedules, 0 wrong") and len(totals.counts) > 130
    assert set(OF_HOSTS) & set(totals.faults)


def test_a_seed_replays_to_the_same_end():
    with Simulation() as simulation:
        first = [simulation.run(drawn_over_hosts(seed)) for seed in (3, 4, 5)]
        again = [simulation.run(drawn_over_hosts(seed)) for seed in (5, 4, 3)]
    assert first == again[::-1]
    assert len({digest for digest, _, _ in first}) == 3


def test_a_schedule_has_what_it_promises():
    schedules = [drawn_over_hosts(seed) for seed in range(400)]
    assert {len(schedule.hosts) for schedule in schedules} == {2, 3}
    assert {count for schedule in schedules for count in schedule.hosts} == {1, 2, 3}
    assert all(10 <= len(schedule.steps) <= 12 for schedule in schedules)
    faults = {(fault.kind, fault.rank) for schedule in schedules for fault in schedule.faults}
    assert {(kind, 1) for kind in OF_HOSTS} | {("server", 0), ("slow", 0), ("keeper", 0), ("keeper", 1)} <= faults
    assert not {("cut", 0), ("power", 0)} & faults  # the program stays reachable
    assert "ranks by host: (" in str(schedules[0])


def test_moments_of_faults_are_points():
    with Simulation() as simulation:
        for seed in range(12):
            simulation.run(drawn_over_hosts(seed))
        schedule = of_leader(0, ("call", 1, 5), ("exact_call", 1, 5))
        simulation.run(schedule._replace(faults=(Fault("exception", 2, 1, 1, at=ENGINE_POINT),)))
        assert {*OF_SERVERS, *OF_INTERRUPTS_OVER_HOSTS} <= set(simulation.scheduler.counts)


def test_mpi_carries_large_arrays_and_only_these():
    schedule = of_leader(0, ("all_reduce", "v", "sum"), ("all_reduce", "w", "sum"), ("get_value", "v", 2))
    assert 8 * np.prod(SMALL) < CARRIED_BYTES < 8 * np.prod(LARGE)
    with Simulation() as simulation:
        for has_mpi in (True, False):
            before = simulation.scheduler.counts["MPI send"]
            simulation.run(schedule._replace(network=Behavior(has_mpi=has_mpi)))
            assert (simulation.scheduler.counts["MPI send"] > before) == has_mpi


def test_deaths_of_a_leader_at_every_third_point_of_a_command():
    """Its host's ranks get the command although it dies between its delivery and their wake-up.

    Earlier, they slept for ever (seed 2436 of an earlier drawing: a leader died in ``_deliver``).
    """
    schedule = of_leader(1, ("call", 1, 5), ("exact_call", 1, 5), ("all_reduce", "v", "sum"), ("gather",))
    with Simulation() as simulation:
        for point in range(1, 90, 3):
            simulation.run(schedule._replace(faults=(Fault("death", 1, 1 + point % 2, point),)))
        assert simulation.faults["death"] >= 25 and simulation.replaced >= 25


@pytest.mark.parametrize("kind", ["server", "cut", "power"])
def test_a_host_is_lost_at_many_points_of_a_command(kind):
    """The error names the host, the values are old or new, and the program continues on the first host.

    A cable that is cut in the middle of a frame must not make the root poll without pause (seed 1168).
    """
    schedule = of_leader(0, ("call", 1, 5), ("all_reduce", "v", "sum"), ("call", 2, 5), ("gather",))
    with Simulation() as simulation:
        for point in range(1, 60, 5):
            simulation.run(schedule._replace(faults=(Fault(kind, 1, 1, point),)))
        assert simulation.faults[kind] >= 8


@pytest.mark.parametrize("has_mpi", [True, False])
@pytest.mark.parametrize("rank", [1, 2])
def test_only_a_stopped_rank_is_replaced(rank, has_mpi):
    """The others wait for it: its host's ranks if they have not been woken, and all ranks if MPI reduces values."""
    steps = ("call", 1, 5), ("exact_call", 1, 5), ("all_reduce", "v", "sum"), ("distribute",)
    schedule = of_leader(1, *steps)._replace(timeout=2.0, network=Behavior(has_mpi=has_mpi))
    with Simulation() as simulation:
        for point in range(1, 160, 3):
            simulation.run(schedule._replace(order=point, faults=(Fault("stuck", rank, point % 4, point),)))
        assert simulation.replaced >= 30


@pytest.mark.parametrize("kind", ["server", "cut", "power"])
@pytest.mark.parametrize("hosts", [(1, 1, 2), (2, 2)])
def test_a_host_is_lost_while_the_bridge_pauses(kind, hosts):
    """MPI then fails before the bridge notices the loss, which is the cause."""
    schedule = of_leader(0, ("call", 1, 7), ("all_reduce", "v", "sum"), ("get_value", "v", 3), ("gather",))
    schedule = schedule._replace(n=4, hosts=hosts, network=Behavior(mpi_fails=True, mpi_delay_s=1e-3))
    with Simulation() as simulation:
        for point in range(1, 60, 4):
            faults = Fault(kind, 1, 1 + point % 3, point), Fault("slow", 0, 1 + point % 3, point + 7, LONG_PAUSE_S)
            simulation.run(schedule._replace(order=point, faults=faults))
        assert simulation.faults["slow"] >= 8 and simulation.faults[kind] >= 8


#: The shortest forms of schedules that found faults of the library.
FOUND = {
    "seed 237: Ctrl-C kept a decision from the other hosts, whose ranks waited until the next command": Schedule(
        *(3, 0, 1, False, None, 0.0, 1, (("exchange", "w"), ("scatter", 2))),
        (Fault("interrupt", 0, 1, 65),),
        *(1083038766, 0, (1, 2), Behavior(2e-5, 1 << 17, True, False, 2e-4)),
    ),
    "seed 2517: the error named a rank that waited for its stuck leader": Schedule(
        *(3, 0, 1, False, 2.0, 0.0, 2),
        (
            *(("exact_steps", 0, 2, 5), ("all_reduce_both",), ("exact_call", 0, 8), ("gather",), ("call", 6, 2)),
            *(("call_alike", 3, 6), ("growing_data", 2), ("broadcast", "w", 5.0)),
        ),
        (Fault("stuck", 1, 7, 98),),
        *(247161931, FOREVER, (1, 2), Behavior(1e-3, 1 << 18, True, True, 1e-2)),
    ),
    "seed 100354: after the loss of a host, the bridge waited for MPI, whose failure was then taken for the cause": Schedule(
        *(7, 0, 1, False, 2.0, 0.0, 1, (("gather",),)),
        (Fault("power", 1, 0, 57),),
        *(2644431565, 0, (3, 1, 3), Behavior(1e-4, 1 << 17, True, True, 1e-4)),
    ),
    "seed 700171: after a pause of the bridge, MPI's failure was noticed before the loss of a host that had caused it": Schedule(
        *(5, 0, 3, False, None, 0.01, 1, (("reopen",), ("get_value", "v", 0))),
        (Fault("cut", 2, 1, 3, 10.0), Fault("slow", 0, 1, 28, 10.0)),
        *(2379597885, 2, (1, 3, 1), Behavior(1e-4, 1 << 18, True, True, 1e-4)),
    ),
    "seed 700355: the ranks that a stopped leader had not woken were replaced, too": Schedule(
        *(7, 0, 1, False, 2.0, 0.0, 2, (("exact_steps", 0, 5, 7), ("joint_steps", 1, 5, 7))),
        (Fault("stuck", 4, 1, 7, 0.15),),
        *(1344491714, 0, (1, 3, 3), Behavior(1e-4, 1 << 18, True, False, 1e-3)),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_faults_that_schedules_have_found(name):
    with Simulation() as simulation:
        simulation.run(FOUND[name])
        assert sum(simulation.faults.values()) == len(FOUND[name].faults)


def test_a_failing_schedule_is_shrunk():
    with planted("memory that is announced before it is there"), Simulation() as simulation:
        failures = ((seed, failure(simulation, drawn_over_hosts(seed))) for seed in range(10, 40))
        seed, wrong = next(each for each in failures if each[1] is not None and each[1].kind == "values")
        schedule, found = shrunk(simulation, drawn_over_hosts(seed), wrong.kind)
        assert found.kind == wrong.kind and len(schedule.steps) <= 4
        assert str(failure(simulation, schedule)) == str(found)


def test_an_internal_error_of_a_serving_process_is_noticed(monkeypatch):
    monkeypatch.setattr(Requests, "_tell", None)
    with Simulation() as simulation, pytest.raises(Wrong) as raised:
        schedule = of_leader(0, ("get_value", "v", 2), ("gather",))
        simulation.run(schedule._replace(network=Behavior(has_mpi=False)))
    assert "NoneType" in str(raised.value)


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("name", sorted({*PLANTS_OVER_HOSTS} - {ALONE}))
def test_planted_faults_are_found(name):
    found = find(name, 5000, FOUND_BY.get(name, 0))
    assert found is not None, name


def test_the_command(capsys):
    spec = importlib.util.spec_from_file_location("simulate", ROOT / "tools" / "simulate.py")
    simulate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(simulate)
    assert simulate.main(["--hosts", "--seed", "3"]) == 0
    assert "ranks by host" in capsys.readouterr().out
