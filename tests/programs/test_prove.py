"""The command behind ``make prove``."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import bugs
import pytest
from recipes import RECIPES
from worlds import INSTALLED

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def prove():
    """The module tools/prove.py."""
    spec = importlib.util.spec_from_file_location("prove", ROOT / "tools" / "prove.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_result_is_written_where_it_belongs(prove, tmp_path, capsys):
    document = tmp_path / "reliability.md"
    document.write_text("before\n" + prove.BEGIN + "an older result\n" + prove.END + "after\n")
    options = ["--only", "threads numpy", "--output", str(document), "--results", str(tmp_path)]
    assert prove.main(["--draws", "60", *options]) == 0
    text = document.read_text()
    assert (
        "| random programs | threads | NumPy | Python | 60 | 0 |" in text
        and "older" not in text
        and "Python 3." in text
    )
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "60 of 60 draws" in capsys.readouterr().out
    assert prove.main(["--draws", "80", *options]) == 0  # continues from the stored progress
    assert "80 of 80 draws" in capsys.readouterr().out
    assert json.loads((tmp_path / "threads-numpy.json").read_text())["sessions"] == 2
    assert prove.main(["--draws", "80", *options]) == 0
    assert "of 80 draws" not in capsys.readouterr().out


@pytest.mark.parametrize("engine", INSTALLED[1:])
def test_graphs_are_counted_with_what_was_refused(prove, tmp_path, engine):
    piece = prove.BY_NAME[f"graphs threads {engine}"]
    command = [sys.executable, "-W", "ignore", prove.__file__, "--only", piece.name, "--draws", "4", "--no-write"]
    done = subprocess.run(
        [*command, "--results", str(tmp_path)], env=prove.environment_of(piece), stdout=subprocess.PIPE, timeout=100
    )
    out = done.stdout.decode()
    assert done.returncode == 0 and f"| random graphs | threads | {prove.LABELS[engine]} | Python | 4 | 0 |" in out, out
    assert "outputs and updates;" in out and "| refused because | times | for example |" in out


def test_the_numbers_of_the_campaign(prove):
    """The numbers are those of docs/testing.rst, where an engine's draws include the compiled ones."""

    def total(**wanted):
        pieces = [one for one in prove.PIECES if all(getattr(one, name) == value for name, value in wanted.items())]
        return sum(one.number for one in pieces)

    assert total(what="") == prove.DRAWS == 100000 and total(what="graphs") == 20000
    assert total(what="", engine="theano") == 25000 and total(what="", engine="pytensor") == 10000
    assert total(what="", linker="c") + total(what="", linker="numba") == 3000
    assert len(prove.BY_NAME) == len(prove.PIECES)


def test_every_piece_runs_in_an_environment_that_has_its_engine(prove, monkeypatch, tmp_path):
    monkeypatch.setattr(prove, "ROOT", tmp_path)
    monkeypatch.setattr(prove.importlib.util, "find_spec", lambda name: name == "theano" or None)
    piece = prove.BY_NAME["fork pytensor"]
    assert prove.python_of(piece) is None and prove.python_of(prove.BY_NAME["fork theano"]) == sys.executable
    there = tmp_path / ".venv-pytensor" / "bin" / "python"
    there.parent.mkdir(parents=True)
    there.touch()
    assert prove.python_of(piece) == str(there)


def test_it_runs_by_itself(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "tools" / "prove.py"),
        "--draws",
        "4",
        "--no-write",
        "--only",
        "threads numpy",
        "--results",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100)
    assert done.returncode == 0 and b"| threads | NumPy | Python | 4 | 0 |" in done.stdout, done.stdout.decode()


def test_a_wrong_program_is_shown_and_nothing_is_written(prove, tmp_path, capsys, monkeypatch):
    plant = bugs.Plant(monkeypatch)
    bugs.gather_order(plant)
    document = tmp_path / "reliability.md"
    document.write_text(prove.BEGIN + prove.END)
    options = ["--output", str(document), "--results", str(tmp_path)]
    assert prove.main(["--draws", "400", "--only", "threads numpy", *options]) == 1
    out = capsys.readouterr().out
    assert "WRONG: seed 1, session threads numpy" in out and "  1. " in out and "expected " in out
    assert document.read_text() == prove.BEGIN + prove.END
    session = out.split("session ")[1].splitlines()[0]
    assert prove.main(["--repeat", session]) == 1
    assert capsys.readouterr().out.split("result")[1:] == out.split("result")[1:]
    plant.pull_out()


def test_document_has_its_place(prove):
    assert prove.BEGIN in prove.DOCUMENT.read_text() and prove.END in prove.DOCUMENT.read_text()


def test_document_counts_functions_and_planted_bugs(prove):
    text = " ".join(prove.DOCUMENT.read_text().split())
    n_bugs = len(bugs.BUGS + bugs.OF_WRITTEN_ROWS + bugs.OF_PARTS)
    assert f"**Random programs** call {len(RECIPES)} functions" in text
    assert f" {n_bugs} bugs are injected one at a time" in text
    assert f"Of these bugs, {len(bugs.IN_GRAPHS)} are also detected" in text
