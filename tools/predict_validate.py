"""Validate predictions: fit the model to some points, predict all others, and compare them with measurements.

    python tools/predict_validate.py                 # five minutes or more; writes into docs/performance.md
    python tools/predict_validate.py --no-write      # does not write the page
    python tools/predict_validate.py --fresh         # discards build/predict; otherwise, a run resumes from there

`tools/predict_points.py` defines the points and the bounds; `tools/predict_programs.py` defines the programs. Points on
several hosts have the requirements of tests/hosts: root privileges, and an environment from ``make install-hosts``.
"""

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from predict_points import FITTED, LARGEST_ERROR, MEDIAN_ERROR, TESTED, Point  # noqa: E402

from benchmarks.hosts.link import helpers, lacking  # noqa: E402
from benchmarks.measure import BUSY, stolen  # noqa: E402
from benchmarks.report import machine, put  # noqa: E402
from synkhronos.contrib.prediction.fitting import fit  # noqa: E402
from synkhronos.contrib.prediction.links import HostLinkModel  # noqa: E402
from synkhronos.contrib.prediction.model import LOSSES  # noqa: E402
from synkhronos.contrib.prediction.profiles import RankLayout, read  # noqa: E402

FOLDER = ROOT / "build" / "predict"
BEGIN = "<!-- written by make predict-validate: begin -->\n"
CORES = 2
TIMEOUT_S = 600

#: By default, BLAS would use all cores with a single rank, but one core per rank with several ranks.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

#: Seconds per message over simulated links, which limit only rates; fitted by ``make bench-hosts`` on 2026-11-23.
MESSAGE_S = 110e-6

#: Deliberately incomplete models, which must miss the bounds.
WRONG = {"without communication": "communicating", "without waiting": "waiting"}


class Outcome(NamedTuple):
    """Tested point: measured seconds per step, and the predicted parts."""

    point: Point
    measured: float
    parts: dict

    def error(self, left_out=None):
        """Return the relative error of the prediction, optionally without one part."""
        return (sum(self.parts.values()) - self.parts.get(left_out, 0.0)) / self.measured - 1


def key(point):
    """Return the name of a point in the stored results."""
    return f"{point.program}-{point.ranks}-{point.rows}" + (f"-{point.rate:g}" if point.hosts > 1 else "")


def folder_of(point):
    """Return the folder of a fitted point's profile, which all points of the session share."""
    return FOLDER / f"{point.program}-{point.ranks}-on-{point.hosts}"


def sessions():
    """Yield ``(program, hosts, rate, sessions, points)`` for each process or mpirun job that measures."""
    for program in dict.fromkeys(point.program for point in FITTED):
        some, points = [], []
        for each, is_fitted in ((FITTED, True), (TESTED, False)):
            mine = [point for point in each if point.program == program and point.hosts == 1]
            for ranks in sorted({point.ranks for point in mine}):
                of_ranks = [point for point in mine if point.ranks == ranks]
                some.append(session_of(of_ranks, is_fitted))
                points += of_ranks
        yield program, 1, 0.0, some, points
    for point in FITTED + TESTED:
        if point.hosts > 1:
            yield point.program, point.hosts, point.rate, [session_of([point], point in FITTED)], [point]


def session_of(points, is_fitted):
    """Return a session, as `predict_programs` expects it, for points that differ only in their rows."""
    first = points[0]
    profile = str(folder_of(first)) if is_fitted else None
    return {"ranks": first.ranks, "rows": [p.rows for p in points], "hosts": first.hosts, "profile": profile}


