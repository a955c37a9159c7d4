"""Measure the cost of several simulated hosts with links of 1 Gbit/s, and compare it with the goals.

python -m benchmarks.hosts                  # all parts, a quarter of an hour; writes its section of docs/performance.md
python -m benchmarks.hosts --quick          # a few minutes; writes nothing
python -m benchmarks.hosts --only bulk small

The benchmark needs root to simulate hosts, and an environment that `make install-hosts` created.
"""

import argparse
import datetime
import sys
from typing import NamedTuple

import numpy as np

from benchmarks.hosts.link import lacking, pretend_hosts
from benchmarks.hosts.small import SIZES_KIB
from benchmarks.report import machine, put
from synkhronos.contrib.prediction.links import fit

#: Bits per second of the links, and of slower links that give hosts on two shared cores time to compute.
RATE, SLOW = 1e9, 1e8
TRIP = "control round trip"
BEGIN = "<!-- written by make bench-hosts: begin -->\n"


class Row(NamedTuple):
    """Measurement, and its goal if it has a limit; times are in milliseconds."""

    what: str
    beside: str
    ours: float
    other: float
    limit: float = 0.0
    least: bool = False

    @property
    def ratio(self):
        """The ratio to compare with the limit."""
        return self.other / self.ours if self.least else self.ours / self.other

    def __str__(self):
        met = self.ratio >= self.limit if self.least else self.ratio <= self.limit
        goal = (
            f"{'≥' if self.least else '≤'} {self.limit:.2f} | {'met' if met else '**not met**'}"
            if self.limit
            else " | "
        )
        return f"| {self.what} | {self.beside} | {self.ours:.4g} | {self.other:.4g} | {self.ratio:.2f} | {goal} |"


def bulk(kind, quick):
    """Yield rows and sentences about reductions of large arrays, and a prediction for more hosts."""
    measured = []
    for hosts in (2, 3, 4):
        with pretend_hosts(kind, hosts, RATE) as run:
            sizes = (1, 16) if quick else (1, 16, 100)
            options = ["--repeats", 3 if quick else 7, "--megabytes", *sizes]
            alone = run("bulk", "--rate", RATE, *options)
            whole = run("large", *options)
        carried = {(row["megabytes"], row["way"]): row["ms"] for row in alone}
        times = {(row["megabytes"], row["way"], row["case"]): row["ms"] for row in whole}
        for size in sizes:
            ours, half = (times[size, way, "in slots"] for way in ("float32", "bfloat16"))
            updated, theirs = times[size, "float32", "updated"], carried[size, "mpi"]
            nbytes = 4 * int(size * 1e6 / 4)
            bound = 1e3 * 2 * (hosts - 1) / hosts * nbytes * 8 / RATE
            between = carried[size, "float32"]
            measured.append((hosts, nbytes, between / 1e3))
            if size > 1 and hosts != 3:
                what = f"all_reduce in slots, {size:g} MB, {hosts} hosts"
                yield Row(what, "the link's bound", ours, bound, 1.08)
                yield Row(f"{what}, bfloat16", "float32", half, ours, 0.55)
                if hosts == 4:
                    yield Row(what, f"`Allreduce` of {kind}", ours, theirs, 0.5)
                yield (
                    f"{what[0].upper() + what[1:]}: the part between the hosts alone takes {between:.4g} ms. For an "
                    f"updated value, which must be copied first, the whole operation takes {updated:.4g} ms."
                )
    yield prediction(fit(measured))


def prediction(model):
    """Return the model's predictions for more hosts, as sentences and a table."""
    sizes = {"0.64 MB (the CNN of the demos)": 641448, "16 MB": 16e6, "102 MB (ResNet-50)": 102.4e6}
    counts = (2, 4, 8, 64, 1024)
    lines = [
        "The next table shows predicted, not measured, times of an `all_reduce` between more hosts, in milliseconds, "
        "with links of 1 Gbit/s. The model of synkhronos/contrib/prediction/links.py was fitted to measurements with "
        f"2, 3 and 4 hosts (within {100 * model.error:.0f} %). It adds up {1e3 * model.start:.2g} ms per operation, "
        f"{1e6 * model.per_message:.2g} µs per message, and {1e9 * model.per_byte:.3g} ns per byte.",
        "",
        "| hosts | " + " | ".join(sizes) + " |",
        "| ---: |" + " ---: |" * len(sizes),
    ]
    for hosts in counts:
        times = [f"{1e3 * model.seconds(hosts, nbytes):.4g}" for nbytes in sizes.values()]
        lines.append(f"| {hosts:,} | " + " | ".join(times) + " |")
    return "\n".join(lines)


def small(kind, quick):
    """Yield rows about small messages, calls and idle processes."""
    with pretend_hosts(kind, 2) as run:
        ms = of_link_and_program(run, quick, "--divide-cores")  # a host's processes never wait for another host's
        waiting = run("small", "waiting", "--seconds", 5 if quick else 20)
    yield Row("all_reduce of 4 KiB, 2 hosts", "mpi4py `Allreduce`", *ms["all_reduce, 4 KiB"], 3)
    yield Row("call without inputs, 2 hosts", "control round trip", ms["call without inputs"][0], ms[TRIP][0], 2)
    for row in waiting:
        yield Row(f"waiting, {row['what']}, % of a core", "1 %", row["percent"], 1.0, 1)


