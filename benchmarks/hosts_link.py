"""Programs on pretend hosts, as tests/hosts has them, with links of a rate: for benchmarks. (Needs root.)"""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM_TIMEOUT_S = 900
#: What a program prints before what it has measured.
MARK = "measured: "


def report(**found):
    """Tell the program that measures what was found; in a program that it has started."""
    print(MARK + json.dumps(found), flush=True)


@contextlib.contextmanager
def pretend_hosts(kind, n, rate=None):
    """Provide a function that runs code of this package on so many hosts, and returns what it has reported.

    Parameters
    ----------
    kind : str
        "openmpi" or "mpich".
    n : int
    rate : float, optional
        Bits per second of every link, in either direction.
    """
    sys.path.insert(0, str(ROOT / "tests" / "hosts"))
    import mpi as of_tests
    from pretend import Cluster, lacking

    why_not = lacking() or of_tests.lacking(kind)
    if why_not:
        raise SystemExit(why_not)
    mpi = of_tests.find(kind)
    limit = "unlimited" if rate is None else f"{round(rate)}bit"
    with Cluster(n, limit, shared=[ROOT, mpi.prefix]) as hosts:

        def start(code):
            command = ["-c", "from benchmarks import " + code.split(".")[0] + "; " + code]
            variables = {"PYTHONPATH": str(ROOT)}
            process = mpi.start(command, hosts=hosts, cwd=ROOT, variables=variables, stdout=subprocess.PIPE)
            printed = process.communicate(timeout=PROGRAM_TIMEOUT_S)[0].decode()
            found = [json.loads(line[len(MARK) :]) for line in printed.splitlines() if line.startswith(MARK)]
            if not found:
                raise SystemExit(f"{code} has measured nothing:\n{printed}")
            return found[0]

        yield start
