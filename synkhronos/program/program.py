"""The state that lives as long as this process: memory, keeper, functions, and session.

`PROGRAM` is the only `Program`. The public functions read it and pass on the necessary parts.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import weakref
from contextlib import ExitStack
from typing import Any, Dict, List, NamedTuple, Optional, Type, Union

from .. import engines
from ..cluster.bridge import Bridge
from ..cluster.environment import for_ranks
from ..cluster.facts import HostFacts
from ..cluster.host_memory import shadow
from ..cluster.launcher import HostsLauncher
from ..cluster.messages import SessionSpec, modules_to_import
from ..cluster.world import World
from ..errors import ArgumentValueError, StateError, SynkhronosError, WorkerDied
from ..host import machine
from ..host.affinity import CoreClaims, MasterAffinity
from ..host.heap import keep_freed_memory
from ..host.signals import DeferredSignals
from ..kernels.copy import log_missing_kernels
from ..memory.memfd import nameless_file
from ..memory.pool import Pool
from ..processes.keeper import Keeper
from ..processes.launcher import ProcessLauncher, configs_of_host
from ..processes.local import LocalLauncher
from ..profile.ring import ring_bytes
from ..runtime.command import CheckStart
from ..runtime.exit_status import LOST
from ..runtime.launcher import Launcher, RankConfig
from ..runtime.session import GRACE_S, Session
from ..sync.block_over_hosts import block_of
from ..sync.control_block import ControlBlock
from ..sync.hosts import Hosts
from ..sync.semaphore import WaitPolicy
from ..trace import log_as_the_environment_says
from .devices import OpenDevices
from .profiled import SessionProfile, set_clocks

logger = logging.getLogger("synkhronos")

LAUNCHERS: Dict[str, Type[Launcher]] = {"fork": ProcessLauncher, "threads": LocalLauncher}

CHECK = "SYNK_CHECK"  #: Environment variable that enables ``check``; set by ``python -m synkhronos --check``.
PROFILE = "SYNK_PROFILE"  #: Environment variable with a profile's folder; set by ``python -m synkhronos --profile``.

START_TIMEOUT_S = 60.0  #: Time limit for the start of the ranks.
DEVICES_TIMEOUT_S = 600.0  #: Time limit for opening the devices; Theano may compile for a while.


class SessionOptions(NamedTuple):
    """The options of `fork` except ranks and devices, and the fields of its `Options`."""

    timeout: Optional[float] = None
    pin: bool = True
    threads: Optional[int] = None
    profile_workers: bool = False
    seed: Optional[int] = None
    random: str = "split"
    keep_heap: bool = True
    exact: bool = False
    rows: Optional[int] = None
    check: bool = False
    heal: int = 0
    standby: bool = True
    shard_updates: Optional[bool] = None
    recorded: bool = False  # whether the ranks record activity for the profile of the session


class CheckedCall(NamedTuple):
    """Result of comparing one call with the serial function, as `fork` or the environment requested.

    ``not_compared`` is the reason if no comparison was made; otherwise "".
    """

    name: str
    n_differences: int
    not_compared: str = ""


class Program:
    """The state of this process: the open session, and everything that outlives it."""

    def __init__(self) -> None:
        self.session: Optional[Session] = None
        self.groups: Any = None  # the open `Groups`
        self.inside_rank = False
        self.exact = False  # `exact`, `rows`, `check` and `shard_updates` are settings of the last `fork`
        self.rows: Optional[int] = None
        self.shard_updates: Optional[bool] = None
        self.check = False
        self.checked: List[CheckedCall] = []
        self.profiled: Optional[SessionProfile] = None  # of the open session, or of the last profiled session
        self._profile_to: Optional[str] = None
        self._functions: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()
        self._built = itertools.count()
        self._pool: Optional[Pool] = None
        self._inherited: List[Pool] = []  # in a forked child: pools of Data that its parent created
        self._keeper: Optional[Keeper] = None
        self._bridge: Optional[Bridge] = None
        self._lock = threading.Lock()

    @property
    def pool(self) -> Pool:
        """The shared memory of this process, for Data, plain arguments, and the master's values of shared variables."""
        if self._pool is None:
            self._pool = Pool(-1 - len(self._inherited))
        return self._pool

    @property
    def functions(self) -> List[Any]:
        """The program's functions that are still alive, in order of construction."""
        living = (reference() for reference in self._functions.valuerefs())  # safe while other threads build functions
        return [function for function in living if function is not None]

    def add(self, function: Any) -> None:
        """Register a new function by weak reference."""
        self._functions[next(self._built)] = function

    @property
    def keeper_pid(self) -> Optional[int]:
        return None if self._keeper is None else self._keeper.pid

    @property
    def world(self) -> Optional[World]:
        """The processes of this program on several hosts; None on a single host."""
        return None if self._bridge is None else self._bridge.world

    def meet(self, world: World) -> None:
        """Start the bridge, so that this program's sessions run on all hosts of ``world``."""
        self._bridge = Bridge(world)

    def all_hosts(self) -> List[HostFacts]:
        """Return the facts of all hosts, this host first; an empty list if no other host exists or remains.

        Raise `SynkhronosError` if the hosts are incompatible or do not connect.
        """
        bridge = self._bridge
        if bridge is None:
            return []
        try:
            there = bridge.hosts()
        except SynkhronosError as error:
            if bridge.alive() or not bridge.has_met:
                raise
            logger.warning("the other hosts are unreachable, so sessions run on this host alone: %s", error)
            self._bridge = None
            return []
        return there if len(there) > 1 else []

    def current(self) -> Session:
        """Return the open session, or raise `StateError`."""
        session = self.session
        if session is None and self.groups is not None:
            raise StateError("groups run only their function: call synkhronos.close() and synkhronos.fork() first")
        if session is None:
            raise StateError("synkhronos is not forked: call synkhronos.fork() first")
        if session.closed:
            raise StateError(f"the session is closed ({session.closed}): call synkhronos.fork() again")
        return session

    def open(
        self,
        size: int,
        root: int,
        *,
        launcher: Union[str, Launcher] = "fork",
        devices: Optional[List[str]] = None,
        hosts: Optional[Hosts] = None,
        profile_to: Optional[str] = None,
        **options: Any,
    ) -> Session:
        """Start a session, with every rank's device in ``devices`` and the fields of `SessionOptions` in ``options``.

        ``launcher`` runs the other ranks as processes ("fork") or as threads of this process ("threads"); it may also
        be a new launcher of another kind.
        ``profile_to`` is the folder for the profile, unless the environment names another folder.

        Raises
        ------
        ArgumentValueError
            The launcher or the value of an environment variable is invalid, or the folder for the profile is unusable.
        StateError
            A session is open, this process is a rank, or a device that it has opened conflicts with the session.
        SynkhronosError
            The ranks cannot be started.
        """
        if not isinstance(launcher, Launcher) and launcher not in LAUNCHERS:
            raise ArgumentValueError("launcher", f"one of {sorted(LAUNCHERS)}", repr(launcher))
        log_as_the_environment_says()
        hosts = hosts or Hosts.alone(size)
        check = os.environ.get(CHECK) or "0"
        if check not in ("0", "1"):
            raise ArgumentValueError(CHECK, "0 or 1", repr(check))
        log_missing_kernels()
        with self._lock:
            if self.inside_rank:
                raise StateError("synkhronos.fork() was called inside a rank: only the master may have a session")
            if self.session is not None and not self.session.closed:
                text = f"synkhronos is forked already (number of ranks: {self.session.size})"
                raise StateError(f"{text}: call synkhronos.close() before fork()")
            if self.groups is not None:
                raise StateError("groups are running: call synkhronos.close() before fork()")
            self._check_device(devices is not None)
            # Do not pass the variable on to programs that this program starts.
            self._profile_to = os.environ.pop(PROFILE, None) or self._profile_to
            profile_to = self._profile_to or profile_to  # the command line has precedence
            profiled = None
            with ExitStack() as undo:
                if profile_to:
                    profiled = SessionProfile(profile_to, self.profiled)
                    undo.callback(profiled.abandon)
                    options["recorded"] = True
                with DeferredSignals():  # otherwise an interrupt could leave a process behind
                    start = size, root, launcher, devices is not None, hosts, SessionOptions(**options)
                    session = self._start_until_connected(*start)
                    undo.callback(session.close, "it could not be started")
                    if profiled is not None:
                        profiled.begin(session, devices)
                session.run(CheckStart(), START_TIMEOUT_S)
                if profiled is not None:
                    set_clocks(session)
                if devices is not None:
                    session.setup = OpenDevices(devices, hosts.are_several)
                    session.run(session.setup, DEVICES_TIMEOUT_S)
                for function in self.functions:  # built in an earlier session, or before the first
                    session.prefetch.begin(function.engine)
                if profiled is not None:
                    profiled.write_if_killed(session)
                undo.pop_all()
            self.profiled = profiled or self.profiled
            self.session, self.exact, self.rows = session, bool(options.get("exact")), options.get("rows")
            self.check, self.shard_updates = bool(options.get("check")) or check == "1", options.get("shard_updates")
            return session

    def admit(self, groups: Any) -> None:
        """Record groups that are about to start; raise `StateError` if they cannot run in this process."""
        opened = [engine.opened_device() for engine in engines.loaded() if engine.opened_device() is not None]
        with self._lock:
            if self.inside_rank:
                raise StateError("synkhronos.Groups was called inside a rank: only the master may start groups")
            if self.session is not None and not self.session.closed:
                raise StateError("a session is open: call synkhronos.close() before synkhronos.Groups")
            if self.groups is not None:
                raise StateError("other groups are running: call synkhronos.close() before synkhronos.Groups")
            if self.world is not None:
                raise StateError("groups run on one host, but this program was started on several: use a session")
            if opened:
                raise StateError(f"groups compute on CPUs, but this process has opened {opened[0]}: use a session")
            self.groups = groups

    def dismiss(self, groups: Any) -> None:
        """Forget groups that have ended."""
        if self.groups is groups:
            self.groups = None

    def _check_device(self, wanted: bool) -> None:
        """Raise `StateError` if a device that this process has opened conflicts with the session."""
        for engine in engines.loaded():
            foreign, device = engine.foreign_device(), engine.opened_device()
            if foreign:
                raise StateError(
                    f"a device was opened in this process before synkhronos.fork(), by {foreign}. Child processes "
                    "forked later cannot use devices, and synkhronos opens the master's device itself. Set "
                    "THEANO_FLAGS=device=cpu,init_gpu_device= (and remove both from .theanorc), and do not call "
                    "theano.gpuarray.use()"
                )
            if device is None:
                continue
            if not wanted:
                raise StateError(
                    f"this process opened {device} in an earlier synkhronos.fork(), and its functions compute there, "
                    "but CPU processes cannot: pass devices=[...] again, or start a new program"
                )
            if self._keeper is None or not self._keeper.alive():
                reason = f"a new one cannot be forked after this process has opened {device}"
                raise StateError(f"the keeper process is gone, and {reason}: start a new program")

    def _start_until_connected(self, *start: Any) -> Session:
        """Start a session; up to ``heal`` times again if a rank of another host dies before its host has connected."""
        deaths: List[str] = []
        while True:
            try:
                session = self._start(*start)
            except WorkerDied as error:
                deaths.append(str(error).partition("; the session is closed")[0])
                if error.exitcode == LOST or len(deaths) > start[-1].heal:
                    raise
                logger.warning("%s: the ranks are started again (deaths: %d)", deaths[-1], len(deaths))
            else:
                if session.healing is not None:
                    session.healing.deaths += deaths
                return session

    def _start(
        self,
        size: int,
        root: int,
        launcher: Union[str, Launcher],
        devices: bool,
        hosts: Hosts,
        options: SessionOptions,
    ) -> Session:
        processes = isinstance(launcher, str) and LAUNCHERS[launcher] is ProcessLauncher
        near, claims = hosts.near, CoreClaims()
        block: Optional[ControlBlock] = None
        pools: Dict[int, Any] = {}
        span_bytes = ring_bytes(size) if options.recorded else 0
        starter = launcher if isinstance(launcher, Launcher) else LocalLauncher()  # also if there is no other rank
        try:
            block = block_of(hosts, span_bytes=span_bytes)
            if processes and (size > 1 or devices):  # before any device opens, so that the keeper can fork ranks later
                starter = ProcessLauncher(self._living_keeper(), options.heal > 0 and options.standby)
                if options.keep_heap:  # after the keeper has been forked, because each of its ranks has its own setting
                    keep_freed_memory()
            for rank in range(size):
                if rank not in near:
                    pools[rank] = shadow(nameless_file("shadow", 0))
                elif rank != root:
                    pools[rank] = nameless_file("pool", 0) if processes else Pool(rank)
            of_program = {pool.ident: pool for pool in [*self._inherited, self.pool]}
            pools.update(of_program)
            path, folder = list(sys.path), machine.working_directory()
            profile = f"synkhronos_rank_{root}.prof" if options.profile_workers else None
            policy, heals = None if processes else WaitPolicy.of_threads(), options.heal > 0
            config = RankConfig(root, size, root, hosts, [], 0, policy, path, folder, for_ranks(os.environ), profile)
            config = config._replace(keep_heap=options.keep_heap, promises=heals, heals=heals)
            threads = options.threads
            if hosts.are_several:
                if hosts.cores:  # equal threads everywhere, for equal bits of matrix products
                    threads = threads or min(max(1, n // len(ranks)) for n, ranks in zip(hosts.cores, hosts.ranks))
                assert isinstance(starter, ProcessLauncher) and self._bridge is not None
                modules = [*modules_to_import(), *self._bridge.world.modules]
                config = config._replace(policy=WaitPolicy.of_hosts(), promises=True)
                there = config._replace(environment={})  # each host has its own environment
                flags = options.pin, threads, heals and options.standby
                spec = SessionSpec(hosts, there, list(of_program), *flags, modules, span_bytes)
                starter = HostsLauncher(starter, self._bridge, spec)
            configs = configs_of_host(config, near, claims, options.pin and processes and size > 1, threads)
            own = configs.pop(near.index(root))
            starter.start(configs, block, pools)
            affinity = MasterAffinity(own.cores, own.threads if processes and size > 1 else None, claims)
            heal = options.heal if processes else 0  # threads cannot be killed
            here = size, root, starter, block, self.pool, pools, own.policy, affinity, hosts
            return Session(*here, options.timeout, own.profile, options.seed, options.random, heal)
        except BaseException as error:
            starter.kill()
            claims.release()
            if block is not None:
                block.close()
            if isinstance(error, OSError):
                text = f"the session could not be started (number of ranks: {size}): {error}"
                raise SynkhronosError(f"{text}; see ulimit -n (open files) and df -h /dev/shm") from error
            raise
        finally:
            for each in pools.values():
                if isinstance(each, int):
                    os.close(each)

    def _living_keeper(self) -> Keeper:
        if self._keeper is not None:
            self._keeper.kill()  # no rank is left to kill, so this tests whether the keeper answers
            if not self._keeper.alive():
                self._keeper.end()
                self._keeper = None
        if self._keeper is None:
            self._keeper = Keeper(self.enter_rank)
        return self._keeper

    def close(self, wait_s: float = -1) -> None:
        """Close the session or groups, if any, and remove the names of Data (`share_as`); the keeper stays.

        `Session.close` documents ``wait_s``.
        """
        session = self.session
        try:
            if session is not None:
                session.close(wait_s=wait_s)
                if self.session is session:  # another thread may have started the next session
                    self.session = None
            if self.groups is not None:
                self.groups.close()
        finally:
            if self._pool is not None:
                self._pool.unshare()

    def shut_down(self) -> None:
        """Close the session and end the keeper, so that no process of the library keeps running."""
        try:
            self.close(GRACE_S)
        finally:
            for servant in (self._keeper, self._bridge):
                if servant is not None:
                    servant.end()
            self._keeper = self._bridge = None

    def prepare_fork(self) -> None:
        """Before this process forks, replace values in common memory, which later commits overwrite, by copies."""
        session = self.session
        if session is not None and session.lock.acquire(blocking=False):  # not while another thread commits values
            try:
                for entry in list(session.context.registry.shareds.values()):
                    entry.unshare()
            finally:
                session.lock.release()

    def detach_after_fork(self) -> None:
        """In a child process that the user has forked, drop everything that belongs to the parent."""
        for servant in (self._keeper, self._bridge):
            if servant is not None:
                servant.detach_after_fork()
        if self.session is not None:
            self.session.affinity.release()
            self.session.prefetch.end()
            self.session.context.leading.close()
        if self._pool is not None:
            self._inherited.append(self._pool)
        if self.profiled is not None:
            self.profiled.detach_after_fork()
        self._keeper = self._bridge = self.session = self._pool = self.profiled = self._profile_to = None
        self.groups = None
        self._lock = threading.Lock()

    def enter_rank(self) -> None:
        """Mark this process as a process that only runs or forks ranks."""
        self.inside_rank = True


PROGRAM = Program()
os.register_at_fork(before=PROGRAM.prepare_fork, after_in_child=PROGRAM.detach_after_fork)
