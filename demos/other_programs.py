"""Measure the CPU time used by other programs, which can make timing comparisons unreliable.

::

    /proc/stat          busy ticks of each core            -->  all programs, and other virtual machines ("steal")
    /proc/PID/stat      ticks of this process and its descendants, such as ranks  -->  this program
"""

import os
from pathlib import Path

#: Smallest share that is reported; a desktop, a shell or the kernel takes less.
WORTH_SAYING = 0.1


class OtherPrograms:
    """Measures the share of this process's cores that other programs have used since the object was created.

    `root` is the folder that contains ``proc``; tests create such a folder.
    """

    def __init__(self, root="/"):
        self._proc = Path(root, "proc")
        self._pid, self._cores = os.getpid(), os.sched_getaffinity(0)
        self._start = self._ticks()

    def share(self):
        """Return the share of CPU time, from 0 to 1, that other programs used; 0 if the system does not report it."""
        all_, busy, own = (now - then for now, then in zip(self._ticks(), self._start))
        return min(1.0, max(0.0, busy - own) / all_) if all_ > 0 else 0.0

    def _ticks(self):
        """Return clock ticks so far: all ticks of the cores, busy ticks, and ticks of this program."""
        try:
            lines = (self._proc / "stat").read_text().splitlines()
            every = [line.split() for line in lines if line[:3] == "cpu" and line[3:4].isdigit()]
            fields = [[int(ticks) for ticks in line[1:9]] for line in every if int(line[0][3:]) in self._cores]
            all_ = sum(map(sum, fields))
            return all_, all_ - sum(idle + waiting for _, _, _, idle, waiting, *_ in fields), self._own(self._pid)
        except (OSError, ValueError):
            return 0, 0, 0

    def _own(self, pid):
        try:
            of_process = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            children = [
                int(child)
                for thread in os.listdir(self._proc / str(pid) / "task")
                for child in (self._proc / str(pid) / "task" / thread / "children").read_text().split()
            ]
        except OSError:  # the process has ended
            return 0
        return sum(map(int, of_process[11:15])) + sum(map(self._own, children))


def sentence(share):
    """Return a sentence about the share of other programs; "" if it is below `WORTH_SAYING`.

    Examples
    --------
    >>> sentence(0.02)
    ''
    >>> sentence(0.5)
    "other programs took 50% of the cores' time in this run, so times on an idle machine will differ"
    """
    if share < WORTH_SAYING:
        return ""
    return f"other programs took {share:.0%} of the cores' time in this run, so times on an idle machine will differ"
