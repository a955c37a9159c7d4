"""``report.html``: the report as a self-contained page with plots."""

from __future__ import annotations

from html import escape
from typing import Any, Dict, Sequence, Tuple

from .calls import PARTS, PARTS_OF_CALL
from .losses import Loss, idle_sentence, titled

_COLOURS = dict(zip(PARTS, ("#2f6db3", "#d9822b", "#c23b3b", "#7a5fb0", "#8a8a8a", "#e6e6e6")))

#: Maximum number of plotted commands, longest first, and of plotted calls per command.
_MAX_PLOTS, _MAX_DRAWN = 6, 400

_STYLE = """\
.synkhronos { font: 14px/1.45 sans-serif; color: #222; background: #fff; max-width: 62em; }
.synkhronos table { border-collapse: collapse; margin: 0.5em 0 1.5em; }
.synkhronos th, .synkhronos td { padding: 0.15em 0.7em; text-align: right; border-bottom: 1px solid #ddd;
  white-space: pre; font-variant-numeric: tabular-nums; }
.synkhronos th:first-child, .synkhronos td:first-child { text-align: left; }
.synkhronos svg text { font: 12px sans-serif; }
.synkhronos .key span { display: inline-block; width: 0.9em; height: 0.9em; margin: 0 0.3em 0 1em; }"""

_WIDTH, _LEFT, _BAR = 640, 110, 18

#: A title, and rows of cells; the first row contains the column heads.
Table = Tuple[str, Sequence[Sequence[str]]]


def page(body: str) -> str:
    head = '<meta charset="utf-8"><title>Time report</title>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def page_body(profile: Dict[str, Any], headline: str, tables: Sequence[Table], losses: Sequence[Loss]) -> str:
    """Return the page's body: headline, losses, plots of all ranks and of the longest commands, and all tables."""
    first, *rest = headline.split("\n")
    found = [f'<div class="synkhronos"><style>{_STYLE}</style>', f"<h2>{escape(first)}</h2>"]
    found += [f"<p>{escape(line)}</p>" for line in rest]
    found += ["<h3>Largest losses</h3>", f"<p>{escape(idle_sentence(profile))}</p>", "<ol>"]
    found += [f"<li>{escape(loss.sentence)}</li>" for loss in losses]
    found += ["</ol>", "<h3>Time of each rank</h3>", _key()]
    found += [_bars([list(of_rank.items()) for of_rank in profile["shares"]], profile["wall_s"])]
    longest = sorted(profile["commands"], key=lambda command: -command["totals"]["master_s"])[:_MAX_PLOTS]
    for command in longest:
        name, totals, n = titled(command), command["totals"], command["recorded"]
        parts = [[(part, seconds) for seconds in totals[f"{key}_s"]] for key, part in PARTS_OF_CALL.items()]
        found += [f"<h3>{escape(name)}: {n:,} call{'s' * (n > 1)}, {totals['master_s']:.3g} s</h3>"]
        found += [_bars(list(zip(*parts)), totals["master_s"])]
        if n > 1:
            found += [_durations(command, profile["wall_s"])]
    for title, rows in tables:
        found += [f"<h3>{escape(title)}</h3>", _table(rows)]
    return "\n".join([*found, "</div>"])


def _key() -> str:
    marks = [f'<span style="background:{colour}"></span>{part}' for part, colour in _COLOURS.items()]
    return f'<p class="key">{" ".join(marks)}</p>'


def _table(rows: Sequence[Sequence[str]]) -> str:
    tags = ["th"] + ["td"] * (len(rows) - 1)
    lines = ["".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in zip(tags, rows)]
    return "\n".join(["<table>", *(f"<tr>{line}</tr>" for line in lines), "</table>"])


def _bars(bars: Sequence[Sequence[Tuple[str, float]]], whole: float) -> str:
    """Plot a bar for each rank, composed of parts and their seconds."""
    found = []
    for rank, parts in enumerate(bars):
        y, x = (_BAR + 6) * rank, float(_LEFT)
        found.append(f'<text x="0" y="{y + 13}">rank {rank}</text>')
        for part, seconds in parts:
            width = _WIDTH * seconds / whole if whole else 0.0
            size = f'width="{width:.1f}" height="{_BAR}" fill="{_COLOURS[part]}"'
            found.append(f'<rect x="{x:.1f}" y="{y}" {size}><title>{part}: {seconds:.6g} s</title></rect>')
            x += width
    return _svg((_BAR + 6) * len(bars), found)


def _durations(command: Dict[str, Any], wall: float) -> str:
    """Plot the durations of the latest calls over the time of the session."""
    calls = command["calls"][-_MAX_DRAWN:]
    most, height, right = max(call["master_s"] for call in calls), 70, _LEFT + _WIDTH
    found = [
        f'<text x="0" y="13">{most:.3g} s per call</text><text x="0" y="{height}">0 s</text>',
        f'<text x="{_LEFT}" y="{height + 14}">called at 0 s</text>',
        f'<text x="{right}" y="{height + 14}" text-anchor="end">{wall:.3g} s</text>',
        f'<line x1="{_LEFT}" y1="{height}" x2="{right}" y2="{height}" stroke="#999"/>',
    ]
    for call in calls:
        x = _LEFT + (_WIDTH * call["begin_s"] / wall if wall else 0.0)
        y = height - (height - 4) * call["master_s"] / most if most else height
        tip = f"at {call['begin_s']:.6g} s: {call['master_s']:.6g} s"
        found.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="#2f6db3"><title>{tip}</title></circle>')
    return _svg(height + 20, found)


def _svg(height: int, marks: Sequence[str]) -> str:
    return "\n".join([f'<svg width="{_LEFT + _WIDTH}" height="{height}" role="img">', *marks, "</svg>"])
