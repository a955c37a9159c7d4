"""Healing: a rank that has died is replaced, and the command in which it died is repeated.

::

    session   a rank has died, or is stuck
    heal      can it be healed?                  `Healing.why_not`: else the session ends, and says why
              the others become idle             those that did not finish the command go back to where it began
              the keeper forks a new rank        in the place of the old one: its number, its memory, its words
              `Rejoin`                           it loads the functions, and takes the values that are deposited
    run       the command once more
"""

from __future__ import annotations

import logging
import math
from typing import Any, Collection, Dict, List, Sequence, Set, Tuple

from ..errors import SynkhronosError, WorkerTimeout
from ..memory.handles import Handle
from ..memory.pool import range_of
from .command import Answer, Command
from .deposits import Deposit, load

logger = logging.getLogger("synkhronos")


class Healing:
    """How many deaths a session can bear, and what the master knows of what the ranks have deposited.

    Parameters
    ----------
    most : int
        Deaths that are repaired.
    size : int
        Number of ranks.

    Attributes
    ----------
    deaths : list of str
        What has been repaired: who died, of what, and in which command.
    held : list of dict of int to Deposit
        By rank: where the values of its variables lie.
    undeposited : set of int
        The variables whose values are nowhere for now.
    """

    def __init__(self, most: int, size: int) -> None:
        self.most = most
        self.deaths: List[str] = []
        self.held: List[Dict[int, Deposit]] = [{} for _ in range(size)]
        self.undeposited: Set[int] = set()
        self._of_command: Dict[int, str] = {}  # by rank: deaths in the command in progress

    def __repr__(self) -> str:
        return f"Healing({len(self.deaths)} of {self.most} deaths)"

    def begin(self) -> None:
        """Begin with a command that was not tried before."""
        self._of_command = {}

    def note(self, answers: Sequence[Answer]) -> None:
        """Note what the answers of ranks say about deposits."""
        for answer in answers:
            if answer.deposits:
                self.held[answer.rank].update(answer.deposits)

    def set_deposited(self, numbers: Sequence[int], are_deposited: bool) -> None:
        """Note that the values of variables are deposited on all ranks, or that some are nowhere for now."""
        (self.undeposited.difference_update if are_deposited else self.undeposited.update)(numbers)

    def forget(self, thing: Tuple[str, int]) -> None:
        """Forget a function or a variable that the program has dropped."""
        kind, number = thing
        if kind == "shared":
            self.undeposited.discard(number)
            for of_rank in self.held:
                of_rank.pop(number, None)

    def ranges(self, rank: int) -> List[Tuple[int, int]]:
        """Return the ranges of a rank's pool in which there are deposits."""
        handles = [each for each in self.held[rank].values() if isinstance(each, Handle)]
        return [range_of(handle) for handle in handles if math.prod(handle.shape)]

    def common_value(self, number: int, pools: Any) -> Any:
        """Return what is deposited of a variable that is the same on all ranks; on the host, not to be written to."""
        deposit = next(of_rank[number] for of_rank in self.held if number in of_rank)  # the master has none
        return pools.attach(deposit) if isinstance(deposit, Handle) else load(deposit)

    def why_not(
        self, command: Command, dead: Collection[int], sent: bool, context: Any, killed: Collection[int] = ()
    ) -> str:
        """Return why the session cannot go on after the death of these ranks, as a clause; "" if it can.

        Those that were ``killed`` from outside may be so again; what ends by itself would do it in each repetition.
        """
        if len(self.deaths) + len(dead) > self.most:
            now = f", and now it is {len(dead)} at once" if len(dead) > 1 else ""
            return f"{len(self.deaths)} of at most {self.most} deaths have been repaired before{now}"
        for rank in dead:
            if sent and rank in self._of_command and rank not in killed:
                return "it is the second time in this command; the first time " + self._of_command[rank]
        if not dead:
            return "no rank is missing any more"
        if command.refusal():
            return command.refusal()
        if context.started or context.begun:
            return "the result of an all_reduce(wait=False) is under way, of which the rank had its part"
        if context.errors:
            return "the rank had errors of an all_reduce(feedback=True), which nobody else has: keep them in variables"
        if self.undeposited:
            names = ", ".join(context.name_of([number])(0) for number in sorted(self.undeposited))
            return f"its values of {names} were not in shared memory"
        return ""

    def repaired(
        self, deaths: Sequence[SynkhronosError], by_itself: Collection[int], command: Command, sent: bool, took: float
    ) -> None:
        """Note deaths that have been repaired, and say so in the log.

        Parameters
        ----------
        deaths : sequence of SynkhronosError
            What would have been raised, for each; the first are those in the command.
        by_itself : collection of int
            The ranks that nobody has killed.
        command : Command
        sent : bool
            Whether the ranks had been given it.
        took : float
            Seconds.
        """
        said = [self._text(error) for error in deaths]
        self.deaths += said
        if sent:
            self._of_command.update(dict.fromkeys(by_itself, said[0]))
        logger.warning(
            "%s: another process has taken its place, %.3g s later, and %s is repeated (%d of %d deaths)",
            "; ".join(dict.fromkeys(said)),
            took,
            command.title,
            len(self.deaths),
            self.most,
        )

    @staticmethod
    def _text(error: SynkhronosError) -> str:
        what = str(error).split("; the session is closed")[0]
        return f"rank {error.rank} has not answered: {what}" if isinstance(error, WorkerTimeout) else what
