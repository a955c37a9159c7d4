"""Draw docs/pictures/speedup.png from the tables of docs/performance.md, with matplotlib.

python docs/pictures/speedup.py
"""

import re
from pathlib import Path
from typing import List, NamedTuple

HERE = Path(__file__).parent
TABLES = HERE.parent / "performance.md"
PICTURE = HERE / "speedup.png"


class Program(NamedTuple):
    """A program that was measured on one core and on two ranks."""

    kind: str
    label: str
    ms: float  # of work in one serial call or step
    speedup: float  # of two ranks
    ceiling: float  # of two simultaneous serial programs, each with half of the rows


def programs(text: str) -> List[Program]:
    """Return the programs of the table "Whole programs", in the order of their work.

    This table has the time of a whole epoch. The tables of a step by part contain the time of a step.
    """
    totals = r"^\| time of a step by part, (?:MNIST, )?([\w-]+), ms.*?^\| total \|[^|]*\| ([\d.]+)"
    of_step = dict(re.findall(totals, text, re.MULTILINE | re.DOTALL))
    found = []
    for line in text.partition("### Whole programs\n")[2].partition("###")[0].splitlines()[3:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) > 5:
            name = cells[0].split()[-1]
            if name in of_step:
                kind, label, ms = "step of a network", name.replace("mlp", "MLP").replace("cnn", "CNN"), of_step[name]
            else:
                kind = "gradient of an MLP" if cells[0].startswith("MLP") else "step of SGD, in steps()"
                label, ms = "", cells[1]
            found.append(Program(kind, label, float(ms), float(cells[3]), float(cells[5])))
    return sorted(found, key=lambda program: program.ms)


def draw(text: str) -> None:
    """Draw the speedup of each program over its work, and save the plot."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.2))
    found = programs(text)
    for kind, marker in zip(sorted({program.kind for program in found}), "osD"):
        of_kind = [program for program in found if program.kind == kind]
        axes.plot([one.ms for one in of_kind], [one.speedup for one in of_kind], marker, label=kind + ", two ranks")
    best = "two simultaneous serial programs, half of the rows each"
    axes.plot([one.ms for one in found], [one.ceiling for one in found], "_", color="#cc3333", ms=14, mew=2, label=best)
    for program in found:
        axes.annotate(program.label, (program.ms, program.speedup), (7, -12), textcoords="offset points", fontsize=9)
    axes.axhline(1, color="#333333", lw=0.8)
    axes.set(xscale="log", xlim=(0.01, 4000), ylim=(0, 2.3), ylabel="speedup")
    axes.set(xlabel="work of one serial call or step, ms")
    axes.legend(loc="lower right", fontsize=9)
    figure.savefig(str(PICTURE), dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    draw(TABLES.read_text(encoding="utf-8"))
