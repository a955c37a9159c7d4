"""Facts about one host, for comparison with the other hosts."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Tuple

from ...cluster.environment import ProcessPlace, chosen_interfaces, on_one_machine
from ...host import gpus, machine
from ...host.interfaces import Interface, interfaces
from ...kernels import copy as streaming
from .. import doctor

#: Packages that serialize or execute the code and data that hosts exchange, so their versions must be equal.
PACKAGES = ("numpy", "scipy", "cloudpickle", "theano", "pytensor", "numba", "lasagne", "mpi4py")


class CompileFolder(NamedTuple):
    """Compilation cache of an engine: the package's name, and the folder or, if it is not writable, the error."""

    engine: str
    path: str
    trouble: str = ""


class MachineFacts(NamedTuple):
    """Facts that one process reports about its host; `process` and `started_by` are as in `ProcessPlace`."""

    process: int
    started_by: str
    local_size: int  # number of processes on this machine
    one_machine: bool  # whether each process counts as a host, even on one machine
    host: str
    python: str
    machine: str  # architecture and byte order
    processor: str  # model
    versions: Dict[str, str]  # of the installed `PACKAGES`
    library: str  # fingerprint of this library's sources
    kernels: bool  # whether the library's C kernels were built
    memfd: bool  # whether ``memfd_create`` exists
    mpi: str  # name and version
    cores: int  # usable by this process
    all_cores: int
    interfaces: Tuple[Interface, ...]  # interfaces that are up
    chosen: Tuple[Interface, ...]  # interfaces for traffic between hosts
    folders: Tuple[CompileFolder, ...]  # of the installed engines
    clock: float  # lead of this host's clock over host 0's, in seconds
    memory: int  # bytes available
    shm: int  # size of ``/dev/shm`` in bytes
    n_gpus: int


def gather(place: ProcessPlace, environ: Mapping[str, str], mpi: str, local_size: int, clock: float) -> MachineFacts:
    """Return the facts of this host; `mpi` is the MPI library's long description of itself."""
    found = interfaces()
    return MachineFacts(
        process=place.process,
        started_by=place.started_by,
        local_size=local_size,
        one_machine=on_one_machine(environ),
        host=platform.node(),
        python=platform.python_version(),
        machine=f"{platform.machine()}, {sys.byteorder}-endian",
        processor=processor(),
        versions={name: doctor.version_of(name) for name in PACKAGES if doctor.installed(name)},
        library=fingerprint(Path(__file__).parents[2]),
        kernels=streaming.kernels is not None,
        memfd=hasattr(os, "memfd_create"),
        mpi=name_of_mpi(mpi),
        cores=len(machine.usable_cores()),
        all_cores=os.cpu_count() or 1,
        interfaces=tuple(found),
        chosen=tuple(chosen_interfaces(environ, found)),
        folders=tuple(compile_folder(engine) for engine in doctor.ENGINES if doctor.installed(engine)),
        clock=clock,
        memory=machine.available_memory(),
        shm=size_of_shm(),
        n_gpus=gpus.count_gpus(),
    )


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
