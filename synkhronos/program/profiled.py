"""The profile of a session: recorded from `fork` to its end, and written then; `synkhronos.report` shows it before."""

from __future__ import annotations

import logging
import os
import time
from typing import List, Optional, Sequence, Tuple

from .. import engines
from ..errors import StateError
from ..host.machine import working_directory
from ..profiling import ring
from ..profiling.files import Unfinished, files_of, report_of
from ..profiling.folder import Claim
from ..profiling.profile import Setting
from ..profiling.recording import RECORDING
from ..profiling.report import Report
from ..runtime.command import Command
from ..runtime.context import RankContext
from ..runtime.session import Session

logger = logging.getLogger("synkhronos")

#: How often the clocks of hosts are compared: the quickest answer counts.
_COMPARISONS = 10


class Clocks(Command):
    """Return the time on this rank's clock."""

    title = "comparison of the clocks"

    def run(self, context: RankContext) -> int:
        return time.monotonic_ns()


class SetClocks(Command):
    """Note in every rank's ring how far its clock is ahead of the master's.

    Parameters
    ----------
    offsets : list of (int, int)
        By rank: nanoseconds, and how wrong they may be.
    """

    title = "setting of the clocks"

    def __init__(self, offsets: Sequence[Tuple[int, int]]) -> None:
        self.offsets = offsets

    def run(self, context: RankContext) -> None:
        ring.set_clock(context.barrier.block.spans[context.rank], *self.offsets[context.rank])


class ReadRings(Command):
    """Return the ring of this rank, if it is on another host than the master.

    Parameters
    ----------
    far : sequence of int
        The ranks that are.
    """

    title = "reading of the rings"

    def __init__(self, far: Sequence[int]) -> None:
        self.far = far

    def run(self, context: RankContext) -> Optional[bytes]:
        return ring.used(context.barrier.block.spans[context.rank]) if context.rank in self.far else None


def set_clocks(session: Session) -> None:
    """Have the ranks of other hosts know how their clocks differ from the master's.

    A rank reads its clock at a moment between the master's sending of a command and its having the answers; taken to
    be the middle, it is wrong by at most half of the time between. The quickest of ten such exchanges counts.
    """
    far = () if session.hosts is None else session.hosts.far
    best: List[Tuple[int, int]] = [(0, 0)] * session.size
    for attempt in range(_COMPARISONS):
        sent = time.monotonic_ns()
        moments = session.run(Clocks())
        came = time.monotonic_ns()
        for rank in far:
            error = (came - sent) // 2
            if attempt == 0 or error < best[rank][1]:
                best[rank] = moments[rank] - (sent + came) // 2, error
    session.run(SetClocks(best))


class Profiled:
    """One session's record, and the folder that its profile is written to.

    Parameters
    ----------
    path : str
        The folder that the program was given.
    before : Profiled, optional
        The last one of this program: with the same folder, this one takes a folder inside of it.

    Raises
    ------
    ArgumentValueError
        The folder cannot be taken; nothing has begun.
    """

    def __init__(self, path: str, before: Optional[Profiled] = None) -> None:
        self.asked = os.path.normpath(os.path.join(working_directory(), path))
        self.number = 1
        if before is not None and before.asked == self.asked:
            self.number = before.number + 1
            path = os.path.join(path, f"session-{self.number}")
        self._claim = Claim(path)
        self.folder = self._claim.path
        if self._claim.is_unfinished:
            words = "%s has an unfinished profile, of a program that was killed or could not write it: it is replaced"
            logger.warning(words, self.folder)
        self._session: Optional[Session] = None
        self._cores: List[int] = []
        self._devices: List[str] = []
        self._last: Optional[Report] = None

    def begin(self, session: Session, cores: List[int], devices: Optional[List[str]]) -> None:
        """Record the session from now on."""
        self._session, self._cores = session, cores
        self._devices = devices or ["cpu"] * session.size
        RECORDING.add(session.root, session.block.spans[session.root], any_thread=True)
        session.at_end = self._end

    def outlive(self) -> None:
        """Have the profile written also if this process is killed: the session has begun."""
        session = self._session
        assert session is not None
        session.launcher.outlive(Unfinished(self.folder, session.root, self._setting()).write)

    def give_up(self) -> None:
        """Leave the folder as it was: there is no session."""
        self._claim.give_up()

    def detach_after_fork(self) -> None:
        """In a process that the user forked: the record is the parent's."""
        if self._session is not None:
            RECORDING.remove(self._session.root)

    def report(self) -> Report:
        """Return the report of what has been recorded up to now, or of all of it."""
        session = self._session
        if session is None:
            if self._last is None:
                raise StateError("the record of the last session was lost; its log says why")
            return self._last
        if session.hosts is not None and not session.closed:
            far = session.hosts.far
            for rank, content in zip(range(session.size), session.run(ReadRings(far))):
                if content is not None:
                    session.block.spans[rank][: len(content)] = content
        return report_of(session.block.spans, session.root, self._setting())[0]

    def _setting(self) -> Setting:
        session = self._session
        assert session is not None
        hosts, transport = session.hosts, session.context.transport
        link = "shared_memory" if hosts is None else "mpi" if hosts.places else "tcp"
        if getattr(transport, "nccl", None) is not None:
            link = "nccl"
        return Setting(
            "+".join(engine.name for engine in engines.loaded()),
            self._devices,
            [list(range(session.size))] if hosts is None else [list(ranks) for ranks in hosts.ranks],
            [] if hosts is None else list(hosts.names),
            self._cores,
            link if session.size > 1 else None,
        )

    def _end(self) -> None:
        """Write the profile: the ranks have ended. What goes wrong is a line of the log, since the program goes on."""
        session = self._session
        assert session is not None
        RECORDING.remove(session.root)
        try:
            self._last, record = report_of(session.block.spans, session.root, self._setting())
            self._claim.fill(files_of(self._last, record))
        except Exception as error:
            unexpected = not isinstance(error, (OSError, MemoryError))
            reason = getattr(error, "strerror", None) or error
            words = "the profile of the session could not be written to %s: %s"
            logger.warning(words, self.folder, reason, exc_info=unexpected)
        finally:
            self._session = None
            self._claim.release()


def report() -> Report:
    """Return where the time of the session went, up to now; after its end, where all of it went.

    Only a session with ``fork(profile="...")``, or under ``python -m synkhronos --profile``, is recorded.

    Returns
    -------
    Report
        It prints as ``report.txt``, a notebook shows it as ``report.html``, and ``profile`` has the numbers.

    Raises
    ------
    StateError
        No session of this program was recorded.

    Examples
    --------
    >>> import tempfile
    >>> import synkhronos as synk
    >>> import theano.tensor as T
    >>> synk.fork(2, profile=tempfile.mkdtemp())
    2
    >>> x = T.dvector("x")
    >>> f = synk.function([x], x.sum(), name="f")
    >>> for _ in range(3):
    ...     total = f([1., 2., 3.])
    >>> [(command["name"], command["count"]) for command in synk.report().profile["commands"] if command["name"] == "f"]
    [('f', 3)]
    """
    from .program import PROGRAM

    if PROGRAM.profiled is None:
        raise StateError('nothing was recorded: call synkhronos.fork(profile="FOLDER")')
    return PROGRAM.profiled.report()
