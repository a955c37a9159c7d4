"""Changes of a rank's values that all ranks make, or none does (docs/design.rst has a picture).

A command prepares new values next to the current ones and commits them at a barrier, usually its last one, which the
root decides. If dead ranks are replaced, the old values of variables that a function updates are kept until then. Steps
in one command apply their changes *tentatively*: at once, with an undo log until the next barrier is decided.
"""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

from ..errors import SynkhronosError
from ..sync.barrier import Barrier
from ..trace import point
from ..transports.base import Pending, Transport
from .command import Answer
from .deposits import Deposits
from .failures import encode
from .registry import Origin, SharedEntry

MAX_UNDO_STEPS = 16  #: Maximum number of steps that can be undone; the values from before each step are kept in memory.

Action = Callable[[], object]  #: Makes prepared values current. It must not fail, and may be called twice.
Setting = Tuple[SharedEntry, Any, Origin]  #: A variable, its new value, and the value's origin.


class Transaction:
    """The changes of the command that a rank executes; if ``is_open``, `settle` must end it.

    ``promises`` is `RankEnd.promise` on ranks other than the root, if there are several hosts or dead ranks are
    replaced. ``deposits`` stores old and new values if dead ranks are replaced. ``results`` keeps alive memory that the
    master may read until the next command.
    """

    def __init__(self, rank: int, barrier: Barrier, transport: Transport) -> None:
        self.rank, self.barrier, self.transport = rank, barrier, transport
        self.promises: Optional[Callable[[int, bytes], None]] = None
        self.deposits: Optional[Deposits] = None
        self.results: Any = None
        self.is_open = False
        self._empty = encode(Answer(rank))  # the answer of most collectives
        self._changes: Sequence[Action] = ()
        self._commitment: Optional[int] = None  # the barrier that decides the changes
        self._undo_log: List[Tuple[int, Action]] = []  # barriers that confirm a step, and the undo of the step

    def protect(self, entries: Sequence[SharedEntry], keeps: bool = False) -> None:
        """Keep the values of variables that a function is about to change, if dead ranks are replaced.

        With ``keeps``, an error leaves the new values in place, and only a death undoes the command.
        """
        if self.deposits is not None:
            self.is_open = True
            self.deposits.begin(entries, keeps)

    def deposit(self, entries: Sequence[SharedEntry]) -> None:
        """Deposit the variables' values; this ends the command."""
        assert self.deposits is not None
        self.is_open = True
        self.deposits.stage(entries)
        self.commit(self.deposits.apply, is_staged=True)

    # -- commits -------------------------------------------------------------------------------------------------

    def commit_values(
        self,
        entries: Sequence[SharedEntry],
        results: Pending,
        *changes: Action,
        others: Sequence[Setting] = (),
        same: bool = False,
        is_own: bool = False,
        result: Any = None,
    ) -> None:
        """Commit the results of a collective as values of variables, on all ranks or on none; this ends the command.

        In ``results``, None leaves this rank's value unchanged; with ``same`` all ranks have the same results. With
        ``is_own``, they are copies of this rank's values, so values that the program has borrowed stay in place.
        ``others`` are values that do not arrive through the transport; ``result`` is the command's return value.
        """
        for i, entry in enumerate(entries):
            if entry.on_device and results[i] is not None:  # complete on this rank
                results[i] = entry.engine.to_device(entry.reference(), results[i])
        if self.deposits is not None:
            self.is_open = True  # whatever fails from now on
            self.deposits.stage_results(entries, results, others)
            changes = (*changes, self.deposits.apply)
        origin = Origin.COMMON if same else Origin.OWN

        def change() -> None:
            for entry, result in zip(entries, results):
                if result is not None:
                    entry.common = result if self.transport.swap_in(entry.key, result) else None
                    if is_own and entry.borrowed is not None:
                        entry.borrowed.elsewhere = result
                    entry.set(result, origin)
                else:
                    entry.origin = origin
            for entry, value, of_value in others:
                entry.set(value, of_value)

        self.commit(change, *changes, result=result, is_staged=True)

    @point("commit")
    def commit(
        self, *changes: Action, result: Any = None, label: Optional[str] = None, is_staged: bool = False
    ) -> None:
        """Make changes on all ranks or on none, at a barrier.

        ``result`` is the return value of the command, which this commit ends. If ranks may differ in the number of
        their collectives, ``label`` names the commit, `Transport.agree` compares the labels, and the command continues.
        Unless ``is_staged``, the changes of protected values are made first, and the new values staged as deposits.
        """
        self.is_open = True
        if label is None:
            if self.deposits is not None and self.deposits.has_begun and not is_staged:
                for change in changes:
                    change()
                self.deposits.stage()
                changes = (self.deposits.apply,)
            if self.promises is not None:
                self.promise(result)
        self._changes, self._commitment = changes, self.barrier.current + 1
        if label is None:
            self.barrier.wait()
        else:
            try:
                self.transport.agree(label)
            except SynkhronosError:  # all ranks have arrived, but not all of them at this commit
                self._commitment = None
                raise
        self._make_or_undo()
        self.is_open = self.deposits is not None

    def promise(self, result: Any = None, ahead: int = 1) -> None:
        """Promise the command's result, which becomes valid if the next barrier completes.

        With ``ahead=2``, over several hosts, it is valid after the second barrier from now; nothing may fail between
        them. If all ranks do so, with None, the root decides both at its own commit, which saves a network round trip.
        If dead ranks are replaced, this has no effect, because the answer must contain the new deposits.
        """
        if ahead > 1 and self.deposits is not None:
            return
        number = self.barrier.current + ahead
        if self.promises is None:
            if ahead > 1:  # the root
                self.barrier.block.promised[self.rank] = number
        elif self.barrier.block.promised[self.rank] < number:  # otherwise promised ahead
            deposits = None if self.deposits is None else self.deposits.pending
            is_empty = result is None and deposits is None
            self.promises(number, self._empty if is_empty else encode(Answer(self.rank, result, deposits=deposits)))

    # -- steps ---------------------------------------------------------------------------------------------------

    @point("commit")
    def apply_tentatively(self, undo: Action, change: Action, label: str) -> None:
        """Make a change now, and undo it unless all ranks reach the next barrier: a commit without its own barrier.

        Used for steps inside one command, where ranks synchronize anyway; the last step must end with `commit`.
        ``undo`` must not fail, and may be called before the change is complete.
        """
        self.is_open = True
        self._undo_log.append((self.barrier.current + 1, undo))  # first, because Ctrl-C may arrive during the change
        change()
        if len(self._undo_log) >= MAX_UNDO_STEPS:  # a condition may skip the collectives of many steps
            self.commit(label=label)

    def drop_undo_log(self) -> None:
        """Drop the undo log of changes that a later barrier has confirmed, to free the memory of old values."""
        if self._undo_log and self.barrier.is_complete(self._undo_log[-1][0]):
            self._undo_log = []

    # -- the end -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """End the command: make changes that were decided, and undo all other changes."""
        self._make_or_undo()
        if self.deposits is not None:
            if self.deposits.has_begun:
                self.deposits.restore()
            self.deposits.pending = {}
        self.is_open = False

    @point("commit")
    def _make_or_undo(self) -> None:
        if self._commitment is not None:
            if self.barrier.is_complete(self._commitment):
                for change in self._changes:
                    change()
            self._commitment, self._changes = None, ()
        for number, undo in reversed(self._undo_log):
            if not self.barrier.is_complete(number):
                undo()
        self._undo_log = []
