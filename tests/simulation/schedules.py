"""Schedules of the simulated world: a program, its faults and the order of the ranks, all drawn from a seed.

`Simulation.run` runs a schedule and checks it after every step:

* all ranks have the values of one moment, before or after the step (a function without collectives is independent on
  every rank, unless dead ranks are replaced), and every result has NumPy's bits;
* an error names a fault that happened, and its rank;
* no command waits for ever, and without faults none waits for a time limit;
* at the end no process, descriptor or thread is left.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import threading
import weakref
from collections import Counter
from typing import NamedTuple, Optional, Tuple

import numpy as np
from operating_system import SimulatedKeeper, World
from simulated_steps import KINDS, LARGEST, NAMES, RARE, START, Variables
from turns_of_ranks import BLOCKED, DEAD, ENDED, FOREVER, STOPPED, Hang, ProgramDied, Scheduler

import synkhronos as synk
from synkhronos.errors import SharedMemoryError, WorkerDied, WorkerError, WorkerTimeout
from synkhronos.program import program as program_module
from synkhronos.program.program import PROGRAM
from synkhronos.replication.replicator import replicator_of
from synkhronos.sync.control_block import COMMAND_NUMBER
from synkhronos.testing import numpy_engine as engine

STEPS = (10, 12)  # the least and the largest number of steps of a program

#: Points at which a rank can raise an exception, and at which memory can be short.
ENGINE_POINT, MEMORY_POINT = "NumpyEngine.call before", "Pool.allocate before"

#: Points of the program, of other ranks and of all, at which half of the other faults happen: little time passes between
#: them and their neighbors.
OF_PROGRAM = (
    *("decided written", "command_number written", "MasterEnd.send before", "MasterEnd.send after"),
    *("MasterEnd.wait before", "MasterEnd.read before"),
)
OF_RANKS = (
    *("RankEnd.wait after", "RankEnd.read before", "RankEnd.send before", "finished written"),
    *("RankEnd.promise before", "promised written", "RankEnd.promise after"),
)
OF_ALL = (
    *("Barrier.wait before", "Barrier.wait after", "arrived written", "semaphore posted", "Pool.allocate after"),
    *("Transaction.commit before", "Transaction.commit after", "Transaction._make_or_undo before"),
    *("Transaction.try_out before", "Transaction.try_out after", "SharedMemoryTransport.swap_in before"),
    *("NumpyEngine.call before", "NumpyEngine.call after", "RankContext.execute before", "RankContext.execute after"),
)

#: Points at which two thirds of the interrupts happen: some ranks have made a change, others not.
OF_INTERRUPTS = (
    *("Transaction._make_or_undo before", "SharedMemoryTransport.swap_in before", "Transaction.try_out before"),
    *("Barrier.wait after", "command_number written", "semaphore posted", "MasterEnd.wait before"),
)

#: Kinds of faults, and how often each is drawn.
FAULTS = {"death": 6, "exception": 2, "memory": 2, "interrupt": 4, "stuck": 1, "pause": 2, "keeper": 1, "master": 1}


#: Reasons for not replacing a dead rank, besides the maximum number of deaths.
REFUSALS = ("all_reduce(wait=False) was pending", "also raised", "cannot be repeated", "were not in shared memory")


class Fault(NamedTuple):
    """A fault of a rank, at its point of this number after the beginning of a step; "pause" lasts for ``seconds``.

    If ``at`` is not empty, the fault happens at the next point with this label. If ``again`` is not 0, the process that replaces a dead rank also dies, at its point of this number.
    """

    kind: str
    rank: int
    step: int
    point: int
    seconds: float = 0.0
    again: int = 0
    at: str = ""


class Schedule(NamedTuple):
    """A program with its faults, and the seed of the order of the ranks; ``switches`` limits their number."""

    n: int
    root: int
    heal: int
    standby: bool
    timeout: Optional[float]
    late_reports: float
    looks: int
    steps: Tuple[Tuple, ...]
    faults: Tuple[Fault, ...]
    order: int
    switches: float = FOREVER

    def __str__(self):
        lines = [
            f"{self.n} ranks, root {self.root}, heal={self.heal}, standby={self.standby}, timeout={self.timeout}, "
            f"order {self.order}, at most {self.switches} switches"
        ]
        for i, (name, *args) in enumerate(self.steps):
            lines.append(f"{i:>3}. {name}{tuple(args)}")
            lines += [f"     {fault}" for fault in self.faults if fault.step == i]
        return "\n".join(lines)


def drawn(seed):
    """Return the schedule of a seed."""
    rng = random.Random(seed)
    n = rng.choice((2, 2, 3, 3, 4))
    root = rng.choice((0, 0, rng.randrange(n)))
    kinds = list(KINDS)
    weights = [RARE.get(name, 4) for name in kinds]
    steps = []
    for _ in range(rng.randint(*STEPS)):
        name = rng.choices(kinds, weights)[0]
        steps.append((name, *KINDS[name].draw(rng, n)))
    n_faults = rng.choice((0, 1, 1, 2, 3))
    faults = tuple(sorted(_fault(rng, n, root, len(steps)) for _ in range(n_faults)))
    stuck = any(fault.kind == "stuck" for fault in faults)
    return Schedule(
        n,
        root,
        rng.choice((0, 1, 3, 9)),
        rng.random() < 0.5,
        2.0 if stuck else None,
        rng.choice((0.0, 0.0, 0.0, 0.001, 0.001, 0.01, 0.01, 0.15)),
        rng.choice((1, 1, 2, 4)),
        tuple(steps),
        faults,
        rng.randrange(2**32),
    )


def _fault(rng, n, root, n_steps):
    kind = rng.choices(list(FAULTS), list(FAULTS.values()))[0]
    others = [rank for rank in range(n) if rank != root]
    rank = rng.choice(others)
    if kind in ("interrupt", "master"):
        rank = root
    elif kind in ("exception", "memory", "pause"):
        rank = rng.randrange(n)
    elif kind == "keeper":
        rank = -1
    point = 1 + int(rng.expovariate(1 / rng.choice((4.0, 20.0, 60.0, 200.0))))
    again = 0 if kind != "death" else rng.choice((0, 0, 0, 1 + int(rng.expovariate(1 / 40.0))))
    moments = OF_INTERRUPTS if kind == "interrupt" else OF_ALL + (OF_PROGRAM if rank == root else OF_RANKS)
    at = rng.choice(moments) if rng.random() < (0.67 if kind == "interrupt" else 0.5) else ""
    at = {"exception": ENGINE_POINT, "memory": MEMORY_POINT, "keeper": ""}.get(kind, at)
    return Fault(kind, rank, rng.randrange(n_steps), point, rng.choice((0.001, 0.15, 1.5)), again, at)


class Wrong(AssertionError):
    """A schedule has violated an invariant; ``kind`` is a word for it."""

    def __init__(self, kind, text):
        super().__init__(kind, text)
        self.kind, self.text = kind, text

    def __str__(self):
        return f"{self.kind}: {self.text}"


class Planned(Exception):
    """Exception of a rank that the schedule planned."""


class Simulation:
    """The simulated world in this process, used by one schedule after another: `install`, `run`, `uninstall`."""

    def __init__(self):
        self.scheduler = Scheduler()
        self.world = World(self.scheduler)
        self.faults = Counter()  # of all schedules: faults that happened
        self.steps = Counter()
        self._runs = self.replaced = 0

    def __enter__(self):
        PROGRAM.shut_down()
        self._kept = {name: getattr(PROGRAM, name) for name in ("_pool", "_functions")}
        self._keeper, program_module.Keeper = program_module.Keeper, lambda enter: SimulatedKeeper(self.world)
        # A shell starts programs in the background with Ctrl-C ignored, and so would this one ignore its interrupts.
        self._handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.world.install()
        self._level = logging.getLogger("synkhronos").level
        logging.getLogger("synkhronos").setLevel(logging.CRITICAL)
        gc.collect()
        gc.freeze()
        gc.disable()
        self._files = _count_files()
        return self

    def __exit__(self, *error):
        gc.enable()
        gc.unfreeze()
        self.world.uninstall()
        signal.signal(signal.SIGINT, self._handler)
        logging.getLogger("synkhronos").setLevel(self._level)
        program_module.Keeper = self._keeper
        vars(PROGRAM).update(self._kept)
        gc.collect()

    # -- one schedule ----------------------------------------------------------------------------------------------

    def run(self, schedule):
        """Run a schedule and return its digest; raise `Wrong`."""
        scheduler, world = self.scheduler, self.world
        self.schedule, self.happened, self.excused, self._next = schedule, [], [], {}
        PROGRAM._pool = PROGRAM._keeper = PROGRAM.session = None
        PROGRAM._functions = weakref.WeakValueDictionary()
        scheduler.begin(schedule.order, schedule.switches)
        world.begin()
        world.late_reports = schedule.late_reports
        world.on_rank = self._begin_rank
        scheduler.on_fault = self._strike
        self.variables = Variables()  # functions keep memory between sessions, so they are new, too
        if schedule.timeout is not None:  # a rank that is only slow must not be late
            scheduler.habits.jumps = 0.0
        if schedule.faults and any(fault.kind == "pause" for fault in schedule.faults):
            scheduler.habits.jumps = min(scheduler.habits.jumps, 0.01)
        self.model = {name: [START[name]] * schedule.n for name in NAMES}
        self.unsure, failure = False, None
        try:
            for number, step in enumerate(schedule.steps):
                self.number = number
                self._take(step)
            self._close()
        except Wrong as wrong:
            failure = wrong
        except ProgramDied:
            failure = self._end_of_program()
        except Hang as hang:
            failure = Wrong("waits for ever", str(hang))
        finally:
            digest = scheduler.digest, scheduler.total, scheduler.switches
            if scheduler.failure is not None and failure is None:
                failure = Wrong("waits for ever", scheduler.failure)
            world.end()
            self._clean_up()
            self._runs += 1
            if self._runs % 20 == 0:  # garbage collection is off, because it would run at any point
                gc.collect()
        if failure is not None:
            failure.schedule = schedule
            raise failure
        return digest

    def _end_of_program(self):
        """Return a failure unless all processes end after the program."""
        scheduler, world = self.scheduler, self.world
        scheduler.bury_program()
        scheduler.begin_command()
        PROGRAM._keeper._socket.close()  # by the kernel
        left = scheduler.processes[1:]
        for _ in range(20):
            if not left:
                return None
            scheduler.sleep(0.5)
            left = [each for each in scheduler.processes[1:] if each.state not in (DEAD, ENDED)]
        return Wrong("left", f"after the death of the program: {left}; {world.describe_state(left[0].pid)}")

    def _clean_up(self):
        session, PROGRAM.session = PROGRAM.session, None
        if session is not None:
            session.launcher._tidy()  # only necessary after the death of the program
            session.block.close()
            session.closed = session.closed or "the schedule is over"
            session.caches.clear()
        if PROGRAM._keeper is not None:
            PROGRAM._keeper._status = -1
        PROGRAM._keeper = PROGRAM._pool = None

    def _open(self):
        """Open a session if there is none, with the master's values on all ranks."""
        schedule, session = self.schedule, PROGRAM.session
        if session is not None and not session.closed:
            return
        PROGRAM.close()
        n, root = schedule.n, schedule.root
        self.model = {name: [self.variables[name].storage[0].copy()] * n for name in NAMES}
        options = {"heal": schedule.heal, "standby": schedule.standby, "timeout": schedule.timeout}
        self.excused, self.unsure, self._next = [], False, {}
        PROGRAM.open(n, root, launcher="fork", pin=False, keep_heap=False, **options)

    def _take(self, step):
        """Take a step with its faults, and check its outcome."""
        name, *args = step
        schedule, scheduler = self.schedule, self.scheduler
        kind = KINDS[name]
        scheduler.begin_command()
        self.happened = []
        self._plan()
        before = self.model
        try:
            self._open()
            before = self.model
            if self.unsure:
                self._broadcast_all()
                before = self.model
            too_large = any(np.abs(value).max(initial=0) > LARGEST for values in before.values() for value in values)
            if too_large or not kind.is_possible(before):
                name, args, kind = "broadcast", ["w", 3.0], KINDS["broadcast"]  # makes it possible again
            meaning = kind.mean(before, schedule.n, schedule.root, *args)
        except BaseException as error:
            if isinstance(error, (Hang, ProgramDied, Wrong)):
                raise
            self._check_error(error, "fork")
            if not _same(self._values_of_master(), before, schedule.root):
                raise Wrong("values", f"after fork failed: {self._values_of_master()}, expected {before}") from error
            self.unsure = True
            return
        self.steps[name] += 1
        idle = scheduler.idle
        result, error = None, None
        try:
            result = kind.run(self.variables, *args)
        except (Hang, ProgramDied, Wrong):
            raise
        except BaseException as raised:
            error = raised
            del raised
        try:
            if error is not None:
                self._check_error(error, name)
            else:
                self._check_result(name, result, meaning)
            harmless = {fault.kind for fault in self.excused} <= {"exception", "memory"}
            if harmless and not scheduler.habits.jumps and scheduler.idle > idle and name != "reopen":
                raise Wrong("late", f"{name} waited for a time limit although no rank was late; faults: {self.excused}")
            harmless = {fault.kind for fault in self.excused} <= {"exception", "memory", "interrupt"}
            if harmless and not scheduler.habits.jumps and name != "reopen" and PROGRAM.session.closed:
                raise Wrong("closed", f"{name} closed the session; faults: {self.excused}")
            self._check_values(name, meaning, error is not None)
        finally:
            error = None

    def _broadcast_all(self):
        """Set all ranks to the master's values."""
        synk.broadcast([self.variables[name] for name in NAMES])
        self.model = {name: [self.variables[name].storage[0].copy()] * self.schedule.n for name in NAMES}
        self.unsure = False

    # -- faults ----------------------------------------------------------------------------------------------------

    def _plan(self):
        """Arm the faults of the step that begins."""
        for fault in self.schedule.faults:
            if fault.step == self.number:
                process = self._process(fault.rank)
                if process is not None:
                    process.fault, process.due = fault, process.points + fault.point

    def _begin_rank(self, process):
        """Count a process that replaces a rank, and arm its fault."""
        self.replaced += PROGRAM.session is not None and not PROGRAM.session.closed
        if process.rank in self._next:
            process.fault, point = self._next.pop(process.rank)
            process.due = process.points + point

    def _process(self, rank):
        if rank == self.schedule.root:
            return self.scheduler.program
        if rank < 0:
            found = [each for each in self.scheduler.processes if each.name == "keeper"]
            return found[-1] if found and found[-1].state not in (DEAD, ENDED) else None
        return self.world.ranks().get(rank)

    def _strike(self, process, fault):
        """Make a fault happen at a process's present point."""
        scheduler = self.scheduler
        if fault.at and process.label != fault.at:
            process.fault, process.due = fault, process.points + 1
            return
        if fault.kind == "master" and (PROGRAM.session is None or PROGRAM.session.closed):
            process.fault, process.due = fault, process.points + 1  # in a session
            return
        self.happened.append(fault)
        self.excused.append(fault)
        self.faults[fault.kind] += 1
        if fault.kind == "death":
            if fault.again:
                self._next[fault.rank] = fault._replace(again=0, at=""), fault.again
            scheduler.kill(process)
        elif fault.kind == "stuck":
            scheduler.stop(process)
        elif fault.kind == "pause":
            scheduler.sleep(fault.seconds)
        elif fault.kind == "exception":
            raise Planned(f"planned on rank {fault.rank}")
        elif fault.kind == "memory":
            raise SharedMemoryError(f"planned on rank {fault.rank}")
        elif fault.kind == "keeper":
            self._kill_keeper(process)
        elif fault.kind == "master":
            scheduler.kill_program()
        else:
            signal.raise_signal(signal.SIGINT)

    def _kill_keeper(self, process):
        for each in self.world.children():  # the kernel kills the ranks (PR_SET_PDEATHSIG)
            if each is not process:
                self.scheduler.kill(each)
        self.scheduler.kill(process)

    # -- checks ----------------------------------------------------------------------------------------------------

    def _check_error(self, error, name):
        """Raise unless a fault explains the error."""
        kinds = {fault.kind for fault in self.excused}
        ranks = {fault.rank for fault in self.excused if fault.kind in ("death", "stuck")}
        here = {fault.rank for fault in self.happened if fault.kind in ("exception", "memory")}
        text = f"{type(error).__name__}: {error}"
        explained = False
        if isinstance(error, (Hang, ProgramDied)):
            raise error
        if isinstance(error, KeyboardInterrupt):
            explained = "interrupt" in kinds
        elif isinstance(error, WorkerDied):
            explained = error.rank in ranks or "keeper" in kinds
        elif isinstance(error, WorkerTimeout):
            explained = error.rank in ranks and "stuck" in kinds
        elif isinstance(error, WorkerError):
            explained = error.rank in here and f"planned on rank {error.rank}" in text
        elif isinstance(error, (Planned, SharedMemoryError)):
            explained = self.schedule.root in here and "planned on rank" in text
        elif "keeper" in kinds:
            explained = "keeper" in text
        elif "planned" in text and here:
            explained = True
        if explained and isinstance(error, (WorkerDied, WorkerTimeout)):
            self._check_not_replaced(error, name)
        if not explained:
            raise Wrong("unexplained", f"{name} raised {text}; faults: {self.excused}") from error

    def _check_not_replaced(self, error, name):
        """Raise if a rank was not replaced, although the session has not yet replaced as many as it may."""
        lost = [fault for fault in self.excused if fault.kind in ("death", "stuck")]
        if len(lost) > self.schedule.heal or "keeper" in {fault.kind for fault in self.excused}:
            return
        notes = " ".join(getattr(error, "__notes__", ()))
        if not any(reason in notes for reason in REFUSALS):
            raise Wrong("not replaced", f"{name} raised {error}\n{notes}\nfaults: {self.excused}") from error

    def _check_result(self, name, result, meaning):
        if name != "reopen" and [f for f in self.happened if f.kind in ("exception", "memory")]:
            if not {f.kind for f in self.excused} & {"death", "keeper", "stuck", "interrupt"}:
                raise Wrong("swallowed", f"{name} returned although {self.happened}")
        expected = meaning.result
        if expected is None:
            return
        for i, (one, other) in enumerate(zip(result, expected)):
            if not np.array_equal(one, other):
                raise Wrong("result", f"{name} returned {one!r} at {i}, expected {other!r}")

    def _check_values(self, name, meaning, failed):
        """Compare the values of all ranks with the moments of a step; continue from the values that are there."""
        schedule, session = self.schedule, PROGRAM.session
        moments = meaning.moments
        if session is None or session.closed:
            found = {schedule.root: self._values_of_master()}
        elif failed or self.number % schedule.looks == 0 or name == "own_value":
            found = self._values(name, session)
        else:
            found = {schedule.root: self._values_of_master()}
        allowed = moments if failed else moments[-1:]
        simple = {f.kind for f in self.excused} <= {"exception", "memory"}
        if failed and simple and meaning.together and len(moments) == 2:
            allowed = moments[:1]
        if meaning.together or schedule.heal and len(moments) == 2:
            fits = [m for m in allowed if all(_same(values, m, rank) for rank, values in found.items())]
        else:
            fits = allowed[-1:]
            for rank, values in found.items():
                if not any(_same(values, m, rank) for m in allowed):
                    fits = []
        if not fits:
            raise Wrong("values", f"after {name}{' failed' if failed else ''}: {found}, expected one of {allowed}")
        new = fits[-1]
        ranks = range(schedule.n)
        unseen = [rank for rank in ranks if len(found.get(rank, ())) < len(NAMES)]
        self.model = {each: [found.get(rank, {}).get(each, new[each][rank]) for rank in ranks] for each in NAMES}
        # After a failure, nothing is known about a dead rank, or about variables that are not on the ranks yet.
        self.unsure = failed and bool(unseen) or name == "own_value" and failed

    def _values_of_master(self):
        return {name: np.array(self.variables[name].storage[0]) for name in NAMES}

    def _values(self, name, session):
        """Return the values of all ranks that are alive, once all of them wait for a command."""
        scheduler, world = self.scheduler, self.world
        scheduler.settle()
        for _ in range(20):  # a rank may have to look at its peers by itself, which it does every 0.1 s
            if all(self._is_idle(each, session) for each in world.ranks().values()):
                break
            scheduler.sleep(0.1)
            scheduler.settle()
        found = {self.schedule.root: self._values_of_master()}
        ranks = world.ranks()
        replicas = replicator_of(session)
        numbers = {each: replicas.find(engine.ENGINE, self.variables[each]) for each in NAMES}
        for rank, context in world.contexts().items():
            process = ranks[rank]
            if process.state is STOPPED or session.closed:
                continue
            if not self._is_idle(process, session):
                raise Wrong("busy", f"rank {rank} is still in the command after {name}: {process}")
            shareds = context.registry.shareds
            found[rank] = {each: np.array(shareds[i].cell[0]) for each, i in numbers.items() if i in shareds}
        return found

    @staticmethod
    def _is_idle(process, session):
        """Return whether a rank waits for a command, or has been stopped."""
        block, rank = session.block, process.rank
        has_finished = session.closed or block.finished._words[rank] >= block.words._words[COMMAND_NUMBER]
        return process.state is STOPPED or process.state is BLOCKED and has_finished

    def _close(self):
        """Close the session and the keeper, and check that nothing is left."""
        scheduler, world = self.scheduler, self.world
        scheduler.begin_command()
        self.happened = []
        try:
            PROGRAM.close()
        except BaseException as error:
            self._check_error(error, "close")
            PROGRAM.close()
        scheduler.settle()
        if world.ranks():
            raise Wrong("left", f"ranks after close: {world.ranks()}")
        if PROGRAM._keeper is not None:
            PROGRAM._keeper.end()

    def check_leftovers(self):
        """Raise if schedules have left descriptors or threads; run this from time to time, because it takes long."""
        self.variables = self.model = self.happened = self.excused = None
        gc.collect()
        files, threads = _count_files(), threading.active_count()
        if files > self._files:
            raise Wrong("left", f"{files - self._files} descriptors: {Counter(_files())}")
        if threads > 1 and any(thread.name.startswith("simulated") for thread in threading.enumerate()):
            raise Wrong("left", f"threads: {threading.enumerate()}")


def _same(values, model, rank):
    return all(
        value.dtype == model[name][rank].dtype and np.array_equal(value, model[name][rank])
        for name, value in values.items()
    )


def _files():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink("/proc/self/fd/" + fd))
        except OSError:
            pass
    return found


def _count_files():
    return len(os.listdir("/proc/self/fd"))
