"""Human-readable sizes of memory."""

from __future__ import annotations


def readable_bytes(nbytes: int) -> str:
    """Return a number of bytes as text, rounded in binary units and exact in bytes.

    >>> readable_bytes(100), readable_bytes(3 << 30)
    ('100 bytes', '3.0 GiB (3221225472 bytes)')
    """
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):.1f} {unit} ({nbytes} bytes)"
    return f"{nbytes} byte{'' if nbytes == 1 else 's'}"
