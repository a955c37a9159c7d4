"""Facts about one host, for comparison with the other hosts."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterable, List, Mapping, NamedTuple, Tuple

from ...cluster.environment import ProcessPlace, chosen_interfaces, on_one_machine
from ...host import gpus
from ...host.interfaces import Interface, interfaces
from ...host.machine import available_memory, usable_cores
from ...kernels import copy as streaming
from .. import doctor

#: Packages that serialize or execute the code and data that hosts exchange, so their versions must be equal.
PACKAGES = ("numpy", "scipy", "cloudpickle", "theano", "pytensor", "numba", "lasagne", "mpi4py")


class CompileFolder(NamedTuple):
    """Compilation cache of an engine: the package's name, and the folder or, if it is not writable, the error."""

    engine: str
    path: str
    trouble: str = ""


@dataclass
class MachineFacts:
    """Facts that one process reports about its host, by default this one; for the first two see `ProcessPlace`."""

    process: int
    started_by: str
    local_size: int  # number of processes on this machine
    one_machine: bool  # whether each process counts as a host, even on one machine
    mpi: str  # name and version
    chosen: Tuple[Interface, ...]  # interfaces for traffic between hosts
    clock: float  # lead of this host's clock over host 0's, in seconds
    host: str = field(default_factory=platform.node)
    python: str = field(default_factory=platform.python_version)
    machine: str = field(default_factory=lambda: f"{platform.machine()}, {sys.byteorder}-endian")
    processor: str = field(default_factory=lambda: processor())  # model
    versions: Dict[str, str] = field(
        default_factory=lambda: {name: doctor.version_of(name) for name in present(PACKAGES)}
    )
    library: str = field(default_factory=lambda: fingerprint(Path(__file__).parents[2]))
    kernels: bool = field(default_factory=lambda: streaming.kernels is not None)  # whether they were built
    memfd: bool = field(default_factory=lambda: hasattr(os, "memfd_create"))
    cores: int = field(default_factory=lambda: len(usable_cores()))  # usable by this process
    all_cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    folders: Tuple[CompileFolder, ...] = field(
        default_factory=lambda: tuple(map(compile_folder, present(doctor.ENGINES)))
    )
    memory: int = field(default_factory=lambda: available_memory())  # bytes available
    shm: int = field(default_factory=lambda: size_of_shm())  # size of ``/dev/shm`` in bytes
    n_gpus: int = field(default_factory=lambda: gpus.count_gpus())


def gather(place: ProcessPlace, environ: Mapping[str, str], mpi: str, local_size: int, clock: float) -> MachineFacts:
    """Return the facts of this host; `mpi` is the MPI library's long description of itself."""
    process, started_by, one_machine = place.process, place.started_by, on_one_machine(environ)
    chosen = tuple(chosen_interfaces(environ, interfaces()))
    return MachineFacts(process, started_by, local_size, one_machine, name_of_mpi(mpi), chosen, clock)


def present(packages: Iterable[str]) -> List[str]:
    """Return the packages that are installed."""
    return list(filter(doctor.installed, packages))


def name_of_mpi(text: str) -> str:
    """Extract the name and version from an MPI library's long description of itself.

    >>> name_of_mpi("Open MPI v5.0.11, package: Open MPI runner@host Distribution, ident: 5.0.11, repo rev: v5.0.11")
    'Open MPI v5.0.11'
    >>> name_of_mpi("MPICH Version:      5.0.2\\nMPICH Release date: unreleased")
    'MPICH 5.0.2'
    """
    first = text.strip("\0 \n").split("\n")[0].split(",")[0]
    return re.sub(r"\s+", " ", first.replace("Version:", "")).strip()


def fingerprint(folder: Path) -> str:
    """Return a short hash of all Python modules below a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def processor(cpuinfo: str = "/proc/cpuinfo") -> str:
    """Return the model of the processor, or Python's name for it if ``/proc/cpuinfo`` does not contain the model."""
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", Path(cpuinfo).read_text(), re.M)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def compile_folder(engine: str) -> CompileFolder:
    """Query an engine's compilation cache in a subprocess, and try to write to it."""
    status, text = doctor.try_python(
        f"import os, tempfile, {engine}",
        f"folder = {engine}.config.base_compiledir",
        "os.makedirs(folder, exist_ok=True)",
        "tempfile.TemporaryFile(dir=folder).close()",
        "print(folder)",
    )
    return CompileFolder(engine, "", text) if status else CompileFolder(engine, text)


def size_of_shm(folder: str = "/dev/shm") -> int:
    """Return the size of a shared-memory folder in bytes; 0 if it does not exist."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return 0
    return room.f_blocks * room.f_frsize


def labels(facts: List[MachineFacts]) -> List[str]:
    """Return a unique name for each host; equal names get the process number as a suffix."""
    names = [each.host for each in facts]
    return [each.host if names.count(each.host) == 1 else f"{each.host}#{each.process}" for each in facts]
