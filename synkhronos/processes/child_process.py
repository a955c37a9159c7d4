"""A helper process, forked from the program: it answers requests over a socket pair, and ends with the program."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from typing import Any, Callable, Optional, Sequence, Tuple

from ..errors import StateError, SynkhronosError
from ..host.signals import DeferredSignals
from . import fd_passing

ENDING_S = 1.0  # time limit for a process to end after the kernel has closed its sockets


def fork(name: str, work: Callable[[socket.socket, int], object]) -> Tuple[int, socket.socket]:
    """Fork a process that calls ``work(socket, parent_pid)``; return its id and this end of a socket pair.

    The new process ends after ``work``, and prints its exception, if any. Raise `SynkhronosError` if the fork fails, or
    `StateError` if JAX is running in this process, because the new process would lack the threads of JAX.
    """
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized():
        raise StateError(
            f"no process can be forked for {name}, because JAX is running in this process, and its threads would not "
            "survive: call synkhronos.fork() before the first use of JAX, or use fork(devices='jax') without processes"
        )
    ours, theirs = fd_passing.socket_pair()
    for stream in (sys.stdout, sys.stderr):  # otherwise buffered output would be written twice
        try:
            stream.flush()
        except Exception:  # closed or replaced by the user
            pass
    program = os.getpid()
    with DeferredSignals():
        try:
            with warnings.catch_warnings():
                # Python warns about other threads, because the new process may inherit locks that they hold.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            ours.close()
            theirs.close()
            raise SynkhronosError(f"no process can be started for {name}: {error}; see ulimit -u") from error
        if pid == 0:
            status = 1
            try:
                ours.close()
                work(theirs, program)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        theirs.close()
        return pid, ours


class ChildProcess:
    """The program's side of a helper process; messages use ``name`` ("the keeper"); for ``work`` see `fork`."""

    def __init__(self, name: str, work: Callable[[socket.socket, int], object]) -> None:
        self.name, self._lock = name, threading.RLock()
        self._status: Optional[int] = None
        with DeferredSignals():
            self.pid, self._socket = fork(name, work)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pid={self.pid}, {('alive' if self.alive() else 'ended')})"

    def ask(self, message: Any, fds: Sequence[int], seconds: float) -> Any:
        """Send a message and return the answer; if none arrives, raise SynkhronosError and usually kill the process."""
        with self._lock, DeferredSignals():  # otherwise an answer could be read as the next message's answer
            try:
                self._socket.settimeout(seconds)
                fd_passing.send(self._socket, message, fds)
                return fd_passing.receive(self._socket)[0]
            except socket.timeout as error:
                self.end()
                raise SynkhronosError(
                    f"{self.name} process (pid {self.pid}) did not answer within {seconds:g} s and was killed"
                ) from error
            except (OSError, EOFError) as error:
                if isinstance(error, OSError) and error.errno in (errno.EMFILE, None) and self.alive():
                    if error.errno is None:  # the answer is lost
                        self.end()
                    limits = "" if "ulimit" in str(error) else "; see ulimit -n"
                    raise SynkhronosError(f"{self.name} process cannot be reached: {error}{limits}") from error
                until = time.monotonic() + ENDING_S
                while self.alive() and time.monotonic() < until:
                    time.sleep(0.001)
                reason = "it has closed the connection" if self.alive() else self.exit_reason()
                self.end()
                raise SynkhronosError(f"{self.name} process (pid {self.pid}) is gone: {reason}") from error

    def alive(self) -> bool:
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:  # otherwise another thread may just have set the status
                    self._status = status
            except ChildProcessError:  # other code of the program has waited for the process
                self._status = -1
        return self._status is None

    def exit_reason(self) -> str:
        if self.alive():
            return "it does not answer"
        if self._status is not None and self._status >= 0 and os.WIFSIGNALED(self._status):
            return f"killed by signal {os.WTERMSIG(self._status)}"
        return "it exited"

    def end(self) -> None:
        """Close the socket, and kill the process if it is alive; idempotent."""
        self._socket.close()
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)  # not yet waited for, so the id is still valid
            try:
                self._status = os.waitpid(self.pid, 0)[1]
            except ChildProcessError:
                self._status = -1

    def detach_after_fork(self) -> None:
        """Detach from the process in a child that the user forked, because the parent owns the process."""
        self._socket.close()
        self._status = -1
