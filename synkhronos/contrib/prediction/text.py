"""Predictions as text: a table, a plot and sentences."""

from __future__ import annotations

from typing import List, Sequence

from ...host.units import aligned
from .model import PARTS, Model
from .outlook import GOOD_EFFICIENCY, RULES, Outlook

ADVICE = {
    "computing": "the work itself, with a fixed part that does not depend on rows; use larger batches",
    "memory": "ranks that compute simultaneously slow each other down (memory, caches, clock rate); use more machines",
    "cores": "more ranks than cores; use fewer ranks or more hosts (--cores, --hosts)",
    "waiting": "ranks wait for the slowest rank; use equal shares of rows, or less frequent exchanges",
    "communicating": "exchanges between ranks; use larger batches, or communicate less (synkhronos.extensions.rules)",
    "commands": "the fixed cost of each command; use larger batches, or many steps in one command (steps)",
    "program": "the program's serial code between calls; use a loader, or many steps in one command",
}

LETTERS = dict(zip(PARTS, "#mcwx+."))
WIDTH = 60


def report(model: Model, found: Sequence[Outlook]) -> str:
    others = [name for kind, name in model.commands if (kind, name) != model.main]
    also = f", plus {', '.join(others)}" if others else ""
    lines = [f"A step is a call to {model.main[1]} with {model.rows:g} row{'' if model.rows == 1 else 's'}{also}.", ""]
    lines += table(found) + [""] + plot(found)
    limits = {each.limit: each.layout.ranks for each in reversed(found)}
    lines += ["", "Limits, each from this number of ranks on:"]
    lines += [f"  {ranks:>5}  {limit}: {ADVICE[limit]}" for limit, ranks in reversed(list(limits.items()))]
    lines += rules(found) + smallest(found)
    notes = list(model.notes)
    if any(each.extrapolated for each in found):
        most, (few, many) = model.largest, model.rows_of_rank
        profiled = f"at most {counted(most.ranks, 'rank')} and {counted(most.hosts, 'host')}"
        notes.insert(0, f"* = extrapolated: the profiles have {profiled}, with {few:g} to {many:g} rows per rank")
    return "\n".join(lines + ([""] if notes else []) + [f"({note})" for note in notes]) + "\n"


def table(found: Sequence[Outlook]) -> List[str]:
    head = ["ranks", "hosts", "rows/rank", "ms/step", "speedup", "efficiency", *PARTS, "limited by"]
    rows = [head]
    for each in found:
        rows.append(
            [
                f"{each.layout.ranks}{'*' if each.extrapolated else ''}",
                str(each.layout.hosts),
                f"{each.rows / each.layout.ranks:.4g}",
                milli(each.seconds),
                f"{each.speedup:.2f}",
                f"{100 * each.efficiency:.0f} %",
                *(milli(each.parts[part]) for part in PARTS),
                each.limit,
            ]
        )
    return aligned(rows, left=0)


def plot(found: Sequence[Outlook]) -> List[str]:
    """Return the lines of a bar plot of the parts of a step, with one bar per prediction."""
    lines = ["Parts of a step: " + ", ".join(f"{LETTERS[part]} {part}" for part in PARTS)]
    for each in found:
        bar, until = "", 0.0
        for part in PARTS:
            until += each.parts[part] / each.seconds
            bar += LETTERS[part] * (round(WIDTH * until) - len(bar))
        lines.append(f"  {each.layout.ranks:>5} |{bar}| {each.speedup:.4g} of {each.layout.ranks}")
    return lines


def rules(found: Sequence[Outlook]) -> List[str]:
    """Return the lines of the table of communication rules."""
    helped = [each for each in found if each.by_rule]
    if not helped:
        return []
    names = [name for name in RULES if name in helped[0].by_rule]
    rows = [["ranks", "always", *names]]
    rows += [
        [str(each.layout.ranks), milli(each.seconds), *(milli(each.by_rule[name]) for name in names)] for each in helped
    ]
    title = "Milliseconds per step if ranks exchanged less (synkhronos.extensions.rules):"
    return ["", title, *("  " + line for line in aligned(rows, left=0))]


def smallest(found: Sequence[Outlook]) -> List[str]:
    """Return the lines of the table of the fewest rows per rank that reach `GOOD_EFFICIENCY`."""
    several = [each for each in found if each.layout.ranks > 1]
    if not several:
        return []
    lines = ["", f"Fewest rows per rank with {100 * GOOD_EFFICIENCY:.0f} % of the ideal speedup:"]
    for each in several:
        rows = each.smallest_rows
        words = "none found" if rows is None else f"{rows:,} ({rows * each.layout.ranks:,} on all ranks)"
        lines.append(f"  {counted(each.layout.ranks, 'rank'):>10}: {words}")
    return lines


def milli(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def counted(number: int, what: str) -> str:
    """Return a count with its noun.

    >>> counted(1, "rank"), counted(1024, "rank")
    ('1 rank', '1,024 ranks')
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"
