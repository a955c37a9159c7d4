"""Data sent to hosts, compared with NumPy, and errors where a host cannot store it.

Modules: `hosts`.
"""

import os
import re

import numpy as np
import psutil
import pytest
from clocks import Clock
from gates import Gate
from refusals import reports
from simulated_hosts import StartedWorld
from worlds import Meeting

import synkhronos as synk
from synkhronos.program.program import PROGRAM
from synkhronos.runtime import session as session_module
from synkhronos.sync.hosts import Hosts

pytestmark = pytest.mark.slow

ROWS = np.random.RandomState(0).randint(0, 100, (4096, 64)).astype("float64")  # 2 MiB, whose sums are exact


def opened(counts=(2, 2)):
    Meeting.begin(2)
    synk.close()
    return PROGRAM.open(sum(counts), 0, hosts=Hosts.of_counts(("here", "there"), counts))


@pytest.fixture
def session():
    """A session with two ranks on each of two hosts."""
    yield opened()
    synk.close()


@pytest.fixture
def sums(numpy_words):
    """A function that sums the rows of a matrix."""
    x = numpy_words.variable("x", 2)
    return synk.function([x], (numpy_words.sum(x, axis=0), "sum"))


def arriving(call):
    """Return a call's result, and how many bytes the second host's serving process read meanwhile."""
    process = psutil.Process(PROGRAM.all_hosts()[1].processes[0])
    before = process.io_counters().read_chars
    return call(), process.io_counters().read_chars - before


# -- constants ---------------------------------------------------------------------------------------------------------


def test_rows_of_constants_travel_once(session, sums):
    x = synk.data(ROWS, constant=True)
    found, came = arriving(lambda: sums(x, batch=[7, 4000, 7, 30]))
    np.testing.assert_array_equal(found, ROWS[[7, 4000, 7, 30]].sum(axis=0))
    assert ROWS.nbytes <= came < 1.1 * ROWS.nbytes  # the whole array, once for both ranks
    batches = {"all": None, "list": [1, 2, 3, 4095, 0], "slice": slice(10, 4000, 3), "number": 100}
    for batch in batches.values():
        found, came = arriving(lambda batch=batch: sums(x, batch=batch))
        expected = ROWS if batch is None else ROWS[:batch] if isinstance(batch, int) else ROWS[batch]
        np.testing.assert_array_equal(found, expected.sum(axis=0))
        assert came < 30_000
    again = np.random.RandomState(1).randint(0, 4096, (20, 50))
    found, came = arriving(lambda: sums.steps(x, batches=again))
    np.testing.assert_array_equal(found, ROWS[again].sum(axis=1))
    assert came < 100_000


def test_rows_of_other_data_travel_with_every_call(session, sums):
    x = synk.data(ROWS)
    for value in (1.0, 2.0):
        x[:] = value
        found, came = arriving(lambda: sums(x))
        np.testing.assert_array_equal(found, np.full(64, 4096 * value))
        assert ROWS.nbytes // 2 <= came


def test_a_constant_that_small_world_need_first(session, sums):
    """With fewer rows than ranks, some ranks make no call; they receive the constant when they need it."""
    x = synk.data(ROWS, constant=True)
    for batch in ([5], [5, 9], [5, 9, 1, 2]):
        np.testing.assert_array_equal(sums(x, batch=batch), ROWS[batch].sum(axis=0))


def test_constants_in_collectives(session, numpy_words):
    w = numpy_words.shared(np.zeros((1, 64)), "w")
    x = synk.data(ROWS, constant=True)
    synk.scatter(w, x)
    _, came = arriving(lambda: synk.scatter(w, x, batch=slice(0, 4000)))
    np.testing.assert_array_equal(synk.gather(w, nd_up=0), ROWS[:4000])
    _, again = arriving(lambda: synk.scatter(w, x, batch=list(range(100))))
    np.testing.assert_array_equal(synk.gather(w, nd_up=0), ROWS[:100])
    assert came < 30_000 and again < 30_000
    synk.broadcast(w, x)
    np.testing.assert_array_equal(synk.get_value(3, w), ROWS)


def test_constants_of_other_sessions(sums):
    x = synk.data(ROWS, constant=True)  # created before any session
    for _ in range(2):
        opened()
        for batch in (slice(0, 8), slice(1000, 4000)):
            np.testing.assert_array_equal(sums(x, batch=batch), ROWS[batch].sum(axis=0))
        synk.close()


def test_memory_of_a_constant_that_is_used_again(session, sums):
    """A later array at the same place is not taken for the earlier one."""
    places = set()
    for value in range(3):
        for constant in (True, False):
            x = synk.data(ROWS + value, constant=constant)
            places.add(x._handle().offset)
            np.testing.assert_array_equal(sums(x, batch=slice(0, 4000)), (ROWS + value)[:4000].sum(axis=0))
            x.free_memory()
            del x
    assert len(places) < 6


