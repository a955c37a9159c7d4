"""Run all benchmarks and their peers with Theano if installed, else with PyTensor, and compare results with the goals.

python -m benchmarks                 # all benchmarks, half an hour; writes docs/performance.md
python -m benchmarks --quick         # a few minutes
python -m benchmarks --only calls collectives

A run resumes: parts that this code has already measured, while no other program was busy, are not measured again.
"""

import argparse
import datetime
import hashlib
import importlib
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import threadpoolctl

import synkhronos as synk  # first: it prepares the import of Theano
from synkhronos.host.affinity import CoreClaims

from . import collectives, goals, mesh, report
from .library import IS_THEANO, NAME, without_networks
from .measure import BUSY, Times, stolen
from .peers.group import KINDS, Groups

#: Depth of the network to distribute: 53 layers as in ResNet-50, or fewer with Numba, which would compile for minutes.
LAYERS = 53 if IS_THEANO else 6

#: Module of each part, with the arguments of its `run` for full and for quick runs.
PARTS = {
    # This part is first, because ranks and their peers must be forked from processes without compiled functions.
    "start": ("start", {"layers": LAYERS}, {"layers": LAYERS, "repeats": 3, "set_bytes": 1 << 28, "depth": None}),
    "calls": ("calls", {}, {"repeats": 400}),
    "calls of 4": ("calls", {"n": 4}, {"n": 4, "repeats": 400}),
    "collectives": ("collectives", {}, {"sizes": collectives.SIZES[:-1], "most": 100}),
    "inputs": ("inputs", {}, {"repeats": 100}),
    "steps": ("steps", {}, {"repeats": 6}),
    "profile": ("profiled", {}, {"repeats": 300}),
    "healing": ("healing", {}, {"repeats": 10, "deaths": 3}),
    "loading": ("loading", {}, {"repeats": 5}),
    "gradients": ("gradients", {}, {"repeats": 10}),
    "rules": ("rules", {}, {"repeats": 6}),
    "exact": ("exact", {}, {"epochs": 2, "digits": 2000, "builds": 2}),
    "end to end": ("end_to_end", {}, {"epochs": 2, "digits": 2000, "depth": 8, "steps": 2}),
    "compiling": ("compiling", {}, {"ranks": (2,), "rounds": 1}),
    "engines": ("engines", {}, {"rounds": 3}),
    "mesh": ("mesh", {}, {"repeats": 20}),
}
#: Parts that need Lasagne; parts that are specific to PyTensor.
OF_LASAGNE, OF_PYTENSOR = ("rules", "exact", "end to end"), ("compiling", "engines", "mesh")


