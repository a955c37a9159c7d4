"""The scheduler of the simulated world: processes are greenlets of one thread, and one of them runs at a time.

A *process* runs until it reaches a scheduling point at which the seed lets another one continue, or until it waits.
Simulated time passes only at points, and when no process can run: then the first time limit of a wait ends. ::

    rank 0   point  point  point  wait ............................ point
    rank 1                               point  point  wait
    keeper                                                  reap, wait

A process that has died stays where it was, and no handler of its runs. Its greenlet ends after the schedule.
"""

import random
import traceback
from collections import Counter
from math import log
from operator import attrgetter

from greenlet import getcurrent, greenlet

READY, BLOCKED, STOPPED, DEAD, ENDED = "ready", "blocked", "stopped", "dead", "ended"

TICK_S = 1e-6  # simulated time between two points
POINTS_PER_COMMAND = 200_000  # a command with more points does not end
SECONDS_PER_COMMAND = 600.0  # simulated time after which a command waits for ever
LONGEST_JUMP_S = 0.2  # a process that can continue is not kept from it for longer, unless a fault says so
FOREVER = float("inf")


class Hang(BaseException):
    """Raised in the program if no process can continue, or if a command does not end."""


class ProgramDied(BaseException):
    """Raised in the program, at every point from its death on, so that none of its handlers has an effect."""


class Unwound(BaseException):
    """Ends the greenlet of a dead process after the schedule."""


class Process:
    """A simulated process, or a thread of the process ``owner``; ``weight`` is how often it is chosen."""

    def __init__(self, pid, name, weight=1.0, owner=None):
        self.pid, self.name, self.weight, self.owner = pid, name, weight, owner or self
        self.parent, self.host = None, 0
        self.greenlet = self.rank = None
        self.call = None  # the current call of a function, see `operating_system.CurrentCall`
        self.fds = {}  # descriptors to close if it does not
        self.state, self.status = READY, None
        self.label, self.points = "start", 0
        self.due, self.fault = -1, None  # the number of the point at which a fault happens
        self.key, self.until = None, FOREVER  # what it waits for

    def __repr__(self):
        return f"{self.name} ({self.state} at {self.label})"


class Habits:
    """How a schedule chooses: drawn from its seed, and different from schedule to schedule.

    Attributes
    ----------
    gap : float
        Mean number of points between two switches.
    jumps : float
        Probability of a switch at which a time limit ends although others can run, as on a busy machine.
    most : int
        Number of switches after which a process runs until it waits.
    """

    def __init__(self, rng, most):
        self.gap = rng.choice((1.0, 2.0, 4.0, 12.0, 40.0, 150.0))
        self.jumps = rng.choice((0.0, 0.0, 0.0, 0.01, 0.1))
        self.weights = rng.choice(((1.0,), (1.0,), (1.0, 0.1), (1.0, 0.02)))
        self.is_uniform = self.weights == (1.0,)
        self.most = most