def test_a_constant_after_a_call_that_failed(session, sums, numpy_words):
    x = synk.data(ROWS, constant=True)

    def fails(array):
        if len(array) > 1:  # (the function is tried with one row when the graph is built)
            raise ValueError("of this rank")
        return array

    given = numpy_words.variable("x", 2)
    failing = synk.function([given], (numpy_words.apply(fails, given), "sum"))
    with reports(ValueError, "of this rank"):
        failing(x)
    np.testing.assert_array_equal(sums(x), ROWS.sum(axis=0))


# -- lack of memory or files on a host ---------------------------------------------------------------------------------

#: Code that manipulates the second host, in a module that Python imports at the start.
PRETEND = """
import os, resource
if os.environ.get("SYNK_HOST_NAME") == "host1":
    {}
"""
LITTLE_MEMORY = (
    "from synkhronos.host import machine; machine.available_memory = lambda: 36 << 20"  # 32 MiB are reserved
)
FEW_FILES = "resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))"


@pytest.fixture
def poor_host(tmp_path, monkeypatch):
    """Return a function that prepares new hosts, the second of them manipulated by the given code."""

    def begin(what):
        (tmp_path / "sitecustomize.py").write_text(PRETEND.format(what))
        monkeypatch.syspath_prepend(str(tmp_path))
        end()

    def end():
        Meeting.part()
        PROGRAM.close()
        Meeting.end()

    yield begin
    end()


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["array", "data", "constant", "steps", "scatter", "whole"])
def test_an_argument_that_is_too_large_for_a_host(poor_host, numpy_words, way):
    poor_host(LITTLE_MEMORY)
    opened()
    x = numpy_words.variable("x", 2)
    w = numpy_words.shared(np.zeros((2, 64)), "w")
    scattered, whole = {"inputs": [x]}, {"inputs": [], "bcast_inputs": [x]}
    f = synk.function(
        outputs=(numpy_words.sum(x, axis=0), "sum"), updates=[(w, w + 1)], **(whole if way == "whole" else scattered)
    )
    large = np.tile(ROWS, (16, 1))  # 32 MiB, half of them for the second host
    given = large if way in ("array", "whole") else synk.data(large, constant=way == "constant")
    n_ranks = 4 if way == "whole" else 1
    ways = {"steps": lambda: f.steps(given, batches=[None]), "scatter": lambda: synk.scatter(w, given)}
    f(ROWS[:4])
    for _ in range(2):
        with reports(synk.WorkerError, "on host there", "4.0 MiB") as caught:
            ways.get(way, lambda: f(given))()
        assert caught.value.rank in (2, 3)
        assert [value.tolist() for value in synk.gather(w)] == [np.ones((2, 64)).tolist()] * 4  # no rank has begun
    np.testing.assert_array_equal(f(ROWS[:512]), n_ranks * ROWS[:512].sum(axis=0))


@pytest.mark.thorough
def test_more_ranks_than_a_host_can_hold(poor_host):
    poor_host(FEW_FILES)
    Meeting.begin(2)
    with reports(synk.SynkhronosError, "n_ranks", 21, 20, "ulimit -n", "host1", 160):
        synk.fork(7)
    assert synk.fork(6) == 18  # the maximum number
    assert [host.ranks[-1] for host in synk.hosts()] == [5, 11, 17]


