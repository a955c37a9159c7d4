"""Test that random programs and graphs (tests/programs and tests/fuzzers) produce the serial results.

    python tools/prove.py                              # everything not yet drawn with this code
    python tools/prove.py --draws 5000 --no-write      # a quick check: a twentieth of everything
    python tools/prove.py --only "graphs fork theano"  # one part (`Piece`) only
    python tools/prove.py --repeat "fork theano 17"    # one session (or graph) again, with the same seed

A draw is one call or collective of a program, with its checks; a graph is a function of random operations, with its
calls. A session depends only on the seed, its piece and its number, so the same seed repeats the same programs. The
first wrong answer ends the run, and the shortest program that reproduces it is printed. The results are written into
docs/reliability.md.

Theano and PyTensor are included if they are installed in this environment, or in .venv and .venv-pytensor of this clone
(``make install``, ``make install ENGINE=pytensor``). Each piece runs in its own process, two at a time, and stores its
progress in build/prove, so an interrupted run can resume.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "programs"), str(ROOT / "tests" / "fuzzers"), str(ROOT / "tests")]

DOCUMENT = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- written by make prove: begin -->\n", "<!-- end -->\n"

#: Number of draws, and of graphs, in a session; progress is stored after each session.
STEPS, GRAPHS = 200, 50

#: Titles of the engines, and folders of their environments.
LABELS = {"numpy": "NumPy", "theano": "Theano", "pytensor": "PyTensor"}
ENVIRONMENTS = {"theano": ".venv", "pytensor": ".venv-pytensor"}


class Piece(NamedTuple):
    """Part of the campaign: programs or graphs with one launcher, engine and linker."""

    what: str  # "graphs", "models" (tests/fuzzers), or "" for programs that call the functions of `recipes`
    launcher: str  # "threads", "fork", "hosts" (two hosts) or "mesh" (devices of JAX)
    engine: str
    linker: str  # compiler of the functions, "c" or "numba"; "" for the NumPy engine and for Python code
    number: int  # of draws or graphs

    @property
    def name(self) -> str:
        return " ".join(one for one in self[:4] if one)

    @property
    def unit(self) -> str:
        return self.what or "draws"


#: 100,000 draws, 25,000 of them with Theano, 10,000 with PyTensor, 3,000 compiled; 20,000 graphs and 20,000 models.
PIECES = (
    Piece("", "threads", "numpy", "", 37000),
    Piece("", "fork", "numpy", "", 18000),
    Piece("", "hosts", "numpy", "", 10000),
    Piece("", "threads", "theano", "", 4000),
    Piece("", "fork", "theano", "", 20000),
    Piece("", "fork", "theano", "c", 1000),
    Piece("", "threads", "pytensor", "", 1000),
    Piece("", "fork", "pytensor", "", 5000),
    Piece("", "fork", "pytensor", "c", 1000),
    Piece("", "fork", "pytensor", "numba", 1000),
    Piece("", "mesh", "pytensor", "", 2000),
    Piece("graphs", "threads", "theano", "", 7500),
    Piece("graphs", "fork", "theano", "", 6000),
    Piece("graphs", "hosts", "theano", "", 200),
    Piece("graphs", "fork", "theano", "c", 200),
    Piece("graphs", "threads", "pytensor", "", 3500),
    Piece("graphs", "fork", "pytensor", "", 1800),
    Piece("graphs", "fork", "pytensor", "c", 150),
    Piece("graphs", "fork", "pytensor", "numba", 150),
    Piece("graphs", "mesh", "pytensor", "", 500),
    Piece("models", "threads", "theano", "", 7550),
    Piece("models", "fork", "theano", "", 400),
    Piece("models", "fork", "theano", "c", 50),
    Piece("models", "threads", "pytensor", "", 11350),
    Piece("models", "fork", "pytensor", "", 400),
    Piece("models", "fork", "pytensor", "numba", 50),
    Piece("models", "mesh", "pytensor", "", 200),
)
LABELS_OF_KINDS = {"": "random programs", "graphs": "random graphs", "models": "random models"}
BY_NAME = {piece.name: piece for piece in PIECES}
DRAWS = sum(piece.number for piece in PIECES if not piece.what)


def machine() -> str:
    """Return a description of this machine."""
    model = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {platform.system()}"


def code(*folders: str) -> str:
    """Return a hash of the library and of the generators, because results are valid only for the same code."""
    digest = hashlib.sha256()
    for folder in ("synkhronos", *(folders or ("tests/programs", "tests/fuzzers"))):
        for path in sorted([*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.c")]):
            digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


# -- one piece, in this process --------------------------------------------------------------------------------------


class Done:
    """Results of a piece of the campaign so far, stored in a file."""

    def __init__(self, piece: Piece, folder: Path, seed: int) -> None:
        self._path = folder / (piece.name.replace(" ", "-") + ".json")
        self.values: Dict[str, Any] = {
            "code": code(),
            "seed": seed,
            "done": 0,
            "sessions": 0,
            "seconds": 0.0,
            "tally": None,
        }
        try:
            there = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return
        if (there["code"], there["seed"]) == (self.values["code"], seed):
            self.values = there

    def note(self, **changes: Any) -> None:
        """Store changed results in the piece's file."""
        self.values.update(changes, date=datetime.date.today().isoformat(), versions=versions())
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.with_suffix(".new").write_text(json.dumps(self.values, indent=1))
        self._path.with_suffix(".new").replace(self._path)


