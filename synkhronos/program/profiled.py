"""Profile of a session: recorded from `fork` on, and written when the session ends; `synkhronos.report` reads it."""

from __future__ import annotations

import functools
import logging
import os
import time
from typing import List, Optional, Sequence, Tuple

from .. import engines
from ..errors import StateError
from ..host.machine import working_directory
from ..profile import ring
from ..profile.files import Unfinished, files_of, report_of
from ..profile.folder import Claim
from ..profile.profile import Setting
from ..profile.recording import RECORDING
from ..profile.report import Report
from ..runtime.command import Command
from ..runtime.context import RankContext
from ..runtime.session import Session

logger = logging.getLogger("synkhronos")

_COMPARISONS = 10  # number of exchanges for comparing clocks; the fastest one counts


class Clocks(Command):
    """Return the time on each rank's monotonic clock, in nanoseconds."""

    title = "clock comparison"

    def run(self, context: RankContext) -> int:
        return time.monotonic_ns()


class SetClocks(Command):
    """Store each rank's clock offset and its uncertainty, in nanoseconds, in the rank's ring buffer."""

    title = "storage of clock offsets"

    def __init__(self, offsets: Sequence[Tuple[int, int]]) -> None:
        self.offsets = offsets

    def run(self, context: RankContext) -> None:
        ring.set_clock(context.barrier.block.spans[context.rank], *self.offsets[context.rank])


class ReadRings(Command):
    """Return the content of this rank's ring buffer if the rank is in ``far``, the ranks not on the master's host."""

    title = "collection of recorded activity"

    def __init__(self, far: Sequence[int]) -> None:
        self.far = far

    def run(self, context: RankContext) -> Optional[bytes]:
        return ring.used(context.barrier.block.spans[context.rank]) if context.rank in self.far else None


def set_clocks(session: Session) -> None:
    """Measure and store the offsets of other hosts' clocks, if there are any, from the master's.

    Each reading is assigned to the midpoint between request and answer, so it errs by at most half the delay.
    """
    far, best = session.hosts.far, [(0, 0)] * session.size
    if not far:
        return
    for attempt in range(_COMPARISONS):
        sent = time.monotonic_ns()
        moments = session.run(Clocks())
        came = time.monotonic_ns()
        for rank in far:
            error = (came - sent) // 2
            if attempt == 0 or error < best[rank][1]:
                best[rank] = moments[rank] - (sent + came) // 2, error
    session.run(SetClocks(best))


class SessionProfile:
    """The record of one session, and the folder of its profile.

    If ``before``, the program's previous profile, has the same folder, this profile uses a subfolder. An unusable
    folder raises `ArgumentValueError` before anything is recorded.
    """

    def __init__(self, path: str, before: Optional[SessionProfile] = None) -> None:
        self.asked = os.path.normpath(os.path.join(working_directory(), path))
        self.number = 1
        if before is not None and before.asked == self.asked:
            self.number = before.number + 1
            path = os.path.join(path, f"session-{self.number}")
        self._claim = Claim(path)
        self.folder = self._claim.path
        if self._claim.is_unfinished:
            words = "replacing the unfinished profile in %s, whose program was killed or could not write the files"
            logger.warning(words, self.folder)
        self._session: Optional[Session] = None
        self._devices: List[str] = []
        self._last: Optional[Report] = None

    def begin(self, session: Session, devices: Optional[List[str]]) -> None:
        self._session, self._devices = session, devices or ["cpu"] * session.size
        RECORDING.add(session.root, session.block.spans[session.root], any_thread=True)
        session.at_end = functools.partial(self._end, session)

    def write_if_killed(self, session: Session) -> None:
        """Arrange for the profile to be written even if this process is killed; requires a started session."""
        session.launcher.write_if_killed(Unfinished(self.folder, session.root, self._setting(session)).write)

    def abandon(self) -> None:
        """Cancel the claim on the folder, because the session did not start."""
        self._claim.give_up()

    def detach_after_fork(self) -> None:
        """Stop recording in a child process that the user forked; the record belongs to the parent."""
        if self._session is not None:
            RECORDING.remove(self._session.root)

    def report(self) -> Report:
        """Return the report of the recording so far, or of the whole session if it has ended."""
        session = self._session
        if session is None:
            if self._last is None:
                raise StateError("the record of the last session was lost: see the session's log for the reason")
            return self._last
        far = session.hosts.far
        if far and not session.closed:
            for rank, content in zip(range(session.size), session.run(ReadRings(far))):
                if content is not None:
                    session.block.spans[rank][: len(content)] = content
        return report_of(session.block.spans, session.root, self._setting(session))[0]

    def _setting(self, session: Session) -> Setting:
        hosts, transport = session.hosts, session.context.transport
        link = hosts.link if getattr(transport, "nccl", None) is None else "nccl"
        used = "+".join(engine.name for engine in engines.loaded())
        ranks, names, cores = list(map(list, hosts.ranks)), list(hosts.names), list(hosts.cores)
        return Setting(used, self._devices, ranks, names, cores, link if session.size > 1 else None)

    def _end(self, session: Session) -> None:
        """Write the profile after the ranks have ended. A failure is only logged, so that the program continues."""
        RECORDING.remove(session.root)
        try:
            self._last, record = report_of(session.block.spans, session.root, self._setting(session))
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
    """Return a report of the time spent in the open session so far, or else in the last recorded session.

    A session is recorded only with ``fork(profile="...")`` or under ``python -m synkhronos --profile``.

    Returns
    -------
    Report
        Prints as ``report.txt`` and displays in a notebook as ``report.html``; ``profile`` contains the numbers.

    Raises
    ------
    StateError
        No session of this program was recorded, or the record of the last session was lost.

    Examples
    --------
    >>> import tempfile, synkhronos as synk, theano
    >>> n_ranks = synk.fork(2, profile=tempfile.mkdtemp())
    >>> x = theano.tensor.dvector("x")
    >>> f = synk.function([x], x.sum(), name="f")
    >>> total = f([1., 2., 3.])
    >>> [(command["name"], command["count"]) for command in synk.report().profile["commands"] if command["name"] == "f"]
    [('f', 1)]
    """
    from .program import PROGRAM

    if PROGRAM.profiled is None:
        raise StateError('no session was recorded: call synkhronos.fork(profile="FOLDER")')
    return PROGRAM.profiled.report()