def test_a_module_that_only_the_first_host_has(numpy_words, sums, tmp_path, monkeypatch):
    opened((1, 2))
    (tmp_path / "only_here.py").write_text("def double(array):\n    return 2 * array\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here

    x = numpy_words.variable("x", 2)
    f = synk.function([x], (numpy_words.apply(only_here.double, x), "gather"))
    (tmp_path / "only_here.py").unlink()
    facts = ["on host there", "ModuleNotFoundError: No module named 'only_here'", tmp_path / "only_here.py"]
    with reports(synk.WorkerError, *facts, rank=1, command="distribute"):
        f(ROWS)
    np.testing.assert_array_equal(sums(ROWS), ROWS.sum(axis=0))  # the session is still usable
    synk.close()


class Read:
    """Add the number in a file that other hosts do not have."""

    def __init__(self, path):
        self.path = path

    def __call__(self, array):
        return array + np.loadtxt(self.path + os.environ.get("SYNK_HOST_NAME", ""))


def test_a_text_file_that_only_the_first_host_has(numpy_words, sums, tmp_path):
    opened((1, 2))
    path = tmp_path / "weights.txt"
    path.write_text("3.0")
    x = numpy_words.variable("x", 2)
    f = synk.function([x], (numpy_words.apply(Read(str(path)), x), "gather"))
    with reports(synk.WorkerError, "on host there", f"{path}host1 not found", rank=1):
        f(ROWS[:6])
    np.testing.assert_array_equal(sums(ROWS), ROWS.sum(axis=0))
    synk.close()


@pytest.mark.thorough
def test_versions_that_differ(poor_host):
    poor_host("import numpy; numpy.__version__ = '9.8.7'")
    PROGRAM.meet(StartedWorld(["host0", "host1"]))
    try:
        with reports(synk.SynkhronosError, "NumPy", np.__version__, "9.8.7 on host1"):
            synk.fork(1)
        assert not synk.is_forked()
    finally:
        PROGRAM.shut_down()


# -- files -------------------------------------------------------------------------------------------------------------

#: On the second host, another file is at the path of every mapped file.
OTHER_FILES = "opened = os.open; os.open = lambda path, *rest: opened(path + '.host1' * path.endswith('.npy'), *rest)"
CHANGED = {
    "missing": None,
    "shorter": ROWS[:-1],
    "of as many bytes": np.roll(ROWS, 1),
    "a row less, and another header": ROWS[:-1].astype("float32"),
}


@pytest.mark.thorough
def test_every_host_opens_its_own_file(poor_host, numpy_words, sums, tmp_path):
    poor_host(OTHER_FILES)
    opened()
    x = numpy_words.variable("x", 2)
    w = numpy_words.shared(np.zeros((2, 64)), "w")
    f = synk.function([x], (numpy_words.sum(x, axis=0), "sum"), updates=[(w, w + 1)])
    f(ROWS[:8])
    for mode in ("r", "r+"):
        path = str(tmp_path / f"{mode}.npy")
        np.save(path, ROWS)
        os.link(path, path + ".host1")  # (writing in mode "r+" changes both)
        x = synk.data(np.load(path, mmap_mode=mode), constant=mode == "r")
        for batch in (None, [5, 4000], slice(0, None, 7)):
            found, came = arriving(lambda x=x, batch=batch: sums(x, batch=batch))
            np.testing.assert_array_equal(found, ROWS[slice(None) if batch is None else batch].sum(axis=0))
            assert came < 30_000
        if mode == "r+":
            x[4000] = -1
            assert sums(x, batch=[4000, 4000])[0] == -2
    for name, rows in CHANGED.items():
        path = str(tmp_path / f"{name}.npy")
        np.save(path, ROWS)
        if rows is not None:
            np.save(path + ".host1.npy", rows)
            os.rename(path + ".host1.npy", path + ".host1")
        data = synk.data(path)
        for call in (f, lambda data: f.steps(data, batches=[range(9)]), lambda data: synk.scatter(w, data)):
            with reports(synk.WorkerError, "on host there", "ValueError", path, "copy") as caught:
                call(data)
            assert caught.value.rank in (2, 3)
            assert [value.tolist() for value in synk.gather(w)] == [np.ones((2, 64)).tolist()] * 4  # no rank has begun
    np.testing.assert_array_equal(sums(ROWS), ROWS.sum(axis=0))


# -- functions ---------------------------------------------------------------------------------------------------------


class Slow:
    """Double an array; loading this function on other hosts waits for a gate."""

    def __init__(self, gate):
        self.gate = gate

    def __setstate__(self, state):
        if os.environ.get("SYNK_HOST_NAME"):
            state["gate"].wait()
        self.__dict__.update(state)

    def __call__(self, array):
        return 2 * array


def test_the_log_says_which_host_is_awaited(session, sums, numpy_words, monkeypatch, caplog, tmp_path):
    clock, gate = Clock(), Gate(tmp_path / "gate")
    monkeypatch.setattr(session_module, "time", clock)
    clock.when(gate.is_reached, lambda: clock.advance(session_module.REPORT_INTERVAL_S + 1))
    clock.when(lambda: caplog.messages, gate.open)
    x = numpy_words.variable("x", 2)
    f = synk.function([x], (numpy_words.apply(Slow(gate), x), "gather"))
    with caplog.at_level("INFO", "synkhronos"):
        np.testing.assert_array_equal(f(ROWS[:8]), 2 * ROWS[:8])
    said = [message for message in caplog.messages if message.startswith("waiting")]
    sentence = r"waiting for rank .* on host there \(0 modules and functions ready\) in distribute \(\d+ s .*\)"
    assert said and all(re.fullmatch(sentence, message) for message in said), said
    assert {record.levelname for record in caplog.records} == {"INFO"}


#: The second host has its own compile cache.
OTHER_CACHE = "os.environ['THEANO_FLAGS'] = 'base_compiledir=' + {!r}"


@pytest.mark.long
@pytest.mark.theano
def test_other_hosts_compile_into_folders_of_their_own(poor_host, tmp_path, monkeypatch, caplog):
    theano = pytest.importorskip("theano")
    cache = tmp_path / "cache"
    cache.mkdir()
    poor_host(OTHER_CACHE.format(str(cache)))
    opened()
    monkeypatch.setattr(session_module, "time", Clock(tick=session_module.REPORT_INTERVAL_S + 1))
    x = theano.tensor.matrix("x", dtype="float64")
    f = synk.function([x], (theano.tensor.exp(-x * 0.123).sum(axis=0) + 3.5, "gather"))
    with caplog.at_level("INFO", "synkhronos"):
        synk.distribute()
    parts = np.array_split(ROWS[:8], 4)
    expected = np.concatenate([np.exp(-part * 0.123).sum(axis=0) + 3.5 for part in parts])
    np.testing.assert_allclose(f(ROWS[:8]), expected, rtol=1e-12)
    assert list(cache.rglob("*.so")), "nothing was compiled there"
    counted = [re.search(r"on host there \((\d+) modules", message) for message in caplog.messages]
    assert any(counted)
