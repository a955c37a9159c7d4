"""Profiles of programs, as ``fork(profile=DIR)`` writes them: ``profile.json``."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentValueError
from ..profiling.profile import FORMAT, loaded

#: How a profile is made; part of every message about one.
HOW_TO = "make one by python -m synkhronos --profile DIR program.py"

Key = Tuple[str, str]  # of a command: its kind and its name
Array = NDArray[np.float64]


class Calls(NamedTuple):
    """Calls of one command, in the order in which they were made: all seconds are those of whole calls.

    Attributes
    ----------
    begin, master : array of (calls,)
        When the program made the call, and how long it took on the master.
    rows : array of (calls,)
        Of all ranks; 0 where the command has none.
    work, transport : array of (calls, ranks)
        In the compiled function and copying its rows; moving arrays between ranks.
    steps : array of (calls,)
        How many steps a call made; 1 unless it is one of `Function.steps`.
    """

    begin: Array
    master: Array
    rows: Array
    work: Array
    transport: Array
    steps: Array

    def later(self, dropped: int) -> Calls:
        """Return the calls without the first ones, of which at least half are kept."""
        return Calls(*(each[min(dropped, len(each) // 2) :] for each in self))


class Profile(NamedTuple):
    """What one run of a program took.

    Attributes
    ----------
    path : str
    ranks, hosts : int
    machines : int
        How many computers the hosts are; less than ``hosts`` only where hosts are pretended.
    cores : float
        Of a machine; infinite if every rank has a device of its own.
    link : str or None
        By what ranks exchange: "shared_memory", "nccl", "mpi", "tcp".
    copy_rate : float or None
        Bytes per second that one core copies.
    commands : dict of (kind, name) to Calls
    nbytes : dict of (kind, name) to float
        What a rank gives to collectives in one step of a call.
    """

    path: str
    ranks: int
    hosts: int
    machines: int
    cores: float
    link: Optional[str]
    copy_rate: Optional[float]
    commands: Dict[Key, Calls]
    nbytes: Dict[Key, float]

    @property
    def ranks_of_machine(self) -> int:
        """How many ranks compute on one machine, the fullest."""
        return math.ceil(self.ranks / self.machines)


def read(path: Union[str, Path]) -> Profile:
    """Read a profile.

    Parameters
    ----------
    path : str or Path
        Of the file, or of the folder that it is in.

    Raises
    ------
    ArgumentValueError
        If there is none, or not one that can be read.
    """
    path = Path(path)
    file = path / "profile.json" if path.is_dir() else path
    content = loaded(str(file))
    try:
        return parse(content, str(path))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        what = f"{file}, which is not whole ({type(error).__name__}: {error})"
        raise ArgumentValueError("profile", f"a profile of format {FORMAT}", what, HOW_TO) from None


def parse(content: Dict[str, Any], path: str = "") -> Profile:
    """Return the profile that a ``profile.json`` holds."""
    ranks = int(content["ranks"])
    hosts = len(content["hosts"])
    on_devices = any(device != "cpu" for device in content["devices"])
    commands: Dict[Key, Calls] = {}
    nbytes: Dict[Key, float] = {}
    called = [command for command in content["commands"] if command["calls"]]
    for command, key in zip(called, keys_of(called)):
        calls = calls_of(command["calls"])
        commands[key] = calls
        nbytes[key] = float(command.get("bytes") or 0) / float(calls.steps.max())
    return Profile(
        path,
        ranks,
        hosts,
        hosts,
        math.inf if on_devices else float(min(content["cores"])),
        content.get("link"),
        (content.get("rates") or {}).get("copy"),
        commands,
        nbytes,
    )


def keys_of(commands: Sequence[Dict[str, Any]]) -> List[Key]:
    """Return what the commands of a profile are known by: the same in another copy of the program.

    A function without a name has that of its place, of which the folder is left out, if files have different names.

    Examples
    --------
    >>> keys_of([{"kind": "call", "name": "/home/me/copy/train.py:12"}, {"kind": "all_reduce", "name": "W"}])
    [('call', 'train.py:12'), ('all_reduce', 'W')]
    """
    names = [(str(command["kind"]), str(command["name"])) for command in commands]
    short = [(kind, re.sub(r"^/.*/(?=[^/]+:\d+$)", "", name)) for kind, name in names]
    return short if len(set(short)) == len(set(names)) else names


def calls_of(calls: List[Dict[str, Any]]) -> Calls:
    """Return the calls of one command as arrays."""

    def seconds(name: str) -> Array:
        return np.array([call[name] for call in calls], float)

    rows = [call.get("rows") for call in calls]
    return Calls(
        seconds("begin_s"),
        seconds("master_s"),
        np.array([sum(each) if each else 0 for each in rows], float),
        seconds("engine_s") + seconds("copy_s"),
        seconds("transport_s"),
        np.array([call.get("steps") or 1 for call in calls], float),
    )
