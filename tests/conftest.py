"""Shared fixtures and hooks: tiers, worlds of ranks (see worlds.py), and checks that tests leave nothing behind."""

import gc
import itertools
import logging
import os
import random
import re
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

# Set before PyTensor is imported, here and in child processes: Python code needs no compilation.
LINKER = os.environ.get("SYNK_TEST_LINKER")
os.environ.setdefault("PYTENSOR_FLAGS", f"linker={LINKER}" if LINKER else "linker=py,cxx=")

# If another process is compiling, a process waits a second or two before its next check, not Theano's 5 to 10.
if "compile.wait" not in os.environ.get("THEANO_FLAGS", ""):
    os.environ["THEANO_FLAGS"] = ",".join(filter(None, ["compile.wait=1", os.environ.get("THEANO_FLAGS")]))

from words import WORDS, NumpyWords, PyTensorWords, TheanoWords, shards  # noqa: E402
from worlds import MISSING, PYTENSOR_WORLDS, THEANO_WORLDS, TIERS_OF_WORLDS, WORLDS, Meeting, World  # noqa: E402

import synkhronos as synk  # noqa: E402
import synkhronos.testing.numpy_engine  # noqa: E402, F401, registers itself
from synkhronos.program.program import PROGRAM  # noqa: E402

HERE = Path(__file__).parent

# Programs started in the background by a shell ignore Ctrl-C. Here, it is enabled for the tests and their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.collect()
gc.freeze()  # garbage collections after each test need not examine imported objects


# -- tiers and turns ---------------------------------------------------------------------------------------------------

TURNS = "SYNK_TEST_TURNS"


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run files, and the tests in each, in random order")


def pytest_configure(config):
    """Create a folder for the turns of pytest-xdist's processes, which inherit the environment; keep the files' order.

    pytest-xdist would run files with few tests last, although these take longest. (On Python 3.8, its newest version has
    no such option.)
    """
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ[TURNS] = tempfile.mkdtemp(prefix="turns-")
    elif hasattr(config, "workerinput"):  # but not in a pytest that a test starts, which would wait for that test
        config.turns = turns.Turns(Path(os.environ[TURNS]))


def pytest_unconfigure(config):
    if hasattr(config, "turns"):
        config.turns.close()
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(TURNS), ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before tests are selected by marker
def pytest_collection_modifyitems(config, items):
    """Mark every test with its tier, and skip tests whose engine is missing."""
    is_whole = not config.getoption("lf", False) and not any("::" in argument for argument in config.args)
    config.stash[markers.UNSUITABLE] = markers.unsuitable_patterns(items) if is_whole else []
    markers.settle(items, TIERS_OF_WORLDS)
    for item in items:
        for engine in MISSING:
            if item.get_closest_marker(engine) is not None:
                item.add_marker(MISSING[engine])
    seed = config.getoption("shuffle")
    if seed is not None:  # the same order in all processes of pytest-xdist, which keep each file's tests together
        random.Random(seed).shuffle(items)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)  # before a test's timeout starts
def pytest_runtest_protocol(item):
    """Run tests marked `alone` while no other process runs a test."""
    turns = getattr(item.config, "turns", None)
    if turns is None:
        yield
        return
    turns.begin(item.get_closest_marker("alone") is not None)
    try:
        yield
    finally:
        turns.end()


#: Packages that some environments lack: tests in modules that import a missing package are skipped.
OF_ENGINES = ("theano", "lasagne", "pytensor", "pymc", "pygpu")


class TestModule(pytest.Module):
    """File of tests, skipped if it needs an engine that is not installed."""

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
    """Return a function that opens sessions; the last one is closed at the end of the test."""

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
    """Return every world in turn."""
    return make_world(*request.param)


@pytest.fixture(params=[("threads", 1, 0), ("threads", 3, 1), ("fork", 2, 0)], ids="{0[0]}-{0[1]}".format)
def small_world(request, make_world):
    """Return one, three and two ranks in turn, with the installed library as their engine."""
    return make_world(*request.param, engine=installed_library())


@pytest.fixture
def threads(make_world):
    """Return three ranks that are threads, with the installed library as their engine."""
    return make_world("threads", 3, 1, engine=installed_library())


@pytest.fixture
def divided_updates(monkeypatch):
    """Let ranks that are threads compute updates of any size in parts."""
    from synkhronos.engines.graph import dividing
    from synkhronos.transports import common, shared_memory

    of_common = [(common, "COMMON_FROM_BYTES"), (common, "ALIGNMENT")]
    for module, name in [*of_common, (dividing, "DIVIDED_FROM_BYTES"), (shared_memory, "OWN_FROM_BYTES")]:
        monkeypatch.setattr(module, name, 1)


def installed_library():
    from library import NAME  # imports the library, which most tests do not need

    return NAME


@pytest.fixture
def told(caplog):
    """Return a function that returns the messages logged since its last call."""
    caplog.set_level(logging.WARNING, "synkhronos")

    def since():
        texts = [record.getMessage() for record in caplog.records if record.name == "synkhronos"]
        caplog.clear()
        return texts

    return since


