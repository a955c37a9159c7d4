"""Code shared by the MNIST demos: epochs are printed as they end, and the load by other programs is reported."""

import importlib.util
import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

DEMOS = Path(__file__).resolve().parents[2] / "demos"


def load(name):
    spec = importlib.util.spec_from_file_location(name, str(DEMOS / (name + ".py")))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def training(monkeypatch):
    pytest.importorskip("tqdm")
    monkeypatch.syspath_prepend(str(DEMOS))
    monkeypatch.setitem(sys.modules, "other_programs", load("other_programs"))
    return load("mnist_training")


class Digits:
    """Substitute for the data set, with five rows in each array."""

    source = "no digits"
    X_train = X_valid = X_test = np.zeros((5, 1))
    y_train = y_valid = y_test = np.zeros(5)


class Parameter:
    def get_value(self):
        return np.ones(3)


def train(training, train_epoch, epochs=3):
    settings = training.Settings(epochs=epochs, batch_size=2, learning_rate=0.1, progress=False)
    return training.train("here", train_epoch, lambda x, y: 0.5, [Parameter()], np.zeros(3), 1.0, Digits, settings)


def test_every_epoch_is_seen_when_it_is_over(training, monkeypatch):
    """When an epoch begins, the reader of the output's pipe has the lines of all finished epochs."""
    pipe, seen = io.BytesIO(), []
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe, encoding="utf-8"))  # like Python's output to pipes

    def train_epoch(minibatches, on_step):
        seen.append(pipe.getvalue().decode().count("  epoch "))
        return [0.0] * len(minibatches)

    train(training, train_epoch)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("share, said", [(0.09, 0), (0.4, 1)])
def test_the_table_mentions_other_programs(training, monkeypatch, capsys, share, said):
    monkeypatch.setattr(training.OtherPrograms, "share", lambda self: share)
    runs = [train(training, lambda minibatches, on_step: [0.0] * len(minibatches)) for _ in range(2)]
    assert training.report(runs[0], runs[1:], "plain")
    assert capsys.readouterr().out.count("other programs took 40% of the cores' time in this run") == said


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """Return a function that writes a fake /proc: three cores, 0 and 2 usable; process 1 started 2, which started 3."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2})

    def write(busy, own):
        (tmp_path / "proc").mkdir(exist_ok=True)
        lines = ["cpu 9 9 9 9 9 9 9 9 9 9"]
        for core, (user, steal) in enumerate(busy):
            idle = 1000 - user - steal if user or steal else 0
            lines.append(f"cpu{core} {user} 0 0 {idle // 2} {idle - idle // 2} 0 0 {steal} 0 0")
        (tmp_path / "proc" / "stat").write_text("\n".join(lines) + "\nintr 3 4\n")
        for pid, ticks in own.items():
            for thread in (pid, pid + 10):
                folder = tmp_path / "proc" / str(pid) / "task" / str(thread)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "children").write_text(f"{pid + 1} " if thread == pid else "")
            fields = ["0"] * 11 + [str(ticks), "5", "2", "3"] + ["0"] * 9
            (tmp_path / "proc" / str(pid) / "stat").write_text(f"{pid} (a ) name) " + " ".join(fields))

    return write


def test_share_of_other_programs(proc, tmp_path):
    """Of 2,000 ticks of the usable cores, 1,500 were busy, 200 of them stolen; our three processes used 900."""
    proc([(0, 0), (0, 0), (0, 0)], {1: -10, 2: -10, 3: -10})
    counted = load("other_programs").OtherPrograms(str(tmp_path))
    proc([(700, 200), (999, 0), (600, 0)], {1: 290, 2: 290, 3: 290})
    assert counted.share() == (1500 - 900) / 2000


def test_no_share_where_the_system_does_not_say(tmp_path):
    assert load("other_programs").OtherPrograms(str(tmp_path)).share() == 0.0


def test_real_machine():
    assert 0.0 <= load("other_programs").OtherPrograms().share() <= 1.0
