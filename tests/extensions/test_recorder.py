"""The recorder counts every second of an epoch once, in the part that used it, and keeps a table."""

import csv
import json
import math
import sys
import time

import numpy as np
import pytest
from gates import Gate
from refusals import refuses, reports
from sleeping import Entered, Sleeping, observed, waits_for

import synkhronos as synk
from synkhronos import trace
from synkhronos.errors import ArgumentTypeError, ArgumentValueError
from synkhronos.extensions import checkpoint
from synkhronos.extensions.recorder import PARTS, Recorder
from synkhronos.testing import numpy_engine as engine
from synkhronos.transports.shared_memory import SharedMemoryTransport


@pytest.fixture
def sleeping(tmp_path):
    return Sleeping(tmp_path)


def check(row, **least):
    """Check that the parts add up to the clock's seconds, and that each contains the time that was slept in it.

    (How much longer a part is depends on the machine.)
    """
    assert sum(row[part] for part in PARTS) == pytest.approx(row["seconds"], abs=1e-9)
    assert [part for part, seconds in least.items() if row[part] < seconds] == [], row


@pytest.mark.slow
@pytest.mark.parametrize("kind", [("threads", 2, 0), ("fork", 2, 0), ("fork", 3, 1)], ids="{0[0]}-{0[1]}".format)
def test_known_sleeps(make_world, kind, monkeypatch, sleeping):
    """Sleeps while computing, waiting, communicating, loading and elsewhere count in their own parts."""
    world = make_world(*kind)
    x = engine.variable("x", "float64", 1)
    f = synk.function([x], (engine.apply(sleeping, x, dtype="float64", ndim=0), "sum"), exact=False)
    w = engine.shared(np.zeros(10), "w")
    keep = synk.function([], [(w, None)])
    synk.distribute()
    assert keep
    seconds = np.full(world.n, 1.3)
    seconds[kind[2]] = 0.1
    f(np.zeros(world.n))
    sleeping.begin_again()

    spares = SharedMemoryTransport._spares

    def slow_spares(self, *args):
        if self.rank == kind[2]:
            time.sleep(0.15)
        return spares(self, *args)

    monkeypatch.setattr(SharedMemoryTransport, "_spares", slow_spares)
    recorder = Recorder()
    begun = time.perf_counter()
    with recorder.epoch():
        with waits_for(sleeping):
            f(seconds)
        synk.all_reduce(w)
        time.sleep(0.1)
        with recorder.loading():
            time.sleep(0.2)
    wall = time.perf_counter() - begun
    (row,) = recorder.rows
    assert 0 <= wall - row["seconds"]
    check(row, computing=0.1, waiting=0.3, communicating=0.15, loading=0.2, other=0.1)


@pytest.mark.slow
def test_loaders(tmp_path):
    is_awaited = Gate(tmp_path / "is_awaited")

    def source(i):
        is_awaited.wait()
        time.sleep(0.2)
        return np.zeros(3)

    recorder = Recorder()
    with recorder.epoch(), observed(Entered([("loader", "__next__")], lambda: True, is_awaited)):
        with synk.loader(source, range(2), depth=1) as loader:
            for _ in loader:
                time.sleep(0.1)
    check(recorder.rows[0], loading=0.2, other=0.2)
    assert loader.waited <= recorder.rows[0]["loading"]


@pytest.mark.slow
def test_collectives_inside_functions(make_world, sleeping):
    """Time lost by late ranks counts as waiting, although the master waits inside its function."""
    make_world("fork", 2)
    x = engine.variable("x", "float64", 1)
    total = synk.ops.all_reduce(engine.apply(sleeping, x, dtype="float64", ndim=0), "sum")
    f = synk.function([x], (total, None), exact=False)
    f(np.zeros(2))
    sleeping.begin_again()
    recorder = Recorder()
    with recorder.epoch(), waits_for(sleeping):
        f(np.array([0.1, 1.3]))
    check(recorder.rows[0], computing=0.1, waiting=0.3)


def test_points_are_observed_during_epochs_only():
    recorder, before = Recorder(), list(trace._observers)
    with recorder.epoch():
        assert len(trace._observers) == len(before) + 1
    with pytest.raises(KeyError), recorder.epoch():
        raise KeyError
    assert trace._observers == before and len(recorder.rows) == 1


def test_other_threads_do_not_count(make_world, sleeping):
    """With ranks as threads, another rank's sleep counts as the master's waiting, not as computing."""
    make_world("threads", 2)
    x = engine.variable("x", "float64", 1)
    f = synk.function([x], (engine.apply(sleeping, x, dtype="float64", ndim=0), "sum"), exact=False)
    recorder = Recorder()
    with recorder.epoch(), waits_for(sleeping):
        f(np.array([0.0, 1.2]))
    check(recorder.rows[0], waiting=0.19)


