"""Loaders: all batches arrive unchanged and in order; failures are reported; nothing is left behind.

Modules: `passes`, `process`, `work`, `synkhronos.processes.child_process`,
`synkhronos.extensions.loader`.
"""

import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from clocks import Clock
from gates import Gate, until
from refusals import refuses, reports

import synkhronos as synk
from synkhronos.errors import ArgumentTypeError, ArgumentValueError
from synkhronos.loading import passes, process
from synkhronos.program.program import PROGRAM
from synkhronos.testing import numpy_engine as engine

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def batch(i, rows=None):
    """Return batch i: two arrays, whose number of rows depends on i."""
    rows = (3, 50, 1, 400, 7, 0, 90)[i % 7] if rows is None else rows
    return np.full((rows, 5), i, "float32"), np.arange(rows, dtype="int16") + i


def test_the_former_name():
    from synkhronos.extensions import loader

    assert loader.loader is synk.loader and loader.Loader is passes.Loader


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_batches_of_items_in_order(n, depth):
    with synk.loader(batch, range(17), n_processes=n, depth=depth) as loader:
        for _ in range(2):
            seen = 0
            for i, (x, y) in enumerate(loader):
                for given, expected in zip((x, y), batch(i)):
                    assert isinstance(given, synk.Data) and PROGRAM.pool.owns(given.data)
                    assert given.dtype == expected.dtype
                    np.testing.assert_array_equal(given.data, expected)
                seen += 1
            assert seen == 17


def test_batches_of_a_generator():
    def batches():
        yield np.arange(3.0)
        yield [np.zeros((2, 0)), 5, True]
        yield np.array(b"abc"), np.zeros(2, [("a", "i4"), ("b", "f8")])
        yield ()

    first, second, third, fourth = synk.loader(batches)
    assert first.data.tolist() == [0.0, 1.0, 2.0]
    assert [(each.dtype, each.shape) for each in second] == [("f8", (2, 0)), ("i8", ()), ("?", ())]
    assert third[0].data == b"abc" and third[1].dtype.names == ("a", "b") and fourth == ()


def test_an_iterable_is_not_used_up():
    given = iter([np.zeros(2), np.ones(2)])
    loader = synk.loader(given)
    assert [x.data[0] for x in loader] == [x.data[0] for x in loader] == [0.0, 1.0]
    assert next(given)[0] == 0.0


@pytest.mark.parametrize("kind", [("threads", 2, 0), ("threads", 3, 1), ("fork", 2, 1)], ids="{0[0]}-{0[1]}".format)
def test_functions_take_them(make_world, kind):
    """Functions take a loader's batches, even in a pass from before `fork` that continues after `close`."""
    x = engine.variable("x", "float32", 2)
    mean = synk.function([x], engine.mean(x))
    with synk.loader(lambda: ((np.full((rows, 2), rows, "float32"),) for rows in range(1, 9))) as loader:
        begun = iter(loader)
        make_world(*kind)
        assert [mean(*next(begun)) for _ in range(4)] == [1, 2, 3, 4]
        make_world(*kind)
        assert [mean(*next(begun)) for _ in range(3)] == [5, 6, 7]
        synk.close()
        assert next(begun)[0].shape == (8, 2)


def test_memory_of_a_batch_is_used_again_when_it_is_dropped():
    def batches():
        for i in range(30):
            yield np.full(1000, i)

    kept = list(synk.loader(batches))
    assert [set(x.data) for x in kept] == [{i} for i in range(30)]
    views = []
    for x in synk.loader(batches):
        views.append(x.data[3:5])  # a view alone also keeps the batch
    assert [view.tolist() for view in views] == [[i, i] for i in range(30)]

    del kept, views, x
    places = set()
    for x in synk.loader(batches):
        places.add(x._handle().offset)
    assert len(places) <= 4  # two prepared batches, the program's current one, and the one before


def test_random_numbers_depend_on_the_batch_alone():
    def drawn(i):
        return np.random.uniform(size=3), random.random()

    def generated():
        for i in range(5):
            yield drawn(i)

    def numbers(loader):
        return [(x.data.tolist(), float(y.data)) for x, y in loader]

    state = np.random.get_state()[1].tolist()
    one, three = synk.loader(drawn, range(5)), synk.loader(drawn, range(5), n_processes=3)
    first, second = numbers(one), numbers(one)
    assert numbers(three) == first and numbers(synk.loader(generated)) == first
    assert len({number for each in (first, second) for number, _ in [(tuple(x), y) for x, y in each]}) == 10
    later = synk.loader(drawn, range(5))
    later.epoch = 1
    assert numbers(later) == second and later.epoch == 2
    assert numbers(synk.loader(drawn, range(5), seed=1)) != first
    assert np.random.get_state()[1].tolist() == state


def test_what_the_program_changes_is_there_at_the_next_pass():
    settings = {"value": 1}
    loader = synk.loader(lambda i: np.array(settings["value"]), [0])
    assert [int(x.data) for x in loader] == [1]
    settings["value"] = 2
    assert [int(x.data) for x in loader] == [2]


