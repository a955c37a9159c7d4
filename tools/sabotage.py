"""Run the long sabotage campaign (tests/sabotage/pieces), and write its results into docs/reliability.md.

    python tools/sabotage.py                           # everything not yet run with this code
    python tools/sabotage.py --only kills delays       # only these pieces, again
    python tools/sabotage.py --scale 0.1 --no-write    # a tenth of everything

Each piece runs in its own process and stores its result in build/sabotage. The table is generated from these files,
so an interrupted campaign can resume. The first failure ends the campaign. A piece without output for five minutes
counts as hanging: its stacks are printed, and it is killed.
"""

from __future__ import annotations

import argparse
import datetime
import faulthandler
import hashlib
import json
import os
import platform
import select
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Dict, List, Optional

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "sabotage"), str(ROOT / "tests")]

DOCUMENT = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- written by make sabotage: begin -->\n", "<!-- end -->\n"

#: Pieces in order of execution; pieces that find the most errors are first.
PIECES = (
    "kills",
    "healing",
    "deaths",
    "masters",
    "objects",
    "channel",
    "arguments",
    "training_arguments",
    "theano_arguments",
    "endurance",
    "hosts",
    "delays",
    "suite",
)

#: A piece counts as hanging after this number of seconds without output.
SILENCE = 300


def code() -> str:
    """Return a hash of the library and of tests/sabotage, because results are valid only for the same code."""
    digest = hashlib.sha256()
    for folder in ("synkhronos", "tests/sabotage"):
        for path in sorted([*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.c")]):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def play(piece: str, scale: float, folder: Path) -> bool:
    """Run one piece in its own process; return whether it passed."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--piece", piece, "--scale", str(scale), "--results", str(folder)],
        stdout=subprocess.PIPE,
        start_new_session=True,
        cwd=str(ROOT),
    )
    assert process.stdout is not None
    try:
        while select.select([process.stdout], [], [], SILENCE)[0]:
            some = os.read(process.stdout.fileno(), 65536)
            if not some:
                return process.wait() == 0
            sys.stdout.buffer.write(some)
            sys.stdout.buffer.flush()
        print(f"{piece} HANGS", flush=True)
        os.kill(process.pid, signal.SIGABRT)  # makes faulthandler print the stacks
        time.sleep(2)
        return False
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()


def be(piece: str, scale: float, folder: Path) -> None:
    """Run a piece in this process and store its result."""
    faulthandler.enable()
    begun, version = time.monotonic(), code()  # hash of the loaded code; files may change during the run
    from pieces.report import Progress

    rows = import_module("pieces." + piece).run(scale, Progress(piece))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (piece + ".json")
    path.with_suffix(".new").write_text(
        json.dumps(
            {
                "piece": piece,
                "scale": scale,
                "code": version,
                "date": datetime.date.today().isoformat(),
                "seconds": round(time.monotonic() - begun),
                "machine": machine(),
                "rows": [row.to_json() for row in rows],
            },
            indent=1,
        )
    )
    path.with_suffix(".new").replace(path)


def machine() -> str:
    """Return a description of this machine."""
    from prove import machine

    return f"{machine()} {platform.release()}, Python {platform.python_version()}"


def load(folder: Path) -> Dict[str, Any]:
    """Return the stored results of all pieces, by name."""
    results = {}
    for piece in PIECES:
        try:
            results[piece] = json.loads((folder / (piece + ".json")).read_text())
        except FileNotFoundError:
            pass
    return results


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f}" if seconds >= 0.01 else f"{1000 * seconds:.1f}"


def document(results: Dict[str, Any], scale: float) -> str:
    """Return the generated section of docs/reliability.md."""
    shown = [result for result in results.values() if result["scale"] == scale]
    machines = sorted({result["machine"] for result in shown})
    lines = [
        "Command: `make sabotage`{}. Machine: {}. Times are milliseconds from the sabotage to the exception, or "
        "to the event that the row names: median, 99th percentile, maximum.".format(
            "" if scale == 1 else f" at scale {scale:g}", "; ".join(machines)
        ),
        "",
        "| what was done | times | median | p99 | max | result |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for result in shown:
        for row in result["rows"]:
            told = [milliseconds(each) for each in row["told"]] or [""] * 3
            lines.append(
                "| {} | {} | {} | {} |".format(row["what"], "{:,}".format(row["done"]), " | ".join(told), row["result"])
            )
    lines += [
        "",
        "Pieces: "
        + "; ".join(f"{result['piece']} {result['date']}, {result['seconds']:.0f} s" for result in shown)
        + ".",
    ]
    absent = [piece for piece in PIECES if piece not in results or results[piece]["scale"] != scale]
    old = [result["piece"] for result in shown if result["code"] != code()]
    if absent:
        lines += ["", "Not run yet: {}.".format(", ".join(absent))]
    if old:
        lines += ["", "Run before the last change of the code: {}.".format(", ".join(old))]
    return "\n".join(lines) + "\n"


def write(text: str, path: Path) -> None:
    """Replace the generated section of the document."""
    before, rest = path.read_text().split(BEGIN)
    path.write_text(before + BEGIN + text + END + rest.split(END, 1)[1])


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the pieces that the command line selects, and write the document; return the exit status."""
    parser = argparse.ArgumentParser(description="Run the long sabotage campaign, and write its results.")
    parser.add_argument("--only", nargs="+", choices=PIECES, metavar="PIECE", help="rerun only: " + ", ".join(PIECES))
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of trials (default: 1)")
    parser.add_argument(
        "--no-write", action="store_true", help="do not write docs/reliability.md (default if SCALE is not 1)"
    )
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "sabotage", help=argparse.SUPPRESS)
    parser.add_argument("--piece", choices=PIECES, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.piece:
        be(given.piece, given.scale, given.results)
        return 0
    status, results = 0, load(given.results)
    for piece in given.only or PIECES:
        there = results.get(piece, {})
        if not given.only and (there.get("code"), there.get("scale")) == (code(), given.scale):
            print("{}: done on {}".format(piece, there["date"]))
        elif not play(piece, given.scale, given.results):
            print(f"{piece}: WRONG")
            status = 1
            break
    results = load(given.results)
    text = document(results, given.scale)
    print("\n" + text, end="")
    if not status and not given.no_write and (given.scale == 1 or given.output):
        write(text, given.output or DOCUMENT)
    return status


if __name__ == "__main__":
    sys.exit(main())
