"""Interface of launchers, which start and end the ranks of a session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..errors import SynkhronosError
from ..memory.attach import PoolMap
from ..sync.hosts import Hosts
from ..sync.link import Link
from ..sync.rendezvous import Rendezvous

if TYPE_CHECKING:
    from .context import RankContext

Ranges = Sequence[Tuple[int, int]]  #: First byte and size of each range of a pool.


class RankConfig(NamedTuple):
    """Start-up configuration of one rank; small and picklable."""

    rank: int
    size: int
    root: int
    hosts: Hosts
    cores: List[int]  # CPU affinity; empty if the rank is not pinned
    threads: int  # number of BLAS and OpenMP threads
    policy: Any  # `WaitPolicy`; None until the rank's cores are chosen
    path: List[str]  # sys.path
    directory: str  # working directory; empty if it has been deleted
    environment: Dict[str, str]
    profile: Optional[str]  # path of the cProfile file written at the end, if any
    keep_heap: bool = True  # whether the C library keeps freed heap memory
    meeting: Optional[Rendezvous] = None  # rendezvous with the root, if this rank is its host's leader
    promises: bool = False  # whether answers are promised, which spares several hosts a round trip
    heals: bool = False  # whether dead ranks are replaced
    taken: Ranges = ()  # for a replacement: ranges of the old rank's pool that must be kept


class Launcher(ABC):
    """Starts and ends all ranks of a session except the master, and reports how they ended.

    Ranks serve commands until they are stopped or the master ends. ``links`` are the root's links to the other hosts.
    """

    links: Sequence[Link] = ()
    #: Whether the master may execute commands for all ranks (`Command.run_together`), with their `all_contexts`.
    has_contexts = False
    runs_python = True  #: Whether ranks can run operations that are written in Python.

    @abstractmethod
    def start(self, configs: List[RankConfig], block: Any, pools: Dict[int, Any]) -> None:
        """Start one rank per config; return once all ranks exist, even if some are not ready yet."""

    @abstractmethod
    def is_alive(self) -> bool:
        """Return whether the launcher can still detect the end of a rank."""

    def error(self) -> SynkhronosError:
        """Return the error to raise if `is_alive` is false."""
        return SynkhronosError("the launcher has ended")

    def all_contexts(self, own: RankContext) -> List[RankContext]:
        """Return the contexts of all ranks, which wait for commands, in rank order; ``own`` is the caller's context."""
        return [own]

    def admit(self, function: Any) -> None:  # noqa: B027, most launchers run every function
        """Raise an error if the ranks cannot run a function, which the program has just built."""

    def engine(self, engine: Any) -> Any:
        """Return the engine that the ranks use for functions and variables of ``engine``; raise if there is none."""
        return engine

    @abstractmethod
    def pid(self, rank: int) -> int:
        """Return the id of a rank's process or thread."""

    def host(self, rank: int) -> str:
        """Return the name of a rank's host; "" if there is only one host."""
        return ""

    @abstractmethod
    def fatal_error(self, rank: int) -> str:
        """Return the error, usually a traceback, that ended a rank outside commands; "" if there is none."""

    @abstractmethod
    def inspect(self, ranks: Iterable[int], seconds: float) -> Dict[int, str]:
        """Return each rank's activity as text, including its Python stacks if it reports them within ``seconds``.

        With several hosts, the text of a rank that is known to wait for other ranks is `WAITS`.
        """

    @abstractmethod
    def forward(self, idle: bool = False) -> None:
        """Forward the ranks' output to the master's streams; ``idle`` means that no rank is executing a command."""

    @abstractmethod
    def write_if_killed(self, write: Callable[[Sequence[memoryview]], object]) -> None:
        """Register a picklable function that another process calls if the master is killed.

        Its argument is `ControlBlock.spans`. It is not called if no process of the session outlives the master.
        """

    def release(self, own: RankContext) -> None:  # noqa: B027, most launchers have no values of the program
        """At the end of the session, return the values of the program's variables to the host's memory."""

    @abstractmethod
    def join(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until all ranks have ended; return whether they have."""

    def end(self, ranks: Iterable[int]) -> None:
        """Kill these ranks, if they are alive; wait until they are gone, and nothing writes into their memory."""
        raise NotImplementedError("this launcher does not replace ranks")

    def replace(self, taken: Mapping[int, Ranges], pools: PoolMap) -> Mapping[int, Link]:
        """Start another process in place of each of these ranks, which have ended.

        ``taken`` maps a rank to the ranges of its old memory that must be kept (see `Pool`). Return new links by rank,
        to the ranks that lead another host; raise `WorkerDied` if such a rank ends before it has connected.
        """
        raise NotImplementedError("this launcher does not replace ranks")

    @abstractmethod
    def kill(self) -> None:
        """Kill all ranks immediately, and wait at most a few seconds until they are gone; idempotent."""
