"""How messages say what happened to a process."""

from __future__ import annotations

import signal

#: The status of a rank whose host cannot be reached any more.
LOST = -1000


def describe_end(status: int, memory: int = 0) -> str:
    """Return how a process ended, as messages say it.

    Parameters
    ----------
    status : int
        Its exit code, minus the number of the signal, or `LOST`.
    memory : int
        Peak memory in bytes; 0 if unknown.

    Examples
    --------
    >>> describe_end(-11)
    'was killed by SIGSEGV'
    >>> describe_end(3)
    'ended with exit code 3'
    >>> describe_end(-9, 700 << 20)
    'was killed by SIGKILL (unless it was sent on purpose, the kernel ran out of memory; the rank held up to 700 MB)'
    >>> describe_end(LOST)
    'was lost with its host'
    """
    if status == LOST:
        return "was lost with its host"
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    if -status != signal.SIGKILL:
        return f"was killed by {name}"
    held = f"; the rank held up to {-(-memory >> 20)} MB" if memory else ""
    return f"was killed by {name} (unless it was sent on purpose, the kernel ran out of memory{held})"


def describe_state(pid: int) -> str:
    """Return what the kernel says of a process: running, sleeping, stopped."""
    try:
        with open(f"/proc/{pid}/status") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return "gone"
    return "{}, {} resident".format(fields.get("State", "?").strip(), fields.get("VmRSS", "?").strip())
