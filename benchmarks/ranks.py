"""Benchmark of the cost of calls, collectives and exact steps, by the number of ranks; run it separately.

python -m benchmarks.ranks            # measures times in a few minutes, and compares predictions with them
python -m benchmarks.ranks --count    # also counts instructions and bytes with valgrind, whatever the load: an hour

The counts of a process include its start. So each operation is counted in a session of its own, and the counts of a
session without the operation are subtracted. All sessions are those of children of one process, because it takes
minutes to import Theano in valgrind. Waiting ranks spin at most a tenth of a millisecond before they sleep, so that
counts include a part of the waiting.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

if "--serve" in sys.argv:
    sys.modules["scipy.stats"] = None  # type: ignore[assignment] # its long doubles are not valgrind's

import numpy as np

import synkhronos as synk
from synkhronos.contrib.prediction.fitting import fit
from synkhronos.contrib.prediction.profiles import RankLayout, read

from .calls import children, cpu_seconds
from .gradients import mlp
from .library import IS_THEANO, NAME, grad, module, shared
from .measure import BUSY, stolen
from .report import machine, put

BEGIN = "<!-- written by python -m benchmarks.ranks: begin -->\n"
NUMBERS = (1, 2, 4, 8, 16)
#: Layer sizes and rows of the MLP; sizes of the reduced variables.
LAYERS, ROWS, SMALL, LARGE = (20, 50, 10), 64, 4 << 10, 1 << 20
#: Types of valgrind's loads and stores, with the number of their bytes.
BYTES = {"I8": 1, "I16": 2, "I32": 4, "I64": 8, "I128": 16, "F32": 4, "F64": 8, "F128": 16, "V128": 16, "V256": 32}


class Cost(NamedTuple):
    """Cost of an operation, over all ranks."""

    wall: float  # seconds
    processor: float  # seconds
    switches: float


class Program:
    """Operations to measure, by name; create it before `fork`."""

    def __init__(self):
        x, y, loss, params = mlp(LAYERS)
        changes = [(param, param - np.float32(1e-3) * each) for param, each in zip(params, grad(loss, params))]
        step = synk.function([x, y], loss, updates=changes, exact=True, name="step")
        call = synk.function([], shared(np.float32(3)) * 1, name="call")
        small, large = (shared(np.ones(nbytes // 4, "float32")) for nbytes in (SMALL, LARGE))
        self._uses = [synk.function([], (variable.sum(), None)) for variable in (small, large)]
        random = np.random.RandomState(0)
        rows = random.rand(ROWS, LAYERS[0]).astype("float32"), random.randint(0, LAYERS[-1], ROWS).astype("int32")
        self.operations = {
            "call": call,
            "all_reduce of 4 KB": lambda: synk.all_reduce(small),
            "all_reduce of 1 MB": lambda: synk.all_reduce(large),
            "exact step": lambda: step(*self._data),
        }
        self._rows = rows

    def open(self, n, **options):
        """Fork ranks, and copy the data to shared memory."""
        synk.fork(n, use_gpu=False, **options)
        synk.distribute()
        self._data = [synk.data(array) for array in self._rows]

    def run(self, name, repeats):
        """Run an operation several times; return the seconds of each."""
        operation, seconds = self.operations[name], []
        for _ in range(repeats):
            began = time.perf_counter()
            operation()
            seconds.append(time.perf_counter() - began)
        return seconds


def processes():
    """Return the ids of this process and of all its descendants."""
    found = [os.getpid()]
    for pid in found:
        found += children(pid)
    return found


def switches(pids):
    """Return the number of context switches of processes, voluntary or not."""
    text = "".join(Path(f"/proc/{pid}/status").read_text() for pid in pids)
    return sum(int(number) for number in re.findall(r"voluntary_ctxt_switches:\s+(\d+)", text))


def measured(program, n, repeats):
    """Return the cost of each operation with n ranks."""
    program.open(n)
    try:
        found, pids = {}, processes()
        for name in program.operations:
            program.run(name, 10)
            before = cpu_seconds(pids), switches(pids)
            wall = program.run(name, repeats)
            after = cpu_seconds(pids), switches(pids)
            found[name] = Cost(float(np.median(wall)), *((now - then) / repeats for then, now in zip(before, after)))
        return found
    finally:
        synk.close()


def predicted(program, numbers, repeats):
    """Return the predicted seconds of an exact step by number of ranks, from profiles with one and with two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        profiles = []
        for n in (1, 2):
            profile = os.path.join(folder, str(n))
            program.open(n, profile=profile)
            program.run("exact step", repeats)
            synk.close()
            profiles.append(read(profile))
        model = fit(profiles)
    cores = float(len(os.sched_getaffinity(0)))
    return {n: sum(model.predict(RankLayout(n, 1, cores, 1), ROWS).values()) for n in numbers}


def serve(numbers, repeats):
    """Run a session for each number of ranks and each operation, and one without any, in children of this process.

    Prints the number of ranks, the operation and the ids of the session's processes.
    """
    program = Program()
    for n in numbers:
        for name in [None, *program.operations]:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                continue
            program.open(n)
            for each in program.operations:  # all plans exist before the operation that is counted
                program.run(each, 2)
            pids = processes()
            if name is not None:
                program.run(name, repeats)
            synk.close()
            print(json.dumps([n, name, pids]), flush=True)
            os._exit(0)


