"""Report on a profile, as text with tables and as an HTML page."""

from __future__ import annotations

import json
from typing import Any, Dict, List

from ..host.units import aligned
from .calls import PARTS, PARTS_OF_CALL
from .losses import idle_sentence, known, losses, mean, nbytes, rate, titled
from .page import page, page_body


class Report:
    """Report on the time of a session: shares by rank, calls, and the largest losses.

    Parameters
    ----------
    profile : dict
        The contents of ``profile.json``.

    Attributes
    ----------
    profile : dict
    """

    def __init__(self, profile: Dict[str, Any]) -> None:
        self.profile = profile

    def __repr__(self) -> str:
        return f"<Report: ranks={self.profile['ranks']}, {self.profile['wall_s']:.3g} s>"

    def __str__(self) -> str:
        profile = self.profile
        sections = [headline(profile)]
        sections += ["\n".join([title, *aligned(rows)]) for title, rows in tables(profile)]
        found = [f"{i}. {loss.sentence}" for i, loss in enumerate(losses(profile), 1)]
        sections.append(
            "\n".join(["Largest losses", idle_sentence(profile), *(found or ["no loss is large enough to report"])])
        )
        return "\n\n".join(sections)

    def _repr_html_(self) -> str:
        """Return the body of ``report.html``, for notebooks."""
        return page_body(self.profile, headline(self.profile), tables(self.profile), losses(self.profile))

    def files(self) -> Dict[str, str]:
        """Return the contents of the profile's and the report's files, by name."""
        return {
            "profile.json": json.dumps(self.profile, indent=1),
            "report.txt": f"{self}\n",
            "report.html": page(self._repr_html_()),
        }


def headline(profile: Dict[str, Any]) -> str:
    """Return the first lines of the report: ranks, versions, and limits of the record."""
    n, hosts, devices = profile["ranks"], profile["hosts"], sorted(set(profile["devices"]))
    where = f" on {len(hosts)} hosts" if len(hosts) > 1 else ""
    lines = [
        f"Time report: {n} rank{'s' * (n > 1)}{where} ({', '.join(devices)}), {profile['wall_s']:.3f} s, "
        f"{profile['date'].replace('T', ' ')}",
        f"synkhronos {profile['synkhronos']}, {profile['engine'] or 'no engine'}, Python {profile['python']}; "
        f"this machine copies {nbytes(profile['rates']['copy'])}/s",
    ]
    if profile["dropped"]:
        lines.append(f"earlier spans were dropped ({profile['dropped']:,}), so all times cover only the latest part")
    lost = sorted(set(range(n)) - set(known(profile)))
    if lost:
        which = ", ".join(map(str, lost))
        lines.append(f"no record of rank{'s' * (len(lost) > 1)} {which}, on a lost host; missing times count as 0 s")
    error = max(profile["clock_error_s"])
    if error:
        lines.append(f"times on other hosts may be off by up to {1e6 * error:,.0f} microseconds")
    return "\n".join(lines)


def tables(profile: Dict[str, Any]) -> List[Any]:
    """Return a title and rows of cells for each table; the first row contains the column heads."""
    found = [("Shares of the time, in seconds and percent", shares_table(profile))]
    if profile["commands"]:
        found.append(("Calls: seconds on the master, and per rank (minimum, mean, maximum)", calls_table(profile)))
        found.append(("Parts of calls: seconds, mean over ranks", parts_table(profile)))
    if profile["ranks"] > 1:
        found.append(("Imbalance", imbalance_table(profile)))
    return found


def shares_table(profile: Dict[str, Any]) -> List[List[str]]:
    """Return the parts of the program's time by rank, like Table 1 of the paper on Synkhronos."""
    ranks, shares = range(profile["ranks"]), profile["shares"]
    rows = [["", *(f"rank {rank}" for rank in ranks), "mean"]]
    for part in (*PARTS, "total"):
        values = [sum(of_rank.values()) if part == "total" else of_rank[part] for of_rank in shares]
        rows.append([part, *(_with_percent(value, profile["wall_s"]) for value in [*values, mean(values)])])
    return rows


def calls_table(profile: Dict[str, Any]) -> List[List[str]]:
    """Return the column heads, and a row for each recorded command."""
    rows = [["", "calls", "on the master", "per call", "computing", "rows", "bytes", "bandwidth", "of copy rate"]]
    for command in profile["commands"]:
        totals, reached = command["totals"], rate(command)
        computing = totals["engine_s"]
        n = command["count"]
        rows.append(
            [
                titled(command),
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
    """Return the column heads, and a row for each recorded command with the parts of its time."""
    rows = [["", "computing", "communicating", "commit", "waiting", "copying", "overhead"]]
    for command in profile["commands"]:
        rows.append([titled(command), *(f"{mean(command['totals'][f'{part}_s']):.3f}" for part in PARTS_OF_CALL)])
    return rows


def imbalance_table(profile: Dict[str, Any]) -> List[List[str]]:
    """Return the column heads, and a row for each rank with its computing time, rows and waiting time."""
    computing, waiting = ([of_rank[part] for of_rank in profile["shares"]] for part in ("computing", "waiting"))
    rows = [0] * profile["ranks"]
    for command in profile["commands"]:
        rows = [a + b for a, b in zip(rows, command["totals"]["rows"] or [0] * profile["ranks"])]
    found = [["", "computing", "of the mean", "rows", "waiting"]]
    for rank in range(profile["ranks"]):
        of_mean = f"{100 * computing[rank] / mean(computing):.0f} %" if any(computing) else "-"
        found.append([f"rank {rank}", f"{computing[rank]:.3f}", of_mean, f"{rows[rank]:,}", f"{waiting[rank]:.3f}"])
    return found


def _with_percent(seconds: float, wall: float) -> str:
    return f"{seconds:.3f} {100 * seconds / wall if wall else 0:5.1f} %"
