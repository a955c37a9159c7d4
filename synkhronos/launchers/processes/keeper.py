"""The keeper: a small process that forks every rank, watches over them, and ends them with the master.

It is forked from the program at the first `fork()` and lives as long as the program. It opens no device, builds no
graph and holds no lock, so that ranks can be forked from it at any time, even if the master has already opened a GPU
and could not fork a usable process itself. ::

    master                                 keeper                                  rank r
      | forks, once ------------------------> |
      | "spawn", configs, `Descriptors` ----> | forks, once per config ------------> |
      | <------------------- process ids      |                                      | sets itself up, serves
      |                                       |                                      |
      | <==== commands and answers, through the control block, without the keeper ==> |
      |                                       |                                      |
      |                                       | <------------------------- SIGCHLD   X ends
      | <-- control block: ended, status      | reaps it
      |                                       |                                      | (others)
      | "kill" -----------------------------> | kills and reaps ------------------>  X
      | <--------------------------- done     |
      X ends                                  | sees end of file, kills and reaps, ends

What it promises: when a rank ends, for whatever reason, the control block says how, and the master is woken if it
waits; the master then frees the other ranks or ends them. When the master ends, for whatever reason, its ranks are
killed; if it was killed itself, the keeper writes the profile of its session, if there is one to be.

Waits: the keeper polls its socket and a pipe that SIGCHLD writes to, and checks every half second whether its parent is
still the master. The master waits for an answer of the keeper for at most `FORK_TIMEOUT_S` or `KILL_TIMEOUT_S`, and
kills the keeper after that. A rank whose keeper dies is killed by the kernel (``PR_SET_PDEATHSIG``).
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

from ...errors import SynkhronosError
from ...runtime.launcher import RankConfig
from ...runtime.prefetch import Preloader
from ...sync.control_block import ControlBlock
from . import fd_passing
from .output import redirect
from .rank_main import EXIT_CODE_FAILED, die_with_parent, rank_main, record_fatal_error, take_default_signals
from .servant import Servant

#: Seconds in which the keeper must have killed and reaped all ranks.
KILL_TIMEOUT_S = 3.0
#: Seconds in which it must have forked them. That takes a moment, except on machines with a hundred programs per core.
FORK_TIMEOUT_S = 30.0
#: Seconds in which it must have imported what ranks will need; more than it takes with a cold file system.
LOAD_TIMEOUT_S = 120.0
#: Seconds between two looks of a process on standby at what it may load.
STANDBY_LOOKS_S = 0.1
#: Seconds between two looks of the keeper at its parent.
PARENT_CHECK_S = 0.5


class Descriptors(NamedTuple):
    """The open files of a session that the keeper needs to make its ranks."""

    block: int
    stacks: int  # into which ranks write their stacks
    streams: List[int]  # standard output and standard error of each rank, in the order of the configs
    pools: Dict[int, int]  # by ident
    bells: Sequence[int] = ()  # of the block, with several hosts

    def flat(self) -> List[int]:
        """Return all of them, in the order in which they travel."""
        return [self.block, self.stacks, *self.streams, *self.pools.values(), *self.bells]

    @classmethod
    def of_flat(cls, fds: Sequence[int], n_ranks: int, idents: Sequence[int]) -> Descriptors:
        """Return what `flat` came from."""
        block, stacks, *rest = fds
        streams, pools = rest[: 2 * n_ranks], rest[2 * n_ranks :]
        return cls(block, stacks, streams, dict(zip(idents, pools)), tuple(pools[len(idents) :]))

    def streams_of(self, position: int) -> List[int]:
        """Return the two streams of the rank of a config."""
        return self.streams[2 * position : 2 * position + 2]


class Keeper(Servant):
    """The master's side of the keeper process; the kernel ends the ranks of one that ends.

    Parameters
    ----------
    enter : callable
        Called in the new process, before anything else.
    """

    def __init__(self, enter: Callable[[], object]) -> None:
        def work(sock: socket.socket, master: int) -> None:
            enter()
            _Watch(sock, master).loop()

        super().__init__("the keeper", work)

    def spawn(self, configs: List[RankConfig], size: int, descriptors: Descriptors, standby: bool = False) -> List[int]:
        """Fork one rank per config, for a session of ``size`` ranks, and end those of an earlier one.

        Parameters
        ----------
        configs : list of RankConfig
        size : int
        descriptors : Descriptors
        standby : bool
            Whether another process is forked, for `replace`.

        Returns
        -------
        list of int
            Their process ids.
        """
        pids: List[int] = self._ask_for("spawn", configs, size, descriptors, standby)
        return pids

    def replace(self, config: RankConfig, configs: List[RankConfig], descriptors: Descriptors, standby: bool) -> int:
        """Have another process be a rank that has ended: the one on standby, or a new one; return its id."""
        pid: int = self._ask_for("replace", configs, config.size, descriptors, standby, config)
        return pid

    def _ask_for(self, what: str, configs: List[RankConfig], size: int, descriptors: Descriptors, *more: Any) -> Any:
        answer = self.ask((what, configs, size, list(descriptors.pools), *more), descriptors.flat(), FORK_TIMEOUT_S)
        if isinstance(answer, str):
            raise SynkhronosError(answer)
        return answer

    def load(self, path: Sequence[str], modules: Sequence[str]) -> None:
        """Import modules, as far as they are there, so that ranks forked later have them; ``path`` is searched, too."""
        self.ask(("load", list(path), list(modules)), (), LOAD_TIMEOUT_S)

    def end_rank(self, pid: int) -> None:
        """Kill one rank, if it lives, and wait until it is gone."""
        self.ask(("end_rank", pid), (), KILL_TIMEOUT_S)

    def outlive(self, write: Callable[[Sequence[memoryview]], object]) -> None:
        """Call that with the rings of this session's ranks if the master is killed."""
        self.ask(("outlive", write), (), FORK_TIMEOUT_S)

    def kill(self) -> None:
        """Kill every rank and wait until all are gone; a keeper that does not is killed, and the ranks with it."""
        try:
            self.ask(("kill",), (), KILL_TIMEOUT_S)
        except SynkhronosError:
            pass


