"""The edges of the simulated world: everything of the operating system that the library's protocol uses.

=====================  ================================================================================================
real                   simulated
=====================  ================================================================================================
``sem_t``              a number in `World.semaphores`; waiting and waking go through the scheduler
the clock              `SimulatedClock`, which advances only as the scheduler decides
words of the block     the same memory, with a scheduling point before every access
processes, signals     greenlets of the scheduler; ``kill -9`` leaves a greenlet where it is, for ever
the current thread     the process that runs, because all greenlets belong to one thread
threads for pickling   `PicklingThread`, without switches
the keeper's socket    a queue of pickled messages with duplicated descriptors
the keeper's main loop `SimulatedWatch.loop`; its other methods are the library's, except those that fork
the rank's process     `rank_main.run_rank` in a greenlet, without the process's environment, streams and cores
other hosts            `simulated_network`; a host's serving process is a greenlet that calls `Server.serve`
=====================  ================================================================================================

The control block, the pools and all descriptors are real memory files.
"""

import _signal
import ctypes
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace
from unittest import mock

from simulated_network import Bell, Delegate, HostsWorld, Network, Pollable
from turns_of_ranks import DEAD, ENDED, FOREVER, STOPPED

from synkhronos import in_graph, trace
from synkhronos.calls import steps
from synkhronos.cluster import bridge, copying, deputy, loop, mpi_thread, operation, requests, stand_in, wire
from synkhronos.cluster import launcher as hosts_launcher
from synkhronos.cluster import serve as serving
from synkhronos.cluster.bridge import Bridge
from synkhronos.cluster.facts import HostFacts
from synkhronos.engines import observer, pickling
from synkhronos.errors import SynkhronosError
from synkhronos.host import affinity, machine, signals
from synkhronos.memory.pool import Pool
from synkhronos.processes import child_process, keeper, launcher, output, rank_main
from synkhronos.processes.keeper import Keeper
from synkhronos.program import program
from synkhronos.replication import command as replication_command
from synkhronos.replication import replicator
from synkhronos.runtime import serve, session
from synkhronos.runtime.exit_status import LOST
from synkhronos.sync import block_over_hosts, control_block, host_relay, link, rendezvous, semaphore
from synkhronos.sync.control_block import ControlBlock
from synkhronos.sync.semaphore import WaitPolicy
from synkhronos.transports import base

POLICY = WaitPolicy(1, False)  # one try, then a wait

#: Words with a scheduling point before each access: those of the session, and those of the ranks.
SESSION_WORDS = ("decided", "abort_requested", "aborted", "command_number", "command_length", "deaths")
SESSION_WORDS += ("stop_requested", "announced", "let_go")
RANK_WORDS = ("ended", "status", "arrived", "finished", "answer_length", "steps_command", "steps", "undone", "promised")
RANK_WORDS += ("notice_length_0", "notice_length_1", "noticed_0", "noticed_1")
RANK_WORDS += ("fetch_asked", "fetch_length", "fetch_done", "received", "printed", "shown")  # only over hosts


class Words:
    """Words of the control block, with a scheduling point before every access."""

    __slots__ = ("_words", "_visit", "_reads", "_writes")

    def __init__(self, words, names, visit):
        self._words, self._visit = words, visit
        self._reads, self._writes = ([f"{name} {what}" for name in names] for what in ("read", "written"))

    def __getitem__(self, index):
        self._visit(self._reads[index])
        return self._words[index]

    def __setitem__(self, index, value):
        self._visit(self._writes[index])
        self._words[index] = value

    def tolist(self):
        self._visit(self._reads[0])
        return self._words.tolist()


class SimulatedClock:
    """Replacement for the module ``time``."""

    CLOCK_MONOTONIC = time.CLOCK_MONOTONIC

    def __init__(self, scheduler):
        self._scheduler = scheduler

    def monotonic(self):
        self._scheduler.visit("clock read")
        return self._scheduler.now

    def perf_counter(self):
        return self._scheduler.now

    time = perf_counter

    def sleep(self, seconds):
        self._scheduler.visit("sleep")
        self._scheduler.sleep(seconds)


