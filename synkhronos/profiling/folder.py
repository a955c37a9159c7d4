"""The folder of a profile: claimed before anything starts, and filled when the session is over.

A folder takes one profile. The claim is an empty ``profile.json`` with a lock, which the kernel takes back if the
program is killed: what it has left can be claimed again. A later session of the same program takes a folder inside,
``session-2``.
"""

from __future__ import annotations

import os
from typing import Mapping, Optional

from ..errors import ArgumentValueError
from ..sync.file_lock import FileLock

#: The file that claims the folder.
CLAIM = "profile.json"


def has_profile(folder: str) -> bool:
    """Return whether a folder has a profile that was finished."""
    try:
        return os.path.getsize(os.path.join(folder, CLAIM)) > 0
    except OSError:
        return False


class Claim:
    """A folder that is this profile's until it is given up, filled, or its process ends.

    Parameters
    ----------
    folder : str
        It is made if it is not there.
    argument : str
        How messages call it.

    Attributes
    ----------
    path : str
        The absolute one.
    is_unfinished : bool
        Whether there was a claim that nobody holds any more, of a program that was killed or could not write.

    Raises
    ------
    ArgumentValueError
        The folder cannot be written, another profile is there, or another program holds it.
    """

    def __init__(self, folder: str, argument: str = "profile") -> None:
        self.is_unfinished = False
        expected = "a folder that can be written, in which there is no profile"
        try:
            self.path = os.path.abspath(folder)  # fails in a working directory that has been deleted
            os.makedirs(self.path, exist_ok=True)
            lock = self._opened()
            self._lock: Optional[FileLock] = lock
            is_taken = lock.try_acquire()
            is_empty = is_taken and not has_profile(self.path)
        except FileExistsError:
            raise ArgumentValueError(argument, expected, f"{folder!r}, which is a file", "give another path") from None
        except OSError as error:
            raise ArgumentValueError(argument, expected, f"{folder!r}: {error.strerror}", "give another path") from None
        if not is_empty:
            lock.close()
            why, hint = f"which has a {CLAIM}", "give another folder, or delete that file"
            if not is_taken:
                why, hint = "whose profile another program is recording", "give another folder"
            raise ArgumentValueError(argument, expected, f"{folder!r}, {why}", hint)

    def _opened(self) -> FileLock:
        place = os.path.join(self.path, CLAIM)
        try:
            return FileLock(os.open(place, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666), 0)
        except FileExistsError:
            self.is_unfinished = True
            return FileLock(os.open(place, os.O_RDWR), 0)

    def give_up(self) -> None:
        """Leave the folder as it was: there is nothing to record."""
        if not self.is_unfinished:
            for name in (CLAIM, "report.txt", "report.html", "timeline.json"):
                try:
                    os.unlink(os.path.join(self.path, name))
                except OSError:
                    pass
        self.release()

    def release(self) -> None:
        """Hold the folder no more. May be called again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()  # also for processes that the program has forked
            lock.close()

    def fill(self, files: Mapping[str, str]) -> None:
        """Write files, the profile last, each as a whole or not at all.

        Raises
        ------
        OSError
            What could not be written is not there.
        """
        for name in sorted(files, key=lambda name: name == CLAIM):
            place = os.path.join(self.path, name)
            try:
                with open(place + ".part", "w", encoding="utf-8") as file:
                    file.write(files[name])
                os.replace(place + ".part", place)
            except OSError:
                try:
                    os.unlink(place + ".part")
                except OSError:
                    pass
                raise
