"""Worlds of ranks for tests. (Not in conftest.py: objects sent to ranks are found by their module's name.)"""

import atexit
import importlib.util
import os

import numpy as np
import pytest
from simulated_hosts import StartedWorld

import synkhronos as synk
from synkhronos.mesh.devices import launcher_of
from synkhronos.program.program import PROGRAM
from synkhronos.replication.replicator import replicator_of
from synkhronos.runtime.command import Command
from synkhronos.runtime.registry import Origin
from synkhronos.sync.hosts import Hosts

try:
    import theano  # (before the first fork, so that ranks inherit the import)
except ImportError:
    theano = None
try:
    import pytensor  # (before the first fork)
except ImportError:
    pytensor = None


HAS_MLXTEND = importlib.util.find_spec("mlxtend") is not None
HAS_LASAGNE = all(importlib.util.find_spec(name) for name in ("theano", "lasagne", "tqdm"))

needs_mlxtend = pytest.mark.skipif(not HAS_MLXTEND, reason="needs mlxtend: make install")
needs_lasagne = pytest.mark.skipif(not (HAS_LASAGNE and HAS_MLXTEND), reason="needs lasagne and mlxtend: make install")


class Peek(Command):
    """Return a copy of this rank's value, so that tests see other ranks without the collectives under test."""

    def __init__(self, number):
        self.number = number

    def run(self, context):
        engine, variable = context.registry.shareds[self.number]
        return np.array(engine.get(variable))


class Poke(Command):
    """Store a new private array in one rank's storage, as an engine's update may do."""

    def __init__(self, number, values):
        self.number, self.values = number, values

    def run(self, context):
        entry = context.registry.shareds[self.number]
        value = entry.engine.to_device(entry.reference(), np.array(self.values[context.rank]))
        if VALUES == "devices":
            (value,) = entry.engine.mesh.put([value], context.rank)
        entry.set(value, Origin.OWN)


class Handles(Command):
    """Return the handles of all ranks' arrays to the master, which calls ``meanwhile`` and then reads the arrays."""

    title = "handles"

    def __init__(self, meanwhile):
        self.meanwhile = meanwhile

    def __reduce__(self):
        return Handles, (None,)

    def run(self, context):
        array = context.transport.allocate(("of a test",), (5,), np.dtype("f8"))
        array[:] = context.rank
        return context.pool.handle(array)

    def finish(self, results, context):
        self.meanwhile()
        return [context.pools.attach(handle)[0] for handle in results]


class Tables(Command):
    """Return the numbers of functions and variables in this rank's tables, and the bytes of its pool."""

    def run(self, context):
        return len(context.registry.functions), len(context.registry.shareds), context.pool.used


#: Maximum number of hosts in a session; then, the number of ranks per host in worlds with several hosts.
MAX_HOSTS = 3
COUNTS = {"2 hosts": (2, 2), "2 uneven hosts": (2, 1), "3 hosts": (1, 2, 1)}


class Meeting:
    """Bridge to the tests' other hosts: it lasts from test to test, and some tests install it in the program."""

    bridge = None
    processes = ()

    @classmethod
    def begin(cls, n):
        """Run the program's sessions on at least n hosts, which are processes of this machine."""
        there = cls.bridge is not None and cls.bridge.alive()
        if not there or len(cls.bridge.hosts()) < n:
            PROGRAM.shut_down()
            cls.end()
            PROGRAM.meet(StartedWorld([f"host{i}" for i in range(MAX_HOSTS)], [__name__]))
            cls.bridge = PROGRAM._bridge
            cls.processes = [cls.bridge.pid, *(pid for host in cls.bridge.hosts() for pid in host.processes)]
        PROGRAM._bridge = cls.bridge

    @classmethod
    def part(cls):
        """Run the program's sessions on this host alone."""
        PROGRAM._bridge = None

    @classmethod
    def end(cls):
        """End the other hosts."""
        if cls.bridge is not None:
            cls.bridge.end()
            cls.bridge, cls.processes = None, ()


atexit.register(Meeting.end)


def over_hosts(counts, root=0, **options):
    """Open a session with the given number of ranks on each host."""
    Meeting.begin(len(counts))
    hosts = Hosts.of_counts(tuple(f"host{i}" for i in range(len(counts))), tuple(counts))
    hosts = hosts._replace(cores=tuple(host.cores for host in PROGRAM.all_hosts()[: len(counts)]))
    return PROGRAM.open(hosts.size, root, hosts=hosts, **options)


def opened(launcher, n, root, **options):
    """Open a session of threads, of processes ("fork"), or on n of JAX's devices ("mesh")."""
    if launcher == "mesh":
        launcher = launcher_of("jax", n, None, 0, False, root)
    return PROGRAM.open(n, root, launcher=launcher, **options)