class _Watch:
    """The keeper process itself."""

    def __init__(self, sock: socket.socket, master: int) -> None:
        self.socket, self.master = sock, master
        self.pid = os.getpid()  # for ranks: one that asked for its parent's could be too late, and live on forever
        self.block: Optional[ControlBlock] = None
        self.ranks: Dict[int, int] = {}  # rank by pid
        self.standby: Optional[Tuple[int, socket.socket]] = None  # a process that can become a rank, and how it is told
        self.write: Optional[Callable[[Sequence[memoryview]], object]] = None  # if the master is killed

    def loop(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the master decides
        take_default_signals()
        # What ends the whole group leaves the keeper, which may have to write what the ranks have recorded.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGHUP])
        _drop_descriptors(self.socket.fileno())
        gc.collect()
        gc.freeze()  # what the program held stays untouched, and so shared, for as long as it lives
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
            pass  # the master has ended, or needs the keeper no more
        finally:
            self.kill([])
        if self.write is not None and self.block is not None:
            while os.getppid() == self.master:  # its files are closed first; and if it is alive it kills the keeper now
                time.sleep(0.01)
            self.write(self.block.spans)

    def answer(self) -> Any:
        """Receive a request and do what it asks; return the answer: a sentence if it failed."""
        _have_limit_of(self.master)
        try:
            message, fds = fd_passing.receive(self.socket)
        except OSError as error:
            return f"the ranks could not be started: {error}"
        try:
            return getattr(self, message[0])(fds, *message[1:])
        except (OSError, MemoryError) as error:  # no processes, no memory, no descriptors
            self.kill([])
            return f"the ranks could not be started: {error}; see ulimit -a"
        finally:
            for fd in fds:
                os.close(fd)

    def spawn(
        self, fds: List[int], configs: List[RankConfig], size: int, idents: List[int], standby: bool
    ) -> Union[str, List[int]]:
        """Fork the ranks of a new session; those of an earlier one, which the master has given up, end."""
        self.kill([])
        self.write = None
        descriptors = Descriptors.of_flat(fds, len(configs), idents)
        self.block = ControlBlock(size, descriptors.block, configs[0].hosts, descriptors.bells)
        self.block.fd = -1  # it is closed with the others that came
        try:
            pids = [self.fork(config, configs, descriptors) for config in configs]
        except OSError as error:
            rank = configs[len(self.ranks)].rank
            self.kill([])
            return f"rank {rank} of {size} could not be started: {error}; see ulimit -u"
        if standby:
            self.stand_by(configs, descriptors)
        return pids

    def outlive(self, fds: List[int], write: Callable[[Sequence[memoryview]], object]) -> None:
        """Remember what to do if the master is killed."""
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
        """Have another process be a rank that has ended; then have the next one stand by."""
        descriptors = Descriptors.of_flat(fds, len(configs), idents)
        pid = self.call_standby(config) or self.fork(config, configs, descriptors)
        if standby:
            self.stand_by(configs, descriptors)
        return pid

    def call_standby(self, config: RankConfig) -> int:
        """Have the process on standby be a rank; return its id, 0 if there is none."""
        (pid, sock), self.standby = self.standby or (0, None), None
        if sock is None:
            return 0
        try:
            with sock:
                fd_passing.send(sock, config)
        except OSError:  # it was killed, too
            return 0
        self.ranks[pid] = config.rank
        return pid

    def fork(self, config: RankConfig, configs: List[RankConfig], descriptors: Descriptors) -> int:
        """Fork a rank; return its process id."""
        assert self.block is not None
        pid = os.fork()
        if pid == 0:
            self._become(config, configs, self.block, descriptors)
        self.ranks[pid] = config.rank
        return pid

    def stand_by(self, configs: List[RankConfig], descriptors: Descriptors) -> None:
        """Fork a process that can be any of the ranks, and meanwhile loads what they need; do without if need be."""
        assert self.block is not None
        try:
            ours, theirs = fd_passing.pair()
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
        """Be a rank, now or when called, and never return."""
        status, rank = EXIT_CODE_FAILED, called.rank if isinstance(called, RankConfig) else -1
        try:
            die_with_parent(self.pid)
            signal.set_wakeup_fd(-1)
            # The master handles Ctrl-C. Not SIG_IGN, which the programs that a rank starts would inherit.
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
            if rank >= 0:  # else it has no place where it could say that
                record_fatal_error(block, rank, error)
        finally:
            os._exit(status)

    def load(self, fds: List[int], path: List[str], modules: List[str]) -> None:
        """Import modules."""
        sys.path += [folder for folder in path if folder not in sys.path]
        for name in modules:
            if name not in sys.modules:
                try:
                    importlib.import_module(name)
                except Exception:
                    pass  # a rank that needs it will say why
        gc.freeze()

    def end_rank(self, fds: List[int], pid: int) -> None:
        """Kill a rank and wait for it."""
        if pid in self.ranks:
            os.kill(pid, signal.SIGKILL)  # (as below)
        while pid in self.ranks:
            self.reap()
            time.sleep(0.0005)

    def kill(self, fds: List[int]) -> None:
        """Kill all ranks and wait for them."""
        if self.standby is not None:
            pid, sock = self.standby
            sock.close()
            self.standby, self.ranks[pid] = None, -1
        for pid in self.ranks:
            os.kill(pid, signal.SIGKILL)  # it is our child and not waited for yet, so the id is still its own
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
    """Wait until this process is to be a rank; load what is announced meanwhile."""

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
    """Take the limit of open files that the program has now: it may have raised its own since the keeper was forked."""
    most = resource.RLIMIT_NOFILE
    try:
        soft, hard = resource.prlimit(master, most)
        own = resource.getrlimit(most)[1]
        resource.setrlimit(most, (soft if own == resource.RLIM_INFINITY else min(soft, own), own))
    except (OSError, ValueError):  # it has ended, or the system does not let us
        pass


def _drop_descriptors(keep: int) -> None:
    """Close the program's open files, pipes and sockets: a reader of their other ends must not wait for the keeper.

    The numbers stay in use, for /dev/null: objects inherited from the program may still close them.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in (keep, nothing):
            try:
                os.fstat(fd)  # the listing's own descriptor is closed by now
                os.dup2(nothing, fd, inheritable=False)
            except OSError:
                pass
    os.close(nothing)


def record_exit(block: ControlBlock, rank: int, status: int, memory: int = 0) -> None:
    """Record that a rank has ended, and wake the master, which may wait for its arrival or its answer."""
    block.status[rank], block.memory[rank] = status, memory
    block.ended[rank] = 1
    block.deaths = 1
    block.call_root()
    block.answers[rank].release()
