"""The tests in tests/sabotage: exits of all kinds, forks by users, notebooks, limits, security."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, List

from everyday import Wrong

from pieces.report import Row, scaled

FOLDER = Path(__file__).resolve().parents[1]

ROUNDS = 1


def run(scale: float, progress: Any) -> List[Row]:
    """Run the piece."""
    rounds, passed, skipped = scaled(ROUNDS, scale), 0, 0
    for i in range(rounds):
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
                "--deselect",
                str(FOLDER / "test_pieces.py"),
                str(FOLDER),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            cwd=str(FOLDER.parents[1]),
        )
        lines = []
        for line in process.stdout:
            lines.append(line)
            print("suite     " + line, end="", flush=True)
        if process.wait():
            raise Wrong("tests failed:\n" + "".join(lines[-60:]))
        counts = dict((word, int(number)) for number, word in re.findall(r"(\d+) (passed|skipped)", lines[-1]))
        passed, skipped = passed + counts["passed"], skipped + counts.get("skipped", 0)
        progress("tests/sabotage", i + 1, rounds)
    more = f"; {skipped} were skipped" if skipped else ""
    return [
        Row(
            (
                f"tests/sabotage, {rounds} runs: all kinds of exits, forks and threads of user code, Ctrl-C in scripts and "
                "consoles, limits, security"
            ),
            passed,
            "all passed" + more,
        )
    ]
