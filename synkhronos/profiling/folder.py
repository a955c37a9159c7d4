"""The folder of a profile: claimed before anything starts, and filled when the session is over.

A folder takes one profile. The claim is an empty ``profile.json``, which only one of two programs can make; a later
session of the same program takes a folder inside, ``session-2``.
"""

from __future__ import annotations

import os
from typing import Mapping

from ..errors import ArgumentValueError

#: The file that claims the folder.
CLAIM = "profile.json"


def claim(folder: str, argument: str = "profile") -> str:
    """Return the absolute path of a folder, made if it is not there, that from now on is this profile's.

    Raises
    ------
    ArgumentValueError
        It cannot be written, or another profile is there.
    """
    path = os.path.abspath(folder)
    expected = "a folder that can be written, in which there is no profile"
    try:
        os.makedirs(path, exist_ok=True)
        os.close(os.open(os.path.join(path, CLAIM), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        if not os.path.isdir(path):
            raise ArgumentValueError(argument, expected, f"{folder!r}, which is a file", "give another path") from None
        hint = "give another folder, or delete that file if no program is running that will fill it"
        raise ArgumentValueError(argument, expected, f"{folder!r}, which has a {CLAIM}", hint) from None
    except OSError as error:
        raise ArgumentValueError(argument, expected, f"{folder!r}: {error.strerror}", "give another path") from None
    return path


def give_up(path: str) -> None:
    """Undo a claim: the session has not begun."""
    try:
        os.unlink(os.path.join(path, CLAIM))
    except OSError:
        pass


def fill(path: str, files: Mapping[str, str]) -> None:
    """Write files, the profile last, each as a whole or not at all.

    Raises
    ------
    OSError
        What could not be written is not there.
    """
    for name in sorted(files, key=lambda name: name == CLAIM):
        place = os.path.join(path, name)
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
