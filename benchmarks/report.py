"""Write benchmark results as tables, JSON and plots, and into docs/performance.md."""

import datetime
import json
import os
import platform
import shutil
from pathlib import Path

import numpy as np

from .at_once import APART, CEILING
from .contenders import PLAIN
from .goals import REFERENCES
from .library import IS_THEANO, NAME, module

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "performance.md"
#: Collectives with plots in the document; only Theano's run writes them, because they do not depend on the engine.
PICTURES = ("all_reduce, in slots", "all_reduce, updated", "broadcast", "all_gather") if IS_THEANO else ()
#: Mark of this engine's section in the document.
BEGIN = (
    "<!-- written by make bench: begin -->\n"
    if IS_THEANO
    else "<!-- written by make bench ENGINE=pytensor: begin -->\n"
)
END = "<!-- end -->\n"


def machine():
    """Return a description of this machine."""
    model = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {platform.system()}; Python {platform.python_version()}"


def size(nbytes):
    """Format a number of bytes for tables."""
    if nbytes is None:
        return ""
    return f"{nbytes >> 20} MB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KB"


def line_of(row):
    """Format a row of the results as a line of text."""
    begin = f"{row['case']:<34} n={row['n']} {size(row.get('nbytes')):>7}"
    if "value" in row:
        return f"{begin}  {value_of(row)}"
    if "parts" in row:
        return (
            begin
            + "  ms: "
            + "; ".join(
                "{}: {}".format(name, ", ".join(f"{part} {micro / 1e3:.2f}" for part, micro in parts.items()))
                for name, parts in row["parts"].items()
            )
        )
    ours = row["times"].get("synkhronos")
    words = []
    for name, times in row["times"].items():
        ratio = f" ({ours.median / times.median:.2f})" if ours and name != "synkhronos" else ""
        words.append(f"{name} {times.median:.1f}/{times.p99:.1f}{ratio}")
    return begin + "  " + "; ".join(words)


def value_of(row):
    """Format a single value, with its reference if there is one."""
    return "{:.4g}".format(row["value"]) + (" (of {:.4g})".format(row["of"]) if "of" in row else "")


def speedup_table(rows):
    """Return a Markdown table of the speedups of whole programs and of the machine's upper bound."""
    lines = [
        f"| program | {PLAIN}, ms | synkhronos, ms | speedup | {CEILING}, ms | ceiling "
        "| with separate gradient and update, ms | ceiling |",
        "| --- |" + " ---: |" * 7,
    ]
    for row in rows:
        if CEILING in row.get("times", ()):
            plain, ours, best = (row["times"][name].median / 1e3 for name in (PLAIN, "synkhronos", CEILING))
            apart = row["times"][APART].median / 1e3 if APART in row["times"] else None
            lines.append(
                "| {} | {:.4g} | {:.4g} | {:.2f} | {:.4g} | {:.2f} | {} |".format(
                    row["case"],
                    plain,
                    ours,
                    plain / ours,
                    best,
                    plain / best,
                    f"{apart:.4g} | {plain / apart:.2f}" if apart else " | ",
                )
            )
    return "\n".join(lines) + "\n" if lines[2:] else ""


def parts_table(rows):
    """Return Markdown tables of the parts of a training step's time, one table per network."""
    tables = []
    for row in rows:
        if "parts" in row:
            names = list(row["parts"])
            table = ["| {}, ms | {} |".format(row["case"], " | ".join(names)), "| --- |" + " ---: |" * len(names)]
            for part in row["parts"]["synkhronos"]:
                found = [row["parts"][name].get(part) for name in names]
                table.append(
                    "| {} | {} |".format(
                        part, " | ".join("" if micro is None else f"{micro / 1e3:.3f}" for micro in found)
                    )
                )
            tables.append("\n".join(table) + "\n")
    return "\n".join(tables)


