"""The keeper: a small process that forks all ranks but the master, watches them, and ends them with the master.

The program forks the keeper at the first `fork()`, and the keeper lives as long as the program. It opens no device,
builds no graph and owns no lock. It can therefore fork ranks at any time, even if the master has opened a GPU and
cannot fork usable processes itself. ::

    master                                 keeper                                  rank r
      | forks, once ------------------------> |
      | "spawn", configs, `Descriptors` ----> | forks, once per config ------------> |
      | <------------------- process ids      |                                      | sets itself up, serves
      |                                       |                                      |
      | <==== commands and answers, through the control block, without the keeper ==> |
      |                                       |                                      |
      |                                       | <------------------------- SIGCHLD   X ends
      | <-- control block: ended, status      | reaps the rank
      |                                       |                                      | (others)
      | "kill" -----------------------------> | kills and reaps ------------------>  X
      | <--------------------------- done     |
      X ends                                  | sees end of file, kills and reaps, ends

**Guarantees.** When a rank ends for any reason, the control block records how, and a waiting master wakes. The master
then releases or ends the other ranks. When the master ends for any reason, its ranks are killed. If the master was
killed during a session with a profile, the keeper writes the profile.

**Waits.** The keeper polls its socket and a pipe for SIGCHLD, and checks every half second that its parent is still the
master. The master waits for an answer up to a time limit, such as `FORK_TIMEOUT_S`, then kills the keeper. The kernel
kills ranks whose keeper dies (``PR_SET_PDEATHSIG``).
"""

from __future__ import annotations

import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from ..errors import SynkhronosError
from ..runtime.launcher import RankConfig
from ..runtime.prefetch import Preloader
from ..sync.block_over_hosts import block_of
from ..sync.control_block import DEATHS, FATAL_ERROR_BYTES, ControlBlock
from . import fd_passing
from .child_process import ChildProcess
from .output import redirect
from .rank_main import EXIT_CODE_FAILED, die_with_parent, rank_main, record_fatal_error, take_default_signals

KILL_TIMEOUT_S = 3.0  # time limit for killing and reaping all ranks
FORK_TIMEOUT_S = 30.0  # time limit for forking the ranks, which is slow only on an overloaded machine
LOAD_TIMEOUT_S = 120.0  # time limit for importing modules, sufficient for a cold file system
STANDBY_LOOKS_S = 0.1  # time between a standby process's checks for modules to load
PARENT_CHECK_S = 0.5  # time between checks of the parent


class Descriptors(NamedTuple):
    """The open files of a session that the keeper needs to start its ranks."""

    block: int
    stacks: int  # file for the ranks' Python stacks
    streams: List[int]  # standard output and standard error of each rank, in config order
    pools: Dict[int, int]  # by pool id
    bells: Sequence[int] = ()  # eventfds of the block, if there are several hosts

    def flat(self) -> List[int]:
        """Return all descriptors in the order of sending."""
        return [self.block, self.stacks, *self.streams, *self.pools.values(), *self.bells]

    @classmethod
    def of_flat(cls, fds: Sequence[int], n_ranks: int, idents: Sequence[int]) -> Descriptors:
        block, stacks, *rest = fds
        streams, pools = rest[: 2 * n_ranks], rest[2 * n_ranks :]
        return cls(block, stacks, streams, dict(zip(idents, pools)), tuple(pools[len(idents) :]))

    def streams_of(self, position: int) -> List[int]:
        """Return the two streams of the rank at a position among the configs."""
        return self.streams[2 * position : 2 * position + 2]


class Keeper(ChildProcess):
    """The master's side of the keeper process; the new process calls ``enter`` first."""

    def __init__(self, enter: Callable[[], object]) -> None:
        def work(sock: socket.socket, master: int) -> None:
            enter()
            _Watch(sock, master).loop()

        super().__init__("the keeper", work)

    def spawn(self, configs: List[RankConfig], size: int, descriptors: Descriptors, standby: bool = False) -> List[int]:
        """Kill the ranks of an earlier session, fork one rank per config, and return the process ids.

        With ``standby``, also fork a process for `replace`. ``size`` is the number of ranks of the session.
        """
        pids: List[int] = self._ask_for("spawn", configs, size, descriptors, standby)
        return pids

    def replace(self, config: RankConfig, configs: List[RankConfig], descriptors: Descriptors, standby: bool) -> int:
        """Replace a dead rank with the standby process or a new process; return the id of that process."""
        pid: int = self._ask_for("replace", configs, config.size, descriptors, standby, config)
        return pid

    def _ask_for(self, what: str, configs: List[RankConfig], size: int, descriptors: Descriptors, *more: Any) -> Any:
        answer = self.ask((what, configs, size, list(descriptors.pools), *more), descriptors.flat(), FORK_TIMEOUT_S)
        if isinstance(answer, str):
            raise SynkhronosError(answer)
        return answer

    def load(self, path: Sequence[str], modules: Sequence[str]) -> None:
        """Import modules in the keeper, if available (also from ``path``), so that ranks forked later have them."""
        self.ask(("load", list(path), list(modules)), (), LOAD_TIMEOUT_S)

    def end_rank(self, pid: int) -> None:
        """Kill a rank if it is alive, and wait until it is gone."""
        self.ask(("end_rank", pid), (), KILL_TIMEOUT_S)

    def write_if_killed(self, write: Callable[[Sequence[memoryview]], object]) -> None:
        """Make the keeper call ``write`` with the recorded activity (rings) of the ranks if the master is killed."""
        self.ask(("write_if_killed", write), (), FORK_TIMEOUT_S)

    def kill(self) -> None:
        """Kill all ranks and wait until they are gone; if the keeper fails to do so, kill it and thereby the ranks."""
        try:
            self.ask(("kill",), (), KILL_TIMEOUT_S)
        except SynkhronosError:
            pass