def counted(numbers, repeats):
    """Return instructions, and the bytes of loads and of stores, over all ranks, by operation and number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "valgrind",
            "--tool=lackey",
            "--detailed-counts=yes",
            f"--log-file={folder}/%p",
            sys.executable,
            "-m",
        ]
        command += ["benchmarks.ranks", "--serve", "--repeats", str(repeats), "--ranks", *map(str, numbers)]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        flags, option = f"{NAME.upper()}_FLAGS", "gcc.cxxflags" if IS_THEANO else "gcc__cxxflags"
        without_avx_512 = f"{option}=-march=x86-64-v3"  # valgrind lacks its instructions
        environment[flags] = ",".join(filter(None, [os.environ.get(flags), without_avx_512]))
        printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout.decode()
        totals = {}
        for line in filter(lambda line: line.startswith("["), printed.splitlines()):
            n, name, pids = json.loads(line)
            totals[name, n] = sum(counts_of(Path(folder, str(pid)).read_text()) for pid in pids)
    return {(name, n): (total - totals[None, n]) / repeats for (name, n), total in totals.items() if name is not None}


def counts_of(log):
    """Return a process's instructions, and the bytes of its loads and of its stores, from valgrind's log."""
    number = r"\s+([\d,]+)"
    (instructions,) = re.findall(rf"guest instrs:{number}", log)
    counts = [integer(instructions), 0, 0]
    for kind, *some in re.findall(rf"==\s+(\w+){number}{number}{number}\n", log):
        for i, each in enumerate(some[:2]):
            counts[1 + i] += BYTES.get(kind, 0) * integer(each)
    return np.array(counts)


def integer(text):
    """Return a number that is written with commas."""
    return int(text.replace(",", ""))


def document(found, expected, counts, state):
    """Return the generated section of docs/performance.md."""
    lines = [
        f"Date: {datetime.date.today()}. Machine: {machine()}, {NAME} {module.__version__}. {state}",
        "",
        "| operation | ranks | time, µs | predicted, µs | processor time, µs | switches | instructions | loads, KB | "
        "stores, KB |",
        "| --- |" + " ---: |" * 8,
    ]
    for name in next(iter(found.values())):
        for n in found:
            cost = found[n][name]
            forecast = f"{1e6 * expected[n]:.0f}" if name == "exact step" else ""
            cells = ["", "", ""]
            if (name, n) in counts:
                instructions, loads, stores = counts[name, n]
                cells = [f"{instructions:,.0f}", f"{loads / 1024:,.0f}", f"{stores / 1024:,.0f}"]
            lines.append(
                f"| {name} | {n} | {1e6 * cost.wall:.0f} | {forecast} | {1e6 * cost.processor:.0f} | "
                f"{cost.switches:.1f} | " + " | ".join(cells) + " |"
            )
    lines += ["", *sentences(found, expected, counts)]
    return "\n".join(lines) + "\n"


def sentences(found, expected, counts):
    """Return the largest error of predictions, and the counted bytes of an all_reduce beside the calculated ones."""
    beyond = [n for n in found if n > 2]
    errors = {n: expected[n] / found[n]["exact step"].wall - 1 for n in beyond}
    yield (
        "Predictions from profiles with one and with two ranks: "
        + ", ".join(f"{100 * error:+.0f} % with {n} ranks" for n, error in errors.items())
        + "."
    )
    compared = []
    for n in found:
        if ("all_reduce of 1 MB", n) in counts:
            data = counts["all_reduce of 1 MB", n] - counts["all_reduce of 4 KB", n]
            compared.append(f"{n} ranks {data[1] / (LARGE - SMALL):.2f} and {data[2] / (LARGE - SMALL):.2f}")
    if compared:
        yield ""
        yield (
            "An `all_reduce` of n ranks reads n values and writes n results. Counted loads and stores of 1 MB beyond "
            "those of 4 KB, in values: " + "; ".join(compared) + "."
        )


def main(arguments=None):
    """Measure, predict and, on request, count; write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__.split("\n")[0])
    parser.add_argument("--count", action="store_true", help="also count instructions and bytes with valgrind")
    parser.add_argument("--no-write", action="store_true", help="do not write docs/performance.md")
    parser.add_argument("--ranks", type=int, nargs="+", default=NUMBERS, help="numbers of ranks")
    parser.add_argument("--repeats", type=int, default=200, help="times that each operation is measured")
    parser.add_argument("--counts", type=Path, default=Path("benchmarks/results/counts.json"), help="file of counts")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve:
        return serve(given.ranks, given.repeats)
    counts = {}
    if given.counts.exists():
        counts = {(name, n): np.array(rest) for name, n, *rest in json.loads(given.counts.read_text())}
    if given.count:
        counts.update(counted(given.ranks, given.repeats))
        given.counts.parent.mkdir(parents=True, exist_ok=True)
        given.counts.write_text(json.dumps([[*key, *each] for key, each in counts.items()]))
    before, program = stolen(), Program()
    found = {n: measured(program, n, given.repeats) for n in given.ranks}
    expected = predicted(program, given.ranks, given.repeats)
    busy = max(before, stolen())
    text = document(found, expected, counts, f"Other programs took at most {100 * busy:.1f} % of a core.")
    print(text)
    if busy > BUSY:
        print("Times are inconclusive, because other programs ran.")
    if not given.no_write:
        put(text, BEGIN)


if __name__ == "__main__":
    main()