def of_link_and_program(run, quick, *options):
    """Return the median times in milliseconds of our operations, and of mpi4py's for the same size if there are any."""
    times = {}
    for _ in range(2 if quick else 5):
        for what in ("link", "program"):
            for row in run("small", what, "--repeats", 300 if quick else 1000, *options):
                times.setdefault(row["what"], []).extend(row["us"])
    ms = {what: float(np.median(values)) / 1e3 for what, values in times.items()}
    return {what: (each, ms.get(what.replace("all_reduce", "mpi4py Allreduce"), each)) for what, each in ms.items()}


def sizes(kind, quick):
    """Yield rows about values that travel with notices, on a link of limited rate, and about slightly larger ones."""
    with pretend_hosts(kind, 2, RATE) as run:
        ms = of_link_and_program(run, quick)
    at = " at 1 Gbit/s, 2 hosts"
    yield Row(f"all_reduce of 9 KiB{at}", "8 KiB", ms["all_reduce, 9 KiB"][0], ms["all_reduce, 8 KiB"][0], 1.5)
    bound = 1e3 * 65536 * 8 / RATE + ms[TRIP][0]
    yield Row(f"all_reduce of 64 KiB{at}", "the link's time and a round trip", ms["all_reduce, 64 KiB"][0], bound, 1.3)
    for size in SIZES_KIB:
        yield Row(f"all_reduce of {size} KiB{at}", "mpi4py `Allreduce`", *ms[f"all_reduce, {size} KiB"])


def meanwhile(kind, quick):
    """Yield rows about the part of a reduction that computation hides."""
    with pretend_hosts(kind, 2, SLOW) as run:
        for row in run("meanwhile", "--repeats", 3 if quick else 9):
            less = min(row["communicate_ms"], row["compute_ms"])
            what = f"part of 16 MB hidden by computation, {SLOW / 1e6:.0f} Mbit/s"
            form = "" if row["exchange"] == "none" else f", {row['exchange']}"
            yield Row(what + form, "the shorter of the two times", less, less * row["hidden"], 0.9, True)


def training(kind, quick):
    """Yield rows for Theano-MPI's case and for DASO's case, and a paragraph about DASO's accuracy."""
    rounds, repeats, epochs = (1, 2, 5) if quick else (3, 3, 10)
    ours, apart = [], []
    with pretend_hosts(kind, 2, RATE) as run:
        for _ in range(rounds):
            (found,), (beside,) = run("training", "cnn", repeats), run("training", "apart", repeats)
            ours += found["seconds"]
            apart += beside["seconds"]
    link = found["nbytes"] * found["steps"] * 8 / RATE
    best = float(np.median(apart)) + link
    what = "two simultaneous programs plus the link's bound"
    yield Row("epoch of MNIST, CNN, 2 hosts, 1 Gbit/s", what, 1e3 * float(np.median(ours)), 1e3 * best, 0.93, True)
    with pretend_hosts(kind, 2) as run:
        (alone,) = run("training", "alone", repeats, "--epochs", 5)
    step = float(np.median(alone["seconds"])) / alone["steps"]
    rate = alone["nbytes"] * 8 / step
    with pretend_hosts(kind, 2, rate) as run:
        found = {way: run("training", way, repeats, "--epochs", epochs)[0] for way in ("synchronous", "DASO", "alone")}
    ms = {way: 1e3 * float(np.median(row["seconds"])) for way, row in found.items()}
    yield Row("DASO's case, k = 4, an epoch", "synchronous training", ms["DASO"], ms["synchronous"], 0.66)
    right = {way: 100 * float(np.median(row["accuracy"])) for way, row in found.items()}
    yield (
        f"DASO's case: a step takes {1e3 * step:.1f} ms alone, and sending its {alone['nbytes'] / 1e6:.2f} MB over a "
        f"link of {rate / 1e6:.0f} Mbit/s takes as long. After {epochs} epochs, {right['synchronous']:.1f} % of the "
        f"test digits are classified correctly with synchronous steps, and {right['DASO']:.1f} % with DASO (goal: "
        "within 1.5 points). An epoch without any communication takes "
        f"{ms['alone'] / ms['synchronous']:.2f} times as long as with synchronous steps."
    )


PARTS = {"small": small, "sizes": sizes, "bulk": bulk, "meanwhile": meanwhile, "training": training}


def main(arguments=None):
    """Run the benchmark with the command-line options; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), help="only these parts")
    parser.add_argument("--mpi", choices=["openmpi", "mpich"], default="mpich")
    given = parser.parse_args(arguments)
    why_not = lacking(given.mpi)
    if why_not:
        print(why_not)
        return 2
    rows, words = [], []
    for name in given.only or PARTS:
        for found in PARTS[name](given.mpi, given.quick):
            (rows if isinstance(found, Row) else words).append(found)
            print(found, flush=True)
    table = [
        "| measurement | reference | ours, ms | reference, ms | ratio | goal | |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    head = f"Date: {datetime.date.today()}. Machine: {machine()}; {given.mpi}."
    text = "\n".join([head, "", *table, *map(str, rows), "", "\n\n".join(words), ""])
    if not (given.quick or given.only):
        put(text, BEGIN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