class _Watch:
    """Main loop of the keeper process."""

    def __init__(self, sock: socket.socket, master: int) -> None:
        self.socket, self.master = sock, master
        self.pid = os.getpid()  # for ranks, because getppid in a rank may run after the keeper's death
        self.block: Optional[ControlBlock] = None
        self.ranks: Dict[int, int] = {}  # rank by pid
        self.standby: Optional[Tuple[int, socket.socket]] = None  # a process that can become a rank, with its socket
        self.write: Optional[Callable[[Sequence[memoryview]], object]] = None  # called if the master is killed

    def loop(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals the whole process group; the master handles it
        take_default_signals()
        # Signals to the whole group must not end the keeper, because it may have to write the ranks' records.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGHUP])
        _drop_descriptors(self.socket.fileno())
        gc.collect()
        gc.freeze()  # keeps the program's pages untouched, and therefore shared
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self.socket, select.POLLIN | select.POLLHUP)
        poll.register(wake_read, select.POLLIN)
        try:
            while os.getppid() == self.master:
                ready = [fd for fd, _ in poll.poll(PARENT_CHECK_S * 1000)]
                if wake_read in ready:
                    try:
                        os.read(wake_read, 4096)
                    except BlockingIOError:
                        pass
                self.reap()
                if self.socket.fileno() in ready:
                    fd_passing.send(self.socket, self.answer())
        except (EOFError, ConnectionError):
            pass  # the master has ended, or closed its socket
        finally:
            self.kill([])
        if self.write is not None and self.block is not None:
            while os.getppid() == self.master:  # a dying master closes files first; a living master kills the keeper
                time.sleep(0.01)
            self.write(self.block.spans)

    def answer(self) -> Any:
        """Receive and execute a request; return the answer, which is an error message if the request failed."""
        _have_limit_of(self.master)
        try:
            message, fds = fd_passing.receive(self.socket)
        except OSError as error:
            return f"the ranks could not be started: {error}"
        try:
            return getattr(self, message[0])(fds, *message[1:])
        except (OSError, MemoryError) as error:  # no processes, memory or descriptors available
            self.kill([])
            return f"the ranks could not be started: {error}; see ulimit -a"
        finally:
            for fd in fds:
                os.close(fd)

    def spawn(
        self, fds: List[int], configs: List[RankConfig], size: int, idents: List[int], standby: bool
    ) -> Union[str, List[int]]:
        """Fork the ranks of a new session, after killing the ranks of an abandoned session."""
        self.kill([])
        self.write = None
        descriptors = Descriptors.of_flat(fds, len(configs), idents)
        self.block = block_of(configs[0].hosts, descriptors.block, descriptors.bells)
        self.block.fd = -1  # closed with the other received descriptors
        try:
            pids = [self.fork(config, configs, descriptors) for config in configs]
        except OSError as error:
            rank = configs[len(self.ranks)].rank
            self.kill([])
            return f"rank {rank} of {size} could not be started: {error}; see ulimit -u"
        if standby:
            self.stand_by(configs, descriptors)
        return pids

    def write_if_killed(self, fds: List[int], write: Callable[[Sequence[memoryview]], object]) -> None:
        self.write = write

    def replace(
        self,
        fds: List[int],
        configs: List[RankConfig],
        size: int,
        idents: List[int],
        standby: bool,
        config: RankConfig,
    ) -> int:
        """Replace a rank that has ended; with ``standby``, then fork the next standby process."""
        descriptors = Descriptors.of_flat(fds, len(configs), idents)
        pid = self.call_standby(config) or self.fork(config, configs, descriptors)
        if standby:
            self.stand_by(configs, descriptors)
        return pid

    def call_standby(self, config: RankConfig) -> int:
        """Make the standby process a rank; return its id, or 0 if there is no such process."""
        (pid, sock), self.standby = self.standby or (0, None), None
        if sock is None:
            return 0
        try:
            with sock:
                fd_passing.send(sock, config)
        except OSError:  # the standby process was killed, too
            return 0
        self.ranks[pid] = config.rank
        return pid

    def fork(self, config: RankConfig, configs: List[RankConfig], descriptors: Descriptors) -> int:
        assert self.block is not None
        pid = os.fork()
        if pid == 0:
            self._become(config, configs, self.block, descriptors)
        self.ranks[pid] = config.rank
        return pid

    def stand_by(self, configs: List[RankConfig], descriptors: Descriptors) -> None:
        """Try to fork a standby process, which preloads modules and can become any rank."""
        assert self.block is not None
        try:
            ours, theirs = fd_passing.socket_pair()
        except OSError:
            return
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                return
            if pid == 0:
                ours.close()
                self._become(theirs, configs, self.block, descriptors)
        self.standby = pid, ours

    def _become(
        self,
        called: Union[RankConfig, socket.socket],
        configs: List[RankConfig],
        block: ControlBlock,
        descriptors: Descriptors,
    ) -> None:
        """Run as a rank, immediately or when called, and never return."""
        status, rank = EXIT_CODE_FAILED, called.rank if isinstance(called, RankConfig) else -1
        try:
            die_with_parent(self.pid)
            signal.set_wakeup_fd(-1)
            # The master handles Ctrl-C. SIG_IGN would be inherited by programs that a rank starts.
            signal.signal(signal.SIGINT, lambda *_: None)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            self.socket.close()
            if self.standby is not None:
                self.standby[1].close()
            config = called if isinstance(called, RankConfig) else _wait_for(called, block, self.pid)
            rank = config.rank
            redirect(descriptors.streams_of([each.rank for each in configs].index(rank)))
            for fd in descriptors.streams:
                os.close(fd)
            rank_main(config, block, descriptors.stacks, descriptors.pools, self.pid)
            status = 0
        except BaseException as error:
            if rank >= 0:  # a standby process has no slot for its error
                record_fatal_error(block, rank, error)
        finally:
            os._exit(status)

    def load(self, fds: List[int], path: List[str], modules: List[str]) -> None:
        sys.path += [folder for folder in path if folder not in sys.path]
        for name in modules:
            if name not in sys.modules:
                try:
                    importlib.import_module(name)
                except Exception:
                    pass  # a rank that needs the module will report the error
        gc.freeze()

    def end_rank(self, fds: List[int], pid: int) -> None:
        if pid in self.ranks:
            os.kill(pid, signal.SIGKILL)  # still a child, so the id is valid
        while pid in self.ranks:
            self.reap()
            time.sleep(0.0005)

    def kill(self, fds: List[int]) -> None:
        if self.standby is not None:
            pid, sock = self.standby
            sock.close()
            self.standby, self.ranks[pid] = None, -1
        for pid in self.ranks:
            os.kill(pid, signal.SIGKILL)  # a child not yet waited for, so the id is still valid
        while self.ranks:
            self.reap(block=True)

    def reap(self, block: bool = False) -> None:
        """Record how ranks ended, and wake the master."""
        while self.ranks or self.standby:
            try:
                pid, status, usage = os.wait4(-1, 0 if block else os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self.ranks.pop(pid, -1)
            if self.standby is not None and pid == self.standby[0]:
                self.standby[1].close()
                self.standby = None
            if rank >= 0 and self.block is not None:
                record_exit(
                    self.block,
                    rank,
                    -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status),
                    usage.ru_maxrss << 10,
                )


