"""A small process that is forked from the program, does what the program asks, and ends with it.

It is asked over an anonymous socket pair, and answers each request in turn. What it lives for is in `keeper` and, with
several hosts, in `bridge`.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import traceback
import warnings
from typing import Any, Callable, Optional, Sequence, Tuple

from ...errors import SynkhronosError
from ...host.signals import DeferredSignals
from . import fd_passing


def fork(name: str, work: Callable[[socket.socket, int], object]) -> Tuple[int, socket.socket]:
    """Start a process; return its id, and this end of a socket pair.

    Parameters
    ----------
    name : str
        How messages call it.
    work : callable
        Is called in the new process with its end and the id of this process, and does all of it. An exception is
        printed there.

    Raises
    ------
    SynkhronosError
        If the process cannot be started.
    """
    ours, theirs = fd_passing.pair()
    for stream in (sys.stdout, sys.stderr):  # or what is in their buffers would be written twice
        try:
            stream.flush()
        except Exception:  # closed or replaced by the user
            pass
    program = os.getpid()
    with DeferredSignals():
        try:
            with warnings.catch_warnings():
                # Python warns of other threads, whose locks may be held in the new process.
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


class Servant:
    """The program's side of such a process.

    Parameters
    ----------
    name : str
        How messages call it: "the keeper".
    work : callable
        See `fork`.
    """

    def __init__(self, name: str, work: Callable[[socket.socket, int], object]) -> None:
        self.name = name
        self._status: Optional[int] = None
        with DeferredSignals():
            self.pid, self._socket = fork(name, work)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pid={self.pid}, {('alive' if self.alive() else 'ended')})"

    def ask(self, message: Any, fds: Sequence[int], seconds: float) -> Any:
        """Send a message, with descriptors, and return the answer. If none comes, the process is killed.

        Raises
        ------
        SynkhronosError
        """
        with DeferredSignals():  # or an answer could be taken for the next one's
            try:
                self._socket.settimeout(seconds)
                fd_passing.send(self._socket, message, fds)
                return fd_passing.receive(self._socket)[0]
            except socket.timeout as error:
                self.end()
                raise SynkhronosError(
                    f"{self.name} process (pid {self.pid}) did not answer within {seconds:g} s and was ended"
                ) from error
            except (OSError, EOFError) as error:
                if isinstance(error, OSError) and error.errno in (errno.EMFILE, None) and self.alive():
                    if error.errno is None:  # the answer is lost
                        self.end()
                    limits = "" if "ulimit" in str(error) else "; see ulimit -n"
                    raise SynkhronosError(f"{self.name} process cannot be asked: {error}{limits}") from error
                self.end()
                raise SynkhronosError(f"{self.name} process (pid {self.pid}) is gone: {self.exit_reason()}") from error

    def alive(self) -> bool:
        """Return whether the process still runs."""
        if self._status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # other code of the program waited for it
                self._status = -1
            else:
                if pid:
                    self._status = status
        return self._status is None

    def exit_reason(self) -> str:
        """Return how the process ended."""
        if self.alive():
            return "it does not answer"
        if self._status is not None and self._status >= 0 and os.WIFSIGNALED(self._status):
            return f"killed by signal {os.WTERMSIG(self._status)}"
        return "it ended"

    def end(self) -> None:
        """End the process, whatever state it is in."""
        self._socket.close()
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)  # not waited for yet, so the id is still its own
            try:
                self._status = os.waitpid(self.pid, 0)[1]
            except ChildProcessError:
                self._status = -1

    def detach_after_fork(self) -> None:
        """Let go of it in a process that the user forked: it belongs to the parent."""
        self._socket.close()
        self._status = -1
