"""Functions that run programs on simulated hosts (see tests/hosts) with links of limited rate."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM_TIMEOUT_S = 900


def report(**row):
    """Report a result to the benchmark as a printed line of JSON."""
    print(json.dumps(row), flush=True)


def lacking(kind):
    """Return a sentence about missing requirements for simulated hosts with this MPI; "" if none are missing."""
    of_tests, pretend = helpers()
    return pretend.lacking() or of_tests.lacking(kind)


@contextlib.contextmanager
def pretend_hosts(kind, n, rate=None):
    """Provide a function that runs a program of this package on `n` hosts, and returns the program's reported rows.

    Parameters
    ----------
    kind : str
        "openmpi" or "mpich".
    n : int
    rate : float, optional
        Bits per second of every link, in either direction.
    """
    of_tests, pretend = helpers()
    mpi = of_tests.find(kind)
    limit = "unlimited" if rate is None else f"{round(rate)}bit"
    with pretend.Cluster(n, limit, shared=[ROOT, mpi.prefix]) as hosts:

        def run(module, *arguments):
            command = ["-m", f"benchmarks.hosts.{module}", *map(str, arguments)]
            variables = {"PYTHONPATH": str(ROOT)}
            process = mpi.start(command, hosts=hosts, cwd=ROOT, variables=variables, stdout=subprocess.PIPE)
            printed = process.communicate(timeout=PROGRAM_TIMEOUT_S)[0].decode()
            rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
            if process.returncode or not rows:
                raise SystemExit(f"{' '.join(command)} has failed on {n} hosts:\n{printed}")
            return rows

        yield run


def helpers():
    """Return the tests' modules for MPI and for simulated hosts."""
    folder = str(ROOT / "tests" / "hosts")
    if folder not in sys.path:
        sys.path.append(folder)
    import mpi
    import pretend

    return mpi, pretend