def measure():
    """Measure the points that have no result yet.

    Returns
    -------
    dict of str to float
        The median seconds per step, by name of the point.
    str
        Date, machine, and load by other programs.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    store = FOLDER / "points.json"
    made = json.loads(store.read_text()) if store.exists() else {"points": {}, "busy": stolen()}
    found = made["points"]
    for program, hosts, rate, some, points in sessions():
        if all(key(point) in found for point in points):
            continue
        for session in some:
            if session["profile"]:
                shutil.rmtree(session["profile"], ignore_errors=True)
        print(f"{program}, {hosts} host(s)" + (f", {rate / 1e6:g} Mbit/s" if rate else ""), flush=True)
        arguments = [str(ROOT / "tools" / "predict_programs.py"), program, json.dumps(some)]
        rows = over_hosts(hosts, rate, arguments) if hosts > 1 else here(arguments)
        assert len(rows) == len(points), rows
        for row in rows:
            point = Point(program, row["ranks"], row["rows"], hosts, rate)
            found[key(point)] = row["seconds"]
        made.update(date=str(datetime.date.today()), busy=max(made["busy"], stolen()))
        store.write_text(json.dumps(made))
    state = (
        f"Date: {made['date']}. Machine: {machine()}. Other programs took at most {100 * made['busy']:.1f} % of a core."
    )
    return {name: float(np.median(seconds)) for name, seconds in found.items()}, state


def here(arguments):
    """Run a program on this machine and return its results."""
    environment = {**os.environ, **ONE_THREAD}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=str(ROOT), env=environment, stdout=subprocess.PIPE, timeout=TIMEOUT_S
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed")
    return reported(done.stdout.decode())


def over_hosts(hosts, rate, arguments):
    """Run a program on simulated hosts and return its results."""
    of_tests, pretend = helpers()
    mpi = of_tests.find("openmpi")
    with pretend.Cluster(hosts, f"{round(rate)}bit", shared=[ROOT, mpi.prefix]) as cluster:
        variables = {"PYTHONPATH": str(ROOT), **ONE_THREAD}
        process = mpi.start(arguments, hosts=cluster, cwd=ROOT, variables=variables, stdout=subprocess.PIPE)
        printed = process.communicate(timeout=TIMEOUT_S)[0].decode()
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed on {hosts} hosts:\n{printed}")
    return reported(printed)


def reported(printed):
    """Parse the lines of JSON in a program's output."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def outcomes(measured):
    """Return the outcome of each tested point, predicted from the fitted points of its program."""
    models = {}
    for program in dict.fromkeys(point.program for point in FITTED):
        folders = dict.fromkeys(folder_of(point) for point in FITTED if point.program == program)
        profiles = [read(folder) for folder in folders]
        # The simulated hosts are one machine.
        models[program] = fit([each._replace(layout=each.layout._replace(machines=1)) for each in profiles])
    found = []
    for point in TESTED:
        model = models[point.program]
        if point.hosts > 1:
            start = model.between.start if model.between else 0.0
            model = model._replace(between=HostLinkModel(start, MESSAGE_S, 8 / point.rate))
        layout = RankLayout(point.ranks, point.hosts, float(CORES), 1)
        found.append(Outcome(point, measured[key(point)], model.predict(layout, point.rows)))
    return found


def bounds(found, left_out=None):
    """Return a model's median error, largest error, median for the worst program, and whether it meets the bounds."""
    errors = {}
    for outcome in found:
        errors.setdefault(outcome.point.program, []).append(abs(outcome.error(left_out)))
    everything = np.concatenate(list(errors.values()))
    of_program = max(float(np.median(some)) for some in errors.values())
    median, largest = float(np.median(everything)), float(everything.max())
    return median, largest, of_program, max(median, of_program) <= MEDIAN_ERROR and largest <= LARGEST_ERROR


def document(found, state):
    """Return the generated section of docs/performance.md."""
    lines = [
        state,
        "",
        f"| model, over {len(found)} points | median error | largest error | median of the worst program | "
        f"bounds ({100 * MEDIAN_ERROR:.0f} % of medians, {100 * LARGEST_ERROR:.0f} %) |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for name, left_out in {"ours": None, **WRONG}.items():
        *errors, is_within = bounds(found, left_out)
        met = "met" if is_within else "missed, as expected" if left_out else "**not met**"
        lines.append(f"| {name} | " + " | ".join(f"{100 * error:.1f} %" for error in errors) + f" | {met} |")
    lines += [
        "",
        "| program | ranks | rows | hosts | measured, ms | predicted, ms | error | computing | "
        + " | ".join(LOSSES)
        + " |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |" + " ---: |" * len(LOSSES),
    ]
    for point, measured, parts in found:
        total = sum(parts.values())
        hosts = f"{point.hosts}, {point.rate / 1e6:g} Mbit/s" if point.hosts > 1 else "1"
        cells = [f"{1e3 * parts[part]:.3g}" for part in ("computing", *LOSSES)]
        lines.append(
            f"| {point.program} | {point.ranks} | {point.rows} | {hosts} | {1e3 * measured:.4g} | {1e3 * total:.4g} | "
            f"{100 * (total / measured - 1):+.0f} % | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines) + "\n"


def main(arguments=None):
    """Measure, predict, compare; return 1 if bounds are missed or met by a wrong model, 2 on a busy machine, else 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-write", action="store_true", help="do not write docs/performance.md")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    parser.add_argument("--anyway", action="store_true", help="measure even on a busy machine")
    given = parser.parse_args(arguments)
    if lacking("openmpi"):
        raise SystemExit(f"tools/predict_validate.py needs simulated hosts: {lacking('openmpi')}")
    busy = stolen()
    if busy > BUSY and not given.anyway:
        print(f"The machine is busy: other programs take {100 * busy:.0f} % of a core; wait, or add --anyway.")
        return 2
    if given.fresh:
        shutil.rmtree(FOLDER, ignore_errors=True)
    measured, state = measure()
    found = outcomes(measured)
    text = document(found, state)
    print(text)
    if not given.no_write:
        put(text, BEGIN)
    is_right = bounds(found)[-1]
    are_wrong = [not bounds(found, left_out)[-1] for left_out in WRONG.values()]
    return 0 if is_right and all(are_wrong) else 1


if __name__ == "__main__":
    sys.exit(main())