class Scheduler:
    """Runs the processes of one schedule after another; the program is the main greenlet.

    `visit` is a scheduling point; `counts` and `orders` are totals of all schedules: how often each point was visited,
    and which of two pending points came first.
    """

    def __init__(self):
        self.counts, self.orders = Counter(), set()
        self.ended = lambda process: None  # called when a process ends
        self.on_fault = lambda process, fault: None
        self.program = self.running = Process(0, "nothing")
        self.left = FOREVER
        self.processes, self.over, self.failure, self.is_program_dead = [], True, None, False
        self.now, self.crash = 0.0, ""
        self.is_atomic = False  # a thread runs that the process waits for, without switches

    # -- schedules -------------------------------------------------------------------------------------------------

    def begin(self, seed, most=FOREVER):
        """Begin a schedule, with the calling greenlet as the program."""
        self.rng = random.Random(seed)
        self._draw = self.rng.random
        self.habits = Habits(self.rng, most)
        self.now, self.left, self.over, self.failure = 1000.0, 1, False, None
        self.is_program_dead, self.crash = False, ""
        self.total = self.switches = self.idle = self.digest = 0
        self.processes = []
        self.program = self.running = self._new("program")
        self.program.greenlet = getcurrent()
        self.begin_command()

    def begin_command(self):
        """Restart the limits on a command."""
        self._until, self._last = self.now + SECONDS_PER_COMMAND, self.total + POINTS_PER_COMMAND

    def end(self):
        """End the schedule and the greenlets of all processes."""
        self.over, self.left = True, 0
        for process in self.processes[1:]:
            if process.greenlet:  # it has begun, and has not ended
                self.running = process
                process.greenlet.switch()
        for process in self.processes:
            process.key = process.parent = process.greenlet = None  # cycles of references would keep descriptors open
        self.left, self.processes = FOREVER, []
        self.program = self.running = Process(0, "nothing")

    def _new(self, name, owner=None):
        process = Process(5_000_000 + len(self.processes), name, self.rng.choice(self.habits.weights), owner)
        self.processes.append(process)
        return process

    def start(self, name, work, owner=None):
        """Start a process that calls ``work(process)`` and ends with the returned status; or a thread of ``owner``."""
        process = self._new(name, owner)

        def live(*_):
            try:
                process.status = work(process)
            except Unwound:
                pass
            except BaseException:  # the program then finds `crash`
                self.crash, process.status = self.crash or f"{process}: {traceback.format_exc()}", 1
            if not self.over:
                self._end(process, ENDED)
                self._leave(process)

        process.greenlet = greenlet(live, self.program.greenlet)
        return process

    # -- points ----------------------------------------------------------------------------------------------------

    def visit(self, label):
        """Pass a scheduling point."""
        me = self.running
        me.label = label
        me.points += 1
        self.total += 1
        self.now += TICK_S
        self.counts[label] += 1
        self.left -= 1
        if me.points == me.due or self.left <= 0:
            self._visit(me)

    def _visit(self, me):
        if self.is_atomic:
            if me.points == me.due:
                me.due += 1
            self.left = max(self.left, 1)
            return
        if self.over or self.failure or self.is_program_dead or self.total > self._last or self.now > self._until:
            self._check(me)
        if me.points == me.due:
            fault, me.fault, me.due = me.fault, None, -1
            self.on_fault(me, fault)
        if self.left <= 0:
            gap = self.habits.gap
            self.left = 1 + int(-gap * log(1.0 - self._draw())) if gap > 1 else 1
            if self.switches < self.habits.most:
                self._pass_turn(me)

    def _check(self, me):
        """Raise the exception of a schedule that is over, or that cannot end."""
        if self.over:
            raise Unwound
        if self.is_program_dead and me is self.program:
            raise ProgramDied
        if self.total > self._last:
            self.failure = self.failure or f"a command does not end after {POINTS_PER_COMMAND} points"
        elif self.now > self._until:
            self.failure = self.failure or f"a command waits for more than {SECONDS_PER_COMMAND:g} s"
        if self.failure is not None:
            if me is self.program:
                raise Hang(f"{self.failure}: {self.processes}")
            self.left, self.running = 0, self.program
            self.program.greenlet.switch()
            self._check(me)

    # -- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, key, until=FOREVER):
        """Wait until `wake` is called for a key, or until a time; there may be other reasons to return."""
        me = self.running
        if self.over:
            raise Unwound
        if self.is_atomic:
            raise Hang(f"a thread of {me} waits")
        me.state, me.key, me.until = BLOCKED, key, until
        self._pass_turn(me)

    def wake(self, key):
        """Let all processes that wait for a key continue."""
        for process in self.processes:
            if process.state is BLOCKED and process.key == key:
                process.state = READY

    def sleep(self, seconds):
        """Wait for some seconds."""
        until = self.now + seconds
        while self.now < until:
            self.wait(None, until)

    def settle(self):
        """Let the others run until all of them wait; return only then."""
        while True:
            self.wait(None, self.now)
            if not any(each.state is READY for each in self.processes if each is not self.program):
                return

    def stop(self, process):
        """Stop a process for ever, as by SIGSTOP."""
        process.state = STOPPED
        if process is self.running:
            self._pass_turn(process)

    def kill(self, process, status=-9):
        """End a process and its threads where they are, as by SIGKILL."""
        if process.state in (DEAD, ENDED):
            return
        process.status = status
        self._end(process, DEAD)
        if self.running.owner is process:
            self._pass_turn(self.running)

    def _end(self, process, state):
        process.state = state
        if process.owner is process:
            for thread in self.processes:
                if thread.owner is process and thread.state is not ENDED:
                    thread.state = state
            self.ended(process)
        else:
            self.wake(process)  # a thread that waits for this one

    def kill_program(self):
        """End the program where it is, as by SIGKILL; its greenlet lives on as an observer that calls `bury_program`."""
        self.is_program_dead, self.left = True, 0
        raise ProgramDied

    def bury_program(self):
        """Make the program's greenlet an observer of the other processes."""
        self.is_program_dead, self.left = False, 1

    # -- turns -----------------------------------------------------------------------------------------------------

    def _choose(self):
        """Return the process that continues; advance the clock if all processes wait."""
        ready = [each for each in self.processes if each.state is READY]
        if not ready or self.habits.jumps and self._draw() < self.habits.jumps:
            limit = self.now + LONGEST_JUMP_S if ready else FOREVER
            timed = [each for each in self.processes if each.state is BLOCKED and each.until < limit]
            if timed:
                first = min(timed, key=attrgetter("until"))
                if first.until > self.now:
                    self.now = first.until
                    self.idle += not ready
                first.state = READY
                ready.append(first)
            elif not ready:
                self.failure = self.failure or "all processes wait for each other"
                return self.program
        n = len(ready)
        if n == 1:
            return ready[0]
        if self.habits.is_uniform:
            chosen = ready[int(self._draw() * n)]
        else:
            left = self._draw() * sum([each.weight for each in ready])
            for chosen in ready:
                left -= chosen.weight
                if left < 0:
                    break
        label, add = chosen.label, self.orders.add
        for each in ready:
            if each is not chosen:
                add((label, each.label))
        return chosen

    def _pass_turn(self, me):
        chosen = self._choose()
        if chosen is not me:
            self.switches += 1
            self.digest = hash((self.digest, self.total, chosen.pid))
            self.running = chosen
            chosen.greenlet.switch()
        if self.over or self.failure is not None:
            self._check(me)

    def _leave(self, process):
        """Choose the process that continues after the end of this one."""
        self.running = self._choose()
        process.greenlet.parent = self.running.greenlet
