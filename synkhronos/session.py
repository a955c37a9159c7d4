"""The session: the ranks that run together from `fork` to `close`, and the way commands reach them."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .command import Ack, Command, execute
from .context import RankContext
from .control_block import ControlBlock
from .errors import Aborted, RemoteTraceback, StateError, SynkhronosError, WorkerDied, WorkerError, WorkerTimeout
from .launchers.base import Launcher
from .launchers.channel import MasterEnd
from .launchers.obituary import describe_end, describe_state
from .launchers.rank import Failure, Stop, decode
from .placement import MasterPlacement
from .rendezvous import Patience, Rendezvous
from .shared_array import Pool, PoolMap
from .transports.shared_memory import SharedMemoryTransport

logger = logging.getLogger("synkhronos")

#: Seconds that the ranks are given to answer after an interrupt, and to end after `close`, before they are killed.
GRACE = 2.5

#: Seconds of waiting after which a line in the log says who is waited for.
WARN_AFTER = 60.0


class Session:
    """Ranks that execute commands together.

    Parameters
    ----------
    size, root : int
        Number of ranks, and the master's rank.
    launcher : Launcher
        Has started the others.
    block : ControlBlock
        Where they meet.
    pool : Pool
        The master's memory.
    pools : dict of int to Pool or descriptor
        The memory of every rank, by the pools' idents.
    patience : Patience
        How ranks wait for each other.
    placement : MasterPlacement
        Confines the master while it executes.
    timeout : float, optional
        Seconds that a command may take.
    profile : str, optional
        Where to write the master's cProfile file.
    """

    def __init__(self, size: int, root: int, launcher: Launcher, block: ControlBlock, pool: Pool,
                 pools: Dict[int, Any], patience: Patience, placement: MasterPlacement,
                 timeout: Optional[float] = None, profile: Optional[str] = None) -> None:
        self.size, self.root, self.launcher, self.block = size, root, launcher, block
        self.timeout, self.placement = timeout, placement
        self.others = [rank for rank in range(size) if rank != root]
        self.pool, self.pools = pool, PoolMap()
        for ident, each in pools.items():
            self.pools.add(ident, each)
        rendezvous = Rendezvous(block, root, root, self._watch_meeting, patience)
        self.context = RankContext(rendezvous, self.pool, self.pools,
                                   SharedMemoryTransport(rendezvous, self.pool, self.pools))
        self.channel = MasterEnd(block, self.others, self.pool, self.pools, patience)
        self.catalogue: Any = None  # what the ranks hold; see functions.distribute
        self.closed: Optional[str] = None  # why, once it is
        #: Held while a command runs; hold it to prepare one in memory that calls have in common.
        self.lock = threading.RLock()
        self._running = False
        self._forget: List[Tuple[str, int]] = []  # what the ranks are to drop with the next command
        self._number = 0
        self._title = "nothing"
        self._deadline = self._warn = float("inf")
        self._began = 0.0
        self._profile_path, self._profile = profile, None
        if profile is not None:
            import cProfile

            self._profile = cProfile.Profile()

    def __repr__(self) -> str:
        return "Session(size=%d, root=%d, %s, %d commands)" % (
            self.size, self.root, "closed: " + self.closed if self.closed else "open", self._number)

    # -- running commands ----------------------------------------------------------------------------------------

    def run(self, command: Command, timeout: Optional[float] = None) -> List[Any]:
        """Have every rank execute the command; return their results in rank order.

        Parameters
        ----------
        command : Command
            What to do.
        timeout : float, optional
            Seconds; the session's own by default.

        Raises
        ------
        WorkerError
            Where it failed on another rank. Where it failed on the master, its own exception is raised.
        WorkerDied, WorkerTimeout
            Where a rank ended, or did not answer in time. The session is closed then.
        StateError
            Where the session is closed, or this thread is inside a command already.
        """
        with self.lock:  # other threads wait here; this one passes, also when it should not
            self.check()
            self._running = True
            try:
                return self._run(command, self.timeout if timeout is None else timeout)
            finally:
                self._running = False

    def check(self) -> None:
        """Raise `StateError` where no command can be run: the session is closed, or one runs. Call with the lock."""
        if self._running:
            raise StateError("a synkhronos call was made while another one is in progress in this thread (from a "
                             "signal handler, a finalizer or an Op?): make it after that one has returned")
        if self.closed:
            raise StateError("the session is closed (%s): call synkhronos.fork() again" % self.closed)

    def _run(self, command: Command, timeout: Optional[float]) -> List[Any]:
        self._title, number = command.title, self._number + 1
        self._check_alive(number)
        if self.catalogue is not None:
            self._forget += self.catalogue.sweep()
        payload = pickle.dumps((self._forget, command), pickle.HIGHEST_PROTOCOL)
        self._number = number
        self._began = time.monotonic()
        self._deadline = float("inf") if timeout is None else self._began + timeout
        self._warn = self._began + WARN_AFTER
        try:
            with self.placement:
                self.context.rendezvous.begin(number)
                self.channel.send(number, payload)
                self.context.forget(self._forget)
                self._forget = []
                own = self._execute(command)
                if own.error is not None and not isinstance(own.error, Exception):
                    raise own.error  # an interrupt: the others may be far from done
                acks = [own if rank == self.root else decode(self.channel.receive(rank, number, self._watch_answers))
                        for rank in range(self.size)]
        except SynkhronosError as error:
            self._end(str(error))
            raise
        except BaseException:
            self._recover(number)
            raise
        if any(ack.aborted or ack.error is not None for ack in acks):
            self.context.rendezvous.clear()
            self._raise(command, own, [ack for ack in acks if ack is not own and ack.error is not None])
        return [ack.result for ack in acks]

    def _execute(self, command: Command) -> Ack:
        if self._profile is None:
            return execute(command, self.context)
        return self._profile.runcall(execute, command, self.context)

    def _raise(self, command: Command, own: Ack, failed: Sequence[Ack]) -> None:
        """Raise what went wrong: the master's own exception, or the first other rank's as a `WorkerError`."""
        failures: Dict[int, Failure] = {ack.rank: ack.error for ack in failed}  # type: ignore[misc]
        if own.error is not None:
            summary = Failure(own.error).summary
            for rank, failure in failures.items():
                if failure.summary != summary:  # what every rank found wrong is told once
                    _add_note(own.error, "rank %d raised, too: %s" % (rank, failure.summary))
            raise own.error
        trouble = self._trouble()
        if trouble is not None:  # the master gave up because of it, while all others could still answer
            self._end(str(trouble))
            raise trouble
        rank = min(failures)
        message = "rank %d raised %s in %s" % (rank, failures[rank].summary, command.title)
        for other in sorted(failures)[1:]:
            message += "\nrank %d raised %s" % (other, failures[other].summary)
        error = WorkerError(message, rank, {r: failure.text for r, failure in failures.items()})
        raise error from RemoteTraceback("\n".join(
            "Traceback of rank %d:\n%s" % (r, failure.text) for r, failure in sorted(failures.items())))

    # -- watching ------------------------------------------------------------------------------------------------

    def _trouble(self) -> Optional[Exception]:
        """Return the error to raise where waiting for the command in progress has become pointless."""
        for rank in self.others:
            if self.block.ended[rank] and self.block.finished[rank] < self._number:
                return self._died(rank)
        self.launcher.check()
        now = time.monotonic()
        if now > self._deadline:
            return self._late()
        if now > self._warn:
            self._warn = now + WARN_AFTER
            logger.warning("waiting for rank(s) %s in %s, since %.0f s", ", ".join(map(str, self._missing())),
                           self._title, now - self._began)
        return None

    def _missing(self) -> List[int]:
        """Return the ranks that have neither answered nor arrived where the master waits."""
        here = self.context.rendezvous.current
        missing = [rank for rank in self.others if self.block.finished[rank] < self._number]
        return [rank for rank in missing if self.block.arrived[rank] < here] or missing

    def _watch_meeting(self) -> None:
        if self._trouble() is not None:
            raise Aborted  # the answers tell why

    def _watch_answers(self) -> None:
        trouble = self._trouble()
        if trouble is not None:
            raise trouble

    def _check_alive(self, number: int) -> None:
        for rank in self.others:
            if self.block.ended[rank]:
                error = self._died(rank)
                self._end(str(error))
                raise error
        self.launcher.check()

    def _died(self, rank: int) -> WorkerDied:
        status, pid = self.block.status[rank], self.launcher.pid(rank)
        return WorkerDied("rank %d (pid %d) %s in %s; the session is closed, synkhronos.fork() starts a new one" % (
            rank, pid, describe_end(status), self._title), rank, pid, status)

    def _late(self) -> WorkerTimeout:
        missing = self._missing()
        states = "\n".join("rank %d (pid %d): %s" % (rank, self.launcher.pid(rank), describe_state(
            self.launcher.pid(rank))) for rank in missing)
        return WorkerTimeout("%s did not finish within %.6g s; the session is closed, synkhronos.fork() starts a new "
                             "one. Not there:\n%s" % (self._title, self._deadline - self._began, states),
                             missing[0] if missing else self.root)

    # -- ending --------------------------------------------------------------------------------------------------

    def _recover(self, number: int) -> None:
        """After an interrupt in the middle of a command: make the ranks idle again, or end them."""
        done = False
        try:
            if self.block.command_number < number:  # it was not sent
                done = True
                return
            self.context.abort()
            self._deadline = time.monotonic() + GRACE
            for rank in self.others:
                self.block.commands[rank].release()  # the interrupt may have come before this rank was told
            for rank in self.others:
                self.channel.receive(rank, number, self._watch_answers)
            done = True
            self.context.settle()
            self.context.rendezvous.clear()
        except SynkhronosError:
            pass
        finally:
            if not done:
                self._end("%s was given up" % self._title)

    def _end(self, why: str) -> None:
        """End the session at once."""
        self.closed = self.closed or why.split(";")[0]
        self.context.abort()
        self.context.settle()
        self.launcher.kill()
        self._tidy()

    def close(self, why: str = "synkhronos.close() was called") -> None:
        """Tell the ranks to stop; kill those that do not. May be called twice."""
        if self.closed:
            return
        with self.lock:
            try:
                self.run(Stop(), GRACE)
            except SynkhronosError as error:
                logger.debug("while closing: %s", error)
            finally:
                if not self.closed:
                    self.closed = why
                    if not self.launcher.join(GRACE):
                        self.launcher.kill()
                    self._tidy()

    def _tidy(self) -> None:
        if self._profile is not None and self._profile_path is not None:
            self._profile.dump_stats(self._profile_path)
            self._profile = None
        for rank in self.others:
            self.pools.remove(rank)
        self.block.close()


def _add_note(error: BaseException, note: str) -> None:
    """Do what ``error.add_note`` does from Python 3.11 on; before, notes are kept but not shown."""
    notes = getattr(error, "__notes__", None)
    try:
        error.__notes__ = (notes or []) + [note]
    except AttributeError:  # an exception without a __dict__
        pass