@pytest.fixture
def words(world, words_of):
    """Return the vocabulary for programs of the world's engine."""
    return words_of(world.engine_name)


@pytest.fixture
def numpy_words():
    """Return the vocabulary for programs of the NumPy engine."""
    return NumpyWords()


@pytest.fixture
def theano_words():
    """Return the vocabulary for Theano programs."""
    return TheanoWords()


@pytest.fixture
def pytensor_words():
    """Return the vocabulary for PyTensor programs."""
    return PyTensorWords()


@pytest.fixture(name="shards")
def shards_fixture():
    """Return the function `shards`."""
    return shards


@pytest.fixture
def words_of():
    """Return a function from an engine's name to its vocabulary."""
    return lambda name: WORDS[name]()


# -- no leftovers ------------------------------------------------------------------------------------------------------

#: Time limit in seconds for other tests' current resources to disappear, on a busy machine.
PATIENCE = 30.0


def leftovers():
    """Return processes, names and threads that must not exist while no session is open."""
    lasting = {PROGRAM.keeper_pid, *Meeting.processes}
    found = []
    for pid in descendants(os.getpid()):
        if pid not in lasting:
            found.append(f"process {pid}: {name_of(pid)}")
    names = ["/dev/shm/" + name for name in os.listdir("/dev/shm") if "synk" in name and not is_of_another(name)]
    found += ["shared memory " + name for name in names if not mapped_elsewhere(name)]
    found += ["thread " + thread.name for thread in threading.enumerate() if thread.name.startswith("synkhronos")]
    return found


def descendants(pid):
    """Return all child processes, recursively (psutil would scan all processes of the machine)."""
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


def is_of_another(name):
    """Return whether the tests of another process have created a file, which they may have not mapped yet."""
    creator = re.match(r"synk-test-(\d+)-", name)
    return creator is not None and int(creator[1]) != os.getpid() and psutil.pid_exists(int(creator[1]))


def mapped_elsewhere(path):
    """Return whether a file is mapped by an unrelated program, and thus belongs to that program."""
    ours = psutil.Process().children(recursive=True) + [psutil.Process()]
    for pid in set(psutil.pids()) - {process.pid for process in ours}:
        try:
            if path in Path(f"/proc/{pid}/maps").read_text():
                return True
        except OSError:  # it has ended, or belongs to another user
            pass
    return False


def left_since(before):
    """Return new leftovers that persist: another pytest-xdist process may have names of its own for a moment."""
    after = set(leftovers()) - set(before)
    until = time.monotonic() + PATIENCE
    while after and time.monotonic() < until:
        time.sleep(0.05)
        after &= set(leftovers())
    return after


@pytest.fixture
def find_leftovers():
    """Return the function `leftovers`."""
    return leftovers


@pytest.fixture
def find_left_since():
    """Return the function `left_since`."""
    return left_since


#: Folders of tests with several hosts. After other tests, only processes that these tests started may exist.
OVER_HOSTS = ("collectives", "calls", "cluster", "program", "programs", "replication", "transports")


#: Bytes of address space, and number of test files, that trigger a full garbage collection.
MANY_ADDRESSES, MANY_FILES = 32 << 40, 20

_files = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def settled(request):
    """Freeze existing objects: scanning them would take most of the time of synkhronos's garbage collections.

    Garbage of the previous file is collected first. Once in a while, or if functions remain, frozen garbage is
    collected, too, which takes a second: every later `fork` would send these functions to its ranks. (An error that a
    test caught keeps a session alive; its pools reserve a TiB of addresses per rank, of a process's 128 TiB.)
    """
    if request.path.parent.relative_to(HERE).as_posix() not in OVER_HOSTS:
        Meeting.end()
    gc.collect()
    is_time = next(_files) % MANY_FILES == MANY_FILES - 1 or psutil.Process().memory_info().vms > MANY_ADDRESSES
    if is_time or PROGRAM.functions:
        gc.unfreeze()
        gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_directory():
    """Restore the working directory after every test, as other users' programs may be unable to enter a test's own."""
    before = os.getcwd()
    yield
    os.chdir(before)


#: Environment variables that pytest sets, and a device that stays open.
NOT_SETTINGS = ("PYTEST_CURRENT_TEST", "POCL_CACHE_DIR", "THEANO_GPU_IS_ALREADY_ACTIVE")


def settings():
    """Return settings that other test files in the same process rely on."""
    return {
        "log level": logging.getLogger("synkhronos").level,
        "environment": {name: value for name, value in os.environ.items() if name not in NOT_SETTINGS},
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)},
    }


@pytest.fixture(autouse=True)
def same_settings():
    """Check that every test restores the settings, so that the order of files or processes changes no result."""
    before = settings()
    yield
    assert settings() == before


@pytest.fixture(autouse=True)
def nothing_stays(request):
    """Check that every test leaves no rank, no name in /dev/shm, and no thread of synkhronos."""
    before = set(leftovers())
    yield
    Meeting.part()
    if not PROGRAM.session:
        after = set(leftovers()) - before
        if after:  # with Theano, a collection takes 50 ms, too much for thousands of tests
            gc.collect()
            after = left_since(before)
        assert not after, f"left behind: {sorted(after)}"