def _wait_for(sock: socket.socket, block: ControlBlock, keeper: int) -> RankConfig:
    """Wait until this process becomes a rank; preload announced modules meanwhile."""

    def watch() -> None:
        if os.getppid() != keeper:
            os._exit(0)

    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLHUP)
    preload = Preloader(block, watch, lambda: bool(poll.poll(0)))
    while not poll.poll(STANDBY_LOOKS_S * 1000):
        preload()
    with sock:
        config: RankConfig = fd_passing.receive(sock)[0]
    return config


def _have_limit_of(master: int) -> None:
    """Adopt the program's current limit on open files, which it may have raised since the keeper was forked."""
    most = resource.RLIMIT_NOFILE
    try:
        soft, hard = resource.prlimit(master, most)
        own = resource.getrlimit(most)[1]
        resource.setrlimit(most, (soft if own == resource.RLIM_INFINITY else min(soft, own), own))
    except (OSError, ValueError):  # the program has ended, or the system denies the change
        pass


def _drop_descriptors(keep: int) -> None:
    """Replace the program's files, pipes and sockets with /dev/null, so that no reader waits for the keeper."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in (keep, nothing):
            try:
                os.fstat(fd)  # the listing's own descriptor is closed by now
                os.dup2(nothing, fd, inheritable=False)  # inherited objects may still close this number
            except OSError:
                pass
    os.close(nothing)


def record_exit(block: ControlBlock, rank: int, status: int, memory: int = 0, reason: bytes = b"") -> None:
    """Record that a rank has ended, with a ``reason`` if it recorded none; wake the master, which may be waiting."""
    block.fatal_error[rank][: len(reason)] = reason[:FATAL_ERROR_BYTES]
    block.status[rank], block.memory[rank] = status, memory
    block.ended[rank] = 1
    block.words[DEATHS] = 1
    block.call_root()
    block.answers[rank].release()