def main(arguments=None):
    """Run the selected benchmarks; return 0 if all goals were met, 1 if not, 2 if the results are inconclusive."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--only", nargs="+", choices=sorted(PARTS), help="only these parts")
    parser.add_argument("--anyway", action="store_true", help="measure and judge even on a busy machine")
    parser.add_argument("--fresh", action="store_true", help="measure again what an earlier run has measured")
    parser.add_argument("--no-peers", action="store_true", help="do not measure peers")
    parser.add_argument("--no-write", action="store_true", help="do not write docs/performance.md")
    folder = Path("benchmarks") / "results" / ("" if IS_THEANO else NAME.lower())
    parser.add_argument("--folder", type=Path, default=folder, help="folder for JSON and plots; default: %(default)s")
    given = parser.parse_args(arguments)
    before = stolen()
    if not (given.anyway or can_be_pinned()):
        print("Ranks cannot be pinned, because other programs have claimed the cores. Wait until they have ended.")
        return 2
    if before > BUSY and not given.anyway:
        print(
            f"The machine is busy: other programs take {100 * before:.0f} % of a core (load "
            f"{os.getloadavg()[0]:.1f}), so results would be "
            "inconclusive. Wait, or add --anyway."
        )
        return 2
    store = Store(given.folder / "parts.json", [version(), given.quick, given.no_peers])
    parts = {name: None if given.fresh else store.get(name, math.inf if given.anyway else BUSY) for name in PARTS}
    parts = {name: part for name, part in parts.items() if name in (given.only or PARTS)}
    threadpoolctl.threadpool_limits(1)  # one thread for plain programs; `fork` divides the cores among ranks
    with Groups(() if given.no_peers else tuple(KINDS)) as groups:
        for name, part in parts.items():
            module, full, quick = PARTS[name]
            why_not = left_out(name)
            reason = f": skipped ({why_not})" if why_not else ": measured before" if part else ""
            print(f"\n{name}{reason}", flush=True)
            if reason:
                continue
            rows, began = [], time.monotonic()
            run = importlib.import_module(f"benchmarks.{module}").run
            for row in run(groups, **(quick if given.quick else full)):
                rows.append(row)
                print("  " + report.line_of(row), flush=True)
            after, seconds = stolen(), time.monotonic() - began
            busy, before = max(before, after), after
            parts[name] = Part(rows, busy, seconds, str(datetime.date.today()), sorted(groups.missing.values()))
            store.put(name, parts[name])
    measured = [part for part in parts.values() if part]
    rows = [row for part in measured for row in part.rows]
    worst = max([part.busy for part in measured], default=0.0)
    missing = sorted({reason for part in measured for reason in part.missing})
    state = (
        f"Load {os.getloadavg()[0]:.1f}; other programs took at most {100 * worst:.1f} % of a core before, "
        f"between and after the parts, which took {sum(part.seconds for part in measured) / 60:.0f} minutes."
        + f" Measured on {', '.join(sorted({part.date for part in measured}))}."
        + "".join(f" Not measured: {reason}." for reason in missing)
    )
    verdicts = goals.judge(rows)
    print(
        "\n"
        + "\n".join([state, "", report.verdict_table(verdicts), report.speedup_table(rows), report.parts_table(rows)])
    )
    report.save(rows, verdicts, state, given.folder)
    if worst > BUSY and not given.anyway:
        disturbed = ", ".join(name for name, part in parts.items() if part and part.busy > BUSY)
        print(f"Other programs disturbed {disturbed}. Run the same command again: it measures only these parts again.")
        return 2
    if not (given.no_write or given.quick or given.only):
        report.write(report.document(rows, verdicts, state), given.folder)
    return 0 if all(verdict.met is not False for verdict in verdicts) else 1


class Part(NamedTuple):
    """Results of a part of a run."""

    rows: list
    busy: float  # share of a core that other programs took before or after the part
    seconds: float
    date: str
    missing: list  # reasons why peers were not measured


class Store:
    """Parts that earlier runs have measured, in a file; parts of another version or kind of run are forgotten."""

    def __init__(self, path, key):
        self._path, self._key, self._parts = path, key, {}
        if path.exists():
            found = json.loads(path.read_text())
            self._parts = found["parts"] if found["key"] == key else {}

    def get(self, name, busy):
        """Return a part that other programs disturbed by at most this share of a core; None if there is none."""
        if name not in self._parts:
            return None
        part = Part(*self._parts[name])
        rows = [
            dict(row, times={name: Times(*times) for name, times in row["times"].items()}) if "times" in row else row
            for row in part.rows
        ]
        return part._replace(rows=rows) if part.busy <= busy else None

    def put(self, name, part):
        """Store a part."""
        self._parts[name] = part
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = json.dumps({"key": self._key, "parts": self._parts}, default=np.generic.item)
        self._path.write_text(written)


def version():
    """Return a hash of the code of the library and of the benchmarks."""
    files = [path for folder in ("synkhronos", "benchmarks") for path in (report.ROOT / folder).rglob("*.*")]
    digest = hashlib.sha256()
    for path in sorted(path for path in files if path.suffix in (".py", ".c")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def left_out(part):
    """Return the reason why a part is not measured here; None if it is measured."""
    if part in OF_PYTENSOR and IS_THEANO:
        return "it needs PyTensor"
    if part == "mesh" and mesh.missing():
        return f"pip install {mesh.missing()}"
    return without_networks() if part in OF_LASAGNE else None


def can_be_pinned():
    """Return whether two ranks would run on separate cores."""
    claims = CoreClaims()
    try:
        return all(claims.claim(2))
    finally:
        claims.release()


if __name__ == "__main__":
    try:
        status = main()
    finally:
        synk.close()
    sys.exit(status)
