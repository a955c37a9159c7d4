"""The session: the ranks that run together from `fork` to `close`, and the way commands reach them."""

from __future__ import annotations

import logging
import pickle
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..errors import Aborted, RemoteTraceback, StateError, SynkhronosError, WorkerDied, WorkerError, WorkerTimeout
from ..host.affinity import MasterAffinity
from ..host.signals import DeferredSignals
from ..memory.attach import PoolMap
from ..memory.pool import Pool
from ..sync.barrier import Barrier, WaitPolicy
from ..sync.control_block import ControlBlock
from ..transports.shared_memory import SharedMemoryTransport
from .channel import MasterEnd
from .command import Answer, Command, execute
from .context import RankContext
from .exit_status import describe_end
from .launcher import Launcher
from .serve import Failure, Stop, decode

logger = logging.getLogger("synkhronos")

#: Seconds that the ranks are given to answer after an interrupt, and to end after `close`, before they are killed.
GRACE_S = 2.5

#: Seconds that stuck ranks are given to tell where they are.
STACKS_TIMEOUT_S = 0.5

#: Seconds of waiting after which a line in the log says who is waited for.
WARN_AFTER_S = 60.0


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
    policy : WaitPolicy
        How ranks wait for each other.
    affinity : MasterAffinity
        Confines the master while it executes.
    timeout : float, optional
        Seconds that a command may take.
    profile : str, optional
        Where to write the master's cProfile file.
    seed, random
        How random streams begin; see `fork`.
    """

    def __init__(
        self,
        size: int,
        root: int,
        launcher: Launcher,
        block: ControlBlock,
        pool: Pool,
        pools: Dict[int, Any],
        policy: WaitPolicy,
        affinity: MasterAffinity,
        timeout: Optional[float] = None,
        profile: Optional[str] = None,
        seed: Optional[int] = None,
        random: str = "split",
    ) -> None:
        self.size, self.root, self.launcher, self.block = size, root, launcher, block
        self.timeout, self.affinity = timeout, affinity
        self.seed, self.random = seed, random
        self.others = [rank for rank in range(size) if rank != root]
        self.pool, self.pools = pool, PoolMap()
        for ident, each in pools.items():
            self.pools.add(ident, each)
        barrier = Barrier(block, root, root, self._watch_meeting, policy)
        self.context = RankContext(
            barrier, self.pool, self.pools, SharedMemoryTransport(barrier, self.pool, self.pools)
        )
        self.channel = MasterEnd(block, self.others, self.pool, self.pools, policy)
        self.catalogue: Any = None  # what the ranks hold; see functions.distribute
        self.closed: Optional[str] = None  # why, once it is
        #: Held while a command runs; hold it to prepare one in memory that calls have in common.
        self.lock = threading.RLock()
        self._running = False
        self._forget: List[Tuple[str, int]] = []  # what the ranks are to drop with the next command
        self._number = 0
        self._title = "nothing"
        self._updates: Sequence[str] = ()  # what the command in progress may have updated where it is interrupted
        self._deadline = self._warn = float("inf")
        self._trouble: Optional[SynkhronosError] = None  # why the command in progress was given up
        self._began = 0.0
        self._profile_path, self._profile = profile, None
        if profile is not None:
            import cProfile

            self._profile = cProfile.Profile()

    def __repr__(self) -> str:
        return (
            f"Session(size={self.size}, root={self.root}, "
            f"{('closed: ' + self.closed if self.closed else 'open')}, {self._number} commands)"
        )

    # -- running commands ----------------------------------------------------------------------------------------

    def run(self, command: Command, timeout: Optional[float] = None, updates: Sequence[str] = ()) -> List[Any]:
        """Have every rank execute the command; return their results in rank order.

        Parameters
        ----------
        command : Command
            What to do.
        timeout : float, optional
            Seconds; the session's own by default.
        updates : sequence of str
            The shared variables that each rank updates by itself, whatever becomes of the others.

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
            self._running, self._updates = True, updates
            try:
                return self._run(command, self.timeout if timeout is None else timeout)
            finally:
                self._running = False
                self._trouble = None  # it holds the frames it came through
                self.launcher.forward(idle=True)

    def check(self) -> None:
        """Raise `StateError` where no command can be run: the session is closed, or one runs. Call with the lock."""
        if self._running:
            raise StateError(
                "a synkhronos call was made while another one is in progress in this thread (from a "
                "signal handler, a finalizer or an Op?): make it after that one has returned"
            )
        if self.closed:
            raise StateError(f"the session is closed ({self.closed}): call synkhronos.fork() again")

    def _run(self, command: Command, timeout: Optional[float]) -> List[Any]:
        number = self._number + 1
        if self.catalogue is not None:
            self._forget += self.catalogue.sweep()
        payload = pickle.dumps((self._forget, command), pickle.HIGHEST_PROTOCOL)
        self._title, self._number = command.title, number
        self._began = time.monotonic()
        self._deadline = float("inf") if timeout is None else self._began + timeout
        self._warn = self._began + WARN_AFTER_S
        self._trouble = own = None
        try:
            self._check_idle()
            self.context.barrier.begin(number)
            self.channel.send(number, payload)
            with self.affinity:  # takes a while, in which the others begin, and finish
                if self._forget:
                    self.context.forget(self._forget)
                    self._forget = []
                own = self._execute(command)
            if own.error is not None and not isinstance(own.error, Exception):
                raise own.error  # an interrupt: the others may be far from done
            for rank in self.others:
                self.channel.wait(rank, number, self._watch_answers)
            answers = [own if rank == self.root else self._read(rank) for rank in range(self.size)]
        except _Trouble as trouble:
            self._note_others(trouble.error, own)
            self._end(str(trouble.error))
            cause = trouble.error.__cause__
            raise trouble.take() from cause
        except BaseException:
            self._recover(number)
            raise
        if any([answer.aborted or answer.error is not None for answer in answers]):
            self.context.barrier.clear()
            self._raise(command, own, [answer for answer in answers if answer is not own and answer.error is not None])
        return [answer.result for answer in answers]

    def _execute(self, command: Command) -> Answer:
        if self._profile is None:
            return execute(command, self.context)
        return self._profile.runcall(execute, command, self.context)

    def _read(self, rank: int) -> Answer:
        try:
            return decode(self.channel.read(rank))
        except Exception:  # out of unpickling a user's object, or out of a signal handler
            with DeferredSignals():
                try:
                    decode(self.channel.read(rank))
                except Exception as error:
                    return Answer(rank, error=Failure(error))  # type: ignore[arg-type]
            raise

    def _note_others(self, error: SynkhronosError, own: Optional[Answer]) -> None:
        """Add to the error that ends the session what else went wrong in the command."""
        if own is not None and own.error is not None:
            _add_note(error, f"the master raised, too: {Failure(own.error).summary}")
        for rank in self.others:
            if own is not None and self.block.finished[rank] >= self._number:
                failure = self._read(rank).error
                if failure is not None:
                    _add_note(error, f"rank {rank} raised, too: {failure.summary}")  # type: ignore[attr-defined]

    def _raise(self, command: Command, own: Answer, failed: Sequence[Answer]) -> None:
        """Raise what went wrong: the master's own exception, or the first other rank's as a `WorkerError`."""
        failures: Dict[int, Failure] = {answer.rank: answer.error for answer in failed}  # type: ignore[misc]
        if own.error is not None:
            summary = Failure(own.error).summary
            for rank, failure in failures.items():
                if failure.summary != summary:  # what every rank found wrong is told once
                    _add_note(own.error, f"rank {rank} raised, too: {failure.summary}")
            raise own.error
        if self._trouble is not None:  # the master gave up because of it, while all others could still answer
            self._note_others(self._trouble, own)
            self._end(str(self._trouble))
            raise self._trouble
        if not failures:
            self._end("the ranks disagreed")
            raise SynkhronosError(
                f"the ranks disagreed about {command.title}: one waited for another that was not to come; the "
                "session is closed, synkhronos.fork() starts a new one"
            )
        rank = min(failures)
        message = f"rank {rank} raised {failures[rank].summary} in {command.title}"
        for other in sorted(failures)[1:]:
            message += f"\nrank {other} raised {failures[other].summary}"
        error = WorkerError(message, rank, {r: failure.text for r, failure in failures.items()}, self._updates)
        raise error from RemoteTraceback(
            "\n".join(f"Traceback of rank {r}:\n{failure.text}" for r, failure in sorted(failures.items()))
        )

    # -- watching ------------------------------------------------------------------------------------------------

    def _look(self) -> Optional[SynkhronosError]:
        """Return the error to raise where waiting for the command in progress has become pointless."""
        self.launcher.forward()
        if self._trouble is None:
            if self.closed:  # from a signal handler, or at the program's exit
                self._trouble = StateError(f"the session was closed ({self.closed}) in the middle of {self._title}")
                return self._trouble
            for rank in self.others:
                if self.block.ended[rank] and self.block.finished[rank] < self._number:
                    self._trouble = self._died(rank, "in " + self._title, self._updates)
                    return self._trouble
            try:
                self.launcher.check()
            except SynkhronosError as error:
                self._trouble = error
            now = time.monotonic()
            if now > self._deadline:
                self._trouble = self._late()
            elif now > self._warn:
                self._warn = now + WARN_AFTER_S
                logger.warning(
                    "waiting for rank(s) %s in %s, since %.0f s",
                    ", ".join(map(str, self._missing())),
                    self._title,
                    now - self._began,
                )
        return self._trouble

    def _missing(self) -> List[int]:
        """Return the ranks that have neither answered nor arrived where the master waits."""
        here = self.context.barrier.current
        missing = [rank for rank in self.others if self.block.finished[rank] < self._number]
        return [rank for rank in missing if self.block.arrived[rank] < here] or missing

    def _watch_meeting(self) -> None:
        if self._look() is not None or any(self.block.finished[rank] >= self._number for rank in self.others):
            raise Aborted  # the answers tell why

    def _watch_answers(self) -> None:
        trouble = self._look()
        if trouble is not None:
            raise _Trouble(trouble)
        if any(self.block.arrived[rank] > self.context.barrier.current for rank in self.others):
            self.context.abort()  # it waits for the master, which is done

    def _check_idle(self) -> None:
        """Raise where a rank has ended since the last command, or the keeper."""
        for rank in self.others:
            if self.block.ended[rank]:
                raise _Trouble(self._died(rank, "before " + self._title))
        try:
            self.launcher.check()
        except SynkhronosError as error:
            raise _Trouble(error) from None

    def _died(self, rank: int, when: str, updates: Sequence[str] = ()) -> WorkerDied:
        status, memory, pid = self.block.status[rank], self.block.memory[rank], self.launcher.pid(rank)
        error = WorkerDied(
            f"rank {rank} (pid {pid}) {describe_end(status, memory)} {when}; the session is closed, "
            "synkhronos.fork() starts a new one",
            rank,
            pid,
            status,
            memory,
            updates,
        )
        words = self.launcher.fatal_error(rank)
        if words:
            error.__cause__ = RemoteTraceback(f"Traceback of rank {rank}:\n{words}")
        return error

    def _late(self) -> WorkerTimeout:
        missing = self._missing()
        doing = self.launcher.inspect(missing, STACKS_TIMEOUT_S)
        return WorkerTimeout(
            "{} did not finish within {:.6g} s; the session is closed, synkhronos.fork() starts a new "
            "one. Not there:\n{}".format(
                self._title,
                self._deadline - self._began,
                "\n".join(f"rank {rank} (pid {self.launcher.pid(rank)}): {doing[rank]}" for rank in missing),
            ),
            missing[0] if missing else self.root,
            self._updates,
        )

    # -- ending --------------------------------------------------------------------------------------------------

    def _recover(self, number: int) -> None:
        """After an interrupt in the middle of a command: make the ranks idle again, or end them."""
        done = False
        try:
            if self.block.command_number >= number:  # else it was not sent
                self.context.abort()
                self._trouble, self._deadline = None, time.monotonic() + GRACE_S
                for rank in self.others:
                    self.block.commands[rank].release()  # the interrupt may have come before this rank was told
                for rank in self.others:
                    self.channel.wait(rank, number, self._watch_answers)
                self.context.settle()
                self.context.barrier.clear()
            done = True
        except _Trouble:
            pass
        finally:
            if not done:
                self._end(f"{self._title} was given up")

    def _end(self, why: str) -> None:
        """End the session at once."""
        with DeferredSignals():
            self.closed = self.closed or why.split(";")[0]
            self.context.abort()
            self.context.settle()
            self.launcher.kill()
            self._tidy()

    def close(self, why: str = "synkhronos.close() was called", wait_s: float = -1) -> None:
        """Tell the ranks to stop; kill those that do not. May be called twice.

        Parameters
        ----------
        why : str
            What is said to who uses the session later.
        wait_s : float
            Seconds to wait for a command in progress in another thread, before the ranks are killed in the middle of
            it; without end by default.
        """
        mine = self.lock.acquire(timeout=wait_s)
        try:
            if self.closed:
                return
            if mine and not self._running:
                try:
                    self.run(Stop(), GRACE_S)
                except SynkhronosError as error:
                    logger.debug("while closing: %s", error)
                else:
                    self.launcher.join(GRACE_S)
        finally:
            self._end(why)
            if mine:
                self.lock.release()

    def _tidy(self) -> None:
        for rank in self.others:
            self.pools.remove(rank)
        self.block.close()
        self.affinity.release()
        # Without these circles the memory, and the descriptors that its mappings keep, go with the last reference.
        self.context.barrier.watch = _over
        self.catalogue = None
        profile, self._profile = self._profile, None
        if profile is not None and self._profile_path is not None:
            profile.dump_stats(self._profile_path)


class _Trouble(Exception):
    """Carries the error that ends the session, past the handlers of errors that do not."""

    def __init__(self, error: SynkhronosError) -> None:
        super().__init__(str(error))
        self.error = error

    def take(self) -> SynkhronosError:
        """Return the error and let go of it, whose context this will be: circles keep what the frames hold."""
        error = self.error
        del self.error
        self.__traceback__ = None
        return error


def check_timeout(timeout: Any) -> None:
    """Refuse what is no timeout: neither None nor a positive number of seconds.

    Raises
    ------
    ValueError
    """
    if timeout is not None and (
        isinstance(timeout, bool) or not (isinstance(timeout, (int, float)) and 0 < timeout <= sys.float_info.max)
    ):
        raise ValueError(f"timeout must be a positive number of seconds or None, got {timeout!r}")


def _over() -> None:
    """Watch over a session that has ended."""
    raise Aborted


def _add_note(error: BaseException, note: str) -> None:
    """Do what ``error.add_note`` does from Python 3.11 on; before, notes are kept but not shown."""
    notes = getattr(error, "__notes__", None)
    try:
        error.__notes__ = (notes or []) + [note]
    except AttributeError:  # an exception without a __dict__
        pass
