"""Folder of a profile: claimed when a session starts, filled when it ends.

A folder contains one profile. The claim is an empty ``profile.json`` with a lock. If the program is killed, the kernel
releases the lock, and the folder can be claimed again. Later sessions of the program use subfolders (``session-2``).
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Mapping, Optional

from ..errors import ArgumentValueError
from ..sync.file_lock import FileLock

CLAIM = "profile.json"


def has_profile(folder: str) -> bool:
    """Return whether a folder contains a finished profile."""
    try:
        return os.path.getsize(os.path.join(folder, CLAIM)) > 0
    except OSError:
        return False


class Claim:
    """Exclusive claim on a profile's folder, until it is released or its process ends.

    The folder is created if missing; `argument` names it in error messages. `is_unfinished` is True if there was an
    unlocked claim from a program that was killed or could not write. Raises `ArgumentValueError` if the folder
    cannot be written, contains a profile, or is already claimed.
    """

    def __init__(self, folder: str, argument: str = "profile") -> None:
        self.is_unfinished = False
        expected = "a writable folder without a profile"
        try:
            self.path = os.path.abspath(folder)  # fails in a working directory that has been deleted
            os.makedirs(self.path, exist_ok=True)
            lock = self._opened()
            self._lock: Optional[FileLock] = lock
            is_taken = lock.try_acquire()
            is_empty = is_taken and not has_profile(self.path)
        except FileExistsError:
            raise ArgumentValueError(argument, expected, f"{folder!r}, which is a file", "use another path") from None
        except OSError as error:
            raise ArgumentValueError(argument, expected, f"{folder!r}: {error.strerror}", "use another path") from None
        if not is_empty:
            lock.close()
            why, hint = f"which has a {CLAIM}", "use another folder, or delete that file"
            if not is_taken:
                why, hint = "where another program is recording a profile", "use another folder"
            raise ArgumentValueError(argument, expected, f"{folder!r}, {why}", hint)

    def _opened(self) -> FileLock:
        place = os.path.join(self.path, CLAIM)
        try:
            return FileLock(os.open(place, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666), 0)
        except FileExistsError:
            self.is_unfinished = True
            return FileLock(os.open(place, os.O_RDWR), 0)

    def give_up(self) -> None:
        """Cancel the claim, and remove the profile's files unless an earlier program left an unfinished claim."""
        if not self.is_unfinished:
            for name in (CLAIM, "report.txt", "report.html", "timeline.json"):
                with suppress(OSError):
                    os.unlink(os.path.join(self.path, name))
        self.release()

    def release(self) -> None:
        """Release the lock; idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()  # closing is not enough, because forked processes share the lock
            lock.close()

    def fill(self, files: Mapping[str, str]) -> None:
        """Write each file atomically, ``profile.json`` last; raise `OSError` at the first unwritable file."""
        for name in sorted(files, key=lambda name: name == CLAIM):
            place = os.path.join(self.path, name)
            try:
                with open(place + ".part", "w", encoding="utf-8") as file:
                    file.write(files[name])
                os.replace(place + ".part", place)
            except OSError:
                with suppress(OSError):
                    os.unlink(place + ".part")
                raise
