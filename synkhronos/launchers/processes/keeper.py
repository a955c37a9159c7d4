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
killed.

Waits: the keeper polls its socket and a pipe that SIGCHLD writes to, and checks every half second whether its parent is
still the master. The master waits for an answer of the keeper for at most `FORK_TIMEOUT_S` or `KILL_TIMEOUT_S`, and
kills the keeper after that. A rank whose keeper dies is killed by the kernel (``PR_SET_PDEATHSIG``).
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from ...errors import SynkhronosError
from ...runtime.launcher import RankConfig
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
#: Seconds between two looks of the keeper at its parent.
PARENT_CHECK_S = 0.5


class Descriptors(NamedTuple):
    """The open files of a session that the keeper needs to make its ranks."""

    block: int
    stacks: int  # into which ranks write their stacks
    streams: List[int]  # standard output and standard error of each rank, in the order of the configs
    pools: Dict[int, int]  # by ident
    bell: int = -1  # of the block, with several hosts

    def flat(self) -> List[int]:
        """Return all of them, in the order in which they travel."""
        bell = [self.bell] if self.bell >= 0 else []
        return [self.block, self.stacks, *self.streams, *self.pools.values(), *bell]

    @classmethod
    def of_flat(cls, fds: Sequence[int], n_ranks: int, idents: Sequence[int]) -> Descriptors:
        """Return what `flat` came from."""
        block, stacks, *rest = fds
        streams, pools = rest[: 2 * n_ranks], rest[2 * n_ranks :]
        return cls(block, stacks, streams, dict(zip(idents, pools)), *pools[len(idents) :])

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

    def spawn(self, configs: List[RankConfig], size: int, descriptors: Descriptors) -> List[int]:
        """Fork one rank per config, for a session of ``size`` ranks; return their process ids."""
        answer = self.ask(("spawn", configs, size, list(descriptors.pools)), descriptors.flat(), FORK_TIMEOUT_S)
        if isinstance(answer, str):
            raise SynkhronosError(answer)
        pids: List[int] = answer
        return pids

    def load(self, path: Sequence[str], modules: Sequence[str]) -> None:
        """Import modules, as far as they are there, so that ranks forked later have them; ``path`` is searched, too."""
        self.ask(("load", list(path), list(modules)), (), LOAD_TIMEOUT_S)

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

    def loop(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the master decides
        take_default_signals()
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

    def answer(self) -> Any:
        """Receive a request and do what it asks; return the answer: a sentence if it failed."""
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

    def spawn(self, fds: List[int], configs: List[RankConfig], size: int, idents: List[int]) -> Any:
        """Fork the ranks of a new session; those of an earlier one, which the master has given up, end."""
        self.kill([])
        descriptors = Descriptors.of_flat(fds, len(configs), idents)
        block = self.block = ControlBlock(size, descriptors.block, configs[0].hosts, descriptors.bell)
        block.fd = -1  # it is closed with the others that came
        for i, config in enumerate(configs):
            try:
                pid = os.fork()
            except OSError as error:
                self.kill([])
                return f"rank {config.rank} of {size} could not be started: {error}; see ulimit -u"
            if pid == 0:
                self._become(config, i, block, descriptors)
            self.ranks[pid] = config.rank
        return list(self.ranks)

    def _become(self, config: RankConfig, position: int, block: ControlBlock, descriptors: Descriptors) -> None:
        """Be a rank, and never return."""
        status = EXIT_CODE_FAILED
        try:
            die_with_parent(self.pid)
            signal.set_wakeup_fd(-1)
            # The master handles Ctrl-C. Not SIG_IGN, which the programs that a rank starts would inherit.
            signal.signal(signal.SIGINT, lambda *_: None)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.socket.close()
            redirect(descriptors.streams_of(position))
            for fd in descriptors.streams:
                os.close(fd)
            rank_main(config, block, descriptors.stacks, descriptors.pools, self.pid)
            status = 0
        except BaseException as error:
            record_fatal_error(block, config.rank, error)
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

    def kill(self, fds: List[int]) -> None:
        """Kill all ranks and wait for them."""
        for pid in self.ranks:
            os.kill(pid, signal.SIGKILL)  # it is our child and not waited for yet, so the id is still its own
        while self.ranks:
            self.reap(block=True)

    def reap(self, block: bool = False) -> None:
        """Record how ranks ended, and wake the master."""
        while self.ranks:
            try:
                pid, status, usage = os.wait4(-1, 0 if block else os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self.ranks.pop(pid, None)
            if rank is not None and self.block is not None:
                record_exit(
                    self.block,
                    rank,
                    -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status),
                    usage.ru_maxrss << 10,
                )


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
    block.arrivals.release()
    block.answers[rank].release()
