"""Create the files of a profile from the ranks' rings, in the program or in a process that outlives it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Dict, NamedTuple, Sequence, Tuple

from ..errors import ArgumentValueError
from . import ring
from .folder import Claim, has_profile
from .profile import Setting, copy_rate, profile
from .report import Report
from .spans import Recorded, recorded
from .timeline import timeline

#: Time limit for the kernel to close the files of a program that has ended.
RELEASE_TIMEOUT_S = 2.0


def report_of(rings: Sequence[memoryview], root: int, setting: Setting) -> Tuple[Report, Recorded]:
    """Return a report on the activity recorded in the ranks' rings, and the underlying record."""
    record = recorded([ring.read(memory) for memory in rings], root, time.monotonic_ns())
    return Report(profile(record, setting, copy_rate())), record


def files_of(report: Report, record: Recorded) -> Dict[str, str]:
    return {**report.files(), "timeline.json": timeline(record, report.profile)}


class Unfinished(NamedTuple):
    """Description of a recorded session, for the process that writes its profile if the program is killed."""

    folder: str
    root: int
    setting: Setting

    def write(self, rings: Sequence[memoryview]) -> None:
        """Write the profile unless the program did so; ignore file and memory errors, because the program has ended."""
        until = time.monotonic() + RELEASE_TIMEOUT_S
        while True:
            try:
                claim = Claim(self.folder)
                break
            except ArgumentValueError:  # the kernel may still have to close the dead program's files
                if has_profile(self.folder) or time.monotonic() > until:
                    return
                time.sleep(0.01)
        with suppress(OSError, MemoryError):
            claim.fill(files_of(*report_of(rings, self.root, self.setting)))
