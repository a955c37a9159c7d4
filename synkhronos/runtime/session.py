"""The session: runs commands on all ranks, from `fork` to `close`.

::

    run -> _execute   send the envelope, execute it here, wait for the answers
             _look        while waiting: check for ended or late ranks and a closed session
             _raise       raise the error of this rank or of other ranks; the session continues
             _recover     after Ctrl-C: make the ranks idle again
             _heal        after a death: start a replacement rank, see `healing`
             _end         after a death or a timeout: the session is over
"""

from __future__ import annotations

import functools
import logging
import math
import pickle
import signal
import sys
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Set, Tuple

from ..errors import (
    Aborted,
    ArgumentValueError,
    RankFailure,
    StateError,
    SynkhronosError,
    WorkerDied,
    WorkerTimeout,
)
from ..host.affinity import MasterAffinity
from ..host.signals import DeferredSignals
from ..memory.handles import Handle
from ..memory.pool import Pool
from ..sync.control_block import ABORT_REQUESTED, COMMAND_NUMBER, DEATHS, ControlBlock
from ..sync.hosts import Hosts
from ..sync.semaphore import WaitPolicy
from ..trace import point
from ..transports.common import SPARES
from .channel import FROZEN_BYTES, MasterEnd
from .command import SHORT_S, Answer, Command, DepositValues, Envelope, Stop
from .context import RankContext
from .deposits import Deposits
from .exit_status import LOST, WAITS
from .failures import NEW_SESSION, Failure, add_failures, add_note, add_steps, worker_died, worker_error
from .healing import Healing
from .launcher import Launcher
from .news import News, attached, learn
from .prefetch import Announcer

logger = logging.getLogger("synkhronos")

ENCLOSED_BYTES = 1 << 15  #: Limit on the data sent to other hosts with a command; a command's slot is twice as large.

#: Signals that a user or the system sends to end a process.
KILLED = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

#: Time limit for ranks to answer after an interrupt, and to end after `close`; late ranks are killed.
GRACE_S = 2.5

#: Time limit for a replacement rank to reload state; and a lower bound on this limit if the session has a timeout.
JOIN_TIMEOUT_S, LEAST_JOIN_TIMEOUT_S = 120.0, 30.0

STACKS_TIMEOUT_S = 0.5  #: Time limit for stuck ranks to report their stacks.
WARN_AFTER_S = 60.0  #: Waiting time before a warning in the log names the ranks that have not answered.
REPORT_INTERVAL_S = 10.0  #: Waiting time before the same message at level INFO, for commands that report progress.


