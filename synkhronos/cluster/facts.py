"""Properties of hosts, sent to the first host before a session; the versions must be equal on all hosts."""

from __future__ import annotations

import os
import platform
import socket
import sys
from importlib import metadata
from importlib.util import find_spec
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from ..host import gpus, machine

PACKAGES = ("synkhronos", "Theano", "pytensor", "cloudpickle")  # must have equal versions, or be missing, on all hosts


class HostFacts(NamedTuple):
    """Name, resources and software versions of a host."""

    name: str
    cores: int  # number of cores available to its ranks
    versions: Dict[str, Optional[str]]
    processes: Tuple[int, ...]  # ids of the bridge, or of a serving process and its keeper
    place: Optional[int] = None  # its rank in MPI_COMM_WORLD if MPI sends large arrays; set by the first host
    files: Optional[int] = None  # the limit on open files per process
    n_gpus: int = 0  # number of GPUs available to its ranks
    has_pygpu: bool = False  # whether pygpu is installed; determined without importing it


def facts(*processes: int) -> HostFacts:
    """Return this host's properties, including the ids of this process and ``processes``, without opening a device."""
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
    return HostFacts(
        os.environ.get("SYNK_HOST_NAME") or socket.gethostname(),
        machine.core_budget(),
        versions,
        (os.getpid(), *processes),
        files=machine.descriptor_limit(),
        n_gpus=gpus.count_gpus(),
        has_pygpu=find_spec("pygpu") is not None,
    )


def differences(hosts: Sequence[HostFacts]) -> List[str]:
    """Return a sentence for each version that differs between the first host and another host."""
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
