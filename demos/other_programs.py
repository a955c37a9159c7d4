"""How much of the cores' time other programs take, by which a comparison of times would be of little use.

::

    /proc/stat          ticks in which each core was busy  -->  all programs, and other virtual machines ("steal")
    /proc/PID/stat      ticks of this process, its ranks and what else it has started  -->  this program
"""

import os
from pathlib import Path

#: The share of the time that others may take unmentioned: a desktop, a shell, the kernel itself.
WORTH_SAYING = 0.1


class OtherPrograms:
    """Count what other programs take of the cores that this process may use, from now on.

    Parameters
    ----------
    root : str
        The folder with ``proc``; a test makes one.
    """

    def __init__(self, root="/"):
        self._proc = Path(root, "proc")
        self._pid, self._cores = os.getpid(), os.sched_getaffinity(0)
        self._start = self._ticks()

    def share(self):
        """Return the part of the cores' time, from 0 to 1, that others took; 0 if the system does not say."""
        all_, busy, own = (now - then for now, then in zip(self._ticks(), self._start))
        return min(1.0, max(0.0, busy - own) / all_) if all_ > 0 else 0.0

    def _ticks(self):
        """Return three numbers of clock ticks so far: of the cores, in which they were busy, and of this program."""
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
        except OSError:  # it has ended
            return 0
        return sum(map(int, of_process[11:15])) + sum(map(self._own, children))


def sentence(share):
    """Return what a demo says about that share; "" if there is nothing to say.

    Examples
    --------
    >>> sentence(0.02)
    ''
    >>> sentence(0.5)
    "other programs took 50% of the cores' time meanwhile: the times of a quiet machine are others"
    """
    if share < WORTH_SAYING:
        return ""
    return f"other programs took {share:.0%} of the cores' time meanwhile: the times of a quiet machine are others"
