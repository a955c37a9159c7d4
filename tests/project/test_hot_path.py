"""The hot paths stay short, as counted by tools/hot_path.py."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

#: Maximum numbers of the package's files and calls on the master, with a few calls for waits on a busy machine; the calls
#: of steps grow with their number.
LIMITS = {"call": (18, 54), "exact": (28, 109), "steps": (51, float("inf")), "all_reduce": (17, 58)}


@pytest.mark.theano
def test_the_hot_paths_are_as_short_as_promised():
    pytest.importorskip("theano")
    done = subprocess.run(
        [sys.executable, "tools/hot_path.py"], cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert done.returncode == 0, done.stderr
    found = {
        name: (int(files), int(calls)) for name, files, calls in re.findall(r"(\w+) +(\d+) +\d+ +(\d+)", done.stdout)
    }
    assert set(found) == set(LIMITS)
    for name, (files, calls) in found.items():
        assert files <= LIMITS[name][0] and calls <= LIMITS[name][1], done.stdout


def test_it_counts_what_it_says(tmp_path, monkeypatch):
    import hot_path

    (tmp_path / "ours.py").write_text(
        "def acquire():\n    return 0\n\ndef work():\n    for _ in range(5):\n        acquire()\n    return [abs(x) for x in map(half, (1, 2))]\n\n"
        "def half(x):\n    return x / 2\n"
    )
    monkeypatch.setattr(hot_path, "PACKAGE", str(tmp_path) + "/")
    monkeypatch.syspath_prepend(str(tmp_path))
    import ours

    found = hot_path.count(ours.work)
    names = [name for _, name in found.calls if not name.startswith("<")]
    assert names == ["work", "acquire", "half", "half"] and found.files == 1  # repeated waits count once