class SimulatedSocket(Pollable):
    """One end of a connection between two processes; `SimulatedMessages` sends and receives."""

    def __init__(self, scheduler):
        super().__init__()
        self.scheduler, self.peer, self.messages, self.is_open, self.limit = scheduler, None, [], True, FOREVER
        self.owner = scheduler.running.owner

    def fileno(self):
        return id(self)

    def events(self, now):
        return select.POLLIN if self.messages or not self.peer.is_open else 0

    def wake(self):
        for each in (self, *self.polls):
            self.scheduler.wake(each)

    @classmethod
    def pair(cls, scheduler):
        one, other = cls(scheduler), cls(scheduler)
        one.peer, other.peer = other, one
        return one, other

    def settimeout(self, seconds):
        self.limit = seconds

    def close(self):
        self.is_open = False
        self.peer.wake()
        for _, fds in self.messages:
            for fd in fds:
                os.close(fd)
        self.messages = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


class SimulatedMessages:
    """Replacement for the module ``fd_passing``."""

    def __init__(self, scheduler):
        self._scheduler = scheduler

    def send(self, sock, message, fds=()):
        self._scheduler.visit("message sent")
        if not sock.peer.is_open or not sock.is_open:
            raise BrokenPipeError("the other end is closed")
        sock.peer.messages.append((pickle.dumps(message), [os.dup(fd) for fd in fds]))
        sock.peer.wake()

    def receive(self, sock):
        scheduler = self._scheduler
        scheduler.visit("message received")
        until = scheduler.now + sock.limit
        while not sock.messages:
            if not sock.peer.is_open or not sock.is_open:
                raise EOFError
            if scheduler.now >= until:
                raise socket.timeout("timed out")
            scheduler.wait(sock, until)
        payload, fds = sock.messages.pop(0)
        return pickle.loads(payload), fds


class SimulatedKeeper(Keeper):
    """The master's side of the keeper; only its start differs from the library's."""

    def __init__(self, world):
        self.name, self._lock, self._status = "the keeper", threading.RLock(), None
        self._socket, theirs = world.connect()
        watch = SimulatedWatch(world, theirs)
        self.pid = world.start("keeper", lambda process: watch.loop(), theirs).pid
        watch.pid = self.pid


class SimulatedBridge(Bridge):
    """The master's side of the bridge; only its start differs from the library's."""

    def __init__(self, world, n_hosts):
        self.name, self._lock, self._status = "the bridge", threading.RLock(), None
        self._socket, theirs = world.connect()
        self.world, self.has_met = HostsWorld(world.network, 0, n_hosts), False
        served = bridge._Bridge(theirs, world.scheduler.program.pid, self.world)
        world.servers[0] = world.start("bridge", lambda process: served.loop(), theirs)
        self.pid = world.servers[0].pid


class SimulatedWatch(keeper._Watch):
    """The keeper's process: it starts greenlets instead of forking, and waits in the scheduler instead of ``poll``."""

    def __init__(self, world, sock):
        super().__init__(sock, os.getpid())
        self.world = world

    def loop(self):
        world, sock = self.world, self.socket
        try:
            while True:
                keeper_process = world.process(self.pid)
                while not sock.messages and sock.peer.is_open and not world.ended_children(keeper_process):
                    world.scheduler.wait(sock, world.next_report(keeper_process))
                world.scheduler.visit("keeper woken")
                self.reap()
                if sock.messages or not sock.peer.is_open:
                    keeper.fd_passing.send(sock, self.answer())
        except (EOFError, ConnectionError):
            pass
        finally:
            if not world.scheduler.over:
                self.kill([])
        return 0

    def fork(self, config, configs, descriptors):
        process = self.world.start(f"rank {config.rank}", lambda process: self._live(process, config))
        process.fds = {ident: os.dup(fd) for ident, fd in descriptors.pools.items()}
        self.world.become(process, config.rank)
        self.ranks[process.pid] = config.rank
        return process.pid

    def stand_by(self, configs, descriptors):
        ours, theirs = self.world.connect()

        def live(process):
            try:
                with theirs:
                    config = keeper.fd_passing.receive(theirs)[0]
            except EOFError:
                return 0
            process.name = f"rank {config.rank} (standby)"
            self.world.become(process, config.rank)
            return self._live(process, config)

        process = self.world.start("standby", live, theirs)
        process.fds = {ident: os.dup(fd) for ident, fd in descriptors.pools.items()}
        self.standby = process.pid, ours

    def load(self, fds, path, modules):
        """Do nothing: all modules are loaded."""

    def _live(self, process, config):
        world, keeper_process = self.world, self.world.process(self.pid)

        def watch():
            world.scheduler.visit("parent checked")
            if keeper_process.state in (DEAD, ENDED):
                world.scheduler.kill(process, 0)

        fds = dict(process.fds)
        try:
            rank_main.run_rank(config, self.block, fds, watch)
            return 0
        except Exception as error:
            rank_main.record_fatal_error(self.block, config.rank, error)
            return rank_main.EXIT_CODE_FAILED


