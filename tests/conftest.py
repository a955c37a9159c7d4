"""What tests have in common: worlds of ranks to run in, and the check that nothing stays behind."""

import gc
import os
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from looking import Peek, Poke  # a module of its own: there are several called conftest

import synkhronos as synk
from synkhronos.functions.distribute import catalogue_of
from synkhronos.program import PROGRAM

try:
    import theano  # noqa: F401  (before the first fork: the ranks inherit it, and need not import it themselves)
except ImportError:
    theano = None


class World:
    """An open session, and variables of one engine that all its ranks hold.

    Attributes
    ----------
    launcher : "threads" or "fork"
    n, root : int
    engine : module, with ``shared``, ``variable`` and what the tests of that engine need
    """

    def __init__(self, launcher, n, root, engine="numpy"):
        self.launcher, self.n, self.root = launcher, n, root
        self.engine_name = engine
        self.session = PROGRAM.open(n, root, launcher=launcher)
        self._functions = []

    def __repr__(self):
        return "%s-%d-root%d-%s" % (self.launcher, self.n, self.root, self.engine_name)

    def shared(self, value, name=None):
        """Return a shared variable that all ranks hold, with that value on each."""
        if self.engine_name == "theano":
            variable = theano.shared(value, name=name)
        else:
            from synkhronos.engines import numpy as engine

            variable = engine.shared(value, name)
        function = synk.function([], [(variable, None)])
        self._functions.append(function)
        catalogue_of(self.session).ensure([function])
        return variable

    def _number(self, variable):
        from synkhronos import engines

        return catalogue_of(self.session).find(engines.find([variable]), variable)

    def values(self, variable):
        """Return every rank's value, in rank order."""
        return self.session.run(Peek(self._number(variable)))

    def set_values(self, variable, values):
        """Give every rank its value, in a private array."""
        self.session.run(Poke(self._number(variable), [np.asarray(value) for value in values]))


@pytest.fixture
def make_world():
    """Open sessions; the last one is closed at the end of the test."""
    def make(launcher="threads", n=2, root=0, engine="numpy"):
        synk.close()
        return World(launcher, n, root, engine)

    yield make
    synk.close()


#: Worlds that every collective and every form of a call is tried in: most as threads, the same as processes.
WORLDS = [("threads", n, root, "numpy") for n, root in ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2))]
WORLDS += [("fork", 2, 0, "numpy"), ("fork", 3, 1, "numpy")]
THEANO_WORLDS = [pytest.param(world, marks=pytest.mark.theano, id="%s-%d-root%d-%s" % world)
                 for world in (("fork", 1, 0, "theano"), ("fork", 2, 0, "theano"), ("fork", 3, 2, "theano"))]


@pytest.fixture(params=[pytest.param(world, id="%s-%d-root%d-%s" % world) for world in WORLDS] + THEANO_WORLDS)
def world(request, make_world):
    """Every world in turn."""
    return make_world(*request.param)


def leftovers():
    """Return what must not be there when no session is open: processes, names, threads."""
    keeper = PROGRAM.keeper_pid
    found = []
    for child in psutil.Process().children(recursive=True):
        if child.pid != keeper:
            found.append("process %d: %s" % (child.pid, child.name()))
    found += ["shared memory /dev/shm/" + name for name in os.listdir("/dev/shm") if "synk" in name]
    found += ["thread " + thread.name for thread in threading.enumerate() if thread.name.startswith("synkhronos")]
    return found


@pytest.fixture(autouse=True)
def nothing_stays(request):
    """After every test: no rank, no name in /dev/shm, no thread of ours."""
    before = set(leftovers())
    yield
    if not PROGRAM.session:
        gc.collect()
        after = set(leftovers()) - before
        assert not after, "left behind: %s" % sorted(after)


ROOT = Path(__file__).parents[1]
