"""A loader process, as the program sees it.

It is forked from the program when a pass begins. So it has all that the source refers to, and what the program changed
before the pass, without pickling or copying; and it has the program's shared memory, in which it writes only into
buffers that it was given. The program's own threads are not in it.
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

from ...errors import LoaderError
from ...host.signals import DeferredSignals
from ...host.threads import limit_threads
from ...launchers.processes.rank_main import die_with_parent, take_default_signals
from ...launchers.processes.servant import fork
from ...memory.attach import PoolMap
from ...memory.lending import Lender
from ...memory.pool import Pool
from ...runtime.exit_status import describe_end
from .work import Delivery, Ended, Work, serve

#: Seconds that a source is given to end before its process is killed.
GRACE_S = 1.0
#: Seconds between two looks at a process that is awaited.
_LOOK_INTERVAL_S = 0.1
#: More than any message has: tracebacks are cut.
_MESSAGE_BYTES = 1 << 18


class LoaderProcess:
    """One of the processes of a pass.

    Parameters
    ----------
    work : Work
    pool : Pool
        The program's shared memory.
    depth : int
        How many buffers the process is given beforehand.

    Attributes
    ----------
    pid : int
    buffers : dict of int to Lender
        By number, those that the process has, and those whose batches it has delivered and the program not taken yet.
    """

    def __init__(self, work: Work, pool: Pool, depth: int) -> None:
        self.buffers: Dict[int, Lender] = {}
        self._lent: Deque[Lender] = deque(maxlen=4)  # to the program, which keeps two in a loop; others it may keep
        self._pool, self._depth = pool, depth
        self._nbytes = 1  # of a buffer: unknown until there is a batch
        self._given = 0
        self._received: Deque[Any] = deque()
        is_main = threading.current_thread() is threading.main_thread()
        with DeferredSignals():
            pid, self._socket = fork("a loader", partial(_become, work, pool, is_main))
            self._child = _Child(pid)
            self._end = weakref.finalize(self, _end, self._child, self._socket, os.getpid())  # at exit, too

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def __repr__(self) -> str:
        return f"LoaderProcess(pid={self.pid}, {len(self.buffers)} buffers)"

    def ask_to_end(self) -> None:
        """Have the source stop where it is, and go through its ``finally``."""
        self._child.ask_to_end()

    def end(self) -> None:
        """End the process; it is killed if it does not end when asked. May be called again."""
        self._end()

    def give(self) -> None:
        """Give the process as many buffers as it may have, or as the socket holds until it has read some."""
        while len(self.buffers) < self._depth and self._polls(select.POLLOUT, 0):
            free = [each for each in self._lent if not each.is_lent and each.block.nbytes >= self._nbytes]
            if free:
                self._lent.remove(free[0])
            lender = free[0] if free else Lender(self._pool, self._nbytes)
            self._given += 1
            self.buffers[self._given] = lender
            self._send("buffer", self._given, self._pool.handle(lender.block))

    def lend(self, number: int) -> NDArray[Any]:
        """Take a buffer back, and lend its memory to the program."""
        lender = self.buffers.pop(number)
        self._lent.append(lender)
        return lender.lend()

    def attend(self) -> None:
        """Answer what the process has asked for, and give it what its socket had no room for."""
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
        """Return the process's next message: ``("batch", ...)``, ``("end",)`` or ``("error", failure)``.

        Raises
        ------
        LoaderError
            It has ended, or the time is over; says which batch was awaited.
        """
        while True:
            self.attend()
            if self._received:
                message = self._received.popleft()
                if message[0] != "gone":
                    return message
                raise LoaderError(
                    f"{self._who} {self._child.wait()} while batch {number} was awaited", number, self.pid
                )
            if time.monotonic() > until:
                raise LoaderError(f"{self._who} has not made batch {number} in time", number, self.pid)
            waited = not self._polls(select.POLLIN, _LOOK_INTERVAL_S)
            if waited and self._child.ended() and not self._polls(select.POLLIN, 0):
                self._received.append(("gone",))  # and something that it started has its end of the socket

    @property
    def _who(self) -> str:
        return f"the loader process (pid {self.pid})"

    def _read(self) -> Any:
        try:
            payload = self._socket.recv(_MESSAGE_BYTES)
        except ConnectionResetError:  # it has ended and left something unread; its own last messages come after that
            payload = self._socket.recv(_MESSAGE_BYTES)
        return pickle.loads(payload) if payload else ("gone",)

    def _enlarge(self, nbytes: int) -> None:
        """Replace the buffers that the process may write to by larger ones: it waits for that."""
        self._nbytes = nbytes + nbytes // 8
        delivered = [message[2] for message in self._received if message[0] == "batch"]
        self.buffers = {number: self.buffers[number] for number in delivered}
        self._send("larger")
        self.give()

    def _polls(self, event: int, seconds: float) -> bool:
        """Return whether the socket can be read from, or sent to: or can so within these seconds."""
        poll = select.poll()
        poll.register(self._socket, event)
        return bool(poll.poll(seconds * 1000))

    def _send(self, *message: Any) -> None:
        try:
            self._socket.send(pickle.dumps(message), socket.MSG_NOSIGNAL)
        except ConnectionError:
            pass  # it has ended: its last messages say more


class _Child:
    """A child process of this one, which is waited for once."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.how: Optional[str] = None  # it ended, as messages say it
        self._asked = False

    def ended(self) -> bool:
        """Return whether it has ended."""
        if self.how is None:
            try:
                found, status = os.waitpid(self.pid, os.WNOHANG)
                if found:
                    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                    self.how = describe_end(code)
            except ChildProcessError:  # the program has waited for it, or has the kernel do so
                self.how = "has ended"
        return self.how is not None

    def ask_to_end(self) -> None:
        """Send it the signal by which it ends, once."""
        if not self._asked and not self.ended():
            self._asked = True
            os.kill(self.pid, signal.SIGTERM)

    def wait(self) -> str:
        """Wait for it, who is about to end; return how it has. It is killed if it does not."""
        until = time.monotonic() + GRACE_S
        while not self.ended():
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)  # not waited for yet, so the id is still its own
            time.sleep(0.0005)
        return str(self.how)


def _become(work: Work, pool: Pool, from_main: bool, theirs: socket.socket, program: int) -> None:
    """Be a loader process, forked from the main thread of the program or from another."""
    gc.freeze()  # what the program holds, on devices too, is not for this process to free
    if from_main:
        die_with_parent(program)  # the kernel means the thread, and another one may end before the pass
    take_default_signals()
    # The program handles Ctrl-C. Not SIG_IGN, which the programs that a source starts would inherit.
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
        with DeferredSignals():  # or Ctrl-C could leave it behind
            child.ask_to_end()
            child.wait()
            sock.close()