class World:
    """An open session with variables of one engine on all its ranks.

    Parameters
    ----------
    launcher : "threads", "fork", "mesh", or one of `COUNTS`
    n, root : int
    engine : "numpy", "theano" or "pytensor"
    **options
        Other options of `Program.open`.
    """

    def __init__(self, launcher, n, root, engine="numpy", **options):
        if MESH and launcher == "threads":
            launcher, engine = "mesh", "pytensor"
        self.launcher, self.n, self.root = launcher, n, root
        self.engine_name = engine
        if DEVICE and launcher != "threads":
            options.setdefault("devices", [DEVICE] * n)
        if launcher in COUNTS:
            self.session = over_hosts(COUNTS[launcher], root, **options)
        else:
            self.session = opened(launcher, n, root, **options)
        self._functions = []

    def __repr__(self):
        return f"{self.launcher}-{self.n}-root{self.root}-{self.engine_name}"

    def shared(self, value, name=None):
        """Return a shared variable with this value on all ranks."""
        return self.shareds([value], [name])[0]

    def shareds(self, values, names=None):
        """Return several shared variables, used by one function."""
        names = [f"v{i}" for i in range(len(values))] if names is None else names
        options = {}
        if self.engine_name == "theano":
            variables = [theano.shared(value, name=name) for value, name in zip(values, names)]
            if not DEVICE:
                options["mode"] = "FAST_COMPILE"  # runs Python code, without the C compiler
        elif self.engine_name == "pytensor":
            variables = [pytensor.shared(value, name=name) for value, name in zip(values, names)]
            options["mode"] = pytensor.compile.mode.Mode(linker="py", optimizer=None)
        else:
            from synkhronos.testing import numpy_engine as engine

            variables = [engine.shared(value, name) for value, name in zip(values, names)]
        function = synk.function([], [(variable, None) for variable in variables], **options)
        self._functions.append(function)
        replicator_of(self.session).ensure([function])
        return variables

    def _number(self, variable):
        from synkhronos import engines

        return replicator_of(self.session).find(engines.find([variable]), variable)

    def values(self, variable):
        """Return every rank's value, in rank order."""
        return self.session.run(Peek(self._number(variable)))

    def set_values(self, variable, values):
        """Set every rank's value, in a private array."""
        self.session.run(Poke(self._number(variable), [np.asarray(value) for value in values]))


#: The device of all ranks of worlds with processes, if tests/gpu repeats the tests of Theano's worlds.
DEVICE = os.environ.get("SYNK_TEST_DEVICE")

#: Numbers of JAX's devices in random programs.
MESH_SIZES = (1, 2, 3, 8)

#: Number of JAX's devices if tests/mesh repeats tests: worlds of threads are then sessions on a mesh.
MESH = int(os.environ.get("SYNK_TEST_MESH", "0"))
VALUES = os.environ.get(
    "SYNK_TEST_MESH_VALUES"
)  #: "devices" if values of variables are on the devices, as after calls.

#: The linker of PyTensor's functions, if tests do not run Python code: "cvm" or "numba".
LINKER = os.environ.get("SYNK_TEST_LINKER", "py")

#: Worlds for every collective and every form of a call: most with threads, the others with processes.
WORLDS = [("threads", n, root, "numpy") for n, root in ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2))]
WORLDS += [("fork", 2, 0, "numpy"), ("fork", 3, 1, "numpy")]
WORLDS += [("2 hosts", 4, 1, "numpy"), ("3 hosts", 4, 0, "numpy")]
#: Tiers of worlds, and of numbers of ranks and roots. `make quick` runs two ranks, and three with the middle root.
TIERS_OF_WORLDS = [
    pytest.mark.slow("fork-|hosts-|3-root2"),
    pytest.mark.thorough("1-root0|2-root1|3-root0|fork-3-root2|3 hosts-"),
]
#: Tiers of files with fewer worlds: `make test` runs two ranks as processes, and `make test-all` two hosts.
FEWER_WORLDS = [pytest.mark.thorough("fork-3-root1|2 hosts-"), pytest.mark.long("3 hosts-")]
THEANO_WORLDS = [
    pytest.param(world, marks=pytest.mark.theano, id="{}-{}-root{}-{}".format(*world))
    for world in (("fork", 1, 0, "theano"), ("fork", 2, 0, "theano"), ("fork", 3, 2, "theano"))
]
PYTENSOR_WORLDS = [
    pytest.param(world, marks=pytest.mark.pytensor, id="{}-{}-root{}-{}".format(*world))
    for world in (("fork", 1, 0, "pytensor"), ("fork", 2, 0, "pytensor"), ("fork", 3, 2, "pytensor"))
]
if MESH:
    import jax  # noqa: F401, it sets environment variables, which no test may change

    WORLDS, THEANO_WORLDS = [], []
    PYTENSOR_WORLDS = [
        pytest.param(
            ("mesh", MESH, root, "pytensor"), marks=pytest.mark.pytensor, id=f"mesh-{MESH}-root{root}-pytensor"
        )
        for root in sorted({0, MESH // 2})
    ]
#: Parameters of a test: all engines, or the installed engines, for tests that use one engine after another.
ENGINES = [
    "numpy",
    pytest.param("theano", marks=pytest.mark.theano),
    pytest.param("pytensor", marks=pytest.mark.pytensor),
]
INSTALLED = ["numpy"] + ["theano"] * (theano is not None) + ["pytensor"] * (pytensor is not None)
#: Marks of an engine's tests if the engine is not installed.
MISSING = {
    name: pytest.mark.skip(reason=f"needs {label}: make install ENGINE={name}")
    for name, label, module in (("theano", "Theano", theano), ("pytensor", "PyTensor", pytensor))
    if module is None
}
