"""What one host is like, as far as others have to be like it."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Tuple

from ...host import gpus, machine
from ...host.interfaces import Interface, interfaces
from ...kernels import copy as streaming
from ...launchers.hosts.environment import Place, chosen_interfaces, on_one_machine
from .. import doctor

#: What travels between hosts is made of these: their versions have to be the same.
PACKAGES = ("numpy", "scipy", "cloudpickle", "theano", "pytensor", "numba", "lasagne", "mpi4py")


class CompileFolder(NamedTuple):
    """Where an engine keeps what it has compiled.

    Attributes
    ----------
    engine : str
        The name of its package.
    path : str
        The folder; empty if the engine does not say.
    trouble : str
        What is wrong with it, or "".
    """

    engine: str
    path: str
    trouble: str = ""


class Facts(NamedTuple):
    """What one process tells of its host.

    Attributes
    ----------
    process, started_by, local_size
        As in `launchers.hosts.environment.Place`.
    one_machine : bool
        Whether each process counts as a host.
    host : str
        Its name.
    python, machine, processor : str
        The version of Python; architecture and byte order; the model.
    versions : dict
        Of those `PACKAGES` that are installed, by name.
    library : str
        A fingerprint of this library's sources.
    kernels, memfd : bool
        Whether the library's kernels in C were built, and nameless memory can be made.
    mpi : str
        Name and version of the MPI library.
    cores, all_cores : int
        Those that this process may use, and those that the machine has.
    interfaces, chosen : tuple of Interface
        Those that are up, and those by which other hosts may be reached.
    folders : tuple of CompileFolder
        Of the engines that are installed.
    clock : float
        Seconds by which the clock is ahead of host 0's.
    memory, shm : int
        Bytes of memory that are available, and that ``/dev/shm`` has in all.
    n_gpus : int
        GPUs that CUDA would show.
    """

    process: int
    started_by: str
    local_size: int
    one_machine: bool
    host: str
    python: str
    machine: str
    processor: str
    versions: Dict[str, str]
    library: str
    kernels: bool
    memfd: bool
    mpi: str
    cores: int
    all_cores: int
    interfaces: Tuple[Interface, ...]
    chosen: Tuple[Interface, ...]
    folders: Tuple[CompileFolder, ...]
    clock: float
    memory: int
    shm: int
    n_gpus: int


def gather(place: Place, environ: Mapping[str, str], mpi: str, local_size: int, clock: float) -> Facts:
    """Return the facts of this host.

    Parameters
    ----------
    place : Place
        The place of this process.
    environ : mapping
        The environment.
    mpi : str
        What the MPI library says about itself, of which the beginning is taken.
    local_size : int
        How many processes MPI sees on this host.
    clock : float
        Seconds by which its clock is ahead of host 0's.
    """
    found = interfaces()
    return Facts(
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
    """Return name and version from what an MPI library says about itself in many words.

    Examples
    --------
    >>> name_of_mpi("Open MPI v5.0.11, package: Open MPI runner@host Distribution, ident: 5.0.11, repo rev: v5.0.11")
    'Open MPI v5.0.11'
    >>> name_of_mpi("MPICH Version:      5.0.2\\nMPICH Release date: unreleased")
    'MPICH 5.0.2'
    """
    first = text.strip("\0 \n").split("\n")[0].split(",")[0]
    return re.sub(r"\s+", " ", first.replace("Version:", "")).strip()


def fingerprint(folder: Path) -> str:
    """Return some digits that change with any of the modules in a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def processor(cpuinfo: str = "/proc/cpuinfo") -> str:
    """Return the model of the processor, or what Python knows of it."""
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", Path(cpuinfo).read_text(), re.M)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def compile_folder(engine: str) -> CompileFolder:
    """Ask an engine, in a process of its own, where it compiles, and try to write there."""
    status, text = doctor.try_python(
        f"import os, tempfile, {engine}",
        f"folder = {engine}.config.base_compiledir",
        "os.makedirs(folder, exist_ok=True)",
        "tempfile.TemporaryFile(dir=folder).close()",
        "print(folder)",
    )
    return CompileFolder(engine, "", text) if status else CompileFolder(engine, text)


def size_of_shm(folder: str = "/dev/shm") -> int:
    """Return how many bytes the folder of shared memory has in all, 0 if there is none."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return 0
    return room.f_blocks * room.f_frsize


def labels(facts: List[Facts]) -> List[str]:
    """Return a name for each host that no other has: with the number of the process if two have the same."""
    names = [each.host for each in facts]
    return [each.host if names.count(each.host) == 1 else f"{each.host}#{each.process}" for each in facts]