def versions() -> Dict[str, str]:
    """Return the versions of Python, NumPy, and the engines that are imported."""
    found = {"Python": platform.python_version(), "NumPy": importlib.import_module("numpy").__version__}
    found.update({LABELS[name]: sys.modules[name].__version__ for name in ENVIRONMENTS if name in sys.modules})
    return found


def play(piece: Piece, number: int, seed: int, done: Done) -> None:
    """Draw the remaining sessions of a piece; raise `AssertionError` with a description if a result is wrong."""
    begun = shown = time.monotonic()
    before, session = done.values["seconds"], done.values["sessions"]
    draw = SESSIONS[piece.what](piece, seed, done)
    while done.values["done"] < number:
        most = min(GRAPHS if piece.what else STEPS, number - done.values["done"])
        more = draw(session, most)
        session += 1
        now = time.monotonic()
        done.note(sessions=session, seconds=before + now - begun, **more, done=done.values["done"] + most)
        if now - shown > 5 or done.values["done"] >= number:
            shown = now
            made, all_of_it = f"{done.values['done']:,}", f"{number:,}"
            print(f"{piece.name:<26}{made:>9} of {all_of_it} {piece.unit}{done.values['seconds']:8.0f} s", flush=True)


def sessions_of_draws(piece: Piece, seed: int, done: Optional[Done] = None) -> Any:
    """Return a function that draws a session of random programs and checks every result."""
    from protocol import Wrong, seeded_program
    from recipe_library import Library
    from recipes import ON_MESH

    library = Library(piece.engine, ON_MESH if piece.launcher == "mesh" else None)

    def draw(session: int, steps: int) -> Dict[str, Any]:
        try:
            seeded_program(f"{seed} {piece.name} {session}", library, piece.launcher, steps)
        except Wrong:
            print(f"\nWRONG: seed {seed}, session {piece.name} {session}")
            raise
        return {}

    return draw


def sessions_of_graphs(piece: Piece, seed: int, done: Done) -> Any:
    """Return a function that draws a session of up to `GRAPHS` random graphs and checks every graph."""
    from graph_tally import Tally

    tally = Tally(done.values["tally"])

    def draw(session: int, graphs: int) -> Dict[str, Any]:
        for number in range(session * GRAPHS, session * GRAPHS + graphs):
            check_graph(piece, seed, number, tally)
        return {"tally": tally.to_json()}

    return draw


def check_graph(piece: Piece, seed: int, number: int, tally: Any) -> None:
    """Check one graph; if it is wrong, print and raise the smallest wrong graph that was found."""
    from graph_check import WrongGraph, check, grown, of_launcher
    from graph_shrinking import shortest

    graph = grown(f"{seed} {piece.name} {number}")
    if graph is None:
        return
    try:
        for i, one in enumerate(of_launcher(graph, piece.launcher)):
            tally.add(check(one, piece.launcher), is_new=not i)
    except WrongGraph as wrong:
        print(f"\nWRONG: seed {seed}, session {piece.name} {number}")
        small = shortest(wrong, piece.launcher)
        print(small.graph.text())
        raise small from wrong


def sessions_of_models(piece: Piece, seed: int, done: Done) -> Any:
    """Return a function that draws a session of up to `GRAPHS` random models and checks every model."""
    from fuzz_check import Tally

    tally = Tally(done.values["tally"])

    def draw(session: int, models: int) -> Dict[str, Any]:
        for number in range(session * GRAPHS, session * GRAPHS + models):
            check_model(piece, seed, number, tally)
        return {"tally": tally.to_json()}

    return draw


