"""Benchmark of compilation on all ranks with empty caches, compared with compilation in one process.

python -m benchmarks.compiling                  # an MLP's step in three rounds; takes minutes
python -m benchmarks.compiling --rounds 1 --ranks 2

Every measurement is a separate program with its own empty compile directory. Each program runs once per round, the
plain program first. PyTensor's Numba compiles at a function's first call, so both sides include one call.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import synkhronos as synk

from .calls import children
from .contenders import PLAIN
from .gradients import mlp
from .library import IS_THEANO, function, grad
from .measure import BUSY, stolen, summary

ROOT = Path(__file__).resolve().parents[1]
#: Environment variable with the engine's settings.
FLAGS = "THEANO_FLAGS" if IS_THEANO else "PYTENSOR_FLAGS"
#: Layer sizes and rows of the MLP; its SGD step is compiled.
LAYERS, ROWS = (784, 200, 10), 600
#: Measured quantities, and their names in tables.
CASES = {"seconds": "compiling an MLP", "processor": "compiling an MLP, processor time"}


def run(groups, ranks=(2, 3), rounds=3, layers=LAYERS):
    """Yield rows by number of ranks: wall time, CPU time, and the relative costs of `distribute` and of other ranks."""
    found = {n: [] for n in (0, *ranks)}
    for _ in range(rounds):
        for n, each in found.items():
            each.append(in_empty_directory(n, layers))
            what = f"synkhronos, number of ranks: {n}" if n else PLAIN
            print(f"  {what}: {each[-1]['seconds']:.1f} s, CPU time {each[-1]['processor']:.1f} s", flush=True)
    for n in ranks:
        for what, case in CASES.items():
            times = {"synkhronos": summary([each[what] for each in found[n]])}
            times[PLAIN] = summary([each[what] for each in found[0]])
            yield {"case": case, "n": n, "times": times}
        share = np.median([each["distribute"] / plain["seconds"] for each, plain in zip(found[n], found[0])])
        yield {"case": "distribute alone, relative to compilation in one process", "n": n, "value": float(share)}
        others = np.median([each["others"] / (each["processor"] - each["others"]) for each in found[n]])
        yield {"case": "processor time of the other ranks, relative to the master's", "n": n, "value": float(others)}


def in_empty_directory(n, layers):
    """Run a program with `n` ranks (0: the plain program) and an empty compile directory; return its measurements."""
    with tempfile.TemporaryDirectory(prefix="compiling-") as folder:
        flags = ",".join(filter(None, [os.environ.get(FLAGS), f"base_compiledir={folder}"]))
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "benchmarks.compiling", "--program", str(n), *map(str, layers)]
        environment = {**os.environ, FLAGS: flags, "PYTHONPATH": paths}
        done = subprocess.run(command, env=environment, cwd=str(ROOT), stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout.splitlines()[-1])


def program(n, layers):
    """Build a function and call it; print the wall time, the time of `distribute`, and CPU times, as JSON."""
    if n:
        synk.fork(n, use_gpu=False)
    random = np.random.RandomState(0)
    images = random.rand(ROWS, layers[0]).astype("float32")
    labels = random.randint(0, layers[-1], ROWS).astype("int32")
    x, y, loss, params = mlp(layers)
    updates = [(param, param - np.float32(0.1) * gradient) for param, gradient in zip(params, grad(loss, params))]
    before, began = processor_seconds(), time.perf_counter()
    step = (synk.function if n else function)([x, y], loss, updates=updates)
    built = time.perf_counter()
    if n:
        synk.distribute()
    distributed = time.perf_counter()
    step(images, labels)
    found = {
        "seconds": time.perf_counter() - began,
        "distribute": distributed - built,
    }
    found["processor"], found["others"] = np.subtract(processor_seconds(), before).tolist()
    synk.close()
    print(json.dumps(found))


def processor_seconds():
    """Return the CPU seconds of this process and all its descendants, and of the descendants alone."""
    of_each, pids, tick = [], [os.getpid()], os.sysconf("SC_CLK_TCK")
    while pids:
        pid = pids.pop(0)
        pids += children(pid)
        with open(f"/proc/{pid}/stat") as file:
            of_each.append(sum(map(int, file.read().rsplit(")", 1)[1].split()[11:15])) / tick)
    return sum(of_each), sum(of_each[1:])


def main(arguments=None):
    """Run the benchmark with the command-line options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiling", description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=(2, 3))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", type=int, nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.program:
        program(given.program[0], given.program[1:])
        return
    before = stolen()
    for row in run(None, given.ranks, given.rounds):
        if "value" in row:
            print(f"{row['case']}, n={row['n']}: {row['value']:.3f}", flush=True)
            continue
        ours, plain = row["times"]["synkhronos"], row["times"][PLAIN]
        print(
            f"{row['case']}, n={row['n']}: {ours.median / 1e6:.1f} s, minimum {ours.least / 1e6:.1f}; {PLAIN} "
            f"{plain.median / 1e6:.1f}, minimum {plain.least / 1e6:.1f}; ratio {ours.median / plain.median:.2f}, of "
            f"the minima {ours.least / plain.least:.2f} (goal 1.3)"
        )
    busy = max(before, stolen())
    if busy > BUSY:
        print(f"Other programs took {100 * busy:.0f} % of a core, so only the ratio of processor times is conclusive.")


if __name__ == "__main__":
    main()
