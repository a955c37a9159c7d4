"""Many schedules of the simulated world, on one or several cores, with their totals."""

import functools
import json
import multiprocessing
import os
import time
from collections import Counter
from typing import NamedTuple

from protocol_faults import PLANTS_OVER_HOSTS, planted
from schedules import Simulation, Wrong, drawn, drawn_over_hosts

CHUNK = 200  # schedules in one process, which then checks that nothing is left


class Failure(NamedTuple):
    seed: int
    kind: str
    text: str


class Totals:
    """What many schedules have done.

    ``seeds`` are ranges of their seeds, as pairs of the first and the one after the last, and ``seconds`` is the CPU
    time. ``orders`` are pairs of points that were pending at the same time, the one that came first before the other.
    """

    def __init__(self):
        self.schedules = self.points = self.switches = self.replaced = 0
        self.seconds = 0.0
        self.counts, self.faults, self.steps = Counter(), Counter(), Counter()
        self.orders, self.failures, self.seeds = set(), [], []

    def add(self, other):
        for name, value in vars(other).items():
            own = getattr(self, name)
            if isinstance(own, (Counter, set)):
                own.update(value)
            else:
                setattr(self, name, own + value)
        self.seeds = merged(self.seeds)

    def to_json(self):
        return {**vars(self), "orders": sorted(self.orders)}

    @classmethod
    def from_json(cls, stored):
        found = cls()
        for name, value in stored.items():
            of_items = {"orders": tuple, "seeds": tuple, "failures": lambda each: Failure(*each)}.get(name)
            value = value if of_items is None else map(of_items, value)
            setattr(found, name, type(getattr(found, name))(value))
        return found

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
            f"{len(self.steps)} kinds; faults: {faults}; ranks replaced: {self.replaced:,}; "
            f"{1000 * self.seconds / n:.3g} ms of CPU time for a schedule"
        )


def merged(ranges):
    """Return sorted ranges without adjacent or overlapping ones."""
    found = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found


def missing(ranges, first, end):
    """Return the seeds from ``first`` on, before ``end``, that are in none of the ranges."""
    done = {seed for begin, stop in ranges for seed in range(max(first, begin), min(end, stop))}
    return [seed for seed in range(first, end) if seed not in done]


class Saved:
    """Totals in a file, which only schedules of one version of the code are added to; ``name`` is a kind of schedules.

    The file is replaced as a whole, so a campaign that is killed loses only the schedules since the last `store`.
    """

    def __init__(self, path, code, name):
        self._path, self._name = path, name
        self._values = json.loads(path.read_text()) if path.exists() else {"code": code}
        if self._values["code"] != code:
            raise ValueError(f"{path} has schedules of another version of the code: {self._values['code']}, not {code}")

    def totals(self):
        return Totals.from_json(self._values.get(self._name, {}))

    def store(self, totals):
        self._values[self._name] = totals.to_json()
        new = self._path.with_name(self._path.name + ".new")
        new.write_text(json.dumps(self._values))
        new.replace(self._path)


def run(seeds, draw=drawn):
    """Run the schedules of some seeds in this process, which must call this in its main thread; return `Totals`."""
    totals, began = Totals(), time.process_time()
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
    totals.seeds, totals.seconds = merged((seed, seed + 1) for seed in seeds), time.process_time() - began
    return totals


def _pin(cores):
    with cores.get_lock():
        core, cores.value = cores.value, cores.value + 1
    usable = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {usable[core % len(usable)]})  # threads that take turns are slower on several cores


def run_on(n_cores, first, count, progress, draw=drawn, totals=None):
    """Run ``count`` schedules from the seed ``first`` on, in several processes; call ``progress`` with the totals.

    Schedules that are already in ``totals`` are left out; the others are added.
    """
    totals = totals or Totals()
    seeds = missing(totals.seeds, first, first + count)
    chunks = [seeds[begin : begin + CHUNK] for begin in range(0, len(seeds), CHUNK)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(n_cores, _pin, (context.Value("i", 0),)) as pool:
        for part in pool.imap_unordered(functools.partial(run, draw=draw), chunks):
            totals.add(part)
            progress(totals)
    return totals


def find(name, most, first=0):
    """Plant a fault and return the seed that finds it, with its failure; None if ``most`` schedules do not find it.

    Their seeds are tried from ``first`` on, then from 0 on.
    """
    draw = drawn_over_hosts if name in PLANTS_OVER_HOSTS else drawn
    with planted(name), Simulation() as simulation:
        for seed in [*range(first, most), *range(first)]:
            try:
                simulation.run(draw(seed))
            except Wrong as wrong:
                return seed, wrong
    return None
