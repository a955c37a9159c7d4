"""Run all benchmarks and their peers with Theano if installed, else with PyTensor, and compare results with the goals.

python -m benchmarks                 # all benchmarks, half an hour; writes docs/performance.md
python -m benchmarks --quick         # a few minutes
python -m benchmarks --only calls collectives
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

import threadpoolctl

import synkhronos as synk  # first: it prepares the import of Theano
from synkhronos.host.affinity import CoreClaims

from . import collectives, goals, mesh, report
from .library import IS_THEANO, NAME, without_networks
from .measure import BUSY, stolen
from .peers.group import Groups

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
    parser.add_argument("--no-peers", action="store_true", help="do not measure peers")
    parser.add_argument("--no-write", action="store_true", help="do not write docs/performance.md")
    folder = Path("benchmarks") / "results" / ("" if IS_THEANO else NAME.lower())
    parser.add_argument("--folder", type=Path, default=folder, help="folder for JSON and plots; default: %(default)s")
    given = parser.parse_args(arguments)
    before = stolen()
    if not can_be_pinned():
        print("Ranks cannot be pinned, because other programs have claimed the cores. Wait until they have ended.")
        return 2
    if before > BUSY and not given.anyway:
        print(
            f"The machine is busy: other programs take {100 * before:.0f} % of a core (load "
            f"{os.getloadavg()[0]:.1f}), so results would be "
            "inconclusive. Wait, or add --anyway."
        )
        return 2
    rows, worst = [], before
    threadpoolctl.threadpool_limits(1)  # one thread for plain programs; `fork` divides the cores among ranks
    with Groups(() if given.no_peers else Groups.KINDS) as groups:
        for name, (module, full, quick) in PARTS.items():
            if name not in (given.only or PARTS):
                continue
            why_not = left_out(name)
            print(f"\n{name}" + (f": skipped ({why_not})" if why_not else ""), flush=True)
            if why_not:
                continue
            run = importlib.import_module(f"benchmarks.{module}").run
            for row in run(groups, **(quick if given.quick else full)):
                rows.append(row)
                print("  " + report.line_of(row), flush=True)
            worst = max(worst, stolen())
        for why in groups.missing.values():
            print(f"Measured without {why}")
    state = (
        f"Load {os.getloadavg()[0]:.1f}; other programs took at most {100 * worst:.1f} % of a core before, "
        "between and after the parts."
    )
    verdicts = goals.judge(rows)
    print(
        "\n"
        + "\n".join([state, "", report.verdict_table(verdicts), report.speedup_table(rows), report.parts_table(rows)])
    )
    report.save(rows, verdicts, state, given.folder)
    if worst > BUSY and not given.anyway:
        print("Other programs ran during the measurements, so the results are inconclusive.")
        return 2
    if not (given.no_write or given.quick or given.only):
        report.write(report.document(rows, verdicts, state), given.folder)
    return 0 if all(verdict.met for verdict in verdicts) else 1


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
