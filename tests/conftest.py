"""What tests have in common: tiers, worlds of ranks to run in (see worlds.py), and the check that nothing stays behind."""

import gc
import itertools
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import markers
import psutil
import pytest
import turns

# Before PyTensor is imported, here and in what tests start: run by Python code, graphs cost no compiling.
LINKER = os.environ.get("SYNK_TEST_LINKER")
os.environ.setdefault("PYTENSOR_FLAGS", f"linker={LINKER}" if LINKER else "linker=py,cxx=")

from words import WORDS, NumpyWords, PyTensorWords, TheanoWords, shards  # noqa: E402
from worlds import MISSING, PYTENSOR_WORLDS, THEANO_WORLDS, TIERS_OF_WORLDS, WORLDS, Meeting, World  # noqa: E402

import synkhronos as synk  # noqa: E402
import synkhronos.testing.numpy_engine  # noqa: E402, F401, registers itself
from synkhronos.program.program import PROGRAM  # noqa: E402

# Programs that a shell has put into the background inherit to ignore Ctrl-C; here it counts, and in what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.collect()
gc.freeze()  # every test collects garbage: it need not look at all that was imported


# -- tiers and turns ---------------------------------------------------------------------------------------------------

TURNS = "SYNK_TEST_TURNS"


def pytest_configure(config):
    """Give the processes of pytest-xdist, which inherit the environment, a folder for their turns."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ[TURNS] = tempfile.mkdtemp(prefix="turns-")
    elif hasattr(config, "workerinput"):  # and not a pytest that a test starts, which would wait for that test
        config.turns = turns.Turns(Path(os.environ[TURNS]))


def pytest_unconfigure(config):
    if hasattr(config, "turns"):
        config.turns.close()
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(TURNS), ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before markers are selected by
def pytest_collection_modifyitems(config, items):
    """Give every test the marker of its tier, and skip those whose engine is missing."""
    is_whole = not config.getoption("lf", False) and not any("::" in argument for argument in config.args)
    config.stash[markers.UNSUITABLE] = markers.unsuitable_patterns(items) if is_whole else []
    markers.settle(items, TIERS_OF_WORLDS)
    for item in items:
        for engine in MISSING:
            if item.get_closest_marker(engine) is not None:
                item.add_marker(MISSING[engine])


@pytest.hookimpl(hookwrapper=True, tryfirst=True)  # before the clock of a test's timeout starts
def pytest_runtest_protocol(item):
    """Run the tests that are marked `alone` while no other process runs one."""
    turns = getattr(item.config, "turns", None)
    if turns is None:
        yield
        return
    turns.begin(item.get_closest_marker("alone") is not None)
    try:
        yield
    finally:
        turns.end()


#: Packages of which an environment has some: tests in modules that import another one are skipped.
OF_ENGINES = ("theano", "lasagne", "pytensor", "pymc", "pygpu")


class TestModule(pytest.Module):
    """A file of tests, skipped if it needs an engine that is not installed."""

    def _getobj(self):
        try:
            return super()._getobj()
        except self.CollectError as error:
            missing = error.__cause__
            if isinstance(missing, ModuleNotFoundError) and missing.name in OF_ENGINES:
                pytest.skip(f"needs {missing.name}", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path, parent):
    return TestModule.from_parent(parent, path=module_path)


# -- worlds ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def make_world():
    """Open sessions; the last one is closed at the end of the test."""

    def make(launcher="threads", n=2, root=0, engine="numpy", **options):
        synk.close()
        return World(launcher, n, root, engine, **options)

    yield make
    synk.close()


@pytest.fixture(
    params=[pytest.param(world, id="{}-{}-root{}-{}".format(*world)) for world in WORLDS]
    + THEANO_WORLDS
    + PYTENSOR_WORLDS
)
def world(request, make_world):
    """Every world in turn."""
    return make_world(*request.param)


@pytest.fixture
def words(world, words_of):
    """The words of the world's engine."""
    return words_of(world.engine_name)


@pytest.fixture
def numpy_words():
    """The words of the NumPy engine."""
    return NumpyWords()