class Session:
    """A session: the ranks between `fork` and `close`, which execute commands together.

    ``launcher`` has started the ranks other than ``root``, the master. ``pool`` is the master's shared memory;
    ``pools`` maps identifiers to the shared memory of all ranks. ``profile`` is the path of the master's cProfile file.
    For ``timeout``, ``seed``, ``random`` and ``heal`` see `fork`. ``healing`` is None unless dead ranks are replaced.
    ``prefetch`` announces modules that ranks can load while they wait. ``dropped`` lists objects that the program has
    dropped, ``("function", 3)`` or ``("shared", 5)``. Finalizers append to it at any time, and the ranks drop the
    objects with the next command.
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
        hosts: Hosts,
        timeout: Optional[float] = None,
        profile: Optional[str] = None,
        seed: Optional[int] = None,
        random: str = "split",
        heal: int = 0,
    ) -> None:
        self.size, self.root, self.launcher, self.block = size, root, launcher, block
        self.timeout, self.affinity = timeout, affinity
        self.seed, self.random, self.hosts = seed, random, hosts
        self.others = [rank for rank in range(size) if rank != root]
        self.pool = pool
        self.context = RankContext.create(
            root, root, block, pool, pools, self._watch_barrier, policy, hosts, self._watch_alone, launcher.links
        )
        self.pools = self.context.pools
        near = [rank for rank in hosts.near if rank != root]
        self.channel = MasterEnd(block, near, pool, self.pools, policy, self.context.leading)
        self.prefetch = Announcer(block)
        self.healing: Optional[Healing] = None
        if heal and self.others:
            self.healing = Healing(heal, size)
            self.context.transaction.deposits = Deposits.of(self.context)
        self.context.transport.common.is_open &= launcher.runs_python
        self.closed: Optional[str] = None  # the reason, once the session is closed
        self.setup: Optional[Command] = None  # prepares the ranks; repeated whenever a rank is replaced
        #: Called once after the ranks have ended, while their data in the control block still exists.
        self.at_end: Callable[[], object] = bool
        #: Serializes commands; also protects the memory that calls share for staged arguments.
        self.lock = threading.RLock()
        self.dropped: Deque[Tuple[str, int]] = deque()
        self.caches: Dict[str, Any] = {}  # of collectives, by name
        self._forget: List[Tuple[str, int]] = []
        self._running = self._joining = False
        self._started: Set[int] = set()  # replacements of dead ranks that have been started
        self._number = 0
        self._command: Optional[Command] = None  # the command in progress, or the last command
        self._updates: Sequence[str] = ()  # variables that the command may have updated if it is interrupted
        self._deadline = self._warn = float("inf")
        self._fatal: Optional[SynkhronosError] = None  # the reason why the command in progress was aborted
        self._timeout: Optional[float] = None
        self._late_ranks: Sequence[int] = ()  # ranks missing at the timeout
        self._moved, self._steps = 0.0, [0] * size  # when a rank last finished a step of the command; steps by rank
        self._profile_path, self._profile = profile, None
        if profile is not None:
            import cProfile

            self._profile = cProfile.Profile()

    def __repr__(self) -> str:
        state = f"closed: {self.closed}" if self.closed else "open"
        return f"Session(size={self.size}, root={self.root}, {state}, commands={self._number})"

    @property
    def _title(self) -> str:
        return "nothing" if self._command is None else self._command.title

    # -- running commands ----------------------------------------------------------------------------------------

    @point("call")
    def run(
        self,
        command: Command,
        timeout: Optional[float] = None,
        updates: Sequence[str] = (),
        news: Sequence[News] = (),
    ) -> Any:
        """Execute the command on every rank; return the value of `Command.finish`.

        ``updates`` names shared variables that each rank updates independently. ``news`` are values sent with the
        command; they are not supported with ``heal``.

        Raises
        ------
        WorkerError
            If the command failed on another rank. If it failed on the master, the master's exception is raised.
        WorkerDied, WorkerTimeout
            If a rank ended or did not answer in time. The session is then closed.
        StateError
            If the session is closed, or if this thread is already inside a command.
        """
        with self.lock:  # blocks other threads; the lock is reentrant, so `check` refuses nested calls by this thread
            self.check()
            self._running, self._updates = True, updates
            try:
                timeout = self.timeout if timeout is None else timeout
                if self.healing is None:
                    results = self._execute(command, timeout, news)
                else:
                    if self.healing.unsaved and type(command) is not Stop:  # an interrupt prevented the deposit
                        self._deposit(sorted(self.healing.unsaved))
                    results = self._execute_and_heal(command, timeout)
                try:
                    return command.finish(results, self.context)
                except Aborted:  # results could not be fetched from other hosts
                    error = self._abandoned()
                    raise error from error.__cause__
            except BaseException as error:
                if command.has_steps:
                    add_steps(error, *self._steps_made(), self.root, command.failed_step)
                if self.context.transport.common.slots:
                    self.dropped.append(SPARES)
                if self.healing is not None and not self.closed and command.unsaved(True):
                    self._deposit(command.unsaved(True))
                raise
            finally:
                self._running = False
                self._fatal = None  # its traceback keeps frames alive
                self.launcher.forward(True)

    def _deposit(self, numbers: Sequence[int]) -> None:
        """Deposit variables whose values the ranks have changed independently (see `Deposits`)."""
        assert self.healing is not None
        self.healing.set_deposited(numbers, False)
        self._execute_and_heal(DepositValues(numbers), self.timeout)
        self.healing.set_deposited(numbers, True)

    def _abandoned(self) -> SynkhronosError:
        """End the session, and return the error that prevented the results from being fetched."""
        fatal = self._fatal or self._ended_after_answer()
        assert fatal is not None
        self._end(str(fatal))
        return fatal

    def check(self) -> None:
        """Raise `StateError` if no command can run because the session is closed or busy; the caller holds the lock."""
        if self._running:
            raise StateError(
                "a synkhronos call was made while another call was in progress in this thread (from a "
                "signal handler, a finalizer or an Op?): make it after the other call has returned"
            )
        if self.closed:
            raise StateError(f"the session is closed ({self.closed}): call synkhronos.fork() again")

    def _execute_and_heal(self, command: Command, timeout: Optional[float]) -> List[Any]:
        assert self.healing is not None
        self.healing.begin()
        while True:
            try:
                results = self._execute(command, timeout)
            except _Healed:
                continue
            if command.unsaved(False):
                self._deposit(command.unsaved(False))
            return results

    def _execute(self, command: Command, timeout: Optional[float], news: Sequence[News] = ()) -> List[Any]:
        """Send the command, execute it here, and collect the answers; return the results in rank order."""
        number, own = self._number + 1, None
        while self.dropped:
            self._forget.append(self.dropped.popleft())
            if self.healing is not None:
                self.healing.forget(self._forget[-1])
        if self.launcher.has_contexts and not self._forget:
            together = self._execute_together(command, news)
            if together is not None:
                return together
        enclosed = self._enclosed(command) if self.launcher.links else ()
        envelope, payload = Envelope(self._forget, command, enclosed, news=news), command.frozen
        if self._forget or enclosed or payload is None:
            payload = pickle.dumps(envelope, pickle.HIGHEST_PROTOCOL)
        elif news or command.rows is not None:
            longer = attached(payload, news, command.rows)
            payload = longer if len(longer) <= FROZEN_BYTES else pickle.dumps(envelope, pickle.HIGHEST_PROTOCOL)
        self._command, self._number = command, number
        self._timeout, self._steps = timeout, [0] * self.size
        began = time.monotonic()
        self._restart_clock(began)
        try:
            if self.block.words[DEATHS] or not self.launcher.is_alive():
                self._raise_what_ended()
            self.context.barrier.begin(number)
            self.channel.send(number, payload, self._watch)
            try:
                self.affinity.begin(command.is_short)  # after `send`, so that the other ranks can begin meanwhile
                if self._profile is None:
                    own = self.context.execute(envelope)
                else:
                    own = self._profile.runcall(self.context.execute, envelope)
            finally:
                self.affinity.end()
            self._forget = []
            if own.error is not None and not isinstance(own.error, Exception):
                raise own.error  # an interrupt: the other ranks may still be far from done
            for rank in self.others:
                self.channel.wait(rank, number, self._watch_answers)
            answers = [own] * self.size
            for rank in self.others:
                try:
                    answers[rank] = Answer(*self.channel.read(rank))
                except Exception:  # raised by unpickling a user's object, or by a signal handler
                    answers[rank] = self._unreadable(rank)
            if self.healing is not None:  # committed values stay committed, however the command ends
                self.healing.record_deposits(answers)
            command.is_short = time.monotonic() - began < SHORT_S
        except _Fatal as fatal:
            if self._joining:
                raise
            fatal.error = self._heal_or_end(fatal.error, command, own)
            cause = fatal.error.__cause__
            raise fatal.take() from cause
        except BaseException:
            self._recover(number)
            raise
        results, failed = [], False
        for answer in answers:
            failed = failed or answer.aborted or answer.error is not None
            results.append(answer.result)
        if failed:
            self.context.barrier.clear()
            self._raise(command, own, answers)
        return results

    def _execute_together(self, command: Command, news: Sequence[News]) -> Optional[List[Any]]:
        """Execute the command here for all ranks, without sending it; return None if the ranks must execute it."""
        self._command, contexts = command, self.launcher.all_contexts(self.context)
        for context in contexts:
            if news and context is not self.context:
                learn(context, news)
        return command.run_together(contexts, self.root)

    def _enclosed(self, command: Command) -> Sequence[Tuple[Handle, bytes]]:
        found, left = [], ENCLOSED_BYTES
        for handle in command.reads(self.context):
            if isinstance(handle, Handle) and handle.strides is None:
                nbytes = handle.dtype.itemsize * math.prod(handle.shape)
                if nbytes <= left:
                    found.append((handle, self.pools.here(handle).tobytes()))
                    left -= nbytes
        return found

    def _unreadable(self, rank: int) -> Answer:
        """Retry reading an answer that failed to unpickle; return the error, or re-raise a signal handler's error."""
        with DeferredSignals():
            try:
                Answer(*self.channel.read(rank))
            except Exception as error:
                return Answer(rank, error=Failure(error))
        raise  # noqa: PLE0704, the exception being handled, which a signal handler raised

    def _note_others(self, error: SynkhronosError, own: Optional[Answer]) -> None:
        if own is not None and own.error is not None:
            add_note(error, f"the master also raised {Failure(own.error).summary}")
        for rank in self.others:
            if own is not None and self.channel.has_answered(rank, self._number):
                failure = self._read(rank).error
                if failure is not None:
                    add_note(error, f"rank {rank} also raised {failure.summary}")

    def _read(self, rank: int) -> Answer:
        with DeferredSignals():  # so that any exception here comes from unpickling
            try:
                return Answer(*self.channel.read(rank))
            except BaseException as error:
                return Answer(rank, error=Failure(error))

    def _raise(self, command: Command, own: Answer, answers: Sequence[Answer]) -> None:
        """Raise the master's own exception, or the exceptions of other ranks as a `WorkerError`."""
        failures: Dict[int, Failure] = {
            answer.rank: answer.error for answer in answers if answer is not own and answer.error is not None
        }
        if own.error is not None:
            add_failures(own.error, failures)
            raise own.error
        if self._fatal is None and not failures:
            self._fatal = self._ended_after_answer()
        if self._fatal is not None:  # this error made the master abort while all other ranks could still answer
            if self._joining:
                raise _Fatal(self._fatal)
            raise self._heal_or_end(self._fatal, command, own)
        if not failures:
            self._end("the ranks disagreed")
            raise SynkhronosError(
                f"the ranks disagreed about {command.title}: one rank waited at a barrier that another never reached; "
                "the session is closed: call synkhronos.fork() to start a new one"
            )
        error = worker_error(command, failures, self._updates, self.launcher.host)
        raise error from error.__cause__

    def _ended_after_answer(self) -> Optional[SynkhronosError]:
        """Return the error for any rank that has ended, even after its answer, as its host's data may be needed."""
        for rank in self.others:
            if self.block.ended[rank]:
                return self._died(rank, "in " + self._title, self._updates)
        return None

    # -- watching ------------------------------------------------------------------------------------------------

    def _look(self) -> Optional[SynkhronosError]:
        """Return the error to raise if the command in progress can no longer complete."""
        self.launcher.forward(False)
        if self._fatal is None:
            if self.closed:  # by a signal handler, or at exit
                self._fatal = self._was_closed()
                return self._fatal
            if self.block.words[DEATHS]:
                self.context.leading.receive()  # answers that a rank sent before it ended
            stops = type(self._command) is Stop  # the report of a rank's end may overtake its answer to `Stop`
            for rank in self.others:
                if not self.block.ended[rank] or stops and not self.block.status[rank]:
                    continue
                led = self.hosts.led_by(rank) or (rank,)
                if not all(self.channel.has_answered(each, self._number) for each in led):
                    self._fatal = self._died(rank, "in " + self._title, self._updates)
                    return self._fatal
            if not self.launcher.is_alive():
                self._fatal = self.launcher.error()
            now = time.monotonic()
            if self._command is not None and self._command.has_steps and self._steps != self._steps_made()[0]:
                self._steps, _ = self._steps_made()
                self._restart_clock(now)
            if now > self._deadline and self._missing():
                self._fatal = self._late()
            elif now > self._warn and self._command is not None:
                since = now - self._moved
                level = logging.INFO if self._command.counts and since < WARN_AFTER_S else logging.WARNING
                self._warn = now + (REPORT_INTERVAL_S if level == logging.INFO else WARN_AFTER_S)
                logger.log(level, "waiting for %s in %s (%.0f s so far)", self._awaited(), self._title, since)
        return self._fatal

    def _awaited(self) -> str:
        """Return text for the log: the ranks that have not answered, their hosts and their progress."""
        by_host: Dict[str, List[int]] = {}
        for rank in self._missing():
            by_host.setdefault(self.launcher.host(rank), []).append(rank)
        found, counts = [], "" if self._command is None else self._command.counts
        for host, ranks in by_host.items():
            done = f" ({min(self._steps_made()[0][rank] for rank in ranks)} {counts})" if host and counts else ""
            found.append(", ".join(f"rank {rank}" for rank in ranks) + (f" on host {host}" if host else "") + done)
        return ", ".join(found)

    def _restart_clock(self, now: float) -> None:
        """Restart the command's timeout and the delay before the log names missing ranks."""
        self._moved = now
        self._warn = now + (REPORT_INTERVAL_S if self._command is not None and self._command.counts else WARN_AFTER_S)
        self._deadline = float("inf") if self._timeout is None else now + self._timeout

    def _steps_made(self) -> Tuple[List[int], List[int]]:
        """Return the numbers of completed steps and of undone steps of the last command, each by rank."""
        block, ranks = self.block, range(self.size)
        begun = [block.steps_command[rank] == self._number for rank in ranks]
        made = [block.steps[rank] if begun[rank] else 0 for rank in ranks]
        return made, [block.undone[rank] if begun[rank] else 0 for rank in ranks]

    def _missing(self) -> List[int]:
        """Return the ranks without an answer; if some have not arrived at the master's barrier, only those ranks."""
        here = self.context.barrier.current
        missing = [rank for rank in self.others if not self.channel.has_answered(rank, self._number)]
        return [rank for rank in missing if self.block.arrived[rank] < here] or missing

    def _watch_barrier(self) -> None:
        if self._look() is not None or any(self.channel.has_answered(rank, self._number) for rank in self.others):
            raise Aborted  # `_fatal` or the answers contain the reason

    def _watch_alone(self) -> None:
        if self._look() is None:  # unlike at a barrier, other ranks may have finished
            lost = [rank for rank in self.others if self.block.ended[rank] and self.block.status[rank] == LOST]
            if not lost:
                return
            self._fatal = self._died(lost[0], "in " + self._title, self._updates)
        raise Aborted

    def _watch(self) -> None:
        error = self._look()
        if error is not None:
            raise _Fatal(error)

    def _watch_answers(self) -> bool:
        self._watch()
        if any(self.block.arrived[rank] > self.context.barrier.current for rank in self.others):
            self.context.abort()  # a rank waits for the master, which has finished
        if self.block.words[ABORT_REQUESTED] >= self._number:
            self.context.abort()  # other ranks may still have many steps ahead
        return not self._missing()  # true, for example, if a rank was stopped before it woke the master

    def _raise_what_ended(self) -> None:
        """Raise the error for a rank, or a launcher, that has ended since the last command."""
        for rank in self.others:
            if self.block.ended[rank]:
                raise _Fatal(self._died(rank, "before " + self._title))
        if not self.launcher.is_alive():
            raise _Fatal(self.launcher.error())

    def _died(self, rank: int, when: str, updates: Sequence[str] = ()) -> SynkhronosError:
        status, memory = self.block.status[rank], self.block.memory[rank]
        pid, fatal_error = self.launcher.pid(rank), self.launcher.fatal_error(rank)
        host = self.launcher.host(rank)
        if self.healing is not None and self._command is not None and not self._command.has_steps:
            updates = ()  # updates are undone
        error = worker_died(rank, pid, status, memory, when, fatal_error, updates, f" on host {host}" if host else "")
        error.command = self._title
        return error

    def _late(self) -> WorkerTimeout:
        missing = self._missing()
        doing = self.launcher.inspect(missing, STACKS_TIMEOUT_S)
        if all([state == WAITS for state in doing.values()]):  # perhaps for leaders, which may have arrived before
            missing = sorted({*missing, *[ranks[0] for ranks in self.hosts.ranks[1:] if {*ranks} & {*missing}]})
            doing = self.launcher.inspect(missing, STACKS_TIMEOUT_S)
        missing = self._late_ranks = [rank for rank in missing if doing[rank] != WAITS] or missing
        ranks = "\n".join(f"rank {rank} (pid {self.launcher.pid(rank)}): {doing[rank]}" for rank in missing)
        late = "no rank finished a step of {} within" if any(self._steps) else "{} did not finish within"
        text = f"{late.format(self._title)} {self._deadline - self._moved:.6g} s; {NEW_SESSION}. Missing:\n{ranks}"
        error = WorkerTimeout(text, missing[0] if missing else self.root, self._updates)
        error.command = self._title
        return error

    # -- ending --------------------------------------------------------------------------------------------------

    def _recover(self, number: int) -> None:
        """Make the ranks idle again after an interrupt during a command, or end the session."""
        done = False
        try:
            if self.block.words[COMMAND_NUMBER] >= number:  # otherwise the command was not sent
                self.context.abort()
                self._fatal, self._timeout = None, GRACE_S
                self._restart_clock(time.monotonic())
                for rank in self.others:
                    self.block.commands[rank].release()  # the rank may not have been woken before the interrupt
                for rank in self.others:
                    self.channel.wait(rank, number, self._watch_answers)
                self.context.leading.forward(self._watch)  # a decision that the interrupt may have kept from others
                if self.healing is not None:
                    self.healing.record_deposits([self._read(rank) for rank in self.others])
                self.context.transaction.settle()
                self.context.barrier.clear()
            done = True
        except _Fatal:
            pass
        finally:
            if not done:
                self._end(f"{self._title} was aborted")

    def _was_closed(self) -> SynkhronosError:
        return StateError(f"the session was closed ({self.closed}) during {self._title}")

    def _heal_or_end(self, error: SynkhronosError, command: Command, own: Optional[Answer]) -> SynkhronosError:
        """End the session, and return the error to raise; raise `_Healed` instead if the command can be repeated."""
        if self.healing is not None and self._heal(error, command, own):
            raise _Healed from None
        error = self._was_closed() if self.closed else error
        self._note_others(error, own)
        self._end(str(error))
        return error

    def _heal(self, error: SynkhronosError, command: Command, own: Optional[Answer]) -> bool:
        """Replace ranks that have ended or are stuck; return whether the command can be repeated."""
        healing, began = self.healing, time.monotonic()
        assert healing is not None
        if not isinstance(error, (WorkerDied, WorkerTimeout)) or not self.launcher.is_alive():
            return False
        dead = self._lost(error)
        killed = {rank for rank in dead if self.block.ended[rank] and -self.block.status[rank] in KILLED}
        sent = self.block.words[COMMAND_NUMBER] >= self._number
        deaths: List[SynkhronosError] = [error] * len(dead)
        try:
            why_not = healing.refusal(command, dead, sent, self.context, killed)
            if own is not None and own.error is not None:
                why_not = why_not or "the master also raised an error"
            while not why_not:
                self._started = set()
                try:
                    why_not = self._free(dead)
                    if not why_not:
                        self._replace(dead)
                        break
                except _Fatal as fatal:  # another death in the meantime: ranks being replaced no longer count as ended
                    lost = self._lost(fatal.error) - (dead - self._started)
                    deaths += [fatal.error] * len(lost)
                    if not lost or len(healing.deaths) + len(deaths) > healing.most:
                        why_not = f"{fatal.error} (death {len(healing.deaths) + len(deaths)} of {healing.most})"
                    dead |= lost  # replace all of them again, because each replacement is incomplete
                self._joining = False
        except Exception as failure:
            why_not = f"no replacement could be started: {Failure(failure).summary}"
        except BaseException:  # an interrupt while ranks are missing
            self._end(f"{self._title} was aborted")
            raise
        finally:
            self._joining = False
        if why_not:
            add_note(error, f"the rank was not replaced (heal={healing.most}): {why_not}")
            return False
        healing.repaired(deaths, dead - killed, command, sent, time.monotonic() - began)
        self._fatal, self._command = None, command
        return True

    def _lost(self, error: SynkhronosError) -> Set[int]:
        if not isinstance(error, RankFailure):
            return set()
        ended = {rank for rank in self.others if self.block.ended[rank]}
        return ended.union(self._late_ranks) if isinstance(error, WorkerTimeout) else ended

    def _free(self, dead: Set[int]) -> str:
        """Make the surviving ranks idle again; return why the command cannot be repeated, or an empty string.

        On other hosts, a dead leader must be replaced before, because it forwards the command and the answers.
        """
        for rank in dead:
            if self.block.status[rank] == LOST:
                return f"host {self.launcher.host(rank)} is lost"
        number, failed = self._number, []
        self.context.abort()
        self._fatal = None
        leaders = set(filter(self.hosts.led_by, dead))
        if leaders:
            self._start(leaders)
        self._restart_clock(time.monotonic())  # survivors finish their computation, with a new timeout
        for rank in self.others:
            if rank not in dead and self.block.words[COMMAND_NUMBER] >= number:
                self.block.commands[rank].release()
                self.channel.wait(rank, number, functools.partial(self._watch_survivor, rank, dead))
                if self._read(rank).error is not None:
                    failed.append(rank)
        self.context.transaction.settle()
        return f"rank {failed[0]} also raised an error" if failed else ""

    def _watch_survivor(self, rank: int, dead: Set[int]) -> None:
        self.launcher.forward(False)
        if self.closed:
            raise _Fatal(self._was_closed())
        for each in self.others:
            if self.block.ended[each] and each not in dead - self._started:
                raise _Fatal(self._died(each, "while another rank was being replaced"))
        if time.monotonic() > self._deadline:
            error, self._late_ranks = self._late(), [rank]
            raise _Fatal(error)

    def _replace(self, dead: Set[int]) -> None:
        """Start processes that replace dead ranks, and restore their functions and values."""
        healing = self.healing
        assert healing is not None
        self.context.barrier.clear()
        self._start(dead - self._started)
        self._joining = True
        limit = JOIN_TIMEOUT_S if self.timeout is None else max(self.timeout, LEAST_JOIN_TIMEOUT_S)
        if self.setup is not None:
            self._execute(self.setup, limit)
        replicas = self.context.registry.replicas
        if replicas is not None:
            saved = [(type(each), each.saved()) for each in self.context.all_kept()]
            kept = {kind: state for kind, state in saved if state is not None}
            held = {
                rank: dict(healing.deposits_by_rank[rank]) for rank in dead
            }  # a copy, because a variable may be dropped meanwhile
            self._execute(replicas.rejoin(held, kept), limit)

    def _start(self, ranks: Set[int]) -> None:
        """Start processes in place of dead ranks; they wait for the next command."""
        assert self.healing is not None
        with DeferredSignals():  # a handler might close the session
            if self.closed:
                raise _Fatal(self._was_closed())
            self.launcher.end(ranks)
            copies = self.context.transport.common.copies
            for rank in ranks:
                self.block.reset(rank, self.block.words[COMMAND_NUMBER])
            self.block.words[DEATHS] = 0  # safe, because the keeper records the end of a rank before it sets this word
            try:
                taken = {rank: self.healing.ranges(rank, copies(rank)) for rank in ranks}
                links = self.launcher.replace(taken, self.pools)
            except WorkerDied as error:
                raise _Fatal(error) from error
            finally:
                self._started |= ranks
            for rank, link in links.items():
                self.context.leading.reconnect(rank, link)

    def _end(self, why: str) -> None:
        with DeferredSignals():
            if self.closed:  # another thread, or a signal handler, has ended the session or is ending it
                return
            self.closed = why.split(";")[0]
            self.context.abort()
            self.context.transaction.settle()
            self.launcher.kill()
            self._tidy()

    def close(self, why: str = "synkhronos.close() was called", wait_s: float = -1) -> None:
        """Stop the ranks, and kill ranks that do not end; idempotent.

        Later errors quote ``why``. ``wait_s``, if not negative, limits the wait for a command in another thread.
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
            try:
                self._end(why)
            finally:
                self._end(why)  # in case a signal handler raised before signals were deferred
                if mine:
                    self.lock.release()

    def _tidy(self) -> None:
        self.prefetch.end()
        at_end, self.at_end = self.at_end, bool
        at_end()
        for rank in self.others:
            self.pools.remove(rank)
        self.context.leading.close()
        self.block.close()
        self.affinity.release()
        # Break reference cycles, so that dropping the last reference frees the memory and descriptors of mappings.
        self.context.barrier.watch = self.context.barrier.watch_alone = _over
        self.context.registry.replicas = self.context.transaction.results = None
        self.caches.clear()
        self.launcher.release(self.context)
        profile, self._profile = self._profile, None
        if profile is not None and self._profile_path is not None:
            profile.dump_stats(self._profile_path)


class _Healed(Exception):
    """Raised when a rank that died during a command was replaced, so that the command is repeated."""


class _Fatal(Exception):
    """Wraps the error that ends the session, so that handlers of other errors do not catch it."""

    def __init__(self, error: SynkhronosError) -> None:
        super().__init__(str(error))
        self.error = error

    def take(self) -> SynkhronosError:
        """Return the error and drop the reference to it, because reference cycles would keep frames in memory."""
        error = self.error
        del self.error
        self.__traceback__ = None
        return error


def check_timeout(timeout: Any) -> None:
    if timeout is not None and (
        isinstance(timeout, bool) or not (isinstance(timeout, (int, float)) and 0 < timeout <= sys.float_info.max)
    ):
        raise ArgumentValueError("timeout", "a positive number of seconds or None", repr(timeout))


def _over() -> None:
    raise Aborted
