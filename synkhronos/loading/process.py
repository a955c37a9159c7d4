"""The program's side of a loader process: start, buffers, messages and end.

The process is forked when a pass begins. It sees all objects that the source refers to, without pickling or copying,
but has none of the program's threads. It writes only into buffers of shared memory that the program has sent.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import weakref
from collections import deque
from functools import partial
from typing import Any, Deque, Dict, Optional

from numpy.typing import NDArray

from ..errors import LoaderError
from ..host.signals import DeferredSignals
from ..host.threads import limit_threads
from ..memory.attach import PoolMap
from ..memory.lending import Lender
from ..memory.pool import Pool
from ..processes.child_process import fork
from ..processes.rank_main import die_with_parent, take_default_signals
from ..runtime.exit_status import describe_end
from .work import Delivery, Ended, Work, serve

#: Seconds between asking a source to stop and killing its process.
GRACE_S = 1.0
_LOOK_INTERVAL_S = 0.1
#: Maximum size of a message; long tracebacks are truncated.
_MESSAGE_BYTES = 1 << 18


class LoaderProcess:
    """A loader process of one pass, with up to ``depth`` buffers in ``pool``, the program's shared memory.

    ``buffers`` maps numbers to buffers: those that the process may fill, and those delivered but not yet lent.
    """

    def __init__(self, work: Work, pool: Pool, depth: int) -> None:
        self.buffers: Dict[int, Lender] = {}
        self._lent: Deque[Lender] = deque(maxlen=4)  # lent to the program, for reuse; a loop uses two buffers at a time
        self._pool, self._depth = pool, depth
        self._nbytes = 1  # buffer size; the required size is unknown before the first batch
        self._given = 0
        self._received: Deque[Any] = deque()
        is_main = threading.current_thread() is threading.main_thread()
        with DeferredSignals():
            pid, self._socket = fork("a loader", partial(_become, work, pool, is_main))
            self._child = _Child(pid)
            self._end = weakref.finalize(self, _end, self._child, self._socket, os.getpid())  # also at exit

    @property
    def pid(self) -> int:
        return self._child.pid

    def __repr__(self) -> str:
        return f"LoaderProcess(pid={self.pid}, n_buffers={len(self.buffers)})"

    def ask_to_end(self) -> None:
        """Interrupt the source, so that its ``finally`` blocks run."""
        self._child.ask_to_end()

    def end(self) -> None:
        """End the process; kill it if it does not end in time. Idempotent."""
        self._end()

    def give(self) -> None:
        """Send buffers to the process until it has ``depth`` buffers or its socket is full."""
        while len(self.buffers) < self._depth and self._polls(select.POLLOUT, 0):
            free = [each for each in self._lent if not each.is_lent and each.block.nbytes >= self._nbytes]
            if free:
                self._lent.remove(free[0])
            lender = free[0] if free else Lender(self._pool, self._nbytes)
            self._given += 1
            self.buffers[self._given] = lender
            self._send("buffer", self._given, self._pool.handle(lender.block))

    def lend(self, number: int) -> NDArray[Any]:
        """Lend a delivered buffer's memory to the program."""
        lender = self.buffers.pop(number)
        self._lent.append(lender)
        return lender.lend()

    def attend(self) -> None:
        """Send the buffers that the process still lacks, and handle its pending messages."""
        self.give()
        while self._polls(select.POLLIN, 0):
            message = self._read()
            if message[0] == "larger":
                self._enlarge(message[1])
            else:
                self._received.append(message)
            if message[0] == "gone":
                return

    def receive(self, number: int, until: float) -> Any:
        """Return the next message from the process: ``("batch", ...)``, ``("end",)`` or ``("error", failure)``.

        Raises `LoaderError`, with the batch's number, if the process has ended or the deadline ``until`` has passed.
        """
        while True:
            self.attend()
            if self._received:
                message = self._received.popleft()
                if message[0] != "gone":
                    return message
                raise LoaderError(
                    f"{self._who} {self._child.wait()} while the program waited for batch {number}", number, self.pid
                )
            if time.monotonic() > until:
                raise LoaderError(f"{self._who} did not make batch {number} within the time limit", number, self.pid)
            waited = not self._polls(select.POLLIN, _LOOK_INTERVAL_S)
            if waited and self._child.ended() and not self._polls(select.POLLIN, 0):
                self._received.append(("gone",))  # a child of the process still has the socket open

    @property
    def _who(self) -> str:
        return f"the loader process (pid {self.pid})"

    def _read(self) -> Any:
        try:
            payload = self._socket.recv(_MESSAGE_BYTES)
        except ConnectionResetError:  # the process ended with unread input, but its last messages can still be read
            payload = self._socket.recv(_MESSAGE_BYTES)
        return pickle.loads(payload) if payload else ("gone",)

    def _enlarge(self, nbytes: int) -> None:
        """Send larger buffers to the process, which waits for them; they replace all buffers not delivered yet."""
        self._nbytes = nbytes + nbytes // 8
        delivered = [message[2] for message in self._received if message[0] == "batch"]
        self.buffers = {number: self.buffers[number] for number in delivered}
        self._send("larger")
        self.give()

    def _polls(self, event: int, seconds: float) -> bool:
        """Return whether the socket is readable or writable within ``seconds``."""
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(seconds * 1000))

    def _send(self, *message: Any) -> None:
        try:
            self._socket.send(pickle.dumps(message), socket.MSG_NOSIGNAL)
        except ConnectionError:
            pass  # the process has ended; its last messages are more informative


class _Child:
    """A forked child process: polled, asked to end, killed if necessary, and reaped at most once."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.how: Optional[str] = None  # how it ended, for messages
        self._asked = False

    def ended(self) -> bool:
        if self.how is None:
            try:
                found, status = os.waitpid(self.pid, os.WNOHANG)
                if found:
                    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                    self.how = describe_end(code)
            except ChildProcessError:  # the program or the kernel (SIGCHLD ignored) has reaped the process
                self.how = "has ended"
        return self.how is not None

    def ask_to_end(self) -> None:
        """Send SIGTERM, once."""
        if not self._asked and not self.ended():
            self._asked = True
            os.kill(self.pid, signal.SIGTERM)

    def wait(self) -> str:
        """Wait for the process to end, and kill it after `GRACE_S`; return how it ended."""
        until = time.monotonic() + GRACE_S
        while not self.ended():
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)  # not reaped yet, so the id is still valid
            time.sleep(0.0005)
        return str(self.how)


def _become(work: Work, pool: Pool, from_main: bool, theirs: socket.socket, program: int) -> None:
    """Run as a loader process; ``from_main``: whether the program's main thread forked it."""
    gc.freeze()  # this process must not free the program's objects, for example on devices
    if from_main:
        die_with_parent(program)  # the signal is tied to the forking thread, and other threads may end before the pass
    take_default_signals()
    # The program handles Ctrl-C. The handler is not SIG_IGN, because processes that the source starts would inherit it.
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        signal.signal(signal.SIGTERM, _raise_ended)
        limit_threads(1)
        pools = PoolMap()
        pools.add(pool.ident, pool)
        serve(work, Delivery(theirs, pools, None if from_main else program))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except Ended:
        pass


def _raise_ended(*_: Any) -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)
    raise Ended


def _end(child: _Child, sock: socket.socket, program: int) -> None:
    if os.getpid() == program:
        with DeferredSignals():  # otherwise Ctrl-C could leave the process behind
            child.ask_to_end()
            child.wait()
            sock.close()
