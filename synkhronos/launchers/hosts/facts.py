"""What hosts tell each other before they begin, and what must be the same on all of them."""

from __future__ import annotations

import os
import platform
import socket
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ...host import gpus, machine

#: Packages of which all hosts must have the same version, if they have them.
PACKAGES = ("synkhronos", "Theano", "pytensor", "cloudpickle")


class Facts(NamedTuple):
    """What a host says of itself.

    Attributes
    ----------
    name : str
    cores : int
        That its ranks may use.
    versions : dict of str to str
    processes : tuple of int
        Process ids of those that last as long as the program: the one that speaks for the host, and its keeper.
    place : int, optional
        Its number in MPI's world, if large arrays travel by MPI; the first host knows.
    files : int, optional
        How many files a process there may have open; None if that does not matter.
    n_gpus : int
        That CUDA would show its ranks.
    has_pygpu : bool
        Whether pygpu is installed, which is not imported for that.
    """

    name: str
    cores: int
    versions: Dict[str, Optional[str]]
    processes: Tuple[int, ...]
    place: Optional[int] = None
    files: Optional[int] = None
    n_gpus: int = 0
    has_pygpu: bool = False


def facts(*processes: int) -> Facts:
    """Return what this host says of itself, with the process ids of this process and others; opens no device."""
    versions: Dict[str, Optional[str]] = {
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "byte order": sys.byteorder,
    }
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return Facts(
        os.environ.get("SYNK_HOST_NAME") or socket.gethostname(),
        machine.core_budget(),
        versions,
        (os.getpid(), *processes),
        files=machine.descriptor_limit(),
        n_gpus=gpus.count_gpus(),
        has_pygpu=find_spec("pygpu") is not None,
    )


def differences(hosts: Sequence[Facts]) -> List[str]:
    """Return a sentence for each thing that is not the same on all hosts.

    Examples
    --------
    >>> differences([Facts("a", 2, {"NumPy": "1.23.5"}, (7,)), Facts("b", 2, {"NumPy": "2.0.0"}, (8,))])
    ['NumPy is 1.23.5 on a, but 2.0.0 on b']
    """
    found = []
    first = hosts[0]
    for what, version in first.versions.items():
        for other in hosts[1:]:
            if other.versions.get(what) != version:
                found.append(
                    f"{what} is {version or 'missing'} on {first.name}, but {other.versions.get(what) or 'missing'} "
                    f"on {other.name}"
                )
    return found
