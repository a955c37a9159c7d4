"""Which test runs when: the table of tiers, turns of tests that want to be alone, and `.ci/run`."""

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
import tiers

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "path, name, is_compiled, expected",
    [
        ("tests/test_partition.py", "test_divides[3]", False, ["quick"]),
        ("tests/test_partition.py", "test_divides[3]", True, []),
        ("tests/collectives/test_reduce.py", "test_op[threads-3-root1-numpy]", False, ["quick"]),
        ("tests/collectives/test_reduce.py", "test_op[3-root1-float32]", False, ["quick"]),
        ("tests/collectives/test_reduce.py", "test_op[threads-3-root2-numpy]", False, []),
        ("tests/collectives/test_reduce.py", "test_op[1-root0-float32]", False, ["thorough"]),
        ("tests/collectives/test_reduce.py", "test_op[fork-3-root1-theano]", True, []),
        ("tests/collectives/test_reduce.py", "test_op[fork-1-root0-theano]", True, ["thorough"]),
        ("tests/collectives/test_reduce.py", "test_op[fork-3-root2-numpy]", False, ["thorough"]),
        ("tests/collectives/test_reduce.py", "test_op[fork-2-root0-numpy]", False, []),
        ("tests/cli/test_run.py", "test_help", False, []),
        ("tests/gpu/test_gpu.py", "test_part[nccl]", True, ["thorough"]),
        ("tests/sabotage/test_sessions.py", "test_300_sessions", False, ["long"]),
        ("tests/project/test_benchmarks.py", "test_at_once", False, ["alone", "long"]),
    ],
)
def test_markers(path, name, is_compiled, expected):
    assert tiers.markers_of(path, name, is_compiled) == expected


@pytest.mark.parametrize("rule", tiers.RULES + tiers.SLOW, ids=lambda rule: f"{rule.marker}-{rule.path}")
def test_what_a_rule_names_exists(rule):
    place = ROOT / rule.path
    files = [place] if place.is_file() else sorted(place.rglob("test_*.py"))
    text = "".join(path.read_text() for path in files)
    assert text
    assert missing(rule.names, text) == []


def missing(pattern, text):
    """Return the words with which alternatives of a pattern begin, and which a text has not; others are of parameters."""
    alternatives = re.split(r"\|(?![^(\[]*[)\]])", pattern)
    return [
        found.group() for found in map(re.compile(r"\w+").match, alternatives) if found and found.group() not in text
    ]


def test_what_does_not_exist_is_found():
    text = "def test_one_by_one(kind): ..."
    assert missing(r"one_by|by_two\[a|\[.*-1\]|b|(one|two)", text) == ["by_two"]
    assert missing(r"by_one\[(?!a|b)|two", text) == ["two"]
    assert missing("", text) == []


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

    together = threading.Event()  # never set: it only takes time
    turns = [tiers.Turns(tmp_path) for _ in range(3)]
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
    # pyenv has 3.13 in its own folder, and on PATH what fails.
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
    options = {"3.11": " QUICK= TESTS=tests/engines tests/functions", "3.13": ""}  # what needs no engine: once
    for version in pythons:
        called.append(f"test-engine ENGINE=pytensor PYTHON={found[version]}{options[version]}")
    called.append("test-rest")
    assert (tmp_path / "called").read_text().splitlines() == called
    failed = [f"make {call}" for call in called if call.split()[0] == failing]
    assert (done.returncode == 0) == (failed == [])
    last = done.stdout.splitlines()[-1]
    assert last == ("== FAILED: " + ", ".join(failed) if failed else "= 3 passed in 1.00s =")


def script(path, text):
    """Write a program for the shell."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