def check_model(piece: Piece, seed: int, number: int, tally: Any) -> None:
    """Check one model; if it is wrong, print the smallest wrong model that was found."""
    from fuzz_check import Wrong, check
    from fuzz_program import Author
    from fuzz_shrinking import smallest

    library = importlib.import_module(f"fuzz_{piece.engine}")
    program = Author(library, f"{seed} {piece.name}", number).program()
    if program is None:
        return
    if piece.launcher == "mesh" and program.ranks == 4:  # `worlds.MESH_SIZES`
        program = program._replace(ranks=8)
    try:
        check(program, library, tally, piece.launcher)
    except Wrong as wrong:
        print(f"\nWRONG: seed {seed}, session {piece.name} {number}")
        print(program.text(library, wrong.call))
        small, found = smallest(program, wrong, library, piece.launcher)
        print(f"\nA smaller program:\n{small.text(library, found.call)}")
        raise found from wrong


SESSIONS = {"": sessions_of_draws, "graphs": sessions_of_graphs, "models": sessions_of_models}


# -- all pieces -------------------------------------------------------------------------------------------------------


def python_of(piece: Piece) -> Optional[str]:
    """Return the interpreter for a piece; None if its engine is not installed."""
    if piece.engine == "numpy" or importlib.util.find_spec(piece.engine):
        return sys.executable
    found = ROOT / ENVIRONMENTS[piece.engine] / "bin" / "python"
    return str(found) if found.exists() else None


def environment_of(piece: Piece) -> Dict[str, str]:
    """Return the environment variables of a piece's process."""
    found = dict(os.environ)

    def add(name: str, flags: str) -> None:
        found[name] = ",".join(one for one in (found.get(name), flags) if one)

    if piece.linker:
        found["SYNK_TEST_LINKER"] = {"c": "cvm"}.get(piece.linker, piece.linker)
        add("PYTENSOR_FLAGS", f"linker={found['SYNK_TEST_LINKER']}")
    else:
        add("PYTENSOR_FLAGS", "linker=py,cxx=")  # Python code needs no compilation
        if piece.what:
            add("THEANO_FLAGS", "cxx=")  # constant folding by the optimizer needs no compilation either
    if piece.launcher == "mesh":
        found.update(JAX_NUM_CPU_DEVICES="8", JAX_PLATFORMS="cpu")
    return found


def play_all(pieces: List[Piece], given: argparse.Namespace) -> int:
    """Run pieces in their own processes, up to `given.jobs` at a time; return the exit status."""
    waiting, running = list(pieces), {}
    try:
        while waiting or running:
            while waiting and len(running) < given.jobs:
                piece = waiting.pop(0)
                python = python_of(piece)
                if python is None:
                    print(f"{piece.name}: {LABELS[piece.engine]} is not installed", flush=True)
                    continue
                command = [python, "-W", "ignore", __file__, "--piece", piece.name, "--draws", str(given.draws)]
                command += ["--seed", str(given.seed), "--results", str(given.results)]
                running[piece] = subprocess.Popen(command, env=environment_of(piece), cwd=str(ROOT))
            time.sleep(0.1)
            for piece, process in list(running.items()):
                if process.poll() is not None:
                    del running[piece]
                    if process.returncode:
                        return 1
        return 0
    finally:
        for process in running.values():
            process.terminate()
            process.wait()


