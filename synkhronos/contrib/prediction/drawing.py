"""Draw predictions as an SVG picture."""

from __future__ import annotations

import math
from typing import List, Sequence
from xml.sax.saxutils import escape

from .model import PARTS
from .outlook import Outlook

#: Sizes and positions are in pixels.
WIDTH, HEIGHT, PLOT_WIDTH, PLOT_HEIGHT, LEFT, TOP = 900, 400, 340, 280, 60, 50

COLOURS = dict(zip(PARTS, ("#4477aa", "#66ccee", "#bbbbbb", "#ccbb44", "#ee6677", "#aa3377", "#228833")))


def drawing(found: Sequence[Outlook], title: str) -> str:
    """Return the SVG text of two plots side by side: the speedup and the parts of a step, by number of ranks."""
    pieces = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 24, title, size=15),
        *speedups(found),
        *shares(found, LEFT + PLOT_WIDTH + 70),
        "</svg>",
    ]
    return "\n".join(pieces) + "\n"


def speedups(found: Sequence[Outlook]) -> List[str]:
    """Draw the plot of speedups; both axes are logarithmic."""
    numbers = sorted({each.layout.ranks for each in found})
    least = min(1.0, *(each.speedup for each in found))
    most = float(max(numbers[-1], 2))
    top = max(most, *(each.speedup for each in found))

    def across(ranks: float) -> float:
        return LEFT + PLOT_WIDTH * math.log(ranks) / math.log(most)

    def down(speedup: float) -> float:
        return TOP + PLOT_HEIGHT * (1 - math.log(speedup / least) / math.log(top / least))

    bottom = TOP + PLOT_HEIGHT
    pieces = [
        line(LEFT, bottom, LEFT + PLOT_WIDTH, bottom),
        line(LEFT, TOP, LEFT, bottom),
        text(LEFT + PLOT_WIDTH / 2, bottom + 40, "ranks", anchor="middle"),
        text(LEFT, TOP - 8, "speedup (dashed: number of ranks)"),
        line(across(1), down(1), across(most), down(most), dashed=True),
    ]
    for ranks in numbers:
        pieces.append(text(across(ranks), bottom + 18, f"{ranks:g}", anchor="middle"))
        pieces.append(text(LEFT - 6, down(ranks) + 4, f"{ranks:g}", anchor="end"))
    points = " ".join(f"{across(each.layout.ranks):.1f},{down(each.speedup):.1f}" for each in found)
    pieces.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS["computing"]}" stroke-width="2"/>')
    for each in found:
        fill = "white" if each.extrapolated else COLOURS["computing"]
        pieces.append(
            f'<circle cx="{across(each.layout.ranks):.1f}" cy="{down(each.speedup):.1f}" r="4" fill="{fill}" '
            f'stroke="{COLOURS["computing"]}"><title>ranks: {each.layout.ranks}, speedup: {each.speedup:.3g}'
            f"{' (extrapolated)' if each.extrapolated else ''}</title></circle>"
        )
    return pieces


def shares(found: Sequence[Outlook], left: float) -> List[str]:
    """Draw a bar for each prediction, divided in proportion to the parts of a step; all bars have equal heights."""
    each_width = PLOT_WIDTH / len(found)
    pieces = [text(left, TOP - 8, "parts of a step")]
    for i, each in enumerate(found):
        x, y = left + i * each_width, float(TOP)
        for part in reversed(PARTS):
            height = PLOT_HEIGHT * each.parts[part] / each.seconds
            label = f"ranks: {each.layout.ranks}, {part}: {1e3 * each.parts[part]:.4g} ms"
            pieces.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{0.8 * each_width:.1f}" height="{max(height, 0):.1f}" '
                f'fill="{COLOURS[part]}"><title>{label}</title></rect>'
            )
            y += height
        pieces.append(text(x + 0.4 * each_width, TOP + PLOT_HEIGHT + 18, str(each.layout.ranks), anchor="middle"))
    for i, part in enumerate(PARTS):
        x = left + 110 * (i % 4) - 60
        y = TOP + PLOT_HEIGHT + 34 + 16 * (i // 4)
        pieces.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{COLOURS[part]}"/>')
        pieces.append(text(x + 14, y + 9, part))
    return pieces


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, dashed: bool = False) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#666666"{dashes}/>'
