"""What a launcher must promise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ..errors import SynkhronosError
from ..memory.attach import PoolMap
from ..sync.hosts import Hosts
from ..sync.link import Link
from ..sync.meeting import Meeting


class RankConfig(NamedTuple):
    """What a rank is told at its start. Small and picklable."""

    rank: int
    size: int
    root: int
    cores: List[int]  # to run on; empty if the rank is not pinned
    threads: int  # of BLAS and OpenMP
    budget: int  # cores that all ranks share
    path: List[str]  # sys.path
    directory: str  # working directory; empty if it has been deleted
    environment: Dict[str, str]
    profile: Optional[str]  # where to write a cProfile file at the end
    keep_heap: bool = True  # whether the C library's heap is to keep what is freed
    hosts: Optional[Hosts] = None  # if the ranks are on several
    meeting: Optional[Meeting] = None  # where the root waits for this rank, if it is to speak for its host
    heals: bool = False  # whether a rank that has died is replaced
    taken: Sequence[Tuple[int, int]] = ()  # what is to be kept of the memory of the rank whose place this one takes


class Launcher(ABC):
    """Starts the ranks of one session other than the master, knows how they ended, and ends them.

    The ranks find the session's memory by what `start` hands them, serve commands until they are told to stop, and
    never outlive the master.

    Attributes
    ----------
    links : sequence of Link
        If there are several hosts, those of the root, in the order of the other hosts.
    """

    links: Sequence[Link] = ()

    @abstractmethod
    def start(self, configs: List[RankConfig], block: Any, pools: Dict[int, Any]) -> None:
        """Start one rank per config; return when all exist (they need not be ready)."""

    @abstractmethod
    def is_alive(self) -> bool:
        """Return whether the launcher itself can still see how ranks end."""

    def error(self) -> SynkhronosError:
        """Return what to raise if it cannot."""
        return SynkhronosError("the launcher has ended")

    @abstractmethod
    def pid(self, rank: int) -> int:
        """Return the process id of a rank."""

    def host(self, rank: int) -> str:
        """Return the name of the host on which a rank is; "" if there is only this one."""
        return ""

    @abstractmethod
    def fatal_error(self, rank: int) -> str:
        """Return the traceback of a rank that ended because it could not start or broke; "" otherwise."""

    @abstractmethod
    def inspect(self, ranks: Iterable[int], seconds: float) -> Dict[int, str]:
        """Return what ranks are doing: the Python stacks of those that can answer in that time."""

    @abstractmethod
    def forward(self, idle: bool = False) -> None:
        """Pass on what ranks have printed; ``idle`` if none of them is in a command."""

    @abstractmethod
    def outlive(self, write: Callable[[Sequence[memoryview]], object]) -> None:
        """Have a process that outlives the master call this with the ranks' rings if the master is killed.

        Parameters
        ----------
        write : callable
            It is pickled. If there is no such process it is never called.
        """

    @abstractmethod
    def join(self, seconds: float) -> bool:
        """Wait at most so long until all ranks have ended; return whether they have."""

    def end(self, ranks: Iterable[int]) -> None:
        """Kill some ranks, if they live, and wait until they are gone."""
        raise NotImplementedError("this launcher does not replace ranks")

    def replace(self, rank: int, taken: Sequence[Tuple[int, int]], pools: PoolMap) -> None:
        """Start another rank in the place of one that has ended.

        Parameters
        ----------
        rank : int
        taken : sequence of (int, int)
            What it keeps of the memory of the one before: see `Pool`.
        pools : PoolMap
            The memory of all ranks, as the master knows it.
        """
        raise NotImplementedError("this launcher does not replace ranks")

    @abstractmethod
    def kill(self) -> None:
        """End all ranks at once, whatever they are doing, and wait until they are gone. May be called again."""
