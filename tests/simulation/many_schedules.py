"""Many schedules of the simulated world, on one or several cores, with their totals."""

import functools
import multiprocessing
import os
from collections import Counter
from typing import NamedTuple

from protocol_faults import PLANTS_OVER_HOSTS, planted
from schedules import Simulation, Wrong, drawn, drawn_over_hosts

CHUNK = 200  # schedules in one process, which then checks that nothing is left


class Totals:
    """What many schedules have done.

    ``orders`` are pairs of points that were pending at the same time, the one that came first before the other.
    """

    def __init__(self):
        self.schedules = self.points = self.switches = self.replaced = 0
        self.counts, self.faults, self.steps = Counter(), Counter(), Counter()
        self.orders, self.failures = set(), []

    def add(self, other):
        for name in ("schedules", "points", "switches", "replaced"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.counts.update(other.counts)
        self.faults.update(other.faults)
        self.steps.update(other.steps)
        self.orders |= other.orders
        self.failures += other.failures

    @property
    def both_orders(self):
        """The pairs of different points that were seen in both orders."""
        return {(a, b) for a, b in self.orders if a < b and (b, a) in self.orders}

    def __str__(self):
        faults = ", ".join(f"{name} {count:,}" for name, count in sorted(self.faults.items()))
        n = max(1, self.schedules)
        return (
            f"{self.schedules:,} schedules, {len(self.failures)} wrong; {self.points:,} points visited "
            f"({self.points // n:,} in a schedule, with {self.switches // n:,} switches); {len(self.counts)} different "
            f"points; {len(self.both_orders):,} pairs of points in both orders; {sum(self.steps.values()):,} steps of "
            f"{len(self.steps)} kinds; faults: {faults}; ranks replaced: {self.replaced:,}"
        )


class Failure(NamedTuple):
    seed: int
    kind: str
    text: str


def run(seeds, draw=drawn):
    """Run the schedules of some seeds in this process, which must call this in its main thread; return `Totals`."""
    totals = Totals()
    with Simulation() as simulation:
        for number, seed in enumerate(seeds, 1):
            try:
                _, points, switches = simulation.run(draw(seed))
                totals.points += points
                totals.switches += switches
                if number == len(seeds):
                    simulation.check_leftovers()
            except Wrong as wrong:
                totals.failures.append(Failure(seed, wrong.kind, str(wrong)[:2000]))
            totals.schedules += 1
        scheduler = simulation.scheduler
        totals.counts, totals.orders = scheduler.counts, scheduler.orders
        totals.faults, totals.steps, totals.replaced = simulation.faults, simulation.steps, simulation.replaced
    return totals


def _pin(cores):
    with cores.get_lock():
        core, cores.value = cores.value, cores.value + 1
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {usable[core % len(usable)]})  # threads that take turns are slower on several cores


def run_on(n_cores, first, count, progress, draw=drawn):
    """Run ``count`` schedules from the seed ``first`` on, in several processes; call ``progress`` with the totals."""
    totals = Totals()
    chunks = [range(begin, min(first + count, begin + CHUNK)) for begin in range(first, first + count, CHUNK)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(n_cores, _pin, (context.Value("i", 0),)) as pool:
        for part in pool.imap_unordered(functools.partial(run, draw=draw), chunks):
            totals.add(part)
            progress(totals)
    return totals


def find(name, most):
    """Plant a fault and return the seed that finds it, with its failure; None if ``most`` schedules do not find it."""
    draw = drawn_over_hosts if name in PLANTS_OVER_HOSTS else drawn
    with planted(name), Simulation() as simulation:
        for seed in range(most):
            try:
                simulation.run(draw(seed))
            except Wrong as wrong:
                return seed, wrong
    return None
