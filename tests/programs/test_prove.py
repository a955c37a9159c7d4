"""The command behind ``make prove``."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import bugs
import pytest
from recipes import RECIPES

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
    assert prove.main(["--draws", "60", "--only", "threads numpy", "--output", str(document)]) == 0
    text = document.read_text()
    assert "| threads | numpy | 60 | 0 |" in text and "older" not in text and "Python 3." in text
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "60 of 60 draws" in capsys.readouterr().out


def test_it_runs_by_itself(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "tools" / "prove.py"),
        "--draws",
        "4",
        "--no-write",
        "--only",
        "threads numpy",
    ]
    done = subprocess.run(command, cwd=str(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100)
    assert done.returncode == 0 and b"| threads | numpy | 4 | 0 |" in done.stdout, done.stdout.decode()


def test_a_wrong_program_is_shown_and_nothing_is_written(prove, tmp_path, capsys, monkeypatch):
    plant = bugs.Plant(monkeypatch)
    bugs.gather_order(plant)
    document = tmp_path / "reliability.md"
    document.write_text(prove.BEGIN + prove.END)
    assert prove.main(["--draws", "400", "--only", "threads numpy", "--output", str(document)]) == 1
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
    text = prove.DOCUMENT.read_text()
    assert f"random programs over {len(RECIPES)} functions" in text
    assert f"{len(bugs.BUGS)} bugs planted by hand" in " ".join(text.split())
    assert f"{len(bugs.IN_GRAPHS)} of them" in " ".join(text.split())
