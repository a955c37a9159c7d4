"""The pieces of the long campaign, in their shortest form, and the command behind ``make sabotage``."""

import importlib.util
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def sabotage():
    """Return the module tools/sabotage.py."""
    spec = importlib.util.spec_from_file_location("sabotage_tool", ROOT / "tools" / "sabotage.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: (The suite is this folder; test_kills.py contains the kills.)
SCALES = {
    "healing": 0.02,
    "masters": 0.015,
    "objects": 0.05,
    "channel": 0.02,
    "arguments": 0.02,
    "training_arguments": 0.03,
    "theano_arguments": 0.05,
    "endurance": 0.001,
    "hosts": 0.006,
    "delays": 0.0004,
}


@pytest.mark.long(but="objects|masters")
@pytest.mark.parametrize("piece", SCALES)
def test_piece(piece, sabotage, tmp_path, capfd):
    document = tmp_path / "reliability.md"
    document.write_text("before\n" + sabotage.BEGIN + "an older result\n" + sabotage.END + "after\n")
    options = ["--scale", str(SCALES[piece]), "--results", str(tmp_path), "--output", str(document)]
    assert sabotage.main(["--only", piece, *options]) == 0, capfd.readouterr()
    text = document.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "older" not in text
    result = json.loads((tmp_path / (piece + ".json")).read_text())
    assert result["rows"] and all(row["done"] > 0 for row in result["rows"])
    for row in result["rows"]:
        assert "| {} | {} |".format(row["what"], "{:,}".format(row["done"])) in text
    assert "Not run yet: " + ", ".join(other for other in sabotage.PIECES if other != piece) in text


def test_what_has_been_done_is_not_done_again(sabotage, tmp_path, capsys, monkeypatch):
    played = []

    def play(piece, scale, folder):
        played.append(piece)
        (folder / (piece + ".json")).write_text(
            json.dumps(
                {
                    "piece": piece,
                    "scale": scale,
                    "code": sabotage.code(),
                    "date": "today",
                    "seconds": 1,
                    "machine": "this",
                    "rows": [{"what": piece, "done": 5, "result": "fine", "told": [0.1, 0.2, 0.3]}],
                }
            )
        )
        return piece != "endurance" or played.count("endurance") == 2

    monkeypatch.setattr(sabotage, "play", play)
    document = tmp_path / "reliability.md"
    document.write_text(sabotage.BEGIN + sabotage.END)
    options = ["--results", str(tmp_path), "--output", str(document)]
    assert sabotage.main(options) == 1  # after a failure, it ends without writing the document
    assert played[-1] == "endurance" and document.read_text() == sabotage.BEGIN + sabotage.END
    (tmp_path / "endurance.json").unlink()
    del played[:-1]
    assert sabotage.main(options) == 0
    assert played == ["endurance", "endurance", "hosts", "delays", "suite"]
    assert "| kills | 5 | 100 | 200 | 300 | fine |" in document.read_text()
    monkeypatch.setattr(sabotage, "code", lambda: "other code")
    assert sabotage.main(["--only", "kills", *options]) == 0
    assert "Run before the last change of the code: " in document.read_text()
    assert len(played) == 6


def test_a_piece_that_hangs_is_ended(sabotage, tmp_path, monkeypatch, capfd):
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    (pieces / "__init__.py").write_text("")
    (pieces / "report.py").write_text("Progress = str")
    (pieces / "kills.py").write_text(
        "import os, time\ndef run(scale, progress):\n    print('begun', os.getpid(), flush=True)\n    time.sleep(60)\n"
    )
    tool = tmp_path / "tool.py"
    tool.write_text(
        "import sys\nsys.path.insert(0, {!r})\nimport runpy\nimport pieces\nsys.argv[0] = {!r}\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')".format(str(tmp_path), str(ROOT / "tools" / "sabotage.py"))
    )
    monkeypatch.setattr(sabotage, "__file__", str(tool))
    monkeypatch.setattr(sabotage, "SILENCE", 2.0)
    assert not sabotage.play("kills", 1.0, tmp_path)
    said = capfd.readouterr()
    assert "kills HANGS" in said.out and "in run" in said.err  # the stacks
    pid = int(said.out.split()[1])
    assert not Path(f"/proc/{pid}").exists()
