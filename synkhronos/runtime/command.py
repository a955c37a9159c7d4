"""Commands: what every rank does together, pickled once and executed everywhere in the same way.

There is one path::

    master                                 every rank, the master included
    ------                                 -------------------------------
    Session.run(command) -- Envelope --->  RankContext.execute(envelope)
                                               forget what the program has dropped
                                               command.run(context)
                         <-- Answer -----  result, error, or given up
    command.finish(results, context)

All ranks execute the same command, each with its own context. A command may look at ``context.rank == context.root``
to decide *values* (who supplies, who keeps), never to decide *which calls are made*: two ranks that disagree on those
are a deadlock.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

if TYPE_CHECKING:
    from ..memory.handles import Handle
    from .context import RankContext
    from .news import News


class Amounts(NamedTuple):
    """What a command was about, as a profile has it; -1 for what is not known.

    Attributes
    ----------
    kind : {"function", "steps", "collective", "other"}
    name : str
        Of the function, or of the collective.
    rows : int
        That this rank took.
    nbytes, arrays : int
        Of a collective: this rank's values, together, and how many. ``arrays`` of many steps: how many those are.
    """

    kind: str
    name: str
    rows: int = -1
    nbytes: int = 0
    arrays: int = 0


class Command(ABC):
    """What every rank does together. Its fields are few, small, picklable, and do not change once it has been run."""

    #: The command in an envelope with nothing else, pickled; see `freeze`.
    frozen: Optional[bytes] = None
    #: Whether ranks count steps in the control block: a deadline begins with the last one, and errors say how many.
    has_steps = False
    #: What ranks on several hosts count in the words of steps meanwhile, as the log says it, if it takes long.
    counts = ""
    #: Whether `synkhronos.traffic` counts it.
    is_counted = False
    #: Whether the command can be repeated if a rank dies in it.
    repeats = True
    #: The step about which `finish` has raised; by default an error is about the one that its rank was making.
    failed_step: Optional[int] = None

    @property
    def title(self) -> str:
        """How messages name the command, e.g. ``all_reduce``."""
        return type(self).__name__

    @abstractmethod
    def run(self, context: RankContext) -> Any:
        """Do this rank's part and return what the master needs of it.

        Every rank makes the same transport calls in the same order.
        """

    def reads(self, context: RankContext) -> Iterable[Any]:
        """Return the handles of what the program gives to the ranks: few bytes travel to other hosts with the command.

        They do not change before all ranks have answered.
        """
        return ()

    def finish(self, results: List[Any], context: RankContext) -> Any:
        """Return what `Session.run` returns; called on the master alone, when all ranks have succeeded.

        Parameters
        ----------
        results : list
            What `run` has returned, in rank order.
        context : RankContext
            The master's.
        """
        return results

    def details(self, context: RankContext) -> str:
        """Return what the log says of the command besides its title."""
        return ""

    def amounts(self, context: RankContext) -> Amounts:
        """Return what the command was about, in numbers, once this rank has executed it: for profiles."""
        return Amounts("other", self.title)

    def undeposited(self, failed: bool) -> Sequence[int]:
        """Return the variables whose values are still to be deposited after the command: see `deposits`."""
        return ()

    def refusal(self) -> str:
        """Return why the command cannot be repeated if a rank dies in it, as a clause; "" if it can."""
        return "" if self.repeats else f"{self.title} cannot be repeated"

    def freeze(self) -> None:
        """Pickle the command now, because it will be run again and again: on every rank, as here, the same object."""
        self.frozen = pickle.dumps(Envelope((), self, is_frozen=True), pickle.HIGHEST_PROTOCOL)

    def __getstate__(self) -> Dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "frozen"}


class Envelope(NamedTuple):
    """What is sent to every rank, and executed there as one thing.

    Attributes
    ----------
    forget : sequence of (str, int)
        The functions and shared variables that the program has dropped: ``("function", 3)``, ``("shared", 5)``.
    command : Command
    enclosed : sequence of (Handle, bytes)
        What the command reads of the program's memory, if that is little and there are other hosts.
    is_frozen : bool
        Whether the same envelope may come again and again.
    news : sequence of News
        New values of shared variables, which all ranks have before they run the command.
    """

    forget: Sequence[Tuple[str, int]]
    command: Command
    enclosed: Sequence[Tuple[Handle, bytes]] = ()
    is_frozen: bool = False
    news: Sequence[News] = ()


class Answer(NamedTuple):
    """A rank's answer to a command: its result, its error, or that it was told to give up.

    ``error`` is the exception itself on the rank where it was raised, and a `failures.Failure` once it has travelled.
    ``deposits`` says, if dead ranks are replaced, where values lie that have changed: see `deposits`.
    """

    rank: int
    result: Any = None
    error: Any = None
    aborted: bool = False
    deposits: Optional[Dict[int, Any]] = None


class Start(Command):
    """Answer, so that `fork` learns whether every rank works."""

    title = "start"

    def run(self, context: RankContext) -> None:
        pass


class Stop(Command):
    """End the ranks: each stops serving once it has answered."""

    title = "stop"
    repeats = False

    def run(self, context: RankContext) -> None:
        context.stopped = True


class DepositValues(Command):
    """Deposit the values of variables, which functions may change from now on, or have changed: see `deposits`.

    Parameters
    ----------
    numbers : list of int
        In the registry.
    """

    title = "deposit of values"

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def run(self, context: RankContext) -> None:
        context.commit_changes([number for number in self.numbers if number in context.shareds], None)
