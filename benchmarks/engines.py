"""Benchmark of the overhead of a call with PyTensor, compared with Theano; the two programs alternate.

python -m benchmarks.engines                    # in the environments created by make
python -m benchmarks.engines --theano PYTHON --pytensor PYTHON --rounds 20

The two libraries cannot run in one process, and two programs cannot have ranks on the same cores. So in each round, one
program forks, measures and closes, and then the other program does the same. Each program measures the difference
between our call and the plain call for every case of `calls.py`.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import synkhronos as synk

from .calls import Functions
from .contenders import WITH_THEANO
from .library import IS_THEANO
from .measure import BUSY, Local, Times, measure_in_turn, stolen

ROOT = Path(__file__).resolve().parents[1]
#: Interpreters of both environments: this interpreter, and one that `make install` created for the other engine.
THEANO, PYTENSOR = (
    Path(sys.executable) if is_this else ROOT / folder / "bin" / "python"
    for is_this, folder in ((IS_THEANO, ".venv"), (not IS_THEANO, ".venv-pytensor"))
)
#: Rows of the data.
ROWS = 6000


class Program:
    """Process of a given interpreter that measures on request; a context manager that ends the process on exit."""

    def __init__(self, python, n):
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [str(python), "-m", "benchmarks.engines", "--serve", str(n)]
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, env=environment, cwd=str(ROOT), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def overheads(self, repeats):
        """Return the microseconds that our call takes beyond the plain call, by case (medians of `repeats` calls)."""
        self._process.stdin.write(b"%d\n" % repeats)
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self._process.args)} ended with exit status {self._process.wait()}")
        return json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve(n):
    """Measure once for each line of stdin, which contains the number of calls."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # separates other output from the answers
    functions = Functions(ROWS, n)
    for line in sys.stdin:
        synk.fork(n, use_gpu=False)
        try:
            found = {}
            for case, (ours, plain, _) in functions.cases().items():
                times = measure_in_turn({"ours": Local(ours), "plain": Local(plain)}, int(line))
                found[case] = times["ours"].median - times["plain"].median
        finally:
            synk.close()
        print(json.dumps(found), file=answers, flush=True)


def run(groups, n=2, rounds=20, repeats=500, theano=THEANO, pytensor=PYTENSOR):
    """Yield a result row per case with both engines' medians over the rounds; `groups` is not used."""
    for python in (theano, pytensor):
        if not Path(python).exists():
            print(f"engines: skipped, because {python} does not exist; create it with make install ENGINE=...")
            return
    found = []
    with Program(theano, n) as one, Program(pytensor, n) as other:
        for program in (one, other):
            program.overheads(repeats)  # not counted, because it compiles
        for _ in range(rounds):
            found.append((one.overheads(repeats), other.overheads(repeats)))
    for case in found[0][0]:
        with_theano, with_pytensor = (np.array([each[i][case] for each in found]) for i in (0, 1))
        times = {"synkhronos": statistics(with_pytensor), WITH_THEANO: statistics(with_theano)}
        yield {"case": f"call with PyTensor, {case}", "n": n, "times": times}


def statistics(micro):
    """Return the statistics of the rounds' medians, in microseconds."""
    return Times(float(np.median(micro)), float(np.percentile(micro, 99)), float(micro.min()), len(micro))


def main(arguments=None):
    """Run the benchmark with the command-line options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--theano", type=Path, default=THEANO, help="interpreter of Theano's environment; default: %(default)s"
    )
    parser.add_argument(
        "--pytensor", type=Path, default=PYTENSOR, help="interpreter of PyTensor's environment; default: %(default)s"
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.serve:
        serve(given.serve)
        return
    before = stolen()
    for row in run(None, given.ranks, given.rounds, theano=given.theano, pytensor=given.pytensor):
        ours, theirs = row["times"]["synkhronos"], row["times"][WITH_THEANO]
        print(
            f"{row['case']:<45} {ours.median:6.1f} us, minimum {ours.least:6.1f}; {WITH_THEANO} {theirs.median:6.1f}, "
            f"minimum {theirs.least:6.1f}; ratio {ours.median / theirs.median:.2f}, of the minima "
            f"{ours.least / theirs.least:.2f} (goal 1.3)"
        )
    busy = max(before, stolen())
    if busy > BUSY:
        print(f"Other programs took {100 * busy:.0f} % of a core, so the results are inconclusive.")


if __name__ == "__main__":
    main()
