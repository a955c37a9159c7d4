"""Commands: what every rank does together, pickled once and executed everywhere in the same way.

There is one path: the master and the other ranks call the same `execute` with
the same command, each with its own context. A command may look at
``context.rank == context.root`` to decide *values* (who supplies, who keeps),
never to decide *which calls are made*: two ranks that disagree on those are a
deadlock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Optional

from ..errors import Aborted

if TYPE_CHECKING:
    from .context import RankContext


class Command(ABC):
    """What every rank does together. Fields are few, small and picklable."""

    @property
    def title(self) -> str:
        """How messages name the command, e.g. ``all_reduce of 'W'``."""
        return type(self).__name__

    @abstractmethod
    def run(self, context: RankContext) -> Any:
        """Do this rank's part and return what the master shall have of it.

        Every rank makes the same transport calls in the same order.
        """


class Answer:
    """A rank's answer to a command: its result, its error, or that it was told to give up."""

    __slots__ = ("rank", "result", "error", "aborted")

    def __init__(
        self, rank: int, result: Any = None, error: Optional[BaseException] = None, aborted: bool = False
    ) -> None:
        self.rank, self.result, self.error, self.aborted = rank, result, error, aborted

    def __repr__(self) -> str:
        what = "aborted" if self.aborted else f"error={self.error!r}" if self.error else f"result={self.result!r}"
        return f"Answer(rank={self.rank}, {what})"


def execute(command: Command, context: RankContext) -> Answer:
    """Run the command on this rank; never raises.

    Whatever goes wrong, KeyboardInterrupt and SystemExit included, is in the
    answer, and the peers that wait for this rank are freed.
    """
    try:
        return Answer(context.rank, command.run(context))
    except Aborted:
        context.abort()
        return Answer(context.rank, aborted=True)
    except BaseException as error:
        context.abort()
        return Answer(context.rank, error=error)
    finally:
        context.settle()
