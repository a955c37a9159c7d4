"""Selection of tests: tiers, turns of tests that must run alone, and `.ci/run`."""

import os
import shutil
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import markers
import pytest
from pytest import mark
from turns import Turns
from worlds import FEWER_WORLDS, TIERS_OF_WORLDS

ROOT = Path(__file__).parents[2]


LONG_BUT_TWO = mark.long(but="2")


@pytest.mark.parametrize(
    "parameters, given, expected",
    [
        ("", [], "quick"),
        ("", [mark.theano], "slow"),
        ("", [mark.theano, mark.long, mark.thorough], "long"),
        ("", [mark.alone, mark.slow], "slow"),
        ("1-a", [mark.slow, mark.thorough("1")], "thorough"),
        ("2-a", [mark.slow, mark.thorough("1")], "slow"),
        ("1-a", [LONG_BUT_TWO], "long"),
        ("2-a", [LONG_BUT_TWO], "quick"),
        ("1-b", [mark.thorough("a$|b$", but="1")], "quick"),
        ("2-b", [mark.thorough("a$|b$", but="1")], "thorough"),
        ("threads-3-root1-numpy", TIERS_OF_WORLDS, "quick"),
        ("threads-3-root2-numpy", TIERS_OF_WORLDS, "slow"),
        ("1-root0-float32", TIERS_OF_WORLDS, "thorough"),
        ("fork-2-root0-numpy", TIERS_OF_WORLDS, "slow"),
        ("fork-3-root1-theano", TIERS_OF_WORLDS, "slow"),
        ("fork-1-root0-theano", TIERS_OF_WORLDS, "thorough"),
        ("3 hosts-4-root0-numpy", TIERS_OF_WORLDS, "thorough"),
        ("3 hosts-4-root0-numpy", TIERS_OF_WORLDS + FEWER_WORLDS, "long"),
    ],
)
def test_the_last_tier_counts(parameters, given, expected):
    assert markers.tier_of(parameters, [each.mark for each in given]) == expected


@pytest.mark.slow("b")
@pytest.mark.parametrize("expected", ["quick", pytest.param("slow", id="b")])
def test_each_test_has_the_marker_of_its_tier_alone(request, expected):
    assert [marker.name for marker in request.node.iter_markers() if marker.name in markers.TIERS] == [expected]


def test_patterns_are_about_some_of_the_tests_that_have_them(request):
    """Each pattern matches some tests, but not all; `make quick` checks all files."""
    assert request.config.stash[markers.UNSUITABLE] == []


def test_patterns_that_are_about_none_or_all_are_found():
    names = {"about_some": mark.slow("1"), "about_none": mark.slow("3"), "about_all": mark.long(but="3")}
    items = []
    for name, marker in names.items():
        for parameters in ("1", "2"):
            node = SimpleNamespace(nodeid=f"test_it.py::{name}[{parameters}]")
            pairs = [(node, marker.mark), (node, mark.thorough.mark)]
            callspec = SimpleNamespace(id=parameters)
            items.append(SimpleNamespace(callspec=callspec, iter_markers_with_node=lambda pairs=pairs: pairs))
    none, every = markers.unsuitable_patterns(items)
    assert none.startswith("test_it.py::about_none: ") and none.endswith("is about none of the tests")
    assert every.startswith("test_it.py::about_all: ") and every.endswith("is about all of the tests")


def test_a_test_that_wants_to_be_alone_is(tmp_path):
    inside, most, failures = [], [0, 0], []

    def run(alone, turns):
        for _ in range(20):
            turns.begin(alone)
            inside.append(alone)
            most[alone] = max(most[alone], len(inside))
            if any(inside) and len(inside) > 1:
                failures.append(list(inside))
            together.wait(0.01)
            inside.remove(alone)
            turns.end()

    together = threading.Event()  # never set, so waiting only takes time
    turns = [Turns(tmp_path) for _ in range(3)]
    threads = [threading.Thread(target=run, args=each) for each in zip((False, False, True), turns)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for each in turns:
        each.close()
    assert not [thread for thread in threads if thread.is_alive()] and not failures
    assert most == [2, 1]


@pytest.mark.parametrize("failing", [None, "test", "check", "packages", "test-engine", "test-rest"])
@pytest.mark.parametrize("pythons", [[], ["3.11"], ["3.11", "3.13"]], ids=len)
def test_ci_runs_every_part_once_and_fails_with_any(tmp_path, failing, pythons):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    script(binaries / "make", 'echo "$@" >> called\n[ "$1" != "$FAILING" ] && echo "= 3 passed in 1.00s ="')
    # Python 3.13 is in pyenv's own folder; the one on PATH fails.
    found = {"3.11": binaries / "python3.11", "3.13": tmp_path / "versions/3.13.0/bin/python"}
    found["3.13"].parent.mkdir(parents=True)
    for version, path in found.items():
        script(binaries / f"python{version}", "exit 127")
        script(path, "exit 0" if version in pythons else "exit 127")
    script(binaries / "pyenv", f"echo {tmp_path}")
    done = subprocess.run(
        [str(tmp_path / ".ci" / "run")],
        env=dict(os.environ, PATH=f"{binaries}:/bin:/usr/bin", FAILING=failing or ""),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    called = ["install", "test", "check", "packages"]
    calls = {"3.13": ("test-engine", ""), "3.11": ("test-engine", " QUICK= TESTS=tests/engines")}
    for version in (each for each in calls if each in pythons):
        target, options = calls[version]
        called.append(f"{target} ENGINE=pytensor PYTHON={found[version]}{options}")
    called.append("test-rest")
    assert (tmp_path / "called").read_text().splitlines() == called
    failed = [f"make {call}" for call in called if call.split()[0] == failing]
    assert (done.returncode == 0) == (failed == [])
    last = done.stdout.splitlines()[-1]
    assert last == ("== FAILED: " + ", ".join(failed) if failed else "= 3 passed in 1.00s =")


def script(path, text):
    """Write a shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
