"""How messages tell what happened to a process."""

from __future__ import annotations

import signal


def describe_end(status: int) -> str:
    """Tell how a process ended: its exit code, or minus the number of the signal.

    Examples
    --------
    >>> describe_end(-11)
    'was killed by SIGSEGV'
    >>> describe_end(3)
    'ended with exit code 3'
    """
    if status >= 0:
        return "ended with exit code %d" % status
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "signal %d" % -status
    likely = " (if nobody sent it, the kernel ran out of memory)" if -status == signal.SIGKILL else ""
    return "was killed by %s%s" % (name, likely)


def describe_state(pid: int) -> str:
    """Tell what the kernel says of a process: running, sleeping, stopped."""
    try:
        with open("/proc/%d/status" % pid) as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return "gone"
    return "%s, %s resident" % (fields.get("State", "?").strip(), fields.get("VmRSS", "?").strip())