def verdict_table(verdicts):
    """Return the number of goals that were met, and a Markdown table of the goals and their measurements."""
    found = [verdict.met for verdict in verdicts if verdict.limit is not None]
    bounded = sum(verdict.is_at_bound for verdict in verdicts)
    lines = [
        f"Goals met: {sum(found)} of {len(found)}. Missed because of the memory's speed: {bounded}.",
        "",
        "| measurement | reference | ours, µs | reference, µs | ratio | goal | |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for verdict in verdicts:
        goal, value = verdict.goal, not verdict.goal.beside
        reference = f"best peer: {verdict.name}" if goal.beside in REFERENCES else verdict.name
        lines.append(
            "| {} | {} | {} | {} | {:.2f} | {} | {} |".format(
                goal.what,
                reference,
                "" if value else f"{verdict.ours:.1f}",
                "" if value else f"{verdict.other:.1f}",
                verdict.ratio,
                limit_of(verdict),
                "memory's bound" if verdict.is_at_bound else {True: "met", False: "**not met**", None: ""}[verdict.met],
            )
        )
    return "\n".join(lines) + "\n"


def limit_of(verdict):
    """Format the goal of a measurement, and its calculation from the machine's best case if it depends on that."""
    if verdict.limit is None:
        return "–"
    goal, sign = verdict.goal, "≥" if verdict.goal.least else "≤"
    if verdict.limit == goal.limit:
        return f"{sign} {goal.limit:.2f}"
    instead = "" if goal.limit is None else f", instead of {goal.limit:.2f}"
    return f"{sign} {verdict.limit:.2f} ({goal.of_best:.2f} of the best case {verdict.best:.2f}{instead})"


def times_table(rows):
    """Return Markdown tables of all medians, one per set of contenders, and a list of all single values."""
    parts, last = [], None
    for row in rows:
        if "times" not in row:
            continue
        names = list(row["times"])
        if names != last:
            parts.append(
                "\n| case | n | size | {} |\n| --- | ---: | ---: |{}".format(" | ".join(names), " ---: |" * len(names))
            )
            last = names
        parts.append(
            "| {} | {} | {} | {} |".format(
                row["case"],
                row["n"],
                size(row.get("nbytes")),
                " | ".join(f"{times.median:.1f}" for times in row["times"].values()),
            )
        )
    values = [f"- {row['case']} (n={row['n']}): {value_of(row)}" for row in rows if "value" in row]
    return "\n".join(parts) + "\n\n" + "\n".join(values) + "\n"


def document(rows, verdicts, state):
    """Return the generated section of docs/performance.md."""
    shown = [f"![{case}](pictures/{picture_of(case)})\n" for case in PICTURES if by_size(rows).get(case)]
    sections = [
        ("Goals", verdict_table(verdicts) + "\n" + "\n".join(shown)),
        ("Whole programs", speedup_table(rows)),
        ("Time of a training step by part", parts_table(rows)),
        ("All medians, in microseconds", times_table(rows).lstrip("\n")),
    ]
    of_engine = "" if IS_THEANO else f" ({NAME})"
    return f"Machine: {machine()}, {NAME} {module.__version__}. {state}\n\n" + "\n".join(
        f"### {title}{of_engine}\n\n{text}" for title, text in sections if text
    )


def put(text, begin=BEGIN, path=DOCUMENT):
    """Replace the text between a mark and the next end mark in the document."""
    before, rest = path.read_text().split(begin)
    path.write_text(before + begin + text + END + rest.split(END, 1)[1])


def write(text, folder, path=DOCUMENT):
    """Write the text into the document, and its plots into the folder ``pictures`` next to it."""
    put(text, path=path)
    for name in map(picture_of, PICTURES):
        if (folder / name).exists():
            (path.parent / "pictures").mkdir(exist_ok=True)
            shutil.copy(str(folder / name), str(path.parent / "pictures" / name))


def save(rows, verdicts, state, folder):
    """Write results.json, and a plot for each collective if matplotlib is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = [
        dict(row, times={name: times._asdict() for name, times in row["times"].items()}) if "times" in row else row
        for row in rows
    ]
    (folder / "results.json").write_text(
        json.dumps(
            {
                "date": datetime.datetime.now().isoformat(timespec="seconds"),
                "machine": machine(),
                "state": state,
                "rows": plain,
                "goals": [
                    dict(verdict._asdict(), goal=verdict.goal._asdict(), met=verdict.met) for verdict in verdicts
                ],
            },
            indent=1,
            default=np.generic.item,
        )
    )
    try:
        import matplotlib
    except ImportError:
        print("No plots were drawn, because matplotlib is not installed: pip install matplotlib")
        return
    matplotlib.use("Agg")
    for case, some in by_size(rows).items():
        draw(case, some, folder / picture_of(case))


def by_size(rows):
    """Return, by case, the result rows of collectives that were measured with several sizes."""
    found = {}
    for row in rows:
        if "nbytes" in row and "memcpy" in row["times"]:
            found.setdefault(row["case"], []).append(row)
    return found


def picture_of(case):
    """Return the file name of a collective's plot."""
    return case.replace(", ", "_").replace(" ", "_") + ".png"


def draw(case, rows, path):
    """Plot the times of one collective against the size."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for name in rows[0]["times"]:
        some = [row for row in rows if name in row["times"]]
        axes.loglog(
            [row["nbytes"] for row in some], [row["times"][name].median for row in some], marker="o", label=name
        )
    axes.set(title=case, xlabel="bytes", ylabel="microseconds (median)")
    axes.legend()
    axes.grid(True, which="both", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
