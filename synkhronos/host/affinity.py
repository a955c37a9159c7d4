"""CPU affinity: each rank is pinned to its own cores; the master is pinned only while it executes a command.

Without pinning, the kernel often runs two ranks that wait for each other on one core, which halves the speed. Pinning
the master for a command takes 10 us. Before a short command, a master on one of its own cores is not pinned.

Programs on one machine must not use the same cores. So each program *claims* its cores with advisory locks on their
entries under /sys. The kernel releases these locks when the program ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from contextlib import suppress
from typing import Collection, Dict, List, Optional, Sequence, Set, Tuple

from .machine import usable_cores
from .threads import ThreadLibrary, loaded_libraries

_CORE = "/sys/devices/system/cpu/cpu%d"

_core_of_thread = ctypes.PyDLL(None).sched_getcpu  # takes 0.1 us


class CoreClaims:
    """Cores reserved for this program's ranks until `release`."""

    def __init__(self) -> None:
        self._held: Dict[int, int] = {}

    def claim(self, groups: int) -> List[List[int]]:
        """Claim the same number of cores for each of ``groups`` ranks; return one group of cores per rank.

        All groups are empty if too few cores are unclaimed; the kernel then schedules the ranks.
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
        """Release the cores. In a child that the user has forked, this closes only the child's descriptors."""
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()


def divided_cores(parts: int) -> List[List[int]]:
    """Divide the usable cores into parts, if possible of whole physical cores; all are empty if there are too few."""
    cores = _siblings_last(usable_cores())
    return [sorted(cores[part::parts]) if parts <= len(cores) else [] for part in range(parts)]


def _siblings_last(cores: Sequence[int]) -> List[int]:
    """Sort cores: the first hardware threads of all physical cores come before the second threads."""

    def is_second(core: int) -> bool:
        try:
            with open((_CORE % core) + "/topology/thread_siblings_list") as file:
                first = file.read().replace("-", ",").split(",")[0]
            return int(first) != core
        except (OSError, ValueError):
            return False

    return sorted(cores, key=lambda core: (is_second(core), core))


def confine(cores: Collection[int]) -> None:
    """Pin this thread, and the threads that it will start, to these cores; do nothing if the cores are unavailable."""
    if cores:
        with suppress(OSError):  # the container's cpuset, or the user's affinity, has changed
            os.sched_setaffinity(0, cores)


class MasterAffinity:
    """Limits the master to its cores and threads while it executes a command, between `begin` and `end`.

    Between commands, all cores and threads are available to the program. ``cores`` is empty if ranks are not
    pinned. If ``threads`` is None, BLAS and OpenMP are not limited. `release` releases ``claims``.
    """

    def __init__(self, cores: List[int], threads: Optional[int], claims: Optional[CoreClaims] = None) -> None:
        self.cores, self.threads, self._claims = set(cores), threads, claims
        self._libraries: List[ThreadLibrary] = []
        self._before: List[Tuple[ThreadLibrary, int]] = []  # thread counts to restore
        self._affinity: Optional[Set[int]] = None
        self.look()

    def look(self) -> None:
        """Detect the loaded BLAS and OpenMP libraries; call this again after more libraries have been loaded."""
        if self.threads is not None:
            self._libraries = loaded_libraries()

    def release(self) -> None:
        """Release the claimed cores; idempotent."""
        if self._claims is not None:
            self._claims.release()

    def begin(self, is_short: bool = False) -> None:
        """Set the limits. During a short command, a master that is already on one of its cores is not pinned."""
        if self._before or self._affinity is not None:
            self._restore()  # an interrupt prevented the last restore
        try:
            if self.cores and not (is_short and _core_of_thread() in self.cores):
                affinity = os.sched_getaffinity(0)
                if affinity != self.cores:
                    self._affinity = affinity
                    confine(self.cores)
            for library in self._libraries:
                before = library.get_num_threads()
                if before != self.threads:
                    self._before.append((library, before))
                    library.set_num_threads(self.threads)
        except BaseException:
            self._restore()
            raise

    def end(self) -> None:
        """Restore the state before `begin`; idempotent."""
        try:
            self._restore()
        except BaseException:  # an interrupt: restore the remaining settings
            self._restore()
            raise

    def _restore(self) -> None:
        while self._before:
            library, before = self._before[-1]
            library.set_num_threads(before)
            self._before.pop()
        if self._affinity is not None:
            confine(self._affinity)
            self._affinity = None
