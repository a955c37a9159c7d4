"""The report of a profile, for people: as text, and as a page."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Sequence

from .calls import PARTS
from .losses import idle_sentence, known, losses, mean, nbytes, rate, short
from .page import page, page_body


class Report:
    """Where the time of a session went.

    Parameters
    ----------
    profile : dict
        As ``profile.json`` has it.

    Attributes
    ----------
    profile : dict
    """

    def __init__(self, profile: Dict[str, Any]) -> None:
        self.profile = profile

    def __repr__(self) -> str:
        return f"<Report: {self.profile['ranks']} ranks, {self.profile['wall_s']:.3g} s>"

    def __str__(self) -> str:
        """Return ``report.txt``."""
        profile = self.profile
        sections = [headline(profile)]
        sections += ["\n".join([title, *aligned(rows)]) for title, rows in tables(profile)]
        found = [f"{i}. {loss.sentence}" for i, loss in enumerate(losses(profile), 1)]
        sections.append(
            "\n".join(["The largest losses", idle_sentence(profile), *(found or ["none worth a sentence"])])
        )
        return "\n\n".join(sections)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the body of ``report.html``."""
        return page_body(self.profile, headline(self.profile), tables(self.profile), losses(self.profile))

    def files(self) -> Dict[str, str]:
        """Return the files of a profile's folder that are made of it, by name."""
        return {
            "profile.json": json.dumps(self.profile, indent=1),
            "report.txt": f"{self}\n",
            "report.html": page(self._repr_html_()),
        }


def headline(profile: Dict[str, Any]) -> str:
    """Return what the report is about, in lines."""
    n, hosts, devices = profile["ranks"], profile["hosts"], sorted(set(profile["devices"]))
    where = f" on {len(hosts)} hosts" if len(hosts) > 1 else ""
    lines = [
        f"Where the time went: {n} rank{'s' * (n > 1)}{where} ({', '.join(devices)}), {profile['wall_s']:.3f} s, "
        f"{profile['date'].replace('T', ' ')}",
        f"synkhronos {profile['synkhronos']}, {profile['engine'] or 'no engine'}, Python {profile['python']}; "
        f"this machine copies {nbytes(profile['rates']['copy'])}/s",
    ]
    if profile["dropped"]:
        lines.append(f"{profile['dropped']:,} earlier spans were dropped: seconds are those of the latest part")
    lost = sorted(set(range(n)) - set(known(profile)))
    if lost:
        which = ", ".join(map(str, lost))
        lines.append(f"nothing is known of rank{'s' * (len(lost) > 1)} {which}, on a host that was lost: taken for 0 s")
    error = max(profile["clock_error_s"])
    if error:
        lines.append(f"moments on other hosts may be wrong by {1e6 * error:,.0f} microseconds")
    return "\n".join(lines)


def tables(profile: Dict[str, Any]) -> List[Any]:
    """Return the tables: title, and rows of cells, the first of which are the heads."""
    found = [("Shares of the time, in seconds and percent", shares_table(profile))]
    if profile["commands"]:
        found.append(("Calls: seconds on the master, and on each rank the least, mean and most", calls_table(profile)))
        found.append(("What the ranks do in them: seconds, the mean over ranks", parts_table(profile)))
    if profile["ranks"] > 1:
        found.append(("Imbalance", imbalance_table(profile)))
    return found


def shares_table(profile: Dict[str, Any]) -> List[List[str]]:
    """Return the parts of the program's time by rank: the paper's Table 1, for any program."""
    ranks, shares = range(profile["ranks"]), profile["shares"]
    rows = [["", *(f"rank {rank}" for rank in ranks), "mean"]]
    for part in (*PARTS, "total"):
        values = [sum(of_rank.values()) if part == "total" else of_rank[part] for of_rank in shares]
        rows.append([part, *(_with_percent(value, profile["wall_s"]) for value in [*values, mean(values)])])
    return rows


def calls_table(profile: Dict[str, Any]) -> List[List[str]]:
    """Return a row for each function and collective."""
    rows = [["", "calls", "on the master", "a call", "computing", "rows", "bytes", "bandwidth", "of copying"]]
    for command in profile["commands"]:
        totals, reached = command["totals"], rate(command)
        computing = totals["engine_s"]
        n = command["count"]
        rows.append(
            [
                title(command),
                f"{n:,}" if n == command["recorded"] else f"{n:,} ({command['recorded']:,} recorded)",
                f"{totals['master_s']:.3f}",
                f"{totals['master_s'] / command['recorded']:.6f}",
                f"{min(computing):.3f} {mean(computing):.3f} {max(computing):.3f}" if any(computing) else "-",
                "-" if totals["rows"] is None else f"{sum(totals['rows']):,}",
                nbytes(command["bytes"]) if command["bytes"] else "-",
                "-" if reached is None else f"{nbytes(reached)}/s",
                "-" if reached is None else f"{100 * reached / profile['rates']['copy']:.0f} %",
            ]
        )
    return rows


def parts_table(profile: Dict[str, Any]) -> List[List[str]]:
    """Return a row for each function and collective, with what its time is made of."""
    parts = ("engine_s", "transport_s", "commit_s", "wait_s", "copy_s", "overhead_s")
    rows = [["", "computing", "communicating", "commit", "waiting", "copying", "overhead"]]
    for command in profile["commands"]:
        rows.append([title(command), *(f"{mean(command['totals'][part]):.3f}" for part in parts)])
    return rows


def imbalance_table(profile: Dict[str, Any]) -> List[List[str]]:
    """Return what each rank computes, its rows, and what it waits."""
    computing, waiting = ([of_rank[part] for of_rank in profile["shares"]] for part in ("computing", "waiting"))
    rows = [0] * profile["ranks"]
    for command in profile["commands"]:
        rows = [a + b for a, b in zip(rows, command["totals"]["rows"] or [0] * profile["ranks"])]
    found = [["", "computing", "of the mean", "rows", "waiting"]]
    for rank in range(profile["ranks"]):
        of_mean = f"{100 * computing[rank] / mean(computing):.0f} %" if any(computing) else "-"
        found.append([f"rank {rank}", f"{computing[rank]:.3f}", of_mean, f"{rows[rank]:,}", f"{waiting[rank]:.3f}"])
    return found


def title(command: Dict[str, Any]) -> str:
    """Return how tables name functions, steps of them, and collectives."""
    name = short(command["name"])
    return f"{name}.steps" if command["kind"] == "steps" else name


def aligned(rows: Sequence[Sequence[str]]) -> List[str]:
    """Return the rows of a table as lines."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]).rstrip()
        for row in rows
    ]


def _with_percent(seconds: float, wall: float) -> str:
    return f"{seconds:.3f} {100 * seconds / wall if wall else 0:5.1f} %"
