"""The session: the ranks that run together from `fork` to `close`, and the way in which commands reach them.

::

    run -> _execute   send the envelope, execute it here, wait for the answers
             _look        while waiting: has a rank ended, is it late, was the session closed?
             _raise       what went wrong on this rank or on others; the session goes on
             _recover     after Ctrl-C: make the ranks idle again
             _heal        after a death: have another rank take the place, see `healing`
             _end         after a death or a timeout: the session is over

Longer than other modules because running, watching and ending a command share one state.
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
from ..sync.control_block import DEATHS, ControlBlock
from ..sync.hosts import Hosts
from ..sync.semaphore import WaitPolicy
from ..trace import point
from .channel import FROZEN_BYTES, MasterEnd
from .command import Answer, Command, DepositValues, Envelope, Stop
from .context import RankContext
from .deposits import Deposits
from .exit_status import LOST
from .failures import Failure, add_failures, add_note, add_steps, worker_died, worker_error
from .healing import Healing
from .launcher import Launcher
from .news import News, attached
from .prefetch import Announcer

logger = logging.getLogger("synkhronos")

#: Bytes of what a command reads that travel with it to other hosts, at most; it has a slot of twice as many.
ENCLOSED_BYTES = 1 << 15

#: Signals by which a person, or the system, ends a process.
KILLED = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

#: Seconds that the ranks are given to answer after an interrupt, and to end after `close`, before they are killed.
GRACE_S = 2.5

#: Seconds that a rank which takes another's place is given to load what that had; and at least, if there is a timeout.
JOIN_TIMEOUT_S, LEAST_JOIN_TIMEOUT_S = 120.0, 30.0

#: Seconds that stuck ranks are given to show their stacks.
STACKS_TIMEOUT_S = 0.5

#: Seconds of waiting after which a line in the log names the ranks that are awaited.
WARN_AFTER_S = 60.0

#: The same, at a lower level, for commands of which is known how far ranks are.
TELL_EVERY_S = 10.0


class Session:
    """Ranks that execute commands together.

    Parameters
    ----------
    size, root : int
        Number of ranks, and the master's rank.
    launcher : Launcher
        Has started the others.
    block : ControlBlock
        Through which they wait for each other.
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
    hosts : Hosts, optional
        If the ranks are on several.
    heal : int
        How many deaths of ranks are repaired.

    Attributes
    ----------
    healing : Healing, optional
        If any are.
    prefetch : Announcer
        Tells the ranks what they may load while they wait.
    dropped : deque of (str, int)
        What the program has dropped, ``("function", 3)`` or ``("shared", 5)``, added to by finalizers at any time: the
        ranks forget it with the next command.
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
        hosts: Optional[Hosts] = None,
        heal: int = 0,
    ) -> None:
        self.size, self.root, self.launcher, self.block = size, root, launcher, block
        self.timeout, self.affinity = timeout, affinity
        self.seed, self.random, self.hosts = seed, random, hosts
        self.others = [rank for rank in range(size) if rank != root]
        self.pool = pool
        self.context = RankContext.create(
            root, root, block, pool, pools, self._watch_barrier, policy, hosts, self._watch_hosts, launcher.links
        )
        self.pools = self.context.pools
        self.channel = MasterEnd(block, self.others, pool, self.pools, policy, self.context.leading)
        self.prefetch = Announcer(block)
        self.healing: Optional[Healing] = None
        if heal and self.others:
            self.healing = Healing(heal, size)
            self.context.deposits = Deposits.of(self.context)
        self.closed: Optional[str] = None  # why, once it is
        #: What all ranks have executed before anything else, and do again when another process is one of them.
        self.setup: Optional[Command] = None
        #: Called once when the ranks have ended, while what they have left in the control block is there.
        self.at_end: Callable[[], object] = bool
        #: Serialises commands; also protects the memory in which calls share staged arguments.
        self.lock = threading.RLock()
        self.dropped: Deque[Tuple[str, int]] = deque()
        #: What collectives keep from call to call, by the name of the cache; it ends with the session.
        self.caches: Dict[str, Any] = {}
        self._forget: List[Tuple[str, int]] = []
        self._running = self._joining = False
        self._number = 0
        self._command: Optional[Command] = None  # in progress, or the last one
        self._updates: Sequence[str] = ()  # what the command in progress may have updated if it is interrupted
        self._deadline = self._warn = float("inf")
        self._fatal: Optional[SynkhronosError] = None  # why the command in progress was given up
        self._timeout: Optional[float] = None
        self._late_ranks: Sequence[int] = ()  # that were awaited when time was up
        self._moved, self._steps = 0.0, [0] * size  # when a rank last made a step of the command, and how many each has
        self._profile_path, self._profile = profile, None
        if profile is not None:
            import cProfile

            self._profile = cProfile.Profile()

    def __repr__(self) -> str:
        state = f"closed: {self.closed}" if self.closed else "open"
        return f"Session(size={self.size}, root={self.root}, {state}, {self._number} commands)"

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
        """Have every rank execute the command; return what the command makes of their results (`Command.finish`).

        Parameters
        ----------
        command : Command
            What to do.
        timeout : float, optional
            Seconds; the session's own by default.
        updates : sequence of str
            The shared variables that each rank updates by itself, whatever becomes of the others.
        news : sequence of News
            What travels with the command, unless dead ranks are replaced.

        Raises
        ------
        WorkerError
            If it failed on another rank. If it failed on the master, its own exception is raised.
        WorkerDied, WorkerTimeout
            If a rank ended, or did not answer in time. The session is closed then.
        StateError
            If the session is closed, or this thread is inside a command already.
        """
        with self.lock:  # other threads wait here; this one passes, also when it should not
            self.check()
            self._running, self._updates = True, updates
            try:
                timeout = self.timeout if timeout is None else timeout
                if self.healing is None:
                    results = self._execute(command, timeout, news)
                else:
                    if self.healing.undeposited and type(command) is not Stop:  # an interrupt came before that
                        self._deposit(sorted(self.healing.undeposited))
                    results = self._execute_and_heal(command, timeout)
                try:
                    return command.finish(results, self.context)
                except Aborted:  # some of the results have to come from other hosts
                    error = self._given_up()
                    raise error from error.__cause__
            except BaseException as error:
                if command.has_steps:
                    add_steps(error, *self._steps_made(), self.root, command.failed_step)
                if self.healing is not None and not self.closed and command.undeposited(True):
                    self._deposit(command.undeposited(True))
                raise
            finally:
                self._running = False
                self._fatal = None  # it holds the frames it came through
                self.launcher.forward(True)

    def _deposit(self, numbers: Sequence[int]) -> None:
        """Have all ranks deposit values that they have changed by themselves."""
        assert self.healing is not None
        self.healing.set_deposited(numbers, False)
        self._execute_and_heal(DepositValues(numbers), self.timeout)
        self.healing.set_deposited(numbers, True)

    def _given_up(self) -> SynkhronosError:
        """End the session, and return why the results cannot come."""
        fatal = self._fatal or self._ended_after_answer()
        assert fatal is not None
        self._end(str(fatal))
        return fatal

    def check(self) -> None:
        """Raise `StateError` if no command can be run: the session is closed, or one runs. Call with the lock."""
        if self._running:
            raise StateError(
                "a synkhronos call was made while another one is in progress in this thread (from a "
                "signal handler, a finalizer or an Op?): make it after that one has returned"
            )
        if self.closed:
            raise StateError(f"the session is closed ({self.closed}): call synkhronos.fork() again")

    def _execute_and_heal(self, command: Command, timeout: Optional[float]) -> List[Any]:
        """Do what `_execute` does, again if a rank dies that can be replaced."""
        assert self.healing is not None
        self.healing.begin()
        while True:
            try:
                results = self._execute(command, timeout)
            except _Healed:
                continue
            if command.undeposited(False):
                self._deposit(command.undeposited(False))
            return results

    def _execute(self, command: Command, timeout: Optional[float], news: Sequence[News] = ()) -> List[Any]:
        """Send the command, execute it here, and collect the answers; return the results in rank order."""
        number, own = self._number + 1, None
        while self.dropped:
            self._forget.append(self.dropped.popleft())
            if self.healing is not None:
                self.healing.forget(self._forget[-1])
        enclosed = () if self.hosts is None else self._enclosed(command)
        envelope, payload = Envelope(self._forget, command, enclosed, news=news), command.frozen
        if self._forget or enclosed or payload is None:
            payload = pickle.dumps(envelope, pickle.HIGHEST_PROTOCOL)
        elif news:
            with_news = attached(news, payload)
            payload = with_news if len(with_news) <= FROZEN_BYTES else pickle.dumps(envelope, pickle.HIGHEST_PROTOCOL)
        self._command, self._number = command, number
        self._timeout, self._steps = timeout, [0] * self.size
        self._restart_clock(time.monotonic())
        try:
            if self.block.words[DEATHS] or not self.launcher.is_alive():
                self._raise_what_ended()
            self.context.barrier.begin(number)
            self.channel.send(number, payload, self._watch)
            with self.affinity:  # takes a while, in which the others begin, and finish
                if self._profile is None:
                    own = self.context.execute(envelope)
                else:
                    own = self._profile.runcall(self.context.execute, envelope)
            self._forget = []
            if own.error is not None and not isinstance(own.error, Exception):
                raise own.error  # an interrupt: the others may be far from done
            for rank in self.others:
                self.channel.wait(rank, number, self._watch_answers)
            answers = [own] * self.size
            for rank in self.others:
                try:
                    answers[rank] = self.channel.read(rank)
                except Exception:  # out of unpickling a user's object, or out of a signal handler
                    answers[rank] = self._unreadable(rank)
                if type(answers[rank]) is not Answer:
                    wrong = TypeError(
                        f"the message of rank {rank} was not an answer but {type(answers[rank]).__name__}"
                    )
                    answers[rank] = Answer(rank, error=Failure(wrong))
            if self.healing is not None:  # what was decided is not undone, however the command ends
                self.healing.note(answers)
        except _Fatal as fatal:
            if self._joining:
                raise
            fatal.error = self._healed(fatal.error, command, own)
            self._note_others(fatal.error, own)
            self._end(str(fatal.error))
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

    def _enclosed(self, command: Command) -> Sequence[Tuple[Handle, bytes]]:
        """Return what the command reads, as far as it is little."""
        found, left = [], ENCLOSED_BYTES
        for handle in command.reads(self.context):
            if isinstance(handle, Handle) and handle.strides is None:
                nbytes = handle.dtype.itemsize * math.prod(handle.shape)
                if nbytes <= left:
                    found.append((handle, self.pools.here(handle).tobytes()))
                    left -= nbytes
        return found

    def _unreadable(self, rank: int) -> Answer:
        """Read an answer that could not be read once more: return its error, or raise what came from elsewhere."""
        with DeferredSignals():
            try:
                self.channel.read(rank)
            except Exception as error:
                return Answer(rank, error=Failure(error))
        raise  # noqa: PLE0704, what is being handled: it came out of a signal handler

    def _note_others(self, error: SynkhronosError, own: Optional[Answer]) -> None:
        """Add to the error that ends the session what else went wrong in the command."""
        if own is not None and own.error is not None:
            add_note(error, f"the master also raised {Failure(own.error).summary}")
        for rank in self.others:
            if own is not None and self.channel.has_answered(rank, self._number):
                failure = self._read(rank).error
                if failure is not None:
                    add_note(error, f"rank {rank} also raised {failure.summary}")

    def _read(self, rank: int) -> Answer:
        with DeferredSignals():  # what is raised now comes out of unpickling, whatever it is
            try:
                answer: Answer = self.channel.read(rank)
            except BaseException as error:
                return Answer(rank, error=Failure(error))
            return answer

    def _raise(self, command: Command, own: Answer, answers: Sequence[Answer]) -> None:
        """Raise what went wrong: the master's own exception, or the first other rank's as a `WorkerError`."""
        failures: Dict[int, Failure] = {
            answer.rank: answer.error for answer in answers if answer is not own and answer.error is not None
        }
        if own.error is not None:
            add_failures(own.error, failures)
            raise own.error
        if self._fatal is None and not failures:
            self._fatal = self._ended_after_answer()
        if self._fatal is not None:  # the master gave up because of it, while all others could still answer
            if self._joining:
                raise _Fatal(self._fatal)
            fatal = self._healed(self._fatal, command, own)
            self._note_others(fatal, own)
            self._end(str(fatal))
            raise fatal
        if not failures:
            self._end("the ranks disagreed")
            raise SynkhronosError(
                f"the ranks disagreed about {command.title}: one waited for another that was not to come; the "
                "session is closed, synkhronos.fork() starts a new one"
            )
        error = worker_error(command, failures, self._updates, self.launcher.host)
        raise error from error.__cause__

    def _ended_after_answer(self) -> Optional[SynkhronosError]:
        """Return the error for a rank that has ended, if only when others still needed something of its host."""
        for rank in self.others:
            if self.block.ended[rank]:
                return self._died(rank, "in " + self._title, self._updates)
        return None

    # -- watching ------------------------------------------------------------------------------------------------

    def _look(self) -> Optional[SynkhronosError]:
        """Return the error to raise if waiting for the command in progress has become pointless."""
        self.launcher.forward(False)
        if self._fatal is None:
            if self.closed:  # from a signal handler, or at the program's exit
                self._fatal = self._was_closed()
                return self._fatal
            if self.context.leading is not None and self.block.words[DEATHS]:
                self.context.leading.receive()  # what a rank has answered before it ended
            stops = type(self._command) is Stop  # whose answers may come after the ends, by another way
            for rank in self.others:
                if not self.block.ended[rank] or stops and not self.block.status[rank]:
                    continue
                if not self.channel.has_answered(rank, self._number):
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
                self._warn = now + (TELL_EVERY_S if level == logging.INFO else WARN_AFTER_S)
                logger.log(level, "waiting for %s in %s, since %.0f s", self._awaited(), self._title, since)
        return self._fatal

    def _awaited(self) -> str:
        """Return the ranks that are awaited, on which hosts, and how far they are, as the log says it."""
        by_host: Dict[str, List[int]] = {}
        for rank in self._missing():
            by_host.setdefault(self.launcher.host(rank), []).append(rank)
        found, counts = [], "" if self._command is None else self._command.counts
        for host, ranks in by_host.items():
            done = f" ({min(self._steps_made()[0][rank] for rank in ranks)} {counts})" if host and counts else ""
            found.append(f"rank(s) {', '.join(map(str, ranks))}" + (f" on host {host}" if host else "") + done)
        return ", ".join(found)

    def _restart_clock(self, now: float) -> None:
        """Count the time that the command may take, and until the ranks are named that are awaited, from now on."""
        self._moved = now
        self._warn = now + (TELL_EVERY_S if self._command is not None and self._command.counts else WARN_AFTER_S)
        self._deadline = float("inf") if self._timeout is None else now + self._timeout

    def _steps_made(self) -> Tuple[List[int], List[int]]:
        """Return how many steps of the last command every rank has made, and how many of these it has undone."""
        block, ranks = self.block, range(self.size)
        begun = [block.steps_command[rank] == self._number for rank in ranks]
        made = [block.steps[rank] if begun[rank] else 0 for rank in ranks]
        return made, [block.undone[rank] if begun[rank] else 0 for rank in ranks]

    def _missing(self) -> List[int]:
        """Return the ranks that have neither answered nor arrived where the master waits."""
        here = self.context.barrier.current
        missing = [rank for rank in self.others if not self.channel.has_answered(rank, self._number)]
        return [rank for rank in missing if self.block.arrived[rank] < here] or missing

    def _watch_barrier(self) -> None:
        if self._look() is not None or any(self.channel.has_answered(rank, self._number) for rank in self.others):
            raise Aborted  # the answers say why

    def _watch_hosts(self) -> None:
        if self._look() is None:  # unlike at a barrier, others may be done
            lost = [rank for rank in self.others if self.block.ended[rank] and self.block.status[rank] == LOST]
            if not lost:
                return
            self._fatal = self._died(lost[0], "in " + self._title, self._updates)
        raise Aborted

    def _watch(self) -> None:
        error = self._look()
        if error is not None:
            raise _Fatal(error)

    def _watch_answers(self) -> None:
        self._watch()
        if any(self.block.arrived[rank] > self.context.barrier.current for rank in self.others):
            self.context.abort()  # it waits for the master, which is done
        if self.block.abort_requested >= self._number:
            self.context.abort()  # others may have many steps before them

    def _raise_what_ended(self) -> None:
        """Raise the error for a rank that has ended since the last command, or for the keeper."""
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
            updates = ()  # they are undone
        error = worker_died(rank, pid, status, memory, when, fatal_error, updates, f" on host {host}" if host else "")
        error.command = self._title
        return error

    def _late(self) -> WorkerTimeout:
        missing = self._late_ranks = self._missing()
        doing = self.launcher.inspect(missing, STACKS_TIMEOUT_S)
        ranks = "\n".join(f"rank {rank} (pid {self.launcher.pid(rank)}): {doing[rank]}" for rank in missing)
        late = "no rank finished a step of {} within" if any(self._steps) else "{} did not finish within"
        error = WorkerTimeout(
            f"{late.format(self._title)} {self._deadline - self._moved:.6g} s; the session is closed, "
            f"synkhronos.fork() starts a new one. Not there:\n{ranks}",
            missing[0] if missing else self.root,
            self._updates,
        )
        error.command = self._title
        return error

    # -- ending --------------------------------------------------------------------------------------------------

    def _recover(self, number: int) -> None:
        """After an interrupt in the middle of a command: make the ranks idle again, or end them."""
        done = False
        try:
            if self.block.command_number >= number:  # else it was not sent
                self.context.abort()
                self._fatal, self._timeout = None, GRACE_S
                self._restart_clock(time.monotonic())
                for rank in self.others:
                    self.block.commands[rank].release()  # the interrupt may have come before this rank was woken
                for rank in self.others:
                    self.channel.wait(rank, number, self._watch_answers)
                if self.healing is not None:
                    self.healing.note([self._read(rank) for rank in self.others])
                self.context.settle()
                self.context.barrier.clear()
            done = True
        except _Fatal:
            pass
        finally:
            if not done:
                self._end(f"{self._title} was given up")

    def _was_closed(self) -> SynkhronosError:
        return StateError(f"the session was closed ({self.closed}) in the middle of {self._title}")

    def _healed(self, error: SynkhronosError, command: Command, own: Optional[Answer]) -> SynkhronosError:
        """Return the error that ends the session, or raise `_Healed` if it need not end."""
        if self.healing is not None and self._heal(error, command, own):
            raise _Healed from None
        return self._was_closed() if self.closed else error

    def _heal(self, error: SynkhronosError, command: Command, own: Optional[Answer]) -> bool:
        """Replace the ranks that have ended, or are stuck; return whether the command can be repeated."""
        healing, began = self.healing, time.monotonic()
        assert healing is not None
        if not isinstance(error, (WorkerDied, WorkerTimeout)) or not self.launcher.is_alive():
            return False
        dead = self._lost(error)
        killed = {rank for rank in dead if self.block.ended[rank] and -self.block.status[rank] in KILLED}
        sent = self.block.command_number >= self._number
        deaths: List[SynkhronosError] = [error] * len(dead)
        try:
            why_not = healing.why_not(command, dead, sent, self.context, killed)
            if own is not None and own.error is not None:
                why_not = why_not or "the master has raised an error, too"
            while not why_not:
                try:
                    why_not = self._free(dead)
                    if not why_not:
                        self._replace(dead)
                        break
                except _Fatal as fatal:  # another death, meanwhile: those that are replaced have not ended any more
                    lost = self._lost(fatal.error) - (set() if self._joining else dead)
                    deaths += [fatal.error] * len(lost)
                    if not lost or len(healing.deaths) + len(deaths) > healing.most:
                        why_not = f"{fatal.error} (death {len(healing.deaths) + len(deaths)} of {healing.most})"
                    dead |= lost  # all of them anew, as nobody has all that it needs
                self._joining = False
        except Exception as failure:
            why_not = f"no other process could take its place: {Failure(failure).summary}"
        except BaseException:  # an interrupt, with which ranks are missing
            self._end(f"{self._title} was given up")
            raise
        finally:
            self._joining = False
        if why_not:
            add_note(error, f"it was not repaired (heal={healing.most}): {why_not}")
            return False
        healing.repaired(deaths, dead - killed, command, sent, time.monotonic() - began)
        self._fatal, self._command = None, command
        return True

    def _lost(self, error: SynkhronosError) -> Set[int]:
        """Return the ranks that have ended, or that such an error is about."""
        if not isinstance(error, RankFailure):
            return set()
        ended = {rank for rank in self.others if self.block.ended[rank]}
        return ended.union(self._late_ranks) if isinstance(error, WorkerTimeout) else ended

    def _free(self, dead: Set[int]) -> str:
        """Make the ranks that live idle again; return why the command cannot be repeated."""
        number, failed = self._number, []
        self.context.abort()
        self._fatal = None
        self._restart_clock(time.monotonic())  # they finish what they are computing, which may take so long again
        for rank in self.others:
            if rank not in dead and self.block.command_number >= number:
                self.block.commands[rank].release()
                self.channel.wait(rank, number, functools.partial(self._watch_survivor, rank))
                if self._read(rank).error is not None:
                    failed.append(rank)
        self.context.settle()
        return f"rank {failed[0]} has raised an error, too" if failed else ""

    def _watch_survivor(self, rank: int) -> None:
        self.launcher.forward(False)
        if self.closed:
            raise _Fatal(self._was_closed())
        if self.block.ended[rank]:
            raise _Fatal(self._died(rank, "while another one was replaced"))
        if time.monotonic() > self._deadline:
            error, self._late_ranks = self._late(), [rank]
            raise _Fatal(error)

    def _replace(self, dead: Set[int]) -> None:
        """Have new processes take the places of ranks, and give them what those had."""
        healing = self.healing
        assert healing is not None
        self._joining = True
        with DeferredSignals():  # whose handlers may close the session
            if self.closed:
                raise _Fatal(self._was_closed())
            self.launcher.end(dead)
            for rank in dead:
                self.block.reset(rank)
            self.block.deaths = 0  # the keeper writes that a rank has ended before it writes this
            self.context.barrier.clear()
            for rank in dead:
                self.launcher.replace(rank, healing.ranges(rank), self.pools)
        limit = JOIN_TIMEOUT_S if self.timeout is None else max(self.timeout, LEAST_JOIN_TIMEOUT_S)
        if self.setup is not None:
            self._execute(self.setup, limit)
        if self.context.replicas is not None:
            plans = {place: prepared.plan for place, prepared in self.context.plans.items()}
            held = {rank: dict(healing.held[rank]) for rank in dead}  # a variable may be dropped meanwhile
            self._execute(self.context.replicas.rejoin(held, plans), limit)

    def _end(self, why: str) -> None:
        """End the session at once."""
        with DeferredSignals():
            self.closed = self.closed or why.split(";")[0]
            self.context.abort()
            self.context.settle()
            self.launcher.kill()
            self._tidy()

    def close(self, why: str = "synkhronos.close() was called", wait_s: float = -1) -> None:
        """Stop the ranks; kill those that do not end. May be called twice.

        Parameters
        ----------
        why : str
            What a later use of the session is told.
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
            try:
                self._end(why)
            finally:
                if not self.closed:  # an exception out of a signal handler came before handlers were deferred
                    self._end(why)
                if mine:
                    self.lock.release()

    def _tidy(self) -> None:
        self.prefetch.end()
        at_end, self.at_end = self.at_end, bool
        at_end()
        for rank in self.others:
            self.pools.remove(rank)
        if self.context.leading is not None:
            self.context.leading.close()
        self.block.close()
        self.affinity.release()
        # Without these reference cycles the memory, and the descriptors of its mappings, go with the last reference.
        self.context.barrier.watch = _over
        self.context.replicas = self.context.results = None
        self.caches.clear()
        profile, self._profile = self._profile, None
        if profile is not None and self._profile_path is not None:
            profile.dump_stats(self._profile_path)


class _Healed(Exception):
    """A rank has died in a command and was replaced: the command is to be repeated."""


class _Fatal(Exception):
    """Carries the error that ends the session, past the handlers of errors that do not."""

    def __init__(self, error: SynkhronosError) -> None:
        super().__init__(str(error))
        self.error = error

    def take(self) -> SynkhronosError:
        """Return the error and let go of it, whose context this will be: reference cycles keep the frames' memory."""
        error = self.error
        del self.error
        self.__traceback__ = None
        return error


def check_timeout(timeout: Any) -> None:
    """Refuse a timeout that is neither None nor a positive number of seconds.

    Raises
    ------
    ValueError
    """
    if timeout is not None and (
        isinstance(timeout, bool) or not (isinstance(timeout, (int, float)) and 0 < timeout <= sys.float_info.max)
    ):
        raise ArgumentValueError("timeout", "a positive number of seconds or None", repr(timeout))


def _over() -> None:
    """Watch over a session that has ended."""
    raise Aborted