def test_means_are_over_rows():
    recorder = Recorder()
    with recorder.epoch(rate=0.5):
        recorder.batch(10, loss=1.0, error=np.float32(0.5))
        recorder.batch(np.array([20, 10]), loss=[2.0, 4.0])
        recorder.note(phase="warm-up")
    recorder.note(accuracy=np.array(0.75))
    (row,) = recorder.rows
    assert row["loss"] == (10 + 40 + 40) / 40 and row["error"] == 0.5 and row["rate"] == 0.5
    assert row["phase"] == "warm-up" and row["accuracy"] == 0.75 and type(row["accuracy"]) is float
    with recorder.epoch():
        recorder.batch(loss=1)
        recorder.batch(loss=2)
        recorder.batch(0, error=1)
    assert recorder.rows[1]["loss"] == 1.5 and math.isnan(recorder.rows[1]["error"])


def filled():
    recorder = Recorder()
    for rate in (0.1, 0.05, 0.025):
        with recorder.epoch(rate=rate, phase="x"):
            recorder.batch(3, loss=rate * 10)
    recorder.note(accuracy=1)
    return recorder


def test_what_has_no_rows_does_not_count():
    recorder = Recorder()
    with recorder.epoch():
        recorder.batch(10, loss=1.0)
        recorder.batch(0, loss=math.nan)
        recorder.batch(np.array([0, 20]), loss=[math.inf, 2.5])
    assert recorder.rows[0]["loss"] == np.average([1.0, 2.5], weights=[10, 20])


def test_table():
    lines = str(filled()).split("\n")
    assert len(lines) == 4 and len(set(map(len, lines))) == 1
    assert lines[0].split() == ["epoch", "seconds", *PARTS, "rate", "phase", "loss", "accuracy"]
    assert lines[2].split()[0] == "2" and lines[2].split()[-3:] == ["0.05", "x", "0.5"]
    assert lines[3].split()[-4:] == ["0.025", "x", "0.25", "1"]
    assert str(Recorder()).split() == ["epoch", "seconds", *PARTS]


def test_csv(tmp_path):
    recorder = filled()
    recorder.save_csv(str(tmp_path / "record.csv"))
    with open(tmp_path / "record.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == recorder.columns
    assert [float(row["loss"]) for row in rows] == [1.0, 0.5, 0.25] and [row["accuracy"] for row in rows] == [
        "",
        "",
        "1",
    ]
    assert [float(row["seconds"]) for row in rows] == [row["seconds"] for row in recorder.rows]


@pytest.mark.slow
def test_plot(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    filled().plot(str(tmp_path / "record.png"))
    assert (tmp_path / "record.png").read_bytes()[:4] == b"\x89PNG"
    Recorder().plot(str(tmp_path / "empty.png"))


@pytest.mark.slow
def test_plot_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with reports(ImportError, "pip", "matplotlib"):
        filled().plot("nothing.png")


def test_a_training_that_goes_on_has_the_same_table(make_world, tmp_path):
    make_world("threads", 2)
    w = engine.shared(np.ones(3), "w")
    keep = synk.function([], [(w, None)])
    synk.distribute()
    first, path = filled(), str(tmp_path / "model.npz")
    checkpoint.save(path, [w], epoch=3, recorder=first.state)
    second = Recorder()
    second.state = checkpoint.load(path, [w])["recorder"]
    assert second.rows == first.rows and str(second) == str(first) and keep
    with second.epoch(rate=0.0125):
        second.batch(loss=0.125)
    assert [row["epoch"] for row in second.rows] == [1, 2, 3, 4] and len(json.loads(second.state)) == 4


def test_bad_input():
    recorder = Recorder()
    for call in (lambda: recorder.batch(loss=1), lambda: recorder.note(accuracy=1)):
        with reports(synk.StateError, "epoch"):
            call()
    with refuses(ArgumentTypeError, "accuracy", got="[1, 2]"), recorder.epoch():
        recorder.note(accuracy=[1, 2])
    with recorder.epoch():
        for name in ("seconds", "waiting", "epoch"):
            with refuses(ArgumentValueError, name, got=repr(name)):
                recorder.note(**{name: 1})
            with refuses(ArgumentValueError, name, got=repr(name)):
                recorder.batch(**{name: 1})
        with reports(synk.StateError, "epoch"), recorder.epoch():
            pass
        with reports(synk.StateError, "epoch"):
            recorder.state = "[]"
    with pytest.raises(ArgumentValueError), recorder.epoch(loading=1):
        pass
    assert len(recorder.rows) == 1
