"""Prove that any program gives the serial answer: draw many random programs (tests/programs) and write down the result.

    python tools/prove.py                              # 100,000 draws, into docs/reliability.md
    python tools/prove.py --draws 5000 --no-write      # a first look
    python tools/prove.py --repeat "fork theano 17"    # one session again, of the same seed

Beside the NumPy engine it draws with Theano, or with PyTensor where that is installed (make prove ENGINE=pytensor).

A draw is one call or collective with its checks. Sessions are drawn from the seed, the launcher, the engine and their
number, so the same seed gives the same programs. The first wrong one ends it, with the shortest program that shows it.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.util
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "programs"), str(ROOT / "tests")]

import synkhronos as synk  # noqa: E402

#: The engine beside NumPy's, and what it is called.
ENGINE, LABEL = ("theano", "Theano") if importlib.util.find_spec("theano") else ("pytensor", "PyTensor")
if "SYNK_TEST_LINKER" not in os.environ:
    os.environ.setdefault("PYTENSOR_FLAGS", "linker=py,cxx=")  # run by Python code, graphs cost no compiling

DOCUMENT = ROOT / "docs" / "reliability.md"
COMMAND = "make prove" + (" ENGINE=pytensor" if ENGINE == "pytensor" else "")
BEGIN, END = f"<!-- written by {COMMAND}: begin -->\n", "<!-- end -->\n"

#: Draws of a session.
STEPS = 200

#: Launcher (two hosts for "hosts"), engine, and their share of the draws in percent.
KINDS = (("threads", "numpy", 40), ("fork", "numpy", 25), ("fork", ENGINE, 25), ("hosts", "numpy", 10))


def machine() -> str:
    """Return what the draws ran on, in words."""
    model = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {platform.system()}"


def draw(launcher: str, engine: str, draws: int, seed: int, first: int = 0) -> Tuple[int, float]:
    """Draw programs session by session; return how many draws were made, and the seconds they took.

    Raises
    ------
    Wrong
    """
    from protocol import Wrong, seeded_program
    from recipe_library import Library

    library = Library(engine)
    begun = shown = time.monotonic()
    made, session = 0, first
    while made < draws:
        steps = min(STEPS, draws - made)
        try:
            seeded_program(f"{seed} {launcher} {engine} {session}", library, launcher, steps)
        except Wrong:
            print(f"\nWRONG: seed {seed}, session {launcher} {engine} {session}")
            raise
        made, session = made + steps, session + 1
        now = time.monotonic()
        if now - shown > 5 or made >= draws:
            shown = now
            print(
                f"{launcher:<8}{engine:<9}{(f'{made:,}'):>9} of {(f'{draws:,}')} draws{now - begun:8.0f} s",
                flush=True,
            )
    return made, time.monotonic() - begun


def document(rows: List[Tuple[str, str, int, float]], seed: int) -> str:
    """Return the text for docs/reliability.md."""
    from recipes import RECIPES

    versions = {"Python": platform.python_version(), "NumPy": np.__version__}
    if any(engine == ENGINE for _, engine, _, _ in rows):
        versions[LABEL] = importlib.import_module(ENGINE).__version__
    total, seconds = sum(row[2] for row in rows), sum(row[3] for row in rows)
    lines = [
        "Date: {}. Machine: {}. {}. Seed {}; {} functions; 1 to 4 ranks.".format(
            datetime.date.today().isoformat(),
            machine(),
            ", ".join("{} {}".format(*item) for item in versions.items()),
            seed,
            len(RECIPES),
        ),
        "",
        "| launcher | engine | draws | wrong | seconds |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for launcher, engine, draws, took in rows:
        lines.append("| {} | {} | {} | 0 | {:.0f} |".format(launcher, engine, f"{draws:,}", took))
    lines.append("| all | | {} | 0 | {:.0f} |".format(f"{total:,}", seconds))
    return "\n".join(lines) + "\n"


def write(text: str, path: Path) -> None:
    """Put the text in its place in the document."""
    before, rest = path.read_text().split(BEGIN)
    path.write_text(before + BEGIN + text + END + rest.split(END, 1)[1])


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="Prove that random programs give the serial answer.")
    parser.add_argument("--draws", type=int, default=100000, help="calls and collectives, in all (default: 100000)")
    parser.add_argument("--seed", type=int, default=1, help="other programs (default: 1)")
    parser.add_argument(
        "--only",
        metavar="'LAUNCHER ENGINE'",
        help="one kind alone: " + ", ".join("'{} {}'".format(*kind[:2]) for kind in KINDS),
    )
    parser.add_argument("--repeat", metavar="'LAUNCHER ENGINE SESSION'", help="one session again")
    parser.add_argument("--no-write", action="store_true", help="leave docs/reliability.md as it is")
    parser.add_argument("--output", type=Path, default=DOCUMENT, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    from protocol import Wrong

    rows: List[Tuple[str, str, int, float]] = []
    try:
        if given.repeat:
            launcher, engine, session = given.repeat.split()
            draw(launcher, engine, STEPS, given.seed, int(session))
            return 0
        shares: Dict[Any, int] = {kind[:2]: kind[2] for kind in KINDS if given.only in (None, " ".join(kind[:2]))}
        if not shares:
            parser.error("--only: expected one of {}".format(", ".join("'{} {}'".format(*kind[:2]) for kind in KINDS)))
        for (launcher, engine), share in shares.items():
            rows.append(
                (launcher, engine) + draw(launcher, engine, given.draws * share // sum(shares.values()), given.seed)
            )
    except Wrong as wrong:
        print(wrong)
        return 1
    finally:
        synk.close()
    text = document(rows, given.seed)
    print("\n" + text, end="")
    if not given.no_write:
        write(text, given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