def test_batches_are_prepared_meanwhile(tmp_path):
    """The next batch is prepared before the program has finished with the current one."""
    made = [Gate(tmp_path / str(i)) for i in range(6)]
    loader = synk.loader(lambda i: made[i].reach() or np.array(i), range(6))
    for i, x in enumerate(loader):
        assert x.data == i
        if i < 5:
            made[i + 1].until_reached()
    assert loader.waited > 0


class Unpicklable(Exception):
    def __init__(self, lock):
        super().__init__("unpicklable")
        self.lock = lock


def raising(error):
    def source():
        yield np.zeros(1)
        yield np.ones(1)
        raise error

    return source


@pytest.mark.parametrize(
    "error, text",
    [
        (KeyError("name"), "KeyError: 'name'"),
        (Unpicklable(threading.Lock()), "Unpicklable: unpicklable"),
        (SystemExit(3), "SystemExit: 3"),
        (MemoryError(), "MemoryError"),
        (ConnectionResetError("by peer"), "ConnectionResetError: by peer"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_exceptions_of_the_source(find_leftovers, error, text):
    begun = iter(synk.loader(raising(error)))
    assert [next(begun).data[0] for _ in range(2)] == [0, 1]
    with reports(synk.LoaderError, text, 2, batch=2) as raised:
        next(begun)
    assert "in source" in str(raised.value.__cause__) and "raise error" in str(raised.value.__cause__)
    assert list(begun) == [] and find_leftovers() == []


@pytest.mark.parametrize(
    "made", [[[1.0], [1.0, 2.0]], object(), (np.zeros(2), [None])], ids=["ragged", "object", "none"]
)
def test_what_is_no_array_is_named(made):
    with reports(synk.LoaderError, batch=0) as raised:
        next(iter(synk.loader(lambda i: np.array(made, object) if isinstance(made, list) else made, [0])))
    message = str(raised.value)  # the library's message, or NumPy's
    assert "array 1" in message or "array 0" in message or "inhomogeneous" in message


def killed(i):
    if i == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return np.full(2, i)


def exiting(i):
    if i == 3:
        os._exit(5)
    return np.full(2, i)


@pytest.mark.parametrize("source, status", [(killed, "SIGKILL"), (exiting, 5)])
@pytest.mark.parametrize("n", [1, 2])
def test_deaths(find_leftovers, source, status, n):
    arrived = []
    with reports(synk.LoaderError, status, 3, batch=3) as raised:
        for x in synk.loader(source, range(6), n_processes=n):
            arrived.append(int(x.data[0]))
    assert arrived == [0, 1, 2] and not psutil.pid_exists(raised.value.pid)
    assert find_leftovers() == []


def test_a_process_that_ends_with_unread_buffers(tmp_path):
    """All batches of a loader arrive, even if the kernel first reports "connection reset"."""
    gate = Gate(tmp_path / "gate")

    def source():
        yield np.zeros(1)
        gate.wait()
        yield np.ones(1)

    begun = iter(synk.loader(source, depth=9))
    assert next(begun).data[0] == 0
    gate.open()
    end = select.poll()
    end.register(begun._processes[0]._socket, 0)
    until(lambda: [event for _, event in end.poll(0) if event & select.POLLHUP])
    assert [x.data[0] for x in begun] == [1]


def test_more_buffers_than_a_socket_holds():
    """Loader and program do not deadlock, each waiting for the other to read."""
    batches = synk.loader(lambda: (np.full(10, i) for i in range(2000)), depth=1000)
    assert [x.data[0] for x in batches] == list(range(2000))


def test_a_pass_outlives_the_thread_that_began_it():
    begun = []
    thread = threading.Thread(target=lambda: begun.append(iter(synk.loader(batch, range(9), n_processes=2, depth=1))))
    thread.start()
    thread.join()
    until(lambda: not os.path.exists(f"/proc/self/task/{thread.native_id}"))
    for i, (x, _) in enumerate(begun[0]):
        np.testing.assert_array_equal(x.data, batch(i)[0])
    assert i == 8


def test_a_death_behind_a_child_of_the_source(find_leftovers, tmp_path):
    """A loader process's death is noticed, although a child of its source keeps the socket open."""

    def source():
        yield np.zeros(1)
        pid = os.fork()
        if pid == 0:
            time.sleep(1000)
            os._exit(0)
        (tmp_path / "child").write_text(str(pid))
        os.kill(os.getpid(), signal.SIGKILL)

    with reports(synk.LoaderError, "SIGKILL"):
        list(synk.loader(source))
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_a_batch_that_is_late(find_leftovers, monkeypatch):
    def source():
        yield np.zeros(1)
        time.sleep(1000)

    clock = Clock()
    monkeypatch.setattr(passes, "time", clock)
    monkeypatch.setattr(process, "time", clock)
    begun = iter(synk.loader(source, timeout=0.3))
    next(begun)
    clock.tick = 0.2
    with reports(synk.LoaderError, 1, batch=1):
        next(begun)
    assert find_leftovers() == []


@pytest.mark.parametrize("how", ["break", "close", "exception", "dropped", "loader closed"])
def test_an_unfinished_pass_leaves_nothing(find_leftovers, tmp_path, how, monkeypatch):
    """An unfinished pass executes its source's ``finally`` block and leaves nothing behind."""
    monkeypatch.setattr(process, "GRACE_S", 60.0)

    def source():
        try:
            for i in range(1000):
                yield np.full(10, i)
                if i == 5:
                    time.sleep(1000)
        finally:
            (tmp_path / "ended").write_text("")

    loader = synk.loader(source)
    if how == "break":
        for _ in loader:
            break
    elif how == "exception":
        with pytest.raises(KeyError), loader:
            for _ in loader:
                raise KeyError
    elif how == "dropped":
        begun = iter(loader)
        next(begun)
        del begun
    else:
        begun = iter(loader)
        kept = next(begun)
        begun.close() if how == "close" else loader.close()
        assert kept.data[0] == 0
        with pytest.raises(StopIteration if how == "close" else synk.StateError):
            next(begun)
    assert find_leftovers() == [] and (tmp_path / "ended").exists()
    if how == "loader closed":
        with reports(synk.StateError, repr(loader)):
            iter(loader)


def test_a_source_that_does_not_end(find_leftovers):
    def source():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        yield np.zeros(1)
        while True:
            time.sleep(1)

    for _ in synk.loader(source):
        break
    assert find_leftovers() == []


def test_ctrl_c_while_a_batch_is_awaited(find_leftovers):
    def source():
        yield np.zeros(1)
        time.sleep(1000)

    begun = iter(synk.loader(source))
    next(begun)
    user = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        user.start()
        next(begun)
    user.join()
    assert find_leftovers() == []


@pytest.mark.parametrize(
    "arguments, keywords, error, argument, got",
    [
        ((3,), {}, ArgumentTypeError, "source", "3"),
        (([1], [2]), {}, ArgumentTypeError, "source", "[1]"),
        ((batch, iter([1])), {}, ArgumentTypeError, "items", "iterator"),
        ((batch,), {"n_processes": 2}, ArgumentValueError, "n_processes", "2"),
        ((batch, [1]), {"n_processes": 0}, ArgumentValueError, "n_processes", "0"),
        ((batch, [1]), {"depth": 1.5}, ArgumentTypeError, "depth", "1.5"),
        ((batch, [1]), {"seed": -1}, ArgumentValueError, "seed", "-1"),
        ((batch, [1]), {"timeout": 0}, ArgumentValueError, "timeout", "0"),
    ],
)
def test_bad_arguments(arguments, keywords, error, argument, got):
    with refuses(error, argument, got=got):
        synk.loader(*arguments, **keywords)


def test_it_is_found_under_both_names():
    from synkhronos.extensions import loader

    assert loader.loader is synk.loader


PROGRAM_TEXT = """
import os, sys, time
import numpy as np
import synkhronos as synk
synk.fork(2, use_gpu=False)

def source():
    print("pid", os.getpid(), flush=True)
    for i in range(10_000):
        yield np.zeros(1000)
        if i == 10:
            time.sleep(1000 if sys.argv[1] != "end" else 0.01)

passes = iter(synk.loader(source))
for x in passes:
    if x._handle() and sys.argv[1] == "end":
        print("ready", flush=True)
        sys.stdin.readline()                # until the test has found the process
        break
    print("ready", flush=True)
"""


@pytest.mark.parametrize("how", ["kill", "ctrl-c", "end"])
def test_nothing_survives_the_program(tmp_path, how):
    (tmp_path / "program.py").write_text(PROGRAM_TEXT)
    command = [sys.executable, str(tmp_path / "program.py"), how]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as program:
        pid = int(program.stdout.readline().split()[1])
        loaders = psutil.Process(pid)
        for _ in range(1 if how == "end" else 11):
            assert program.stdout.readline() == "ready\n"
        if how == "kill":
            os.kill(program.pid, signal.SIGKILL)
        elif how == "ctrl-c":
            time.sleep(0.2)
            os.killpg(program.pid, signal.SIGINT)
        errors = program.communicate(timeout=90)[1]  # this also closes its input
    psutil.wait_procs([loaders], 60)
    assert not loaders.is_running()
    assert errors.count("Traceback") == (how == "ctrl-c") and ("KeyboardInterrupt" in errors) == (how == "ctrl-c")


THREADED_TEXT = """
import os, threading
import numpy as np
import synkhronos as synk

def begin():
    global begun
    begun = iter(synk.loader(np.zeros, range(100), n_processes=2))

thread = threading.Thread(target=begin)
thread.start()
thread.join()
next(begun)
print(*[process.pid for process in begun._processes], flush=True)
input()
"""


def test_nothing_survives_the_program_whose_thread_began_the_pass(tmp_path):
    (tmp_path / "program.py").write_text(THREADED_TEXT)
    command = [sys.executable, str(tmp_path / "program.py")]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as program:
        loaders = [psutil.Process(int(pid)) for pid in program.stdout.readline().split()]
        os.kill(program.pid, signal.SIGKILL)
    assert len(loaders) == 2 and psutil.wait_procs(loaders, 60)[1] == []
