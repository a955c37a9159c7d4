"""The files of a profile, made of the ranks' rings: by the program, or by a process that outlives it."""

from __future__ import annotations

import time
from typing import Dict, NamedTuple, Sequence, Tuple

from ..errors import ArgumentValueError
from . import ring
from .folder import Claim, has_profile
from .profile import Setting, copy_rate, profile
from .report import Report
from .spans import Recorded, recorded
from .timeline import timeline

#: Seconds in which the files of a program that has ended are closed.
RELEASE_TIMEOUT_S = 2.0


def report_of(rings: Sequence[memoryview], root: int, setting: Setting) -> Tuple[Report, Recorded]:
    """Return the report of what is in the ranks' rings, and that itself."""
    record = recorded([ring.read(memory) for memory in rings], root, time.monotonic_ns())
    return Report(profile(record, setting, copy_rate())), record


def files_of(report: Report, record: Recorded) -> Dict[str, str]:
    """Return the files of a profile's folder, by name."""
    return {**report.files(), "timeline.json": timeline(record, report.profile)}


class Unfinished(NamedTuple):
    """A session that is being recorded, as a process knows it that writes the profile if the program is killed.

    Attributes
    ----------
    folder : str
    root : int
        The master's rank.
    setting : Setting
    """

    folder: str
    root: int
    setting: Setting

    def write(self, rings: Sequence[memoryview]) -> None:
        """Write what is in the rings, unless the program has done so; what goes wrong is nobody's concern any more."""
        until = time.monotonic() + RELEASE_TIMEOUT_S
        while True:
            try:
                claim = Claim(self.folder)
                break
            except ArgumentValueError:  # the program is gone, but the kernel may not have closed its files yet
                if has_profile(self.folder) or time.monotonic() > until:
                    return
                time.sleep(0.01)
        try:
            claim.fill(files_of(*report_of(rings, self.root, self.setting)))
        except (OSError, MemoryError):
            pass
