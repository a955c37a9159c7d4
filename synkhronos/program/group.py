"""One of several groups of ranks that work at once (`groups`): a process with a session of its own.

The process is forked when the groups start, like a loader. So it has all objects that the function refers to, and the
program's data, but none of its threads. It is rank 0 of its session; the session's keeper forks the other ranks. ::

    thread of the program                    process of the group                       its other ranks
      | number, arguments --- socket ------> | function(*arguments)
      |                                      |   calls of functions: commands --------> |
      | waits without the interpreter's lock |   <--------------------------- answers   |
      | <------ number, result or error ---- |
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any, Callable, List, Optional, Tuple

from ..errors import RankFailure, RemoteTraceback, StateError, SynkhronosError, WorkerDied, WorkerError, WorkerTimeout
from ..processes import fd_passing
from ..processes.child_process import ENDING_S, ChildProcess
from ..processes.output import Streams, redirect
from ..processes.rank_main import die_with_parent, take_default_signals
from ..runtime.exit_status import describe_end
from ..runtime.failures import NEW_SESSION, Failure
from ..runtime.session import GRACE_S
from .program import PROGRAM

ANSWER_S = 5.0  #: Additional time for a session to report its own timeout, with the stacks of its ranks.
CHECK_S = 0.1  #: Time between two checks that the other process is alive.
PACKET_BYTES = 1 << 16  #: Maximum size of a message in a packet; a longer message is sent as a file.
SHORT = b"s"  #: The first byte of a packet; messages with files begin with a digit.

NO_ARGUMENTS = pickle.dumps(())


class Group(ChildProcess):
    """The program's side of a group, which calls ``function`` after ``start`` has opened its session.

    ``caller`` is the thread that uses the group, and ``ended`` the reason why it has ended, if it has.
    """

    def __init__(
        self, number: int, start: Callable[[], Any], function: Callable[..., Any], timeout: Optional[float]
    ) -> None:
        self.number, self.ended, self._timeout = number, "", timeout
        self.caller: Optional[int] = None
        self._sent = self._answered = 0  # numbers of calls
        self._streams = Streams([number], "group")
        is_main = threading.current_thread() is threading.main_thread()
        try:
            super().__init__(f"group {number}", partial(_lead, start, function, self._streams.fds(), is_main))
        except BaseException:
            self._streams.close()
            raise

    def is_computing(self) -> bool:
        """Return whether the group may still be computing an interrupted call."""
        return self._answered != self._sent

    def call(self, payload: bytes) -> Any:
        """Call the function with pickled arguments; return its result, or raise an error that names the group."""
        with self._lock:
            self._sent += 1
            try:
                _send(self._socket, self._sent, payload)
            except OSError as error:
                raise self._lost(error) from error
            return self.result(None if self._timeout is None else self._timeout + ANSWER_S)

    def result(self, seconds: Optional[float]) -> Any:
        """Return the result of the last call or, before the first call, wait until the session is open."""
        until = float("inf") if seconds is None else time.monotonic() + seconds
        payload = b""
        try:
            while not payload or self.is_computing():  # earlier numbers are those of interrupted calls
                while not _has_message(self._socket):
                    if not self.alive():  # a process that the function started may keep the socket open
                        raise EOFError
                    if time.monotonic() > until:
                        self.end("it was too slow")
                        raise WorkerTimeout(f"group {self.number}: rank 0 (pid {self.pid}) did not answer in time", 0)
                self._answered, payload = _receive(self._socket)
        except (OSError, EOFError) as error:
            raise self._lost(error) from error
        finally:
            self._streams.forward(True)
        result, failure, kind, attributes, is_over = pickle.loads(payload)
        if is_over:
            self.end("its session was closed" if failure is None else failure.summary.split(";")[0])
        if failure is None:
            return pickle.loads(result)
        raised = kind.__new__(kind, f"group {self.number}: {failure.summary.replace(NEW_SESSION, 'the group ends')}")
        vars(raised).update(attributes)
        raise raised from RemoteTraceback(f"Traceback of group {self.number}:\n{failure.text}")

    def _lost(self, error: Exception) -> SynkhronosError:
        """Return the error for a group that cannot be reached."""
        until = time.monotonic() + ENDING_S
        while self.alive() and not self.ended and time.monotonic() < until:
            time.sleep(0.001)
        if self.ended:
            return StateError(f"group {self.number} was closed during a call ({self.ended})")
        status = self._status or 0
        code = -os.WTERMSIG(status) if status > 0 and os.WIFSIGNALED(status) else None
        how = describe_end(code) if code else f"has ended: {error if self.alive() else self.exit_reason()}"
        self.end(how)
        return WorkerDied(f"group {self.number}: rank 0 (pid {self.pid}) {how}", 0, self.pid, code)

    def hang_up(self, why: str) -> None:
        """Make an idle group end itself; calls raise an error with this reason."""
        self.ended = self.ended or why
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self, why: str = "") -> None:
        """Wait for the end of the group; kill it if it is computing, or late. Idempotent."""
        self.hang_up(why)
        until = time.monotonic() + GRACE_S
        while self.alive() and not self.is_computing() and time.monotonic() < until:
            time.sleep(0.001)
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
        with self._lock:  # a call in another thread ends now, and its socket must not be closed before
            super().end()
            self._streams.close()


def _send(sock: socket.socket, number: int, payload: bytes) -> None:
    """Send a message as one packet, so that it arrives whole or not at all, even if this process is interrupted."""
    if len(payload) <= PACKET_BYTES:
        sock.send(SHORT + number.to_bytes(8, "little") + payload, socket.MSG_NOSIGNAL)
    else:
        fd_passing.send(sock, (number, payload))


def _receive(sock: socket.socket) -> Tuple[int, bytes]:
    if sock.recv(1, socket.MSG_PEEK) != SHORT:
        message: Tuple[int, bytes] = fd_passing.receive(sock)[0]  # raises EOFError if the other end is closed
        return message
    packet = sock.recv(9 + PACKET_BYTES)
    return int.from_bytes(packet[1:9], "little"), packet[9:]


def _has_message(sock: socket.socket) -> bool:
    """Wait up to `CHECK_S`; return whether `_receive` would return or raise immediately."""
    if sock.fileno() < 0:
        raise EOFError("closed by a signal handler")
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(CHECK_S * 1000))


def _lead(
    start: Callable[[], Any],
    function: Callable[..., Any],
    streams: List[int],
    from_main: bool,
    sock: socket.socket,
    program: int,
) -> None:
    """Run as the process of a group, until the program ends it; ``from_main``: whether its main thread forked it."""
    gc.freeze()
    if from_main:
        die_with_parent(program)  # the signal is tied to the forking thread; other threads may end earlier
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program handles Ctrl-C
    take_default_signals()
    signal.signal(signal.SIGINT, lambda *_: None)  # SIG_IGN would be inherited by programs that the function starts
    redirect(streams)
    with suppress(EOFError, ConnectionError):  # the program has ended this group
        _send(sock, 0, _answer(start, NO_ARGUMENTS))
        while not _is_over():
            while not _has_message(sock):
                if os.getppid() != program:
                    return PROGRAM.shut_down()
            number, payload = _receive(sock)
            _send(sock, number, _answer(function, payload))
    PROGRAM.shut_down()


def _answer(function: Callable[..., Any], payload: bytes) -> bytes:
    """Call a function with pickled arguments; return its result or error, and whether the group has ended, pickled."""
    try:
        result = pickle.dumps(function(*pickle.loads(payload)), pickle.HIGHEST_PROTOCOL)
        return pickle.dumps((result, None, None, None, _is_over()), pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        failure = Failure(error)
        raised = error if isinstance(error, RankFailure) else WorkerError("", 0, {0: failure.text})
        return pickle.dumps((b"", failure, type(raised), vars(raised), _is_over()), pickle.HIGHEST_PROTOCOL)


def _is_over() -> bool:
    return PROGRAM.session is None or bool(PROGRAM.session.closed)