@pytest.fixture
def theano_words():
    """The words of Theano."""
    return TheanoWords()


@pytest.fixture
def pytensor_words():
    """The words of PyTensor."""
    return PyTensorWords()


@pytest.fixture(name="shards")
def shards_fixture():
    """The function `shards`."""
    return shards


@pytest.fixture
def words_of():
    """From an engine's name to its words."""
    return lambda name: WORDS[name]()


# -- nothing stays -----------------------------------------------------------------------------------------------------

#: Seconds in which what other tests have at the moment is gone, on a busy machine.
PATIENCE = 30.0


def leftovers():
    """Return what must not be there when no session is open: processes, names, threads."""
    lasting = {PROGRAM.keeper_pid, *Meeting.processes}
    found = []
    for pid in descendants(os.getpid()):
        if pid not in lasting:
            found.append(f"process {pid}: {name_of(pid)}")
    names = ["/dev/shm/" + name for name in os.listdir("/dev/shm") if "synk" in name]
    found += ["shared memory " + name for name in names if not mapped_elsewhere(name)]
    found += ["thread " + thread.name for thread in threading.enumerate() if thread.name.startswith("synkhronos")]
    return found


def descendants(pid):
    """Return the processes that a process has started, and those that they have: psutil looks at all of the machine."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except FileNotFoundError:  # it has ended
        pass
    return found + [each for child in found for each in descendants(child)]


def name_of(pid):
    try:
        return psutil.Process(pid).name()
    except psutil.NoSuchProcess:
        return "it has ended"


def mapped_elsewhere(path):
    """Return whether a program that has nothing to do with this one has the file mapped: then it is that one's."""
    ours = psutil.Process().children(recursive=True) + [psutil.Process()]
    for pid in set(psutil.pids()) - {process.pid for process in ours}:
        try:
            if path in Path(f"/proc/{pid}/maps").read_text():
                return True
        except OSError:  # it has ended, or is another user's
            pass
    return False


def left_since(before):
    """Return what is there that was not, and stays: another process of pytest-xdist may have a name of its own for a moment."""
    after = set(leftovers()) - set(before)
    until = time.monotonic() + PATIENCE
    while after and time.monotonic() < until:
        time.sleep(0.05)
        after &= set(leftovers())
    return after


@pytest.fixture
def find_leftovers():
    """The function that returns what must not be there when no session is open."""
    return leftovers


@pytest.fixture
def find_left_since():
    """The function that returns what has come since then, and must not be there when no session is open."""
    return left_since


#: Folders of tests that use several hosts: in others no more processes must be there than their tests have started.
OVER_HOSTS = ("collectives", "functions", "program", "programs", "replication", "transports")


#: Bytes of addresses, and files of tests, after which a process looks for garbage among all that it has made.
MANY_ADDRESSES, MANY_FILES = 32 << 40, 20

_files = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def settled(request):
    """What was made before is not looked at by every garbage collection: the library's own would take most of the time.

    What the file before has left goes first: functions that still live are seen by a later `fork`. Once in a while so does
    what has become garbage since it was frozen, which takes a second. (An error that a test caught refers to itself and
    to a session, whose pools reserve a TiB of addresses for each rank, of the 128 that a process has.)
    """
    if request.path.parent.name not in OVER_HOSTS:
        Meeting.end()
    if next(_files) % MANY_FILES == MANY_FILES - 1 or psutil.Process().memory_info().vms > MANY_ADDRESSES:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_directory():
    """After every test the working directory is what it was: programs of other users may not enter a test's own."""
    before = os.getcwd()
    yield
    os.chdir(before)


@pytest.fixture(autouse=True)
def nothing_stays(request):
    """After every test: no rank, no name in /dev/shm, no thread of ours."""
    before = set(leftovers())
    yield
    Meeting.part()
    if not PROGRAM.session:
        after = set(leftovers()) - before
        if after:  # a collection costs 50 ms if Theano is loaded: not after every one of thousands of tests
            gc.collect()
            after = left_since(before)
        assert not after, f"left behind: {sorted(after)}"
