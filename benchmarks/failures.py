"""Benchmark of training under failures: the time to the same step while a rank dies every few seconds.

::

    python -m benchmarks.failures                     # minutes; prints a table, draws docs/pictures/failures.png
    python -m benchmarks.failures --steps 500 --no-picture --every 6

The ways to train are:

undisturbed     no rank dies
heal            `fork(heal=)` replaces a rank that dies
fork again      the program catches `WorkerDied`, opens another session, and loads its last checkpoint
start again     the program ends, is started again, and loads its last checkpoint

A program that is started again makes no progress unless it completes a command of `CHUNK` steps between two deaths.
All ways must reach the last step with the same parameters, bit for bit. As root, and with the environments of ``make
install-hosts``, one of two simulated hosts is also switched off. The program is then started again on the other host.
The number of ranks differs there, so sums are rounded in another order, and the losses are compared with a tolerance.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import synkhronos as synk
from synkhronos.errors import WorkerDied
from synkhronos.extensions import checkpoint
from synkhronos.program.program import PROGRAM

from .gradients import mlp
from .hosts.link import helpers, lacking, report
from .library import grad, shared
from .measure import WrongResult

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "pictures" / "failures.png"
WAYS = ("undisturbed", "heal", "fork again", "start again")
LAYERS, ROWS, BATCH = (784, 800, 800, 10), 20000, 500
#: Number of steps in a command. Checkpoints, if any, are written after every command.
CHUNK = 50
STARTS_AGAIN = 75  # exit status of a program that wants to be started again


class Deaths(threading.Thread):
    """Kills a random rank of this program's session, other than the master, at regular times."""

    def __init__(self, begun, every):
        super().__init__(daemon=True)
        self._begun, self._every, self.count = begun, every, 0

    def run(self):
        chooser = random.Random(0)
        while True:
            time.sleep(self._every - (time.time() - self._begun) % self._every)
            session = PROGRAM.session
            if session is not None:
                with contextlib.suppress(ProcessLookupError):  # the rank has just ended
                    os.kill(session.launcher.pid(chooser.randrange(1, session.size)), signal.SIGKILL)
                    self.count += 1


class Training:
    """A training run of an MLP with momentum, in commands of `CHUNK` steps; its state is in a checkpoint file."""

    def __init__(self, seed=0):
        x, y, loss, params = mlp(LAYERS)
        updates = []
        for param, gradient in zip(params, grad(loss, params)):
            velocity = shared(np.zeros_like(param.get_value()))
            step = np.float32(0.9) * velocity - np.float32(1e-3) * gradient
            updates += [(velocity, step), (param, param + step)]
        self.variables = [variable for variable, _ in updates]
        self.step = synk.function([x, y], loss, updates=updates, exact=True)
        draw = np.random.RandomState(seed)
        images = draw.rand(ROWS, LAYERS[0]).astype("float32")
        labels = images[:, : LAYERS[-1]].argmax(axis=1).astype("int32")
        self.data = synk.data(images, constant=True), synk.data(labels, constant=True)

    def run(self, done, until, begun, path):
        """Train to the step ``until``; save a checkpoint after each command if a path is passed."""
        while done < until:
            draw = np.random.RandomState(done)  # a repeated command repeats its batches
            batches = [draw.randint(0, ROWS, BATCH) for _ in range(min(CHUNK, until - done))]
            losses = self.step.steps(*self.data, batches=batches)
            done += len(batches)
            if path:
                checkpoint.save(path, self.variables, step=done, begun=begun)
            report(step=done, seconds=time.time() - begun, loss=float(losses[-1]))

    def digest(self):
        """Return a hash of all parameters and of the momentum."""
        return hashlib.sha256(b"".join(each.get_value().tobytes() for each in self.variables)).hexdigest()[:16]


def program(way, steps, every, path, ranks):
    """Train in this process; return the exit status."""
    training = Training()
    saves = path if way in ("fork again", "start again") else None
    deaths = begun = None
    while True:
        try:
            synk.fork(ranks, use_gpu=False, threads=1, heal=1000 if way == "heal" else 0)
            done, begun = 0, begun or time.time()
            if saves and os.path.exists(saves):
                progress = checkpoint.load(saves, training.variables)
                done, begun = int(progress["step"]), float(progress["begun"])
            elif saves:  # a death changes variables before the first command has ended
                checkpoint.save(saves, training.variables, step=done, begun=begun)
            if every and deaths is None:
                deaths = Deaths(begun, every)
                deaths.start()
            training.run(done, steps, begun, saves)
        except WorkerDied:
            synk.close()
            if way == "fork again":
                continue
            if way == "start again":
                report(deaths=deaths.count if deaths else 0)
                return STARTS_AGAIN
            raise
        report(digest=training.digest(), deaths=deaths.count if deaths else 0)
        synk.close()
        return 0


