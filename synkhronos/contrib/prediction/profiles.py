"""Read the profiles that ``fork(profile=DIR)`` writes: ``profile.json``."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentValueError
from ...profile.profile import FORMAT, loaded

HOW_TO = "create a profile with python -m synkhronos --profile DIR program.py"

Key = Tuple[str, str]  # kind and name of a command
Array = NDArray[np.float64]


class Calls(NamedTuple):
    """One command's calls, in chronological order; seconds refer to whole calls."""

    begin: Array  # (calls,): when the program made the call
    master: Array  # (calls,): seconds on the master
    rows: Array  # (calls,): of all ranks; 0 if the command has none
    work: Array  # (calls, ranks): seconds in the compiled function and in copying its rows
    transport: Array  # (calls, ranks): seconds moving arrays between ranks
    steps: Array  # (calls,): steps of a call; 1 except in calls to `Function.steps`

    def later(self, dropped: int) -> Calls:
        """Return all calls except the first `dropped`, but at least half of the calls."""
        return Calls(*(each[min(dropped, len(each) // 2) :] for each in self))


class RankLayout(NamedTuple):
    """Distribution of ranks over hosts and machines."""

    ranks: int
    hosts: int = 1
    cores: float = math.inf  # of each machine; infinite if every rank has its own device
    machines: int = 0  # 0: as many as hosts; fewer if hosts are simulated

    @property
    def of_host(self) -> int:
        return math.ceil(self.ranks / self.hosts)

    @property
    def of_machine(self) -> int:
        return math.ceil(self.ranks / (self.machines or self.hosts))

    @property
    def at_once(self) -> float:
        """Number of a machine's ranks that compute at the same time, one on each core."""
        return min(float(self.of_machine), self.cores)


class RunProfile(NamedTuple):
    """Profile of one run of a program."""

    path: str
    layout: RankLayout
    link: Optional[str]  # "shared_memory", "nccl", "mpi" or "tcp"; None with a single rank
    copy_rate: Optional[float]  # bytes per second that one core copies
    commands: Dict[Key, Calls]
    nbytes: Dict[Key, float]  # bytes that a rank contributes to collectives in one step of a call


def read(path: Union[str, Path]) -> RunProfile:
    """Read a profile from its file or folder; raise `ArgumentValueError` if it is missing or invalid."""
    path = Path(path)
    file = path / "profile.json" if path.is_dir() else path
    content = loaded(str(file))
    try:
        return parse(content, str(path))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        what = f"{file}, which is incomplete ({type(error).__name__}: {error})"
        raise ArgumentValueError("profile", f"a profile of format {FORMAT}", what, HOW_TO) from None


def parse(content: Dict[str, Any], path: str = "") -> RunProfile:
    ranks, hosts = int(content["ranks"]), len(content["hosts"])
    on_devices = any(device != "cpu" for device in content["devices"])
    cores = math.inf if on_devices else float(min(content["cores"]))
    commands: Dict[Key, Calls] = {}
    nbytes: Dict[Key, float] = {}
    called = [command for command in content["commands"] if command["calls"]]
    for command, key in zip(called, keys_of(called)):
        calls = calls_of(command["calls"])
        commands[key] = calls
        nbytes[key] = float(command.get("bytes") or 0) / float(calls.steps.max())
    return RunProfile(
        path,
        RankLayout(ranks, hosts, cores),
        content.get("link"),
        (content.get("rates") or {}).get("copy"),
        commands,
        nbytes,
    )


def keys_of(commands: Sequence[Dict[str, Any]]) -> List[Key]:
    """Return keys of commands that stay the same if the program is copied to another folder.

    The name of an unnamed function is its file and line. Folders are removed if names remain unique.

    >>> keys_of([{"kind": "call", "name": "/home/me/copy/train.py:12"}, {"kind": "all_reduce", "name": "W"}])
    [('call', 'train.py:12'), ('all_reduce', 'W')]
    """
    names = [(str(command["kind"]), str(command["name"])) for command in commands]
    short = [(kind, re.sub(r"^/.*/(?=[^/]+:\d+$)", "", name)) for kind, name in names]
    return short if len(set(short)) == len(set(names)) else names


def calls_of(calls: List[Dict[str, Any]]) -> Calls:
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