class SimulatedSystem:
    """Replacement for the module ``os`` in the modules that start, watch and end processes."""

    def __init__(self, world):
        names = {name: value for name, value in vars(os).items() if not hasattr(SimulatedSystem, name)}
        vars(self).update(names, _world=world)

    def getppid(self):
        """Return the id of the parent, or 1 if that has ended."""
        parent = self._world.scheduler.running.owner.parent
        return 1 if parent is None or self._world.has_ended(parent) else parent.pid

    def read(self, fd, n):
        return self._world.network.read(fd, n)

    def dup(self, fd):
        """Duplicate a descriptor, which is closed at the end of the process."""
        found = os.dup(fd)
        self._world.scheduler.running.owner.fds["dup", found] = found
        return found

    def close(self, fd):
        """Close a descriptor of a process, which is then not closed at the end of its process."""
        os.close(fd)
        fds = self._world.scheduler.running.owner.fds
        for ident in [ident for ident, each in fds.items() if each == fd]:
            del fds[ident]

    def kill(self, pid, number):
        process = self._world.process(pid)
        if process is None or pid in self._world.reaped:
            raise ProcessLookupError
        if number == 9:
            self._world.scheduler.visit("kill")
            self._world.scheduler.kill(process)

    def wait4(self, pid, options):
        """Return a child of the keeper that has ended; with ``options`` 0, wait for it."""
        world, parent = self._world, self._world.scheduler.running.owner
        while True:
            for process in world.ended_children(parent):
                world.reaped.add(process.pid)
                status = process.status
                return process.pid, -status if status < 0 else status << 8, SimpleNamespace(ru_maxrss=1024)
            if options:
                return 0, 0, None
            if not world.children(parent):
                raise ChildProcessError
            world.scheduler.wait("child", world.next_report(parent))

    def waitpid(self, pid, options):
        """Return whether a helper process has ended, for its parent."""
        process = self._world.process(pid)
        if process is not None and process.state in (DEAD, ENDED):
            status = process.status or 0
            return pid, -status if status < 0 else status << 8
        return 0, 0


class SimulatedThreads:
    """Replacement for the module ``threading`` where the library asks for the current thread."""

    def __init__(self, scheduler):
        self._scheduler = scheduler

    def get_ident(self):
        return 0 if self._scheduler.is_atomic else self._scheduler.running.pid

    def current_thread(self):
        return None if self._scheduler.is_atomic else self._scheduler.running

    def main_thread(self):
        return self._scheduler.program


class PicklingThread:
    """Replacement for the thread with a large stack, which small graphs do not need; the process waits for its end."""

    def __init__(self, scheduler, work):
        is_atomic, scheduler.is_atomic = scheduler.is_atomic, True
        work()
        scheduler.is_atomic = is_atomic

    def join(self):
        pass


class CurrentCall:
    """Replacement for the thread-local `in_graph._thread`: every process has its current call."""

    def __init__(self, scheduler):
        self._scheduler = scheduler

    @property
    def call(self):
        return self._scheduler.running.call

    @call.setter
    def call(self, call):
        self._scheduler.running.call = call


class SimulatedSignals:
    """Replacement for the module ``signal`` in `DeferredSignals`, where only Ctrl-C is deferred: it is the only one."""

    NSIG = signal.SIGINT + 1
    signal, getsignal = staticmethod(_signal.signal), staticmethod(_signal.getsignal)  # without conversions to enums


