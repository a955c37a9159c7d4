"""Healing: replacement of a dead rank, and repetition of the command that its death interrupted.

::

    session   a rank has died, or is stuck
    heal      can it be replaced?                `Healing.refusal`; if not, the session ends with the reason
              the other ranks become idle        they undo the command, except for completed steps
              a standby process takes its place  with the old rank's number, memory and control words
              `Rejoin`                           the others undo completed steps; the new one loads functions, deposits
    run       the command is repeated
"""

from __future__ import annotations

import logging
import math
from typing import Any, Collection, Dict, Iterable, List, Sequence, Set, Tuple

from ..errors import SynkhronosError, WorkerTimeout
from ..memory.handles import Handle
from ..memory.pool import range_of
from .command import Answer, Command
from .deposits import Deposit, load

logger = logging.getLogger("synkhronos")


class Healing:
    """The maximum number of dead ranks that a session replaces (``most``), and the master's record of all deposits.

    ``deaths`` describes the deaths of replaced ranks. ``deposits_by_rank[rank]`` maps variables to a rank's deposits.
    ``unsaved`` contains the numbers of variables that are currently not deposited.
    """

    def __init__(self, most: int, size: int) -> None:
        self.most = most
        self.deaths: List[str] = []
        self.deposits_by_rank: List[Dict[int, Deposit]] = [{} for _ in range(size)]
        self.unsaved: Set[int] = set()
        self._of_command: Dict[int, str] = {}  # by rank: deaths in the command in progress

    def __repr__(self) -> str:
        return f"Healing(deaths={len(self.deaths)}, most={self.most})"

    def begin(self) -> None:
        self._of_command = {}

    def record_deposits(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if answer.deposits:
                self.deposits_by_rank[answer.rank].update(answer.deposits)

    def set_deposited(self, numbers: Sequence[int], are_deposited: bool) -> None:
        """Record that variables are deposited on all ranks, or that they are currently not deposited."""
        (self.unsaved.difference_update if are_deposited else self.unsaved.update)(numbers)

    def forget(self, thing: Tuple[str, int]) -> None:
        kind, number = thing
        if kind == "shared":
            self.unsaved.discard(number)
            for of_rank in self.deposits_by_rank:
                of_rank.pop(number, None)

    def ranges(self, rank: int, copies: Iterable[Handle] = ()) -> List[Tuple[int, int]]:
        """Return the ranges of a rank's pool that contain deposits, or these ``copies`` of common memory."""
        found = self.deposits_by_rank[rank].values()
        handles = {*copies, *[each for each in found if isinstance(each, Handle) and each.pool == rank]}
        return [range_of(handle) for handle in handles if math.prod(handle.shape)]

    def common_value(self, number: int, pools: Any) -> Any:
        """Return the deposited value, in host memory, of a variable that is equal on all ranks; do not write to it."""
        deposits = [of_rank[number] for of_rank in self.deposits_by_rank if number in of_rank]  # the master has none
        deposit = min(deposits, key=pools.is_far)
        return pools.attach(deposit) if isinstance(deposit, Handle) else load(deposit)

    def refusal(
        self, command: Command, dead: Collection[int], sent: bool, context: Any, killed: Collection[int] = ()
    ) -> str:
        """Return why the session cannot continue after the death of these ranks, as a clause; "" if it can.

        A rank that ended on its own would probably do so again, unlike a rank that was ``killed`` from outside.
        """
        if len(self.deaths) + len(dead) > self.most:
            now = f", and {len(dead)} more died together" if len(dead) > 1 else ""
            return f"ranks replaced so far: {len(self.deaths)} of at most {self.most}{now}"
        for rank in dead:
            if sent and rank in self._of_command and rank not in killed:
                return "it died for the second time in this command; the first time, " + self._of_command[rank]
        if not dead:
            return "no rank is missing"
        if command.refusal():
            return command.refusal()
        for kept in context.all_kept():
            if kept.loss:
                return str(kept.loss)
        if self.unsaved:
            names = ", ".join(context.name_of([number], 0) for number in sorted(self.unsaved))
            return f"its values of {names} were not in shared memory"
        return ""

    def repaired(
        self, deaths: Sequence[SynkhronosError], by_itself: Collection[int], command: Command, sent: bool, took: float
    ) -> None:
        """Record the replacement of ranks and log it.

        ``deaths`` are the errors that would have been raised, in order. Ranks in ``by_itself`` were not killed from
        outside. ``sent`` states whether ranks had received the command. The replacement took ``took`` seconds.
        """
        said = [self._text(error) for error in deaths]
        self.deaths += said
        if sent:
            self._of_command.update(dict.fromkeys(by_itself, said[0]))
        logger.warning(
            "%s: the rank was replaced after %.3g s, and %s is repeated (deaths: %d of at most %d)",
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