def measure(way, steps, every, folder):
    """Run a way of training to its end; return its reported rows."""
    command = [sys.executable, "-m", "benchmarks.failures", "--program", way, "--steps", str(steps)]
    path = os.path.join(folder, f"{way}-{every}.npz".replace(" ", "-"))
    command += ["--every", str(every), "--path", path]
    rows = []
    while True:
        done = subprocess.run(command, cwd=str(ROOT), stdout=subprocess.PIPE)
        rows += printed(done.stdout.splitlines())
        if done.returncode == 0:
            return rows
        if done.returncode != STARTS_AGAIN:
            raise SystemExit(f"{' '.join(command)} has failed:\n{done.stdout.decode()}")


def of_hosts(steps, kind="mpich"):
    """Yield the name and the rows of a run on two hosts, and of a run in which a host is lost halfway."""
    of_tests, pretend = helpers()
    mpi = of_tests.find(kind)
    final = []
    for name, lost_at in (("two hosts, undisturbed", steps + 1), ("two hosts, one lost halfway", steps // 2)):
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            with pretend.Cluster(2, shared=[ROOT, mpi.prefix, folder]) as hosts:
                path = os.path.join(folder, "checkpoint.npz")
                module = f"-m benchmarks.failures --ranks 1 --every 0 --steps {steps} --path {path} --program".split()
                module.append("start again")
                variables = {"PYTHONPATH": str(ROOT)}
                first = mpi.start(module, hosts=hosts, cwd=ROOT, variables=variables, stdout=subprocess.PIPE)
                rows = []
                for row in printed(first.stdout):
                    rows.append(row)
                    if row.get("step", 0) >= lost_at and hosts.is_on(1):
                        hosts.off(1)
                first.wait()
                if not hosts.is_on(1):
                    environment = {**os.environ, **variables}
                    again = hosts.on(0, [mpi.python, *module], cwd=ROOT, env=environment, stdout=subprocess.PIPE)
                    rows += printed(again.stdout)
        of_steps = [row for row in rows if "step" in row]
        final.append(of_steps[-1]["loss"])
        if of_steps[-1]["step"] != steps or not np.isclose(final[-1], final[0], rtol=1e-2):
            raise WrongResult(f"{name}: the last row is {of_steps[-1]}; the loss should be {final[0]}")
        yield name, rows


def printed(lines):
    """Yield the rows that a program has reported among its printed lines."""
    for line in lines:
        if line.startswith(b"{"):
            yield json.loads(line)


def run(steps, periods, hosts=True):
    """Yield the name and the rows of each run, as printed by the programs."""
    with tempfile.TemporaryDirectory() as folder:
        measure("undisturbed", CHUNK, 0, folder)  # compiles the function, so that no later run does
        right = None
        for way in WAYS:
            for every in periods if way != "undisturbed" else [0]:
                rows = measure(way, steps, every, folder)
                right = right or rows[-1]["digest"]
                if rows[-1]["digest"] != right:
                    raise WrongResult(f"{way}: the parameters differ from those of the undisturbed run")
                yield f"{way}, a death every {every:g} s" if every else way, rows
    if hosts and not lacking("mpich"):
        yield from of_hosts(steps)


def table(found):
    """Return the table of all runs, as lines of reStructuredText."""
    border = " ".join("=" * width for width in (34, 7, 9, 11))
    lines = [border, f"{'run':34} deaths  seconds   relative", border]
    for name, rows in found.items():
        seconds = [row["seconds"] for row in rows if "seconds" in row][-1]
        reference = "two hosts, undisturbed" if name.startswith("two") else "undisturbed"
        base = [row["seconds"] for row in found[reference] if "seconds" in row][-1]
        deaths = sum(row["deaths"] for row in rows if "deaths" in row)
        lines.append(f"{name:34} {deaths:<7} {seconds:<9.1f} {seconds / base:.2f}")
    return [*lines, border]


def draw(found):
    """Draw the completed steps of each run over time."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.2))
    for name, rows in found.items():
        of_steps = [row for row in rows if "step" in row]
        style = "--" if name.startswith("two") else "-"
        axes.plot([row["seconds"] for row in of_steps], [row["step"] for row in of_steps], style, lw=1.2, label=name)
    axes.set(xlabel="seconds since the first step", ylabel="completed step", xlim=(0, None), ylim=(0, None))
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(str(PICTURE), dpi=110, bbox_inches="tight")


def main(arguments=None):
    """Run all ways, or a training program of one way; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failures", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1800)
    parser.add_argument("--every", type=float, nargs="+", default=[10], help="seconds between deaths")
    parser.add_argument("--no-picture", action="store_true", help="do not draw docs/pictures/failures.png")
    parser.add_argument("--program", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, default=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.program:
        return program(given.program, given.steps, given.every[0], given.path, given.ranks)
    found = {}
    for name, rows in run(given.steps, given.every):
        found[name] = rows
        print(name, rows[-1], flush=True)
    print("\n".join(table(found)))
    if not given.no_picture:
        draw(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
