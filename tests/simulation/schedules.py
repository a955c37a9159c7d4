"""Schedules of the simulated world: a program, its faults and the order of the ranks, all drawn from a seed.

`Simulation.run` runs a schedule and checks it after every step:

* all ranks have the values of one moment, before or after the step (a function without collectives is independent on
  every rank, unless dead ranks are replaced), and every result has NumPy's bits;
* an error names a fault that happened, and its rank;
* no command waits for ever, and without faults none waits for a time limit;
* at the end no process, descriptor or greenlet is left.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import weakref
from collections import Counter
from typing import NamedTuple, Optional, Tuple

import numpy as np
from greenlet import getcurrent, greenlet
from operating_system import SimulatedBridge, SimulatedKeeper, World
from simulated_network import Behavior
from simulated_steps import KINDS, LARGEST, NAMES, RARE, START, Variables, choose_size
from turns_of_ranks import BLOCKED, DEAD, ENDED, FOREVER, STOPPED, Hang, ProgramDied, Scheduler

import synkhronos as synk
from synkhronos.errors import SharedMemoryError, SynkhronosError, WorkerDied, WorkerError, WorkerTimeout
from synkhronos.program import program as program_module
from synkhronos.program.lifecycle import _hosts as hosts_of_session
from synkhronos.program.program import PROGRAM
from synkhronos.replication.replicator import replicator_of
from synkhronos.runtime import serve
from synkhronos.runtime.exit_status import LOST
from synkhronos.sync.control_block import COMMAND_NUMBER
from synkhronos.testing import numpy_engine as engine
from synkhronos.transports import common, shared_memory

STEPS = (10, 12)  # the least and the largest number of steps of a program

#: Simulated seconds for a step over hosts: without faults (a missed wake-up costs more), and if a host is lost.
LIMIT_S, LIMIT_OF_LOSS_S = 0.09, 30.0
LONG_PAUSE_S = 10.0  # a pause of a serving process that is longer than some time limits

#: Faults of hosts: ``rank`` is the host's number. "slow" is a pause of its serving process, or of the bridge.
OF_HOSTS = ("server", "cut", "power", "slow")

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
    *("Transaction.apply_tentatively before", "Transaction.apply_tentatively after"),
    "SharedMemoryTransport.swap_in before",
    *("NumpyEngine.call before", "NumpyEngine.call after", "RankContext.execute before", "RankContext.execute after"),
)

#: Points at which two thirds of the interrupts happen: some ranks have made a change, others not.
OF_INTERRUPTS = (
    *("Transaction._make_or_undo before", "SharedMemoryTransport.swap_in before"),
    "Transaction.apply_tentatively before",
    *("Barrier.wait after", "command_number written", "semaphore posted", "MasterEnd.wait before"),
)

#: Points at which half of the faults of serving processes happen.
OF_SERVERS = (
    *("bell drained", "received", "sent", "accepted by the kernel", "MPI tested", "MPI send", "MPI receive", "locked"),
    *(
        "fetch_done written",
        "aborted written",
        "let_go written",
        "ended written",
        "deaths written",
        "abort_requested written",
    ),
)

#: Points at which a third of the deaths happen to the first rank of another host, which forwards messages there.
OF_LEADERS = ("semaphore posted", "command_number written", "decided written", "accepted by the kernel", "received")

#: More points at which interrupts happen if there are several hosts: the program records another host's message.
OF_INTERRUPTS_OVER_HOSTS = (
    *("answer_length written", "finished written", "arrived written", "noticed_0 written", "promised written"),
    *("accepted by the kernel", "received", "polled", "fetch_asked written", "fetch_done read"),
)

#: A point of a rank that waits for a reduction by MPI.
OF_REDUCTIONS = "fetch_done read"

#: Steps that change the large array.
CHANGES = (("all_reduce", "v", "max"), ("broadcast", "v", 3.0), ("call_alike", 3, 6))

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
    hosts: Tuple[int, ...] = ()  # ranks on each of several hosts
    network: Behavior = Behavior()

    def __str__(self):
        lines = [
            f"{self.n} ranks, root {self.root}, heal={self.heal}, standby={self.standby}, timeout={self.timeout}, "
            f"order {self.order}, at most {self.switches} switches"
        ]
        if self.hosts:
            lines[0] += f"; ranks by host: {self.hosts}, {self.network}"
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


def drawn_over_hosts(seed):
    """Return the schedule of a seed with two or three hosts."""
    rng = random.Random(~seed)
    hosts = tuple(rng.choice((1, 1, 2, 2, 3)) for _ in range(rng.choice((2, 2, 3))))
    n, root = sum(hosts), rng.choice((0, 0, rng.randrange(hosts[0])))
    behavior = Behavior(
        rng.choice((2e-5, 1e-4, 1e-3)), rng.choice((1 << 17, 1 << 18)), rng.random() < 0.8, rng.random() < 0.5
    )
    behavior = behavior._replace(mpi_delay_s=min(0.02, rng.choice((1.0, 10.0, 100.0)) * behavior.delay_s))
    one = drawn(rng.randrange(2**32))
    steps = []
    for name, *_ in one.steps:
        steps.append((name, *KINDS[name].draw(rng, n)))
    faults = [_fault_over_hosts(rng, hosts, root, len(steps)) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
    timeout = 2.0 if any(fault.kind == "stuck" for fault in faults) else None
    if behavior.has_mpi and timeout is None and rng.random() < 0.3:
        faults = _interrupt_reductions(rng, root, steps)
        behavior = behavior._replace(mpi_delay_s=rng.choice((0.01, 0.1)))  # longer than an abort
    one = one._replace(n=n, root=root, steps=tuple(steps), faults=tuple(sorted(faults)), timeout=timeout)
    return one._replace(hosts=hosts, network=behavior)


def _interrupt_reductions(rng, root, steps):
    """Replace pairs of steps: MPI moves values of a large array when an interrupt comes, and the next step changes it."""
    faults = []
    for i in rng.sample(range(0, len(steps) - 1, 2), 4):
        steps[i : i + 2] = [("all_reduce", "v", "sum"), rng.choice(CHANGES)]
        point = 1 + int(rng.expovariate(1 / rng.choice((1.0, 20.0, 60.0))))
        faults.append(Fault("interrupt", root, i, point, at=OF_REDUCTIONS))
    return faults


def _fault_over_hosts(rng, hosts, root, n_steps):
    kinds = {**FAULTS, **dict.fromkeys(OF_HOSTS, 3)}
    kind = rng.choices(list(kinds), list(kinds.values()))[0]
    if kind not in OF_HOSTS and kind != "keeper":
        fault = _fault(rng, sum(hosts), root, n_steps, kind)
        if kind == "interrupt" and rng.random() < 0.5:
            fault = fault._replace(at=rng.choice(OF_INTERRUPTS_OVER_HOSTS))
        if kind == "death" and rng.random() < 0.3:
            host = rng.randrange(1, len(hosts))
            fault = fault._replace(rank=sum(hosts[:host]), at=rng.choice(OF_LEADERS))
        return fault
    first = 0 if kind in ("server", "slow", "keeper") else 1  # the program stays reachable
    point = 1 + int(rng.expovariate(1 / rng.choice((4.0, 20.0, 60.0, 200.0))))
    host = rng.randrange(first, len(hosts))
    at = rng.choice(OF_SERVERS) if kind in ("server", "slow") and rng.random() < 0.5 else ""
    return Fault(kind, host, rng.randrange(n_steps), point, rng.choice((0.001, 0.15, 1.5, LONG_PAUSE_S)), 0, at)


def _fault(rng, n, root, n_steps, kind=None):
    kind = kind or rng.choices(list(FAULTS), list(FAULTS.values()))[0]
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
        self._sizes = common.COMMON_FROM_BYTES, common.ALIGNMENT, shared_memory.OWN_FROM_BYTES
        common.COMMON_FROM_BYTES = common.ALIGNMENT = shared_memory.OWN_FROM_BYTES = 1
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
        choose_size(False)
        common.COMMON_FROM_BYTES, common.ALIGNMENT, shared_memory.OWN_FROM_BYTES = self._sizes
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
        self.n = schedule.n  # ranks of the open session, or of the next one
        choose_size(bool(schedule.hosts))
        PROGRAM._pool = PROGRAM._keeper = PROGRAM.session = PROGRAM._bridge = None
        PROGRAM._functions = weakref.WeakValueDictionary()
        scheduler.begin(schedule.order, schedule.switches)
        world.begin()
        world.network.begin(schedule.network, schedule.order)
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
        if schedule.hosts:  # there are many time limits, and a step takes longer
            scheduler.habits.jumps *= 0.1
            world.start_servers(len(schedule.hosts))
            PROGRAM._bridge = SimulatedBridge(world, len(schedule.hosts))
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
            if scheduler.crash:
                failure = Wrong("crash", scheduler.crash)
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
        world.release(scheduler.program)
        left = self._left()
        return Wrong("left", f"after the death of the program: {left}") if left else None

    def _left(self):
        """Return the processes that do not end by themselves after the program, or in the next ten seconds."""
        for _ in range(20):
            left = [each for each in self.scheduler.processes[1:] if each.state not in (DEAD, ENDED)]
            if not left:
                break
            self.scheduler.sleep(0.5)
        return left

    def _clean_up(self):
        session, PROGRAM.session = PROGRAM.session, None
        if session is not None:
            session.block.close()
            session.closed = session.closed or "the schedule is over"
            session.caches.clear()
        for each in (PROGRAM._keeper, PROGRAM._bridge):
            if each is not None:
                each._status = -1
        PROGRAM._keeper = PROGRAM._bridge = PROGRAM._pool = None

    def _open(self):
        """Open a session if there is none, with the master's values on all ranks."""
        schedule, session = self.schedule, PROGRAM.session
        if session is not None and not session.closed:
            return
        PROGRAM.close()
        hosts = self._hosts()
        self.model = {name: [self.variables[name].storage[0].copy()] * self.n for name in NAMES}
        options = {"heal": schedule.heal, "standby": schedule.standby, "timeout": schedule.timeout}
        self.excused, self.unsure, self._next = [f for f in self.excused if f.kind in OF_HOSTS], False, {}
        PROGRAM.open(self.n, schedule.root, launcher="fork", pin=False, keep_heap=False, hosts=hosts, **options)

    def _hosts(self):
        """Determine the hosts and the number of ranks of the next session; return None for one host."""
        counts = self.schedule.hosts
        if not counts:
            return None
        there = PROGRAM.all_hosts()
        counts = [counts[int(each.name[4:])] for each in there] or counts[:1]
        self.n = sum(counts)
        return hosts_of_session(there, counts)

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
            different = {id(value): value for values in before.values() for value in values}.values()
            too_large = any(np.abs(value).max(initial=0) > LARGEST for value in different)
            if too_large or not kind.is_possible(before):
                name, args, kind = "broadcast", ["w", 3.0], KINDS["broadcast"]  # makes it possible again
            meaning = kind.mean(before, self.n, schedule.root, *args)
        except BaseException as error:
            if isinstance(error, (Hang, ProgramDied, Wrong)):
                raise
            self._check_error(error, "fork")
            if not _same(self._values_of_master(), before, schedule.root):
                raise Wrong("values", f"after fork failed: {self._values_of_master()}, expected {before}") from error
            self.unsure = True
            return
        self.steps[name] += 1
        idle, began = scheduler.idle, scheduler.now
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
            took = scheduler.now - began
            limit = LIMIT_S + 30 * schedule.network.mpi_delay_s
            waited = took > limit if schedule.hosts else scheduler.idle > idle  # messages between hosts take time
            if harmless and not scheduler.habits.jumps and waited and name != "reopen":
                raise Wrong("late", f"{name} waited for a time limit although no rank was late; faults: {self.excused}")
            if schedule.hosts and not scheduler.habits.jumps and took > LIMIT_OF_LOSS_S:
                raise Wrong("late", f"{name} took {took:.3g} s; faults: {self.excused}")
            harmless = {fault.kind for fault in self.excused} <= {"exception", "memory", "interrupt"}
            if harmless and not scheduler.habits.jumps and name != "reopen" and PROGRAM.session.closed:
                raise Wrong("closed", f"{name} closed the session; faults: {self.excused}")
            self._check_values(name, meaning, error is not None)
        finally:
            error = None

    def _broadcast_all(self):
        """Set all ranks to the master's values."""
        synk.broadcast([self.variables[name] for name in NAMES])
        self.model = {name: [self.variables[name].storage[0].copy()] * self.n for name in NAMES}
        self.unsure = False

    # -- faults ----------------------------------------------------------------------------------------------------

    def _plan(self):
        """Arm the faults of the step that begins."""
        for fault in self.schedule.faults:
            if fault.step == self.number:
                process = self._process(fault)
                if process is not None:
                    process.fault, process.due = fault, process.points + fault.point

    def _begin_rank(self, process):
        """Count a process that replaces a rank, and arm its fault."""
        self.replaced += PROGRAM.session is not None and not PROGRAM.session.closed
        if process.rank in self._next:
            process.fault, point = self._next.pop(process.rank)
            process.due = process.points + point

    def _process(self, fault):
        """Return the process, or one of its threads, at whose points a fault happens; None if it has ended."""
        kind, rank = fault.kind, fault.rank
        if kind in OF_HOSTS:
            found = self.world.on_host(rank) if kind in ("cut", "power") else self._with_threads(rank)
            return found[fault.point % len(found)] if found else None
        if kind == "keeper":
            found = [each for each in self.world.on_host(max(0, rank)) if each.name == "keeper"]
            return found[-1] if found else None
        if rank == self.schedule.root:
            return self.scheduler.program
        return self.world.ranks().get(rank)

    def _with_threads(self, host):
        server = self.world.servers.get(host)
        return [each for each in self.world.on_host(host) if each.owner is server]

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
        world = self.world
        if fault.kind == "death":
            if fault.again:
                self._next[fault.rank] = fault._replace(again=0, at=""), fault.again
            scheduler.kill(process)
        elif fault.kind == "stuck":
            scheduler.stop(process)
        elif fault.kind in ("pause", "slow"):
            scheduler.sleep(fault.seconds)
        elif fault.kind == "exception":
            raise Planned(f"planned on rank {fault.rank}")
        elif fault.kind == "memory":
            raise SharedMemoryError(f"planned on rank {fault.rank}")
        elif fault.kind == "keeper":
            world.kill_with_children(process)
        elif fault.kind == "server":
            scheduler.kill(process.owner)
        elif fault.kind == "cut":
            world.network.cut(fault.rank)
        elif fault.kind == "power":
            world.switch_off(fault.rank)
        elif fault.kind == "master":
            scheduler.kill_program()
        else:
            signal.raise_signal(signal.SIGINT)

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
        if not explained and self.schedule.hosts:
            explained = self._is_of_hosts(error, text)
        if explained and isinstance(error, (WorkerDied, WorkerTimeout)):
            self._check_not_replaced(error, name)
        if not explained:
            raise Wrong("unexplained", f"{name} raised {text}; faults: {self.excused}") from error

    def _is_of_hosts(self, error, text):
        """Return whether an error names a host that is lost, the bridge if that has ended, or a keeper's host."""
        slow = [fault.seconds >= LONG_PAUSE_S for fault in self.excused if fault.kind == "slow"]
        lost = {fault.rank for fault in self.excused if fault.kind in OF_HOSTS and (fault.kind != "slow" or any(slow))}
        text += f"; {error.__cause__}"
        named = {host for host in range(len(self.schedule.hosts)) if f"host{host}" in text}
        if 0 in lost and ("bridge" in text or isinstance(error, WorkerDied) and error.exitcode == LOST):
            return True
        if isinstance(error, WorkerTimeout) and lost and self.schedule.timeout:
            return True
        if lost and ("did not connect" in text or "could not connect" in text):  # before it had a name
            return True
        if isinstance(error, (WorkerDied, SynkhronosError)):
            keepers = {max(0, fault.rank) for fault in self.excused if fault.kind == "keeper"}
            return bool(named & (lost | keepers))
        return False

    def _check_not_replaced(self, error, name):
        """Raise if a rank was not replaced, although the session has not yet replaced as many as it may."""
        lost = [fault for fault in self.excused if fault.kind in ("death", "stuck")]
        if len(lost) > self.schedule.heal or {"keeper", *OF_HOSTS} & {fault.kind for fault in self.excused}:
            return
        notes = " ".join(getattr(error, "__notes__", ()))
        why = " ".join([note for note in getattr(error, "__notes__", ()) if "was not replaced" in note])
        if not any(reason in why for reason in REFUSALS):
            raise Wrong("not replaced", f"{name} raised {error}\n{notes}\nfaults: {self.excused}") from error

    def _check_result(self, name, result, meaning):
        if name != "reopen" and [f for f in self.happened if f.kind in ("exception", "memory")]:
            if not {f.kind for f in self.excused} & {"death", "keeper", "stuck", "interrupt", *OF_HOSTS}:
                raise Wrong("swallowed", f"{name} returned although {self.happened}")
        expected = meaning.result
        if expected is None:
            return
        for i, (one, other) in enumerate(zip(result, expected)):
            # If hosts are lost, a step may have more rows for each rank than it was drawn for, so that means are inexact.
            same = np.array_equal if self.n == self.schedule.n else np.allclose
            if not same(one, other):
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
        ranks = range(self.n)
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
            stopped = any(each.state is STOPPED for each in world.on_host(process.host))
            if process.host and (stopped or any(context.barrier.block.ended._words)):  # its leader may be missing
                continue
            if not self._is_idle(process, session):
                raise Wrong("busy", f"rank {rank} is still in the command after {name}: {process}")
            shareds = context.registry.shareds
            found[rank] = {each: np.array(shareds[i].cell[0]) for each, i in numbers.items() if i in shareds}
        return found

    @staticmethod
    def _is_idle(process, session):
        """Return whether a rank waits for a command, or has been stopped."""
        context, number = serve._served.get(process.pid), session.block.words._words[COMMAND_NUMBER]
        block = session.block if context is None else context.barrier.block  # of the rank's host
        has_finished = session.closed or block.finished._words[process.rank] >= number
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
        if self.schedule.hosts:
            kinds = {f.kind for f in self.excused}  # of faults that other hosts may notice only now, or much later
            scheduler.sleep(10.0 if kinds & {"cut", "power", "slow"} else 0.1 if "server" in kinds else 0.0)
        left = [each for each in scheduler.processes if each.rank is not None and not world.has_ended(each)]
        if left:
            raise Wrong("left", f"ranks after close: {left}")
        began = scheduler.now
        for each in (PROGRAM._keeper, PROGRAM._bridge):
            if each is not None:
                each.end()
        if self.schedule.hosts:
            left = self._left()
            if left or not scheduler.habits.jumps and scheduler.now > began + LIMIT_OF_LOSS_S:
                raise Wrong("left", f"after the program: {left}, {scheduler.now - began:.3g} s")

    def check_leftovers(self):
        """Raise if schedules have left descriptors or greenlets; run this from time to time, because it takes long."""
        self.variables = self.model = self.happened = self.excused = None
        gc.collect()
        gc.collect()  # of objects whose finalizers the first has called
        files, left = _count_files(), greenlets()
        if files > self._files:
            raise Wrong("left", f"{files - self._files} descriptors: {Counter(_files())}")
        if left:
            raise Wrong("left", f"greenlets: {left}")


def _same(values, model, rank):
    return all(
        value.dtype == model[name][rank].dtype and np.array_equal(value, model[name][rank])
        for name, value in values.items()
    )


def greenlets():
    """Return the greenlets that have begun and have not ended, besides the present one."""
    found = [each for each in gc.get_objects() if type(each) is greenlet]
    return [each for each in found if each and each is not getcurrent()]


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
