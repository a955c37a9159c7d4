"""What it costs that all ranks have a function compiled, where nothing is cached, beside one process's own compilation.

python -m benchmarks.compiling                  # of an MLP's step; three rounds; minutes
python -m benchmarks.compiling --rounds 1 --ranks 2

Every figure is a program of its own with a compile directory of its own, which is empty. In a round each of them runs
once, the plain program first. PyTensor's Numba compiles in a function's first call, so that is counted on both sides.
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
#: The variable with the library's settings.
FLAGS = "THEANO_FLAGS" if IS_THEANO else "PYTENSOR_FLAGS"
#: Layer sizes and rows of the MLP whose step of SGD is compiled.
LAYERS, ROWS = (784, 200, 10), 600
#: What is counted, and how tables call it.
CASES = {"seconds": "compiling an MLP", "processor": "compiling an MLP, processor time"}


def run(groups, ranks=(2, 3), rounds=3, layers=LAYERS):
    """Measure; yield two rows for every number of ranks: by the clock, and by the processor time of all processes."""
    found = {n: [] for n in (0, *ranks)}
    for _ in range(rounds):
        for n, each in found.items():
            each.append(in_empty_directory(n, layers))
            what = f"synkhronos, {n} ranks" if n else PLAIN
            print(f"  {what}: {each[-1]['seconds']:.1f} s, processors {each[-1]['processor']:.1f} s", flush=True)
    for n in ranks:
        for what, case in CASES.items():
            times = {"synkhronos": summary([each[what] for each in found[n]])}
            times[PLAIN] = summary([each[what] for each in found[0]])
            yield {"case": case, "n": n, "times": times}
        share = np.median([each["distribute"] / plain["seconds"] for each, plain in zip(found[n], found[0])])
        yield {"case": "distribute alone, in compilations of one process", "n": n, "value": float(share)}
        others = np.median([each["others"] / (each["processor"] - each["others"]) for each in found[n]])
        yield {"case": "processor time of the other ranks, in the master's", "n": n, "value": float(others)}


def in_empty_directory(n, layers):
    """Return what a program of so many ranks measures, plain if there are none, where nothing is compiled."""
    with tempfile.TemporaryDirectory(prefix="compiling-") as folder:
        flags = ",".join(filter(None, [os.environ.get(FLAGS), f"base_compiledir={folder}"]))
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "benchmarks.compiling", "--program", str(n), *map(str, layers)]
        environment = {**os.environ, FLAGS: flags, "PYTHONPATH": paths}
        done = subprocess.run(command, env=environment, cwd=str(ROOT), stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout.splitlines()[-1])


def program(n, layers):
    """Print how long it takes from the graph until the function has been called once, as JSON."""
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
    """Return the processor time of all processes, ended compilers included, and that of the keeper and ranks alone."""
    of_each, pids, tick = [], [os.getpid()], os.sysconf("SC_CLK_TCK")
    while pids:
        pid = pids.pop(0)
        pids += children(pid)
        with open(f"/proc/{pid}/stat") as file:
            of_each.append(sum(map(int, file.read().rsplit(")", 1)[1].split()[11:15])) / tick)
    return sum(of_each), sum(of_each[1:])


def main(arguments=None):
    """Run the command line."""
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
            f"{row['case']}, n={row['n']}: {ours.median / 1e6:.1f} s, least {ours.least / 1e6:.1f}; {PLAIN} "
            f"{plain.median / 1e6:.1f}, least {plain.least / 1e6:.1f}; ratio {ours.median / plain.median:.2f}, of the "
            f"least {ours.least / plain.least:.2f} (goal 1.3)"
        )
    busy = max(before, stolen())
    if busy > BUSY:
        print(f"Other programs took {100 * busy:.0f} % of a core: the ratio of processor times is what counts.")


if __name__ == "__main__":
    main()
