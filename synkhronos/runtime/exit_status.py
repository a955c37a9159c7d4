"""Descriptions of exit codes and process states for messages."""

from __future__ import annotations

import signal

LOST = -1000  #: Status of a rank whose host can no longer be reached.
ORPHANED = -1001  #: Status of a rank that the kernel has killed because its keeper has ended.
WAITS = "waits for other ranks"  #: State of a rank that waits for the first rank of its host, or for a request.


def describe_end(status: int, memory: int = 0) -> str:
    """Return a clause, for messages, that states how a process ended.

    ``status`` is its exit code, its negative signal number, `LOST` or `ORPHANED`; ``memory`` is its peak in bytes, 0 if
    unknown.

    >>> describe_end(3)
    'ended with exit code 3'
    >>> describe_end(-9, 700 << 20)
    'was killed by SIGKILL (out of memory, unless a user sent the signal; peak memory of the rank: 700 MB)'
    """
    if status == LOST:
        return "was lost with its host"
    if status == ORPHANED:
        return "was killed because the keeper of its host has ended"
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if -status != signal.SIGKILL:
        return f"was killed by {name}"
    held = f"; peak memory of the rank: {-(-memory >> 20)} MB" if memory else ""
    return f"was killed by {name} (out of memory, unless a user sent the signal{held})"


def describe_state(pid: int) -> str:
    """Return a process's state and resident memory as reported by the kernel, or "gone"."""
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return "gone"
    return "{}, {} resident".format(fields.get("State", "?").strip(), fields.get("VmRSS", "?").strip())
