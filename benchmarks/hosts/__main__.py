"""Measure what several hosts cost, on pretend hosts with links of 1 Gbit/s, and judge it by the goals.

python -m benchmarks.hosts                  # all of it, a quarter of an hour; writes its part of docs/performance.md
python -m benchmarks.hosts --quick          # a few minutes; writes nothing
python -m benchmarks.hosts --only bulk small

It needs root, for the pretend hosts, and an environment of `make install-hosts`.
"""

import argparse
import datetime
import sys
from typing import NamedTuple

import numpy as np

from benchmarks.hosts.link import lacking, pretend_hosts
from benchmarks.report import machine, put
from synkhronos.prediction.links import fit

#: Bits per second of the links; and of slower ones, where two hosts that share two cores can compute meanwhile.
RATE, SLOW = 1e9, 1e8
BEGIN = "<!-- written by make bench-hosts: begin -->\n"


class Row(NamedTuple):
    """A goal, and what was measured: times in milliseconds."""

    what: str
    beside: str
    ours: float
    other: float
    limit: float
    least: bool = False

    @property
    def ratio(self):
        """What the goal is about."""
        return self.other / self.ours if self.least else self.ours / self.other

    def __str__(self):
        met = self.ratio >= self.limit if self.least else self.ratio <= self.limit
        goal = f"{'≥' if self.least else '≤'} {self.limit:.2f} | {'met' if met else '**not met**'}"
        return f"| {self.what} | {self.beside} | {self.ours:.4g} | {self.other:.4g} | {self.ratio:.2f} | {goal} |"


def bulk(kind, quick):
    """Yield reductions of large arrays; and in the end words on how many hosts more would fare."""
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
                    f"{what[0].upper() + what[1:]}: what lies between the hosts alone takes {between:.4g} ms. Of an "
                    f"updated value, which has to be copied first, the whole takes {updated:.4g} ms."
                )
    yield prediction(fit(measured))


def prediction(model):
    """Return what the model says of more hosts, in words and a table."""
    sizes = {"0.64 MB (the CNN of the demos)": 641448, "16 MB": 16e6, "102 MB (ResNet-50)": 102.4e6}
    counts = (2, 4, 8, 64, 1024)
    lines = [
        "Predicted, not measured: what lies between hosts in an `all_reduce` over more of them, with links of 1 "
        "Gbit/s, in milliseconds, by the "
        f"model of synkhronos/prediction/links.py: {1e3 * model.start:.2g} ms to start, "
        f"{1e6 * model.per_message:.2g} µs per message, {1e9 * model.per_byte:.3g} ns per byte, "
        f"fitted to 2, 3 and 4 hosts (within {100 * model.error:.0f} %).",
        "",
        "| hosts | " + " | ".join(sizes) + " |",
        "| ---: |" + " ---: |" * len(sizes),
    ]
    for hosts in counts:
        times = [f"{1e3 * model.seconds(hosts, nbytes):.4g}" for nbytes in sizes.values()]
        lines.append(f"| {hosts:,} | " + " | ".join(times) + " |")
    return "\n".join(lines)


def small(kind, quick):
    """Yield what small things take."""
    times = {}
    with pretend_hosts(kind, 2) as run:
        for _ in range(2 if quick else 5):
            for what in ("link", "program"):
                for row in run("small", what, "--repeats", 300 if quick else 1000):
                    times.setdefault(row["what"], []).extend(row["us"])
        waiting = run("small", "waiting", "--seconds", 5 if quick else 20)
    ms = {what: float(np.median(values)) / 1e3 for what, values in times.items()}
    reduced, alone, trip = ms["all_reduce, 4 KB"], ms["mpi4py Allreduce, 4 KB"], ms["control round trip"]
    yield Row("all_reduce of 4 KB, 2 hosts", "mpi4py `Allreduce`", reduced, alone, 3)
    yield Row("call without inputs, 2 hosts", "control round trip", ms["call without inputs"], trip, 2)
    for row in waiting:
        yield Row(f"waiting, {row['what']}, % of a core", "1 %", row["percent"], 1.0, 1)


def meanwhile(kind, quick):
    """Yield how much of a reduction is hidden behind computing."""
    with pretend_hosts(kind, 2, SLOW) as run:
        for row in run("meanwhile", "--repeats", 3 if quick else 9):
            less = min(row["communicate_ms"], row["compute_ms"])
            what = f"hidden part of 16 MB behind computing, {SLOW / 1e6:.0f} Mbit/s"
            form = "" if row["exchange"] == "none" else f", {row['exchange']}"
            yield Row(what + form, "the shorter of both", less, less * row["hidden"], 0.9, True)


def training(kind, quick):
    """Yield Theano-MPI's case, and DASO's; and words on the accuracy in the second."""
    rounds, repeats, epochs = (1, 2, 5) if quick else (3, 3, 10)
    ours, apart = [], []
    with pretend_hosts(kind, 2, RATE) as run:
        for _ in range(rounds):
            (found,), (beside,) = run("training", "cnn", repeats), run("training", "apart", repeats)
            ours += found["seconds"]
            apart += beside["seconds"]
    link = found["nbytes"] * found["steps"] * 8 / RATE
    best = float(np.median(apart)) + link
    what = "two programs at once, and the link's bound"
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
        f"DASO's case: a step takes {1e3 * step:.1f} ms alone, its {alone['nbytes'] / 1e6:.2f} MB as long on a link of "
        f"{rate / 1e6:.0f} Mbit/s. After {epochs} epochs {right['synchronous']:.1f} % of the test digits are right "
        f"by synchronous steps, {right['DASO']:.1f} % by DASO (goal: within 1.5 points). Without any communication an "
        f"epoch takes {ms['alone'] / ms['synchronous']:.2f} of the time."
    )


PARTS = {"small": small, "bulk": bulk, "meanwhile": meanwhile, "training": training}


def main(arguments=None):
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hosts", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), help="these parts alone")
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
        "| what | beside | ours, ms | the other, ms | ratio | goal | |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    head = f"Date: {datetime.date.today()}. Machine: {machine()}; {given.mpi}."
    text = "\n".join([head, "", *table, *map(str, rows), "", "\n\n".join(words), ""])
    if not (given.quick or given.only):
        put(text, BEGIN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