class Cells(dict):
    """Integers in memory, by address, that have the keys of semaphores."""

    def __missing__(self, address):
        self[address] = found = ctypes.c_long.from_address(address)
        return found


class World:
    """The simulated operating system, installed in the library's modules between `install` and `uninstall`."""

    def __init__(self, scheduler):
        self.scheduler = scheduler
        self.network = Network(self)
        self._cells = Cells()
        self._stack = ExitStack()
        self.begin()

    def begin(self):
        """Begin a schedule: there are no processes, and no semaphores."""
        self.semaphores, self.reaped, self.report_at, self.sockets = {}, set(), {}, []
        self.servers = {}  # by host, the process that serves it: the bridge, or another host's serving process
        self.refused = []  # errors of serving processes that could not join
        self.owned = []  # objects of the library with descriptors, which a killed process does not close
        self.late_reports = 0.0
        self.on_rank = lambda process: None  # called when a process becomes a rank
        self.scheduler.ended = self._ended

    # -- processes -------------------------------------------------------------------------------------------------

    def start(self, name, work, *sockets, host=None):
        """Start a process, as a child of the one that runs, with these sockets; without a parent on another host."""
        process, running = self.scheduler.start(name, work), self.scheduler.running.owner
        process.host, process.parent = (running.host, running) if host is None else (host, None)
        for sock in sockets:
            sock.owner = process
        return process

    def start_servers(self, n_hosts):
        """Start the serving processes of all hosts but the first, as ``mpirun`` does."""
        for host in range(1, n_hosts):
            server = self._serve(host, n_hosts)
            self.servers[host] = self.start(f"server {host}", server, host=host)

    def _serve(self, host, n_hosts):
        def serve_host(process):
            try:
                serving.Server(HostsWorld(self.network, host, n_hosts), lambda: None).serve()
            except SynkhronosError as error:
                self.refused.append(str(error))
                return 1
            return 0

        return serve_host

    def become(self, process, rank):
        """Make a process a rank."""
        process.rank = rank
        self.on_rank(process)

    def connect(self):
        """Return the two ends of a connection."""
        self.sockets += SimulatedSocket.pair(self.scheduler)
        return self.sockets[-2:]

    def end(self):
        """End a schedule: close the descriptors of all processes and messages."""
        processes = self.scheduler.processes
        self.scheduler.end()
        left = {fd for process in processes for fd in process.fds.values()}
        for each in self.owned:
            if isinstance(each, output.Streams):
                each.are_forwarded = False
                each.close()
            elif isinstance(each, ControlBlock):
                left.discard(each.fd)
                each.close()
            else:
                each._tidy()
        self.owned = []
        self.network.end()
        for fd in left:
            os.close(fd)
        for sock in self.sockets:
            sock.close()
        self.sockets, self.servers = [], {}

    def process(self, pid):
        return next((each for each in self.scheduler.processes if each.pid == pid), None)

    @staticmethod
    def has_ended(process):
        return process.state in (DEAD, ENDED)

    def children(self, parent):
        """Return the children that a keeper has not reaped."""
        found = [each for each in self.scheduler.processes if each.parent is parent]
        return [each for each in found if each.pid not in self.reaped]

    def ended_children(self, parent):
        """Return the children whose end the keeper has been notified of."""
        now = self.scheduler.now
        return [each for each in self.children(parent) if self.report_at.get(each.pid, FOREVER) <= now]

    def next_report(self, parent):
        """Return the time of the next notification about an ended child."""
        return min([self.report_at.get(each.pid, FOREVER) for each in self.children(parent)], default=FOREVER)

    def on_host(self, host):
        """Return the processes of a host that have not ended, with their threads."""
        found = [each for each in self.scheduler.processes if each.owner.host == host]
        return [each for each in found if each.state not in (DEAD, ENDED)]

    def release(self, process):
        """Close the sockets of a process that has ended, as the kernel does."""
        for sock in self.sockets:
            if sock.owner is process and sock.is_open:
                sock.close()
        self.network.release(process)

    def switch_off(self, host):
        """Cut the power of a host: its connections stay open, and all its processes end."""
        self.network.cut(host)
        running = self.scheduler.running.owner
        owners = {id(each.owner): each.owner for each in self.on_host(host)}.values()
        for each in sorted(owners, key=lambda each: each is running):
            self.scheduler.kill(each)

    def kill_with_children(self, process):
        """Kill a process and then its children, as the kernel does for ranks (PR_SET_PDEATHSIG)."""
        children = [each for each in self.scheduler.processes if each.parent is process]
        running = self.scheduler.running.owner
        for each in sorted([process, *children], key=lambda each: each is running):  # the running one is the last
            self.scheduler.kill(each)

    def ranks(self):
        """Return the processes that are ranks and have not ended, by rank; without those of hosts that are lost."""
        found = {}
        for each in self.scheduler.processes:
            is_there = not each.host or not (self.network.is_gone(each.host) or self.network.is_gone(0))
            if each.rank is not None and each.state not in (DEAD, ENDED) and is_there:
                found[each.rank] = each
        return found

    def contexts(self):
        """Return the state of every rank but the master that has not ended."""
        found = {rank: serve._served.get(each.pid) for rank, each in self.ranks().items()}
        return {rank: context for rank, context in found.items() if context is not None}

    def describe_state(self, pid):
        process = self.process(pid)
        if process is None or process.pid in self.reaped:
            return "gone"
        letter = {DEAD: "Z (zombie)", ENDED: "Z (zombie)", STOPPED: "T (stopped)"}
        return letter.get(process.state, "S (sleeping)") + ", 1 kB resident"

    def _ended(self, process):
        self.report_at[process.pid] = self.scheduler.now + self.late_reports
        self.release(process)
        if process.parent is not None and process.parent.state == "blocked":  # the keeper, at whatever it waits
            process.parent.state = "ready"

    # -- semaphores ------------------------------------------------------------------------------------------------

    def _init(self, address, shared, value):
        key = len(self.semaphores) + 1
        self._cells[address.value].value = key
        self.semaphores[key] = value
        return 0

    def _post(self, address):
        self.scheduler.visit("semaphore posted")
        key = self._cells[address.value].value
        self.semaphores[key] += 1
        self.scheduler.wake(key)
        return 0

    def _trywait(self, address):
        self.scheduler.visit("semaphore tried")
        return self._take(self._cells[address.value].value)

    def _take(self, key):
        if self.semaphores[key]:
            self.semaphores[key] -= 1
            return 0
        return -1

    def _clockwait(self, address, clock, moment):
        self.scheduler.visit("semaphore awaited")
        key, until = self._cells[address.value].value, moment.tv_sec + moment.tv_nsec * 1e-9
        while self._take(key):
            if self.scheduler.now >= until:
                return -1
            self.scheduler.wait(key, until)
        return 0

    # -- installation ----------------------------------------------------------------------------------------------

    def install(self):
        """Replace the operating system in the library's modules, and observe all trace points."""
        scheduler, stack = self.scheduler, self._stack
        clock, system, messages = SimulatedClock(scheduler), SimulatedSystem(self), SimulatedMessages(scheduler)

        def replace(module, **values):
            for name, value in values.items():
                stack.enter_context(mock.patch.object(module, name, value))

        replace(semaphore, _init=self._init, _post=self._post, _trywait=self._trywait, _clockwait=self._clockwait)
        for module in (semaphore, session, launcher, keeper, child_process, base, steps, replicator):
            replace(module, time=clock)
        for module in (bridge, copying, loop, requests, rendezvous, hosts_launcher, mpi_thread):
            replace(module, time=clock)
        for module in (launcher, keeper, child_process, rank_main, bridge, wire, control_block):
            replace(module, os=system)
        for module in (keeper, child_process, bridge):
            replace(module, fd_passing=messages)
        self._install_hosts(replace)
        replace(rank_main, Pool=self._make_pool)
        replace(machine, available_memory=lambda: 1 << 40, core_budget=lambda: 2)  # faults say when memory is short
        replace(affinity, loaded_libraries=lambda: [])  # BLAS, whose threads are not limited here
        replace(signals, signal=SimulatedSignals())
        for module in (serve, signals, observer):
            replace(module, threading=SimulatedThreads(scheduler))
        replace(in_graph, _thread=CurrentCall(scheduler))
        replace(pickling, _start=lambda work: PicklingThread(scheduler, work))
        replace(launcher, describe_state=self.describe_state)
        replace(WaitPolicy, of_processes=classmethod(lambda *_: POLICY), of_hosts=classmethod(lambda *_: POLICY))
        create = ControlBlock.__init__

        def watched(block, *args, **kwargs):
            create(block, *args, **kwargs)
            if scheduler.running is not scheduler.program:
                self.owned.append(block)
            self._watch(block)

        replace(ControlBlock, __init__=watched)
        points = Points(scheduler)
        trace.observe(points)
        stack.callback(trace.ignore, points)

    def _make_pool(self, rank, fd, taken):
        del self.scheduler.running.fds[rank]  # the pool closes it
        return Pool(rank, fd=fd, taken=taken)

    def _install_hosts(self, replace):
        """Replace the edges between hosts."""
        network, modules = self.network, self.network.modules()
        for module in (rendezvous, wire, link):
            replace(module, socket=modules["socket"])
        for module in (loop, host_relay, link):
            replace(module, select=modules["select"])
        for module in (requests, mpi_thread, operation, wire):
            replace(module, threading=modules["threading"])
        for module in (wire, mpi_thread):
            replace(module, queue=modules["queue"])
        replace(rendezvous, selectors=modules["selectors"])
        replace(block_over_hosts, EventFd=lambda fd=-1: Bell(network, fd))
        replace(bridge, signal=Delegate(signal, signal=lambda *_: None), take_default_signals=lambda: None)
        replace(serving, Keeper=lambda enter: SimulatedKeeper(self))
        replace(rank_main, counter=lambda: lambda: 0)  # ranks print nothing
        replace(program, modules_to_import=lambda: [])
        # The lengths of messages decide about fragments, so nothing in a message depends on the real machine.
        real = HostFacts("", 2, {}, (1,), files=1 << 20)
        for module in (bridge, serving):
            replace(module, facts=lambda *pids: real._replace(name=f"host{self.scheduler.running.owner.host}"))
        replace(machine, working_directory=lambda: "/")
        for module in (program, replication_command, serving):
            replace(module, sys=Delegate(sys, path=["/program"]))
        for module in (bridge, hosts_launcher):
            replace(module, interfaces=network.interfaces)
        for owner in (deputy.Deputy, stand_in.StandIn):
            replace(owner, fail=self._fail_of(owner.fail))
        replace(stand_in, record_exit=self._record_exit)
        for owner in (output.Streams, launcher.ProcessLauncher):
            replace(owner, __init__=self._recording(owner.__init__))

    def _fail_of(self, fail):
        def failed(copying, reason):
            if "the MPI thread has failed" not in reason:  # as MPI does after the loss of a host, which is the cause
                self.scheduler.crash = self.scheduler.crash or reason
            fail(copying, reason)

        return failed

    def _record_exit(self, block, rank, status, memory, reason):
        if status == LOST and b" failed:\n" in reason:  # of a serving process, although no host was lost
            self.scheduler.crash = self.scheduler.crash or reason.decode()
        keeper.record_exit(block, rank, status, memory, reason)

    def _recording(self, create):
        def created(each, *args, **kwargs):
            self.owned.append(each)
            create(each, *args, **kwargs)

        return created

    def uninstall(self):
        self._stack.close()

    def _watch(self, block):
        visit = self.scheduler.visit
        block.words = Words(block.words, SESSION_WORDS, visit)
        for name in RANK_WORDS:
            words = getattr(block, name)
            setattr(block, name, Words(words, [name] * block.size, visit))
        block.notice_length = block.notice_length_0, block.notice_length_1
        block.noticed = block.noticed_0, block.noticed_1


assert len(SESSION_WORDS) == control_block.N_SESSION_WORDS


class Points(trace.TraceObserver):
    """Makes every trace point two scheduling points: before the method and after it."""

    def __init__(self, scheduler):
        self._visit = scheduler.visit

    def around(self, point, method):
        visit, before, after = self._visit, f"{point.label} before", f"{point.label} after"

        def seen(owner, *args, **kwargs):
            visit(before)
            try:
                return method(owner, *args, **kwargs)
            finally:
                visit(after)

        return seen
