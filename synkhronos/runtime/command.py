"""Commands: operations of all ranks, pickled once and executed on every rank in the same way.

::

    master                                 every rank, the master included
    Session.run(command) -- Envelope --->  RankContext.execute(envelope)
                                               drop objects that the program has dropped
                                               command.run(context)
                         <-- Answer -----  result, error, or aborted
    command.finish(results, context)

A command may use ``context.rank == context.root`` to decide *values* (which rank supplies or keeps them), never to
decide *which transport calls are made*. Otherwise, a rank would wait at a barrier that another rank never reaches.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

if TYPE_CHECKING:
    from ..memory.handles import Handle
    from ..selection import RowRange
    from .context import RankContext
    from .news import News


SHORT_S = 1e-3  #: Maximum duration of a short command, in seconds.


class CommandStats(NamedTuple):
    """Statistics of a command for profiles; ``rows`` is -1 if unknown.

    ``kind`` is "function", "steps", "collective" or "other"; ``rows`` counts rows processed by this rank. ``nbytes``
    and ``arrays`` are the size and number of this rank's values in a collective; for "steps", ``arrays`` counts steps.
    """

    kind: str
    name: str
    rows: int = -1
    nbytes: int = 0
    arrays: int = 0


class Command(ABC):
    """An operation of all ranks, with few, small, picklable fields; after its first run, only `rows` may change."""

    frozen: Optional[bytes] = None  #: The command pickled in an otherwise empty envelope; see `freeze`.
    #: The rows that a call selects: the only part of a frozen command that may differ between its runs.
    rows: Optional[RowRange] = None
    #: Whether ranks count steps in the control block; each step restarts the timeout, and errors report the counts.
    has_steps = False
    #: Unit that ranks count instead of steps, for the log of slow commands, e.g. "functions ready".
    counts = ""
    #: Whether the last run took less than `SHORT_S`; see `host.affinity`.
    is_short = False
    is_counted = False  #: Whether `synkhronos.traffic` counts the command.
    repeats = True  #: Whether the command can be repeated if a rank dies during it.
    #: The step of an error in `finish`; None: the current step of the rank that failed.
    failed_step: Optional[int] = None

    @property
    def title(self) -> str:
        """The command's name in messages, e.g. ``all_reduce``."""
        return type(self).__name__

    @abstractmethod
    def run(self, context: RankContext) -> Any:
        """Do this rank's part and return the result that the master needs; all ranks make the same transport calls."""

    def run_together(self, contexts: Sequence[RankContext], root: int) -> Optional[List[Any]]:
        """Execute the command for all ranks in this thread, and return their results; changes values last.

        Called instead of `run` if `Launcher.has_contexts`. Return None, and do nothing, if the ranks must execute the
        command themselves.
        """
        return None

    def reads(self, context: RankContext) -> Iterable[Any]:
        """Return handles of the program's data that ranks read; small data is sent to other hosts with the command.

        The data must not change before all ranks have answered.
        """
        return ()

    def finish(self, results: List[Any], context: RankContext) -> Any:
        """Compute the result of `Session.run` from all ranks' results; called on the master if all ranks succeed."""
        return results

    def details(self, context: RankContext) -> str:
        """Return details of the command for the log, e.g. variables and op."""
        return ""

    def amounts(self, context: RankContext) -> CommandStats:
        """Return statistics for profiles, after this rank has executed the command."""
        return CommandStats("other", self.title)

    def unsaved(self, failed: bool) -> Sequence[int]:
        """Return the numbers of variables to deposit after the command succeeded or ``failed``: see `deposits`."""
        return ()

    def refusal(self) -> str:
        """Return why the command cannot be repeated if a rank dies during it, as a clause; "" if it can."""
        return "" if self.repeats else f"{self.title} cannot be repeated"

    def freeze(self) -> None:
        """Pickle the command now, because it will run many times; each rank can then reuse its unpickled copy."""
        self.frozen = pickle.dumps(Envelope((), self, is_frozen=True), pickle.HIGHEST_PROTOCOL)

    def __getstate__(self) -> Dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("frozen", "is_short")}


class Envelope(NamedTuple):
    """A message to every rank: a command and everything that must precede it.

    ``forget`` lists objects that the program has dropped: ``("function", 3)``, ``("shared", 5)``. ``enclosed`` is small
    data that the command reads, for other hosts. An ``is_frozen`` envelope may be sent many times. ``news`` are new
    values of shared variables, set before the command runs.
    """

    forget: Sequence[Tuple[str, int]]
    command: Command
    enclosed: Sequence[Tuple[Handle, bytes]] = ()
    is_frozen: bool = False
    news: Sequence[News] = ()


class Answer(NamedTuple):
    """A rank's answer to a command: a result, an error or, if the command was aborted, neither.

    ``error`` is the exception itself on the rank where it was raised, and a `failures.Failure` after transmission.
    If dead ranks are replaced, ``deposits`` maps changed variables' numbers to their new deposits: see `deposits`.
    """

    rank: int
    result: Any = None
    error: Any = None
    aborted: bool = False
    deposits: Optional[Dict[int, Any]] = None


class CheckStart(Command):
    """Do nothing; `fork` uses the answers to check that every rank works."""

    title = "start"

    def run(self, context: RankContext) -> None:
        pass


class Stop(Command):
    """Stop every rank once it has answered."""

    title = "stop"
    repeats = False

    def run(self, context: RankContext) -> None:
        context.stopped = True
        context.transport.close()


class DepositValues(Command):
    """Deposit the values of variables that functions have changed, or may change from now on: see `deposits`."""

    title = "deposit of values"

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def run(self, context: RankContext) -> None:
        shareds = context.registry.shareds
        context.transaction.deposit([shareds[number] for number in self.numbers if number in shareds])
