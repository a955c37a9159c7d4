"""How messages tell what happened to a process."""

from __future__ import annotations

import signal


def describe_end(status: int, memory: int = 0) -> str:
    """Tell how a process ended.

    Parameters
    ----------
    status : int
        Its exit code, or minus the number of the signal.
    memory : int
        Bytes that it held at most, where that is known.

    Examples
    --------
    >>> describe_end(-11)
    'was killed by SIGSEGV'
    >>> describe_end(3)
    'ended with exit code 3'
    >>> describe_end(-9, 700 << 20)
    'was killed by SIGKILL (if nobody sent it, the kernel ran out of memory; the rank held up to 700 MB)'
    """
    if status >= 0:
        return "ended with exit code %d" % status
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "signal %d" % -status
    if -status != signal.SIGKILL:
        return "was killed by %s" % name
    held = "; the rank held up to %d MB" % -(-memory >> 20) if memory else ""
    return "was killed by %s (if nobody sent it, the kernel ran out of memory%s)" % (name, held)


def describe_state(pid: int) -> str:
    """Tell what the kernel says of a process: running, sleeping, stopped."""
    try:
        with open("/proc/%d/status" % pid) as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return "gone"
    return "%s, %s resident" % (fields.get("State", "?").strip(), fields.get("VmRSS", "?").strip())
