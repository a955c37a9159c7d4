"""The cores that ranks run on: each has its own, and the master only while it executes a command.

If ranks are not pinned, the kernel often puts two that wait for each other on one core, which costs half the speed.
Several programs on one machine must not choose the same cores, so a program *claims* those that it pins ranks to: it
holds an advisory lock on the core's entry under /sys, which the kernel releases when the program ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
from typing import Collection, Dict, List, Optional, Sequence, Set, Tuple

from .machine import usable_cores
from .threads import Library, loaded_libraries

_CORE = "/sys/devices/system/cpu/cpu%d"


class CoreClaims:
    """Cores that no other program pins its ranks to, until `release`."""

    def __init__(self) -> None:
        self._held: Dict[int, int] = {}

    def claim(self, groups: int) -> List[List[int]]:
        """Claim cores for ``groups`` ranks, the same number for each.

        Returns
        -------
        list of list of int
            One group of cores per rank; all empty if too few cores are free of other programs' claims: then it is
            better to leave the ranks to the kernel.
        """
        self.release()
        cores = usable_cores()
        each = len(cores) // groups
        if each:
            for core in _siblings_last(cores):
                if len(self._held) < each * groups:
                    self._try(core)
        if not each or len(self._held) < each * groups:
            self.release()
            return [[] for _ in range(groups)]
        held = sorted(self._held)
        return [held[g * each : (g + 1) * each] for g in range(groups)]

    def _try(self, core: int) -> None:
        try:
            fd = os.open(_CORE % core, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
        else:
            self._held[core] = fd

    def release(self) -> None:
        """Let other programs have the cores. (In a process that the user forked, the parent keeps them.)"""
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()


def _siblings_last(cores: Sequence[int]) -> List[int]:
    """Sort cores so that second threads of a physical core come after the first of every one."""

    def is_second(core: int) -> bool:
        try:
            with open((_CORE % core) + "/topology/thread_siblings_list") as file:
                first = file.read().replace("-", ",").split(",")[0]
            return int(first) != core
        except (OSError, ValueError):
            return False

    return sorted(cores, key=lambda core: (is_second(core), core))


def confine(cores: Collection[int]) -> None:
    """Run this thread, and those that it will start, on these cores only, or on any if these are gone."""
    if cores:
        try:
            os.sched_setaffinity(0, cores)
        except OSError:  # the cpuset of the container or the user's own has changed
            pass


class MasterAffinity:
    """Confines the master to its cores and threads while it executes a command, and only then.

    A context manager; the user's own work between commands has all cores and threads.

    Parameters
    ----------
    cores : list of int
        Empty if ranks are not pinned.
    threads : int, optional
        Of BLAS and OpenMP; not limited by default.
    claims : CoreClaims, optional
        On the cores of all ranks; given back by `release`.
    """

    def __init__(self, cores: List[int], threads: Optional[int], claims: Optional[CoreClaims] = None) -> None:
        self.cores, self.threads, self._claims = set(cores), threads, claims
        self._libraries: List[Library] = []
        self._before: List[Tuple[Library, int]] = []  # what to restore
        self._affinity: Optional[Set[int]] = None
        self.look()

    def look(self) -> None:
        """Find the BLAS and OpenMP libraries, again after more have been loaded."""
        if self.threads is not None:
            self._libraries = loaded_libraries()

    def release(self) -> None:
        """Let other programs have the cores. May be called again."""
        if self._claims is not None:
            self._claims.release()

    def __enter__(self) -> None:
        self._restore()  # if an interrupt kept it from being done
        try:
            if self.cores:
                self._affinity = os.sched_getaffinity(0)
                if self._affinity != self.cores:
                    confine(self.cores)
            for library in self._libraries:
                before = library.get_num_threads()
                if before != self.threads:
                    self._before.append((library, before))
                    library.set_num_threads(self.threads)
        except BaseException:
            self._restore()
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            self._restore()
        except BaseException:  # an interrupt: what is left
            self._restore()
            raise

    def _restore(self) -> None:
        while self._before:
            library, before = self._before[-1]
            library.set_num_threads(before)
            self._before.pop()
        if self._affinity is not None:
            if self._affinity != self.cores:
                confine(self._affinity)
            self._affinity = None
