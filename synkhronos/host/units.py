"""Text for readers: sizes of memory, and tables."""

from __future__ import annotations

from typing import List, Sequence


def readable_bytes(nbytes: int) -> str:
    """Return a number of bytes as text, rounded in binary units and exact in bytes.

    >>> readable_bytes(100), readable_bytes(3 << 30)
    ('100 bytes', '3.0 GiB (3221225472 bytes)')
    """
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.1f} {unit} ({nbytes} bytes)"
    return f"{nbytes} byte{'' if nbytes == 1 else 's'}"


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> List[str]:
    """Return the lines of a table; the first ``left`` columns are aligned at the left, all others at the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    fit = [str.ljust] * left + [str.rjust] * len(widths)
    return ["  ".join(pad(cell, width) for pad, cell, width in zip(fit, row, widths)).rstrip() for row in rows]