def share(piece: Piece, draws: int) -> int:
    """Return the number of draws or graphs of a piece, for a total number of draws."""
    return max(1, piece.number * draws // DRAWS)


def load(folder: Path, seed: int) -> Dict[Piece, Dict[str, Any]]:
    """Return the stored results of all pieces that were drawn with this code and seed."""
    found = {}
    for piece in PIECES:
        values = Done(piece, folder, seed).values
        if values["done"]:
            found[piece] = values
    return found


def document(results: Dict[Piece, Dict[str, Any]], seed: int, draws: int) -> str:
    """Return the generated section of docs/reliability.md."""
    from fuzz_check import Tally as TallyOfModels
    from graph_tally import Tally
    from recipes import RECIPES

    of_all: Dict[str, set] = {}
    for values in results.values():
        for name, version in values["versions"].items():
            of_all.setdefault(name, set()).add(version)
    lines = [
        "Date: {}. Machine: {}. {}. Seed {}; {} functions; 1 to 8 ranks.".format(
            max(values["date"] for values in results.values()),
            machine(),
            ", ".join(f"{name} {' and '.join(sorted(found))}" for name, found in of_all.items()),
            seed,
            len(RECIPES),
        ),
        "",
        "| what | launcher | engine | run by | number | wrong | seconds |",
        "| --- | --- | --- | --- | ---: | ---: | ---: |",
    ]
    for what, label in LABELS_OF_KINDS.items():
        rows = {piece: values for piece, values in results.items() if piece.what == what}
        for piece, values in rows.items():
            linker = {"c": "C", "numba": "Numba"}.get(piece.linker, "Python")
            cells = [
                label,
                piece.launcher,
                LABELS[piece.engine],
                linker,
                f"{values['done']:,}",
                "0",
                f"{values['seconds']:.0f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
        if rows:
            done, seconds = (sum(values[key] for values in rows.values()) for key in ("done", "seconds"))
            lines.append(f"| {label} | all | | | {done:,} | 0 | {seconds:.0f} |")
    absent = [piece.name for piece in PIECES if results.get(piece, {"done": 0})["done"] < share(piece, draws)]
    if absent:
        lines += ["", "These parts of the test did not run completely: {}.".format(", ".join(absent))]
    tally, models = Tally(), TallyOfModels()
    for piece, values in results.items():
        if values["tally"] is not None and piece.what == "graphs":
            tally.include(Tally(values["tally"]))
        elif values["tally"] is not None:
            models.include(TallyOfModels(values["tally"]))
    if tally.graphs:
        lines += ["", *tally.document()]
    if models.counts:
        lines += ["", *models.document()]
    return "\n".join(lines) + "\n"


def write(text: str, path: Path) -> None:
    """Replace the generated section of the document."""
    before, rest = path.read_text().split(BEGIN)
    path.write_text(before + BEGIN + text + END + rest.split(END, 1)[1])


def repeat(text: str, seed: int) -> None:
    """Draw a session of a piece, or one graph, again; ``text`` contains the name of the piece and the number."""
    name, _, number = text.rpartition(" ")
    piece = BY_NAME[name]
    if piece.what == "models":
        from fuzz_check import Tally as TallyOfModels

        check_model(piece, seed, int(number), TallyOfModels())
    elif piece.what:
        from graph_tally import Tally

        check_graph(piece, seed, int(number), Tally())
    else:
        sessions_of_draws(piece, seed)(int(number), STEPS)


def main(arguments: Optional[List[str]] = None) -> int:
    """Run the pieces, or the session, that the command line selects; return the exit status."""
    names = ", ".join(f"'{name}'" for name in BY_NAME)
    parser = argparse.ArgumentParser(description="Test that random programs and graphs produce the serial results.")
    parser.add_argument(
        "--draws", type=int, default=DRAWS, help="number of random programs; graphs in proportion (default: 100000)"
    )
    parser.add_argument("--seed", type=int, default=1, help="selects the random programs (default: 1)")
    parser.add_argument("--only", metavar="PIECE", help=f"run only this piece, with all draws: {names}")
    parser.add_argument("--repeat", metavar="'PIECE NUMBER'", help="repeat one session, or one graph")
    parser.add_argument("--jobs", type=int, default=2, help="number of pieces that run at a time (default: 2)")
    parser.add_argument("--no-write", action="store_true", help="do not write docs/reliability.md")
    parser.add_argument("--fresh", action="store_true", help="draw everything again")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "prove", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=DOCUMENT, help=argparse.SUPPRESS)
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    name = given.piece or given.only or (given.repeat or "").rpartition(" ")[0]
    if name and name not in BY_NAME:
        parser.error(f"expected one of the pieces {names}")
    chosen = [BY_NAME[name]] if name else list(PIECES)
    if given.fresh:
        for piece in chosen:
            (given.results / (piece.name.replace(" ", "-") + ".json")).unlink(missing_ok=True)
    if given.repeat or given.piece or given.only:
        piece = chosen[0]
        if not (piece.engine == "numpy" or importlib.util.find_spec(piece.engine)):
            parser.error(f"{LABELS[piece.engine]} is not installed here")
        os.environ.update({key: value for key, value in environment_of(piece).items() if key not in os.environ})
        from synkhronos.program.program import PROGRAM

        try:
            if given.repeat:
                repeat(given.repeat, given.seed)
                return 0
            number = given.draws if given.only else share(piece, given.draws)
            play(piece, number, given.seed, Done(piece, given.results, given.seed))
        except AssertionError as wrong:
            print(wrong)
            return 1
        finally:
            PROGRAM.close()  # synk.close() would raise if a program has not waited for a collective
        if given.piece:
            return 0
    elif play_all(chosen, given):
        return 1
    text = document(load(given.results, given.seed), given.seed, given.draws)
    print("\n" + text, end="")
    if not given.no_write:
        write(text, given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
