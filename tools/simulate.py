"""Run schedules of the simulated world (tests/simulation): every order of the ranks, with faults, from a seed.

    python tools/simulate.py                              # as `make simulate`: about two minutes on one core
    python tools/simulate.py --schedules 1000000 --cores 2
    python tools/simulate.py --hosts --schedules 100000   # schedules of two and three hosts
    python tools/simulate.py --schedules 1000000 --save build/simulated.json   # continues where it was interrupted
    python tools/simulate.py --seed 1234                  # one schedule, printed; if it fails, also its shortest form
    python tools/simulate.py --plants                     # plant the faults of the protocol; each must be found

The first seed is ``--first``; with ``--hosts``, seeds mean other schedules. With ``--save``, a file has the totals of
all runs with one version of the code, and only schedules that it lacks are run. The exit status is 1 if a schedule is
wrong, or a planted fault is not found.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import List, Optional

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "simulation"), str(ROOT / "tools")]

SCHEDULES, SCHEDULES_OVER_HOSTS = 2400, 400
PLANTED_SCHEDULES = 5000  # within which a planted fault must be found


def replay(seed: int, over_hosts: bool) -> int:
    """Run one schedule; print it, and its shortest form if it fails."""
    from schedules import Simulation, drawn, drawn_over_hosts
    from shrinking import failure, shrunk

    with Simulation() as simulation:
        schedule = drawn_over_hosts(seed) if over_hosts else drawn(seed)
        print(schedule)
        wrong = failure(simulation, schedule)
        if wrong is None:
            print(f"right: {simulation.scheduler.total} points, {simulation.scheduler.switches} switches")
            return 0
        print(f"\n{wrong}\n\nits shortest form:", flush=True)
        schedule, wrong = shrunk(simulation, schedule, wrong.kind)
        print(f"{schedule}\n\n{schedule!r}\n\n{wrong}")
    return 1


def plant(most: int) -> int:
    """Plant every fault of the protocol, and print the seed that finds it."""
    from many_schedules import find
    from protocol_faults import FOUND_BY, PLANTS, PLANTS_OVER_HOSTS

    absent = 0
    for name in [*PLANTS, *PLANTS_OVER_HOSTS]:
        if isinstance(FOUND_BY.get(name), str):
            print(f"{name}: only tests/simulation/test_simulation.py finds it, with a program {FOUND_BY[name]}")
            continue
        found = find(name, most)
        absent += found is None
        text = f"not found in {most} schedules" if found is None else f"schedule {found[0]}: {found[1].kind}"
        print(f"{name}: {text}", flush=True)
    return int(absent > 0)


def campaign(first: int, count: int, n_cores: int, over_hosts: bool, save: Optional[Path]) -> int:
    """Run many schedules and print their totals, with those of a file."""
    from many_schedules import Saved, run_on
    from prove import code
    from schedules import drawn, drawn_over_hosts

    draw, option = (drawn_over_hosts, " --hosts") if over_hosts else (drawn, "")
    began = last = time.monotonic()
    saved = save and Saved(save, code("tests/simulation"), "over hosts" if over_hosts else "on one host")

    def progress(totals: object) -> None:
        nonlocal last
        if saved:
            saved.store(totals)
        if time.monotonic() - last > 10:
            last = time.monotonic()
            print(f"{last - began:.0f} s: {totals}", flush=True)

    totals = run_on(n_cores, first, count, progress, draw, saved and saved.totals())
    kind = "over hosts: " if over_hosts else ""
    print(f"{kind}{totals}; {time.monotonic() - began:.0f} s on {n_cores} cores")
    for failure in totals.failures[:20]:
        print(f"\nschedule {failure.seed} (python tools/simulate.py{option} --seed {failure.seed}): {failure.text}")
    return int(bool(totals.failures))


def main(arguments: Optional[List[str]] = None) -> int:
    """Run what the command line selects; return the exit status."""
    parser = argparse.ArgumentParser(description="Run schedules of the simulated world.")
    text = f"number (default: {SCHEDULES}, and {SCHEDULES_OVER_HOSTS} over hosts)"
    parser.add_argument("--schedules", type=int, help=text)
    parser.add_argument("--hosts", action="store_true", help="only schedules of several hosts")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--cores", type=int, default=1, help="number of processes (default: 1)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="add the totals to this file, and continue it")
    parser.add_argument("--seed", type=int, help="run only the schedule of this seed, and print it")
    parser.add_argument("--plants", action="store_true", help="plant faults of the protocol instead")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return replay(given.seed, given.hosts)
    if given.plants:
        return plant(PLANTED_SCHEDULES)
    n_cores, status = min(given.cores, os.cpu_count() or 1), 0
    for over_hosts, default in ((False, SCHEDULES), (True, SCHEDULES_OVER_HOSTS)):
        if over_hosts == given.hosts or given.schedules is None and not given.hosts:
            status |= campaign(given.first, given.schedules or default, n_cores, over_hosts, given.save)
    return status


if __name__ == "__main__":
    sys.exit(main())
