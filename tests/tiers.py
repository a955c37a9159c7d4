"""Which tests belong to which tier: the one place that says so.

    quick      make quick       threads and the NumPy engine: under a minute
    (the rest) make test        and every feature on real processes with Theano: what a newcomer runs
    thorough   make test-all    and the same in more worlds, longer programs, OpenCL devices
    long       make test-long   what does not fit into any of these

A test has at most one of the markers; each tier runs those before it as well, but for `long`. `alone` is no tier: such a
test looks at the clock or at the processor, so nothing runs beside it (see `Turns`).
"""

import fcntl
import re
from typing import NamedTuple


class Rule(NamedTuple):
    """The tests in a file or folder that get a marker: those in whose name the pattern is found."""

    marker: str
    path: str
    names: str = ""


#: What other processes or a compiler make too slow for `make quick`.
SLOW_PATHS = (
    "tests/cli/",
    "tests/demos/",
    "tests/engines/test_import_fixes.py",
    "tests/gpu/",
    "tests/launchers/",
    "tests/program/",
    "tests/programs/",
    "tests/programs_2017/",
    "tests/project/test_benchmarks.py",
    "tests/project/test_docs.py",
    "tests/project/test_package.py",
    "tests/sabotage/",
)

RULES = [
    Rule("thorough", "tests/gpu/"),
]


def markers_of(path, name, is_theano):
    """Return the markers of a test; without that of a tier it begins to run with `make test`.

    Parameters
    ----------
    path : str
        Its file, from the root of the repository.
    name : str
        The rest of its id: the function, and the parameters in brackets.
    is_theano : bool
        Whether it has the marker `theano`.
    """
    markers = {rule.marker for rule in RULES if path.startswith(rule.path) and re.search(rule.names, name)}
    if not markers & {"thorough", "long"} and not is_theano and "fork-" not in name and not path.startswith(SLOW_PATHS):
        markers.add("quick")
    return sorted(markers)


class Turns:
    """Turns of test processes that run at the same time: any number of tests together, or one that is `alone`.

    Two locks, since one alone could keep a test that wants to be alone waiting for ever: who waits for the room holds the
    door, and nothing else comes in.

    Parameters
    ----------
    folder : path
        The same for all processes, and empty at first.
    """

    def __init__(self, folder):
        self._door, self._room = (open(str(folder / name), "w") for name in ("door", "room"))

    def begin(self, alone):
        """Wait for this test's turn."""
        fcntl.flock(self._door, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(self._door, fcntl.LOCK_UN)

    def end(self):
        """Let the others have theirs."""
        fcntl.flock(self._room, fcntl.LOCK_UN)
        fcntl.flock(self._door, fcntl.LOCK_UN)
